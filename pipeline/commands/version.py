"""What `gigabatch --version` says: enough for a report of a fault."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from pathlib import Path

from gigabatch import __version__

LIBRARIES = ("torch", "pandas", "pyarrow", "numpy", "numba", "dask", "triton", "cudf-cu13", "cudf")


def version_text() -> str:
    """Version and place of this program, of Python, and of the libraries that do the work. None is imported."""
    found = ((name, _version(name)) for name in LIBRARIES)
    libraries = ", ".join(f"{name} {version}" for name, version in found if version is not None)
    return (
        f"gigabatch {__version__}\n"
        f"from      {Path(__file__).parents[2]}\n"
        f"python    {platform.python_version()} ({sys.executable}), {platform.system()} {platform.machine()}\n"
        f"libraries {libraries}"
    )


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
