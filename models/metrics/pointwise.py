"""Exact evaluation metrics on the device of their inputs, summed in float64.

Each takes predictions and labels [n] (or [n, K] for K classes), an optional weight [n] of the rows, and returns a 0-d
float64 tensor. Labels of binary metrics are 0 and 1 in any dtype. Inputs that are empty, contain NaN or differ in
length are a `ModelError`, found by one read from the device: metrics belong outside the training step.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gigabatch.models.errors import ModelError, require

PROBABILITY_CLIP = torch.finfo(torch.float32).eps
"""Log losses take probabilities to be at least this far from 0 and 1, as scikit-learn does for float32."""


class RocCurve(NamedTuple):
    """Points of a ROC curve from (0, 0) to (1, 1), float64, in order of falling threshold.

    A row counts as predicted positive if its score is at least the threshold; the first threshold is infinite.
    """

    false_positive_rate: Tensor
    true_positive_rate: Tensor
    threshold: Tensor


class CalibrationCurve(NamedTuple):
    """Bins of a reliability diagram, empty ones left out: mean confidence, share of hits and weight of the bin's rows
    (float64; without weights each row weighs 1), and how many these are (int64)."""

    confidence: Tensor
    accuracy: Tensor
    weight: Tensor
    num_rows: Tensor


def roc_auc(scores: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
    """Area under the ROC curve: the chance that a positive outranks a negative, a tie counting half.

    Parameters
    ----------
    scores : Tensor
        [n] floats; only their order counts.
    labels : Tensor
        [n] of 0 and 1, any dtype.
    weight : Tensor or None, default None
        [n], not negative; None weighs all rows alike.

    Returns
    -------
    Tensor
        0-d float64; NaN if there is only one class, for which no area is defined.

    Raises
    ------
    ModelError
        For no rows, other shapes, NaN, labels other than 0 and 1, or weights that are negative or all 0.

    Examples
    --------
    >>> import torch
    >>> from gigabatch.models.metrics.pointwise import roc_auc
    >>> roc_auc(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1])).item()
    0.75
    """
    _, false_positives, true_positives = threshold_counts("roc_auc", scores, labels, weight)
    return _area(false_positives, true_positives)


def average_precision(scores: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
    """Average precision: the precision at each threshold, by the share of positives that it adds, without
    interpolation; equal scores are one threshold. As scikit-learn's `average_precision_score`.

    Parameters
    ----------
    scores, labels, weight
        As of `roc_auc`.

    Returns
    -------
    Tensor
        0-d float64; NaN where there is no positive.

    Raises
    ------
    ModelError
        As `roc_auc`.

    Examples
    --------
    >>> import torch
    >>> from gigabatch.models.metrics.pointwise import average_precision
    >>> round(average_precision(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1])).item(), 4)
    0.8333
    """
    _, false_positives, true_positives = threshold_counts("average_precision", scores, labels, weight)
    found, others = true_positives.double(), false_positives.double()
    return (found.diff() / found[-1] * found[1:] / (found[1:] + others[1:])).sum()


def _area(false_positives: Tensor, true_positives: Tensor) -> Tensor:
    twice_area = (false_positives.diff() * (true_positives[1:] + true_positives[:-1])).sum()
    return twice_area.double() / (2 * false_positives[-1].double() * true_positives[-1])


class RocAucByWeight:
    """`roc_auc` of the same scores and labels for many weights, sorted once; bit for bit what it gives.

    Parameters
    ----------
    scores : Tensor
        [n] floats; only their order counts.
    labels : Tensor
        [n] of 0 and 1, any dtype.

    Raises
    ------
    ModelError
        As `roc_auc`.

    Examples
    --------
    >>> import torch
    >>> from gigabatch.models.metrics.pointwise import RocAucByWeight
    >>> area = RocAucByWeight(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1]))
    >>> area(torch.tensor([1, 1, 0, 1])).item()
    1.0
    """

    def __init__(self, scores: Tensor, labels: Tensor) -> None:
        check_rows("roc_auc", scores, labels, None)
        self.scores, self.order = _falling(scores)
        self.positive = as_positives("roc_auc", labels)[self.order]
        self.last_of_tie = _last_of_tie(self.scores).nonzero()[:, 0]

    def __call__(self, weight: Tensor) -> Tensor:
        """weight: [n], not negative, in the rows' own order; integers are faster. Returns a 0-d float64."""
        mass = weight[self.order]
        check_rows("roc_auc", mass, self.positive, mass)
        if weight.is_floating_point():  # whose sums depend on which rows take part
            some = (mass > 0).nonzero()[:, 0]
            return _area(*_counts(self.scores[some], self.positive[some], mass[some].double())[1:])
        whole, zero = mass.cumsum(0)[self.last_of_tie], mass.new_zeros(1)
        true_positives = torch.where(self.positive, mass, 0).cumsum(0)[self.last_of_tie]
        return _area(torch.cat([zero, whole - true_positives]), torch.cat([zero, true_positives]))


