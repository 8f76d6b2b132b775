"""Interactions larger than memory: rows wait in files, a group of users after the other is in memory."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gigabatch.features.engines.frame import load_engine
from gigabatch.features.recipes.base import SPLITS, FeatureParts
from gigabatch.features.recipes.interactions.splits import ROW, UserSplits
from gigabatch.features.recipes.staging import SplitWriter, StagedRows
from gigabatch.features.workflow.workflow import Workflow

USER = "__user__"  # the hash by which rows are dealt out, so that all of a user come together


def stage_users(engine: str, folder: Path, blocks: Iterator[Any], rows: int, user: str) -> StagedRows:
    """Keep blocks of rows in files from which those of about `rows` rows come together, with all of each user.

    folder: where the files go. user: the column of users.
    """
    module = load_engine(engine)
    staged = StagedRows(engine, folder, rows, USER, None)
    for frame in blocks:
        staged.add(frame.assign(**{USER: module.series(module.hash64(frame[user]), frame)}))
    staged.settle()
    return staged


def write_user_parts(engine: str, folder: Path, staged: StagedRows, rows: int, made: UserSplits) -> FeatureParts:
    """Write the splits of the rows that wait as `interaction_tables` makes them, bit for bit and in its order.

    folder: of the features stage. rows: about how many are in memory at once.
    """
    order = made.layout.time or ROW
    waiting = {name: StagedRows(engine, folder / "raw" / name, rows, order, ROW, by_row=False) for name in SPLITS}
    for frame in staged.frames():
        made.count(made.look(frame))
    cut = made.cut()
    for frame in staged.frames():
        for name, part in made.split(made.look(frame), cut).items():
            waiting[name].add(part)
    made.require_splits()
    shutil.rmtree(staged.folder)
    schema = made.schema
    writer = SplitWriter(engine, folder, lambda frame: schema)
    workflow: Workflow | None = None
    for name, part_rows in waiting.items():
        part_rows.settle()
        for frame in part_rows.frames():
            if workflow is None:
                workflow = made.workflow(frame)
            writer.write(name, frame)
    shutil.rmtree(folder / "raw")
    counts, schema = writer.finish(SPLITS)
    return FeatureParts(counts, schema, made.notes(), workflow)
