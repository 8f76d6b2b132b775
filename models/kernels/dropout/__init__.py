"""Dropout whose mask is computed from counters, not drawn and kept."""
