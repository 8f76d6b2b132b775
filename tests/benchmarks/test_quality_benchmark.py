"""benchmarks.quality: metrics, intervals and ranks beside scikit-learn's and SciPy's, tables, runs that go on."""

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn import metrics

from benchmarks import quality
from benchmarks.quality import (
    NET_ROWS,
    SEARCH_SECONDS,
    SECONDS,
    SEEDS,
    TRIALS,
    chosen_config,
    claims_of,
    less_best,
    peer_rows,
    ranked,
    row_of,
    whole,
)
from benchmarks.quality_fits import (
    Fits,
    Peers,
    flat_lists,
    judged,
    ours,
    package_sources,
    pipeline_of,
    written,
)
from benchmarks.quality_peers import LOSSES, bounds, drawn, matrix, valid_loss
from benchmarks.quality_tables import TABLES, TEST_ROWS, plain_config

ROOT = Path(__file__).resolve().parents[2]
GENERATED = [table.name for table in TABLES.values() if table.rows and table.recipe == "table"]

# Answers the first job, and sleeps at the second; each process says where it was started.
SLOW = """#!{python}
import json, sys, time, os
import numpy as np
print(json.dumps({{"lightgbm": {{"lightgbm": "1"}}, "realmlp": {{"pytabkit": "1"}}}}), flush=True)
for line in sys.stdin:
    job = json.loads(line)
    if job["contender"] == "realmlp":
        time.sleep(60)
    np.save(job["scores"], np.array([0.2, 0.7]))
    answer = {{"valid_loss": 0.3, "train_seconds": 1.0, "process": os.getpid(), "trial": job["trial"]}}
    print(json.dumps(answer), flush=True)
"""


def test_metrics_of_chances_are_those_of_scikit_learn_and_a_loop():
    random = np.random.default_rng(0)
    scores = random.random(500)
    labels = (random.random(500) < scores**2).astype("float64")
    error = 0.0
    for low in range(15):
        inside = (scores > low / 15) & (scores <= (low + 1) / 15)
        error += abs(scores[inside].sum() - labels[inside].sum()) / 500
    # Confidence is P(1) and a hit is label 1 in these bins.
    expected = {
        "auc": metrics.roc_auc_score(labels, scores),
        "log_loss": metrics.log_loss(labels, scores),
        "ece": error,
    }
    assert judged("binary", scores, labels) == pytest.approx(expected, rel=1e-9)


def test_metrics_of_classes_are_those_of_scikit_learn():
    random = np.random.default_rng(1)
    scores = random.dirichlet(np.ones(4), 400)
    labels = np.array([random.choice(4, p=row) for row in scores])
    found = judged("multiclass", scores, labels.astype("float64"))
    assert next(iter(found)) == "log_loss"
    assert found["log_loss"] == pytest.approx(metrics.log_loss(labels, scores), rel=1e-9)
    assert found["accuracy"] == metrics.accuracy_score(labels, scores.argmax(1))
    assert found["auc_ovr"] == pytest.approx(metrics.roc_auc_score(labels, scores, multi_class="ovr"), rel=1e-9)
    confidence, hit, error = scores.max(1), scores.argmax(1) == labels, 0.0
    for low in range(15):
        inside = (confidence > low / 15) & (confidence <= (low + 1) / 15)
        error += abs(confidence[inside].sum() - hit[inside].sum()) / 400
    assert found["ece"] == pytest.approx(error, rel=1e-9)


def test_metrics_of_numbers_are_those_of_scikit_learn():
    random = np.random.default_rng(2)
    labels = random.normal(1e4, 50, 300)
    scores = labels + random.normal(0, 20, 300)
    expected = {"rmse": metrics.root_mean_squared_error(labels, scores), "r2": metrics.r2_score(labels, scores)}
    assert judged("regression", scores, labels) == pytest.approx(expected, rel=1e-9)


def test_the_reciprocal_rank_of_lists():
    scores, labels = np.array([0.9, 0.5, 0.1, 0.2, 0.8]), np.array([0.0, 1, 0, 1, 0])
    assert judged("binary", scores, labels, np.array([7, 7, 7, 9, 9]))["mrr"] == pytest.approx((1 / 2 + 1 / 2) / 2)


