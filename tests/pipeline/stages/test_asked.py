"""What is there already is found without torch, and only where it is what a training would find."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gigabatch.features.columns import zones
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.config.config import load_config
from gigabatch.pipeline.contract.state import FileEntry, FilesState
from gigabatch.pipeline.runs.verify import loaded_by, require_loadable
from gigabatch.pipeline.stages.asked import MOST_REQUESTS, Request, ask_features
from gigabatch.pipeline.store.keys import file_checksum
from tests.pipeline.clicks import HEAVY, OF_READERS, ROOT, ROWS, in_a_process, write_clicks
from tests.processes import python


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder in which `gigabatch features` and `gigabatch train` have been run."""
    folder = tmp_path_factory.mktemp("clicks")
    write_clicks(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "--config", "clicks.yaml"]) == 0
    return folder


@pytest.fixture
def folder(trained, tmp_path, monkeypatch):
    """A copy of `trained`, as the working folder."""
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy, symlinks=True)
    monkeypatch.chdir(copy)
    return copy


def features_key(root, settings, files=None):
    """Of the features stage of a table."""
    columns = {"continuous": ["x"], "targets": {"y": {"task": "regression"}}}
    config = {"name": "t", "recipe": "table", "runs": str(root / "runs"), "features": {**settings, **columns}}
    return ask_features(load_config(config), "pandas", root / "artifacts", files).key


def test_a_file_that_goes_over_to_the_next_split_makes_other_features(tmp_path):
    """The files and their order stay the same."""
    for split, names in {"train": "ab", "test": "c"}.items():
        (tmp_path / split).mkdir()
        for name in names:
            (tmp_path / split / f"{name}.csv").write_text(f"x,y\n{ord(name)},1\n")
    paths = {"train_path": str(tmp_path / "train"), "test_path": str(tmp_path / "test")}
    before = features_key(tmp_path, paths)
    assert features_key(tmp_path, paths) == before
    (tmp_path / "train" / "b.csv").rename(tmp_path / "test" / "b.csv")
    assert features_key(tmp_path, paths) != before


def test_rows_that_are_left_out_of_another_file_of_the_same_name_make_other_features(tmp_path):
    keys = set()
    for day in "12":
        (tmp_path / day).mkdir()
        (tmp_path / day / "rows.csv").write_text(f"x,y\n{day},1\n3,4\n")
    for day in "12":
        path = tmp_path / day / "rows.csv"
        entries = {
            str(other): FileEntry("all", "accepted", file_checksum(other), "", dropped=(1,) if other == path else ())
            for other in sorted(tmp_path.glob("*/rows.csv"))
        }
        keys.add(features_key(tmp_path, {"path": f"{tmp_path}/*/rows.csv"}, FilesState(entries)))
    assert len(keys) == 2


def asked(*overrides):
    return Request.of(load_config("clicks.yaml", overrides, whole=False))


def whole(*arguments):
    """Exit code, standard output and error of a command whose process has imported torch beforehand."""
    program = "import sys; from gigabatch.pipeline.commands.app import main; sys.exit(main(sys.argv[1:]))"
    done = python(program, *arguments, env=os.environ)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("command", ["train", "features"])
def test_what_is_there_is_shown_as_a_whole_pipeline_shows_it_and_without_torch(folder, command):
    found = in_a_process(command, "--config", "clicks.yaml")
    assert found[0] == 0
    assert found[3] == "[]"
    (folder / "artifacts" / "requests.json").unlink()
    assert found[:3] == whole(command, "--config", "clicks.yaml")
    assert "skipped, unchanged" in found[1]
    assert json.loads((folder / "artifacts" / "requests.json").read_text())  # and the next one is quick again
    assert in_a_process(command, "--config", "clicks.yaml")[3] == "[]"


