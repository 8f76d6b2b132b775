"""gigabatch update: the next version of a run's preprocessor, as an artifact, with its churn."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.errors import DataError
from gigabatch.features.refit.update import checksum
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.stages.update import update_preprocessor
from tests.pipeline.tiny_recipe import day_of_rows, write_day


@pytest.fixture
def next_day(trained, tmp_path):
    """Feature rows of another day, a fifth of them in a city that the run has not seen, and the config's store here."""
    tiny, run = trained
    frame = day_of_rows(1, 500)
    frame.loc[frame.index % 5 == 0, "city"] = "Rome"
    path = tmp_path / "new" / "part-00000.parquet"
    path.parent.mkdir()
    frame.drop(columns=["session"]).to_parquet(path, index=False)
    return tiny, run, path, f"artifacts={tmp_path / 'artifacts'}"


def last_folder(out: str) -> str:
    return out.splitlines()[-1].split("  ")[1]


def test_a_run_is_updated_reported_and_left_as_it_was(next_day, capsys):
    tiny, run, path, store = next_day
    before = sorted((file, file.read_bytes()) for file in (run.path / "model").rglob("*") if file.is_file())
    assert main(["update", "--config", str(tiny.config), "--data", str(path), store]) == 0
    out = capsys.readouterr().out
    assert "500 new rows against 2,400 of version 1" in out
    assert "city: unseen rate 0.2 (threshold 0.05)" in out
    assert out.splitlines()[-1].startswith("version 2  ")
    updated = Preprocessor.load(last_folder(out))
    old = run.bundle().preprocessor
    cities = updated.vocabularies["city"].values.tolist()
    assert cities == [*old.vocabularies["city"].values.tolist(), "Rome"]
    assert (updated.version.parent, updated.version.rows) == (checksum(old.learned), (2400, 500))
    assert (updated.fills, updated.scales) == (old.fills, old.scales)
    assert updated.transform(pd.read_parquet(path), targets=False)["city"].tolist()[0] == 3 + len(cities) - 1
    after = sorted((file, file.read_bytes()) for file in (run.path / "model").rglob("*") if file.is_file())
    assert after == before


def test_settings_that_an_update_does_not_take_up_are_named(next_day, capsys):
    tiny, run, path, store = next_day
    call = ["update", "--config", str(tiny.config), "--data", str(path), store]
    assert main(call) == 0
    assert "kept as at the start" not in capsys.readouterr().out
    name = run.bundle().preprocessor.schema.names("continuous")[0]
    assert main([*call, "preprocess.bins=16"]) == 0
    out = capsys.readouterr().out
    assert f"kept as at the start, whatever the configuration says: bins of {name!r} is 16, not 48" in out
    assert Preprocessor.load(last_folder(out)).settings.bins == 48


def test_rows_that_change_while_they_are_read_make_no_update(next_day, capsys, monkeypatch):
    """The artifact would bear the name of what was there before."""
    tiny, _, path, store = next_day
    real = Preprocessor.update

    def read_and_changed(self, parts, refresh_scales=False):
        found = real(self, parts, refresh_scales)
        pd.read_parquet(path).head(100).to_parquet(path, index=False)
        return found

    monkeypatch.setattr(Preprocessor, "update", read_and_changed)
    assert main(["update", "--config", str(tiny.config), "--data", str(path), store]) == 2
    assert "part-00000.parquet changed while it was read" in capsys.readouterr().err
    assert not list(Path(store.partition("=")[2]).glob("update/*"))


