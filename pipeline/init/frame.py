"""What the columns of a data frame in memory are: the rules of `gigabatch init`, where nobody says otherwise."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import pyarrow as pa

from gigabatch.features.engines.arrow_types import is_clock, is_text
from gigabatch.features.errors import DataError
from gigabatch.features.reading.sources import without_null_words
from gigabatch.pipeline.init.decimals import columns_seen
from gigabatch.pipeline.init.draft import Draft, draft_columns, split_phrases
from gigabatch.pipeline.init.look import Table, look_at
from gigabatch.pipeline.init.target import labels_of

MOST_ROWS = 300_000


def draft_frame(
    table: pa.Table,
    *,
    labels: Mapping[str, str | None] | None = None,
    taken: Iterable[str] = (),
    categorical: Sequence[str] | Mapping[str, str] = (),
    continuous: Sequence[str] = (),
    stepped: Collection[str] = (),
    drop: Sequence[str] = (),
    timed: bool = False,
    time: str | None = None,
    null_values: Sequence[str] = ("",),
    lists: bool = True,
    phrases: bool = False,
) -> Draft:
    """What the columns of a table are, as `draft_columns` says it but for those whose role is given.

    Parameters
    ----------
    table
        As `arrow_table` makes it.
    labels
        The task of each label, or None where it follows from the values; no labels where no leak is looked for.
    taken
        Columns that have another role.
    categorical, continuous
        Columns whose role is given; `categorical` may be a mapping to types. Continuous ones of text or of durations
        get the steps that make numbers of them.
    stepped
        Columns that steps of the user's own read or make, which get no others.
    drop
        Columns to leave out.
    timed
        Whether rows may be split by a column of times.
    time
        The column of times that rows are split by, where it is given.
    null_values
        Texts that stand for null.
    lists
        Whether lists of words may be made of texts.
    phrases
        Whether texts of several values each may be lists of them, which the recipe splits.

    Raises
    ------
    DataError
        Where a column that is named is missing or has two roles, no feature is left, or `labels_of` refuses a label.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from gigabatch.pipeline.init.frame import draft_frame
    >>> rows = pa.table({"city": ["Oslo", "Bonn"], "size": [1, 2], "land": ["no", "no"]})
    >>> made = draft_frame(rows, categorical=["size"])
    >>> made.categories, made.left_out
    ({'city': 'string', 'size': 'int64'}, {'land': 'one value alone, no'})
    """
    labels, taken = labels or {}, list(taken)
    categorical = categorical if isinstance(categorical, Mapping) else [*categorical]
    continuous = [*continuous]
    named = [*categorical, *continuous, *drop, *taken, *labels, *([time] if time is not None else [])]
    if missing := [name for name in dict.fromkeys(named) if name not in table.column_names]:
        raise DataError.missing_columns(missing, table.column_names, "fit")
    if twice := sorted({name for name in named if named.count(name) > 1}):
        raise DataError(f"fit: column(s) {', '.join(map(repr, twice))} have two roles. Name each once.")
    seen = _looked_at(table, null_values, beside=[*categorical, *continuous, *drop, *taken])
    if unusable := [name for name in labels if name in seen.left_out]:
        raise DataError(f"fit: target {unusable[0]!r} cannot be used: {seen.left_out[unusable[0]]}.")
    columns = columns_seen(seen)
    found = {
        name: labels_of(name, seen.sample[name], seen.arrow[name], task, columns.decimal)
        for name, task in labels.items()
    }
    made = draft_columns(
        seen, found, columns, timed=timed, time=time, names=table.column_names, numbers=continuous,
        more=bool(categorical or continuous), lists=lists,
    )  # fmt: skip
    if time in made.left_out:  # no feature, but the time all the same
        del made.left_out[time]
        made.leaks = [name for name in made.leaks if name != time]
    types = made.categories
    for name in categorical:
        kind = categorical[name] if isinstance(categorical, Mapping) else None
        types[name] = kind or _category_type(table.schema.field(name).type)
    made.features["null_values"] = list(null_values)
    made.features["categorical"] = types
    made.features["continuous"] = [*made.features.get("continuous", ()), *continuous]
    _make_numbers(made, table.select([name for name in continuous if name not in stepped]), null_values)
    made.left_out = dict.fromkeys(drop, "drop") | made.left_out
    if phrases:
        split_phrases(made, seen)
    return made


def _looked_at(table: pa.Table, null_values: Sequence[str], beside: Sequence[str] = ()) -> Table:
    """A sample of the table in which these texts are null."""
    seen = look_at(table, MOST_ROWS, beside=beside)
    seen.sample = without_null_words(seen.sample, null_values, dict.fromkeys(seen.sample.columns, "string"))
    return seen


def _make_numbers(made: Draft, table: pa.Table, null_values: Sequence[str]) -> None:
    """Add the steps that make numbers of columns whose role alone is given, where all their values are such texts."""
    table = table.select([field.name for field in table.schema if _is_written(field.type)])
    if not table.num_columns:
        return
    for name, seen in columns_seen(_looked_at(table, null_values)).columns.items():
        steps = seen.steps if seen.kind == "number" else []
        if pa.types.is_time(table.schema.field(name).type):  # else the parts of a day that follow from it
            steps = [{"parse_duration": {"column": name}}]
        if steps:
            made.features.setdefault("steps", []).extend(steps)
            made.features.setdefault("inputs", {})[name] = "string"


def _is_written(arrow: pa.DataType) -> bool:
    """Whether values of the type are texts, or are read as texts."""
    if pa.types.is_dictionary(arrow):
        return is_text(arrow.value_type)
    return is_text(arrow) or is_clock(arrow)


def _category_type(arrow: pa.DataType) -> str:
    """The type of a category whose role alone is given."""
    return "int64" if pa.types.is_integer(arrow) else "bool" if pa.types.is_boolean(arrow) else "string"
