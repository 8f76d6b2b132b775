"""Models of users and items."""
