"""The contract of numbers that are written as text: they are held to bounds as numbers are, whatever they look like."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from ruamel.yaml import YAML

from gigabatch.features.recipes.table.recipe import TableRecipe, TableSettings
from gigabatch.pipeline.contract.check import FileReport
from gigabatch.pipeline.contract.decide import accept, check_new, contract_path, decide, finish, learn_contract
from gigabatch.pipeline.contract.drift import drift
from gigabatch.pipeline.contract.measure import measure_file
from gigabatch.pipeline.nightly.nightly import run_nightly
from tests.pipeline.contract.conftest import Shop, end_of, shop_day

EUROS = {"parse_number": {"column": "price", "decimal": ",", "thousands": ".", "null_values": ["ask"]}}
STEPS = {"inputs": {"price": "string"}, "steps": [EUROS]}


def euros(number: float) -> str | None:
    """1234.5 as "1.234,50 €"."""
    if number != number:
        return "ask"
    return f"{number:,.2f} €".translate(str.maketrans(",.", ".,"))


def texts(day: int, times: float = 1.0) -> pd.DataFrame:
    frame = shop_day(day)
    return frame.assign(price=[euros(times * number) for number in frame["price"]])


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> tuple[Shop, Path]:
    """A shop whose contract was learned, and a copy of its folder."""
    shop = Shop(tmp_path_factory.mktemp("priced"))
    for day in range(6):
        shop.write(day, texts(day))
    learn_contract(shop.config(**STEPS))
    return shop, shutil.copytree(shop.root, shop.root.with_name("priced-kept"))


@pytest.fixture
def priced(kept) -> Shop:
    """That shop as it was, at the same path."""
    shop, saved = kept
    shutil.rmtree(shop.root)
    shutil.copytree(saved, shop.root)
    return shop


def report_of(shop: Shop, frame: pd.DataFrame, **features) -> FileReport:
    shop.write(6, frame)
    (report,) = check_new(shop.config(**STEPS | features), now=end_of(6))
    return report


def columns_of(shop: Shop, how: dict = STEPS) -> dict:
    text = contract_path(shop.config(**how)).read_text()
    (terms,) = YAML(typ="safe").load(text)["files"].values()
    return terms["columns"]


def test_bounds_are_those_of_the_same_numbers_in_a_column_of_numbers(priced, tmp_path):
    found = columns_of(priced)["price (number)"]
    (tmp_path / "plain").mkdir()
    plain = Shop(tmp_path / "plain")
    learn_contract(plain.config())
    (terms,) = YAML(typ="safe").load(contract_path(plain.config()).read_text())["files"].values()
    other = terms["columns"]["price"]
    assert found["nulls"] == other["nulls"]
    assert found["range"] == pytest.approx(other["range"], rel=1e-5)  # of float32
    assert (found["role"], found["type"]) == ("number", "made")


def spoilt(day: int) -> pd.DataFrame:
    frame = texts(day)
    frame.loc[9, "price"] = "12 quid"
    return frame


def empty(day: int) -> pd.DataFrame:
    frame = texts(day)
    frame.loc[frame.index[:800], "price"] = "ask"
    return frame


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (texts(6), None),
        (texts(6, 100), r"column 'price \(number\)': 1,.* row\(s\) are above .*, up to 1"),
        (texts(6, -1), r"column 'price \(number\)': 1,.* row\(s\) are below 0, down to"),
        (empty(6), r"column 'price \(number\)': 4.*% of its rows are null, the bound is"),
        (spoilt(6), "ParseNumber: column 'price': '12 quid' .*'quid' stands beside it"),
    ],
    ids=["good", "cents", "negative", "nulls", "no number"],
)
def test_a_file_of_other_numbers_is_refused(priced, frame, said):
    report = report_of(priced, frame)
    assert report.accepted == (said is None), report
    if said is not None:
        assert any(pd.Series([text]).str.contains(said).all() for text in report.reasons), report.reasons


def test_rows_out_of_range_alone_are_left_out_where_bad_rows_are_dropped(priced):
    path = contract_path(priced.config(**STEPS))
    path.write_text(path.read_text().replace("on_bad_rows: keep", "on_bad_rows: drop"))
    frame = texts(6)
    frame.loc[[3, 1700], "price"] = "99.999,00 €"
    report = report_of(priced, frame)
    assert (report.accepted, report.dropped) == (True, (3, 1700))


BESIDE = {"parse_number": EUROS["parse_number"] | {"output": "amount"}}
HASHED = {"hash_bucket": {"column": "price", "num_buckets": 50, "output": "how"}}
TIDY = {"clean_text": {"column": "price", "case": "lower", "output": "tidy"}}
TIDY_HASHED = {"hash_bucket": HASHED["hash_bucket"] | {"column": "tidy"}}
KNOWN = {"categorical": ["user", "city"], "continuous": ["amount"]}


@pytest.mark.parametrize(
    ("how", "of_text"),
    [
        ({}, set()),
        (KNOWN | {"steps": [{"rename": {"mapping": {"price": "paid"}}}, {"parse_number": EUROS["parse_number"] | {
            "column": "paid", "output": "amount"}}]}, set()),
        (KNOWN | {"steps": [TIDY, {"parse_number": BESIDE["parse_number"] | {"column": "tidy"}}]}, set()),
        (KNOWN | {"steps": [BESIDE], "categorical": ["user", "city", "price"]}, {"nulls", "unseen", "psi"}),
        (KNOWN | {"steps": [BESIDE, HASHED], "categorical": ["user", "city", "how"]}, {"nulls", "unseen", "psi"}),
        (KNOWN | {"steps": [HASHED, BESIDE], "categorical": ["user", "city", "how"]}, {"nulls", "unseen", "psi"}),
        (KNOWN | {"steps": [TIDY, BESIDE], "categorical": ["user", "city", "tidy"]}, {"nulls", "unseen", "psi"}),
        (KNOWN | {"steps": [TIDY, {"parse_number": BESIDE["parse_number"] | {"column": "tidy"}}],
                  "categorical": ["user", "city", "tidy"]}, {"nulls", "unseen", "psi"}),
        (KNOWN | {"steps": [TIDY, TIDY_HASHED, {"parse_number": BESIDE["parse_number"] | {"column": "tidy"}}],
                  "categorical": ["user", "city", "how"]}, {"nulls", "unseen", "psi"}),
    ],
    ids=["alone", "renamed", "cleaned", "category", "hashed after", "hashed before", "own", "way", "hashed"],
)  # fmt: skip
def test_drift_is_measured_on_the_numbers_and_told_once(priced, how, of_text):
    """The text's own values told the same again, unless a model or a step takes these for what they are."""
    priced.write(6, texts(6, 2))
    config = priced.config(**STEPS | how)
    decision = decide(config, check_new(config, now=end_of(6)))
    (found,) = decision.drift.values()
    moved = {item.measure: item.verdict for item in found.measures if item.column == "price (number)"}
    assert moved["psi"] == moved["quantile"] == "drift"
    assert {item.measure for item in found.measures if item.column == "price"} == of_text


