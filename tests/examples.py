"""What `make test` and CI leave to `make test-thorough`: three quarters of the examples that a property test tries."""

import os

THOROUGH = bool(os.environ.get("GIGABATCH_THOROUGH"))
FEWEST = 10


def examples(count: int) -> int:
    """`count` of a thorough run; else a quarter, but not under ten."""
    return count if THOROUGH else min(count, max(FEWEST, count // 4))
