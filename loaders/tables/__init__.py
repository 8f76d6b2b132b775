"""Packed tables: 4-byte words in rows, list columns beside them, and their files."""
