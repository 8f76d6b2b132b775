"""What is decided about files: what the features stage then reads, what is written, what a killed night finds."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import threading

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.engines import pandas as engine
from gigabatch.features.errors import DataError
from gigabatch.features.reading import sources
from gigabatch.features.refit.statistics_files import save_statistics
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.contract import decide as decide_module
from gigabatch.pipeline.contract.decide import (
    accept,
    check_new,
    contract_path,
    decide,
    finish,
    learn_contract,
    new_files,
)
from gigabatch.pipeline.contract.state import _checksum, read_state
from gigabatch.pipeline.contract.terms import ContractError, column_types
from gigabatch.pipeline.nightly.manifest import read_manifest
from gigabatch.pipeline.nightly.nightly import Night, _tidy, data_of, refused_by, waits
from gigabatch.pipeline.stages.stages import Pipeline
from gigabatch.pipeline.store.artifacts import ArtifactStore
from gigabatch.pipeline.store.files import ArtifactError
from gigabatch.pipeline.store.garbage import collect_artifacts
from gigabatch.pipeline.store.keys import artifact_key
from tests.pipeline.contract.conftest import Shop, end_of, shop_day
from tests.pipeline.read_only import read_only, unreadable


@pytest.fixture
def learned(learned_as):
    return learned_as(now=end_of(5))


def night(shop, day, **features):
    config = shop.config(**features)
    return decide(config, check_new(config, end_of(day)), end_of(day))


def rows(shop):
    made = Pipeline(shop.config()).features()
    return sum(made.rows.values())


def train(home, run):
    """As far as the record of files sees one that is there."""
    (home / run).mkdir(parents=True)
    (home / run / "manifest.json").write_text("{}")


def edit(shop, old, new):
    path = contract_path(shop.config())
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_a_checked_file_is_not_parsed_again_by_the_features_stage(learned, monkeypatch):
    parsed = []
    real = engine.read_csv

    def counted(path, **options):
        if options.get("nrows") is None:
            parsed.append(os.path.basename(path))
        return real(path, **options)

    monkeypatch.setattr(engine, "read_csv", counted)
    learned.write(6, shop_day(6))
    night(learned, 6)
    made = Pipeline(learned.config()).features()
    assert parsed == ["day-006.csv"]
    assert {entry["state"] for entry in made.artifact.manifest["inputs"]} == {"reused"}
    assert sum(made.rows.values()) == 7 * 2000


def test_what_is_in_quarantine_is_not_read_until_a_person_takes_it(learned):
    bad = learned.write(6, shop_day(6).assign(price=9e6))
    learned.write(7, shop_day(7))
    decision = night(learned, 7)
    assert (decision.quarantined, decision.refused) == ((str(bad),), ())
    assert "'price': 2,000 row(s) are above" in " ".join(decision.warnings)
    # The day that is missing doubles the share of new users, which is told and counts as no drift.
    assert decision.drift["all"].verdicts()["user"] == "warn"
    before = Pipeline(learned.config()).features()
    assert sum(before.rows.values()) == 7 * 2000
    finish(learned.config())
    assert new_files(learned.config()) == []
    text = accept(learned.config(), "day-006.csv")
    assert "2,000 rows" in text
    entry = read_state(learned.root / "runs" / "shop").files[str(bad)]
    assert (entry.state, entry.by, entry.rows) == ("accepted", "person", 2000)
    after = Pipeline(learned.config()).features()
    assert sum(after.rows.values()) == 8 * 2000
    assert after.artifact.key != before.artifact.key
    with pytest.raises(ContractError, match=r"nothing\.csv is no file that the recipe reads"):
        accept(learned.config(), "nothing.csv")


def test_a_corrected_file_is_checked_again(learned):
    path = learned.write(6, shop_day(6).assign(price=9e6))
    night(learned, 6)
    learned.write(6, shop_day(6))
    decision = night(learned, 6)
    assert (decision.accepted, decision.quarantined) == ((str(path),), ())
    assert rows(learned) == 7 * 2000


def test_a_corrected_file_that_is_late_by_now_names_what_takes_it(learned):
    """It named `backfill`, which lets no file pass that lies in quarantine already."""
    learned.write(6, shop_day(6).assign(price=9e6))
    night(learned, 6)
    finish(learned.config())
    learned.write(7, shop_day(7))
    told = waits(night(learned, 7))
    assert "--accept FILE takes one, also one that was corrected and is late by now" in told
    finish(learned.config())
    path = learned.write(6, shop_day(6))
    decision = night(learned, 7)
    assert decision.quarantined == (str(path),)
    told = " ".join(decision.warnings)
    assert "2,000 row(s) lie before what was accepted" in told
    assert "If it is meant to hold them, gigabatch contract --accept FILE takes it" in told
    accept(learned.config(), str(path))
    assert night(learned, 7).quarantined == ()
    assert rows(learned) == 8 * 2000


def test_a_night_after_bad_files_that_a_person_took_or_removed_is_not_told_of_them(learned):
    """It was refused once more, since no new file was good."""
    taken, removed = (learned.write(day, shop_day(day).assign(price=9e6)) for day in (6, 7))
    assert night(learned, 7).quarantined == (str(taken), str(removed))
    accept(learned.config(), taken.name)
    assert night(learned, 7).quarantined == (str(removed),)
    removed.unlink()
    assert night(learned, 7).quarantined == ()


def test_a_night_of_bad_files_alone_reads_what_a_person_took_before(learned):
    """It ended as one without a good file, though `contract --accept` said that the next run reads the file."""
    taken = learned.write(6, shop_day(6).assign(price=9e6))
    night(learned, 6)
    finish(learned.config())
    accept(learned.config(), taken.name)
    bad = learned.write(7, shop_day(7).assign(price=9e6))
    decision = night(learned, 7)
    assert (decision.accepted, decision.quarantined) == ((str(taken),), (str(bad),))
    assert refused_by(decision) is None


def test_bad_rows_are_dropped_counted_and_written_down(learned):
    edit(learned, "on_bad_rows: keep", "on_bad_rows: drop")
    frame = shop_day(6).assign(reason="mine")
    frame.loc[[3, 900, 1999], "price"] = [9e6, 8e6, -1.0]
    frame.loc[7, "at"] += 40 * 86_400
    path = learned.write(6, frame)
    decision = night(learned, 6)
    assert decision.accepted == (str(path),)
    told = " ".join(decision.warnings)
    assert "'price': 2 row(s) are above" in told
    assert "up to 9e+06" in told
    entry = read_state(learned.root / "runs" / "shop").files[str(path)]
    assert (entry.dropped, entry.rows) == ((3, 7, 900, 1999), 1996)
    assert rows(learned) == 6 * 2000 + 1996
    (written,) = (learned.root / "runs" / "shop" / "quarantine").iterdir()
    found = pd.read_csv(written)
    assert found["row"].tolist() == [3, 7, 900, 1999]
    assert found["reason"].tolist() == ["price above", "at future", "price above", "price below"]
    assert found["user"].tolist() == frame["user"][[3, 7, 900, 1999]].tolist()
    learned.write(7, shop_day(7).assign(price=9e6))  # too many bad rows
    assert len(night(learned, 7).quarantined) == 1


def test_few_rows_out_of_range_are_kept_or_refused_by_choice(learned):
    frame = shop_day(6)
    frame.loc[3, "price"] = 9e6
    learned.write(6, frame)
    (report,) = check_new(learned.config(), end_of(6))
    assert (report.accepted, report.dropped) == (True, ())
    assert "1 row(s) are above" in report.warnings[0]
    edit(learned, "on_bad_rows: keep", "on_bad_rows: refuse")
    (report,) = check_new(learned.config(), end_of(6))
    assert not report.accepted


def test_a_night_may_be_refused_for_a_file_and_nothing_is_written(learned):
    edit(learned, "on_bad_file: quarantine", "on_bad_file: refuse")
    state = read_state(learned.root / "runs" / "shop")
    learned.write(6, shop_day(6).drop(columns="city"))
    learned.write(7, shop_day(7))
    decision = night(learned, 7)
    assert "'city'" in decision.refused[0]
    assert decision.accepted == ()
    assert read_state(learned.root / "runs" / "shop") == state


@pytest.mark.parametrize("choice", ["warn", "refuse", "cold"])
def test_drift_is_told_refused_or_means_a_cold_start(learned, choice):
    edit(learned, "on_drift: warn", f"on_drift: {choice}")
    swapped = shop_day(6).assign(city=lambda f: f["city"].map({"Oslo": "Lima", "Lima": "Oslo", "Bonn": "Bonn"}))
    path = learned.write(6, swapped)
    decision = night(learned, 6)
    assert any("column 'city': psi" in text for text in decision.warnings)
    assert decision.drift["all"].verdicts()["city"] == "drift"
    assert decision.drift["all"].verdicts()["price"] == "ok"
    assert bool(decision.refused) == (choice == "refuse")
    assert bool(decision.cold) == (choice == "cold")
    assert decision.accepted == (() if choice == "refuse" else (str(path),))


def test_new_rows_are_held_against_all_accepted_before(learned, monkeypatch):
    for day in (6, 7):
        learned.write(day, shop_day(day))
        found = night(learned, day).drift["all"]
        assert (found.rows_old, found.rows) == (day * 2000, 2000)
        finish(learned.config())
    shutil.rmtree(learned.root / "artifacts" / "accepted")  # what was kept is made again from the files
    learned.write(8, shop_day(8))
    assert night(learned, 8).drift["all"].rows_old == 8 * 2000


@pytest.mark.parametrize("changed", ["null_values", "label"])
def test_rows_accepted_before_are_held_as_they_are_read_now(shop, changed):
    """They were kept as another configuration read them."""

    def bought(one, zero):
        steps = [{"clean_text": {"replace": {"1": one, "0": zero}}}]
        return {"bought": {"task": "binary", "positive": "yes", "label_steps": steps}}

    features = {"targets": bought("yes", "no")}
    learn_contract(shop.config(**features), now=end_of(5))
    if changed == "null_values":
        features |= {"null_values": ["", "NA", "Lima"]}
    else:
        features |= {"targets": bought("no", "yes")}
    learn_contract(shop.config(**features), force=True, now=end_of(5))
    shop.write(6, shop_day(6))
    decision = night(shop, 6, **features)
    assert decision.quarantined == ()
    found = decision.drift["all"]
    assert found.rows_old == 6 * 2000
    assert found.verdicts()["city"] == found.verdicts()["bought"] == "ok"
    (city,) = [item for item in found.columns if item.column == "city"]
    lima = np.mean([(shop_day(day)["city"] == "Lima").mean() for day in range(6)])
    assert city.null_rate_old == pytest.approx(lima if changed == "null_values" else 0.0)


def keep_as_before_settings_counted(place, kind, entries, statistics):
    """As the version before wrote it: by the files, the columns and the engine alone."""

    def write(folder):
        save_statistics(statistics, folder)
        return {"kind": kind.name, "rows": statistics.rows}

    files = sorted([entry.checksum, *map(str, entry.dropped)] for entry in entries.values())
    settings = {"kind": kind.name, "columns": column_types(kind), "engine": place.engine}
    place.store.build("accepted", artifact_key("accepted", {"files": files}, settings, "1"), write)


@pytest.mark.parametrize("earlier", [True, False])
def test_rows_of_files_that_are_gone_count_after_an_upgrade(shop, monkeypatch, earlier):
    """What this version has kept of other settings is told from it."""
    settings = {"null_values": [""]}
    with monkeypatch.context() as patch:
        if earlier:
            patch.setattr(decide_module._Place, "keep", keep_as_before_settings_counted)
        learn_contract(shop.config(**settings if earlier else {}), now=end_of(5))
    (shop.raw / "day-000.csv").unlink()
    for day in (6, 7):
        shop.write(day, shop_day(day))
        found = night(shop, day, **settings).drift["all"]
        assert found.rows_old == (day if earlier else day - 1) * 2000
        finish(shop.config(**settings))


@pytest.mark.parametrize("with_contract", [True, False])
def test_what_drift_is_measured_without_is_told_once_a_night(learned, caplog, with_contract):
    """The check told of it, and the decision again."""
    shutil.rmtree(learned.root / "artifacts" / "accepted")
    (learned.raw / "day-000.csv").unlink()
    learned.write(6, shop_day(6))
    if not with_contract:
        contract_path(learned.config()).unlink()
    assert night(learned, 6).drift["all"].rows_old == 5 * 2000
    assert [text for text in caplog.messages if "drift is measured without it" in text] == [
        f"{learned.raw}/day-000.csv was accepted and is gone or has changed; drift is measured without it"
    ]


def test_a_night_that_was_killed_is_told_the_same_again(learned):
    edit(learned, "on_drift: warn", "on_drift: cold")
    path = learned.write(6, shop_day(6).assign(city="Lima"))
    edit(learned, "unseen: [0.05, 0.2]", "unseen: [0.05, 0.9]")
    first = night(learned, 6)
    again = night(learned, 6)  # no new file
    assert first.cold
    assert (again.cold, again.accepted, again.warnings) == (first.cold, (str(path),), first.warnings)
    finish(learned.config())
    assert night(learned, 6).cold == {}


@pytest.mark.parametrize("change", ["corrected", "grown", "moved away", "one of two moved away"])
def test_a_night_after_one_that_was_killed_tells_of_the_files_as_they_are_now(learned, change):
    """Drift of rows that are there no more was told as tonight's, and rows of a corrected file counted twice."""
    contract = contract_path(learned.config())
    contract.write_text(re.sub(r"range: \[[^]]*\]", "range: [0, 100000]", contract.read_text()))
    other = shop_day(6).assign(price=lambda rows: rows["price"] + 500)
    far = learned.write(6, other.iloc[:1800])
    near = learned.write(7, shop_day(7)) if change == "one of two moved away" else None
    day = 7 if near else 6
    assert night(learned, day).drift["all"].verdicts()["price"] == "drift"
    if change == "corrected":
        learned.write(6, shop_day(6))
    elif change == "grown":
        learned.write(6, other)
    else:
        far.unlink()
    for _ in range(2):  # the second of them was killed, too
        decision = night(learned, day)
        lost = f"{far}: it was accepted and is not there any more; its rows are lost."  # a model may have learned them
        assert decision.warnings.count(lost) == ("away" in change)
        if change == "moved away":
            assert (decision.drift, decision.accepted, decision.warnings) == ({}, (), (lost,))
            continue
        found, told = decision.drift["all"], any("'price'" in text for text in decision.warnings)
        assert (decision.accepted, found.rows_old, found.rows) == ((str(near or far),), 12_000, 2000)
        assert (found.verdicts()["price"], told) == (("drift", True) if change == "grown" else ("ok", False))
    assert rows(learned) == (6 if change == "moved away" else 7) * 2000


