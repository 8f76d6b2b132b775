"""The stages on a sample, in a process of its own whose memory and time are measured: `python -m
gigabatch.pipeline.lab.plan.probe`.

Reads a task as JSON from standard input and writes what was found, as JSON, to the task's `out`:
phases (name, seconds, cpu_seconds, peak_bytes, held_bytes, gpu_bytes, disk_bytes), rows by split, words of a packed
row, by vocabulary how often its values occur and among how many, and of each list its elements by split. A task with
`sizes` takes steps of training only. Nothing here is used by a real run.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gigabatch.features.engines.frame import load_engine
from gigabatch.features.operators.categories.categorify import Categorify
from gigabatch.features.recipes.base import Recipe
from gigabatch.features.refit.statistics import CategoryStatistics, Statistics
from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.inputs import ModelInputs
from gigabatch.pipeline import bundle
from gigabatch.pipeline.bundle import load_bundle, target_loss
from gigabatch.pipeline.config.config import RunConfig, parse_config
from gigabatch.pipeline.evaluation.evaluate import feature_words, permutation_importance
from gigabatch.pipeline.lab.experiment import wait_for
from gigabatch.pipeline.machine import reset_peak, resident_bytes, resolve_device
from gigabatch.pipeline.stages import asked, stages
from gigabatch.pipeline.store.files import json_text
from gigabatch.pipeline.training.defaults import id_sizes, settle
from gigabatch.pipeline.training.ensemble import OF_ONE
from gigabatch.pipeline.training.negatives import implicit_batches
from gigabatch.pipeline.training.threads import training_threads
from gigabatch.pipeline.training.train import model_inputs, model_spec, new_model, table_loss, train_model

STEPS, STEP_ROWS = 24, 1 << 20  # at most, of training with tables of the predicted size
GPU_SECONDS = 0.02  # between two looks at the GPU's memory
LEAST_BLOCK_ROWS = 128  # of a model's calls in evaluation: with fewer the time is that of the calls


class Watch:
    """Time and memory by phase; `mark` ends one. Peaks are the kernel's own, so none is missed between two looks.

    Where the kernel cannot reset a process's peak, phases after the largest one report that one's.
    """

    def __init__(self, root: Path, device: str) -> None:
        self.root, self.device = root, device
        self.phases: list[dict[str, Any]] = []
        self._gpu_start = self._gpu_peak = self._gpu_used()
        if device != "cpu":
            threading.Thread(target=self._look, daemon=True).start()
        self.restart()

    def restart(self) -> None:
        """Begin a phase here."""
        reset_peak()
        self._gpu_peak = self._gpu_used()
        self._started, self._cpu = time.perf_counter(), time.process_time()

    def mark(self, name: str) -> None:
        """End of a phase, which began where the one before ended."""
        seconds, cpu = time.perf_counter() - self._started, time.process_time() - self._cpu
        peak, held = resident_bytes()
        self.phases.append(
            {
                "name": name,
                "seconds": seconds,
                "cpu_seconds": cpu,
                "peak_bytes": peak,
                "held_bytes": held,
                "gpu_bytes": max(self._gpu_peak - self._gpu_start, 0),
                "disk_bytes": folder_bytes(self.root),
            }
        )
        self.restart()

    def _gpu_used(self) -> int:
        if self.device == "cpu":
            return 0
        free, total = torch.cuda.mem_get_info(self.device)
        return total - free

    def _look(self) -> None:
        while True:
            self._gpu_peak = max(self._gpu_peak, self._gpu_used())
            time.sleep(GPU_SECONDS)


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below; files that vanish meanwhile count as none."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return total


def run_stages(config: RunConfig, block_scale: float, whole_run: bool, watch: Watch) -> dict[str, Any]:
    """Features and encode, and with `whole_run` also train and evaluate."""
    pipeline = stages.Pipeline(config)
    # As parts are: else one block would be a sample's whole valid split, and seem to grow with the rows.
    usual_rows = bundle.BLOCK_ROWS
    bundle.BLOCK_ROWS = max(round(usual_rows * block_scale), LEAST_BLOCK_ROWS)
    known = asked.recipe_class(config.recipe)
    with _watched_recipe(known, block_scale, watch):
        features = pipeline.features()
    watch.mark("features written")
    encoded = features.encode()
    watch.mark("encode")
    schema, statistics = encoded.preprocessor.tensor_schema, encoded.preprocessor.statistics
    assert statistics is not None
    start = {} if pipeline.start is None else pipeline.start.preprocessor.vocabularies
    lists, own = _lists_found(encoded), {column.name for column in encoded.features.schema.lists}
    counted = {name: of_vocabulary(statistics, name) for name in encoded.preprocessor.vocabularies}
    found = {
        "rows": features.rows,
        "num_words": schema.num_words,
        "inputs": model_inputs(encoded.preprocessor).to_dict(),
        "known": {name: len(vocabulary.values) for name, vocabulary in start.items()},
        "counts": {
            name: _histogram(
                (category.unseen(start[name]) if name in start else category.counts)["count"], pipeline.engine
            )
            for name, category in counted.items()
        },
        "lists": lists,
        "counted": {
            name: features.rows["train"] * (name not in own)
            + sum(item["elements"]["train"] for item in lists if item["owner"] == name)
            for name in counted
        },
    }
    watch.restart()
    if whole_run:
        keep_as_a_whole_run_does()
        artifact = encoded.fit_model()
        watch.mark("train")
        # All stop growing at some number of rows, the baselines at some ten seconds of a core, which are not foretold.
        quiet = {"importance": False, "ranking": None, "baselines": ()}
        pipeline.config = config.model_copy(update={"evaluate": config.evaluate.model_copy(update=quiet)})
        encoded.publish(artifact)
        watch.mark("evaluate")
        pipeline.config = config
        if config.evaluate.importance:
            model, test = load_bundle(artifact.path / "model", pipeline.device).model, encoded.evaluation_table("test")
            settings = config.evaluate  # which name rows and repeats here (`Probes.run`)
            assert settings.importance_rows is not None
            found["importance"] = {
                "rows": min(settings.importance_rows, len(test)),
                "repeats": settings.importance_repeats,
                "features": len(feature_words(test)),
            }
            permutation_importance(model, test, features.schema, settings, config.seed, pipeline.device)
            watch.mark("importance")
        if config.evaluate.ranking is not None:
            bundle.BLOCK_ROWS = usual_rows  # which the ranking's own blocks, as large in a sample, must fit in
            model = load_bundle(artifact.path / "model", pipeline.device).model
            ranking = encoded.ranking(model.inputs)
            assert ranking is not None  # as the setting is
            ranking(model)
            watch.mark("ranking")
    return found


def of_vocabulary(statistics: Statistics, name: str) -> CategoryStatistics:
    """Of all columns and lists that a vocabulary is made of, together."""
    of_lists = [statistics.lists[one] for one, owner in statistics.owners.items() if owner == name]
    parts = [*([statistics.categories[name]] if name in statistics.categories else []), *of_lists]
    if len(parts) == 1:
        return parts[0]
    operator = Categorify(name)
    counts = reduce(operator.merge, [part.counts[["value", "count"]] for part in parts])
    return CategoryStatistics.of_counts(sum(part.rows for part in parts), counts)


def _lists_found(encoded: stages.Encoded) -> list[dict[str, Any]]:
    """Of each list column whose vocabulary it takes, its elements by split, how many rows have lists of which length,
    and the schema's bound of these."""
    columns, found = encoded.features.schema.lists, []
    tables = {split: encoded.table(split) for split in stages.SPLITS} if columns else {}
    for place, column in enumerate(columns):
        held = {split: table.lists[place] for split, table in tables.items()}
        lengths, rows = torch.cat([item.offsets.diff() for item in held.values()]).unique(return_counts=True)
        elements = {split: len(item.ids) for split, item in held.items()}
        counted = [lengths.tolist(), rows.tolist()]
        found.append({"owner": column.owner, "elements": elements, "lengths": counted, "most": column.max_length})
    return found