@pytest.mark.parametrize("task", LOSSES)
def test_the_valid_loss_of_peers_is_scikit_learns(task):
    random = np.random.default_rng(3)
    if task == "regression":
        labels, scores = random.normal(5, 2, 200), random.normal(5, 2, 200)
        expected = metrics.root_mean_squared_error(labels, scores)
    else:
        classes = 2 if task == "binary" else 3
        chances = random.dirichlet(np.ones(classes), 200)
        labels = random.integers(0, classes, 200)
        scores = chances[:, 1] if task == "binary" else chances
        expected = metrics.log_loss(labels, chances)
    assert valid_loss(task, scores, labels) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_the_interval_is_students(count):
    auc = [0.71, 0.72, 0.715, 0.73, 0.70][:count]
    fits = [{"auc": a, "log_loss": 0.5, "train_seconds": 1, "limit": 600, "rounds": None} for a in auc]
    low, high = stats.t.interval(0.95, count - 1, np.mean(auc), stats.sem(auc))
    row = row_of("adult", "ours", fits, "auc")
    assert row["auc_plus_minus"] == pytest.approx((high - low) / 2, abs=1e-5)
    assert row["auc"] == pytest.approx(np.mean(auc), abs=1e-5)


def rows(first, **values):
    return [{"table": "adult", "contender": name.replace("_", " "), first: value} for name, value in values.items()]


def test_ranks_are_by_the_first_metric_and_leave_out_what_has_none():
    given = rows("auc", ours=0.9, lightgbm_defaults=0.92, lightgbm_tuned=0.92, tabm_defaults=0.8)
    given += [
        {"table": "adult", "contender": "ours_conf", "auc": 0.99},
        {"contender": "realmlp", "cut_off": "over 9 s"},
    ]
    ranked(given, "auc")
    assert [row.get("rank") for row in given] == [3, 1.5, 1.5, 4, None, None]
    losses = rows("rmse", ours=3.0, lightgbm_defaults=5.0)
    ranked(losses, "rmse")
    assert [row["rank"] for row in losses] == [1, 2]


def test_claims_are_made_of_what_is_whole():
    beside_one = rows("auc", ours=0.93, lightgbm_tuned=0.929)
    ranked(beside_one, "auc")
    beside_one[1]["trials"] = TRIALS
    assert less_best(beside_one, "adult") is None, "CatBoost's best is not known"
    assert claims_of(beside_one, [], complete=False, searched=True) == {}
    whole = [*beside_one, *rows("auc", catboost_tuned=0.9315)]
    whole[-1]["trials"] = TRIALS
    ranked(whole, "auc")
    batches = rows("auc", small=0.78, other=0.77, large=0.7785)
    assert set(claims_of(whole, batches, complete=True, searched=False)) == {"large_batch_loss"}
    assert "mean_rank" not in claims_of(whole, batches, complete=False, searched=True)
    claims = claims_of(whole, batches, complete=True, searched=True)
    assert claims["adult_less_best"] == (pytest.approx(-0.0015), -0.001, False)
    assert claims["mean_rank"] == (2, 2, True)
    assert "adult_less_best, 4 members" not in claims, "nobody fitted it"
    of_four = {"table": "adult", "contender": "ours_ensemble", "auc": 0.932}
    ranked([*whole, of_four], "auc")
    beside = claims_of([*whole, of_four], batches, complete=True, searched=True)
    assert beside == claims | {"adult_less_best, 4 members": (pytest.approx(0.0005), -0.001, True)}
    assert claims["large_batch_loss"] == (pytest.approx(0.0015), 0.001, False)
    for less in ({"trials": TRIALS - 1}, {"out_of_time": 1}):
        cut = [*whole[:-1], {**whole[-1], **less}]
        assert set(claims_of(cut, [], complete=True, searched=True)) == set(), "a search that the clock ended"