def roc_curve(scores: Tensor, labels: Tensor, weight: Tensor | None = None, *, max_points: int = 1000) -> RocCurve:
    """The ROC curve, thinned to `max_points` for plotting; rates of an absent class are NaN.

    Points on a straight line between others go first, which loses nothing. If there are still more than `max_points`
    corners, those nearest to evenly spaced places along the curve stay, both ends among them; then every corner left
    out lies within 2 / (max_points - 1) of one that stays, in |x| + |y|.
    """
    require(max_points >= 2, f"roc_curve: max_points must be at least 2, not {max_points}.")
    threshold, false_positives, true_positives = threshold_counts("roc_curve", scores, labels, weight)
    steps = (false_positives.diff() != 0) | (true_positives.diff() != 0)
    new = torch.cat([steps.new_ones(1), steps])  # a weight that is lost in the sum takes no step, nor a corner's place
    threshold, false_positives, true_positives = (part[new] for part in (threshold, false_positives, true_positives))
    corner = _corners(false_positives, true_positives)
    x, y = _rates(false_positives)[corner], _rates(true_positives)[corner]
    keep = _evenly_spaced(x + y, max_points) if len(x) > max_points else slice(None)
    return RocCurve(x[keep], y[keep], threshold[corner][keep])


def log_loss(probabilities: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean negative log likelihood of labels 0 and 1 under P(1).

    Probabilities are taken to be at least `PROBABILITY_CLIP` from 0 and 1.

    Parameters
    ----------
    probabilities : Tensor
        [n] floats in [0, 1].
    labels : Tensor
        [n] of 0 and 1, any dtype.
    weight : Tensor or None, default None
        [n], not negative; None weighs all rows alike.

    Returns
    -------
    Tensor
        0-d float64.

    Raises
    ------
    ModelError
        As `roc_auc`, and for probabilities outside [0, 1].

    Examples
    --------
    >>> import torch
    >>> from gigabatch.models.metrics.pointwise import log_loss
    >>> round(log_loss(torch.tensor([0.5, 0.5]), torch.tensor([0, 1])).item(), 6)
    0.693147
    """
    check_rows("log_loss", probabilities, labels, weight)
    return weighted_mean(log_losses(probabilities, labels), weight)


def log_losses(probabilities: Tensor, labels: Tensor) -> Tensor:
    """float64 [n]: what `log_loss` is the mean of."""
    _check_probabilities("log_loss", probabilities)
    positive = as_positives("log_loss", labels)
    p = probabilities.double().clamp(PROBABILITY_CLIP, 1 - PROBABILITY_CLIP)
    return -torch.where(positive, p.log(), (-p).log1p())


def multiclass_log_loss(probabilities: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean negative log probability [n, K] of the label's class [n] int, of 0 ... K-1; see `PROBABILITY_CLIP`."""
    check_rows("multiclass_log_loss", probabilities, labels, weight, num_dims=2)
    return weighted_mean(multiclass_log_losses(probabilities, labels), weight)


def multiclass_log_losses(probabilities: Tensor, labels: Tensor) -> Tensor:
    """float64 [n]: what `multiclass_log_loss` is the mean of."""
    _check_probabilities("multiclass_log_loss", probabilities)
    _check_classes("multiclass_log_loss", labels, probabilities.shape[1])
    p = probabilities.gather(1, labels.long()[:, None])[:, 0].double()
    return -p.clamp(PROBABILITY_CLIP, 1 - PROBABILITY_CLIP).log()


def accuracy(probabilities: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
    """Share of rows whose likeliest class is the label's: P(1) [n], of which 0.5 or more means 1, or [n, K]."""
    confidence, hits = _confidence_and_hits("accuracy", probabilities, labels, weight)
    if probabilities.dim() == 1:
        hits = hits == (confidence >= 0.5)
    return weighted_mean(hits.double(), weight)


def expected_calibration_error(
    probabilities: Tensor, labels: Tensor, num_bins: int = 15, weight: Tensor | None = None
) -> Tensor:
    """Expected calibration error (Guo et al., arXiv 1706.04599, equation 3) over bins of equal width, closed above.

    The sum over bins of (share of the weight) |mean confidence - share of hits|. For P(1) [n], confidence is P(1) and a
    hit is label 1; for [n, K], confidence is the highest probability and a hit is that class being the label.
    """
    curve = calibration_curve(probabilities, labels, num_bins, weight)
    return (curve.weight * (curve.confidence - curve.accuracy).abs()).sum() / curve.weight.sum()


def calibration_error_by_chance(probabilities: Tensor, num_bins: int = 15, weight: Tensor | None = None) -> Tensor:
    """About the mean of `expected_calibration_error` over labels that these probabilities are right for.

    It is above 0, as few rows a bin never have the very share of hits: the sum over a bin's rows of hit less confidence
    is nearly normal with mean 0, and the mean size of such a number is sqrt(2 / pi) of its deviation.
    """
    confidence = (probabilities.max(dim=1).values if probabilities.dim() == 2 else probabilities).double()
    mass = torch.ones_like(confidence) if weight is None else weight.double()
    variance = confidence.new_zeros(num_bins)
    variance.index_add_(0, _bins(confidence, num_bins), mass.square() * confidence * (1 - confidence))
    return (2 / math.pi) ** 0.5 * variance.sqrt().sum() / mass.sum()


def _bins(confidence: Tensor, num_bins: int) -> Tensor:
    """The bin of each confidence, of equal width and closed above, from 0."""
    inner_edges = torch.linspace(0, 1, num_bins + 1, dtype=torch.float64, device=confidence.device)[1:-1]
    return torch.bucketize(confidence, inner_edges)


def calibration_curve(
    probabilities: Tensor, labels: Tensor, num_bins: int = 15, weight: Tensor | None = None
) -> CalibrationCurve:
    """Reliability diagram: bins ((i-1)/num_bins, i/num_bins], the first with 0; confidence as for the error above."""
    require(num_bins >= 1, f"calibration_curve: num_bins must be at least 1, not {num_bins}.")
    confidence, hits = _confidence_and_hits("calibration_curve", probabilities, labels, weight)
    confidence = confidence.double().contiguous()
    bins = _bins(confidence, num_bins)
    mass = torch.ones_like(confidence) if weight is None else weight.double()

    def sums(values: Tensor) -> Tensor:
        return confidence.new_zeros(num_bins).index_add_(0, bins, values)

    total, used = sums(mass), sums(mass) > 0
    hit_share, mean = sums(mass * hits)[used] / total[used], sums(mass * confidence)[used] / total[used]
    return CalibrationCurve(mean, hit_share, total[used], torch.bincount(bins, minlength=num_bins)[used])


def rmse(predictions: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
    """Root of the mean squared error, in the labels' unit."""
    check_rows("rmse", predictions, labels, weight)
    return weighted_mean((predictions.double() - labels.double()).square(), weight).sqrt()


def mae(predictions: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean absolute error, in the labels' unit."""
    check_rows("mae", predictions, labels, weight)
    return weighted_mean((predictions.double() - labels.double()).abs(), weight)


def r2(predictions: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
    """Share of the labels' variance that is explained; NaN if the labels of all rows with a weight are equal."""
    check_rows("r2", predictions, labels, weight)
    counted = labels if weight is None else labels[weight > 0]
    varies = (counted != counted[0]).any()  # not by the variance: that of equal labels is a rounding error, not 0
    labels = labels.double()
    residual = weighted_mean((predictions.double() - labels).square(), weight)
    variance = weighted_mean((labels - weighted_mean(labels, weight)).square(), weight)
    return torch.where(varies, 1 - residual / variance, torch.nan)


def pinball_loss(predictions: Tensor, labels: Tensor, tau: float, weight: Tensor | None = None) -> Tensor:
    """Mean loss of predictions of the quantile `tau`: tau (y - q) where the label y is above q, else (1 - tau) (q - y)
    (Koenker and Bassett 1978), in the labels' unit."""
    check_rows("pinball_loss", predictions, labels, weight)
    return weighted_mean(pinball_losses(predictions, labels, tau), weight)


def pinball_losses(predictions: Tensor, labels: Tensor, tau: float) -> Tensor:
    """float64 [n]: what `pinball_loss` is the mean of."""
    error = labels.double() - predictions.double()
    return torch.maximum(tau * error, (tau - 1) * error)


def tweedie_deviance(predictions: Tensor, labels: Tensor, power: float, weight: Tensor | None = None) -> Tensor:
    """Mean unit deviance of a Tweedie distribution whose variance is the mean to `power`, 1 (Poisson) or in (1, 2).

    Labels are 0 or more, predicted means above 0 (0 counts as the smallest float64); others are a `ModelError`, unless
    their rows have weight 0.
    """
    name = "tweedie_deviance"
    check_rows(name, predictions, labels, weight)
    require(1 <= power < 2, f"{name}: power must be in [1, 2), not {power}.")
    if weight is not None:
        counted = weight > 0
        predictions, labels, weight = predictions[counted], labels[counted], weight[counted]
    y, mean = labels.double(), predictions.double()
    require(bool((y >= 0).all() and (mean >= 0).all()), f"{name}: labels and predictions must not be negative.")
    mean = mean.clamp(min=torch.finfo(torch.float64).tiny)
    if power == 1:
        return weighted_mean(2 * (torch.xlogy(y, y / mean) - y + mean), weight)
    low, high = 1 - power, 2 - power
    return weighted_mean(2 * (y.pow(high) / (low * high) - y * mean.pow(low) / low + mean.pow(high) / high), weight)


def prediction_churn(first: Tensor, second: Tensor, weight: Tensor | None = None) -> Tensor:
    """How far two models' predictions of the same rows are apart: the mean of |p1 - p2|, over models that differ in
    their seed the irreproducibility of a training (Anil et al., arXiv 1804.03235, section 4).

    Parameters
    ----------
    first, second : Tensor
        [n] probabilities or values, or [n, K] probabilities of classes. Of classes it is half the sum of the absolute
        differences (total variation), which for two classes is the |p1 - p2| of a binary target. Values are in the
        unit that they are given in; divide by the spread of the target for one without a unit (`churn_unit`).
    weight : Tensor or None, default None
        [n], not negative; None weighs all rows alike.

    Returns
    -------
    Tensor
        0-d float64.

    Raises
    ------
    ModelError
        For no rows, shapes that differ, NaN, or weights that are negative or all 0.

    Examples
    --------
    >>> prediction_churn(torch.tensor([0.25, 0.75]), torch.tensor([0.5, 0.75])).item()
    0.125
    """
    require(
        first.shape == second.shape and first.dim() in (1, 2),
        f"prediction churn: both must be [n] or [n, classes], found {list(first.shape)} and {list(second.shape)}.",
    )
    check_rows("prediction churn", first, second if first.dim() == 1 else second.sum(1), weight, first.dim())
    one, two = first.double(), second.double()
    apart = torch.where(one == two, 0.0, (one - two).abs())  # an infinity less itself is no number
    return weighted_mean(apart if apart.dim() == 1 else apart.sum(1) / 2, weight)


def churn_unit(task: str, labels: Tensor, weight: Tensor | None = None) -> float:
    """What churn is told in: 1 for probabilities; of a regression target the deviation of its labels [n] on the rows
    (NaN where they are all the same, or no row has a weight, so that no churn is told)."""
    if weight is not None and not bool(weight.any()):
        return float("nan")
    if task != "regression":
        return 1.0
    values = labels.double()
    spread = float(weighted_mean((values - weighted_mean(values, weight)).square(), weight).sqrt())
    counted = labels if weight is None else labels[weight > 0]
    return spread if bool((counted != counted[0]).any()) else float("nan")


def check_rows(name: str, predictions: Tensor, labels: Tensor, weight: Tensor | None, num_dims: int = 1) -> None:
    """Shapes, emptiness, NaN, and the sign of the weights."""
    if predictions.dim() != num_dims or labels.shape != predictions.shape[:1]:
        wanted = "[n]" if num_dims == 1 else "[n, classes]"
        raise ModelError(
            f"{name}: predictions must be {wanted} and labels [n], found {list(predictions.shape)} and "
            f"{list(labels.shape)}."
        )
    require(len(labels) > 0, f"{name}: there are no rows to evaluate.")
    for what, values in (("predictions", predictions), ("labels", labels), ("weight", weight)):
        if values is not None and bool(values.isnan().any()):
            raise ModelError(f"{name}: {int(values.isnan().sum())} of {values.numel()} {what} are NaN.")
    if weight is not None:
        require(weight.shape == labels.shape, f"{name}: weight must be {list(labels.shape)}, not {list(weight.shape)}.")
        require(bool((weight >= 0).all()), f"{name}: a weight is negative.")
        require(bool(weight.sum() > 0), f"{name}: all weights are 0.")


def _check_probabilities(name: str, probabilities: Tensor) -> None:
    low, high = probabilities.aminmax()
    require(bool((low >= 0) & (high <= 1)), f"{name}: probabilities must be in [0, 1], found {low:.6g} to {high:.6g}.")


def _check_classes(name: str, labels: Tensor, num_classes: int) -> None:
    low, high = labels.aminmax()
    require(
        bool((low >= 0) & (high < num_classes)) and not labels.is_floating_point(),
        f"{name}: labels must be integers from 0 to {num_classes - 1}, found {low} to {high} ({labels.dtype}).",
    )


def as_positives(name: str, labels: Tensor) -> Tensor:
    """Labels as bool; other values than 0 and 1 are an error."""
    positive = labels == 1
    if not bool((positive | (labels == 0)).all()):
        raise ModelError(f"{name}: labels must be 0 or 1, found {labels.unique()[:10].tolist()}.")
    return positive


def weighted_mean(values: Tensor, weight: Tensor | None) -> Tensor:
    """(Weighted) mean of float64 values [n]; one of weight 0 counts for nothing, be it infinite."""
    if weight is None:
        return values.mean()
    weight = weight.double()
    return (values.masked_fill(weight == 0, 0.0) * weight).sum() / weight.sum()


def _confidence_and_hits(
    name: str, probabilities: Tensor, labels: Tensor, weight: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Probability [n] of the likeliest class of [n, K], or of class 1 given as [n], and whether the label is it."""
    check_rows(name, probabilities, labels, weight, num_dims=2 if probabilities.dim() == 2 else 1)
    _check_probabilities(name, probabilities)
    if probabilities.dim() == 2:
        _check_classes(name, labels, probabilities.shape[1])
        confidence, predicted = probabilities.max(dim=1)
        return confidence, predicted == labels
    return probabilities, as_positives(name, labels)


def threshold_counts(name: str, scores: Tensor, labels: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct scores, falling, and the (weight of) negatives and positives at or above each; (inf, 0, 0) first.

    Counts are int64, so exact; weights are summed in float64. Rows of weight 0 are left out.
    """
    check_rows(name, scores, labels, weight)
    positive = as_positives(name, labels)
    if weight is not None:
        some = weight > 0
        scores, positive, weight = scores[some], positive[some], weight[some].double()
    scores, order = _falling(scores)
    return _counts(scores, positive[order], None if weight is None else weight[order])


def _counts(scores: Tensor, positive: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """`threshold_counts` of rows in the order of falling scores."""
    mass = torch.ones_like(positive, dtype=torch.int64) if weight is None else weight
    true_positives = torch.where(positive, mass, 0).cumsum(0)
    false_positives = torch.where(positive, 0, mass).cumsum(0)
    last_of_tie = _last_of_tie(scores)
    threshold = torch.cat([scores.new_full((1,), torch.inf, dtype=torch.float64), scores[last_of_tie].double()])
    false_positives, true_positives = (
        torch.cat([counts.new_zeros(1), counts[last_of_tie]]) for counts in (false_positives, true_positives)
    )
    return threshold, false_positives, true_positives


def _last_of_tie(scores: Tensor) -> Tensor:
    """Of sorted scores, which are the last of their value, bool [n]."""
    return torch.cat([scores[1:] != scores[:-1], scores.new_ones(1, dtype=torch.bool)])


def _falling(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The scores, falling, equal ones in the rows' order, and where each was. On a CPU torch sorts integers by radix,
    six times as fast as floats."""
    if scores.device.type != "cpu" or scores.dtype != torch.float32:
        found = scores.sort(descending=True, stable=True)
        return found.values, found.indices
    bits = scores.contiguous().view(torch.int32)
    falls = ~(bits ^ ((bits >> 31) & 0x7FFFFFFF))  # as the score rises
    order = falls.sort(stable=True).indices
    return scores[order], order


def _rates(counts: Tensor) -> Tensor:
    """Cumulative counts as shares of the last one; NaN if that is 0."""
    return counts.double() / counts[-1]


def _corners(x: Tensor, y: Tensor) -> Tensor:
    """Which points [n] are ends of the polyline or change its direction."""
    dx, dy = x.diff(), y.diff()
    inner = dx[1:] * dy[:-1] != dx[:-1] * dy[1:]
    end = inner.new_ones(1)
    return torch.cat([end, inner, end])


def _evenly_spaced(position: Tensor, count: int) -> Tensor:
    """Indices of the points nearest below or above `count` evenly spaced places; `position` [n] rises."""
    places = torch.linspace(0, 1, count, dtype=torch.float64, device=position.device) * position[-1]
    above = torch.searchsorted(position, places).clamp(1, len(position) - 1)
    below_is_nearer = places - position[above - 1] < position[above] - places
    return (above - below_is_nearer.long()).unique()
