"""Text of one content gives one result, whatever pandas keeps it in."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from gigabatch import Workflow
from gigabatch.features.errors import DataError
from gigabatch.features.operators import (
    Cast,
    CleanText,
    DateParts,
    ParseDuration,
    ParseNumber,
    TextHash,
    TextTokens,
)

# Arrow lowers each letter alone: Python makes another sigma at the end of a word, and two letters of an I with a dot.
TEXTS = ["ΑΘΗΝΑΣ", "Πάτρα", "İSTANBUL", "12\n", "Straße", None]
STORAGES = {
    "object": object,
    "str": pd.StringDtype("pyarrow", na_value=np.nan),
    "str of python": pd.StringDtype("python", na_value=np.nan),
    "string": pd.StringDtype("pyarrow"),
    "string[python]": pd.StringDtype("python"),
    "category": "category",
    "arrow": pd.ArrowDtype(pa.string()),
    "large": pd.ArrowDtype(pa.large_string()),
    "dictionary": pd.ArrowDtype(pa.dictionary(pa.int32(), pa.string())),
    "view": pd.ArrowDtype(pa.string_view()),
}
every_storage = pytest.mark.parametrize("storage", STORAGES.values(), ids=STORAGES)
every_option = pytest.mark.parametrize("option", ["auto", "python"])


def of(storage, texts=TEXTS) -> pd.DataFrame:
    """One column `t`; pandas itself makes no Arrow views."""
    if isinstance(storage, pd.ArrowDtype):
        return pd.DataFrame({"t": pd.arrays.ArrowExtensionArray(pa.array(texts).cast(storage.pyarrow_dtype))})
    return pd.DataFrame({"t": pd.Series(texts, dtype=storage)})


@every_option
@every_storage
def test_cleaned_text_is_what_arrow_makes_of_it(storage, option):
    with pd.option_context("mode.string_storage", option):
        lower = CleanText("t", case="lower")(of(storage))["t"]
        upper = CleanText("t", case="upper", strip=False)(of(storage))["t"]
        wide = CleanText("t", strip=False, width=5)(of(storage))["t"]
    assert lower.dropna().tolist() == ["αθηνασ", "πάτρα", "istanbul", "12", "straße"]
    assert upper.dropna().tolist() == ["ΑΘΗΝΑΣ", "ΠΆΤΡΑ", "İSTANBUL", "12\n", "STRASSE"]
    assert wide.dropna().tolist() == TEXTS[:-1]  # a line break is no digit


@every_option
@every_storage
def test_words_and_their_hashes_are_those_of_every_other_storage(storage, option):
    words = [["αθηνασ"], ["πάτρα"], ["istanbul"], ["12"], ["straße"], []]
    with pd.option_context("mode.string_storage", option):
        assert [list(row) for row in TextTokens("t", "w")(of(storage))["w"]] == words
        found = TextHash("t", "h", num_buckets=64)(of(storage)).drop(columns="t")
    expected = TextHash("t", "h", num_buckets=64)(pd.DataFrame({"t": [" ".join(row) for row in words]}))
    np.testing.assert_array_equal(found.to_numpy(), expected.drop(columns="t").to_numpy())


def test_a_category_is_found_in_text_of_another_storage():
    steps = [{"clean_text": {"column": "t", "case": "lower"}}, {"categorify": {"column": "t"}}]
    workflow = Workflow.from_steps(steps).fit([of(STORAGES["str"])])
    expected = workflow.transform(of(STORAGES["str"]))["t"].tolist()
    assert sorted(expected) == [1, 3, 4, 5, 6, 7]
    for storage in STORAGES.values():
        assert workflow.transform(of(storage))["t"].tolist() == expected


@every_storage
@pytest.mark.parametrize("text", ["12\n", "\u0661\u0662"])
@pytest.mark.parametrize("dtype", ["int64", "float64", "datetime", "datetime[%Y-%m-%d]"])
def test_digits_and_ends_of_text_are_the_same_in_every_storage(storage, text, dtype):
    with pytest.raises(DataError, match=r"(time )?column 't'"):
        Cast(["t"], dtype)(of(storage, [text]))


@every_storage
def test_durations_and_numbers_are_read_in_every_storage(storage):
    texts = ["02:13", "1:02:13", "-0:30.5", "", None]
    found = ParseDuration("t")(of(storage, texts))["t"]
    assert found.tolist()[:3] == [133.0, 3733.0, -30.5]
    assert found.isna().tolist()[3:] == [True, True]
    texts = ["$1.234,5 k", "(7)", None]
    parse = ParseNumber("t", remove=["$"], decimal=",", thousands=".", scales={" k": 1000})
    found = parse(of(storage, texts))["t"]
    assert found.tolist()[:2] == [1_234_500.0, -7.0]
    assert found.isna().tolist()[2:] == [True]


@every_storage
def test_times_in_text_have_the_same_parts_in_every_storage(storage):
    texts = ["2013-01-31T23:59", "2013-02-01", None]
    for some in (texts, texts * 700):  # many are read by their distinct texts
        found = DateParts("t", ["day", "hour"], "p")(of(storage, some))
        assert found["p_day"].tolist()[:2] == [31, 1]
        assert found["p_hour"].tolist()[-3:-1] == [23, 0]
        assert found["p_hour"].isna().sum() == len(some) // 3


def plain(value):
    if np.ndim(value):
        return list(value)
    return None if pd.isna(value) else value


OF_TEXT = {
    "categorify": {"column": "t"},
    "categorify of lists": {"column": "t", "separator": "|"},
    "filter": {"column": "t", "op": "==", "value": "a|b"},
    "groupby_to_sequence": {
        "by": ["t"],
        "order": "at",
        "columns": ["u"],
        "max_length": 2,
        "separator": ";",
        "aggregations": {"began": ["u", "first"], "texts": ["u", "nunique"]},
    },
    "hash_bucket": {"column": "t", "num_buckets": 1000},
    "list_length": {"column": "t", "output": "n"},
    "list_slice": {"column": "t", "start": -1},
    "text_flags": {"column": "t", "prefix": "has_"},
    "explode_lists": {"lists": {"t": ["one", "string"]}, "position": "place", "keep": ["u"]},
}


@every_storage
@pytest.mark.parametrize("step", OF_TEXT)
def test_every_step_takes_every_storage(step, storage):
    workflow = Workflow.from_steps([{step.partition(" ")[0]: OF_TEXT[step]}])
    made = {}
    for name, kind in (("str", STORAGES["str"]), ("other", storage)):
        frame = of(kind, ["b|a", "a|b", None, "a|b"])
        frame = frame.assign(u=frame["t"], at=[1, 2, 3, 4])
        found = workflow.fit([frame.iloc[:2], frame.iloc[2:]]).transform(frame, whole_groups=True)
        made[name] = {column: [plain(value) for value in found[column]] for column in found}
    assert made["other"] == made["str"]
