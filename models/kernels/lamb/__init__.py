"""LAMB over many small parameters at once."""
