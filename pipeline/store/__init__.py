"""Content-addressed folders, written whole or not at all; parsed input files that are kept."""
