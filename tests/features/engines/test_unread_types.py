"""Columns that nothing reads may be of any of Arrow's types, and stay what they are."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from gigabatch import Preprocessor, Schema, Workflow
from gigabatch.features.engines import arrow_columns
from gigabatch.features.engines.arrow_tables import own_frame
from gigabatch.features.errors import DataError
from gigabatch.features.operators import ListSlice, MinMax
from gigabatch.features.schema import Column

CODES = pa.array(["x", "y", "x"]).dictionary_encode()
UNION = pa.UnionArray.from_sparse(pa.array([0, 1, 0], pa.int8()), [pa.array([1, 2, 3]), pa.array(["a", "b", "c"])])
UNREAD = {
    "categories in lists": pa.LargeListArray.from_arrays([0, 1, 1, 3], CODES),
    "categories of Polars in lists": pa.LargeListArray.from_arrays(
        [0, 1, 1, 3], pa.DictionaryArray.from_arrays(CODES.indices, CODES.dictionary.cast(pa.string_view()))
    ),
    "texts in arrays": pa.array([["x", None], None, ["y", "z"]]).cast(pa.list_(pa.string(), 2)),
    "text views in arrays": pa.FixedSizeListArray.from_arrays(
        pa.array(["x", None, "u", "u", "y", "z"]).cast(pa.string_view()), 2, mask=pa.array([False, True, False])
    ),
    "text views in lists of lists": pa.array([[["x"], []], None, [None, ["y", None]]]).cast(
        pa.large_list(pa.large_list(pa.string_view()))
    ),
    "decimals": pa.array([Decimal("12345678901234567890.01"), None, Decimal("0.10")], pa.decimal128(22, 2)),
    "unions": UNION,
}


class Selected:
    """A frame of Polars with a column of Int128, of which Arrow takes all others."""

    def __init__(self, names=("price", "large")) -> None:
        self.names = self.columns = names

    def select(self, name: str) -> "Selected":
        return Selected((name,))

    def __arrow_c_stream__(self, requested_schema=None):
        if "large" in self.names:
            raise pa.ArrowInvalid("Invalid or unsupported format string: '_pli128'")
        return pa.table({"price": [1.0, 2.0, 5.0]}).__arrow_c_stream__(requested_schema)


def steps(*more) -> Workflow:
    return Workflow.from_steps([{"min_max": {"column": "price"}}, *more])


def table(kind: str) -> pa.Table:
    return pa.table({"price": [1.0, 2.0, 5.0], "other": UNREAD[kind]})


@pytest.mark.parametrize("kind", UNREAD)
def test_a_workflow_passes_them_through(kind):
    given = table(kind)
    for found in (
        steps().fit([given]).transform(given),
        steps().fit_transform([given])[0],
        steps().fit([given]).typed(given),
        MinMax("price").apply(given, MinMax("price").fit([given])),
    ):
        assert found["other"].to_pylist() == given["other"].to_pylist()
        assert len(found) == 3
    assert found["price"].to_pylist() == [0.0, 0.25, 1.0]
    if kind == "decimals":
        assert found["other"].type == given["other"].type


@pytest.mark.parametrize("kind", [kind for kind in UNREAD if kind != "unions"])
def test_rows_that_a_step_chooses_keep_them(kind):
    given = table(kind)
    found = steps({"filter": {"column": "price", "op": ">", "value": 0.1}}).fit([given]).transform(given)
    assert found["other"].to_pylist() == given["other"].to_pylist()[1:]


@pytest.mark.parametrize("kind", UNREAD)
def test_the_preprocessor_passes_over_them(kind):
    preprocessor = Preprocessor(Schema((Column("price", "continuous", "float32"),), ())).fit([table(kind)])
    bare = Preprocessor(preprocessor.schema).fit([pd.DataFrame({"price": [1.0, 2.0, 5.0]})])
    np.testing.assert_array_equal(preprocessor.pack(table(kind)), bare.pack(table(kind).select(["price"])))
    np.testing.assert_array_equal(preprocessor.pack(Selected()), bare.pack(table(kind).select(["price"])))


def test_a_type_that_arrow_does_not_know_matters_where_it_is_read_or_given_back():
    workflow = steps().fit([Selected()])
    with pytest.raises(DataError, match=r"workflow: column 'large' is of a type that Arrow does not know here \(Inval"):
        workflow.transform(Selected())
    assert workflow.serving(["price"]).transform(Selected())["price"].to_pylist() == [0.0, 0.25, 1.0]
    with pytest.raises(DataError, match="column 'large' is of a type"):
        Workflow.from_steps([{"min_max": {"column": "large"}}]).fit([Selected()])


def test_a_step_that_reads_one_names_it():
    with pytest.raises(DataError, match="'other'"):
        ListSlice("other", 0, 1)(table("categories in lists"))
    with pytest.raises(DataError, match="'other'"):
        Workflow.from_steps([{"clean_text": {"column": "other"}}]).fit([table("unions")]).transform(table("unions"))


def test_a_workflow_casts_decimals_that_no_step_reads_to_the_type_declared():
    prices = [Decimal("1.25"), None, Decimal("-3.5")]
    given = pa.table({"price": [1.0, 2.0, 5.0], "d": pa.array(prices, pa.decimal128(9, 2))})
    workflow = Workflow(steps().steps, (), {"d": "float32"}).fit([given]).serving(["price", "d"])
    typed = workflow.typed(given)
    assert typed["d"].to_pylist() == [1.25, None, -3.5]
    assert typed["d"].type == pa.float32()
    assert workflow.transform(typed)["d"].to_pylist() == [1.25, None, -3.5]


@pytest.mark.parametrize("names", [["d", "price", "e"], ["d", "e"]])
def test_no_object_of_python_is_made_of_a_decimal_that_is_not_read(monkeypatch, names):
    made = []
    exact_frame_of = arrow_columns.exact_frame_of
    monkeypatch.setattr(arrow_columns, "exact_frame_of", lambda table: made.append(table) or exact_frame_of(table))
    decimals = UNREAD["decimals"]
    given = pa.table({"d": decimals, "price": [1.0, 2.0, 5.0], "e": decimals}).select(names)
    found = own_frame(given, "rows", ["price"])
    assert [str(kind) for table in made for kind in table.schema.types] == ["double"] * ("price" in names)
    assert list(found.columns) == names
    assert pa.Table.from_pandas(found, preserve_index=False).to_pydict() == given.to_pydict()
