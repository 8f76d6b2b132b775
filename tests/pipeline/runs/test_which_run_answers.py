"""Which run a command uses, how it is told, that it is whole, and what lists and changes it."""

import json
import logging
import shutil
from pathlib import Path

import pandas as pd
import pytest
import sklearn.metrics as sk

from gigabatch import Pipeline
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.config.config import load_config
from gigabatch.pipeline.embedding import embed
from gigabatch.pipeline.export import export
from gigabatch.pipeline.nightly.nightly import require_whole_current, run_nightly
from gigabatch.pipeline.runs.find import find_run, home_of, run_link
from gigabatch.pipeline.runs.listing import list_runs
from gigabatch.pipeline.runs.pointers import RunError, read_pointers
from gigabatch.pipeline.runs.promote import promote_by_hand, rollback
from gigabatch.pipeline.runs.record import append_record
from gigabatch.pipeline.runs.verify import verify_run
from gigabatch.pipeline.serving.errors import ServingError
from gigabatch.pipeline.serving.http import server
from gigabatch.pipeline.serving.served import load_served
from gigabatch.pipeline.stages import score, update
from gigabatch.pipeline.stages.finished import Run
from tests.pipeline.conftest import threads_of_torch
from tests.pipeline.read_only import read_only, unreadable
from tests.pipeline.tiny_recipe import write_day

SHORT = ("seed=5", "train.epochs=1")
COLD = ("nightly.start=cold",)


class Taken(Exception):
    """Carries the folder that a command was about to load."""


def taken(path, *_, **__):
    raise Taken(path)


@pytest.fixture(scope="module")
def made(trained, tiny_in, tmp_path_factory):
    """A promoted run, and one that was trained later; to be copied."""
    tiny = tiny_in(tmp_path_factory.mktemp("two") / "tiny")
    shutil.copytree(trained[0].folder.with_name("untouched"), tiny.folder, symlinks=True, dirs_exist_ok=True)
    with threads_of_torch(1):
        later = tiny_in(tiny.folder).train(*SHORT).path
    return tiny, later.name


@pytest.fixture
def two(tiny, made):
    for name in ("artifacts", "runs"):
        shutil.copytree(made[0].folder / name, tiny.folder / name, symlinks=True)
    return tiny, read_pointers(tiny.home).current, (tiny.home / made[1]).resolve()


def test_the_first_run_that_is_trained_is_promoted_and_no_later_one(two, capsys):
    tiny, first, later = two
    assert (first, later) == ((tiny.home / "current").resolve(), (tiny.home / "latest").resolve())
    assert first != later
    line = json.loads((tiny.home / "nightly.jsonl").read_text())
    assert (line["action"], line["run"], line["exit_code"]) == ("train", first.name, 0)
    tiny.train(*SHORT).show()
    expected = f"current {first.name} (gigabatch promote {later.name} makes this run current)"
    assert capsys.readouterr().out.splitlines()[-1] == expected
    tiny.train().show()
    assert capsys.readouterr().out.splitlines()[-1] == "current this run"


COMMANDS = {
    "evaluate": (score, "load_bundle", []),
    "score": (score, "load_bundle", []),
    "export": (export, "load_bundle", []),
    "embed": (embed, "load_bundle", []),
    "update": (update.Preprocessor, "load", ["--data", __file__]),  # a file that is there
    "serve": (server, "load_served", ["--port", "0"]),
}


