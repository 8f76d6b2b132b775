"""preprocess.from: what encode starts from is found before any work, known by its content, and moves no id."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.encoding.settings import PreprocessorSettings
from gigabatch.features.errors import DataError
from gigabatch.features.operators import Cast, Categorify, HashedCross, Rename
from gigabatch.features.schema import Column, Schema
from gigabatch.features.workflow.workflow import Workflow
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.config.config import ConfigError, RunConfig, parse_config
from gigabatch.pipeline.display import STAGES
from gigabatch.pipeline.lab.experiment import Experiment
from gigabatch.pipeline.lab.plan.forecast import Probes
from gigabatch.pipeline.runs.pointers import RunError
from gigabatch.pipeline.stages.start import find_start, require_lasting_values
from tests.pipeline.tiny_recipe import day_of_rows

CURRENT = "preprocess.from=current"


def write_new_day(tiny):
    """A second day, half of it in a city that the first did not see, so that it is the most frequent of both days."""
    frame = day_of_rows(1)
    frame.loc[frame.index % 2 == 0, "city"] = "Rome"
    frame.to_csv(tiny.raw / "day-001.csv", index=False)


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def encode(tiny, *overrides):
    return tiny.pipeline(*overrides).features().encode()


@pytest.fixture
def night(finished):
    """A finished run of one day, current, and raw files of two."""
    write_new_day(finished)
    return finished, (finished.home / "current").resolve()


def test_encode_starts_from_the_current_run_and_moves_no_id(night):
    tiny, run = night
    before = files(run)
    start = Preprocessor.load(run / "model" / "preprocessor")
    encoded = encode(tiny, CURRENT)
    grown, rows = encoded.preprocessor, encoded.features.frame("train")
    cities = start.vocabularies["city"].values.tolist()
    assert grown.vocabularies["city"].values.tolist() == [*cities, "Rome"]
    assert (grown.version.number, grown.version.parent) == (2, start.checksum)
    assert grown.version.rows == (2400, len(rows))
    assert (grown.fills, grown.scales) == (start.fills, start.scales)
    expected = [3 + [*cities, "Rome"].index(city) for city in rows["city"]]
    assert encoded.table("train").words[:, 0].tolist() == expected
    known = rows[rows["city"] != "Rome"]
    assert grown.pack(known).tobytes() == start.pack(known).tobytes()
    assert encoded.artifact.manifest["version"] == 2
    # A fit anew would order the cities by tonight's counts.
    assert encode(tiny).preprocessor.vocabularies["city"].values.tolist()[0] == "Rome"
    assert files(run) == before


def test_what_differs_is_told_in_the_artifact(night):
    tiny, _ = night
    encoded = encode(tiny, CURRENT)
    rows = encoded.features.frame("train")
    report = encoded.churn
    assert (report.version, report.rows_old, report.rows) == (1, 2400, len(rows))
    (city, *_) = report.categories
    assert city.new.examples == (("Rome", int((rows["city"] == "Rome").sum())),)
    assert json.loads((encoded.artifact.path / "churn.json").read_text())["rows"] == len(rows)
    assert "of version 1" in (encoded.artifact.path / "churn.txt").read_text()
    assert encode(tiny).churn is None


def test_the_key_holds_the_content_and_not_where_it_lies(night, tmp_path, monkeypatch):
    tiny, run = night
    key = encode(tiny, CURRENT).key
    shutil.copytree(run, tiny.home / "another")
    shutil.copytree(run / "model" / "preprocessor", tmp_path / "bare")
    (encode_artifact,) = [path for path in tiny.artifacts("encode") if path.name != key]
    monkeypatch.chdir(run)
    names = (
        run.name,
        "latest",
        "another",
        run,
        run / "model",
        "model/preprocessor",
        tmp_path / "bare",
        encode_artifact,
    )
    for name in names:
        found = encode(tiny, {"preprocess.from": str(name)})
        assert (found.key, found.artifact.skipped) == (key, True), name
    assert encode(tiny).key != key


def test_an_update_is_grown_from_its_folder(night, tmp_path, capsys):
    tiny, _ = night
    path = tmp_path / "rows.parquet"
    frame = day_of_rows(7, 200).assign(city="Nuuk").drop(columns="session")
    frame.to_parquet(path, index=False)
    assert main(["update", "--config", str(tiny.config), "--data", str(path)]) == 0
    folder = Path(capsys.readouterr().out.splitlines()[-1].split("  ")[1])
    found = [encode(tiny, {"preprocess.from": str(name)}) for name in (folder, folder.parent)]
    assert found[0].key == found[1].key != encode(tiny, CURRENT).key
    grown = found[0].preprocessor
    assert grown.vocabularies["city"].values.tolist()[-2:] == ["Nuuk", "Rome"]
    assert (grown.version.number, grown.version.parent) == (3, Preprocessor.load(folder).checksum)
    assert grown.statistics.rows == found[0].features.rows["train"]


def test_an_import_is_grown_from_its_folder(night, tmp_path):
    """As `import-nvtabular --schema` writes it: `preprocessor/` in a folder, without statistics and manifest."""
    tiny, run = night
    known = Preprocessor.load(run / "model" / "preprocessor")
    given = Preprocessor(known.schema, PreprocessorSettings(), known.vocabularies, known.fills, known.scales)
    given.save(tmp_path / "imported" / "preprocessor")
    cities, imported = known.vocabularies["city"].values.tolist(), {"preprocess.from": str(tmp_path / "imported")}
    rows = tiny.pipeline().features().frame("train")
    often = int((rows["city"] == "Rome").sum())
    for least, new in ((often + 1, []), (often, ["Rome"])):
        encoded = encode(tiny, imported, {"preprocess.min_count": least})
        assert encoded.preprocessor.vocabularies["city"].values.tolist() == cities + new
        assert encoded.preprocessor.version.rows == (0, len(rows))
        assert (encoded.churn.rows_old, encoded.churn.categories[0].never_seen) == (0, 0)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "overrides", "message"),
    [
        (lambda run: None, ["preprocess.from=nothing"], "'nothing' is neither a run of .* nor the folder of a run"),
        (lambda run: None, ["preprocess.from=raw"], "holds no preprocessor.json"),
        (
            lambda run: (
                Workflow([Categorify("city")])
                .fit([pd.DataFrame({"city": ["Oslo"]})])
                .save(run.parent.parent.parent / "imported")
            ),
            ["preprocess.from=imported"],
            r"holds no preprocessor\.json\)\. It is an imported workflow .*: import it again with --schema",
        ),
        (lambda run: (run.parent / "current").unlink(), [CURRENT], "current is not there: no run is promoted"),
        (lambda run: flip(run / "model/preprocessor/vocabulary-000.parquet"), [CURRENT], "is not what its manifest"),
        (
            lambda run: flip(run / "model/preprocessor/vocabulary-000.parquet"),
            ["preprocess.from=runs/tiny/current/model/preprocessor"],
            "is not what its manifest says",
        ),
        (lambda run: None, [CURRENT, "preprocess.min_count=3"], "min_count of 'city' is 3, not 1"),
        (lambda run: None, [CURRENT, "preprocess.scale=false"], "preprocess.scale is false, not true"),
    ],
)
def test_a_start_that_cannot_be_used_is_refused_before_any_work(night, monkeypatch, capsys, damage, overrides, message):
    tiny, run = night
    damage(run)
    monkeypatch.chdir(tiny.folder)
    before = files(tiny.folder / "artifacts")
    with pytest.raises((RunError, ConfigError), match=f"^preprocess.from: .*{message}.*preprocess.from=null"):
        tiny.pipeline(*overrides).features()
    assert main(["train", "--config", str(tiny.config), *overrides]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert files(tiny.folder / "artifacts") == before


def test_columns_that_changed_are_refused_before_they_are_encoded(night):
    tiny, _ = night
    features = tiny.pipeline(CURRENT, "features.group=true").features()
    with pytest.raises(DataError, match=r"column 'session' \(group\) is new\. .*preprocess.from=null"):
        features.encode()
    assert len(tiny.artifacts("encode")) == 1


def test_a_night_that_runs_again_after_its_promotion_finds_what_it_made(night):
    """The run that it promoted is the start now; a growth by the rows that it knows is the run that is there."""
    tiny, run = night
    start = Preprocessor.load(run / "model" / "preprocessor")
    made = tiny.train(CURRENT)
    rows = day_of_rows(0).drop(columns="session")
    assert made.bundle().preprocessor.pack(rows).tobytes() == start.pack(rows).tobytes()
    assert main(["promote", "--config", str(tiny.config), made.path.name]) == 0
    again = tiny.train(CURRENT)
    assert (again.path, again.skipped) == (made.path, STAGES)
    # Without growth too: yesterday's data as the first run was trained on them.
    (tiny.raw / "day-001.csv").unlink()
    assert tiny.train(f"preprocess.from={run.name}").path == run


def test_neither_parts_nor_threads_that_write_behind_change_what_is_made(night, tmp_path):
    tiny, _ = night
    whole = encode(tiny, CURRENT)
    expected = {name: content for name, content in files(whole.artifact.path).items() if name != "manifest.json"}
    for number, overrides in enumerate((["rows_per_part=500"], ["handover=on"])):
        other = encode(tiny, CURRENT, f"artifacts={tmp_path / str(number)}", *overrides)
        assert other.key == whole.key
        assert other.churn == whole.churn
        assert {name: text for name, text in files(other.artifact.path).items() if name != "manifest.json"} == expected


def test_a_killed_growth_leaves_nothing_and_the_next_one_ends_the_same(night, tmp_path):
    tiny, run = night
    before = files(run)
    tiny.pipeline().features()
    code = """
