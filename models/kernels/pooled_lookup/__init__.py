"""Lists of rows of an embedding table, pooled to one vector a list, and the gradient of each row looked up."""
