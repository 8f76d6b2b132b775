"""Sizing of a training by formula: the lemmas of Zou et al., "Distributed training large-scale deep architectures"
(arXiv 1709.06622), with the terms that sparse tables change.

Shapes: N devices, P dense parameters, tables of d numbers a row, of which a batch holds U distinct rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gigabatch.models.parallel.costs import ID_BYTES, VALUE_BYTES


def speed_up(num_devices: int, overhead: float) -> float:
    """Lemma 2: how many times as fast N devices are, N (1 + R) / (1 + N R).

    Parameters
    ----------
    num_devices : int
        N.
    overhead : float
        R, seconds of a step on one device that more devices do not share, over those that they do.

    Returns
    -------
    float
        From 1 to N; over N it is the efficiency.

    Examples
    --------
    >>> from gigabatch.pipeline.lab.advise.lemmas import speed_up
    >>> speed_up(4, 0.0), round(speed_up(4, 0.091) / 4, 2)  # the paper's example: 9 % leave 80 %
    (4.0, 0.8)
    """
    return num_devices * (1 + overhead) / (1 + num_devices * overhead)


def all_reduce_bytes(num_devices: int, num_parameters: int) -> float:
    """Bytes that a device sends to sum P float32 gradients: 2 (N - 1) / N 4 P.

    It could be hidden behind a backward pass that takes at least these bytes over the bandwidth.
    """
    return 2 * (num_devices - 1) / num_devices * VALUE_BYTES * num_parameters


def server_bytes(num_parameters: int, distinct: Sequence[float], widths: Sequence[int]) -> float:
    """Bytes between a worker and its parameter servers in a step: 8 P of dense weights and gradients, and of each table
    U ids and U d numbers, both ways.

    Parameters
    ----------
    num_parameters : int
        P, dense.
    distinct, widths : sequence of float, sequence of int
        U and d of each table; U in the batch of one worker.

    Examples
    --------
    >>> from gigabatch.pipeline.lab.advise.lemmas import server_bytes
    >>> server_bytes(100, [10], [16])  # 8 x 100 + 2 x 10 x (4 + 64)
    2160
    """
    tables = sum(2 * u * (ID_BYTES + VALUE_BYTES * d) for u, d in zip(distinct, widths, strict=True))
    return 2 * VALUE_BYTES * num_parameters + tables


def parameter_servers(num_bytes: float, num_workers: int, bandwidth: float, seconds: float) -> int:
    """Lemma 3: how many servers hide what workers send behind what they compute, the least whole number of at least
    bytes N / (B T).

    Parameters
    ----------
    num_bytes : float
        That a worker exchanges with the servers in a step, `server_bytes`.
    num_workers : int
        N.
    bandwidth : float
        B of one server, bytes a second.
    seconds : float
        T, forward and backward pass of a worker.

    Examples
    --------
    >>> from gigabatch.pipeline.lab.advise.lemmas import parameter_servers
    >>> parameter_servers(1e6, num_workers=8, bandwidth=1e9, seconds=0.003)  # 8 ms of bytes in 3 ms
    3
    """
    return max(math.ceil(num_bytes * num_workers / (bandwidth * seconds)), 1)
