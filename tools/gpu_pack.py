"""Wheels that an offline GPU box lacks, as part folders below 55 MB, with checksums: `make gpu-pack`.

    python -m tools.gpu_pack [--python 3.12] [--box tools/gpu_box.txt] [--out .carry] [--groups base cudf] [--chip 90]

Groups: `base`, what the tests marked gpu and the benchmarks import; `cudf`, cuDF with its libraries. pip resolves the
requirements of pyproject.toml under constraints.txt; of what it finds only that is packed which the box does not have,
or has in a version that something packed refuses. torch, triton and cupy of the box are never replaced, nor is NumPy
but for cuDF's own steps: where they do not fit, nothing is packed and the message says why. With `--chip`, the compute
capability of the box's GPU times ten, libraries go without the code of other chips: four parts of cuDF instead of nine,
after some minutes. The other side is `tools/gpu_run.py --collect`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tools.gpu_parts import split  # noqa: E402  (this file is run as a script too)
from tools.gpu_thin import thin  # noqa: E402

PLATFORMS = ("2_28", "2_27", "2_24", "2_17", "2_31", "2_34", "2_35")  # glibc of manylinux wheels; pip matches exactly
# Of the box, never replaced. cuDF 26.10 needs numba < 0.65, which refuses NumPy 2.5: where the box has that, a NumPy
# goes into the group `cudf`, which stands before the box's packages for the commands that need cuDF and for no others.
KEPT = {"base": ("torch", "triton", "cupy-cuda13x", "numpy"), "cudf": ("torch", "triton", "cupy-cuda13x")}
# Of the dev extra: what a test marked gpu or a benchmark may import. The rest checks sources and documents.
NOT_THERE = {"gigabatch", "mypy", "ruff", "ipykernel", "nbclient", "nbformat"}
# Compilers of functions that a user hands to cuDF (`apply`, `query`), which nothing here does; cuDF loads without them:
# tests/cudf_api/test_gpu_pack_cudf.py.
NOT_USED = ("numba-cuda-mlir", "nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-cccl", "bokeh")
NEVER_OLD = ("typing-extensions",)  # small, and pydantic needs a recent one: not trusted without a version
PIP_SECONDS = 600
THIN_BYTES = 1 << 20  # a wheel below is carried as it is
Found = dict[str, dict[str, Any]]  # distribution -> its entry in pip's report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12", help="version of the box's Python (default: %(default)s)")
    parser.add_argument("--box", type=Path, default=ROOT / "tools/gpu_box.txt", help="packages of the box, one a line")
    parser.add_argument("--out", type=Path, default=ROOT / ".carry", help="an ignored folder (default: %(default)s)")
    parser.add_argument("--groups", nargs="+", default=["base", "cudf"], choices=["base", "cudf"])
    parser.add_argument(
        "--chip", type=int, default=0, help="leave out device code of other chips than this, such as 90"
    )
    flags = parser.parse_args()
    box = read_box(flags.box)
    names = requirements()
    done: set[str] = set()
    for group in ("base", "cudf"):
        wanted = [one for one in names[group] if canonicalize_name(one.name) not in done]
        chosen = resolve(wanted, box, flags.python, KEPT[group])
        picked = {name: entry for name, entry in chosen.items() if name not in done}
        done |= picked.keys()
        if group not in flags.groups:
            continue
        with tempfile.TemporaryDirectory() as folder:
            download(picked, Path(folder), flags.python)
            if group == "base":
                build(extras()["data"], Path(folder))
            if flags.chip:
                thin_wheels(Path(folder), flags.chip)
            about = {"python": flags.python, "platforms": [f"manylinux_{one}_x86_64" for one in PLATFORMS]}
            parts = split(group, Path(folder).glob("*.whl"), flags.out, about)
        show(group, picked, parts)


def read_box(path: Path) -> dict[str, str]:
    """Distribution -> version, or "" where it is not known."""
    lines = [line.partition("#")[0].strip() for line in path.read_text().splitlines()]
    pairs = [line.partition("==") for line in lines if line]
    return {str(canonicalize_name(name)): version.partition("+")[0] for name, _, version in pairs}


def extras() -> dict[str, list[str]]:
    """pyproject.toml's optional dependencies, and its dependencies as the extra ""."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {"": project["dependencies"], **project["optional-dependencies"]}


