"""Which formats an export is asked for, checked before torch is imported."""

from __future__ import annotations

from collections.abc import Sequence

KNOWN = ("torch", "onnx_rows")  # what `export.py` writes
FORMER = {
    "aoti": "Take torch, whose model.pt2 torch._inductor.aoti_compile_and_package compiles (docs/export.md).",
    "onnx": "Take onnx_rows, which begins at rows and also gives ids and floats, or torch for the model alone.",
}


class ExportError(ValueError):
    """A model or its preprocessing cannot be exported, or the exported file does not give the same; says why."""


def format_names(text: str) -> list[str]:
    """The formats of a list that is separated by commas; `ExportError` for none and for unknown ones."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    require_formats(names)
    return names


def require_formats(names: Sequence[str]) -> None:
    """Raise `ExportError` for no format and for unknown ones."""
    for name in names:
        if name in FORMER:
            raise ExportError(f"format {name} is written no more. {FORMER[name]}")
    unknown = [name for name in names if name not in KNOWN]
    if unknown or not names:
        raise ExportError(f"unknown format {', '.join(unknown) or '(none)'}. Known: {', '.join(KNOWN)}.")
