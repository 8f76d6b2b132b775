"""Runs of interactions whose label follows from the user's history, from YAML to scores, and what is refused."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from ruamel.yaml import YAML

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.engines.frame import load_engine
from gigabatch.features.errors import DataError
from gigabatch.features.reading.sources import same_file
from gigabatch.pipeline.bundle import load_bundle
from gigabatch.pipeline.config.config import ConfigError
from gigabatch.pipeline.contract.state import QUARANTINED, FileEntry, FilesState, checksums_of, write_state
from gigabatch.pipeline.lab.plan.plan import make_plan
from gigabatch.pipeline.nightly.learning import require_times
from gigabatch.pipeline.stages.score import score_run
from gigabatch.pipeline.stages.stages import Pipeline
from gigabatch.pipeline.stages.update import update_preprocessor

NUM_ROWS, NUM_ITEMS, NUM_USERS = 8000, 20, 60


def moody_log(seed: int = 3) -> pd.DataFrame:
    """Of each user's moods one likes even items and the other odd ones; a mood lasts some thirty plays. Neither user
    nor item tells a rating, but the items liked last and the item together do."""
    rng = np.random.default_rng(seed)
    mood, rows = rng.integers(0, 2, NUM_USERS), []
    for at in range(NUM_ROWS):
        user, item = int(rng.integers(NUM_USERS)), int(rng.integers(NUM_ITEMS))
        mood[user] ^= rng.random() < 1 / 30
        stars = 5 if item % 2 == mood[user] else 1
        rows.append((user, item, stars, at))
    frame = pd.DataFrame(rows, columns=["user", "item", "stars", "at"])
    return frame.assign(at=pd.Timestamp("2024-03-01") + pd.to_timedelta(frame["at"], unit="min"))


def write_config(folder: Path, history: dict | None, **changes) -> Path:
    path = folder / "config.yaml"
    if not (folder / "log.csv").exists():
        moody_log().to_csv(folder / "log.csv", index=False)
    features = {
        "path": str(folder / "log*.csv"), "id_type": "int64", "time": "at", "rating": "stars", "task": "rating",
        "threshold": 3, "split_by": "time", "repeats": "all",
    }  # fmt: skip
    content = {
        "name": "moods", "recipe": "interactions", "device": "cpu", "engine": "pandas", "seed": 1,
        "artifacts": str(folder / "artifacts"), "runs": str(folder / "runs"),
        "features": features | ({"history": history} if history else {}),
        "model": {"kind": "fm"}, "train": {"epochs": 6, "batch_size": 128, "lr_max": 0.03, "negatives": None},
        "evaluate": {"importance": False, "baselines": [], "ranking": None},
    }  # fmt: skip
    with path.open("w") as file:
        YAML(typ="safe").dump(content | changes, file)
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("moods")
    path = write_config(folder, {"length": 5, "half_life": "6h"})
    return folder, path, Pipeline.from_config(path).train()


def scores(path: Path, ask: pd.DataFrame, out: Path) -> np.ndarray:
    load_engine("pandas").write_parquet(ask, out.with_suffix(".ask.parquet"))
    assert score_run(path, (), None, None, out, raw=str(out.with_suffix(".ask.parquet"))) == 0
    return pd.read_parquet(out)["predicted_target"].to_numpy()


def test_a_label_that_histories_decide_is_learnt(trained):
    assert trained[2].summary["metrics"]["test"]["auc"] > 0.8


def test_without_histories_it_is_not(tmp_path):
    run = Pipeline.from_config(write_config(tmp_path, None)).train()
    assert run.summary["metrics"]["test"]["auc"] < 0.65


def test_the_report_says_how_many_histories_are_empty(trained):
    """Of `split_by: time`, where every user has more than a row: those of train that come first alone."""
    folder, path, _ = trained
    features, log = Pipeline.from_config(path).features(), pd.read_csv(folder / "log.csv")
    log = log.sort_values("at", kind="stable", ignore_index=True)
    first_liked = log[log["stars"] == 5].groupby("user").head(1)
    empty = sum(
        int((log["user"][: row.Index + 1] == row.user).sum()) for row in first_liked.itertuples()
    )  # up to a user's first liked item, that row among them
    assert f"Empty histories: {empty:,} of 6,400 rows of train, 0 of 800 rows of valid, 0 of 800 rows of test." in (
        features.notes
    )


def test_rows_to_be_scored_get_the_scores_of_their_split(trained, tmp_path):
    """With their time alone, and with the histories that the features stage made of them."""
    _, path, run = trained
    frame = Pipeline.from_config(path).features().frame("test")
    expected = load_bundle(run.path / "model").predict(frame)["target"].to_numpy()
    ask = frame[["user", "item"]].assign(at=pd.to_datetime(frame["at"], unit="us"))
    np.testing.assert_allclose(scores(path, ask, tmp_path / "one.parquet"), expected, rtol=1e-5, atol=1e-5)
    ask = frame[["user", "item", "history", "history_weights"]]
    np.testing.assert_allclose(scores(path, ask, tmp_path / "two.parquet"), expected, rtol=1e-5, atol=1e-5)
    written = pd.read_parquet(tmp_path / "one.parquet")
    assert written["at"].tolist() == [at.isoformat() for at in pd.to_datetime(frame["at"], unit="us")]


def liked_last(log: pd.DataFrame, user: int, number: int) -> pd.DataFrame:
    return log[(log["user"] == user) & (log["stars"] == 5)].sort_values("at", kind="stable").tail(number)


def test_without_a_time_the_last_that_is_known_counts(trained, tmp_path):
    folder, path, run = trained
    log = pd.read_csv(folder / "log.csv", parse_dates=["at"])
    ask = pd.DataFrame({"user": [3, 7, 10_000], "item": [4, 5, 6]})
    lists, weights = [], []
    for user in ask["user"]:
        last = liked_last(log, user, 5)
        lists.append(last["item"].tolist())
        ages = (log["at"].max() - last["at"]) / pd.Timedelta(hours=6)
        weights.append([float(np.float32(0.5**age)) for age in ages])
    assert [len(row) for row in lists] == [5, 5, 0]
    found = scores(path, ask, tmp_path / "latest.parquet")
    raw = ask.assign(history=lists, history_weights=weights)
    expected = load_bundle(run.path / "model").predict_raw(raw)["target"].to_numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_bundle_asks_for_the_histories_by_name(trained):
    bundle = load_bundle(trained[2].path / "model")
    rows = pd.DataFrame({"user": [1], "item": [2]})
    with pytest.raises(DataError, match=r"history"):
        bundle.predict_raw(rows)
    with pytest.raises(DataError, match=r"history_weights"):
        bundle.predict_raw(rows.assign(history=[[1]]))
    text = rows.assign(history="4|6", history_weights="0.5|1")
    lists = rows.assign(history=[[4, 6]], history_weights=[[0.5, 1.0]])
    assert bundle.predict_raw(text)["target"].tolist() == bundle.predict_raw(lists)["target"].tolist()


def test_what_lies_in_quarantine_is_in_no_history(trained, tmp_path):
    folder, path, run = trained
    home = Path(run.path).parent
    ask = pd.DataFrame({"user": [3], "item": [4]})
    before = scores(path, ask, tmp_path / "before.parquet")
    late = folder / "log-2.csv"
    rows = pd.DataFrame({"user": [3], "item": [5], "stars": [5], "at": ["2024-03-10T00:00:00"]})
    rows.to_csv(late, index=False)
    try:
        assert scores(path, ask, tmp_path / "with.parquet") != before
        (checksum,) = checksums_of([str(late)], folder / "artifacts", home).values()
        entry = FileEntry("interactions", QUARANTINED, checksum, "2024-03-11T00:00:00Z")
        write_state(home, FilesState({same_file(str(late)): entry}))
        assert scores(path, ask, tmp_path / "without.parquet") == before
    finally:
        late.unlink()
        (home / "files.json").unlink(missing_ok=True)


def test_an_update_with_later_histories_moves_no_id(trained, tmp_path, capsys):
    _, path, run = trained
    later = moody_log(seed=4).assign(item=lambda frame: frame["item"] + 7)  # half of them new items
    later.to_csv(tmp_path / "log.csv", index=False)
    pipeline = Pipeline.from_config(path, f"features.path={tmp_path / 'log.csv'}")
    part = next((pipeline.features().artifact.path / "train").glob("part-*.parquet"))
    old = load_bundle(run.path / "model").preprocessor
    assert update_preprocessor(path, (), str(part)) == 0
    folder = Path(capsys.readouterr().out.rpartition("  ")[2].strip())
    new = Preprocessor.load(folder, "pandas")
    items = range(NUM_ITEMS + 7)
    frame = pd.DataFrame({"history": [[item] for item in items], "history_weights": [[1.0]] * len(items)})
    (was,), (now,) = (one.pack_lists(frame) for one in (old, new))
    unseen = 2
    assert (was.ids == unseen).sum() == 7
    assert (now.ids != unseen).all()
    assert (now.ids[was.ids != unseen] == was.ids[was.ids != unseen]).all()
    assert len(set(now.ids)) == len(items)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train": {"compile": "on"}}, "history.*Set train.compile=off"),
        ({"model": {"kind": "mf"}}, "it has no use for list columns"),
    ],
)
def test_what_takes_no_lists_refuses_histories(trained, changes, said):
    _, path, _ = trained
    flat = [f"{section}.{key}={value}" for section, items in changes.items() for key, value in items.items()]
    with pytest.raises(ValueError, match=said):
        Pipeline.from_config(path, *flat).train()


def test_a_plan_and_a_night_take_histories(trained, forked_probes):
    pipeline = Pipeline.from_config(trained[1])
    plan = make_plan(pipeline.config)
    assert plan.fits
    assert plan.id_sizes == {"user": NUM_USERS + 3, "item": NUM_ITEMS + 3}
    require_times(pipeline.features())


def test_a_history_that_the_configuration_gets_wrong_is_named(tmp_path):
    path = write_config(tmp_path, {"length": 5, "halflife": "6h"})
    with pytest.raises(ConfigError, match=r"features\.history\.halflife"):
        Pipeline.from_config(path)
    for history, said in (({"length": 0}, "length must be at least 1"), ({"half_life": "soon"}, "half_life is 'soon'")):
        with pytest.raises(ConfigError, match=said):
            Pipeline.from_config(write_config(tmp_path, history))
