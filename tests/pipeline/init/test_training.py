"""What `init`, `fit` and the estimators choose by the rows, and what takes that choice back."""

import numpy as np
import pandas as pd
import pytest
import yaml
from sklearn.metrics import roc_auc_score

from gigabatch import GigabatchClassifier, GigabatchRegressor, fit
from gigabatch.pipeline.config.config import ConfigError
from gigabatch.pipeline.init.draft import draft_config
from gigabatch.pipeline.init.training import held_out_rows, left_to_rows, training_for
from gigabatch.pipeline.init.write import init


def rows_of(number):
    random = np.random.default_rng(5)
    city = random.choice(["Oslo", "Rom", "Bonn"], number)
    price = random.lognormal(size=number)
    return pd.DataFrame({"city": city, "price": price, "sold": np.where((price > 1) ^ (city == "Rom"), "yes", "no")})


@pytest.mark.parametrize(
    ("rows", "has_ids", "kind", "epochs"),
    [
        (99, True, "tabm", 60),
        (100, True, "tabm", None),
        (999, True, "tabm", None),
        (1_000, True, "tabm", 15),
        (5_000, True, "tabm", 15),
        (5_000, False, "tabm", None),
        (20_000, True, "tabm", 15),
        (40_000, True, "tabm", 10),
        (60_000, True, "tabm", 7),
        (60_000, False, "tabm", None),
        (60_001, True, None, None),
    ],
)
def test_few_rows_get_members_and_passes(rows, has_ids, kind, epochs):
    found = training_for(rows, has_ids, num_floats=1)
    assert found.get("model", {}).get("kind") == kind
    assert found.get("preprocess", {}).get("scale") == (None if kind is None else "robust")
    assert found.get("train", {}).get("epochs") == epochs


def test_rows_without_a_label_are_not_counted(tmp_path):
    """2,000 labelled rows among 70,000 are few, and nulls of their label made copies of the others."""
    random = np.random.default_rng(5)
    price = random.lognormal(size=70_000).round(2)
    table = pd.DataFrame({"city": random.choice(["Oslo", "Rom", "Bonn"], 70_000), "price": price})
    table["paid"] = pd.Series(price + random.normal(size=70_000)).where(np.arange(70_000) % 35 == 0)
    table.to_csv(tmp_path / "rows.csv", index=False)
    made = draft_config(str(tmp_path / "rows.csv"), "paid", None, 200_000)
    assert made.training == training_for(2_000, True, 1, task="regression", at_random=True)
    assert not [remark for remark in made.remarks if "copies" in remark]


BY_FOLDS = {"ensemble": 4, "ensemble_by": "folds", "patience": 10}
ALONE = {"evaluate.importance": False, "evaluate.baselines": []}  # nothing but the model is evaluated


def chosen_epochs(folder, table, target):
    """Epochs that `init` writes, and that `fit` sets."""
    table.to_csv(folder / "rows.csv", index=False)
    path, _ = init(str(folder / "rows.csv"), target, folder / "rows.yaml")
    places = {"artifacts": str(folder / "a"), "runs": str(folder / "r")}
    run = fit(table, places, ALONE | {"model.layers": [4]}, target=target)
    train = yaml.safe_load(path.read_text())["train"]
    assert list(train) == ["epochs", *BY_FOLDS]
    return train["epochs"], run.summary["config"]["train"]["epochs"]


def test_three_classes_and_more_get_twice_the_passes(tmp_path):
    found = [training_for(rows, True, task="multiclass").get("train") for rows in (999, 1_000, 60_000, 60_001, 800_000)]
    assert found == [None, {"epochs": 30}, {"epochs": 30}, {"epochs": 20}, None]
    table = rows_of(1_200)
    kinds = table.assign(kind=[f"k{row % 3}" for row in range(1_200)]).drop(columns="sold")
    assert chosen_epochs(tmp_path, kinds, "kind") == (30, 30)


def test_numbers_to_predict_get_twice_the_passes_of_few_rows(tmp_path):
    sizes = (999, 1_000, 20_000, 40_000, 60_001, 300_000, 800_000)
    found = [training_for(rows, True, task="regression").get("train", {}).get("epochs") for rows in sizes]
    assert found == [None, 30, 20, 10, 20, 10, None]
    rows = rows_of(1_200)
    table = rows.assign(paid=rows["price"] * (1 + (rows["city"] == "Rom"))).drop(columns="sold")
    assert chosen_epochs(tmp_path, table, "paid") == (30, 30)
    model = GigabatchRegressor(random_state=0, model_settings={"layers": [4]})
    assert model.fit(table[["city", "price"]], table["paid"]).curve_[-1]["epoch"] == 30


