"""A contract is learned, holds for what it was learned from, and finds each kind of bad file."""

from __future__ import annotations

import gzip
import json
import re

import numpy as np
import pandas as pd
import pytest
from ruamel.yaml import YAML

from gigabatch.features.recipes.table.recipe import TableRecipe
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.contract.decide import check_new, contract_path, decide, finish, learn_contract, new_files
from gigabatch.pipeline.contract.state import read_state
from gigabatch.pipeline.contract.terms import ContractError, load_contract
from tests.pipeline.contract.conftest import DAY, START, Shop, end_of, shop_day


def check(shop, day=6):
    """The one report of tonight's files."""
    (report,) = check_new(shop.config(), now=end_of(day))
    return report


@pytest.fixture
def learned(learned_as):
    return learned_as()


def test_good_days_keep_the_contract_that_older_ones_made(learned):
    for day in range(6, 9):
        learned.write(day, shop_day(day))
    reports = check_new(learned.config(), now=end_of(8))
    assert [(item.accepted, item.reasons, item.warnings) for item in reports] == [(True, (), ())] * 3


def test_history_itself_keeps_the_contract(learned):
    (learned.root / "runs" / "shop" / "files.json").unlink()
    reports = check_new(learned.config(), now=end_of(6))
    assert [(item.accepted, item.reasons) for item in reports] == [(True, ())] * 6


def changed(**columns):
    return shop_day(6).assign(**columns)