def begun_day(shop, rows):
    """The sixth day, of which a night that ended has had so many rows."""
    day = shop_day(6)
    if rows:
        shop.write(6, day.iloc[:rows])
        night(shop, 6)
        finish(shop.config())
    return day


@pytest.mark.parametrize("ended_before", [0, 1500])
def test_a_correction_of_what_a_night_accepted_that_did_not_end_gives_a_cold_night(learned, ended_before):
    """A person may have promoted that night's model: nights stayed warm, on weights that had learned the old rows."""
    day = begun_day(learned, ended_before)
    path = learned.write(6, day.iloc[:1800])
    assert night(learned, 6).cold == {}
    learned.write(6, day.assign(bought=np.where(day.index == 1700, 1 - day["bought"], day["bought"])))
    for _ in range(2):
        decision = night(learned, 6)
        assert decision.accepted == (str(path),)
        assert [*decision.cold] == [
            f"{path}: it has changed and its earlier rows are others, so all rows are learned anew."
        ]
        assert decision.drift["all"].rows == 2000 - ended_before  # no night has been told of these


@pytest.mark.parametrize("ended_before", [0, 1500])
def test_a_file_that_a_night_accepted_that_did_not_end_may_lose_no_rows(learned, ended_before):
    """It was taken with the rows that had come, as if nobody knew of the others."""
    day = begun_day(learned, ended_before)
    path = learned.write(6, day)
    assert night(learned, 6).accepted == (str(path),)
    learned.write(6, day.iloc[:1500])
    for end in (False, False, True):  # of which the last one ends
        decision = night(learned, 6)
        assert (decision.accepted, decision.quarantined, decision.drift) == ((), (str(path),), {})
        assert f"{path}: it was accepted with 2,000 rows and now holds 1,500." in decision.warnings
        if end:
            finish(learned.config())
    learned.write(6, day)
    assert night(learned, 6).accepted == (str(path),)
    assert rows(learned) == 7 * 2000


