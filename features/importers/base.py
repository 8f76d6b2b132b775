"""What every importer gives, and reading JSON that others wrote."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gigabatch.features.columns.categories import canonicalize
from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.encoding.settings import PreprocessorSettings
from gigabatch.features.errors import DataError, strict_json
from gigabatch.features.exact.column_statistics import Scale
from gigabatch.features.operators.base import Configured
from gigabatch.features.operators.categories.categorify import Categorify
from gigabatch.features.operators.missing.fill_missing import Fill, FillMissing
from gigabatch.features.operators.numbers.min_max import MinMax, Range
from gigabatch.features.operators.numbers.normalize import Normalize
from gigabatch.features.operators.rows.rename import Rename
from gigabatch.features.schema import Schema
from gigabatch.features.vocabulary.vocabulary import Vocabulary
from gigabatch.features.workflow.workflow import Workflow

TAKEN = (Categorify, FillMissing, Normalize, MinMax)  # by a preprocessor
PICKLE_ENDINGS = (".pkl", ".pickle", ".pth", ".pt", ".joblib")


@dataclass(frozen=True)
class Imported:
    """Hold what an importer found.

    Parameters
    ----------
    workflow
        The fitted `Workflow`, ready to transform and save.
    notes
        What differs from where it came from, a sentence each.
    """

    workflow: Workflow
    notes: tuple[str, ...] = ()

    def save(self, folder: Path, schema: Schema | None = None) -> None:
        """Write the workflow, for `Workflow.load(folder)`; the folder appears when it is whole.

        Parameters
        ----------
        folder
            A new or empty folder.
        schema
            With it the state is also written for `Preprocessor.load(folder / "preprocessor")`.

        Raises
        ------
        DataError
            If there is something in the folder already.
        """
        folder = Path(folder)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise DataError(f"{folder}: exists and is not empty. Choose another folder, or remove it.")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as whole:
            written = Path(whole) / folder.name
            self.workflow.save(written)
            if schema is not None:
                self.preprocessor(schema).save(written / "preprocessor")
            written.replace(folder)

    def preprocessor(self, schema: Schema) -> Preprocessor:
        """Give the same state for `gigabatch train`.

        Parameters
        ----------
        schema
            Each categorical column needs an imported vocabulary, each continuous one a fill, and a scale if another
            has one.

        Raises
        ------
        DataError
            If the schema has lists, the state of a column is not there, or steps do more to it than a preprocessor does
            (a vocabulary; a fill, then a scale by Normalize or MinMax); the message names them.
        """
        if schema.lists:  # of which an import could not go on: it has counts of no elements (`Preprocessor.grow`)
            raise DataError(
                f"import: the schema has the list column(s) {', '.join(repr(column.name) for column in schema.lists)}, "
                "and an imported preprocessor takes none. Use the workflow, whose steps encode lists, or fit a "
                "preprocessor."
            )
        found: dict[str, list[tuple[type, Any]]] = {name: [] for name in schema.names("categorical", "continuous")}
        flags: set[str] = set()  # indicators, under their name of now
        refused: list[str] = []
        for position, step in enumerate(self.workflow.steps):
            kind, state = type(step), self.workflow.states.get(position)
            if isinstance(step, Rename) and flags.issuperset(step.mapping):
                flags = {step.mapping.get(name, name) for name in flags}
                continue
            writes = [name for name in step.outputs if name in found]
            if flags.intersection(step.inputs):  # a preprocessor's indicators are 0 and 1
                refused.append(_named(step, flags.intersection(step.inputs)))
            elif step.changes_rows:
                refused.append(_named(step, step.inputs))
            elif writes and (kind not in TAKEN or (isinstance(step, Categorify) and step.is_list)):
                refused.append(_named(step, writes))
            else:
                for name in writes:
                    found[name].append((kind, state))
            if isinstance(state, Fill) and state.indicator:
                flags |= {name for name in step.outputs if name not in step.inputs}
        for name, steps in found.items():
            after = [kind.__name__ for kind, _ in steps]
            if len(after) > 1 and after not in (["FillMissing", "Normalize"], ["FillMissing", "MinMax"]):
                refused.append(f"{', then '.join(after)} of {name!r}")
        if refused:
            raise DataError(
                f"import: a preprocessor does not do {'; '.join(refused)}. Use the workflow, or give these steps to "
                "the recipe (`steps`) and fit a preprocessor after them."
            )
        return _preprocessor(schema, found)


def _named(step: Configured, columns: Iterable[str]) -> str:
    return f"{type(step).__name__} of {', '.join(map(repr, sorted(columns)))}"


def _preprocessor(schema: Schema, found: Mapping[str, Sequence[tuple[type, Any]]]) -> Preprocessor:
    """found: of each column of the schema the kinds of step that make it, in their order, with their states."""
    categorical, continuous = schema.names("categorical"), schema.names("continuous")
    vocabularies: dict[str, Any] = {name: _state(found[name], Vocabulary) for name in categorical}
    fills: dict[str, Any] = {name: _state(found[name], Fill) for name in continuous}
    for kind, states in ((Categorify, vocabularies), (FillMissing, fills)):
        missing = [name for name, state in states.items() if state is None]
        if missing:
            raise DataError(
                f"import: the schema's column(s) {', '.join(map(repr, missing))} need a {kind.__name__} of their "
                "own, which the imported steps do not have. Take them out of the schema, or use the workflow."
            )
    scales = {name: _scale(state) for name in continuous for kind, state in found[name] if kind in (Normalize, MinMax)}
    if scales and len(scales) < len(continuous):
        missing = [name for name in continuous if name not in scales]
        raise DataError(f"import: column(s) {', '.join(map(repr, missing))} are not normalised, others are.")
    return Preprocessor(schema, PreprocessorSettings(scale=bool(scales)), vocabularies, fills, scales)


def _state(steps: Sequence[tuple[type, Any]], kind: type) -> Any:
    """The state of that kind, None if no step has one."""
    return next((state for _, state in steps if isinstance(state, kind)), None)


def _scale(state: Scale | Range) -> Scale:
    """A range is a scale too: (x - low) / (high - low)."""
    return state if isinstance(state, Scale) else Scale(state.low, state.span)


def read_json(path: Path, where: str) -> dict[str, Any]:
    """The JSON object in a file; NaN, an infinity and a name given twice are errors."""
    try:
        found = strict_json(path.read_text(encoding="utf-8"), f"{where}: {path.name}")
    except DataError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{where}: {path.name} cannot be read as JSON ({error}).") from error
    if not isinstance(found, dict):
        raise DataError(f"{where}: {path.name} must hold an object, found {type(found).__name__}.")
    return found


def refuse_pickle(path: Path, instead: str) -> None:
    """`DataError` if the file looks like a pickle or a torch archive; it is not opened beyond its first bytes."""
    with path.open("rb") as file:
        start = file.read(4)
    if path.suffix in PICKLE_ENDINGS or start[:1] == b"\x80" or start == b"PK\x03\x04":
        raise DataError(f"{path}: a pickle, which would run whatever code is in it, so it is not read. {instead}")


def field(entry: Any, name: str, kind: type | tuple[type, ...], where: str) -> Any:
    """`entry[name]`, of that type."""
    value = entry.get(name) if isinstance(entry, dict) else None
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise DataError(f"{where}: expected {name} of type {_name(kind)}, found {value!r:.80}.")
    return value


def number(value: Any, where: str) -> float:
    """A finite number, as a float."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DataError(f"{where}: expected a finite number, found {value!r:.80}.")
    return float(value)


