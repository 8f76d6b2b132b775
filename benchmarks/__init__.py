"""Benchmarks: `python -m benchmarks.NAME`."""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "30000")  # as the command line does, before torch is loaded
