"""Artifacts: folders named by what went into them, written whole or not at all.

A key is a hash of the inputs' contents, the settings that affect the output and the sources of the stage's modules.
A folder is written under a temporary name, fsynced and renamed, so a crash at any byte leaves what was there before.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec

log = logging.getLogger(__name__)
MANIFEST = "manifest.json"
CHECKSUMS = "checksums.json"
VERSIONS_OF = ("pandas", "pyarrow", "numpy", "torch", "dask", "cudf-cu13", "cupy-cuda13x")


class ArtifactError(ValueError):
    """An artifact cannot be written, read or shared; the message names the folder."""


@dataclass(frozen=True)
class Artifact:
    """A finished folder. skipped: it was there already and was not made anew."""

    path: Path
    key: str
    manifest: dict[str, Any]
    skipped: bool = False


def artifact_key(stage: str, inputs: Mapping[str, Any], config: Mapping[str, Any], sources: str) -> str:
    """32 hex digits; equal for equal content whatever the order of keys."""
    text = json.dumps([stage, inputs, config, sources], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def source_hash(modules: Sequence[str]) -> str:
    """Hash of the source text of modules and whole packages, by name; never of a commit."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(modules):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise ArtifactError(f"module {name!r} has no source to take a hash of.")
        origin = Path(spec.origin)
        files = sorted(origin.parent.rglob("*.py")) if origin.name == "__init__.py" else [origin]
        for file in files:
            digest.update(f"{name}:{file.relative_to(origin.parent)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


def file_checksum(path: Path) -> str:
    """blake2b of a file's bytes, 32 hex digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


class ChecksumCache:
    """Checksums of local files by path, size and modification time, kept in a JSON file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[str, str] = {}
        if path.exists():
            try:
                self.known = dict(json.loads(path.read_text()))
            except (ValueError, TypeError):
                log.warning("%s is damaged; checksums are computed again", path)

    def checksum(self, path: Path) -> str:
        stat = path.stat()
        key = f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"
        if key not in self.known:
            self.known[key] = file_checksum(path)
        return self.known[key]

    def save(self) -> None:
        """Keep what was computed; two writers at once lose a few entries, never the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        current = [item for item in self.known.items() if Path(item[0].rsplit("|", 2)[0]).exists()]
        atomic_write(self.path, json.dumps(dict(current)).encode())


def input_checksums(paths: Sequence[str], root: Path) -> dict[str, str]:
    """Checksum by file name of raw inputs; for a URL, what its file system says identifies the content."""
    cache = ChecksumCache(root / CHECKSUMS)
    found = {}
    for position, path in enumerate(paths):
        if "://" in path:
            filesystem, inside = fsspec.url_to_fs(path)
            found[f"{position}:{Path(inside).name}"] = str(filesystem.ukey(inside))
        else:
            found[f"{position}:{Path(path).name}"] = cache.checksum(Path(path))
    cache.save()
    return found


class ArtifactStore:
    """Artifacts under `<root>/<stage>/<key>/`."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def build(self, stage: str, key: str, write: Callable[[Path], dict[str, Any]]) -> Artifact:
        """The artifact of that key: the one that is there if it checks out, else made by `write`.

        write: fills an empty folder and returns entries for the manifest, such as rows and seconds.
        """
        target = self.root / stage / key
        found = self.find(stage, key)
        if found is not None:
            log.info("%s: skipped, unchanged (%s)", stage, target)
            return found
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(target.parent)
            return self._write(stage, key, target, write)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            free = shutil.disk_usage(self.root).free if self.root.exists() else 0
            raise ArtifactError(
                f"{stage}: the disk of {self.root} is full ({free:,} bytes free: {error}). Nothing was left behind; "
                "free some space (gigabatch gc --keep 1) and run again."
            ) from error

    def find(self, stage: str, key: str) -> Artifact | None:
        """The artifact if it is there and whole; a damaged one is put aside and logged."""
        target = self.root / stage / key
        if not target.is_dir():
            return None
        try:
            return Artifact(target, key, self._verified(target), skipped=True)
        except ArtifactError as error:
            aside = target.with_name(f".damaged-{key}-{secrets.token_hex(4)}")
            target.rename(aside)
            log.warning("%s It was put aside as %s and is made again.", error, aside)
            return None

    def _verified(self, target: Path) -> dict[str, Any]:
        cache = ChecksumCache(self.root / CHECKSUMS)
        try:
            manifest = json.loads((target / MANIFEST).read_text())
            for name, entry in manifest["files"].items():
                path = target / name
                if path.stat().st_size != entry["bytes"] or cache.checksum(path) != entry["checksum"]:
                    raise ArtifactError(f"artifact {target}: file {name} is not what its manifest says.")
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, ArtifactError):
                raise
            raise ArtifactError(f"artifact {target}: damaged ({error}).") from error
        cache.save()
        return manifest

    def _write(self, stage: str, key: str, target: Path, write: Callable[[Path], dict[str, Any]]) -> Artifact:
        temporary = target.with_name(f".tmp-{key}-{os.getpid()}-{secrets.token_hex(4)}")
        with own_folder(temporary):
            extra = write(temporary)
            files = {
                str(path.relative_to(temporary)): {"bytes": path.stat().st_size, "checksum": file_checksum(path)}
                for path in sorted(temporary.rglob("*"))
                if path.is_file()
            }
            manifest = {
                "stage": stage,
                "key": key,
                "created_utc": datetime.now(UTC).isoformat(timespec="seconds"),
                "versions": versions(),
                **extra,
                "files": files,
            }
            (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1))
            fsync_tree(temporary)
            try:
                temporary.rename(target)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                log.info("%s: another process finished the same artifact first", stage)
                return Artifact(target, key, self._verified(target))
            fsync_folder(target.parent)
        return Artifact(target, key, manifest)


