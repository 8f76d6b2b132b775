"""Metrics and importance of a model on a split; leave-one-out ranking."""
