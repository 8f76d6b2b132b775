"""Ridge regressions of the regression targets on the floats of the train rows, beside which a model may learn
(`Model.start_beside`)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from gigabatch.loaders.tables.packed import PackedTable, unpack
from gigabatch.models.layers.line import Line
from gigabatch.models.model import Model

MOST_FLOATS = 1_000  # more have no line: time grows with the cube of their number
MOST_VALUES = 50  # of an id column that is among the regression's columns
BLOCK_NUMBERS = 1 << 24  # in float64 at a time
PENALTIES = tuple(10 ** (half / 2) for half in range(-16, 5))  # times the rows, of columns of deviation 1
LEAST_OF_ROWS = 0.1  # that the degrees of freedom leave
LEAST_REST = 1e-3  # deviations of the label: a training that goes on from here may have more to learn


def lines(model: Model, train: PackedTable) -> dict[int, Line]:
    """By output of each regression target without a log link, the ridge regression on all floats, in the model's units.

    Beside the floats the regression has a column for each value of the id columns of at most `MOST_VALUES`, so that a
    weight is of a float at one month, say; those of values are left out of the line, as a network learns them well.
    The penalty is the one of `PENALTIES` of the least generalised cross-validation (Golub, Heath and Wahba,
    Technometrics 1979): with n rows and d degrees of freedom, mean square / (1 - d / n)^2. By the root of this divisor
    the `rest` too, the deviation of what the line leaves, is larger than in the train rows.
    A row of weight 2 counts twice in the sums, and n is (sum of weights)^2 / sum of squared weights (Kish). Columns of
    one value get weight 0. No line where labels are all alike, where no penalty leaves enough rows, or for more than
    `MOST_FLOATS` columns. train: rows that weigh something.
    """
    scales = [scale for scale in model.target_scales if not scale.log]
    size = len(train.schema.floats)
    if not (scales and 0 < size <= MOST_FLOATS and len(train)):
        return {}
    ids, width = [], size
    for place, column in enumerate(train.schema.ids):
        if column.num_ids <= min(MOST_VALUES, MOST_FLOATS - width):
            ids.append(place)
            width += column.num_ids
    first = None
    total = squares = 0.0
    moments = torch.zeros(1 + width + len(scales), 1 + width + len(scales), dtype=torch.float64)
    for words in train.words.split(max(BLOCK_NUMBERS // len(moments), 1)):
        batch = unpack(train.schema, words.cpu())
        floats = batch.floats.double()
        first = floats[0].clone() if first is None else first  # so that what is far from 0 loses no digits
        values = [functional.one_hot(batch.ids[:, place].long(), train.schema.ids[place].num_ids) for place in ids]
        labels = model.standardised(batch.targets)
        columns = [labels[scale.target].double() for scale in scales]
        one = torch.ones(len(floats), dtype=torch.float64)
        weight = one if batch.weight is None else batch.weight.double()
        rows = torch.cat([one[:, None], floats - first, *values, torch.stack(columns, dim=1)], dim=1)
        moments += rows.T @ (rows * weight[:, None])
        total, squares = total + float(weight.sum()), squares + float((weight**2).sum())
    assert first is not None
    mean = moments[0, 1:] / total
    covariance = moments[1:, 1:] / total - torch.outer(mean, mean)
    deviation = covariance.diagonal()[:width].clamp(min=0).sqrt()
    # What rounding leaves of a column of one value is none.
    varies = deviation > 1e-7 * (moments.diagonal()[1 : 1 + width] / total).sqrt()
    deviation = torch.where(varies, deviation, torch.inf)
    spectrum, vectors = torch.linalg.eigh(covariance[:width, :width] / deviation[:, None] / deviation)
    spectrum, found = spectrum.clamp(min=0), {}
    for place, scale in enumerate(scales, start=width):
        along, variance = vectors.T @ (covariance[:width, place] / deviation), float(covariance[place, place])
        best = _best(spectrum, along, variance, total**2 / squares)
        if best is None:
            continue
        share, coefficients = best
        weight = (vectors @ coefficients / deviation)[:size]
        left = variance - float(2 * weight @ covariance[:size, place] - weight @ covariance[:size, :size] @ weight)
        bias = float(mean[place] - (mean[:size] + first) @ weight)
        found[scale.output] = Line(weight, bias, max(max(left, 0.0) ** 0.5 / share, LEAST_REST))
    return found


def _best(spectrum: Tensor, along: Tensor, variance: float, rows: float) -> tuple[float, Tensor] | None:
    """Of the least generalised cross-validation the share of the rows that its freedom leaves, and the coefficients
    along the eigenvectors."""
    found, least = None, math.inf
    for penalty in PENALTIES if variance > 0 else ():
        coefficients = along / (spectrum + penalty)
        share = 1 - (1 + float((spectrum / (spectrum + penalty)).sum())) / rows
        if share < LEAST_OF_ROWS:
            continue
        left = variance - float(2 * (coefficients * along).sum() - (spectrum * coefficients**2).sum())
        score = max(left, 0.0) ** 0.5 / share
        if score < least:
            found, least = (share, coefficients), score
    return found
