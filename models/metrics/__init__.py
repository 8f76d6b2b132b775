"""Metrics on the device: of single rows, and of rows ranked in groups."""
