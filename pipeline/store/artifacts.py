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
import math
import os
import platform
import re
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import IO, Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

log = logging.getLogger(__name__)
MANIFEST = "manifest.json"
CHECKSUMS = "checksums.json"
SETTLED_NS = 2_000_000_000  # a file changed later than this ago may change again without its time showing it
HOLDER_NAME_S = 1.0  # how long a refused run waits for the holder of a lock to write its name
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
    text = json.dumps([stage, inputs, config, sources], sort_keys=True, default=_stable_text)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _stable_text(value: Any) -> str:
    """Text of a setting that JSON has no form for; `str` of just anything may hold an address of this process."""
    if isinstance(value, PurePath):
        return str(value)
    raise ArtifactError(f"artifact key: a {type(value).__name__} ({value!r}) has no stable text. Give JSON values.")


def source_hash(modules: Sequence[str]) -> str:
    """Hash of the source text of modules and whole packages, by name; never of a commit."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(modules):
        try:
            spec = importlib.util.find_spec(name)
        except ModuleNotFoundError as error:
            raise ArtifactError(f"module {name!r} has no source to take a hash of: {error}.") from error
        if spec is None or spec.origin is None or not spec.has_location:
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
    """Checksums of local files by path, size and modification time, kept in a JSON file.

    As in git's index, a file changed within the last two seconds is not taken in: another change of the same size
    within the same tick of the file system's clock could not be told from it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known = self._read()
        self._changed = False

    def checksum(self, path: Path) -> str:
        stat = path.stat()
        entry = self.known.get(str(path.resolve()))
        if entry is not None and entry[:2] == (stat.st_size, stat.st_mtime_ns):
            return entry[2]
        checksum = file_checksum(path)
        self.remember(path, stat, checksum)
        return checksum

    def remember(self, path: Path, stat: os.stat_result, checksum: str) -> None:
        """Take in a checksum of the file that had this `stat` before it was read."""
        if time.time_ns() - stat.st_mtime_ns > SETTLED_NS:
            self.known[str(path.resolve())] = (stat.st_size, stat.st_mtime_ns, checksum)
            self._changed = True

    def save(self) -> None:
        """Keep what was computed; two writers at once lose a few entries, never the file."""
        if not self._changed:
            return
        known = {name: entry for name, entry in (self._read() | self.known).items() if Path(name).exists()}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(self.path, json.dumps(known).encode())
        except OSError as error:
            log.warning("%s could not be written (%s); checksums will be computed again", self.path, error)

    def _read(self) -> dict[str, tuple[int, int, str]]:
        try:
            found = json.loads(self.path.read_text())
            return {name: (int(size), int(mtime_ns), str(text)) for name, (size, mtime_ns, text) in found.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError):
            log.warning("%s is damaged; checksums are computed again", self.path)
            return {}


