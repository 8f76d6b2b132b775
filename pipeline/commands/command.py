"""What all commands share: -v and -q, the configuration that is checked first, and one line for a user's mistake."""

from __future__ import annotations

import contextlib
import errno
import functools
import inspect
import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gigabatch.features.errors import OF_MACHINE
from gigabatch.pipeline.commands.options import DEFAULT_CONFIG
from gigabatch.pipeline.launched import AnotherRankFailed, launched_ranks, local_rank
from gigabatch.pipeline.memory import is_out_of_memory
from gigabatch.pipeline.stopping import Stopped, stoppable, stopped_by, stopped_line, stopped_text

if TYPE_CHECKING:
    from gigabatch.pipeline.config.config import RunConfig

USAGE, FAILED = 2, 40
SHARED = ("train",)  # commands that torchrun may start several times for one run
# That a run is not there is said before the model is imported.
USE_RUNS = ("evaluate", "score", "export", "recommend", "embed")
# No permission, a full or a read-only disk, one that fails, a folder for a file, a name that is too long, links in a
# circle: nothing that a traceback explains.
REFUSED_BY_SYSTEM = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EISDIR, errno.ENOTDIR,
    errno.ENAMETOOLONG, errno.ELOOP, *OF_MACHINE,
)  # fmt: skip
NO_COLUMN = ("column size limit", "size_type range", "size_type limit", "too large for a cudf column")  # libcudf
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        default_factory=bool,
        show_default=False,
        help="Log with times and modules, progress of inner trainings too, tracebacks of mistakes.",
        rich_help_panel="Output",
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        default_factory=bool,
        show_default=False,
        help="Results, warnings and errors alone.",
        rich_help_panel="Output",
    ),
]


def command(name: str, function: Callable[..., int]) -> Callable[..., int]:
    """`function` as the command of that name: with -v and -q, and with `one_line` errors in place of tracebacks.

    A function with `config` and `overrides` gets them checked but for the settings of the recipe and the model, and
    before anything that it imports; those that need more of it call `whole_config`.
    """

    function = within_memory(function)

    @functools.wraps(function)
    def run(*, context: typer.Context, verbose: bool, quiet: bool, **arguments: Any) -> int:
        before = context.find_root().params  # gigabatch -q train, too
        records = name == "nightly" and not arguments["dry_run"]
        verbose, quiet = verbose or before["verbose"], quiet or before["quiet"]
        if verbose and quiet:
            raise typer.BadParameter("give one of --verbose and --quiet, not both.")
        rank, num_ranks = launched_ranks()
        if num_ranks > 1 and name not in SHARED:
            if rank == 0:
                print(
                    f"gigabatch: {name} is the work of one process, and torchrun has started {num_ranks}. Run it "
                    f"without torchrun; on several ranks there is {', '.join(SHARED)}.",
                    file=sys.stderr,
                )
            return USAGE
        try:
            with stoppable(), shown(verbose, quiet), only_errors(rank > 0):
                if "config" in arguments:
                    try:
                        if name in USE_RUNS:
                            check_run(arguments["config"], arguments["overrides"], arguments["run"])
                        check_config(arguments["config"], arguments["overrides"], whole=num_ranks > 1)
                    except ValueError as error:
                        if local_rank() > 0:  # the first of a machine finds the same mistake
                            raise AnotherRankFailed(str(error)) from error
                        raise
                return function(**arguments)
        except (typer.TyperException, typer.Exit, typer.Abort):  # of the command line, which is no night
            raise
        except (Exception, KeyboardInterrupt) as error:
            if isinstance(error, AnotherRankFailed):
                return FAILED
            traced = verbose
            if number := stopped_by(error):
                code, said, text, traced = 128 + number, stopped_line(number), stopped_text(number), False
            elif isinstance(error, ValueError | OSError) and is_users(error):
                said = one_line(error)
                code, text = FAILED if name == "nightly" else USAGE, f"Failed: {said}"
            elif records:  # no user's error; what happens within the night's work is recorded there
                said, traced = f"{type(error).__name__}: {one_line(error)}", True
                code, text = FAILED, f"Failed: {said}"
            else:
                raise
            tell = None
            if records and not (isinstance(error, Stopped) and error.recorded):  # the night's work had not begun
                tell = record_mistake(arguments["config"], arguments["overrides"], text, code)
            if traced:
                traceback.print_exc()
            print(f"gigabatch: {said}", file=sys.stderr)
            if tell is not None:
                tell()
            return code

    own = inspect.signature(function, eval_str=True)
    common = [
        inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
        for option, annotation in (("verbose", Verbose), ("quiet", Quiet), ("context", typer.Context))
    ]
    parameters = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in own.parameters.values()]
    run.__signature__ = own.replace(parameters=[*parameters, *common])  # type: ignore[attr-defined]
    run.__annotations__ = {item.name: item.annotation for item in (*parameters, *common)}
    return run


class OutOfMemory(ValueError):
    """The machine, or a limit that was set, gave no more memory."""


