"""What a command is asked for, and whether it is there already: found without torch and the model.

A run follows from the rows of its features stage, the configuration, the sources and the device. So where a training
has come to its end, its request, which is all of that but the rows, is kept with the id of the run. The same request
over the same rows is that run, whose artifacts are checked as ever, and no configuration is checked twice.
"""

from __future__ import annotations

import glob
import importlib.metadata
import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gigabatch.features.columns.lists import is_list_type
from gigabatch.features.columns.zones import is_time_zone, zone_rules
from gigabatch.features.encoding.state import FILE
from gigabatch.features.engines.frame import resolve_engine
from gigabatch.features.errors import DataError
from gigabatch.features.operators.sources import operator_code
from gigabatch.features.reading.sources import expand, same_file
from gigabatch.features.recipes import OWN, RECIPES, recipe_class
from gigabatch.features.recipes.base import Recipe
from gigabatch.models.shelf import MODELS
from gigabatch.pipeline.config.config import RunConfig, plain_settings, recipe_settings
from gigabatch.pipeline.contract.state import FilesState, obey
from gigabatch.pipeline.display import STAGES
from gigabatch.pipeline.launched import launched_ranks
from gigabatch.pipeline.runs.find import FoundRun, find_run, home_of, run_link
from gigabatch.pipeline.runs.pointers import LATEST, RunError, read_pointers
from gigabatch.pipeline.stages.finished import (
    SHOWN_METRICS,
    SPLITS,
    Run,
    evaluation_parts,
    metric_rows,
    read_json_lines,
    show_parts,
)
from gigabatch.pipeline.store.artifacts import MANIFEST, Artifact, ArtifactStore, artifacts_newest_first, tell_found
from gigabatch.pipeline.store.files import atomic_symlink, write_json
from gigabatch.pipeline.store.keys import ALL, artifact_key, file_checksum, input_checksums, run_id_of, source_hash
from gigabatch.pipeline.store.leases import Lease
from gigabatch.pipeline.store.remembered import Remembered

log = logging.getLogger(__name__)
FEATURES = ["gigabatch.features"]  # sources of the features stage
EVALUATION = "evaluation.json"  # in the folder of an evaluation: what it is of
WRITTEN = ("summary.json", "report.html")  # of an evaluation
PREPROCESSOR = "preprocessor"  # folder in an artifact of encode and of update
UPDATE = "update"  # the stage
MOST_NAMED = 5  # folders, in a message
REQUESTS = "requests.json"  # in the folder of artifacts
MOST_REQUESTS = 1_000
MADE_FROM = "made_from"  # of a run's manifest: keys of the artifacts before it, by stage
# What torch finds a GPU by: with the same of these, `device: auto` is the same.
DEVICES = ("/dev/nvidia*", "/dev/dxg", "/dev/kfd")
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "PYTORCH_NVML_BASED_CUDA_CHECK")


@dataclass(frozen=True)
class AskedFeatures:
    """What the features stage is asked for.

    recipe: with what is to be left out. key: of the artifact. named: the settings that it is made of. inputs,
    checksums: the raw files, and what is in them.
    """

    recipe: Recipe
    key: str
    named: dict[str, Any]
    inputs: list[str]
    checksums: dict[str, str]


def ask_features(config: RunConfig, engine: str, root: Path, files: FilesState | None = None) -> AskedFeatures:
    """The key of the features stage. config: with checked settings of the recipe; root: folder of artifacts; files:
    see `Pipeline.features`."""
    kind = recipe_class(config.recipe)
    recipe = kind(config.features)
    obey(config.runs / config.name, recipe, root, files)
    settings = plain_settings(config.features)
    if not settings.get("lists") and not any(map(is_list_type, (settings.get("inputs") or {}).values())):
        # keys are those of before there were lists
        settings = {name: value for name, value in settings.items() if name not in ("lists", "list_separator")}
    if settings.get("history") is None:  # nor histories
        settings.pop("history", None)
    settings.pop("path", None)  # where the files lie does not matter, what is in them does
    own, operators = OWN.code(config.recipe), operator_code(kind)
    code = recipe.code() | ({"recipe": own} if own else {}) | ({"operators": operators} if operators else {})
    named = {"recipe": config.recipe, "features": settings, "engine": engine} | ({"code": code} if code else {})
    # Local times are other ones by another version of the time zone database.
    named |= {"zones": {zone: zone_rules(zone) for zone in zones}} if (zones := sorted(_zones(settings))) else {}
    inputs = recipe.inputs()
    checksums = input_checksums(inputs, root)
    # By the place of the file, as files of several folders may have one name.
    places = {same_file(path): place for place, path in enumerate(inputs)}
    without = sorted((places[path], list(rows)) for path, rows in recipe.without.items() if path in places)
    splits = recipe.inputs_by_split()
    asked = named | ({"without": without} if without else {}) | ({"splits": splits} if splits else {})
    return AskedFeatures(
        recipe, artifact_key("features", checksums, asked, source_hash(FEATURES)), named, inputs, checksums
    )


