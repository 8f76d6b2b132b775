"""Tables and progress: aligned without a terminal, quiet enough for logs, and never the end of a run."""

import io
import logging
import re
import sys
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from rich.cells import cell_len

from gigabatch.pipeline.display import (
    detail,
    format_value,
    html_table,
    plain_table,
    progress,
    render_table,
    set_aside,
    silence,
    tell,
)

ROWS = [
    {"split": "train", "rows": 228_344, "auc": 0.76341234, "note": None},
    {"split": "validation", "rows": 9, "auc": float("nan"), "note": "few"},
]


class Terminal(io.StringIO):
    """A terminal as far as a program can tell; `encoding` is what it can show."""

    def __init__(self, encoding="utf-8"):
        super().__init__()
        self._encoding = encoding

    encoding = property(lambda self: self._encoding)

    def isatty(self):
        return True

    def write(self, text):
        text.encode(self._encoding)  # a real stream fails here
        return super().write(text)


class Clock:
    """Seconds that pass only when told."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture(autouse=True)
def _ordinary_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (9430, "9,430"),
        (np.int64(9430), "9,430"),
        (0.123456, "0.1235"),
        (np.float32(0.5), "0.5"),
        (12_345.6, "12,346"),
        (0.00001234, "1.23e-05"),
        (0.0, "0"),
        (True, "yes"),
        (np.False_, "no"),
        (None, "–"),
        (float("nan"), "–"),
        (np.float32("nan"), "–"),
        (pd.NaT, "–"),
        (pd.NA, "<NA>"),
        (float("inf"), "inf"),
        ("text", "text"),
        ([1, 2], "[1, 2]"),
    ],
)
def test_values_are_written_for_people(value, text):
    assert format_value(value) == text


def test_plain_table_is_aligned():
    assert plain_table(ROWS, "Splits") == (
        "Splits\n"
        "split          rows     auc  note\n"
        "----------  -------  ------  ----\n"
        "train       228,344  0.7634  –\n"
        "validation        9       –  few\n"
    )


def test_plain_table_measures_wide_characters_as_terminals_do():
    lines = plain_table([{"city": "東京", "n": 1}, {"city": "Paris", "n": 22}]).splitlines()
    assert len({cell_len(line) for line in lines}) == 1


def test_tables_take_rows_that_lack_keys_and_no_rows():
    assert plain_table([{"a": 1}, {"b": 2}]).splitlines()[2:] == ["1  –", "–  2"]
    for file in (io.StringIO(), Terminal()):
        render_table([], "Nothing", file)
        assert file.getvalue() == "Nothing\n(no rows)\n"
    assert "<tbody></tbody>" in html_table([])


def test_render_table_is_plain_where_there_is_no_terminal(capsys):
    render_table(ROWS, "Splits")
    assert capsys.readouterr().out == plain_table(ROWS, "Splits")


def test_render_table_draws_on_a_terminal():
    file = Terminal()
    render_table(ROWS, "Splits", file)
    assert "─" in file.getvalue()
    for text in ("Splits", "228,344", "0.7634", "validation"):
        assert text in file.getvalue()


@pytest.mark.parametrize("make", [io.StringIO, Terminal])
def test_names_can_neither_steer_a_terminal_nor_be_markup(make):
    file = make()
    render_table([{"[red]name[/red]": "\x1b[2Jgone\n", "b": "[bold]"}], "[/nothing] \x07", file)
    text = file.getvalue()
    assert "\x1b[2J" not in text
    assert "\x07" not in text
    for shown in ("[red]name[/red]", r"\x1b[2Jgone\n", "[bold]", r"[/nothing] \x07"):
        assert shown in text


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_what_a_terminal_cannot_show_becomes_a_question_mark(encoding):
    file = Terminal(encoding)
    render_table([{"city": "東京", "n": None}], "Städte", file)
    assert "??" in file.getvalue()


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_dumb_terminals_get_plain_text(term, monkeypatch):
    monkeypatch.setenv("TERM", term)
    file = Terminal()
    render_table(ROWS, None, file)
    assert file.getvalue() == plain_table(ROWS)
    with progress(2, "work", file=file) as bar:
        bar.advance(2)
    assert "work: done, 2 in" in file.getvalue()


def test_html_table_escapes_and_aligns():
    class Cells(HTMLParser):
        tags, texts = [], []

        def handle_starttag(self, tag, attributes):
            self.tags.append((tag, dict(attributes).get("style")))

        def handle_data(self, data):
            self.texts.append(data)

    page = Cells()
    hostile = "<script>\"'&amp;"
    page.feed(html_table([{hostile: hostile, "n": 1234}], hostile))
    assert page.texts == [hostile, hostile, "n", hostile, "1,234"]
    assert [tag for tag, _ in page.tags] == ["table", "caption", "thead", "tr", "th", "th", "tbody", "tr", "td", "td"]
    assert [style for tag, style in page.tags if tag in ("td", "th")] == ["text-align:left", "text-align:right"] * 2


def test_progress_writes_a_line_every_five_seconds_at_most_and_one_at_the_end():
    clock, file = Clock(), io.StringIO()
    for _ in progress(range(20), "encode", file=file, clock=clock):
        clock.now += 1
    assert file.getvalue().splitlines() == [
        "encode: 5 of 20 (25 %), 5.0 s, 1/s",
        "encode: 10 of 20 (50 %), 10.0 s, 1/s",
        "encode: 15 of 20 (75 %), 15.0 s, 1/s",
        "encode: 20 of 20 (100 %), 20.0 s, 1/s",
        "encode: done, 20 in 20.0 s, 1/s",
    ]


def test_progress_counts_what_it_is_told_with_a_note():
    clock, file = Clock(), io.StringIO()
    with progress(None, "train", file=file, clock=clock) as bar:
        clock.now += 6
        bar.advance(204_800, "loss 0.41")
        clock.now += 2
        bar.advance(204_800)
    assert file.getvalue().splitlines() == [
        "train: 204,800, 6.0 s, 34,133/s, loss 0.41",
        "train: done, 409,600 in 8.0 s, 51,200/s, loss 0.41",
    ]


def test_compilation_is_in_no_rate_and_is_said():
    clock, file = Clock(), io.StringIO()
    with progress(None, "train", file=file, clock=clock) as bar:
        clock.now += 38
        set_aside(30.0)
        bar.advance(400)
        clock.now += 2
        bar.advance(100)
    with progress(None, "evaluate", file=file, clock=clock) as bar:
        clock.now += 2
        bar.advance(100)
    assert file.getvalue().splitlines() == [
        "train: 400, 38.0 s, 50/s",
        "train: done, 500 in 40.0 s (30.0 s of it compiling), 50/s",
        "evaluate: done, 100 in 2.0 s, 50/s",
    ]


def test_what_was_done_before_is_part_of_the_count_and_not_of_the_speed():
    """H3: a resumed training's rows/s counted the rows before the break against the seconds after it."""
    clock, file = Clock(), io.StringIO()
    with progress(10_000, "train", file=file, clock=clock) as bar:
        bar.resume(6000)
        clock.now += 6
        bar.advance(1200)
        clock.now += 2
        bar.advance(2800)
    assert file.getvalue().splitlines() == [
        "train: 7,200 of 10,000 (72 %), 6.0 s, 200/s",
        "train: done, 10,000 (6,000 of them before) in 8.0 s, 500/s",
    ]


