"""The nightly job of a run whose negatives are drawn: what decides, on which rows, and what is refused."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score

from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.pipeline.bundle import load_bundle
from gigabatch.pipeline.config.config import ConfigError, load_config
from gigabatch.pipeline.embedding.embeddings import StoredEmbeddings
from gigabatch.pipeline.nightly.comparison import Other, compare, window_rows
from gigabatch.pipeline.nightly.nightly import run_nightly
from gigabatch.pipeline.nightly.plan import rehearse
from gigabatch.pipeline.nightly.start import tonight
from gigabatch.pipeline.runs.promote import rollback
from gigabatch.pipeline.stages.stages import Pipeline, evaluation_table_of
from gigabatch.pipeline.training.negatives import first_id, implicit_batches
from gigabatch.pipeline.training.train import model_inputs

PROMOTED, KEPT, REFUSED, FAILED = 0, 10, 20, 40
USERS, ITEMS = 60, 24


def write_night(folder, night: int, flipped: bool = False, draws: int = 1) -> pd.DataFrame:
    """Ten clicks of each user, who likes the items of their own parity (`flipped`: the others); every night brings
    ten users and two items more. draws: of items, of which the first is clicked, so that with several it is popular."""
    random = np.random.default_rng(night)
    rows = []
    for user in range(USERS + 10 * night):
        for moment in range(10):
            item = 2 * random.integers(0, ITEMS // 2 + night, draws).min() + (user + flipped) % 2
            rows.append({"user": f"u{user}", "item": f"i{item}", "at": 100_000 * night + 1000 * moment + user})
    frame = pd.DataFrame(rows)
    folder.mkdir(exist_ok=True)
    frame.to_csv(folder / f"night-{night}.csv", index=False)
    return frame


def make_home(tmp_path):
    """A folder with a first night of clicks and run.yaml."""
    write_night(tmp_path / "clicks", 0)
    config = {
        "name": "clicks", "recipe": "interactions", "device": "cpu", "engine": "pandas",
        "artifacts": str(tmp_path / "artifacts"), "runs": str(tmp_path / "runs"),
        "features": {
            "path": f"{tmp_path}/clicks/*.csv", "time": "at", "split_by": "time", "repeats": "all",
            "split": {"train": 0.6, "valid": 0.2, "test": 0.2},
        },
        "model": {"kind": "ncf", "gmf_dim": 4, "mlp_dim": 4, "layers": [8]},
        "train": {
            "negatives": {"per_positive": 4}, "epochs": 20, "batch_size": 64, "optimizer": "adamw", "lr_max": 0.02,
        },
        "evaluate": {"importance": False, "baselines": []},
        "nightly": {"min_window_rows": 50, "num_bootstrap": 100, "max_skill_drop": 1},  # tests turn the world over
    }  # fmt: skip
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    return tmp_path


@pytest.fixture
def home(tmp_path):
    return make_home(tmp_path)


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """A folder where one night was trained and a second one's clicks have come, whose features these are."""
    folder = make_home(tmp_path_factory.mktemp("grown"))
    run_nightly(folder / "run.yaml")
    write_night(folder / "clicks", 1)
    return folder, Pipeline.from_config(folder / "run.yaml").features()


def pointer(home, name: str) -> str | None:
    link = home / "runs" / "clicks" / name
    return link.resolve().name if link.exists() else None


def last_night(home) -> dict:
    return json.loads((home / "runs" / "clicks" / "nightly.jsonl").read_text().splitlines()[-1])


def slow_mrr(bundle, window: pd.DataFrame, negatives: torch.Tensor) -> float:
    """Mean over the clicks of 1 / rank among the drawn items, by the scores of raw rows, ties at their mean."""
    keys = bundle.preprocessor.vocabularies["item"].values.tolist()
    first = first_id(bundle.preprocessor, "item")
    asked = [
        {"user": user, "item": item}
        for user, own, drawn in zip(window["user"], window["item"], negatives.tolist(), strict=True)
        for item in (own, *(keys[number - first] for number in drawn))
    ]
    found = []
    for own, *others in bundle.predict(pd.DataFrame(asked))["target"].to_numpy().reshape(len(window), -1).tolist():
        above, equal = sum(score > own for score in others), sum(score == own for score in others)
        found.append(1 / (1 + above + equal / 2))
    return sum(found) / len(found)