def keep_as_a_whole_run_does() -> None:
    """Undo the scaled thresholds of glibc's allocator: a batch is as large in a sample as in the whole."""
    if "MALLOC_MMAP_THRESHOLD_" in os.environ and sys.platform == "linux":
        allocator = ctypes.CDLL(None)
        if hasattr(allocator, "mallopt"):
            allocator.mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD at their largest, mallopt(3)
            allocator.mallopt(-1, 64 << 20)


def _histogram(counts: Any, engine: str) -> list[list[int]]:
    """[occurrences, how many values have so many], by occurrences."""
    module = load_engine(engine)
    found, number = np.unique(module.to_host(module.array(counts)), return_counts=True)
    return [found.tolist(), number.tolist()]


@contextlib.contextmanager
def _watched_recipe(known: type[Recipe], block_scale: float, watch: Watch) -> Iterator[None]:
    """Within the block, recipes of the pipeline mark their steps, and read in blocks `block_scale` times the usual."""

    class Watched(known):  # type: ignore[valid-type, misc]
        @property
        def report(self) -> Any:
            return lambda step: watch.mark(f"features: {step}")

        @report.setter
        def report(self, _: Any) -> None:
            """The pipeline's progress bar is not needed here."""

        def write_parts(self, *arguments: Any) -> Any:
            block_bytes = inspect.signature(known.write_parts).parameters.get("block_bytes")
            blocks = {"block_bytes": max(int(block_bytes.default * block_scale), 1 << 12)} if block_bytes else {}
            return super().write_parts(*arguments, **blocks)

    before, asked.recipe_class = asked.recipe_class, lambda name: Watched
    try:
        yield
    finally:
        asked.recipe_class = before


