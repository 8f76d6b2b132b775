"""Keys of artifacts: hashes of inputs, settings and sources; checksums of files, kept while the files stay the same."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import logging
import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from gigabatch.features.errors import raise_of_machine
from gigabatch.features.operators.sources import without_unused
from gigabatch.features.reading.sources import file_system, same_file
from gigabatch.pipeline.store.files import ArtifactError, atomic_write, in_threads

log = logging.getLogger(__name__)
FEATURES = "gigabatch.features"
ALL = [f"gigabatch.{folder}" for folder in ("features", "loaders", "models", "pipeline")]
CHECKSUMS = "checksums.json"
FILES = '"files": '  # before its entries
XXH3, BLAKE2B = "xxh3:", ""  # what a checksum begins with, by its algorithm
SETTLED_NS = 2_000_000_000  # a file changed later than this ago may change again without its time showing it
# Of fsspec's file systems: HTTP, S3, Google, Azure, SFTP, zip and memory.
VALIDATORS = (
    "ETag", "etag", "Content-MD5", "Digest", "md5Hash", "content_md5", "CRC", "sha", "VersionId", "version_id",
    "generation", "Last-Modified", "LastModified", "last_modified", "updated", "modified", "mtime", "date_time",
    "created",
)  # fmt: skip
VERSIONS_OF = ("pandas", "pyarrow", "numpy", "torch", "dask", "cudf-cu13", "cupy-cuda13x")


def artifact_key(stage: str, inputs: Mapping[str, Any], config: Mapping[str, Any], sources: str) -> str:
    """32 hex digits; equal for equal content whatever the order of keys."""
    # A bound of a step may be an infinity; this text is never written.
    text = json.dumps([stage, inputs, config, sources], sort_keys=True, default=_stable_text, allow_nan=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _stable_text(value: Any) -> str:
    """Text of a setting that JSON has no form for; `str` of just anything may hold an address of this process."""
    if isinstance(value, PurePath):
        return str(value)
    raise ArtifactError(f"artifact key: a {type(value).__name__} ({value!r}) has no stable text. Give JSON values.")


def run_id_of(key: str) -> str:
    """The name of a run's folder, by the key of its evaluate artifact."""
    return key[:12]


def source_hash(modules: Sequence[str]) -> str:
    """Hash of the source text of modules and whole packages, by name; never of a commit.

    Of `gigabatch.features`, operators that not every stage runs count by their use (`operator_code`). A process reads
    again only what has changed, as `ChecksumCache` tells it: one command asks a dozen times."""
    found = []
    for name in sorted(modules):
        try:
            spec = importlib.util.find_spec(name)
        except ModuleNotFoundError as error:
            raise ArtifactError(f"module {name!r} has no source to take a hash of: {error}.") from error
        if spec is None or spec.origin is None or not spec.has_location:
            raise ArtifactError(f"module {name!r} has no source to take a hash of.")
        folder, file = os.path.split(spec.origin)
        found.append((name, folder, tuple(_sources_in(folder) if file == "__init__.py" else [_source(spec.origin)])))
    newest = max((max(mtime, ctime) for *_, files in found for _, _, mtime, ctime, _ in files), default=0)
    settled = time.time_ns() - newest > SETTLED_NS
    return (_hash_of_sources if settled else _hash_of_sources.__wrapped__)(tuple(found))


def _source(path: str) -> tuple[str, int, int, int, int]:
    return path, *signature(os.stat(path))


def _sources_in(folder: str) -> Iterator[tuple[str, int, int, int, int]]:
    """Every Python file of a package, with what tells a change of it."""
    for parent, _, names in os.walk(folder):
        yield from (_source(os.path.join(parent, name)) for name in names if name.endswith(".py"))


