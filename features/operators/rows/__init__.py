"""Operators that change, choose or retype rows and columns."""
