"""Piecewise-linear functions of floats, for training on a CPU; elsewhere `layers/numeric.py` computes them in torch."""
