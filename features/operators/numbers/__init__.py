"""Operators on numbers."""
