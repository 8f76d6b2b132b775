"""A saved NVTabular workflow keeps its ids, fills and scales here; what cannot be kept is refused, all of it at once.

Expected ids are the row numbers of the written files, expected floats NVTabular's formulas in NumPy.
"""

import json
import pickle

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.errors import DataError
from gigabatch.features.importers.nvtabular import EQUIVALENTS, import_nvtabular
from gigabatch.features.importers.nvtabular_categories import combination_of_file, vocabulary_of_file
from gigabatch.features.operators import operator_names
from gigabatch.features.schema import Column, ListColumn, Schema, Target
from gigabatch.features.workflow.workflow import Workflow
from tests.examples import examples
from tests.features.importers.nvtabular_saved import Saved, counted, write_uniques
from tests.features.json_fuzz import JSON, places, replaced


def typical(folder):
    """cats >> Categorify, conts >> FillMedian(add_binary_cols) >> Normalize, the label as it is."""
    saved = Saved(folder)
    words = saved.select("city", dtype="string")
    cities = counted("city", ["Rome", "Bonn", "Ä"], [9, 9, 2], "str")
    encoded = saved.categorify(["city"], words, {"city": cities})
    numbers = saved.select("price", "age")
    filled = saved.node("FillMedian", ["price", "age"], [numbers], ["price", "age", "price_filled", "age_filled"],
                        {"add_binary_cols": True}, {"medians": {"price": 2.5, "age": 30.0}})  # fmt: skip
    scaled = saved.node("Normalize", ["price", "age"], [filled], ["price", "age"], {"out_dtype": None},
                        state={"means": {"price": 3.0, "age": 31.0}, "stds": {"price": 2.0, "age": 0.0}})  # fmt: skip
    label = saved.select("clicked", dtype="int64")
    saved.concat(encoded, scaled, label)
    return saved.close()


ROWS = pd.DataFrame({
    "city": pd.Series(["Bonn", None, "Oslo", "Rome", "Ä"], dtype="str"), "price": [1.0, None, 3.0, 7.5, -1.0],
    "age": [31.0, 40.0, None, 0.0, 1.0], "clicked": [0, 1, 0, 1, 1],
})  # fmt: skip


def test_ids_fills_and_scales_are_kept(tmp_path):
    imported = import_nvtabular(typical(tmp_path / "nvt"))
    found = imported.workflow.transform(ROWS)
    assert list(found.columns) == ["city", "price", "age", "clicked"]
    assert found["city"].tolist() == [4, 1, 2, 3, 5]
    price = (ROWS["price"].fillna(2.5).to_numpy() - 3.0) / 2.0
    age = ROWS["age"].fillna(30.0).to_numpy() - 31.0
    np.testing.assert_array_equal(found["price"], price.astype("float32"))
    np.testing.assert_array_equal(found["age"], age.astype("float32"))
    assert found["clicked"].tolist() == ROWS["clicked"].tolist()
    assert any("int32" in note for note in imported.notes)


def test_the_imported_workflow_saves_loads_and_serves_without_the_label(tmp_path):
    imported = import_nvtabular(typical(tmp_path / "nvt"))
    imported.workflow.save(tmp_path / "ours")
    loaded = Workflow.load(tmp_path / "ours")
    pd.testing.assert_frame_equal(loaded.transform(ROWS), imported.workflow.transform(ROWS))
    served = loaded.serving(["city", "price"]).transform(ROWS.drop(columns=["clicked", "age"]))
    assert served["city"].tolist() == [4, 1, 2, 3, 5]


