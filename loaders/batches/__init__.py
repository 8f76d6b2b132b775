"""Batch number to whole batch: resident tables, shards and streams, and the loader that hands batches out."""
