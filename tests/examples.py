"""What `make test` and CI leave to `make test-thorough`: three quarters of the examples that a property test tries, and
cases of a test that take long and are much like others of it."""

import os
from collections.abc import Iterable

THOROUGH = bool(os.environ.get("GIGABATCH_THOROUGH"))
FEWEST = 10


def examples(count: int) -> int:
    """`count` of a thorough run; else a quarter, but not under ten."""
    return count if THOROUGH else min(count, max(FEWEST, count // 4))


def some(cases: Iterable[str], *kept: str) -> list[str]:
    """`cases` of a thorough run; else those that are `kept`, each of which is one of them."""
    cases = list(cases)
    assert set(kept) <= set(cases), set(kept) - set(cases)
    return cases if THOROUGH else [case for case in cases if case in kept]