def test_the_import_is_a_preprocessor_for_a_schema(tmp_path):
    imported = import_nvtabular(typical(tmp_path / "nvt"))
    columns = (Column("city", "categorical", "string"), Column("price", "continuous", "float32"),
               Column("age", "continuous", "float32"), Column("clicked", "target", "int32"))  # fmt: skip
    schema = Schema(columns, (Target("clicked", "binary"),))
    preprocessor = imported.preprocessor(schema)
    found = preprocessor.transform(ROWS)
    assert found["city"].tolist() == [4, 1, 2, 3, 5]
    np.testing.assert_allclose(found["price"], (ROWS["price"].fillna(2.5) - 3.0) / 2.0, rtol=1e-7)
    assert preprocessor.tensor_schema.ids[0].num_ids == 6
    preprocessor.save(tmp_path / "p")
    assert type(preprocessor).load(tmp_path / "p").transform(ROWS)["city"].tolist() == [4, 1, 2, 3, 5]
    more = Schema((*columns, Column("shop", "categorical", "string")), schema.targets)
    with pytest.raises(DataError, match=r"column\(s\) 'shop' need a Categorify"):
        imported.preprocessor(more)


SCHEMA = Schema((Column("x", "continuous", "float32"), Column("y", "target", "float32")), (Target("y", "regression"),))
RANGE = {"mins": {"x": -1.0}, "maxs": {"x": 7.0}}


def one_column(folder, *nodes, flagged=False):
    """x >> FillMissing(2) >> the nodes (kind, params, state)."""
    saved = Saved(folder)
    last, names = saved.select("x"), ["x", "x_filled"] if flagged else ["x"]
    for kind, params, state in [("FillMissing", {"fill_val": 2, "add_binary_cols": flagged}, {}), *nodes]:
        last = saved.node(kind, ["x"] if kind == "FillMissing" else names, [last], names, params, state)
    return import_nvtabular(saved.close())


def test_a_range_is_a_scale_of_the_preprocessor(tmp_path):
    imported = one_column(tmp_path / "nvt", ("NormalizeMinMax", {}, RANGE))
    imported.save(tmp_path / "ours", SCHEMA)
    rows = pd.DataFrame({"x": [-1.0, None, 3.7, 9.0]})
    found = Preprocessor.load(tmp_path / "ours/preprocessor").transform(rows, targets=False)["x"].to_numpy()
    expected = ((np.array([-1, 2, 3.7, 9], dtype="float32").astype("float64") + 1) / 8).astype("float32")
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(found, imported.workflow.transform(rows)["x"])


@pytest.mark.parametrize(
    ("nodes", "flagged", "message"),
    [
        ([("Clip", {"min_value": 0, "max_value": 1}, {})], False, "Clip of 'x'"),
        ([("LogOp", {}, {}), ("NormalizeMinMax", {}, RANGE)], False, "Log of 'x'"),
        ([("Dropna", {}, {})], False, "DropNulls of 'x'"),
        ([("NormalizeMinMax", {}, RANGE), ("Normalize", {}, {"means": {"x": 1.0}, "stds": {"x": 2.0}})], False,
         "FillMissing, then MinMax, then Normalize of 'x'"),
        ([("Clip", {"min_value": 1, "max_value": 2}, {})], True, "Clip of 'x'; Clip of 'x_filled'"),
    ],
)  # fmt: skip
def test_what_a_preprocessor_does_not_do_is_refused_by_name(tmp_path, nodes, flagged, message):
    imported = one_column(tmp_path, *nodes, flagged=flagged)
    with pytest.raises(DataError, match=rf"import: a preprocessor does not do {message}.*Use the workflow"):
        imported.preprocessor(SCHEMA)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"start": 2, "end": None, "pad": False}, [[1, 2], [5], []]),
        ({"start": 0, "end": 2, "pad": True, "pad_value": 0.0}, [[1, 2], [5, 0], [0, 0]]),
        ({"start": -2, "end": 2**63 - 1, "pad": False}, [[2, 3], [5], []]),
        ({"start": 1, "end": 3, "pad": False, "pad_value": 0.0}, [[2, 3], [], []]),
    ],
)
def test_slices_of_lists_are_taken_over(tmp_path, params, expected):
    saved = Saved(tmp_path)
    numbers = saved.select("items", dtype="int64", is_list=True)
    saved.node("ListSlice", ["items"], [numbers], params=params, is_list=True)
    found = import_nvtabular(saved.close()).workflow.transform(pd.DataFrame({"items": [[1, 2, 3], [5], []]}))["items"]
    assert [row.tolist() for row in found] == expected
    assert all(row.dtype == "int64" for row in found)