@pytest.mark.parametrize(
    "less",
    [{"trials": 5}, {"seeds": 1}, {"seconds_per_fit": 1}, {"net_rows": 0}, {"seconds_of_search": 60}, {"quick": True}],
)
def test_a_run_that_gives_peers_less_is_not_whole(less):
    all_of_it = {"trials": TRIALS, "seeds": SEEDS, "seconds_per_fit": SECONDS, "net_rows": NET_ROWS, "quick": False}
    all_of_it |= {"seconds_of_search": SEARCH_SECONDS}
    assert whole(SimpleNamespace(**all_of_it))
    assert not whole(SimpleNamespace(**{**all_of_it, **less}))


def test_what_was_cut_off_says_its_own_limit():
    fits = [{"auc": 0.9, "limit": 600.0}, {"out_of_time": True, "cut_off": 40.0, "limit": 40.0}]
    assert row_of("adult", "realmlp defaults", fits, "auc")["cut_off"] == "over 40 s"


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "adult-1"
    folder.mkdir()
    (folder / "layout.json").write_text(json.dumps({"target": "y", "task": "binary", "group": None}))
    pd.DataFrame({"y": [0.0, 1.0]}).to_parquet(folder / "test.parquet")
    return folder


@pytest.fixture
def peers(tmp_path):
    script = tmp_path / "python"
    script.write_text(SLOW.format(python=sys.executable))
    script.chmod(0o755)
    with Peers(script) as peers:
        yield peers


def test_a_fit_of_the_file_is_not_asked_for_again(tmp_path, folder, peers):
    def fit(trial, limit=600):
        return Fits(tmp_path, 1, limit).peer(peers, folder, "lightgbm", trial, 1)

    first = fit(1)
    assert fit(1) == fit(1, limit=900) == first
    assert fit(2)["key"] != first["key"]
    peers.versions["lightgbm"] = {"lightgbm": "2"}
    assert fit(1)["key"] != first["key"]
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 3


def test_fits_of_peers_are_taken_from_what_is_committed_on_another_machine(tmp_path, folder, peers, monkeypatch):
    kept = tmp_path / "committed.jsonl"
    monkeypatch.setattr("benchmarks.quality_fits.KEPT", kept)
    fits = Fits(tmp_path / "one", 1, 600)
    made = [fits.peer(peers, folder, "lightgbm", trial, 1) for trial in (2, 1)]
    fits.keep("a run of ours", {"auc": 0.5})
    fits.commit_peers()
    assert sorted(line["trial"] for line in map(json.loads, kept.read_text().splitlines())) == [1, 2]
    assert all("cores" in line["machine"] for line in made)
    other = Fits(tmp_path / "two", 1, 600)
    assert [other.peer(peers, folder, "lightgbm", trial, 1) for trial in (2, 1)] == made
    assert not other.file.exists()
    quick = Fits(tmp_path / "three", 1, 600, quick=True)
    quick.peer(peers, folder, "lightgbm", 5, 1)
    quick.commit_peers()
    assert len(kept.read_text().splitlines()) == 2


def test_a_search_ends_with_its_trials_or_its_seconds(monkeypatch):
    """Of trials of 40 s each, 100 s have room for three, of which one is the defaults."""
    monkeypatch.setattr("benchmarks.quality.pq.read_metadata", lambda _: SimpleNamespace(num_rows=10))
    asked = []

    class Made:
        def peer(self, peers, folder, contender, trial, seed):
            asked.append((trial, seed))
            return {"auc": 0.5 + trial / 100, "valid_loss": 1 / (1 + trial), "train_seconds": 40.0}

    class Folder:
        def __truediv__(self, name):
            return SimpleNamespace(read_text=lambda: json.dumps({"task": "binary"}))

    for seconds, trials in ((100, 2), (4000, 4)):
        flags = SimpleNamespace(trials=4, seconds_of_search=seconds, net_rows=5)
        _, tuned = peer_rows(Made(), None, Folder(), "adult", "lightgbm", range(1, 3), flags)
        assert (tuned["trials"], tuned["trial"]) == (trials, trials)
        assert [trial for trial, _ in asked[: trials + 1]] == list(range(trials + 1))
        asked.clear()


