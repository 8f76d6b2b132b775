"""The history stored with a user is what the user has chosen up to now, the newest too: by a loop over the log."""

import json
import random

import pandas as pd
import pytest

from gigabatch.pipeline.bundle import load_bundle
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.embedding.embed import embed
from gigabatch.pipeline.embedding.embeddings import STAGE, StoredEmbeddings
from gigabatch.pipeline.embedding.settings import EmbedSettings
from gigabatch.pipeline.stages.stages import Pipeline

LENGTH, HALF_LIFE = 4, 10  # days
START = pd.Timestamp("2026-01-01")


def write_log(path) -> pd.DataFrame:
    """Interactions in no order, in which users meet items again and some times are equal."""
    draw = random.Random(7)
    rows = [
        {
            "user": f"u{user}",
            "item": f"i{draw.randrange(12)}",
            "time": (START + pd.Timedelta(hours=12 * draw.randrange(80))).strftime("%Y-%m-%dT%H:%M:%S"),
            "rating": draw.randrange(1, 6),
        }
        for user in range(40)
        for _ in range(draw.randrange(6, 14))
    ]
    draw.shuffle(rows)
    log = pd.DataFrame(rows)
    log.to_csv(path, index=False)
    return log


def expected_of(log: pd.DataFrame, user: str) -> tuple[list[str], list[float]]:
    """The last items that the user rated 4 and more, oldest first, of equal times in the order of the file; and
    weights as of the newest such row of all."""
    liked = [row for row in log.itertuples() if row.rating >= 4]
    now = max(pd.Timestamp(row.time) for row in liked)
    own = sorted((pd.Timestamp(row.time), place, row.item) for place, row in enumerate(liked) if row.user == user)
    last = own[-LENGTH:]
    return [item for _, _, item in last], [0.5 ** ((now - time) / pd.Timedelta(days=HALF_LIFE)) for time, _, _ in last]


def written(tmp_path, log_path, **features):
    """A configuration's file."""
    columns = {"user": "user", "item": "item", "time": "time", "rating": "rating", "id_type": "string"}
    history = {"history": {"length": LENGTH, "half_life": f"{HALF_LIFE}d"}}
    settings = {
        "name": "log",
        "recipe": "interactions",
        "runs": str(tmp_path / "runs"),
        "artifacts": str(tmp_path / "artifacts"),
        "features": {"path": str(log_path), **columns, "threshold": 4, **history, **features},
        "model": {"kind": "two_tower", "loss": "softmax", "layers": [8], "vector_dim": 4, "embedding_dim": 4},
        "train": {"epochs": 1, "batch_size": 64},
        "evaluate": {"ranking": None, "importance": False, "baselines": []},
    }
    path = tmp_path / "log.yaml"
    path.write_text(json.dumps(settings))
    return path


@pytest.mark.parametrize("rules", [{}, {"repeats": "all"}, {"split_by": "time"}])
def test_a_stored_history_holds_all_that_the_user_has_chosen(tmp_path, rules):
    log = write_log(tmp_path / "log.csv")
    config = written(tmp_path, tmp_path / "log.csv", **rules)
    assert main(["train", "--config", str(config)]) == 0
    assert main(["embed", "--config", str(config)]) == 0
    run = (tmp_path / "runs" / "log" / "latest").resolve()
    stored = StoredEmbeddings.load(run / STAGE, load_bundle(run / "model"))
    rows = stored.user.rows().set_index("user")
    assert len(rows) >= 30
    for user, row in rows.iterrows():
        items, weights = expected_of(log, user)
        assert list(row["history"]) == items, user
        assert list(row["history_weights"]) == pytest.approx(weights, rel=1e-5), user


def histories(tmp_path) -> dict[str, list[str]]:
    run = (tmp_path / "runs" / "log" / "current").resolve()
    rows = StoredEmbeddings.load(run / STAGE, load_bundle(run / "model")).user.rows()
    return dict(zip(rows["user"], map(list, rows["history"]), strict=True))


def of_rows(rows: pd.DataFrame) -> dict[str, list[str]]:
    """The history in each user's newest row."""
    newest = rows.sort_values("time", kind="stable").groupby("user").tail(1)
    return dict(zip(newest["user"], map(list, newest["history"]), strict=True))


@pytest.fixture
def trained(tmp_path):
    """A log that was trained on, and its configuration."""
    log = write_log(tmp_path / "log.csv")
    config = written(tmp_path, tmp_path / "log.csv")
    assert main(["train", "--config", str(config)]) == 0
    return log, config