@pytest.mark.parametrize("index", [True, False], ids=["index", "no index, as some cuDF versions write it"])
def test_several_unseen_ids_come_before_the_values(tmp_path, index):
    saved = Saved(tmp_path)
    words = saved.select("shop", dtype="int64")
    shops = counted("shop", [70, 50], [3, 1])
    saved.categorify(["shop"], words, {"shop": shops}, buckets=4, index=index, max_size=8)
    imported = import_nvtabular(saved.close())
    found = imported.workflow.transform(pd.DataFrame({"shop": pd.array([50, None, 70, 99], "Int64")}))["shop"]
    assert found.tolist()[:3] == [7, 1, 6]
    assert 2 <= found.tolist()[3] < 6
    assert any("which of the 4 ids" in note for note in imported.notes)
    assert imported.workflow.steps[0].settings() == {"column": "shop", "oov_buckets": 4, "max_size": 2}
    assert imported.workflow.states[0].counts.tolist() == [3, 1]


def test_a_joint_group_is_a_shared_vocabulary_and_a_combination_keeps_partial_nulls(tmp_path):
    saved = Saved(tmp_path)
    teams = saved.select("home", "away", dtype="string")
    joint = saved.categorify(["home", "away"], teams, {"home_away": counted("home_away", ["x", "y"], [2, 2], "str")},
                             storage={"home": "home_away", "away": "home_away"}, freq_threshold=2)  # fmt: skip
    pair = saved.select("a", "b", dtype="string")
    pairs = pd.DataFrame(
        {"a": pd.Series(["p", None], dtype="str"), "b": pd.array([2**60 + 1, 5], "Int64"), "a_b_size": [4, 1]}
    )
    combo = saved.categorify(["a", "b"], pair, {"a_b": pairs}, outputs=["a_b"], storage={"a": "a_b", "b": "a_b"},
                             encode_type="combo")  # fmt: skip
    saved.concat(joint, combo)
    rows = pd.DataFrame(
        {"home": ["y", "q"], "away": [None, "x"], "a": [None, "p"], "b": pd.array([5, 2**60 + 1], "Int64")}
    )
    found = import_nvtabular(saved.close()).workflow.transform(rows)
    assert found.to_dict("list") == {"home": [4, 2], "away": [1, 3], "a_b": [4, 3]}


def test_who_reads_a_column_as_it_was_comes_before_who_overwrites_it(tmp_path):
    saved = Saved(tmp_path)
    words = saved.select("a", "b", dtype="string")
    alone = saved.categorify(["a", "b"], words, {"a": counted("a", ["p", "q"], [5, 1], "str"),
                                                 "b": counted("b", ["r"], [6], "str")})  # fmt: skip
    pairs = pd.DataFrame({"a": ["q", "p"], "b": ["r", "r"], "a_b_size": [5, 1]})
    combo = saved.categorify(["a", "b"], words, {"a_b": pairs}, outputs=["a_b"], storage={"a": "a_b", "b": "a_b"},
                             encode_type="combo")  # fmt: skip
    saved.concat(alone, combo)
    workflow = import_nvtabular(saved.close()).workflow
    assert [step.outputs for step in workflow.steps] == [("a_b",), ("a",), ("b",)]
    found = workflow.transform(pd.DataFrame({"a": ["p", "q", "p"], "b": ["r", "r", None]}))
    assert found.to_dict("list") == {"a": [3, 4, 3], "b": [3, 3, 1], "a_b": [4, 3, 2]}