@pytest.fixture(scope="module")
def after_a_night(made, tiny_in, tmp_path_factory):
    """As `two` after a night that kept its model out; tests only read it."""
    tiny = tiny_in(tmp_path_factory.mktemp("night") / "tiny")
    for name in ("raw", "artifacts", "runs"):
        shutil.copytree(made[0].folder / name, tiny.folder / name, symlinks=True)
    later = (tiny.home / "latest").resolve()
    assert run_nightly(tiny.config, [*SHORT, *COLD, "train.lr_max=1e-6", "nightly.min_window_rows=10"]) == 10
    return tiny, (tiny.home / "current").resolve(), later


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_uses_the_promoted_run_unless_told_another(after_a_night, monkeypatch, caplog, command):
    """After a night that kept the old model, they all used the rejected one (P1)."""
    tiny, first, later = after_a_night
    kept = (tiny.home / "latest").resolve()
    assert len({first, later, kept}) == 3
    owner, name, more = COMMANDS[command]
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(owner, name, taken)
    choices = {"current": first, "latest": kept, later.name: later, str(later): later}
    for choice, expected in {"": first, **choices}.items():
        with pytest.raises(Taken) as found:
            main([command, "--config", str(tiny.config), *(["--run", choice] if choice else []), *more])
        assert str(found.value).startswith(str(expected)), choice
        if command != "serve" and expected == first:
            assert f"run {first.name} (current) of tiny: {first}" in caplog.text
        caplog.clear()


def test_results_say_which_run_they_are_of(two, tmp_path, capsys):
    tiny, first, later = two
    config = ["--config", str(tiny.config)]
    for choice, run, states in ((None, first, ["current"]), ("latest", later, ["latest"])):
        chosen = [] if choice is None else ["--run", choice]
        assert main(["evaluate", *config, "--out", str(tmp_path / "evaluation"), *chosen]) == 0
        summary = json.loads((tmp_path / "evaluation" / "summary.json").read_text())
        assert (summary["id"], summary["states"]) == (run.name, states)
        assert main(["score", *config, "--out", str(tmp_path / "scores.csv"), *chosen]) == 0
        assert f"by run {run.name} ({states[0]})" in capsys.readouterr().out


def test_a_run_that_is_not_there_is_an_error_that_lists_those_that_are(two):
    tiny, first, later = two
    config = load_config(tiny.config)
    with pytest.raises(RunError, match=rf"run nothing: no model there.*an id of .*{first.name}"):
        find_run(config, "nothing")
    with pytest.raises(RunError, match=r"previous: no model there"):
        find_run(config, "previous")
    (tiny.folder / "empty").mkdir()
    with pytest.raises(RunError, match=r"empty: no model there"):
        find_run(config, tiny.folder / "empty")
    with pytest.raises(RunError, match="a run's id is needed"):
        find_run(config, "")
    assert run_link(config, "./current") == Path("current")  # a folder here, not the link of that name
    shutil.rmtree(first)
    with pytest.raises(RunError, match=r"runs/tiny/current leads to .* which is not there"):
        find_run(config)
    assert find_run(config, "latest").path == later


