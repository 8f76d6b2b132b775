"""Runs of a table whose lists are made by steps, from YAML to predictions of raw rows and of single ones."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from ruamel.yaml import YAML

from gigabatch import fit
from gigabatch.features.errors import DataError
from gigabatch.pipeline.bundle import load_bundle
from gigabatch.pipeline.serving.raw_rows import RawRows
from gigabatch.pipeline.stages.score import score_run
from gigabatch.pipeline.stages.stages import Pipeline

NUM_ROWS, NUM_ITEMS, NUM_USERS = 4000, 20, 40
MODELS = {
    "din": {"kind": "din", "embedding_dim": 8, "attention_layers": [16], "layers": [16]},
}
ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "lists.md").read_text()
YAML_TEXT = PAGE.partition("test_step_lists.py -->\n```yaml\n")[2].partition("```")[0]


def moody_log(seed: int = 3) -> pd.DataFrame:
    """Of each user's moods one likes even items and the other odd ones; a mood lasts some thirty rows. Neither user nor
    item tells a click, but the items clicked last and the item together do."""
    draw = np.random.default_rng(seed)
    mood, rows = draw.integers(0, 2, NUM_USERS), []
    for at in range(NUM_ROWS):
        user, item = int(draw.integers(NUM_USERS)), int(draw.integers(NUM_ITEMS))
        mood[user] ^= draw.random() < 1 / 30
        rows.append((f"u{user}", item, f"Item {item}, {'new' if item % 3 else 'old'}", int(item % 2 == mood[user]), at))
    frame = pd.DataFrame(rows, columns=["user", "item", "title", "clicked", "at"])
    return frame.assign(at=pd.Timestamp("2024-03-01") + pd.to_timedelta(frame["at"], unit="min"))


def write_config(folder: Path, kind: str, **features) -> Path:
    moody_log().to_csv(folder / "log.csv", index=False)
    content = YAML(typ="safe").load(YAML_TEXT)
    content["features"] |= {"path": str(folder / "log.csv")} | features
    content |= {
        "name": "moods", "device": "cpu", "engine": "pandas", "seed": 1, "artifacts": str(folder / "artifacts"),
        "runs": str(folder / "runs"), "model": MODELS.get(kind, {"kind": kind}),
        "train": {"epochs": 8, "batch_size": 128, "lr_max": 0.02},
        "evaluate": {"importance": False, "baselines": []},
    }  # fmt: skip
    with (folder / "run.yaml").open("w") as file:
        YAML(typ="safe").dump(content, file)
    return folder / "run.yaml"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("moods")
    path = write_config(folder, "din")
    return folder, path, Pipeline.from_config(path).train()


def raw_rows(folder: Path, stored: pd.DataFrame) -> pd.DataFrame:
    """The rows of the file that the stored ones were made of, with the lists that they bring."""
    log = pd.read_csv(folder / "log.csv").drop(columns="clicked").iloc[stored["row_number"]].reset_index(drop=True)
    return log.assign(history=stored["history"], history_weights=stored["history_weights"])


def assert_bits(one, other) -> None:
    assert len(one) == len(other) > 0
    for left, right in zip(one, other, strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


def test_what_a_step_tells_of_the_past_is_learnt(trained):
    assert trained[2].summary["metrics"]["test"]["auc"] > 0.85


def test_raw_rows_with_their_lists_get_the_bits_of_stored_ones(trained):
    folder, path, run = trained
    stored = Pipeline.from_config(path).features().frame("test")
    bundle = load_bundle(run.path / "model")
    asked = raw_rows(folder, stored)
    assert sorted(bundle.raw_workflow.applied_inputs) == ["history", "history_weights", "item", "title", "user"]
    predicted = bundle.predict_raw(asked)["clicked"].to_numpy()
    np.testing.assert_array_equal(predicted, bundle.predict(stored)["clicked"].to_numpy())
    with pytest.raises(DataError, match="'history'"):
        bundle.predict_raw(asked.drop(columns="history"))


def test_single_raw_rows_get_the_bits_of_stored_ones(trained):
    folder, path, run = trained
    stored = Pipeline.from_config(path).features().frame("test").head(50)
    bundle = load_bundle(run.path / "model")
    online, expected = bundle.online(), bundle.preprocessor.pack_lists(stored)
    making = RawRows(bundle, online.columns)
    asked = raw_rows(folder, stored)
    sent = [
        {name: [value.item() if hasattr(value, "item") else value for value in row[name]]
               if name.startswith("history") else row[name] for name in making.columns}
        for row in asked.to_dict("records")
    ]  # fmt: skip
    for place, row in enumerate(sent):
        for packed, whole in zip(online.pack_lists(making([row])), expected, strict=True):
            first, stop = whole.offsets[place], whole.offsets[place + 1]
            np.testing.assert_array_equal(packed.ids, whole.ids[first:stop])
            if whole.weights is not None:
                np.testing.assert_array_equal(packed.weights, whole.weights[first:stop])
    together = online.pack_lists(making(sent))
    for packed, whole in zip(together, expected, strict=True):
        assert_bits([item for item in packed if item is not None], [item for item in whole if item is not None])


def test_files_to_be_scored_bring_lists_as_text(trained, tmp_path):
    folder, path, run = trained
    stored = Pipeline.from_config(path).features().frame("test").head(200)
    asked = raw_rows(folder, stored)
    for name in ("history", "history_weights"):
        asked[name] = ["|".join(map(repr, map(float if "w" in name else int, row))) for row in asked[name]]
    asked.to_csv(tmp_path / "ask.csv", index=False)
    assert score_run(path, (), None, None, tmp_path / "out.parquet", raw=str(tmp_path / "ask.csv")) == 0
    found = pd.read_parquet(tmp_path / "out.parquet")["predicted_clicked"].to_numpy()
    np.testing.assert_array_equal(found, load_bundle(run.path / "model").predict(stored)["clicked"].to_numpy())


def test_files_without_the_lists_that_they_are_to_bring_are_refused(trained, tmp_path):
    folder, path, _ = trained
    with pytest.raises(
        DataError, match=r"log\.csv: it has no column 'history', which a step makes of earlier rows"
    ) as found:
        score_run(path, (), None, None, tmp_path / "out.parquet", raw=str(folder / "log.csv"))
    page, call = re.search(r"\((docs/\w+\.md): (.*?\)) makes it\)", str(found.value)).groups()
    assert call in (ROOT / page).read_text()


def test_the_workflow_makes_lists_of_new_rows_from_earlier_ones(trained):
    folder, path, run = trained
    features = Pipeline.from_config(path).features()
    stored = features.frame("test")
    log = pd.read_csv(folder / "log.csv")
    log = log.assign(row_number=range(len(log)), at=pd.to_datetime(log["at"]))
    new = log["row_number"].isin(stored["row_number"])
    workflow = features.workflow
    made = workflow.transform(workflow.typed(log[new]), history=workflow.typed(log[~new]))
    bundle = load_bundle(run.path / "model")
    expected = bundle.predict(stored.sort_values("row_number"))["clicked"].to_numpy()
    np.testing.assert_array_equal(bundle.predict(made)["clicked"].to_numpy(), expected)


def test_two_towers_take_the_history_of_a_step(tmp_path):
    run = Pipeline.from_config(write_config(tmp_path, "two_tower")).train()
    stored = Pipeline.from_config(tmp_path / "run.yaml").features().frame("test")
    bundle = load_bundle(run.path / "model")
    found = bundle.predict_raw(raw_rows(tmp_path, stored))["clicked"].to_numpy()
    np.testing.assert_array_equal(found, bundle.predict(stored)["clicked"].to_numpy())


def test_rows_of_a_group_become_lists_of_one_row(tmp_path):
    """Sessions of which the label is known: one row each, split by the session."""
    log = moody_log().assign(session=lambda rows: rows["user"] + "-" + (rows.index // 400).astype(str))
    log["clicked"] = log.groupby("session")["item"].transform(lambda items: int((items % 2).mean() > 0.5))
    steps = [{"groupby_to_sequence": {"by": ["session", "user", "clicked"], "order": "row_number",
                                      "columns": ["item"], "max_length": 4, "separator": None}}]  # fmt: skip
    path = write_config(
        tmp_path, "lr", steps=steps, lists={"item": {"elements": "int64"}}, categorical=["user"], entities={},
        inputs={"item": "int64"}, time=None, split_key="session", keys=["session"],
    )  # fmt: skip
    log.to_csv(tmp_path / "log.csv", index=False)
    features = Pipeline.from_config(path).features()
    found = pd.concat([features.frame(name) for name in ("train", "valid", "test")])
    expected = log.groupby("session")["item"].agg(lambda items: list(items)[-4:])
    assert {key: list(row) for key, row in zip(found["session"], found["item"], strict=True)} == expected.to_dict()
    run = Pipeline.from_config(path).train()
    bundle = load_bundle(run.path / "model")
    assert len(bundle.predict(features.frame("test"))) == features.rows["test"]
    with pytest.raises(DataError, match=r"groupby_to_sequence.*by changing the rows"):
        bundle.predict_raw(log)


def test_raw_rows_have_the_length_of_the_list_that_they_bring(tmp_path):
    content = YAML(typ="safe").load(YAML_TEXT)["features"]
    steps = [*content["steps"], {"list_length": {"column": "history", "output": "seen", "separator": None}}]
    path = write_config(tmp_path, "lr", steps=steps, continuous=["seen"])
    bundle = load_bundle(Pipeline.from_config(path).train().path / "model")
    stored = Pipeline.from_config(path).features().frame("test")
    assert stored["seen"].tolist() == [len(row) for row in stored["history"]]
    asked = raw_rows(tmp_path, stored)
    expected = bundle.predict(stored)["clicked"].to_numpy()
    np.testing.assert_array_equal(bundle.predict_raw(asked)["clicked"].to_numpy(), expected)
    columns = bundle.online().columns
    making = RawRows(bundle, columns)
    sent = [{name: list(row[name]) if name.startswith("history") else row[name] for name in making.columns}
            for row in asked.head(20).to_dict("records")]  # fmt: skip
    for row, length in zip(sent, stored["seen"], strict=False):
        assert [one[columns.index("seen")] for one in making([row])] == [length]


def test_sessions_have_their_label_times_and_length(tmp_path):
    """As NVTabular's Groupby makes them: lists, the first time, the number of rows, the label; short ones left out."""
    log = moody_log().assign(session=lambda rows: rows["user"] + "-" + (rows.index // 150).astype(str))
    log["moment"] = 1_600_000_000 + 60 * np.arange(len(log))
    steps = [
        {"groupby_to_sequence": {
            "by": ["session"], "order": "row_number", "columns": ["item"], "max_length": 4, "separator": None,
            "aggregations": {"user": ["user", "last"], "clicked": ["clicked", "max"], "began": ["moment", "first"],
                             "moment": ["moment", "last"], "length": ["item", "count"], "items": ["item", "nunique"],
                             "rated": ["item", "mean"]},
        }},
        {"filter": {"column": "length", "op": ">=", "value": 2}},
        {"list_length": {"column": "item", "output": "kept", "separator": None}},
        {"difference": {"left": "moment", "right": "began", "output": "lasted"}},
    ]  # fmt: skip
    path = write_config(
        tmp_path, "lr", steps=steps, lists={"item": {"elements": "int64"}}, categorical=["user"], entities={},
        inputs={"item": "int64", "moment": "int64"}, time=None, split_key="session", keys=["session"],
        continuous=["length", "items", "kept", "lasted", "rated"],
    )  # fmt: skip
    log.to_csv(tmp_path / "log.csv", index=False)
    features = Pipeline.from_config(path).features()
    found = pd.concat([features.frame(name) for name in ("train", "valid", "test")]).set_index("session").sort_index()
    groups = log.groupby("session")
    long = groups.size()[groups.size() >= 2].index
    assert 0 < len(long) < groups.ngroups
    assert found.index.tolist() == sorted(long)
    expected = pd.DataFrame({
        "clicked": groups["clicked"].max(), "user": groups["user"].last(), "length": groups.size(),
        "items": groups["item"].nunique(), "kept": groups.size().clip(upper=4),
        "lasted": groups["moment"].last() - groups["moment"].first(), "rated": groups["item"].mean(),
    }).loc[found.index]  # fmt: skip
    for name in expected:
        made = found[name].astype("float32") if name == "rated" else found[name]
        assert made.tolist() == (expected[name].astype("float32") if name == "rated" else expected[name]).tolist(), name
    bundle = load_bundle(Pipeline.from_config(path).train().path / "model")
    assert len(bundle.predict(features.frame("test"))) == features.rows["test"]
    with pytest.raises(DataError, match=r"groupby_to_sequence.*by changing the rows"):
        bundle.predict_raw(log)


def sessions_of_the_page(folder, **features) -> tuple[pd.DataFrame, list[pd.DataFrame]]:
    """(The log; the splits of the features stage.)"""
    text = PAGE.partition("test_step_lists.py: sessions -->\n```yaml\n")[2].partition("```")[0]
    log = moody_log().assign(session=lambda rows: rows["user"] + "-" + (rows.index // 150).astype(str))
    path = write_config(
        folder, "lr", steps=YAML(typ="safe").load(text)["steps"], lists={"item": {"elements": "int64"}},
        categorical=[], entities={}, keys=["session"], continuous=["length"],
        inputs={"item": "int64", "at": "datetime"}, **features,
    )  # fmt: skip
    log.to_csv(folder / "log.csv", index=False)
    features = Pipeline.from_config(path).features()
    return log, [features.frame(name) for name in ("train", "valid", "test")]


def test_the_sessions_of_the_page_stay_whole_by_their_key(tmp_path):
    log, splits = sessions_of_the_page(tmp_path, time=None, split_key="session")
    found = pd.concat(splits).set_index("session").sort_index()
    expected = log.groupby("session").agg(clicked=("clicked", "max"), length=("item", "size"))
    expected = expected[expected["length"] >= 2]
    assert found.index.tolist() == expected.index.tolist()
    for name in ("clicked", "length"):
        assert found[name].tolist() == expected[name].tolist()


def test_a_session_across_a_cut_by_time_is_one_in_each_split(tmp_path):
    log, splits = sessions_of_the_page(tmp_path)
    assert splits[0]["at"].max() <= splits[1]["at"].min() <= splits[1]["at"].max() <= splits[2]["at"].min()
    log["at"] = log["at"].astype("datetime64[us]").astype("int64")
    ends = [int(part["at"].max()) for part in splits[:2]]
    log["split"] = np.searchsorted(ends, log["at"])  # but for rows of short sessions, which are left out
    expected = log.groupby(["split", "session"]).agg(
        clicked=("clicked", "max"), at=("at", "max"), length=("item", "size")
    )
    expected = expected[expected["length"] >= 2].reset_index()
    assert expected["session"].duplicated().any()
    for number, part in enumerate(splits):
        own = expected[expected["split"] == number]
        for name in ("session", "clicked", "at", "length"):
            assert part[name].tolist() == own[name].tolist(), name


def test_weights_that_a_step_makes_beside_their_list(tmp_path):
    """The file's own columns of these names, which hold no lists, were taken for them."""
    log = moody_log().assign(session=lambda rows: rows.index // 40, spent=lambda rows: rows.index % 7 / 4 + 0.25)
    log["clicked"] = log.groupby("session")["item"].transform(lambda items: int((items % 2).mean() > 0.5))
    steps = [{"groupby_to_sequence": {"by": ["session", "user", "clicked"], "order": ["at", "row_number"],
                                      "columns": ["item", "spent"], "max_length": 4, "separator": None}}]  # fmt: skip
    path = write_config(
        tmp_path, "lr", steps=steps, lists={"item": {"elements": "int64", "weights": "spent"}}, categorical=["user"],
        entities={}, inputs={"item": "int64", "spent": "float32", "at": "datetime"}, time=None, split_key="session",
        keys=["session"],
    )  # fmt: skip
    log.to_csv(tmp_path / "log.csv", index=False)
    features = Pipeline.from_config(path).features()
    found = pd.concat([features.frame(name) for name in ("train", "valid", "test")])
    expected = log.groupby(["session", "user"])["spent"].agg(lambda spent: list(spent)[-4:])
    assert {(int(key), user): list(row) for key, user, row in found[["session", "user", "spent"]].to_numpy()} == (
        expected.to_dict()
    )
    Pipeline.from_config(path).train()


def test_fit_takes_lists_of_steps(tmp_path):
    log = moody_log().head(800)
    content = YAML(typ="safe").load(YAML_TEXT)["features"]
    run = fit(
        log, {"artifacts": str(tmp_path / "a"), "runs": str(tmp_path / "r"), "train.epochs": 1, "model.kind": "lr"},
        target="clicked", categorical={"item": "int64", "user": "string"},
        **{name: content[name] for name in ("time", "steps", "inputs", "lists")},
    )  # fmt: skip
    stored = Pipeline.from_config(run.summary["config"]).features().frame("test")
    assert max(map(len, stored["history"])) == 5
    rows = log.drop(columns="clicked").iloc[stored["row_number"]].reset_index(drop=True)
    asked = rows.assign(history=stored["history"], history_weights=stored["history_weights"])
    assert len(run.predict(asked)) == len(stored)
