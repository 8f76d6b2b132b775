"""fastai's fitted tabular procs as one of our workflows, from a JSON file that a snippet in their environment writes.

fastai saves by pickle only (`learn.export`), so nothing of its own can be read safely. docs/migrating.md has the
snippet; the file holds what `Categorify`, `FillMissing` and `Normalize` of fastai/tabular/core.py (2.8) learned.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from gigabatch.features.errors import UNREADABLE, DataError
from gigabatch.features.importers.base import (
    Imported,
    distinct_values,
    field,
    number,
    numbers,
    read_json,
    refuse_pickle,
    scale_of,
)
from gigabatch.features.operators.base import Configured
from gigabatch.features.operators.categories.categorify import Categorify
from gigabatch.features.operators.missing.fill_missing import Fill, FillMissing
from gigabatch.features.operators.numbers.normalize import Normalize
from gigabatch.features.vocabulary.vocabulary import IdLayout, Vocabulary
from gigabatch.features.workflow.workflow import Workflow

FORMAT = "gigabatch-fastai-1"
FIELDS = ("format", "classes", "continuous", "fills", "indicators", "means", "stds")
NA = "#na#"
LAYOUT = IdLayout(padding=0, null=0, unseen=0)  # one id for whatever is not in `classes`


def import_fastai(path: str | Path) -> Imported:
    """Import fastai's fitted tabular procs; an id is the value's index in fastai's `classes`, 0 for the rest.

    Parameters
    ----------
    path
        The JSON file that the snippet of docs/migrating.md wrote.

    Returns
    -------
    Imported
        The fitted workflow, and what differs from fastai.

    Raises
    ------
    DataError
        If the file is a pickle (`learn.export`), which is not read, or not of the format, or if classes do not begin
        with '#na#', hold a value twice or values of different types.

    Examples
    --------
    >>> import json, pathlib, tempfile
    >>> import pandas as pd
    >>> from gigabatch.features.importers.fastai import import_fastai
    >>> export = {
    ...     "format": "gigabatch-fastai-1", "classes": {"city": ["#na#", "Bonn", "Oslo"]}, "continuous": ["price"],
    ...     "fills": {"price": 2.0}, "indicators": False, "means": {"price": 3.0}, "stds": {"price": 2.0},
    ... }
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "export.json"
    ...     _ = path.write_text(json.dumps(export))
    ...     workflow = import_fastai(path).workflow
    >>> workflow.transform(pd.DataFrame({"city": ["Oslo", None], "price": [5.0, None]}))
       city  price
    0     2    1.0
    1     0   -0.5
    """
    path = Path(path)
    where = f"fastai export {path}"
    if not path.is_file():
        raise DataError(f"{where}: there is no such file.")
    refuse_pickle(path, "Load it in the environment that made it and write a JSON export: docs/migrating.md.")
    found = read_json(path, where)
    if set(found) != set(FIELDS) or found["format"] != FORMAT:
        raise DataError(
            f"{where}: expected the fields {', '.join(FIELDS)} and format {FORMAT!r}, found "
            f"{', '.join(found)} and {found.get('format')!r}. Write it as docs/migrating.md shows."
        )
    try:
        steps, outputs = _steps(found, where)
    except DataError:
        raise
    except UNREADABLE as error:  # such as a number of a thousand digits
        raise DataError(f"{where}: damaged ({error}). Write it as docs/migrating.md shows.") from error
    workflow = Workflow([step for step, _ in steps], outputs=outputs)
    workflow.states = dict(enumerate(state for _, state in steps))
    return Imported(workflow, _notes(found))


def _steps(found: dict[str, Any], where: str) -> tuple[list[tuple[Configured, Any]], list[str]]:
    """(operators with their states in the order of fastai's procs, columns that come out)."""
    flagged = field(found, "indicators", bool, where)
    fills, means, stds = (numbers(found, name, where) for name in ("fills", "means", "stds"))
    classes, continuous = field(found, "classes", dict, where), field(found, "continuous", list, where)
    flags = {f"{name}_na" for name in fills if flagged}
    missing = [name for name in (*fills, *means) if name not in continuous] + [
        name for name in flags if name not in classes
    ]
    if missing or not all(isinstance(name, str) for name in continuous) or set(means) != set(stds):
        raise DataError(
            f"{where}: fills, means, stds, continuous and classes do not belong together{': ' if missing else ''}"
            f"{', '.join(map(repr, missing))}. Write it again from one set of procs."
        )
    steps: list[tuple[Configured, Any]] = []
    for name, value in fills.items():
        filling = FillMissing(name, "all" if flagged else "none", "constant", number(value, where))
        steps.append((filling, Fill(value, flagged, 0.0)))
    for name, values in classes.items():
        steps.append((Categorify(name), _vocabulary(name, values, name in flags, where)))
    scaled = [name for name in continuous if name in means]
    steps += [(Normalize(name), scale_of(means[name], stds[name], f"{where}: {name!r}")) for name in scaled]
    return steps, [*classes, *continuous]


def _vocabulary(name: str, values: Any, is_flag: bool, where: str) -> Vocabulary:
    if not isinstance(values, list) or values[:1] != [NA]:
        raise DataError(
            f"{where}: the classes of {name!r} must be a list that begins with {NA!r}, found {values!r:.80}."
        )
    # fastai's indicator is True or False, ours 1.0 or 0.0.
    known = [float(value) if is_flag and isinstance(value, bool) else value for value in values[1:]]
    column = pd.Series(known, name=name) if known else pd.Series([], dtype="str", name=name)
    return Vocabulary(
        distinct_values(column, f"{where}: classes of {name!r}"), pd.Series([0] * len(known), dtype="int64"), LAYOUT
    )


def _notes(found: dict[str, Any]) -> tuple[str, ...]:
    notes = ["ids are int32 (fastai: int64); null, unseen and padding are all 0, as there"]
    if found["fills"]:
        notes.append(
            "a column in fills is float32 from the fill on (fastai: as it was, float32 after Normalize), so its "
            "normalised values may differ in the last bits"
        )
    return (*notes, "counts and null rates at fit are not known, so churn cannot be told against this fit")
