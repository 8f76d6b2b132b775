"""Exit codes of a night, which its line in nightly.jsonl has, too."""

PROMOTED, KEPT, REFUSED, DRIFTED, FAILED = 0, 10, 20, 30, 40
DECIDED = (PROMOTED, KEPT)  # of the nights that came to a decision about a new model
