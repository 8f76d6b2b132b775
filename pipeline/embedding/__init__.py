"""Vectors of users and items, stored under a run."""