@pytest.mark.parametrize("before", [0, 40])
def test_the_bar_of_resumed_work_ends_full(before):
    clock, file = Clock(), Terminal()
    with progress(50, "train", file=file, clock=clock) as bar:
        bar.resume(before)
        bar.advance(50 - before)
    assert "100%" in re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", file.getvalue())


def test_an_error_passes_through_and_is_told_apart_from_success():
    clock, file = Clock(), io.StringIO()

    def train():
        with progress(10, "train", file=file, clock=clock) as bar:
            clock.now += 2
            bar.advance(4)
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        train()
    assert file.getvalue() == "train: stopped after 4 of 10 in 2.0 s, 2/s\n"


def test_progress_draws_a_bar_on_a_terminal_that_ends_full():
    clock, file = Clock(), Terminal()
    with progress(50, "[red]epoch[/red] 1", file=file, clock=clock) as bar:
        for _ in range(50):
            clock.now += 0.05
            bar.advance(1, "[loss]")
    last = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", file.getvalue()).strip().splitlines()[-1]
    assert "100%" in last
    for text in ("[red]epoch[/red] 1", "[loss]", "━"):
        assert text in last


def test_progress_within_a_bar_is_told_beside_it_and_in_a_log_has_lines_of_its_own():
    drawn = {}
    for file in (Terminal(), io.StringIO()):
        with progress(None, "evaluate", file=file) as bar:
            for _ in progress([1, 2, 3], "importance", file=file):
                pass
            bar.advance(70)
        drawn[type(file)] = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", file.getvalue()).strip().splitlines()
    assert "importance" in "".join(drawn[Terminal])
    assert drawn[Terminal][-1].startswith("evaluate")
    assert "importance" not in drawn[Terminal][-1]
    assert [line.partition(" in ")[0] for line in drawn[io.StringIO]] == ["importance: done, 3", "evaluate: done, 70"]