def test_a_person_takes_what_a_night_accepted_that_did_not_end(learned):
    """It was said to be accepted, and the next night put it in quarantine."""
    path = learned.write(6, shop_day(6))
    assert night(learned, 6).accepted == (str(path),)
    assert "is accepted, with its 2,000 rows" in accept(learned.config(), path.name)
    assert accept(learned.config(), path.name).endswith("is accepted already.")
    contract = contract_path(learned.config())
    contract.write_text(re.sub(r"rows: \[[^]]*\]", "rows: [5000, 9000]", contract.read_text()))
    decision = night(learned, 6)
    assert (decision.accepted, decision.quarantined) == ((str(path),), ())
    assert read_state(learned.root / "runs" / "shop").files[str(path)].by == "person"


def test_a_crash_leaves_the_old_record_or_the_new(learned, monkeypatch):
    learned.write(6, shop_day(6))
    home = learned.root / "runs" / "shop"
    before = (home / "files.json").read_bytes()
    reports = check_new(learned.config(), end_of(6))
    real = os.replace

    def killed(source, target):
        if str(target).endswith("files.json"):
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        decide(learned.config(), reports, end_of(6))
    monkeypatch.undo()
    assert (home / "files.json").read_bytes() == before
    assert [path.name for path in home.glob(".files*")] == []
    assert len(night(learned, 6).accepted) == 1


def test_a_damaged_record_is_named(learned):
    path = learned.root / "runs" / "shop" / "files.json"
    whole = path.read_text()
    flipped = json.loads(whole)
    next(iter(flipped["files"].values()))["state"] = "quarantined"
    for text in (whole[:-40], "[]", "{}", json.dumps(flipped), whole.replace('"format": 1', '"format": 7'), "\0"):
        path.write_text(text)
        with pytest.raises(ContractError, match=r"files\.json"):
            new_files(learned.config())
        with pytest.raises(ContractError, match=r"files\.json"):
            Pipeline(learned.config()).features()


def test_late_and_lost_files_are_told(learned):
    (learned.raw / "day-002.csv").unlink()
    decision = night(learned, 9)
    assert any("are late: the newest row is of 2023-11-19T23:59:04" in text for text in decision.warnings), (
        decision.warnings
    )
    assert any("day-002.csv: it was accepted and is not there any more" in text for text in decision.warnings)
    finish(learned.config())
    again = night(learned, 9)  # a folder that keeps a month would tell of a year's files each night
    assert not any("not there any more" in text for text in again.warnings)
    learned.write(2, shop_day(2))  # it is the file that was accepted
    assert new_files(learned.config()) == []
    night(learned, 9)
    finish(learned.config())
    (learned.raw / "day-002.csv").unlink()
    assert any("not there any more" in text for text in night(learned, 9).warnings)


def test_what_was_learned_of_old_files_calls_none_late(shop):
    """Each night of the year after said how late they are."""
    terms = learn_contract(shop.config(), now=end_of(300)).contract.files["all"]
    assert terms.freshness is None
    assert night(shop, 300).warnings == ()
    terms = learn_contract(shop.config(), now=end_of(6)).contract.files["all"]
    assert terms.freshness == pytest.approx(1.5 * 86_400 + 43_200, abs=1000)