def test_two_nights_are_compared_on_new_clicks_among_drawn_items(home):
    assert run_nightly(home / "run.yaml") == PROMOTED
    first = pointer(home, "current")
    cold = ["nightly.start=cold"]
    assert run_nightly(home / "run.yaml", cold) == KEPT
    write_night(home / "clicks", 1, flipped=True)  # what the current model learnt is wrong now
    assert run_nightly(home / "run.yaml", cold) == PROMOTED
    assert (pointer(home, "previous"), pointer(home, "current")) == (first, last_night(home)["run"])
    current = home / "runs" / "clicks" / "current"
    stored = StoredEmbeddings.load(current / "embeddings", load_bundle(current / "model"))
    assert stored.item.find(["i0", "no such item"]).tolist()[1] == -1  # a service can take the run over
    night = last_night(home)
    assert night["metric"] == "MRR"
    assert night["bound"] > 0.05
    features = Pipeline.from_config(home / "run.yaml").features()
    window = features.frame("test")
    assert night["rows"] == len(window)
    assert f"on {len(window):,} rows that neither model has seen, each among 4 drawn items" in night["decision"]
    for name, column in (("previous", "current"), ("current", "candidate")):
        bundle = load_bundle(home / "runs" / "clicks" / name / "model")
        table = evaluation_table_of(bundle, features, window)
        drawn = table.words[:, 1].reshape(-1, 5)[:, 1:]
        # of the bundle's own vocabulary: the new users and items are of the second night alone
        assert int(drawn.min()) >= first_id(bundle.preprocessor, "item")
        assert night[column] == pytest.approx(slow_mrr(bundle, window, drawn), abs=1e-6)
    rollback(load_config(home / "run.yaml"))
    assert pointer(home, "current") == first


def test_a_warm_night_goes_on_with_users_and_items_that_are_new(home):
    """By default; what the new ones learnt is more than the row of the unseen id."""
    assert run_nightly(home / "run.yaml") == PROMOTED
    assert run_nightly(home / "run.yaml") == KEPT
    write_night(home / "clicks", 1)
    assert run_nightly(home / "run.yaml", ["nightly.tolerance=1"]) == PROMOTED
    night = last_night(home)
    assert night["start"]["how"] == "warm"
    before, after = (load_bundle(home / "runs" / "clicks" / name / "model") for name in ("previous", "current"))
    for column, number in (("user", 10), ("item", 2)):
        old, new = (bundle.preprocessor.vocabularies[column].values.tolist() for bundle in (before, after))
        assert new[: len(old)] == old
        assert 0 < len(new) - len(old) <= number
    rows = pd.DataFrame([{"user": f"u{USERS + new}", "item": f"i{item}"} for new in range(10) for item in range(ITEMS)])
    liked = np.asarray([int(user[1:]) % 2 == int(item[1:]) % 2 for user, item in rows.to_numpy()])
    known, unseen = after.predict(rows)["target"], after.predict(rows.assign(user="nobody"))["target"]
    assert roc_auc_score(liked, known) > 0.8
    assert roc_auc_score(liked, unseen) < 0.6


@pytest.mark.parametrize("kind", ["ease", "item_knn", "top_frequency", "popularity"])
def test_a_model_without_steps_is_fitted_anew_each_night(home, capsys, kind):
    """To all rows, with the ids of the night before; a rehearsal says the same."""
    config = json.loads((home / "run.yaml").read_text())
    config |= {"model": {"kind": kind}, "train": {"negatives": {"per_positive": 4}}}
    (home / "run.yaml").write_text(json.dumps(config))
    first = load_config(home / "run.yaml")
    write_night(home / "clicks", 0, draws=3)
    assert run_nightly(home / "run.yaml") == PROMOTED
    oldest = pointer(home, "current")
    assert run_nightly(home / "run.yaml") == KEPT  # its weights are the current model's
    assert "the weights are those of the current model" in last_night(home)["decision"]
    write_night(home / "clicks", 1, draws=3)
    capsys.readouterr()
    told = rehearse(first)
    assert run_nightly(home / "run.yaml", ["nightly.tolerance=1", "nightly.reference_tolerance=1"]) == PROMOTED
    line = last_night(home)
    assert (told.exit_code, told.start) == (0, line["start"])
    assert told.rows["trained"] == line["splits"]["train"]
    assert line["start"] == {"how": "cold", "why": f"{kind} takes no steps and is fitted to all rows each night"}
    assert "start_from" not in capsys.readouterr().out
    before, after = (load_bundle(home / "runs" / "clicks" / name / "model") for name in (oldest, "current"))
    for column in ("user", "item"):
        old, new = (bundle.preprocessor.vocabularies[column].values.tolist() for bundle in (before, after))
        assert len(old) < len(new)
        assert new[: len(old)] == old
    current = home / "runs" / "clicks" / pointer(home, "current")
    owes = {"night-0.csv was corrected.": [current.name], "Drift of item.": ["another"]}
    _, how, why = tonight(load_config(home / "run.yaml"), current, after.schema, owes)
    expected = f"{kind} takes no steps and is fitted to all rows each night; the raw files ask for it: night-0.csv was "
    assert (how, why) == ("cold", f"{expected}corrected.")
    # Without a night before it is the same model, but for the line through its scores, which drawn negatives decide.
    alone = Pipeline.from_config(home / "run.yaml", "name=alone").train().bundle()
    rows = pd.DataFrame([{"user": f"u{user}", "item": f"i{item}"} for user in range(USERS) for item in range(ITEMS)])
    found, expected = (torch.logit(torch.tensor(one.predict(rows)["target"].to_numpy())) for one in (after, alone))
    assert float(torch.corrcoef(torch.stack([found, expected]))[0, 1]) > 0.99999