def requirements() -> dict[str, list[Requirement]]:
    """What pyproject.toml asks for, by group."""
    found = extras()
    base = [one for extra in ("", "serve", "remote", "export", "dev") for one in found[extra]]
    groups = {"base": base, "cudf": [one for one in found["gpu"] if one.startswith(("cudf", "dask-cudf"))]}
    return {
        group: [one for one in map(Requirement, texts) if one.name not in NOT_THERE] for group, texts in groups.items()
    }


def environment(python: str) -> dict[str, str]:
    """Of markers (PEP 508): the box's, not this Python's."""
    return {
        "python_version": python,
        "python_full_version": f"{python}.3",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "os_name": "posix",
        "extra": "",
    }


def resolve(wanted: list[Requirement], box: Mapping[str, str], python: str, kept: tuple[str, ...]) -> Found:
    """What the box lacks for `wanted`, at the versions that pip chooses; asks again where a marker of the box's Python
    names something that this Python's do not."""
    asked = [one for one in wanted if not has(box, one)]
    while True:
        chosen = report(asked, box, python, kept)
        packed, unknown = lacking(wanted, chosen, box, python, kept)
        if not unknown:
            return packed
        if any(one in asked for one in unknown):
            raise SystemExit(f"gpu_pack: pip resolved nothing for {', '.join(map(str, unknown))}.")
        asked += unknown


def has(box: Mapping[str, str], one: Requirement) -> bool:
    """Whether the box's package will do. Of an unknown version that is taken for granted unless it may be too new;
    step 0's `pip check` is for what is too old after all."""
    name = str(canonicalize_name(one.name))
    if name not in box:
        return False
    if box[name]:
        return one.specifier.contains(box[name], prereleases=True)
    if name in NEVER_OLD and one.specifier:
        return False
    return not any(part.operator in ("<", "<=", "==", "~=", "===") for part in one.specifier)


def lacking(
    wanted: Iterable[Requirement], chosen: Found, box: Mapping[str, str], python: str, kept: tuple[str, ...]
) -> tuple[Found, list[Requirement]]:
    """(what must be packed, requirements of it that were not resolved): the requirements of each packed package are
    followed, those of the box's own are not."""
    packed: Found = {}
    unknown: list[Requirement] = []
    queue = [(one, "gigabatch") for one in wanted]
    seen: set[tuple[str, frozenset[str]]] = set()
    while queue:
        one, by = queue.pop()
        name = str(canonicalize_name(one.name))
        if name in NOT_USED:
            continue
        if not has(box, one):
            if name in kept:
                raise SystemExit(f"gpu_pack: {by} needs {one}, but the box's {name} {box.get(name)} is never replaced.")
            if name not in chosen:
                unknown.append(one)
                continue
            packed[name] = chosen[name]
        elif not one.extras:
            continue
        if (key := (name, frozenset(one.extras))) in seen or name not in chosen:
            continue
        seen.add(key)
        metadata = chosen[name]["metadata"]
        ours, extra = environment(python), [environment(python) | {"extra": found} for found in one.extras]
        for need in map(Requirement, metadata.get("requires_dist", [])):
            plain = need.marker is None or need.marker.evaluate(ours)
            if name not in packed and (plain or canonicalize_name(need.name) in box):
                continue  # of a package that the box has: only what its extras add and the box has in no version
            if plain or any(need.marker.evaluate(each) for each in extra if need.marker):
                queue.append((need, f"{metadata['name']} {metadata['version']}"))
    return packed, unknown


@cache
def interpreter(python: str) -> str:
    """A Python of the box's version, since pip evaluates markers for the one that runs it; else this one."""
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{python}*/bin/python"))
    for candidate in (f"python{python}", *map(str, pyenv)):
        try:
            done = subprocess.run([candidate, "-m", "pip", "--version"], capture_output=True, text=True, check=False)
        except OSError:
            continue
        if done.returncode == 0 and f"(python {python})" in done.stdout:
            return candidate
    print(f"gpu_pack: no Python {python} with pip is here; markers are those of {sys.version.split()[0]}")
    return sys.executable