@functools.lru_cache(maxsize=64)
def _hash_of_sources(found: tuple[tuple[str, str, tuple[tuple[str, int, int, int, int], ...]], ...]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, folder, named in found:
        files = sorted(Path(path) for path, *_ in named)
        for file in without_unused(files) if name == FEATURES else files:
            digest.update(f"{name}:{file.relative_to(folder)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


def text_checksum(text: str) -> str:
    """32 hex digits of a text, which show damage."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def file_checksum(path: Path, like: str = XXH3) -> str:
    """The checksum of a file's bytes, which shows damage (not forgery: whoever can write the one can write the other).

    `xxh3:` and the 32 hex digits of XXH3's 128 bits, at the speed of memory; or, as files of before have it, those of
    blake2b alone, some ten times as slow.

    like: a checksum to be compared with; this one is by the same algorithm.
    """
    with open(path, "rb", buffering=0) as file:
        return _digest_of(file, like)


def bytes_checksum(content: bytes) -> str:
    """The `file_checksum` of a file that holds `content`."""
    return _digest_of(io.BytesIO(content))


def _digest_of(file: Any, like: str = XXH3) -> str:
    import xxhash  # here, so that a step trains where only torch is

    is_xxh3 = like.startswith(XXH3)
    # Into one buffer that stays in the cache. Reading and both algorithms leave the interpreter to other threads.
    digest = hashlib.file_digest(file, xxhash.xxh3_128 if is_xxh3 else partial(hashlib.blake2b, digest_size=16))
    return (XXH3 if is_xxh3 else BLAKE2B) + digest.hexdigest()


class ChecksumCache:
    """Checksums of local files by path, size, inode and times of change, kept in a JSON file; threads may share it.

    The inode and the time of its change tell a file that took another's place or whose time was set back. As in git's
    index, a file changed within the last two seconds is not taken in: another change of the same size within the same
    tick of the file system's clock could not be told from it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known = self._read()
        self._changed = False

    def checksum(self, path: Path, like: str = XXH3) -> str:
        """As `file_checksum`, read again only where the file or the algorithm is another."""
        stat = path.stat()
        entry = self.known.get(str(path.resolve()))
        if entry is not None and entry[:-1] == signature(stat) and entry[-1].startswith(XXH3) == like.startswith(XXH3):
            return entry[-1]
        checksum = file_checksum(path, like)
        self.remember(path, stat, checksum)
        return checksum

    def remember(self, path: Path, stat: os.stat_result, checksum: str) -> None:
        """Take in a checksum of the file that had this `stat` before it was read."""
        if time.time_ns() - max(stat.st_mtime_ns, stat.st_ctime_ns) > SETTLED_NS:
            self.known[str(path.resolve())] = (*signature(stat), checksum)
            self._changed = True

    def save(self) -> None:
        """Keep what was computed; two writers at once lose a few entries, never the file."""
        if not self._changed:
            return
        known = {name: entry for name, entry in (self._read() | self.known).items() if Path(name).exists()}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            body = json.dumps(known, allow_nan=False)
            atomic_write(self.path, f'{{"checksum": "{text_checksum(body)}", {FILES}{body}}}'.encode())
        except OSError as error:
            log.warning("%s could not be written (%s); checksums will be computed again", self.path, error)

    def _read(self) -> dict[str, tuple[int, int, int, int, str]]:
        try:
            whole = self.path.read_text()
            found = json.loads(whole)
            if not {"checksum", "files"}.isdisjoint(found.keys()):  # an earlier version wrote the entries alone
                if found["checksum"] != text_checksum(whole.partition(FILES)[2][:-1]):
                    raise ValueError("its content is not what was written")
                found = found["files"]
            entries = {name: entry for name, entry in found.items() if len(entry) != 3}  # 3: without inode, before 0.3
            return {
                name: (int(size), int(mtime_ns), int(ctime_ns), int(inode), str(text))
                for name, (size, mtime_ns, ctime_ns, inode, text) in entries.items()
            }
        except FileNotFoundError:
            return {}
        except PermissionError as error:
            log.warning("%s cannot be read (%s); checksums are computed again", self.path, error.strerror)
            return {}
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            log.warning("%s is damaged; checksums are computed again", self.path)
            return {}


def signature(stat: os.stat_result) -> tuple[int, int, int, int]:
    """Size, times and inode: what is another where the file is."""
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


def input_checksums(paths: Sequence[str], root: Path) -> dict[str, str]:
    """Checksum by file name of raw inputs, several files at once; for a URL, `url_identity`."""
    cache = ChecksumCache(root / CHECKSUMS)

    def checksum(path: str) -> tuple[str, str]:
        filesystem, inside = file_system(path)
        try:
            local = isinstance(filesystem, LocalFileSystem)
            return Path(inside).name, cache.checksum(Path(inside)) if local else url_identity(filesystem, inside)
        except FileNotFoundError as error:
            raise ArtifactError(f"input {path} does not exist. Correct its path in the configuration.") from error
        except OSError as error:
            raise_of_machine(error, path)
            raise

    found = {f"{position}:{name}": text for position, (name, text) in enumerate(in_threads(checksum, paths))}
    cache.save()
    return found


def require_same_inputs(paths: Sequence[str], checksums: Mapping[str, str], read: Iterable[str], root: Path) -> None:
    """Raise `ArtifactError` where what was read is not what a key was made of: a file has changed, or come since.

    paths, checksums: as `input_checksums` was given them and gave them back. read: paths of files that were read.
    """
    if late := sorted(set(map(same_file, read)) - set(map(same_file, paths))):
        raise ArtifactError(f"input {late[0]} has come while others were read. Run again.")
    for path, before, after in zip(paths, checksums.values(), input_checksums(paths, root).values(), strict=True):
        if before != after:
            raise ArtifactError(f"input {path} changed while it was read. Run again when it is complete.")


def url_identity(filesystem: Any, path: str) -> str:
    """What changes when the content behind a URL does, 32 hex digits.

    That is what its file system says of it: name, length, and an entity tag, checksum, version or time of change. Where
    it says none of these, as some HTTP servers do, or only that it was changed within the last two seconds, the content
    is read for its checksum. (fsspec's own `ukey` is the URL alone over HTTP.)
    """
    info = filesystem.info(path)
    said = {name: str(info[name]) for name in VALIDATORS if info.get(name)}
    if not said or (said.keys() == {"Last-Modified"} and _changed_just_now(said["Last-Modified"])):
        with filesystem.open(path, "rb") as file:
            return _digest_of(file)
    text = json.dumps([path, info.get("size"), said], sort_keys=True, allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _changed_just_now(date: str) -> bool:
    """Whether an HTTP date, which counts whole seconds, is so new that another change may bear it too."""
    try:
        return time.time() - parsedate_to_datetime(date).timestamp() <= SETTLED_NS / 1e9
    except ValueError:
        return True


def versions() -> dict[str, str]:
    """Installed versions of the libraries that numbers may depend on."""
    return dict(_versions())


@functools.cache
def _versions() -> dict[str, str]:
    """Read once in a process: 50 ms, for each of the artifacts of thousands of files."""
    found = {"python": platform.python_version()}
    for name in VERSIONS_OF:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
