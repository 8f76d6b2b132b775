"""Passes over a layer's activations with batch norm folded in."""
