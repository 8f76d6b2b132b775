"""MovieLens in its three formats."""
