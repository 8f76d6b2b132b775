"""The preprocessor: ids, fills and scales that do not depend on partitions, rows or files in between."""

import json
from dataclasses import astuple
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import RobustScaler

from gigabatch.features.encoding.online import OnlineTransformer
from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.encoding.settings import CategorySettings, PreprocessorSettings
from gigabatch.features.engines import arrow_columns
from gigabatch.features.errors import DataError
from gigabatch.features.refit.update import checksum
from gigabatch.features.schema import Column, Schema, Target, TensorSchema
from tests.examples import examples
from tests.features.partitioned import COUNTS, cut

SCHEMA = Schema(
    (
        Column("word", "categorical", "string"),
        Column("number", "categorical", "int64"),
        Column("x", "continuous", "float32"),
        Column("z", "continuous", "float32"),
        Column("y", "target", "float32"),
        Column("kind", "target", "int32"),
        Column("w", "weight", "float32"),
        Column("g", "group", "string"),
        Column("k", "key", "int64"),
    ),
    (Target("y", "binary"), Target("kind", "multiclass", 3)),
)
ROW = st.tuples(
    st.one_of(st.none(), st.sampled_from(["a", "b", "cc", "d"])),
    st.one_of(st.none(), st.integers(-3, 3)),
    st.one_of(st.none(), st.floats(-1000, 1000, width=32)),
    st.floats(-1000, 1000, width=32),
)
SEED = st.integers(0, 99)
LITERAL = (("a", 7, 1.0, 10.0), ("b", 7, None, 20.0), ("b", None, 4.0, 30.0), (None, -2, 7.0, 40.0))


def table(rows):
    frame = pd.DataFrame(rows, columns=["word", "number", "x", "z"])
    frame = frame.astype({"word": "str", "number": "float64", "x": "float32", "z": "float32"})
    size = len(frame)
    return frame.assign(
        y=np.arange(size) % 2, kind=np.arange(size) % 3, w=1.5, g=[f"s{i // 2}" for i in range(size)], k=range(size)
    )


def fitted(rows=LITERAL, **chosen):
    return Preprocessor(SCHEMA, PreprocessorSettings(**chosen)).fit([table(rows)])


def state(preprocessor):
    vocabularies = {n: (v.values.tolist(), v.counts.tolist()) for n, v in preprocessor.vocabularies.items()}
    return vocabularies, preprocessor.fills, preprocessor.scales


def test_a_literal_table_is_encoded_filled_and_scaled():
    frame = table(LITERAL)
    found = Preprocessor(SCHEMA).fit([frame]).transform(frame)
    pd.testing.assert_frame_equal(frame, table(LITERAL))  # what comes in is not changed
    assert list(found.columns) == ["word", "number", "x", "z", "x_na", "z_na", "y", "kind", "w", "g"]
    assert [str(t) for t in found.dtypes] == ["int32"] * 2 + ["float32"] * 5 + ["int32", "float32", "int32"]
    assert found["word"].tolist() == [4, 3, 3, 1]
    assert found["number"].tolist() == [3, 3, 1, 4]
    filled = np.array([1, 4, 4, 7])
    np.testing.assert_allclose(found["x"], (filled - filled.mean()) / filled.std(), rtol=1e-6)
    np.testing.assert_allclose(found["z"], (np.array([10, 20, 30, 40]) - 25) / np.std([10, 20, 30, 40]), rtol=1e-6)
    assert found["x_na"].tolist() == [0, 1, 0, 0]
    assert found["z_na"].tolist() == [0, 0, 0, 0]
    assert found["y"].tolist() == [0, 1, 0, 1]
    assert found["g"].tolist() == [0, 0, 1, 1]


def test_the_tensor_schema_describes_what_transform_yields():
    preprocessor = fitted()
    schema, found = preprocessor.tensor_schema, preprocessor.transform(table(LITERAL))
    assert isinstance(schema, TensorSchema)
    names = [c.name for c in schema.ids] + list(schema.floats) + [t.name for t in schema.targets] + ["w", "g"]
    assert names == list(found.columns)
    assert schema.num_words == len(found.columns)
    assert [c.num_ids for c in schema.ids] == [3 + 2, 3 + 2]
    assert all(found[c.name].between(0, c.num_ids - 1).all() for c in schema.ids)


