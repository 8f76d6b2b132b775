"""The online transformer: the bits of `Preprocessor.transform` for one row, without a data frame library."""

import datetime
import decimal
import functools
import json
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import xxhash
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gigabatch.features.encoding.online import OnlineTransformer
from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.encoding.settings import PreprocessorSettings
from gigabatch.features.errors import DataError
from gigabatch.features.exact.column_statistics import Scale
from gigabatch.features.operators.missing.fill_missing import Fill
from gigabatch.features.reading.sources import read_files
from gigabatch.features.schema import Column, Schema, Target
from gigabatch.features.vocabulary.vocabulary import IdLayout, Vocabulary
from tests.examples import examples

# Categorical and continuous columns interleaved, so that schema order and tensor order differ.
SCHEMA = Schema(
    (
        Column("x", "continuous", "float32"),
        Column("word", "categorical", "string"),
        Column("z", "continuous", "float64"),
        Column("number", "categorical", "int64"),
        Column("n", "continuous", "int32"),
        Column("flag", "categorical", "bool"),
        Column("y", "target", "float32"),
        Column("k", "key", "int64"),
    ),
    (Target("y", "binary"),),
)
TRAIN = pd.DataFrame(
    {
        "x": [1.0, None, 4.0, 7.0],
        "word": ["a", "b", "b", None],
        "z": [10.0, 20.0, 30.0, 40.0],
        "number": [7.0, 7.0, None, -2.0],
        "n": [1, 2, 2, 3],
        "flag": [True, False, True, True],
        "y": [0.0, 1.0, 0.0, 1.0],
        "k": [1, 2, 3, 4],
    }
)
ROW = {"x": 1.0, "word": "b", "z": 20.0, "number": 7, "n": 2, "flag": True}
# What a column of each type is fitted on; limits and neighbours are among it.
POOLS = {
    "string": ["a", "b", "3", "3.0", "True", "nan", "1e+16", "ü", ""],
    "int32": [0, 1, 3, -3, 2**31 - 1, -(2**31)],
    "int64": [0, 1, 3, 2**31, 2**53 - 1, 2**53, 2**53 + 1, -(2**53), 2**63 - 1, -(2**63)],
    "float32": [0.0, 1.0, 3.0, 0.1, -0.5, 16777216.0, 2.0**60, 1e-45],
    "float64": [0.0, 1.0, 3.0, 0.1, 0.1 + 0.2, float(2**53), 1e16, 5e-324],
    "bool": [True, False],
}
NUMBER = st.one_of(
    st.integers(-4, 4),
    st.integers(-(2**70), 2**70),
    st.sampled_from([a * 2**b + c for a in (-1, 1) for b in (24, 31, 53, 60, 63, 64) for c in (-1, 0, 1, 2**8 + 1)]),
    st.integers(-4, 4).map(float),
    st.floats(),
    st.floats(width=32),
    st.sampled_from([0.1, 3.5, -0.0, 1e16, 1e300, 3.4028235e38, 3.4028236e38, 3.5e38, float(2**53), 9.3e18]),
    st.floats(width=32).map(np.float32),
    st.floats(width=16).map(np.float16),
    st.floats().map(np.float64),
    st.integers(-(2**31), 2**31 - 1).map(np.int32),
    st.integers(-(2**63), 2**63 - 1).map(np.int64),
    st.integers(0, 255).map(np.uint8),
    st.integers(0, 2**64 - 1).map(np.uint64),
)
VALUE = st.one_of(
    st.none(),
    st.booleans(),
    st.booleans().map(np.bool_),
    NUMBER,
    NUMBER.map(str),
    st.text("0123456789.-+e_ aftrue", max_size=6),
    st.text(max_size=3),
    st.sampled_from(["nan", "NaN", "inf", "-inf", "1e400", "TRUE", "False", " 3 ", "٣", "a\0b"]),
    st.sampled_from([value for pool in POOLS.values() for value in pool]),
    st.sampled_from(POOLS["string"]).map(np.str_),
)


def fitted(**chosen):
    return Preprocessor(SCHEMA, PreprocessorSettings(**chosen)).fit([TRAIN])


