"""What a column of a frame holds, whatever its type says: categories, numbers, lists, and hashes of values."""