@given(rows=st.lists(ROW, min_size=1, max_size=30), count=COUNTS, seed=SEED, min_count=st.integers(1, 3))
@settings(max_examples=examples(40))
def test_fit_in_any_partitions_and_fit_pack_give_the_same_states_and_rows(rows, count, seed, min_count):
    frame = table([*rows, ("a", 1, 0.0, 0.0)])
    parts = cut(frame, count, seed)
    apart = Preprocessor(SCHEMA, PreprocessorSettings(min_count=min_count)).fit([frame])
    together = Preprocessor(SCHEMA, PreprocessorSettings(min_count=min_count))
    packed = together.fit_pack(parts)
    assert checksum(together.learned) == checksum(apart.learned)
    several = Preprocessor(SCHEMA, PreprocessorSettings(min_count=min_count))
    assert checksum(several.fit(cut(frame.sample(frac=1, random_state=seed), count, seed)).learned) == checksum(
        apart.learned
    )
    for part, found in zip(parts, packed, strict=True):
        assert np.array_equal(found, apart.pack(part))


@given(st.data(), st.integers(1, 3))
@settings(max_examples=examples(40))
def test_rows_after_fit_pack_are_looked_up_as_after_loading(data, min_count):
    """Long and short text and far-apart integers, with values that were cut, that are new and that are null."""
    words = ["a", "", "a" * 20, "a" * 19 + "b", "ab", "äöü" * 7, "c"]
    numbers = [0, -5, 10**12, 10**12 + 1, 7, -(2**62)]
    row = st.tuples(st.sampled_from([None, *words]), st.sampled_from([None, *numbers]))
    schema = Schema((Column("word", "categorical", "string"), Column("number", "categorical", "int64")), ())

    def frame(rows):
        columns = {"word": pd.array([row[0] for row in rows], "string[pyarrow]")}
        return pd.DataFrame(columns | {"number": pd.array([row[1] for row in rows], "int64[pyarrow]")})

    train, others = (frame(data.draw(st.lists(row, min_size=1, max_size=30))) for _ in range(2))
    chosen = PreprocessorSettings(min_count=min_count)
    fresh, kept = Preprocessor(schema, chosen).fit([train]), Preprocessor(schema, chosen)
    kept.fit_pack([train])
    np.testing.assert_array_equal(kept.pack(others), fresh.pack(others))


def test_the_columns_of_a_file_need_not_be_converted(tmp_path, monkeypatch):
    """Text as dictionary codes, narrow integers, chunks with nulls: what `read_columns` hands over is encoded alike."""
    rng = np.random.default_rng(5)
    size = 3000
    words = np.array(["a", "b", "cc", None, "d"], dtype=object)[rng.integers(0, 5, size)]
    narrow = pa.array(rng.integers(-3, 4, size), pa.int8(), mask=rng.random(size) < 0.1)
    x = pa.array(rng.normal(size=size).astype("float32"), mask=rng.random(size) < 0.1)
    rest = table([("a", 1, 0.0, 0.0)] * size)[["z", "y", "kind", "w", "g"]]
    columns = {"word": pa.array(words), "number": narrow, "x": x} | {n: pa.array(rest[n]) for n in rest}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet", row_group_size=700)
    part = ("pandas", tmp_path / "rows.parquet")
    frame = pd.read_parquet(tmp_path / "rows.parquet")
    plain = Preprocessor(SCHEMA).fit([frame])
    direct = Preprocessor(SCHEMA)
    (packed,) = direct.fit_pack([part])
    assert isinstance(direct.read(part)["word"].dtype, pd.ArrowDtype)
    assert state(direct) == state(plain) == state(Preprocessor(SCHEMA).fit([part]))
    assert np.array_equal(packed, plain.pack(frame))
    assert np.array_equal(direct.pack(direct.read(part)), packed)
    decoded = Mock(wraps=arrow_columns.as_of_table)
    monkeypatch.setattr(arrow_columns, "as_of_table", decoded)
    Preprocessor(SCHEMA).fit([part]).grow([part, direct.read(part)])
    assert not decoded.called