def test_an_evaluation_that_is_there_is_shown_as_the_first_one_was_and_without_torch(folder, tmp_path):
    assert asked().evaluation(None, "test", None) is None
    first = whole("evaluate", "--config", "clicks.yaml")
    assert first[0] == 0
    home = Path("runs/clicks/current/evaluation-test")
    written = {path.name: path.stat().st_mtime_ns for path in home.iterdir()}
    again = in_a_process("evaluate", "--config", "clicks.yaml")
    assert again[:3] == first
    assert again[3] == "[]"
    assert {path.name: path.stat().st_mtime_ns for path in home.iterdir()} == written
    assert asked().evaluation(None, "valid", None) is None
    assert asked().evaluation(None, "test", tmp_path) is None
    assert asked("evaluate.slices=false").evaluation(None, "test", None) is None


@pytest.mark.parametrize("changed", ["report", "rows", "run", "state", "sources", "record"])
def test_an_evaluation_of_something_else_is_made_anew(folder, monkeypatch, changed):
    assert main(["evaluate", "--config", "clicks.yaml"]) == 0
    home = Path("runs/clicks/current").resolve()
    assert asked().evaluation(None, "test", None).summary["id"] == home.name
    if changed == "report":
        (home / "evaluation-test" / "report.html").write_text("damaged")
    elif changed == "rows":
        Path("clicks.csv").write_text(f"city,price,clicked\n{ROWS}Rome,1,1\n")
        assert main(["features", "--config", "clicks.yaml"]) == 0
    elif changed == "run":
        manifest = json.loads((home / "manifest.json").read_text())
        (home / "manifest.json").write_text(json.dumps(manifest))
    elif changed == "state":
        (home.parent / "latest").unlink()
    elif changed == "sources":
        monkeypatch.setattr("gigabatch.pipeline.stages.asked.source_hash", lambda modules: "other sources")
    else:
        (home / "evaluation-test" / "evaluation.json").write_text("[" * 200_000)
    assert asked().evaluation(None, "test", None) is None


def test_what_another_evaluation_wrote_is_not_kept_as_the_answer(folder, monkeypatch):
    """Another command, of other settings, writes into the same folder before this one's is remembered."""
    command, remember = ("evaluate", "--config", "clicks.yaml"), Request.remember_evaluation

    def after_another(*arguments):
        monkeypatch.undo()
        monkeypatch.chdir(folder)
        assert main([*command, "evaluate.slices=false"]) == 0
        return remember(*arguments)

    monkeypatch.setattr(Request, "remember_evaluation", after_another)
    assert main(command) == 0
    there = json.loads(Path("runs/clicks/current/evaluation-test/summary.json").read_text())
    assert there["slices"] == []
    assert asked().evaluation(None, "test", None) is None
    assert main(command) == 0
    assert asked().evaluation(None, "test", None).summary["slices"]


def test_a_command_takes_the_hash_of_all_sources_once(folder, monkeypatch):
    """`evaluate` made its request twice, the second time of the sources as they were some seconds later."""
    made, real = [], Request.of.__func__
    monkeypatch.setattr(Request, "of", classmethod(lambda kind, config: made.append(config) or real(kind, config)))
    assert main(["evaluate", "--config", "clicks.yaml"]) == 0
    assert len(made) == 1
    assert asked().evaluation(None, "test", None) is not None


def test_an_evaluation_that_warns_warns_again(folder, monkeypatch, caplog):
    monkeypatch.setattr("gigabatch.pipeline.stages.score.learnt_of", lambda *_: "all of them")
    for _ in range(2):
        caplog.clear()
        assert main(["evaluate", "--config", "clicks.yaml"]) == 0
        assert "has learnt from rows of 'test' (all of them)" in caplog.text


