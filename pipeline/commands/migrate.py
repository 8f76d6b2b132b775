"""Commands that read what other libraries fitted: import-nvtabular, import-fastai."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gigabatch.features.importers.base import Imported

Out = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder to write the workflow to.")]
SchemaFile = Annotated[
    Path | None,
    typer.Option(
        "--schema",
        metavar="FILE",
        help="schema.json of a features stage: also write FOLDER/preprocessor, to train with.",
    ),
]


def nvtabular(
    source: Annotated[Path, typer.Argument(metavar="DIR", help="What to read; a pickle is refused.")],
    out: Out,
    schema: SchemaFile = None,
) -> int:
    """Read a saved NVTabular workflow as one of ours, ids kept (docs/migrating.md)."""
    from gigabatch.features.importers.nvtabular import import_nvtabular

    return _write(import_nvtabular, source, out, schema)


def fastai(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="What to read; a pickle is refused.")],
    out: Out,
    schema: SchemaFile = None,
) -> int:
    """Read fastai's tabular procs as a workflow of ours, ids kept (docs/migrating.md)."""
    from gigabatch.features.importers.fastai import import_fastai

    return _write(import_fastai, source, out, schema)


def _write(read: Callable[[Path], Imported], source: Path, out: Path, schema: Path | None) -> int:
    from gigabatch.features.schema import Schema

    columns = None if schema is None else Schema.load(schema)
    imported = read(source)
    imported.save(out, columns)
    for step in imported.workflow.steps:
        print(step)
    for note in imported.notes:
        print(f"note: {note}")
    print(out)
    return 0
