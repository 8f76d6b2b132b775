"""Labels of the table recipe: checked, and turned into the numbers that the schema promises."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from gigabatch.features.columns.numbers import require_digits
from gigabatch.features.columns.times import is_text
from gigabatch.features.encoding.label_spread import LARGEST_FLOAT32, LabelSpread
from gigabatch.features.engines.frame import counted_rows, engine_of
from gigabatch.features.errors import DataError
from gigabatch.features.operators.base import ColumnOperator, with_columns
from gigabatch.features.schema import TASKS, Target, Task
from gigabatch.features.workflow.steps import parse_steps

MOST_SHOWN = 10
LABEL_STEPS = {"clean_text": "text", "parse_number": "numbers", "parse_duration": "numbers"}  # and what they make
MULTILABEL = "multilabel"
LABEL_TYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
)  # fmt: skip
FLAGS = {"False": False, "True": True}


@dataclass(frozen=True)
class TargetSettings:
    """Set how one label is read.

    Parameters
    ----------
    task
        `binary`, `multiclass` or `regression`.
    positive
        Which of two labels is 1; for binary targets.
    label_strip
        Characters to take off both ends of a label.
    label_steps
        Steps that make of text what a label is, such as `[{parse_number: {decimal: ","}}]`: `clean_text`,
        `parse_number` or `parse_duration`, whose arguments are those of the operators but for `column` and `output`.
    threshold
        Of a binary target that holds numbers, such as ratings: 1 are those of at least so much.
    quantiles
        Of a regression target: which are predicted in place of its mean, such as `[0.1, 0.5, 0.9]`.
    label_of
        Of a binary target: the multilabel target that it is a label of (`with_labels`).
    label_type
        Of a multiclass target: the type, one of `LABEL_TYPES`, in which `Run.predict` gives its likeliest class; None
        for text.
    """

    task: Task
    positive: str | None = None
    label_strip: str | None = None
    label_steps: tuple[Mapping[str, Any], ...] = ()
    threshold: float | None = None
    quantiles: tuple[float, ...] = ()
    label_of: str = ""
    label_type: str | None = None

    @property
    def is_text(self) -> bool:
        return self.task == "multiclass" or self.positive is not None

    @property
    def dtype(self) -> str:
        """Type that the column is read as."""
        return "string" if self.is_text or self.label_strip or self.label_steps else "float64"

    @property
    def stored(self) -> str:
        """Type of the column in the features stage."""
        return "int32" if self.task == "multiclass" else "float32"


def with_labels(given: Mapping[str, Any]) -> dict[str, Any]:
    """The targets as set in YAML, each of task `multilabel` as the binary ones of its `columns`.

    >>> with_labels({"tags": {"task": "multilabel", "columns": ["red", "new"]}})
    {'red': {'task': 'binary', 'label_of': 'tags'}, 'new': {'task': 'binary', 'label_of': 'tags'}}
    """
    found: dict[str, Any] = {}
    for name, options in given.items():
        if not isinstance(options, Mapping) or options.get("task") != MULTILABEL:
            own = {name: options}
        else:
            columns = options.get("columns")
            if (
                not isinstance(columns, list | tuple)
                or len(columns) < 2
                or not all(isinstance(c, str) for c in columns)
            ):
                raise DataError(
                    f"target {name!r}: a multilabel target names two columns or more of labels 0 and 1, such as "
                    f"columns: [red, new]; found {columns!r}."
                )
            if twice := sorted({column for column in columns if list(columns).count(column) > 1}):
                raise DataError(f"target {name!r}: column(s) {', '.join(map(repr, twice))} are there twice.")
            rest = {key: value for key, value in options.items() if key not in ("task", "columns")}
            own = {column: {"task": "binary", "label_of": name, **rest} for column in columns}
        if both := sorted(own.keys() & found.keys()):
            raise DataError(f"target {name!r}: {', '.join(map(repr, both))} is a target already. Name it once.")
        found |= own
    return found


def target_settings(given: Mapping[str, Any]) -> dict[str, TargetSettings]:
    """The targets as set in YAML, checked."""
    known = [item.name for item in fields(TargetSettings)]
    found = {}
    for name, options in given.items():
        if not isinstance(options, Mapping) or options.get("task") not in TASKS:
            raise DataError(
                f"target {name!r}: set task to one of {', '.join((*TASKS, MULTILABEL))}; found {options!r}."
            )
        unknown = [key for key in options if key not in known]
        if unknown:
            raise DataError(f"target {name!r}: unknown key(s) {', '.join(unknown)}. Known: {', '.join(known)}.")
        positive = options.get("positive")
        if positive is not None and options["task"] != "binary":
            raise DataError(f"target {name!r}: positive is for binary targets, this one is {options['task']}.")
        texts = {key: None if options.get(key) is None else str(options[key]) for key in ("positive", "label_strip")}
        quantiles = options.get("quantiles") or ()
        if not isinstance(quantiles, list | tuple):
            raise DataError(f"target {name!r}: quantiles is a list such as [0.1, 0.5, 0.9], found {quantiles!r}.")
        label_of = str(options.get("label_of") or "")
        if label_of and options["task"] != "binary":
            raise DataError(f"target {name!r}: label_of is for binary targets, this one is {options['task']}.")
        threshold = options.get("threshold")
        if threshold is not None:
            _require_threshold(name, threshold, options)
        label_type = options.get("label_type")
        if label_type is not None and (options["task"] != "multiclass" or label_type not in LABEL_TYPES):
            raise DataError(
                f"target {name!r}: label_type is for multiclass targets, one of {', '.join(LABEL_TYPES)}; found "
                f"{label_type!r} of a {options['task']} one. Leave it out for text."
            )
        steps = options.get("label_steps") or ()
        _label_operators(name, steps, options["task"])
        found[name] = TargetSettings(
            options["task"], **texts, label_steps=tuple(steps), threshold=threshold, quantiles=tuple(quantiles),
            label_of=label_of, label_type=label_type,
        )  # fmt: skip
        if quantiles:
            Target(name, options["task"], len(quantiles), quantiles=tuple(quantiles))  # refuses what cannot be
    return found


def _require_threshold(name: str, threshold: Any, options: Mapping[str, Any]) -> None:
    """Raise `DataError` unless the threshold is a number, and that of labels that nothing else makes binary."""
    number = isinstance(threshold, int | float) and not isinstance(threshold, bool) and math.isfinite(threshold)
    if not number or options["task"] != "binary" or options.get("positive") is not None:
        raise DataError(
            f"target {name!r}: threshold is a number, of a binary target without positive; found {threshold!r} of "
            f"{dict(options)!r}."
        )


def _label_operators(name: str, steps: Any, task: str) -> list[ColumnOperator]:
    """The operators of `label_steps`, checked."""
    if not isinstance(steps, list | tuple) or not all(isinstance(step, Mapping) and len(step) == 1 for step in steps):
        raise DataError(
            f"target {name!r}: label_steps is a list of steps such as [{{parse_number: {{}}}}], found {steps!r}."
        )
    given = []
    for step in steps:
        ((operator, options),) = step.items()
        if operator not in LABEL_STEPS:
            raise DataError(
                f"target {name!r}: label_steps holds {operator!r}. Known: {', '.join(LABEL_STEPS)}; other steps read "
                "features."
            )
        if LABEL_STEPS[operator] == "numbers" and task != "regression":
            raise DataError(
                f"target {name!r}: {operator} makes numbers, which are the labels of a regression; this one is {task}."
            )
        if not isinstance(options, Mapping | None) or {"column", "columns", "output"} & set(options or {}):
            raise DataError(
                f"target {name!r}: label_steps reads and makes the label itself; give {operator} its arguments without "
                f"column and output, found {options!r}."
            )
        given.append({operator: {"column": name, **(options or {})}})
    try:
        return [operator for operator in parse_steps(given) if isinstance(operator, ColumnOperator)]
    except DataError as error:
        raise DataError(f"target {name!r}: label_steps: {error}") from error


def clean_labels(frame: Any, targets: Mapping[str, TargetSettings]) -> Any:
    """Rows of a file with labels as `label_strip`, `label_steps` and `threshold` make them; `DataError` names the
    target."""
    for name, target in targets.items():
        if target.label_strip:
            frame = with_columns(frame.copy(deep=False), {name: frame[name].str.strip(target.label_strip)})
        for operator in _label_operators(name, target.label_steps, target.task):
            try:
                frame = operator(frame)
            except DataError as error:
                raise DataError(f"target {name!r}: {error}") from error
        if target.threshold is not None:
            frame = with_columns(frame.copy(deep=False), {name: _at_least(name, frame[name], target.threshold)})
    return frame


def _at_least(name: str, column: Any, threshold: float) -> Any:
    """float64: 1 for numbers of at least the threshold, 0 for lower ones, null for null."""
    try:
        numbers = column.astype("float64")
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(f"target {name!r}: threshold {threshold!r} is for numbers ({error}).") from error
    return (numbers >= threshold).astype("float64").where(numbers.notna())


def require_filled(column: Any, where: str) -> None:
    """Raise `DataError` if the column holds a null or NaN."""
    nulls = int(column.isna().sum())
    if nulls:
        raise DataError(
            f"input {where}: column {column.name!r} is null in {nulls} of {len(column)} rows, and labels, ratings, "
            "weights, groups, users, items, times and split keys may not be. Remove those rows from the file or give "
            "them a value."
        )


class SplitLabels:
    """The labels of a table's splits as numbers, part by part: first `look` at every part, then `encode` each.

    Binary and regression become float32; multiclass becomes the int32 number of the class among the sorted classes of
    the train split.

    Parameters
    ----------
    targets
        By name. Their columns are clean already (`clean_labels`).
    weight
        Column of the rows' weights: a train row of weight 0 makes no class, bounds nothing and may hold any label.
        None: all rows count.
    """

    def __init__(self, targets: Mapping[str, TargetSettings], weight: str | None = None) -> None:
        self.targets, self.weight = targets, weight
        self._counts: dict[tuple[str, str], Counter[str]] = {}
        self._spreads: dict[str, LabelSpread] = {}

    @property
    def needs_a_look(self) -> bool:
        """Whether a part cannot be encoded before all parts were looked at."""
        return any(target.task == "multiclass" for target in self.targets.values())

    def look(self, split: str, frame: Any) -> None:
        """Count the classes of a part of a split."""
        frame = counted_rows(frame, self.weight if split == "train" else None)
        for name, target in self.targets.items():
            if target.task == "multiclass":
                self._count(name, split, frame[name])

    def encode(self, split: str, frame: Any) -> Any:
        """A part of a split with every label column as numbers.

        Raises
        ------
        DataError
            If a label is none of its target's.
        """
        found = {}
        for name, target in self.targets.items():
            column = frame[name]
            if target.task == "multiclass":
                engine = engine_of(frame)
                known = engine.frames.Series(self.classes[name])
                found[name] = engine.series(engine.positions_in(column, known).astype("int32"), column.to_frame())
                continue
            weight = self.weight if split == "train" else None
            if target.positive is not None:
                _require_two(name, self._count(name, split, counted_rows(frame, weight)[name]), target)
            found[name] = frame_labels(name, frame, target, weight)
            if target.task == "regression" and split == "train":
                spread = LabelSpread.of(counted_rows(frame, weight)[name].astype("float64"), name)
                earlier = self._spreads.get(name)
                self._spreads[name] = spread if earlier is None else earlier.merge(spread)
        return with_columns(frame.copy(deep=False), found)

    def require(self) -> None:
        """Raise `DataError` for what only all parts together tell: labels whose differences float32 loses."""
        for name, spread in self._spreads.items():
            spread.require(name)

    def described(self) -> tuple[Target, ...]:
        """What the schema says of each target."""
        found = []
        for name, target in self.targets.items():
            if target.task == "multiclass":
                found.append(Target(name, "multiclass", len(self.classes[name]), self.classes[name]))
                continue
            values = len(target.quantiles) or 1
            found.append(Target(name, target.task, values, quantiles=target.quantiles, label_of=target.label_of))
        return tuple(found)

    @cached_property
    def classes(self) -> dict[str, tuple[str, ...]]:
        """The classes of each multiclass target, from all that was looked at."""
        found = {}
        for name, target in self.targets.items():
            if target.task == "multiclass":
                counts = {split: counts for (of, split), counts in self._counts.items() if of == name}
                found[name] = _classes(name, counts)
                typed_classes(name, found[name], target.label_type)
        return found

    def _count(self, name: str, split: str, column: Any) -> list[str]:
        """The values of the split so far, this part's among them, most frequent first."""
        counts = self._counts.setdefault((name, split), Counter())
        engine = engine_of(column)
        counted = engine.to_pandas(engine.value_counts(column))
        counts.update(dict(zip(counted["value"].tolist(), counted["count"].tolist(), strict=True)))
        return _by_count(counts)


