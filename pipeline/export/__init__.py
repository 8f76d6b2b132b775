"""Bundles for other runtimes, checked against the bundle."""