def test_waves_over_time_and_place_are_learnt_of_few_rows(tmp_path):
    """Fifteen epochs of a thousand rows end before waves over time and place are learnt: R² .61, of trees .96."""
    random = np.random.default_rng(1)
    place, time = random.integers(0, 8, 1_500), random.uniform(0, 1, 1_500)
    wave = np.sin(6 * np.pi * time + place) + random.normal(size=1_500) * 0.1
    table = pd.DataFrame({"place": np.array(list("abcdefgh"))[place], "time": time, "wave": wave})
    places = {"artifacts": str(tmp_path / "a"), "runs": str(tmp_path / "r")}
    run = fit(table[:1_200], places, ALONE, target="wave")
    left = wave[1_200:] - run.predict(table[1_200:].drop(columns="wave"))["wave"].to_numpy()
    assert 1 - left.var() / wave[1_200:].var() > 0.9


def test_very_few_rows_get_small_batches():
    assert [training_for(rows, True, 1).get("train") for rows in (99, 100, 399, 400)] == [
        {"epochs": 60}, {"batch_size": 32}, {"batch_size": 32}, None,
    ]  # fmt: skip


def test_names_alone_get_more_passes():
    found = [training_for(rows, True).get("train") for rows in (99, 399, 400, 10_000, 20_000, 60_000, 60_001)]
    longest = {"epochs": 40}
    assert found == [
        {"epochs": 60},
        longest | {"batch_size": 32},
        longest,
        longest,
        {"epochs": 20},
        {"epochs": 7},
        None,
    ]
    assert training_for(400, True, task="multiclass").get("train") is None
    assert "train" not in training_for(400, False, 3)


def test_what_three_names_tell_together_is_learnt(tmp_path):
    """Who has won a game of noughts and crosses: in 21 epochs an AUC of .95, of real games .86."""
    lines = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]
    boards = np.random.default_rng(3).choice(list("box"), (958, 9), p=[0.17, 0.37, 0.46])
    won = (boards[:, np.array(lines)] == "x").all(2).any(1)
    table = pd.DataFrame(boards, columns=[f"s{place}" for place in range(9)]).assign(won=np.where(won, "yes", "no"))
    places = {"artifacts": str(tmp_path / "a"), "runs": str(tmp_path / "r")}
    run = fit(table[:766], places, ALONE, target="won")
    found = run.predict(table[766:].drop(columns="won"))["won"].to_numpy()
    assert roc_auc_score(won[766:], found) > 0.97


def test_few_rows_a_float_get_few_bins():
    for rows, num_floats, bins in ((1_999, 10, 16), (2_000, 10, None), (60_000, 400, 16), (99, 40, None)):
        assert training_for(rows, False, num_floats).get("preprocess", {}).get("bins") == bins
    assert left_to_rows({"preprocess": {"bins": 32}}, 1_200, True, 40)["preprocess"] == {"scale": "robust"}


def test_the_file_says_model_scale_and_epochs(tmp_path):
    rows_of(1_200).to_csv(tmp_path / "shop.csv", index=False)
    path, _ = init(str(tmp_path / "shop.csv"), "sold", tmp_path / "shop.yaml")
    found = yaml.safe_load(path.read_text())
    assert {name: found[name] for name in ("preprocess", "model", "train")} == training_for(
        1_200, True, 1, at_random=True
    )
    assert "kind: tabm  # the better one" in path.read_text()


@pytest.mark.parametrize("timed", [True, False])
def test_nights_go_once_through_their_rows_where_a_new_model_takes_many_passes(tmp_path, timed):
    """The 15 epochs of the file were those of warm nights too."""
    rows = rows_of(1_200)
    rows["at"] = pd.date_range("2025-01-01", periods=1_200, freq="h") if timed else 1.5
    rows.to_csv(tmp_path / "shop.csv", index=False)
    path, _ = init(str(tmp_path / "shop.csv"), "sold", tmp_path / "shop.yaml")
    found = yaml.safe_load(path.read_text())
    assert found["train"] == {"epochs": 15} | ({} if timed else BY_FOLDS)
    assert found.get("nightly") == ({"warm_epochs": 1, "min_window_rows": 60} if timed else None)


