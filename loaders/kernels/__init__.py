"""Compiled loops that fetch rows in sample order."""
