"""Generators of data sets in the formats of trivago and MovieLens."""
