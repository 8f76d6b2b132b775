"""A run's folder against its manifest.json, and its model before it is promoted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gigabatch.pipeline.runs.pointers import RunError
from gigabatch.pipeline.store.artifacts import verified
from gigabatch.pipeline.store.files import ArtifactError
from gigabatch.pipeline.store.keys import BLAKE2B, file_checksum, run_id_of

WEIGHTS = "model/weights.safetensors"
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
            f"{error} Train again with its configuration (gigabatch train), which mends it, or take another run "
            "(gigabatch runs)."
        ) from error
    return manifest


def require_own(path: Path, manifest: Mapping[str, Any]) -> None:
    """Raise `ArtifactError` where a folder with a run's id for a name holds the files of another run, of which all that
    is said of the one would be told. A copy may have any other name."""
    own = run_id_of(str(manifest["key"])) if "key" in manifest else path.name
    if RUN_ID.fullmatch(path.name) and path.name != own:
        raise ArtifactError(
            f"run {path}: its files are those of another run, {own}. Move them to a folder of that name."
        )


def weights_of(path: Path) -> str:
    """What tells a run's weights from another's, the same in runs of before: blake2b. The whole run is verified."""
    verify_run(path)
    return file_checksum(path / WEIGHTS, BLAKE2B)


def require_loadable(path: Path) -> str:
    """`weights_of` a run that is whole and whose model can be loaded; `RunError` or `BundleError` where it is not."""
    from gigabatch.pipeline.bundle import load_bundle

    weights = weights_of(path)
    load_bundle(path / "model")
    return weights
