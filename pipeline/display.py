"""Tables and progress for people: rich on a terminal, HTML in a notebook, plain aligned text and log lines elsewhere.

Everything here is for display only, so a terminal that cannot show something never stops a run.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from io import StringIO
from numbers import Integral, Real
from typing import Any, Literal, Self, TextIO

import numpy as np
from markupsafe import Markup, escape
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

MISSING = "–"
MINUS_LOSS = "minus loss"  # what falls where a feature of such a model is shuffled, in figures.json
METRIC_LABELS = {
    "auc": "AUC",
    "logloss": "Log loss",
    "log_loss": "Log loss",
    "ece": "Calibration error",
    "lr": "Learning rate",
    "mrr": "MRR",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R²",
    "gauc": "GAUC",
    "gauc_left_out": "GAUC left out",
    "normalised_entropy": "Normalised entropy",
}
AT_DEPTH = {"hr": "HR", "ndcg": "NDCG", "recall": "Recall", "coverage": "Coverage"}  # of hr@10, ndcg@10, ...
STAGES = ("features", "encode", "train", "evaluate")
Rows = Sequence[Mapping[str, Any]]
Detail = Literal["quiet", "normal", "verbose"]
_detail: Detail = "normal"
_aside = 0.0  # seconds of this process that no rate counts


def metric_label(name: str) -> str:
    """How a metric or another quantity is written in a heading: "AUC" for auc, "Learning rate" for learning_rate,
    "HR@10 sampled" for hr@10 sampled."""
    metric, at, depth = name.partition("@")
    if not at and name.partition(" ")[0] == "mrr":
        return name.replace("mrr", "MRR", 1)
    if at and metric in AT_DEPTH:
        return f"{AT_DEPTH[metric]}@{depth}"
    text = name.replace("_", " ")
    return METRIC_LABELS.get(name.lower(), text[:1].upper() + text[1:])


def importance_text(metric: str) -> str:
    """What the importance of a column is, where it is measured by `metric`: "drop of AUC", "rise of the loss"."""
    return "rise of the loss" if metric == MINUS_LOSS else f"drop of {metric}"


def is_missing(value: Any) -> bool:
    """True for None and for what differs from itself (NaN, NaT)."""
    differs = value != value
    return value is None or (isinstance(differs, bool | np.bool_) and bool(differs))


def is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def format_value(value: Any) -> str:
    """Text of one cell: 9,430 for counts, four significant digits for other numbers, a dash for None and NaN."""
    if is_missing(value):
        return MISSING
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return f"{int(value):,}"
    if isinstance(value, Real):
        return _format_float(float(value))
    return str(value)


def _format_float(value: float) -> str:
    size = abs(value)
    if size >= 1e15 or 0 < size < 1e-4:
        return f"{value:.2e}"
    return f"{value:,.0f}" if size >= 1000 else f"{value:.4g}"


def apart(values: Iterable[float], digits: int = 4) -> list[str]:
    """Numbers that are read beside each other: with the fewest significant digits, from `digits` on, at which those
    that differ are written differently.

    >>> from gigabatch.pipeline.display import apart
    >>> apart([0.81, 0.7]), apart([202301.0, 202304.0, 202301.0])
    (['0.81', '0.7'], ['202301', '202304', '202301'])
    >>> apart([12345.67, 9.5])
    ['12346', '9.5']
    """
    numbers = list(values)
    digits = digits_apart(numbers, digits)
    written = [f"{value:.{digits}g}" for value in numbers]
    # 12346 rather than 1.235e+04
    return [
        f"{value:.0f}" if "e+" in text and abs(value) < 1e9 else text
        for text, value in zip(written, numbers, strict=True)
    ]


def digits_apart(values: Collection[float], digits: int = 4) -> int:
    """How many digits `apart` takes."""
    different = len(set(values))
    while digits < 17 and len({f"{value:.{digits}g}" for value in values}) < different:
        digits += 1
    return digits


def about_bytes(count: float) -> str:
    """Two digits that mean something: 850 MiB, 3.4 GiB."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30)):
        if count >= size:
            value = count / size
            return f"{value:.1f} {unit}" if value < 10 else f"{value:,.0f} {unit}"
    return f"{round(count / 2**20, -1) if count >= 100 * 2**20 else count / 2**20:.0f} MiB"


def about_seconds(seconds: float) -> str:
    """8.4 s, 55 s, 12 min, 3.5 h."""
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def headings(rows: Rows) -> list[str]:
    """Keys of all rows, in the order in which they first appear."""
    return list(dict.fromkeys(key for row in rows for key in row))