def test_an_update_of_the_same_time_leaves_the_history_of_now_and_a_later_one_brings_its_own(trained, tmp_path):
    log, config = trained
    assert main(["embed", "--config", str(config)]) == 0
    features = Pipeline.from_config(config).features()
    rows = pd.concat([features.frame(split) for split in features.rows], ignore_index=True)
    stored = {user: expected_of(log, user)[0] for user in sorted(set(rows["user"]))}
    assert sum(stored[user] != found for user, found in of_rows(rows).items()) > 20
    later = rows.sort_values("time").groupby("user").tail(1).head(3)
    newest = pd.to_datetime(log["time"]).astype("datetime64[us]").astype("int64").max()
    later = later.assign(time=newest + 1, history=[["i1", "i2"], ["i3"], []], history_weights=[[1, 1], [1], []])
    rows.to_parquet(tmp_path / "same.parquet")
    pd.concat([later, later.head(1).assign(user="new")]).to_parquet(tmp_path / "later.parquet")
    known = dict(stored)
    for name, change in [
        ("same", {}),
        ("later", dict(zip([*later["user"], "new"], [["i1", "i2"], ["i3"], [], ["i1", "i2"]], strict=True))),
        ("same", {}),
    ]:
        assert main(["embed", "--config", str(config), "--update", str(tmp_path / f"{name}.parquet")]) == 0
        known |= change
        assert histories(tmp_path) == known


def test_an_update_between_the_stored_row_and_the_newest_choice_shortens_no_history(tmp_path):
    """Of a repeat there is no row, and a row from before it brought a history without it."""
    log = write_log(tmp_path / "log.csv")
    config = written(tmp_path, tmp_path / "log.csv", split_by="time")
    assert main(["train", "--config", str(config)]) == 0
    assert main(["embed", "--config", str(config)]) == 0
    features = Pipeline.from_config(config).features()
    rows = pd.concat([features.frame(split) for split in features.rows], ignore_index=True)
    rows = rows.sort_values("time", kind="stable").groupby("user").tail(1).set_index("user", drop=False)
    liked = log[log["rating"] >= 4]
    last = pd.to_datetime(liked["time"]).groupby(liked["user"]).max().astype("datetime64[us]").astype("int64")
    between = [user for user in rows.index if rows["time"][user] + 1 < last[user]]
    assert len(between) >= 5
    known = {user: expected_of(log, user)[0] for user in rows.index}
    change = rows.loc[between].assign(history=[["i1"]] * len(between), history_weights=[[1]] * len(between))
    for times, brought in (
        (change["time"] + 1, []),
        (last[between], []),
        (last[between] + 1, between),
        (last[between], []),
    ):
        change.assign(time=times).reset_index(drop=True).to_parquet(tmp_path / "update.parquet")
        assert main(["embed", "--config", str(config), "--update", str(tmp_path / "update.parquet")]) == 0
        known |= {user: ["i1"] for user in brought}
        assert histories(tmp_path) == known


@pytest.mark.parametrize("change", ["rewritten", "gone"])
def test_where_raw_files_have_changed_since_histories_are_those_of_rows_with_a_warning(
    trained, tmp_path, change, caplog
):
    """A night lost its training where a raw file was rewritten or taken away meanwhile."""
    log, config = trained
    features, path = Pipeline.from_config(config).features(), tmp_path / "log.csv"
    rows = pd.concat([features.frame(split) for split in features.rows], ignore_index=True)
    run, content = (tmp_path / "runs" / "log" / "current").resolve(), path.read_bytes()
    if change == "gone":
        path.unlink()
    else:
        path.write_bytes(content + b"u1,i1,2027-01-01T00:00:00,5\n")
    embed(run, load_bundle(run / "model"), features, EmbedSettings())
    assert "raw files are no longer those that the features stage has read" in caplog.text
    assert histories(tmp_path) == of_rows(rows)
    path.write_bytes(content)
    caplog.clear()
    embed(run, load_bundle(run / "model"), features, EmbedSettings())
    assert "raw files" not in caplog.text
    assert histories(tmp_path) == {user: expected_of(log, user)[0] for user in set(rows["user"])}


@pytest.mark.parametrize(("trained_with", "given"), [("string", "int64"), ("int64", "string")])
def test_histories_of_a_run_with_ids_of_another_type_are_those_of_rows_with_a_warning(
    tmp_path, trained_with, given, caplog
):
    log = write_log(tmp_path / "log.csv")
    for name in ("user", "item"):
        log[name] = log[name].str[1:]
    log.to_csv(tmp_path / "log.csv", index=False)
    assert main(["train", "--config", str(written(tmp_path, tmp_path / "log.csv", id_type=trained_with))]) == 0
    config = written(tmp_path, tmp_path / "log.csv", id_type=given)
    assert main(["embed", "--config", str(config)]) == 0
    assert "trained with ids of another type" in caplog.text
    features = Pipeline.from_config(config).features()
    expected = of_rows(pd.concat([features.frame(split) for split in features.rows], ignore_index=True))
    kind = str if trained_with == "string" else int
    assert histories(tmp_path) == {kind(user): [*map(kind, items)] for user, items in expected.items()}
