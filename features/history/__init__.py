"""What was known before a time: counts, sums and last values of earlier events; sums by group."""
