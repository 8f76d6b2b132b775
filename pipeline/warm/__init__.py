"""Compiles the loops of the package before anything needs them."""