def half(frame):
    return frame.iloc[: len(frame) // 2]


def nulls(frame):
    frame = frame.copy()
    frame.loc[frame.index[:800], "price"] = np.nan
    return frame


BAD = {
    "renamed": (lambda: shop_day(6).rename(columns={"price": "prize"}), r"'price'.*renamed 'prize'"),
    "missing": (lambda: shop_day(6).drop(columns="city"), r"'city'"),
    "another type": (lambda: changed(price="cheap"), r"'price' is declared float32"),
    "nulls": (lambda: nulls(shop_day(6)), r"'price': 4\d\.\d\d% of its rows are null, the bound is"),
    "range": (lambda: changed(price=shop_day(6)["price"] * 100), r"'price': [\d,]+ row\(s\) are above"),
    "negative": (lambda: changed(price=-shop_day(6)["price"]), r"'price': [\d,]+ row\(s\) are below 0, down to -"),
    "cardinality": (lambda: changed(city=[f"c{n}" for n in range(2000)]), r"'city': 2,000 distinct values, the bound"),
    "unseen": (lambda: changed(city="Pune"), r"'city': 100.00% of its rows hold values that no accepted file has"),
    "half a day": (lambda: half(shop_day(6)), r"too few rows, 1,000; the bounds are 1,333 to 3,000"),
    "twice a day": (lambda: pd.concat([shop_day(6), shop_day(60).assign(at=shop_day(6)["at"])]), r"too many rows"),
    "inverted": (lambda: changed(bought=1 - shop_day(6)["bought"]), r"'bought': [67]\d\.\d+% of its labels are '1'"),
    "constant label": (lambda: changed(bought=0), r"'bought': every label is '0'; classes are '0', '1'"),
    "another class": (
        lambda: changed(bought=np.where(np.arange(2000) < 3, 2, shop_day(6)["bought"])), r"class\(es\) '2' are new"),
    "null label": (lambda: shop_day(6).assign(bought=lambda f: f["bought"].where(f.index > 0)), r"1 row\(s\) are null"),
    "future": (lambda: changed(at=shop_day(6)["at"] + 9 * DAY), r"2,000 row\(s\) lie in the future, up to 2023-11-29"),
    "one row of the future": (
        lambda: changed(at=shop_day(6)["at"].where(np.arange(2000) > 0, START + 99 * DAY)), r"1 row\(s\) lie in the"),
    "before": (lambda: shop_day(99).assign(at=shop_day(3)["at"]), r"2,000 row\(s\) lie before what was accepted"),
    "milliseconds": (lambda: changed(at=shop_day(6)["at"] * 1000), r"lie in the future"),
    "dates": (lambda: changed(at=pd.to_datetime(shop_day(6)["at"], unit="s").astype(str)), r"times are dates or text"),
    "no rows": (lambda: shop_day(6).iloc[:0], r"it has a header but no rows"),
}  # fmt: skip


@pytest.fixture(scope="module")
def learned_once(tmp_path_factory):
    """For tests that decide nothing and remove what they wrote."""
    shop = Shop(tmp_path_factory.mktemp("shop"))
    learn_contract(shop.config())
    return shop


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_by_name(learned_once, case):
    make, text = BAD[case]
    path = learned_once.write(6, make())
    report = check(learned_once)
    path.unlink()
    assert not report.accepted
    assert all(str(path) in reason for reason in report.reasons)
    assert re.search(text, " ".join(report.reasons)), report.reasons


def test_values_spelt_otherwise_are_refused_where_each_day_brings_new_ones_too(learned):
    """A fifth of a day's users is new; a day of new users alone has them in capitals, or without leading zeros."""
    learned.write(6, changed(user=shop_day(6)["user"].str.upper()))
    report = check(learned)
    assert not report.accepted
    assert "'user': 100.00% of its rows hold values that no accepted file has" in " ".join(report.reasons)
    learned.write(6, shop_day(8).assign(at=shop_day(6)["at"]))  # users as after two days that are missing
    assert check(learned).accepted


def rare_days(shop, rows, rate):
    for day in range(6):
        shop.write(day, shop_day(day, rows, rate).assign(bought=lambda f: (f.index < rows * rate).astype(int)))
    learn_contract(shop.config())


def test_a_small_day_without_a_rare_class_is_taken_and_told(shop):
    """0.995 to the power of 300 is .22: one night in five."""
    rare_days(shop, 300, 0.005)
    shop.write(6, shop_day(6, 300).assign(bought=0))
    report = check(shop)
    assert report.accepted, report.reasons
    assert "'bought': every label is '0'" in " ".join(report.warnings)
    shop.write(6, shop_day(6, 300).assign(bought=1))
    assert "every label is '1'" in " ".join(check(shop).reasons)


def test_a_rare_class_that_is_four_times_as_frequent_is_refused(shop):
    """Ten of 2,000 rows are expected, and forty have a chance below 1e-11."""
    rare_days(shop, 2000, 0.005)
    for positives, accepted in ((3, True), (18, True), (40, False), (0, False)):
        shop.write(6, shop_day(6).assign(bought=lambda f, most=positives: (f.index < most).astype(int)))
        assert check(shop).accepted is accepted, positives


def test_a_new_class_says_how_it_is_taken(learned):
    learned.write(6, changed(bought=np.where(np.arange(2000) < 300, 2, shop_day(6)["bought"])))
    assert 'shares: {"2": [0, 1]}' in " ".join(check(learned).reasons)
    # bought is binary, of which a third label is an error of the training whatever the contract says
    assert "A binary target has no more than two: write them as those" in " ".join(check(learned).reasons)


def test_a_file_that_is_none(learned):
    good = shop_day(6).to_csv(index=False)
    cases = {
        "a.csv": (b"", "empty"),
        "b.csv": (good.encode()[:-9], "no line break"),
        "c.csv": (good.encode("utf-16"), "UTF-8"),
        "d.csv": (good.replace(",", ";").encode(), "its fields are separated by ';'"),
        "e.csv.gz": (gzip.compress(good.encode())[:-500], "cannot be read"),
        "f.parquet": (b"PAR1", "cannot be read"),
        "g.csv": (good.replace("Oslo", "Tromsø").encode("latin-1"), "UTF-8"),
    }
    for name, (content, _) in cases.items():
        (learned.raw / name).write_bytes(content)
    for report in check_new(learned.config(), now=end_of(6)):
        name = report.path.rpartition("/")[2]
        assert not report.accepted
        assert any(cases[name][1] in text for text in report.reasons), (name, report.reasons)


def test_the_same_file_under_another_name_and_its_rows_in_another_order(learned):
    learned.write("copy.csv", shop_day(5))
    learned.write("shuffled.csv.gz", shop_day(5).sample(frac=1, random_state=1))
    found = {item.path.rpartition("/")[2]: item for item in check_new(learned.config(), now=end_of(6))}
    assert "its content is that of" in found["copy.csv"].reasons[0]
    assert any("holds the same 2,000 rows as" in text for text in found["shuffled.csv.gz"].reasons)


def test_two_copies_that_come_together(learned):
    learned.write(6, shop_day(6))
    learned.write("day-006-again.csv", shop_day(6))
    assert [item.accepted for item in check_new(learned.config(), now=end_of(6))] == [True, False]


def test_a_new_column_is_told_and_not_refused(learned):
    learned.write(6, shop_day(6).assign(color="red"))
    report = check(learned)
    assert report.accepted
    assert "new column(s) 'color'" in report.warnings[0]


def test_backfill_is_declared(learned):
    path = contract_path(learned.config())
    learned.write("late-2.csv", shop_day(99).assign(at=shop_day(2)["at"]))
    assert not check(learned).accepted
    path.write_text(path.read_text().replace("backfill: []", "backfill: ['late-*.csv']"))
    report = check(learned)
    assert not any("lie before" in text for text in report.reasons)


def test_a_night_without_a_contract_checks_what_needs_none(shop):
    assert all(item.accepted for item in check_new(shop.config(), now=end_of(5)))
    shop.write(7, shop_day(30))
    shop.write(8, shop_day(8).drop(columns="city"))
    shop.write(9, shop_day(9, 10))
    found = {item.path[-7:-4]: item for item in check_new(shop.config(), now=end_of(9))}
    assert "lie in the future" in found["007"].reasons[0]
    assert "'city'" in found["008"].reasons[0]
    assert found["009"].accepted


def test_unknown_keys_and_other_recipes_are_refused(learned):
    config = learned.config()
    path = contract_path(config)
    text, kinds = path.read_text(), TableRecipe(config.features).raw_files()
    cases = {
        ("on_drift:", "on_drifts:"): "unknown key(s) 'on_drifts'. Known: recipe, files, drift",
        ("on_drift: warn", "on_drift: panic"): "on_drift is 'panic'. Known: warn, refuse, cold",
        ("nulls: 0.0", "void: 0.0"): "unknown key(s) 'void' in files.all.columns.at.",
        ('recipe: "table"', "recipe: flights"): "it is of recipe 'flights'",
        ('"price": {type: "float32"', '"price": {type: "float64"'): "column 'price' of all is a number of type f",
        ('"city": {type: "string"', '"city": {calendar: "moon", type: "string"'): "calendar is 'moon'. Known: date",
        ("psi: [0.1, 0.25]", "psi: [0.5, 0.25]"): "0.5 is above 0.25",
        ("format: 1", "format: 2"): "format is 2",
        ("files:", "files: ["): "not valid YAML",
        ('"price": {', '1: {'): "names 1, which YAML takes for no text",
    }  # fmt: skip
    for (old, new), message in cases.items():
        assert old in text
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(ContractError, match=re.escape(message)):
            load_contract(path, "table", kinds)


def test_units_of_times_have_long_names_too(shop):
    """`min` and `minutes` are one, and what is no unit is named."""
    for day in range(6):
        shop.write(day, shop_day(day).assign(at=shop_day(day)["at"] // 60))
    config = shop.config()
    config = config.model_copy(update={"nightly": config.nightly.model_copy(update={"time_unit": "minutes"})})
    assert all(item.accepted for item in check_new(config, now=end_of(5)))
    assert any("lie in the future" in item.reasons[0] for item in check_new(config, now=end_of(1)) if item.reasons)
    path, contract, *_ = learn_contract(config)
    assert contract.files["all"].unit == "min"
    path.write_text(path.read_text().replace('unit: "min"', 'unit: "minute"'))
    shop.write(6, shop_day(6))
    with pytest.raises(ContractError, match=r"files\.all\.unit: unknown unit 'minute'"):
        check_new(config)


def test_an_edited_contract_is_kept(learned):
    config = learned.config()
    path = contract_path(config)
    learn_contract(config)  # nobody has touched it
    edited = path.read_text().replace("on_drift: warn", "on_drift: cold")
    path.write_text(edited)
    with pytest.raises(ContractError, match="a person has edited it"):
        learn_contract(config)
    assert path.read_text() == edited
    other, *_ = learn_contract(config, learned.root / "other.yaml")
    assert "on_drift: cold" in other.read_text()


@pytest.mark.parametrize("columns", ["the same", "others"])
def test_learning_again_keeps_what_no_file_tells_and_says_what_is_lost(learned, columns, capsys, tmp_path):
    """`--force`, to which docs/nightly.md sends whoever changes columns, made `cold` a `warn` without a word."""
    path = contract_path(learned.config())
    text = path.read_text()
    decided = {
        "on_bad_file": "refuse", "on_bad_rows": "drop", "max_bad_rows": 0.25, "on_drift": "cold",
        "backfill": ["late-*.csv"],
    }  # fmt: skip
    for key, value in decided.items():
        text = re.sub(rf"(?m)^{key}: .*$", f"{key}: {json.dumps(value)}", text)
    text = re.sub(r"(?m)^  psi: .*$", "  psi: [0.3, 0.6]", text)
    path.write_text(re.sub(r"(?m)^    rows: .*$", "    rows: [1, 2]", text))
    config = learned.config() if columns == "the same" else learned.config(categorical=["city"])
    file = tmp_path / "shop.yaml"
    file.write_text(config.to_yaml())
    assert main(["contract", "--config", str(file), "--force"]) == 0
    out = capsys.readouterr().out
    kept = "drift, backfill, on_bad_file, on_bad_rows, on_drift, max_bad_rows"
    assert f"kept as it was: {kept}\n" in out
    assert "bounds of rows and columns that a person had edited are lost\n" in out
    for _ in range(2):
        found = YAML(typ="safe").load(path.read_text())
        assert {key: found[key] for key in decided} == decided
        assert (found["drift"]["psi"], found["drift"]["nulls"]) == ([0.3, 0.6], [0.05, 0.2])
        assert found["files"]["all"]["rows"] != [1, 2]
        learn_contract(config)  # nobody has touched it since
    path.write_text("on_drift: [")
    (note,) = learn_contract(config, force=True).notes
    assert "nothing was kept of the one before: contract" in note
    assert "on_drift: warn" in path.read_text()


def test_max_future_seconds_is_that_of_the_configuration_now(learned):
    path = contract_path(learned.config())
    path.write_text(path.read_text().replace("max_future_seconds: 86400.0", "max_future_seconds: 77.0"))

    def config(seconds):
        found = learned.config()
        return found.model_copy(
            update={"nightly": found.nightly.model_copy(update={"max_future_seconds": float(seconds)})}
        )

    assert learn_contract(config(600), force=True).notes == (
        "max_future_seconds is 600, by nightly.max_future_seconds, and was 77",
        "all else is learned anew: bounds of rows and columns that a person had edited are lost",
    )
    for seconds in (600, 5):  # nobody has touched it since
        assert learn_contract(config(seconds)).contract.max_future_seconds == seconds
        assert f"max_future_seconds: {seconds}.0" in path.read_text()


def test_nothing_is_told_lost_where_nobody_has_edited(shop):
    assert learn_contract(shop.config(), force=True).notes == ()  # there was none
    assert learn_contract(shop.config(), force=True).notes == ()
    path = contract_path(shop.config())
    path.write_text(path.read_text().replace("rows: [", "rows: [1"))
    other = shop.root / "other.yaml"
    assert learn_contract(shop.config(), other, force=True).notes == ()  # the edited one stays


def test_learning_again_leaves_out_files_that_nobody_has_checked(learned):
    config = learned.config()
    learned.write(6, shop_day(6).assign(price=10_000.0))
    contract = learn_contract(config).contract
    assert contract.files["all"].columns["price"].range[1] < 1000
    assert [item.path[-7:-4] for item in new_files(config)] == ["006"]


def test_a_changed_file_is_new_and_may_not_lose_rows(learned):
    config = learned.config()
    learned.write(5, shop_day(5).iloc[:1600])
    (item,) = new_files(config)
    assert item.before is not None
    report = check(learned)
    assert "accepted with 2,000 rows and now holds 1,600" in report.reasons[0]
    assert decide(config, [report], end_of(6)).quarantined == (item.path,)
    assert read_state(learned.root / "runs" / "shop").files[item.path].state == "quarantined"


@pytest.fixture
def log_file(shop):
    """All rows in one file that grows, and a contract that thirty days of it made."""
    for path in shop.raw.iterdir():
        path.unlink()
    days = pd.concat([shop_day(day) for day in range(30)])
    shop.write("log.csv", days)
    learn_contract(shop.config())
    return shop, days


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"bought": lambda day: 1 - day["bought"]}, r"'bought', 2,000 new row\(s\): \d\d\.\d\d% of them are '1(\.0)?'"),
        ({"price": lambda day: day["price"].where(day.index % 2 == 0)}, r"'price', 2,000 new .*of them are null"),
        ({"city": lambda day: day["city"] + day["user"]}, r"'city': [23]\d\d distinct values, the bound is 19"),
        ({}, None),
    ],
)
def test_what_a_file_has_gained_is_held_to_the_contract_alone(log_file, change, reason):
    """Among thirty days of rows one day of inverted labels was a thirtieth, and no bound was reached."""
    shop, days = log_file
    shop.write("log.csv", pd.concat([days, shop_day(30).assign(**change)]))
    report = check(shop, day=30)
    assert report.accepted == (reason is None), report.reasons
    assert reason is None or re.search(reason, " ".join(report.reasons))


