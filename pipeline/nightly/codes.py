"""Exit codes of a night, which its line in nightly.jsonl has, too, and what its parts share."""

PROMOTED, KEPT, REFUSED, DRIFTED, FAILED = 0, 10, 20, 30, 40
DECIDED = (PROMOTED, KEPT)  # of the nights that came to a decision about a new model
MORE_IS_BETTER = ("AUC", "MRR")  # metrics
MIN_ROWS = 100  # of a slice, of one weight
AS_CONFIGURED = "as the configuration says"  # why a night starts as it does
