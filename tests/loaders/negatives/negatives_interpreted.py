"""Run as a script with TRITON_INTERPRET=1: the Triton kernels, interpreted, give what the reference gives."""

import itertools
import sys

import torch

from gigabatch.loaders.negatives import draws_cuda as negatives_cuda
from gigabatch.loaders.negatives import draws_reference as negatives_reference
from gigabatch.loaders.negatives.draws import KnownPositives, NegativeSampler, PopularityNegatives, UniformNegatives

NUM_USERS, NUM_IDS = 30, 70


def compare(sampler: NegativeSampler, num_rows: int) -> None:
    generator = torch.Generator().manual_seed(num_rows)
    positions = torch.randint(-(2**62), 2**62, (num_rows,), generator=generator)
    users = torch.randint(0, NUM_USERS, (num_rows,), generator=generator, dtype=torch.int32)
    given = []
    for kernels in (negatives_reference, negatives_cuda):
        sampler._kernels = kernels
        given.append(sampler(positions, users))
    for name, expected, found in zip(given[0]._fields, *given, strict=True):
        case = f"{type(sampler).__name__}, {num_rows} rows, {sampler.num_negatives} negatives: {name}"
        assert expected.dtype == found.dtype, case
        assert torch.equal(expected, found), case


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    users = torch.randint(0, NUM_USERS, (500,), generator=generator)
    items = torch.randint(0, NUM_IDS, (500,), generator=generator)
    some = KnownPositives.from_pairs(users, items, NUM_USERS)
    one = KnownPositives.from_pairs(users[:1], items[:1], NUM_USERS)
    none = KnownPositives.from_pairs(users[:0], items[:0], NUM_USERS)
    counts = 10.0 ** (torch.rand(NUM_IDS, generator=generator, dtype=torch.float64) * 12)
    item_ids = range(3, NUM_IDS)
    for known, num_negatives, num_rows in itertools.product((some, one, none, None), (1, 5), (0, 1, 130)):
        compare(UniformNegatives(item_ids, num_negatives, known, seed=7), num_rows)
        compare(UniformNegatives(item_ids, num_negatives, known, replacement=False, seed=-7), num_rows)
        compare(PopularityNegatives(item_ids, num_negatives, counts, known=known), num_rows)
    compare(UniformNegatives(item_ids, 40, some, replacement=False), 130)


if __name__ == "__main__":
    main()
    sys.stdout.write("all equal\n")
