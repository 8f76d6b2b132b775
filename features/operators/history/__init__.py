"""Operators on what came before a row."""