def test_columns_may_have_category_settings_of_their_own(tmp_path):
    chosen = PreprocessorSettings(max_size=1, columns={"number": CategorySettings(min_count=2, oov_buckets=3)})
    found = Preprocessor(SCHEMA, chosen).fit([table(LITERAL)])
    # word: b twice, a once; of which only b is kept. number: 7 twice, and three ids for what is unseen.
    assert found.vocabularies["word"].values.tolist() == ["b"]
    assert found.vocabularies["number"].values.tolist() == [7]
    assert [column.num_ids for column in found.tensor_schema.ids] == [3 + 1, 2 + 3 + 1]
    encoded = found.transform(table([("b", 7, 1.0, 1.0), ("a", -2, 1.0, 1.0)]))
    assert encoded["word"].tolist() == [3, 2]
    assert encoded["number"].tolist() == [5, 2 + xxhash.xxh64_intdigest((-2).to_bytes(8, "little", signed=True)) % 3]
    found.save(tmp_path)
    again = Preprocessor.load(tmp_path)
    assert again.settings == chosen
    pd.testing.assert_frame_equal(again.transform(table(LITERAL)), found.transform(table(LITERAL)))
    assert np.array_equal(Preprocessor(SCHEMA, chosen).fit_pack([table(LITERAL)])[0], found.pack(table(LITERAL)))


def test_robust_floats_are_scikit_learns_smoothly_clipped():
    """RealMLP's preprocessing: RobustScaler, then x / sqrt(1 + (x / 3)^2); z keeps its z-score."""
    random = np.random.default_rng(4)
    frame = table([("a", 1, value, value) for value in random.lognormal(2, 3, 500)])
    frame.loc[::9, "x"] = np.nan
    found = Preprocessor(SCHEMA, PreprocessorSettings(columns={"x": {"scale": "robust"}})).fit(cut(frame, 3, 0))
    rows = pd.concat([frame, table([("a", 1, 1e30, 0.0), ("a", 1, -1e30, 0.0)])])
    filled = rows["x"].astype("float64").fillna(np.float32(frame["x"].astype("float64").median()))
    known = frame[["x"]].dropna().to_numpy("float64")
    scaled = RobustScaler().fit(known).transform(filled.to_numpy()[:, None])[:, 0]
    ours = found.transform(rows)
    np.testing.assert_allclose(ours["x"], scaled / np.sqrt(1 + (scaled / 3) ** 2), rtol=1e-6, atol=1e-7)
    assert ours["x"].abs().max() <= 3
    plain = Preprocessor(SCHEMA).fit([frame])
    assert ours["z"].tolist() == plain.transform(rows)["z"].tolist()
    assert ours["x_na"].tolist() == rows["x"].isna().astype("float32").tolist()
    assert found.edges == plain.edges


def test_a_column_of_one_value_stays_0_with_a_robust_scale_whatever_comes():
    found = Preprocessor(SCHEMA, PreprocessorSettings(scale="robust")).fit([table([("a", 1, 5.0, 1.0)] * 9)])
    assert found.transform(table([("a", 1, 5.0, 1.0), ("a", 1, 3e38, -7.0)]))[["x", "z"]].to_numpy().tolist() == [
        [0.0, 0.0], [0.0, 0.0],
    ]  # fmt: skip


def test_what_a_column_leaves_out_is_as_of_all_columns():
    of = PreprocessorSettings(
        bins=9, distinct=30, scale="robust",
        columns={"a": {"distinct": 7}, "b": {"scale": True}, "c": {"bins": 4}, "d": {"bins": 4, "distinct": 5},
                 "f": {"edges": "tree"}},
    ).number_settings  # fmt: skip
    assert astuple(of("a")) == (9, 7, "robust", "quantile")
    assert astuple(of("b")) == (9, 30, True, "quantile")
    assert astuple(of("c")) == (4, 0, "robust", "quantile")  # who sets the bins of a column means them
    assert astuple(of("d")) == (4, 5, "robust", "quantile")
    assert astuple(of("f")) == (9, 30, "robust", "tree")
    assert astuple(of("e")) == (9, 30, "robust", "quantile")


def test_a_state_that_is_older_than_distinct_values_as_edges_was_fitted_without(tmp_path):
    fitted().save(tmp_path)
    file = tmp_path / "preprocessor.json"
    content = json.loads(file.read_text())
    assert Preprocessor.load(tmp_path).settings.distinct == content["settings"].pop("distinct") == 256
    file.write_text(json.dumps(content))
    assert Preprocessor.load(tmp_path).settings.distinct == 0


