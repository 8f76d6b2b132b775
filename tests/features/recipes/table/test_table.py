"""The table recipe: the UCI Adult files and generated tables, by settings alone."""

import itertools
import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.columns.times import moments
from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.errors import DataError
from gigabatch.features.recipes import recipe_class
from gigabatch.features.recipes.base import SplitFractions, typed_rows
from gigabatch.features.recipes.table.recipe import TableRecipe, TableSettings
from gigabatch.features.schema import Target
from gigabatch.features.workflow.steps import registered_code

ADULT = {
    "categorical": (
        "workclass", "education", "marital-status", "occupation", "relationship", "race", "sex", "native-country",
    ),
    "continuous": ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week"),
    "targets": {"Y": {"task": "binary", "positive": ">50K", "label_strip": "."}},
    "null_values": ("?",),
    "separator": ", ",
}  # fmt: skip
KIND = {"kind": {"task": "multiclass"}}


LATE = {"late": {"task": "binary"}}


def build(**settings):
    return TableRecipe(TableSettings(**({"targets": LATE} | settings))).build("pandas")


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    size = 3000
    return pd.DataFrame({
        "shop": rng.choice(["a", "b", "c"], size), "code": rng.integers(0, 50, size), "x": rng.normal(size=size),
        "late": rng.integers(0, 2, size), "kind": rng.choice(["ham", "egg", "spam"], size),
        "price": rng.gamma(2, 10, size), "w": rng.uniform(0, 2, size), "visit": [f"v{i // 5}" for i in range(size)],
        "at": rng.integers(0, 500, size), "id": [f"r{i}" for i in range(size)],
    })  # fmt: skip


@pytest.fixture
def saved(table, tmp_path):
    table.to_csv(tmp_path / "t.csv", index=False)
    return str(tmp_path / "t.csv")


def write(folder, frame, name="t.csv"):
    frame.to_csv(folder / name, index=False)
    return str(folder / name)


def test_adult_has_the_published_rows_nulls_and_share_of_the_rich(shared_data):
    folder = shared_data / "adult"
    paths = {"train_path": str(folder / "adult.data"), "test_path": str(folder / "adult.test")}
    tables = build(**paths, **ADULT)
    splits = tables.splits
    rows = {name: len(frame) for name, frame in splits.items()}
    # Counts of adult.names: 32,561 + 16,281 rows; 24.08 % of the first above 50K.
    assert (rows["train"] + rows["valid"], rows["test"]) == (32_561, 16_281)
    assert rows["valid"] / 32_561 == pytest.approx(1 / 9, abs=0.01)
    learn = pd.concat([splits["train"], splits["valid"]])
    assert int(learn["Y"].sum()) == 7_841
    assert int(splits["test"]["Y"].sum()) == 3_846
    lines = [line.split(", ") for line in (folder / "adult.data").read_text().splitlines()[1:] if line]
    assert int(learn["workclass"].isna().sum()) == sum(line[1] == "?" for line in lines) == 1_836
    assert sorted(learn["age"]) == sorted(float(line[0]) for line in lines)
    encoded = Preprocessor(tables.schema).fit([splits["train"]]).transform(splits["test"])
    assert len(encoded) == 16_281
    assert not encoded.isna().any().any()


def test_adult_without_label_strip_says_what_it_found(shared_data):
    folder = shared_data / "adult"
    settings = {**ADULT, "targets": {"Y": {"task": "binary", "positive": ">50K"}}}
    with pytest.raises(DataError, match=r"target 'Y'.*'>50K'.*'<=50K.', '>50K.'.*label_strip"):
        build(train_path=str(folder / "adult.data"), test_path=str(folder / "adult.test"), **settings)


def test_one_path_is_split_by_rows_in_the_given_shares(table, saved):
    tables = build(path=saved, categorical=("shop",))
    parts = [tables.splits[name] for name in ("train", "valid", "test")]
    rows = pd.concat(parts)["row_number"]
    assert sorted(rows) == list(range(len(table)))
    assert [len(part) / len(table) for part in parts] == pytest.approx([0.8, 0.1, 0.1], abs=0.02)
    for part in parts:
        np.testing.assert_array_equal(part["late"], table["late"].to_numpy()[part["row_number"]])
        np.testing.assert_array_equal(part["shop"], table["shop"].to_numpy()[part["row_number"]])


def test_the_seed_decides_the_split_and_the_features_do_not(saved):
    def test_rows(**more):
        return build(path=saved, **more).splits["test"]["row_number"].tolist()

    assert test_rows(categorical=("shop",)) == test_rows(continuous=("x",))
    assert test_rows(categorical=("shop",)) != test_rows(categorical=("shop",), seed=1)


@pytest.mark.parametrize("settings", [{"split_key": "visit"}, {"group": "visit"}])
def test_equal_keys_share_a_split_whatever_the_order_of_rows(table, tmp_path, settings):
    settings |= {"continuous": ("x",), "keys": ("id", *settings.get("k", ()))}
    one = build(path=write(tmp_path, table), **settings).splits
    two = build(path=write(tmp_path, table.sample(frac=1, random_state=1), "u.csv"), **settings).splits
    where = table.set_index("id")["visit"]
    visits = {name: set(where[frame["id"]]) for name, frame in one.items()}
    assert sum(map(len, visits.values())) == table["visit"].nunique()
    assert {n: set(f["id"]) for n, f in one.items()} == {n: set(f["id"]) for n, f in two.items()}


@pytest.mark.parametrize(
    ("settings", "dtype"),
    [
        ({"inputs": {"x": "float64"}}, "float64"),
        ({"continuous": ("x",)}, "float32"),
        ({"weight": "x"}, "float32"),
    ],
)
def test_rows_are_not_split_by_floats(table, tmp_path, settings, dtype):
    with pytest.raises(DataError, match=rf"split_key 'x' is read as {dtype}, .*Name a column of text"):
        build(path=str(tmp_path / "never read.csv"), split_key="x", categorical=("shop",), **settings)
    parts = build(path=write(tmp_path, table), split_key="x", categorical=("shop",)).splits  # as text
    assert sum(map(len, parts.values())) == len(table)


def iso(minutes):
    return (pd.Timestamp("2013-12-31") + pd.to_timedelta(minutes, unit="min")).strftime("%Y-%m-%dT%H:%M:%S")


