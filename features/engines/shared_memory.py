"""Whether a frame of pandas still holds the columns of another, told by their memory."""

from __future__ import annotations

from typing import Any


def holds_columns_of(found: Any, frame: Any) -> bool:
    """Whether the first columns of `found` are those of the frame, mostly since they lie in the very same memory.

    False says nothing: the columns may be equal. pandas' blocks are looked at, which takes microseconds, where a
    hundred columns one by one take a millisecond of each request.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"price": [1.5]})
    >>> holds_columns_of(frame.assign(cents=150), frame), holds_columns_of(frame * 2, frame)
    (True, False)
    """
    blocks, own = (getattr(getattr(each, "_mgr", None), "blocks", ()) for each in (found, frame))
    return (
        0 < len(own) <= len(blocks)
        and all(left.mgr_locs == right.mgr_locs for left, right in zip(blocks, own, strict=False))
        and all(_same_values(left.values, right.values) for left, right in zip(blocks, own, strict=False))
        and found.columns[: len(frame.columns)].equals(frame.columns)
    )


def _same_values(found: Any, own: Any) -> bool:
    if type(found) is not type(own) or found.dtype != own.dtype:
        return False
    if hasattr(own, "_pa_array"):
        return _memory(found._pa_array) == _memory(own._pa_array) or bool(found.equals(own))
    if hasattr(own, "__array_interface__"):
        return bool(found.__array_interface__ == own.__array_interface__)
    return bool(found.equals(own))


def _memory(array: Any) -> list[Any]:
    """Where the chunks of Arrow lie; a list's values too, as `buffers` descends to them."""
    return [
        (chunk.offset, len(chunk), [None if buffer is None else buffer.address for buffer in chunk.buffers()])
        for chunk in array.chunks
    ]