MISTAKES = {  # by what is asked, the beginning of what is told
    "train features.path=nowhere.csv": "input 'nowhere.csv': no such file",
    "train features.continuus=[price]": "config clicks.yaml: unknown key 'features.continuus'. Did you mean 'features.",
    "train model.kind=nosuch": "config clicks.yaml: model.kind: unknown model 'nosuch'. Known: ",
    "train model.layrs=[3]": "config clicks.yaml: unknown key 'model.layrs'. Did you mean 'model.layers'? Known keys: ",
    "plan model.layrs=[3]": "config clicks.yaml: unknown key 'model.layrs'. Did you mean 'model.layers'? Known keys: ",
    "features features.path=nowhere.csv": "input 'nowhere.csv': no such file",
    "evaluate features.path=nowhere.csv": "input 'nowhere.csv': no such file",
    "plan features.path=nowhere.csv": "input 'nowhere.csv': no such file",
    "plan train.epochs=many": "config clicks.yaml: train.epochs: ",
    "tune --seeds 1": "tune: --seeds must be from 2 to 30, not 1.",
    "tune --rows 0": "--rows must be at least 1, not 0.",
    "tune features.path=nowhere.csv": "input 'nowhere.csv': no such file",
    "compare --models fm": "--models 'fm': two models or more are compared.",
    "compare --models fm,nosuch": "model.kind: unknown model 'nosuch'. Known: ",
    "compare --models fm,lr --seeds 99": "compare: --seeds must be from 1 to 30, not 99.",
    "compare --models fm,lr features.path=nowhere.csv": "input 'nowhere.csv': no such file",
    "lr-range --steps 1": "lr range: at least 20 steps are needed, not 1.",
    "lr-range --start 10 --stop 1": "lr range: it goes from a positive learning rate up, not from 10.0 to 1.0.",
    "lr-range features.path=nowhere.csv": "input 'nowhere.csv': no such file",
    "profile --steps 0": "profile: --steps must be at least 1, not 0.",
    "profile --rows 0": "--rows must be at least 1, not 0.",
    "profile features.path=nowhere.csv": "input 'nowhere.csv': no such file",
    "advise --efficiency 2": "advise: --efficiency must be above 0 and at most 1, not 2.0.",
    "advise --rows 0": "--rows must be at least 1, not 0.",
    "advise features.path=nowhere.csv": "input 'nowhere.csv': no such file",
    "serve --run nowhere": "serve: there is no run nowhere. Train first",
    "serve --port 99999999": "serve.port: Input should be less than or equal to 65535",
    "serve --host 0.0.0.0": "serve: 0.0.0.0 can be reached from other machines, and no token is set.",
    "update --data nowhere.parquet": "input 'nowhere.parquet': no such file",
    "update --data clicks.csv --run nowhere": "run nowhere: no model there.",
    "update --data clicks.csv --run latest --preprocessor x": "update: give either --run or --preprocessor, not both.",
    "update --data clicks.csv --preprocessor nowhere": "update: there is no preprocessor in nowhere (no ",
    "score --run nowhere": "run nowhere: no model there.",
    "score --input nowhere.csv": "input 'nowhere.csv': no such file",
    "score --input clicks.csv --out x.txt": "output x.txt: unknown ending. Known: .csv, .parquet.",
    "score --input clicks.csv --split test": "score: give either --input or --split, not both.",
    "score features.path=nowhere.csv": "input 'nowhere.csv': no such file",
    "evaluate --run nowhere": "run nowhere: no model there.",
    "score --split nosuch": "split 'nosuch' does not exist. Known: train, valid, test.",
    "evaluate --split nosuch": "split 'nosuch' does not exist. Known: train, valid, test.",
    "export --formats nosuch": "unknown format nosuch. Known: torch, onnx_rows.",
    "export --formats onnx": "format onnx is written no more.",
    "export --run nowhere": "run nowhere: no model there.",
    "embed --update nowhere.parquet": "input 'nowhere.parquet': no such file",
    "embed --run nowhere": "run nowhere: no model there.",
    "embed --dtype nosuch": "embed: unknown dtype 'nosuch'. Known: float32, float16.",
    "embed --recall 2": "embed: recall must be in (0, 1], found 2.0.",
    "embed features.path=nowhere.csv": "input 'nowhere.csv': no such file",
    "nightly --json": "Invalid value: --json goes with --dry-run",
    "promote nowhere": "run nowhere: no model there.",
    "unblock nowhere": "unblock: nowhere is not blocked",
}