def test_a_file_may_gain_values_for_a_year(shop):
    """The bound of distinct values is that of a file, and a file that grew passed it some day."""
    for path in shop.raw.iterdir():
        path.unlink()
    shop.write("log.csv", pd.concat([shop_day(day) for day in range(2)]))
    learn_contract(shop.config())
    for last in range(4, 21, 4):
        days = pd.concat([shop_day(day) for day in range(last)])
        shop.write("log.csv", days)
        report = check(shop, day=last)
        assert report.accepted, report.reasons
        decide(shop.config(), [report], end_of(last))
        finish(shop.config())
    kinds = TableRecipe(shop.config().features).raw_files()
    contract = load_contract(contract_path(shop.config()), "table", kinds)
    assert days["user"].nunique() > contract.files["all"].columns["user"].distinct


def test_few_rows_that_a_file_has_gained_are_not_refused_by_chance(log_file):
    shop, days = log_file
    for number in range(3):
        shop.write("log.csv", pd.concat([days, shop_day(30 + number, rows=10)]))
        assert check(shop, day=40).reasons == ()


def test_a_label_that_is_a_number_is_held_to_its_mean_among_the_new_rows(shop):
    for path in shop.raw.iterdir():
        path.unlink()
    days = pd.concat([shop_day(day) for day in range(30)]).dropna()
    targets = {"targets": {"price": {"task": "regression"}}, "continuous": []}
    shop.write("log.csv", days)
    learn_contract(shop.config(**targets))
    for factor, accepted in ((1.0, True), (2.0, False)):
        new = shop_day(30).dropna()
        shop.write("log.csv", pd.concat([days, new.assign(price=(new["price"] * factor).clip(upper=150))]))
        (report,) = check_new(shop.config(**targets), now=end_of(30))
        assert report.accepted == accepted, report.reasons
    assert "new row(s): the mean of this label is" in report.reasons[0]