def test_files_that_lie_elsewhere_now_are_the_same_files(learned):
    bad = learned.write(6, shop_day(6).assign(price=9e6))
    night(learned, 6)
    finish(learned.config())
    learned.raw.rename(learned.root / "moved")
    learned.raw = learned.root / "moved"
    assert new_files(learned.config()) == []
    assert rows(learned) == 6 * 2000
    learned.write(7, shop_day(7))
    assert len(night(learned, 7).accepted) == 1
    files = read_state(learned.root / "runs" / "shop").files
    assert {os.path.dirname(path) for path in files} == {str(learned.raw)}
    assert files[str(learned.raw / bad.name)].state == "quarantined"


def test_an_accepted_file_may_be_renamed_compressed_or_corrected(learned):
    """None of its rows is lost, and none counts twice in what later rows are held against."""
    (learned.raw / "day-001.csv").rename(learned.raw / "old-1.csv")
    (learned.raw / "day-002.csv").unlink()
    packed = learned.write("day-002.csv.gz", shop_day(2))
    corrected = learned.write(3, shop_day(3).assign(price=5.0))
    decision = night(learned, 6)
    assert decision.quarantined == ()
    assert decision.accepted == (str(packed), str(corrected))
    assert rows(learned) == 6 * 2000
    assert not any("rows are lost" in text for text in decision.warnings)
    learned.write(6, shop_day(6))
    again = night(learned, 6)
    assert again.drift["all"].rows_old == 6 * 2000
    assert rows(learned) == 7 * 2000


def test_a_file_beside_its_packed_self_is_in_quarantine_and_without_a_night_an_error(learned, shop):
    packed = learned.write("day-005.csv.gz", shop_day(5))
    assert night(learned, 6).quarantined == (str(packed),)
    assert rows(learned) == 6 * 2000
    (learned.root / "runs" / "shop" / "files.json").unlink()
    with pytest.raises(DataError, match=r"day-005\.csv: day-005\.csv\.gz is there too"):
        rows(learned)


def test_one_file_alone_takes_the_place_of_one_that_is_gone(learned):
    (learned.raw / "day-001.csv").unlink()
    for name in ("a.csv", "b.csv"):
        learned.write(name, shop_day(1))
    assert night(learned, 6).quarantined == (str(learned.raw / "b.csv"),)
    assert rows(learned) == 6 * 2000


def test_names_that_move_on_each_day_are_those_of_the_same_files(learned):
    """As log.1, which is log.2 tomorrow."""
    for day in range(5, -1, -1):
        (learned.raw / f"day-{day:03d}.csv").rename(learned.raw / f"day-{day + 1:03d}.csv")
    newest = learned.write(0, shop_day(6))
    decision = night(learned, 6)
    assert (decision.accepted, decision.quarantined) == ((str(newest),), ())
    assert rows(learned) == 7 * 2000
    assert decision.drift["all"].rows_old == 6 * 2000


def test_what_cannot_even_be_opened_is_in_quarantine(learned):
    (learned.raw / "sub.csv").mkdir()
    learned.write(6, shop_day(6))
    decision = night(learned, 6)
    assert decision.quarantined == (str(learned.raw / "sub.csv"),)
    assert any("sub.csv" in text and "directory" in text.lower() for text in decision.warnings)
    assert rows(learned) == 7 * 2000
    finish(learned.config())
    assert new_files(learned.config()) == []


def test_a_file_that_changes_between_check_and_decision_is_refused(learned):
    learned.write(6, shop_day(6))
    reports = check_new(learned.config(), end_of(6))
    learned.write(6, shop_day(6).iloc[:-1])
    with pytest.raises(ContractError, match=r"day-006\.csv has changed since it was checked"):
        decide(learned.config(), reports, end_of(6))


def test_a_clock_that_has_gone_back_puts_no_good_file_aside(learned):
    """It stood in quarantine for good, a day of rows lost, after a machine had started with a dead battery."""
    good = learned.write(6, shop_day(6))
    before = read_state(learned.root / "runs" / "shop")
    with pytest.raises(ContractError, match=r"day-006\.csv: .* in the future.* clock says 2023-11.* gone back"):
        night(learned, 0)  # files were decided about today
    assert read_state(learned.root / "runs" / "shop") == before
    assert night(learned, 6).accepted == (str(good),)
    # Of a clock that goes on, it is the file that is wrong.
    wrong = learned.write(7, shop_day(7).assign(at=lambda rows: rows["at"] + 20 * 365 * 86_400))
    config = learned.config()
    assert decide(config, check_new(config)).quarantined == (str(wrong),)


def test_what_a_person_accepts_between_check_and_decision_stays_accepted(learned):
    """A check of large files takes minutes, in which nothing is locked."""
    bad = learned.write(6, shop_day(6).assign(price=9e6))
    good = learned.write(7, shop_day(7))
    reports = check_new(learned.config(), end_of(7))
    accept(learned.config(), str(bad))
    decision = decide(learned.config(), reports, end_of(7))
    assert (decision.accepted, decision.quarantined) == ((str(bad), str(good)), ())
    entry = read_state(learned.root / "runs" / "shop").files[str(bad)]
    assert (entry.state, entry.by) == ("accepted", "person")
    assert rows(learned) == 8 * 2000


def test_what_a_person_accepts_after_a_night_was_told_is_told_to_the_next_one(learned):
    """The end of that night forgot it, and the next one stayed warm on the rows as they had been."""
    train(learned.root / "runs" / "shop", "old")
    nights_with(learned, 6)
    path = learned.write(6, constant_labels(6))
    night(learned, 6)
    finish(learned.config())
    assert night(learned, 6).cold == {}
    accept(learned.config(), path.name)
    finish(learned.config())
    for _ in range(2):
        decision = night(learned, 6)
        assert decision.accepted == (str(path),)
        assert [text for text in decision.cold if "day-006.csv: it has changed" in text]
    finish(learned.config(), run="old")
    assert (night(learned, 6).accepted, night(learned, 6).cold) == ((), {})