def input_checksums(paths: Sequence[str], root: Path) -> dict[str, str]:
    """Checksum by file name of raw inputs; for a URL, what its file system says identifies the content."""
    cache = ChecksumCache(root / CHECKSUMS)
    found = {}
    for position, path in enumerate(paths):
        filesystem, inside = fsspec.url_to_fs(path)
        try:
            local = isinstance(filesystem, LocalFileSystem)
            checksum = cache.checksum(Path(inside)) if local else str(filesystem.ukey(inside))
        except FileNotFoundError as error:
            raise ArtifactError(f"input {path} does not exist. Correct its path in the configuration.") from error
        found[f"{position}:{Path(inside).name}"] = checksum
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
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target.parent)
        return self._write(stage, key, target, write)

    def copy(self, artifact: Artifact, target: Path) -> None:
        """A copy of an artifact outside the store, whole or not at all; one that is there already stays."""
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target.parent)
        temporary = temporary_path(target)
        with own_folder(temporary), _full_disk_as_user_error(f"copy of {artifact.path}", temporary):
            shutil.copytree(artifact.path, temporary, dirs_exist_ok=True)
            _put_in_place(temporary, target)

    def find(self, stage: str, key: str) -> Artifact | None:
        """The artifact if it is there and whole; a damaged one is put aside and logged."""
        target = self.root / stage / key
        if not target.is_dir():
            return None
        try:
            return Artifact(target, key, self._verified(target), skipped=True)
        except ArtifactError as error:
            aside = target.with_name(f".damaged-{key}-{secrets.token_hex(4)}")
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                target.rename(aside)
            log.warning("%s It was put aside as %s and is made again.", error, aside)
            return None

    def _verified(self, target: Path) -> dict[str, Any]:
        cache = ChecksumCache(self.root / CHECKSUMS)
        try:
            manifest = json.loads((target / MANIFEST).read_text())
            if different := manifest["files"].keys() ^ _content_files(target).keys():
                raise ArtifactError(f"artifact {target}: {sorted(different)} missing, or not in its manifest.")
            for name, entry in manifest["files"].items():
                path = target / name
                if path.stat().st_size != entry["bytes"] or cache.checksum(path) != entry["checksum"]:
                    raise ArtifactError(f"artifact {target}: file {name} is not what its manifest says.")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, ArtifactError):
                raise
            raise ArtifactError(f"artifact {target}: damaged ({error}).") from error
        cache.save()
        return manifest

    def _write(self, stage: str, key: str, target: Path, write: Callable[[Path], dict[str, Any]]) -> Artifact:
        temporary = temporary_path(target)
        with own_folder(temporary), _full_disk_as_user_error(stage, temporary):
            extra = write(temporary)
            stats = {name: path.stat() for name, path in _content_files(temporary).items()}
            files = {
                name: {"bytes": stat.st_size, "checksum": file_checksum(temporary / name)}
                for name, stat in stats.items()
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
            if not _put_in_place(temporary, target):
                log.info("%s: another process finished the same artifact first", stage)
                return Artifact(target, key, self._verified(target))
        cache = ChecksumCache(self.root / CHECKSUMS)  # so that the next run need not read everything again
        for name, stat in stats.items():
            cache.remember(target / name, stat, str(files[name]["checksum"]))
        cache.save()
        return Artifact(target, key, manifest)


def _put_in_place(temporary: Path, target: Path) -> bool:
    """Flush a finished folder and give it its name; False where another process was first."""
    fsync_tree(temporary)
    try:
        temporary.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    fsync_folder(target.parent)
    return True


def _content_files(folder: Path) -> dict[str, Path]:
    """Files of an artifact by relative name, in order, but for the manifest and hidden ones such as .DS_Store."""
    files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: path for name, path in files.items() if name != MANIFEST and not re.search(r"(^|/)\.", name)}


@contextlib.contextmanager
def _full_disk_as_user_error(stage: str, folder: Path) -> Iterator[None]:
    """Turn an error that a full disk is behind into an `ArtifactError` with the space that was free then."""
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:  # libraries wrap the system's error in their own
            if _is_full_disk(cause):
                raise ArtifactError(
                    f"{stage}: could not write to {folder.parent}, the disk is full or its limit is met "
                    f"({shutil.disk_usage(folder.parent).free:,} bytes free; {cause}). Nothing was left behind; free "
                    "some space (gigabatch gc --keep 1) and run again."
                ) from error
            cause = cause.__cause__ or cause.__context__
        raise


def _is_full_disk(error: BaseException) -> bool:
    codes = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if isinstance(error, shutil.Error):  # copytree gathers the errors of its files as text
        return any(f"[Errno {code}]" in str(error) for code in codes)
    return isinstance(error, OSError) and error.errno in codes


def versions() -> dict[str, str]:
    """Installed versions of the libraries that numbers may depend on."""
    found = {"python": platform.python_version()}
    for name in VERSIONS_OF:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def temporary_path(target: Path) -> Path:
    """A name beside `target` that no other writer has: of this machine, this process and this call."""
    return target.with_name(f".tmp-{target.name}@{_host()}@{os.getpid()}-{secrets.token_hex(4)}")


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())


@contextlib.contextmanager
def own_folder(path: Path) -> Iterator[None]:
    """Make `path`, hold a lock beside it while it is written, and remove both at the end if they are still there.

    The kernel drops the lock of a killed process, which is how `remove_leftovers` knows that nobody writes there.
    """
    lock = path.with_name(path.name + ".lock")
    with _locked(lock):
        try:
            path.mkdir()
            yield
        finally:
            shutil.rmtree(path, ignore_errors=True)
            lock.unlink(missing_ok=True)


# flock rather than the package filelock: both uses need the open file. A holder writes its name into the one that is
# locked, and a lock on a file that a cleaner has removed meanwhile is taken again.
def _locked(lock: Path) -> IO[str]:
    """The lock file, open and locked; again where a cleaner removed it between the two steps."""
    while True:
        file = open(lock, "w")  # noqa: SIM115
        fcntl.flock(file, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), lock.stat()):
                return file
        file.close()


