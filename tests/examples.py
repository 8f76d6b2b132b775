"""How many examples a property test tries: a quarter in `make test` and CI, all in `make test-thorough`."""

import os

THOROUGH = bool(os.environ.get("GIGABATCH_THOROUGH"))
FEWEST = 10


def examples(count: int) -> int:
    """`count` of a thorough run; else a quarter, but not under ten."""
    return count if THOROUGH else min(count, max(FEWEST, count // 4))