def one_column(role, dtype, **chosen):
    """A preprocessor of one column `c`, fitted on the type's pool; continuous floats have seen a null."""
    values = POOLS[dtype] + [None] * (role == "continuous" and dtype.startswith("float"))
    schema = Schema((Column("c", role, dtype),), ())
    return Preprocessor(schema, PreprocessorSettings(**chosen)).fit([pd.DataFrame({"c": values})])


@functools.cache
def both(role, dtype):
    """`one_column` and its online transformer, fitted once."""
    preprocessor = one_column(role, dtype)
    return preprocessor, OnlineTransformer(preprocessor)


@functools.cache
def online():
    """The transformer of `fitted()`, which no test changes."""
    return OnlineTransformer(fitted())


def by_frame(preprocessor, rows):
    """ids and floats by the batch path, the rows as one data frame."""
    frame = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a value beyond float32, which is then refused
        found = preprocessor.transform(frame, targets=False)
    names = preprocessor.schema.names("categorical")
    return found[names].to_numpy("int32"), found[preprocessor.float_names()].to_numpy("float32")


def assert_same_bits(found, expected):
    for ours, theirs, kind in zip(found, expected, ("int32", "float32"), strict=True):
        assert ours.dtype == kind
        assert ours.shape == theirs.shape
        assert ours.tobytes() == np.ascontiguousarray(theirs).tobytes()


def assert_as_alone_in_a_frame(preprocessor, transformer, row):
    """The same bits, or a DataError from both that names the column."""
    try:
        ids, floats = by_frame(preprocessor, [row])
    except DataError:
        with pytest.raises(DataError, match="'c'"):
            transformer(row)
    else:
        assert_same_bits(transformer(row), (ids[0], floats[0]))


def test_a_literal_row_is_encoded_filled_and_scaled():
    ids, floats = online()({**ROW, "x": None})
    # Categorical columns word, number, flag; ids 0 padding, 1 null, 2 unseen, then by frequency.
    assert ids.tolist() == [3, 3, 3]
    x, n = np.array([1, 4, 4, 7]), np.array([1, 2, 2, 3])
    expected = [(4 - x.mean()) / x.std(), (20 - 25) / np.std([10, 20, 30, 40]), (2 - n.mean()) / n.std(), 1, 0]
    np.testing.assert_allclose(floats, expected, rtol=1e-6)  # the last two are x_na and z_na
    assert ids.dtype == np.int32
    assert floats.dtype == np.float32


def test_null_in_every_spelling_and_unseen_values():
    transformer = online()
    for null in (None, float("nan"), np.float32("nan"), pd.NA, pd.NaT):
        ids, floats = transformer({**ROW, "word": null, "number": null, "flag": null, "x": null, "z": null})
        assert ids.tolist() == [1, 1, 1]
        assert floats.tolist() == [0.0, 0.0, 0.0, 1.0, 0.0]  # the medians are the means, z held no null
    assert transformer({**ROW, "word": "c", "number": 8})[0].tolist() == [2, 2, 3]


@pytest.mark.parametrize("dtype", POOLS)
@given(value=VALUE)
@settings(max_examples=examples(150), deadline=None)
@example(value=float(2**53))
@example(value=2**53 + 1)
@example(value=3.5)
@example(value=0.1)
def test_a_category_of_any_value_is_that_of_a_frame_or_refused_alike(dtype, value):
    preprocessor, transformer = both("categorical", dtype)
    assert_as_alone_in_a_frame(preprocessor, transformer, {"c": value})


@pytest.mark.parametrize("dtype", [dtype for dtype in POOLS if dtype != "string"])
@given(value=VALUE)
@settings(max_examples=examples(150), deadline=None)
@example(value=2**60 + 2**36 + 1)  # through float64 it would round to another float32
@example(value=2**60 + 2**36)
@example(value=True)
@example(value="0.1")
def test_a_number_of_any_value_is_that_of_a_frame_or_refused_alike(dtype, value):
    preprocessor, transformer = both("continuous", dtype)
    assert_as_alone_in_a_frame(preprocessor, transformer, {"c": value})


WELL_FORMED = st.fixed_dictionaries(
    {
        "x": st.one_of(st.none(), st.floats(-1e30, 1e30), st.integers(-9, 9)),
        "word": st.one_of(st.none(), st.sampled_from(["a", "b", "c"])),
        "z": st.one_of(st.none(), st.floats(-1e30, 1e30)),
        "number": st.one_of(st.none(), st.integers(-3, 8), st.just(7.0)),
        "n": st.integers(-9, 9),
        "flag": st.one_of(st.none(), st.booleans()),
    }
)


