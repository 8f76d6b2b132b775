"""A plan as it is told, and plans that this machine has made before: no model and no torch is imported for them.

A plan is kept in `artifacts/plans.json`, by the configuration, the sources and libraries, the processor, the threads
that the environment sets, and the input files' sizes and times. It is told again while as much memory is free that all
would be decided as it was.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from gigabatch.features.recipes import recipe_class
from gigabatch.pipeline.display import about_bytes, about_seconds, render_table
from gigabatch.pipeline.machine import Machine, processor, this_machine
from gigabatch.pipeline.stages.asked import Request
from gigabatch.pipeline.store.keys import SETTLED_NS, artifact_key, signature, versions
from gigabatch.pipeline.store.remembered import Remembered

log = logging.getLogger(__name__)
PLANS = "plans.json"  # in the folder of artifacts
MOST_PLANS = 100
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")  # from which torch and numba take theirs


@dataclass(frozen=True)
class StagePlan:
    """One stage: its seconds, its peaks of host and GPU memory, and the disk that is used by its end.

    mapped_bytes: of host_bytes, pages of packed tables, which the system can drop and read again. cpu_seconds: of all
    threads; other programs disturb them less than they do `seconds`.
    """

    stage: str
    seconds: float
    cpu_seconds: float
    host_bytes: int
    mapped_bytes: int
    gpu_bytes: int
    disk_bytes: int


@dataclass(frozen=True)
class Plan:
    """What a run will take.

    seconds: with the start of the process. exact: all of it was run, nothing is estimated. reasons: why it does not
    fit; advice: what would help. handover: `device` or `host`, where packed rows lie from encode until they are
    written and trained on, or `off`. large_tables: sentences about columns whose tables take much of the memory.
    holds_within: bytes of free host memory, least and most, with which all of it is decided alike; None where that was
    not asked. kept: when it was measured, in words, if that was before this command.
    """

    name: str
    rows: int
    sample: str
    exact: bool
    stages: tuple[StagePlan, ...]
    seconds: float
    host_bytes: int
    gpu_bytes: int
    disk_bytes: int
    rows_by_split: dict[str, int]
    id_sizes: dict[str, int]
    rows_per_part: int
    rows_per_part_because: str
    residency: str
    residency_because: str
    handover: str
    handover_because: str
    reasons: tuple[str, ...]
    advice: tuple[str, ...]
    large_tables: tuple[str, ...]
    unknown: tuple[str, ...]
    machine: Machine
    planning_seconds: float
    measured_utc: str
    holds_within: tuple[int, int] | None = None
    kept: str | None = None

    @property
    def fits(self) -> bool:
        return not self.reasons

    def to_dict(self) -> dict[str, Any]:
        return {"fits": self.fits, **asdict(self)}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Plan:
        """What `to_dict` has given, by way of JSON."""
        read: dict[str, Any] = {key: tuple(item) if isinstance(item, list) else item for key, item in found.items()}
        del read["fits"]
        read["stages"] = tuple(StagePlan(**stage) for stage in read["stages"])
        read["machine"] = Machine(**read["machine"])
        return cls(**read)

    def show(self) -> None:
        """Print the plan."""
        parts: tuple[StagePlan | Plan, ...] = (*self.stages, self)
        rows = [
            {
                "stage": getattr(part, "stage", "whole run"),
                "time": about_seconds(part.seconds),
                "peak host memory": about_bytes(part.host_bytes),
                "peak GPU memory": about_bytes(part.gpu_bytes) if self.machine.gpu_bytes else "no GPU",
                "disk by its end": about_bytes(part.disk_bytes),
            }
            for part in parts
        ]
        render_table(rows, f"Plan of {self.name}")
        print(f"from           {self.sample}")
        print(f"this machine   {self.machine}")
        if self.kept:
            print(f"measured       {self.kept}")
        print(f"rows_per_part  {self.rows_per_part:,}: {self.rows_per_part_because}")
        print(f"residency      {self.residency}: {self.residency_because}")
        print(f"handover       {self.handover}: {self.handover_because}")
        for text in self.large_tables:
            print(f"large table    {text}")
        for text in self.unknown:
            print(f"not known      {text}")
        print("verdict        it fits" if self.fits else "verdict        REFUSED: it does not fit")
        for text in self.reasons:
            print(f"because        {text}")
        for text in self.advice:
            print(f"try            {text}")


@dataclass(frozen=True)
class KeptPlans:
    """Plans of a request on this machine. key: of one; None where none may be kept: what the request cannot tell
    counts (`Request.key`), or an input file may still be changing."""

    path: Path
    key: str | None

    @classmethod
    def of(cls, request: Request, features: Any) -> KeptPlans:
        """features: checked settings of the request's recipe.

        Raises:
            DataError: where an input file is not there.
        """
        path = request.config.artifacts / PLANS
        if request.key is None:
            return cls(path, None)
        recipe = recipe_class(request.config.recipe)(features)
        inputs = recipe.inputs()
        if any("://" in name for name in inputs):
            return cls(path, None)
        # What is in the files is not read: that may take longer than the plan.
        stats = {name: Path(name).stat() for name in inputs}
        newest = max((max(stat.st_mtime_ns, stat.st_ctime_ns) for stat in stats.values()), default=0)
        if time.time_ns() - newest < SETTLED_NS:
            return cls(path, None)
        threads = {name: os.environ.get(name) for name in THREADS}
        machine = {"processor": processor(), "versions": versions(), "threads": threads}
        signed = {name: list(signature(stat)) for name, stat in stats.items()}
        asked: dict[str, Any] = {"request": request.key, "machine": machine}
        asked |= {"code": code} if (code := recipe.code()) else {}  # of installed packages' operators
        return cls(path, artifact_key("plan", signed, asked, ""))

    def find(self) -> Plan | None:
        """The plan that was kept, with the memory and disk that are free now; None where it is to be made."""
        found = None if self.key is None else self._plans.read().get(self.key)
        if not isinstance(found, dict):
            return None
        try:
            plan = Plan.from_dict(found)
        except (TypeError, LookupError, AttributeError):  # damaged
            return None
        machine, (least, most) = this_machine(self.path.parent, "cpu"), plan.holds_within or (0, 0)
        if not least <= machine.host_bytes <= most or plan.disk_bytes > machine.disk_bytes:
            return None
        moment = datetime.fromisoformat(plan.measured_utc)
        kept = f"{moment:%Y-%m-%d %H:%M} UTC, with {about_bytes(plan.machine.host_bytes)} free (--again: anew)"
        return replace(plan, machine=machine, kept=kept)

    def keep(self, plan: Plan) -> None:
        """Keep it, if what it decides is known to hold with other free memory."""
        if self.key is None or plan.holds_within is None:
            return
        self._plans.keep(self.key, plan.to_dict())

    @property
    def _plans(self) -> Remembered:
        return Remembered(self.path, MOST_PLANS, "plans are made anew", "the same plan will take as long again")