def test_indicators_that_went_through_normalize_are_scaled_as_there(tmp_path):
    saved = Saved(tmp_path)
    numbers = saved.select("x")
    filled = saved.node("FillMedian", ["x"], [numbers], ["x", "x_filled"], {"add_binary_cols": True},
                        {"medians": {"x": 2.0}})  # fmt: skip
    saved.node("Normalize", ["x", "x_filled"], [filled],
               state={"means": {"x": 1.0, "x_filled": 0.25}, "stds": {"x": 2.0, "x_filled": 0.5}})  # fmt: skip
    found = import_nvtabular(saved.close()).workflow.transform(pd.DataFrame({"x": [5.0, None]}))
    assert found.to_dict("list") == {"x": [2.0, 0.5], "x_filled": [-0.5, 1.5]}


def test_lists_stay_lists(tmp_path):
    saved = Saved(tmp_path)
    tags = saved.select("tags", dtype="string", is_list=True)
    saved.categorify(["tags"], tags, {"tags": counted("tags", ["b", "a"], [5, 1], "str")})
    found = import_nvtabular(saved.close()).workflow.transform(pd.DataFrame({"tags": [["a", "b"], ["z", None], None]}))
    assert [row.tolist() for row in found["tags"]] == [[4, 3], [2, 1], []]


def test_a_schema_with_lists_is_refused_by_name(tmp_path):
    saved = Saved(tmp_path)
    tags = saved.select("tags", dtype="string", is_list=True)
    saved.categorify(["tags"], tags, {"tags": counted("tags", ["b", "a"], [5, 1], "str")})
    with pytest.raises(DataError, match=r"list column\(s\) 'tags', and an imported preprocessor takes none"):
        import_nvtabular(saved.close()).preprocessor(Schema((), (), lists=(ListColumn("tags"),)))


def test_a_vocabulary_in_several_files_is_one(tmp_path):
    saved = Saved(tmp_path)
    words = saved.select("word", dtype="string")
    saved.categorify(["word"], words, {"word": counted("word", ["c", "a", "b"], [3, 2, 1], "str")}, split_out=2)
    folder = saved.close()
    path = folder / "artifacts/node_1/categories/unique.word.parquet"
    whole = pd.read_parquet(path)
    path.unlink()
    path.mkdir()
    whole.iloc[:1].to_parquet(path / "part.0.parquet")
    whole.iloc[1:].to_parquet(path / "part.10.parquet")
    found = import_nvtabular(folder).workflow.transform(pd.DataFrame({"word": ["a", "b", "c", "d"]}))
    assert found["word"].tolist() == [4, 5, 3, 2]
    whole.iloc[:1].to_parquet(path / "part.10.parquet")
    with pytest.raises(DataError, match=r"gives ids from 3, expected from 4"):
        import_nvtabular(folder)


def test_a_column_of_nulls_only_has_no_values(tmp_path):
    saved = Saved(tmp_path)
    words = saved.select("word", dtype="string")
    saved.categorify(["word"], words, {"word": pd.DataFrame({"word": pd.Series([None], dtype="str")})})
    imported = import_nvtabular(saved.close())
    assert imported.workflow.transform(pd.DataFrame({"word": ["a", None]}))["word"].tolist() == [2, 1]
    assert any("no value was ever seen" in note for note in imported.notes)


def test_row_wise_operators_and_names_are_taken_over(tmp_path):
    saved = Saved(tmp_path)
    numbers = saved.select("x", "y")
    dropped = saved.node("Dropna", ["x", "y"], [numbers])
    filled = saved.node("FillMissing", ["x", "y"], [dropped], ["x", "y", "x_filled", "y_filled"],
                        {"fill_val": 1, "add_binary_cols": True})  # fmt: skip
    clipped = saved.node("Clip", ["x", "y"], [filled], params={"min_value": 0, "max_value": None})
    logged = saved.node("LogOp", ["x", "y"], [clipped])
    scaled = saved.node("NormalizeMinMax", ["x", "y"], [logged], params={"out_dtype": None},
                        state={"mins": {"x": 0.0, "y": 1.0}, "maxs": {"x": 2.0, "y": 5.0}})  # fmt: skip
    tagged = saved.node("AddMetadata", ["x", "y"], [scaled], params={"tags": ["Tags.CONTINUOUS"], "properties": {}})
    saved.node("Rename", ["x", "y"], [tagged], ["x_log", "y_log"], {"f": None, "postfix": "_log", "name": None})
    rows = pd.DataFrame({"x": [-1.0, 3.0, 7.0], "y": [0.5, None, 2.0]})
    found = import_nvtabular(saved.close()).workflow.transform(rows)
    kept = rows.dropna()
    x = np.log1p(kept["x"].clip(lower=0)) / 2.0
    y = (np.log1p(kept["y"].clip(lower=0)) - 1.0) / 4.0
    assert list(found.columns) == ["x_log", "y_log"]
    np.testing.assert_allclose(found["x_log"], x, rtol=1e-6)
    np.testing.assert_allclose(found["y_log"], y, rtol=1e-6)