def test_another_model_takes_the_choice_back(tmp_path):
    places = {"artifacts": str(tmp_path / "a"), "runs": str(tmp_path / "r"), "train.epochs": 1}
    chosen, own = (fit(rows_of(1_200), places, more, target="sold") for more in ({}, {"model.kind": "tabular"}))
    kinds = [
        (run.summary["config"]["model"]["kind"], run.summary["config"]["preprocess"]["scale"]) for run in (chosen, own)
    ]
    assert kinds == [("tabm", "robust"), ("tabular", True)]


def test_an_estimator_chooses_as_fit_does_unless_it_is_told():
    rows = rows_of(1_200)
    chosen = GigabatchClassifier(random_state=0, train={"epochs": 1}).fit(rows[["city", "price"]], rows["sold"])
    own = GigabatchClassifier(random_state=0, train={"epochs": 1}, model="lr").fit(
        rows[["city", "price"]], rows["sold"]
    )
    models = chosen.bundle_.model, own.bundle_.model
    assert [type(model).__name__ for model in models] == ["Ensemble", "LogisticRegression"]
    assert [type(member).__name__ for member in models[0].models] == ["TabM"] * 4


CHOSEN = {"preprocess": {"scale": "robust"}, "model": {"kind": "tabm"}, "train": {"epochs": 15}}


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({}, CHOSEN),
        ({"model": {"layers": [16]}}, CHOSEN),
        ({"model": {"kind": "tabm"}}, CHOSEN | {"model": None}),
        ({"train": {"lr_max": 0.1}, "preprocess": {"min_count": 2}}, CHOSEN),
        ({"train": {"epochs": 3}}, CHOSEN | {"train": None}),
        ({"train": {"epochs": None}}, CHOSEN | {"train": None}),
        ({"preprocess": {"scale": "standard"}, "model": {"layers": [16]}}, CHOSEN | {"preprocess": None}),
        ({"model": {"kind": "tabular"}}, {}),
        ({"model": 5}, {}),
        ({"train": 5}, CHOSEN | {"train": None}),
    ],
)
def test_each_key_that_is_left_out_follows_from_the_rows(given, left):
    assert left_to_rows(given, 1_200, True, 3) == {name: section for name, section in left.items() if section}


@pytest.mark.parametrize(
    ("rows", "floats", "taken"), [(199, 3, 0), (200, 3, 1), (3_000, 1_000, 1), (3_000, 1_001, 0), (3_001, 3, 0)]
)
def test_few_rows_that_are_parted_at_random_get_members_by_folds(rows, floats, taken):
    found = training_for(rows, True, floats, at_random=True)
    alone = training_for(rows, True, floats)
    assert found == (alone | {"train": alone.get("train", {}) | BY_FOLDS} if taken else alone)


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({}, True),
        ({"epochs": 3, "select_by": "auc"}, True),
        ({"ensemble": 1}, False),
        ({"ensemble_by": "seeds"}, False),
        ({"calibration": "isotonic"}, False),
        ({"calibration": "none", "residency": "host", "negatives": None, "start_from": None}, True),
        ({"residency": "stream"}, False),
        ({"start_from": "current"}, False),
        ({"codistill": {}}, False),
    ],
)
def test_folds_go_where_a_setting_says_how_many_models_there_are_or_needs_valid_rows(given, taken):
    found = left_to_rows({"train": given}, 1_200, True, 3, at_random=True).get("train", {})
    assert (found.items() & BY_FOLDS.items() == BY_FOLDS.items()) is taken
    assert ("ensemble_by" in found) is taken


def test_who_asks_for_folds_alone_gets_the_members():
    """They got one model, and no word of it."""
    found = left_to_rows({"train": {"ensemble_by": "folds"}}, 1_200, True, 3, at_random=True)["train"]
    assert found == {"epochs": 15, "ensemble": 4, "patience": 10}


def test_whoever_keeps_the_last_epoch_trains_to_the_last():
    found = left_to_rows({"train": {"select": "last"}}, 1_200, True, 3, at_random=True)["train"]
    assert found == {"epochs": 15, "ensemble": 4, "ensemble_by": "folds"}


