"""What must stay the same where a fitted preprocessor is grown: the columns and how they are encoded."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, fields

from gigabatch.features.encoding.settings import CategorySettings, PreprocessorSettings
from gigabatch.features.errors import DataError
from gigabatch.features.schema import ListColumn, Schema
from gigabatch.features.vocabulary.vocabulary import IdLayout

WAY_OUT = (
    "Give the start's columns and settings, or begin anew with preprocess.from=null: ids are then others, so the model "
    "is trained cold"
)
Table = tuple[Schema, PreprocessorSettings]


def require_same_inputs(
    start: Table, now: Table, layouts: Mapping[str, IdLayout] | None = None, flags: Collection[bool] = ()
) -> None:
    """Raise `DataError` that names each column and setting in which a table differs from the start.

    layouts: of an import's vocabularies; it says nothing of counts, and its ids say how many the unseen share. flags:
    whether its continuous columns have indicators.
    """
    (old_schema, old), (schema, new) = start, now
    found = [*changed_columns(old_schema, schema), *changed_lists(old_schema, schema)]
    found += changed_settings(schema, old, new, layouts, flags)
    if found:
        raise DataError(f"preprocess.from: the start differs from this table: {'; '.join(found)}. {WAY_OUT}.")


def changed_columns(old: Schema, new: Schema) -> Iterator[str]:
    """A clause for each column that came, went, or has another type, role or place among the model's inputs."""
    was, now = ({column.name: column for column in schema.columns} for schema in (old, new))
    for name, column in now.items():
        if name not in was:
            yield f"column {name!r} ({column.role}) is new"
    for name, column in was.items():
        if name not in now:
            yield f"column {name!r} ({column.role}) is gone"
            continue
        for what in ("role",) if column.role == "key" else ("role", "dtype"):  # of keys nothing is learnt
            before, after = getattr(column, what), getattr(now[name], what)
            if before != after:
                yield f"column {name!r} has the {what} {after}, not {before}"
    for role in ("categorical", "continuous"):
        names = [schema.names(role) for schema in (old, new)]
        if names[0] != names[1] and sorted(names[0]) == sorted(names[1]):
            yield f"the {role} columns stand in the order {', '.join(names[1])}, not {', '.join(names[0])}"


def changed_lists(old: Schema, new: Schema) -> Iterator[str]:
    """A clause for each list column that came, went, or is another; in whichever place."""
    was, now = ({column.name: column for column in schema.lists} for schema in (old, new))
    for name in {**now, **was}:
        if name not in was or name not in now:
            yield f"list column {name!r} is {'new' if name in now else 'gone'}"
            continue
        for item in fields(ListColumn):
            before, after = getattr(was[name], item.name), getattr(now[name], item.name)
            if before != after:
                yield f"{item.name} of list column {name!r} is {after}, not {before}"
    if list(was) != list(now) and sorted(was) == sorted(now):
        yield f"the list columns stand in the order {', '.join(now)}, not {', '.join(was)}"


def changed_settings(
    schema: Schema,
    old: PreprocessorSettings,
    new: PreprocessorSettings,
    layouts: Mapping[str, IdLayout] | None = None,
    flags: Collection[bool] = (),
) -> Iterator[str]:
    """A clause for each setting whose effect on a column is another; see `require_same_inputs`."""
    if layouts is None and old.indicator != new.indicator:
        yield f"preprocess.indicator is {new.indicator}, not {old.indicator}"
    if layouts is not None and new.indicator != "auto" and (new.indicator == "none") in flags:
        yield f"preprocess.indicator is {new.indicator}, which the import's columns do not have (auto takes them)"
    if old.scale != new.scale:
        yield f"preprocess.scale is {_text(new.scale)}, not {_text(old.scale)}"
    for name in (*schema.names("categorical"), *(column.name for column in schema.lists if column.shares is None)):
        before, after = (settings.category_settings(name) for settings in (old, new))
        for item in fields(CategorySettings):
            was, now = getattr(before, item.name), getattr(after, item.name)
            if layouts is not None:
                was = layouts[name].buckets if item.name == "oov_buckets" and name in layouts else now
            if was != now:
                yield f"{item.name} of {name!r} is {_text(now)}, not {_text(was)}"
    for name in schema.names("continuous"):
        number, before_number = new.number_settings(name), old.number_settings(name)
        for key, given in asdict(number).items():
            said = (number.scale, before_number.scale) == (new.scale, old.scale)  # above, of all columns
            skipped = said if key == "scale" else layouts is not None  # an import has no bins, whatever is asked
            if given != getattr(before_number, key) and not skipped:
                yield f"{key} of {name!r} is {_text(given)}, not {_text(getattr(before_number, key))}"


def _text(value: bool | int | str | None) -> str:
    return "null" if value is None else str(value).lower()
