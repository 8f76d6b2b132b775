"""Warnings about data: told for what is wrong and beyond chance, silent on splits of one table."""

import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch.utils._python_dispatch import TorchDispatchMode

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.schema import Column, IdColumn, Schema, Target, TensorSchema
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.pipeline.evaluation import checks
from gigabatch.pipeline.evaluation.checks import (
    Flag,
    blank_warnings,
    column_warnings,
    data_warnings,
    label_warnings,
    leak_warnings,
    missing_shares,
    range_warnings,
    sure_warnings,
    unseen_shares,
)
from gigabatch.pipeline.evaluation.sample import hashed
from gigabatch.pipeline.stages.run import target_means
from gigabatch.pipeline.stages.stages import pack

ROWS = 4000


def labelled(task: str, labels, **columns) -> PackedTable:
    labels = torch.as_tensor(labels, dtype=torch.int32 if task == "multiclass" else torch.float32)
    classes = ("egg", "ham", "spam") if task == "multiclass" else ()
    ids = {name: torch.as_tensor(v, dtype=torch.int32) for name, v in columns.items() if v.dtype.kind == "i"}
    floats = {name: torch.as_tensor(v, dtype=torch.float32) for name, v in columns.items() if v.dtype.kind == "f"}
    schema = TensorSchema(
        tuple(IdColumn(name, int(v.max()) + 1) for name, v in ids.items()),
        tuple(floats),
        (Target("y", task, len(classes) or 1, classes),),
    )
    return PackedTable.from_columns(schema, list(ids.values()), list(floats.values()), [labels])


def drawn(task: str, seed: int, rows=ROWS, shift=0.0):
    random = np.random.default_rng(seed)
    if task == "regression":
        return random.normal(10 + shift, 2, rows)
    if task == "multiclass":
        return random.choice(3, rows, p=[0.5 - shift, 0.3 + shift, 0.2])
    return random.random(rows) < 0.24 + shift


@pytest.mark.parametrize(
    ("task", "shift", "words"),
    [
        ("binary", 0.1, "the share of 1 differs between the splits: train 0.2"),
        ("binary", 0.05, None),  # 1.2 times
        ("multiclass", 0.15, "the shares of the classes differ from train's, test by 0.1"),
        ("multiclass", 0.07, None),
        ("regression", 0.8, "the mean differs between the splits: train 9.9"),
        ("regression", 0.3, None),
    ],
)
def test_labels_that_differ_by_more_than_the_bound_are_told_and_no_others(task, shift, words):
    tables = {
        "train": labelled(task, drawn(task, 1)),
        "valid": labelled(task, drawn(task, 2)),
        "test": labelled(task, drawn(task, 3, shift=shift)),
    }
    found = label_warnings(tables)
    assert len(found) == (words is not None)
    if words:
        assert words in found[0]
        assert "valid" not in found[0]


def test_means_that_differ_are_written_differently():
    train, test = (
        labelled("regression", 202_290 + drawn("regression", seed, shift=shift)) for seed, shift in ((1, 0), (2, 4))
    )
    means = [float(table.unpack(table.words).targets[0].double().mean()) for table in (train, test)]
    (found,) = label_warnings({"train": train, "test": test})
    told = [float(word) for word in re.search(r"train ([\d.e+]+), test ([\d.e+]+) \(", found).groups()]
    assert told == pytest.approx(means, abs=1)
    assert found.short == f"mean is not train's {told[0]:g}"


