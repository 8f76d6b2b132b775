"""Columns whose names say that they hold users or items."""

from __future__ import annotations

import re
from collections.abc import Collection

from gigabatch.pipeline.init.columns import spaced_lower

NAMED_AS = r"(^|_){}([_ -]?(id|ids|key|uuid|guid|nr|no|num|number|code))?$"
ENTITY_NAMES = {
    "user": re.compile(NAMED_AS.format(
        "(user|customer|client|visitor|member|buyer|shopper|reader|viewer|listener|player|reviewer|kunde|nutzer)")),
    "item": re.compile(NAMED_AS.format(
        "(item|product|movie|film|video|book|isbn|track|song|article|game|recipe|restaurant|business|hotel|asin|sku|produkt"
        "|artikel)")),
}  # fmt: skip


def named_as(entity: str, names: Collection[str]) -> list[str]:
    """The columns of a log that may hold users, or items; `items` may, which is a number in other tables.

    >>> named_as("item", ["userId", "movieId", "title"]), named_as("user", ["users", "age"])
    (['movieId'], ['users'])
    """
    lower = {name: spaced_lower(name) for name in map(str, names)}
    named = ENTITY_NAMES[entity]
    return [name for name, text in lower.items() if named.search(text) or named.search(text.removesuffix("s"))]


def log_of(names: Collection[str], target: str) -> tuple[str, str] | None:
    """The columns of users and items where the target is one of them, so that the table is a log of choices.

    >>> log_of(["user", "items"], "items"), log_of(["user", "items", "price"], "price")
    (('user', 'items'), None)
    """
    users, items = (named_as(entity, names) for entity in ENTITY_NAMES)
    found = next(((user, item) for user in users for item in items if target in (user, item)), None)
    return found if found is not None and found[0] != found[1] else None