def test_settings_of_a_column_that_is_not_categorical_are_refused():
    with pytest.raises(DataError, match=r"preprocess.columns: x is no categorical column. .*: word, number"):
        Preprocessor(SCHEMA, PreprocessorSettings(columns={"x": CategorySettings()}))


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (
            {"columns": {"word": {"min_cnt": 2}}},
            r"preprocess.columns.word: unknown key.* min_cnt. Known: min_count",
        ),
        ({"columns": {"word": 2}}, r"preprocess.columns.word: expected settings by name, found 2"),
        ({"columns": {"word": {"min_count": 0}}}, r"min_count must be at least 1, found 0"),
        ({"indicator": "never"}, r"preprocess.indicator: unknown value 'never'. Known: auto, all, none"),
        ({"columns": {"x": {"scale": "z"}}}, r"preprocess.scale: expected true, false or robust, found 'z'"),
        ({"scale": "yes"}, r"preprocess.scale: expected true, false or robust, found 'yes'"),
    ],
)
def test_settings_that_cannot_be_are_refused_when_they_are_made(chosen, message):
    """F16: KeyError and TypeError, or no word before the fit."""
    with pytest.raises(DataError, match=message):
        PreprocessorSettings(**chosen)


@pytest.mark.parametrize("dtype", ["float64", "int32", "int64"])
def test_continuous_columns_of_any_declared_type_become_float32(dtype):
    schema = Schema((Column("x", "continuous", dtype), Column("y", "target", "float32")), (Target("y", "binary"),))
    frame = pd.DataFrame({"x": np.array([1, 2, 2, 3], dtype), "y": np.float32([0, 1, 0, 1])})
    found = Preprocessor(schema).fit([frame]).transform(frame)["x"]
    np.testing.assert_allclose(found, (np.array([1, 2, 2, 3]) - 2) / np.std([1, 2, 2, 3]), rtol=1e-6)


@given(train=st.lists(ROW, min_size=1, max_size=20), rows=st.lists(ROW, min_size=2, max_size=12), seed=SEED)
@settings(max_examples=examples(20), deadline=None)
def test_a_row_alone_and_rows_in_any_order_are_what_they_are_among_many(train, rows, seed):
    preprocessor = fitted([*train, ("a", 1, 0.0, 0.0)])
    frame = table(rows)
    many = preprocessor.transform(frame, targets=False)
    shuffled = frame.sample(frac=1, random_state=seed)
    for other in (shuffled, shuffled.head(1), shuffled.tail(1)):
        alone = preprocessor.transform(other, targets=False)
        pd.testing.assert_frame_equal(alone, many.loc[other.index], check_exact=True)


def test_transform_needs_no_label_and_no_key_and_labels_change_nothing():
    preprocessor, frame = fitted(), table(LITERAL)
    found = preprocessor.transform(frame[["word", "number", "x", "z"]], targets=False)
    assert list(found.columns) == ["word", "number", "x", "z", "x_na", "z_na"]
    pd.testing.assert_frame_equal(preprocessor.transform(frame.assign(y=1 - frame["y"]))[list(found.columns)], found)


def test_a_null_group_is_refused_as_other_nulls_are():
    """Rows of unknown groups were ranked together, as one group of the number -1."""
    preprocessor, frame = fitted(), table(LITERAL)
    with pytest.raises(DataError, match="group 'g' is null in 2 of 4 rows"):
        preprocessor.pack(frame.assign(g=["a", None, None, "b"]))
    assert preprocessor.pack(frame.assign(g=["a", None, None, "b"]), targets=False).shape[0] == 4


def test_unseen_categories_and_new_nulls_are_handled():
    frame = table([("new", 99, None, None)])
    found = fitted(scale=False).transform(frame, targets=False)
    assert found.to_dict("records") == [{"word": 2, "number": 2, "x": 4.0, "z": 25.0, "x_na": 1.0, "z_na": 0.0}]
    later = fitted([("a", 1, 0.0, 0.0)]).transform(table([(None, None, 1.0, 1.0)]))
    assert later[["word", "number"]].to_dict("records") == [{"word": 1, "number": 1}]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("indicator", ["auto", "all", "none"])