STATS = ["count", "sum", "mean", "var"]
BY_CITY = [f"city_{name}" for name in ("count", "x_sum", "x_mean", "x_var")]
BY_PAIR = [f"city_shop_{name}" for name in ("count", "x_sum", "x_mean", "x_var")]


def groups(train, keys):
    """As `_mid_level_groupby` of nvtabular/ops/categorify.py: the mean is over all rows, null values among them."""
    by, where = train.groupby(keys, dropna=False), "_".join(keys)
    found = by.agg(**{f"{where}_count": (keys[0], "count"), f"{where}_x_sum": ("x", "sum")})
    found[f"{where}_x_mean"] = found[f"{where}_x_sum"] / found[f"{where}_count"]
    found[f"{where}_x_var"] = by["x"].var()
    return found.reset_index()


def joined(folder, train, **first):
    saved = Saved(folder)
    node = saved.select("city", "shop", "x")
    if first:
        node = saved.node("FillMissing", ["shop"], [node], **first)
    tables = {"city": groups(train, ["city"]), "city_shop": groups(train, ["city", "shop"])}
    saved.join_groupby(["city", "shop"], [node], tables, ["x"], STATS, [*BY_CITY, *BY_PAIR])
    return saved.close()


TRAIN = pd.DataFrame({"city": ["a", "a", "b", "a"], "shop": [1, 1, 2, 3], "x": [0.1, None, 2.5, 7.0]})


def test_statistics_of_groups_are_joined_as_nvtabular_left_them(tmp_path):
    imported = import_nvtabular(joined(tmp_path / "nvt", TRAIN))
    imported.workflow.save(tmp_path / "ours")
    rows = pd.DataFrame({"city": ["b", "a", "z", None], "shop": [2, 3, 1, 1]}, index=[5, 5, 0, 1])
    found = Workflow.load(tmp_path / "ours").transform(rows)
    assert list(found.columns) == [*BY_CITY, *BY_PAIR]
    for names, keys in ((BY_CITY, ["city"]), (BY_PAIR, ["city", "shop"])):
        expected = rows.merge(groups(TRAIN, keys), on=keys, how="left")[names]
        for name, dtype in zip(names, ["Int32", "float64", "float32", "float32"], strict=True):
            assert str(found[name].dtype) == dtype
            wanted = expected[name].astype("float32" if dtype == "float32" else "float64")
            np.testing.assert_array_equal(found[name].astype("float64"), wanted.astype("float64"))
    assert found["city_x_mean"].iloc[1] == np.float32((0.1 + 7.0) / 3)
    assert any("a new fit leaves its statistics" in note for note in imported.notes)


