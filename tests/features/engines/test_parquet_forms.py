"""Parquet files and Arrow columns in forms that other programs give them."""

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.engines.arrow_columns import read_arrow
from gigabatch.features.engines.pandas import read_parquet
from gigabatch.features.operators.categories.categorify import Categorify
from gigabatch.features.operators.categories.hash_bucket import HashBucket
from gigabatch.features.operators.groups.join_groupby import JoinGroupby
from gigabatch.features.recipes.table.recipe import TableRecipe, TableSettings
from gigabatch.features.schema import Column, Schema
from gigabatch.features.workflow.workflow import Workflow

CITIES = ["b", "a", "b", "c"] * 25


@pytest.mark.parametrize("index", [["city"], ["id"], ["id", "city"]], ids=str)
def test_an_index_that_pandas_wrote_is_a_column(index, tmp_path):
    """It was "not found" by a recipe, and a KeyError of workflows and preprocessors."""
    path = str(tmp_path / "rows.parquet")
    keys = [f"k{number}" for number in range(100)]
    rows = pd.DataFrame({"id": keys, "city": CITIES, "price": [1.0, 2.0] * 50, "late": [0, 1, 1, 0] * 25})
    rows.set_index(index).to_parquet(path)
    for read in (read_parquet, read_arrow):
        assert sorted(read(path).columns) == sorted(rows.columns)
        assert read(path, ["city"])["city"].tolist() == CITIES
        assert list(read(path, ["id"]).columns) == ["id"]
    assert Workflow([Categorify("city")]).fit([("pandas", path)]).states[0].values.tolist() == ["b", "a", "c"]
    schema = Schema((Column("city", "categorical", "string"),), ())
    assert Preprocessor(schema).fit([("pandas", path)]).vocabularies["city"].values.tolist() == ["b", "a", "c"]
    settings = TableSettings(
        path=path, keys=("id",), categorical=("city",), continuous=("price",), targets={"late": {"task": "binary"}}
    )
    splits = TableRecipe(settings).build("pandas").splits
    assert sorted(key for split in splits.values() for key in split["id"]) == sorted(keys)


@pytest.mark.parametrize("width", ["int8", "int32", "uint8", "uint16", "uint32"])
def test_text_as_a_dictionary_of_any_codes(width, tmp_path):
    """The code -1 of a null fits no unsigned type, and Arrow sorts no dictionary."""
    coded = pa.DictionaryArray.from_arrays(pa.array([0, None, 1], width), pa.array(["a", "b"]))
    frame = pd.DataFrame({"c": pd.arrays.ArrowExtensionArray(pa.chunked_array([coded])), "v": [1.0, 2.0, 3.0]})
    pq.write_table(pa.table({"c": coded, "v": [1.0, 2.0, 3.0]}), tmp_path / "rows.parquet")
    schema = Schema((Column("c", "categorical", "string"),), ())
    for part in (frame, ("pandas", str(tmp_path / "rows.parquet"))):
        assert Preprocessor(schema).fit([part]).pack(frame).ravel().tolist() == [3, 1, 4]
        assert Categorify("c").fit([frame]).values.tolist() == ["a", "b"]
    operator = JoinGroupby(["c"], ["v"], ["mean"])
    made = operator.apply(frame, operator.fit([frame, frame]))["v_mean_by_c"]
    assert [None if pd.isna(value) else value for value in made] == [1.0, None, 3.0]
    text = HashBucket("c", 1000)(pd.DataFrame({"c": ["a", None, "b"]}))["c"].tolist()
    assert HashBucket("c", 1000)(frame)["c"].tolist() == text
