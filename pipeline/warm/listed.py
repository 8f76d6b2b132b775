"""Which loops are worth compiling ahead, as `loops.txt` lists them: with the types that runs call them with.

A line is `SECONDS KIND MODULE.FUNCTION ARGUMENTS`: seconds of one core that the compilation took where the list was
made, the kind of training that calls it (`bfloat16`, `float32`, or `any`), and the types as numba reads them. Make the
list anew with `python -m gigabatch.pipeline.warm.record` (docs/kernels.md).
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core import config, sigutils, types
from numba.core.registry import cpu_target

from gigabatch.loops import ROOT, Kept, folders, read_checked, sources

LIST = Path(__file__).with_name("loops.txt")
ROOMS = ("features", "loaders", "models", "pipeline")
KINDS = ("any", "bfloat16", "float32")


class WarmError(ValueError):
    """The loops cannot be compiled ahead."""


@dataclass(frozen=True)
class Loop:
    """A function of the package and the types of its arguments. seconds: of one core, about."""

    seconds: float
    kind: str
    name: str  # of module and function, without `gigabatch.`
    arguments: str

    def __str__(self) -> str:
        return f"{self.seconds:.1f} {self.kind} {self.name} {self.arguments}"

    @property
    def dispatcher(self) -> Any:
        """The compiled function.

        Raises:
            WarmError: where there is none of that name.
        """
        module, _, function = self.name.rpartition(".")
        try:
            found = getattr(importlib.import_module(f"gigabatch.{module}"), function)
        except (ImportError, AttributeError) as error:
            raise WarmError(f"{LIST.name}: there is no loop {self.name}. {REMAKE}") from error
        if not isinstance(getattr(found, "_cache", None), Kept):
            raise WarmError(f"{LIST.name}: {self.name} is no loop that is kept. {REMAKE}")
        return found

    @property
    def types(self) -> tuple[Any, ...]:
        """Of its arguments.

        Raises:
            WarmError: where numba does not know them.
        """
        try:
            found, _ = sigutils.normalize_signature(self.arguments)
        except Exception as error:  # of whatever kind: the text is evaluated
            raise WarmError(f"{LIST.name}: {self.name} {self.arguments}: {error}. {REMAKE}") from error
        return tuple(found)


REMAKE = "Make the list anew: python -m gigabatch.pipeline.warm.record"


def listed(kinds: Sequence[str] = KINDS, path: Path = LIST) -> list[Loop]:
    """The loops of these kinds, those that take longest first.

    Raises:
        WarmError: for a line that is none.
    """
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        parts = line.split(" ", 3)
        if len(parts) < 4 or parts[1] not in KINDS or not parts[0].replace(".", "", 1).isdigit():
            raise WarmError(f"{path.name}, line {number}: {line!r} is no loop. {REMAKE}")
        found.append(Loop(float(parts[0]), *parts[1:]))
    return sorted((loop for loop in found if loop.kind in kinds), key=lambda loop: (-loop.seconds, str(loop)))


def missing(loops: Iterable[Loop]) -> list[Loop]:
    """Those that are not on disk, whole, for this processor and these sources."""
    found = []
    for loop in loops:
        dispatcher = loop.dispatcher
        dispatcher.targetctx.refresh()
        paths = dispatcher._cache.paths(loop.types, dispatcher.targetctx.codegen())
        if all(read_checked(path) is None for path in paths):
            found.append(loop)
    return found


def files_of(loops: Iterable[Loop]) -> list[str]:
    """The names of the files that these loops are kept in, on this processor and of these sources."""
    return [loop.dispatcher._cache.file_name(loop.types, _codegen()) for loop in loops]


def record_name(loops: Iterable[Loop]) -> str:
    """The name of the file that says which files these loops are in (`files_of`). Finding that out imports the modules
    of all loops, and torch; so it is kept, by all that it follows from."""
    versions = numba.__version__, llvmlite.__version__, sys.implementation.cache_tag, config.OPT, config.BOUNDSCHECK
    code = [sources(ROOT / room) for room in ROOMS], sources(ROOT)
    told = repr((list(map(str, loops)), _codegen().magic_tuple(), versions, code))
    return f"listed-{hashlib.blake2b(told.encode(), digest_size=16).hexdigest()}.json"


def are_there(record: str) -> bool:
    """Whether there is that record, and every file that it names, whole."""
    found = _read_any(record)
    return found is not None and all(_read_any(name) is not None for name in json.loads(found))


def _read_any(name: str) -> bytes | None:
    return next((found for folder in folders() if (found := read_checked(folder / name)) is not None), None)


def _codegen() -> Any:
    return cpu_target.target_context.codegen()


def written(kind: Any) -> str:
    """A type of numba as text that numba reads.

    >>> from numba import types
    >>> written(types.Array(types.float32, 2, "C")), written(types.UniTuple(types.int64, 2))
    ('float32[:, ::1]', 'Tuple((int64, int64))')
    """
    if isinstance(kind, types.Array) and kind.aligned and kind.mutable and kind.layout in "CA":
        dimensions = [":"] * (kind.ndim - 1) + ["::1" if kind.layout == "C" else ":"]
        return f"{written(kind.dtype)}[{', '.join(dimensions)}]"
    if isinstance(kind, types.Array):
        return f"Array({written(kind.dtype)}, {kind.ndim}, {kind.layout!r}, {not kind.mutable}, aligned={kind.aligned})"
    if isinstance(kind, types.BaseTuple):
        return (
            f"Tuple(({''.join(f'{written(item)}, ' for item in kind).removesuffix(' ' if len(kind) == 1 else ', ')}))"
        )
    return "boolean" if kind == types.boolean else str(kind)