def test_statistics_that_cannot_be_kept_are_refused(tmp_path):
    nulls = TRAIN.assign(shop=[None, 1, 2, 3])
    with pytest.raises(DataError, match=r"JoinGroupby by city, shop with statistics of null keys"):
        import_nvtabular(joined(tmp_path / "nulls", nulls))
    filled = {"params": {"fill_val": 0, "add_binary_cols": False}}
    with pytest.raises(DataError, match=r"JoinGroupby by shop after other steps changed them"):
        import_nvtabular(joined(tmp_path / "filled", TRAIN, **filled))
    folder = joined(tmp_path / "damaged", TRAIN)
    path = folder / "artifacts/node_1/categories/cat_stats.city.parquet"
    whole = pd.read_parquet(path)
    for frame, message in (
        (whole.drop(columns="city_x_sum"), "no statistics for 'city_x_sum'; the workflow was not fitted"),
        (whole.drop(columns="city"), r"statistics by \[\], expected some of"),
        (whole.assign(city_x_sum="1"), "statistic 'city_x_sum' holds str, expected numbers"),
        (pd.concat([whole, whole], ignore_index=True), "duplicate key"),
    ):
        frame.to_parquet(path)
        with pytest.raises(DataError, match=message):
            import_nvtabular(folder)


def test_indicators_keep_their_names_and_values(tmp_path):
    saved = Saved(tmp_path)
    numbers = saved.select("x")
    saved.node("FillMissing", ["x"], [numbers], ["x", "x_filled"], {"fill_val": 0, "add_binary_cols": True})
    found = import_nvtabular(saved.close()).workflow.transform(pd.DataFrame({"x": [1.0, None]}))
    assert found.to_dict("list") == {"x": [1.0, 0.0], "x_filled": [0.0, 1.0]}


def test_what_is_not_taken_over_is_listed_with_ours(tmp_path):
    saved = Saved(tmp_path)
    numbers = saved.select("x", "y")
    hashed = saved.node("HashBucket", ["x"], [numbers], params={"num_buckets": 7})
    target = saved.node("TargetEncoding", ["y"], [numbers], ["TE_y"])
    made = saved.node("LambdaOp", ["x"], [numbers], params={"f": {"module": "os", "qualname": "system"}})
    text = saved.node("FillMissing", ["x"], [numbers], params={"fill_val": "?", "add_binary_cols": False})
    saved.concat(hashed, target, made, text)
    with pytest.raises(DataError) as caught:
        import_nvtabular(saved.close())
    for part in ("HashBucket of x (ours: hash_bucket", "TargetEncoding of y (ours: folded_target_encoding",
                 "LambdaOp of x", "FillMissing of x by text '?'", "Nothing was written"):  # fmt: skip
        assert part in str(caught.value)


def test_the_equivalents_that_are_named_exist():
    named = {words for text in EQUIVALENTS.values() for words in text.replace(",", " ").split() if "_" in words}
    assert named <= set(operator_names())


def test_branches_that_change_one_column_differently_are_refused(tmp_path):
    saved = Saved(tmp_path)
    numbers = saved.select("x")
    clipped = saved.node("Clip", ["x"], [numbers], params={"min_value": 0, "max_value": 1})
    logged = saved.node("LogOp", ["x"], [numbers])
    renamed = saved.node("Rename", ["x"], [logged], ["log_x"], {"f": None, "postfix": None, "name": "log_x"})
    saved.concat(clipped, renamed)
    with pytest.raises(DataError, match=r"LogOp reads 'x' as it was before another branch changed it"):
        import_nvtabular(saved.close())


def test_a_raw_column_kept_beside_its_changed_self_is_refused(tmp_path):
    saved = Saved(tmp_path)
    numbers = saved.select("x")
    logged = saved.node("LogOp", ["x"], [numbers])
    renamed = saved.node("Rename", ["x"], [logged], ["log_x"], {"f": None, "postfix": None, "name": "log_x"})
    saved.concat(numbers, renamed)
    with pytest.raises(DataError, match=r"the output keeps 'x' as before a step that replaces it"):
        import_nvtabular(saved.close())


def test_categories_of_a_filled_column_are_refused(tmp_path):
    saved = Saved(tmp_path)
    numbers = saved.select("x", dtype="int64")
    filled = saved.node("FillMissing", ["x"], [numbers], params={"fill_val": 0, "add_binary_cols": False})
    saved.categorify(["x"], filled, {"x": counted("x", [0, 16777217], [2, 1])})
    with pytest.raises(DataError, match=r"Categorify of x after other steps changed them"):
        import_nvtabular(saved.close())


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was read",))


