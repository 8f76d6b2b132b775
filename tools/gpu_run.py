"""Every check that needs a GPU, in numbered steps that go on after a failure, and a page to read: `make gpu-run`.

    python3 tools/gpu_run.py --list
    python3 tools/gpu_run.py --steps 0-3,6 --out gpu-out --budget 570
    python3 tools/gpu_run.py --collect .carry/base-01 --steps 0-2       wheels of `make gpu-pack` first

Needs Python >= 3.11 and nothing else; installs nothing but collected wheels, which go beside the box's own packages;
asks no network. Each command is a process of its own with a limit; at its limit all that it started is killed. The
output folder (--out, else $OUT, else ./gpu-out) gets page.md, results.json, versions.txt, logs.tar.gz, and
trace.json.gz where a profile was made; all are written after every command, so that what was seen is there even if this
runner is killed. Exit code 0 if all that ran passed and something ran, else 1; 2 for a wrong command line.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tools import gpu_page, gpu_parts  # noqa: E402  (this file is run as a script)
from tools.gpu_page import NOT_RUN, TIMED_OUT, Record  # noqa: E402
from tools.gpu_steps import HERE, OUT, PYTHON, SHORT, Command, Step, steps  # noqa: E402

LEAST_SECONDS = 10  # of a budget; with less left nothing is started
MOST_LOG_BYTES = 1 << 28  # of one command, which is killed beyond it
BACK_BYTES = 15 << 20  # of one file of the output folder; the device machine's tool hands back 16 MiB each
REFRESH_SECONDS = 20.0
POLL_SECONDS = 0.1
GRACE_SECONDS = 3.0
MARK = "GIGABATCH_GPU_COMMAND"  # in the environment of a command and of all that it starts


class Stopped(Exception):
    """The runner was asked to stop (SIGINT, SIGTERM, SIGHUP)."""


class Runner:
    """Runs steps and keeps the page.

    chosen: what to run. out: the output folder. budget: seconds of all together, or None. python: the box's
    interpreter. store: where collected wheels are.
    """

    def __init__(
        self, chosen: Sequence[Step], out: Path, budget: float | None, python: str, store: Path, root: Path = ROOT
    ) -> None:
        self.chosen, self.out, self.budget, self.python, self.store, self.root = (
            chosen, out, budget, python, store, root,
        )  # fmt: skip
        self.started, self.began = time.monotonic(), datetime.now(UTC)
        self.records: list[Record] = []
        self.stopped = ""
        self.done = False
        self.page = ""
        self.work = Path(tempfile.mkdtemp(prefix="gigabatch-gpu-run-"))
        (self.work / "logs").mkdir()
        self.there: dict[tuple[str, tuple[str, ...]], str] = {}

    def run(self) -> int:
        """All steps; the exit code."""
        try:
            with signals_raise():
                for step in self.chosen:
                    spare = 0.0  # what earlier commands of the step left of their limits
                    for command in step.commands:
                        began = time.monotonic()
                        self.one(step, command, command.seconds + spare)
                        spare = max(spare + command.seconds - (time.monotonic() - began), 0.0)
        except (Stopped, KeyboardInterrupt) as reason:
            self.stopped = f"the runner was stopped by {str(reason) or 'SIGINT'}"
        finally:
            for step in self.chosen:
                for command in step.commands[len([one for one in self.records if one.step == step.number]) :]:
                    self.not_run(step, command, self.stopped or "the runner ended early")
            self.done = not self.stopped
            self.write()
            shutil.rmtree(self.work, ignore_errors=True)
        ran = [record for record in self.records if record.verdict != NOT_RUN]
        return 0 if ran and not self.stopped and all(record.verdict == gpu_page.PASSED for record in ran) else 1

    def not_run(self, step: Step, command: Command, why: str) -> None:
        self.records.append(Record(step.number, command.name, self.line(command), NOT_RUN, why))

    def one(self, step: Step, command: Command, seconds: float) -> None:
        """Run a command, or say why not; nothing that happens in it ends the runner."""
        limit, cut = seconds, False
        if self.budget is not None:
            left = self.budget - (time.monotonic() - self.started)
            if left < LEAST_SECONDS:
                self.not_run(step, command, f"the budget of {self.budget:.0f} s was used up")
                self.write()
                return
            limit, cut = min(seconds, left), left < seconds
        if missing := self.missing(command):
            self.not_run(step, command, f"missing: {', '.join(missing)}")
            self.write()
            return
        record = Record(step.number, command.name, self.line(command))
        self.records.append(record)
        self.write()
        print(f"step {step.number}: {command.name}, at most {limit:.0f} s ...", flush=True)
        log, began = self.work / "logs" / f"{command.name}.log", time.monotonic()
        try:
            code = self.process(command, log, limit, record)
        except OSError as error:
            record.verdict, record.why = gpu_page.FAILED_, f"it could not be started: {error}"
        else:
            gpu_page.judge(record, command.kind, 0 if code is None else code, gpu_page.end_of(log))
            if code is None:
                of = f" (what was left of the budget of {self.budget:.0f} s)" if cut else ""
                record.verdict, record.why = TIMED_OUT, f"killed at its limit of {limit:.0f} s{of}"
                if log.exists() and log.stat().st_size > MOST_LOG_BYTES:
                    record.why = f"killed, since it printed more than {MOST_LOG_BYTES >> 20} MiB"
        record.seconds = time.monotonic() - began
        print(f"step {step.number}: {command.name}: {record.verdict} {record.why}", flush=True)
        self.write()

    def process(self, command: Command, log: Path, limit: float, record: Record) -> int | None:
        """Exit code of the command, or None where it was killed at its limit; the end of its process group too."""
        files = self.work / "files"
        files.mkdir(exist_ok=True)
        argv = filled(command.argv, self.python, files)
        began = refreshed = time.monotonic()
        mark = f"{os.getpid()}-{len(self.records)}-{began}"
        with log.open("wb") as sink:
            child = subprocess.Popen(
                argv, cwd=self.root, env={**self.environment(command), MARK: mark}, stdin=subprocess.DEVNULL,
                stdout=sink, stderr=subprocess.STDOUT, process_group=0,
            )  # fmt: skip
            try:
                while child.poll() is None:
                    now = time.monotonic()
                    if now - began > limit or log.stat().st_size > MOST_LOG_BYTES:
                        return None
                    if now - refreshed > REFRESH_SECONDS:
                        record.seconds, refreshed = now - began, now
                        self.write()
                    time.sleep(min(POLL_SECONDS, max(limit - (now - began), 0.01)))
                return child.returncode
            except BaseException as reason:
                record.verdict, record.why = gpu_page.FAILED_, f"stopped by {str(reason) or 'SIGINT'}"
                record.seconds = time.monotonic() - began
                raise
            finally:
                end_group(child)
                end_marked(mark)

    def environment(self, command: Command) -> dict[str, str]:
        """The box's own, with collected wheels before its packages and the tree before those."""
        sites = [gpu_parts.site(group, self.store) for group in command.groups]
        paths = [str(self.root), *(str(site) for site in sites if site.is_dir())]
        found = {**os.environ, **command.environment}
        found["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), *toolkit_programs()])
        found["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])
        found |= {"PYTHONUNBUFFERED": "1", "COLUMNS": "300", "PYTHONFAULTHANDLER": "1", "NO_COLOR": "1"}
        # Libraries of the wheels, of which the box has older ones: cuDF needs a newer nvjitlink than torch brings.
        if libraries := [str(path) for site in sites for path in sorted(site.glob("nvidia/*/lib"))]:
            found["LD_LIBRARY_PATH"] = os.pathsep.join([*libraries, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
        return found

    def missing(self, command: Command) -> list[str]:
        """Which of a command's needs are not there; asked of the box's Python, once each."""
        for need in command.needs:
            if (need, command.groups) not in self.there:
                self.there[need, command.groups] = self.look(need, command)
        return [why for need in command.needs if (why := self.there[need, command.groups])]

    def look(self, need: str, command: Command) -> str:
        """ "" where a need is there, else what is missing."""
        if need.startswith("program:"):
            program = need.removeprefix("program:")
            there = shutil.which(program, path=self.environment(command)["PATH"])
            return "" if there else f"program {program}"
        code = f"import importlib.util as u, sys; sys.exit(u.find_spec({need.partition('.')[0]!r}) is None)"
        if "." in need:
            code = f"import importlib; importlib.import_module({need!r})"
        if need == "cuda":
            code = "import torch, sys; sys.exit(not torch.cuda.is_available())"
        try:
            done = subprocess.run(
                [self.python, "-c", code], env=self.environment(command), cwd=self.root, capture_output=True,
                timeout=120, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{need} ({type(error).__name__})"
        return "" if done.returncode == 0 else "a CUDA device that torch sees" if need == "cuda" else f"package {need}"

    def line(self, command: Command) -> str:
        """The command as one would type it."""
        return shlex.join(filled(command.argv, self.python, self.out))

    def write(self) -> None:
        """Page, results, versions, logs and traces, as far as they are; a file that cannot be written is named."""
        versions = gpu_page.end_of(self.work / "logs" / "versions.log")
        titles = {step.number: step.title for step in self.chosen}
        spent = time.monotonic() - self.started
        about = [
            f"{self.began:%Y-%m-%d %H:%M} UTC, commit {commit(self.root)}, {spent:.0f} s so far, {self.python}.",
            *([f"**{self.stopped}.**"] if self.stopped else []),
        ]
        self.page = page = gpu_page.page(self.records, titles, versions, about, self.done)
        results = gpu_page.results_json(self.records, {"commit": commit(self.root), "date": f"{self.began:%Y-%m-%d}"})
        for name, content in (
            ("page.md", page.encode()), ("results.json", results.encode()), ("versions.txt", versions.encode()),
            ("logs.tar.gz", self.logs()), ("trace.json.gz", self.trace()),
        ):  # fmt: skip
            if not content:
                continue
            try:
                self.out.mkdir(parents=True, exist_ok=True)
                (self.out / f".{name}").write_bytes(content)
                (self.out / f".{name}").replace(self.out / name)
            except OSError as error:
                print(f"gpu_run: {self.out / name}: {error}", file=sys.stderr, flush=True)

    def logs(self) -> bytes:
        """All logs as one archive of at most `BACK_BYTES`: of large ones the beginning and the end."""
        paths = sorted((self.work / "logs").glob("*.log"))
        most = BACK_BYTES // max(len(paths), 1)  # before compression
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as archive:
            for path in paths:
                content = gpu_page.end_of(path, most - 4096).encode()[: most - 2048]
                entry = tarfile.TarInfo(f"logs/{path.name}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        return buffer.getvalue()

    def trace(self) -> bytes:
        """The profile's trace, packed; nothing where there is none or it is too large to come back."""
        path = self.work / "files" / "trace.json"
        if not path.exists():
            return b""
        packed = gzip.compress(path.read_bytes(), 6)
        if len(packed) > BACK_BYTES:
            print(f"gpu_run: the trace has {len(packed) >> 20} MiB and is left out", flush=True)
            return b""
        return packed


def toolkit_programs() -> list[str]:
    """Where CUDA's toolkit keeps compute-sanitizer and nvcc, which is often not on PATH."""
    homes = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")
    return [str(Path(home) / "bin") for home in homes if home and (Path(home) / "bin").is_dir()]


def filled(argv: Sequence[str], python: str, out: Path) -> list[str]:
    return [part.replace(PYTHON, python).replace(OUT, str(out)) for part in argv]


def end_group(child: subprocess.Popen[bytes]) -> None:
    """End what is left of the child's process group, grandchildren included: SIGTERM, then SIGKILL."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline:
            child.poll()
            os.killpg(child.pid, 0)  # raises once the group is empty
            time.sleep(0.02)
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # one that hangs in the driver cannot be ended, only left
        child.wait(GRACE_SECONDS)


def end_marked(mark: str) -> None:
    """Kill what is left of a command's processes outside of its group, by what is in their environment: torch's
    compiler and daemons start sessions of their own. Without Linux's /proc nothing is found."""
    text = f"{MARK}={mark}".encode()
    found, deadline = True, time.monotonic() + GRACE_SECONDS
    while found and time.monotonic() < deadline:  # one may have started another meanwhile
        found = False
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):  # of another user's, or gone
                if text in path.read_bytes().split(b"\0"):
                    os.kill(int(path.parent.name), signal.SIGKILL)
                    found = True


@contextlib.contextmanager
def signals_raise() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP raise `Stopped` in the block."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(signal.Signals(number).name)

    before = {one: signal.signal(one, stop) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def commit(root: Path) -> str:
    """The tree's commit, or that it is not known (a carried tree may come without its history)."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or os.environ.get("GIGABATCH_COMMIT", "unknown")


def numbers(text: str, known: Sequence[int]) -> list[int]:
    """Step numbers of "0-3,6", in order.

    Raises:
        ValueError: for anything else, and for a step that is not there.
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"--steps {text}: {part!r} is no step. Write 0-3,6.")
        chosen = range(int(first), int(last if dash else first) + 1)
        unknown = [str(one) for one in chosen if one not in known] if chosen else [part]
        if unknown:
            raise ValueError(f"--steps {text}: {unknown[0]} is no step. There are {known[0]} to {known[-1]}.")
        found |= set(chosen)
    return sorted(found)


def collect(parts: Sequence[Path], store: Path, python: str) -> bool:
    """Take in part folders, and install every group that is whole; True if no part is damaged and pip was content."""
    well, groups = True, dict[str, list[int]]()
    for part in parts:
        try:
            manifest, out = gpu_parts.collect(part, store)
        except (gpu_parts.PartError, OSError) as error:
            print(f"gpu_run: {error}", flush=True)
            well = False
            continue
        group = manifest["group"]
        groups[group] = out
        print(f"{part.name}: part {manifest['part']} of {manifest['parts']} of {group} is whole", flush=True)
    for group, out in groups.items():
        if out:
            print(f"{group}: still missing part {', '.join(f'{group}-{one:02d}' for one in out)}", flush=True)
            continue
        try:
            print(f"{group}: installed in {gpu_parts.install(group, store, python)}", flush=True)
        except (gpu_parts.PartError, OSError) as error:
            print(f"gpu_run: {error}", flush=True)
            well = False
    return well


def main(arguments: Sequence[str] | None = None, all_steps: Sequence[Step] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="show steps and commands, run nothing")
    parser.add_argument("--steps", default="", help="which, as 0-3,6 (default: all but 9)")
    parser.add_argument("--here", action="store_true", help="steps 0 to 4, with what is installed (make gpu-check)")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or "gpu-out"), help="output folder")
    parser.add_argument("--budget", type=float, help="seconds of all steps together; what is left then is not run")
    parser.add_argument("--python", default=sys.executable, help="the box's interpreter (default: %(default)s)")
    parser.add_argument("--collect", type=Path, nargs="+", default=[], metavar="PART", help="folders of make gpu-pack")
    parser.add_argument("--wheels", type=Path, default=gpu_parts.STORE, help="where wheels go (default: %(default)s)")
    flags = parser.parse_args(arguments)
    known = list(all_steps if all_steps is not None else steps())
    try:
        names = [step.number for step in known]
        chosen = (
            numbers(flags.steps, names)
            if flags.steps
            else [one for one in (HERE if flags.here else names) if one not in SHORT]
        )
    except ValueError as error:
        parser.error(str(error))
    if flags.list:
        for step in known:
            print(f"{step.number} {step.title}")
            for command in step.commands:
                print(f"  {command.name} ({command.seconds} s; needs {', '.join(command.needs) or 'nothing'})")
        return 0
    if flags.collect:
        parts = [part if part.is_dir() else ROOT / ".carry" / part for part in flags.collect]
        well = collect(parts, flags.wheels, flags.python)
        if not flags.steps:
            return 0 if well else 1
    runner = Runner(
        [one for one in known if one.number in chosen], flags.out.resolve(), flags.budget, flags.python, flags.wheels
    )
    code = runner.run()
    print(runner.page, flush=True)  # also where the disk has not taken it
    return code


if __name__ == "__main__":
    sys.exit(main())