def run_steps(config: RunConfig, sizes: list[int], watch: Watch, work: Path) -> dict[str, Any]:
    """A few steps of training with the sample's id tables and then with tables of these sizes.

    Of the latter: seconds of a step, of an epoch's end and of the rest, and by how much more memory they took.
    """
    pipeline = stages.Pipeline(config)
    encoded, device = pipeline.features().encode(), pipeline.device
    # On the host until they are needed: what the whole run's take of a GPU is known.
    table, valid, positives = (
        encoded.table("train"),
        encoded.evaluation_table("valid").to("cpu"),
        len(encoded.table("valid")),
    )
    preprocessor, drawing = encoded.preprocessor, config.train.negatives
    batch_size = config.train.batch_size
    assert batch_size is not None, "the forecast names it"
    copies = 1 if drawing is None else 1 + drawing.per_positive
    num_steps = min(max(STEP_ROWS // (batch_size * copies), 3), STEPS)
    # The sample may have fewer rows than so many batches.
    rows = torch.arange(num_steps * batch_size) % len(table)
    few = valid.with_words(valid.words[:batch_size].clone()).to(device)
    spec = model_spec(preprocessor, config)
    loss = target_loss(encoded.features.schema, config.train.losses, config.train.label_smoothing)
    settings = config.train.model_copy(update=OF_ONE | {"epochs": 1})
    moments: list[float] = []

    def after_step(_: int) -> None:
        wait_for(device)
        moments.append(time.perf_counter())

    for name, counts in (("sample", spec.inputs.table_sizes), ("whole", tuple(sizes))):
        inputs = spec.inputs.resized(counts)
        train = _spread_ids(table.with_words(table.words[rows]), inputs)
        folder = work / name
        folder.mkdir(parents=True)
        moments.clear()
        watch.restart()
        started = time.perf_counter()
        negatives = None
        if drawing is not None:
            negatives = implicit_batches(preprocessor, inputs, train, drawing, config.seed, device)
        model = new_model(replace(spec, inputs=inputs), train, config.seed, loss)
        of_a_step = min(settle(settings, len(train), id_sizes(train.schema)).batch_size, len(train)) * (
            1 if negatives is None else negatives.copies
        )
        with training_threads(model, few, of_a_step, device, config.num_threads) as threads:
            trained = train_model(
                model,
                train.to(device),
                few,
                loss,
                settings,
                seed=config.seed,
                device=device,
                folder=folder,
                after_step=after_step,
                negatives=negatives,
            )
        finished = time.perf_counter()
        watch.mark(name)
    after = time.perf_counter()
    table_loss(trained.model, valid.to(device), loss, device)
    valid_seconds = time.perf_counter() - after
    steps = sorted(stop - start for start, stop in pairwise(moments))
    small, large = watch.phases
    return {
        "threads": threads,
        "step_seconds": steps[len(steps) // 2],
        "first_seconds": moments[0] - started,
        "end_seconds": finished - moments[-1],
        "valid_row_seconds": valid_seconds / positives,  # with the negatives of each
        "more_host_bytes": max(large["peak_bytes"] - small["peak_bytes"], 0),
        "gpu_bytes": large["gpu_bytes"],
        "cpu_per_second": large["cpu_seconds"] / large["seconds"],
        "table_bytes": train.num_bytes,
        "checkpoint_bytes": folder_bytes(folder),
    }


def _spread_ids(table: PackedTable, inputs: ModelInputs) -> PackedTable:
    """Ids stretched to larger tables, so that as much of them is touched as will be; those of the words in place."""

    def stretched(ids: torch.Tensor, known: int, size: int) -> torch.Tensor:
        return (ids.double() * (size / known)).int().clamp(max=size - 1)

    schema = table.schema
    for place, (column, size) in enumerate(zip(schema.ids, inputs.num_ids, strict=True)):
        table.words[:, place] = stretched(table.words[:, place], column.num_ids, size)
    ids = tuple(replace(column, num_ids=size) for column, size in zip(schema.ids, inputs.num_ids, strict=True))
    sizes = [column.num_ids for column in inputs.lists]
    lists = tuple(
        JaggedColumn(stretched(held.ids, column.num_ids, size), held.offsets, held.weights)
        for held, column, size in zip(table.lists, schema.lists, sizes, strict=True)
    )
    columns = tuple(replace(column, num_ids=size) for column, size in zip(schema.lists, sizes, strict=True))
    return replace(table, schema=replace(schema, ids=ids, lists=columns), lists=lists)


def main() -> None:
    task = json.loads(sys.stdin.read())
    config = parse_config(task["config"])
    device = resolve_device(config.device)
    watch = Watch(Path(config.artifacts), device)
    startup = time.time() - task["spawned"]
    if task["sizes"] is not None:
        found = run_steps(config, task["sizes"], watch, Path(task["out"]).with_suffix(".work"))
    else:
        found = run_stages(config, task["block_scale"], task["whole_run"], watch)
    found |= {"startup_seconds": startup, "device": device, "phases": watch.phases}
    Path(task["out"]).write_text(json_text(found))


if __name__ == "__main__":
    main()
