"""The pages of nights: one for each night that there was, of what is known, and none is written over."""

import errno
import json
import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from markupsafe import Markup

from gigabatch.features.refit.churn import churn
from gigabatch.features.refit.statistics import CategoryStatistics, Statistics
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.config.config import NightlySettings
from gigabatch.pipeline.contract.decide import Decision
from gigabatch.pipeline.contract.drift import drift
from gigabatch.pipeline.contract.state import FileEntry, FilesState, write_state
from gigabatch.pipeline.nightly import findings, learning, nightly, pages
from gigabatch.pipeline.nightly.findings import Findings, Part, Slice, TableHealth
from gigabatch.pipeline.nightly.nightly import run_nightly
from gigabatch.pipeline.nightly.pages import Material, churn_cards, drift_cards, history_charts, verdict, write_night
from gigabatch.pipeline.reports import charts
from gigabatch.pipeline.reports.charts import Calibration
from gigabatch.pipeline.reports.night import Gain, gain_bars
from gigabatch.pipeline.runs.record import append_record
from gigabatch.pipeline.stopping import Stopped
from gigabatch.pipeline.store.garbage import collect_runs
from gigabatch.pipeline.store.locks import folder_lock
from tests.pipeline.reports.test_report import Page
from tests.pipeline.tiny_recipe import write_day

PROMOTED, KEPT, REFUSED, FAILED = 0, 10, 20, 40
SECTIONS = ["files", "comparison", "start", "drift", "slices", "calibration", "nights", "unseen", "embeddings", "data"]


@pytest.fixture(autouse=True)
def _on_real_axes(monkeypatch):
    """What matplotlib does not take fails here; but for these axes nothing is drawn."""
    monkeypatch.setattr(charts, "_svg", lambda ax, label, key: Markup(f'<svg aria-label="{label}"></svg>'))


def night(number=0, code=PROMOTED, **more) -> dict:
    """A line, of the 1st of November 2026 and the days after."""
    day = f"2026-11-{1 + number:02d}T03:15:00+00:00"
    line = {
        "at": day,
        "action": "nightly",
        "exit_code": code,
        "run": None,
        "decision": f"Night {number}.",
        "champion": "a",
    }
    if code in (PROMOTED, KEPT):
        line |= {
            "run": f"run{number}",
            "metric": "AUC",
            "rows": 900,
            "candidate": 0.71,
            "current": 0.7,
            "constant": 0.5,
        }
        line |= {"gain": 0.01, "bound": -0.002, "upper": 0.02, "record": 0.72, "reasons": [], "reference": "old"}
    return line | more