@pytest.mark.parametrize(
    ("change", "dtype"),
    [
        (lambda t: t - 100, "int64"),
        (lambda t: t + 0.25, "float64"),
        (lambda t: t.map(iso), "int64"),
        (lambda t: t.map(iso) + "Z", "int64"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_time_column_splits_in_time_order(table, tmp_path, change, dtype, ending):
    changed = table.assign(at=change(table["at"]))
    path = str(tmp_path / f"t.{ending}")
    changed.to_csv(path, index=False) if ending == "csv" else changed.to_parquet(path)
    tables = build(path=path, continuous=("x",), time="at", keys=("id",))
    parts = [tables.splits[name] for name in ("train", "valid", "test")]
    assert {str(part["at"].dtype) for part in parts} == {dtype}
    original = table.set_index("id")["at"]
    for earlier, later in itertools.pairwise(parts):
        assert original[earlier["id"]].max() < original[later["id"]].min()
    assert sum(map(len, parts)) == len(table)
    assert tables.schema.only("time") == "at"


def test_iso_times_are_microseconds_since_1970():
    text = pd.Series(["1969-12-31T23:59:59", "2013-01-31T23:59:00.25"], dtype="str")
    assert moments(pd.Series(["1970-01-01T00:00:01Z", "1970-01-02T00:00:00Z"])).tolist() == [10**6, 86_400 * 10**6]
    assert moments(text.str.slice(0, 19)).iloc[0] == -(10**6)


@pytest.mark.parametrize("bad", [["soon", "later"], ["nan", "1.5"], ["2013-01-01", "2013-13-45"]])
def test_a_time_that_is_none_is_an_error(bad):
    with pytest.raises(DataError, match=r"time column 'at'"):
        moments(pd.Series(bad, name="at", dtype="str"))


def test_multiclass_labels_become_numbers_of_the_sorted_classes(table, saved):
    tables = build(path=saved, continuous=("x",), targets=KIND)
    assert tables.schema.targets == (Target("kind", "multiclass", 3, ("egg", "ham", "spam")),)
    for part in tables.splits.values():
        assert str(part["kind"].dtype) == "int32"
        names = np.array(["egg", "ham", "spam"])[part["kind"]]
        np.testing.assert_array_equal(names, table["kind"].to_numpy()[part["row_number"]])


def test_whole_number_classes_sort_by_value(table, tmp_path):
    path = write(tmp_path, table.assign(kind=table["kind"].map({"ham": 10, "egg": 9, "spam": -1})))
    assert build(path=path, continuous=("x",), targets=KIND).schema.targets[0].classes == ("-1", "9", "10")


def test_classes_that_differ_by_blanks_alone_are_an_error(table, tmp_path):
    path = write(tmp_path, table.assign(kind=[" ham" if row % 3 == 0 else "ham" for row in range(len(table))]))
    with pytest.raises(DataError, match="classes ' ham' and 'ham' differ by blanks alone"):
        build(path=path, continuous=("x",), targets=KIND)


def test_a_column_whose_name_has_a_blank_before_it_is_named_with_the_cure(table, tmp_path):
    path = write(tmp_path, table.rename(columns={"x": " x"}))
    with pytest.raises(DataError, match=r"column\(s\) 'x' not found\. .* set separator: ', '"):
        build(path=path, continuous=("x",), targets=KIND)


def test_a_class_that_the_train_split_lacks_is_an_error(table, tmp_path):
    paths = {"train_path": write(tmp_path, table), "valid_path": write(tmp_path, table.head(50), "v.csv")}
    test = write(tmp_path, table.assign(kind="tofu"), "u.csv")
    with pytest.raises(DataError, match=r"class.* 'tofu' of the test split .*'egg', 'ham', 'spam'"):
        build(**paths, test_path=test, continuous=("x",), targets=KIND)


def test_several_labels_weight_group_and_integer_categories_at_once(table, saved):
    tables = build(
        path=saved, categorical={"shop": "string", "code": "int64"}, continuous=("x",), weight="w", group="visit",
        targets={"late": {"task": "binary"}, "kind": {"task": "multiclass"}, "price": {"task": "regression"}},
        split=SplitFractions(0.5, 0.25, 0.25),
    )  # fmt: skip
    schema, train = tables.schema, tables.splits["train"]
    assert [t.task for t in schema.targets] == ["binary", "multiclass", "regression"]
    assert [(c.name, c.role) for c in schema.columns[-3:]] == [
        ("w", "weight"), ("visit", "group"), ("row_number", "key"),
    ]  # fmt: skip
    assert {name: str(t) for name, t in train.dtypes.items()} == {
        name: {"string": "str"}.get(dtype, dtype) for name, dtype in schema.dtypes().items()
    } | {"code": "Int64"}  # a category may be null
    np.testing.assert_allclose(train["price"], table["price"].to_numpy("float32")[train["row_number"]])
    encoded = Preprocessor(schema).fit([train]).transform(train)
    assert encoded["visit"].nunique() == train["visit"].nunique()


def test_large_integer_ids_stay_exact_and_nulls_stay_null(table, tmp_path):
    big = 2**53 + 1
    frame = table.assign(code=big)
    tables = build(path=write(tmp_path, frame), categorical={"code": "int64"})
    assert set(tables.splits["train"]["code"]) == {big}
    small = table.assign(code=table["code"].astype("Int64").mask(table["code"] == 7))
    tables = build(path=write(tmp_path, small), categorical={"code": "int64"})
    rows = pd.concat(list(tables.splits.values()))
    assert int(rows["code"].isna().sum()) == int((table["code"] == 7).sum())
    holes = frame.assign(code=frame["code"].astype("Int64").mask(table["code"] == 7))
    for path in (write(tmp_path, holes), str(tmp_path / "t.parquet")):
        holes.to_parquet(tmp_path / "t.parquet")
        rows = pd.concat(list(build(path=path, categorical={"code": "int64"}).splits.values()))
        assert int(rows["code"].isna().sum()) == int((table["code"] == 7).sum())
        assert set(rows["code"].dropna()) == {big}


@pytest.mark.parametrize("labels", [[0.1], [1e9 + 0.3], [1e9, 0.1, 7.3], [2000.1, 1499.7]])
def test_labels_that_float32_tells_apart_and_constants_are_kept(table, tmp_path, labels):
    frame = table.assign(late=np.resize(np.array(labels), len(table)))
    tables = build(path=write(tmp_path, frame), continuous=("x",), targets={"late": {"task": "regression"}})
    found = tables.splits["train"]
    expected = np.resize(np.array(labels), len(table)).astype("float32")[found["row_number"]]
    np.testing.assert_array_equal(found["late"], expected)


def test_files_without_a_header_take_the_given_names(table, tmp_path):
    table[["shop", "late"]].to_csv(tmp_path / "t.tsv", index=False, header=False, sep="\t")
    tables = build(
        path=str(tmp_path / "t.tsv"), separator="\t", column_names=("shop", "late"), categorical=("shop",)
    )  # fmt: skip
    assert sum(map(len, tables.splits.values())) == len(table)


@pytest.mark.parametrize("column", ["late", "price", "kind", "w", "visit", "at"])
def test_a_null_where_none_may_be_is_an_error_with_the_count(table, tmp_path, column):
    holes = table.copy()
    holes[column] = holes[column].astype("object").where(np.arange(len(table)) >= 3)
    with pytest.raises(DataError, match=f"'{column}' is null in 3 of 3000 rows.*Remove those rows"):
        build(
            path=write(tmp_path, holes), continuous=("x",), weight="w", group="visit", time="at",
            targets={"late": {"task": "binary"}, "kind": {"task": "multiclass"}, "price": {"task": "regression"}},
        )  # fmt: skip


def test_a_nan_label_is_an_error(table, tmp_path):
    frame = table.assign(price=table["price"].mask(table["x"] > 2))
    frame.to_parquet(tmp_path / "t.parquet")
    count = int((table["x"] > 2).sum())
    with pytest.raises(DataError, match=f"'price' is null in {count} of 3000"):
        build(path=str(tmp_path / "t.parquet"), continuous=("x",), targets={"price": {"task": "regression"}})


@pytest.mark.parametrize(
    ("labels", "target", "message"),
    [
        ([0, 1, 2], {"task": "binary"}, "a binary label is 0 or 1, found"),
        (["no", "yes", "no"], {"task": "binary"}, "column 'late' is declared float64"),
        (["no", "yes", "no"], {"task": "binary", "positive": "Yes"}, "found 'no', 'yes'.*Correct positive"),
        (["no", "yes", "who"], {"task": "binary", "positive": "yes"}, "a binary label has two values"),
        (["no", "no", "no"], {"task": "multiclass"}, "holds only 'no'"),
        (
            ["1", "2", "x"],
            {"task": "multiclass", "label_type": "int64"},
            "'1', '2', 'x' are not all of label_type",
        ),
        ([1, 2, 300], {"task": "multiclass", "label_type": "int8"}, "are not all of label_type int8"),
        ([0, 1, 1], {"task": "multiclass", "label_type": "bool"}, "are not all of label_type bool"),
        ([1, 2, 70000], {"task": "multiclass", "label_type": "float16"}, "are not all of label_type float16"),
        (["1_0", "2", "3"], {"task": "multiclass", "label_type": "int64"}, "are not all of label_type int64"),
        (["nan", "2", "3"], {"task": "multiclass", "label_type": "float64"}, "are not all of label_type float64"),
        (["1", "1.0", "2"], {"task": "multiclass", "label_type": "float64"}, "are the same float64"),
        ([1.0, 2.0, 1e300], {"task": "regression"}, "beyond float32"),
        ([1e9, 1e9 + 1, 1e9 + 2], {"task": "regression"}, "moves values by up to 2, .* Subtract a constant near their"),
        (["1.", "many.", "2."], {"task": "regression", "label_strip": "."}, "labels are not numbers"),
    ],
)
def test_labels_that_do_not_fit_the_task_are_an_error(table, tmp_path, labels, target, message):
    frame = table.assign(late=np.resize(np.array(labels), len(table)))
    with pytest.raises(DataError, match=message):
        build(path=write(tmp_path, frame), continuous=("x",), targets={"late": target})


@pytest.mark.parametrize("engine_files", ["csv", "parquet"])
def test_labels_are_cleaned_before_null_ones_are_left_out(table, tmp_path, engine_files):
    cents = np.random.default_rng(3).integers(10_000, 900_000, len(table))
    price = pd.Series([f"${value / 100:,.2f}" for value in cents])
    price[::10] = "ask"
    sold = table["late"].map({0: "No ", 1: "YES"}).mask(table.index % 3 == 0, table["late"].map({0: "no", 1: "yes"}))
    frame = table.assign(price=price, sold=sold)
    if engine_files == "csv":
        path = write(tmp_path, frame)
    else:
        frame.to_parquet(path := str(tmp_path / "t.parquet"))
    targets = {
        "price": {"task": "regression", "label_steps": [{"parse_number": {"null_values": ["ask"]}}]},
        "sold": {"task": "binary", "positive": "yes", "label_steps": [{"clean_text": {"case": "lower"}}]},
    }
    with pytest.raises(DataError, match="'price' is null in 300 of 3000"):
        build(path=path, continuous=("x",), targets=targets)
    splits = build(path=path, continuous=("x",), targets=targets, drop_null_targets=True).splits
    found = pd.concat(splits.values()).sort_values("row_number")
    np.testing.assert_array_equal(found["price"], np.delete(cents, np.s_[::10]).astype("float32") / 100)
    np.testing.assert_array_equal(found["sold"], table["late"][found["row_number"]])


@pytest.mark.parametrize("engine_files", ["csv", "parquet"])
@pytest.mark.parametrize(("threshold", "strip"), [(3.5, None), (0, None), (-1.25, None), (3, " stars")])
def test_numbers_from_a_threshold_on_are_1(table, tmp_path, engine_files, threshold, strip):
    stars = np.random.default_rng(5).integers(-8, 11, len(table)) / 2
    stars[::10] = np.nan
    frame = table.assign(stars=stars)
    if strip:
        frame["stars"] = [f"{one}{strip}" if one == one else None for one in stars]
    if engine_files == "csv":
        path = write(tmp_path, frame)
    else:
        frame.to_parquet(path := str(tmp_path / "t.parquet"))
    targets = {"stars": {"task": "binary", "threshold": threshold, "label_strip": strip}}
    with pytest.raises(DataError, match="'stars' is null in 300 of 3000"):
        build(path=path, continuous=("x",), targets=targets)
    tables = build(path=path, continuous=("x",), targets=targets, drop_null_targets=True)
    found = pd.concat(tables.splits.values()).sort_values("row_number")
    assert found["stars"].tolist() == [float(one >= threshold) for one in stars if one == one]
    assert tables.schema.targets[0].task == "binary"


@pytest.mark.parametrize(
    "options",
    [{"task": "regression", "threshold": 3}, {"task": "binary", "threshold": "3"},
     {"task": "binary", "threshold": True}, {"task": "binary", "threshold": 3, "positive": "yes"},
     {"task": "binary", "threshold": float("nan")}],
    ids=repr,
)  # fmt: skip
def test_a_threshold_that_makes_no_label_is_refused(options):
    with pytest.raises(DataError, match="target 'y': threshold is a number, of a binary target without positive"):
        build(path="a.csv", continuous=("x",), targets={"y": options})


def test_a_threshold_of_text_is_an_error_that_names_file_and_target(table, tmp_path):
    path = write(tmp_path, table.assign(stars="good stars"))
    targets = {"stars": {"task": "binary", "threshold": 3, "label_strip": " stars"}}
    with pytest.raises(DataError, match=r"input .*t.csv: target 'stars': threshold 3 is for numbers .*good"):
        build(path=path, continuous=("x",), targets=targets)


def test_a_label_that_its_step_cannot_read_is_an_error_that_names_file_and_target(table, tmp_path):
    path = write(tmp_path, table.assign(price="free"))
    targets = {"price": {"task": "regression", "label_steps": [{"parse_number": {}}]}}
    with pytest.raises(DataError, match=r"input .*t.csv: target 'price': ParseNumber.*'price'.*'free'"):
        build(path=path, continuous=("x",), targets=targets)


def test_what_label_steps_run_is_part_of_the_recipes_code(tmp_path):
    """So a changed operator makes the labels anew, as one of `steps` does its columns."""
    reads = [{"clean_text": {"case": "lower"}}, {"parse_number": {}}]
    targets = {"price": {"task": "regression", "label_steps": reads}, "sold": {"task": "binary"}}
    settings = TableSettings(path="t.csv", continuous=("x",), targets=targets)
    names = [{name: {"column": "x", **arguments}} for step in reads for name, arguments in step.items()]
    expected = registered_code(names)
    assert list(TableRecipe(settings).code().values()) == list(expected.values())
    assert len(set(expected.values())) == 2


@pytest.mark.parametrize(
    ("steps", "task", "message"),
    [
        ("parse_number", "regression", r"a list of steps such as \[\{parse_number: \{\}\}\], found 'parse_"),
        ([{"log": {}}], "regression", "label_steps holds 'log'. Known: clean_text, parse_number, parse_duration"),
        ([{"parse_number": {}}], "binary", "parse_number makes numbers, which are the labels of a regression"),
        ([{"parse_number": {"output": "y"}}], "regression", "without column and output"),
        ([{"parse_number": {"point": ","}}], "regression", "label_steps: step 1.*unknown argument 'point'"),
        ([{"clean_text": {"case": "title"}}], "multiclass", "unknown case 'title'"),
    ],
)
def test_label_steps_that_make_no_sense_are_refused_before_a_file_is_read(steps, task, message):
    with pytest.raises(DataError, match=message):
        build(path="a.csv", continuous=("x",), targets={"y": {"task": task, "label_steps": steps}})


def test_positive_may_be_a_number_in_yaml(table, saved):
    late = {"late": {"task": "binary", "positive": 0}}
    train = build(path=saved, continuous=("x",), targets=late).splits["train"]
    np.testing.assert_array_equal(train["late"], table["late"].to_numpy()[train["row_number"]] == 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give either path, or train_path and test_path.*found none"),
        ({"path": "a.csv", "test_path": "b.csv"}, "found path, test_path"),
        ({"train_path": "a.csv"}, "found train_path"),
        ({"path": "a", "targets": {}}, "targets is empty"),
        ({"path": "a", "continuous": ()}, "no feature"),
        ({"path": "a", "categorical": {"c": "float32"}}, "'c' has type 'float32'. Known: string, int64"),
        ({"path": "a", "targets": {"y": {"task": "ranking"}}}, "set task to one of binary, multiclass, regression"),
        ({"path": "a", "targets": {"y": "binary"}}, "set task to one of"),
        ({"path": "a", "targets": {"y": {"task": "binary", "positve": 1}}}, "unknown key.* positve. Known: task"),
        ({"path": "a", "targets": {"y": {"task": "regression", "positive": 1}}}, "positive is for binary targets"),
        ({"path": "a", "targets": {"y": {"task": "binary", "label_type": "int8"}}}, "label_type is for multiclass"),
        ({"path": "a", "targets": {"y": {"task": "multiclass", "label_type": "text"}}}, "found 'text' of a multiclass"),
        ({"path": "a", "targets": {"t": {"task": "multilabel"}}}, "'t': a multilabel target names two columns or more"),
        ({"path": "a", "targets": {"t": {"task": "multilabel", "columns": ["y"]}}}, "two columns or more"),
        ({"path": "a", "targets": {"t": {"task": "multilabel", "columns": ["y", "y"]}}}, "'y' are there twice"),
        (
            {"path": "a", "targets": {"y": {"task": "binary"}, "t": {"task": "multilabel", "columns": ["y", "z"]}}},
            "'t': 'y' is a target already",
        ),
        ({"path": "a", "targets": {"y": {"task": "regression", "label_of": "t"}}}, "label_of is for binary targets"),
        ({"train_path": "a", "test_path": "b", "time": "at"}, "time splits one path"),
        ({"path": "a", "categorical": ("x_na",)}, "column 'x_na' and the indicator of nulls in column 'x'"),
        ({"path": "a", "categorical": ("y",)}, r"column.* y \(.*\) listed twice"),
        ({"path": "a", "categorical": ("shop", "shop")}, r"shop \(categorical and categorical\) listed twice"),
    ],
)
def test_settings_that_make_no_sense_are_an_error(settings, message):
    with pytest.raises(DataError, match=message):
        TableSettings(**({"continuous": ("x",), "targets": {"y": {"task": "binary"}}} | settings))


@pytest.mark.parametrize(
    ("change", "settings", "message"),
    [
        ({}, {"continuous": ("y",)}, r"column.* 'y' not found. Columns there: 'shop', 'code'"),
        ({"w": -1.0}, {"continuous": ("x",), "weight": "w"}, r"weight 'w' holds negative"),
        ({}, {"categorical": ("shop",), "keys": ("shop",)}, r"shop \(.*\) listed twice"),
        ("two rows", {"continuous": ("x",)}, r"split 'valid' is empty|split 'test' is empty"),
    ],
)
def test_files_that_do_not_fit_the_settings_are_an_error(table, tmp_path, change, settings, message):
    frame = table.head(2) if change == "two rows" else table.assign(**change)
    with pytest.raises(DataError, match=message):
        build(path=write(tmp_path, frame), **settings)


def test_inputs_are_the_files_of_every_split(tmp_path, table):
    paths = [write(tmp_path, table, name) for name in ("a.csv", "b.csv", "c.csv")]
    settings = TableSettings(
        train_path=paths[0], valid_path=paths[1], test_path=paths[2], continuous=("x",), targets=LATE
    )  # fmt: skip
    assert TableRecipe(settings).inputs() == paths
    assert recipe_class("table") is TableRecipe


@pytest.mark.parametrize("in_parts", [False, True])
def test_a_file_of_two_splits_is_refused(table, tmp_path, in_parts):
    """A glob for train that finds the test file too would have the model learn what it is measured on."""
    for name in ("a", "b", "test"):
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    paths = {"train_path": f"{tmp_path}/*.csv", "test_path": f"{tmp_path}/./test.csv"}
    recipe = TableRecipe(TableSettings(**paths, continuous=("x",), targets={"late": {"task": "binary"}}))
    made = partial(recipe.write_parts, "pandas", tmp_path, 10, map) if in_parts else partial(recipe.build, "pandas")
    with pytest.raises(DataError, match=r"test\.csv is in train and in test\. Name it under one of them"):
        made()


def test_a_yaml_file_is_all_that_it_takes(saved, tmp_path):
    from gigabatch.pipeline.config.config import load_config

    (tmp_path / "mine.yaml").write_text(
        f"name: mine\nrecipe: table\nfeatures:\n  path: {saved}\n  categorical: [shop]\n  continuous: [x]\n"
        "  targets:\n    late: {task: binary}\n  split: {train: 0.6, valid: 0.2, test: 0.2}\n"
    )
    config = load_config(tmp_path / "mine.yaml")
    tables = recipe_class(config.recipe)(config.features).build("pandas")
    assert len(tables.splits["train"]) / 3000 == pytest.approx(0.6, abs=0.03)


STEPS = (
    {"log": {"column": "price", "output": "log_price"}},
    {"hashed_cross": {"columns": ["shop", "code"], "num_buckets": 50, "output": "shop_code"}},
    {"fill_missing": {"column": ["log_price", "x"]}},
    {"normalize": {"column": "log_price"}},
)
WITH_STEPS = {
    "steps": STEPS, "inputs": {"price": "float64", "code": "int64"}, "categorical": ("shop", "shop_code"),
    "continuous": ("x", "log_price"), "keys": ("id",),
}  # fmt: skip


def test_steps_are_fitted_on_the_train_split_and_their_columns_have_roles(saved, table):
    tables = build(path=saved, **WITH_STEPS)
    dtypes = {column.name: (column.role, column.dtype) for column in tables.schema.columns}
    assert dtypes == {
        "shop": ("categorical", "string"), "shop_code": ("categorical", "int64"), "x": ("continuous", "float32"),
        "log_price": ("continuous", "float32"), "late": ("target", "float32"), "id": ("key", "string"),
    }  # fmt: skip
    logs = table.set_index("id")["price"].map(np.log1p).astype("float32").astype("float64")
    train = logs[tables.splits["train"]["id"]]
    for frame in tables.splits.values():
        expected = (logs[frame["id"]] - train.mean()) / train.std(ddof=0)
        np.testing.assert_allclose(frame["log_price"], expected, rtol=1e-5, atol=1e-6)
    assert tables.workflow.inputs == ("price", "shop", "code", "x")
    assert tables.workflow.labels == ("late",)


def test_rows_may_go_and_a_step_may_read_the_label_to_fit(saved, table):
    steps = ({"clip": {"column": "x", "low": 0}}, {"drop_nulls": {"columns": ["price"]}})
    settings = WITH_STEPS | {"steps": steps, "categorical": ("shop",), "continuous": ("x",)}
    holes = table.assign(price=table["price"].where(table["code"] % 2 == 0))
    holes.to_csv(saved, index=False)
    found = build(path=saved, **settings)
    assert sum(map(len, found.splits.values())) == int(holes["price"].notna().sum())
    assert min(frame["x"].min() for frame in found.splits.values()) == 0
    kept = sorted(key for frame in found.splits.values() for key in frame["id"])
    assert kept == sorted(holes.loc[holes["price"].notna(), "id"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": ({"lgo": {"column": "x"}},)}, r"table: step 1 \(lgo\): unknown operator 'lgo'"),
        ({"steps": ({"log": {"column": "prise"}},)},
         r"table: step 1 \(log\): column 'prise' .*Did you mean 'price'\?.*declared under inputs"),
        ({"inputs": {"price": "float64"}}, r"step 2 \(hashed_cross\): column 'code' comes from no earlier step"),
        ({"inputs": {"price": "number"}}, r"table: input 'price' has type 'number'\. Known: int32, int64"),
        ({"inputs": {"late": "int64"}}, r"table: inputs names 'late', whose role says already"),
        ({"steps": ({"rename": {"mapping": {"x": "y"}}},)}, r"table: column 'x' has a role but is not there after"),
        ({"steps": ()}, r"t\.csv: column\(s\) 'shop_code', 'log_price' not found"),
        ({"steps": ({"text_flags": {"column": "shop", "prefix": "s_"}},), "categorical": ("shop",),
          "continuous": ("s_a", "s_z")}, r"table, after the steps: column\(s\) 's_z' not found.*'s_a'"),
    ],
)  # fmt: skip
def test_mistakes_in_steps_are_errors(saved, change, message):
    with pytest.raises(DataError, match=message):
        build(path=saved, **(WITH_STEPS | change))


def test_raw_rows_hold_what_is_asked_for_and_the_keys(saved, table, tmp_path):
    unlabelled = write(tmp_path, table.drop(columns=["late", "kind", "w"]), "new.csv")
    recipe = TableRecipe(TableSettings(path=saved, targets=LATE, **WITH_STEPS))
    found = recipe.raw_rows("pandas", unlabelled, ("price", "shop", "code", "x"))
    assert list(found.columns) == ["id", "shop", "x", "price", "code", "row_number"]
    assert found["id"].tolist() == table["id"].tolist()
    assert str(found["code"].dtype) == "Int64"
    with pytest.raises(DataError, match=r"new2\.csv: column\(s\) 'price' not found"):
        recipe.raw_rows("pandas", write(tmp_path, table.drop(columns="price"), "new2.csv"), ("price", "shop"))


def test_floats_of_a_parquet_file_stay_numbers_where_text_has_a_decimal_comma(tmp_path):
    prices, late = [1.234, 12.5, 7.0] * 10, [0, 1] * 15
    texts = [f"{price:.3f}".replace(".", ",") for price in prices]
    paths = {"text": write(tmp_path, pd.DataFrame({"price": texts, "late": late}), "text.csv")}
    paths["floats"] = str(tmp_path / "floats.parquet")
    pd.DataFrame({"price": prices, "late": late}).to_parquet(paths["floats"])
    step = {"parse_number": {"column": "price", "decimal": ",", "thousands": "."}}
    for path in paths.values():
        settings = {"targets": LATE, "continuous": ("price",), "inputs": {"price": "string"}, "steps": (step,)}
        workflow = build(path=path, **settings).workflow
        for raw in paths.values():
            rows = TableRecipe(TableSettings(path=path, **settings)).raw_rows("pandas", raw, ["price"])
            assert workflow.transform(workflow.typed(rows))["price"].tolist() == prices
    splits = build(path=paths["floats"], **settings).splits.values()
    assert sorted({price for split in splits for price in split["price"]}) == sorted(np.float32([1.234, 12.5, 7.0]))


def test_a_table_that_a_step_reads_is_an_input_of_the_stage(saved, tmp_path):
    shops = write(tmp_path, pd.DataFrame({"shop": ["a", "b"], "size": [3.0, 4.0]}), "shops.csv")
    steps = ({"join_external": {"table": shops, "on": ["shop"], "columns": {"size": "shop_size"}}},)
    settings = WITH_STEPS | {"steps": steps, "categorical": ("shop",), "continuous": ("shop_size",)}
    assert TableRecipe(TableSettings(path=saved, targets=LATE, **settings)).inputs() == [saved, shops]
    frame = build(path=saved, **settings).splits["test"]
    assert frame.groupby("shop")["shop_size"].max().to_dict() == {
        "a": 3.0,
        "b": 4.0,
        "c": pytest.approx(np.nan, nan_ok=True),
    }


@pytest.mark.parametrize("kind", ["csv", "parquet", "dates"])
@pytest.mark.parametrize("form", ["%Y-%m-%d", "%d.%m.%Y"])
def test_holidays_are_looked_up_by_the_time(table, tmp_path, kind, form):
    days = pd.Timestamp("2023-12-01") + pd.to_timedelta(np.arange(len(table)) // 50, unit="D")
    path = write(tmp_path, table.assign(day=days.strftime(form)))
    inputs = {} if form == "%Y-%m-%d" else {"day": f"datetime[{form}]"}
    known = pd.DataFrame({"day": pd.to_datetime(["2023-12-25", "2024-01-01"]), "feast": ["Noel", "New Year"]})
    side = write(tmp_path, known.assign(day=known["day"].dt.strftime(form)), "feasts.csv")
    if kind != "csv":
        side = str(tmp_path / "feasts.parquet")
        (known.assign(day=known["day"].dt.date) if kind == "dates" else known).to_parquet(side)
    steps = ({"join_external": {"table": side, "on": ["day"], "columns": {"feast": "feast"}}},)
    made = build(path=path, time="day", categorical=("feast",), inputs=inputs, steps=steps)
    frame = pd.concat(made.splits.values())
    expected = pd.Series(days).map(known.set_index("day")["feast"])
    assert frame.sort_values("row_number")["feast"].fillna("").tolist() == expected.fillna("").tolist()
    assert made.notes == ()


def test_a_table_of_days_is_not_looked_up_by_a_time_of_another_unit(table, tmp_path):
    side = write(tmp_path, pd.DataFrame({"at": ["2023-12-25"], "feast": ["Noel"]}), "feasts.csv")
    steps = ({"join_external": {"table": side, "on": ["at"], "columns": {"feast": "feast"}}},)
    with pytest.raises(DataError, match=r"whole numbers .* in the rows and text"):
        build(path=write(tmp_path, table), time="at", categorical=("feast",), steps=steps)


@pytest.mark.parametrize("task", ["binary", "regression", "multiclass"])
@pytest.mark.parametrize("order", [{}, {"time": "at"}])
def test_rows_without_a_label_are_left_out_when_asked_and_counted(table, tmp_path, task, order):
    """U13: one null target in 57,000 rows stopped the run; the error names the option that leaves such rows out."""
    gone = [3, 700, 2999]
    frame = table.assign(label=(table["late"] if task != "multiclass" else table["shop"]).astype("object"))
    frame.loc[gone, "label"] = None
    path, targets = write(tmp_path, frame), {"label": {"task": task}}
    with pytest.raises(
        DataError, match=r"target 'label' is null in 3 of 3000 rows. Set features.drop_null_targets=true"
    ):
        build(path=path, continuous=("x",), targets=targets, **order)
    found = build(path=path, continuous=("x",), targets=targets, drop_null_targets=True, **order)
    assert sorted(row for split in found.splits.values() for row in split["row_number"]) == sorted(
        set(range(3000)) - set(gone)
    )
    assert found.notes == (f"{path}: 3 of 3,000 rows left out, because their target 'label' is null.",)
    assert not any(split["label"].isna().any() for split in found.splits.values())
    if not order:  # the others lie where they lay before
        whole = build(path=write(tmp_path, table, "whole.csv"), continuous=("x",))
        for name, split in found.splits.items():
            assert set(split["row_number"]) == set(whole.splits[name]["row_number"]) - set(gone)


def test_a_day_that_does_not_exist_is_an_error_and_no_warning(table, tmp_path, recwarn):
    """R12: pandas warned of a format first."""
    path = write(tmp_path, table.assign(at="2013-02-30"))
    with pytest.raises(DataError, match=r"time column 'at': neither numbers nor ISO 8601 times .*2013-02-30"):
        build(path=path, continuous=("x",), time="at")
    assert not recwarn.list


@pytest.mark.parametrize("text", ["1_000", "\u0661"])
def test_times_and_labels_are_written_with_digits_0_to_9(table, tmp_path, text):
    """R12: 1_000 was the time 1000."""
    with pytest.raises(DataError, match=r"time column 'at'"):
        build(path=write(tmp_path, table.assign(at=text)), continuous=("x",), time="at")
    targets = {"size": {"task": "regression", "label_strip": "."}}
    with pytest.raises(DataError, match=r"target 'size': labels are not numbers"):
        build(path=write(tmp_path, table.assign(size=text)), continuous=("x",), targets=targets)


def test_weights_that_no_sum_of_losses_holds_are_refused(table, tmp_path):
    """R12: with weights of 1e38 a run ended in `lower lr_max`."""
    with pytest.raises(DataError, match=r"weight 'w' holds negative values, or some beyond 2\^64. Only the ratios"):
        build(path=write(tmp_path, table.assign(w=1e38)), continuous=("x",), weight="w")


@pytest.mark.parametrize("role", ["continuous", "step"])
def test_a_column_of_the_files_may_look_like_one_of_a_word(table, tmp_path, role):
    tags = table.assign(tags=table["shop"], is_new=table["code"] + 1.5)
    steps = ({"text_flags": {"column": "tags", "prefix": "is_"}},)
    more = ({"log": {"column": "is_new", "output": "x", "invalid": "null"}},) if role == "step" else ()
    settings = {
        "path": write(tmp_path, tags), "steps": steps + more, "inputs": {"tags": "string", "is_new": "float64"},
        "continuous": ("is_new", "is_a") if role == "continuous" else ("x", "is_a"),
    }  # fmt: skip
    train = build(**settings).splits["train"]
    assert set(train["is_a"]) == {0.0, 1.0}
    if role == "continuous":
        assert set(train["is_new"]) <= set(table["code"] + 1.5)
    with pytest.raises(DataError, match=r"step 1.*text_flags.*column 'is_new' would be overwritten"):
        build(**settings | {"path": write(tmp_path, tags.assign(tags="new"), "more.csv")})


def test_a_table_of_many_columns_is_built_without_a_warning_of_pandas(tmp_path):
    names = [f"c{number}" for number in range(150)]
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 150)), columns=names).assign(late=[0, 1] * 30)
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.PerformanceWarning)
        tables = build(path=write(tmp_path, frame), categorical=(), continuous=tuple(names), inputs={}, time=None)
    assert sum(map(len, tables.splits.values())) == 60


