"""Columns that tell of the calendar: what one season holds is no bound of another."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from gigabatch.pipeline.contract.calendar_parts import DATE, PARTS
from gigabatch.pipeline.contract.decide import check_new, contract_path, decide, finish, learn_contract
from gigabatch.pipeline.contract.terms import CALENDAR, load_contract
from tests.pipeline.contract.conftest import Shop, end_of, shop_day

CATEGORIES = ("month", "weekday", "Season", "plan", "month_of_birth")
NUMBERS = ("price", "yr", "DayOfMonth", "doy", "week", "seen_hour")
TELL = {
    "month": "month", "weekday": "weekday", "Season": "season", "yr": "year", "DayOfMonth": "day", "doy": "day_of_year",
    "week": "week", "seen": "date",
}  # fmt: skip


def dated_day(day: int, rows: int = 300) -> pd.DataFrame:
    """Rows of a day with what their dates say beside them, two columns that only look like it, and an earlier time."""
    frame = shop_day(day, rows)
    at = pd.to_datetime(frame["at"], unit="s")
    drawn = np.random.default_rng(day).integers(1, 13, rows)
    return frame.assign(
        month=at.dt.month, weekday=at.dt.day_name().str[:3], yr=at.dt.year - 2023, DayOfMonth=at.dt.day, plan=drawn % 3,
        Season=(at.dt.month % 12 // 3).map(["winter", "spring", "summer", "fall"].__getitem__), month_of_birth=drawn,
        week=at.dt.isocalendar().week, doy=at.dt.dayofyear,
        seen=(at - pd.Timedelta(hours=1)).dt.strftime("%Y-%m-%d %H:%M:%S"), slot=at.dt.strftime("%H:%M"),
    )  # fmt: skip


def dated_config(shop: Shop):
    return shop.config(
        categorical={"city": "string"} | dict.fromkeys(CATEGORIES, "string"),
        continuous=list(NUMBERS),
        inputs={"seen": "datetime", "slot": "datetime[%H:%M]"},
        steps=[{"date_parts": {"column": "seen", "prefix": "seen", "parts": ["hour"]}},
               {"date_parts": {"column": "slot", "prefix": "slot", "parts": ["hour"]}}],
    )  # fmt: skip


@pytest.fixture
def dated(shop):
    for day in range(6):
        shop.write(day, dated_day(day))
    learn_contract(dated_config(shop))
    return shop


def columns_of(config):
    from gigabatch.features.recipes.table.recipe import TableRecipe

    return load_contract(contract_path(config), "table", TableRecipe(config.features).raw_files()).files["all"].columns


def test_a_year_of_days_keeps_what_a_week_of_november_taught(dated):
    """A later day was put aside for its month, and told of drift for its weekday and its date."""
    config = dated_config(dated)
    assert {name: item.calendar for name, item in columns_of(config).items() if item.calendar} == TELL
    for day in range(20, 380, 30):
        path = dated.write(day, dated_day(day))
        decision = decide(config, check_new(config, end_of(day)), end_of(day))
        assert (decision.accepted, decision.quarantined, decision.cold) == ((str(path),), (), {})
        assert [text for text in decision.warnings if any(f"column {name!r}" in text for name in TELL)] == []
        assert decision.calendar == {*TELL, "at"}
        finish(config)


def test_what_only_looks_like_a_part_of_the_calendar_is_held_to_the_contract(dated):
    config = dated_config(dated)
    bad = dated_day(6).assign(plan="other", slot="23:59", month=None)
    dated.write(6, bad.assign(month_of_birth=77))
    (report,) = check_new(config, end_of(6))
    told = " ".join(report.reasons)
    assert "column 'month': 100.00% of its rows are null" in told
    for name in ("plan", "month_of_birth"):
        assert f"column {name!r}: 100.00% of its rows hold values that no accepted file has" in told
    assert columns_of(config)["slot"].range is not None


def test_weekdays_that_come_round_within_a_file_are_measured(shop):
    """In files of three weeks every share of a weekday is the same, until some are missing."""
    for number in range(6):
        shop.write(number, pd.concat([dated_day(21 * number + day, 100) for day in range(21)]))
    config = dated_config(shop)
    learn_contract(config)
    columns = columns_of(config)
    assert (columns["weekday"].calendar, columns["month"].calendar) == (None, "month")


def test_every_part_can_be_written_in_a_contract():
    assert (DATE, *PARTS) == CALENDAR
