"""The largest useful batch, its learning rate, and whether it costs quality."""
