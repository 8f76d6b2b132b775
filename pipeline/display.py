"""Tables and progress for people: rich on a terminal, plain aligned text and log lines elsewhere, HTML in Jupyter.

Everything here is for display only, so a terminal that cannot show something never stops a run.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from html import escape
from io import StringIO
from numbers import Integral, Real
from typing import Any, Literal, Self, TextIO

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

MISSING = "–"
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
    """Write a table of `rows` (mappings from heading to value) to `file`, by default standard output."""
    file = sys.stdout if file is None else file
    _write(file, _rich_table(rows, title, file) if rows and _is_terminal(file) else plain_table(rows, title))


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
    """HTML of `rows` for a `_repr_html_`; every name and value is escaped."""
    columns = headings(rows)
    align = {name: "right" if _is_numeric(rows, name) else "left" for name in columns}

    def line(tag: str, texts: Iterable[str]) -> str:
        cells = zip(texts, columns, strict=True)
        return "<tr>" + "".join(f'<{tag} style="text-align:{align[c]}">{escape(t)}</{tag}>' for t, c in cells) + "</tr>"

    caption = f'<caption style="text-align:left;font-weight:600">{escape(title)}</caption>' if title else ""
    body = "".join(line("td", (format_value(row.get(name)) for name in columns)) for row in rows)
    style = "font-variant-numeric:tabular-nums"
    return f'<table style="{style}">{caption}<thead>{line("th", columns)}</thead><tbody>{body}</tbody></table>'


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


def _write(file: TextIO | None, text: str) -> None:
    """Write with '?' for what the file's encoding lacks. `file` is None where a process has no standard output."""
    if file is None:
        return
    encoding = getattr(file, "encoding", None) or "utf-8"
    file.write(text.encode(encoding, "replace").decode(encoding))
    file.flush()


def note(text: str) -> None:
    """Show a line on standard error, where progress is shown; nothing where the level of `detail` is quiet."""
    if _detail != "quiet":
        _write(sys.stderr, _printable(text) + "\n")


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
    """Show how far `work` is: a bar on a terminal, else a log line every five seconds at most and one at the end.

    `for batch in progress(batches, "epoch 1"): ...` counts items; `with progress(num_rows, "train") as bar:
    bar.advance(batch_rows, "loss 0.41")` counts what it is told. `None` stands for an unknown total. Writes to `file`,
    by default standard error. `clock` returns seconds.
    """
    return Progress(work, label, sys.stderr if file is None else file, clock)


class Progress:
    """What `progress` returns: iterate over it, or use it in a `with` statement and call `advance`."""

    LOG_SECONDS, BAR_SECONDS = 5.0, 0.1

    def __init__(self, work: Iterable[Any] | int | None, label: str, file: TextIO, clock: Callable[[], float]) -> None:
        self._items = None if work is None or isinstance(work, int) else work
        self._total = work if isinstance(work, int) else _length(work)
        self._label, self._note, self._done, self._before = _printable(label), "", 0, 0
        self._file: TextIO | None = None if _detail == "quiet" else file
        self._clock = clock
        self._bar = _bar(file) if _is_terminal(file) else None
        self._interval = self.BAR_SECONDS if self._bar else self.LOG_SECONDS

    def __enter__(self) -> Self:
        self._start = self._shown = self._clock()
        self._aside_before = _aside
        if self._bar:
            self._task = self._bar.add_task("", total=self._total, label=self._label, note="")
            self._quietly(self._bar.start)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._quietly(self._bar_end if self._bar else lambda: _write(self._file, self._last_line(kind is not None)))

    def __iter__(self) -> Iterator[Any]:
        assert self._items is not None, "progress(total) is for a with statement; give an iterable to iterate over"
        with self:
            for item in self._items:
                yield item
                self.advance()

    def advance(self, count: int = 1, note: str | None = None) -> None:
        """Count `count` more as done; `note` (a loss, a file name) is shown beside it until the next one."""
        self._done += count
        self._note = self._note if note is None else _printable(note)
        now = self._clock()
        if now - self._shown >= self._interval:
            self._shown = now
            self._quietly(self._draw if self._bar else lambda: _write(self._file, self._line()))

    def resume(self, count: int) -> None:
        """Count `count` as done before: part of what is done, and of no speed, as its seconds are not known here."""
        self._done = self._before = count
        if self._bar:
            self._bar.update(self._task, completed=count)  # rich leaves its first sample out of the speed

    def _draw(self) -> None:
        assert self._bar is not None
        self._bar.update(self._task, completed=self._done, note=self._note)
        self._bar.refresh()

    def _bar_end(self) -> None:
        assert self._bar is not None
        self._draw()
        self._bar.stop()

    def _quietly(self, action: Callable[[], None]) -> None:
        """Run `action` unless the output has gone away: a lost terminal must not end a training run."""
        if self._file is None:
            return
        try:
            action()
        except (OSError, ValueError):  # hung-up terminal or full disk; closed file or odd encoding
            self._file = None
            if self._bar:
                with suppress(OSError, ValueError):
                    self._bar.stop()  # gives sys.stdout and sys.stderr back

    def _line(self) -> str:
        seconds = self._clock() - self._start
        of_total = f" of {self._total:,} ({100 * self._done / self._total:.0f} %)" if self._total else ""
        count = f"{self._done:,}{of_total}, " if self._done or self._total else ""
        return f"{self._label}: {count}{seconds:.1f} s{self._tail(seconds)}\n"

    def _last_line(self, stopped: bool) -> str:
        seconds = self._clock() - self._start
        of_total = f" of {self._total:,}" if stopped and self._total else ""
        of_total += f" ({self._before:,} of them before)" if self._before else ""
        verb = "stopped after" if stopped else "done,"
        aside = _aside - self._aside_before
        of_it = f" ({aside:.1f} s of it compiling)" if aside >= 0.1 else ""
        return f"{self._label}: {verb} {self._done:,}{of_total} in {seconds:.1f} s{of_it}{self._tail(seconds)}\n"

    def _tail(self, seconds: float) -> str:
        now, seconds = self._done - self._before, seconds - (_aside - self._aside_before)
        rate = f", {format_value(now / seconds)}/s" if seconds > 0 and now else ""
        return rate + (f", {self._note}" if self._note else "")


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
    """How much is shown within the block, in all threads. quiet: no progress and no log below warnings. verbose: also
    what `silence` hides."""
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
