"""Local time against the standard library and pandas."""

import datetime
import zoneinfo

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.columns.times import FIRST, LAST
from gigabatch.features.columns.zones import seconds_ahead, time_zone
from gigabatch.features.errors import DataError

ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Casablanca",
         "America/St_Johns", "Africa/Freetown", "Asia/Gaza", "UTC", "Etc/GMT+12", "Pacific/Apia"]  # fmt: skip
DAY = 86_400


def by_the_standard_library(seconds, zone):
    start = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    moments = [start + datetime.timedelta(seconds=second) for second in seconds]
    return [int(moment.astimezone(zoneinfo.ZoneInfo(zone)).utcoffset().total_seconds()) for moment in moments]


@pytest.mark.parametrize("zone", ZONES)
def test_offsets_are_those_of_the_standard_library(zone):
    random = np.random.default_rng(len(zone))
    seconds = random.integers(-120 * 365 * DAY, 80 * 365 * DAY, 3000)
    around = np.arange(-957_308_400 - 5 * DAY, -957_308_400 + 5 * DAY, 3600)  # Freetown's clocks, twice in four days
    seconds = np.concatenate([seconds, around, [FIRST + 2 * DAY, LAST - 2 * DAY, 0]])
    assert seconds_ahead(np, seconds, zone).tolist() == by_the_standard_library(seconds.tolist(), zone)


@pytest.mark.parametrize(
    ("zone", "change"),
    [
        ("Europe/Berlin", "2024-03-31T01:00"),
        ("Europe/Berlin", "2024-10-27T01:00"),
        ("Australia/Lord_Howe", "2024-04-06T15:00"),
        ("Pacific/Apia", "2011-12-30T10:00"),
    ],
)
def test_clocks_change_at_the_second(zone, change):
    moments = pd.Timestamp(change, tz="UTC") + pd.to_timedelta([-1, 0, 1], unit="s")
    local = moments.tz_convert(zone).tz_localize(None) - moments.tz_localize(None)
    seconds = moments.tz_localize(None).astype("datetime64[s]").astype("int64").to_numpy()
    expected = (local / pd.Timedelta(seconds=1)).astype("int64").tolist()
    assert seconds_ahead(np, seconds, zone).tolist() == expected
    assert expected[0] != expected[1]


def test_the_first_and_last_second_of_the_calendar_have_an_offset():
    assert seconds_ahead(np, np.array([FIRST, LAST]), "Asia/Kathmandu").tolist() == [20_476, 20_700]
    assert seconds_ahead(np, np.array([], dtype="int64"), "Asia/Kathmandu").tolist() == []


@pytest.mark.parametrize("name", ["Europe/Berlim", "Europe", "", "../etc/passwd", None, 3, "EDT"])
def test_a_zone_that_is_none_is_refused_with_an_example(name):
    with pytest.raises(DataError, match=r"here: unknown time zone .*such as Europe/Berlin"):
        time_zone(name, "here")