def test_a_run_of_ours_is_kept_by_the_sources_that_were_imported(tmp_path, folder, monkeypatch):
    monkeypatch.setattr("benchmarks.quality_fits.ours", lambda *_: ({"train_seconds": 1.0}, np.array([0.2, 0.7])))
    fits = Fits(tmp_path, 1, 600)
    monkeypatch.setattr("benchmarks.quality_fits.package_sources", lambda: "later")
    assert "later" not in fits.our("ours", folder, folder, 1)["key"]


def test_the_sources_are_the_packages_alone(tmp_path):
    for folder in ("models", "docs"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "one.py").write_text("1")
    first = package_sources(tmp_path)
    (tmp_path / "docs/one.py").write_text("2")
    assert package_sources(tmp_path) == first
    (tmp_path / "models/one.py").rename(tmp_path / "models/two.py")
    renamed = package_sources(tmp_path)
    (tmp_path / "models/two.py").write_text("2")
    assert len({first, renamed, package_sources(tmp_path)}) == 3


def test_what_init_chooses_is_a_contender_of_its_own(tmp_path):
    table = TABLES["small"]
    plain = plain_config(table, tmp_path, quick=True)
    folder = written(table, tmp_path, quick=True)
    found = json.loads(chosen_config(table, tmp_path, folder, quick=True).read_text())
    # rows of all three splits are at least the 10,000 of the test, and `small` has id columns
    assert found.pop("model") == {"kind": "tabm"}
    assert found.pop("preprocess") == {"scale": "robust"}
    assert found.pop("train") == {"epochs": 15}
    assert found == json.loads(plain.read_text())


def test_a_fit_over_its_time_is_ended_and_made_again_where_there_is_more(tmp_path, folder, peers):
    before = Fits(tmp_path, 1, 600).peer(peers, folder, "lightgbm", 0, 1)["process"]
    cut = Fits(tmp_path, 1, 0.2).peer(peers, folder, "realmlp", 0, 1)
    assert cut["cut_off"] == 0.2
    assert row_of("adult", "realmlp defaults", [cut], "auc")["cut_off"] == "over 0.2 s"
    assert Fits(tmp_path, 1, 0.1).peer(peers, folder, "realmlp", 0, 1) == cut
    assert Fits(tmp_path, 1, 0.3).peer(peers, folder, "realmlp", 0, 1)["cut_off"] == 0.3
    after = Fits(tmp_path, 1, 600).peer(peers, folder, "lightgbm", 0, 2)["process"]
    assert after != before, "a process that was ended is started anew"


def test_without_the_peers_environment_it_says_what_to_do(tmp_path):
    with pytest.raises(SystemExit, match="make quality-env"):
        Peers(tmp_path / "python")


@pytest.mark.parametrize("contender", ["lightgbm", "catboost"])
def test_trials_are_drawn_by_number_and_the_first_has_the_defaults(contender):
    assert drawn(contender, 0) == {}
    assert drawn(contender, 3) == drawn(contender, 3) != drawn(contender, 4)
    assert bounds(contender, quick=True)["rounds"] < bounds(contender)["rounds"]


def test_networks_have_no_search():
    with pytest.raises(ValueError, match="no search"):
        drawn("tabm", 1)
    assert bounds("tabm") == {}


def test_networks_read_nulls_as_the_median_and_a_flag():
    train = pd.DataFrame({"x": [1.0, np.nan, 3, 8], "whole": [1.0, 2, 3, 4], "c": ["a", None, "b", "a"]})
    test = pd.DataFrame({"x": [np.nan, 5.0], "whole": [2.0, 9], "c": ["z", None]})
    layout = {"categorical": ["c"], "continuous": ["x", "whole"]}
    found = matrix("realmlp", layout, train, test)
    assert found["x"].tolist() == [3, 5]
    assert found["x is null"].tolist() == [1, 0]
    assert "whole is null" not in found
    assert found["c"].tolist() == ["z", "<null>"]
    assert matrix("lightgbm", layout, train, test)["c"].isna().tolist() == [True, False]