ROLLING = {"by": ["shop"], "time": "minute", "column": "late", "window": 100, "statistic": "sum", "output": "recent"}


@pytest.mark.parametrize("split", [{}, {"split_key": "visit"}, {"time": "at"}, {"files": True}])
def test_rows_of_every_split_see_what_was_known_before_them_in_any(table, tmp_path, split):
    """Expected: a slow loop over the whole table, however it is split, before and after a fitted step."""
    table = table.head(400).assign(minute=table["at"])
    files = {"path": write(tmp_path, table)}
    if split.pop("files", False):
        cuts = {"train_path": table.head(250), "valid_path": table[250:300], "test_path": table[300:]}
        files = {name: write(tmp_path, rows, f"{name}.csv") for name, rows in cuts.items()}
    steps = ({"clip": {"column": "x", "low": 0}}, {"normalize": {"column": "x"}}, {"rolling": ROLLING},
             {"min_max": {"column": "recent"}})  # fmt: skip
    chosen = {"continuous": ("recent", "x"), "inputs": {"minute": "int64", "shop": "string", "x": "float64"}}
    settings = {**files, **chosen, **split, "keys": ("id",)}
    splits = {name: build(**settings, steps=steps[:n]).splits for name, n in (("counts", 3), ("scaled", 4))}
    rows = list(table[["id", "shop", "minute", "late"]].itertuples(index=False, name=None))
    expected = {
        key: sum(late for _, other, then, late in rows if other == shop and now - 100 <= then < now)
        for key, shop, now, _ in rows
    }
    for name, frame in splits["counts"].items():
        assert frame["recent"].tolist() == [expected[key] for key in frame["id"]], name
    low, high = (of(splits["counts"]["train"]["recent"]) for of in (min, max))
    for name, frame in splits["scaled"].items():  # fitted on what train's rows see of all splits
        scaled = (splits["counts"][name]["recent"] - low) / (high - low)
        np.testing.assert_allclose(frame["recent"], scaled, rtol=1e-6, err_msg=name)


