"""Moves the rows of embedding tables that a batch touched."""