@pytest.mark.parametrize("is_terminal", [False, True])
@pytest.mark.parametrize("error", [OSError("hung up"), ValueError("I/O operation on closed file"), BrokenPipeError()])
def test_an_output_that_goes_away_does_not_stop_the_work(error, is_terminal):
    class Gone(Terminal):
        def isatty(self):
            return is_terminal

        def write(self, text):
            if clock.now > 103:
                raise error
            return super().write(text)

    clock, done, streams = Clock(), 0, (sys.stdout, sys.stderr)
    for _ in progress(range(30), "work", file=Gone(), clock=clock):
        clock.now += 1
        done += 1
    assert done == 30
    assert (sys.stdout, sys.stderr) == streams


def test_progress_without_standard_error_is_silent(monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    assert list(progress([1, 2], "work")) == [1, 2]


@pytest.mark.parametrize("make", [io.StringIO, Terminal])
def test_quiet_hides_progress_and_the_log_below_warnings_and_no_result(make, caplog, capsys):
    caplog.set_level(logging.INFO)
    log, file = logging.getLogger("quiet"), make()
    with detail("quiet"):
        assert list(progress(range(3), "train", file=file)) == [0, 1, 2]
        log.info("hidden")
        log.warning("shown")
        render_table([{"auc": 0.7}])
    assert file.getvalue() == ""
    assert [record.message for record in caplog.records] == ["shown"]
    assert "0.7" in capsys.readouterr().out
    log.info("again")
    assert caplog.records[-1].message == "again"


@pytest.mark.parametrize(("level", "told"), [("normal", False), ("verbose", True)])
def test_trainings_that_are_many_are_silent_unless_all_is_wanted(level, told, caplog, capsys):
    caplog.set_level(logging.INFO)
    with detail(level), silence():
        list(progress(range(3), "training 1 of 30"))
        logging.getLogger("trials").info("residency")
    assert ("training 1 of 30" in capsys.readouterr().err) == told
    assert bool(caplog.records) == told


def test_a_line_goes_to_the_log_where_somebody_listens_and_else_to_the_screen(capsys, caplog):
    """In a script that sets up no logging, what is told at level INFO was lost."""
    log = logging.getLogger("somebody")
    caplog.set_level(logging.INFO)
    tell(log, "compile", "3 loops")
    assert (caplog.messages, capsys.readouterr().err) == (["3 loops"], "")
    log.propagate = False  # nobody listens
    try:
        tell(log, "compile", "3 loops")
        with detail("quiet"):
            tell(log, "compile", "3 loops")
        with silence():
            tell(log, "compile", "3 loops")
    finally:
        log.propagate = True
    assert (caplog.messages, capsys.readouterr().err) == (["3 loops"], "compile: 3 loops\n")
