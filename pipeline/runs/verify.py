"""A run's folder against its manifest.json, and its model before it is promoted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gigabatch.pipeline.runs.pointers import RunError
from gigabatch.pipeline.store.artifacts import verified
from gigabatch.pipeline.store.files import ArtifactError
from gigabatch.pipeline.store.keys import BLAKE2B, file_checksum

WEIGHTS = "model/weights.safetensors"


def verify_run(path: Path) -> dict[str, Any]:
    """The manifest of a run whose files are as it says; `RunError` names the first that is not.

    What others add to the folder (evaluations, scores, stored vectors, exports) does not matter.
    """
    try:
        manifest = verified(path, "run", alone=False)
        if WEIGHTS not in manifest["files"]:
            raise ArtifactError(f"run {path}: its manifest names no {WEIGHTS}.")
    except ArtifactError as error:
        raise RunError(
            f"{error} Train again with its configuration (gigabatch train), which mends it, or take another run "
            "(gigabatch runs)."
        ) from error
    return manifest


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
