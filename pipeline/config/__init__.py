"""The checked configuration of a run; nothing heavy is imported here."""
