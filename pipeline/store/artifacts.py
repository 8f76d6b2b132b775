"""Artifacts: folders named by what went into them, written whole or not at all.

A key is a hash of the inputs' contents, the settings that affect the output and the sources of the stage's modules.
A folder is written under a temporary name, fsynced and renamed, so a crash at any byte leaves what was there before.
What is in memory already may be written behind the work that goes on with it (`ArtifactStore.build_behind`).
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
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from gigabatch.features.errors import raise_of_system
from gigabatch.pipeline.display import tell_skipped
from gigabatch.pipeline.stopping import stop_event
from gigabatch.pipeline.store.files import (
    FULL,
    ArtifactError,
    clone_file,
    fsync_file,
    fsync_folder,
    fsync_tree,
    in_threads,
    json_text,
    require_there,
    share_file,
)
from gigabatch.pipeline.store.keys import CHECKSUMS, ChecksumCache, file_checksum, versions
from gigabatch.pipeline.store.leases import Lease
from gigabatch.pipeline.store.locks import own_folder, remove_leftovers, temporary_path

log = logging.getLogger(__name__)
MANIFEST = "manifest.json"
LINKED = ".safetensors"  # of a copy's files, those that may be large
Extra = dict[str, Any]
Rest = Callable[[Callable[[], None]], Extra]  # of `ArtifactStore.build_behind`


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


class WritingError(ArtifactError):
    """An artifact that was being written behind the caller has failed."""


class Writing:
    """An artifact that a thread of this process is writing.

    The thread is no daemon: a process that ends waits for it. It ends early where somebody asks the process to stop.
    A failure that nobody has asked for is logged when this object and the thread are gone, at the end of the process at
    the latest.

    Parameters
    ----------
    path
        The folder that will be there.
    key
        Its name.
    work
        Writes it; is given a function to call now and then, which raises where the process is to stop.

    Examples
    --------
    >>> path = Path("artifacts/numbers/a1")
    >>> writing = Writing(path, "a1", lambda check: Artifact(path, "a1", {"rows": 3}))
    >>> writing.result().manifest["rows"]
    3
    """

    def __init__(self, path: Path, key: str, work: Callable[[Callable[[], None]], Artifact]) -> None:
        self.path, self.key = path, key
        self._future: Future[Artifact] = Future()
        self._asked: list[bool] = []  # not empty: somebody has been given the failure
        weakref.finalize(self, _log_when_done, self._future, self._asked)
        # The event is there before the thread is, which may begin to run only after a signal has come.
        arguments = (self._future, self._asked, path, work, stop_event())
        threading.Thread(target=_write_behind, args=arguments, name=f"write {path.parent.name}").start()

    def result(self) -> Artifact:
        """The artifact, once it is whole; what the writing failed with is raised here."""
        try:
            return self._future.result()
        except ArtifactError as error:
            self._asked.append(True)
            raise WritingError(str(error)) from error
        except Exception:
            self._asked.append(True)
            raise

    def check(self) -> None:
        """Raise what the writing has failed with, if it has; this does not wait."""
        if self._future.done():
            self.result()


def _write_behind(
    future: Future[Artifact],
    asked: list[bool],
    path: Path,
    work: Callable[[Callable[[], None]], Artifact],
    stop: threading.Event,
) -> None:
    """The thread of a `Writing`, whose traceback must not keep that object alive. stop: set where the process is to."""

    def check() -> None:
        if stop.is_set():
            asked.append(True)  # the signal is what there is to tell
            raise ArtifactError(f"{path} was not finished, because the process was asked to stop.")

    try:
        future.set_result(work(check))
    except BaseException as error:  # `result` raises it, in the thread that waits
        future.set_exception(error)


def _log_when_done(future: Future[Artifact], asked: list[bool]) -> None:
    """Log a failure that nobody can ask for any more: at once, or in the thread that still writes, when it fails."""

    def log_failure(done: Future[Artifact]) -> None:
        if not asked and (error := done.exception()) is not None:
            log.error("%s", error)

    future.add_done_callback(log_failure)


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
        require_there(self.root)
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
        made = self.build_behind(stage, key, write)
        assert isinstance(made, Artifact)  # since `write` returns no function
        return made

    def build_behind(self, stage: str, key: str, begin: Callable[[Path], Extra | Rest]) -> Artifact | Writing:
        """As `build`, but the folder may be finished by a thread while the caller goes on.

        Parameters
        ----------
        stage, key
            As of `build`.
        begin
            As `write` of `build`; or it returns a function that writes the rest in a thread and returns the entries
            for the manifest. That function is given another, to be called now and then, which raises where the process
            is to stop.

        Returns
        -------
        Artifact or Writing
            What is there, or is being written: whole or not at all, under the same locks and with the same errors.
        """
        target = self.root / stage / key
        self.use(stage, key)
        found = self.find(stage, key)
        if found is not None:
            tell_found(stage, found)
            return found
        require_there(target.parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target.parent)
        temporary = temporary_path(target)
        with contextlib.ExitStack() as stack:
            stack.enter_context(own_folder(temporary))
            stack.enter_context(_full_disk_as_user_error(stage, temporary))
            begun = begin(temporary)
            held = stack.pop_all()  # the folder's lock goes over to whoever finishes it

        def finish(check: Callable[[], None]) -> Artifact:
            with held:
                extra = begun(check) if callable(begun) else begun
                artifact, seen = self._put(stage, key, temporary, target, extra, check)
            self._remember(artifact, seen)
            return artifact

        return Writing(target, key, finish) if callable(begun) else finish(lambda: None)

    def copy(self, artifact: Artifact, target: Path) -> None:
        """A copy of an artifact outside the store, whole or not at all.

        One that is there already stays if it is whole; what lies beside its own files does not matter. A damaged one is
        put aside, and what lies beside its own files goes over into the new one.

        Tensors (`LINKED`) are the artifact's files under a second name, so that they lie on the disk once; nothing here
        writes to a file that has its name. Who does it all the same damages both, which either's checksums show.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target.parent)
        if target.is_dir():
            try:
                there = verified(target, "run", alone=False)
                if there.get("key", artifact.key) != artifact.key:
                    raise ArtifactError(f"run {target}: its files are those of another run.")
                named = there["files"].keys()
                if lost := sorted(artifact.manifest["files"].keys() - named):
                    raise ArtifactError(f"run {target}: its manifest does not name {lost[0]}.")
                return
            except ArtifactError as error:
                log.warning("%s It is put aside and made again.", error)
        temporary, aside = temporary_path(target), target.with_name(f".damaged-{target.name}-{secrets.token_hex(4)}")
        with own_folder(temporary), _full_disk_as_user_error(f"copy of {artifact.path}", temporary):
            shutil.copytree(artifact.path, temporary, dirs_exist_ok=True, copy_function=_linked_or_cloned)
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
            aside = put_aside(target)
            log.warning("%s It was put aside as %s and is made again.", error, aside)
            return None

    def require_whole(self, *stages: str) -> None:
        """Put aside what this object has found or built of these stages and is not what it was, and raise it.

        For what could not be read: `find` believes a checksum that is remembered of a file of the same size and times,
        here every byte is read.
        """
        used = [] if self._lease is None else sorted(self._lease.folders)
        found = []
        for target in (self.root / folder for folder in used if folder.partition("/")[0] in stages):
            if (target / MANIFEST).is_file():  # of others there is nothing to compare with
                try:
                    verified(target, "artifact")
                except ArtifactError as error:
                    found.append(f"{error} It was put aside as {put_aside(target).name}.")
        if found:
            raise ArtifactError(
                f"{' '.join(found)} Run again: it is made again. Where this comes back, look at the disk."
            )

    def use(self, stage: str, key: str) -> None:
        """Keep this folder from `gigabatch gc` as long as this object lives."""
        if self._lease is not None:
            self._lease.add(f"{stage}/{key}")

    def _verified(self, target: Path) -> dict[str, Any]:
        cache = ChecksumCache(self.root / CHECKSUMS)
        manifest = verified(target, "artifact", cache.checksum)
        cache.save()
        if (name := f"{manifest.get('stage')}/{manifest.get('key')}") != f"{target.parent.name}/{target.name}":
            raise ArtifactError(f"artifact {target}: it is that of {name}.")
        return manifest

    def _put(
        self, stage: str, key: str, temporary: Path, target: Path, extra: Extra, check: Callable[[], None]
    ) -> tuple[Artifact, dict[str, os.stat_result]]:
        """Finish a folder and give it its name; and its files as they were before their checksums were computed."""
        stats = {name: path.stat() for name, path in _content_files(temporary).items()}

        def checksum(name: str) -> str:
            check()
            return file_checksum(temporary / name)

        # The disk takes some files in while others are read; the flush of the whole folder finds them there.
        jobs: list[Callable[[], Any]] = []
        for name in stats:
            jobs += partial(checksum, name), partial(fsync_file, temporary / name)
        checksums = in_threads(lambda job: job(), jobs)[::2]
        files = {
            name: {"bytes": stat.st_size, "checksum": text}
            for (name, stat), text in zip(stats.items(), checksums, strict=True)
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
        check()
        if not _put_in_place(temporary, target):
            log.info("%s: another process finished the same artifact first", stage)
            return Artifact(target, key, self._verified(target)), {}
        return Artifact(target, key, manifest), stats

    def _remember(self, artifact: Artifact, stats: dict[str, os.stat_result]) -> None:
        """Keep the checksums, so that the next run need not read everything again."""
        cache = ChecksumCache(self.root / CHECKSUMS)
        for name, stat in stats.items():
            cache.remember(artifact.path / name, stat, str(artifact.manifest["files"][name]["checksum"]))
        cache.save()


def tell_found(stage: str, found: Artifact) -> None:
    """Say that the artifact of a stage was there already."""
    log.info("%s: skipped, unchanged (%s)", stage, found.path)
    tell_skipped(stage)


def put_aside(folder: Path) -> Path:
    """Take a damaged folder's name away, so that it is made again; where it lies until the next clean-up."""
    aside = folder.with_name(f".damaged-{folder.name}-{secrets.token_hex(4)}")
    with contextlib.suppress(FileNotFoundError):  # another process was faster
        folder.rename(aside)
    return aside


def verified(
    folder: Path,
    what: str,
    checksum: Callable[[Path, str], str] = file_checksum,
    alone: bool = True,
    inside: str = "",
) -> dict[str, Any]:
    """The manifest of a folder whose files are as it says.

    what: `artifact` or `run`, for messages. checksum: of a file, by the algorithm of another. alone: whether further
    files are damage, too. inside: what names of files begin with that are looked at; the others may be anything.

    A file that the system does not give (no permission, too many open files, a disk that fails) is an `OSError` that
    names it: what is whole must not be put aside and made again because of it.
    """
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
        named, there = manifest["files"].keys(), _content_files(folder).keys()
        missing = sorted(name for name in named - there if name.startswith(inside))
        if missing := [name for name in missing if not (folder / name).is_file()]:  # there: in a folder without listing
            raise ArtifactError(f"{what} {folder}: file {missing[0]!r} is missing.")
        if alone and (strange := sorted(there - named)):
            raise ArtifactError(f"{what} {folder}: file {strange[0]!r} is not in its manifest.")

        def require(name: str) -> None:
            path, entry = folder / name, manifest["files"][name]
            if path.stat().st_size != entry["bytes"] or checksum(path, entry["checksum"]) != entry["checksum"]:
                raise ArtifactError(f"{what} {folder}: file {name} is not what its manifest says.")

        in_threads(require, [name for name in manifest["files"] if name.startswith(inside)])
    except ArtifactError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise_of_system(error, f"{what} {folder}")
        raise ArtifactError(f"{what} {folder}: damaged ({error}).") from error
    return manifest


def _linked_or_cloned(source: str, target: str) -> str:
    return (share_file if source.endswith(LINKED) else clone_file)(source, target)


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
    """Turn an error that a full disk is behind into an `ArtifactError` with the space that was free then, and one of a
    file's greatest size into one that names that limit."""
    try:
        yield
    except WritingError:  # of another folder, which the message names
        raise
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:  # libraries wrap the system's error in their own
            if code := _code_of_full(cause):
                while isinstance(first := cause.__cause__, OSError) and first.errno == code:
                    cause = first  # the system's own, without the advice of `refusals_named`
                said = cause.args[0][0][-1] if isinstance(cause, shutil.Error) else cause  # of many files the first
                found = f"the disk is full or its quota is met ({shutil.disk_usage(folder.parent).free:,} bytes free; "
                advice = "free some space (gigabatch gc --keep 1)"
                if code == errno.EFBIG:
                    found = "a file would be larger than this process or the file system allows ("
                    advice = "raise the limit (ulimit -f), or write to another file system,"
                raise ArtifactError(
                    f"{stage}: could not write to {folder.parent}, {found}{said}). Nothing was left behind; {advice} "
                    "and run again."
                ) from error
            cause = cause.__cause__ or cause.__context__
        raise


def _code_of_full(error: BaseException) -> int | None:
    """The number of the system's error where it is among `FULL`."""
    if isinstance(error, shutil.Error):  # copytree gathers the errors of its files as text
        return next((code for code in FULL if f"[Errno {code}]" in str(error)), None)
    return error.errno if isinstance(error, OSError) and error.errno in FULL else None


def artifacts_newest_first(stage: Path) -> list[Path]:
    """Finished folders; neither hidden ones nor links such as `latest`."""
    found = [path for path in stage.iterdir() if not path.name.startswith(".") and not path.is_symlink()]
    return sorted((p for p in found if (p / MANIFEST).exists()), key=lambda p: (-p.stat().st_mtime_ns, p.name))