def render_table(rows: Rows, title: str | None = None, file: TextIO | None = None) -> None:
    """Write a table of `rows` (mappings from heading to value) to `file`, by default standard output; in a notebook it
    is an output of the cell."""
    file = sys.stdout if file is None else file
    if _is_cell(file):
        CellOutput().draw(html_table(rows, title), plain_table(rows, title))
        return
    write(file, _rich_table(rows, title, file) if rows and _is_terminal(file) else plain_table(rows, title))


def plain_table(rows: Rows, title: str | None = None) -> str:
    """Aligned text of `rows`: numbers to the right, everything else to the left."""
    if not rows:
        return f"{_printable(title)}\n(no rows)\n" if title else "(no rows)\n"
    columns = headings(rows)
    lines = [[_printable(name) for name in columns]]
    lines += [[_printable(format_value(row.get(name))) for name in columns] for row in rows]
    widths = [max(map(cell_len, cells)) for cells in zip(*lines, strict=True)]
    right = [_is_numeric(rows, name) for name in columns]
    lines.insert(1, ["-" * width for width in widths])
    text = [_printable(title)] if title else []
    for line in lines:
        cells = zip(line, widths, right, strict=True)
        text.append("  ".join(_pad(cell, width, to_right) for cell, width, to_right in cells).rstrip())
    return "\n".join(text) + "\n"


def html_table(rows: Rows, title: str | None = None) -> str:
    """HTML of `rows` for a `_repr_html_`; every name and value is escaped, but for `Markup`."""
    columns = headings(rows)
    align = {name: "right" if _is_numeric(rows, name) else "left" for name in columns}

    def line(tag: str, texts: Iterable[str]) -> str:
        cells = zip(texts, columns, strict=True)
        return "<tr>" + "".join(f'<{tag} style="text-align:{align[c]}">{escape(t)}</{tag}>' for t, c in cells) + "</tr>"

    caption = f'<caption style="text-align:left;font-weight:600">{escape(title)}</caption>' if title else ""
    body = "".join(line("td", (_html_cell(row.get(name)) for name in columns)) for row in rows)
    style = "font-variant-numeric:tabular-nums"
    return f'<table style="{style}">{caption}<thead>{line("th", columns)}</thead><tbody>{body}</tbody></table>'


def _html_cell(value: Any) -> str:
    return value if isinstance(value, Markup) else format_value(value)


def _rich_table(rows: Rows, title: str | None, file: TextIO) -> str:
    # Text objects, because rich would read markup in a name such as "[red]".
    table = Table(title=Text(_printable(title)) if title else None, title_justify="left", box=SIMPLE_HEAD)
    columns = headings(rows)
    for name in columns:
        to_right = _is_numeric(rows, name)
        table.add_column(Text(_printable(name)), justify="right" if to_right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_printable(format_value(row.get(name)))) for name in columns))
    terminal = Console(file=file)
    page = Console(file=StringIO(), force_terminal=True, width=terminal.width, color_system=None)
    with page.capture() as capture:
        page.print(table)
    return capture.get()


def _is_numeric(rows: Rows, name: str) -> bool:
    values = [row[name] for row in rows if name in row and not is_missing(row[name])]
    return bool(values) and all(map(is_number, values))


def _pad(cell: str, width: int, to_right: bool) -> str:
    space = " " * (width - cell_len(cell))
    return space + cell if to_right else cell + space


def _printable(text: str) -> str:
    """`text` with control characters written out, so that a name can neither break a line nor steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _is_terminal(file: TextIO) -> bool:
    try:
        return file.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")
    except (AttributeError, ValueError):  # no such method, or a closed file
        return False


class CellOutput:
    """An output of the notebook's cell that runs: shown by the first call of `draw`, drawn anew by each one after."""

    def __init__(self) -> None:
        self._shown: Any = None

    def draw(self, html: str, text: str) -> None:
        """html: what a notebook shows; text: what a front end without HTML does."""
        from IPython.display import display

        data = {"text/html": html, "text/plain": text}
        if self._shown is None:
            self._shown = display(data, raw=True, display_id=True)
        else:
            self._shown.update(data, raw=True)


