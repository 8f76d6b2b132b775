"""Ridge regressions of the regression targets on the floats of the train rows, beside which a model may learn
(`Model.start_beside`)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from gigabatch.loaders.tables.packed import PackedTable, unpack
from gigabatch.models.layers.line import Line
from gigabatch.models.model import Model

MOST_FLOATS = 1_000  # more have no line: time grows with the cube of their number
MOST_VALUES = 50  # of an id column that may be among the regression's columns
GAIN = 0.9  # at most times the error without them
MOST_ROWS = 1 << 18  # of more each second, third, ... is looked at: tens of millions would take an hour
BLOCK_NUMBERS = 1 << 24  # in float64 at a time
PENALTIES = tuple(10 ** (half / 2) for half in range(-16, 5))  # times the rows, of columns of deviation 1
LEAST_OF_ROWS = 0.1  # that the degrees of freedom leave
LEAST_REST = 1e-3  # deviations of the label: a training that goes on from here may have more to learn


def lines(model: Model, train: PackedTable) -> dict[int, Line]:
    """By output of each regression target without a log link, the ridge regression on all floats, in the model's units.

    Beside the floats the regression has a column for each value of an id column of at most `MOST_VALUES`, where these
    lower the error by a tenth, so that a weight is of a float at one month, say; those of values are left out of the
    line, as a network learns them well. Values of keys that gain less would only make earlier labels of the same key
    weigh less than they do (Nickell, Econometrica 1981).
    The penalty is the one of `PENALTIES` of the least generalised cross-validation (Golub, Heath and Wahba,
    Technometrics 1979): with n rows and d degrees of freedom, mean square / (1 - d / n)^2. By the root of this divisor
    the `rest` too, the deviation of what the line leaves, is larger than in the train rows.
    Of more than `MOST_ROWS` rows each second, third, ... is one of the regression's.
    A row of weight 2 counts twice in the sums, and n is (sum of weights)^2 / sum of squared weights (Kish). Columns of
    one value get weight 0. No line where labels are all alike, where no penalty leaves enough rows, or for more than
    `MOST_FLOATS` columns. train: rows that weigh something.
    """
    outputs: dict[int, list[int]] = {}  # by target: those of its quantiles have one scale, and so one line
    for scale in model.target_scales:
        if not scale.log:
            outputs.setdefault(scale.target, []).append(scale.output)
    size = len(train.schema.floats)
    if not (outputs and 0 < size <= MOST_FLOATS and len(train)):
        return {}
    ids, width = [], size
    for place, column in enumerate(train.schema.ids):
        if column.num_ids <= min(MOST_VALUES, MOST_FLOATS - width):
            ids.append(place)
            width += column.num_ids
    first = None
    total = squares = 0.0
    moments = torch.zeros(1 + width + len(outputs), 1 + width + len(outputs), dtype=torch.float64)
    step = -(-len(train) // MOST_ROWS)
    for words in train.words[::step].split(max(BLOCK_NUMBERS // len(moments), 1)):
        batch = unpack(train.schema, words.cpu())
        floats = batch.floats.double()
        first = floats[0].clone() if first is None else first  # so that what is far from 0 loses no digits
        values = [functional.one_hot(batch.ids[:, place].long(), train.schema.ids[place].num_ids) for place in ids]
        labels = model.standardised(batch.targets)
        columns = [labels[target].double() for target in outputs]
        one = torch.ones(len(floats), dtype=torch.float64)
        weight = one if batch.weight is None else batch.weight.double()
        rows = torch.cat([one[:, None], floats - first, *values, torch.stack(columns, dim=1)], dim=1)
        moments += rows.T @ (rows * weight[:, None])
        total, squares = total + float(weight.sum()), squares + float((weight**2).sum())
    assert first is not None
    mean = moments[0, 1:] / total
    covariance = moments[1:, 1:] / total - torch.outer(mean, mean)
    # What rounding leaves of a column of one value is none.
    squared = covariance.diagonal() * (covariance.diagonal() > 1e-14 * moments.diagonal()[1:] / total)
    deviation, effective = squared.sqrt().where(squared > 0, torch.inf), total**2 / squares
    found: dict[int, Line] = {}
    for place, own_outputs in enumerate(outputs.values(), start=width):
        chosen, start = list(range(size)), size
        best = _ridge(covariance, deviation, chosen, place, effective)
        for own in ids:
            stop = start + train.schema.ids[own].num_ids
            tried = _ridge(covariance, deviation, [*chosen, *range(start, stop)], place, effective)
            if tried is not None and (best is None or tried.error < GAIN * best.error):
                best, chosen = tried, [*chosen, *range(start, stop)]
            start = stop
        if best is None:
            continue
        weight = best.weight[:size]
        left = covariance[place, place] - 2 * weight @ covariance[:size, place]
        left += weight @ covariance[:size, :size] @ weight
        bias = float(mean[place] - (mean[:size] + first) @ weight)
        line = Line(weight, bias, max(max(float(left), 0.0) ** 0.5 / best.share, LEAST_REST))
        found |= dict.fromkeys(own_outputs, line)
    return found


class _Ridge(NamedTuple):
    """error: the root of the generalised cross-validation. share: of the rows that the freedom leaves."""

    error: float
    share: float
    weight: Tensor


def _ridge(covariance: Tensor, deviation: Tensor, columns: list[int], place: int, rows: float) -> _Ridge | None:
    """The ridge regression of the variable at `place` on those at `columns` of the least cross-validation."""
    variance, spread, found = float(covariance[place, place]), deviation[columns], None
    if variance <= 0:
        return None
    spectrum, vectors = torch.linalg.eigh(covariance[columns][:, columns] / spread[:, None] / spread)
    spectrum, along = spectrum.clamp(min=0), vectors.T @ (covariance[columns, place] / spread)
    for penalty in PENALTIES:
        coefficients = along / (spectrum + penalty)
        share = 1 - (1 + float((spectrum / (spectrum + penalty)).sum())) / rows
        if share < LEAST_OF_ROWS:
            continue
        left = variance - float(2 * (coefficients * along).sum() - (spectrum * coefficients**2).sum())
        error = max(left, 0.0) ** 0.5 / share
        if found is None or error < found.error:
            found = _Ridge(error, share, vectors @ coefficients / spread)
    return found
