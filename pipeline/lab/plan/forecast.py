"""The sample runs of a plan, and what they say about the whole run."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from gigabatch.features.recipes.interactions.splits import FEWEST
from gigabatch.features.vocabulary.vocabulary import LAYOUT
from gigabatch.loaders.tables.storage import WRITE_BYTES
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.shelf import ModelSpec, model_class
from gigabatch.pipeline.config.config import RunConfig
from gigabatch.pipeline.evaluation.evaluate import ImportanceSample, importance_sample
from gigabatch.pipeline.lab.plan.sample import PlanError, sample_files
from gigabatch.pipeline.stages.part_rows import rows_of_part
from gigabatch.pipeline.stages.start import start_folder
from gigabatch.pipeline.training.beside import START_S, members_at_once
from gigabatch.pipeline.training.defaults import rows_seen, rule_of, settle

FLOAT_BYTES, OFFSET_BYTES = 4, 8
LABELLED = ("train", "valid", "test")
MAPPED: dict[str, tuple[str, ...]] = {"train": ("train", "valid"), "evaluate": LABELLED}  # tables that a stage reads
MEASURED_EPOCHS = 3  # of so few rows that the whole is run; an epoch takes what those before it took
IMPORTANCE_ROWS = 1_000  # that a sample shuffles, times its number
MMAP_BYTES = 32 << 20  # glibc's largest M_MMAP_THRESHOLD, see mallopt(3)


class Probes:
    """Runs samples, each in a process and an artifact folder of its own under `folder`."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self.config, self.folder = config, folder
        self.start = start_folder(config)  # of this run's folders, where a probe has its own
        self.number = 0
        self.last: dict[str, Any] = {}

    def run(self, fraction: float, rows_per_part: int | None = None) -> dict[str, Any]:
        """Every stage on that share of the rows, parts and blocks smaller by the same share; one epoch of training.

        With `rows_per_part`, for the effect of that alone, only features and encode. The whole is run as configured,
        but for at most `MEASURED_EPOCHS`.
        """
        self.number += 1
        home = self.folder / f"probe-{self.number}"
        settings, share = sample_files(self.config.recipe, self.config.features, fraction, home / "inputs")
        # With a handover a stage's writing would run on in the next one, and neither's cost could be told.
        raw = self.config.to_dict() | {"features": asdict(settings), "cluster": "none", "handover": "off"}
        raw |= {"artifacts": str(home / "artifacts"), "runs": str(home / "runs")}
        raw |= {"track": {"tensorboard": False, "mlflow": None}}  # a probe is no run that anybody wants to be told of
        epochs = min(self.config.train.epochs or MEASURED_EPOCHS, 1 if share < 1 else MEASURED_EPOCHS)
        raw["train"] |= {"epochs": epochs}
        asked = self.config.evaluate.importance_rows or IMPORTANCE_ROWS * self.number
        raw["evaluate"] |= {"importance_rows": asked, "importance_repeats": 1}
        raw["preprocess"] |= {"from": None if self.start is None else str(self.start)}
        if share < 1:
            raw["rows_per_part"] = rows_per_part or max(round(rows_of_part(self.config.rows_per_part) * share), 1)
        task = {"config": raw, "block_scale": share, "whole_run": rows_per_part is None, "sizes": None}
        found = self._spawn(task) | {"share": share, "epochs": epochs}
        if rows_per_part is None:
            self.last = raw
        return found

    def run_steps(self, sizes: list[int], batch_size: int) -> dict[str, Any]:
        """A few steps of training on the last sample, with id tables of these sizes."""
        self.number += 1
        raw = self.last | {"train": self.last["train"] | {"batch_size": batch_size}}
        return self._spawn({"config": raw, "block_scale": 1.0, "whole_run": False, "sizes": sizes})

    def _spawn(self, task: dict[str, Any]) -> dict[str, Any]:
        out = self.folder / f"found-{self.number}.json"
        # glibc gives arrays above a threshold, which soon is 32 MiB, back to the system when they are freed, and keeps
        # smaller ones. In a scale model these would all be smaller, so the threshold is made smaller as well.
        threshold = max(int(MMAP_BYTES * task["block_scale"]), 1 << 17)
        allocator = {"MALLOC_MMAP_THRESHOLD_": str(threshold), "MALLOC_TRIM_THRESHOLD_": str(2 * threshold)}
        if task["block_scale"] >= 1:
            allocator = {}
        done = subprocess.run(
            [sys.executable, "-m", "gigabatch.pipeline.lab.plan.probe"],
            input=json.dumps(task | {"out": str(out), "spawned": time.time()}, default=str, allow_nan=True),
            capture_output=True,
            text=True,
            env={"GOMP_SPINCOUNT": "30000"} | allocator | os.environ,
        )
        if done.returncode == 0:
            return dict(json.loads(out.read_text()))
        if done.returncode in (-9, 137):
            raise PlanError(
                "plan: the run of a sample was killed, most likely because memory ran out. Free some first."
            )
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise PlanError(f"plan: the stages fail on a sample of the inputs: {lines[-1] if lines else done.returncode}")


