"""Frames to batches: packed tables, sample order, batch sources and negatives."""