UNITS = {"datetime64[s]": None, "datetime64[ms]": None, "datetime64[us]": None, "datetime64[ns]": None}
WRITTEN = [*UNITS, "zone", "text", "text Z", "offset"]


@pytest.mark.parametrize("written", WRITTEN)
def test_a_calendar_time_is_the_same_however_it_is_written(table, tmp_path, written):
    table = table.head(300)
    stamps = pd.Timestamp("2013-12-31") + pd.to_timedelta(table["at"], unit="min")
    text = stamps.dt.strftime("%Y-%m-%dT%H:%M:%S")
    later = (stamps + pd.Timedelta(hours=2)).dt.strftime("%Y-%m-%d %H:%M:%S") + "+02:00"
    ways = {"zone": stamps.dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"), "text": text, "text Z": text + "Z",
            "offset": later}  # fmt: skip
    column = stamps.astype(written) if written in UNITS else ways[written]
    table.assign(at=column, shown=column).to_parquet(tmp_path / "t.parquet")
    parts = {"prefix": "t", "parts": ["hour"], "unit": "us", "cyclical": ["minute_of_day"]}
    settings = {
        "continuous": ("t_hour", "s_hour", "t_minute_of_day_sin"), "time": "at", "keys": ("id",),
        "inputs": {"shown": "datetime"},
        "steps": ({"date_parts": {"column": "at", **parts}},
                  {"date_parts": {"column": "shown", **parts, "prefix": "s"}}),
    }  # fmt: skip
    tables = build(path=str(tmp_path / "t.parquet"), **settings)
    expected = stamps.astype("datetime64[us]").astype("int64").set_axis(table["id"])
    assert tables.schema.dtypes()["at"] == "datetime"
    previous = expected.min() - 1
    for part in tables.splits.values():
        assert part["at"].tolist() == expected[part["id"]].tolist()
        assert part["t_hour"].tolist() == part["s_hour"].tolist() == (part["at"] // 3_600_000_000 % 24).tolist()
        assert previous < part["at"].min()
        previous = part["at"].max()
    serving = tables.workflow.serving(["t_hour"])
    one = pd.DataFrame({"at": column}).head(3)
    found = serving.transform(serving.typed(one))["t_hour"].tolist()
    assert found == stamps.dt.hour.head(3).tolist()
    for bad in ([1.5, 2.5, 3.5], ["7", "8", "9"], ["soon"] * 3):
        with pytest.raises(DataError, match="column 'at' is declared datetime"):
            serving.typed(one.assign(at=bad))


def test_a_time_of_day_orders_no_rows():
    with pytest.raises(DataError, match=r"time 'at' is of type 'datetime\[%H:%M\]', a time of day, which puts no rows"):
        TableSettings(path="t.csv", continuous=("x",), targets={"y": {"task": "binary"}}, time="at",
                      inputs={"at": "datetime[%H:%M]"})  # fmt: skip


def test_times_that_are_numbers_take_no_dates_when_served(table, tmp_path):
    step = {"date_parts": {"column": "at", "parts": ["hour"], "prefix": "t"}}
    tables = build(path=write(tmp_path, table), continuous=("t_hour",), time="at", steps=(step,))
    serving = tables.workflow.serving(["t_hour"])
    for dates in (["2013-12-31T00:00:00"], pd.to_datetime(["2013-12-31"])):
        with pytest.raises(DataError, match="column 'at' is declared int64"):
            serving.typed(pd.DataFrame({"at": dates}))


def test_categories_groups_and_keys_that_are_timestamps_are_iso_text(table, tmp_path):
    stamps = pd.Timestamp("2013-12-31T23:00") + pd.to_timedelta(table["code"], unit="min")
    table.assign(day=stamps, visit=stamps, key=stamps).to_parquet(tmp_path / "t.parquet")
    tables = build(path=str(tmp_path / "t.parquet"), categorical=("day",), group="visit", keys=("key",))
    train = tables.splits["train"]
    assert train["day"].tolist() == train["visit"].tolist() == train["key"].tolist()
    assert set(train["day"]) <= set(stamps.dt.strftime("%Y-%m-%dT%H:%M:%S"))


def test_keys_that_inputs_calls_whole_numbers_stay_so(table, tmp_path):
    """Scores held '7' for 7, which no join with the table finds."""
    table["key"] = pd.array([None, *range(2**60 + 1, 2**60 + len(table))], dtype="Int64")
    table.to_parquet(tmp_path / "t.parquet")
    given = {"path": str(tmp_path / "t.parquet"), "continuous": ("x",), "keys": ("key",)}
    tables = build(**given, inputs={"key": "int64"})
    assert tables.schema.dtypes()["key"] == "int64"
    found = pd.concat(tables.splits.values())["key"]
    assert sorted(found.dropna()) == list(range(2**60 + 1, 2**60 + len(table)))
    assert found.isna().sum() == 1
    written = typed_rows(tables.schema, "all", pd.concat(tables.splits.values()))["key"]
    assert (str(written.dtype), written.isna().sum()) == ("Int64", 1)
    text = build(**given)
    assert text.schema.dtypes()["key"] == "string"
    assert str(2**60 + 1) in set(pd.concat(text.splits.values())["key"])
    made = build(**given, inputs={"key": "int64"}, steps=[{"fill_missing": {"column": "key"}}])
    assert made.schema.dtypes()["key"] == "string"  # of what the step makes
    rows = build(**{**given, "keys": ()})
    assert str(typed_rows(rows.schema, "train", rows.splits["train"])["row_number"].dtype) == "int64"


def test_features_made_of_the_group_or_the_time_are_noted(table, tmp_path):
    settings = {
        "path": write(tmp_path, table), "time": "at", "group": "visit", "categorical": ("spot", "shop"),
        "continuous": ("t_year", "t_hour", "t_hour_sin", "scaled", "before", "x"),
        "steps": (
            {"hash_bucket": {"column": "visit", "num_buckets": 50, "output": "spot"}},
            {"date_parts": {"column": "at", "parts": ["year", "hour"], "prefix": "t", "cyclical": ["hour"]}},
            {"expression": {"output": "since", "expression": "at - 100"}},
            {"rename": {"mapping": {"since": "scaled"}}}, {"min_max": {"column": "scaled"}},
            {"rolling": {"by": ["visit"], "time": "at", "column": "late", "window": 9, "statistic": "sum",
                         "output": "before"}},
        ),
    }  # fmt: skip
    group, time = build(**settings).notes
    assert group.startswith("Feature(s) 'spot' come from the group column 'visit': a model can learn the groups")
    assert time.startswith("Feature(s) 't_year', 'scaled' come from the time column 'at': they go on growing")
    assert build(path=settings["path"], time="at", group="visit", categorical=("shop",)).notes == ()


def test_differences_of_two_times_are_not_told_to_go_on_growing(table, tmp_path):
    stamps = pd.Timestamp("2013-12-31") + pd.to_timedelta(table["at"], unit="min")
    rows = table.assign(iso=stamps.astype("str"), dmy=(stamps - pd.Timedelta("2D")).dt.strftime("%d.%m.%Y"))
    day = 86_400_000_000
    formulas = {
        "apart": f'col("iso") / {day} - dmy / {day}', "hours": f"maximum((iso - dmy) / {day} * 24, 0)",
        "days": f"iso / {day}", "wrong": f"iso / {day} - dmy", "sum": "iso + dmy", "half": "iso - x",
        "neg": "-(dmy - iso)", "hour_on": "iso - clock", "late_since": "iso - moved", "last": "where(x > 0, iso, 0)",
    }  # fmt: skip
    settings = {
        "path": write(tmp_path, rows.assign(clock="14:05")), "time": "iso", "categorical": ("shop",),
        "continuous": ("x", *formulas, "less", "more"),
        "inputs": {"dmy": "datetime[%d.%m.%Y]", "clock": "datetime[%H:%M]"},
        "steps": (
            {"expression": {"output": "moved", "expression": "dmy / 2"}},
            *({"expression": {"output": name, "expression": formula}} for name, formula in formulas.items()),
            {"difference": {"left": "iso", "right": "dmy", "output": "less"}},
            {"difference": {"left": "iso", "right": "x", "output": "more"}},
        ),
    }  # fmt: skip
    (note,) = build(**settings).notes
    told = ("days", "wrong", "sum", "half", "hour_on", "late_since", "last", "more")
    assert note.startswith(f"Feature(s) {', '.join(map(repr, told))} come from the time column 'iso'")


@pytest.mark.parametrize(
    "role",
    [
        {"keys": ["row_number"]}, {"inputs": {"row_number": "int64"}}, {"continuous": ["price", "row_number"]},
        {"time": "row_number"}, {"group": "row_number"}, {"targets": {"row_number": {"task": "regression"}}},
    ],
)  # fmt: skip
def test_a_column_of_the_files_by_the_name_of_the_rows_place_is_refused(role):
    given = {"path": "shop.csv", "continuous": ["price"], "targets": {"late": {"task": "binary"}}} | role
    with pytest.raises(DataError, match=r"'row_number' is a column that the recipe makes.*Rename yours"):
        TableSettings(**given)


@pytest.mark.parametrize("role", ["targets", "weight", "group"])
def test_a_label_that_a_step_makes_is_refused_by_name(tmp_path, role):
    pd.DataFrame({"c": ["a", "b"], "y": [0, 1], "raw": [1, 2]}).to_csv(tmp_path / "rows.csv", index=False)
    given = {"targets": {"y": {"task": "binary"}}}
    given[role] = {"made": {"task": "binary"}} if role == "targets" else "made"
    settings = TableSettings(
        path=str(tmp_path / "rows.csv"),
        categorical=("c",),
        inputs={"raw": "float32"},
        steps=[{"rename": {"mapping": {"raw": "made"}}}],
        **given,
    )
    with pytest.raises(DataError, match="'made' is made by a step, but targets, weight, group"):
        TableRecipe(settings).build("pandas")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_times_of_a_format_or_a_unit_are_one_notion(tmp_path, ending):
    """As the split's time, for steps and for raw rows, in files and in frames, as they were written."""
    days = pd.date_range("2024-01-01", periods=100, freq="31h")
    order = np.random.default_rng(0).permutation(100)
    rows = pd.DataFrame({
        "day": days.strftime("%d.%m.%Y %H:%M"), "seen": days.as_unit("s").astype("int64"), "late": [0, 1] * 50,
        "id": range(100),
    }).iloc[order]  # fmt: skip
    rows.loc[3, "seen"] = None
    rows["seen"] = rows["seen"].astype("Int64")
    path = tmp_path / f"rows.{ending}"
    rows.to_csv(path, index=False) if ending == "csv" else rows.to_parquet(path)
    settings = TableSettings(
        path=str(path), time="day", inputs={"day": "datetime[%d.%m.%Y %H:%M]", "seen": "datetime[s]?"}, keys=("id",),
        continuous=("seen_hour",), categorical=("day_weekday",), targets={"late": {"task": "binary"}},
        steps=(
            {"date_parts": {"column": "day", "parts": ["weekday"], "prefix": "day", "unit": "us"}},
            {"expression": {"output": "seen_hour", "expression": "seen % 86400000000 // 3600000000"}},
        ),
    )  # fmt: skip
    tables = TableRecipe(settings).build("pandas")
    assert tables.schema.dtypes()["day"] == "datetime"
    assert tables.splits["test"]["id"].tolist() == [str(number) for number in range(90, 100)]
    found = pd.concat(tables.splits.values()).reset_index(drop=True)
    assert found["day"].tolist() == days.as_unit("us").astype("int64").tolist()
    assert found["day_weekday"].astype("str").tolist() == [str(day.weekday()) for day in days]
    hours = [float("nan") if place == 3 else float(day.hour) for place, day in enumerate(days)]
    assert np.array_equal(found["seen_hour"].to_numpy(dtype="float64"), hours, equal_nan=True)
    serving = tables.workflow.serving(["day_weekday", "seen_hour"])
    raw = TableRecipe(settings).raw_rows("pandas", str(path), serving.applied_inputs)
    asked = rows.drop(columns="late")
    stamps = asked.assign(day=pd.to_datetime(asked["day"], format="%d.%m.%Y %H:%M"))
    floats = asked.assign(seen=asked["seen"].astype("float64"))
    for given in (raw, asked, stamps, floats):
        made = serving.transform(serving.typed(given))
        assert made["day_weekday"].astype("str").tolist() == [str(days[place].weekday()) for place in order]
        seen = made["seen_hour"].astype("float64").to_numpy()
        assert np.array_equal(seen, np.array(hours)[order], equal_nan=True)
    with pytest.raises(DataError, match=r"column 'day'.*'2024-01-01' is no time in the format"):
        serving.typed(asked.assign(day="2024-01-01"))


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"day": "datetime[weeks]"}, "input 'day': .*unknown unit 'weeks'"),
        ({"day": "string"}, "inputs names 'day', whose role says already how it is read"),
        ({"x": "date"}, r"type 'date'. Known: .*datetime\[%d.%m.%Y\] \(a format\)"),
    ],
)
def test_types_of_times_that_are_refused(inputs, said):
    with pytest.raises(DataError, match=said):
        TableSettings(path="x.csv", time="day", inputs=inputs, continuous=("x",), targets={"y": {"task": "binary"}})
