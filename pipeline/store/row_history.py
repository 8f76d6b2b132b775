"""The features stage on new rows only: the rows so far, computed, and what new ones need of them.

An artifact of the stage `history` holds what `gigabatch.features.recipes.carrying` leaves: finished rows as Parquet
parts, the open ones, and the operators' pasts. Its manifest names the files that it was made of by their checksums and
the rows that were left out of them, and a hash of settings, code and libraries. Tonight the one is taken that knows the
most of tonight's files; whatever does not fit is said and all rows are computed. A file in quarantine is none of
tonight's: it stops nothing when it comes, and is a new file when it leaves.

Each night's artifact is whole by itself. Parts that it shares with the one before are hard links, so that a chain of
nights takes the room of one; a part no larger than the rows behind it is written together with them, up to
`MOST_TOGETHER` rows, so that there are few parts. `gigabatch gc` leaves the last history of each configuration. A
recipe whose finished rows are what the splits hold, as those of flights, gives the files of these (`keep`); one whose
rows are larger than memory may keep files of its own instead (`find_files`, `keep_files`), under the same rules.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.parquet as pq

from gigabatch.features.engines.frame import load_engine
from gigabatch.features.history.past import Past
from gigabatch.features.reading.sources import same_file
from gigabatch.features.recipes.carrying import FilesSoFar, RowsSoFar
from gigabatch.pipeline.store.artifacts import MANIFEST, Artifact, ArtifactStore, artifacts_newest_first, put_aside
from gigabatch.pipeline.store.files import ArtifactError, share_file
from gigabatch.pipeline.store.keys import artifact_key, input_checksums, source_hash, text_checksum, versions
from gigabatch.pipeline.store.parsed_files import LIBRARIES, ParsedFiles

log = logging.getLogger(__name__)
STAGE = "history"
FORMAT = 1
STATE, OPEN = "state.json", "open.parquet"
MOST_TOGETHER = 1_000_000  # rows of parts that are written together, which are in memory then
Loaded = TypeVar("Loaded")
ROWS_OUT = " without "  # between a file's checksum and the hash of rows that are left out


class RowHistory:
    """The `history` of a recipe: what an earlier run left is found, what this one leaves is kept.

    Parameters
    ----------
    store
        Where.
    files
        Told which files need not be read.
    settings
        All that rows depend on beside files: recipe, features and the code that they name, as JSON types.
    without
        Rows that are left out, by file, as `read_files` takes them: other ones of a file make it another file.

    Attributes
    ----------
    told
        For the manifest: rows that were reused and that were computed, the key of what was found, and why all were
        computed where they were. None where the recipe has asked for nothing.
    """

    def __init__(
        self,
        store: ArtifactStore,
        files: ParsedFiles,
        settings: Mapping[str, Any],
        without: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self.store, self.files, self.settings, self.without = store, files, settings, without or {}
        self.told: dict[str, Any] | None = None
        self._found: tuple[Artifact, RowsSoFar | None] | None = None

    def find(
        self, paths: Sequence[str], ordered: bool, others: Sequence[str] = ()
    ) -> tuple[RowsSoFar, list[str]] | None:
        """What was left by a run over some of these files, and the files that it did not have; see `History`."""
        found = self._best(paths, ordered, others, self._load)
        return None if found is None else (found[1], self._without_known(found[0].manifest))

    def find_files(
        self, paths: Sequence[str], load: Callable[[Path, Mapping[str, Any]], Any], others: Sequence[str] = ()
    ) -> FilesSoFar | None:
        """What `keep_files` kept of a run over some of these files; see `History`."""

        def load_files(artifact: Artifact) -> Any:
            return load(artifact.path, json.loads((artifact.path / STATE).read_text())["facts"])

        found = self._best(paths, False, others, load_files)
        if found is None:
            return None
        self._without_known(found[0].manifest)
        return FilesSoFar(found[1], self._places(found[0].manifest["checksums"]))

    def _places(self, known: Sequence[str]) -> dict[str, int]:
        """Of tonight's files those that are known, and the place of each among these checksums."""
        left: dict[str, list[int]] = {}
        for place, checksum in enumerate(known):
            left.setdefault(checksum, []).append(place)
        pairs = zip(self._paths, self._checksums, strict=True)
        return {path: left[checksum].pop(0) for path, checksum in pairs if left.get(checksum)}

    def _best(
        self, paths: Sequence[str], ordered: bool, others: Sequence[str], load: Callable[[Artifact], Loaded]
    ) -> tuple[Artifact, Loaded] | None:
        """Of what earlier runs over some of these files left, the one of most rows that fits, as `load` reads it."""
        self.told = {"reused": 0, "computed": 0, "from": None, "note": None}
        self._paths = list(paths)
        self._checksums = self._of(paths)
        self._way = artifact_key(
            STAGE,
            {"others": self._of(others)},
            {
                "settings": self.settings,
                "engine": self.files.engine,
                "versions": {name: version for name, version in versions().items() if name in LIBRARIES},
                "format": FORMAT,
            },
            source_hash(["gigabatch.features", "gigabatch.pipeline.store.row_history"]),
        )
        reason = None
        for folder, manifest in self._candidates():
            misfit = self._misfit(manifest, ordered)
            if misfit is None:
                artifact = self.store.find(STAGE, folder.name)
                found = None if artifact is None else self._loaded(artifact, load)
                if artifact is not None and found is not None:
                    self._found = artifact, found if isinstance(found, RowsSoFar) else None
                    return artifact, found
                misfit = f"what was kept in {folder} is damaged"
            reason = reason or misfit
        self.refuse(reason)
        return None

    def _of(self, paths: Sequence[str]) -> list[str]:
        """What each file gives: its checksum, and behind it a hash of the rows that are left out, if any are."""
        if not paths:
            return []
        found = []
        for path, checksum in zip(paths, input_checksums(paths, self.store.root).values(), strict=True):
            rows = sorted({int(place) for place in self.without.get(same_file(path), ())})
            found.append(checksum + (ROWS_OUT + text_checksum(json.dumps(rows, allow_nan=False)) if rows else ""))
        return found

    def _candidates(self) -> list[tuple[Path, dict[str, Any]]]:
        """Histories of this configuration's recipe by their manifests, those of most rows first."""
        stage, found = self.store.root / STAGE, []
        for folder in artifacts_newest_first(stage) if stage.is_dir() else ():
            try:
                manifest = json.loads((folder / MANIFEST).read_text())
                known = dict(zip(manifest["checksums"], manifest["names"], strict=True))
                if manifest["recipe"] == self.settings["recipe"] and set(known).intersection(self._checksums):
                    found.append((folder, manifest))
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                log.warning("%s: its manifest cannot be read, so it is not used", folder)
        return sorted(found, key=lambda item: (item[1]["way"] != self._way, -item[1]["rows"]))

    def _misfit(self, manifest: Mapping[str, Any], ordered: bool) -> str | None:
        """Why what is kept cannot be used tonight; None where it can."""
        if manifest["way"] != self._way:
            return "what is kept of these files is of other settings, code, libraries or tables that are looked up"
        known = manifest["checksums"]
        gone = Counter(known) - Counter(self._checksums)
        if gone:
            first = next(iter(gone))
            name = manifest["names"][known.index(first)]
            if _content(first) in map(_content, self._checksums):
                return f"other rows of the file {name} are left out than in the last run"
            return f"the file {name} of the last run has changed or is gone"
        if ordered and self._checksums[: len(known)] != known:
            return "a new file stands before known ones, so that rows have other numbers"
        return None

    def _without_known(self, manifest: Mapping[str, Any]) -> list[str]:
        """Tonight's files but those of the manifest, which `files` is told of."""
        known = Counter(manifest["checksums"])
        parsed = dict(zip(manifest["checksums"], manifest["parsed"], strict=True))
        new = []
        for path, checksum in zip(self._paths, self._checksums, strict=True):
            if known[checksum] == 0:
                new.append(path)
                continue
            known[checksum] -= 1
            self.files.carry(path, parsed[checksum])
        return new

    def refuse(self, reason: str | None) -> None:
        """All rows are computed, for this reason, if there is one; what was found is not gone on from."""
        assert self.told is not None
        self._found = None
        self.files.read_all_again()
        self.told |= {"reused": 0, "from": None}
        if reason is not None:
            self.told["note"] = f"All rows are computed again: {reason}."

    def keep(
        self,
        open_rows: Any,
        pasts: Mapping[int, Past],
        front: float,
        facts: Mapping[str, Any],
        made: Any,
        computed: int,
        parts: Sequence[Path] = (),
    ) -> None:
        """Keep what this run leaves; see `History`."""
        found, engine = self._found, load_engine(self.files.engine)
        earlier = 0 if found is None or found[1] is None else found[1].num_finished
        self._tell(earlier, computed)
        new_sizes = [pq.read_metadata(part).num_rows for part in parts]
        finished = earlier + sum(new_sizes) + (0 if made is None else len(made))
        if finished == 0:
            return
        all_parts = [*([] if found is None else _parts(found[0].path)), *parts]
        all_sizes = [*([] if found is None else found[0].manifest["parts"]), *new_sizes]

        def write(folder: Path) -> dict[str, Any]:
            parts, sizes = list(all_parts), list(all_sizes)
            together = [parts.pop()] if made is None else []
            num_last = sizes.pop() if made is None else len(made)
            while parts and sizes[-1] <= min(num_last, MOST_TOGETHER - num_last):
                together.insert(0, parts.pop())
                num_last += sizes.pop()
            if made is None and len(together) == 1:  # a file is what it would be written to
                parts, sizes, together, num_last = [*parts, *together], [*sizes, num_last], [], 0
            for number, part in enumerate(parts):
                share_file(part, folder / _part_name(number))
            told, tables = {}, [(open_rows, folder / OPEN)]
            for position, past in pasts.items():
                tables.append((past.rows, folder / f"step-{position:03d}.parquet"))
                names = sorted(past.settled)
                for number, name in enumerate(names):
                    tables.append((past.settled[name], folder / f"step-{position:03d}-{number}.parquet"))
                told[str(position)] = {"settled": names, "until": past.until, "size": past.size}
            if num_last:
                last = [*map(engine.read_parquet, together), *([] if made is None else [made])]
                rows = last[0] if len(last) == 1 else engine.frames.concat(last, ignore_index=True)
                tables.append((rows, folder / _part_name(len(parts))))
                sizes.append(num_last)
            engine.map_columns(lambda table: engine.write_parquet(*table), tables)
            state = {"front": front, "facts": facts, "pasts": told, "finished": finished}
            (folder / STATE).write_text(json.dumps(state, allow_nan=False))
            return self._manifest(finished) | {"parts": sizes}

        named = {"files": self._checksums, "front": front, "facts": facts}
        self.store.build(STAGE, artifact_key(STAGE, named, {"way": self._way}, ""), write)

    def keep_files(
        self, write: Callable[[Path], Mapping[str, Any]], front: int, finished: int, reused: int, computed: int
    ) -> None:
        """Keep what `write` puts into a folder; see `History`."""
        for path in self._paths:
            self.files.read_directly(path)
        self._tell(reused, computed)

        def write_all(folder: Path) -> dict[str, Any]:
            facts = write(folder)
            (folder / STATE).write_text(json.dumps({"facts": facts}, allow_nan=False))
            return self._manifest(finished)

        if finished:
            key = artifact_key(STAGE, {"files": self._checksums, "front": front}, {"way": self._way}, "")
            self.store.build(STAGE, key, write_all)

    def share(self, source: Path, target: Path) -> Any:
        """Give a file that nobody writes to any more a second name; see `History`."""
        return share_file(source, target)

    def _tell(self, reused: int, computed: int) -> None:
        assert self.told is not None
        if self._of(self._paths) != self._checksums:
            raise ArtifactError("input files changed while they were read. Run again when they are complete.")
        key = None if self._found is None else self._found[0].key
        self.told |= {"reused": reused, "computed": computed, "from": key}

    def _manifest(self, rows: int) -> dict[str, Any]:
        return {
            "recipe": self.settings["recipe"],
            "way": self._way,
            "checksums": self._checksums,
            "names": [path.rstrip("/").rpartition("/")[2] for path in self._paths],
            "parsed": [self.files.parsed.get(path) for path in self._paths],
            "rows": rows,
        }

    def _loaded(self, artifact: Artifact, load: Callable[[Artifact], Loaded]) -> Loaded | None:
        """What is kept there, or None where it is damaged, which is logged."""
        try:
            return load(artifact)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s cannot be read (%s), so it is put aside and made again", artifact.path, error)
            put_aside(artifact.path)
            return None

    def _load(self, artifact: Artifact) -> RowsSoFar:
        engine, folder = load_engine(self.files.engine), artifact.path
        state = json.loads((folder / STATE).read_text())
        pasts = {}
        for position, told in state["pasts"].items():
            name = f"step-{int(position):03d}"
            settled = {
                question: engine.read_parquet(folder / f"{name}-{number}.parquet")
                for number, question in enumerate(told["settled"])
            }
            pasts[int(position)] = Past(
                engine.read_parquet(folder / f"{name}.parquet"), settled, told["until"], told["size"]
            )
        return RowsSoFar(
            lambda: _rows(engine, folder),
            engine.read_parquet(folder / OPEN),
            pasts,
            state["front"],
            state["finished"],
            state["facts"],
            _parts(folder),
        )


def _content(checksum: str) -> str:
    """The checksum of a file's content, whatever rows are left out."""
    return checksum.partition(ROWS_OUT)[0]


def _part_name(number: int) -> str:
    return f"part-{number:05d}.parquet"


def _parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*.parquet"))


def _rows(engine: Any, folder: Path) -> Any:
    parts = [engine.read_parquet(path) for path in _parts(folder)]
    return parts[0] if len(parts) == 1 else engine.frames.concat(parts, ignore_index=True)
