"""The fuzzer's targets themselves: they take their seeds and refuse changed ones; what was found stays mended."""

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "features")]
import targets  # noqa: E402

from tests.examples import examples  # noqa: E402
from tests.features.damage import damaged  # noqa: E402

FOUND = sorted((HERE / "findings").glob("*-*"))


@pytest.mark.parametrize("target", targets.TARGETS)
def test_a_target_takes_at_least_one_of_its_seeds(target):
    taken = [not targets.run(target, seed) for seed in targets.seeds()[target]]
    assert any(taken) or target in ("packed", "nvtabular")  # two files of different kinds; a graph needs its schema


@pytest.mark.parametrize("target", targets.TARGETS)
@settings(max_examples=examples(25))
@given(data=st.data())
def test_a_changed_seed_is_taken_or_refused(target, data):
    seed = data.draw(st.sampled_from(targets.seeds()[target]))
    targets.run(target, data.draw(damaged(seed)))


@pytest.mark.parametrize("target", targets.TARGETS)
def test_what_has_no_sense_is_refused_or_ignored(target):
    for content in (
        b"",
        b"\0",
        b"[" * 50_000,
        b"9" * 5000,
        b"\xff" * 100,
        b'{"a": NaN}',
        b"(" * 900,
        b"-" * 999 + b"x",
    ):
        targets.run(target, content)


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.name)
def test_what_the_fuzzer_found_stays_mended(path):
    targets.run(path.name.partition("-")[0], path.read_bytes())
