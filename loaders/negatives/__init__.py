"""Sampled negatives, drawn anew each epoch, never a known positive."""
