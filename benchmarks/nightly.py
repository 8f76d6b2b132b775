"""Sixty nights of `gigabatch nightly`, left alone, with planted faults; and nights that are killed at random moments.

Every night the file of a new day comes (`benchmarks/nightly_log.py`: new users and items daily, a preference that
moves), and the command runs: `nightly.start: warm`, with a contract learned from the seven days before the first night.
A night is a process of its own, forked from this one, so that its seconds are without those of imports; from the
planted upgrade on it is a new one with the changed sources, which are added.

Every fifth night a model is trained cold on all rows so far; it, the current model and the one of the first night are
scored on the rows that come after all training (scikit-learn's AUC). After the last night that same night runs again
from the state before it, warm and cold in turn, for the price: CPU seconds of whole processes, imports among them.

`--kills N` and `--stops N`, alone with `--days 0`: a small state, nights that SIGKILL and SIGTERM end at random moments
of it. The current run must be the one before or that of a twin that nobody killed; the night that runs next must end as
the twin did.

    python -m benchmarks.nightly [--days 60] [--kills 0] [--stops 0] [--rows 6000] [--quick] [--save]
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from benchmarks.common import arguments, finish
from benchmarks.nightly_log import DAY, START, World, write_test_file
from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.pipeline.bundle import load_bundle
from gigabatch.pipeline.commands.app import main as command
from gigabatch.pipeline.nightly.comparison import window_rows
from gigabatch.pipeline.runs.verify import weights_of
from gigabatch.pipeline.stages.stages import Pipeline

ROOT = Path(__file__).resolve().parents[1]
HISTORY = 7  # days before the first night
PRICED = 3  # times that the last night runs again, warm and cold
COLD_EVERY = 5  # nights
PROMOTED, KEPT, REFUSED, FAILED = 0, 10, 20, 40
# What is planted, in this order, evenly over the nights. Those of a file must leave its rows out.
FAULTS = (
    "corrupt file", "bad model", "late day", "day twice", "killed night", "renamed column", "full disk",
    "inverted labels", "day from the future", "change", "upgrade", "half a day", "bad model again",
)  # fmt: skip
BAD_FILES = ("corrupt file", "renamed column", "inverted labels", "day from the future", "day twice", "half a day")
SPOILT = ("train.lr_max=2", "train.max_grad_norm=null", "train.epochs=3")
IMPORTED = ("torch._dynamo", "dask.threaded", "matplotlib.figure", "gigabatch.pipeline.nightly.learning",
            "gigabatch.features.recipes.trivago.recipe", "gigabatch.pipeline.commands.contract")  # fmt: skip
LEFTOVERS = (".tmp-*", ".damaged-*", ".removed-*", "*.tmp", "nightly.pending.json")


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code, minus the signal that ended it; seconds of all its threads and by clock."""

    code: int
    cpu: float
    wall: float


def start(arguments: Sequence[str], log: Path, tree: Path | None = None, file_bytes: int | None = None) -> int:
    """`gigabatch` with these arguments in a process of its own; returns its id.

    tree: of the sources; None for ours, whose modules are loaded already. file_bytes: no file can grow beyond.
    """
    sys.stdout.flush()
    process = os.fork()
    if process:
        return process
    code = 70
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        if file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
        if tree is not None:
            line = "import sys; from gigabatch.pipeline.commands.app import main; sys.exit(main(sys.argv[1:]))"
            os.chdir(tree)
            os.execve(sys.executable, [sys.executable, "-c", line, *arguments], os.environ | {"PYTHONPATH": str(tree)})
        code = command(list(arguments))
        sys.stdout.flush()
    finally:
        os._exit(code)


def end(process: int, began: float) -> Ended:
    """Wait for a process."""
    _, status, used = os.wait4(process, 0)
    return Ended(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, time.perf_counter() - began)


def run(arguments: Sequence[str], log: Path, **options: Any) -> Ended:
    """`start` and `end`."""
    began = time.perf_counter()
    return end(start(arguments, log, **options), began)