@pytest.fixture(scope="module")
def answers(trained, tmp_path_factory):
    """Of each line of `MISTAKES` exit code, standard error, and whether torch was imported by then; in one process,
    since each takes a second to start."""
    copy = tmp_path_factory.mktemp("mistakes") / "copy"
    shutil.copytree(trained, copy, symlinks=True)
    program = f"""
import contextlib, io, json, sys
from gigabatch.pipeline.commands.app import main
found = {{}}
for line in {list(MISTAKES)!r}:
    command, *rest = line.split()
    with contextlib.redirect_stderr(io.StringIO()) as told:
        code = main([command, *rest, "--config", "clicks.yaml"])
    found[line] = code, told.getvalue(), "torch" in sys.modules
print(json.dumps(found))
"""
    environment = {name: value for name, value in os.environ.items() if name != "GIGABATCH_TOKEN"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=copy,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_of_a_command_is_told_without_torch(answers, line):
    code, error, with_torch = answers[line]
    assert (code, with_torch) == (2, False)
    assert error.startswith(f"gigabatch: {MISTAKES[line]}")


def test_what_moves_current_and_what_reads_files_imports_no_torch(folder):
    config = ("--config", "clicks.yaml")
    first = Path("runs/clicks/current").resolve().name
    assert main(["train", *config, "seed=2"]) == 0
    other = Path("runs/clicks/latest").resolve().name
    for line, out in (
        (("promote", other), f"Promoted by hand: {other} is current, {first} was it before.\n"),
        (("rollback",), f"Rolled back: {first} is current again. {other} is blocked"),
        (("unblock", other), f"Unblocked: {other} may be promoted again.\n"),
        (("contract",), "learned from 1 file(s) of kind 'all', 120 rows"),
        (("contract", "--check"), "0 new file(s), 0 refused\n"),
        (("gc",), "0 folder(s), 0 bytes freed\n"),
        (("runs",), ""),
    ):
        heavy = OF_READERS if line == ("contract",) else HEAVY  # which reads rows
        code, printed, error, imported = in_a_process(*line, *config, heavy=heavy)
        assert (code, imported) == (0, "[]"), (line, error)
        assert out in printed
    done = in_a_process("init", "clicks.csv", "--target", "clicked", "--out", "new.yaml", heavy=OF_READERS)
    assert (done[0], done[3]) == (0, "[]"), done[2]


@pytest.mark.parametrize("changed", ["own code", "sources", "libraries", "an older run", "a bundle that does not tell"])
def test_a_model_that_others_have_loaded_is_loaded_before_it_is_promoted(folder, monkeypatch, changed):
    run, loaded = Path("runs/clicks/current").resolve(), []
    monkeypatch.setattr("gigabatch.pipeline.bundle.load_bundle", loaded.append)
    require_loadable(run)
    assert not loaded
    bundle = run / "model" / "bundle.json"
    if changed == "sources":
        monkeypatch.setattr("gigabatch.pipeline.runs.verify.source_hash", lambda modules: "other sources")
    elif changed == "libraries":
        monkeypatch.setattr("gigabatch.pipeline.runs.verify.versions", lambda: {"torch": "9.9"})
    elif changed == "an older run":
        manifest = json.loads((run / "manifest.json").read_text())
        del manifest["loaded_by"]
        (run / "manifest.json").write_text(json.dumps(manifest))
    else:
        content = json.loads(bundle.read_text()) | {"own_code": [{}]}
        monkeypatch.setattr("gigabatch.pipeline.runs.verify.verify_run", lambda path: loaded_by())
        bundle.write_text(json.dumps(content) if changed == "own code" else "{")
    require_loadable(run)
    assert loaded == [run / "model"]


def test_features_that_were_made_alone_are_found(folder):
    shutil.rmtree("artifacts")
    shutil.rmtree("runs")
    assert asked().features() is None
    assert main(["features", "--config", "clicks.yaml"]) == 0
    assert asked().features().skipped
    assert asked().run() is None


def test_the_run_is_that_of_the_rows_and_the_settings(folder):
    run = asked().run()
    assert run.path.resolve() == (folder / "runs/clicks/latest").resolve()
    assert run.skipped == ("features", "encode", "train", "evaluate")
    assert asked("train.epochs=2").run() is None  # another training
    assert asked("nightly.tolerance=0.1").run() is None  # the same one: but that configuration was never checked
    assert asked("train.batch_size=null").run() is None  # given, though it is the default
    assert asked("device=auto").run() is None
    Path("clicks.csv").write_text(f"city,price,clicked\n{ROWS}Rome,1,1\n")
    assert asked().run() is None
    assert asked().features() is None
    assert main(["train", "--config", "clicks.yaml"]) == 0
    assert asked().run().path != run.path
    Path("clicks.csv").write_text(f"city,price,clicked\n{ROWS}")
    assert asked().run() is None  # the last answer alone is kept, and found again by the pipeline
    assert main(["train", "--config", "clicks.yaml"]) == 0
    assert asked().run().path == run.path


def test_another_source_or_device_is_another_request(folder, monkeypatch):
    key = asked().key
    assert asked().key == key
    with monkeypatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "7")
        assert asked().key != key
    with monkeypatch.context() as patch:
        patch.setattr("gigabatch.pipeline.stages.asked.DEVICES", ("/dev/null",))
        assert asked().key != key
    with monkeypatch.context() as patch:
        patch.setattr("gigabatch.pipeline.stages.asked.source_hash", lambda modules: "other sources")
        assert asked().key != key