def versions() -> dict[str, str]:
    """Installed versions of the libraries that numbers may depend on."""
    found = {}
    for name in VERSIONS_OF:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


@contextlib.contextmanager
def own_folder(path: Path) -> Iterator[None]:
    """Make `path`, hold a lock beside it while it is written, and remove both at the end if they are still there.

    The kernel drops the lock of a killed process, which is how `remove_leftovers` knows that nobody writes there.
    """
    lock = path.with_name(path.name + ".lock")
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            path.mkdir()
            yield
        finally:
            shutil.rmtree(path, ignore_errors=True)
            lock.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> list[Path]:
    """Remove temporary folders whose writer is gone; returns them."""
    removed = []
    for path in folder.glob(".tmp-*"):
        if path.name.endswith(".lock"):
            continue
        lock = path.with_name(path.name + ".lock")
        try:
            with open(lock, "a") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
                lock.unlink(missing_ok=True)
                removed.append(path)
        except BlockingIOError:
            continue
    return removed


@contextlib.contextmanager
def folder_lock(path: Path) -> Iterator[None]:
    """Hold the lock file `path`; a second holder gets an `ArtifactError` that names the first. Survives crashes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise ArtifactError(f"{path} is held by another run ({file.read().strip() or 'unknown'}).") from error
        file.truncate(0)
        file.write(f"pid {os.getpid()} since {datetime.now(UTC).isoformat(timespec='seconds')}")
        file.flush()
        yield


def collect_garbage(root: Path, keep: int, protect: Sequence[Path] = ()) -> tuple[list[Path], int]:
    """Remove all but the newest `keep` artifacts of each stage, damaged ones and leftovers.

    protect: folders that stay. Returns what was removed and the bytes freed.
    """
    if keep < 0:
        raise ArtifactError(f"gc: keep must be at least 0, found {keep}.")
    protected = {path.resolve() for path in protect}
    removed: list[Path] = []
    freed = 0
    for stage in sorted(path for path in root.glob("*") if path.is_dir() and path.name != "checkpoints"):
        removed += remove_leftovers(stage)
        finished = sorted((p for p in stage.iterdir() if (p / MANIFEST).exists()), key=lambda p: -p.stat().st_mtime_ns)
        whole = [path for path in finished if not path.name.startswith(".")]
        old = [path for path in whole[keep:] if path.resolve() not in protected]
        for path in old + list(stage.glob(".damaged-*")):
            freed += sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            shutil.rmtree(path)
            removed.append(path)
    return removed, freed


def atomic_write(path: Path, content: bytes) -> None:
    """Replace a file's content, whole or not at all."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def atomic_symlink(target: Path, link: Path) -> None:
    """Point `link` at `target`; a reader sees the old or the new, never none."""
    temporary = link.with_name(f".{link.name}-{os.getpid()}-{secrets.token_hex(4)}")
    temporary.symlink_to(target)
    os.replace(temporary, link)
    fsync_folder(link.parent)


def fsync_tree(folder: Path) -> None:
    """Every file and folder below, and the folder itself, on disk."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            fsync_folder(path)
        else:
            with open(path, "rb") as file:
                os.fsync(file.fileno())
    fsync_folder(folder)


def fsync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
