"""What raw files must be like: learned from history, checked for every new file; which files are read, and drift."""