class Forecast:
    """The whole run from its samples (`Probes.run`, the larger one last) and from steps of training.

    exact: the sample is the whole; trained: with every epoch, of which a model without steps has none. smaller: a
    further sample run with smaller parts, and their rows.
    """

    def __init__(self, config: RunConfig, found: list[dict[str, Any]]) -> None:
        self.config, self.found = config, found
        self.steps: dict[str, Any] | None = None
        self.smaller: tuple[int, dict[str, Any]] | None = None
        last = found[-1]
        self.exact = bool(last["share"] >= 1)
        self.rows = self._rows()
        self.id_sizes = {name: self._id_size(name) for name in last["counts"]}
        rule = rule_of(model_class(self.spec.name), self.spec.inputs)
        self.settings = settle(config.train, self.rows["train"], self.spec.inputs.num_ids, **rule)
        self.trained = self.exact and (not self.takes_steps or last["epochs"] == self.settings.epochs)
        self.batch_size = min(self.settings.batch_size, max(self.rows["train"], 2))

    def _rows(self) -> dict[str, int]:
        """Rows by split. Where one row of each user is left out, their number grows as that of users does."""
        last = self.found[-1]
        rows = {split: round(count / last["share"]) for split, count in last["rows"].items()}
        if self.exact or getattr(self.config.features, "way", None) != "leave_one_out":
            return rows
        total = sum(rows.values())
        points = [(sum(result["rows"].values()), result["rows"]["test"]) for result in self.found]
        users = min(distinct_values(points, total), total // FEWEST)
        return {"train": total - 2 * users, "valid": users, "test": users}

    def _id_size(self, name: str) -> int:
        """Ids of a column's table. A value that is to occur so often in all rows must do so less often in a sample.

        Of a preprocessor that is grown, the known values and those that are new.
        """
        points, least, known = [], self.config.preprocess.min_count, self.found[-1]["known"].get(name, 0)
        last, train = self.found[-1], self.rows["train"]
        among = round(train * last["counted"][name] / last["rows"]["train"])  # rows, or elements, or both
        for result in self.found:
            needed = max(math.ceil(least * result["share"]), 1)
            values = sum(n for times, n in zip(*result["counts"][name], strict=True) if times >= needed)
            points.append((result["rows"]["train"], values))
        values = points[-1][1] if self.exact else min(round(power_law(points, train)), max(among // least, 1))
        return LAYOUT.num_ids(known + values)

    def table_bytes(self, splits: tuple[str, ...], sample: dict[str, Any] | None = None) -> int:
        """Bytes of packed tables, of a sample where one is given: exact, given their rows and the elements of lists."""
        sample = self.found[-1] if sample is None and self.exact else sample
        rows = self.rows if sample is None else sample["rows"]
        total = self.word_bytes(splits, rows)
        for place, column in enumerate(self.spec.inputs.lists):
            element = FLOAT_BYTES * (1 + column.weighted)
            for split in splits:
                elements = rows[split] * self.list_length(place)
                if sample is not None:
                    elements = sample["lists"][place]["elements"][split]
                total += OFFSET_BYTES * (rows[split] + 1) + element * round(elements)
        return total

    def word_bytes(self, splits: tuple[str, ...], rows: dict[str, int] | None = None) -> int:
        """Bytes of packed rows without what lists hold beside them."""
        return sum((rows or self.rows)[split] for split in splits) * self.found[-1]["num_words"] * FLOAT_BYTES

    def list_length(self, place: int) -> float:
        """Elements of a row of a list column, on average.

        Histories grow with the rows, as vocabularies do: each list of the larger sample by as much as their mean, up to
        a bound: the schema's, or the longest length, if more rows have it than the next below. Of histories that end
        nowhere, fewer rows have n + 1 elements than have n.
        """
        found = [(sum(result["rows"][split] for split in LABELLED), result["lists"][place]) for result in self.found]
        points = [(rows, sum(item["elements"].values()) / max(rows, 1)) for rows, item in found]
        mean = points[-1][1]
        if self.exact or not mean:
            return mean
        growth = power_law(points, sum(self.rows[split] for split in LABELLED)) / mean
        lengths, counts = found[-1][1]["lengths"]
        is_cut = len(counts) > 1 and counts[-1] > counts[-2]
        most = found[-1][1]["most"] or (lengths[-1] if is_cut else math.inf)
        grown = sum(min(growth * length, most) * count for length, count in zip(lengths, counts, strict=True))
        return max(grown / points[-1][0], mean)

    @property
    def lists_grow(self) -> bool:
        """Whether rows of the whole have longer lists than those of the sample, by more than a tenth."""
        last = self.found[-1]
        rows = sum(last["rows"][split] for split in LABELLED)
        elements = [sum(item["elements"].values()) for item in last["lists"]]
        return any(self.list_length(place) * rows > 1.1 * number for place, number in enumerate(elements))

    @property
    def parameter_bytes(self) -> int:
        """Of the embedding tables, which grow with the data; the layers are in what a step was measured to take."""
        return FLOAT_BYTES * self.spec.table_parameters

    @property
    def spec(self) -> ModelSpec:
        """The model with the id tables of the whole."""
        sample, model = ModelInputs.from_dict(self.found[-1]["inputs"]), self.config.model
        return ModelSpec(model.kind, sample.resized(tuple(self.id_sizes.values())), model.settings)

    def least_training_bytes(self) -> int:
        """Weights, gradients and one moment of each weight: less than any optimizer needs; or what fitting takes."""
        return 3 * self.parameter_bytes + model_class(self.spec.name).fit_bytes(self.spec.inputs)

    @property
    def takes_steps(self) -> bool:
        """Whether the model is trained in steps; else it is fitted to all rows at once."""
        return model_class(self.spec.name).learns_by_steps

    def _phases(self, prefix: str) -> list[str]:
        return [phase["name"] for phase in self.found[-1]["phases"] if phase["name"].startswith(prefix)]

    def _points(self, phase: str, what: str) -> list[tuple[float, float]]:
        return [
            (result["share"], item[what]) for result in self.found for item in result["phases"] if item["name"] == phase
        ]

    def _at_whole(self, phase: str, what: str) -> float:
        return predict(self._points(phase, what))

    def seconds(self, stage: str, what: str = "seconds") -> float:
        """Wall seconds of a stage; `what`: or cpu_seconds."""
        if stage in ("features", "encode"):
            return sum(self._at_whole(phase, what) for phase in self._phases(stage))
        if stage == "train":
            return self._train_seconds(what)
        later = self._importance(what) if self._phases("importance") else 0.0
        later += self._ranking(what) if self._phases("ranking") else 0.0
        return self._at_whole("evaluate", what) + later

    @property
    def start_seconds(self) -> float:
        """Until everything is imported; as measured."""
        return float(sum(result["startup_seconds"] for result in self.found) / len(self.found))

    def _train_seconds(self, what: str) -> float:
        if self.trained or not self.takes_steps:
            return self._at_whole("train", what)
        if self.steps is None:
            return math.nan
        last, members, at_once = self.found[-1], self.config.train.ensemble, self.members_at_once
        # What the stage does beside the loop, such as saving the bundle, as far as the larger sample shows it.
        loop = members * self._loop_seconds(self.steps, last["rows"], last["epochs"])
        beside = max(self._points("train", "seconds")[-1][1] - loop, 0.0)
        of_one = self._loop_seconds(self.steps, self.rows, self.settings.epochs)
        begins = START_S if at_once > 1 else 0.0
        if what == "cpu_seconds":
            return (members * of_one + beside) * self.steps["cpu_per_second"] + at_once * begins
        return -(-members // at_once) * of_one + beside + begins

    @cached_property
    def members_at_once(self) -> int:
        """How many members of an ensemble this machine would train at once now; the memory of one must be there."""
        members = self.config.train.ensemble
        if members == 1 or self.steps is None or self.found[-1]["device"] != "cpu":
            return 1
        copies, threads, epochs = self.config.train.copies, self.steps["threads"], self.settings.epochs
        steps = epochs * (self.rows["train"] // self.batch_size)
        rows = epochs * self.rows["train"] * copies
        return members_at_once(members, steps, rows, lambda: threads, self.parameter_bytes)

    def _loop_seconds(self, found: dict[str, Any], rows: dict[str, int], epochs: int) -> float:
        settings = self.settings
        steps = rows["train"] // min(settings.batch_size, max(rows["train"], 1))
        saves = 1 + steps // settings.checkpoint_every_steps
        valid = rows["valid"] * found["valid_row_seconds"]
        return float(
            found["first_seconds"] + epochs * (steps * found["step_seconds"] + saves * found["end_seconds"] + valid)
        )

    def _importance(self, what: str, tables: bool = False) -> float:
        """Of permutation importance: its time grows with the rows of all its passes, its memory with those of one."""
        measured = [ImportanceSample(item["rows"], item["repeats"]) for item in self._of_importance]
        num_features, settings = self._of_importance[-1]["features"], self.config.train
        seen = rows_seen(settings, self.rows["train"], self.spec.inputs.num_ids)
        whole = importance_sample(
            self.config.evaluate, self.rows["test"] * self.config.train.copies, num_features, seen
        )

        def size(sample: ImportanceSample) -> float:
            return float(sample.rows if what == "peak_bytes" else sample.passes(num_features))

        amounts = [amount for _, amount in self._points("importance", what)]
        if tables:
            amounts = [a - self.table_bytes(LABELLED, r) for a, r in zip(amounts, self.found, strict=True)]
        points = [(size(sample), amount) for sample, amount in zip(measured, amounts, strict=True)]
        if len(points) == 1 and what != "peak_bytes":
            return amounts[0] * size(whole) / points[0][0]
        return predict(points, size(whole))

    @property
    def _of_importance(self) -> list[dict[str, int]]:
        """What the samples shuffled."""
        return [result["importance"] for result in self.found]

    def _ranking(self, what: str) -> float:
        """Of ranking choices, which takes no more rows of the test split than the settings say, and scores each with
        its negatives and with the whole catalogue."""
        settings = self.config.evaluate.ranking
        assert settings is not None, "there would be no such phase"
        item = ModelInputs.from_dict(self.found[-1]["inputs"]).item
        assert item is not None, "ranking refuses a schema without items"

        def reach(rows: dict[str, int], num_items: int) -> float:
            candidates = (settings.negatives or 0) + (num_items if settings.full_catalogue else 0)
            return float(min(rows["test"], settings.max_rows or rows["test"]) * candidates)

        reached = [reach(result["rows"], result["inputs"]["num_ids"][item.key]) for result in self.found]
        points = [(x, amount) for x, (_, amount) in zip(reached, self._points("ranking", what), strict=True)]
        return predict(points, reach(self.rows, list(self.id_sizes.values())[item.key]))

    @property
    def tables(self) -> tuple[int, int]:
        """Rows of the train table and of the valid split as it is evaluated, together, and bytes of a row: what the
        train stage chooses its residency by."""
        row_bytes = -(-self.table_bytes(LABELLED) // max(sum(self.rows[split] for split in LABELLED), 1))
        return self.rows["train"] + self.config.train.copies * self.rows["valid"], row_bytes

    def _drawing_bytes(self) -> int:
        """What the negatives add to a GPU: those of the valid split, with a group each, and the known pairs, twice."""
        negatives = self.config.train.negatives
        if negatives is None:
            return 0
        evaluated = self.rows["valid"] * self.config.train.copies * (self.found[-1]["num_words"] + 1) * FLOAT_BYTES
        pair = (2 + 2 * (negatives.kind == "popularity")) * FLOAT_BYTES * negatives.exclude_known
        return evaluated - self.word_bytes(("valid",)) + self.rows["train"] * pair

    def host_bytes(self, stage: str, rows_per_part: int | None = None) -> float:
        """Peak of the resident set; rows_per_part: other than configured, once `smaller` is known."""
        if stage in ("features", "encode"):
            return max(
                self._at_whole(phase, "peak_bytes") - self._saved(phase, rows_per_part) for phase in self._phases(stage)
            )
        if self.exact:
            later = self._phases("importance") + self._phases("ranking")
            phases = self._phases(stage) + (later if stage == "evaluate" else [])
            return max(self._at_whole(phase, "peak_bytes") for phase in phases)
        splits, members = MAPPED[stage], self.config.train.ensemble
        tables = [self.table_bytes(splits, result) for result in self.found]
        phases = [stage, *(self._phases("ranking") if stage == "evaluate" else [])]
        peaks = [
            predict([(share, amount - known) for (share, amount), known in zip(points, tables, strict=True)])
            for points in (self._points(phase, "peak_bytes") for phase in phases)
        ]
        peak = max(peaks) - self._saved("encode", rows_per_part, "held_bytes")
        if stage == "train":
            # The sample's model is in the points; what that of the whole takes beyond it was measured.
            more = self.least_training_bytes() if self.steps is None else self.steps["more_host_bytes"]
            # Members are put together once none trains: then all weights are there, and the moments beside them.
            more = max(more, 2 * members * self.parameter_bytes) if members > 1 else more
            return peak + more + self.table_bytes(splits)
        if self._phases("importance"):
            peak = max(peak, self._importance("peak_bytes", tables=True))
        return peak + self.table_bytes(splits) + members * self.parameter_bytes

    def mapped_bytes(self, stage: str) -> int:
        """Of its peak, what are pages of packed tables: the system may drop them and read them again."""
        return self.table_bytes(MAPPED[stage]) if stage in MAPPED else 0

    @property
    def part_rows(self) -> int:
        """Rows of a part as configured."""
        return min(rows_of_part(self.config.rows_per_part), self.rows["train"])

    def _saved(self, phase: str, rows_per_part: int | None, what: str = "peak_bytes") -> float:
        """By how much less smaller parts take, at most all that grows with the rows."""
        if rows_per_part is None or self.smaller is None:
            return 0.0
        rows, result = self.smaller
        (amount,) = [item[what] for item in result["phases"] if item["name"] == phase]
        usual = self.part_rows * self.found[-1]["share"]
        points = sorted(self._points(phase, what))
        a_row = (points[-1][1] - amount) / (usual - rows)
        most = max(points[1][1] - points[0][1], 0) / (points[1][0] - points[0][0])
        return min(max(a_row, 0.0) * (self.part_rows - rows_per_part), most)

    def gpu_bytes(self, stage: str, residency: str = "device") -> float:
        """Peak of what the run adds to the GPU's memory in use. residency: of the train table."""
        if stage in ("features", "encode"):
            return max(self._at_whole(phase, "gpu_bytes") for phase in self._phases(stage))
        if stage == "train" and self.steps is not None:
            if not self.steps["gpu_bytes"]:
                return 0.0
            held = self.steps["gpu_bytes"] - self.steps["table_bytes"]
            there = ("train", "valid") if residency == "device" else ("valid",)
            members = self.config.train.ensemble
            held = max(held, members * self.parameter_bytes if members > 1 else 0)
            return held + self.table_bytes(there) + self._drawing_bytes()
        return self._at_whole(stage, "gpu_bytes")

    def handed_bytes(self, stage: str, handover: str, place: str) -> int:
        """Bytes that a handover adds to what a stage takes on the host or the GPU (`place`: host, device).

        handover: where it keeps the packed rows of all splits, from encode until their artifact is written; `off`: the
        samples ran without. Of a GPU's rows two blocks lie on the host on their way to the disk. Evaluation waits.
        """
        if handover == "off" or stage not in ("encode", "train"):
            return 0
        if place != handover:
            return 2 * WRITE_BYTES if place == "host" else 0
        # While a model trains, its rows and the valid split's are counted already.
        return self.table_bytes(LABELLED if stage == "encode" else ("test",))

    def disk_bytes(self, stage: str) -> float:
        """At the most while the stage runs or when it ends."""
        if stage in ("features", "encode"):
            return max(self._at_whole(phase, "disk_bytes") for phase in self._phases(stage))
        if self.exact:
            return self._at_whole(stage, "disk_bytes")
        # A checkpoint is written beside the one before it.
        # Members that are finished wait for the last one, with moments as a checkpoint has them.
        copies = 2 if self.config.train.ensemble == 1 else 2 + self.config.train.ensemble
        checkpoint = copies * self.steps["checkpoint_bytes"] if self.steps is not None else 0
        return self._at_whole(stage, "disk_bytes") + checkpoint


def predict(points: Sequence[tuple[float, float]], x: float = 1.0) -> float:
    """Extrapolate one or two points (size, amount) to `x`, as a fixed part and one that grows with the size.

    Neither part can be negative: amounts that fall with the size are taken as fixed, at the largest, and a line that
    starts below zero as one through the origin. Of one point, which is then at `x`, the amount is returned.

    Examples
    --------
    >>> from gigabatch.pipeline.lab.plan.forecast import predict
    >>> predict([(0.25, 3.0), (0.5, 4.0)])
    6.0
    """
    if len(points) == 1:
        return points[0][1]
    (x1, y1), (x2, y2) = sorted(points)
    if x1 == x2 or y2 <= y1:
        return max(y1, y2)
    slope = (y2 - y1) / (x2 - x1)
    return y2 / x2 * x if y1 < slope * x1 else y1 + slope * (x - x1)


def power_law(points: Sequence[tuple[float, float]], x: float) -> float:
    """Extrapolate one or two points (size, amount) to `x` by amount = k size^b with b within 0 and 1.

    Examples
    --------
    >>> from gigabatch.pipeline.lab.plan.forecast import power_law
    >>> power_law([(100, 10), (400, 20)], 10_000)
    100.0
    """
    (n1, v1), (n2, v2) = min(points), max(points)
    if v1 == 0 or v2 <= v1 or n1 == n2:
        return v2
    return v2 * (x / n2) ** min(math.log(v2 / v1) / math.log(n2 / n1), 1.0)


def distinct_values(points: Sequence[tuple[int, int]], rows: int) -> int:
    """Extrapolate how many distinct values `rows` rows will have, given (rows, values) of one or two samples.

    By Heaps' law, values = k rows^b with b within 0 and 1 (H. S. Heaps, Information Retrieval, 1978, section 7.5).

    Examples
    --------
    >>> from gigabatch.pipeline.lab.plan.forecast import distinct_values
    >>> distinct_values([(100, 10), (400, 20)], 10_000)
    100
    """
    return min(round(power_law(points, rows)), rows)