def remove_leftovers(folder: Path) -> dict[Path, int]:
    """Remove temporary folders of this machine whose writer is gone; returns them with the bytes that they took.

    Those of other machines that share the disk stay: whether their writers live is not to be seen from here.
    """
    removed = {}
    for name in sorted({path.name.removesuffix(".lock") for path in folder.glob(f".tmp-*@{_host()}@*")}):
        path, lock = folder / name, folder / f"{name}.lock"
        with open(lock, "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if path.exists():
                removed[path] = _remove(path)
            lock.unlink(missing_ok=True)
    return removed


def _remove(folder: Path) -> int:
    """Remove a folder; returns the bytes of its files."""
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    shutil.rmtree(folder)
    return size


@contextlib.contextmanager
def folder_lock(path: Path) -> Iterator[None]:
    """Hold the lock file `path`; a second holder gets an `ArtifactError` that names the first. Survives crashes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+") as file:
        if holder := _take_lock(file):
            raise ArtifactError(f"{path} is held by another run ({holder}).")
        file.truncate(0)
        file.write(f"pid {os.getpid()} since {datetime.now(UTC).isoformat(timespec='seconds')}")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)  # so that the next holder is not taken for this one before it has written its name


def _take_lock(lock: IO[str]) -> str | None:
    """Take the lock, or tell what its holder wrote of itself.

    A holder without a name is about to write it, or has just let go; so both are tried again for a moment.
    """
    until = time.monotonic() + HOLDER_NAME_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            text = lock.read().strip()
        else:
            return None
        if text or time.monotonic() > until:
            return text or "unknown"
        time.sleep(0.01)


def collect_garbage(root: Path, keep: int, protect: Sequence[Path] = ()) -> tuple[list[Path], int]:
    """Remove all but the newest `keep` artifacts of each stage, and checkpoints, damaged ones and leftovers.

    protect: folders that stay. Returns what was removed and the bytes freed.
    """
    if keep < 0:
        raise ArtifactError(f"gc: keep must be at least 0, found {keep}.")
    protected = {path.resolve() for path in protect}
    removed: dict[Path, int] = {}
    for stage in sorted(path for path in root.glob("*") if path.is_dir() and path.name != "checkpoints"):
        removed |= remove_leftovers(stage)
        for path in artifacts_newest_first(stage)[keep:]:
            if path.resolve() not in protected:
                aside = path.with_name(f".removed-{path.name}-{secrets.token_hex(4)}")
                path.rename(aside)  # at once, so that a crash leaves no half artifact under its name
                removed[path] = _remove(aside)
        removed |= {path: _remove(path) for path in [*stage.glob(".damaged-*"), *stage.glob(".removed-*")]}
    removed |= _remove_checkpoints(root / "checkpoints", keep)
    return list(removed), sum(removed.values())


def _remove_checkpoints(folder: Path, keep: int) -> dict[Path, int]:
    """Remove all but the newest `keep` checkpoints of unfinished trainings; one that is being written to stays."""
    found = sorted((p for p in folder.glob("*") if p.is_dir()), key=lambda path: -path.stat().st_mtime_ns)
    removed = {}
    for path in found[keep:]:
        with contextlib.suppress(ArtifactError), folder_lock(path.with_suffix(".lock")):
            removed[path] = _remove(path)
    return removed


def artifacts_newest_first(stage: Path) -> list[Path]:
    """Finished folders; neither hidden ones nor links such as `latest`."""
    found = [path for path in stage.iterdir() if not path.name.startswith(".") and not path.is_symlink()]
    return sorted((p for p in found if (p / MANIFEST).exists()), key=lambda p: (-p.stat().st_mtime_ns, p.name))


def without_nan(value: Any) -> Any:
    """Nested dicts and lists for JSON, which has no NaN and no infinity: None instead."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def atomic_write(path: Path, content: bytes) -> None:
    """Replace a file's content, whole or not at all."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        fsync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Replace a file by `content` as JSON, indented, whole or not at all; `without_nan`."""
    atomic_write(path, (json.dumps(without_nan(content), indent=1, default=str) + "\n").encode())


def atomic_symlink(target: Path, link: Path) -> None:
    """Point `link` at `target`; a reader sees the old or the new, never none."""
    if link.is_dir() and not link.is_symlink():
        raise ArtifactError(f"{link} is a folder, not a link to one. Move it away and run again.")
    temporary = link.with_name(f".{link.name}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        temporary.symlink_to(target)
        os.replace(temporary, link)
        fsync_folder(link.parent)
    finally:
        temporary.unlink(missing_ok=True)


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
