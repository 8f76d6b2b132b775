"""Sums, moments and quantiles that depend on neither the order of rows nor the partitions."""