def test_the_same_update_is_not_made_twice_and_another_one_goes_on_from_it(next_day, capsys):
    tiny, _, path, store = next_day
    call = ["update", "--config", str(tiny.config), "--data", str(path.parent), store]
    assert main(call) == 0
    first = capsys.readouterr().out
    folder = last_folder(first)
    assert main(call) == 0
    assert capsys.readouterr().out == first
    report = json.loads(Path(folder).with_name("churn.json").read_text())
    assert [item["column"] for item in report["categories"]] == ["city", "product", "store"]
    assert main([*call, "--preprocessor", folder, "--refresh-scales"]) == 0
    third = Preprocessor.load(last_folder(capsys.readouterr().out))
    assert third.version.rows == (2400, 500, 500)
    assert third.scales != Preprocessor.load(folder).scales


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.rename(path.with_suffix(".csv")), "has no way from raw rows alone to predictions"),
        (lambda path: path.unlink(), "no such file"),
        (lambda path: pd.read_parquet(path).drop(columns="city").to_parquet(path), "'city' not found"),
        (lambda path: path.write_bytes(b"PAR1"), "cannot be read as Parquet"),
        (lambda path: pd.read_parquet(path).iloc[:0].to_parquet(path), "no rows"),
    ],
)
def test_what_cannot_be_learned_from_is_one_line_and_leaves_nothing(next_day, capsys, change, message):
    tiny, _, path, store = next_day
    change(path)
    assert main(["update", "--config", str(tiny.config), "--data", f"{path.parent}/*", store]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not list((path.parents[1] / "artifacts").glob("update/*"))


@pytest.fixture(scope="module")
def stepped(tiny_in, tmp_path_factory):
    """A run of the recipe `table`, whose steps make the model's columns."""
    tiny = tiny_in(tmp_path_factory.mktemp("stepped") / "tiny")
    write_day(tiny.raw, 0)
    features = {
        "path": str(tiny.raw), "categorical": ["town"], "continuous": ["signal", "twice"], "keys": ["row"],
        "inputs": {"city": "string", "gap": "float64"}, "targets": {"clicked": {"task": "binary"}},
        "steps": [{"clean_text": {"column": "city", "output": "town", "case": "lower"}},
                  {"expression": {"output": "twice", "expression": "gap * 2"}}],
    }  # fmt: skip
    content = json.loads(tiny.config.read_text()) | {"recipe": "table", "name": "stepped", "features": features}
    tiny.config.write_text(json.dumps(content))
    tiny.train("train.epochs=1")
    return tiny


def test_raw_rows_go_through_the_steps_of_the_run(stepped, tmp_path, capsys):
    """They were refused, so that somebody had to make features of new rows alone first."""
    raw = day_of_rows(1, 500).drop(columns="clicked")
    raw.loc[raw.index % 5 == 0, "city"] = "Rome"
    features = raw.assign(town=raw["city"].str.lower(), twice=(raw["gap"] * 2).astype("float32"))
    raw.to_csv(tmp_path / "new.csv", index=False)
    raw.to_parquet(tmp_path / "new.parquet", index=False)
    features[["town", "signal", "twice"]].to_parquet(tmp_path / "features.parquet", index=False)
    found = {}
    for name in ("features.parquet", "new.csv", "new.parquet", "new.csv"):
        call = ["update", "--config", str(stepped.config), "--data", str(tmp_path / name)]
        assert main([*call, f"artifacts={tmp_path / 'artifacts'}"]) == 0
        found[name] = Preprocessor.load(last_folder(capsys.readouterr().out))
    assert len(list((tmp_path / "artifacts" / "update").glob("[!.]*"))) == 3  # the same file is the same artifact
    assert len({checksum(one.learned) for one in found.values()}) == 1
    assert found["new.csv"].vocabularies["town"].values.tolist()[-1] == "rome"
    assert found["new.csv"].version.rows[1] == 500


@pytest.fixture(scope="module")
def in_place(tiny_in, tmp_path_factory):
    """A run of the recipe `table`, whose steps replace the columns that they read."""
    tiny = tiny_in(tmp_path_factory.mktemp("in_place") / "tiny")
    write_day(tiny.raw, 0)
    features = {
        "path": str(tiny.raw), "categorical": ["city"], "continuous": ["signal"], "keys": ["row"],
        "targets": {"clicked": {"task": "binary"}}, "null_values": ["Bonn"],
        "steps": [{"clean_text": {"column": "city", "case": "upper"}}, {"log": {"column": "signal", "offset": 100}}],
    }  # fmt: skip
    content = json.loads(tiny.config.read_text()) | {"recipe": "table", "name": "in_place", "features": features}
    tiny.config.write_text(json.dumps(content))
    tiny.train("train.epochs=1")
    return tiny


def test_raw_rows_go_through_steps_that_replace_columns(in_place, tmp_path, capsys):
    """Raw Parquet files have the columns of the features stage there: they were learned as they were."""
    raw = day_of_rows(1, 500).drop(columns="clicked")
    raw.to_csv(tmp_path / "new.csv", index=False)
    raw.to_parquet(tmp_path / "new.parquet", index=False)
    call = ["update", "--config", str(in_place.config), f"artifacts={tmp_path / 'artifacts'}", "--data"]
    states = {}
    for name in ("new.csv", "new.parquet"):
        assert main([*call, str(tmp_path / name)]) == 0
        states[name] = Preprocessor.load(last_folder(capsys.readouterr().out))
    state = states["new.parquet"]
    assert checksum(state.learned) == checksum(states["new.csv"].learned)
    assert set(state.vocabularies["city"].values) == {"OSLO", "LIMA", "PUNE", "CORK"}
    (part,) = in_place.folder.glob("artifacts/features/*/train/part-*.parquet")
    features = pd.read_parquet(part)  # rows of the features stage do not go through the steps again
    features.to_parquet(tmp_path / "copy.parquet", index=False)
    both = np.concatenate([features["signal"], np.log(raw["signal"] + 100).astype("float32")])
    assert state.statistics.numbers["signal"].moments.scale().mean == pytest.approx(both.mean(dtype="float64"))
    for path in (part, tmp_path / "copy.parquet"):
        assert main([*call, str(path)]) == 0
        state = Preprocessor.load(last_folder(capsys.readouterr().out))
        mean = features["signal"].astype("float64").mean()
        assert state.statistics.numbers["signal"].moments.scale().mean == pytest.approx(mean)
        assert state.version.rows[1] == len(features)


def test_raw_rows_go_through_the_steps_of_the_run_after_an_update_too(stepped, tmp_path, capsys):
    """They were refused: an update by raw rows could not be followed by another one."""
    second, third = (day_of_rows(day, 500).drop(columns="clicked") for day in (1, 2))
    second.to_csv(tmp_path / "second.csv", index=False)
    third.assign(city="Rome").to_csv(tmp_path / "third.csv", index=False)
    pd.concat([second, third.assign(city="Rome")]).to_csv(tmp_path / "both.csv", index=False)
    call = ["update", "--config", str(stepped.config), f"artifacts={tmp_path / 'artifacts'}", "--data"]
    assert main([*call, str(tmp_path / "second.csv")]) == 0
    folder = last_folder(capsys.readouterr().out)
    assert main([*call, str(tmp_path / "third.csv"), "--preprocessor", folder]) == 0
    out = capsys.readouterr().out
    assert "raw rows through the steps of run" in out
    assert main([*call, str(tmp_path / "both.csv")]) == 0
    found, whole = (Preprocessor.load(last_folder(text)) for text in (out, capsys.readouterr().out))
    assert found.version.rows[1:] == (500, 500)
    assert found.statistics.rows == whole.statistics.rows
    assert set(found.vocabularies["town"].values) == set(whole.vocabularies["town"].values)
    assert "rome" in set(found.vocabularies["town"].values)


def test_raw_rows_that_have_no_steps_to_go_through_are_refused(stepped, next_day, tmp_path, capsys):
    tiny, run, *_ = next_day
    day_of_rows(1, 50).to_csv(tmp_path / "new.csv", index=False)
    start = run.path / "model" / "preprocessor"
    for config, more, message in (
        (tiny.config, [], "has no way from raw rows alone to predictions"),
        (stepped.config, ["--preprocessor", str(start)], "Give Parquet files as `gigabatch features` writes them"),
    ):
        call = ["update", "--config", str(config), "--data", str(tmp_path / "new.csv"), *more]
        assert main([*call, f"artifacts={tmp_path / 'artifacts'}"]) == 2
        assert message in " ".join(capsys.readouterr().err.split())
    with pytest.raises(DataError, match="no way from raw rows alone"):
        update_preprocessor(tiny.config, (), str(tmp_path / "new.csv"))


def test_a_preprocessor_that_is_not_there_is_told_with_those_that_are(next_day, capsys):
    """It was called damaged, and the encode stage was to be run again."""
    tiny, _, path, store = next_day
    call = ["update", "--config", str(tiny.config), "--data", str(path.parent), store]

    def told(folder):
        assert main([*call, "--preprocessor", str(folder)]) == 2
        return " ".join(capsys.readouterr().err.split())

    nosuch = path.parent / "nosuch"
    assert told(nosuch) == (
        f"gigabatch: update: there is no preprocessor in {nosuch} (no preprocessor.json). Updates so far, the newest "
        "first: none. That of a run: --run ID (gigabatch runs lists them)."
    )
    assert main(call) == 0
    made = last_folder(capsys.readouterr().out)
    assert f"Updates so far, the newest first: {made}. That of a run" in told(Path(made).parent)
    Path(made, "preprocessor.json").write_text("{")
    assert "damaged" in told(made)


@pytest.fixture
def weighed(tiny_in, tmp_path):
    """A run of a table whose rows have weights, and the call that updates it, but for the data."""
    tiny = tiny_in(tmp_path / "tiny")
    day_of_rows(0, 2400).assign(w=1.0).to_parquet(tmp_path / "old.parquet", index=False)
    features = {
        "path": str(tmp_path / "old.parquet"), "categorical": ["city"], "continuous": ["signal"], "weight": "w",
        "targets": {"clicked": {"task": "binary"}},
    }  # fmt: skip
    content = json.loads(tiny.config.read_text()) | {"recipe": "table", "name": "weighed", "features": features}
    tiny.config.write_text(json.dumps(content))
    tiny.train("train.epochs=1")
    return ["update", "--config", str(tiny.config), f"artifacts={tmp_path / 'kept{a}'}", "--data"]


@pytest.mark.parametrize("name", ["new.csv", "new.parquet"])
def test_rows_of_weight_0_teach_nothing(weighed, tmp_path, capsys, name):
    """An update took the values of rows that a training leaves out; the file without them gives the same state."""
    new = day_of_rows(1, 500)[["city", "signal"]].assign(w=2.0)
    idle = new.head(200).assign(city="Atlantis", signal=1e9, w=0.0)
    states = []
    for rows in (pd.concat([idle, new]), new):
        path = tmp_path / name
        rows.to_csv(path, index=False) if path.suffix == ".csv" else rows.to_parquet(path, index=False)
        assert main([*weighed, str(path)]) == 0
        states.append(Preprocessor.load(last_folder(capsys.readouterr().out)))
    assert states[0].version.rows[1] == 500
    assert checksum(states[0].learned) == checksum(states[1].learned)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_files_of_which_some_lack_the_weights_are_refused(weighed, tmp_path, capsys, ending):
    """Rows that weigh 0 in the others were learned."""
    new, folder = day_of_rows(1, 500)[["city", "signal"]], tmp_path / "days"
    folder.mkdir()

    def write(frame, name):
        path = folder / f"{name}.{ending}"
        frame.to_csv(path, index=False) if ending == "csv" else frame.to_parquet(path, index=False)
        return path

    first = write(new, "a")
    assert main([*weighed, str(folder)]) == 0  # nobody weighs a row
    second = write(new.assign(city="Atlantis", w=0.0), "b")
    capsys.readouterr()
    assert main([*weighed, str(folder)]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert f"{first} lacks the column of weights 'w', which {second} has" in told
    with pytest.raises(DataError, match="lacks the column of weights 'w'"):
        update_preprocessor(weighed[2], (), str(folder))
