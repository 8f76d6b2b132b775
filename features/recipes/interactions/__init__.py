"""Anyone's interactions of users with items, by YAML alone."""