def test_a_night_waits_for_a_person_who_learns_or_accepts(learned):
    """`gigabatch contract` holds the lock while it reads all files: no reason to fail a night."""
    learned.write(6, shop_day(6))
    reports = check_new(learned.config(), end_of(6))
    lock = learned.root / "runs" / "shop" / "files.lock"
    with open(lock, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        release = threading.Timer(1.5, lambda: fcntl.flock(file, fcntl.LOCK_UN))
        release.start()
        try:
            assert len(decide(learned.config(), reports, end_of(6)).accepted) == 1
        finally:
            release.join()


def test_the_command_tells_what_lies_in_quarantine_and_what_was_not_learned_from(shop, capsys, monkeypatch, tmp_path):
    from gigabatch.pipeline.commands.app import main

    learn_contract(shop.config())
    bad = shop.write(6, shop_day(6).assign(price=1e9))
    shop.write(7, shop_day(7))
    config = shop.config()
    decide(config, check_new(config, end_of(7)), end_of(7))
    finish(config)
    shop.write(8, shop_day(8))
    path = tmp_path / "shop.yaml"
    path.write_text(config.to_yaml())
    assert main(["contract", "--config", str(path), "--check"]) == 0
    assert f"in quarantine: {bad} (--accept FILE" in capsys.readouterr().out
    assert main(["contract", "--config", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "learned from 7 file(s) of kind 'all', 14,000 rows" in shown
    assert "not from 2 file(s) that are in quarantine or new" in shown


def test_the_command_learns_checks_and_accepts(tmp_path, capsys, monkeypatch):
    from gigabatch.pipeline.commands.app import main

    monkeypatch.chdir(tmp_path)
    shop = Shop(tmp_path)
    path = tmp_path / "shop.yaml"
    path.write_text(shop.config().to_yaml())
    assert main(["contract", "--config", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "learned from 6 file(s) of kind 'all', 12,000 rows" in shown
    assert "contract.yaml" in shown
    assert "--check" in shown
    shop.write(6, shop_day(0).assign(at=shop_day(3)["at"], price=1e9))
    assert main(["contract", "--config", str(path), "--check"]) == 20
    shown = capsys.readouterr().out
    assert "1 new file(s), 1 refused" in shown
    assert "lie before what was accepted" in shown
    assert main(["contract", "--config", str(path), "--accept", "day-006.csv"]) == 0
    assert main(["contract", "--config", str(path), "--check"]) == 0
    assert main(["contract", "--config", str(path), "--check", "--accept", "x"]) == 2


def test_rows_with_a_history_are_carried_over_bad_files_and_dropped_rows(shop):
    """Six days, then a bad file, bad rows that are dropped, and the bad file again when it was taken."""
    hour = {"by": ["user"], "time": "at", "column": "price", "window": 3600, "statistic": "max", "output": "hour"}
    rate = {"by": ["city"], "hits": "bought", "output": "rate", "at": "at"}
    looks_back = {
        "steps": [{"rolling": hour}, {"target_encoding": rate}],
        "continuous": ["price", "hour", "rate"],
        "inputs": {"price": "float64"},
    }

    learn_contract(shop.config(**looks_back))
    edit(shop, "on_bad_rows: keep", "on_bad_rows: drop")

    def tonight(day):
        night(shop, day, **looks_back)
        return Pipeline(shop.config(**looks_back)).features()

    first = Pipeline(shop.config(**looks_back)).features()
    assert first.history["computed"] == 12_000
    (first_kept,) = (path.name for path in (shop.root / "artifacts" / "history").glob("[0-9a-f]*"))
    bad = shop.write(6, shop_day(6).drop(columns="city"))
    frame = shop_day(7)
    frame.loc[[3, 900], "price"] = 9e6
    dropped = shop.write(7, frame)
    made = tonight(7)
    assert made.history["note"] is None
    assert made.history["computed"] == 1998 + 1  # the last row of the sixth day was open
    assert made.files == {"read": 0, "reused": 1, "carried": 6}
    state = read_state(shop.root / "runs" / "shop").files
    assert (state[str(bad)].state, state[str(dropped)].dropped) == ("quarantined", (3, 900))
    shop.write(8, shop_day(8))
    made = tonight(8)
    assert (made.history["note"], made.history["computed"]) == (None, 2001)
    days = [*(shop_day(day) for day in range(6)), frame.drop(index=[3, 900]), shop_day(8)]
    whole = pd.concat(days, ignore_index=True)
    expected = np.full(len(whole), np.nan)
    for _, own in whole.groupby("user"):
        times, prices = own["at"].to_numpy(), own["price"].to_numpy()
        earlier = (times[None, :] < times[:, None]) & (times[None, :] >= times[:, None] - 3600) & ~np.isnan(prices)
        largest = np.where(earlier, prices, -np.inf).max(axis=1)
        expected[own.index] = np.where(earlier.any(axis=1), largest, np.nan)
    parts = [path for split in ("train", "valid", "test") for path in made.parts(split)]
    found = pd.concat([pd.read_parquet(path) for path in parts], ignore_index=True)
    assert found["row_number"].tolist() == list(range(len(whole)))
    assert found["at"].tolist() == whole["at"].tolist()
    np.testing.assert_allclose(found["hour"], expected, rtol=1e-6)

    shop.write(6, shop_day(6))  # as it should have been: it lies before what was finished
    accept(shop.config(**looks_back), "day-006.csv")
    made = tonight(8)  # from the history of the first six days, the last that it comes behind
    assert (made.history["note"], made.history["from"]) == (None, first_kept)
    assert made.history["computed"] == 2000 + 1998 + 2000 + 1


def test_a_nights_list_of_data_names_what_was_read_and_opens_nothing_else(learned):
    learned.write(6, shop_day(6).drop(columns="city"))
    (learned.raw / "day-007.csv").mkdir()  # no one can read it as a file
    learned.write(8, shop_day(8))
    assert len(night(learned, 8).quarantined) == 2
    read = read_manifest(learned.root / "runs" / "shop", data_of(learned.config(), None)["manifest"])
    assert [name.partition(":")[2] for name in read] == [f"day-{day:03d}.csv" for day in (*range(6), 8)]


def constant_labels(day):
    return shop_day(day).assign(bought=1)


def nights_with(shop, *days):
    for day in days:
        shop.write(day, shop_day(day))
        assert night(shop, day).cold == {}
        finish(shop.config())


@pytest.mark.parametrize("content", ["corrected", "as it was"])
def test_a_file_whose_bad_correction_lay_in_quarantine_is_taken_when_it_is_right(learned, content):
    """It was too old for the contract, as nobody knew any more that its rows had been accepted once."""
    nights_with(learned, 6, 7, 8)
    path = learned.write(6, constant_labels(6))
    for _ in range(2):  # twice wrong
        assert night(learned, 8).quarantined == (str(path),)
        finish(learned.config())
        learned.write(6, constant_labels(6).assign(price=7.0))
    right = shop_day(6) if content == "as it was" else shop_day(6).assign(city="Bonn")
    learned.write(6, right)
    decision = night(learned, 8)
    assert (decision.accepted, decision.quarantined) == ((str(path),), ())
    assert bool(decision.cold) == (content == "corrected")
    assert rows(learned) == 9 * 2000


def test_a_corrected_file_that_a_person_takes_from_quarantine_gives_a_cold_night(learned):
    """Nights stayed warm, on weights that had learned its rows as they were."""
    nights_with(learned, 6, 7)
    learned.write(6, constant_labels(6))
    assert night(learned, 7).cold == {}
    finish(learned.config())
    accept(learned.config(), "day-006.csv")
    assert [text for text in night(learned, 7).cold if "day-006.csv: it has changed" in text]
    finish(learned.config())
    assert night(learned, 7).cold == {}  # no run was there that could have learned them as they were
    learned.write(8, constant_labels(8))  # one that was never accepted has taught nothing wrong
    night(learned, 8)
    accept(learned.config(), "day-008.csv")
    assert night(learned, 8).cold == {}


def test_what_asks_for_a_cold_night_names_the_runs_until_they_are_gone_or_have_learned_it(learned):
    """Each run owes what has come since it was trained, whichever of them is current."""
    home = learned.root / "runs" / "shop"
    train(home, "old")
    nights_with(learned, 6, 7)
    learned.write(6, shop_day(6).assign(city="Bonn"))
    cold = night(learned, 7).cold
    (text,) = cold
    assert cold == {text: ["old"]}
    train(home, "first")
    accept(learned.config(), str(learned.write(7, constant_labels(7))))  # while the first one is trained
    (late,) = set(read_state(home).cold) - {text}
    for _ in range(2):  # as after a kill
        finish(learned.config(), cold | {"drift: of prices": ["old"]}, "first")
        assert read_state(home).cold == {text: ["old"], late: ["first", "old"], "drift: of prices": ["old"]}
    assert night(learned, 7).cold == read_state(home).cold
    finish(learned.config(), run="old")  # as where the file is again what it was
    assert read_state(home).cold == {late: ["first"]}
    shutil.rmtree(home / "first")
    finish(learned.config())
    assert (read_state(home).cold, read_state(home).pending) == ({}, None)


def write_as_before_runs_were_named(home, pending):
    raw = json.loads((home / "files.json").read_text())
    del raw["cold"], raw["checksum"]
    raw["pending"] = pending
    (home / "files.json").write_text(json.dumps(raw | {"checksum": _checksum(raw)}))


def test_a_record_of_before_runs_were_named_asks_of_all_that_are_there(learned):
    home = learned.root / "runs" / "shop"
    train(home, "old")
    write_as_before_runs_were_named(home, {"accepted": [], "cold": ["far drift"], "told": [], "before": {}})
    assert night(learned, 6).cold == {"far drift": ["old"]}


def test_what_a_record_of_before_runs_were_named_has_not_told_is_for_the_next_night(learned):
    """A first night that is refused decides nothing and ends all the same."""
    home = learned.root / "runs" / "shop"
    told, since = (str(learned.raw / f"day-{day:03d}.csv") for day in (4, 5))
    pending = {"accepted": [told, since], "cold": [], "told": [told], "before": {}}
    write_as_before_runs_were_named(home, pending)
    finish(learned.config())
    assert night(learned, 6).accepted == (since,)


@pytest.mark.parametrize(
    ("change", "cold"),
    [
        ("more rows", False),
        ("more rows and others", True),
        ("more rows in another order", False),
        ("more rows, late ones too", False),
        ("a window that moves on", False),
        ("late rows alone, behind", False),
    ],
)
def test_a_file_that_grows_gives_a_cold_night_where_its_old_rows_are_others(learned, change, cold):
    """With new rows behind them, corrected ones were taken for those that the weights had seen."""
    day = shop_day(6)
    one = day.drop([100]) if "late" in change else day  # which comes later
    learned.write(6, one.iloc[:1800] if change != "late rows alone, behind" else one)
    assert night(learned, 6).cold == {}
    finish(learned.config())
    after = {
        "more rows": day,
        "more rows and others": day.assign(bought=np.where(day.index == 7, 1 - day["bought"], day["bought"])),
        "more rows in another order": day.sort_values("user"),
        "more rows, late ones too": day.sort_values("user"),
        "a window that moves on": day.iloc[150:],
        "late rows alone, behind": pd.concat([one, day.loc[[100]]]),
    }[change]
    path = learned.write(6, after)
    decision = night(learned, 6)
    assert (decision.accepted, bool(decision.cold)) == ((str(path),), cold)


@pytest.mark.parametrize("order", ["at", "user"])
def test_drift_of_a_file_that_grows_is_that_of_its_new_rows(shop, order):
    """Its old rows, among which a day's are few, made half of any drift disappear."""
    days = pd.concat([shop_day(day) for day in range(6)])
    for path in shop.raw.iterdir():
        path.unlink()
    shop.write("log.csv", days.sort_values(order, kind="stable"))
    learn_contract(shop.config())
    new = shop_day(6).assign(city="Lima")
    shop.write("log.csv", pd.concat([days, new]).sort_values(order, kind="stable"))
    found = night(shop, 6).drift["all"]
    assert (found.rows_old, found.rows) == (12_000, 2000)
    psi = next(item for item in found.measures if (item.column, item.measure) == ("city", "psi"))
    shares = days["city"].value_counts(normalize=True)
    wanted = sum(((city == "Lima") - share) * np.log(max(city == "Lima", 0.5 / 2000) / share)
                 for city, share in shares.items())  # fmt: skip
    assert psi.value == pytest.approx(wanted, rel=0.01)
    finish(shop.config())
    shop.write("log.csv", pd.concat([days, new, shop_day(7)]).sort_values(order, kind="stable"))
    again = night(shop, 7).drift["all"]
    assert (again.rows_old, again.rows) == (14_000, 2000)


def test_a_log_that_is_read_in_blocks_grows_by_its_new_rows(tmp_path, monkeypatch):
    from gigabatch.features.recipes.base import RawFiles
    from gigabatch.pipeline.contract import measure
    from gigabatch.pipeline.contract.measure import Known, measure_file

    monkeypatch.setattr(measure, "BLOCK_BYTES", 4000)
    kind = RawFiles(
        "log",
        str(tmp_path / "*.csv"),
        {"at": "int64", "city": "string", "price": "float32"},
        {"at": "time"},
        blocks=True,
    )
    day, path = shop_day(0)[["at", "city", "price"]], tmp_path / "log.csv"
    day.iloc[:1500].to_csv(path, index=False)
    before = measure_file(kind, "pandas", str(path))
    day.to_csv(path, index=False)
    known = Known(before.rows, before.fingerprint, before.ranges["at"][1])
    found = measure_file(kind, "pandas", str(path), known=known)
    assert found.added is not None
    assert (found.added.rows, found.corrected) == (500, False)
    counts = found.added.categories["city"].counts
    assert dict(zip(counts["value"], counts["count"], strict=True)) == day["city"].iloc[1500:].value_counts().to_dict()
    path.write_text(path.read_text().replace("Oslo", "Roma", 1))
    other = measure_file(kind, "pandas", str(path), known=known)
    assert (other.added, other.corrected) == (None, True)


def swapped(day):
    """A day on which two cities have changed their names."""
    return shop_day(day).assign(city=lambda rows: rows["city"].replace({"Oslo": "Lima", "Lima": "Oslo"}))


@pytest.mark.parametrize(
    ("choice", "before"),
    [
        ("warn", "any night"),
        ("refuse", "a night that was killed"),
        ("cold", "quarantine"),
        ("cold", "a night that was killed"),
    ],
)
def test_drift_of_a_file_that_a_person_takes_is_told_and_means_a_cold_start(learned, choice, before):
    """It was never measured, so that `--accept` passed by `on_drift` without a word."""
    home = learned.root / "runs" / "shop"
    train(home, "old")
    if before == "quarantine":
        path = learned.write(6, shop_day(6).assign(price=9e6))
        assert night(learned, 6).quarantined == (str(path),)
        finish(learned.config())
    path = learned.write(6, swapped(6))
    if before == "a night that was killed":
        assert night(learned, 6).drift["all"].verdicts()["city"] == "drift"
    assert "is accepted" in accept(learned.config(), path.name)
    edit(learned, "on_drift: warn", f"on_drift: {choice}")
    rehearsed = decide(learned.config(), [], end_of(6), write=False)
    for _ in range(2):  # the first of them was killed
        decision = night(learned, 6)
        assert (decision.accepted, decision.refused, decision.drift) == ((str(path),), (), rehearsed.drift)
        found = decision.drift["all"]
        assert (found.rows_old, found.rows, found.verdicts()["city"]) == (12_000, 2000, "drift")
        assert any(text.startswith("drift: all: column 'city': psi") for text in decision.warnings)
        assert any(str(path) in text and "column 'city': psi" in text for text in decision.urgent)
        assert list(decision.cold.values()) == ([["old"]] * len(found.sentences("drift")) if choice == "cold" else [])
    finish(learned.config(), decision.cold, "new")
    again = night(learned, 6)
    assert (again.drift, again.accepted, again.cold) == ({}, (), decision.cold)
    learned.write(7, shop_day(7))
    assert night(learned, 7).drift["all"].rows_old == 14_000


@pytest.mark.parametrize("far", ["the person's", "the checked one", "both"])
def test_a_person_lets_one_file_past_a_refusal_for_drift_and_no_other(learned, far):
    edit(learned, "on_drift: warn", "on_drift: refuse")
    taken = learned.write(6, shop_day(6) if far == "the checked one" else swapped(6))
    accept(learned.config(), taken.name)
    learned.write(7, shop_day(7) if far == "the person's" else shop_day(7).assign(city="Bonn"))
    decision = night(learned, 7)
    assert bool(decision.refused) == (far != "the person's")
    assert all("column 'city'" in text for text in decision.refused)
    assert decision.drift["all"].rows == 4000
    assert any(str(taken) in text for text in decision.urgent) == (far != "the checked one")
    (learned.raw / "day-007.csv").unlink()
    assert night(learned, 7).accepted == (str(taken),)


@pytest.mark.parametrize("alone", [False, True])
def test_drift_of_a_file_that_has_grown_and_that_a_person_takes_is_that_of_its_new_rows(shop, alone):
    days = [shop_day(day) for day in range(7)]
    if alone:
        for path in shop.raw.iterdir():
            path.unlink()
    log = shop.write("log.csv", pd.concat(days) if alone else days[6])
    learn_contract(shop.config())
    added = shop_day(7).assign(city="Lima")
    shop.write("log.csv", pd.concat([*(days if alone else days[6:]), added]))
    accept(shop.config(), str(log))
    for _ in range(2):
        found = night(shop, 7).drift["all"]
        assert (found.rows_old, found.rows, found.verdicts()["city"]) == (14_000, 2000, "drift")
    finish(shop.config())
    shop.write("day-008.csv", shop_day(8))
    assert night(shop, 8).drift["all"].rows_old == 16_000


def test_a_file_that_a_person_takes_and_moves_is_the_same_file(learned):
    path = learned.write(6, swapped(6))
    accept(learned.config(), path.name)
    moved = path.rename(learned.raw / "day-106.csv")
    for _ in range(2):
        decision = night(learned, 6)
        assert (decision.accepted, decision.drift["all"].verdicts()["city"]) == ((str(moved),), "drift")


def test_a_file_that_a_person_takes_while_a_night_learns_drifts_for_the_next_one(learned):
    learned.write(6, shop_day(6))
    night(learned, 6)
    path = learned.write(7, swapped(7))
    accept(learned.config(), path.name)
    finish(learned.config())
    found = night(learned, 7).drift["all"]
    assert (found.rows_old, found.rows, found.verdicts()["city"]) == (14_000, 2000, "drift")


def test_a_file_that_a_person_took_as_one_of_another_kind_is_compared_as_what_it_is_now(shop):
    """The settings named no splits then; they do now."""
    accept(shop.config(), "day-005.csv")
    split = {"train_path": str(shop.raw / "day-00[0-4].csv"), "test_path": str(shop.raw / "day-005.csv")}
    decision = night(shop, 5, path=None, time=None, **split)
    assert set(decision.accepted) == {str(shop.raw / f"day-00{day}.csv") for day in range(6)}
    assert read_state(shop.root / "runs" / "shop").files[split["test_path"]].state == "accepted"


@pytest.mark.parametrize("by", ["night", "gc", "gc of another", "gc of a mistake", "gc beside a damaged record"])
def test_what_is_known_of_accepted_rows_stays_however_long_no_file_of_their_kind_comes(learned, by, capsys):
    """Of four kinds of file those without a new one lost it in the first night, and what was gone since with it; by
    hand all other configurations' did, or nothing was removed as the features' settings or files.json were wrong."""
    config = learned.config()
    (kept,) = (config.artifacts / "accepted").iterdir()
    store = ArtifactStore(config.artifacts, config.name)
    for number in range(1 + config.nightly.keep.artifacts):  # of another kind
        store.build(kept.parent.name, f"other{number}", lambda folder: {"kind": "other"})
        os.utime(config.artifacts / ".used" / config.name / kept.parent.name / f"other{number}", (2e9 + number,) * 2)
    del store
    if by == "night":
        _tidy(Night(config, learned.root / "runs" / config.name, steps={"contract": {}, "features": {}}))
    else:
        path = learned.root / "shop.yaml"
        settings = config.to_dict()  # JSON is YAML
        if by == "gc of another":
            settings["name"] = "other"
        elif by == "gc of a mistake":
            settings["features"]["time"] = ["no", "column"]
        elif by == "gc beside a damaged record":
            (learned.root / "runs" / config.name / "files.json").write_text("{")
        path.write_text(json.dumps(settings))
        assert main(["gc", "--keep", str(config.nightly.keep.artifacts), "--config", str(path)]) == 0
        assert f"removed {kept.parent / 'other0'}" in capsys.readouterr().out
    assert sorted(path.name for path in kept.parent.iterdir()) == sorted([kept.name, "other1", "other2", "other3"])


def test_of_each_kind_two_statistics_stay_as_a_night_that_did_not_end_is_compared_again(learned):
    config = learned.config()
    (before,) = (config.artifacts / "accepted").iterdir()
    learned.write(6, shop_day(6))
    night(learned, 6)
    (after,) = set((config.artifacts / "accepted").iterdir()) - {before}
    ArtifactStore(config.artifacts, config.name).build("accepted", "older", lambda folder: {"kind": "all"})
    os.utime(config.artifacts / ".used" / config.name / "accepted" / "older", (1, 1))
    collect_artifacts(config.artifacts, 0)
    assert {path.name for path in before.parent.iterdir()} == {before.name, after.name}


def test_a_store_that_cannot_be_written_is_no_fault_of_the_new_file(learned):
    """The file went to quarantine for good: `[Errno 30] artifacts/parsed` was taken for an error of the file."""
    learned.write(6, shop_day(6))
    before = read_state(learned.root / "runs" / "shop")
    parsed = learned.root / "artifacts" / "parsed"
    with read_only(parsed), pytest.raises(ArtifactError, match=rf"^parsed rows .* {parsed}: Permission denied, so"):
        night(learned, 6)
    assert read_state(learned.root / "runs" / "shop") == before
    decision = night(learned, 6)
    assert (len(decision.accepted), decision.quarantined, decision.refused) == (1, (), ())


@pytest.mark.parametrize("moved", ["artifacts", "artifacts/parsed"])
def test_a_store_on_a_disk_that_is_not_mounted_is_named_with_where_it_leads(learned, moved):
    """It was `FileExistsError: 'artifacts'`, with a traceback."""
    link = learned.root / moved
    link.rename(learned.root / "elsewhere")
    link.symlink_to(learned.root / "not mounted" / "a")
    learned.write(6, shop_day(6))
    said = rf"^{link} leads to {learned.root}/not mounted/a, which is not there\. Mount the disk"
    with pytest.raises(ArtifactError, match=said):
        night(learned, 6)
    link.unlink()
    (learned.root / "elsewhere").rename(link)
    assert len(night(learned, 6).accepted) == 1


@pytest.mark.parametrize(
    "lack",
    [
        OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
        OSError(errno.EIO, os.strerror(errno.EIO)),
        TimeoutError("timed out"),
        OSError("Memory mapping file failed: Cannot allocate memory"),  # Arrow's
        pd.errors.ParserError("Error tokenizing data. C error: out of memory"),
        RuntimeError("can't start new thread"),
    ],
    ids=["files", "memory", "disk", "network", "mapping", "parser", "threads"],
)
def test_what_the_machine_lacks_is_no_fault_of_the_new_file(learned, monkeypatch, lack):
    def refuse(*_, **__):
        raise lack

    learned.write(6, shop_day(6))
    with monkeypatch.context() as patch:
        patch.setattr(sources, "read_plain", refuse)
        with pytest.raises(
            (OSError, MemoryError), match=re.escape(lack.strerror if getattr(lack, "errno", 0) else str(lack))
        ):
            night(learned, 6)
    decision = night(learned, 6)
    assert (len(decision.accepted), decision.quarantined) == (1, ())


def test_a_disk_that_fails_puts_no_file_aside(learned, capsys):
    """One sector that could not be read put the file in quarantine for good."""
    config, path = learned.config(), learned.raw / "day-006.csv"
    before = read_state(learned.root / "runs" / "shop")
    path.symlink_to("/proc/self/mem")  # whose first byte gives EIO
    (learned.root / "shop.yaml").write_text(json.dumps(config.to_dict()))
    said = f"[Errno 5] input {path}: Input/output error. The file may be good: mend the disk"
    for line, code in ((["contract", "--check"], 2), (["nightly"], 40), (["features"], 2)):
        assert main([*line, "--config", str(learned.root / "shop.yaml")]) == code
        assert said in "".join(capsys.readouterr())
    assert read_state(learned.root / "runs" / "shop") == before
    path.unlink()
    learned.write(6, shop_day(6))
    assert len(night(learned, 6).accepted) == 1


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_file_that_this_user_may_not_read_is_not_put_aside(learned, capsys, ending):
    """Its rows were left out by a night that went on, as those of a bad file."""
    path = learned.write(6, shop_day(6))
    if ending == "parquet":
        path.unlink()
        shop_day(6).to_parquet(path := path.with_suffix(".parquet"))
    (learned.root / "shop.yaml").write_text(json.dumps(learned.config().to_dict()))
    before = read_state(learned.root / "runs" / "shop")
    said = f"[Errno 13] input {path}: Permission denied. The file may be good: let this user read it and run again"
    with unreadable(path):
        for line, code in ((["contract", "--check"], 2), (["nightly"], 40), (["features"], 2)):
            assert main([*line, "--config", str(learned.root / "shop.yaml")]) == code
            assert said in "".join(capsys.readouterr())
    assert read_state(learned.root / "runs" / "shop") == before


@pytest.mark.parametrize("readable", [True, False])
def test_a_disk_that_fails_at_a_file_in_quarantine_stops_nothing(learned, caplog, readable):
    """It stopped every night and command, though what lies there is not read."""
    before = rows(learned)
    if readable:
        path = learned.write(6, constant_labels(6))
    else:
        (path := learned.raw / "day-006.csv").mkdir()
    assert night(learned, 6).quarantined == (str(path),)
    finish(learned.config())
    home = learned.root / "runs" / "shop"
    entry = read_state(home).files[str(path)]
    path.unlink() if readable else path.rmdir()
    path.symlink_to("/proc/self/mem")  # whose first byte gives EIO
    decision = night(learned, 7)
    assert (decision.accepted, decision.quarantined, decision.refused) == ((), (), ())
    assert new_files(learned.config()) == []
    assert read_state(home).files[str(path)] == entry
    (learned.root / "shop.yaml").write_text(json.dumps(learned.config().to_dict()))
    assert main(["features", "--config", str(learned.root / "shop.yaml")]) == 0
    (text,) = {record.getMessage() for record in caplog.records if "quarantine." in record.getMessage()}
    assert text.startswith(f"input {path}: Input/output error. The file may be good: mend the disk")
    assert text.endswith(" It stays in quarantine.")
    assert rows(learned) == before
    learned.write(7, shop_day(7))
    assert len(night(learned, 7).accepted) == 1


def test_a_record_that_the_system_does_not_give_is_not_called_damaged(learned, monkeypatch):
    """Too many open files: the message told to remove files.json, by which all quarantine is forgotten."""
    path = learned.root / "runs" / "shop" / "files.json"
    whole = path.read_text()
    path.unlink()
    path.symlink_to("/proc/self/mem")
    with pytest.raises(ContractError, match=rf"^{path}: cannot be read \(Input/output error\)") as caught:
        new_files(learned.config())
    assert "remove" not in str(caught.value)
    assert "damaged" not in str(caught.value)
    path.unlink()
    path.write_text(whole)
    assert new_files(learned.config()) == []