def require_inputs(config: RunConfig) -> None:
    """Raise `DataError` where a file that the features stage would read is not there. config: as of `ask_features`."""
    recipe = recipe_class(config.recipe)(config.features)
    obey(config.runs / config.name, recipe, config.artifacts)
    recipe.inputs()


def require_score(raw: str | None, split: str | None, out: Path | None, history: str | None = None) -> None:
    """Raise what is wrong with what `gigabatch score` is asked for, before a model is loaded."""
    if history is not None and raw is None:
        raise RunError("score: --history goes with --input; a split has its history.")
    if raw is not None and split is not None:
        raise RunError("score: give either --input or --split, not both.")
    if out is not None:
        require_table(out)
    for files in (raw, history):
        if files is not None:
            expand(files)


def require_update(data: str, run: str | Path | None, preprocessor: Path | None) -> None:
    """Raise what is wrong with what `gigabatch update` is asked for, before a preprocessor is loaded."""
    if run is not None and preprocessor is not None:
        raise RunError("update: give either --run or --preprocessor, not both.")
    expand(data)


def require_preprocessor(folder: Path, artifacts: Path) -> None:
    """Raise `RunError`, which names those that updates have made, where `folder` holds no preprocessor."""
    if (folder / FILE).is_file():
        return
    updates = artifacts / UPDATE
    made = [str(path / PREPROCESSOR) for path in artifacts_newest_first(updates)] if updates.is_dir() else []
    raise RunError(
        f"update: there is no preprocessor in {folder} (no {FILE}). Updates so far, the newest first: "
        f"{', '.join(made[:MOST_NAMED]) or 'none'}{', ...' * (len(made) > MOST_NAMED)}. That of a run: --run ID "
        "(gigabatch runs lists them)."
    )


def require_split(split: str, known: Iterable[str]) -> None:
    """Raise `DataError` for a split that is none of those that are known."""
    if split not in known:
        raise DataError(f"split {split!r} does not exist. Known: {', '.join(known)}.")


def require_table(path: Path) -> None:
    """Raise `DataError` for a file that rows cannot be written to."""
    if path.suffix not in (".csv", ".parquet"):
        raise DataError(f"output {path}: unknown ending. Known: .csv, .parquet.")


def _zones(settings: Any) -> set[str]:
    """The time zones that settings name, at any depth. A column may be named zone, of which other words are said."""
    if isinstance(settings, dict):
        said = settings.get("zone")
        own = {said} if isinstance(said, str) and is_time_zone(said) else set()
        return own.union(*map(_zones, settings.values()))
    return set().union(*map(_zones, settings)) if isinstance(settings, list | tuple) else set()


