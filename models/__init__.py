"""Batches to scores: models by kind, the layers they share, optimizers, metrics and kernels."""
