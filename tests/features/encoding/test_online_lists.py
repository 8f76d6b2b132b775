"""Lists of single rows: the bits of `Preprocessor.pack_lists` of a frame, and what is refused."""

import subprocess
import sys
from functools import cache

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gigabatch.features.encoding.online import OnlineTransformer
from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.encoding.settings import CategorySettings, PreprocessorSettings
from gigabatch.features.errors import DataError
from gigabatch.features.schema import Column, ListColumn, Schema
from tests.examples import examples

SCHEMA = Schema(
    (Column("item", "categorical", "string"), Column("shop", "categorical", "int64")),
    (),
    lists=(
        ListColumn("seen", shares="item", max_length=3),
        ListColumn("tags", "int64", weights="w", max_length=4),
        ListColumn("shops", "int64", shares="shop"),
        ListColumn("more tags", "int64", shares="tags"),
    ),
)
TEXT, NUMBERS = ["a", "b", "c", "3", "ü", ""], [0, 1, -3, 7, 2**31, 2**53 - 1, 2**53 + 1, -(2**63)]
TRAIN = pd.DataFrame(
    {
        "item": ["a", "b", "b", None],
        "shop": pd.array([7, 7, -2, None], "Int64"),
        "seen": [["a", "c"], [], None, ["3", "", "ü"]],
        "tags": [NUMBERS, [1, 1], [7], None],
        "w": [[1.0] * len(NUMBERS), [0.5, 2.0], [3.0], None],
        "shops": [[7], [], [8, 9], None],
        "more tags": [[5, 5, 5], [], [1], None],
    }
)


@cache
def both(buckets: int = 1) -> tuple[Preprocessor, OnlineTransformer]:
    columns = {name: CategorySettings(oov_buckets=buckets) for name in ("item", "shop", "tags")}
    preprocessor = Preprocessor(SCHEMA, PreprocessorSettings(columns=columns)).fit([TRAIN])
    return preprocessor, OnlineTransformer(preprocessor)


