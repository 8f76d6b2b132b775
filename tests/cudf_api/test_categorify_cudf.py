"""Every form of Categorify on frames that refuse what cuDF lacks."""

import numpy as np
import pytest

from gigabatch.features.operators.categories.categorify import Categorify
from gigabatch.features.vocabulary.vocabulary import Vocabulary
from tests.cudf_api.checked import CheckedFrame


def frame():
    return CheckedFrame({
        "word": ["a", "b", "b", None, "c", "a"], "number": [1, 2, 2, 3, 1, 7], "flag": [True, False] * 3,
        "float": np.array([0.5, np.nan, 2.0, 2.0, 0.5, -0.0]), "tags": ["a|b", None, "", "b||b", "a", "a"],
        "small": np.array([1, 2, 2, 3, 1, 9], dtype="int8"),
    })  # fmt: skip


OPERATORS = [
    Categorify("word", 2, oov_buckets=3),
    Categorify("number", max_size=2, oov_buckets=2),
    Categorify("float"),
    Categorify("flag", output="flag_id"),
    Categorify("small"),
    Categorify("tags", separator="|"),
    Categorify(shared=["number", "small"]),
    Categorify("word", vocabulary=["b", "z"]),
    Categorify(combined=["word", "number", "float", "flag"], output="all", oov_buckets=4, min_count=1),
]


@pytest.mark.parametrize("operator", OPERATORS, ids=repr)
def test_categorify_uses_only_what_cudf_has(operator):
    whole = frame()
    fitted = operator.fit([whole.iloc[:2], whole.iloc[2:4], whole.iloc[:0]])
    fitted = operator.update(fitted, operator.partial(whole))
    found = operator.apply(whole, fitted)
    assert isinstance(found, CheckedFrame)
    assert len(found) == 6
    ids = [0, 1, 2, fitted.layout.first]
    assert len(fitted.decode(np.array(ids))) == 4


def test_whole_floats_against_integers_and_saving_use_only_what_cudf_has(tmp_path):
    whole = frame()
    fitted = Categorify("number").fit([whole])
    assert len(fitted.encode(whole["float"])) == 6
    assert len(Categorify("float").fit([whole]).encode(whole["small"])) == 6
    fitted.save(tmp_path / "v.parquet")
    assert Vocabulary.load(tmp_path / "v.parquet", "pandas").values.tolist() == fitted.values.tolist()