def test_text_of_another_name_and_spelling_and_durations_are_read_as_the_steps_read_them(tmp_path):
    frame = pd.DataFrame({"Paid": ["1 EUR", "2 eur", None], "length": ["1:00", "", "0:01:30"], "label": [0, 1, 0]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    settings = {
        "inputs": {"Paid": "string", "length": "string"}, "continuous": ("paid", "seconds"),
        "targets": {"label": {"task": "binary"}},
        "steps": (
            {"rename": {"mapping": {"Paid": "paid"}}},
            {"clean_text": {"column": "paid", "case": "lower"}},
            {"parse_number": {"column": "paid", "remove": ["eur", " "]}},
            {"parse_duration": {"column": "length", "output": "seconds"}},
        ),
    }  # fmt: skip
    (kind,) = TableRecipe(TableSettings(path=str(tmp_path / "a.csv"), **settings)).raw_files()
    made = kind.make(kind.read("pandas", str(tmp_path / "a.csv")))
    assert made["Paid (number)"].tolist()[:2] == [1.0, 2.0]
    assert made["length (number)"].tolist()[::2] == [60.0, 90.0]
    assert made[["Paid (number)", "length (number)"]].isna().sum(axis=1).tolist() == [0, 1, 1]
    assert {"Paid (number)": "number", "length (number)": "number"}.items() <= kind.roles.items()


def test_text_whose_rows_a_step_may_leave_out_first_is_not_read(tmp_path):
    filtered = [{"filter": {"column": "price", "op": "!=", "value": "soon"}}, EUROS]
    recipe = TableRecipe(Shop(tmp_path).config(**STEPS | {"steps": filtered}).features)
    (kind,) = recipe.raw_files()
    assert "price (number)" not in kind.roles


@pytest.mark.parametrize("edited", [False, True])
def test_a_contract_of_an_earlier_version_is_valid_and_says_what_it_lacks(priced, monkeypatch, edited):
    """Once, however many files have come; an edited one only --force replaces."""
    config = priced.config(**STEPS)
    with monkeypatch.context() as patch:
        if not edited:  # as a version that knew no numbers in text learned and signed it
            patch.setattr(TableRecipe, "_numbers_in_text", lambda recipe: {})
            learn_contract(config, force=True)
    path = contract_path(config)
    kept = [line for line in path.read_text().splitlines(keepends=True) if "(number)" not in line]
    path.write_text("".join(kept))
    for day in (6, 7, 8):
        priced.write(day, texts(day, 100))
    decision = decide(config, check_new(config, now=end_of(8)), end_of(8))
    assert len(decision.accepted) == 3
    (told,) = [text for text in decision.warnings if "no bounds of" in text]
    assert "files of kind 'all'" in told
    assert "'price (number)'" in told
    assert ("gigabatch contract --force" in told) == edited
    assert "gigabatch contract" in told
    learn_contract(config, force=edited)
    assert "price (number)" in columns_of(priced)


def test_a_column_of_the_name_that_the_numbers_have_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"'price \(number\)' is what checks of files call the numbers in a column"):
        Shop(tmp_path).config(**STEPS | {"continuous": ["price", "price (number)"]})


def test_a_year_that_is_text_is_a_part_of_the_calendar_as_one_that_is_a_number(tmp_path):
    shop = Shop(tmp_path)
    for day in range(6):
        shop.write(day, shop_day(day).assign(year="2.023"))
    how = {"inputs": {"year": "string"}, "continuous": ["price", "year"], "steps": [
        {"parse_number": {"column": "year", "decimal": ",", "thousands": "."}}]}  # fmt: skip
    learn_contract(shop.config(**how))
    assert columns_of(shop, how)["year (number)"]["calendar"] == "year"
    assert "range" not in columns_of(shop, how)["year (number)"]


def dear(day: int, times: float = 1.0) -> pd.DataFrame:
    """What is dear is bought."""
    return texts(day, times).assign(bought=(shop_day(day)["price"] > 45).astype(int))


def test_a_night_puts_a_price_list_in_cents_aside(tmp_path):
    shop = Shop(tmp_path)
    for day in range(6):
        shop.write(day, dear(day))
    given = {
        "name": "shop", "recipe": "table", "engine": "pandas", "device": "cpu", "runs": str(tmp_path / "runs"),
        "artifacts": str(tmp_path / "artifacts"),
        "features": STEPS | {"path": str(shop.raw), "time": "at", "categorical": ["city"], "continuous": ["price"],
                             "targets": {"bought": {"task": "binary"}}},
        "model": {"kind": "lr"}, "train": {"epochs": 1, "batch_size": 512},
        "evaluate": {"importance": False, "baselines": []}, "nightly": {"min_window_rows": 50, "num_bootstrap": 100},
    }  # fmt: skip
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(given))
    learn_contract(shop.config(**STEPS | {"categorical": ["city"]}))
    assert run_nightly(path) == 0
    shop.write(6, dear(6, 100))
    run_nightly(path)
    files = json.loads((tmp_path / "runs/shop/files.json").read_text())["files"]
    (state,) = [item["state"] for name, item in files.items() if name.endswith("day-006.csv")]
    assert state == "quarantined"