def typed_classes(name: str, classes: Sequence[str], label_type: str | None) -> np.ndarray:
    """The classes [C] in the type `label_type`, as objects of text without one; `DataError` where they have no such
    values, or two have the same."""
    if label_type is None:
        return np.array(classes, dtype=object)
    try:
        if label_type != "bool" and any("_" in text for text in classes):  # which Python reads over
            raise ValueError("an underscore is no digit")
        with np.errstate(over="ignore"):
            found = np.array([FLAGS[text] if label_type == "bool" else text for text in classes]).astype(label_type)
        if found.dtype.kind == "f" and not np.isfinite(found).all():
            raise OverflowError("a class is no finite number")
    except (ValueError, OverflowError, KeyError) as error:
        raise DataError(
            f"target {name!r}: its classes {_shown(classes)} are not all of label_type {label_type} ({error}). Leave "
            "label_type out, and Run.predict gives them as text."
        ) from error
    if len(set(found.tolist())) < len(classes):
        raise DataError(
            f"target {name!r}: two of its classes {_shown(classes)} are the same {label_type}. Write each in one way, "
            "or leave label_type out."
        )
    return found


def encode_targets(
    splits: dict[str, Any], targets: Mapping[str, TargetSettings], weight: str | None = None
) -> tuple[dict[str, Any], tuple[Target, ...]]:
    """The splits with every label column as numbers (`SplitLabels`), and what the schema says of each."""
    labels = SplitLabels(targets, weight)
    for name, frame in splits.items():
        labels.look(name, frame)
    encoded = {name: labels.encode(name, frame) for name, frame in splits.items()}
    labels.require()
    return encoded, labels.described()