def cell_line(label: str, text: str, share: float | None = None, mark: str = "") -> str:
    """HTML of a stage's line: a mark or a bar, the label, and how far it is. share: of the work, in [0, 1]."""
    bar = ""
    if share is not None:
        bar = (
            '<span style="flex:none;align-self:center;width:9em;height:.5em;border-radius:.25em;'
            'background:rgba(128,128,128,.25)"><span style="display:block;height:100%;border-radius:.25em;'
            f'background:#3d7fc4;width:{100 * share:.1f}%"></span></span>'
        )
    mark = f'<span style="flex:none;width:1em;opacity:.7">{mark or "…"}</span>'
    return (
        '<div style="display:flex;gap:.6em;align-items:baseline;font-variant-numeric:tabular-nums;line-height:1.5">'
        f'{mark}<b style="flex:none;min-width:5.5em;font-weight:600">{escape(label)}</b>{bar}'
        f'<span style="opacity:.8;overflow-wrap:anywhere">{escape(text)}</span></div>'
    )


def cell_text(text: str, mark: str = "") -> str:
    """HTML of a line of text; a mark is set in bold before it."""
    before = f"<b>{escape(mark)}</b> " if mark else ""
    return f'<div style="line-height:1.5;overflow-wrap:anywhere">{before}{escape(text)}</div>'


def _is_cell(file: TextIO) -> bool:
    """Whether what is written to `file` appears below a notebook's cell. If so, the log of Gigabatch does too."""
    if type(file).__module__ != "ipykernel.iostream":
        return False
    log = logging.getLogger("gigabatch")
    if not any(isinstance(handler, _CellLog) for handler in log.handlers):
        log.addHandler(_CellLog(logging.INFO))
        if log.level == logging.NOTSET:
            log.setLevel(logging.INFO)
    return True


class _CellLog(logging.Handler):
    """Warnings as outputs of a notebook's cell, and other lines of the log beside the progress of the stage that they
    are of. A log that the user has set up is left to show all of it."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.root.handlers or (_detail == "quiet" and record.levelno < logging.WARNING):
            return
        try:
            text = _printable(record.getMessage())
            if record.levelno >= logging.WARNING:
                CellOutput().draw(cell_text(text, f"{record.levelname.capitalize()}:"), f"{record.levelname}: {text}")
            elif _open:
                _open[0].say(text)
        except Exception:
            self.handleError(record)


def write(file: TextIO | None, text: str) -> None:
    """Write with '?' for what the file's encoding lacks. `file` is None where a process has no standard output."""
    if file is None:
        return
    encoding = getattr(file, "encoding", None) or "utf-8"
    file.write(text.encode(encoding, "replace").decode(encoding))
    file.flush()


def note(text: str) -> None:
    """Show a line on standard error, where progress is shown, or as an output of a notebook's cell; nothing where the
    level of `detail` is quiet."""
    if _detail == "quiet":
        return
    if _is_cell(sys.stderr):
        CellOutput().draw(cell_text(_printable(text)), _printable(text))
    else:
        write(sys.stderr, _printable(text) + "\n")


def set_aside(seconds: float) -> None:
    """Take seconds of compilation, which were just spent, out of the rates that are shown."""
    global _aside
    _aside += seconds


