"""Mean and deviation of regression targets in the rows that a model is trained on, exact in any order of the rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

from torch import Tensor

from gigabatch.features.exact.column_statistics import Moments
from gigabatch.features.schema import TensorSchema
from gigabatch.loaders.batches.dataset import BatchSource
from gigabatch.loaders.tables.packed import PackedTable, unpack
from gigabatch.models.model import TargetScale

BLOCK_ROWS = 1 << 20


def target_scales(rows: PackedTable | BatchSource) -> tuple[TargetScale, ...]:
    """The scale of each regression target; of one that is constant, or varies by less than 2^-100, the deviation is 1.

    Sample weights do not count. Of a source they are those of one epoch's batches, which it goes through once.
    """
    schema = rows.schema
    outputs = [sum(target.num_outputs for target in schema.targets[:place]) for place in range(len(schema.targets))]
    places = [place for place, target in enumerate(schema.targets) if target.task == "regression"]
    if not places:
        return ()
    moments = [
        [Moments.of(targets[place].cpu().contiguous().numpy()) for place in places]
        for targets in _targets(rows, schema)
    ]
    totals = [reduce(Moments.merge, parts) for parts in zip(*moments, strict=True)]
    scales = [total.scale() for total in totals]
    return tuple(
        TargetScale(place, outputs[place], scale.mean, scale.std) for place, scale in zip(places, scales, strict=True)
    )


def _targets(rows: PackedTable | BatchSource, schema: TensorSchema) -> Iterator[tuple[Tensor, ...]]:
    """The targets of all rows, block by block."""
    blocks = rows.words.split(BLOCK_ROWS) if isinstance(rows, PackedTable) else map(rows.words, range(len(rows)))
    return (unpack(schema, words).targets for words in blocks)
