"""Dropout in plain torch, and its mask: the oracle for the compiled versions.

Element (b, n) of [B, N] is dropped where the upper 31 bits of a hash of its number b N + n (mod 2^32), under a seed of
64 bits, are less than rate 2^31. So a mask needs no memory and no order: the backward pass computes it anew, and no
number of threads changes it. The hash is the finaliser of MurmurHash3 (Appleby 2011) twice, half of the seed before
each; counters under a keyed hash as random numbers are those of Salmon et al., "Parallel random numbers: as easy as 1,
2, 3" (SC 2011).
"""

from __future__ import annotations

import torch
from torch import Tensor

WORD = 2**32


def draw_seeds(count: int, device: torch.device) -> Tensor:
    """Seeds of `count` masks, [count, 2] int64 from 0 to 2^32 - 1, from the device's own generator.

    They stay on the device, so that a captured CUDA graph draws new ones at each replay.
    """
    return torch.randint(WORD, (count, 2), device=device)


def threshold(rate: float) -> int:
    """Below it the upper 31 bits of a hash drop their element; an int32."""
    assert 0 <= rate < 1, rate
    return min(round(rate * WORD / 2), WORD // 2 - 1)


def int32_of(start: int) -> int:
    """The int32 with the lower 32 bits of a number, which kernels take as uint32: always of one type."""
    return (start + WORD // 2) % WORD - WORD // 2


def kept(seed: Tensor, rate: float, num_rows: int, num_columns: int, start: int = 0) -> Tensor:
    """Which elements of [num_rows, num_columns] stay, bool. seed: [2] int64, as `draw_seeds` gives it. start: number of
    the first element, where they are a part of more rows."""
    counters = start % WORD + torch.arange(num_rows * num_columns, device=seed.device).view(num_rows, num_columns)
    hashes = _mixed(_mixed((counters ^ seed[0]) % WORD) ^ seed[1])
    return hashes // 2 >= threshold(rate)


def _mixed(values: Tensor) -> Tensor:
    """The 32 bits of each number mixed, in int64."""
    values = ((values ^ (values >> 16)) * 0x85EBCA6B) % WORD
    values = ((values ^ (values >> 13)) * 0xC2B2AE35) % WORD
    return values ^ (values >> 16)


@torch.no_grad()
def dropout(
    values: Tensor,
    out: Tensor,
    seed: Tensor,
    rate: float,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    start: int = 0,
) -> None:
    """out <- (values scale + shift) / (1 - rate) where the mask keeps it, else 0; a dropped NaN stays one.

    values, out: [B, N], of a type in `FLOATS`, unit stride along a row; they may be the same tensor. seed: [2] int64.
    scale, shift: [N] float32; without them 1 and 0. start: number of the first element, from which the others follow.
    Computed in float32 and rounded once.
    """
    if scale is not None and shift is not None:
        values = torch.addcmul(shift, scale, values.to(scale.dtype))
    stays = kept(seed, rate, len(values), values.shape[1], start)
    out.copy_(values * (stays / (1 - rate)).to(values.dtype if values.dtype == torch.float64 else torch.float32))