@given(
    rows=st.lists(WELL_FORMED, max_size=6),
    scale=st.sampled_from([True, False, "robust"]),
    indicator=st.sampled_from(["auto", "all", "none"]),
)
@settings(max_examples=examples(60), deadline=None)
def test_rows_are_the_same_bits_alone_together_and_in_a_frame(rows, scale, indicator):
    preprocessor = fitted(scale=scale, indicator=indicator)
    transformer = OnlineTransformer(preprocessor)
    ids, floats = transformer.batch(rows)
    assert ids.shape == (len(rows), 3)
    assert floats.shape == (len(rows), len(preprocessor.float_names()))
    for row, *together in zip(rows, ids, floats, strict=True):
        alone = by_frame(preprocessor, [row])
        assert_same_bits(transformer(row), (alone[0][0], alone[1][0]))
        assert_same_bits(together, (alone[0][0], alone[1][0]))


def test_a_sequence_is_read_in_schema_order():
    transformer = online()
    assert transformer.columns == ("x", "word", "z", "number", "n", "flag")
    values = [ROW[name] for name in transformer.columns]
    assert_same_bits(transformer(values), transformer(ROW))
    assert_same_bits(transformer(tuple(values)), transformer(ROW))
    assert_same_bits(transformer(pd.Series(ROW)), transformer(ROW))


def test_other_keys_are_ignored():
    transformer = online()
    assert_same_bits(transformer({"y": "no label", "other": [1], **ROW}), transformer(ROW))


def test_missing_columns_are_named_with_those_there():
    row = {name: value for name, value in ROW.items() if name not in ("word", "z")}
    with pytest.raises(DataError, match=r"'word', 'z' not found\. Columns there: 'x', 'number', 'n', 'flag'\."):
        online()(row)


@pytest.mark.parametrize("row", ["text", 7, None, {1, 2}])
def test_what_is_no_row_is_refused(row):
    with pytest.raises(DataError, match=r"a row is a mapping, or a list or tuple"):
        online()(row)


def test_a_sequence_of_another_length_is_refused_with_the_columns():
    with pytest.raises(DataError, match=r"has 6 values, found 2\. Columns: 'x', 'word'"):
        online()([1.0, "a"])


@pytest.mark.parametrize(
    "value",
    [b"3", datetime.date(2020, 1, 1), np.datetime64("2020-01-01"), np.timedelta64(3, "D"), [1], {"a": 1}, np.array([1]),
     (1,), 3.5j, "\ud800", decimal.Decimal("3.5")],
    ids=repr,
)  # fmt: skip
def test_a_value_that_a_frame_would_guess_at_is_refused(value):
    for name in ROW:
        with pytest.raises(DataError, match=f"'{name}' is declared"):
            online()({**ROW, name: value})


@pytest.mark.parametrize(("name", "value"), [("x", float("inf")), ("x", 1e39), ("z", -1e300), ("z", "-inf")])
def test_an_infinity_is_refused_in_the_words_of_the_batch_path(name, value):
    row = {**ROW, name: value}
    with pytest.raises(DataError) as theirs:
        by_frame(fitted(), [row])
    with pytest.raises(DataError) as ours:
        online()(row)
    assert str(ours.value) == str(theirs.value)
    assert f"'{name}' holds an infinity" in str(ours.value)


def test_what_leaves_float32_only_by_scaling_is_refused():
    tiny = pd.DataFrame({"c": [0.0, 1e-20, 2e-20, 1e-20]})
    preprocessor = Preprocessor(Schema((Column("c", "continuous", "float32"),), ())).fit([tiny])
    assert OnlineTransformer(preprocessor)({"c": 1e-20})[1].tolist() == [0.0, 0.0]
    with pytest.raises(DataError, match="'c' holds an infinity"):
        OnlineTransformer(preprocessor)({"c": 1e30})