@pytest.mark.parametrize(
    ("rows", "far", "held"),
    [
        (150, [1e6], True),  # a mistyped label: R² of test was -6e7, and nothing told why
        (150, [-9999.0], True),  # a code for an unknown one
        (5_000, [1e6] * 5, True),
        (5_000, [60.0], False),
        (5_000, [1e6] * 500, False),  # many are another kind of rows
        (19, [1e6], False),
    ],
)
def test_few_labels_that_hold_the_spread_are_told(rows, far, held):
    labels = np.random.default_rng(5).lognormal(0, 1.5, rows)
    labels[: len(far)] = far
    found = label_warnings({"train": labelled("regression", labels)})
    assert len(found) == held
    if held:
        squares = np.sort((labels - np.median(labels)) ** 2)
        share = squares[-max(rows // 1000, 1) :].sum() / squares.sum()
        assert f"train rows hold {share:.1%} of the label's squared distances" in found[0]
        assert f"the farthest is {far[0]:.6g}." in found[0]
        assert found[0].about == "y"


def test_a_far_label_of_no_weight_holds_nothing():
    labels = np.random.default_rng(5).normal(size=100)
    labels[3] = 1e4
    heavy = np.where(np.arange(100) == 3, 1e-9, 1.0)
    assert label_warnings({"train": weighed("regression", labels, heavy)}) == []
    assert len(label_warnings({"train": weighed("regression", labels, np.ones(100))})) == 1


@pytest.mark.parametrize("light", [0.0, 1e-12])
def test_a_far_label_of_no_weight_hides_no_other(light):
    labels = np.random.default_rng(5).normal(size=100)
    labels[3:5] = 1e6, 1e3
    weights = np.where(np.arange(100) == 3, light, 1.0)
    (found,) = label_warnings({"train": weighed("regression", labels, weights)})
    assert "the farthest is 1000." in found
    labels[5:80], weights[5:80] = 1e3, 0.0  # rows of weight 0 move the median neither
    (found,) = label_warnings({"train": weighed("regression", labels, weights)})
    assert "the farthest is 1000." in found


def test_a_difference_within_chance_is_not_told():
    tables = {"train": labelled("binary", drawn("binary", 1)), "test": labelled("binary", [1.0] * 10 + [0.0] * 20)}
    assert label_warnings(tables) == []  # .33 of thirty rows


def test_rows_of_weight_0_say_nothing():
    """Of test half the rows weigh 0, and are labels and floats of another kind."""
    tables = {}
    for seed, split in enumerate(("train", "test")):
        idle = torch.arange(ROWS) % 2 * (split == "test") > 0
        labels = torch.where(idle, 1.0, torch.as_tensor(drawn("binary", seed)).float())
        floats = torch.where(idle, 1e6, torch.randn(ROWS, generator=torch.Generator().manual_seed(seed)))
        schema = TensorSchema((), ("x",), (Target("y", "binary"),), has_weight=True)
        tables[split] = PackedTable.from_columns(schema, [], [floats], [labels], 1 - idle.float())
    preprocessor = Preprocessor(Schema((Column("x", "continuous", "float32"),), ()))
    preprocessor.fit([pd.DataFrame({"x": np.arange(9.0)})])
    assert not data_warnings(preprocessor, tables, {split: {"x": 0.0} for split in tables})


def weighed(task: str, labels, weights) -> PackedTable:
    table = labelled(task, labels)
    schema = TensorSchema((), (), table.schema.targets, has_weight=True)
    mass = torch.as_tensor(weights, dtype=torch.float32)
    return PackedTable.from_columns(schema, [], [], [table.unpack(table.words).targets[0]], mass)


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_labels_of_splits_are_compared_by_the_weights_of_rows(task):
    """Of rows of label 0 a ninth was kept in train, each of weight 9: .5 of the rows are 1, and .1 of the weight."""
    kept, whole = [1.0] * 100 + [0.0] * 100, [1.0] * 100 + [0.0] * 900
    weights = [1.0] * 100 + [9.0] * 100
    if task == "multiclass":  # so that no class is missing
        kept, whole, weights = [*kept, *[2.0] * 50], [*whole, *[2.0] * 50], [*weights, *[1.0] * 50]
    train, test = weighed(task, kept, weights), weighed(task, whole, [1.0] * len(whole))
    assert label_warnings({"train": train, "test": test}) == []
    plain = weighed(task, kept, [1.0] * len(kept))
    (found,) = label_warnings({"train": plain, "test": test})
    assert ("train 0.5" in found) or task == "multiclass"
    (found,) = label_warnings({"train": train, "test": plain})
    assert ("train 0.1" in found) or task == "multiclass"


def test_one_row_of_nearly_all_the_weight_tells_nothing_of_a_split():
    train = weighed("binary", drawn("binary", 1), np.ones(ROWS))
    labels = drawn("binary", 2).astype(float)
    labels[0] = 1
    heavy = np.ones(ROWS)
    heavy[0] = ROWS  # half of all
    assert label_warnings({"train": train, "test": weighed("binary", labels, heavy)}) == []


class MadeBytes(TorchDispatchMode):
    """Counts the bytes of what operators return that is no view."""

    total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **kwargs or {})
        if isinstance(found, torch.Tensor) and not func.is_view:
            self.total += found.nbytes
        return found


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_rows_without_weights_make_no_column_of_weights(task):
    """What is made is the labels as int64 or float64, and of numbers their squared distances from the median."""
    tables = {"train": labelled(task, drawn(task, 1)), "test": labelled(task, drawn(task, 2))}
    with MadeBytes() as made:
        label_warnings(tables)
    columns = 5 if task == "regression" else 2  # squares in place count twice
    assert made.total < columns * ROWS * 8 + 2000
    with MadeBytes() as made:
        target_means(tables["train"])
    assert made.total < ROWS * 8 + 2000


def test_a_class_that_a_split_lacks_is_named():
    tables = {
        "train": labelled("multiclass", [0, 1, 0, 1]),
        "valid": labelled("multiclass", [0, 0, 2, 1]),
        "test": labelled("multiclass", [0, 0, 2, 0]),
    }
    assert label_warnings(tables) == [
        "target 'y': the train split has no row of class 'spam', so no model can learn it.",
        "target 'y': split 'test' has no row of class 'ham'. Metrics of it say nothing there.",
    ]
    binary = {"train": labelled("binary", [0, 1]), "test": labelled("binary", [0, 0])}
    assert "split 'test' has no row of class 1" in label_warnings(binary)[0]


def test_missing_shares_are_those_of_the_files(tmp_path):
    frame = pd.DataFrame({"a": [1.0, np.nan, 3.0, np.nan], "b": ["x", None, "y", "z"], "c": [1.0, 2.0, 3.0, 4.0]})
    frame.to_parquet(tmp_path / "part-0.parquet")
    # Without statistics the columns themselves are read.
    table = pa.Table.from_pandas(pd.concat([frame] * 2))
    pq.write_table(table, tmp_path / "part-1.parquet", write_statistics=False, row_group_size=3)
    found = missing_shares({"train": sorted(tmp_path.glob("*.parquet")), "test": []}, ["a", "b", "c"])
    assert found == {"train": {"a": 0.5, "b": 0.25, "c": 0.0}, "test": {"a": 0.0, "b": 0.0, "c": 0.0}}


@pytest.mark.parametrize("statistics", [True, False])
def test_nulls_of_rows_of_weight_0_are_none_that_a_split_lacks(tmp_path, statistics):
    """Rows of which a third weigh nothing, among them most of the nulls of `a` and none of those of `b`."""
    random = np.random.default_rng(7)
    frame = pd.DataFrame({"w": random.choice([0.0, 1.0, 3.0], 3000), "a": 1.0, "b": "x", "c": 2.0})
    frame.loc[(frame["w"] == 0) & (random.random(3000) < 0.9), "a"] = None
    frame.loc[(frame["w"] > 0) & (random.random(3000) < 0.4), ["a", "b"]] = None
    table = pa.Table.from_pandas(frame, preserve_index=False)
    pq.write_table(table, tmp_path / "part-0.parquet", row_group_size=700, write_statistics=statistics)
    found = missing_shares({"test": [tmp_path / "part-0.parquet"]}, ["a", "b", "c"], weight="w")
    expected = frame[frame["w"] > 0][["a", "b", "c"]].isna().mean().to_dict()
    assert found["test"] == pytest.approx(expected)
    assert expected["a"] == pytest.approx(0.4, abs=0.05)


def test_columns_with_more_missing_or_unseen_values_are_told():
    rows = {"train": ROWS, "valid": 500, "test": 500}
    missing = {
        "train": {"price": 0.02, "age": 0.30, "city": 0.0},
        "valid": {"price": 0.03, "age": 0.35, "city": 0.0},
        "test": {"price": 0.40, "age": 0.33, "city": 0.05},
    }
    unseen = {
        "train": {"city": 0.0, "flight": 0.45},
        "valid": {"city": 0.02, "flight": 0.5},
        "test": {"city": 0.08, "flight": 0.52},
    }
    assert column_warnings(missing, unseen, rows) == [
        "column 'price': the share of missing values differs: train 2%, test 40% (more than 10% of the rows).",
        "column 'flight': 50% of valid, 52% of test has values that are not in the vocabulary (more than 10%; 45% of "
        "train, as values that are too rare).",
    ]
    told = column_warnings(missing, unseen, rows, (), {"price": ("cost", "rate"), "flight": ("flight",)}.__getitem__)
    assert told[0].startswith("column 'price', made of 'cost', 'rate': the share of missing values differs: train 2%")
    assert told[1].startswith("column 'flight': 50% of valid")
    assert [flag.about for flag in told] == ["price", "flight"]
    few = rows | {"test": 2}
    assert "price" not in " ".join(column_warnings(missing, unseen, few))


def floats_of(**columns) -> PackedTable:
    schema = TensorSchema((), tuple(columns), (Target("y", "binary"),))
    values = [torch.as_tensor(np.asarray(column, dtype=np.float32)) for column in columns.values()]
    return PackedTable.from_columns(schema, [], values, [torch.zeros(len(values[0]))])


def test_few_values_that_are_too_rare_are_not_told_as_none():
    unseen = {"train": {"shop": 0.002}, "test": {"shop": 0.4}}
    (found,) = column_warnings({"train": {}, "test": {}}, unseen, {"train": 1000, "test": 1000})
    assert "40% of test has values" in found
    assert "; 0.2% of train, as values that are too rare" in found


def test_a_number_that_grows_with_time_is_named_and_no_season():
    """A count of all rows so far told the month, and cost the flights .004 of AUC (Q1)."""
    random, rows = np.random.default_rng(0), {"train": (0, 6000), "valid": (6000, 7000), "test": (7000, 8000)}
    tables = {
        split: floats_of(
            so_far=np.arange(*span) * random.uniform(0.5, 1, span[1] - span[0]),
            season=np.sin(np.arange(*span) / 1000) + random.normal(0, 0.3, span[1] - span[0]),
            noise=random.normal(size=span[1] - span[0]),
            flag=np.arange(*span) % 2,
        )
        for split, span in rows.items()
    }
    (told,) = range_warnings(tables)
    train, *others = (tables[split].unpack(tables[split].words).floats[:, 0].numpy() for split in rows)
    low, high = sorted(train)[60], sorted(train)[-61]
    shares = [sum(not low <= value <= high for value in split) / len(split) for split in others]
    assert min(shares) > 0.25
    assert told.startswith(f"column 'so_far': {shares[0]:.0%} of valid, {shares[1]:.0%} of test lies outside the range")
    assert range_warnings({split: floats_of() if split == "none" else tables["train"] for split in rows}) == []
    few = {"train": tables["train"], "test": floats_of(so_far=[9e9, 0], season=[0, 0], noise=[0, 0], flag=[0, 1])}
    assert range_warnings(few) == []  # half of two rows is chance


def test_an_indicator_is_told_of_as_the_nulls_of_its_column():
    """Of train one row in 200 is null, of test two in five: no number that grows. Nulls that are the label leak."""
    random = np.random.default_rng(8)
    frame = pd.DataFrame({"price": random.normal(size=ROWS), "y": (random.random(ROWS) < 0.5).astype("float64")})
    schema = Schema(
        (Column("price", "continuous", "float64"), Column("y", "target", "float32")), (Target("y", "binary"),)
    )
    train, test = frame.copy(), frame.copy()
    train.loc[::200, "price"] = None
    test.loc[test.index % 5 < 2, "price"] = None
    preprocessor = Preprocessor(schema).fit([train])
    tables = {"train": pack(preprocessor, train), "test": pack(preprocessor, test)}
    shares = {"train": {"price": 0.005}, "test": {"price": 0.4}}
    assert [flag.short for flag in data_warnings(preprocessor, tables, shares)] == ["missing values: test 40%"]
    train["price"] = train["price"].fillna(0.0).where(train["y"] == 0)
    filled, null = leak_warnings(pack(Preprocessor(schema).fit([train]), train))
    assert filled.startswith("column 'price' may leak target 'y'")
    assert null.startswith("column 'price (is null)' may leak target 'y'")
    assert (filled.about, null.about) == ("price", "price")


@pytest.mark.parametrize(
    ("auc", "positives", "told", "warned"),
    [
        (0.9991, 50, (), True),
        (0.9990, 50, (), False),
        (None, 50, (), False),
        (1.0, 49, (), False),
        (1.0, ROWS - 49, (), False),
        (1.0, 50, (Flag("", "x", "may leak y"),), False),
        (1.0, 50, (Flag("", "x", "may leak z"), "may leak y"), True),
    ],
)
def test_a_model_that_knows_all_labels_is_told_where_no_column_is(auc, positives, told, warned):
    y = np.arange(ROWS) < positives
    found = sure_warnings({"y": {"auc": auc}}, labelled("binary", y.astype(float), x=np.zeros(ROWS)), "test", told)
    assert [flag.about for flag in found] == ["y"] * warned
    if warned:
        assert f"on the test split the model reaches an AUC of {auc:.4f}" in found[0]


@pytest.mark.parametrize(
    ("r2", "rows", "warned"),
    [(0.9991, 50, True), (0.999, 50, False), (1.0, 49, False), (float("nan"), 50, False), (None, 50, False)],
)
def test_a_model_that_knows_all_numbers_is_told_where_no_column_is(r2, rows, warned):
    table = labelled("regression", np.arange(float(rows)), x=np.zeros(rows))
    found = sure_warnings({"y": {"auc": None, "r2": r2}}, table, "test", ())
    assert [flag.about for flag in found] == ["y"] * warned
    assert not warned or "on the test split the model reaches an R² of 0.9991 (above 0.999)" in found[0]


def in_groups(seed: int, task="binary", groups=40, rows=50, shift=0.0):
    """A frame whose searches of 50 rows have one label, city and price each, nearly."""
    random = np.random.default_rng(1_000_000 + seed)  # `drawn` takes the other one
    search = np.arange(groups).repeat(rows)
    label = drawn(task, seed, groups, shift)[search]
    if task == "regression":
        label = label + random.normal(0, 0.1, len(search))
    city = np.where(random.random(groups) < 0.3 + shift, None, random.choice(["Oslo", "Bonn"], groups))
    price = random.normal(10 * shift, 1, groups)
    frame = pd.DataFrame({"search": search + 1000 * seed, "city": city[search], "price": price[search]})
    return frame.assign(y=np.asarray(label, "int32" if task == "multiclass" else "float32"))


def told_of(frames, task) -> dict:
    classes = ("egg", "ham", "spam") if task == "multiclass" else ()
    target = Target("y", task, len(classes) or 1, classes)
    columns = (
        Column("city", "categorical", "string"), Column("price", "continuous", "float64"),
        Column("y", "target", "int32" if task == "multiclass" else "float32"), Column("search", "group", "int64"),
    )  # fmt: skip
    preprocessor = Preprocessor(Schema(columns, (target,))).fit([frames["train"]])
    missing = {split: {"city": frame["city"].isna().mean()} for split, frame in frames.items()}
    tables = {split: pack(preprocessor, frame) for split, frame in frames.items()}
    return {flag.about: str(flag) for flag in data_warnings(preprocessor, tables, missing)}


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_splits_of_few_groups_differ_by_chance(task):
    """Of 40 searches a split, whose rows are alike, half of such tables had a warning."""
    told = sum(
        bool(told_of({split: in_groups(3 * seed + place, task) for place, split in enumerate(("train", "test"))}, task))
        for seed in range(30)
    )
    assert told <= 3
    other = {
        "train": in_groups(1, task, 400),
        "test": in_groups(2, task, 400, shift=0.25 if task != "regression" else 2),
    }
    assert set(told_of(other, task)) == {"y", "city", "price"}


def test_a_column_that_names_groups_gives_no_label_away_that_is_theirs():
    """Labels of a search are alike, so one half of its rows told those of the other by its city: of a table whose test
    has other searches."""
    random, search = np.random.default_rng(1), np.arange(400).repeat(10)
    label = (random.random(400) < 0.4)[search]
    schema = TensorSchema((IdColumn("address", 400),), ("height",), (Target("y", "binary"),), False, True)
    heights = torch.as_tensor(random.normal(size=400)[search], dtype=torch.float32)
    columns = [torch.as_tensor(search, dtype=torch.int32)], [heights], [torch.as_tensor(label, dtype=torch.float32)]
    group = torch.as_tensor(search, dtype=torch.int32)
    assert leak_warnings(PackedTable.from_columns(schema, *columns, None, group)) == []
    columns[1][0] = columns[2][0] + 0.01 * heights
    (found,) = leak_warnings(PackedTable.from_columns(schema, *columns, None, group))
    assert "'height' may leak" in found


@pytest.mark.parametrize("in_groups", [False, True])
def test_no_rows_give_no_label_away(in_groups):
    schema = TensorSchema((IdColumn("address", 400),), ("height",), (Target("y", "binary"),), False, in_groups)
    none = torch.zeros(0)
    group = none.int() if in_groups else None
    assert leak_warnings(PackedTable.from_columns(schema, [none.int()], [none], [none], None, group)) == []


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_rows_of_a_single_group_give_no_label_away(task):
    """No row of another group could tell, and the mean of none ended the evaluation of a trained model."""
    label = torch.arange(200.0) % 2
    target = (Target("y", task),)
    schema = TensorSchema((), ("x",), target, has_group=True)
    group = torch.full((200,), 3, dtype=torch.int32)
    alone = PackedTable.from_columns(schema, [], [label], [label], group=group)
    assert leak_warnings(alone) == []
    apart = PackedTable.from_columns(schema, [], [label], [label], group=torch.arange(200, dtype=torch.int32) // 2)
    assert [flag.about for flag in leak_warnings(apart)] == ["x"]


def test_unseen_shares_are_counted_from_ids():
    columns = Column("city", "categorical", "string"), Column("y", "target", "float32")
    train = pd.DataFrame({"city": ["a", "a", "b", None], "y": [0.0, 1.0, 0.0, 1.0]})
    preprocessor = Preprocessor(Schema(columns, (Target("y", "binary"),))).fit([train])
    tables = {"train": pack(preprocessor, train), "test": pack(preprocessor, train.assign(city=["a", "x", "y", None]))}
    assert unseen_shares(preprocessor, tables) == {"train": {"city": 0.0}, "test": {"city": 0.5}}


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_a_column_that_gives_the_label_away_is_named_and_no_good_feature(task):
    random = np.random.default_rng(5)
    y = drawn(task, 1)
    noise = random.normal(size=ROWS)
    number = np.asarray(y, dtype=float)
    far = np.abs(number - number.mean()) if task == "regression" else number
    columns = {
        "good": number + 1.2 * noise * number.std(),
        "leak": 1000 - 3 * number + 1e-3 * noise,
        "noise": noise,
        "many": random.integers(3, 3000, ROWS),
        "codes": (random.integers(0, 5, ROWS) * 3 + number.clip(0, 2)).astype(int) + 3,
        "folded": np.where(random.random(ROWS) < 0.5, 1, -1) * (far + 1),
    }
    found = leak_warnings(labelled(task, y, **columns))
    named = {text.split("'")[1] for text in found}
    assert named == ({"leak"} if task == "regression" else {"leak", "codes", "folded"})
    assert all("alone it reaches an " + ("R²" if task == "regression" else "AUC") in text for text in found)


@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_the_area_of_a_leak_is_scikit_learns_over_rows(task):
    """Each row scored by the mean label of its code in the other half, row by row."""
    random, y = np.random.default_rng(3), np.asarray(drawn(task, 2), dtype=int)
    code = random.integers(0, 9, ROWS) * 3 + np.where(random.random(ROWS) < 0.999, y, 2 - y)
    halves, areas = (hashed(ROWS) & 1).numpy(), []
    for value in range(1, 2) if task == "binary" else range(3):
        own, score = (y == value).astype(float), np.empty(ROWS)
        for row in range(ROWS):
            others = own[halves != halves[row]]
            same = own[(halves != halves[row]) & (code == code[row])]
            score[row] = (same.sum() + others.mean()) / (len(same) + 1)
        areas.append(roc_auc_score(own, score))
    (text,) = leak_warnings(labelled(task, y, codes=code + 3, same=np.full(ROWS, 3)))
    assert f"an AUC of {np.mean(areas):.4f} " in text


@pytest.mark.parametrize("period", [2, 4, 100])
def test_a_leak_is_seen_where_positives_stand_at_an_even_period(period):
    y = np.arange(ROWS) % period == 0
    found = leak_warnings(labelled("binary", y, x=y.astype(float), codes=y.astype(int) + 3, none=np.zeros(ROWS)))
    assert {text.split("'")[1] for text in found} == {"x", "codes"}


@pytest.mark.parametrize("rare", [0, 1])
def test_a_leak_of_a_rare_label_is_seen_in_a_table_that_is_sampled(rare, monkeypatch):
    """Of 100,000 rows 40 have the label; of 5,000 that are spread over them about two."""
    random = np.random.default_rng(4)
    y = np.full(100_000, 1 - rare)
    y[random.choice(len(y), 40, replace=False)] = rare
    monkeypatch.setattr(checks, "LEAK_ROWS", 5_000)
    columns = {"refunded": y + random.normal(0, 0.01, len(y)), "noise": random.normal(size=len(y))}
    (found,) = leak_warnings(labelled("binary", y, **columns))
    assert found.about == "refunded"
    assert leak_warnings(labelled("binary", random.permutation(y), **columns)) == []


def test_values_that_differ_by_blanks_alone_are_told():
    schema = Schema(
        (
            Column("city", "categorical", "string"),
            Column("n", "categorical", "int64"),
            Column("y", "target", "float32"),
        ),
        (Target("y", "binary"),),
    )
    frame = pd.DataFrame({"city": ["Rome", " Rome", "Oslo", "Oslo"], "n": [1, 2, 3, 4], "y": [0.0, 1.0, 0.0, 1.0]})
    (text,) = blank_warnings(Preprocessor(schema).fit([frame]))
    assert text.startswith("column 'city': 2 of its 3 values differ by blanks at their edges alone, such as ")
    assert "'Rome'" in text
    assert "' Rome'" in text
    assert blank_warnings(Preprocessor(schema).fit([frame.assign(city="Rome ")])) == []


def test_too_few_rows_of_a_class_tell_nothing():
    y = np.arange(ROWS) < 15
    assert leak_warnings(labelled("binary", y, x=y.astype(float))) == []
    many = np.arange(ROWS) < 40
    assert len(leak_warnings(labelled("binary", many, x=many.astype(float)))) == 1
    assert leak_warnings(labelled("regression", np.ones(ROWS), x=np.ones(ROWS))) == []


def test_a_split_whose_rows_weigh_nothing_has_no_groups_that_are_alike():
    labels, group, nothing = torch.tensor([[1.0], [1], [0], [0]]), torch.tensor([0, 0, 1, 1]), torch.zeros(4).double()
    assert checks.design_effects(labels, nothing, group).tolist() == [1.0]
    assert checks.design_effects(labels, torch.ones(4).double(), group).tolist() == [2.0]
