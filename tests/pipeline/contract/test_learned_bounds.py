"""What is learned of few files: how often ordinary days are refused, and that bad ones still are."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.recipes.table.recipe import TableRecipe, TableSettings
from gigabatch.pipeline.contract.check import Accepted, check_file
from gigabatch.pipeline.contract.learn import _distinct, _drift, _overlap, _range, _unseen, learn, read_history
from gigabatch.pipeline.contract.state import FileEntry

ROWS = 600


def recipe_of(folder) -> TableRecipe:
    targets = {"bought": {"task": "binary"}, "paid": {"task": "regression"}}
    return TableRecipe(TableSettings(path=str(folder), continuous=("price",), targets=targets))


def write(path, random, rows: int, nulls: float, rate: float, mean: float) -> str:
    frame = pd.DataFrame(
        {
            "price": np.where(random.random(rows) < nulls, np.nan, random.uniform(10, 90, rows)),
            "bought": (random.random(rows) < rate).astype(int),
            "paid": random.normal(mean, 10, rows),
        }
    )
    frame.to_csv(path, index=False)
    return str(path)


def moods(random, number: int) -> list[np.ndarray]:
    """Of days: rows, and the share of nulls, that of label 1 and the mean of the other label, as they move."""
    return [
        (ROWS * np.exp(random.normal(0, 0.1, number))).astype(int), np.clip(random.normal(0.1, 0.03, number), 0, 1),
        random.normal(0.3, 0.04, number), random.normal(50, 5, number),
    ]  # fmt: skip


def test_an_ordinary_day_is_rarely_refused_for_what_four_days_have_taught(tmp_path):
    """It was more than one in ten, and then one in a hundred."""
    random, days, refused = np.random.default_rng(1), 400, 0
    histories = 16
    for number in range(histories):
        folder = tmp_path / str(number)
        folder.mkdir()
        for day, mood in enumerate(zip(*moods(random, 4), strict=True)):
            write(folder / f"{day}.csv", random, *mood)
        terms = learn("table", list(read_history(recipe_of(folder), "pandas").values())).files["all"]
        rows, nulls, rate, mean = moods(random, days)
        label, paid = terms.columns["bought"].shares["1"], terms.columns["paid"].mean
        passed = [
            (rows < terms.rows[0]) | (rows > terms.rows[1]),
            random.binomial(rows, nulls) / rows > terms.columns["price"].nulls,
            np.abs(random.binomial(rows, rate) / rows - np.mean(label)) > np.ptp(label) / 2,
            np.abs(random.normal(mean, 10 / np.sqrt(rows)) - np.mean(paid)) > np.ptp(paid) / 2,
        ]
        refused += int(np.any(passed, axis=0).sum())
        assert terms.columns["price"].nulls < 0.9
        assert terms.rows[0] > ROWS / 4
    assert refused < 0.003 * histories * days, refused / histories / days


def test_a_share_that_was_never_seen_has_a_bound_by_how_few_rows_were(tmp_path):
    """Of a null in one row of 200, four files of 60 rows may show none; a fifth with two of them was refused."""
    folder, recipe = tmp_path, recipe_of(tmp_path)
    for day in range(4):
        write(folder / f"{day}.csv", np.random.default_rng(day), 60, 0.0, 0.5, 50.0)
    contract = learn("table", list(read_history(recipe, "pandas").values()))
    for nulls, good in ((2, True), (40, False)):
        path = write(folder / "new.csv", np.random.default_rng(4), 60, 0.0, 0.5, 50.0)
        pd.read_csv(path).assign(price=lambda f, n=nulls: f["price"].where(f.index >= n)).to_csv(path, index=False)
        report = check_file(contract, recipe, path)
        assert report.accepted is good, report.reasons


def test_one_small_file_does_not_open_the_bound_of_nulls_and_more_files_narrow_it(tmp_path):
    """The first day, of ten rows, gave 61 %: what it alone could tell, though no row of any file was null."""
    recipe, bounds = recipe_of(tmp_path), []
    for day in range(26):
        write(tmp_path / f"{day:02}.csv", np.random.default_rng(day), 400 if day else 10, 0.0, 0.5, 50.0)
        if day in (4, 25):
            found = learn("table", list(read_history(recipe, "pandas").values()))
            bounds.append(found.files["all"].columns["price"].nulls)
    assert bounds[0] < 0.03
    assert bounds[1] == 0.01  # the least that is allowed


def history(folder, rows, rate=lambda day: 0.3):
    """The contract of files of so many rows, and what is known of them when a new one is checked."""
    recipe, files = recipe_of(folder), {}
    for day, count in enumerate(rows):
        path = write(folder / f"{day:02}.csv", np.random.default_rng(day), count, 0.1, rate(day), 50.0)
        files[path] = FileEntry("all", "accepted", f"{day}", "", rows=count)
    return recipe, learn("table", list(read_history(recipe, "pandas").values())), Accepted(files)


def checked(folder, made, rows, rate=0.3, **labels):
    recipe, contract, accepted = made
    path = write(folder / "new.csv", np.random.default_rng(99), rows, 0.1, rate, 50.0)
    pd.read_csv(path).assign(**labels).to_csv(path, index=False)
    return check_file(contract, recipe, path, accepted)


def test_one_small_file_opens_no_bound_unseen(tmp_path):
    """A first day of 20 rows: `rows` began at 0, half the labels turned round passed, and so did other ones."""
    made = history(tmp_path, [20, *[2000] * 8])
    assert checked(tmp_path, made, 2000).accepted
    assert 0 < made[1].files["all"].rows[0] <= 20
    half = checked(tmp_path, made, 1000)
    assert half.accepted
    assert "few rows, 1,000; the usual accepted file has 2,000" in " ".join(half.warnings)
    assert "of its labels are '1'" in " ".join(checked(tmp_path, made, 2000, bought=lambda f: 1 - f["bought"]).reasons)
    for change in (lambda f: 100 - f["paid"] + 10, lambda f: f["paid"] + 10):  # whose range is that of before
        assert "the mean of this label" in " ".join(checked(tmp_path, made, 2000, paid=change).reasons)


def test_labels_of_the_other_sign_are_refused(tmp_path):
    made = history(tmp_path, [20, *[2000] * 8])
    told = " ".join(checked(tmp_path, made, 2000, paid=lambda f: -f["paid"]).reasons)
    assert "2,000 row(s) are below" in told
    assert "the mean of this label" in told


@pytest.mark.parametrize("small", [False, True])
def test_half_a_file_is_refused_or_told_whatever_the_days_were_like(tmp_path, small):
    """Five days whose rows differ by a fifth taught a bound that half a file passed without a word."""
    days = [1630, 2440, 2000, 1800, 2210]
    made = history(tmp_path, [20, *days] if small else days)
    whole, half = checked(tmp_path, made, 2000), checked(tmp_path, made, 1000)
    assert (whole.accepted, whole.warnings) == (True, ())
    assert "few rows, 1,000; " in " ".join((*half.reasons, *half.warnings))


def test_a_small_day_of_each_week_is_no_news(tmp_path):
    made = history(tmp_path, [2000, 2100, 1900, 2050, 2000, 900, 950] * 3)
    found = checked(tmp_path, made, 940)
    assert (found.accepted, found.warnings) == (True, ())


@pytest.mark.parametrize("days", [7, 10, 13])
@pytest.mark.parametrize(("rows", "rate"), [(500, 0.3), (2000, 0.5), (500, 0.6), (5000, 0.3)])
def test_the_one_other_day_of_a_week_is_refused_neither_in_history_nor_when_it_comes_again(tmp_path, days, rows, rate):
    """It was left out as far from all others, so the next Sunday was refused, and history's own lay out of bounds."""
    made = history(
        tmp_path,
        [rows if day == 6 else 2000 + 20 * (day % 5) for day in range(days)],
        lambda day: rate if day == 6 else 0.3,
    )
    terms = made[1].files["all"]
    for path, entry in made[2].files.items():
        labels = pd.read_csv(path).bought
        assert terms.rows[0] <= entry.rows <= terms.rows[1]
        for label, (low, high) in terms.columns["bought"].shares.items():
            assert low <= (labels == int(label)).mean() <= high
    for again in (0.96, 1.04):
        found = checked(tmp_path, made, round(again * rows), rate)
        assert found.accepted, found.reasons
    assert "of its labels are '1'" in " ".join(checked(tmp_path, made, 2000, 0.85).reasons)


def test_files_that_never_reached_back_may_do_so_a_little(tmp_path):
    """A second was refused, where no file of a short history had begun before the end of the one before."""
    day = 86_400.0
    spans = [(day * n, day * n + day - 60) for n in range(4)]
    bound = _overlap(spans)
    assert 1800 < bound < day / 4
    spans[3] = (spans[3][0] - 9000, spans[3][1])
    assert _overlap(spans) >= 9000  # what was seen once passes


def test_few_files_that_differ_leave_no_bound_open():
    """The prediction interval of three files is 58 deviations wide."""
    assert _unseen([0.01, 0.04]) <= 0.44
    assert _distinct([100, 140, 120]) <= 2.5 * 140 + 10
    assert _range([(0.0, 90.0), (0.0, 130.0), (0.0, 110.0)]) == (0.0, 390.0)
    ((_, far),) = _drift({"psi": [0.3, 0.6, 0.4]}).values()
    assert far == pytest.approx(4 * 0.6)
