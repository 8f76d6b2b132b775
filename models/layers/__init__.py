"""What models share: embedding tables, fields, the folded training pass."""
