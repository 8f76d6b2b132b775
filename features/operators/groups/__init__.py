"""Operators that join tables, and those that learn from groups of rows."""