@pytest.mark.parametrize("dtype", ["string", "int64", "int32", "bool"])
def test_several_unseen_ids_are_those_of_the_batch_path(dtype):
    layout = IdLayout(padding=0, null=1, unseen=2, buckets=5)
    preprocessor = one_column("categorical", dtype)
    known = preprocessor.vocabularies["c"]
    preprocessor.vocabularies["c"] = Vocabulary(known.values.iloc[:1], known.counts.iloc[:1], layout)
    transformer = OnlineTransformer(preprocessor)
    values = [*POOLS[dtype], None, "1", 1]
    found = [transformer({"c": value})[0].tolist() for value in values]
    assert found == [by_frame(preprocessor, [{"c": value}])[0][0].tolist() for value in values]
    if dtype == "string":
        assert transformer({"c": "new"})[0].tolist() == [2 + xxhash.xxh64_intdigest(b"new") % 5]


def test_other_layouts_are_followed(tmp_path):
    preprocessor = fitted()
    word = preprocessor.vocabularies["word"]
    preprocessor.vocabularies["word"] = Vocabulary(word.values, word.counts, IdLayout(0, 0, 0))  # fastai's
    preprocessor.save(tmp_path)
    for transformer in (OnlineTransformer(preprocessor), OnlineTransformer.load(tmp_path)):
        ids = [int(transformer({**ROW, "word": value})[0][0]) for value in (None, "new", "b", "a")]
        assert ids == [0, 0, 1, 2]


def test_an_unfitted_preprocessor_and_continuous_text_are_refused():
    with pytest.raises(DataError, match="not fitted"):
        OnlineTransformer(Preprocessor(SCHEMA))
    schema = Schema((Column("c", "continuous", "string"),), ())
    with pytest.raises(DataError, match="continuous column 'c' is declared string"):
        OnlineTransformer(Preprocessor(schema, fills={"c": Fill(0.0, False, 0.0)}, scales={"c": Scale(0.0, 1.0)}))


def test_a_vocabulary_of_another_type_is_refused():
    preprocessor = fitted()
    preprocessor.vocabularies["word"] = preprocessor.vocabularies["number"]
    with pytest.raises(DataError, match="'word' is declared string, but its vocabulary holds int"):
        OnlineTransformer(preprocessor)


def test_a_vocabulary_of_float64_fractions_is_refused_for_a_float32_column():
    preprocessor = one_column("categorical", "float32")
    preprocessor.vocabularies["c"] = Vocabulary(pd.Series([0.1, 0.5]), pd.Series([0, 0]))
    with pytest.raises(DataError, match="'c' is declared float32, but its vocabulary holds fractions in float64"):
        OnlineTransformer(preprocessor)
    with pytest.raises(DataError, match="'c' is float32"):
        by_frame(preprocessor, [{"c": 0.1}])


def test_a_given_value_that_the_column_cannot_hold_is_never_found():
    given = [2**31, 5]
    preprocessor = one_column("categorical", "int32")
    preprocessor.vocabularies["c"] = Vocabulary(pd.Series(given), pd.Series([0, 0]))
    transformer = OnlineTransformer(preprocessor)
    assert transformer({"c": given[1]})[0].tolist() == [4]
    assert_as_alone_in_a_frame(preprocessor, transformer, {"c": given[0]})
    assert_as_alone_in_a_frame(preprocessor, transformer, {"c": given[1]})


def test_threads_share_a_transformer():
    transformer = online()
    rows = [{**ROW, "x": x / 7, "z": None if x % 5 else x, "number": x % 9} for x in range(400)]
    expected = [transformer(row) for row in rows]
    with ThreadPoolExecutor(8) as pool:
        for found, wanted in zip(pool.map(transformer, rows * 5), expected * 5, strict=True):
            assert_same_bits(found, wanted)


def test_results_are_new_arrays():
    transformer = online()
    first = transformer(ROW)
    kept = [array.copy() for array in first]
    first[0][:], first[1][:] = 9, 9
    assert_same_bits(transformer(ROW), kept)


LOADING = """
import json, sys
from gigabatch.features.encoding.online import OnlineTransformer
ids, floats = OnlineTransformer.load(sys.argv[1])(json.loads(sys.argv[2]))
found = [name for name in ("pandas", "torch", "cudf", "polars") if name in sys.modules]
print(json.dumps([ids.tolist(), floats.view("int32").tolist(), found]))
"""