@dataclass(frozen=True)
class Request:
    """A configuration as a command is given it, and what is there for it.

    config: not checked as a whole (`load_config`), since that imports the model. key: of all that a run follows from
    but its rows; None where more counts than that: runs that are gone on from, code of the user, several ranks, other
    tools that are told.
    """

    config: RunConfig
    key: str | None

    @classmethod
    def of(cls, config: RunConfig) -> Request:
        """Of the sources and the machine as they are now, before any work."""
        model = config.model.get("kind", "tabular") if isinstance(config.model, dict) else None
        more = (
            config.imports, config.preprocess.from_, config.train.start_from, config.train.codistill,
            config.track.mlflow, config.track.tensorboard, launched_ranks()[1] > 1,
        )  # fmt: skip
        if any(more) or model not in MODELS or config.recipe not in RECIPES:
            return cls(config, None)
        device = {
            "torch": importlib.metadata.version("torch"),
            "there": sorted(path for pattern in DEVICES for path in glob.glob(pattern)),
            "visible": {name: os.environ.get(name) for name in VISIBLE},
        }
        # Whether a setting was given counts, too: others may follow from that. JSON has one null for null and infinity.
        given = {"given": repr(config.model_dump(by_alias=True, exclude_unset=True))}
        return cls(config, artifact_key("request", {"device": device}, given, source_hash(ALL)))

    def remember(self, run: Run | None = None) -> None:
        """Keep that the configuration can be used, and the run that it has led to."""
        if self.key is not None:
            self._requests.keep(self.key, None if run is None else run.path.name, only_new=run is None)

    def features(self) -> Artifact | None:
        """The artifact that the features stage finds; None where it is to be made, or the configuration to be checked
        first."""
        if self.key not in self._known():
            return None
        found = ArtifactStore(self.config.artifacts, self.config.name).find("features", self.features_key())
        if found is not None:
            tell_found("features", found)
        return found

    def require_split(self, split: str | None) -> None:
        """Raise `DataError` where the features stage is there, and has no such split."""
        if split is None or split in SPLITS or self.key not in self._known():
            return
        found = ArtifactStore(self.config.artifacts, self.config.name).find("features", self.features_key())
        if found is not None:
            require_split(split, found.manifest["rows"])

    def run(self) -> Run | None:
        """The run that a training finds, with its links in place; None where a stage is to be run, or the configuration
        to be checked first."""
        config, run_id = self.config, self._known().get(self.key)
        home = home_of(config)
        # Where none is current this one would become it, whose model is loaded first.
        if run_id is None or read_pointers(home).current is None:
            return None
        keys = _made_from(home / run_id)
        if keys is None or run_id_of(keys["evaluate"]) != run_id or keys["features"] != self.features_key():
            return None
        store, lease = ArtifactStore(config.artifacts, config.name), Lease(config.runs)
        lease.add(f"{config.name}/{run_id}")
        found = {stage: artifact for stage in STAGES if (artifact := store.find(stage, keys[stage])) is not None}
        if len(found) < len(STAGES):
            return None
        for stage, artifact in found.items():
            tell_found(stage, artifact)
        store.copy(found["evaluate"], home / run_id)
        atomic_symlink(Path(run_id), home / LATEST)
        return Run(home / run_id, STAGES)

    def evaluation(self, run: str | None, split: str, out: Path | None) -> Evaluation | None:
        """What `gigabatch evaluate` of the same run, rows and configuration has written; None where it has not."""
        folder = evaluation_folder(Path(os.path.realpath(run_link(self.config, run))), split, out)
        try:
            kept = json.loads((folder / EVALUATION).read_text())
        except (OSError, ValueError, RecursionError):
            return None
        if self.key is None or not isinstance(kept, dict) or kept.get("request") != self.key:
            return None
        used, key = find_run(self.config, run), self.features_key()
        features = ArtifactStore(self.config.artifacts, self.config.name).find("features", key)
        there = {path.name: file_checksum(path) for path in map(folder.joinpath, WRITTEN) if path.is_file()}
        if features is None or kept != self._evaluation(used, key, split, there):
            return None
        tell_found("features", features)
        summary = read_json_lines(folder / "summary.json", lines=False)[0]
        return Evaluation(summary, folder, used, there)

    def remember_evaluation(self, made: Evaluation, features_key: str, split: str) -> None:
        """Keep beside an evaluation what it is of."""
        write_json(made.folder / EVALUATION, self._evaluation(made.used, features_key, split, made.files))

    def _evaluation(self, used: FoundRun, features_key: str, split: str, files: Mapping[str, str]) -> dict[str, Any]:
        return {
            "request": self.key,
            "features": features_key,
            "run": file_checksum(used.path / MANIFEST),
            "states": list(used.states),
            "split": split,
            "files": dict(files),
        }

    def features_key(self) -> str:
        config = self.config
        settings = recipe_settings(config.recipe, config.features)
        checked = config.model_copy(update={"features": settings})
        return ask_features(checked, resolve_engine(config.engine), config.artifacts).key

    @property
    def _requests(self) -> Remembered:
        longer = "the next command of each configuration takes longer", "the same command will take longer"
        return Remembered(self.config.artifacts / REQUESTS, MOST_REQUESTS, *longer)

    def _known(self) -> dict[str | None, str | None]:
        """The run's id by the key of a request, those that were made last at the end."""
        return {key: None if run is None else str(run) for key, run in self._requests.read().items()}


@dataclass(frozen=True)
class Evaluation:
    """A finished run's evaluation on a split.

    summary: what summary.json holds. files: checksums of what this evaluation wrote in `folder`, by name; another
    command may have written there since.
    """

    summary: dict[str, Any]
    folder: Path
    used: FoundRun
    files: Mapping[str, str]

    def show(self, name: str, split: str) -> None:
        """Print it. name: of the configuration."""
        headline = {metric: self.summary[metric] for metric in SHOWN_METRICS if metric in self.summary}
        shown = metric_rows({"metrics": {split: headline}, "targets": {split: self.summary["targets"]}})
        shown = [{"split": split, "rows": self.summary["rows"]} | row for row in shown]
        show_parts(evaluation_parts(self.summary, shown, f"{name}, {self.used}", split))
        print(f"report  {self.folder / 'report.html'}")


def evaluation_folder(run: Path, split: str, out: Path | None) -> Path:
    """Where an evaluation is written. out: as it is given, or None."""
    return out or run / f"evaluation-{split}"


def _made_from(run: Path) -> dict[str, str] | None:
    """The keys of a run's artifacts by stage; None where its manifest does not tell."""
    try:
        manifest = json.loads((run / MANIFEST).read_text())
        keys = {stage: str(manifest[MADE_FROM][stage]) for stage in STAGES if stage != "evaluate"}
        return keys | {"evaluate": str(manifest["key"])}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):  # damaged, which is mended where it is made
        return None
