"""Predictions over HTTP: `gigabatch serve` (docs/serving.md). Importing this package loads nothing."""