from gigabatch.pipeline.stages import stages
stages.write_churn = lambda *_: os.kill(os.getpid(), 9)
Pipeline.from_config(config, "preprocess.from=current").features().encode()
"""
    process = tiny.start(code)
    _, err = process.communicate(timeout=500)
    assert process.returncode == -9, err
    assert len(tiny.artifacts("encode")) == 1
    assert tiny.hidden()
    again, never_killed = encode(tiny, CURRENT), encode(tiny, CURRENT, f"artifacts={tmp_path / 'other'}")
    found = [files(item.artifact.path / "preprocessor") for item in (again, never_killed)]
    assert found[0] == found[1]
    assert np.array_equal(again.table("train").words, never_killed.table("train").words)
    assert tiny.hidden() == []
    assert files(run) == before


STEPS = (
    ([Categorify(combined=["city", "shop"], output="pair")], "'pair'"),
    ([Categorify(combined=["city", "shop"], output="pair"), Rename({"pair": "both"})], "'pair', 'both'"),
    ([Categorify("city"), Cast(["city"], "int64")], "'city'"),
    ([Categorify(shared=["city", "shop"])], "'city', 'shop'"),
    ([Categorify("city", vocabulary=["Oslo", "Bonn"])], None),
    ([HashedCross(["city", "shop"], 100, "pair")], None),
    ([Categorify("city", output="number")], None),
)


@pytest.mark.parametrize(("steps", "named"), STEPS)
def test_values_that_a_step_numbers_anew_each_night_are_refused(steps, named):
    """The first value of today's count is 3 there, whichever it is; no vocabulary could know it from yesterday's 3."""
    schema = Schema(tuple(Column(name, "categorical", "string") for name in ("city", "shop", "pair", "both")), ())
    if named is None:
        require_lasting_values(Workflow(steps), schema)
        return
    with pytest.raises(ConfigError, match=f"numbers {named} anew in each features stage.*preprocess.from=null"):
        require_lasting_values(Workflow(steps), schema)


def test_a_table_whose_step_numbers_values_is_refused_by_the_stage(tmp_path):
    rows = pd.DataFrame({"city": ["Oslo", "Bonn"] * 50, "shop": ["a", "b", "b", "a"] * 25, "clicked": [1, 0] * 50})
    rows.to_csv(tmp_path / "clicks.csv", index=False)
    raw = {"name": "clicks", "recipe": "table", "engine": "pandas", "device": "cpu",
           "artifacts": str(tmp_path / "artifacts"), "runs": str(tmp_path / "runs"),
           "features": {"path": str(tmp_path / "clicks.csv"), "categorical": ["city", "pair"],
                        "inputs": {"shop": "string"}, "targets": {"clicked": {"task": "binary"}},
                        "steps": [{"categorify": {"combined": ["city", "shop"], "output": "pair"}}]}}  # fmt: skip
    from gigabatch.pipeline.stages.stages import Pipeline

    start = Pipeline(parse_config(raw)).features().encode().artifact.path
    again = Pipeline(parse_config(raw | {"preprocess": {"from": str(start)}})).features()
    with pytest.raises(ConfigError, match="numbers 'pair' anew"):
        again.encode()


def test_the_setting_goes_round_through_every_form():
    raw = {"name": "clicks", "recipe": "flights", "preprocess": {"from": "current", "min_count": 2}}
    config = parse_config(raw)
    assert config.to_dict()["preprocess"]["from"] == "current"
    assert parse_config(config.to_dict()) == config
    assert "  from: current" in config.to_yaml().splitlines()
    assert RunConfig(**raw) == config
    plain = RunConfig(name="clicks", recipe="flights", preprocess=PreprocessorSettings(min_count=2))
    assert (plain.preprocess.from_, plain.preprocess.encoding) == (None, PreprocessorSettings(min_count=2))
    assert find_start(plain, "pandas") is None
    for start in (104857612345, 1e30, ["current"]):
        with pytest.raises(ConfigError, match=r"preprocess\.from: expected a run or a folder, found .* in quotes"):
            parse_config(raw | {"preprocess": {"from": start}})


def test_experiments_and_plans_start_where_the_run_does(night, tmp_path, monkeypatch):
    """A plan's samples have folders of their own, in which nothing is current."""
    tiny, run = night
    experiment = Experiment.of_run(tiny.config, [CURRENT], 100)
    assert experiment.spec.inputs.num_ids[0] == 3 + 6
    monkeypatch.setattr("gigabatch.pipeline.lab.plan.forecast.sample_files", lambda *_: (tiny_settings(tiny), 1.0))
    tasks = []
    monkeypatch.setattr(Probes, "_spawn", lambda self, task: tasks.append(task) or {})
    Probes(tiny.pipeline(CURRENT).config, tmp_path).run(1.0)
    (task,) = tasks
    assert task["config"]["preprocess"]["from"] == str(run / "model" / "preprocessor")
    assert os.path.isabs(task["config"]["preprocess"]["from"])
    Probes(tiny.pipeline().config, tmp_path).run(1.0)
    assert tasks[1]["config"]["preprocess"]["from"] is None


def tiny_settings(tiny):
    return tiny.pipeline().config.features
