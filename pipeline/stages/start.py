"""The fitted preprocessor that the encode stage starts from: `preprocess.from`, found and checked before any work."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.encoding.state import FILE
from gigabatch.features.errors import DataError
from gigabatch.features.operators.categories.categorify import Categorify
from gigabatch.features.schema import Schema
from gigabatch.features.workflow.workflow import Workflow
from gigabatch.pipeline.config.config import ConfigError, RunConfig
from gigabatch.pipeline.runs.find import find_run, home_of, run_link
from gigabatch.pipeline.runs.pointers import RunError
from gigabatch.pipeline.stages.asked import PREPROCESSOR
from gigabatch.pipeline.store.artifacts import MANIFEST, verified
from gigabatch.pipeline.store.files import ArtifactError

IMPORT_AGAIN = (
    " It is an imported workflow without a preprocessor: import it again with --schema "
    "artifacts/features/KEY/schema.json, of a features stage of this configuration."
)
AS_AT_FIRST = "Or begin anew, as the first time: preprocess.from=null."
OF_RUN = Path("model", PREPROCESSOR)


@dataclass(frozen=True)
class Start:
    """What `preprocess.from` names.

    folder: absolute, of the preprocessor. preprocessor: loaded, with the settings of the configuration. checksum: of
    its content, which is what keys of artifacts hold.
    """

    folder: Path
    preprocessor: Preprocessor
    checksum: str


def find_start(config: RunConfig, engine: str) -> Start | None:
    """Load what `preprocess.from` names, None where it is null.

    Raises
    ------
    RunError
        Where there is no such run or folder, or it is damaged.
    ConfigError
        Where its settings are not those of `preprocess`.
    """
    folder = start_folder(config)
    if folder is None:
        return None
    try:
        found = Preprocessor.load(folder, engine)
    except DataError as error:
        raise RunError(f"preprocess.from: {error} {AS_AT_FIRST}") from error
    try:
        found = found.carried_to(found.schema, config.preprocess.encoding)
    except DataError as error:  # no night refuses its data for this
        raise ConfigError(str(error)) from error
    return Start(folder, found, found.checksum)


def start_folder(config: RunConfig) -> Path | None:
    """The absolute folder of the preprocessor that `preprocess.from` names, whose files are as its manifest says."""
    name = config.preprocess.from_
    if name is None:
        return None
    link, home = run_link(config, name), home_of(config)
    path = Path(os.path.realpath(link))
    try:
        if link.parent == home or (path / OF_RUN).is_dir():
            return find_run(config, name).path / OF_RUN
        folder = next((item for item in (path, path / PREPROCESSOR) if (item / FILE).is_file()), None)
        if folder is None:
            raise RunError(
                f"{name!r} is neither a run of {home} (gigabatch runs lists them) nor the folder of a run, of an "
                f"artifact of encode or update, of an import or of a preprocessor ({path} holds no {FILE})."
                + IMPORT_AGAIN
                * (path / "workflow.json").is_file()
            )
        _verify_beside(folder)
    except (RunError, ArtifactError) as error:
        raise RunError(f"preprocess.from: {error} {AS_AT_FIRST}") from error
    return folder


def _verify_beside(folder: Path) -> None:
    """Compare a preprocessor's files with the manifest of the artifact or run that it lies in, where there is one."""
    for root in folder.parents[:2]:
        if (root / MANIFEST).is_file():
            inside = f"{folder.relative_to(root)}{os.sep}"
            verified(root, "artifact", alone=False, inside=inside)
            return


def require_lasting_values(
    workflow: Workflow | None, schema: Schema, setting: str = "preprocess.from", way_out: str = AS_AT_FIRST
) -> None:
    """Raise `ConfigError` for a categorical column whose values a step of the features stage numbers anew each night.

    The ids of a fitted `Categorify` follow the counts of its rows: the same number is another value tomorrow, which no
    vocabulary that goes on from yesterday's could know, and no model of yesterday's. setting: whose message begins with
    it. way_out: its last sentence.
    """
    numbered: set[str] = set()
    for step in workflow.steps if workflow is not None else ():
        is_fitted = isinstance(step, Categorify) and step.vocabulary is None
        if is_fitted or numbered.intersection(step.inputs):
            numbered.update(step.outputs)
        else:
            numbered.difference_update(step.outputs)
    found = [name for name in schema.names("categorical") if name in numbered]
    if found:
        raise ConfigError(
            f"{setting}: categorify in features.steps numbers {', '.join(map(repr, found))} anew in each "
            "features stage, so yesterday's ids would stand for other values. Leave the step out (the encode stage "
            "numbers columns itself), take hashed_cross for a combination, or give it a vocabulary. "
            f"{way_out}"
        )


def start_of_manifest(path: Path) -> str | None:
    """The key under which an encode artifact's rows would be found by a growth of its own preprocessor."""
    try:
        found = json.loads((path / MANIFEST).read_text()).get("same_as")
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, str) else None