def progress(
    work: Iterable[Any] | int | None,
    label: str,
    *,
    file: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> "Progress":
    """Show how far `work` is: a bar on a terminal, a line that is drawn in place in a notebook, else a log line every
    five seconds at most and one at the end.

    `for batch in progress(batches, "epoch 1"): ...` counts items; `with progress(num_rows, "train") as bar:
    bar.advance(batch_rows, "loss 0.41")` counts what it is told. `None` stands for an unknown total. Writes to `file`,
    by default standard error. `clock` returns seconds. What shows progress within the block of a `with` statement is
    told beside the line of the block on a terminal and in a notebook, and has lines of its own in a log.
    """
    return Progress(work, label, sys.stderr if file is None else file, clock)


_open: list["Progress"] = []  # those of `with` statements, the outermost first


class Progress:
    """What `progress` returns: iterate over it, or use it in a `with` statement and call `advance`."""

    def __init__(self, work: Iterable[Any] | int | None, label: str, file: TextIO, clock: Callable[[], float]) -> None:
        self._items = None if work is None or isinstance(work, int) else work
        self.total = work if isinstance(work, int) else _length(work)
        self.label, self.done, self._before = _printable(label), 0, 0
        self._note = self._said = ""
        self._file: TextIO | None = None if _detail == "quiet" else file
        self._clock = clock

    def __enter__(self) -> Self:
        self._begin()
        _open.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        _open.remove(self)
        self._end(kind is not None)

    def __iter__(self) -> Iterator[Any]:
        assert self._items is not None, "progress(total) is for a with statement; give an iterable to iterate over"
        self._begin()
        stopped = True
        try:
            for item in self._items:
                yield item
                self.advance()
            stopped = False
        finally:
            self._end(stopped)

    def _begin(self) -> None:
        self._start = self._shown = self._clock()
        self._aside_before = _aside
        self._screen = _screen(self._file)
        self._quietly(lambda: self._screen.start(self))

    def _end(self, stopped: bool) -> None:
        self._said = ""
        self._quietly(lambda: self._screen.end(self, stopped))

    def advance(self, count: int = 1, note: str | None = None) -> None:
        """Count `count` more as done; `note` (a loss, a file name) is shown beside it until the next one."""
        self.done += count
        self._note = self._note if note is None else _printable(note)
        self._said = ""
        self._draw()

    def say(self, text: str) -> None:
        """Show `text` beside the line, in place of the note, until the next call of this or of `advance`."""
        self._said = _printable(text)
        self._quietly(lambda: self._screen.draw(self))

    def resume(self, count: int) -> None:
        """Count `count` as done before: part of what is done, and of no speed, as its seconds are not known here."""
        self.done = self._before = count
        self._quietly(lambda: self._screen.resume(count))

    @property
    def note(self) -> str:
        """What is shown beside the line."""
        return self._said or self._note

    @property
    def seconds(self) -> float:
        return self._clock() - self._start

    def _draw(self) -> None:
        now = self._clock()
        if now - self._shown >= self._screen.interval_s:
            self._shown = now
            self._quietly(lambda: self._screen.draw(self))

    def _quietly(self, action: Callable[[], None]) -> None:
        """Run `action` unless the output has gone away: a lost terminal must not end a training run."""
        if self._file is None:
            return
        try:
            action()
        except (OSError, ValueError):  # hung-up terminal or full disk; closed file or odd encoding
            self._file = None
            with suppress(OSError, ValueError):
                self._screen.close()

    def told(self) -> str:
        """How far it is: 1,200 of 3,000 (40 %), 2.5 s, 480/s, loss 0.41."""
        of_total = f" of {self.total:,} ({100 * self.done / self.total:.0f} %)" if self.total else ""
        count = f"{self.done:,}{of_total}, " if self.done or self.total else ""
        return f"{count}{self.seconds:.1f} s{self._tail()}"

    def told_last(self, stopped: bool) -> str:
        """How far it came: done, 3,000 in 6.1 s, 491/s, loss 0.38."""
        of_total = f" of {self.total:,}" if stopped and self.total else ""
        of_total += f" ({self._before:,} of them before)" if self._before else ""
        verb = "stopped after" if stopped else "done,"
        aside = _aside - self._aside_before
        of_it = f" ({aside:.1f} s of it compiling)" if aside >= 0.1 else ""
        return f"{verb} {self.done:,}{of_total} in {self.seconds:.1f} s{of_it}{self._tail()}"

    def _tail(self) -> str:
        now, seconds = self.done - self._before, self.seconds - (_aside - self._aside_before)
        rate = f", {format_value(now / seconds)}/s" if seconds > 0 and now else ""
        return rate + (f", {self.note}" if self.note else "")


class _Lines:
    """Progress as lines of a log; what other screens of it derive from."""

    interval_s = 5.0

    def __init__(self, file: TextIO | None) -> None:
        self._file = file

    def start(self, work: Progress) -> None:
        """Before anything is done."""

    def draw(self, work: Progress) -> None:
        write(self._file, f"{work.label}: {work.told()}\n")

    def end(self, work: Progress, stopped: bool) -> None:
        write(self._file, f"{work.label}: {work.told_last(stopped)}\n")

    def resume(self, count: int) -> None:
        """`count` is done, at no speed."""

    def close(self) -> None:
        """The output has gone away."""


class _Bar(_Lines):
    """Progress as a bar of rich's on a terminal."""

    interval_s = 0.1

    def __init__(self, file: TextIO) -> None:
        super().__init__(file)
        self._bar = _bar(file)
        self._task = self._bar.add_task("", total=None, label="", note="")

    def start(self, work: Progress) -> None:
        self._bar.update(self._task, total=work.total, label=work.label)
        self._bar.start()

    def draw(self, work: Progress) -> None:
        self._bar.update(self._task, completed=work.done, note=work.note)
        self._bar.refresh()

    def end(self, work: Progress, stopped: bool) -> None:
        self.draw(work)
        self._bar.stop()

    def resume(self, count: int) -> None:
        self._bar.update(self._task, completed=count)  # rich leaves its first sample out of the speed

    def close(self) -> None:
        self._bar.stop()  # gives sys.stdout and sys.stderr back


class _Cell(_Lines):
    """Progress as one output of a notebook's cell, which is drawn again in place."""

    interval_s = 0.2

    def __init__(self) -> None:
        super().__init__(None)
        self._output = CellOutput()

    def start(self, work: Progress) -> None:
        self.draw(work)

    def draw(self, work: Progress) -> None:
        share = min(work.done / work.total, 1.0) if work.total else None
        self._output.draw(cell_line(work.label, work.told(), share), f"{work.label}: {work.told()}")

    def end(self, work: Progress, stopped: bool) -> None:
        text = work.told_last(stopped).removeprefix("done, ")
        line = cell_line(work.label, text, mark="✗" if stopped else "✓")
        self._output.draw(line, f"{work.label}: {work.told_last(stopped)}")


class _Within(_Lines):
    """Progress beside the line of the block that it is part of."""

    interval_s = 0.1

    def __init__(self, outer: Progress) -> None:
        super().__init__(None)
        self._outer = outer

    def draw(self, work: Progress) -> None:
        self._outer.say(f"{work.label}: {work.told()}")

    def start(self, work: Progress) -> None:
        self._outer.say(work.label)

    def end(self, work: Progress, stopped: bool) -> None:
        self._outer.say("")


def _screen(file: TextIO | None) -> _Lines:
    if file is None:
        return _Lines(None)
    drawn = _is_cell(file), _is_terminal(file)
    if not any(drawn):
        return _Lines(file)
    if outer := next((work for work in reversed(_open) if work._file is file), None):
        return _Within(outer)
    return _Cell() if drawn[0] else _Bar(file)


def tell(log: logging.Logger, label: str, text: str) -> None:
    """Say a line that takes part in no progress: in the log where somebody listens, else where progress is shown, as of
    a script or a notebook that has set up no logging."""
    if log.isEnabledFor(logging.INFO) and log.hasHandlers():
        log.info(text)
    elif _detail != "quiet" and _is_cell(sys.stderr):
        CellOutput().draw(cell_line(label, text), f"{label}: {text}")
    elif _detail != "quiet":
        with suppress(OSError, ValueError):
            write(sys.stderr, f"{label}: {_printable(text)}\n")


def tell_skipped(stage: str) -> None:
    """Say in a notebook that the artifact of a stage of a run was there already; a log has a line of its own."""
    if stage in STAGES and _detail != "quiet" and not _open and _is_cell(sys.stderr):
        text = "skipped, unchanged"
        CellOutput().draw(cell_line(stage, text, mark="✓"), f"{stage}: {text}")


class _Console(Console):
    """rich ends the process on a broken pipe; an error can be caught."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _length(items: Any) -> int | None:
    try:
        return len(items)
    except TypeError:  # a generator, or None
        return None


def _bar(file: TextIO) -> RichProgress:
    # auto_refresh is off: a thread that draws would raise where nobody can catch it.
    return RichProgress(
        TextColumn("{task.fields[label]}", markup=False),
        BarColumn(),
        TaskProgressColumn(show_speed=True),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=_Console(file=file),
        auto_refresh=False,
    )


@contextmanager
def detail(level: Detail) -> Iterator[None]:
    """Say how much is shown within the block, in all threads.

    Parameters
    ----------
    level
        `quiet`: no progress and no log below warnings. `verbose`: also the progress of inner trainings. `normal`.

    Examples
    --------
    >>> import logging
    >>> from gigabatch import detail
    >>> with detail("quiet"):
    ...     logging.getLogger("gigabatch").isEnabledFor(logging.INFO)
    False
    """
    global _detail
    before = _detail, logging.root.manager.disable
    _detail = level
    if level == "quiet":
        logging.disable(logging.INFO)
    try:
        yield
    finally:
        _detail, disabled = before
        logging.disable(disabled)


@contextmanager
def silence() -> Iterator[None]:
    """No progress on standard error and no log below warnings within the block, for trainings that are many."""
    if _detail == "verbose":
        yield
        return
    before = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        with redirect_stderr(StringIO()):
            yield
    finally:
        logging.disable(before)
