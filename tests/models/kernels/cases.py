"""Tables, ids and rules that the tests of every version of a kernel share. All values come from a NumPy generator."""

import itertools

import numpy as np
import torch

from gigabatch.models.kernels.row_update.rules import METHODS, RowRule

LOW = (torch.bfloat16, torch.float16)  # beside float32, what activations and their gradients may be kept in
KINDS = ("uniform", "zipf", "one-hot", "distinct")
# of every size class of the kernels: a few rows, widths that are and are not multiples of 4, one wider than a tile
SHAPES = [(50, 16), (3, 3), (300, 8), (4, 1), (57, 4), (5, 40), (1, 2), (70, 7)]


def tables(random, shapes=SHAPES, dtype=torch.float32):
    return [torch.tensor(random.normal(size=shape), dtype=torch.float32).to(dtype) for shape in shapes]


def ids(random, num_rows, shapes=SHAPES, kind="uniform"):
    """[num_rows, C] int32; zipf: exponent 1.05 over the vocabulary; distinct: as few repetitions as fit."""
    columns = []
    for height, _ in shapes:
        if kind == "uniform":
            column = random.integers(0, height, num_rows)
        elif kind == "zipf":
            weights = np.arange(1, height + 1) ** -1.05
            column = random.choice(height, num_rows, p=weights / weights.sum())
        elif kind == "one-hot":
            column = np.full(num_rows, random.integers(0, height))
        else:
            column = random.permutation(np.arange(num_rows) % height)
        columns.append(column)
    return torch.tensor(np.stack(columns, 1), dtype=torch.int32)


def gradient(random, num_rows, width, padding=0, dtype=torch.float32):
    """[num_rows, width], a view of wider rows where `padding` is asked for."""
    return torch.tensor(random.normal(size=(num_rows, width + padding)), dtype=torch.float32).to(dtype)


RULES = [
    RowRule(
        method,
        lr=0.03,
        weight_decay=0.01,
        l2=0.02,
        second_moment=second,
        step=step,
        clip_ratio=clip,
        clip_floor=0.1,
        trust_clip=None if second == "full" else 10.0,
    )
    for (method, second, step), clip in zip(
        itertools.product(METHODS, ("scalar", "full"), ("global", "row")),
        itertools.cycle((None, 0.3, 1.0)),
        strict=False,
    )
]


def rule_name(rule):
    return f"{rule.method}-{rule.second_moment}-{rule.step}-{rule.clip_ratio}"
