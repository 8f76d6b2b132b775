"""Operators on nulls."""