def test_what_a_model_is_given_does_not_depend_on_the_nulls_of_a_night(dtype, indicator):
    """F10: the same words for a train split with nulls and for one without; a null that was never seen is not told."""
    schema = Schema((Column("x", "continuous", dtype),), ())
    chosen = PreprocessorSettings(indicator=indicator, scale=False)
    nights = [pd.DataFrame({"x": np.array([1, 2, 3], dtype)}), pd.DataFrame({"x": [1.0, None, 3.0]})]
    nights = nights[: 1 if dtype == "int64" else 2]
    fits = [Preprocessor(schema, chosen).fit([night]) for night in nights]
    expected = ["x", "x_na"] if indicator == "all" or (indicator == "auto" and dtype != "int64") else ["x"]
    assert [list(fit.tensor_schema.floats) for fit in fits] == [expected] * len(nights)
    if len(nights) == 2:
        for fit, seen in zip(fits, (False, True), strict=True):
            flagged = {"auto": [float(seen)], "all": [1.0], "none": []}[indicator]
            assert fit.transform(nights[1]).iloc[1].tolist() == [2.0, *flagged]
            assert OnlineTransformer(fit)({"x": None})[1].tolist() == [2.0, *flagged]
            assert Preprocessor(schema, chosen).fit_pack([nights[0]])[0].shape == (3, len(expected))


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        ("float32", 1.5, "1 of 3 values are not class numbers below 2; the first is 1.5 in row 1"),
        ("float64", 1.9, "the first is 1.9"),
        ("float64", np.inf, "the first is inf"),
        ("float64", np.nan, "multiclass target 'y' is null in 1 of 3 rows"),
        ("int64", 2**32 + 1, "the first is 4294967297 in row 1"),
    ],
)
def test_a_class_number_is_checked_before_it_is_narrowed(dtype, value, message):
    """1.5 and 2^32 + 1 were class 1."""
    schema = Schema(
        (Column("c", "categorical", "string"), Column("y", "target", dtype)), (Target("y", "multiclass", 2),)
    )
    frame = pd.DataFrame({"c": list("aab"), "y": [0, value, 1]})
    with pytest.raises(DataError, match=message):
        Preprocessor(schema).fit_pack([frame])
    fine = Preprocessor(schema).fit([frame]).transform(frame.assign(y=[0, 1, 1]))
    assert fine["y"].tolist() == [0, 1, 1]
    assert str(fine["y"].dtype) == "int32"


WAYS = {
    "transform": lambda preprocessor, frame: preprocessor.transform(frame),
    "pack": lambda preprocessor, frame: preprocessor.pack(frame),
    "fit_pack": lambda preprocessor, frame: Preprocessor(preprocessor.schema).fit_pack([frame.head(1), frame]),
    "grow_pack": lambda preprocessor, frame: preprocessor.grow_pack([frame.head(1), frame])[0],
    "read": lambda preprocessor, frame: preprocessor.pack(
        pa.Table.from_pandas(frame, preserve_index=False).to_pandas(types_mapper=pd.ArrowDtype)
    ),
}


def fitted_on_labels():
    """A frame with a regression target too, and the preprocessor of it."""
    columns = (*SCHEMA.columns, Column("v", "target", "float32"))
    frame = table(LITERAL).assign(v=0.5)
    return frame, Preprocessor(Schema(columns, (*SCHEMA.targets, Target("v", "regression")))).fit([frame])


