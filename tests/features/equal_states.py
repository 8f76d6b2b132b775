"""When two fitted states are the same to the last bit."""

import dataclasses
from collections.abc import Mapping

from gigabatch.features.workflow.state import table_kind


def same(left, right):
    """Whether two states are equal to the last bit, tables by value, type and index."""
    kind = table_kind(left)
    if type(left) is not type(right) or kind != table_kind(right):
        return False
    if kind in ("frame", "series"):
        return left.equals(right) and list(left.index) == list(right.index)
    if kind == "array":
        return left.dtype == right.dtype and left.tobytes() == right.tobytes()
    if dataclasses.is_dataclass(left) and not isinstance(left, type):
        return all(same(getattr(left, item.name), getattr(right, item.name)) for item in dataclasses.fields(left))
    if isinstance(left, Mapping):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return repr(left) == repr(right)  # tells -0.0 from 0.0, and a NaN equals itself
