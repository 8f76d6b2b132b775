"""The bundle that answers, and its exchange for a newer one while requests go on.

A thread looks at the run's link. A new bundle is loaded, warmed and tested there, beside the one that answers; then one
assignment makes it the one that answers. Requests hold the bundle that they began with, which goes when the last of
them has. A bundle that cannot be served is refused, logged and counted, and the old one goes on.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gigabatch.pipeline.embedding.embeddings import LATEST, STAGE
from gigabatch.pipeline.serving.errors import ServingError
from gigabatch.pipeline.serving.metrics import Metrics
from gigabatch.pipeline.serving.served import ServedBundle, bundle_folder
from gigabatch.pipeline.store.artifacts import MANIFEST

log = logging.getLogger(__name__)
Signature = tuple[object, ...]


LONGEST_WAIT = 64  # times poll_seconds, between two tries of a bundle that cannot be loaded


@dataclass(frozen=True)
class RefusedBundle:
    """A newer bundle that could not take over. again: whether it will be tried before its folder changes.

    error: the kind alone, since /health is open to all and messages name folders; the log has them.
    """

    bundle_id: str
    error: str
    since: float
    tries: int
    again: bool

    def told(self) -> dict[str, Any]:
        """What /health says of it."""
        return {
            "bundle": self.bundle_id, "error": self.error, "tries": self.tries, "will_retry": self.again,
            "seconds": round(time.time() - self.since, 3),
        }  # fmt: skip


class Slot:
    """Holds the bundle that answers, or None before there is one, and the newer one that was refused, if one was.
    Reading and assigning are atomic."""

    def __init__(self, served: ServedBundle | None = None) -> None:
        self.served = served
        self.refused: RefusedBundle | None = None

    def require_no_less(self, served: ServedBundle) -> None:
        """Raise `ServingError` where a bundle cannot rank, or recommend, as the one that answers can."""
        if self.served is None:
            return
        if self.served.ranker is not None and served.ranker is None:
            raise ServingError(f"it cannot rank, as the one that answers can: {served.obstacle}")
        if self.served.can_recommend and not served.can_recommend:
            raise ServingError(
                f"it cannot recommend, as the one that answers can: {served.require_ranker().recommend_obstacle} Start "
                "the service anew, with a larger serve.max_scan or to do without /recommend."
            )

    def take(self, served: ServedBundle) -> None:
        """From now on this one answers."""
        self.served, self.refused = served, None


class Watched:
    """What is to answer: the bundle of the first of `folders` that is there (links are followed), and when what lies
    there is to be tried.

    A bundle that cannot be served is tried again when its folder changes. Where the error may pass (no memory, too many
    open files, a disk that fails for a moment, a folder that is still being copied) it is tried before that, each time
    after twice as long. refused: that bundle, None where there is none.
    """

    def __init__(self, folders: Sequence[Path], poll_seconds: float) -> None:
        self.folders, self.poll_seconds = tuple(folders), poll_seconds
        self.refused: RefusedBundle | None = None
        self._seen: Signature | None = None
        self._earlier: RefusedBundle | None = None  # refused before, in the folder as it is now
        self._next_try = 0.0  # monotonic

    def due(self) -> Path | None:
        """The folder to be tried now; None where nothing is new. What comes of it is to be told to `took` or `refuse`.

        Links are followed once, so that a link that moves meanwhile changes nothing. One that leads nowhere is there:
        what is promoted is broken, and the next folder is no substitute for it.
        """
        found = next((folder for folder in self.folders if os.path.lexists(folder)), self.folders[-1])
        folder = Path(os.path.realpath(found))
        seen, refused = signature(folder), self.refused
        if seen == self._seen and not (refused is not None and refused.again and time.monotonic() >= self._next_try):
            return None
        self._earlier = refused if seen == self._seen else None
        self._seen = seen
        return folder

    def took(self) -> None:
        """The bundle answers."""
        self.refused = None

    def refuse(self, folder: Path, error: str, again: bool) -> bool:
        """Note what /health says, and the next try. error: its kind; whether it is the first of this kind here."""
        earlier = self._earlier
        tries, since = (1, time.time()) if earlier is None else (earlier.tries + 1, earlier.since)
        self._next_try = time.monotonic() + self.poll_seconds * min(2 ** (tries - 1), LONGEST_WAIT)
        self.refused = RefusedBundle(folder.name, error, since, tries, again)
        return earlier is None or earlier.error != error


class Watcher:
    """Puts the bundle that is to answer (`Watched`) into `slot`, whenever it changes, from a thread of this process.

    load: folder -> a bundle ready to answer. What it raises refuses the bundle; a `ServingError` is about the bundle
    itself, anything else may pass.
    """

    def __init__(
        self,
        slot: Slot,
        folders: Sequence[Path],
        load: Callable[[Path], ServedBundle],
        metrics: Metrics,
        poll_seconds: float,
    ) -> None:
        self.slot, self.load, self.metrics = slot, load, metrics
        self._watched = Watched(folders, poll_seconds)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="bundle watcher", daemon=True)

    def first(self) -> None:
        """Load the first bundle, here and now; its errors are the caller's."""
        folder = self._watched.due()
        assert folder is not None
        self._take(self.load(folder))

    def look(self) -> bool:
        """Take what is new, if anything is; whether a bundle was taken."""
        folder = self._watched.due()
        if folder is None:
            return False
        try:
            self._take(self.load(folder))
        except Exception as error:
            self._refuse(folder, error)
            return False
        self.metrics.swap("taken")
        return True

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; a bundle that is being loaded is not waited for long."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def _take(self, served: ServedBundle) -> None:
        self.slot.require_no_less(served)
        self._watched.took()
        self.slot.take(served)
        self.metrics.bundle(served.bundle_id, served.kind)
        log.info("bundle %s answers (%s)", served.bundle_id, served.folder)

    def _refuse(self, folder: Path, error: Exception) -> None:
        """Note it for /health; in the log and the count once for each kind of error."""
        name, again = type(error).__name__, may_pass(error)
        first = self._watched.refuse(folder, name, again)
        self.slot.refused = self._watched.refused
        if first:
            self.metrics.swap("refused")
            log_refusal(folder, self.slot.served.bundle_id if self.slot.served else "none", f"{name}: {error}", again)

    def _watch(self) -> None:
        while not self._stop.wait(self._watched.poll_seconds):
            try:
                self.look()
            except Exception:  # a file system that fails for a moment must not end the watch
                log.exception("watching %s", ", ".join(map(str, self._watched.folders)))


def may_pass(error: Exception) -> bool:
    """Whether a bundle that this refused may be served later though its folder stays as it is."""
    return not isinstance(error, ServingError)


def log_refusal(folder: Path, answering: str, error: str, again: bool) -> None:
    """One line. answering: the id of the bundle that goes on."""
    later = "It is tried again." if again else "It is looked at again when it changes."
    log.error("bundle %s refused, %s goes on: %s %s", folder, answering, error, later)


def signature(folder: Path) -> Signature:
    """What changes when a folder's bundle or its stored embeddings do."""
    heads = (bundle_folder(folder) / "bundle.json", folder / STAGE / LATEST / MANIFEST)
    return (str(folder), *map(_head, heads))


def _head(path: Path) -> Signature:
    try:
        stat = path.stat()
    except OSError:
        return (str(path), None)
    return (str(path), os.path.realpath(path), stat.st_ino, stat.st_mtime_ns, stat.st_size)
