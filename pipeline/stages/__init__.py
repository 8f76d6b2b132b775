"""The stages features, encode and train, the run they end in, scoring and refitting."""
