"""Artifacts: folders named by what went into them, written whole or not at all.

A key is a hash of the inputs' contents, the settings that affect the output and the sources of the stage's modules.
A folder is written under a temporary name, fsynced and renamed, so a crash at any byte leaves what was there before.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gigabatch.pipeline.store.files import ArtifactError, clone_file, fsync_folder, fsync_tree, json_text
from gigabatch.pipeline.store.keys import CHECKSUMS, ChecksumCache, file_checksum, versions
from gigabatch.pipeline.store.leases import Lease
from gigabatch.pipeline.store.locks import own_folder, remove_leftovers, temporary_path

log = logging.getLogger(__name__)
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Artifact:
    """A finished folder.

    Parameters
    ----------
    path
        The folder.
    key
        Its name, which follows from what it was made of.
    manifest
        The content of its manifest.json: files, rows, seconds, versions.
    skipped
        Whether it was there already and was not made anew.
    """

    path: Path
    key: str
    manifest: dict[str, Any]
    skipped: bool = False


class ArtifactStore:
    """Keep artifacts under `<root>/<stage>/<key>/`.

    Parameters
    ----------
    root
        Folder of the store; made when the first artifact is.
    name
        Of the configuration that uses the store. What is built or found under it is safe from `gigabatch gc` as long as
        this object lives, and gc counts what it keeps by these names. None: nothing else removes what lies there.

    Examples
    --------
    >>> store = ArtifactStore("artifacts")
    >>> def write(folder):
    ...     (folder / "rows.txt").write_text("1 2 3")
    ...     return {"rows": 3}
    >>> store.build("numbers", "a1", write).manifest["rows"]
    3
    >>> store.build("numbers", "a1", write).skipped
    True
    """

    def __init__(self, root: Path | str, name: str | None = None) -> None:
        self.root = Path(root)
        self._lease = None if name is None else Lease(self.root, name)

    def build(self, stage: str, key: str, write: Callable[[Path], dict[str, Any]]) -> Artifact:
        """The artifact of that key: the one that is there if it checks out, else made by `write`.

        Parameters
        ----------
        stage, key
            Names of its folder and its parent.
        write
            Fills an empty folder and returns entries for the manifest, such as rows and seconds.

        Raises
        ------
        ArtifactError
            Where the disk is full. Nothing is left behind then, nor where `write` raises.
        """
        target = self.root / stage / key
        self.use(stage, key)
        found = self.find(stage, key)
        if found is not None:
            log.info("%s: skipped, unchanged (%s)", stage, target)
            return found
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target.parent)
        return self._write(stage, key, target, write)

    def copy(self, artifact: Artifact, target: Path) -> None:
        """A copy of an artifact outside the store, whole or not at all.

        One that is there already stays if it is whole; what lies beside its own files does not matter. A damaged one is
        put aside, and what lies beside its own files goes over into the new one.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target.parent)
        if target.is_dir():
            try:
                named = verified(target, "run", alone=False)["files"].keys()
                if lost := sorted(artifact.manifest["files"].keys() - named):
                    raise ArtifactError(f"run {target}: its manifest does not name {lost[0]}.")
                return
            except ArtifactError as error:
                log.warning("%s It is put aside and made again.", error)
        temporary, aside = temporary_path(target), target.with_name(f".damaged-{target.name}-{secrets.token_hex(4)}")
        with own_folder(temporary), _full_disk_as_user_error(f"copy of {artifact.path}", temporary):
            shutil.copytree(artifact.path, temporary, dirs_exist_ok=True, copy_function=clone_file)
            fsync_tree(temporary)
            with contextlib.suppress(FileNotFoundError):
                target.rename(aside)
            _put_in_place(temporary, target)
        for path in aside.iterdir() if aside.is_dir() else ():
            if not os.path.lexists(target / path.name):
                path.rename(target / path.name)

    def find(self, stage: str, key: str) -> Artifact | None:
        """The artifact if it is there and whole; a damaged one is put aside and logged."""
        target = self.root / stage / key
        if not target.is_dir():
            return None
        self.use(stage, key)
        try:
            return Artifact(target, key, self._verified(target), skipped=True)
        except ArtifactError as error:
            aside = target.with_name(f".damaged-{key}-{secrets.token_hex(4)}")
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                target.rename(aside)
            log.warning("%s It was put aside as %s and is made again.", error, aside)
            return None

    def use(self, stage: str, key: str) -> None:
        """Keep this folder from `gigabatch gc` as long as this object lives."""
        if self._lease is not None:
            self._lease.add(f"{stage}/{key}")

    def _verified(self, target: Path) -> dict[str, Any]:
        cache = ChecksumCache(self.root / CHECKSUMS)
        manifest = verified(target, "artifact", cache.checksum)
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
            (temporary / MANIFEST).write_text(json_text(manifest, indent=1))
            if not _put_in_place(temporary, target):
                log.info("%s: another process finished the same artifact first", stage)
                return Artifact(target, key, self._verified(target))
        cache = ChecksumCache(self.root / CHECKSUMS)  # so that the next run need not read everything again
        for name, stat in stats.items():
            cache.remember(target / name, stat, str(files[name]["checksum"]))
        cache.save()
        return Artifact(target, key, manifest)


def verified(
    folder: Path, what: str, checksum: Callable[[Path], str] = file_checksum, alone: bool = True
) -> dict[str, Any]:
    """The manifest of a folder whose files are as it says.

    what: `artifact` or `run`, for messages. checksum: of a file. alone: whether further files are damage, too.
    """
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
        named, there = manifest["files"].keys(), _content_files(folder).keys()
        if missing := sorted(named - there):
            raise ArtifactError(f"{what} {folder}: file {missing[0]!r} is missing.")
        if alone and (strange := sorted(there - named)):
            raise ArtifactError(f"{what} {folder}: file {strange[0]!r} is not in its manifest.")
        for name, entry in manifest["files"].items():
            path = folder / name
            if path.stat().st_size != entry["bytes"] or checksum(path) != entry["checksum"]:
                raise ArtifactError(f"{what} {folder}: file {name} is not what its manifest says.")
    except ArtifactError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"{what} {folder}: damaged ({error}).") from error
    return manifest


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


def artifacts_newest_first(stage: Path) -> list[Path]:
    """Finished folders; neither hidden ones nor links such as `latest`."""
    found = [path for path in stage.iterdir() if not path.name.startswith(".") and not path.is_symlink()]
    return sorted((p for p in found if (p / MANIFEST).exists()), key=lambda p: (-p.stat().st_mtime_ns, p.name))
