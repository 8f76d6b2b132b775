"""This Python with a few of its installed distributions and no other: what an offline box has.

A folder of links stands in the place of site-packages (`python -S`), so that neither an import nor the metadata finds
anything else.
"""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
BARE = ("torch", "triton", "numpy", "pandas", "pyarrow", "numba", "pytest")


def with_needs(names: tuple[str, ...]) -> dict[str, metadata.Distribution]:
    """These distributions, those that they need here, and those that these need. One that is not here is left out."""
    found: dict[str, metadata.Distribution] = {}
    pending = list(names)
    while pending:
        name = pending.pop().lower().replace("_", "-")
        if name in found:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        for text in found[name].requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                pending.append(requirement.name)
    return found


class BarePython:
    """Runs this Python with `names` and what they need, from the root of the tree."""

    def __init__(self, folder: Path, names: tuple[str, ...] = BARE) -> None:
        self.site = folder / "site"
        self.site.mkdir()
        for distribution in with_needs(names).values():
            for part in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "bin")}:
                link, target = self.site / part, Path(str(distribution.locate_file(part)))
                if target.exists() and not link.is_symlink() and part != "__pycache__":
                    link.symlink_to(target)

    def __call__(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        settings = {"PYTHONPATH": f"{self.site}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"} | environment
        # A module that fails for want of a package is run again for each file that imports it: compiled once.
        settings["PYTHONDONTWRITEBYTECODE"] = ""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV_"))}
        return subprocess.run(
            [sys.executable, "-S", *arguments],
            env=kept | settings,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=500,
        )
