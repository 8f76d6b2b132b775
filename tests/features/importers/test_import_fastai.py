"""fastai's ids and floats are kept: against what fastai itself gave (data/make_fastai_export.py)."""

import json
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.importers.fastai import import_fastai
from gigabatch.features.schema import Column, Schema, Target
from gigabatch.features.workflow.workflow import Workflow
from tests.examples import examples
from tests.features.json_fuzz import JSON, places, replaced

REFERENCE = json.loads((Path(__file__).parent / "data" / "fastai_export.json").read_text(encoding="utf-8"))
ROWS = pd.DataFrame(REFERENCE["rows"])


def written(folder, change=lambda export: None):
    export = json.loads(json.dumps(REFERENCE["export"]))
    change(export)
    path = folder / "fastai.json"
    path.write_text(json.dumps(export))
    return path


def test_ids_and_floats_are_those_of_fastai(tmp_path):
    imported = import_fastai(written(tmp_path))
    found = imported.workflow.transform(ROWS)
    assert list(found.columns) == list(REFERENCE["expected"])
    for name in ("city", "shop", "price_na"):
        assert found[name].tolist() == REFERENCE["expected"][name]
        assert str(found[name].dtype) == "int32"
    for name in ("price", "age"):
        np.testing.assert_allclose(found[name], REFERENCE["expected"][name], rtol=1e-6)


def without_indicators(export):
    export["classes"].pop("price_na")
    export.update(indicators=False)


def test_the_import_is_a_preprocessor_where_every_column_was_filled(tmp_path):
    imported = import_fastai(written(tmp_path, without_indicators))
    columns = (Column("city", "categorical", "string"), Column("shop", "categorical", "int64"),
               Column("price", "continuous", "float32"), Column("y", "target", "float32"))  # fmt: skip
    preprocessor = imported.preprocessor(Schema(columns, (Target("y", "regression"),)))
    found = preprocessor.transform(ROWS, targets=False)
    assert found["city"].tolist() == REFERENCE["expected"]["city"]
    sizes = {column.name: column.num_ids for column in preprocessor.tensor_schema.ids}
    assert sizes == {name: len(REFERENCE["export"]["classes"][name]) for name in ("city", "shop")}
    with pytest.raises(DataError, match=r"column\(s\) 'age' need a FillMissing"):
        imported.preprocessor(Schema((*columns, Column("age", "continuous", "float32")), (Target("y", "regression"),)))


def test_indicators_that_are_categories_are_none_of_a_preprocessor(tmp_path):
    schema = Schema((Column("price", "continuous", "float32"), Column("y", "target", "float32")),
                    (Target("y", "regression"),))  # fmt: skip
    with pytest.raises(DataError, match="a preprocessor does not do Categorify of 'price_na'"):
        import_fastai(written(tmp_path)).preprocessor(schema)


def test_a_null_in_a_column_without_a_fill_is_an_error_as_in_fastai(tmp_path):
    workflow = import_fastai(written(tmp_path)).workflow
    with pytest.raises(DataError, match="column 'age'"):
        workflow.transform(ROWS.assign(age=[1.0, None, 3.0, 4.0, 9.0]))


def test_without_indicators_and_without_normalize(tmp_path):
    def bare(export):
        export["classes"].pop("price_na")
        export.update(indicators=False, means={}, stds={})

    found = import_fastai(written(tmp_path, bare)).workflow.transform(ROWS)
    assert list(found.columns) == ["city", "shop", "price", "age"]
    assert found["price"].tolist() == [2.0, 2.0, 3.0, 7.5, -1.0]


def test_a_column_without_values_has_the_one_id(tmp_path):
    workflow = import_fastai(written(tmp_path, lambda export: export["classes"].update(city=["#na#"]))).workflow
    assert workflow.transform(ROWS)["city"].tolist() == [0] * 5


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was read",))


@pytest.mark.parametrize(
    ("name", "content"),
    [("export.pkl", pickle.dumps(Bomb())), ("renamed.json", pickle.dumps(Bomb())), ("zipped.json", b"PK\x03\x04torch"),
     ("old.pth", b"anything")],
)  # fmt: skip
def test_a_pickle_is_refused_unread(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=r"a pickle, which would run .*docs/migrating\.md"):
        import_fastai(tmp_path / name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: e.update(format="other"), "and 'other'"),
        (lambda e: e.pop("fills"), "expected the fields"),
        (lambda e: e.update(more=1), "expected the fields"),
        (lambda e: e.update(classes=[]), "expected classes of type dict"),
        (lambda e: e["classes"].update(city=["Rome"]), "begins with '#na#'"),
        (lambda e: e["classes"].update(city="#na#"), "begins with '#na#'"),
        (lambda e: e["classes"].update(city=["#na#", "a", "a"]), "twice"),
        (lambda e: e["classes"].update(city=["#na#", "a", 1]), "Python objects"),
        (lambda e: e["classes"].update(city=["#na#", "a", None]), "null"),
        (lambda e: e["classes"].pop("price_na"), "do not belong together: 'price_na'"),
        (lambda e: e["fills"].update(height=1.0), "do not belong together: 'height'"),
        (lambda e: e["stds"].pop("age"), "do not belong together"),
        (lambda e: e["fills"].update(price="1"), "expected a finite number"),
        (lambda e: e["means"].update(price=float("inf")), "holds Infinity"),
        (lambda e: e["stds"].update(price=-1.0), "must not be negative"),
        (lambda e: e.update(indicators=1), "expected indicators of type bool"),
        (lambda e: e.update(continuous=["price", "age", 3]), "do not belong together"),
    ],
)
def test_an_export_that_is_none_is_refused(tmp_path, change, message):
    with pytest.raises(DataError, match=message):
        import_fastai(written(tmp_path, change))


def test_a_file_that_is_not_there_or_no_json_is_refused(tmp_path):
    with pytest.raises(DataError, match="there is no such file"):
        import_fastai(tmp_path / "none.json")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(DataError, match=r"x\.json cannot be read as JSON"):
        import_fastai(tmp_path / "x.json")


@given(data=st.data())
@settings(max_examples=examples(200), deadline=None)
def test_an_export_with_any_value_replaced_is_read_or_refused(tmp_path_factory, data):
    path = data.draw(st.sampled_from(places(REFERENCE["export"])))
    file = tmp_path_factory.getbasetemp() / "fuzzed.json"
    file.write_text(json.dumps(replaced(REFERENCE["export"], path, data.draw(JSON))))
    try:
        found = import_fastai(file)
    except DataError:
        return
    assert isinstance(found.workflow, Workflow)
