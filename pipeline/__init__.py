"""Stages and what runs them. `from pipeline import Pipeline` is the way in from Python."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.bundle import load_bundle
    from pipeline.stages import Pipeline

__all__ = ["Pipeline", "load_bundle"]


def __getattr__(name: str) -> Any:
    """Imports torch and pandas only when they are needed, so that `gigabatch --help` answers at once."""
    if name == "Pipeline":
        from pipeline.stages import Pipeline

        return Pipeline
    if name == "load_bundle":
        from pipeline.bundle import load_bundle

        return load_bundle
    raise AttributeError(f"module 'pipeline' has no attribute {name!r}")
