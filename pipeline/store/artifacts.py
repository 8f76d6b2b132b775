"""Artifacts: folders named by what went into them, written whole or not at all.

A key is a hash of the inputs' contents, the settings that affect the output and the sources of the stage's modules.
A folder is written under a temporary name, fsynced and renamed, so a crash at any byte leaves what was there before.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gigabatch.pipeline.store.files import ArtifactError, fsync_folder, fsync_tree, json_text
from gigabatch.pipeline.store.keys import CHECKSUMS, ChecksumCache, file_checksum, versions
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

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

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
            (temporary / MANIFEST).write_text(json_text(manifest, indent=1))
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


def artifacts_newest_first(stage: Path) -> list[Path]:
    """Finished folders; neither hidden ones nor links such as `latest`."""
    found = [path for path in stage.iterdir() if not path.name.startswith(".") and not path.is_symlink()]
    return sorted((p for p in found if (p / MANIFEST).exists()), key=lambda p: (-p.stat().st_mtime_ns, p.name))
