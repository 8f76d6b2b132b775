"""The samples of a plan in forks of a process that has imported the package, which takes several seconds of each.

What they take is as it is, but for the memory of the imports. test_plan.py makes a plan in processes as users have.
"""

import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from gigabatch.pipeline.lab.plan import forecast
from tests.processes import python


@contextlib.contextmanager
def forked_probes() -> Iterator[None]:
    def run(_: list[str], input: str, env: Mapping[str, str], **__: Any) -> subprocess.CompletedProcess[str]:
        return python("from gigabatch.pipeline.lab.plan.probe import main; main()", input=input, env=env)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forecast, "subprocess", SimpleNamespace(run=run))
        yield