def row_labels(name: str, column: Any, target: TargetSettings) -> Any:
    """The column of a binary or regression target as `SplitLabels` makes it, without its checks of whole splits."""
    if target.positive is not None:
        return (column == target.positive).astype("float32")
    return _numbers(name, column, target)


def frame_labels(name: str, frame: Any, target: TargetSettings, weight: str | None) -> Any:
    """`row_labels` of the frame's rows; in one whose `weight` is 0, null where it holds none of the target's labels."""
    counted = counted_rows(frame, weight)
    if len(counted) == len(frame) or target.positive is not None:
        return row_labels(name, frame[name], target)
    engine, found = engine_of(frame), row_labels(name, counted[name], target)
    idle = engine.frames.to_numeric(frame[frame[weight] == 0][name], errors="coerce").astype("float64")
    known = (idle == 0) | (idle == 1) if target.task == "binary" else abs(idle) <= LARGEST_FLOAT32
    return engine.frames.concat([found, idle.where(known).astype("float32")]).sort_index()


def require_own_labels(name: str, column: Any, target: TargetSettings) -> None:
    """Raise `DataError` where a binary target of a `positive` label has labels of another kind: all of them were 0."""
    if target.positive is not None:
        _require_two(name, _values(column), target)


def _values(column: Any) -> list[Any]:
    """The distinct values, most frequent first, on the host."""
    engine = engine_of(column)
    return engine.to_pandas(engine.value_counts(column))["value"].tolist()