def written(day, offset, form="%Y-%m-%dT%H:%M:%S"):
    """The rows of a day whose times are text with an offset."""
    return shop_day(day).assign(at=lambda f: pd.to_datetime(f["at"], unit="s").dt.strftime(form) + offset)


@pytest.mark.parametrize(
    ("before", "offset", "accepted", "text"),
    [
        ("+01:00", "+01:00", True, ""),
        ("+01:00", "+0100", True, ""),
        ("Z", "+00:00", True, ""),
        ("", "", True, ""),
        ("+01:00", "", False, r"day-006.csv: times are written without an offset from UTC, and before with an offset "
         r"from UTC \(\+01:00\)\. Where this is meant, set offsets: \[\"\+01:00\", \"none\"\]"),
        ("", "+09:00", False, r"times are written with an offset from UTC \(\+09:00\), and before without an offset"),
        ("+01:00", "Z", True, r"times are written with the offset\(s\) \+00:00 from UTC, and before with \+01:00"),
    ],
)  # fmt: skip
def test_an_offset_from_utc_that_is_lost_or_comes_is_refused_and_another_is_told(shop, before, offset, accepted, text):
    for day in range(6):
        shop.write(day, written(day, before))
    learn_contract(shop.config())
    shop.write(6, written(6, offset))
    report = check(shop)
    assert report.accepted == accepted
    told = " ".join(report.warnings if accepted else report.reasons)
    assert re.search(text, told) if text else not told


