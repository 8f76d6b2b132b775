"""Raw files to frames, with errors that name file and column."""
