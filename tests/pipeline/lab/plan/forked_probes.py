"""The samples of a plan in forks of a process that has imported the package, which takes several seconds of each.

What they take is as it is, but for the memory of the imports. test_plan.py makes a plan in processes as users have.
"""

import contextlib
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from gigabatch.pipeline.lab.plan import forecast
from tests.processes import python

PROBE = """
import io, sys
sys.stdin = io.StringIO({task!r})
from gigabatch.pipeline.lab.plan.probe import main
main()
"""


@contextlib.contextmanager
def forked_probes() -> Iterator[None]:
    def run(command: list[str], *, input: str, **_) -> subprocess.CompletedProcess[str]:
        return python(PROBE.format(task=input))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forecast, "subprocess", SimpleNamespace(run=run))
        yield