def numbers(entry: Any, name: str, where: str) -> dict[str, float]:
    """`entry[name]` as finite numbers by column."""
    return {
        column: number(value, f"{where}: {name} of {column!r}")
        for column, value in field(entry, name, dict, where).items()
    }


def scale_of(mean: float, std: float, where: str) -> Scale:
    """A deviation of 0 is that of a constant column, which is only shifted: as by 1."""
    if std < 0:
        raise DataError(f"{where}: the standard deviation must not be negative, found {std}.")
    return Scale(mean, std if std > 0 else 1.0)


def distinct_values(column: Any, where: str) -> Any:
    """The column as values of a vocabulary: of one kind, no null, none twice."""
    canonical = canonicalize(column, where)
    if bool(canonical.null.any()):
        raise DataError(f"{where}: {int(canonical.null.sum())} null(s) among the values.")
    values = canonical.values.astype("str") if str(canonical.values.dtype) == "category" else canonical.values
    if bool(values.duplicated().any()):
        raise DataError(f"{where}: {int(values.duplicated().sum())} value(s) are there twice.")
    return values.reset_index(drop=True)


def _name(kind: type | tuple[type, ...]) -> str:
    return " or ".join(item.__name__ for item in kind) if isinstance(kind, tuple) else kind.__name__