def unlabelled(day: int, times: float = 1.0) -> pd.DataFrame:
    """Four rows have no label yet, and text that is no number."""
    frame = texts(day, times).assign(bought=shop_day(day)["bought"].astype(object))
    frame.loc[:3, "bought"], frame.loc[:3, "price"] = None, "tbd"
    return frame


def test_text_of_rows_without_a_label_that_are_left_out_is_not_read(tmp_path):
    shop, how = Shop(tmp_path), STEPS | {"drop_null_targets": True}
    for day in range(6):
        shop.write(day, unlabelled(day))
    assert learn_contract(shop.config(**how)).counts == {"all": (6, 12_000)}
    report = report_of(shop, unlabelled(6), drop_null_targets=True)
    assert report.accepted, report.reasons
    numbers = shop_day(6)["price"][4:]
    assert report.measured.statistics.numbers["price (number)"].moments.count == numbers.notna().sum()
    assert not report_of(shop, unlabelled(6, 100), drop_null_targets=True).accepted


def test_rows_whose_labels_are_yet_to_come_are_measured_as_all_others_are(tmp_path):
    """What is scored has no label yet. Numbers in text were null there, and so drifted where labels were late."""
    shop, how = Shop(tmp_path), STEPS | {"drop_null_targets": True, "categorical": ["city"]}
    (kind,) = TableRecipe(shop.config(**how).features).raw_files()

    def measured(day: int, known: float, times: float = 1.0):
        frame = texts(day)
        late = frame.index >= known * len(frame)
        frame.loc[late, "price"] = texts(day, times).loc[late, "price"]
        path = shop.write(day, frame.assign(bought=shop_day(day)["bought"].astype(object).where(~late)))
        return measure_file(kind, "pandas", str(path)).statistics

    def drifted(new) -> set:
        found = drift(measured(0, 0.98), new, labels=["bought"])
        return {(item.column, item.measure) for item in found.measures if item.verdict != "ok"}

    assert drifted(measured(1, 0.98)) == set()
    assert drifted(measured(1, 0.5)) == {("bought", "nulls")}  # labels that are late are told, and as that
    assert ("price (number)", "psi") in drifted(measured(1, 0.5, times=3.0))  # and so is what will be scored


