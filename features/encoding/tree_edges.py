"""Fit edges of bins by the targets: `preprocess.edges: tree`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gigabatch.features.columns.numbers import float_values
from gigabatch.features.encoding.settings import MOST_BINS
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.errors import DataError
from gigabatch.features.exact.bin_edges import ROWS_PER_VALUE
from gigabatch.features.exact.tree_edges import tree_splits
from gigabatch.features.history.grouped_sums import LIMIT, GroupedSums
from gigabatch.features.operators.base import FittedOperator
from gigabatch.features.refit.statistics import FillAndScale, FilledScale, FitStatistics
from gigabatch.features.schema import Target

MOST_CLASSES = 1024  # of a target: their sums are held for each of some 2,000 cells
SMALLER = 2.0**-64  # what is summed stays below `GroupedSums`' limit; a power of two loses no bit

# Of a frame: arrays of its labels, and of its weights where it has any, by column.
LabelsOf = Callable[[Any], Mapping[str, Any]]


class FitTreeEdges(FitStatistics):
    """Fit a continuous column as `FillAndScale` does, with edges at the splits of a tree of this column alone.

    The splits lie between cells of the column: each of `MOST_BINS` quantile edges, and what lies between two. One pass
    more than for quantiles finds the exact sums of labels in each cell.

    Parameters
    ----------
    filling
        What else is fitted, with the number of bins, and of distinct values that are edges instead.
    targets
        What the tree is to tell, from one. Of several it lessens the sum of their errors, each over its variance.
    weight
        Name of the column of rows' weights, or None.
    labels
        Gives a frame's targets and weights.

    Raises
    ------
    DataError
        If there is no target, or one has more than `MOST_CLASSES` classes; in the fit, if the square of a label is too
        large to be summed, or the labels of every target are all alike.
    """

    def __init__(self, filling: FillAndScale, targets: Sequence[Target], weight: str | None, labels: LabelsOf) -> None:
        if not targets:
            raise DataError(
                "preprocess.edges: a tree needs a target to split by, and the schema has none. Take quantile edges "
                "(preprocess.edges=quantile)."
            )
        if large := [target for target in targets if target.num_outputs > MOST_CLASSES]:
            raise DataError(
                f"preprocess.edges: the target {large[0].name!r} has {large[0].num_outputs} classes, and a tree takes "
                f"at most {MOST_CLASSES}. Take quantile edges (preprocess.edges=quantile)."
            )
        super().__init__(filling.column)
        self.filling, self.targets, self.weight, self.labels = filling, tuple(targets), weight, labels
        self.pass_: FittedOperator = FillAndScale(
            filling.column, filling.indicator, filling.scale, MOST_BINS, filling.distinct
        )

    @property
    def inputs(self) -> tuple[str, ...]:
        names = [self.column, *(target.name for target in self.targets)]
        return tuple(names if self.weight is None else [*names, self.weight])

    def partial(self, frame: Any) -> Any:
        return self.pass_.partial(frame)

    def together(self, frame: Any) -> Any:
        return self.pass_.together(frame)

    def merge(self, left: Any, right: Any) -> Any:
        return self.pass_.merge(left, right)

    def following(self, partial: Any) -> FittedOperator | None:
        following = self.pass_.following(partial)
        if following is None:
            state = self.pass_.finish(partial)
            return _CellPass(self, state) if state.edges else None
        after = FitTreeEdges(self.filling, self.targets, self.weight, self.labels)
        after.pass_ = following
        return after

    def finish(self, partial: Any) -> FilledScale:
        return self.pass_.finish(partial)


@dataclass(frozen=True)
class _Cells:
    """sums: of the rows whose value is known. ends: lowest and highest label of each target, over all rows that weigh
    something; inf and -inf where none does."""

    sums: list[GroupedSums]
    ends: list[tuple[float, float]]


class _CellPass(FitStatistics):
    """The last pass: sums of labels in the cells that the edges of `state` make."""

    def __init__(self, fit: FitTreeEdges, state: FilledScale) -> None:
        super().__init__(fit.column)
        self.fit_, self.state = fit, state

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.fit_.inputs

    def partial(self, frame: Any) -> _Cells:
        """Sums by cell of values and weights; then of each target, by cell and class."""
        engine, where = engine_of(frame), f"preprocess.edges: tree of column {self.column!r}"
        values = float_values(frame[self.column], where)
        known = values == values
        values = values[known]
        xp = engine.arrays
        grid = xp.asarray(np.array(self.state.edges))
        # 2 i + 1: the edge i itself; 2 i: what lies between the edges i - 1 and i.
        cell = xp.searchsorted(grid, values) + xp.searchsorted(grid, values, side="right")
        labels = self.fit_.labels(frame)
        weight, counted = xp.ones(len(values)), None
        if self.fit_.weight is not None:
            weight, counted = labels[self.fit_.weight][known].astype("float64"), labels[self.fit_.weight] > 0

        def sums(by: dict[str, Any], summed: dict[str, Any], where: str) -> GroupedSums:
            small = {name: column * SMALLER for name, column in summed.items()}
            rows = engine.frames.DataFrame({**by, **small})
            return GroupedSums.of(rows, list(by), list(small), where, squares=False)

        found, ends = [sums({"cell": cell}, {"value": values, "weight": weight}, where)], []
        for target in self.fit_.targets:
            every = labels[target.name] if counted is None else labels[target.name][counted]
            ends.append((float(every.min()), float(every.max())) if len(every) else (math.inf, -math.inf))
            label, of_target = labels[target.name][known], f"{where}, target {target.name!r}"
            if target.task == "multiclass":
                found.append(sums({"cell": cell, "class": label.astype("int64")}, {"weight": weight}, of_target))
                continue
            times = {"label": weight * label.astype("float64")}
            times["square"] = times["label"] * label.astype("float64")
            if bool((times["square"] > LIMIT / SMALLER).any()):
                largest = float(weight.max())
                raise DataError(
                    f"{of_target}: labels beyond {(LIMIT / SMALLER / largest) ** 0.5:.3g} with weights of up to "
                    f"{largest:.3g}, and the tree sums their squares. Divide the labels by a constant, or take "
                    "quantile edges (preprocess.edges=quantile)."
                )
            found.append(sums({"cell": cell}, times, of_target))
        return _Cells(found, ends)

    def merge(self, left: _Cells, right: _Cells) -> _Cells:
        ends = zip(left.ends, right.ends, strict=True)
        return _Cells(
            [mine.merge(other) for mine, other in zip(left.sums, right.sums, strict=True)],
            [(min(mine[0], other[0]), max(mine[1], other[1])) for mine, other in ends],
        )

    def finish(self, partial: _Cells) -> FilledScale:
        keys, (values, weighed) = partial.sums[0].on_host()
        cells, weights = keys["cell"].to_numpy(), weighed.sum() / SMALLER
        low, high = values.low / SMALLER, values.high / SMALLER
        bins, distinct = self.fit_.filling.bins, self.fit_.filling.distinct
        few = max(bins + 1, min(distinct, int(values.count.sum()) // ROWS_PER_VALUE))
        if (cells % 2 == 1).all() and len(cells) <= few:
            return self.state  # each value is an edge
        if all(low >= high for low, high in partial.ends):
            names = ", ".join(repr(target.name) for target in self.fit_.targets)
            raise DataError(
                f"preprocess.edges: tree of column {self.column!r}: all labels of {names} in the train split are "
                "alike, so no tree tells them apart, as where all rows are positives (train.negatives). Take quantile "
                "edges (preprocess.edges=quantile)."
            )
        sums = [
            _outputs(target, found, cells, weights)
            for target, found in zip(self.fit_.targets, partial.sums[1:], strict=True)
        ]
        cuts = tree_splits(values.count, weights, np.concatenate(sums, axis=1), bins)
        between = [(float(high[cut - 1]) + float(low[cut])) / 2 for cut in cuts]
        return replace(self.state, edges=(float(low[0]), *between, float(high[-1])))


def _outputs(target: Target, found: GroupedSums, cells: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """float64 [C, O]: sums of a target's outputs by cell, over its deviation."""
    keys, totals = found.on_host()
    total = weights.sum()
    if target.task == "multiclass":
        sums = np.zeros((len(cells), target.num_outputs))
        sums[np.searchsorted(cells, keys["cell"].to_numpy()), keys["class"].to_numpy()] = totals[0].sum() / SMALLER
        variance = 1 - ((sums.sum(axis=0) / total) ** 2).sum() if total > 0 else 0.0
    else:
        sums = totals[0].sum()[:, None] / SMALLER
        mean = sums.sum() / total if total > 0 else 0.0
        variance = totals[1].sum().sum() / SMALLER / total - mean**2 if total > 0 else 0.0
    return sums / np.sqrt(variance) if variance > 0 else np.zeros_like(sums)
