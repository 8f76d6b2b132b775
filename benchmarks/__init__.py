"""Benchmarks: `python -m benchmarks.NAME`."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line does, before torch is loaded
