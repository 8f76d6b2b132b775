"""A run's folder against its manifest.json, and its model before it is promoted."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gigabatch.pipeline.runs.pointers import RunError
from gigabatch.pipeline.store.artifacts import verified
from gigabatch.pipeline.store.files import ArtifactError
from gigabatch.pipeline.store.keys import ALL, BLAKE2B, artifact_key, file_checksum, run_id_of, source_hash, versions

WEIGHTS = "model/weights.safetensors"
LOADED_BY = "loaded_by"  # of a run's manifest
RUN_ID = re.compile(r"[0-9a-f]{12}")


def verify_run(path: Path) -> dict[str, Any]:
    """The manifest of a run whose files are as it says; `RunError` names the first that is not.

    What others add to the folder (evaluations, scores, stored vectors, exports) does not matter.
    """
    try:
        manifest = verified(path, "run", alone=False)
        if WEIGHTS not in manifest["files"]:
            raise ArtifactError(f"run {path}: its manifest names no {WEIGHTS}.")
        require_own(path, manifest)
    except ArtifactError as error:
        raise RunError(
            f"{error} Put it back from a backup, or take another run (gigabatch runs). With its configuration "
            "gigabatch train mends a run that it made, none of a night."
        ) from error
    return manifest


def is_of_another(path: Path, own: str) -> bool:
    """Whether a folder has a run's id for a name, and the files in it are those of another run, `own`."""
    return RUN_ID.fullmatch(path.name) is not None and path.name != own


def require_own(path: Path, manifest: Mapping[str, Any]) -> None:
    """Raise `ArtifactError` where a folder with a run's id for a name holds the files of another run, of which all that
    is said of the one would be told. A copy may have any other name."""
    own = run_id_of(str(manifest["key"])) if "key" in manifest else path.name
    if is_of_another(path, own):
        raise ArtifactError(
            f"run {path}: its files are those of another run, {own}. Move them to a folder of that name."
        )


def weights_of(path: Path) -> str:
    """What tells a run's weights from another's, the same in runs of before: blake2b. The whole run is verified."""
    verify_run(path)
    return _weights(path)


def _has_own_code(path: Path) -> bool:
    """Of a run that is whole; also where its bundle does not tell, of which `load_bundle` says what is wrong."""
    try:
        return bool(json.loads((path / "model" / "bundle.json").read_text()).get("own_code"))
    except (OSError, ValueError, AttributeError):
        return True


def _weights(path: Path) -> str:
    return file_checksum(path / WEIGHTS, BLAKE2B)


def loaded_by() -> dict[str, Any]:
    """What the manifest of a run says of its evaluation, which loads the model: by which sources and libraries."""
    return {LOADED_BY: artifact_key("load", {}, versions(), source_hash([*ALL, "gigabatch.features.operators"]))}


def require_loadable(path: Path) -> str:
    """`weights_of` a run that is whole and whose model can be loaded; `RunError` or `BundleError` where it is not.

    One that the same sources and libraries have loaded before is not loaded again, which would import torch; a user's
    own code, which may be gone, is.
    """
    manifest = verify_run(path)
    if manifest.get(LOADED_BY) != loaded_by()[LOADED_BY] or _has_own_code(path):
        from gigabatch.pipeline.bundle import load_bundle

        load_bundle(path / "model")
    return _weights(path)
