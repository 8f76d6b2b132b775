"""Which of the package's operator files something uses, for keys of artifacts.

An operator's file counts where a step, a recipe or the encoding uses it. So a new one, or a change of one that a run
does not use, recomputes nothing of it.
"""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from gigabatch.features.operators.base import Configured
from gigabatch.own_code import sources

OPERATORS, RECIPES = "gigabatch.features.operators", "gigabatch.features.recipes"
FEATURES = Path(__file__).resolve().parents[1]
# A pattern, as parsing a hundred files takes longer than many a stage. What stands like an import in a text counts too.
IMPORT = re.compile(
    rb"(?:^|[;:])[ \t]*"
    rb"(?:from[ \t]+(gigabatch[\w.]*)[ \t]+import[ \t]*\(?((?<=\()[^)]*|[^\n;]*)|import[ \t]+([^\n;]*))",
    re.MULTILINE,
)
COMMENT = re.compile(rb"#[^\n]*")
BY_USE = ("recipes", "importers")  # folders whose own imports of operators count where they are used


def operator_code(kind: type) -> str:
    """The hash of the operator files that an operator or a recipe uses, at any depth; empty where it uses none.

    Of a class of the package, its own file and what this imports. Of a user's operator, what its files import; a class
    of a notebook, and a user's recipe, may name any operator, so all of them count.

    Examples
    --------
    >>> from gigabatch.features.operators import Clip, DateParts
    >>> len(operator_code(Clip)), operator_code(Clip) == operator_code(DateParts)
    (32, False)
    """
    if kind.__module__.startswith("gigabatch."):
        found = _used_by([f"import {kind.__module__}".encode()])
    else:
        texts = list(sources(kind).values()) if issubclass(kind, Configured) else []
        found = _used_by(texts or [f"import {OPERATORS}".encode()])
    if not found:
        return ""
    digest = hashlib.blake2b(digest_size=16)
    for module, text in sorted(found.items()):
        digest.update(f"{module}\0{len(text)}\0".encode() + text)
    return digest.hexdigest()


def without_unused(files: Iterable[Path]) -> list[Path]:
    """The files of `gigabatch.features` without the operators that neither encoding nor workflows import themselves."""
    files, operators = list(files), {path: module for module, path in _operator_files().items()}
    folders = {folder: folder.resolve() for folder in {file.parent for file in files}}  # as many files take long
    real = {file: folders[file.parent] / file.name for file in files}
    core = [
        file for file, path in real.items()
        if path not in operators and path.relative_to(FEATURES).parts[0] not in BY_USE
    ]  # fmt: skip
    used = _used_by(file.read_bytes() for file in core)
    return [file for file in files if operators.get(real[file]) in (None, *used)]


def _used_by(texts: Iterable[bytes]) -> dict[str, bytes]:
    """Operator modules, with their texts, that these sources import, also by way of recipes and of each other."""
    operators = _operator_files()
    files = _recipe_files() | operators
    found: dict[str, bytes] = {}
    left, known = list(texts), set[str]()
    while left:
        text = left.pop()
        names = set(_imported(text) if b"gigabatch" in text else ()) - known
        known |= names
        for module in {module for name in names for module in _meant(name, files, operators)} - found.keys():
            found[module] = files[module].read_bytes()
            left.append(found[module])
    return {module: text for module, text in found.items() if module in operators}


def _meant(name: str, files: dict[str, Path], operators: dict[str, Path]) -> Iterator[str]:
    """The modules that an imported name is, is in, or holds."""
    parent, _, last = name.rpartition(".")
    if last == "*" and parent not in files:
        name = parent
    if name in files or parent in files:
        yield name if name in files else parent
    elif parent == OPERATORS and last[:1].isupper():
        module = getattr(importlib.import_module(OPERATORS), last).__module__
        yield from [module] if module in operators else []
    else:  # of a whole package any operator may be taken
        yield from (module for module in operators if module.startswith(f"{name}."))


def _operator_files() -> dict[str, Path]:
    """Module -> file, of the operators and what lies beside them in the sub-folders."""
    found = (FEATURES / "operators").glob("*/[!_]*.py")
    return {f"{OPERATORS}.{path.parent.name}.{path.stem}": path for path in found}


def _recipe_files() -> dict[str, Path]:
    folder = FEATURES / "recipes"
    found = ((path, path.relative_to(folder).with_suffix("").parts) for path in folder.rglob("*.py"))
    return {".".join((RECIPES, *parts)).removesuffix(".__init__"): path for path, parts in found}


@cache
def _imported(text: bytes) -> tuple[str, ...]:
    """What a source imports of gigabatch, at any depth; `from a import b` as a.b."""
    names: list[str] = []
    for base, parts, modules in IMPORT.findall(text.replace(b"\\\n", b" ")):
        words = [item.split()[0].decode() for item in COMMENT.sub(b"", parts or modules).split(b",") if item.split()]
        names += [f"{base.decode()}.{word}" if base else word for word in words]
    return tuple(name for name in names if name.partition(".")[0] == "gigabatch")