@pytest.mark.parametrize(
    "override",
    [
        "imports=[mine.py]",
        "preprocess.from=current",
        "train.start_from=current",
        "track.tensorboard=true",
        "track.mlflow={}",
        "model.kind=mine",
        "recipe=mine",
        "model=mine",
    ],
)
def test_what_follows_from_more_than_the_configuration_is_not_found_by_it(folder, override):
    assert asked(override).key is None
    assert asked(override).run() is None
    asked(override).remember()
    assert len(json.loads(Path("artifacts/requests.json").read_text())) == 1


def test_infinity_is_another_setting_than_null(folder):
    assert asked("model.dropout=.inf").key != asked("model.dropout=null").key
    assert asked("model.dropout=.inf").key == asked("model.dropout=.inf").key


def test_several_ranks_are_no_request(folder, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert asked().key is None


@pytest.mark.parametrize("stage", ["features", "encode", "train", "evaluate"])
def test_a_damaged_artifact_is_made_again(folder, stage, caplog):
    (artifact,) = (path for path in Path("artifacts", stage).iterdir() if path.name[0] != ".")
    damaged = max((path for path in artifact.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = damaged.read_bytes()
    damaged.unlink()  # a run's weights are the same file
    damaged.write_bytes(content[:-1])
    assert asked().run() is None
    assert f"file {damaged.relative_to(artifact)} is not what its manifest says. It was put aside" in caplog.text
    assert main(["train", "--config", "clicks.yaml"]) == 0
    assert asked().run() is not None


def test_a_damaged_run_is_mended(folder):
    run = asked().run().path
    report = (run / "report.html").read_text()
    (run / "report.html").unlink()
    (run / "report.html").write_text("damaged")
    assert asked().run().path == run
    assert (run / "report.html").read_text() == report
    manifest = (run / "manifest.json").read_text()
    (run / "manifest.json").write_text(manifest.replace('"made_from"', '"else"'))
    assert asked().run() is None
    shutil.rmtree(run)
    assert asked().run() is None


def test_latest_leads_to_the_run_again_and_one_that_none_was_promoted_over_is_left_to_the_pipeline(folder):
    home = folder / "runs" / "clicks"
    (home / "latest").unlink()
    run = asked().run()
    assert (home / "latest").resolve() == run.path.resolve()
    (home / "current").unlink()
    assert asked().run() is None
    assert main(["train", "--config", "clicks.yaml"]) == 0
    assert (home / "current").resolve() == run.path.resolve()


def test_a_mistake_is_told_as_before(folder, capsys):
    for command in ("train", "features", "evaluate"):
        capsys.readouterr()
        assert main([command, "--config", "clicks.yaml", "model.layrs=[4]"]) == 2
        assert "unknown key 'model.layrs'" in capsys.readouterr().err
        assert main([command, "--config", "clicks.yaml", "features.target=clicked"]) == 2
        assert "unknown key 'features.target'" in capsys.readouterr().err
        assert main([command, "--config", "clicks.yaml", "features.path=nowhere.csv"]) == 2
        assert "nowhere.csv" in capsys.readouterr().err


def test_features_in_local_time_are_those_of_the_rules_of_their_zone(folder, monkeypatch):
    """The time zone database is revised a few times a year, on a machine that keeps its artifacts."""
    Path("clicks.csv").write_text("city,price,clicked,at\na,1,0,2024-01-01T12:00\n")
    step = "features.steps=[{date_parts: {column: at, prefix: at, parts: [hour], zone: Europe/Berlin}}]"
    given = (step, "features.inputs={at: datetime}", "features.continuous=[price, at_hour]")
    keys, plain = asked(*given).features_key(), asked().features_key()
    assert asked(*given).features_key() == keys
    monkeypatch.setattr("gigabatch.features.columns.zones._ahead", lambda zone, moment: 7200)  # no winter time
    zones._changes.cache_clear()
    try:
        assert asked(*given).features_key() != keys
        assert asked().features_key() == plain
    finally:
        monkeypatch.undo()
        zones._changes.cache_clear()


def test_a_column_may_be_named_zone(folder):
    """Its type, or what a step is told of it, is no time zone."""
    Path("clicks.csv").write_text(f"zone,price,clicked\n{ROWS}")
    given = ["features.inputs={zone: string}", "features.categorical={zone: string}"]
    assert main(["features", "--config", "clicks.yaml", *given]) == 0


@pytest.mark.parametrize("run", ["latest", "no such run", "long" * 1_000])
def test_what_is_no_run_is_not_found(folder, run):
    path = Path("artifacts/requests.json")
    path.write_text(json.dumps({asked().key: run}))
    assert asked().run() is None


def test_a_run_in_the_folder_of_another_is_put_aside(folder, caplog):
    own = asked().run().path
    assert main(["train", "--config", "clicks.yaml", "seed=2"]) == 0
    other = asked("seed=2").run().path
    shutil.rmtree(own)
    shutil.copytree(other, own)
    assert asked().run() is None
    assert main(["train", "--config", "clicks.yaml"]) == 0
    assert "its files are those of another run. It is put aside" in caplog.text
    assert asked().run().summary["config"]["seed"] == 1


@pytest.mark.parametrize("damage", ["[", "[" * 200_000])
def test_a_damaged_list_of_requests_is_begun_anew(folder, caplog, damage):
    path = Path("artifacts/requests.json")
    path.write_text(damage)
    assert asked().run() is None
    assert f"{path} is damaged" in caplog.text
    assert main(["train", "--config", "clicks.yaml"]) == 0
    assert asked().run() is not None


def test_the_oldest_requests_are_forgotten(folder):
    path = Path("artifacts/requests.json")
    path.write_text(json.dumps({str(number): None for number in range(MOST_REQUESTS)}))
    asked().remember()
    assert list(json.loads(path.read_text())) == [*map(str, range(1, MOST_REQUESTS)), asked().key]


def test_a_list_that_cannot_be_written_is_told_and_changes_nothing(folder, monkeypatch, caplog):
    def refuse(*_):
        raise OSError("no space")

    monkeypatch.setattr("gigabatch.pipeline.store.remembered.atomic_write", refuse)
    asked("seed=2").remember()
    assert "requests.json could not be written (no space); the same command will take longer" in caplog.text