@pytest.mark.parametrize("parted", [{}, {"time": "at"}, {"split_key": "shop"}])
def test_fit_takes_folds_of_rows_that_are_parted_at_random_alone(tmp_path, parted):
    rows = rows_of(400)
    rows["at"] = pd.date_range("2025-01-01", periods=400, freq="h")
    rows["shop"] = [f"s{row % 40}" for row in range(400)]
    places = {"artifacts": str(tmp_path / "a"), "runs": str(tmp_path / "r"), "train.epochs": 1} | ALONE
    run = fit(rows if parted else rows.drop(columns="at"), places, target="sold", final=False, **parted)
    assert run.summary["config"]["train"]["ensemble_by"] == ("seeds" if parted else "folds")
    assert (run.summary["ensemble"] is None) is bool(parted)


def test_a_setting_of_another_model_is_refused_with_the_one_that_has_it():
    with pytest.raises(ConfigError, match=r"model.batch_norm: tabm has no such setting.* 1,200 rows .*tabular"):
        left_to_rows({"model": {"batch_norm": False}}, 1_200, True)
    assert left_to_rows({"model": {"batch_norm": False}}, 60_001, True) == {}


@pytest.mark.parametrize(
    ("rows", "share", "split"),
    [(9_000, 0.5, None), (12_000, 0.5, 1_000), (60_000, 0.5, 1_500), (12_000, 0.02, None), (30_000, 0.04, 2_500)],
)
def test_valid_and_test_of_a_random_split_have_enough_rows_and_no_more(tmp_path, rows, share, split):
    random = np.random.default_rng(1)
    labels = np.where(random.permutation(rows) < rows * share, "yes", "no")
    frame = pd.DataFrame({"price": random.normal(size=rows).round(3), "sold": labels})
    frame.to_parquet(tmp_path / "shop.parquet")
    init(str(tmp_path / "shop.parquet"), "sold", out=tmp_path / "shop.yaml")
    found = yaml.safe_load((tmp_path / "shop.yaml").read_text())["features"].get("split")
    assert found == (None if split is None else {"valid_rows": split, "test_rows": split})
    assert split in (None, held_out_rows(rows, share))


def test_classes_have_thirty_rows_each_and_no_part_more_than_a_tenth():
    assert [held_out_rows(rows, 0.5, classes) for rows, classes in ((20_000, 60), (20_000, 90))] == [1_800, 2_000]


def test_a_split_that_is_given_takes_the_place_of_the_chosen_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(1)
    price = random.normal(size=11_000)
    frame = pd.DataFrame({"price": price, "sold": price + random.normal(size=11_000) > 0})
    settings = {"train.epochs": 1, "device": "cpu", "evaluate.importance": False, "evaluate.baselines": []}
    rows = fit(frame, settings, target="sold").summary["rows_by_split"]
    assert abs(rows["test"] - 1_000) < 120  # places of rows are hashes of them
    rows = fit(frame, settings, {"features.split.valid": 0.2, "features.split.train": 0.7}, target="sold").summary[
        "rows_by_split"
    ]
    assert abs(rows["valid"] - 2_200) < 200


def test_rows_without_a_label_do_not_count_for_the_split(tmp_path):
    random = np.random.default_rng(1)
    frame = pd.DataFrame({"price": random.normal(size=20_000), "sold": random.choice(["yes", "no"], 20_000)})
    frame.loc[frame.index % 5 > 0, "sold"] = None  # 4,000 labels are left, of which a tenth is held out
    frame.to_parquet(tmp_path / "shop.parquet")
    init(str(tmp_path / "shop.parquet"), "sold", out=tmp_path / "shop.yaml")
    assert "split" not in yaml.safe_load((tmp_path / "shop.yaml").read_text())["features"]


@pytest.mark.parametrize(("ones", "told"), [(276, "about 28 rows each"), (30_000, "")])
def test_few_rows_of_a_rarer_label_in_valid_and_test_are_told(tmp_path, ones, told):
    draw = np.random.default_rng(0)
    frame = pd.DataFrame({"x": draw.normal(size=60_000), "y": draw.permutation(60_000) < ones})
    frame.to_parquet(tmp_path / "t.parquet")
    made = draft_config(str(tmp_path / "t.parquet"), "y", None, 100_000)
    found = [text for text in made.remarks if text.startswith("Of the rarer label of y")]
    assert len(found) == bool(told)
    assert all(told in text for text in found)


def test_a_task_that_is_none_is_refused_by_name(tmp_path):
    places = {"artifacts": str(tmp_path / "a"), "runs": str(tmp_path / "r")}
    with pytest.raises(ConfigError, match="count"):
        fit(rows_of(300), places, target={"sold": {"task": "count"}})
