"""train.ensemble_by=folds: what each member leaves out, what it learns, and what cannot be."""

import logging
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from gigabatch import GigabatchClassifier, GigabatchRegressor
from gigabatch.features.schema import IdColumn, IdList, Target, TensorSchema
from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.pipeline.config.config import ConfigError, RunConfig, TrainSettings, checked_settings
from gigabatch.pipeline.python import estimators
from gigabatch.pipeline.stages import stages
from gigabatch.pipeline.stages.score import evaluate
from gigabatch.pipeline.stages.stages import Pipeline
from gigabatch.pipeline.training.checkpoint import TrainingError
from gigabatch.pipeline.training.folds import Folds, num_folds
from gigabatch.pipeline.training.train import train_model

SCHEMA = TensorSchema((IdColumn("city", 9),), ("x",), (Target("clicked", "binary"),), has_weight=True)


def table(rows: int, seed: int, different: int | None = None) -> PackedTable:
    """So many rows, of which so many differ."""
    draw = np.random.default_rng(seed)
    kind = torch.from_numpy(draw.integers(0, different or rows, rows)) if different else torch.arange(rows)
    clicked = (torch.from_numpy(np.random.default_rng(7).random(different or rows)) < 0.1).float()[kind]
    x = kind.float() + 1000 * seed * (different is None)
    return PackedTable.from_columns(SCHEMA, [kind.int() % 9], [x], [clicked], weight=torch.ones(rows))


def fold_tables(train, valid, number, members, seed) -> tuple[PackedTable, PackedTable]:
    return Folds.deal(train, valid, members, seed).tables(number)


def rows_of(packed: PackedTable) -> list[tuple[int, ...]]:
    return sorted(map(tuple, packed.words.tolist()))


