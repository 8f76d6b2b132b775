"""Frames of Polars and Arrow tables where frames enter, and Arrow's younger types: equal to what pandas gives."""

from pathlib import Path

import dask.dataframe
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.engines.arrow_columns import read_arrow
from gigabatch.features.engines.arrow_tables import arrow_table
from gigabatch.features.engines.arrow_types import usual_column
from gigabatch.features.engines.pandas import read_parquet
from gigabatch.features.errors import DataError
from gigabatch.features.operators.categories.categorify import Categorify
from gigabatch.features.operators.history.rolling import Rolling
from gigabatch.features.operators.numbers.clip import Clip
from gigabatch.features.operators.numbers.normalize import Normalize
from gigabatch.features.schema import Column, Schema
from gigabatch.features.workflow.steps import parse_steps
from gigabatch.features.workflow.workflow import Workflow
from gigabatch.pipeline.init.draft import draft_config

ROLLING = {"by": ["user"], "time": "at", "column": "at", "window": 9, "statistic": "count", "output": "n"}


class Streamed:
    """A table of another library, which hands over Arrow's memory and nothing else, as Polars' frames do."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


def as_polars(frame: pd.DataFrame) -> Streamed:
    """Text as views, as Polars has it."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    for place, field in enumerate(table.schema):
        if pa.types.is_large_string(field.type) or pa.types.is_string(field.type):
            table = table.set_column(place, field.name, table.column(place).cast(pa.string_view()))
    return Streamed(table)


def as_arrow(frame: pd.DataFrame) -> pa.Table:
    return pa.Table.from_pandas(frame, preserve_index=False)


@pytest.fixture
def rows() -> pd.DataFrame:
    return pd.DataFrame(
        {"user": ["a", "b", "a", None], "at": [1, 3, 5, 7], "price": [1.0, None, 3.0, 9.0], "day": "2024-02-03"}
    )


def same(found, expected: pd.DataFrame) -> None:
    assert isinstance(found, pa.Table)
    assert found.to_pydict() == pa.Table.from_pandas(expected, preserve_index=False).to_pydict()


@pytest.mark.parametrize("of", [as_polars, as_arrow])
def test_workflows_take_them_wherever_frames_enter(rows, of):
    steps = [{"rolling": ROLLING}, {"min_max": {"column": "at", "output": "share"}}]
    dtypes = {"at": "int64", "user": "string"}
    workflow, other = (Workflow(parse_steps(steps), dtypes=dtypes) for _ in range(2))
    workflow.fit([rows])
    assert other.fit([of(rows)]).states[1] == workflow.states[1]
    same(other.typed(of(rows)), workflow.typed(rows))
    same(other.transform(of(rows), whole_groups=True), workflow.transform(rows, whole_groups=True))
    splits = {"train": rows, "test": rows.assign(at=rows["at"] + 8)}
    expected = workflow.fit_transform_splits(splits)
    found = other.fit_transform_splits({name: of(frame) for name, frame in splits.items()})
    for name, frame in found.items():
        same(frame, expected[name])
    (found,) = other.fit_transform([of(rows)])
    same(found, workflow.fit_transform([rows])[0])


@pytest.mark.parametrize("of", [as_polars, as_arrow])
def test_the_preprocessor_takes_them(rows, of):
    columns = Column("user", "categorical", "string"), Column("price", "continuous", "float32")
    expected, found = (Preprocessor(Schema(columns, ())).fit(parts) for parts in ([rows], [of(rows)]))
    assert found.checksum == expected.checksum
    assert np.array_equal(found.pack(of(rows)), expected.pack(rows))
    same(found.transform(of(rows)), expected.transform(rows))
    assert np.array_equal(Preprocessor(Schema(columns, ())).fit_pack([of(rows)])[0], expected.pack(rows))
    found.update([of(rows)])
    expected.update([rows])
    assert found.checksum == expected.checksum