def test_a_pickled_workflow_is_refused_unread_with_what_can_be_read(tmp_path):
    (tmp_path / "workflow.pkl").write_bytes(pickle.dumps(Bomb()))
    (tmp_path / "metadata.json").write_text("{}")
    with pytest.raises(DataError, match=r"saved as a pickle .*not read\. Where it was made.*graph\.json\.$"):
        import_nvtabular(tmp_path)
    (tmp_path / "categories").mkdir()
    counted("city", ["a"], [1]).to_parquet(tmp_path / "categories" / "unique.city.parquet")
    with pytest.raises(DataError, match=r"can be read: categories/unique\.city\.parquet"):
        import_nvtabular(tmp_path)
    with pytest.raises(DataError, match=r"there is no graph\.json"):
        import_nvtabular(tmp_path / "categories")


def edited(folder, change):
    graph = json.loads((folder / "graph.json").read_text())
    change(graph)
    (folder / "graph.json").write_text(json.dumps(graph))
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: g.update(format_version=2), "format_version 2"),
        (lambda g: g.pop("nodes"), "expected nodes of type list"),
        (lambda g: g.update(output_node_id=99), "output node 99 is not there"),
        (lambda g: g["nodes"][1].update(parent_ids=[7]), r"follows nodes"),
        (lambda g: g["nodes"][1].update(parent_ids=[6]), "in a circle"),
        (lambda g: g["nodes"][1].update(id=0), "twice"),
        (lambda g: g["nodes"][1].update(output_schema=None), "has no output_schema; the workflow was not fitted"),
        (lambda g: g["nodes"][1]["op_state"].update(categories=[]), "no categories of 'city'"),
        (lambda g: g["nodes"][1]["op_state"]["categories"][0].update(path="../../graph.json"), "leads out of"),
        (lambda g: g["nodes"][1]["op_state"]["categories"][0].update(path="/etc/passwd"), "leads out of"),
        (lambda g: g["nodes"][1]["op_state"]["categories"][0].update(path="none.parquet"), "cannot be read"),
        (lambda g: g["nodes"][1]["op_params"].update(num_buckets=-1), "num_buckets must be a whole number"),
        (lambda g: g["nodes"][1]["op_params"].update(num_buckets=2), "gives ids from 3, expected from 4"),
        (lambda g: g["nodes"][1]["op_params"].update(single_table=True), "with single_table"),
        (lambda g: g["nodes"][3]["op_state"].update(medians={"price": 2.5}), "no fill for column 'age'"),
        (lambda g: g["nodes"][3]["op_state"].update(medians={"price": "2", "age": 1}), "expected a finite number"),
        (lambda g: g["nodes"][3]["op_state"].update(medians={"price": float("nan"), "age": 1}), "holds NaN"),
        (lambda g: g["nodes"][4]["op_state"].pop("stds"), "expected stds of type dict"),
        (lambda g: g["nodes"][4]["op_state"].update(stds={"price": -1.0, "age": 1.0}), "must not be negative"),
    ],
)
def test_a_damaged_graph_is_refused(tmp_path, change, message):
    with pytest.raises(DataError, match=message):
        import_nvtabular(edited(typical(tmp_path), change))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1, "a": 2}', "[" * 100_000])
def test_a_graph_that_is_no_json_object_is_refused(tmp_path, text):
    (tmp_path / "graph.json").write_text(text)
    with pytest.raises(DataError, match=r"graph\.json"):
        import_nvtabular(tmp_path)