def test_a_saved_preprocessor_is_loaded_and_called_without_pandas_or_torch(tmp_path):
    preprocessor = fitted()
    preprocessor.save(tmp_path)
    row = {**ROW, "x": None, "word": "new"}
    command = [sys.executable, "-c", LOADING, str(tmp_path), json.dumps(row)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ids, floats = by_frame(preprocessor, [row])
    assert json.loads(done.stdout) == [ids[0].tolist(), floats[0].view("int32").tolist(), []]


@pytest.mark.parametrize("dtype", ["int32", "int64", "string"])
@pytest.mark.parametrize("value", [np.float32(2**24), np.float32(2**24 - 1), np.float16(2**11), np.float16(7)])
def test_a_float_of_few_bits_is_a_whole_number_as_in_a_frame(dtype, value):
    """F13: a dictionary found 2^24, which in a float32 may have been 2^24 + 1."""
    schema = Schema((Column("c", "categorical", dtype),), ())
    rows = pd.DataFrame({"c": pd.Series([2**24, 2**24 - 1, 2**11, 7]).astype("str" if dtype == "string" else dtype)})
    preprocessor = Preprocessor(schema).fit([rows])
    assert_as_alone_in_a_frame(preprocessor, OnlineTransformer(preprocessor), {"c": value})


@pytest.mark.parametrize("known", [[0.1, 0.3, 0.5, 2.0], [float(np.float32(0.1)), 0.5], [0.5, 2.0], [0.1, 1e39]])
@pytest.mark.parametrize(
    "value",
    [
        np.float32(0.1),
        float(np.float32(0.1)),
        0.1,
        np.float32(0.7),
        0.7,
        0.5,
        np.float16(0.1),
        2.0,
        1e39,
        np.inf,
        "0.1",
    ],
)
def test_a_float_that_may_be_a_known_one_rounded_is_refused_as_in_a_frame(known, value):
    """It was unseen; a frame of float32 beside a vocabulary of float64 is refused."""
    preprocessor = Preprocessor(Schema((Column("c", "categorical", "float64"),), ())).fit([pd.DataFrame({"c": known})])
    assert_as_alone_in_a_frame(preprocessor, OnlineTransformer(preprocessor), {"c": value})


@pytest.mark.parametrize("role", ["categorical", "continuous"])
@pytest.mark.parametrize("dtype", ["int64", "float32", "float64"])
@pytest.mark.parametrize(
    "text", ["1_000", "\u0661\u0662", "\uff11", " 12 ", "12", "12\n", "12.0\n", "12.0", "12.", "12.5", ".0"]
)
def test_text_is_a_number_where_it_is_one_in_a_frame(role, dtype, text):
    """R12."""
    schema = Schema((Column("c", role, dtype),), ())
    preprocessor = Preprocessor(schema).fit([pd.DataFrame({"c": np.array([12, 1, 1000], dtype)})])
    assert_as_alone_in_a_frame(preprocessor, OnlineTransformer(preprocessor), {"c": text})


@pytest.mark.parametrize("dtype", ["string", "int64"])
def test_a_whole_number_is_one_category_from_every_source_but_as_another_text(tmp_path, dtype):
    """As docs/workflow.md has it: of text declared `string` every character counts, also of the text of a number."""
    schema = Schema((Column("shop", "categorical", dtype),), ())
    frame = pd.DataFrame({"shop": [3.0, None, 7.0]})
    frame.to_parquet(tmp_path / "floats.parquet")
    frame.astype("Int64").to_parquet(tmp_path / "integers.parquet")
    (tmp_path / "plain.csv").write_text("shop,n\n3,1\n,1\n7,1\n")
    (tmp_path / "floats.csv").write_text("shop,n\n3.0,1\n,1\n7.0,1\n")

    def of_file(name):
        return read_files("pandas", str(tmp_path / name), {"shop": dtype}, nullable={"shop"})

    fitted = Preprocessor(schema).fit([of_file("plain.csv")])
    expected = [3, 1, 4]
    frames = [frame, frame.astype("Int64"), *map(of_file, ("plain.csv", "floats.parquet", "integers.parquet"))]
    assert [fitted.transform(one)["shop"].tolist() for one in frames] == [expected] * 5
    online = OnlineTransformer(fitted)
    for three in (3, 3.0, "3", np.float32(3), np.int32(3)):
        assert online({"shop": three})[0].tolist() == [3]
    known = fitted.transform(of_file("floats.csv"))["shop"].tolist()
    assert known == (expected if dtype == "int64" else [2, 1, 2])