def assert_same(found, expected) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        for one, other, kind in zip(ours, theirs, ("int32", "int64", "float32"), strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                assert (one.dtype, one.tobytes()) == (np.dtype(kind), other.tobytes())


def by_frame(preprocessor: Preprocessor, rows: list[dict]):
    return preprocessor.pack_lists(pd.DataFrame({name: [row[name] for row in rows] for name in rows[0]}))


# Within a list a frame's values are of one type, which Arrow finds; so each strategy draws lists of one.
WORDS = st.none() | st.sampled_from([*TEXT, "new", "nan"]) | st.text(max_size=3)
WHOLE = st.sampled_from([*NUMBERS, 5, 8, 9, 11]) | st.integers(-(2**63), 2**63 - 1)
FLOATS = st.sampled_from([1.0, 7.0, -3.0, 5.0, float("nan"), 2.0**53 - 1])
ARRAYS = st.sampled_from(["int32", "int16", "float32", "uint8", "float64"]).flatmap(
    lambda kind: st.lists(st.integers(0, 9), max_size=6).map(lambda found: np.array(found, kind))
)
INTEGER_LISTS = (
    st.none()
    | st.lists(st.none() | WHOLE, max_size=6)
    | st.lists(st.none() | FLOATS, max_size=6)
    | st.lists(WHOLE.map(str), max_size=6)
    | st.lists(st.booleans(), max_size=3)
    | st.lists(WHOLE, max_size=6).map(tuple)
    | ARRAYS
)
TEXT_LISTS = (
    st.none()
    | st.lists(WORDS, max_size=6)
    | st.lists(st.none() | st.integers(0, 9), max_size=6)
    | st.lists(st.none() | st.sampled_from([3.0, 3.5, float("nan")]), max_size=6)
    | st.lists(st.sampled_from(TEXT), max_size=6).map(np.array)
)
WEIGHT = (
    st.floats(-1e38, 1e38) | st.floats(width=32, allow_nan=False, allow_infinity=False) | st.sampled_from([0.1, 0.0])
)


@st.composite
def row(draw, texts=TEXT_LISTS, integers=INTEGER_LISTS):
    tags = draw(integers)
    length = 0 if tags is None else len(tags)
    weights = draw(st.lists(WEIGHT, min_size=length, max_size=length) | st.just([1] * length))
    return {
        "item": draw(st.sampled_from([*TEXT, None])), "shop": draw(st.sampled_from([7, 9])),
        "seen": draw(texts), "tags": tags, "w": None if tags is None and draw(st.booleans()) else weights,
        "shops": draw(integers), "more tags": draw(integers),
    }  # fmt: skip


EMPTY = {"item": None, "shop": 7, "seen": [], "tags": [], "w": [], "shops": [], "more tags": None}


@settings(max_examples=examples(150), deadline=None)
@given(values=row(), buckets=st.sampled_from([1, 5]))
@example(values=EMPTY, buckets=1)
@example(values={**EMPTY, "tags": [None, 7, None], "w": [np.nan, 2, None]}, buckets=1)
@example(values={**EMPTY, "shops": np.array([2.0**24 - 1], "float32")}, buckets=1)
@example(values={**EMPTY, "seen": ["new"] * 9, "shops": list(range(50)) * 200}, buckets=5)
def test_a_row_has_the_bits_of_a_frame_that_holds_it_alone(values, buckets):
    preprocessor, online = both(buckets)
    expected = by_frame(preprocessor, [values])
    assert_same(online.pack_lists([values]), expected)
    assert_same(online.pack_lists([tuple(values[name] for name in online.columns)]), expected)


@settings(max_examples=examples(60), deadline=None)
@given(rows=st.lists(row(st.lists(WORDS, max_size=5), st.lists(st.none() | WHOLE, max_size=6)), min_size=1, max_size=6))
def test_rows_have_the_bits_of_one_frame(rows):
    preprocessor, online = both()
    assert_same(online.pack_lists(rows), by_frame(preprocessor, rows))


def test_ids_of_a_literal_row():
    _, online = both()
    # Ids: 0 padding, 1 null, 2 unseen. Of `item` and `seen` together a and b are there twice, so 3 and 4. Of `tags`,
    # whose last four count, and `more tags` 1 and 5 are there three times, so 3 and 4.
    seen, tags, _, more = online.pack_lists([{"seen": ["a", "z", None, "b", "b"], "tags": [9, 5, 7], "w": [1, 2, 3]}])
    assert (seen.ids.tolist(), seen.weights) == ([2, 4, 4], None)
    assert (tags.ids.tolist()[:2], tags.weights.tolist()) == ([2, 4], [1.0, 2.0, 3.0])
    assert more.offsets.tolist() == [0, 0]


def test_no_rows_and_a_name_that_is_not_there_are_empty_lists():
    preprocessor, online = both()
    assert_same(online.pack_lists([]), preprocessor.pack_lists(TRAIN.iloc[:0]))
    assert_same(online.pack_lists([{"item": "a"}, EMPTY]), by_frame(preprocessor, [EMPTY, EMPTY]))


def test_other_columns_do_not_look_at_lists():
    _, online = both()
    assert online.columns == ("item", "shop", "seen", "tags", "w", "shops", "more tags")
    assert online({"item": "b", "shop": 7})[0].tolist() == online(("b", 7, None, [1], [2.0], None, None))[0].tolist()


BAD = {
    "text": ({"seen": "a|b"}, "list column 'seen' holds 'a|b' of str"),
    "a number": ({"tags": 7, "w": []}, "list column 'tags' holds 7 of int"),
    "a set": ({"seen": {"a"}}, "of set"),
    "two dimensions": ({"shops": np.zeros((1, 1))}, "an array of one dimension"),
    "a list of lists": ({"seen": [["a"]]}, "'seen' is declared string.*it is a list"),
    "words for numbers": ({"shops": ["x"]}, "'shops' is declared int64"),
    "a fraction": ({"shops": [0.5]}, "it has a fraction"),
    "beyond 64 bits": ({"shops": [2**63]}, "outside the range of int64"),
    "a float32 that skips numbers": ({"shops": np.array([2.0**24], "float32")}, r"reaches 2\^24"),
    "moments that an array would give as numbers": ({"shops": np.array(["2020"], "datetime64[ns]")}, "datetime64"),
    "bytes": ({"seen": [b"a"]}, "it is a bytes"),
    "fewer weights": ({"tags": [1, 7], "w": [1.0]}, "2 elements and 1 weights in 'w'"),
    "no weights": ({"tags": [1, 7]}, "2 elements and 0 weights in 'w'"),
    "weights alone": ({"w": [1.0]}, "0 elements and 1 weights in 'w'"),
    "null weight": ({"tags": [1], "w": [None]}, "'w' of list column 'tags' hold a null, NaN or infinity"),
    "an infinity": ({"tags": [1], "w": [np.inf]}, "'w' of list column 'tags' hold a null, NaN or infinity"),
    "an infinity in float32": ({"tags": [1], "w": [1e39]}, "'w' of list column 'tags' hold a null, NaN or infinity"),
    "weights of words": ({"tags": [1], "w": ["x"]}, "'w' of list column 'tags' hold 'x', which is no float32"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_list_of_its_type_is_refused_by_column_and_row(name):
    preprocessor, online = both()
    changed, message = BAD[name]
    with pytest.raises(DataError, match=f"^OnlineTransformer: .*{message}"):
        online.pack_lists([changed])
    with pytest.raises(DataError, match=f"^OnlineTransformer, row 2: .*{message}"):
        online.pack_lists([EMPTY, {}, changed, EMPTY])
    row = EMPTY | changed
    if name not in ("no weights", "weights alone"):
        row = EMPTY | {"tags": None, "w": None} | changed
    if name != "a set":  # whose order a frame makes up
        with pytest.raises(DataError):
            by_frame(preprocessor, [row])


def test_weights_of_elements_that_are_left_out_may_be_null():
    preprocessor, online = both()
    values = EMPTY | {"tags": [None, 1, 7, 7, 7, 7], "w": [None, np.nan, 1, 2, 3, 4]}
    assert_same(online.pack_lists([values]), by_frame(preprocessor, [values]))


def test_rows_of_another_length_or_kind_are_refused():
    _, online = both()
    with pytest.raises(DataError, match="has 7 values, found 2"):
        online.pack_lists([("a", 7)])
    with pytest.raises(DataError, match="a row is a mapping"):
        online.pack_lists([7])


def test_a_saved_preprocessor_encodes_lists_without_pandas_or_torch(tmp_path):
    preprocessor, online = both()
    preprocessor.save(tmp_path / "saved")
    program = f"""
import sys
from gigabatch.features.encoding.online import OnlineTransformer
packed = OnlineTransformer.load({str(tmp_path / "saved")!r}).pack_lists([{{"seen": ["a", "x"], "more tags": [5]}}])
print([column.ids.tolist() for column in packed], [name for name in ("pandas", "torch") if name in sys.modules])
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    expected = [column.ids.tolist() for column in online.pack_lists([{"seen": ["a", "x"], "more tags": [5]}])]
    assert told.strip() == f"{expected} []"
