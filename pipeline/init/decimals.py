"""What the columns of a table hold, each read with the decimal sign that the table's texts prove."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gigabatch.features.engines.arrow_types import is_text
from gigabatch.pipeline.init.columns import Seen, column_seen, decimal_sign
from gigabatch.pipeline.init.look import Table
from gigabatch.pipeline.init.texts import found_in

SIGNED = r"[0-9][.,][0-9]|^[^0-9]*[.,][0-9]"  # texts that hold a decimal sign or one of thousands
POINTED = r"[0-9][.]([0-9]{1,2}|[0-9]{4,})([^0-9]|$)"  # no point between groups of three digits
MOST_SHOWN = 5


@dataclass(frozen=True)
class SeenColumns:
    """Hold what the columns of a table are.

    Parameters
    ----------
    columns
        By name.
    decimal
        `,` where texts that could be read with either sign are read with that; else empty.
    remark
        What is said of columns whose texts could be read with the other sign; or empty.
    """

    columns: dict[str, Seen]
    decimal: str = ""
    remark: str = ""


def columns_seen(table: Table) -> SeenColumns:
    """What the columns of a table hold. Texts such as "1.262" and "825,145" say by themselves neither which sign is the
    decimal one; other columns of the table do, by texts such as "16,0" and "1.875,50", which can be read in one way.

    The comma is taken where no column proves a point, or fewer columns than prove a comma and `;` stands between the
    fields. A column that proves a sign is read with its own. Otherwise each column is read by itself.

    Parameters
    ----------
    table
        As `look` makes it, with the column of the target, which is evidence too.

    Returns
    -------
    SeenColumns
        The columns, the sign and what is to be said of them.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.pipeline.init.decimals import columns_seen
    >>> from gigabatch.pipeline.init.look import Table
    >>> sample = pd.DataFrame({"amount": ["1.262", "755"], "price": ["16,0", "3,9"]}, dtype="str")
    >>> seen = columns_seen(Table({}, sample, separator=";"))
    >>> seen.decimal, seen.columns["amount"].values.tolist()
    (',', [1262.0, 755.0])
    """
    found = {name: column_seen(name, table.sample[name], table.arrow.get(name)) for name in table.sample}
    numbers = [name for name, seen in found.items() if seen.kind == "number" and is_written(table, name)]
    commas = [name for name in numbers if decimal_sign(found[name]) == ","]
    left = [name for name in numbers if name not in commas]
    # Most files hold plain numbers alone, whose points nobody doubts: a second look at each would cost as much again.
    parsed = [name for name in left if decimal_sign(found[name])]
    doubted = commas or table.separator.strip() == ";" or any(_first_signed(table, name) for name in parsed)
    if not doubted:
        return SeenColumns(found)
    either: dict[str, Seen] = {}
    points = []
    for name in left:
        if found_in(table.sample[name].astype("str"), POINTED).any():  # no comma would be read in it
            points.append(name)
            continue
        other = column_seen(name, table.sample[name], table.arrow.get(name), ",")
        if decimal_sign(other) == ",":
            either[name] = other
        elif _first_signed(table, name):
            points.append(name)
    decided = bool(commas) and (not points or (table.separator.strip() == ";" and len(points) < len(commas)))
    if decided:
        found |= either
    in_doubt = {name: found[name] for name in either if _first_signed(table, name)}
    remark = _remark(table, in_doubt, commas, points, decided) if in_doubt and (commas or not points) else ""
    return SeenColumns(found, "," if decided else "", remark)


def is_written(table: Table, name: str) -> bool:
    """Whether a column is text in the files, and no numbers of a Parquet file."""
    arrow = table.arrow.get(name)
    if arrow is not None and pa.types.is_dictionary(arrow):
        arrow = arrow.value_type
    return arrow is None or is_text(arrow)


def _first_signed(table: Table, name: str) -> str:
    """The first text with a sign that may be the decimal one; empty where there is none."""
    there = np.flatnonzero(found_in(table.sample[name].astype("str"), SIGNED))
    return str(table.sample[name].iloc[there[0]]) if len(there) else ""


def _remark(table: Table, in_doubt: Mapping[str, Seen], commas: list[str], points: list[str], decided: bool) -> str:
    shown = []
    for name, seen in list(in_doubt.items())[:MOST_SHOWN]:
        text = _first_signed(table, name)
        value = seen.values[(table.sample[name] == text).to_numpy(dtype=bool, na_value=False).argmax()]
        shown.append(f"{text!r} in {name} is taken for {value:.12g}")
    more = f", and so on in {len(in_doubt) - MOST_SHOWN:,} more columns" if len(in_doubt) > MOST_SHOWN else ""
    proofs = [f"{_first_signed(table, names[0])!r} in {names[0]} has a decimal {sign}"
              for sign, names in (("comma", commas), ("point", points)) if names]  # fmt: skip
    why = f", as {proofs[0]}" if decided else f", though {' and '.join(proofs)}" if proofs else ""
    other = "" if decided else ", and could be another number"
    return (
        f"{', '.join(shown)}{more}{why}{other}. Where that is wrong, set decimal and thousands of a step parse_number "
        "for the column, which is string under inputs."
    )
