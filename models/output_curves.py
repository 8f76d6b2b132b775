"""What a trained model's logits are taken for: curves that calibrate them, fitted after training and saved with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gigabatch.models.errors import require


class OutputCurve(NamedTuple):
    """The logit that is predicted for one output's logit: linear between points, and beyond them of one slope.

    output: place among the outputs. x: logits of the model, rising; y: what they are taken for, as many. slope: before
    the first and behind the last point. A single point (0, 0) with slope 1 / T is temperature scaling; a curve that
    rises everywhere keeps the order of rows.

    Examples
    --------
    >>> from gigabatch.models.output_curves import OutputCurve
    >>> OutputCurve(0, (-1.0, 1.0), (-0.5, 1.5), slope=0.5).of(torch.tensor([-3.0, 0.0, 2.0], dtype=torch.float64))
    tensor([-1.5000,  0.5000,  2.0000], dtype=torch.float64)
    """

    output: int
    x: tuple[float, ...]
    y: tuple[float, ...]
    slope: float

    def of(self, logits: Tensor) -> Tensor:
        """Logits [B] float64 -> [B] float64."""
        x, y = (logits.new_tensor(values) for values in (self.x, self.y))
        slope = logits.new_full((1,), self.slope)
        slopes = torch.cat([slope, y.diff() / x.diff(), slope])
        above = (logits[:, None] >= x).sum(1)  # points at or below the logit; no search that ONNX lacks
        start = (above - 1).clamp(min=0)
        return y[start] + slopes[above] * (logits - x[start])

    def shifted(self, shift: float) -> OutputCurve:
        """The curve with `shift` added to what it gives."""
        return self._replace(y=tuple(value + shift for value in self.y))


def require_curves(curves: Sequence[OutputCurve], num_outputs: int) -> None:
    """Raise `ModelError` unless each is a rising curve of an output of its own."""
    outputs = [curve.output for curve in curves]
    require(len(set(outputs)) == len(outputs), f"calibration: an output has two curves ({outputs}).")
    for curve in curves:
        rises = all(list(values) == sorted(set(values)) for values in (curve.x, curve.y))
        require(
            0 <= curve.output < num_outputs and len(curve.x) == len(curve.y) > 0 and rises and curve.slope > 0,
            f"calibration: {curve} is no rising curve of one of {num_outputs} outputs.",
        )


def packed_curves(curves: Sequence[OutputCurve]) -> Tensor | None:
    """The curves as rows (output, x, y, slope) float64, one a point; None for none."""
    rows = [(curve.output, x, y, curve.slope) for curve in curves for x, y in zip(curve.x, curve.y, strict=True)]
    return torch.tensor(rows, dtype=torch.float64) if rows else None


def unpacked_curves(rows: Tensor | None) -> tuple[OutputCurve, ...]:
    """What `packed_curves` was given."""
    points: dict[int, list[list[float]]] = {}
    for output, *point in [] if rows is None else rows.tolist():
        points.setdefault(int(output), []).append(point)
    return tuple(
        OutputCurve(output, tuple(p[0] for p in own), tuple(p[1] for p in own), own[0][2])
        for output, own in points.items()
    )