@pytest.mark.parametrize("of", [as_polars, as_arrow])
def test_an_operator_alone_takes_them(rows, of):
    rolling = Rolling(**ROLLING)
    same(rolling(of(rows)), rolling(rows))
    normalize = Normalize("at")
    state = normalize.fit([of(rows), of(rows)])
    assert state == normalize.fit([rows, rows])
    same(normalize.apply(of(rows), state), normalize.apply(rows, state))
    same(normalize.apply_to_train(of(rows), state), normalize.apply_to_train(rows, state))


@pytest.mark.parametrize("of", [lambda frame: frame, as_polars, as_arrow])
def test_a_frame_alone_in_the_place_of_parts_is_refused(rows, of):
    schema = Schema((Column("user", "categorical", "string"),), ())
    calls = [
        Workflow([Categorify("user")]).fit, Workflow([Categorify("user")]).fit_transform, Preprocessor(schema).fit,
        Preprocessor(schema).fit_pack, Normalize("at").fit,
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(DataError, match=r"a frame alone is nothing to fit on\. Give a list of parts: \[frame\]"):
            call(of(rows))
    with pytest.raises(DataError, match=r"the text 'rows.parquet' is nothing to fit on"):
        calls[0]("rows.parquet")


def test_a_path_without_its_engine_and_a_folder_among_parts_are_refused(rows, tmp_path):
    path = tmp_path / "rows.parquet"
    rows.to_parquet(path)
    schema = Schema((Column("user", "categorical", "string"),), ())
    for fit in (Workflow([Categorify("user")]).fit, Preprocessor(schema).fit):
        for part in (path, str(path)):
            with pytest.raises(DataError, match=rf"the path '.*' comes with its engine: \('pandas', '{path}'\)"):
                fit([part])
        with pytest.raises(
            DataError, match=r"is a folder\. Give its Parquet files, .*\[\('pandas', path\) for path in"
        ):
            fit([("pandas", tmp_path)])
        fit([("pandas", path)])


@pytest.mark.parametrize(
    ("found", "way"),
    [
        ("rows.csv", r"found str\. Read it first: pandas\.read_csv\(path\)"),
        (Path("rows.csv"), r"found PosixPath\. Read it first: "),
        ({"price": [1.0]}, r"found dict\. Make a frame of it: pandas\.DataFrame\(\[row\]\) of one row"),
        ([{"price": 1.0}], r"found list\. Make a frame of it: "),
    ],
)
def test_what_is_no_frame_is_told_how_to_become_one(found, way):
    with pytest.raises(DataError, match=way):
        Normalize("price").apply(found, None)


def test_what_is_no_frame_is_refused_by_an_operator():
    with pytest.raises(DataError, match=r"Normalize: expected a data frame of pandas, Polars or cuDF.*found dict"):
        Normalize("price").apply({"price": [1.0]}, None)


def run_ends(values: pa.Array, ends: list[int]) -> pa.ChunkedArray:
    return pa.chunked_array([pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), values)])


VIEWS = pa.array(["x", None, "yy"], pa.string()).cast(pa.string_view())


@pytest.mark.parametrize(
    ("column", "kind", "values"),
    [
        (pa.chunked_array([VIEWS]), pa.large_string(), ["x", None, "yy"]),
        (pa.chunked_array([VIEWS]).slice(1), pa.large_string(), [None, "yy"]),
        (pa.chunked_array([], pa.string_view()), pa.large_string(), []),
        (run_ends(pa.array([4, None, 5]), [2, 3, 5]), pa.int64(), [4, 4, None, 5, 5]),
        (run_ends(pa.array([4, None, 5]), [2, 3, 5]).slice(1, 3), pa.int64(), [4, None, 5]),
        (run_ends(pa.array([4, None, 5]), [2, 3, 5]).slice(3), pa.int64(), [5, 5]),
        (run_ends(VIEWS, [2, 3, 5]), pa.large_string(), ["x", "x", None, "yy", "yy"]),
        (
            run_ends(pa.array(["p", "q"]).dictionary_encode(), [1, 3]), pa.dictionary(pa.int32(), pa.string()),
            ["p", "q", "q"],
        ),
        (
            pa.chunked_array([pa.DictionaryArray.from_arrays(pa.array([2, None, 0]), VIEWS)]),
            pa.dictionary(pa.int64(), pa.large_string()), ["yy", None, "x"],
        ),
        (
            pa.chunked_array([pa.array([["a"], None, []], pa.list_(pa.string_view()))]),
            pa.large_list(pa.large_string()), [["a"], None, []],
        ),
        (pa.chunked_array([pa.array([1, None])]), pa.int64(), [1, None]),
    ],
)  # fmt: skip
def test_younger_types_become_usual_ones(column, kind, values):
    found = usual_column(column)
    assert found.type == kind
    assert found.to_pylist() == values
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    plain = pa.large_string() if plain == pa.string() else plain
    table = arrow_table(pa.table({"a": column}), "rows")
    assert table.schema.types == [plain]
    assert table.column("a").to_pylist() == values