def test_no_pair_that_is_asked_about_was_met_before_either_model_was_trained(home):
    """With `repeats: last`: else the current model, or one of an older rule of repeats, which had each pair that is met
    again among its train rows, is asked about what it was taught."""
    once = ["features.repeats=last"]
    before = Pipeline.from_config(home / "run.yaml", *once).features()
    until = max(int(before.frame(split)["at"].max()) for split in ("train", "valid"))
    trained = set(zip(*(before.frame("train")[name] for name in ("user", "item")), strict=True))
    raw = pd.concat([pd.read_csv(home / "clicks" / "night-0.csv"), write_night(home / "clicks", 1)])
    met = set(zip(*(raw[raw["at"] <= until][name] for name in ("user", "item")), strict=True))
    assert trained <= met
    window = window_rows(Pipeline.from_config(home / "run.yaml", *once).features(), {"current model": until})
    pairs = list(zip(window["user"], window["item"], strict=True))
    assert len(pairs) > 50
    assert met.isdisjoint(pairs)


def test_too_few_clicks_are_refused_a_bad_candidate_is_kept_out_and_another_metric_can_decide(home):
    run_nightly(home / "run.yaml")
    first = pointer(home, "current")
    write_night(home / "clicks", 1)
    bad = ["train.lr_max=1e-9", "nightly.metric=auc", "nightly.start=cold"]
    assert run_nightly(home / "run.yaml", [*bad, "nightly.min_window_rows=5000"]) == REFUSED
    assert run_nightly(home / "run.yaml", bad) == KEPT
    assert pointer(home, "current") == first
    assert last_night(home)["metric"] == "AUC"
    assert last_night(home)["bound"] < -0.05


def test_the_many_unseen_users_know_nothing_together(grown):
    """Else the clicks of all new users would be one user's, who knows every item."""
    folder, features = grown
    bundle = load_bundle(folder / "runs" / "clicks" / "current" / "model")
    preprocessor, first = bundle.preprocessor, first_id(bundle.preprocessor, "user")
    table = evaluation_table_of(bundle, features, features.frame("test"))
    labels = table.unpack(table.words).targets[0]
    positives = PackedTable(table.words[labels == 1], table.schema)
    assert int((positives.words[:, 0] < first).sum()) > 20
    settings = features.pipeline.config.train.negatives
    batches = implicit_batches(preprocessor, model_inputs(preprocessor), positives, settings, 1, "cpu")
    known = batches.sampler.known.offsets.diff()
    assert known[:first].tolist() == [0] * first
    assert int(known.sum()) > 20


@pytest.mark.parametrize("way", ["leave_one_out", "random"])
def test_splits_that_are_not_in_order_of_time_are_refused_before_any_work(home, capsys, way):
    assert run_nightly(home / "run.yaml", [f"features.split_by={way}"]) == FAILED
    assert f"with features.split_by: {way}, the test rows do not come after" in capsys.readouterr().out
    assert "Set features.split_by=time" in last_night(home)["decision"]
    assert not (home / "artifacts").exists()


def test_given_splits_are_refused_with_what_can_be_done(home, capsys):
    rows = home / "clicks"
    config = json.loads((home / "run.yaml").read_text())
    config["features"] = {"path": f"{rows}/*.csv", "time": "at", "valid_path": "v.csv", "test_path": "t.csv"}
    (home / "run.yaml").write_text(json.dumps(config))
    assert run_nightly(home / "run.yaml", []) == FAILED
    decision = last_night(home)["decision"]
    assert "Leave out features.valid_path and features.test_path, and set features.split_by=time" in decision
    assert "split_by: given" not in decision  # which is no value of it


def test_a_current_model_whose_schema_names_no_item_is_refused(grown):
    folder, features = grown
    current, candidate = (load_bundle(folder / "runs" / "clicks" / "current" / "model") for _ in range(2))
    current.preprocessor.schema = replace(current.schema, entities=())
    summary = {"config": features.pipeline.config.to_dict()}
    with pytest.raises(ConfigError, match=r"named no item, so none can be drawn.*gigabatch promote abc makes the new"):
        compare(features, Other("abc", candidate, summary), Other("old", current, summary))