@pytest.mark.parametrize("way", WAYS)
def test_labels_are_taken_at_every_way_of_encoding(way):
    frame, preprocessor = fitted_on_labels()
    WAYS[way](preprocessor, frame)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("y", np.nan, "binary target 'y' is null in 1 of 4 rows"),
        ("y", 2.0, "binary target 'y': 1 of 4 values are not 0 or 1; the first is 2.0 in row 2"),
        ("y", 0.5, "binary target 'y': 1 of 4 values are not 0 or 1"),
        ("kind", 3, "multiclass target 'kind': 1 of 4 values are not class numbers below 3; the first is 3 in row 2"),
        ("kind", -1, "multiclass target 'kind'.* the first is -1"),
        ("v", np.nan, "regression target 'v' is null"),
        ("v", -np.inf, "regression target 'v'.* not finite"),
        ("v", 1e39, "regression target 'v'.* not finite"),
        ("w", np.nan, "weight 'w' is null"),
        ("w", -1.0, "weight 'w'.* not from 0 to 2"),
        ("w", 1e38, "weight 'w'.* only the ratios of weights count"),
    ],
)
def test_labels_that_are_none_are_refused_at_every_way_of_encoding(way, column, value, message):
    """F14: NaN and class codes outside the classes were packed; R12: weights of 1e38 made every loss infinite."""
    frame, preprocessor = fitted_on_labels()
    bad = frame.assign(**{column: frame[column].where(frame["k"] != 2, value)})
    with pytest.raises(DataError, match=message):
        WAYS[way](preprocessor, bad)
    assert len(preprocessor.transform(bad, targets=False)) == 4


def test_ids_that_arrive_as_floats_are_taken_when_whole():
    frame = table(LITERAL)
    assert str(frame["number"].dtype) == "float64"
    as_integers = frame.assign(number=frame["number"].astype("Int64"))
    preprocessor = fitted()
    pd.testing.assert_frame_equal(preprocessor.transform(as_integers), preprocessor.transform(frame))
    with pytest.raises(DataError, match=r"Preprocessor: column 'number' is declared int64.*fraction"):
        preprocessor.transform(frame.assign(number=[3.0, 3.5, 1.0, 1.0]))


def test_a_category_column_is_encoded_by_value():
    frame = table(LITERAL)
    lying = frame.assign(word=pd.Categorical(frame["word"], categories=["zz", "b", "a"]))
    pd.testing.assert_frame_equal(fitted().transform(lying), fitted().transform(frame))
    assert state(Preprocessor(SCHEMA).fit([lying])) == state(fitted())


def test_settings_reach_the_operators():
    found = fitted(min_count=2, indicator="all", scale=False)
    assert found.vocabularies["word"].values.tolist() == ["b"]
    assert found.float_names() == ["x", "z", "x_na", "z_na"]
    assert found.scales == {}


@pytest.mark.parametrize(
    "chosen",
    [{}, {"scale": False, "indicator": "none", "min_count": 2}, {"columns": {"x": {"scale": "robust"}}}],
)
def test_a_saved_preprocessor_loads_equal(tmp_path, chosen):
    one = fitted(**chosen)
    one.save(tmp_path / "p")
    two = Preprocessor.load(tmp_path / "p")
    assert (two.schema, two.settings, state(two)) == (one.schema, one.settings, state(one))
    assert two.tensor_schema == one.tensor_schema
    pd.testing.assert_frame_equal(two.transform(table(LITERAL)), one.transform(table(LITERAL)), check_exact=True)


def damaged_json(change):
    def damage(folder):
        state = json.loads((folder / "preprocessor.json").read_text())
        change(state)
        (folder / "preprocessor.json").write_text(json.dumps(state))

    return damage


def other_vocabulary(columns, layout=None):
    def damage(folder):
        table = pa.table(columns)
        metadata = {"gigabatch.vocabulary": json.dumps({"layout": layout})} if layout else {}
        pq.write_table(table.replace_schema_metadata(metadata), folder / "vocabulary-000.parquet")

    return damage


DAMAGE = {
    "no json": lambda folder: (folder / "preprocessor.json").unlink(),
    "half a json": lambda folder: (folder / "preprocessor.json").write_text("{"),
    "a list": lambda folder: (folder / "preprocessor.json").write_text("[]"),
    "no text": lambda folder: (folder / "preprocessor.json").write_bytes(b"PAR1 no more"),
    "no vocabulary": lambda folder: (folder / "vocabulary-001.parquet").unlink(),
    "no Parquet file": lambda folder: (folder / "vocabulary-000.parquet").write_bytes(b"PAR1 no more"),
    "other columns": other_vocabulary({"a": [1]}),
    "no counts": other_vocabulary({"value": ["a"]}),
    "a value twice": other_vocabulary({"value": ["a", "a"], "count": [1, 1]}),
    "a null value": other_vocabulary({"value": ["a", None], "count": [1, 1]}),
    "id -1": other_vocabulary({"value": ["a"], "count": [1]}, {"padding": 0, "null": -1, "unseen": 2, "buckets": 1}),
    "no fills": damaged_json(lambda state: state.pop("fills")),
    "fills are a list": damaged_json(lambda state: state.update(fills=[1])),
    "a fill less": damaged_json(lambda state: state["fills"].pop("x")),
    "a fill without value": damaged_json(lambda state: state["fills"]["x"].pop("value")),
    "a scale less": damaged_json(lambda state: state["scales"].pop("x")),
    "a mean is text": damaged_json(lambda state: state["scales"]["x"].update(mean="much")),
    "no columns": damaged_json(lambda state: state["schema"].pop("columns")),
    "another format": damaged_json(lambda state: state.update(format=99)),
    "an unknown setting": damaged_json(lambda state: state["settings"].update(surprise=1)),
}


