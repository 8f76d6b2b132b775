"""Negative draws written again in Python's exact integers, one at a time: what every version must give, bit for bit."""

import math

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
PURPOSE = int.from_bytes(b"negative", "big")


def mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def bits(seed: int, epoch: int, position: int, k: int) -> int:
    start = mix((mix(((seed & MASK) ^ PURPOSE) + GOLDEN & MASK) + epoch) * GOLDEN & MASK)
    return mix(mix(start + position * GOLDEN & MASK) + (k + 1) * GOLDEN & MASK)


def uniform(seed: int, epoch: int, position: int, num_draws: int, item_ids: range, known: set[int]) -> list[int]:
    """The r-th of the listed complement."""
    complement = [item for item in item_ids if item not in known]
    return [complement[bits(seed, epoch, position, k) * len(complement) >> 64] for k in range(num_draws)]


def distinct(seed: int, epoch: int, position: int, num_draws: int, item_ids: range, known: set[int]) -> list[int]:
    """Floyd's algorithm as published: a new element, or the last one of the range where it is taken."""
    complement = [item for item in item_ids if item not in known]
    chosen: list[int] = []
    for k, last in enumerate(range(len(complement) - num_draws, len(complement))):
        rank = bits(seed, epoch, position, k) * (last + 1) >> 64
        chosen.append(last if rank in chosen else rank)
    return [complement[rank] for rank in chosen]


def weighted(
    seed: int, epoch: int, position: int, num_draws: int, item_ids: range, known: set[int], masses: list[int]
) -> list[int]:
    """The id at which the running sum over the complement passes the rank. masses: one for each id of `item_ids`."""
    complement = [(item, mass) for item, mass in zip(item_ids, masses, strict=True) if item not in known]
    total = sum(mass for _, mass in complement)
    drawn = []
    for k in range(num_draws):
        rank = bits(seed, epoch, position, k) * total >> 64
        for item, mass in complement:
            if rank < mass:
                drawn.append(item)
                break
            rank -= mass
    return drawn


def logs(drawn: list[int], item_ids: range, known: set[int], masses: list[int]) -> list[float]:
    total = sum(mass for item, mass in zip(item_ids, masses, strict=True) if item not in known)
    return [math.log(masses[item - item_ids.start] / total) for item in drawn]
