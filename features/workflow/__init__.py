"""Operators put together: steps, what flows between them, fitting, saved states, drawing."""
