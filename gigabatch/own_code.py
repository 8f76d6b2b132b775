"""Code of users: files and modules that a configuration imports, what they register, and hashes of their sources.

Operators, recipes and models each have a `Registry`, beside the package's own. A file is run under a module name that
follows from its whole path, so that two files of one base name are two modules and none hides an installed package. It
is run again where its text, that of a file before it or that of a base class has changed. This module imports the
standard library alone, but for the hash of a notebook's class.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import itertools
import os
import re
import sys
import sysconfig
import threading
import traceback
import types
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

PREFIX = "gigabatch_own"
NAME = re.compile("[a-z][a-z0-9_]*")
INSTALLED = tuple(sysconfig.get_path(kind) for kind in ("purelib", "platlib", "stdlib", "platstdlib"))
Kind = TypeVar("Kind", bound=type)

_LOCK = threading.RLock()
_RUNNING: list[str] = []  # modules of files that are being run, the outermost first
_HOMES: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()  # class -> the module that registered it
_TEXTS: dict[str, bytes] = {}  # path -> the text that was run
_COUNTER = itertools.count(1)
_RAN: dict[str, int] = {}  # module of a file -> when it ran last
_RAN_AGAIN: dict[str, int] = {}  # module of a file -> when it took the place of what it was
_STALE: set[str] = set()  # modules of files with a class whose base is another by now


class OwnCodeError(ValueError):
    """A file or module of the user cannot be imported, or is not the one it was; the message names it."""


@dataclass
class Registry:
    """What users have registered of one kind, by name.

    Parameters
    ----------
    what
        `operator`, `recipe` or `model`; entry points are of the group `gigabatch.<what>s`.
    error
        What is raised for a name or a class that cannot be registered.
    taken
        The package's own names, which no other class may have.
    obstacle
        Why a class cannot be registered, or None where it can.
    """

    what: str
    error: type[ValueError]
    taken: Callable[[], Collection[str]]
    obstacle: Callable[[type], str | None]
    kinds: dict[str, Any] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)  # name -> why it is registered no more

    def __post_init__(self) -> None:
        REGISTRIES[self.what] = self

    def decorator(self, name: str) -> Callable[[Kind], Kind]:
        """Registers the class that it is given, which it returns."""

        def registered(kind: Kind) -> Kind:
            self.register(name, kind)
            return kind

        return registered

    def register(self, name: str, kind: Any, home: str | None = None) -> None:
        """Make the class known by this name. A class of the same module and name, as of a notebook's cell that runs
        again, takes the place of the earlier one. `home` is the module to import for it: if not given, the one that
        is being run."""
        where = f"register_{self.what} {name!r}"
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise self.error(f"{where}: a name is lower-case letters, digits and _, and begins with a letter.")
        if name in self.taken():
            raise self.error(f"{where}: gigabatch has {_article(self.what)} of this name. Choose another.")
        if not isinstance(kind, type):
            raise self.error(f"{where}: expected a class, found {kind!r:.80}.")
        if (obstacle := self.obstacle(kind)) is not None:
            raise self.error(f"{where}: {kind.__qualname__} {obstacle}")
        home = home or running_module() or kind.__module__
        known = self.kinds.get(name)
        if known is not None and _place(known) != _place(kind):
            raise self.error(f"{where}: {_place(known)} has this name. Choose another for {_place(kind)}.")
        if known is not None and known is not kind and _HOMES[known] != home:
            raise self.error(f"{where}: {_path_of(_HOMES[known])} has registered one. Choose another name.")
        if (other := self.name_of(kind)) not in (None, name):
            raise self.error(f"{where}: {_place(kind)} is registered as {other!r} already. A class has one name.")
        if known is not kind:
            came_from(kind, home)
        try:
            sources(kind)
        except OwnCodeError as error:
            raise self.error(f"{where}: {error}") from error
        self.kinds[name] = kind
        self.lost.pop(name, None)

    def find(self, name: str) -> Any:
        """The class of that name, registered or an entry point of an installed package; None where there is none. One
        that was registered and is no more is an error that says why."""
        kind = self.known(name)
        if kind is None and name in self.lost:
            raise self.error(f"{self.what} {name!r}: {self.lost[name]}")
        return kind

    def known(self, name: str) -> Any:
        """As `find`, but None for one that is registered no more."""
        if name in self.kinds:
            return self.kinds[name]
        found = {item.value: item for item in self._entry_points() if item.name == name}
        if not found:
            return None
        if len(found) > 1:
            owners = ", ".join(sorted(f"{item.dist.name} ({value})" for value, item in found.items()))
            raise self.error(f"{self.what} {name!r}: several installed packages have one of this name: {owners}.")
        ((value, item),) = found.items()
        try:
            kind = item.load()
        except (Exception, SystemExit) as error:  # whatever anyone's module raises
            raise self.error(
                f"{self.what} {name!r}: the entry point {value} of {item.dist.name} cannot be loaded: {_last(error)}."
            ) from error
        self.register(name, kind, item.module)
        return kind

    def name_of(self, kind: type) -> str | None:
        """What the class was registered as."""
        return next((name for name, known in self.kinds.items() if known is kind), None)

    def names(self) -> list[str]:
        """Every name that `find` knows, sorted; no entry point is loaded."""
        return sorted({*self.kinds, *(item.name for item in self._entry_points())})

    def code(self, name: str) -> str:
        """The hash of the sources of the user's class of that name, for keys; empty for one of the package's own."""
        return "" if name in self.taken() or (kind := self.find(name)) is None else code_hash(kind)

    def _entry_points(self) -> Any:
        import importlib.metadata  # 30 ms, for names that are unknown alone

        return importlib.metadata.entry_points(group=f"gigabatch.{self.what}s")


REGISTRIES: dict[str, Registry] = {}


def _article(what: str) -> str:
    return f"an {what}" if what[0] in "aeiou" else f"a {what}"


def obstacle_of(kind: type, base: type, what: str, home: str, section: str) -> str | None:
    """Why a class is no recipe or model that a configuration can set, or None. home: where users import `base` from;
    section: of the configuration, whose settings `Settings` holds."""
    if not issubclass(kind, base):
        return f"is no {what}. Derive it from {home}."
    if not is_dataclass(getattr(kind, "Settings", None)):
        return f"has no `Settings`. Give it a frozen dataclass of what `{section}` of a configuration may set."
    return None


def came_from(kind: Any, home: str) -> None:
    """Remember which module registered something: where that runs again, `_forget` takes it back."""
    _HOMES[kind] = home


def _place(kind: Any) -> str:
    """Where a class or a registered function is defined: file or module, and name."""
    found = kind if isinstance(kind, type) else kind.function
    name = getattr(found, "__qualname__", type(found).__qualname__)
    return f"{_path_of(getattr(found, '__module__', None) or '__main__')}:{name}"


def _path_of(module: str) -> str:
    """What `imports` call a module: the path of a file that is run by its path, and the name of any other."""
    return (_file_of(module) or module) if module.startswith(PREFIX) else module


def running_module() -> str | None:
    """The module whose own lines are being run, such as the file that calls a function which registers a class; None
    where these are text that a host runs (execnet's workers), which nothing can import."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    name = None if frame is None else frame.f_globals.get("__name__")
    return name if name in sys.modules else None


def located(imports: Any, folder: Path) -> Any:
    """`imports` of a configuration with files as whole paths; what is no list of texts is left as it is."""
    if not isinstance(imports, list | tuple):
        return imports
    return [os.path.abspath(folder / item) if _is_file(item) else item for item in imports]


def _is_file(item: Any) -> bool:
    return isinstance(item, str) and item.endswith(".py")


def import_all(imports: Any) -> tuple[str, ...]:
    """Import each file (`*.py`, from the working folder) and module; returns them with files as whole paths.

    A file that was imported is run again only if its text, or that of a file before it, has changed since it ran.

    Raises
    ------
    OwnCodeError
        What is there is no list of texts, a file or module is not there, or it raises; the message names the file, the
        line and the last line of the traceback.
    """
    found = located(imports, Path())
    if not isinstance(found, list) or not all(isinstance(item, str) and item for item in found):
        raise OwnCodeError(f"imports: expected a list of files (*.py) and names of modules, found {imports!r:.200}.")
    with _LOCK:
        again = 0  # a later file may have taken something of the earlier one
        for item in found:
            if _is_file(item):
                again = max(again, _import_file(item, again))
            else:
                _import_module(item)
    return tuple(found)


def _import_module(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:  # whatever anyone's module raises
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise OwnCodeError(
                f"imports: there is no module {name!r} (Python looks in the installed packages and PYTHONPATH). The "
                "name of a file ends in .py."
            ) from error
        raise OwnCodeError(f"imports: module {name} cannot be imported: {_last(error)}.") from error
    if module.__file__ is not None:
        _require_fresh(name)


def _import_file(path: str, again: int) -> int:
    """Run a file unless it was since the time `again`. Returns when it was run again last, 0 if never."""
    name = _module_name(path)
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        beside = sorted(item.name for item in Path(path).parent.glob("*.py"))
        raise OwnCodeError(
            f"imports: {path} cannot be read ({error.strerror}). Files there: {', '.join(beside) or 'none'}."
        ) from error
    if name in _RUNNING:
        raise OwnCodeError(
            f"imports: {path} is being imported already, and asks for itself. A file that is imported loads no "
            "configuration that imports it."
        )
    fresh = name in sys.modules and name not in _STALE and _RAN.get(name, 0) >= again
    if fresh and _TEXTS.get(path) == text:
        _require_fresh(name)
        return _RAN_AGAIN.get(name, 0)
    _RAN[name] = next(_COUNTER)
    if path in _TEXTS:
        _RAN_AGAIN[name] = _RAN[name]
    _STALE.discard(name)
    _leave_derived(name)
    gone = _forget(name)
    module = types.ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module
    _TEXTS[path] = text
    _RUNNING.append(name)
    try:
        exec(compile(text, path, "exec", dont_inherit=True), vars(module))
        _require_fresh(name)
    except (Exception, SystemExit) as error:  # whatever anyone's file raises
        gone += _forget(name)
        why = f"{path} cannot be imported: {_last(error, path)}."
        for registry, lost in gone:
            registry.lost[lost] = f"{why} Mend it, and load the configuration again."
        raise OwnCodeError(f"imports: {why}") from error
    finally:
        _RUNNING.remove(name)
    return _RAN_AGAIN.get(name, 0)


def _leave_derived(name: str) -> None:
    """Take back classes of other modules that derive from one of a file which is run again, until those run too."""
    for registry in REGISTRIES.values():
        for known, kind in list(registry.kinds.items()):
            home = _HOMES[kind]
            if home == name or not isinstance(kind, type) or all(base.__module__ != name for base in kind.__mro__):
                continue
            registry.kinds = {other: found for other, found in registry.kinds.items() if other != known}
            remedy = "Run its cell again." if home == "__main__" else "Start Python anew."
            if home.startswith(PREFIX):
                _STALE.add(home)
                remedy = f"Load a configuration that imports {_path_of(home)} again."
            registry.lost[known] = f"{_path_of(name)}, of which it has its base class, has run again. {remedy}"


def _require_fresh(name: str) -> None:
    """Remember the sources of a module as they were run; `OwnCodeError` where one has changed since."""
    for path, text in _texts(name).items():
        if Path(path).read_bytes() != text:
            raise OwnCodeError(f"imports: {path} has changed since {name} imported it. Start Python anew.")


def _module_name(path: str) -> str:
    digest = hashlib.blake2b(path.encode(), digest_size=6).hexdigest()
    return f"{PREFIX}_{re.sub(r'[^A-Za-z0-9]', '_', Path(path).stem)}_{digest}"


def _forget(name: str) -> list[tuple[Registry, str]]:
    """Take back what a module has registered, which is returned, and the module."""
    gone = []
    for registry in REGISTRIES.values():
        gone += [(registry, known) for known, kind in registry.kinds.items() if _HOMES[kind] == name]
        registry.kinds = {known: kind for known, kind in registry.kinds.items() if _HOMES[kind] != name}
    sys.modules.pop(name, None)
    return gone


def _last(error: BaseException, path: str | None = None) -> str:
    """The last line of the error's traceback, and the line of the file (any, if no path is given) that it is about."""
    text = traceback.format_exception_only(error)[-1].strip().removesuffix(".")
    frames = [(item.filename, item.lineno) for item in traceback.extract_tb(error.__traceback__)]
    frames += [(error.filename or "", error.lineno)] if isinstance(error, SyntaxError) else []
    lines = [item for item in frames if item[0] == path] if path else frames[-1:]
    return f"{lines[-1][0]}, line {lines[-1][1]}: {text}" if lines else text


def code_hash(kind: Any, to_the_letter: bool = False) -> str:
    """32 hex digits of the sources of a user's class or registered function, wherever they lie (see `sources`), as code
    (see `code_in`) or to the letter; of one of a notebook, of what it computes."""
    modules = _modules_of(kind)
    if None in modules.values():
        from gigabatch.features.operators.rows.fingerprint import function_hash  # not for files: it imports the package

        return function_hash(kind if isinstance(kind, type) else kind.function, _place(kind))
    return _digest(_labelled({name: file for name, file in modules.items() if file is not None}), to_the_letter)


def _modules_of(kind: Any) -> dict[str, str | None]:
    """Files of the modules that a class, its own bases and their registrations follow from, or that registered a
    function; None for a notebook."""
    if isinstance(kind, type):
        own = [kind, *(base for base in kind.__mro__ if _is_own(base.__module__, kind.__module__.partition(".")[0]))]
        names = {name for base in own for name in (base.__module__, _HOMES.get(base, base.__module__))}
    else:
        names = {_HOMES[kind]}
    found: dict[str, str | None] = {}
    for name in names:
        found |= {name: _file_of(name)} | _modules(name)
    for name, file in found.items():
        if file is None and name != "__main__":  # what `function_hash` takes for one of Python's own
            raise OwnCodeError(
                f"module {name} of {_place(kind).rpartition(':')[2]} has no file, so a change of it would go unseen. "
                "Write the class to a file and name that under `imports` of the configuration."
            )
    return found


def _labelled(modules: Mapping[str, str]) -> dict[str, bytes]:
    """The texts of modules (name -> file) by what stays the same wherever they lie: the name of a module; of a file
    that is run by its path, this path from the folder that all such files share."""
    run = {name: file for name, file in modules.items() if name.startswith(PREFIX) or name == "__main__"}
    folder = os.path.commonpath([os.path.dirname(file) for file in run.values()]) if run else ""
    return {os.path.relpath(run[name], folder) if name in run else name: _text_of(modules[name]) for name in modules}


def _digest(texts: Mapping[str, bytes], to_the_letter: bool = False) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, text in sorted(texts.items()):
        text = text if to_the_letter else code_in(text)
        digest.update(f"{name}\0{len(text)}\0".encode() + text)
    return digest.hexdigest()


def code_in(text: bytes) -> bytes:
    """What a source says to Python: equal where comments, blanks, brackets and quotes are all that differ, in every
    version of Python; the text itself where it is no source."""
    try:
        return _read(text)[0]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text


@lru_cache(4096)  # each step of a workflow asks for all modules of a package
def _read(text: bytes) -> tuple[bytes, tuple[ast.Import | ast.ImportFrom, ...]]:
    """A hash of what a source says, and its imports. In a thread of its own, as how deep a source Python reads depends
    on the stack of whoever asks."""
    from concurrent.futures import ThreadPoolExecutor  # it imports logging

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_read_here, text).result()


def _read_here(text: bytes) -> tuple[bytes, tuple[ast.Import | ast.ImportFrom, ...]]:
    tree = ast.parse(text)
    told = "\0".join(_told_of(tree)).encode(errors="surrogatepass")
    imports = tuple(node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    return hashlib.blake2b(told, digest_size=16).digest(), imports


def _told_of(tree: ast.AST) -> Iterator[str]:
    """Each node before what it holds, without fields that are empty in some versions of Python alone; by a list of what
    is left, as a long sum is nested deeper than functions may be."""
    left: list[Any] = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.AST):
            fields = [(name, item) for name, item in ast.iter_fields(node) if item not in (None, []) and name != "kind"]
            yield f"{type(node).__name__}({','.join(name for name, _ in fields)})"
            left += [item for _, item in reversed(fields)]
        elif isinstance(node, list):
            yield f"[{len(node)}]"
            left += reversed(node)
        else:
            yield repr(node)


def sources(kind: Any) -> dict[str, bytes]:
    """The texts that a class follows from, by path: its file, that which registers it, those of its bases, and the
    user's own modules that these import, at any depth and within functions too, with the packages that they lie in;
    installed packages are not among them, but for the class's own. A cell of a notebook has none.

    Raises
    ------
    OwnCodeError
        A file cannot be read, or a module has none.
    """
    return {file: _text_of(file) for file in _modules_of(kind).values() if file is not None}


def _texts(name: str) -> dict[str, bytes]:
    return {file: _text_of(file) for file in _modules(name).values()}


def _modules(name: str) -> dict[str, str]:
    """Files of a module, of the user's own modules that it imports, at any depth, and of the packages of all these."""
    top, found, left = name.partition(".")[0], {}, [name]
    seen = set(left)
    while left:
        current = left.pop()
        file, parent = _file_of(current), current.rpartition(".")[0]
        others = [parent]  # its `__init__.py` ran too
        if file is not None:
            found[current] = file
            if file.endswith(".py"):  # nothing is known of what a compiled one imports
                package = current if Path(file).name == "__init__.py" else parent
                others += _imported(_text_of(file), package)
        for other in others:
            if other not in seen and _is_own(other, top):
                left.append(other)
            seen.add(other)
    return found


def _file_of(name: str) -> str | None:
    """The file of a module; None where the name is that of something within a module, or of a namespace."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__file__", None)
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, AttributeError, ValueError):  # its parent is no package, or is not there
        return None
    return spec.origin if spec is not None and spec.has_location else None


def _places_of(name: str) -> list[str]:
    """The file of a module, or the folders of a package without `__init__.py`; none where it is not there."""
    if (file := _file_of(name)) is not None:
        return [file]
    if name in sys.modules:
        return list(getattr(sys.modules[name], "__path__", ()))
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, AttributeError, ValueError):
        return []
    return list(spec.submodule_search_locations or ()) if spec is not None else []


def _text_of(file: str) -> bytes:
    """The text as it was run: what a long training has used counts, not what its file holds by now."""
    if file not in _TEXTS:
        try:
            _TEXTS[file] = Path(file).read_bytes()
        except OSError as error:
            raise OwnCodeError(f"{file} cannot be read ({error.strerror}). Put it back.") from error
    return _TEXTS[file]


def _imported(text: bytes, package: str) -> Iterator[str]:
    """Names of the modules that a source imports, and of what may be modules in them."""
    for node in _read(text)[1]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([base] if base else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _is_own(name: str, top: str) -> bool:
    """Whether a module is of the user, or of the package `top`."""
    first = name.partition(".")[0]
    if first in sys.stdlib_module_names or first == "gigabatch" or not first:
        return False
    return first == top or not all(
        any(Path(place).is_relative_to(folder) for folder in INSTALLED) for place in _places_of(first)
    )


def told(what: str, name: str) -> dict[str, Any] | None:
    """What a bundle keeps of a user's class or function, as JSON types, for `require_told`; None for one of the
    package's own, and for a function that no file under `imports` registered."""
    kind = REGISTRIES[what].kinds.get(name)
    if kind is None or (what == "function" and not in_file(kind)):  # whoever loads registers that by itself
        return None
    texts = sources(kind)
    return {
        "what": what,
        "name": name,
        "import": _path_of(_HOMES[kind]),
        "files": {path: _digest({Path(path).name: text}) for path, text in texts.items()},
        "hash": code_hash(kind),
    }


def in_file(kind: Any) -> bool:
    """Whether it was registered by a file or a module, not by a notebook or a script."""
    return _HOMES[kind] != "__main__"


def require_told(entries: Sequence[Mapping[str, Any]]) -> None:
    """Import what `told` gave where it is not registered yet.

    Raises
    ------
    OwnCodeError
        A file is gone or has changed, or no longer registers the name.
    """

    def is_known(kind: Any, known: str) -> bool:  # bundles of earlier versions keep hashes of the texts
        return known in (code_hash(kind), code_hash(kind, to_the_letter=True))

    for entry in entries:
        registry, name, source = REGISTRIES[entry["what"]], entry["name"], entry["import"]
        where = f"{entry['what']} {name!r} of {source}"
        try:
            kind = registry.known(name)
        except registry.error as error:  # its package cannot be loaded, or another has the name, too
            raise OwnCodeError(str(error).removesuffix(".") + f". The bundle has that of {source}.") from error
        moved = kind is not None and _path_of(_HOMES[kind]) != source
        if kind is None or (not moved and not is_known(kind, entry["hash"])):
            if source == "__main__":
                raise OwnCodeError(
                    f"{entry['what']} {name!r} was registered in a notebook or a script. Run its cell first, or "
                    "train again with the class in a file that `imports` names."
                )
            for path, known in entry["files"].items() if _is_file(source) else ():
                if not Path(path).is_file():
                    raise OwnCodeError(
                        f"{where}: {path} is gone. Put it back, or name its new place under `imports` of the "
                        "configuration."
                    )
                text = {Path(path).name: Path(path).read_bytes()}
                if known not in (_digest(text), _digest(text, to_the_letter=True)):
                    raise OwnCodeError(f"{where}: {path} has changed. {AS_IT_WAS}")
            try:
                import_all([source])
            except OwnCodeError as error:
                raise OwnCodeError(f"{where}: {error}") from error
            kind = registry.find(name)
        if kind is None:
            raise OwnCodeError(f"{where}: the module registers no {entry['what']} of this name. {AS_IT_WAS}")
        if not is_known(kind, entry["hash"]):
            raise OwnCodeError(f"{where}: {_place(kind)} has changed. {AS_IT_WAS}")


AS_IT_WAS = "Put it back as it was, or train again."
