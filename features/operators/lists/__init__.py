"""Operators on list columns."""
