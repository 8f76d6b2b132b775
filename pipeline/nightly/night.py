"""A night on its way, what it comes to, and what its line tells."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gigabatch.features.recipes import recipe_class
from gigabatch.pipeline.config.config import RunConfig
from gigabatch.pipeline.contract.decide import Decision
from gigabatch.pipeline.contract.state import FilesState, obey
from gigabatch.pipeline.nightly.manifest import write_manifest
from gigabatch.pipeline.nightly.pages import Material
from gigabatch.pipeline.runs.find import home_of
from gigabatch.pipeline.runs.pointers import current_run, read_pointers
from gigabatch.pipeline.stages.asked import Request
from gigabatch.pipeline.stages.finished import Run
from gigabatch.pipeline.store.artifacts import MANIFEST
from gigabatch.pipeline.store.keys import artifact_key, file_checksum, input_checksums

if TYPE_CHECKING:
    from gigabatch.pipeline.nightly.comparison import Judged

MOST_NAMES = 5  # of files, in a sentence
PENDING = "nightly.pending.json"  # what a night is about to do, between its promotion and its line
NOTHING_NEW = "nothing_new"  # of a line: what the night was of that found nothing new, and its words


@dataclass(frozen=True)
class Outcome:
    """What a night came to. reasons: why a new model was kept out, in sentences. told: whether all that its files
    brought has been told, so that the next night is not told of them again, though it was refused."""

    code: int
    text: str
    candidate: Run | None = None
    judged: Judged | None = None
    reasons: tuple[str, ...] = ()
    told: bool = False


@dataclass
class Night:
    """A night on its way, and what its line of nightly.jsonl will tell beside the outcome.

    request: as the configuration was given.
    steps: seconds of each step that was begun, `cpu_seconds` of all threads of this process in it, and whether a
    stage's artifact was there already and how large it is.
    material: of its page.

    The line also tells the CPU seconds of the whole `process` until then; what they are beyond the steps' was spent on
    imports and on reading the configuration.
    """

    config: RunConfig
    home: Path
    told: dict[str, Any] = field(default_factory=dict)
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)
    material: Material = field(default_factory=Material)
    request: Request | None = None

    @contextmanager
    def step(self, name: str) -> Iterator[dict[str, Any]]:
        started, worked = time.perf_counter(), time.process_time()
        entry = self.steps.setdefault(name, {})
        try:
            yield entry
        finally:
            entry["seconds"] = round(time.perf_counter() - started, 3)
            entry["cpu_seconds"] = round(time.process_time() - worked, 3)

    def line(self) -> dict[str, Any]:
        current = read_pointers(self.home).current
        champion = current.name if current is not None and current.parent == self.home.resolve() else None
        used = {"cpu_seconds": round(time.process_time(), 3)}
        return {**self.told, "champion": champion, "steps": self.steps, "process": used}


def told_of_comparison(outcome: Outcome) -> dict[str, Any]:
    """What the line says of the comparison: the first target's numbers, and those of all and of the reference."""
    judged = outcome.judged
    found: dict[str, Any] = {"reasons": list(outcome.reasons)}
    if judged is None:
        return found
    found |= vars(judged.first)
    if len(judged.floors) > 1:
        found["targets"] = {name: vars(compared) for name, compared in judged.floors.items()}
    if judged.reference:
        found["against_reference"] = {name: vars(compared) for name, compared in judged.reference.items()}
    return found | ({"left_out": list(judged.left_out)} if judged.left_out else {})


def nothing_new_of(request: Request, features_key: str) -> str:
    """All that a night follows from which finds nothing new: the rows, the configuration with sources and device, and
    the current run."""
    current = current_run(home_of(request.config))
    run = None if current is None else [current.name, file_checksum(current / MANIFEST)]
    return artifact_key("nothing new", {"features": features_key, "current": run}, {}, str(request.key))


def data_of(config: RunConfig, state: FilesState | None) -> dict[str, Any]:
    """The raw files that were read; see `write_manifest`."""
    recipe = recipe_class(config.recipe)(config.features)
    home = home_of(config)
    obey(home, recipe, config.artifacts, state)  # what is in quarantine was not read, nor need it be readable
    return write_manifest(home, input_checksums(recipe.inputs(), config.artifacts))


def quarantine_text(decision: Decision) -> str:
    """What was put aside, in a sentence; empty where nothing was."""
    if not decision.quarantined:
        return ""
    return f"In quarantine: {named(decision.quarantined)} (gigabatch contract --accept FILE takes one all the same)."


def named(paths: Sequence[str]) -> str:
    return ", ".join(map(name_of, paths[:MOST_NAMES])) + (", ..." if len(paths) > MOST_NAMES else "")


def name_of(path: str) -> str:
    return Path(path).name
