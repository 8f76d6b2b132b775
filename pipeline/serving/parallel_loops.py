"""Parallel loops in a process of two threads, one that answers and one that tests the bundle to come.

Numba runs them by OpenMP where the system has libgomp. Without it `workqueue` does, which aborts the process (SIGABRT)
where two threads are in parallel loops at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numba

_LOCK = threading.Lock()


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Wait for the other thread's parallel loops, where the process would not outlive both."""
    if not takes_one_thread():
        yield
        return
    with _LOCK:
        yield


@cache
def takes_one_thread() -> bool:
    """Whether parallel loops of two threads abort this process. Asked in the process that computes, as a fork of one
    whose threads were started is not safe."""
    numba.get_num_threads()  # has numba choose
    return numba.threading_layer() == "workqueue"
