"""Fit statistics, churn and updates on frames that refuse what cuDF lacks."""

import numpy as np
import pytest

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.refit.churn import churn
from gigabatch.features.refit.statistics import Statistics, statistics_operators
from gigabatch.features.refit.update import checksum
from tests.cudf_api.checked import CheckedFrame
from tests.features.statistics_columns import SCHEMA


def frame(seed):
    rng = np.random.default_rng(seed)
    return CheckedFrame({
        "word": rng.choice(["a", "b", f"only {seed}", None], 60), "number": rng.integers(0, 5 + seed, 60),
        "x": np.where(rng.random(60) < 0.2, np.nan, rng.normal(size=60)).astype("float32"),
        "y": rng.integers(0, 2, 60).astype("float32"),
    }).astype({"word": "str"})  # fmt: skip


def test_statistics_and_churn_use_only_what_cudf_has():
    found = []
    for seed in (1, 2):
        parts = [frame(seed).iloc[:20], frame(seed).iloc[20:]]
        states = {key: operator.fit(parts) for key, operator in statistics_operators(SCHEMA).items()}
        found.append(Statistics.from_states(states))
    old, new = found[0], found[1].at_version(2)
    report = churn(old, new, {name: state.vocabulary for name, state in old.categories.items()})
    assert report.categories[0].new.examples[0][0] == "only 2"
    assert old.merge(new).rows == 120


@pytest.mark.parametrize("refresh", [False, True])
def test_an_update_uses_only_what_cudf_has(refresh):
    preprocessor = Preprocessor(SCHEMA).fit([frame(1)])
    preprocessor.update([frame(2).iloc[:20], frame(2).iloc[20:]], refresh_scales=refresh)
    assert preprocessor.vocabularies["word"].values.tolist()[-1] == "only 2"
    assert len(checksum(preprocessor.learned)) == 32


def test_a_growth_uses_only_what_cudf_has():
    """With values that vanish and are kept with a count of 0, and from an import, which has no statistics."""
    fitted = Preprocessor(SCHEMA).fit([frame(1)])
    given = Preprocessor(SCHEMA, fitted.settings, fitted.vocabularies, fitted.fills, fitted.scales)
    for preprocessor in (fitted, given.carried_to(SCHEMA, fitted.settings)):
        preprocessor.grow([frame(2).iloc[:20], frame(2).iloc[20:]])
        assert preprocessor.vocabularies["word"].values.tolist()[-1] == "only 2"
        before = preprocessor.checksum
        (packed,), report = preprocessor.grow_pack([frame(2)])
        assert (len(packed), report.flags, preprocessor.checksum) == (60, (), before)
        preprocessor.grow([frame(3)])
        gone = preprocessor.statistics.categories["word"].counts
        assert {"only 2"} <= set(gone["value"][gone["count"] == 0])
