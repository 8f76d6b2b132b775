"""gigabatch update: the next version of a run's preprocessor, as an artifact, with its churn."""

import json
from pathlib import Path

import pandas as pd
import pytest

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.refit.update import checksum
from gigabatch.pipeline.commands.app import main
from tests.pipeline.tiny_recipe import day_of_rows


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
        (lambda path: path.rename(path.with_suffix(".csv")), "is not a Parquet file"),
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
