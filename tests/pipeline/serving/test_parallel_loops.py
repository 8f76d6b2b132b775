"""Where Numba's threads are of `workqueue`, no request computes beside the self-test of the bundle to come."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from gigabatch.pipeline.serving import parallel_loops, served
from gigabatch.pipeline.serving.http.gate import Line
from tests.pipeline.serving.small_bundles import interactions, random_bundle, write_run

TWO_THREADS = """
import sys, threading
from contextlib import nullcontext
import numpy as np
from numba import njit, prange
from gigabatch.pipeline.serving.parallel_loops import one_at_a_time

@njit(parallel=True, nogil=True)
def loop(values):
    for place in prange(len(values)):
        for _ in range(50):
            values[place] = np.sqrt(values[place] + 1)

def work():
    for _ in range(300):
        with one_at_a_time() if sys.argv[1] == "in turn" else nullcontext():
            loop(values)

values = np.ones(20_000)
loop(values)
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.parametrize(("how", "ends"), [("in turn", 0), ("together", -signal.SIGABRT)])
def test_parallel_loops_of_two_threads_abort_unless_they_go_in_turn(how, ends):
    environment = os.environ | {
        "NUMBA_THREADING_LAYER": "workqueue", "NUMBA_NUM_THREADS": "2", "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", TWO_THREADS, how], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == ends, done.stderr


@pytest.mark.parametrize("in_turn", [True, False])
def test_requests_and_the_self_test_go_in_turn_where_they_must(tmp_path, monkeypatch, in_turn):
    frame = interactions()
    run, seen = write_run(tmp_path / "run", random_bundle(frame), frame), []
    own = served.self_test
    monkeypatch.setattr(parallel_loops, "takes_one_thread", lambda: in_turn)
    monkeypatch.setattr(
        served, "self_test", lambda bundle: (seen.append(("test", parallel_loops._LOCK.locked())), own(bundle))
    )
    served.load_served(run)
    asyncio.run(Line(4, 60.0).run(lambda: seen.append(("work", parallel_loops._LOCK.locked()))))
    assert seen == [("test", in_turn), ("work", in_turn)]
    assert not parallel_loops._LOCK.locked()
