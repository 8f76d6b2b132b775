"""Lookups in several embedding tables, side by side in one row."""
