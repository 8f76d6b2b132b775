"""Ridge regressions of the regression targets on the floats of the train rows, beside which a model may learn
(`Model.start_beside`)."""

from __future__ import annotations

import torch
from torch import Tensor

from gigabatch.loaders.tables.packed import PackedTable, unpack
from gigabatch.models.layers.line import Line
from gigabatch.models.model import Model

MOST_FLOATS = 1_000  # more have no line: time grows with the cube of their number
BLOCK_NUMBERS = 1 << 24  # in float64 at a time
PENALTIES = tuple(10 ** (half / 2) for half in range(-16, 5))  # times the rows, of columns of deviation 1
MOST_OF_ROWS = 0.9  # degrees of freedom, as a share of the rows
LEAST_REST = 1e-3  # deviations of the label: a training that goes on from here may have more to learn


def lines(model: Model, train: PackedTable) -> dict[int, Line]:
    """By output of each regression target without a log link, the ridge regression on all floats, in the model's units.

    The penalty is the one of `PENALTIES` of the least generalised cross-validation (Golub, Heath and Wahba,
    Technometrics 1979): with n rows and d degrees of freedom, mean square / (1 - d / n)^2, whose root is the `rest`.
    A row of weight 2 counts twice in the sums, and n is (sum of weights)^2 / sum of squared weights (Kish). Columns of
    one value get weight 0. No line where labels are all alike, where no penalty leaves enough rows, or for more than
    `MOST_FLOATS` columns. train: rows that weigh something.
    """
    scales = [scale for scale in model.target_scales if not scale.log]
    size = len(train.schema.floats)
    if not (scales and 0 < size <= MOST_FLOATS and len(train)):
        return {}
    first = None
    total = squares = 0.0
    moments = torch.zeros(1 + size + len(scales), 1 + size + len(scales), dtype=torch.float64)
    for words in train.words.split(max(BLOCK_NUMBERS // len(moments), 1)):
        batch = unpack(train.schema, words.cpu())
        floats = batch.floats.double()
        first = floats[0].clone() if first is None else first  # so that what is far from 0 loses no digits
        labels = model.standardised(batch.targets)
        columns = [labels[scale.target].double() for scale in scales]
        one = torch.ones(len(floats), dtype=torch.float64)
        weight = one if batch.weight is None else batch.weight.double()
        rows = torch.cat([one[:, None], floats - first, torch.stack(columns, dim=1)], dim=1)
        moments += rows.T @ (rows * weight[:, None])
        total, squares = total + float(weight.sum()), squares + float((weight**2).sum())
    assert first is not None
    mean = moments[0, 1:] / total
    covariance = moments[1:, 1:] / total - torch.outer(mean, mean)
    deviation = covariance.diagonal()[:size].clamp(min=0).sqrt()
    # What rounding leaves of a column of one value is none.
    varies = deviation > 1e-7 * (moments.diagonal()[1 : 1 + size] / total).sqrt()
    deviation = torch.where(varies, deviation, torch.inf)
    values, vectors = torch.linalg.eigh(covariance[:size, :size] / deviation[:, None] / deviation)
    values, found = values.clamp(min=0), {}
    for place, scale in enumerate(scales, start=size):
        along, variance = vectors.T @ (covariance[:size, place] / deviation), float(covariance[place, place])
        best = _best(values, along, variance, total**2 / squares)
        if best is None:
            continue
        rest, coefficients = best
        weight = vectors @ coefficients / deviation
        bias = float(mean[place] - (mean[:size] + first) @ weight)
        found[scale.output] = Line(weight, bias, max(rest, LEAST_REST))
    return found


def _best(values: Tensor, along: Tensor, variance: float, rows: float) -> tuple[float, Tensor] | None:
    """The root of the least generalised cross-validation, and the coefficients along the eigenvectors it is of."""
    best = None
    for penalty in PENALTIES if variance > 0 else ():
        coefficients = along / (values + penalty)
        freedom = 1 + float((values / (values + penalty)).sum())
        if freedom > MOST_OF_ROWS * rows:
            continue
        left = variance - float(2 * (coefficients * along).sum() - (values * coefficients**2).sum())
        rest = max(left, 0.0) ** 0.5 / (1 - freedom / rows)
        if best is None or rest < best[0]:
            best = rest, coefficients
    return best
