"""Slices that do worst: those that were made bad are told, chance is not, names are those of the columns."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics as sk
import torch

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.schema import Column, Schema, Target
from gigabatch.pipeline.evaluation import slices
from gigabatch.pipeline.evaluation.slices import FEWEST_ROWS, worst_slices
from gigabatch.pipeline.stages.shown import slice_tables
from gigabatch.pipeline.stages.stages import pack

ROWS = 6000
CITIES = ["Oslo", "Bonn", "Lima", "<b>Cork</b>"]


def made(task="binary", rows=ROWS, seed=0, weight=False, group=False, most=1.0):
    """A frame whose label follows its chance `p`, packed; and p [rows]."""
    random = np.random.default_rng(seed)
    frame = pd.DataFrame({"city": random.choice(CITIES, rows), "price": random.normal(50, 10, rows)})
    frame.loc[random.random(rows) < 0.1, "city"] = None
    frame.loc[random.random(rows) < 0.1, "price"] = None
    p = most * random.random(rows)
    classes = ("a", "b") if task == "multiclass" else ()
    target = Target("y", task, *((2, classes) if classes else ()))
    label = random.random(rows) < p
    frame["y"] = label.astype("int32" if task == "multiclass" else "float64")
    if task == "regression":
        frame["y"] = p + random.normal(0, 0.1, rows)
    columns = [Column("city", "categorical", "string"), Column("price", "continuous", "float64")]
    columns += [Column("y", "target", "int32" if task == "multiclass" else "float32")]
    if weight:
        frame["w"] = random.choice([0.0, 1.0, 2.0], rows)
        columns.append(Column("w", "weight", "float32"))
    if group:
        frame["g"] = np.arange(rows) // 4
        columns.append(Column("g", "group", "int64"))
    preprocessor = Preprocessor(Schema(tuple(columns), (target,))).fit([frame])
    return frame, pack(preprocessor, frame), preprocessor, p


def predicted(p) -> tuple[torch.Tensor]:
    return (torch.as_tensor(np.asarray(p), dtype=torch.float32),)


@pytest.mark.parametrize("options", [{}, {"weight": True}, {"group": True}])
def test_a_city_whose_scores_are_noise_is_the_worst_and_has_its_own_auc(options):
    frame, table, preprocessor, p = made(**options)
    bad = (frame["city"] == "<b>Cork</b>").to_numpy()
    p = np.where(bad, np.random.default_rng(9).random(ROWS), p).astype(np.float32)
    (found,) = worst_slices(table, preprocessor, predicted(p))
    weight = frame.get("w")
    first = found.worse[0]
    assert first["slice"] == "city = <b>Cork</b>"
    expected = sk.roc_auc_score(frame["y"][bad], p[bad], sample_weight=None if weight is None else weight[bad])
    assert first["auc"] == pytest.approx(expected, abs=1e-6)
    assert first["rows"] == (bad if weight is None else bad & (weight > 0)).sum()
    assert found.overall == pytest.approx(sk.roc_auc_score(frame["y"], p, sample_weight=weight), abs=1e-6)
    assert {row["slice"] for row in found.worse} == {"city = <b>Cork</b>"}


def test_a_fifth_of_a_number_that_is_off_is_told_in_the_numbers_own_unit():
    frame, table, preprocessor, p = made()
    price = frame["price"]
    highest = (price > price.quantile(0.8)).to_numpy()
    shifted = np.where(highest, np.clip(p - 0.3, 0, 1), p)
    (found,) = worst_slices(table, preprocessor, predicted(shifted))
    first = found.off[0]
    ends = [float(end) for end in first["slice"].removeprefix("price ").split(" … ")]
    own = price[price >= ends[0] - 1e-3]
    assert ends[1] == pytest.approx(price.max(), rel=1e-3)
    assert len(own) == pytest.approx(first["rows"], abs=2) == pytest.approx(price.notna().sum() / 5, abs=2)
    assert first["mean label"] == pytest.approx(frame["y"][own.index].mean(), abs=1e-3)
    assert first["off by"] == pytest.approx((frame["y"] - shifted)[own.index].mean(), abs=1e-3)
    assert found.overall_off == pytest.approx((frame["y"] - shifted).mean(), abs=1e-5)
    assert worst_slices(table, preprocessor, predicted(shifted), drawn=True)[0].off == []


def test_fifths_of_numbers_far_from_zero_are_told_apart_by_their_own_ends():
    """Months as 202301 to 202312, of which four digits are alike, and numbers about 1."""
    random = np.random.default_rng(3)
    frame = pd.DataFrame(
        {"month": 202301.0 + random.integers(0, 12, ROWS), "ratio": 1 + 1e-3 * random.normal(size=ROWS)}
    )
    frame["y"] = (random.random(ROWS) < 0.5).astype("float64")
    columns = [Column(name, "continuous", "float64") for name in ("month", "ratio")]
    schema = Schema((*columns, Column("y", "target", "float32")), (Target("y", "binary"),))
    preprocessor = Preprocessor(schema).fit([frame])
    table = pack(preprocessor, frame)
    parts = list(slices._parts(table.unpack(table.words), table, preprocessor))
    parts = [part for part in parts if "null" not in part[0]]
    assert len({name for name, _ in parts}) == len(parts) == 10
    for name, rows in parts:
        column, _, ends = name.partition(" ")
        own = frame[column].to_numpy()[rows.numpy()]
        low, high = map(float, ends.split(" … "))
        assert (low, high) == pytest.approx((own.min(), own.max()), abs=0.1 if column == "month" else 5e-4)


def test_a_slice_whose_rare_labels_are_missed_is_off():
    frame, table, preprocessor, p = made(most=0.02)
    bad = (frame["city"] == "Lima").to_numpy()
    (found,) = worst_slices(table, preprocessor, predicted(np.where(bad, p + 0.1, p)))
    assert [row["slice"] for row in found.off] == ["city = Lima"]


def test_nulls_are_slices_of_their_own():
    frame, table, preprocessor, p = made()
    (found,) = worst_slices(table, preprocessor, predicted(np.where(frame["city"].isna(), 1 - p, p)))
    assert found.worse[0]["slice"] == "city is null"
    (found,) = worst_slices(table, preprocessor, predicted(np.where(frame["price"].isna(), 1 - p, p)))
    assert found.worse[0]["slice"] == "price is null"


@pytest.mark.parametrize(("most", "fewest"), [(1.0, 20), (0.014, 10)])
def test_of_a_model_that_is_as_good_everywhere_next_to_nothing_is_told(most, fewest):
    """Rare labels too: of a slice without one the residuals hardly vary, and say nothing of chance."""
    told = 0
    for seed in range(20):
        _, table, preprocessor, p = made(rows=2000, seed=seed, most=most)
        (found,) = worst_slices(table, preprocessor, predicted(p))
        assert found.looked >= fewest
        told += bool(found.worse or found.off)
    assert told <= 3  # about one in twenty, by its intervals; without a correction most of them


@pytest.mark.parametrize("weight", [False, True])
def test_counts_that_are_rare_are_not_off_where_none_fell_into_a_slice(weight):
    """Of the right means: in most runs a value without a claim was told to be off, as its residuals hardly vary."""
    told = 0
    for seed in range(20):
        frame, _, preprocessor, _ = made("regression", rows=3000, seed=seed, weight=weight)
        random = np.random.default_rng(100 + seed)
        frame["shop"] = random.integers(0, 15 if weight else 25, len(frame)).astype(str)
        means = 0.03 * np.exp(0.8 * random.normal(size=len(frame)) - 0.32)
        frame["y"] = random.poisson(means).astype("float64")
        columns = (*preprocessor.schema.columns, Column("shop", "categorical", "string"))
        preprocessor = Preprocessor(Schema(columns, preprocessor.schema.targets)).fit([frame])
        (found,) = worst_slices(pack(preprocessor, frame), preprocessor, predicted(means))
        assert found.looked > 30
        told += bool(found.off)
    assert told <= 3
    bad = frame["shop"] == "7"
    frame.loc[bad, "y"] = random.poisson(1, int(bad.sum()))
    (found,) = worst_slices(pack(preprocessor, frame), preprocessor, predicted(means))
    assert found.off[0]["slice"] == "shop = 7"


def test_slices_of_few_groups_are_not_told_by_chance():
    """Twenty cities of four shops each, all predicted as well: half of the runs told a city that does worse or is off,
    as the spread of four was taken for known."""
    told, shop = 0, np.arange(80).repeat(60)
    for seed in range(20):
        random = np.random.default_rng(seed)
        known, unknown = random.normal(size=(2, 80))[:, shop]
        label = known + unknown + random.normal(size=len(shop))
        frame = pd.DataFrame({"city": [f"c{number % 20}" for number in shop], "y": label, "g": shop})
        target = Target("y", "regression")
        columns = (
            Column("city", "categorical", "string"),
            Column("y", "target", "float32"),
            Column("g", "group", "int64"),
        )
        preprocessor = Preprocessor(Schema(columns, (target,))).fit([frame])
        (found,) = worst_slices(pack(preprocessor, frame), preprocessor, predicted(known))
        assert found.looked == 40
        told += bool(found.worse or found.off)
    assert told <= 3  # 1 in the mean


def test_the_variance_about_a_prediction_is_that_of_its_tenth():
    random = np.random.default_rng(1)
    scores, missed, mass = *random.normal(size=(2, 200)), np.tile([0.0, 1.0, 2.0, 0.5], 50)
    found = slices.variance_by_prediction(*map(torch.tensor, (scores, missed, mass))).numpy()
    counted = np.flatnonzero(mass)
    for tenth in np.split(counted[np.argsort(scores[counted])], 10):
        np.testing.assert_allclose(found[tenth], np.cov(missed[tenth], aweights=mass[tenth], ddof=0))
    assert (found[mass == 0] == 0).all()


def test_regression_and_classes_are_told_by_their_own_metrics():
    frame, table, preprocessor, p = made("regression")
    bad = (frame["city"] == "Lima").to_numpy()
    wrong = np.where(bad, 0.5, p)
    (found,) = worst_slices(table, preprocessor, predicted(wrong))
    assert (found.metric, found.worse[0]["slice"]) == ("rmse", "city = Lima")
    expected = sk.root_mean_squared_error(frame["y"][bad], wrong[bad])
    assert found.worse[0]["rmse"] == pytest.approx(expected, rel=1e-5)

    frame, table, preprocessor, p = made("multiclass")
    bad = (frame["city"] == "Lima").to_numpy()
    chances = np.where(bad, 1 - p, p).clip(0.01, 0.99)
    both = torch.as_tensor(np.stack([1 - chances, chances], 1), dtype=torch.float32)
    (found,) = worst_slices(table, preprocessor, (both,))
    assert (found.metric, found.worse[0]["slice"], found.off) == ("logloss", "city = Lima", [])
    assert found.worse[0]["logloss"] == pytest.approx(sk.log_loss(frame["y"][bad], chances[bad]), rel=1e-4)


def test_predictions_of_a_quantile_are_not_said_to_miss_the_mean():
    """Of a skewed label: the median lies below the mean, the more so the more labels spread."""
    frame, table, preprocessor, _ = made("regression")
    wide = (frame["city"] == "Lima").to_numpy()
    frame["y"] = np.random.default_rng(2).exponential(np.where(wide, 10.0, 1.0))
    table = pack(preprocessor, frame)
    medians = predicted(np.log(2) * np.where(wide, 10.0, 1.0))
    (of_means,) = worst_slices(table, preprocessor, medians)
    assert of_means.off[0]["slice"] == "city = Lima"
    (found,) = worst_slices(table, preprocessor, medians, quantiles=["y"])
    assert (found.off, found.overall_off) == ([], None)
    assert [row["slice"] for row in found.worse] == [row["slice"] for row in of_means.worse] == ["city = Lima"]
    several = replace(table, schema=replace(table.schema, targets=(Target("y", "regression", 3, (), (0.1, 0.5, 0.9)),)))
    (found,) = worst_slices(several, preprocessor, (medians[0][:, None].expand(-1, 3),))
    assert (found.off, found.overall_off) == ([], None)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_rows_of_one_label_have_no_auc_and_can_be_off(label):
    frame, _, preprocessor, _ = made()
    table = pack(preprocessor, frame.assign(y=label))
    (found,) = worst_slices(table, preprocessor, predicted(np.where(frame["city"] == "Oslo", 1 - label, label)))
    assert (found.worse, found.overall) == ([], None)
    assert found.off[0]["slice"] == "city = Oslo"


def test_too_few_rows_are_not_looked_at():
    _, table, preprocessor, p = made(rows=FEWEST_ROWS // 2)
    (found,) = worst_slices(table, preprocessor, predicted(p))
    assert (found.looked, found.worse, found.off) == (0, [], [])


@pytest.mark.parametrize("group", [False, True])
def test_fifths_of_a_number_are_of_the_rows_that_weigh_something(group):
    """Rows of weight 0, which groups bring along, took places: of five fifths two held no other row."""
    frame, _, _, p = made("regression", group=group, weight=True)
    frame["price"] = np.random.default_rng(4).normal(50, 10, ROWS)
    frame["w"] = np.where((frame["price"] > 50) & (np.arange(ROWS) % 4 != 0), 0.0, 1.0)
    columns = [Column("price", "continuous", "float64"), Column("y", "target", "float32")]
    columns += [Column("w", "weight", "float32")] + [Column("g", "group", "int64")] * group
    preprocessor = Preprocessor(Schema(tuple(columns), (Target("y", "regression"),))).fit([frame])
    prices = np.sort(frame["price"][frame["w"] > 0])
    worst = frame["price"] > prices[len(prices) * 4 // 5 - 1]
    (found,) = worst_slices(pack(preprocessor, frame), preprocessor, predicted(np.where(worst, p + 3, p)))
    assert len(found.worse) == 1
    assert found.worse[0]["rows"] == (worst & (frame["w"] > 0)).sum()


def test_an_infinite_prediction_leaves_nothing_to_compare_slices_with():
    """The mean label was told to be "inf below the mean prediction"."""
    _, table, preprocessor, p = made("regression")
    (found,) = worst_slices(table, preprocessor, predicted(np.where(np.arange(ROWS) == 5, np.inf, p)))
    assert (found.overall, found.overall_off, list(found.worse), list(found.off)) == (None, None, [], [])
    (shown,) = slice_tables([found], "test")
    assert "inf" not in shown.text