def test_categories_of_another_layout_are_refused(tmp_path):
    folder = typical(tmp_path)
    path = folder / "artifacts/node_1/categories/unique.city.parquet"
    # Until 23.04 the file began with a null row and ids with 0, and there was no meta file.
    counted("city", [None, "Rome"], [0, 9], "str").to_parquet(path)
    with pytest.raises(DataError, match=r"meta\.city\.parquet says that ids begin"):
        import_nvtabular(folder)
    path.with_name("meta.city.parquet").unlink()
    with pytest.raises(DataError, match=r"1 null\(s\) among the values"):
        import_nvtabular(folder)
    counted("city", ["Rome", "Rome"], [9, 1], "str").to_parquet(path)
    with pytest.raises(DataError, match=r"1 value\(s\) are there twice"):
        import_nvtabular(folder)
    path.write_bytes(b"not parquet")
    with pytest.raises(DataError, match=r"unique\.city\.parquet cannot be read"):
        import_nvtabular(folder)


def test_categories_of_a_pickled_workflow_are_read_by_themselves(tmp_path):
    path = tmp_path / "unique.city.parquet"
    # As `_write_uniques` wrote it until 23.04 (commit 9eebdcd32418): a null row first, no index, no meta file.
    counted("city", [None, "Rome", "Bonn"], [4, 9, 2], "str").to_parquet(path, index=False, compression=None)
    rows = pd.Series(["Bonn", None, "Oslo", "Rome"], dtype="str")
    old = vocabulary_of_file(path, "city")
    assert old.encode(rows).tolist() == [2, 0, 0, 1]
    assert old.counts.tolist() == [9, 2]
    assert vocabulary_of_file(path, "city", start_index=16).encode(rows).tolist() == [18, 16, 16, 17]
    for buckets in (1, 3):
        write_uniques(path, counted("city", ["Rome", "Bonn"], [9, 2], "str"), buckets)
        found = vocabulary_of_file(path, "city").encode(rows).tolist()
        assert (found[0], found[1], found[3]) == (3 + buckets, 1, 2 + buckets)
        with pytest.raises(DataError, match="start_index is an option of"):
            vocabulary_of_file(path, "city", start_index=1)
    with pytest.raises(DataError, match=r"no column 'shop'"):
        vocabulary_of_file(path, "shop")
    with pytest.raises(DataError, match="cannot be read"):
        vocabulary_of_file(tmp_path / "none.parquet", "city")


def test_a_combination_of_an_older_version_or_without_a_column_is_refused(tmp_path):
    parts = pd.DataFrame({"a": ["p", "q"], "b": pd.array([1, None], "Int64"), "a_b_size": [4, 1]})
    path = tmp_path / "unique.a_b.parquet"
    write_uniques(path, parts, 1, True)
    found = combination_of_file(path, ["a", "b"])
    assert (found.counts.tolist(), found.encode(parts).tolist()) == ([4, 1], [3, 4])
    write_uniques(path, parts, 4, True)
    assert combination_of_file(path, ["a", "b"]).encode(parts).tolist() == [6, 7]
    with pytest.raises(DataError, match=r"no column\(s\) \['c'\], only \['a', 'b', 'a_b_size'\]"):
        combination_of_file(path, ["a", "c"])
    old = tmp_path / "old" / path.name
    old.parent.mkdir()
    nulls = pd.DataFrame({"a": [None], "b": pd.array([None], "Int64"), "a_b_size": [0]})
    pd.concat([nulls, parts], ignore_index=True).to_parquet(old)
    with pytest.raises(DataError, match=r"until 23\.04, whose ids combinations do not have"):
        combination_of_file(old, ["a", "b"])


@given(data=st.data())
@settings(max_examples=examples(200), deadline=None)
def test_a_graph_with_any_value_replaced_is_read_or_refused(fuzzed_folder, data):
    graph = json.loads((fuzzed_folder / "original.json").read_text())
    path = data.draw(st.sampled_from(places(graph)))
    (fuzzed_folder / "graph.json").write_text(json.dumps(replaced(graph, path, data.draw(JSON))))
    try:
        found = import_nvtabular(fuzzed_folder)
    except DataError:
        return
    assert isinstance(found.workflow, Workflow)


@pytest.fixture(scope="module")
def fuzzed_folder(tmp_path_factory):
    folder = typical(tmp_path_factory.mktemp("nvt"))
    (folder / "graph.json").rename(folder / "original.json")
    return folder
