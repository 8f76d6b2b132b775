"""New York flights of 2013."""
