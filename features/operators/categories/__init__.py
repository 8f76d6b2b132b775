"""Operators on categories and words."""