# Damage


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "a bit of the weights": lambda run: flip(run / "model" / "weights.safetensors"),
    "cut weights": lambda run: (run / "model" / "weights.safetensors").write_bytes(b"12"),
    "a bit of a vocabulary": lambda run: flip(run / "model" / "preprocessor" / "vocabulary-000.parquet"),
    "a bit of bundle.json": lambda run: flip(run / "model" / "bundle.json"),
    "no model": lambda run: shutil.rmtree(run / "model"),
    "no summary": lambda run: (run / "summary.json").unlink(),
    "half a summary": lambda run: (run / "summary.json").write_text("{"),
    "no curve": lambda run: (run / "metrics.jsonl").unlink(),
    "no manifest": lambda run: (run / "manifest.json").unlink(),
    "a manifest of nothing": lambda run: (run / "manifest.json").write_text('{"files": {}}'),
    "an old manifest": lambda run: (run / "manifest.json").write_text("{}"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_run_is_used_by_no_command_and_mended_by_train(finished, capsys, damage):
    """R1, P19: it was scored, promoted and served, and train skipped every stage and mended nothing."""
    run = finished.latest().path
    (run / "embeddings").mkdir()
    (run / "embeddings" / "vectors.npy").write_text("stored for the service")
    DAMAGE[damage](run)
    with pytest.raises(RunError, match=rf"run .*{run.name}.*gigabatch train"):
        find_run(load_config(finished.config))
    assert main(["score", "--config", str(finished.config)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert main(["runs", "--config", str(finished.config)]) == 0
    assert main(["train", "--config", str(finished.config)]) == 0
    verify_run(run)
    assert (run / "embeddings" / "vectors.npy").read_text() == "stored for the service"
    assert main(["score", "--config", str(finished.config)]) == 0
    assert len(list(finished.home.glob(".damaged-*"))) == 1


def test_the_files_of_another_run_are_used_by_no_command(two, tmp_path, capsys):
    tiny, first, later = two
    shutil.rmtree(first)
    shutil.copytree(later, first)
    config = load_config(tiny.config)
    said = rf"run {first}: its files are those of another run, {later.name}\."
    with pytest.raises(RunError, match=said):
        find_run(config)
    with pytest.raises(RunError, match=said):
        promote_by_hand(config, first.name)
    with pytest.raises(RunError, match=said):
        require_whole_current(tiny.home)
    with pytest.raises(ServingError, match=said):
        load_served(first)
    assert {row["run"]: row["state"] for row in list_runs(config)}[first.name] == f"current, files of {later.name}"
    for command in (["score"], ["serve", "--port", "0"]):
        assert main([*command, "--config", str(tiny.config)]) == 2
        assert f"its files are those of another run, {later.name}" in capsys.readouterr().err
    copy = shutil.copytree(later, tmp_path / "copy")  # of another name, which is told
    assert (find_run(config, str(copy)).path, load_served(copy).bundle_id) == (copy, "copy")


def test_what_others_add_to_a_run_is_no_damage(finished):
    assert main(["score", "--config", str(finished.config)]) == 0
    assert main(["evaluate", "--config", str(finished.config)]) == 0
    verify_run(finished.latest().path)


# By hand


def test_a_run_is_promoted_by_hand_and_the_one_before_is_kept(two, capsys):
    tiny, first, later = two
    assert main(["promote", later.name, "--config", str(tiny.config)]) == 0
    assert capsys.readouterr().out == f"Promoted by hand: {later.name} is current, {first.name} was it before.\n"
    found = read_pointers(tiny.home)
    assert (found.current, found.previous) == (later, first)
    line = json.loads((tiny.home / "nightly.jsonl").read_text().splitlines()[-1])
    assert (line["action"], line["run"], line["exit_code"]) == ("promote", later.name, 0)
    assert main(["promote", "--config", str(tiny.config), "latest"]) == 0
    assert capsys.readouterr().out == f"Nothing to do: {later.name} is current already.\n"
    assert main(["rollback", "--config", str(tiny.config)]) == 0
    assert read_pointers(tiny.home).current == first
    assert main(["unblock", later.name, "--config", str(tiny.config)]) == 0
    assert read_pointers(tiny.home).blocked == {}


def test_a_run_of_the_same_weights_takes_the_place_of_the_current_one_alone(two):
    tiny, first, later = two
    config = load_config(tiny.config)
    promote_by_hand(config, later.name)
    same = tiny.train(*SHORT, "evaluate.calibration_bins=5").path.resolve()
    promote_by_hand(config, same.name)
    found = read_pointers(tiny.home)
    assert (found.current, found.previous) == (same, first)


def test_a_damaged_run_is_not_promoted_nor_one_of_elsewhere(two, tmp_path):
    tiny, first, later = two
    config = load_config(tiny.config)
    elsewhere = shutil.copytree(later, tmp_path / "elsewhere")
    with pytest.raises(RunError, match="is no run of"):
        promote_by_hand(config, str(elsewhere))
    flip(later / "model" / "weights.safetensors")
    with pytest.raises(RunError, match=r"weights\.safetensors is not what"):
        promote_by_hand(config, later.name)
    assert read_pointers(tiny.home).current == first


def test_a_rollback_brings_back_the_one_before_also_where_the_current_one_is_gone(two):
    tiny, first, later = two
    config = load_config(tiny.config)
    promote_by_hand(config, later.name)
    shutil.rmtree(later)
    rollback(config)
    found = read_pointers(tiny.home)
    assert (found.current, list(found.blocked)) == (first, [later.name])


@pytest.mark.parametrize(
    "change", [rollback, lambda config: promote_by_hand(config, read_pointers(home_of(config)).previous.name)]
)
def test_another_run_takes_the_place_of_one_that_the_disk_does_not_give(two, change):
    tiny, first, later = two
    config = load_config(tiny.config)
    promote_by_hand(config, later.name)
    with unreadable(later / "model" / "weights.safetensors"):
        change(config)
    found = read_pointers(tiny.home)
    assert (found.current, found.previous) == (first, later)


def test_a_run_that_was_rolled_back_is_used_where_it_is_named_and_told_so(two, caplog):
    tiny, _, later = two
    config = load_config(tiny.config)
    promote_by_hand(config, later.name)
    rollback(config)
    caplog.clear()
    for choice, warned in (("current", 0), (later.name, 1)):
        found = find_run(config, choice)
        warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert len(warnings) == warned
    assert found.path == later
    assert warnings[0].endswith(f"was rolled back; gigabatch promote {later.name} would make it current again")


def test_a_promotion_by_hand_in_place_of_a_run_that_is_gone_keeps_the_one_before_it(two):
    tiny, first, later = two
    config = load_config(tiny.config)
    promote_by_hand(config, later.name)
    last = tiny.train(*SHORT, "seed=7").path.resolve()
    shutil.rmtree(later)
    promote_by_hand(config, last.name)
    found = read_pointers(tiny.home)
    assert (found.current, found.previous) == (last, first)
    (tiny.home / "current").unlink()
    promote_by_hand(config, first.name)
    assert read_pointers(tiny.home).previous is None
    with pytest.raises(RunError, match="no model before"):
        rollback(config)


def test_a_period_of_dates_is_listed_as_dates(tmp_path):
    """The first of 500 hours, and the last but the tenth of the rows that are the test split."""
    moments = pd.date_range("2026-03-01T00:30", periods=500, freq="h")
    rows = {"when": moments.strftime("%Y-%m-%d %H:%M:%S"), "shop": ["a", "b"] * 250, "sold": [0, 1, 1, 0] * 125}
    pd.DataFrame(rows).to_csv(tmp_path / "rows.csv", index=False)
    features = {"path": str(tmp_path / "rows.csv"), "categorical": ["shop"], "time": "when"}
    features["targets"] = {"sold": {"task": "binary"}}
    text = {"name": "dated", "recipe": "table", "device": "cpu", "features": features}
    text |= {"artifacts": str(tmp_path / "artifacts"), "runs": str(tmp_path / "runs")}
    text |= {"train": {"epochs": 1}, "evaluate": {"baselines": [], "importance": False}}
    (tmp_path / "dated.yaml").write_text(json.dumps(text))  # JSON is YAML
    config = load_config(tmp_path / "dated.yaml")
    with threads_of_torch(1):
        Pipeline(config).train()
    (row,) = list_runs(config)
    assert list_runs(tmp_path / "dated.yaml") == list_runs(text) == [row]
    assert (row["trained_from"], row["trained_until"]) == ("2026-03-01T00:30:00+00:00", "2026-03-19T17:30:00+00:00")


def test_runs_are_listed_with_date_state_metrics_and_the_period_of_their_data(two, capsys):
    tiny, first, later = two
    assert run_nightly(tiny.config, [*SHORT, *COLD, "features.shuffled=true", "nightly.min_window_rows=10"]) == 10
    promote_by_hand(load_config(tiny.config), later.name)
    rollback(load_config(tiny.config))
    rows = {row["run"]: row for row in list_runs(load_config(tiny.config))}
    assert rows[first.name]["state"] == "current"
    assert rows[later.name]["state"] == "previous, blocked"
    summary = json.loads((first / "summary.json").read_text())
    assert rows[first.name]["auc"] == summary["metrics"]["test"]["auc"]
    assert rows[first.name]["created_utc"] == summary["created_utc"]
    assert (rows[first.name]["trained_from"], rows[first.name]["trained_until"]) == ("0", "539")
    assert "negatives" not in rows[first.name]
    summary["config"]["train"]["negatives"] = {"per_positive": 4, "kind": "popularity"}
    (first / "summary.json").write_text(json.dumps(summary))
    rows = {row["run"]: row for row in list_runs(load_config(tiny.config))}
    assert (rows[first.name]["negatives"], rows[later.name]["negatives"]) == ("4, popularity", None)
    shutil.rmtree(first / "model")
    assert {row["run"]: row["state"] for row in list_runs(load_config(tiny.config))}[first.name] == "current, damaged"
    shutil.rmtree(first)
    assert {row["run"]: row["state"] for row in list_runs(load_config(tiny.config))}[first.name] == "current, missing"
    assert main(["runs", "--config", str(tiny.config)]) == 0
    out = capsys.readouterr().out
    assert "trained_until" in out or "trained until" in out
    assert "previous, blocked" in out
    assert main(["runs", "--config", str(tiny.config), "name=other"]) == 0
    assert capsys.readouterr().out == f"no runs in {tiny.folder / 'runs' / 'other'}\n"


def test_a_run_that_a_night_kept_out_is_listed_as_kept(finished):
    write_day(finished.raw, 1)
    assert run_nightly(finished.config, ["features.shuffled=true", "train.epochs=1", *COLD]) == 10
    states = {row["run"]: row["state"] for row in list_runs(load_config(finished.config))}
    assert states[finished.latest().path.name] == "latest, kept"


def test_the_current_run_is_not_listed_as_kept_by_a_night_that_trained_it_again(finished):
    run = finished.latest().path.name
    append_record(finished.home, "nightly", 10, "Kept: nothing changed.", run, champion=run)
    assert states(finished) == [(run, "current, latest")]


def states(tiny) -> list[tuple[str, str]]:
    return sorted((row["run"], row["state"]) for row in list_runs(load_config(tiny.config)))


def test_a_copy_that_followed_links_lists_each_run_once_and_says_what_stands_for_a_link(finished):
    """`cp -rL` makes folders of `current` and `latest`, which were listed as two runs more."""
    run = finished.latest().path
    aside = finished.home.rename(finished.home.with_name("aside"))
    shutil.copytree(aside, finished.home)
    both = "current (a folder, not a link), latest (a folder, not a link)"
    assert states(finished) == [(run.name, both)]
    shutil.rmtree(finished.home / run.name)
    assert states(finished) == [("current", both)]  # as --run takes it
    assert main(["gc", "--config", str(finished.config), "--keep", "0"]) == 0
    assert find_run(load_config(finished.config)).path == finished.home / "current"


def test_a_run_that_is_gone_is_listed_once_with_all_that_names_it(two):
    """It had a row for each link, and none for its block."""
    tiny, first, later = two
    promote_by_hand(load_config(tiny.config), later.name)
    with open(tiny.home / "nightly.jsonl", "a") as file:
        file.write(json.dumps({"run": later.name, "exit_code": 10}) + "\n")
    shutil.rmtree(later)
    assert states(tiny) == sorted([(first.name, "previous"), (later.name, "current, latest, kept, missing")])
    rollback(load_config(tiny.config))
    (tiny.home / "latest").unlink()
    (tiny.home / "previous").unlink()
    gone = next(state for run, state in states(tiny) if run == later.name)
    assert gone == "blocked, kept, missing"


def test_a_run_that_may_not_be_read_is_not_listed_as_damaged(two):
    tiny, first, later = two
    with unreadable(later / "summary.json"):
        assert states(tiny) == sorted([(first.name, "current"), (later.name, "latest, unreadable")])
    with unreadable(first / "model"):
        assert states(tiny) == sorted([(first.name, "current, unreadable"), (later.name, "latest")])


def test_a_link_that_leads_to_a_run_of_elsewhere_is_listed_by_its_folder(two, tmp_path):
    """Though it answers, no row was current."""
    tiny, first, later = two
    elsewhere = first.rename(tmp_path / "elsewhere")
    (tiny.home / "current").unlink()
    (tiny.home / "current").symlink_to(elsewhere)
    assert states(tiny) == sorted([(str(elsewhere), "current"), (later.name, "latest")])
    (tiny.home / "latest").unlink()
    (tiny.home / "latest").symlink_to(tmp_path)  # where no run is
    assert (str(tmp_path), "latest, damaged") in states(tiny)


def test_a_link_that_leads_nowhere_says_where_it_led(two):
    tiny, _, later = two
    shutil.rmtree(later)
    with pytest.raises(RunError, match=rf"run {tiny.home}/latest: it leads to {later}, which is not there"):
        find_run(load_config(tiny.config), "latest")


# A folder that may not be written


@pytest.mark.parametrize(
    ("line", "code"), [("train", 2), ("train evaluate.calibration_bins=5", 2), ("promote {later}", 2), ("nightly", 40)]
)
def test_runs_that_may_not_be_written_are_named_by_their_folder(two, capsys, line, code):
    """The links' temporary names were all that was said: [Errno 13] Permission denied: '.latest-4711-0a1b2c3d'."""
    tiny, first, later = two
    with read_only(tiny.home):
        assert main([*line.format(later=later.name).split(), "--config", str(tiny.config), "-q"]) == code
    said = capsys.readouterr().err
    expected = f"{tiny.home}: Permission denied, so nothing can be written there. Make it writable for this user, or"
    assert f"gigabatch: [Errno 13] {expected}" in said.splitlines()[-1]
    assert read_pointers(tiny.home).current == first


@pytest.mark.parametrize("command", ["evaluate", "score", "score --input {raw}"])
def test_what_is_written_into_a_run_that_may_not_be_written_is_refused_before_the_work(
    two, capsys, monkeypatch, command
):
    """It computed all, and ended in [Errno 30] Read-only file system."""
    tiny, first, _ = two
    line = [*command.format(raw=tiny.raw / "day-000.csv").split(), "--config", str(tiny.config), "-q"]
    before = sorted(first.rglob("*"))
    with read_only(first), monkeypatch.context() as patch:
        patch.setattr("gigabatch.pipeline.stages.score.load_bundle", lambda *_: pytest.fail("the work began"))
        assert main(line) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"{first}: Permission denied, so nothing can be written there." in said
    assert "option --out" in said
    assert sorted(first.rglob("*")) == before


def test_out_of_a_run_that_may_not_be_written_is_another_folder(two, tmp_path):
    tiny, first, _ = two
    for command, out in (("evaluate", tmp_path / "new" / "there"), ("score", tmp_path / "new" / "scores.csv")):
        with read_only(first):
            assert main([command, "--config", str(tiny.config), "-q", "--out", str(out)]) == 0
        assert out.exists()


# The first run of all


@pytest.mark.parametrize("inverted", [False, True])
def test_a_first_run_that_is_no_better_than_a_constant_is_promoted_with_a_warning(tiny, caplog, inverted):
    raw = tiny.raw / "day-000.csv"
    day = pd.read_csv(raw)
    day["clicked"] = day["clicked"].where((not inverted) | (day.index < 2700), 1 - day["clicked"])  # of the test split
    day.to_csv(raw, index=False)
    assert main(["train", "--config", str(tiny.config), "evaluate.baselines=[constant]"]) == 0
    run = read_pointers(tiny.home).current
    assert run == tiny.latest().path
    scores = Run(run).bundle().predict(day.iloc[2700:])["clicked"]
    auc = sk.roc_auc_score(day["clicked"].iloc[2700:], scores)
    assert (auc < 0.5) == inverted
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    decision = json.loads((tiny.home / "nightly.jsonl").read_text())["decision"]
    words = f"It is no better than a constant on the test split (auc {auc:.4g} against 0.5)"
    assert (words in decision) == inverted
    assert any(text.startswith(f"run {run.name} is current, for none was. {words}") for text in warned) == inverted