def test_an_offset_is_seen_where_times_are_read_as_times_too(shop):
    for day in range(6):
        shop.write(day, written(day, "+01:00"))
    config = shop.config(inputs={"at": "datetime"})
    learn_contract(config)
    assert 'offsets: ["+01:00"]' in contract_path(config).read_text()
    shop.write(6, written(6, ""))
    (report,) = check_new(config, now=end_of(6))
    assert not report.accepted
    assert "without an offset" in " ".join(report.reasons)


@pytest.mark.parametrize(("zone", "accepted"), [("UTC", True), ("Europe/Oslo", True), (None, False)])
def test_the_zone_of_timestamps_in_parquet_files_is_held_to_the_contract(shop, zone, accepted):
    def write(day, zone):
        times = pd.to_datetime(shop_day(day)["at"], unit="s").dt.tz_localize("UTC").dt.tz_convert(zone)
        shop_day(day).assign(at=times).to_parquet(shop.raw / f"day-{day:03d}.parquet")

    for path in shop.raw.iterdir():
        path.unlink()
    for day in range(6):
        write(day, "UTC")
    learn_contract(shop.config())
    write(6, zone)
    report = check(shop)
    assert report.accepted == accepted
    told = " ".join([*report.reasons, *report.warnings])
    assert (zone in told) if zone == "Europe/Oslo" else bool(told) != accepted
