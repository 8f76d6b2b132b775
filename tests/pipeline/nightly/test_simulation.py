"""The simulation of sixty nights (benchmarks/nightly.py): its log, its faults, and how it counts. A night of it takes
seven CPU seconds, so that the nights themselves run there; here every planted file meets the contract."""

import csv
import io
import itertools
import json
import os

import numpy as np
import pandas as pd
import pytest

from benchmarks.nightly import BAD_FILES, FAULTS, HISTORY, Nights, Site, ids_moved, schedule
from benchmarks.nightly_log import LIST, World
from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.schema import Column, Schema
from gigabatch.pipeline.config.config import load_config
from gigabatch.pipeline.contract.decide import accept, check_new, decide, finish, learn_contract
from gigabatch.pipeline.stages.stages import Pipeline


def frame_of(text: bytes) -> pd.DataFrame:
    return pd.read_csv(io.BytesIO(text))


def test_days_repeat_and_bring_new_users_and_items():
    first, second = World(400, 3), World(400, 3)
    days = [first.day() for _ in range(4)]
    assert [day.text for day in days] == [second.day().text for _ in range(4)]
    frames = [frame_of(day.text) for day in days]
    assert [day.rows for day in days] == [len(frame) for frame in frames]
    assert [day.pairs for day in days] == [LIST * int(frame["impressions"].notna().sum()) for frame in frames]
    users = [set(frame["user_id"]) for frame in frames]
    assert all(len(later - earlier) > 20 for earlier, later in itertools.pairwise(users))
    assert all(len(earlier & later) > 5 for earlier, later in itertools.pairwise(users))
    assert len(first.quality) > len(World(400, 3).quality)
    assert all(later["timestamp"].min() > earlier["timestamp"].max() for earlier, later in itertools.pairwise(frames))


def test_the_change_turns_devices_and_what_is_clicked():
    shares, cheap = {}, {}
    for changed in (1, None):
        frame = frame_of(World(3000, 3, changed).day().text)
        shares[changed] = float((frame["device"] == "mobile").mean())
        clicks = frame[frame["impressions"].notna()]
        places = [row.impressions.split("|").index(str(row.reference)) for row in clicks.itertuples()]
        prices = [np.array(row.prices.split("|"), float) for row in clicks.itertuples()]
        cheap[changed] = np.mean([price[place] / price.mean() for place, price in zip(places, prices, strict=True)])
    assert (shares[None], shares[1]) == (pytest.approx(0.35, abs=0.06), pytest.approx(0.8, abs=0.06))
    assert max(cheap.values()) < 1  # cheaper ones are clicked before and after


def test_inverted_labels_are_clicks_on_what_is_liked_least():
    """The first of a list has the advantage of its place; inverted it has the disadvantage."""
    rates = {}
    for inverted in (False, True):
        rows = list(csv.DictReader(io.StringIO(World(3000, 3).day(inverted).text.decode())))
        clicks = [row for row in rows if row["impressions"]]
        rates[inverted] = np.mean([row["impressions"].split("|")[0] == row["reference"] for row in clicks])
    assert rates[True] < 1 / LIST < rates[False]


def test_faults_are_planted_with_a_night_between():
    assert list(schedule(60).values()) == list(FAULTS)
    nights = sorted(schedule(60))
    assert np.diff(nights).min() >= 4
    assert 4 <= nights[0] < nights[-1] <= 56
    assert np.diff(sorted(schedule(32))).min() >= 2
    assert schedule(6) == {4: FAULTS[0]}


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    site = Site(tmp_path_factory.mktemp("site") / "site", 600, 5)
    for day in range(1, HISTORY + 1):
        site.path(day).write_bytes(site.make(day))
    learn_contract(load_config(site.config))
    return site


REASONS = {
    "corrupt file": "not valid UTF-8",
    "renamed column": "Was 'impressions' renamed 'impression_list'?",
    "inverted labels": "column 'clicked_first'",
    "day from the future": "lie in the future",
    "day twice": "its content is that of",
    "half a day": "too few rows",
}


@pytest.mark.parametrize("fault", [*BAD_FILES, None])
def test_the_contract_refuses_every_planted_file_and_a_good_day_passes(learned, fault):
    path = learned.path(learned.world.next)
    path.write_bytes(learned.make(learned.world.next, fault))
    (report,) = check_new(load_config(learned.config))
    path.unlink()
    assert report.accepted == (fault is None)
    assert fault is None or any(REASONS[fault] in text for text in report.reasons), report.reasons


def test_a_late_day_is_taken_by_a_persons_word_and_every_row_of_accepted_files_is_in_the_features(learned):
    site, config = learned, load_config(learned.config)
    late = site.world.next
    text = site.make(late)
    site.path(late + 1).write_bytes(site.make(late + 1))
    assert decide(config, check_new(config)).accepted == (os.path.realpath(site.path(late + 1)),)
    finish(config)
    site.path(late).write_bytes(text)
    decision = decide(config, check_new(config))
    assert decision.quarantined == (os.path.realpath(site.path(late)),)
    finish(config)
    nights = Nights.__new__(Nights)
    nights.site = site
    for taken in (False, True):
        if taken:
            accept(config, site.path(late).name)
        features = Pipeline(config).features()
        days = [*range(1, HISTORY + 1), late + 1] + [late] * taken
        wanted = sum(LIST * int(frame_of(site.path(day).read_bytes())["impressions"].notna().sum()) for day in days)
        assert sum(features.rows[name] for name in ("train", "valid", "test")) == wanted
        run = site.folder / f"run{taken}"
        (run / "model").mkdir(parents=True)
        info = {"info": {"train_times": {"rows": [features.rows["train"] - 3, 3]}}}
        (run / "model" / "bundle.json").write_text(json.dumps(info))
        site.home.mkdir(parents=True, exist_ok=True)
        (site.home / "current").unlink(missing_ok=True)
        (site.home / "current").symlink_to(run)
        nights.covered = features.rows["train"] - 5  # five rows that no window held
        assert nights.lost() == {"of accepted files": 0, "of train splits": 5}
    (site.home / "current").unlink()
    gone = json.loads((site.home / "files.json").read_text())
    assert [entry["state"] for entry in gone["files"].values()].count("accepted") == HISTORY + 3  # with the test file


def test_moved_ids_are_counted(tmp_path):
    schema = Schema((Column("city", "categorical", "string"),), ())
    old = Preprocessor(schema).fit([pd.DataFrame({"city": list("aaabbc")})])
    grown = Preprocessor(schema).fit([pd.DataFrame({"city": list("aaaabbbccd")})])  # d is appended
    other = Preprocessor(schema).fit([pd.DataFrame({"city": list("abbbccd")})])  # b, c, a, d
    short = Preprocessor(schema).fit([pd.DataFrame({"city": list("aab")})])
    for name, made in {"old": old, "grown": grown, "other": other, "short": short}.items():
        made.save(tmp_path / name / "model" / "preprocessor")
    found = {name: ids_moved(tmp_path / "old", tmp_path / name) for name in ("old", "grown", "other", "short")}
    assert found == {"old": 0, "grown": 0, "other": 3, "short": 1}