def run(command: list[str]) -> int:
    """Exit code of pip, which searches forever where versions do not fit together."""
    try:
        return subprocess.run(command, check=False, timeout=PIP_SECONDS).returncode
    except subprocess.TimeoutExpired:
        return 124


def pip_target(python: str) -> list[str]:
    """pip's flags that choose wheels of the box, not of this machine."""
    platforms = [*(f"manylinux_{one}_x86_64" for one in PLATFORMS), "manylinux2014_x86_64", "manylinux1_x86_64"]
    flags = [f"--platform={one}" for one in platforms]
    return ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}", *flags]


def report(asked: list[Requirement], box: Mapping[str, str], python: str, kept: tuple[str, ...]) -> Found:
    """pip's resolution of `asked`: nothing is installed."""
    with tempfile.TemporaryDirectory() as folder:
        fixed = [f"{name}=={box[name]}" for name in kept if box.get(name)]
        left = kept if "numpy" not in kept else box.keys()  # the box's own go with its NumPy; cuDF's with that of ours
        lines = (ROOT / "constraints.txt").read_text().splitlines()
        pinned = [re.split(r"[=<>#]", line)[0].strip() for line in lines]
        fixed += [
            line for line, name in zip(lines, pinned, strict=True) if name and canonicalize_name(name) not in left
        ]
        constraints, answer = Path(folder) / "constraints.txt", Path(folder) / "report.json"
        constraints.write_text("\n".join(fixed) + "\n")
        command = [interpreter(python), "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        command += [*pip_target(python), "--target", f"{folder}/none", "--constraint", str(constraints)]
        if run([*command, "--report", str(answer), *map(_plain, asked)]):
            raise SystemExit(f"gpu_pack: pip found no versions that fit together for {', '.join(map(str, asked))}.")
        entries = json.loads(answer.read_text())["install"]
    return {str(canonicalize_name(entry["metadata"]["name"])): entry for entry in entries}


def _plain(one: Requirement) -> str:
    """Without its marker, which pip would evaluate for this Python."""
    extras = f"[{','.join(sorted(one.extras))}]" if one.extras else ""
    return f"{one.name}{extras}{one.specifier}"


def download(packed: Found, folder: Path, python: str) -> None:
    """The wheels of exactly these versions."""
    pinned = [f"{entry['metadata']['name']}=={entry['metadata']['version']}" for entry in packed.values()]
    command = [interpreter(python), "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    if run([*command, *pip_target(python), *pinned]):
        raise SystemExit("gpu_pack: pip could not download what it had resolved.")


def thin_wheels(folder: Path, chip: int) -> None:
    """Put every large wheel of a folder by a smaller one of the same name, several at a time."""

    def one(wheel: Path) -> None:
        made = wheel.with_suffix(".thin")
        before, after = thin(wheel, made, chip)
        print(f"  {wheel.name.partition('-')[0]}: {before / 1e6:.1f} MB, now {after / 1e6:.1f}", flush=True)
        made.replace(wheel)

    large = sorted(folder.glob("*.whl"), key=lambda wheel: -wheel.stat().st_size)
    with ThreadPoolExecutor() as threads:  # LZMA works outside of the interpreter's lock
        list(threads.map(one, [wheel for wheel in large if wheel.stat().st_size >= THIN_BYTES]))


def build(asked: list[str], folder: Path) -> None:
    """Wheels of packages that PyPI has as sources alone; they must be plain Python, to run on the box too."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), *asked]
    before = set(folder.iterdir())
    if run(command):
        raise SystemExit(f"gpu_pack: no wheel could be built of {', '.join(asked)}.")
    for path in set(folder.iterdir()) - before:
        if not path.name.endswith("-none-any.whl"):
            raise SystemExit(f"gpu_pack: {path.name} is built for this machine alone.")


def show(group: str, packed: Found, parts: list[Path]) -> None:
    """What was packed, and how it is handed over."""
    versions = sorted(f"{entry['metadata']['name']} {entry['metadata']['version']}" for entry in packed.values())
    print(f"{group}: {len(versions)} wheels: {', '.join(versions)}")
    for part in parts:
        size = sum(path.stat().st_size for path in part.iterdir())
        print(f"  {part}  {size / 1e6:.1f} MB   there: python3 tools/gpu_run.py --collect {part.name}")


if __name__ == "__main__":
    main()