@pytest.mark.parametrize("contender", ["lightgbm", "catboost", "realmlp"])
def test_whole_numbers_are_the_same_categories_beside_nulls(contender):
    layout = {"categorical": ["shop"], "continuous": []}
    train = pd.DataFrame({"shop": [7, 12, 7]})
    found = matrix(contender, layout, train, pd.DataFrame({"shop": [12.0, np.nan, 7.0]}))["shop"]
    assert found.astype(object).tolist()[::2] == ["12", "7"]
    assert found.isna().tolist() == [False, contender == "lightgbm", False]


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_table_is_the_same_each_time(tmp_path, name):
    one, other = (plain_config(TABLES[name], tmp_path / side, quick=True).parent for side in "ab")
    for split, count in (("train", TABLES[name].quick_rows), ("test", TEST_ROWS)):
        first, second = (pd.read_parquet(folder / f"{split}.parquet") for folder in (one, other))
        pd.testing.assert_frame_equal(first, second)
        assert len(first) == count
    features = json.loads((one / "table.yaml").read_text())["features"]
    named = {*features["categorical"], *features["continuous"], *features["targets"], *features.get("lists", ())}
    assert named == set(first.columns), "every column has a role"


def main(folder, *flags):
    """What `python -m benchmarks.quality` prints with these flags, in this process."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", ["benchmarks.quality", *flags, "--device", "cpu", "--cache", str(folder)])
        quality.main()
    return printed.getvalue()


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """The cache of a quick run, and what it printed."""
    folder = tmp_path_factory.mktemp("quality")
    return folder, main(folder, "--quick", "--contenders", "ours", "--out", str(folder / "out"))


@pytest.mark.parametrize("name", ["small", "multiclass", "regression"])
def test_the_valid_loss_of_ours_is_scikit_learns(quick, name):
    folder, _ = quick
    path = plain_config(TABLES[name], folder, quick=True)
    row, _ = ours(path, folder, "cpu", 1)  # trained by the quick run
    features = pipeline_of(path, folder, "cpu", "seed=1").features()
    valid = features.frame("valid")
    found, labels = features.train().bundle().predict(valid).to_numpy("float64"), valid[features.schema.targets[0].name]
    if name == "regression":
        expected = metrics.root_mean_squared_error(labels, found[:, 0])
    else:
        if name == "multiclass":
            found = found / found.sum(1, keepdims=True)  # single precision, of which scikit-learn warns
        expected = metrics.log_loss(labels, found, labels=range(max(found.shape[1], 2)))
    assert row["valid_loss"] == pytest.approx(expected, rel=1e-4)


def test_a_quick_run_of_every_task(quick):
    folder, printed = quick
    result = json.loads(printed.splitlines()[-1])
    found = {row["table"]: row for row in result["details"]["rows"]}
    assert found["small"]["auc"] > 0.6
    assert found["regression"]["r2"] > 0.7
    assert found["multiclass"]["accuracy"] > 0.5  # the largest class has .36
    assert result["claims"] == {}, "quick runs judge nothing"
    assert len(list((folder / "out").iterdir())) == 1


def test_a_contender_that_is_not_known_is_refused(tmp_path):
    with pytest.raises(SystemExit, match=r"unknown contender\(s\) adlut\. Known: "):
        main(tmp_path, "--contenders", "adlut")


def test_a_table_that_is_not_known_is_refused_by_the_command(tmp_path):
    command = [sys.executable, "-m", "benchmarks.quality", "--tables", "adlut", "--cache", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "adlut" in done.stderr
    assert "Known: " in done.stderr


def test_lists_become_columns_for_peers():
    train = pd.DataFrame({"item": ["a", "b"], "history": [["a", "a", "b"], []]})
    frame = pd.DataFrame({"item": ["b", "a", "z"], "history": [["z", "b", "b", "a"], [], ["b"]]})
    flat = flat_lists(train, frame, "history", "item")
    assert flat.columns.tolist() == [
        "history length", "history -1", "history -2", "history -3", "history has item", "history a", "history b",
    ]  # fmt: skip
    assert flat["history -1"].fillna("none").tolist() == ["a", "none", "b"]
    assert flat["history -3"].fillna("none").tolist() == ["b", "none", "none"]
    assert flat["history has item"].tolist() == [2, 0, 0]
    assert flat[["history length", "history a", "history b"]].to_numpy().tolist() == [[4, 1, 2], [0, 0, 0], [1, 0, 1]]