class ColumnTooLarge(ValueError):
    """A column on the GPU would have more rows, or more bytes of text, than cuDF can count."""


def within_memory(function: Callable[..., int]) -> Callable[..., int]:
    """`function`, whose want of memory, or of room in a column of cuDF, is a user's error, in whatever words the
    library that met it says so."""

    @functools.wraps(function)
    def run(**arguments: Any) -> int:
        try:
            return function(**arguments)
        except (MemoryError, OSError, RuntimeError, OverflowError) as error:
            if not isinstance(error, OSError) and any(words in str(error) for words in NO_COLUMN):
                raise ColumnTooLarge(
                    f"a column is too large for cuDF ({type(error).__name__}: {error}). It holds 2,147,483,647 rows, "
                    "and as many bytes of text where LIBCUDF_LARGE_STRINGS_ENABLED=0 is set. Split the files or lower "
                    "rows_per_part, or set engine=pandas."
                ) from error
            if not is_out_of_memory(error):
                raise
            raise OutOfMemory(
                f"out of memory ({type(error).__name__}: {error}). gigabatch plan tells what a run needs; a smaller "
                "rows_per_part or train.batch_size needs less. A limit may be set (ulimit -v, a container's)."
            ) from error

    return run


@contextlib.contextmanager
def shown(verbose: bool, quiet: bool) -> Iterator[None]:
    """The log on standard error, and what -v and -q say of it and of progress."""
    text = "%(asctime)s %(name)s: %(message)s" if verbose else "%(message)s"
    logging.basicConfig(level=logging.INFO, format=text, stream=sys.stderr)
    if not verbose and not quiet:
        yield
        return
    from gigabatch.pipeline.display import detail

    with detail("verbose" if verbose else "quiet"):
        yield


@contextlib.contextmanager
def only_errors(wanted: bool) -> Iterator[None]:
    """Within the block no progress and no log below errors, if so wanted: of several ranks the first one talks."""
    if not wanted:
        yield
        return
    from gigabatch.pipeline.display import detail

    with detail("quiet"):
        logging.disable(logging.WARNING)
        yield


def check_config(config: Path, overrides: Sequence[str], whole: bool = True) -> RunConfig:
    """Read a configuration, or raise what is wrong with it, as far as can be told while neither torch nor pandas has
    been imported. whole: see `load_config`. The command itself reads it again."""
    from gigabatch.pipeline.config.config import ConfigError, load_config

    for path in (text for text in overrides if "=" not in text and text.endswith((".yaml", ".yml"))):
        raise ConfigError(f"{path!r} stands alone on the line. Name the configuration by an option: --config {path}.")
    if config == DEFAULT_CONFIG and not config.exists():
        here = sorted(str(path) for pattern in ("*.yaml", "conf/*.yaml") for path in Path().glob(pattern))
        raise ConfigError(
            f"--config is needed: the run's YAML file. The default, {config}, is not here. "
            f"YAML files here and in conf: {', '.join(here) or 'none'}."
        )
    return load_config(config, overrides, whole)


def whole_config(config: Path, overrides: Sequence[str], inputs: bool = False) -> RunConfig:
    """The whole configuration. inputs: whether the raw files must be there.

    What is wrong with the recipe's settings and with files is told before torch is imported, for the model's settings.
    """
    from gigabatch.pipeline.config.config import load_config

    if inputs:
        from gigabatch.pipeline.stages.asked import require_inputs

        require_inputs(load_config(config, overrides, whole="features"))
    return load_config(config, overrides)


def check_run(config: Path, overrides: Sequence[str], run: str | None) -> None:
    """Raise what is wrong with `--run`, where the configuration tells where runs lie."""
    from gigabatch.pipeline.runs.find import require_run

    require_run(check_config(config, overrides, whole=False), run)


def record_mistake(config: Path, overrides: Sequence[str], text: str, code: int) -> Callable[[], None] | None:
    """A night's line in nightly.jsonl, where the job could not even begin, if the configuration tells where that is.

    Returns
    -------
    callable or None
        Sends the night's notice, which may take a while; None where the configuration does not tell whom.
    """
    from gigabatch.pipeline.config.config import named_folder, named_notice
    from gigabatch.pipeline.nightly.notify import notify
    from gigabatch.pipeline.runs.record import append_record, now

    home, settings = named_folder(config, overrides), named_notice(config, overrides)
    moment = now() if home is None else append_record(home, "nightly", code, text, None)
    line = {"at": moment, "exit_code": code, "decision": text, "run": None}
    return None if settings is None else functools.partial(notify, settings, line)


def is_users(error: Exception) -> bool:
    """Whether it is a mistake that a user can mend: an error of ours, or one of these of the system."""
    if isinstance(error, OSError):
        return error.errno in REFUSED_BY_SYSTEM
    return type(error).__module__.partition(".")[0] == "gigabatch"


def one_line(error: object) -> str:
    return " ".join(str(error).split())