@pytest.mark.parametrize(("rows", "members"), [(203, 2), (203, 4), (203, 8), (203, 11), (8, 3), (64, 1)])
def test_no_two_members_leave_out_the_same_row_and_each_learns_all_others(rows, members):
    train, valid = table(rows, 1), table(rows // 9, 2)
    whole = rows_of(train) + rows_of(valid)
    left_out: list[tuple[int, ...]] = []
    for number in range(members):
        learnt, own = fold_tables(train, valid, number, members, seed=3)
        assert sorted(rows_of(learnt) + rows_of(own)) == sorted(whole)
        assert abs(len(own) - len(whole) / num_folds(members)) <= 1
        left_out += rows_of(own)
    assert len(set(left_out)) == len(left_out)
    assert members < num_folds(members) or len(left_out) == len(whole)


def test_equal_rows_are_in_one_fold_and_labels_have_their_share_in_each():
    train, valid = table(400, 1, different=400), table(60, 2, different=400)
    held: list[set[tuple[int, ...]]] = []
    for number in range(8):
        learnt, own = fold_tables(train, valid, number, 8, seed=5)
        kinds = set(rows_of(own))
        assert not kinds & set(rows_of(learnt))
        held.append(kinds)
    kinds = {*rows_of(train), *rows_of(valid)}
    assert sum(map(len, held)) == len(set().union(*held)) == len(kinds) > 250
    one = int(np.float32(1).view(np.int32))  # the label's word
    shares = [sum(row[2] == one for row in kinds) for kinds in held]
    assert max(shares) - min(shares) <= 2  # one of a whole stretch, and of the ends
    assert sum(shares) == sum(row[2] == one for row in kinds) > 10


@pytest.mark.parametrize("different", [1, 2, 6, 150])
def test_where_most_rows_are_equal_to_another_each_is_an_observation(different):
    """Members that leave out all rows of a city have no opinion of it; of two cities there were no eight folds."""
    train, valid = table(400, 1, different=different), table(60, 2, different=different)
    whole, held = rows_of(train) + rows_of(valid), []
    for number in range(8):
        learnt, own = fold_tables(train, valid, number, 8, seed=5)
        assert sorted(rows_of(learnt) + rows_of(own)) == sorted(whole)
        assert 57 <= len(own) <= 58
        assert different > 100 or set(rows_of(learnt)) == set(whole)
        held += rows_of(own)
    assert sorted(held) == sorted(whole)
    turned = train.with_words(train.words.flip(0).contiguous())
    assert rows_of(fold_tables(turned, valid, 3, 8, seed=5)[1]) == rows_of(fold_tables(train, valid, 3, 8, seed=5)[1])


def test_folds_follow_from_the_seed_and_from_what_the_rows_are():
    train, valid = table(203, 1), table(20, 2)
    first = [rows_of(fold_tables(train, valid, number, 4, seed=3)[1]) for number in range(4)]
    turned = train.with_words(train.words.flip(0).contiguous())
    assert [rows_of(fold_tables(turned, valid, number, 4, seed=3)[1]) for number in range(4)] == first
    assert [rows_of(fold_tables(train, valid, number, 4, seed=4)[1]) for number in range(4)] != first


def test_numbers_are_spread_over_folds():
    schema = TensorSchema((), ("x",), (Target("price", "regression"),))
    price = torch.from_numpy(np.random.default_rng(1).lognormal(sigma=3, size=800)).float()
    packed = PackedTable.from_columns(schema, [], [torch.arange(800.0)], [price])
    top = price.topk(8).values.min()
    for number in range(8):
        _, own = fold_tables(packed, None, number, 8, seed=1)
        assert int((own.unpack(own.words).targets[0] >= top).sum()) == 1  # the eight dearest, one a fold


def test_fewer_rows_than_folds_are_refused():
    with pytest.raises(TrainingError, match=r"train\.ensemble_by: train and valid have 7 rows, fewer than 8 folds"):
        fold_tables(table(7, 1), None, 0, 4, seed=1)


@pytest.mark.parametrize("weighted", [False, True])
def test_tables_put_together_keep_their_lists(weighted):
    schema = TensorSchema((), ("x",), (Target("clicked", "binary"),), lists=(IdList("tags", 50, weighted=weighted),))
    draw, parts, expected = np.random.default_rng(2), [], []
    for rows in (5, 1, 7):
        lists = [draw.integers(0, 50, draw.integers(0, 4)).tolist() for _ in range(rows)]
        offsets = torch.tensor([0, *np.cumsum([len(own) for own in lists])])
        ids = torch.tensor([one for own in lists for one in own], dtype=torch.int32)
        column = JaggedColumn(ids, offsets, ids.float() / 2 if weighted else None)
        parts.append(
            PackedTable.from_columns(schema, [], [torch.arange(rows).float()], [torch.ones(rows)], lists=[column])
        )
        expected += lists
    before = [part.words.clone() for part in parts]
    whole = PackedTable.concat(parts)
    assert whole.unpack(whole.words).lists[0].to_lists() == expected
    turned = whole.words.flip(0).contiguous()
    batch = whole.unpack(turned)
    assert batch.lists[0].to_lists() == expected[::-1]
    if weighted:
        assert batch.lists[0].weights.tolist() == [one / 2 for own in expected[::-1] for one in own]
    assert all(torch.equal(part.words, words) for part, words in zip(parts, before, strict=True))
    with pytest.raises(LoaderError, match="several schemas"):
        PackedTable.concat([parts[0], table(3, 1)])


@pytest.mark.parametrize("seed", range(4))
def test_a_row_that_is_there_often_is_in_every_fold(seed):
    """Of 1,000 rows 450 were one, and a fold in eight had 518 rows."""
    packed = table(551, 1)
    words = torch.cat([packed.words, packed.words[:1].expand(449, -1)]).contiguous()
    packed = packed.with_words(words)
    sizes, often = [], []
    for number in range(8):
        _, own = fold_tables(packed, None, number, 8, seed=seed)
        sizes.append(len(own))
        often.append(rows_of(own).count(tuple(words[0].tolist())))
    assert sum(sizes) == 1_000
    assert max(sizes) - min(sizes) <= 2
    assert 20 < min(often) <= max(often) < 100


def test_rows_of_weight_0_are_in_no_fold_and_learnt_by_nobody():
    packed = table(160, 1)
    words = packed.words.clone()
    words[::4, 3] = 0  # the weight's word
    packed = packed.with_words(words)
    for number in range(2):
        learnt, own = fold_tables(packed, None, number, 2, seed=1)
        assert len(learnt) + len(own) == 120
        assert bool((learnt.unpack(learnt.words).weight > 0).all())


@pytest.fixture
def shop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(3)
    x, city = draw.normal(size=600), draw.integers(0, 6, 600)
    score = x + np.sin(city)
    rows = pd.DataFrame({"x": x, "city": [f"c{value}" for value in city], "day": np.arange(600) // 10})
    rows["value"] = 500 + 20 * score + draw.normal(size=600)
    rows["clicked"] = (score + draw.normal(size=600) > 0).astype(int)
    rows.to_csv("shop.csv", index=False)

    def config(targets=None, train=None, **features):
        features = {"path": "shop.csv", "categorical": ["city"], "continuous": ["x"]} | features
        features["targets"] = targets or {"clicked": {"task": "binary"}}
        return RunConfig(
            name="shop", recipe="table", device="cpu", engine="pandas", features=features, model={"kind": "lr"},
            train={"epochs": 3, "batch_size": 64, "ensemble": 3, "ensemble_by": "folds"} | (train or {}),
            evaluate={"importance": False, "baselines": []},
        )  # fmt: skip

    return config


@pytest.mark.parametrize("target", ["clicked", "value"])
def test_each_member_is_what_its_own_rows_train_and_valid_is_no_measurement(shop, monkeypatch, target):
    targets = {target: {"task": "binary" if target == "clicked" else "regression"}}
    given = []

    def watched(model, source, valid, loss, settings, **named):
        given.append((source.tables()[0], valid, model.target_scales))
        return train_model(model, source, valid, loss, settings, **named)

    monkeypatch.setattr(stages, "train_model", watched)
    run = Pipeline(shop(targets)).train()
    encoded = Pipeline(shop(targets)).features().encode()
    train, valid = encoded.table("train"), encoded.table("valid")
    for number, (rows, left_out, scales) in enumerate(given):
        learnt, own = fold_tables(train, valid, number, 3, seed=1)
        assert rows_of(rows) == rows_of(learnt)
        assert rows_of(left_out) == rows_of(own)
        assert scales == given[0][2]  # of one mean and deviation, or there is no mean of their outputs
    if target == "value":
        labels = train.unpack(train.words).targets[0].double()
        assert given[0][2][0].mean == pytest.approx(float(labels.mean()))
    told = run.summary["ensemble"]
    assert told["folds"] == 8
    assert told["valid_loss"] is None
    assert told["valid_losses"] == [
        min(p["valid_loss"] for p in run.curve if p["member"] == number and "valid_loss" in p) for number in range(3)
    ]
    assert {row["split"] for row in run.summary["members"]} == {"test"}
    report = (run.path / "report.html").read_text()
    assert "What is told of valid is of these rows" in report
    assert ("Least cost on rows left out" in report) is (target == "clicked")
    assert run.summary["rows_by_stage"]["evaluate"] == sum(len(own) for _, own, _ in given) + len(encoded.table("test"))
    errors = []  # of each row by the member that has not learnt it
    for member, (_, left_out, _) in zip(run.bundle().model.models, given, strict=True):
        batch = left_out.unpack(left_out.words)
        with torch.inference_mode():
            found = member.in_target_units(member(batch.ids, batch.floats))[:, 0].double()
        y = batch.targets[0].double()
        errors.append((found - y) ** 2 if target == "value" else -torch.log(torch.sigmoid(found * (2 * y - 1))))
    told = run.summary["metrics"]["valid"]
    mean = float(torch.cat(errors).mean())
    assert (told["rmse"] ** 2 if target == "value" else told["logloss"]) == pytest.approx(mean, rel=1e-5)
    assert run.summary["metrics"]["test"].keys() == told.keys()
    if target == "value":
        frame, batch = Pipeline(shop(targets)).features().frame("test"), encoded.table("test")
        batch = batch.unpack(batch.words)
        with torch.inference_mode():
            alone = [member.in_target_units(member(batch.ids, batch.floats)) for member in run.bundle().model.models]
        mean = torch.stack(alone).mean(0)[:, 0]
        np.testing.assert_allclose(run.bundle().predict(frame)[target], mean.numpy(), rtol=1e-6)
    assert Pipeline(shop(targets)).train().skipped == ("features", "encode", "train", "evaluate")


def test_evaluating_valid_says_that_members_have_learnt_it(shop, caplog):
    config = shop()
    run = Pipeline(config).train()
    with caplog.at_level(logging.WARNING):
        evaluate(config.to_dict(), split="valid")
    assert (
        f"run {run.summary['id']} has learnt from rows of 'valid' (all but one fold in 8 by each member)" in caplog.text
    )
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        evaluate(config.to_dict(), split="test")
    assert "has learnt" not in caplog.text


@pytest.mark.parametrize(
    ("features", "told"),
    [
        ({"time": "day"}, r"features\.time=day: rows of train and valid are not parted at random"),
        ({"split_key": "day"}, r"features\.split_key=day"),
        ({"group": "day"}, r"features\.group=day"),
    ],
)
def test_what_folds_do_not_go_with_is_refused_before_any_training(shop, features, told):
    with pytest.raises(ConfigError, match=rf"train\.ensemble_by=folds: {told}.* Set it to"):
        Pipeline(shop(**features))


@pytest.mark.parametrize(
    ("train", "told"),
    [
        ({"calibration": "temperature"}, "calibration needs valid rows that no member learns"),
        ({"negatives": {}}, "negatives needs valid rows"),
        ({"start_from": "current"}, "start_from needs valid rows"),
        ({"residency": "stream"}, "residency=stream reads rows in one order"),
    ],
)
def test_settings_that_folds_do_not_go_with_are_refused_with_the_configuration(train, told):
    by_folds = {"ensemble": 3, "ensemble_by": "folds"} | train
    with pytest.raises(ConfigError, match=f"ensemble_by=folds: {told}.* Set"):
        checked_settings(TrainSettings, by_folds, "train")
    checked_settings(TrainSettings, by_folds | {"ensemble_by": "seeds"}, "train")


def test_folds_of_no_number_of_members_are_refused():
    """One model was trained, and no word said of it."""
    with pytest.raises(ConfigError, match="ensemble_by=folds: ensemble, the number of members, is not set"):
        checked_settings(TrainSettings, {"ensemble_by": "folds"}, "train")
    with pytest.raises(ConfigError, match="ensemble, the number of members, is not set"):
        GigabatchRegressor(train={"ensemble_by": "folds"}).fit(np.eye(20), np.arange(20.0))
    checked_settings(TrainSettings, {"ensemble_by": "folds", "ensemble": 1}, "train")


def test_rows_that_would_have_to_be_streamed_are_refused_and_not_read_into_memory(shop, monkeypatch):
    monkeypatch.setattr(stages, "available_memory", lambda: 1_000)
    monkeypatch.setattr(stages, "train_model", None)
    with pytest.raises(TrainingError, match=r"train\.ensemble_by=folds: .* do not fit in .*memory\. Set it to seeds"):
        Pipeline(shop()).train()


def test_one_model_has_no_folds(shop):
    """A configuration of `init` names folds, and train.ensemble=1 is the way back to one model."""
    one, plain = (Pipeline(shop(train={"ensemble": 1, "ensemble_by": way})) for way in ("folds", "seeds"))
    assert one.features().encode().train_key == plain.features().encode().train_key
    run = one.train()
    assert run.summary["ensemble"] is None
    assert Pipeline(shop(train={"ensemble": 1, "calibration": "temperature"})).train().summary["calibration"]
    Pipeline(shop(train={"ensemble": 1}, time="day"))


def test_folds_of_another_recipe_are_refused():
    config = RunConfig(name="x", recipe="flights", train={"ensemble": 2, "ensemble_by": "folds"})
    with pytest.raises(ConfigError, match=r"the recipe 'flights' does not split its rows at random"):
        Pipeline(config)


def test_several_ranks_do_not_train_by_folds(shop):
    with pytest.raises(ConfigError, match=r"train\.ensemble_by=folds: 2 ranks share the train rows as they lie"):
        Pipeline(shop(), ranks=SimpleNamespace(num_ranks=2))


def test_an_estimator_of_folds_needs_no_rows_that_nobody_learns():
    draw = np.random.default_rng(1)
    x = draw.normal(size=(120, 2)).astype(np.float32)
    y = 3 * x[:, 0] + draw.normal(size=120) / 10
    train = {"ensemble": 3, "ensemble_by": "folds", "epochs": 30, "batch_size": 16}
    for fraction in (0.1, 0.001):  # the second leaves no valid rows: those of train are dealt
        model = GigabatchRegressor(model="lr", train=train, validation_fraction=fraction, random_state=0).fit(x, y)
        assert model.bundle_.info["members"]["folds"] == 8
        assert np.corrcoef(model.predict(x), y)[0, 1] > 0.98
    with pytest.raises(ConfigError, match="ensemble_by=folds: calibration needs"):
        GigabatchRegressor(train=train | {"calibration": "isotonic"}).fit(x, y)


def test_a_start_from_members_that_have_learnt_valid_says_so(shop, caplog):
    first = Pipeline(shop()).train()
    with caplog.at_level(logging.WARNING):
        Pipeline(shop(train={"ensemble_by": "seeds", "start_from": str(first.path)})).train()
    assert f"run {first.summary['id']} has learnt from valid rows (all but one fold in 8 by each member)" in caplog.text


RARE = {"epochs": 12, "batch_size": 32, "ensemble": 3, "ensemble_by": "folds", "patience": 2}


@pytest.mark.parametrize("seed", range(3))
def test_members_keep_their_best_epoch_and_weights_of_classes_where_a_class_has_one_row(monkeypatch, seed):
    """No valid rows are left, and the last epoch was kept; a member without the class ended a `balanced` training."""
    given = []

    def watched(model, rows, valid, loss, settings, **named):
        given.append((settings.select, loss.classes[0].class_weights))
        return train_model(model, rows, valid, loss, settings, **named)

    monkeypatch.setattr(estimators, "train_model", watched)
    draw = np.random.default_rng(1)
    x, y = draw.normal(size=(121, 2)), np.array(["no", "yes"] * 60 + ["rare"])
    train = RARE | {"losses": {"y": {"class_weights": "balanced"}}}
    GigabatchClassifier(model="lr", train=train, random_state=seed).fit(x, y)
    assert [select for select, _ in given] == ["best"] * 3
    assert given[0][1] == given[1][1] == given[2][1]
    assert given[0][1] == pytest.approx(121 / (3 * np.array([60, 1, 60])))
