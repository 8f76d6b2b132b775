"""Wheels as numbered folders that an offline box is handed one at a time, and back into wheels there.

Here `split` puts the wheels of a group into `GROUP-01`, `GROUP-02`, ...; a wheel that is larger than a part is cut into
`NAME.whl.000`, `NAME.whl.001`, ... Each folder has a manifest.json with the checksums of its files and of all wheels of
the group. There `collect` takes one folder after another, in any order, and joins and installs a group once it is
whole. Standard library only: nothing is installed there yet.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PART_BYTES = 54_000_000  # with the working tree below the 64 MiB that one call carries
READ_BYTES = 1 << 22
STORE = Path("/tmp/gigabatch-wheels")
# Python runs the .pth files of its own site-packages, not those of a folder on PYTHONPATH; numba-cuda takes the place
# of `numba.cuda` by one.
SITECUSTOMIZE = "import pathlib, site\n\nsite.addsitedir(str(pathlib.Path(__file__).parent))\n"


class PartError(ValueError):
    """A part is damaged, or belongs to another pack; the message names the file and what to do."""


def checksum(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def split(group: str, wheels: Iterable[Path], out: Path, about: dict[str, Any], limit: int = PART_BYTES) -> list[Path]:
    """Part folders `out/GROUP-NN` of at most `limit` bytes of files each, manifests apart.

    about: goes into every manifest (the Python, the platforms). Parts of this group that lie there are removed first.
    """
    for old in out.glob(f"{group}-[0-9][0-9]"):
        shutil.rmtree(old)
    found = sorted(wheels, key=lambda path: (-path.stat().st_size, path.name))
    whole = [{"name": path.name, "bytes": path.stat().st_size, "sha256": checksum(path)} for path in found]
    parts: list[list[tuple[Path, int, int, str]]] = []  # (wheel, first byte, bytes, name in the part)
    sizes: list[int] = []
    for path in found:
        size = path.stat().st_size
        for number, first in enumerate(range(0, max(size, 1), limit)):
            length = min(limit, size - first)
            name = path.name if size <= limit else f"{path.name}.{number:03d}"
            place = next((place for place, used in enumerate(sizes) if used + length <= limit), len(parts))
            if place == len(parts):
                parts.append([])
                sizes.append(0)
            parts[place].append((path, first, length, name))
            sizes[place] += length
    pack = hashlib.sha256(json.dumps([group, whole], sort_keys=True).encode()).hexdigest()[:16]
    folders = []
    for number, pieces in enumerate(parts, 1):
        folder = out / f"{group}-{number:02d}"
        folder.mkdir(parents=True)
        files = []
        for path, first, length, name in pieces:
            _copy(path, first, length, folder / name)
            files.append({"name": name, "wheel": path.name, "first": first, "bytes": length,
                          "sha256": checksum(folder / name)})  # fmt: skip
        manifest = {"group": group, "pack": pack, "part": number, "parts": len(parts), **about, "files": files}
        (folder / "manifest.json").write_text(json.dumps({**manifest, "wheels": whole}, indent=1) + "\n")
        folders.append(folder)
    return folders


def _copy(path: Path, first: int, length: int, to: Path, mode: str = "xb") -> None:
    with path.open("rb") as source, to.open(mode) as target:
        source.seek(first)
        while length:
            block = source.read(min(length, READ_BYTES))
            if not block:
                raise PartError(f"{path}: ends {length} bytes early. Make the pack again: make gpu-pack.")
            length -= len(block)
            target.write(block)


def collect(part: Path, store: Path = STORE) -> tuple[dict[str, Any], list[int]]:
    """Verify a part folder and copy its files to `store/GROUP`; its manifest, and the numbers of the parts still out.

    Raises:
        PartError: where the manifest is unreadable, a file is missing or its checksum is another, or a part of another
            pack lies in the store.
    """
    try:
        manifest = json.loads((part / "manifest.json").read_text())
        files = [(str(file["name"]), str(file["sha256"])) for file in manifest["files"]]
        group, number, parts = str(manifest["group"]), int(manifest["part"]), int(manifest["parts"])
        pack = str(manifest["pack"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PartError(f"{part}: no readable manifest.json ({error}). Carry the folder whole.") from error
    folder = store / group
    folder.mkdir(parents=True, exist_ok=True)
    for name, wanted in files:
        if Path(name).name != name:
            raise PartError(f"{part}: {name!r} is no file name. Make the pack again: make gpu-pack.")
        if not (part / name).is_file():
            raise PartError(f"{part / name}: missing. Carry {part.name} whole.")
        if checksum(part / name) != wanted:
            raise PartError(f"{part / name}: damaged, its checksum is another. Carry {part.name} again.")
    if any(one["pack"] != pack for one in _collected(folder).values()):
        raise PartError(f"{folder}: holds parts of another pack. Remove it, and collect all parts of one pack.")
    for name, _ in files:
        shutil.copyfile(part / name, folder / name)
    whole = folder / f"part-{number:02d}.json"  # only once its files are there, and never half of it
    whole.with_suffix(".new").write_text(json.dumps(manifest))
    whole.with_suffix(".new").replace(whole)
    there = _collected(folder)
    return manifest, [one for one in range(1, parts + 1) if one not in there]


def _collected(folder: Path) -> dict[int, dict[str, Any]]:
    """Manifests of the parts in a group's folder of the store, by number.

    Raises:
        PartError: where one is unreadable.
    """
    found = {}
    for path in sorted(folder.glob("part-*.json")):
        try:
            manifest = json.loads(path.read_text())
            found[int(path.stem.removeprefix("part-"))] = {name: manifest[name] for name in ("pack", "files", "wheels")}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PartError(f"{path}: unreadable ({error}). Remove {folder}, and collect all parts again.") from error
    return found


def join(group: str, store: Path = STORE) -> list[Path]:
    """The wheels of a group all of whose parts are in the store, verified.

    Raises:
        PartError: where a wheel does not have its bytes.
    """
    folder = store / group
    manifests = list(_collected(folder).values())
    pieces = sorted(
        (file for one in manifests for file in one["files"]), key=lambda file: (file["wheel"], file["first"])
    )
    made = folder / "wheels"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    for file in pieces:
        _copy(folder / file["name"], 0, file["bytes"], made / file["wheel"], "ab")
    for wheel in manifests[0]["wheels"]:
        path = made / wheel["name"]
        if not path.is_file() or checksum(path) != wheel["sha256"]:
            raise PartError(f"{path}: its pieces do not make it up. Make the pack again: make gpu-pack.")
    return [made / wheel["name"] for wheel in manifests[0]["wheels"]]


def site(group: str, store: Path = STORE) -> Path:
    """Where a group is installed; it belongs on PYTHONPATH once it is there."""
    return store / f"site-{group}"


def install(group: str, store: Path = STORE, python: str = sys.executable) -> Path:
    """Install a whole group beside the box's own packages, which stay as they are; the folder for PYTHONPATH.

    Raises:
        PartError: where pip refuses; with the end of what it said.
    """
    target, unfinished = site(group, store), store / f"unfinished-{group}"
    shutil.rmtree(unfinished, ignore_errors=True)
    command = [python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--target", str(unfinished), *map(str, join(group, store))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PartError(f"{group}: pip refused: {done.stderr.strip()[-1000:]}")
    if any(unfinished.glob("*.pth")):
        (unfinished / "sitecustomize.py").write_text(SITECUSTOMIZE)
    shutil.rmtree(target, ignore_errors=True)
    unfinished.rename(target)
    return target