def _shown(values: Sequence[Any]) -> str:
    return ", ".join(map(repr, values[:MOST_SHOWN])) + (", ..." if len(values) > MOST_SHOWN else "")


def _require_two(name: str, values: Sequence[Any], target: TargetSettings) -> None:
    """Raise `DataError` unless a binary target has two values at most, one of them the positive one."""
    if len(values) > 2 or (len(values) == 2 and target.positive not in values):
        raise DataError(
            f"target {name!r}: a binary label has two values of which one is positive ({target.positive!r}), found "
            f"{_shown(values)}. Correct positive, use label_strip or label_steps, or set task to multiclass."
        )


def _numbers(name: str, column: Any, target: TargetSettings) -> Any:
    try:
        if target.label_strip and is_text(column):
            require_digits(column, "float64")
        numbers = column.astype("float64")
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(
            f"target {name!r}: labels are not numbers ({error}). Set positive, label_steps, or task: multiclass."
        ) from error
    if target.task == "binary" and not bool(((numbers == 0) | (numbers == 1)).all()):
        raise DataError(
            f"target {name!r}: a binary label is 0 or 1, found {_shown(_values(column))}. Set positive to the label "
            "that counts as 1, or threshold to the least number that does, or another task."
        )
    if not bool((abs(numbers) <= LARGEST_FLOAT32).all()):
        raise DataError(f"target {name!r}: holds NaN, an infinity or a value beyond float32. Remove or rescale it.")
    return numbers.astype("float32")


def _by_count(counts: Mapping[str, int]) -> list[str]:
    """The values, most frequent first, ties in their own order."""
    return sorted(counts, key=lambda value: (-counts[value], value))


def _classes(name: str, counts: Mapping[str, Counter[str]]) -> tuple[str, ...]:
    """The sorted classes of the train split; `DataError` where they are no labels of all splits."""
    classes = _sorted_classes(_by_count(counts.get("train", Counter())))
    if len(classes) < 2:
        raise DataError(f"target {name!r}: the train split holds only {_shown(classes)}; multiclass needs two classes.")
    plain: dict[str, str] = {}
    for value in classes:
        if (other := plain.setdefault(value.strip(), value)) != value:
            raise DataError(
                f"target {name!r}: classes {other!r} and {value!r} differ by blanks alone. Set label_strip: ' ', or "
                "separator: ', ' where a blank stands after each comma of the file."
            )
    known = set(classes)
    for split, found in counts.items():
        unseen = [value for value in _by_count(found) if value not in known]
        if unseen:
            raise DataError(
                f"target {name!r}: class(es) {_shown(unseen)} of the {split} split are not in the train split, which "
                f"holds {_shown(classes)}. Give more data, another split or seed, or remove those rows."
            )
    return tuple(classes)


def _sorted_classes(values: list[str]) -> list[str]:
    """Ascending: by value where every class is a whole number, those of one value (1, 01) as text; else as text."""
    whole = all(value.removeprefix("-").isdecimal() for value in values)
    return sorted(values, key=lambda value: (int(value) if whole else 0, value))