def record(home: Path, *lines: dict) -> None:
    home.mkdir(parents=True, exist_ok=True)
    with open(home / "nightly.jsonl", "a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def written(home: Path, line: dict, material: Material | None = None) -> Page:
    record(home, line)
    return Page(write_night(home, line, material or Material()).read_text())


def statistics(*cities: str) -> Statistics:
    frame = pd.DataFrame({"city": list(cities) * 500, "store": ["x", "y"] * (250 * len(cities))})
    return Statistics(len(frame), {name: CategoryStatistics.of(frame[name]) for name in frame}, {})


class Encoded:
    """What a page asks of the packed rows."""

    def __init__(self, old: Statistics, new: Statistics) -> None:
        self.churn = churn(old, new, {name: item.vocabulary for name, item in old.categories.items()})


def full(home: Path, text: str = "Oslo") -> tuple[dict, Material]:
    """A line and material for every section; `text` stands wherever a name may."""
    old, new = statistics(text, "Bonn"), statistics(text, "Lima")
    path = f"/raw/{text.replace('/', '-')}.csv"
    entry = FileEntry("clicks", "quarantined", "c", "2026-11-01", rows=3, reasons=(text,), first=1.7e9, last=1.7e9 + 60)
    write_state(
        home, FilesState({path: entry, f"{path}2": replace(entry, state="accepted", dropped=(1, 2), reasons=())})
    )
    line = night(
        decision=f"Kept: {text}",
        code=KEPT,
        reasons=[text],
        left_out=[text],
        files={"accepted": [f"{path}2"], "quarantined": [path], "warnings": [text + "!"], "drift": {}},
        targets={text: night(), "second": night(candidate=3.0, current=4.0, metric="RMSE")},
        against_reference={text: night()},
        start={"how": "warm", "why": text},
        window={"rows": 50, "new": 40, "late": 0, "late_trained": 0, "replayed": 10, "gone": 1},
        steps={"train": {"seconds": 2.5, "bytes": 1234567, "skipped": False}, text: {"seconds": 1.0}},
        splits={"train": 1000, text: 5},
        data={"files": 7},
        environment={"torch": "2.13", text: text},
        seed=1,
        config=text,
    )
    part = Part(text, 3, 0.3, 0.5, 0.6, 0.1, 0.05, 0.7, 0.6)
    found = Findings(
        900,
        1800,
        (Slice(text, text, text, 300, "log loss", 0.6, 0.5, 0.1, 0.02),),
        12,
        {text: {"candidate": Calibration([0.1], [0.2], [3]), "current": Calibration([0.1], [0.3], [3])}},
        "log loss",
        (part,),
        (TableHealth(text, 16, 200, 20, 0.3, 1.5, 0),),
    )
    return line, Material(NightlySettings(), Decision(drift={text: drift(old, new)}), Encoded(old, new), found)


def test_a_full_page_has_every_section_in_order_with_the_numbers_of_its_line(tmp_path):
    line, material = full(tmp_path)
    record(tmp_path, night(0, decision="before", at="2026-10-31T03:15:00+00:00"))
    page = written(tmp_path, line, material)
    assert [name for name in page.ids() if name in SECTIONS] == SECTIONS
    text = " ".join(" ".join(page.words).split())
    for told in (
        "Kept: run a stays the current model.", "Kept: Oslo", "Oslo.csv", "Oslo.csv2",
        "AUC +0.0100 (-0.0020 to +0.0200)",
        "against the reference, run old", "Warm: it went on from", "rows trained on 50", "1,000 new rows against 1,000",
        "12 slices were looked at", "at least 100 of 900 rows (of 1,800, evenly spread). 1 got worse", "1,234,567",
        "900 rows (of 1,800, evenly spread) of the window by whether a model has an id",
        "rows of train 1,000", "raw files 7", "10.0 %", "2023-11-14T22:13:20+00:00", "3.5 s in all.",
    ):  # fmt: skip
        assert told in text, told
    assert "the night before" in text
    assert page.tags.count("svg") == 1 + 3  # calibration; quality, rows, seconds


@pytest.mark.parametrize(
    "hostile",
    [
        "\"><script>alert(1)</script><img src=x onerror=alert(1)>' onmouseover='alert(1)' x='{{ 7 * 7 }}{% raw %}",
        "</style></title></svg><script>alert(1)</script>$x^{2} &lt;b&gt; &amp; ]]><!--",
    ],
)
def test_whatever_comes_from_data_is_text(tmp_path, hostile):
    calm = written(tmp_path / "calm", *full(tmp_path / "calm", "Bergen"))
    page = written(tmp_path / "b", *full(tmp_path / "b", hostile))
    assert [tag for tag in page.tags if tag != "wbr"] == [tag for tag in calm.tags if tag != "wbr"]
    assert {name for _, name, _ in page.attributes} == {name for _, name, _ in calm.attributes}
    texts = sum(hostile in words for words in page.words)
    assert texts == sum("Bergen" in words for words in calm.words if "Bergen.csv" not in words) > 15
    for text in ((tmp_path / "b/nightly.html").read_text(), (tmp_path / "b/nights/index.html").read_text()):
        Page(text)
        assert "<script" not in text
        assert "://" not in text


def test_pages_refer_to_nothing_but_pages(tmp_path):
    written(tmp_path, night(0))
    written(tmp_path, *full(tmp_path))
    for path in (tmp_path / "nightly.html", *(tmp_path / "nights").iterdir()):
        page = Page(path.read_text())
        assert not {"script", "img", "iframe", "object", "embed", "base"} & set(page.tags)
        for tag, name, value in page.attributes:
            if name in ("href", "src") and not value.startswith(("#", "data:,")):
                assert tag == "a"
                assert (path.parent / value).is_file(), value


def test_two_nights_of_a_date_have_two_pages_and_the_first_stays_as_it_is(tmp_path):
    folder = tmp_path / "nights"
    written(tmp_path, night(0, decision="first"))
    before = (folder / "2026-11-01.html").read_bytes()
    (folder / "2026-11-01-3.html").write_text("a person's own")
    for decision in ("second", "third"):
        written(tmp_path, night(0, decision=decision))
    assert (folder / "2026-11-01.html").read_bytes() == before
    assert (folder / "2026-11-01-3.html").read_text() == "a person's own"
    assert sorted(os.listdir(folder)) == [f"2026-11-01{end}.html" for end in ("-2", "-3", "-4", "")] + ["index.html"]
    index = Page((folder / "index.html").read_text())
    links = [value for tag, name, value in index.attributes if (tag, name) == ("a", "href")]
    assert links[-3:] == ["2026-11-01-4.html", "2026-11-01-2.html", "2026-11-01.html"]  # the newest first
    assert "third" in (tmp_path / "nightly.html").read_text()


def test_where_no_hard_link_can_be_made_nothing_is_written_over_either(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "not permitted")

    monkeypatch.setattr(os, "link", refuse)
    for decision in ("first", "second"):
        written(tmp_path, night(0, decision=decision))
    assert "first" in (tmp_path / "nights/2026-11-01.html").read_text()
    assert "second" in (tmp_path / "nights/2026-11-01-2.html").read_text()
    assert [name for name in os.listdir(tmp_path / "nights") if name.startswith(".")] == []


def test_retention_leaves_the_pages(tmp_path):
    home = tmp_path / "clicks"
    written(home, night(0))
    collect_runs(tmp_path, 0)
    assert sorted(os.listdir(home / "nights")) == ["2026-11-01.html", "index.html"]
    assert (home / "nightly.html").is_file()


def test_what_a_killed_night_left_is_removed_when_nobody_can_be_writing_it(tmp_path):
    folder = tmp_path / "nights"
    folder.mkdir()
    for name, age in ((".2026-11-01-7-aa", 7200), (".2026-11-01-8-bb", 5)):
        (folder / name).write_text("half")
        os.utime(folder / name, (os.path.getmtime(folder / name) - age,) * 2)
    written(tmp_path, night(0))
    assert [name for name in os.listdir(folder) if name.startswith(".")] == [".2026-11-01-8-bb"]


def test_nights_that_got_no_page_get_one_by_the_next(tmp_path):
    """Those of a configuration that cannot be read, of a full disk, and of an older version: the last few."""
    written(tmp_path, night(0))
    record(tmp_path, *(night(number, FAILED) for number in range(1, 9)), {"at": "2026-11-09T01", "action": "rollback"})
    written(tmp_path, night(9, KEPT))
    pages_there = sorted(path.stem for path in (tmp_path / "nights").glob("2026*"))
    assert pages_there == ["2026-11-01", *(f"2026-11-{day:02d}" for day in range(5, 11))]
    assert "Night 8." in (tmp_path / "nights/2026-11-09.html").read_text()
    written(tmp_path, night(10))
    assert len(list((tmp_path / "nights").iterdir())) == 9  # none is made twice


def test_the_list_ends_at_400_and_pages_of_lost_lines_stay_in_it(tmp_path):
    written(tmp_path, night(0))
    lines = [night(0, FAILED, at=f"2027-{1 + n // 28:02d}-{1 + n % 28:02d}T03:15:00+00:00") for n in range(330)]
    lines += [night(0, KEPT, at=f"2028-{1 + n // 28:02d}-{1 + n % 28:02d}T03:15:00+00:00") for n in range(90)]
    written(tmp_path, night(5))
    (tmp_path / "nightly.jsonl").unlink()
    record(tmp_path, *lines[:10])
    index = pages.index_page(tmp_path, lines[:10], pages.pages_of(tmp_path / "nights"))
    (part,) = index.sections[1].parts
    assert [row["outcome"] for row in part.rows] == ["failed"] * 10 + ["its line is gone"] * 2
    assert part.links[-2:] == ["2026-11-06.html", "2026-11-01.html"]
    (part,) = pages.index_page(tmp_path, lines, {}).sections[1].parts
    assert len(part.rows) == 400
    assert part.rows[0]["night"] == "2028-04-06 03:15"
    assert "older pages stay" in part.text
    assert len(index.sections[0].parts[0].squares) == 10


ODD = [None, True, -7, 1e300, "text", [1], {"a": {"b": [None]}}, float("nan")]


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_lines_that_somebody_has_changed_make_a_page(tmp_path, monkeypatch, odd):
    """Each value of a full line in turn."""
    monkeypatch.setattr(pages, "history_charts", lambda _: [])
    line, _ = full(tmp_path)
    changed = [line | {key: odd} for key in line]
    for inner in ("targets", "window", "steps", "files", "against_reference", "start"):
        changed += [line | {inner: line[inner] | {key: odd}} for key in line[inner]]
    for item in changed:
        pages._bytes(pages.night_page(tmp_path, [line, item], {}, Material()))


def test_charts_of_lines_that_somebody_has_changed_are_drawn(tmp_path):
    line, _ = full(tmp_path)
    keys = ("metric", "candidate", "current", "rows", "window", "steps", "splits")
    for place in range(2):
        odd = [line | {key: value} for value in ODD[place::2] for key in keys]
        assert len(history_charts([*odd, line])) == 3
    assert history_charts([{}, {}]) == []


@pytest.mark.parametrize(
    ("line", "sentence", "colour"),
    [
        (night(0), "Promoted: run run0 is the current model now.", "banner yes"),
        (night(0, KEPT), "Kept: run a stays the current model.", "banner"),
        (night(0, KEPT, champion=None), "Kept out: no model is current.", "banner"),
        (night(0, REFUSED), "Tonight's data were refused: run a stays the current model.", "banner no"),
        (night(0, 30), "Tonight's data have drifted and were refused: run a stays the current model.", "banner no"),
        (night(0, FAILED, champion=None), "The night failed: no model is current.", "banner no"),
        ({"at": "2026-11-01", "exit_code": FAILED}, "The night failed.", "banner no"),
        (night(0, 143), "The night was stopped: run a stays the current model.", "banner no"),
        (night(0, 130), "The night was stopped: run a stays the current model.", "banner no"),
    ],
)
def test_the_verdict_is_one_sentence_with_a_colour(tmp_path, line, sentence, colour):
    assert verdict(line) == sentence
    page = written(tmp_path, line)
    assert sentence in page.words
    assert ("div", "class", colour) in page.attributes


def test_columns_that_drifted_stand_first_and_what_chance_explains_is_none():
    old, new = statistics("Oslo", "Bonn"), statistics("Oslo", "Lima")
    for cards in (drift_cards(drift(old, new)), churn_cards(Encoded(old, new).churn)):
        assert [(card.column, card.verdict) for card in cards] == [("city", "drift"), ("store", "ok")]
        assert [bar.measure for bar in cards[0].bars] == ["PSI", "unseen", "nulls"]
        assert cards[0].bars[1].value == pytest.approx(0.5)  # half of the rows are of Lima
    few = Statistics(6, {"city": CategoryStatistics.of(pd.Series(["Oslo"] * 4 + ["Bonn"] * 2, name="city"))}, {})
    (card,) = churn_cards(churn(old_city(), few, {"city": old_city().categories["city"].vocabulary}))
    assert card.verdict == "ok"
    assert card.bars[0].value > 0.1  # beyond the threshold, and not beyond the noise


def test_columns_that_tell_of_the_calendar_are_measured_by_their_nulls_alone():
    """What the contract takes for the month was drift each month, and what steps make of the time was, too."""
    encoded = Encoded(statistics("Oslo", "Bonn"), statistics("Oslo", "Lima"))
    raw = {"city": ("at", "month"), "store": ("store", "month")}
    encoded.features = SimpleNamespace(raw_of=raw.__getitem__)
    found = {}
    for calendar in ((), ("at", "month")):
        (part,) = pages._drift({}, Material(decision=Decision(calendar=frozenset(calendar)), encoded=encoded))
        found[bool(calendar)] = {card.column: (card.verdict, [bar.measure for bar in card.bars]) for card in part.cards}
    assert found[False]["city"] == ("drift", ["PSI", "unseen", "nulls"])
    assert found[True]["city"] == ("ok", ["nulls"])
    assert found[True]["store"] == found[False]["store"]


def old_city() -> Statistics:
    return Statistics(6, {"city": CategoryStatistics.of(pd.Series(["Oslo"] * 2 + ["Bonn"] * 4, name="city"))}, {})


def test_charts_leave_out_nights_of_another_metric(monkeypatch):
    drawn = {}

    def keep(curves, title, key):
        drawn[key] = (title, curves)

    monkeypatch.setattr(pages, "curves_chart", keep)
    nights = [night(0, metric="log loss", candidate=0.4), night(1, FAILED), night(2, window={"rows": 40})]
    history_charts(nights)
    title, quality = drawn["quality"]
    assert title == "AUC on the window"
    assert [value == value for value in quality.lines["new model"]] == [False, False, True]
    assert list(quality.x) == [-2, -1, 0]
    assert drawn["rows"][1].lines["trained on"][-1] == 40


def test_packed_rows_that_could_not_be_written_leave_a_page(tmp_path, caplog):
    class Lost:
        @property
        def churn(self):
            raise OSError("no space left")

    page = written(tmp_path, night(0, FAILED), Material(encoded=Lost()))
    assert "The night failed: run a stays the current model." in page.words
    assert "no space left" in caplog.text


def sections_of(path: Path) -> list[str]:
    return [name for name in Page(path.read_text()).ids() if name in SECTIONS]


def test_nights_that_promote_keep_and_refuse_have_their_pages(finished):
    """By the job itself: its line, its window, its steps."""
    write_day(finished.raw, 1, 3000)
    assert run_nightly(finished.config, ["nightly.tolerance=1", "train.epochs=1"]) == PROMOTED
    folder = finished.home / "nights"
    line = json.loads((finished.home / "nightly.jsonl").read_text().splitlines()[-1])
    (page,) = folder.glob(f"{line['at'][:10]}*.html")
    text = page.read_text()
    assert sections_of(page) == [
        "comparison",
        "start",
        "drift",
        "slices",
        "calibration",
        "nights",
        "unseen",
        "embeddings",
        "data",
    ]
    assert f"Promoted: run {line['run']} is the current model now." in text
    assert re.search(r"AUC [+-]0\.\d{4} \([+-]0\.\d{4} to [+-]0\.\d{4}\)", text)
    assert line["bound"] < line["gain"] < line["upper"]
    assert 0 < line["prediction_churn"] < 0.3
    assert ">prediction churn<" in text
    assert f'href="../{line["run"]}/report.html"' in text
    assert "Warm: it went on from weights, optimizer and ids of an earlier run" in text
    assert line["splits"] == {"train": 4800, "valid": 600, "test": 600}
    bad = write_day(finished.raw, 2, 600)
    bad.write_bytes(b"")
    assert run_nightly(finished.config) == REFUSED
    bad.unlink()
    assert main(["nightly", "--config", str(finished.config), "trian.epochs=1"]) == FAILED  # no page of its own
    with folder_lock(finished.home / "nightly.lock"):
        assert run_nightly(finished.config) == FAILED
    assert len(list(folder.glob("2*.html"))) == 4
    last = (finished.home / "nightly.html").read_text()
    assert "another" in last
    assert 'href="nights/index.html"' in last
    index = Page((folder / "index.html").read_text())
    assert [word for word in index.words if word in ("promoted", "data refused", "failed")] == [
        "failed", "failed", "data refused", "promoted"
    ]  # fmt: skip


def test_a_night_that_is_stopped_has_its_page_and_a_second_signal_leaves_its_one_line(finished, monkeypatch):
    write_day(finished.raw, 1, 600)

    def stop(*_, **__):
        raise Stopped(signal.SIGTERM)

    monkeypatch.setattr(learning, "compare", stop)
    with pytest.raises(Stopped) as stopped:
        run_nightly(finished.config, ["train.epochs=1"])
    assert stopped.value.recorded
    page = (finished.home / "nightly.html").read_text()
    assert "The night was stopped: run" in page
    assert "seconds" in page
    monkeypatch.setattr(nightly, "write_night", stop)
    with pytest.raises(Stopped) as stopped:
        run_nightly(finished.config, ["train.epochs=1"])
    assert stopped.value.recorded
    assert len((finished.home / "nightly.jsonl").read_text().splitlines()) == 3  # with that of the first training


def test_a_look_at_the_window_that_fails_changes_nothing_of_the_night(finished, monkeypatch, caplog):
    write_day(finished.raw, 1, 600)
    monkeypatch.setattr(findings, "findings", lambda *_: 1 / 0)
    assert run_nightly(finished.config, ["nightly.tolerance=1", "train.epochs=1"]) == PROMOTED
    assert "the night's page is without what the window tells" in caplog.text
    assert "slices" not in sections_of(finished.home / "nightly.html")


def test_a_signal_during_the_look_stops_the_night(monkeypatch):
    def stop(*_):
        try:
            raise Stopped(signal.SIGTERM)
        except KeyboardInterrupt as error:
            raise SystemError("a compiled loop") from error

    monkeypatch.setattr(findings, "findings", stop)
    with pytest.raises(SystemError):
        Material().look(None, Path())


def test_a_disk_that_refuses_the_folder_leaves_the_record(tmp_path):
    (tmp_path / "nights").write_text("a file")
    append_record(tmp_path, "nightly", KEPT, "Kept.", None)
    with pytest.raises(FileExistsError):
        write_night(tmp_path, night(0), Material())
    assert len((tmp_path / "nightly.jsonl").read_text().splitlines()) == 1


def test_a_gain_that_is_no_number_leaves_the_bars_of_others_as_they_are():
    """A model's infinite prediction: its bar's text had 301 digits, and the others were squeezed to nothing."""
    other = Gain("z", "RMSE", 0.01, 0.0, 0.02, 0.001)
    (alone,) = gain_bars([other])
    for ends in ((-1e300, -1e300, -1e300), (-0.0, -1e300, 0.0)):
        bar, beside = gain_bars([Gain("y", "RMSE", *ends, 0.001), other])
        assert beside == alone
        assert "no number" in bar["text"]
        assert len(bar["text"]) < 60
        assert 0 <= bar["low"] <= bar["place"] <= bar["high"] <= 100
    assert bar["text"].startswith("+0.0000 (")
