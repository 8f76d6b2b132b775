"""The features stage on new or changed files only: what a CSV file was parsed to is kept and read back next time.

A recipe's features may depend on every earlier row (histories, splits in time, fitted steps), so files cannot be taken
through the whole stage one by one. Reading them can: a file's parsed, typed and checked rows depend on nothing but its
bytes, how it is to be read, and the code that reads it, and these make the key. The rest of the stage runs on all rows
as ever, so its result is that of a full run, bit for bit.

Kept rows are artifacts of the stage `parsed`, written and checked like any other. `gigabatch gc` leaves those that the
kept artifacts of the features stage were made from. Parquet files are read as they are, which is as fast.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gigabatch.features.engines.frame import load_engine
from gigabatch.features.reading.sources import CSV_ENDINGS, PARQUET_ENDINGS
from gigabatch.pipeline.store.artifacts import MANIFEST, ArtifactStore
from gigabatch.pipeline.store.files import ArtifactError
from gigabatch.pipeline.store.keys import artifact_key, input_checksums, source_hash, versions

STAGE = "parsed"
ROWS = "rows.parquet"
LIBRARIES = ("pandas", "pyarrow", "numpy", "cudf-cu13")  # that parse and write; another version may parse otherwise


class ParsedFiles:
    """The `cache` that `gigabatch.features.reading.sources.read_files` asks. files: for the manifest, one entry a file
    that was needed: file (its name), state (`read`, `reused`, or `carried` where its rows are computed already) and
    parsed (the key of its kept rows, None for Parquet). parsed: that key by path."""

    def __init__(self, store: ArtifactStore, engine: str) -> None:
        self.store = store
        self.engine = engine
        self.files: list[dict[str, str | None]] = []
        self.parsed: dict[str, str | None] = {}
        self._carried: set[str] = set()
        self._versions = {library: version for library, version in versions().items() if library in LIBRARIES}
        self._sources = source_hash(
            [
                "gigabatch.features.reading.sources",
                "gigabatch.features.reading.csv_records",
                "gigabatch.features.reading.encodings",
                "gigabatch.features.reading.plain_csv",
                "gigabatch.features.reading.null_words",
                "gigabatch.features.columns",
                "gigabatch.features.engines",
                "gigabatch.features.exact.float_order",
                "gigabatch.features.setting_checks",
            ]
        )

    def read(self, path: str, how: Mapping[str, Any], parse: Callable[[str], Any]) -> Any:
        """The file's rows: those that were kept, else what `parse` makes of it, which is kept.

        how: every setting that the rows depend on, as JSON types.
        """
        name = path.rstrip("/").rpartition("/")[2]
        if path.endswith(PARQUET_ENDINGS):
            self._note(path, "read", None)
            return parse(path)
        checksum = self._checksum(path)
        key = self._key(name, checksum, how)
        engine = load_engine(self.engine)
        with _of_store():
            kept = self.store.find(STAGE, key)
            if kept is not None:
                self._note(path, "reused", key)
                return engine.read_parquet(kept.path / ROWS)
        rows = parse(path)
        if self._checksum(path) != checksum:
            raise ArtifactError(f"input {path} changed while it was read. Run again when it is complete.")

        def write(folder: Path) -> dict[str, Any]:
            engine.write_parquet(rows, folder / ROWS)
            return {"file": name, "rows": len(rows)}

        with _of_store():
            self.store.build(STAGE, key, write)
        self._note(path, "read", key)
        return rows

    def carry(self, path: str, parsed: str | None) -> None:
        """The file need not be read: its rows are computed already."""
        if parsed is not None:
            self.store.use(STAGE, parsed)
        self._note(path, "carried", parsed)
        self._carried.add(path)

    def read_directly(self, path: str) -> None:
        """The file is read by the recipe itself, which keeps nothing of it here, unless it was carried."""
        if path not in self.parsed:
            self._note(path, "read", None)

    def start_again(self) -> None:
        """Files that were read so far are read again."""
        self.files.clear()
        self.parsed.clear()

    def read_all_again(self) -> None:
        """Files that `carry` was told of are read nevertheless."""
        self.files = [entry for entry in self.files if entry["state"] != "carried"]
        self.parsed = {path: key for path, key in self.parsed.items() if path not in self._carried}
        self._carried.clear()

    def _note(self, path: str, state: str, parsed: str | None) -> None:
        self.files.append({"file": path.rstrip("/").rpartition("/")[2], "state": state, "parsed": parsed})
        self.parsed[path] = parsed

    def _checksum(self, path: str) -> str:
        (checksum,) = input_checksums([path], self.store.root).values()
        return checksum

    def _key(self, name: str, checksum: str, how: Mapping[str, Any]) -> str:
        # The ending says how the file is unpacked; the rest of its name does not matter.
        ending = next((ending for ending in CSV_ENDINGS if name.endswith(ending)), name)
        settings = {"how": how, "ending": ending, "engine": self.engine, "versions": self._versions}
        return artifact_key(STAGE, {"file": checksum}, settings, self._sources)


@contextmanager
def _of_store() -> Iterator[None]:
    """What the system refuses the store as an `ArtifactError`, for an `OSError` is taken for one of the raw file."""
    try:
        yield
    except OSError as error:
        raise ArtifactError(f"{STAGE} rows cannot be kept or read again ({error}).") from error


def parsed_in_use(root: Path, features: Iterable[Path]) -> list[Path]:
    """Folders of kept rows under `root` that these artifacts of the features stage were made from."""
    keys = set()
    for artifact in features:
        try:
            files = json.loads((artifact / MANIFEST).read_text()).get("inputs", [])
            keys |= {entry["parsed"] for entry in files if entry["parsed"] is not None}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # a damaged artifact is made again, and its files read again
    return [root / STAGE / key for key in sorted(keys)]
