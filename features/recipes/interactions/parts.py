"""Interactions larger than memory: rows wait in files, and a group of users after the other is in memory."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gigabatch.features.engines.frame import load_engine
from gigabatch.features.operators.base import unused
from gigabatch.features.reading.blocks import NotInParts
from gigabatch.features.recipes.base import SPLITS, FeatureParts, Recipe
from gigabatch.features.recipes.interactions.layout import Layout
from gigabatch.features.recipes.interactions.side_tables import SideColumns
from gigabatch.features.recipes.interactions.splits import InteractionRules, UserSplits
from gigabatch.features.recipes.staging import SplitWriter, StagedRows, part_by_part
from gigabatch.features.workflow.workflow import ROW, Workflow


def write_user_parts(
    recipe: Recipe,
    engine: str,
    folder: Path,
    rows: tuple[float, int],
    reason: str | None,
    blocks: Callable[[], Iterable[tuple[Any, Layout]]],
    rules: InteractionRules,
    sides: Callable[[], Mapping[str, SideColumns]],
) -> FeatureParts | None:
    """Write the splits that `interaction_tables` makes, bit for bit and in its order, in memory that does not grow with
    the interactions; rows of one user are in memory together, and so are those of one moment of a split.

    Parameters
    ----------
    recipe, engine, folder, reason
        As of `part_by_part`.
    rows
        How many there are, about, and how many are in memory at once. None is written where all are no more.
    blocks
        Gives the rows block by block, each as of `interaction_tables`, in order.
    rules, sides
        As of `interaction_tables`.
    """
    about, at_once = rows
    if about <= at_once:
        return None

    def write() -> FeatureParts:
        layouts: list[Layout] = []
        module, staged = load_engine(engine), None
        for frame, layout in blocks():
            if len(frame) and layout not in layouts:
                layouts.append(layout)
                if len(layouts) > 1:
                    raise NotInParts(f"{layout.time!r} holds times of several kinds")
            if staged is None:  # dealt out by a hash, so that all rows of a user come together
                key = unused("user", frame.columns)
                staged = StagedRows(engine, folder / "raw" / "users", at_once, key, None)
            staged.add(frame.assign(**{key: module.series(module.hash64(frame[layout.user]), frame)}))
        if staged is None or not layouts:
            raise NotInParts("no row is there")
        staged.settle()
        recipe.report("read")
        made = UserSplits(layouts[0], rules, sides(), folder / "raw" / "times")
        return _write(engine, folder, staged, at_once, made)

    return part_by_part(recipe, engine, folder, about, reason, write)


def _write(engine: str, folder: Path, staged: StagedRows, rows: int, made: UserSplits) -> FeatureParts:
    order = made.layout.time or ROW
    waiting = {name: StagedRows(engine, folder / "raw" / name, rows, order, ROW, by_row=False) for name in SPLITS}
    for frame in staged.frames():
        made.count(made.look(frame.drop(columns=[staged.time])))
    cut = made.cut()
    for frame in staged.frames():
        for name, part in made.split(made.look(frame.drop(columns=[staged.time])), cut).items():
            waiting[name].add(part)
    made.require_splits()
    shutil.rmtree(staged.folder)
    schema = made.schema
    writer = SplitWriter(engine, folder, lambda frame: schema)
    workflow: Workflow | None = None
    for name, split in waiting.items():
        split.settle()
        for frame in split.frames():
            workflow = workflow or made.workflow(frame)
            writer.write(name, frame)
    shutil.rmtree(folder / "raw")
    counts, schema = writer.finish(SPLITS)
    return FeatureParts(counts, schema, made.notes(), workflow)