@pytest.mark.parametrize("by_hand", [False, True])
def test_an_accepted_file_that_can_no_longer_be_read_ends_no_night(tmp_path, caplog, by_hand):
    """A step has changed since: what was accepted is compared with no more, and a warning names it."""
    before = {
        "inputs": STEPS["inputs"],
        "steps": [{"parse_number": EUROS["parse_number"] | {"null_values": ["ask", "tbd"]}}],
    }
    shop = Shop(tmp_path)
    for day in range(6):
        shop.write(day, texts(day))
    if not by_hand:
        shop.write(2, unlabelled(2).assign(bought=0))
    learn_contract(shop.config(**before), now=end_of(5))
    bad = shop.write(6, unlabelled(6, 100).assign(bought=0))
    config = shop.config(**before)
    assert decide(config, check_new(config, end_of(6)), end_of(6)).quarantined == (str(bad),)
    finish(config)
    if by_hand:
        accept(config, bad.name)
    shop.write(7, texts(7))
    config = shop.config(**STEPS)
    decision = decide(config, check_new(config, end_of(7)), end_of(7))
    assert str(shop.raw / "day-007.csv") in decision.accepted
    assert decision.drift["all"].rows_old == (12_000 if by_hand else 10_000)
    name = "day-006.csv" if by_hand else "day-002.csv"
    assert f"{name} was accepted and can no longer be read; drift is measured without it" in caplog.text
    assert "'tbd'" in caplog.text
