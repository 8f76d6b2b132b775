"""Models of the shelf under one budget."""