def told(work: Callable[[], Any], folder: Path) -> Any:
    """What `work` returns, as JSON, from a process of its own, so that this one stays small; `RuntimeError` where it
    fails there, which has been printed."""
    path = folder / "told.json"
    path.unlink(missing_ok=True)
    sys.stdout.flush()
    process = os.fork()
    if not process:
        code = 1
        try:
            path.write_text(json.dumps(work(), allow_nan=False))
            code = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    if os.waitpid(process, 0)[1]:
        raise RuntimeError("a measurement failed in a process of its own")
    return json.loads(path.read_text())


class Site:
    """A folder with raw files, a configuration and its runs; and the world that the files come from."""

    def __init__(self, folder: Path, rows: int, seed: int, changed: int | None = None) -> None:
        self.folder, self.raw, self.log = folder, folder / "raw", folder / "log.txt"
        self.config, self.home, self.artifacts = folder / "log.yaml", folder / "runs" / "log", folder / "artifacts"
        self.world, self.tree = World(rows, seed, changed), None
        self.pairs: dict[str, int] = {}  # by file
        self.raw.mkdir(parents=True)
        write_test_file(self.raw / "test.csv")
        settings = {
            "name": "log", "recipe": "trivago", "engine": "pandas", "device": "cpu", "num_threads": 1,
            "artifacts": str(self.artifacts), "runs": str(folder / "runs"),
            "features": {
                "path": str(self.raw), "train": "day-*.csv", "item_metadata": None,
                "split": {"valid_rows": rows // 4, "test_rows": rows // 2},  # clickouts of half a day and a day
            },
            "preprocess": {"min_count": 10}, "model": {"layers": [64, 32]}, "train": {"batch_size": 1024},
            "evaluate": {"importance": False, "baselines": []},
            "nightly": {"start": "warm", "metric": "auc", "tolerance": 0.01, "reference_tolerance": 0.015,
                        "num_bootstrap": 100},
        }  # fmt: skip
        self.config.write_text(json.dumps(settings, indent=1, allow_nan=False))  # JSON is YAML

    def path(self, day: int) -> Path:
        return self.raw / f"day-{day:03d}.csv"

    def make(self, day: int, fault: str | None = None) -> bytes:
        """The text of the world's next day, as the fault leaves it."""
        made = self.world.day(inverted=fault == "inverted labels")
        self.pairs[self.path(day).name] = made.pairs
        if fault == "corrupt file":
            return made.text[: len(made.text) // 2] + bytes(range(128, 256)) * 8
        if fault == "renamed column":
            return made.text.replace(b",impressions,", b",impression_list,", 1)
        if fault == "day from the future":
            stamps = str((START + day * DAY) // 1_000_000).encode(), str((START + 9_000 * DAY) // 1_000_000).encode()
            return made.text.replace(b"," + stamps[0], b"," + stamps[1])
        if fault == "day twice":
            return max(self.raw.glob("day-*.csv")).read_bytes()
        if fault == "half a day":
            lines = made.text.splitlines(keepends=True)
            return b"".join(lines[: len(lines) // 2])
        return made.text

    def nightly(self, *overrides: str, **options: Any) -> Ended:
        return run(["nightly", "--config", str(self.config), *overrides], self.log, **{"tree": self.tree, **options})

    def lines(self) -> list[dict[str, Any]]:
        path = self.home / "nightly.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def current(self) -> Path | None:
        link = self.home / "current"
        return link.resolve() if link.exists() else None

    def bytes_by_kind(self) -> dict[str, int]:
        """Bytes on the disk, files that have several names once, by stage and for the runs."""
        seen: set[int] = set()
        found: Counter[str] = Counter()
        for top in (self.artifacts, self.home.parent, self.raw):
            for path in top.rglob("*"):
                with contextlib.suppress(FileNotFoundError):
                    status = path.lstat()
                    if path.is_file() and not path.is_symlink() and status.st_ino not in seen:
                        seen.add(status.st_ino)
                        kind = path.relative_to(top).parts[0] if top == self.artifacts else top.name
                        found[kind] += status.st_size
        return dict(found)


def schedule(nights: int) -> dict[int, str]:
    """Fault by night: all of them where there is room for one every second night, else the first ones."""
    room = min(len(FAULTS), max((nights - 6) // 2, 1))
    places = np.linspace(4, nights - 4 if room > 1 else 4, room).round().astype(int)
    return {int(night): fault for night, fault in zip(places, FAULTS, strict=False)}


class Nights:
    """The simulation: what is planted, and what is found."""

    def __init__(self, folder: Path, nights: int, rows: int, seed: int) -> None:
        self.nights, self.planted = nights, schedule(nights)
        change = next((night for night, fault in self.planted.items() if fault == "change"), None)
        self.folder, self.change = folder, change
        self.site = Site(folder / "site", rows, seed, None if change is None else HISTORY + change)
        self.late: dict[int, bytes] = {}  # by the night that it comes
        self.found: list[dict[str, Any]] = []
        self.moved, self.bad_promoted, self.refused = 0, [], []  # type: ignore[var-annotated]
        self.quality: list[dict[str, float]] = []
        self.covered = 0  # train rows that the lineage has trained on
        self.first = folder / "first"
        self.lost_rows: dict[str, int] = {}

    def run(self) -> None:
        site = self.site
        for day in range(1, HISTORY + 1):
            site.path(day).write_bytes(site.make(day))
        learned = run(["contract", "--config", str(site.config)], site.log)
        assert learned.code == 0, site.log.read_text()
        for night in range(1, self.nights + 1):
            if night == self.nights:
                shutil.copytree(site.folder, self.folder / "last", symlinks=True)
            self.one(night)
        self.lost_rows = self.lost()

    def one(self, night: int) -> None:
        site, fault, day = self.site, self.planted.get(night), HISTORY + night
        text = site.make(day, fault)
        if fault == "late day":
            self.late[night + 2] = text
        else:
            site.path(day).write_bytes(text)
        if late := self.late.pop(night, None):
            site.path(day - 2).write_bytes(late)
        before, options, overrides = site.current(), {}, ()
        if fault == "upgrade":
            site.tree = upgraded(self.folder)
        if fault == "full disk":
            largest = max(site.artifacts.glob("features/*/train/part-*.parquet"), key=lambda path: path.stat().st_size)
            options["file_bytes"] = largest.stat().st_size // 2
        if fault in ("bad model", "bad model again"):
            overrides = SPOILT
        number = len(site.lines())
        if fault == "killed night":
            began = time.perf_counter()
            process = start(["nightly", "--config", str(site.config)], site.log, tree=site.tree)
            time.sleep(0.6 * self.found[-1]["wall"])
            os.kill(process, signal.SIGKILL)
            ended = end(process, began)
        else:
            ended = site.nightly(*overrides, **options)
        line = site.lines()[-1] if len(site.lines()) > number else {}
        accepted = [Path(path).name for path in line.get("files", {}).get("accepted", ())]
        entry = {
            "night": night, "fault": fault, "code": ended.code, "cpu": round(ended.cpu, 2),
            "wall": round(ended.wall, 2), "how": line.get("start", {}).get("how"),
            "rows": line.get("window", {}).get("rows"), "auc": line.get("candidate"), "against": line.get("current"),
            "bound": line.get("bound"), "decision": line.get("decision"),
            "drift": sorted({name for found in line.get("files", {}).get("drift", {}).values()
                             for name, verdict in found.items() if verdict == "drift"}),
            "steps": {name: step["cpu_seconds"] for name, step in line.get("steps", {}).items()},
            "bytes": site.bytes_by_kind(),
        }  # fmt: skip
        self.found.append(entry)
        print(f"night {night}: {fault or ''} {ended.code}, {ended.cpu:.1f} s CPU, {line.get('decision')}", flush=True)
        self.judge(night, entry, accepted, before)
        if late is not None:  # a person sees the report, and takes the file
            taken = run(["contract", "--config", str(site.config), "--accept", site.path(day - 2).name], site.log)
            assert taken.code == 0, site.log.read_text()
        if night % COLD_EVERY == 0 and ended.code == PROMOTED:
            self.quality.append({"night": night} | told(self.measure, self.folder))
            shutil.rmtree(self.folder / "cold")

    def judge(self, night: int, entry: dict[str, Any], accepted: list[str], before: Path | None) -> None:
        """What must not happen, as it happened tonight."""
        site, fault, code = self.site, entry["fault"], entry["code"]
        took = fault in BAD_FILES and site.path(HISTORY + night).name in accepted
        spoilt = fault in ("bad model", "bad model again") and code == PROMOTED
        if took or spoilt:
            self.bad_promoted.append(night)
        if code != PROMOTED and fault in (None, "change", "upgrade"):
            self.refused.append(night)
        current = site.current()
        if current is None:
            return
        if not self.first.exists():
            shutil.copytree(current, self.first)
        if before != current:
            summary = json.loads((current / "summary.json").read_text())
            window = (summary.get("started") or {}).get("window")  # none of a model that was trained cold
            rows = site_rows(current)
            self.covered = self.covered + window["new"] + window["late"] - window["gone"] if window else rows
            if before is not None:
                self.moved += told(lambda: ids_moved(before, current), self.folder)

    def measure(self) -> dict[str, float]:
        """AUC of the current model, of one trained cold on the same rows, and of the first, on the same window."""
        site, cold = self.site, self.folder / "cold"
        overrides = [f"artifacts={cold}/artifacts", f"runs={cold}/runs", "nightly.start=cold"]
        shutil.copytree(site.artifacts / "features", cold / "artifacts" / "features", copy_function=os.link)
        (cold / "runs" / "log").mkdir(parents=True)
        shutil.copy(site.home / "files.json", cold / "runs" / "log")
        features = Pipeline.from_config(str(site.config), *overrides).features()
        trained = features.train()
        runs = {"warm": site.current(), "cold": trained.path, "first": self.first}
        bundles = {name: load_bundle(path / "model") for name, path in runs.items() if path is not None}
        frame = window_rows(features, {name: bundle.info["trained_until"] for name, bundle in bundles.items()})
        scores = {name: bundle.predict(frame)["target"] for name, bundle in bundles.items()}
        return {name: float(roc_auc_score(frame["target"], values)) for name, values in scores.items()}

    def lost(self) -> dict[str, int]:
        """Rows of accepted files that tonight's features lack, and train rows that no window of the lineage held."""
        site = self.site
        files = json.loads((site.home / "files.json").read_text())["files"]
        accepted = [Path(path).name for path, entry in files.items() if entry["state"] == "accepted"]
        wanted = sum(site.pairs.get(name, 0) for name in accepted)
        newest = max(site.artifacts.glob("features/*/manifest.json"), key=lambda path: path.stat().st_mtime)
        rows = json.loads(newest.read_text())["rows"]
        held = sum(rows[name] for name in ("train", "valid", "test"))
        current = site.current()
        assert current is not None
        return {"of accepted files": wanted - held, "of train splits": site_rows(current) - self.covered}

    def last_night_again(self, times: int) -> dict[str, Any]:
        """The last night from the state before it, so many times warm and cold in turn, in processes of their own.

        Medians of CPU seconds and seconds by the clock, and of CPU seconds by step."""
        site = self.site
        done = self.folder / "done"
        site.folder.rename(done)
        day = HISTORY + self.nights
        found: dict[str, list[dict[str, float]]] = {"warm": [], "cold": []}
        for _ in range(times):
            for how, nights in found.items():
                with placed(self.folder / "last", site.folder):
                    shutil.copy(done / "raw" / site.path(day).name, site.path(day))
                    ended = site.nightly(f"nightly.start={how}", "nightly.cold_every=null", tree=site.tree or ROOT)
                    line = site.lines()[-1]
                    assert ended.code in (PROMOTED, KEPT), line["decision"]
                    steps = {name: step["cpu_seconds"] for name, step in line["steps"].items()}
                    nights.append({"cpu": ended.cpu, "wall": ended.wall} | steps)
        done.rename(site.folder)
        return {
            how: {name: round(statistics.median(night.get(name, 0.0) for night in nights), 2) for name in nights[0]}
            for how, nights in found.items()
        }


def site_rows(current: Path) -> int:
    """Train rows of the features that a run was made of."""
    return int(sum(json.loads((current / "model" / "bundle.json").read_text())["info"]["train_times"]["rows"]))


def ids_moved(before: Path, after: Path) -> int:
    """How many values of a run's vocabularies have another place in those of a later run, or none."""
    old, new = (Preprocessor.load(path / "model" / "preprocessor").vocabularies for path in (before, after))
    moved = 0
    for name, vocabulary in old.items():
        was, now = list(vocabulary.values), list(new[name].values)
        moved += sum(value != other for value, other in zip(was, now, strict=False)) + max(len(was) - len(now), 0)
    return moved


def upgraded(folder: Path) -> Path:
    """A copy of the sources in which those of every stage have changed, by a comment. What is compiled stays as it is,
    so that it need not be compiled again."""
    tree = folder / "upgraded"
    for name in ("features", "loaders", "models", "pipeline", "gigabatch"):
        shutil.copytree(ROOT / name, tree / name, symlinks=True)
    for name in ("features", "loaders", "models", "pipeline"):
        for path in (tree / name).rglob("*.py"):
            if "numba" not in (text := path.read_text()):
                path.write_text(text + "# another version\n")
    return tree


@contextlib.contextmanager
def placed(source: Path, target: Path) -> Iterator[None]:
    """A copy of `source` at `target` within the block."""
    shutil.copytree(source, target, symlinks=True)
    try:
        yield
    finally:
        shutil.rmtree(target)


def kills(folder: Path, number: int, stops: int, rows: int, seed: int) -> dict[str, Any]:
    """Nights that are ended at random moments; what was wrong afterwards, by round."""
    site = Site(folder / "killed", rows, seed)
    for day in range(1, 5):
        site.path(day).write_bytes(site.make(day))
    assert run(["contract", "--config", str(site.config)], site.log).code == 0, site.log.read_text()
    overrides = (
        "nightly.tolerance=1", "nightly.reference_tolerance=1", "nightly.max_skill_drop=10",
        "nightly.min_window_rows=100",
    )  # fmt: skip
    for day in (5, 6):
        site.path(day).write_bytes(site.make(day))
        ended = site.nightly(*overrides)
        assert ended.code == PROMOTED, site.log.read_text()
    site.path(7).write_bytes(site.make(7))
    base = folder / "base"
    site.folder.rename(base)

    def state() -> dict[str, Any]:
        """What is there that must be as after the twin."""
        current = site.current()
        found = [path for path in site.artifacts.glob("*/*") if not path.name.startswith(".")]
        # The history that a night has read stays until the next one; a night that finds its features reads none.
        histories = sorted((path for path in found if path.parent.name == "history"), key=lambda p: p.stat().st_mtime)
        stages = {path.name for path in found if path.parent.name != "history" or path in histories[-1:]}
        left = [str(path.relative_to(site.folder)) for kind in LEFTOVERS for path in site.folder.rglob(kind)]
        return {"weights": current and weights_of(current), "artifacts": sorted(stages), "left": left}

    with placed(base, site.folder):
        old = site.current()
        twin = site.nightly(*overrides)
        assert twin.code == PROMOTED, site.log.read_text()
        new, wanted = site.current(), state()
        promoted = sum(line["exit_code"] == PROMOTED for line in site.lines())
    random, wrong, moments = np.random.default_rng([seed, 9]), [], []
    during: Counter[str] = Counter()
    for place in range(number + stops):
        kind = signal.SIGKILL if place < number else signal.SIGTERM
        with placed(base, site.folder):
            began = time.perf_counter()
            process = start(["nightly", "--config", str(site.config), *overrides], site.log)
            moments.append(float(random.uniform(0, 1.05)))
            time.sleep(moments[-1] * twin.wall)
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, kind)
            ended = end(process, began)
            there, reasons = site.current(), []
            during["new" if there == new else "old" if there == old else "neither"] += 1
            during[f"exit {ended.code}"] += 1
            if there not in (old, new):
                reasons.append(f"current is {there}")
            again = site.nightly(*overrides)
            if again.code not in (PROMOTED, KEPT) or site.current() != new:
                reasons.append(f"the next night ended with {again.code}: {site.lines()[-1]['decision']}")
            if (after := state()) != wanted:
                reasons += [f"{key}: {after[key]}, not {wanted[key]}" for key in wanted if after[key] != wanted[key]]
            if sum(line["exit_code"] == PROMOTED for line in site.lines()) != promoted:
                reasons.append(f"promotions: {[line['decision'] for line in site.lines()]}")
            if reasons:
                wrong.append({"round": place, "signal": kind.name, "moment": round(moments[-1], 3), "what": reasons})
                print(wrong[-1], flush=True)
    return {"kills": number, "stops": stops, "wrong": wrong, "ended": dict(during), "night_s": round(twin.wall, 2)}


def made_for_raw(kinds: dict[str, int]) -> float:
    """Bytes of artifacts and runs for each of the raw files."""
    return (sum(kinds.values()) - kinds["raw"]) / kinds["raw"]


def claims_of(
    nights: Nights, price: dict[str, dict[str, float]]
) -> tuple[dict[str, float], dict[str, tuple[float, float, bool]]]:
    """Measured numbers, and those that are judged."""
    lost, quality, found = nights.lost_rows, nights.quality, nights.found
    share = price["warm"]["cpu"] / price["cold"]["cpu"]
    half = len(found) // 2
    was, now = (
        statistics.mean(made_for_raw(item["bytes"]) for item in some)
        for some in (found[half - 2 : half + 3], found[-5:])
    )
    measured = {
        "bad_promoted": len(nights.bad_promoted),
        "good_refused": len(nights.refused),
        "ids_moved": nights.moved,
        "rows_lost": sum(map(abs, lost.values())),
        "warm_cost_share": share,
        "disk_growth": now / was,
    }
    if quality:
        measured["warm_auc_less_cold"] = float(np.mean([item["warm"] - item["cold"] for item in quality]))
        measured["never_retrained_auc_loss"] = float(np.mean([item["warm"] - item["first"] for item in quality[-3:]]))
    if nights.change is not None:
        after = [item["night"] for item in found if item["night"] >= nights.change and "device" in item["drift"]]
        measured["drift_found"] = after[0] - nights.change if after else nights.nights
    bounds = {
        "bad_promoted": (0, 0), "good_refused": (0, 2), "ids_moved": (0, 0), "rows_lost": (0, 0),
        "warm_auc_less_cold": (-0.002, 1), "warm_cost_share": (0, 0.33), "disk_growth": (0, 1.05),
        "drift_found": (0, 1),
    }  # fmt: skip
    judged = {
        name: (measured[name], low if name == "warm_auc_less_cold" else high, low <= measured[name] <= high)
        for name, (low, high) in bounds.items()
        if name in measured
    }
    return measured, judged


def main() -> None:
    flags = arguments(__doc__ or "", days=60, kills=0, stops=0, rows=6_000, seed=5)
    nights, rows = (6, min(flags.rows, 600)) if flags.quick else (flags.days, flags.rows)
    torch.set_num_threads(1)
    for module in IMPORTED:
        importlib.import_module(module)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="nights-") as name:
        if not nights:
            killed = kills(Path(name), flags.kills, flags.stops, 600, flags.seed)
            wrong, rounds = len(killed["wrong"]), flags.kills + flags.stops
            finish(
                "nightly_kills",
                f"{flags.kills} nights ended by SIGKILL and {flags.stops} by SIGTERM at random moments",
                {"all": time.perf_counter() - began, "a night": killed["night_s"]},
                {"kills_wrong": wrong},
                {"kills_wrong": (wrong, 0, not wrong and rounds > 0)},
                save=flags.save,
                details=killed,
            )
            return
        simulated = Nights(Path(name), nights, rows, flags.seed)
        simulated.run()
        price = simulated.last_night_again(1 if flags.quick else PRICED)
        measured, judged = claims_of(simulated, price)
        killed = kills(Path(name), flags.kills, flags.stops, 600, flags.seed) if flags.kills + flags.stops else None
        if killed is not None:
            measured["kills_wrong"] = len(killed["wrong"])
            judged["kills_wrong"] = (len(killed["wrong"]), 0, not killed["wrong"])
    finish(
        "nightly",
        f"{nights} nights of about {rows} log rows a day, {sum(simulated.site.pairs.values()):,} pairs",
        {
            "all": time.perf_counter() - began,
            "cpu of the last night": price["warm"]["cpu"],
            "the same, cold": price["cold"]["cpu"],
        },
        measured,
        {} if flags.quick else judged,
        save=flags.save,
        details={
            "planted": {str(night): fault for night, fault in simulated.planted.items()},
            "nights": [{key: item[key] for key in item if key not in ("steps", "bytes")} for item in simulated.found],
            "refused": simulated.refused, "rows_lost": simulated.lost_rows, "quality": simulated.quality,
            "price": price, "bytes": {str(item["night"]): item["bytes"] for item in simulated.found[9::10]},
            "kills": killed,
        },
    )  # fmt: skip


if __name__ == "__main__":
    main()
