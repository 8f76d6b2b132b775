"""From what two samples of different size took to what the whole will take."""

from __future__ import annotations

import math
from collections.abc import Sequence


def predict(points: Sequence[tuple[float, float]], x: float = 1.0) -> float:
    """The line through one or two points (size, amount) at `x`: a fixed part and one that grows with the size.

    Neither part can be negative: amounts that fall with the size are taken as fixed, at the largest, and a line that
    starts below zero as one through the origin. Of one point, which is then at `x`, its amount.
    """
    if len(points) == 1:
        return points[0][1]
    (x1, y1), (x2, y2) = sorted(points)
    if x1 == x2 or y2 <= y1:
        return max(y1, y2)
    slope = (y2 - y1) / (x2 - x1)
    return y2 / x2 * x if y1 < slope * x1 else y1 + slope * (x - x1)


def distinct_values(points: Sequence[tuple[int, int]], rows: int) -> int:
    """How many distinct values `rows` rows will have, by Heaps' law, values = k rows^b (H. S. Heaps, Information
    Retrieval, 1978, section 7.5), given (rows, values) of one or two samples. b is kept within 0 and 1."""
    (n1, v1), (n2, v2) = min(points), max(points)
    if v1 == 0 or v2 <= v1 or n1 == n2:
        return v2
    exponent = min(math.log(v2 / v1) / math.log(n2 / n1), 1.0)
    return min(round(v2 * (rows / n2) ** exponent), rows)