def test_a_folder_that_is_not_there_is_not_called_damaged(tmp_path):
    with pytest.raises(DataError, match=r"^preprocessor .*/nowhere: there is no such folder\."):
        Preprocessor.load(tmp_path / "nowhere")


@pytest.mark.parametrize("load", [Preprocessor.load, OnlineTransformer.load])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_folder_is_an_error(tmp_path, damage, load):
    fitted().save(tmp_path)
    load(tmp_path)
    DAMAGE[damage](tmp_path)
    with pytest.raises(DataError):
        load(tmp_path)


def test_no_flipped_bit_of_a_page_is_another_value(tmp_path):
    """`zstd` and Parquet's encodings read most of them as other values: of 1,318 flips 1,126."""
    fitted([(f"town {place}", place % 7, place / 8, -place) for place in range(300)]).save(tmp_path)
    for path in sorted(tmp_path.glob("*.parquet")):
        content, known = path.read_bytes(), pq.read_table(path)
        footer = int.from_bytes(content[-8:-4], "little") + 8
        others = 0
        for place in range(4, len(content) - footer, 1 + len(content) // 60):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :])
            try:
                if pq.read_table(path).equals(known):
                    continue
            except (OSError, ValueError, pa.ArrowException):
                continue
            others += 1
            with pytest.raises(DataError):
                Preprocessor.load(tmp_path)
        path.write_bytes(content)
        assert others, path.name
    Preprocessor.load(tmp_path)


def test_an_all_null_continuous_column_is_an_error_and_an_all_null_category_is_not():
    with pytest.raises(DataError, match=r"column 'x': all 2 rows of the train split are null"):
        fitted([("a", 1, None, 1.0), ("b", 1, None, 1.0)])
    found = fitted([(None, 1, 1.0, 1.0), (None, 2, 2.0, 1.0)])
    assert found.transform(table([("a", 1, 1.0, 1.0), (None, 1, 1.0, 1.0)]))["word"].tolist() == [2, 1]


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e300])
def test_a_value_beyond_float32_is_an_error(value):
    frame = table(LITERAL).assign(z=[1.0, 2.0, 3.0, value])
    for use in (lambda: Preprocessor(SCHEMA).fit([frame]), lambda: fitted().transform(frame, targets=False)):
        with pytest.raises(DataError, match=r"column 'z' holds an infinity"):
            use()


def test_missing_columns_are_named_with_the_alternatives():
    with pytest.raises(DataError, match=r"Preprocessor: column.* 'x' not found. Columns there: 'word', 'number', 'z'"):
        fitted().transform(table(LITERAL).drop(columns="x"))
    with pytest.raises(DataError, match=r"'y' not found"):
        fitted().transform(table(LITERAL).drop(columns="y"))


def test_text_in_a_continuous_column_is_an_error():
    with pytest.raises(DataError, match=r"column 'x' is declared float32"):
        fitted().transform(table(LITERAL).assign(x=["1", "2", "many", "4"]))


@pytest.mark.parametrize(
    "use", [lambda p: p.transform(table(LITERAL)), lambda p: p.tensor_schema, lambda p: p.save("x")]
)
def test_an_unfitted_preprocessor_says_so(use):
    with pytest.raises(DataError, match=r"not fitted"):
        use(Preprocessor(SCHEMA))


def test_fitting_on_nothing_is_an_error():
    with pytest.raises(DataError, match=r"nothing to fit on"):
        Preprocessor(SCHEMA).fit([])
