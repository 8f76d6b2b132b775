"""benchmarks/end_to_end as a GPU box runs it, as far as that goes without one."""

import json
import subprocess
import sys
from argparse import Namespace
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from benchmarks import end_to_end, pairs
from benchmarks.end_to_end_ours import Clock, Recipe, once, read_splits, train_rows, warm_up_rows

ROOT = Path(__file__).resolve().parents[2]
# What the offline GPU box has of what we use; whatever else is installed here is hidden from the benchmark.
BOX = (
    "torch",
    "triton",
    "numpy",
    "pandas",
    "pyarrow",
    "numba",
    "scipy",
    "scikit-learn",
    "rich",
    "typer",
    "xxhash",
    "safetensors",
)


@pytest.mark.parametrize("rows", [1, 24, 25, 26, 124, 125, 126, 1000, 20_000, 99_999])
def test_train_rows_are_those_that_do_not_validate(rows):
    assert train_rows(rows) == sum(row // 25 % 5 != 0 for row in range(rows))


@pytest.mark.parametrize("rows", [60_000, 1_000_000, 42_800_000])
@pytest.mark.parametrize("small", [False, True])
def test_the_warm_up_has_every_shape_of_the_timed_training(rows, small):
    """A graph is captured at the fourth full batch; the last batch is worked on without it, in kernels of its size."""
    batch = (end_to_end.gpu_small_recipe if small else end_to_end.gpu_recipe)(rows).batch_size
    full, last = divmod(train_rows(rows), batch)
    warm_full, warm_last = divmod(train_rows(warm_up_rows(rows, batch)), batch)
    assert warm_last == last
    assert full >= warm_full >= 5
    assert warm_up_rows(rows, batch) <= rows


def test_batch_and_rates_on_a_gpu_follow_from_the_rows():
    assert end_to_end.gpu_recipe(42_800_000) == Recipe(204_800, 0.1, 0.1, "lamb")
    assert end_to_end.gpu_recipe(2_000_000) == end_to_end.OURS, "the same number of steps as on the CPU"
    for rows in (60_000, 1_000_000, 10_000_000, 42_800_000):
        recipe = end_to_end.gpu_recipe(rows)
        steps = train_rows(rows) // recipe.batch_size
        assert recipe.batch_size in (1024, 204_800) or steps < 1.2 * end_to_end.LEAST_STEPS
        assert recipe.batch_size == 1024 or steps >= end_to_end.LEAST_STEPS
    assert end_to_end.gpu_small_recipe(2_000_000).lr == pytest.approx(end_to_end.OURS_SMALL.lr, rel=0.02)
    assert end_to_end.gpu_small_recipe(42_800_000).lr == pytest.approx(0.011, abs=0.001)


def contender(result):
    if isinstance(result, Exception):
        raise result
    return result


def test_a_contender_that_fails_takes_no_further_turn_and_stops_none(capsys):
    calls = Counter()

    def call(name, result):
        def run():
            calls[name] += 1
            return contender(result)

        return name, run

    good = {"seconds": {"read": 1.0}, "auc": 0.7}
    turns = [call("a", end_to_end.ContenderError("out of memory")), call("b", good), call("a", good), call("b", good)]
    results, failures = end_to_end.measure(iter(turns), 0.0, 0.0)
    assert calls == {"a": 1, "b": 2}
    assert results == {"b": [good, good]}
    assert failures == {"a": "out of memory"}


def test_a_budget_starts_nothing_that_would_end_after_it(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(end_to_end.time, "perf_counter", lambda: now[0])

    def call(name, seconds):
        def run():
            now[0] += seconds
            return {"seconds": {"read": seconds}, "auc": 0.7}

        return name, run

    turns = [call("a", 40.0), call("b", 30.0), call("a", 40.0), call("b", 20.0), call("c", 1.0)]
    turns += [call("ours", 5.0), call(end_to_end.OURS_AT_SMALL, 5.0), call("ours", 5.0)]
    results, _ = end_to_end.measure(iter(turns), 100.0, 0.0)
    assert {name: len(found) for name, found in results.items()} == {
        "a": 1, "b": 2, "ours": 1, end_to_end.OURS_AT_SMALL: 1
    }  # fmt: skip
    left_out = [line for line in capsys.readouterr().err.splitlines() if "left out" in line]
    assert left_out == [
        "a: left out, 70 s of 100 s are over",
        "c: left out, 90 s of 100 s are over",  # it may last as long as any other
        "ours: left out, 100 s of 100 s are over",
    ]


def test_a_process_that_dies_is_named_with_what_it_said():
    with pytest.raises(end_to_end.ContenderError, match=r"ended with 3:\nthe reason"):
        end_to_end.run([sys.executable, "-c", "import sys; print('the reason', file=sys.stderr); sys.exit(3)"])


def gpu_flags(**changes):
    flags = {"device": "cuda", "engine": "cudf", "rounds": 3, "quick": False, "save": False, "budget": 0.0, "out": ""}
    return Namespace(**flags | changes)


@pytest.fixture
def on_a_gpu(monkeypatch, tmp_path):
    """`measure` and `report` as on a GPU, with tables and processes that only write down what they are asked for."""
    asked = []

    def table_file(folder, rows, device):
        assert device == "cuda"
        return folder / f"pairs-{rows}"

    def run(command, **environment):
        settings = json.loads(command[-1])
        asked.append((settings, environment))
        auc = 0.7620 if settings["recipe"]["batch_size"] > 4096 else 0.7623
        parts = ("read", "split", "encode train", "encode valid", "pack", "model", "train", "metrics")
        rows = train_rows(int(settings["path"].rpartition("-")[2]))
        found = {"seconds": dict.fromkeys(parts, 0.25), "train_rows": rows, "auc": auc, "process": 9.0}
        return found | {"torch's peak GiB": 12.5}

    monkeypatch.setattr(end_to_end, "table_file", table_file)
    monkeypatch.setattr(end_to_end, "run", run)
    return asked


def recipes_of(rows):
    return {"ours": end_to_end.gpu_recipe(rows), end_to_end.OURS_AT_SMALL: end_to_end.gpu_small_recipe(rows)}


def test_a_gpu_measures_itself_at_4096_and_no_peer(on_a_gpu, tmp_path, capsys):
    rows = end_to_end.FULL_ROWS
    recipes = recipes_of(rows)
    turns = end_to_end.contenders(tmp_path / f"pairs-{rows}", tmp_path, rows, recipes, gpu_flags())
    results, failures = end_to_end.measure(turns, 0.0, 0.0)
    assert not failures
    assert {name: len(found) for name, found in results.items()} == {
        "ours": 3, end_to_end.OURS_AT_SMALL: 3, "ours, new process": 1, "ours, cold": 1
    }  # fmt: skip
    assert {settings["device"] for settings, _ in on_a_gpu} == {"cuda"}
    assert {settings["engine"] for settings, _ in on_a_gpu} == {"cudf"}
    warmed = {(s["recipe"]["batch_size"], s["warm_up"].rpartition("-")[2]) for s, _ in on_a_gpu if s["warm_up"]}
    assert warmed == {(204_800, str(warm_up_rows(rows, 204_800))), (4_096, str(warm_up_rows(rows, 4_096)))}
    (caches,) = (set(environment) for _, environment in on_a_gpu if environment)
    assert caches == {"NUMBA_CACHE_DIR", "TRITON_CACHE_DIR", "CUPY_CACHE_DIR"}

    end_to_end.report(results, rows, recipes, gpu_flags())
    found = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    claims = found["claims"]
    assert claims["AUC at batch 204,800 against that at 4,096, %"] == [pytest.approx(-0.03935, abs=1e-4), -0.1, True]
    assert claims["seconds, file to metrics"] == [2.0, 5.0, True]
    assert claims["seconds, epoch"] == [0.25, 1.0, True]
    assert found["details"]["torch's peak GiB"] == 12.5
    assert found["details"]["engine"] == "cudf"


def test_bars_of_the_full_table_are_not_judged_on_a_smaller_one(on_a_gpu, tmp_path, capsys):
    rows = 1_000_000
    turns = end_to_end.contenders(tmp_path / f"pairs-{rows}", tmp_path, rows, recipes_of(rows), gpu_flags())
    end_to_end.report(end_to_end.measure(turns, 0.0, 0.0)[0], rows, recipes_of(rows), gpu_flags())
    claims = json.loads(capsys.readouterr().out.strip().splitlines()[-1])["claims"]
    assert not [text for text in claims if text.startswith("seconds")]
    assert "AUC at batch 7,168 against that at 4,096, %" in claims


def test_cudf_that_is_not_installed_is_said_before_anything_is_made(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["end_to_end", "--engine", "cudf"])
    monkeypatch.setattr(end_to_end, "table_file", lambda *_: pytest.fail("a table was made"))
    with pytest.raises(SystemExit) as stopped:
        end_to_end.main()
    assert stopped.value.code == 2
    assert "is not installed" in capsys.readouterr().err


def test_without_cudf_a_gpu_gets_what_pandas_encodes_and_is_told(capsys):
    assert end_to_end.choose_engine("auto", "cuda") == "pandas"
    assert "cuDF is not installed" in capsys.readouterr().err
    assert end_to_end.choose_engine("auto", "cpu") == "pandas"
    assert not capsys.readouterr().err


def test_a_table_that_was_not_written_whole_is_made_again(monkeypatch, tmp_path, capsys):
    def write(path, rows, device):
        path.write_text(f"{rows} rows of {device}")

    def killed(path, rows, device):
        path.write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setattr(end_to_end, "write_pairs_from_device", killed)
    with pytest.raises(KeyboardInterrupt):
        end_to_end.table_file(tmp_path, 50, "cuda")
    monkeypatch.setattr(end_to_end, "write_pairs_from_device", write)
    assert end_to_end.table_file(tmp_path, 50, "cuda").read_text() == "50 rows of cuda"


HIDING = """
import importlib.metadata, importlib.util, runpy, sys

allowed = set({box!r})
ours = {{"gigabatch", "benchmarks", "features", "loaders", "models", "pipeline"}}
known = importlib.metadata.packages_distributions()
needed, absent = set(), {{"cudf", "dask", "pydantic", "rmm", "ruamel-yaml"}}

def plain(name):
    return name.lower().replace("_", "-").replace(".", "-")

def take(name):  # a distribution of the box and what it needs
    if plain(name) in needed | absent:
        return
    needed.add(plain(name))
    try:
        for text in importlib.metadata.requires(name) or ():
            if "extra" not in text.partition(";")[2]:
                word = text.split(";")[0]
                take("".join(c if c.isalnum() or c in "-_." else " " for c in word).split()[0])
    except importlib.metadata.PackageNotFoundError:
        pass

for name in allowed:
    take(name)
hidden = {{m for m, names in known.items() if not set(map(plain, names)) & needed}} - ours

class Hide:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Hide, sys.meta_path)
assert {{"dask", "pydantic"}} <= hidden, sorted(hidden)
sys.argv = ["end_to_end_ours", {settings!r}]
runpy.run_module("benchmarks.end_to_end_ours", run_name="__main__")
"""


def test_it_runs_with_what_the_box_has(tmp_path):
    """The whole way, Parquet to AUC, where dask, pydantic and others are not installed."""
    path = tmp_path / "pairs.parquet"
    pairs.write_pairs_from_device(path, 20_000, "cpu")
    settings = {"path": str(path), "recipe": {"batch_size": 1024, "lr": 0.1, "table_lr": 0.1, "optimizer": "lamb"}}
    settings |= {"device": "cpu", "engine": "pandas", "seed": 0, "warm_up": ""}
    code = HIDING.format(box=BOX, settings=json.dumps(settings))
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert found.returncode == 0, found.stderr[-3000:]
    result = json.loads(found.stdout.strip().splitlines()[-1])
    assert result["train_rows"] == 16_000
    assert 0.5 < result["auc"] < 0.9


def test_frames_of_cudf_are_split_as_those_of_arrow(monkeypatch, tmp_path):
    """The branch of a GPU, on pandas frames in place of cuDF's: the same rows, numbered from 0 anew."""
    path = tmp_path / "pairs.parquet"
    pairs.write_pairs_from_device(path, 1_010, "cpu")
    clock = Clock("cpu")
    expected = read_splits(str(path), "pandas", clock)
    engine = Namespace(NAME="cudf", read_columns=lambda path, names: pd.read_parquet(path, columns=names))
    monkeypatch.setattr("gigabatch.features.engines.frame.load_engine", lambda name: engine)
    found = read_splits(str(path), "cudf", clock)
    for ours, arrow in zip(found, expected, strict=True):
        assert list(ours.index) == list(range(len(arrow)))
        assert list(ours.columns) == list(arrow.columns)
        for name in ("user_id", "item_id", "current_filters", "cont_3", "target"):
            left, right = (
                frame[name].astype(object).where(frame[name].notna(), None).tolist() for frame in (ours, arrow)
            )
            assert left == right, name


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_whole_way_after_a_warm_up(device, tmp_path):
    """Table drawn on the device to AUC, in this process; on a GPU with a graph from the fourth step on."""
    rows, recipe = 30_000, Recipe(1_024, 0.1, 0.1, "lamb")
    paths = [end_to_end.table_file(tmp_path, size, device) for size in (rows, warm_up_rows(rows, recipe.batch_size))]
    engine = end_to_end.choose_engine("auto", device)
    found = once(str(paths[0]), recipe, device, engine, seed=0, warm_up=str(paths[1]))
    parts = {"read", "split", "encode train", "encode valid", "pack", "model", "train", "metrics"}
    assert {part for part in found["seconds"] if not part.startswith("of which")} == parts
    assert found["train_rows"] == train_rows(rows)
    assert 0.53 < found["auc"] < 0.8
    assert ("torch's peak GiB" in found) == (device == "cuda")