def test_parquet_files_with_text_views_are_read(tmp_path):
    path = tmp_path / "views.parquet"
    lists = pa.array([["a"], None, ["b", "a"]], pa.list_(pa.string_view()))
    pq.write_table(pa.table({"s": VIEWS, "l": lists}), path)
    assert pq.read_schema(path).types == [pa.string_view(), pa.list_(pa.string_view())]
    schema = Schema((Column("s", "categorical", "string"),), ())
    assert Preprocessor(schema).fit([("pandas", str(path))]).vocabularies["s"].values.tolist() == ["x", "yy"]
    assert read_arrow(path)["s"].tolist()[::2] == ["x", "yy"]
    assert [None if cell is None else list(cell) for cell in read_parquet(path)["l"]] == [["a"], None, ["b", "a"]]


def test_init_looks_at_a_parquet_file_with_text_views(tmp_path):
    random = np.random.default_rng(0)
    views = pa.array(random.choice(["Oslo", "Bonn"], 300)).cast(pa.string_view())
    lists = pa.array(random.choice(["new", "red"], (300, 2)).tolist(), pa.list_(pa.string_view()))
    labels = random.integers(0, 2, 300)
    pq.write_table(pa.table({"city": views, "tags": lists, "sold": labels}), tmp_path / "rows.parquet")
    found = draft_config(str(tmp_path / "rows.parquet"), "sold", None, 1000).features
    assert (found["categorical"], found["lists"]) == (["city"], {"tags": {"elements": "string"}})


def test_a_frame_of_dask_is_one_part_to_fit_on_and_refused_with_the_way_elsewhere():
    frame = pd.DataFrame({"city": ["Oslo", "Bonn", "Oslo", None], "price": [1.0, 2.0, 4.0, 9.0]})
    lazy = dask.dataframe.from_pandas(frame, npartitions=2)
    schema = Schema((Column("city", "categorical", "string"), Column("price", "continuous", "float32")), ())
    preprocessor, workflow = Preprocessor(schema).fit([frame]), Workflow([Normalize("price")]).fit([frame])
    assert Preprocessor(schema).fit([lazy]).checksum == preprocessor.checksum
    assert np.array_equal(Preprocessor(schema).fit_pack([lazy])[0], preprocessor.pack(frame))
    expected = workflow.transform(frame)["price"].tolist()
    assert Workflow([Normalize("price")]).fit([lazy]).transform(frame)["price"].tolist() == expected
    assert lazy.map_partitions(workflow.transform).compute()["price"].tolist() == expected
    for use in (workflow.transform, preprocessor.transform, preprocessor.pack, Clip("price", 2), workflow.typed):
        with pytest.raises(DataError, match=r"expected a data frame of pandas, .* Of Dask compute it first"):
            use(lazy)
    with pytest.raises(DataError, match=r"a frame alone is nothing to fit on"):
        Preprocessor(schema).fit(lazy)


def test_sparse_columns_of_pandas_are_the_dense_ones():
    """`pd.get_dummies(..., sparse=True)`: said to hold "values of no one type"."""
    rows = pd.get_dummies(pd.Series(["Oslo", "Bonn", "Oslo", None]), sparse=True)
    rows["price"] = pd.arrays.SparseArray([0.0, 2.5, np.nan, 0.0], fill_value=0.0)
    dense = pd.DataFrame({name: np.asarray(column) for name, column in rows.items()})
    assert arrow_table(rows, "rows").equals(arrow_table(dense, "rows"))
