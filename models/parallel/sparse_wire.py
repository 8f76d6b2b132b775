"""Few elements of a long vector as bytes: where they stand and what they are.

Places travel in the smallest of three ways, which their number decides: gaps to the place before, in one byte each
(or two), or one bit for every element of the vector. A gap that a byte does not hold is filled by stops: 255 means "go
on by 255, no element here" (65535 for two bytes). Values are float32, or bfloat16 or float16 where asked.

    message: places | values          header, int32 [3], sent beforehand: kind of places, their bytes, number of values
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gigabatch.models.errors import require_known

VALUE_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
BITS, GAPS8, GAPS16 = range(3)
GAPS = {GAPS8: (torch.uint8, 255), GAPS16: (torch.int16, 65535)}
BIT_WEIGHTS = tuple(1 << bit for bit in range(8))


class Message(NamedTuple):
    """header: three numbers that the receiver must know beforehand. body: uint8 [n]."""

    header: tuple[int, int, int]
    body: Tensor


def rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    """float32 values as they will arrive; what is finite stays so, which float16 alone would not keep."""
    if dtype == torch.float32:
        return values
    limit = torch.finfo(dtype).max
    kept = torch.where(values.isfinite(), values.clamp(-limit, limit), values)
    return kept.to(dtype).float()


def pack(places: Tensor, values: Tensor, length: int, dtype: torch.dtype) -> Message:
    """Elements of a vector of `length` as a message.

    Parameters
    ----------
    places : Tensor
        int64 [k], ascending, each once.
    values : Tensor
        float32 [k], which `rounded` has made what `dtype` holds.
    length : int
        Elements of the vector.
    dtype : torch.dtype
        Of the values on the wire.

    Returns
    -------
    Message

    Examples
    --------
    >>> import torch
    >>> from gigabatch.models.parallel.sparse_wire import pack, unpack
    >>> message = pack(torch.tensor([3, 700]), torch.tensor([1.0, -2.0]), 1000, torch.bfloat16)
    >>> len(message.body), [part.tolist() for part in unpack(message.header, message.body, torch.bfloat16)]
    (8, [[3, 700], [1.0, -2.0]])
    """
    kind, coded = _places(places, length)
    sent = values.to(dtype).contiguous().view(torch.uint8)
    return Message((kind, len(coded), len(values)), torch.cat([coded, sent]))


def unpack(header: tuple[int, int, int], body: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Places int64 [k] and values float32 [k] of a message."""
    kind, num_bytes, _ = header
    return places_of(kind, body[:num_bytes]), body[num_bytes:].clone().view(dtype).float()


def _places(places: Tensor, length: int) -> tuple[int, Tensor]:
    steps = torch.diff(places, prepend=places.new_full((1,), -1)) - 1  # elements left out before each
    sizes = {BITS: -(-length // 8)}
    for kind, (dtype, stop) in GAPS.items():
        sizes[kind] = dtype.itemsize * (len(places) + int((steps // stop).sum()))
    kind = min(sizes, key=lambda one: sizes[one])
    if kind == BITS:
        marks = torch.zeros(8 * sizes[BITS], dtype=torch.uint8, device=places.device)
        marks[places] = 1
        weights = torch.tensor(BIT_WEIGHTS, dtype=torch.uint8, device=places.device)
        return kind, (marks.view(-1, 8) * weights).sum(1, dtype=torch.uint8)
    dtype, stop = GAPS[kind]
    stops = steps // stop
    ends = torch.cumsum(stops + 1, 0) - 1  # where each element's own gap stands, after its stops
    gaps = places.new_full((sizes[kind] // dtype.itemsize,), stop)
    gaps[ends] = steps % stop
    if dtype == torch.int16:  # two's complement has no 65535
        gaps = torch.where(gaps > 32767, gaps - 65536, gaps)
    return kind, gaps.to(dtype).view(torch.uint8)


def places_of(kind: int, coded: Tensor) -> Tensor:
    """Places int64 of their bytes."""
    require_known("kind of places", [str(kind)], [str(known) for known in (BITS, *GAPS)])
    if kind == BITS:
        weights = torch.tensor(BIT_WEIGHTS, dtype=torch.uint8, device=coded.device)
        return ((coded[:, None] & weights) > 0).flatten().nonzero().flatten()
    dtype, stop = GAPS[kind]
    gaps = coded.clone().view(dtype).long() & stop
    is_element = gaps < stop
    ends = torch.cumsum(torch.where(is_element, gaps + 1, gaps), 0)
    return ends[is_element] - 1
