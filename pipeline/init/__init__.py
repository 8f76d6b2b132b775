"""`gigabatch init`: a look at a user's own table, and a configuration of the recipe `table` that runs as it is."""
