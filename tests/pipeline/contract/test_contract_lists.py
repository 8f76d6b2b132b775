"""The contract of files with list columns: what is learned of elements and lengths, what is refused, and drift."""

import json
import random

import pandas as pd
import pytest

from gigabatch.features.exact.column_statistics import ColumnStatistics
from gigabatch.features.recipes.table.recipe import TableRecipe, TableSettings
from gigabatch.features.refit.statistics import CategoryStatistics, Statistics
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.contract.check import Accepted, check_file, family
from gigabatch.pipeline.contract.drift import drift
from gigabatch.pipeline.contract.learn import learn, read_history
from gigabatch.pipeline.contract.measure import measure_file
from gigabatch.pipeline.contract.terms import load_contract


def rows_of(seed: int, values: str = "abcdef", longest: int = 5, empty: float = 0.1, number: int = 800) -> pd.DataFrame:
    draw = random.Random(seed)
    lengths = [0 if draw.random() < empty else draw.randrange(1, longest + 1) for _ in range(number)]
    tags = [[draw.choice(values) for _ in range(length)] for length in lengths]
    return pd.DataFrame(
        {
            "item": [draw.randrange(9) for _ in range(number)],
            "price": [draw.random() for _ in range(number)],
            "clicked": [draw.randrange(2) for _ in range(number)],
            "tags": tags,
            "w": [[round(draw.random(), 3) for _ in row] for row in tags],
            "seen": [None if draw.random() < 0.02 else [draw.randrange(9)] for _ in range(number)],
        }
    )


def write(frame: pd.DataFrame, path) -> str:
    if path.suffix == ".csv":
        frame = frame.copy()
        for name in ("tags", "w", "seen"):
            frame[name] = ["" if row is None else "|".join(map(str, row)) for row in frame[name]]
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path)
    return str(path)


def settings(folder) -> dict:
    return {
        "path": str(folder), "categorical": {"item": "int64"}, "continuous": ["price"],
        "targets": {"clicked": {"task": "binary"}},
        "lists": {"tags": {"weights": "w"}, "seen": {"shares": "item"}},
    }  # fmt: skip


@pytest.fixture(params=["parquet", "csv"])
def learned(tmp_path, request):
    folder = tmp_path / "raw"
    folder.mkdir()
    for seed in range(4):
        write(rows_of(seed), folder / f"day-{seed}.{request.param}")
    recipe = TableRecipe(TableSettings(**settings(folder) | {"continuous": ("price",)}))
    histories = read_history(recipe, "pandas")
    learn("table", list(histories.values())).save(tmp_path / "contract.yaml")
    contract = load_contract(tmp_path / "contract.yaml", "table", recipe.raw_files())
    accepted = Accepted({}, {name: item.statistics for name, item in histories.items()})
    return folder, request.param, recipe, contract, accepted


def test_bounds_of_elements_and_lengths_are_learned(learned):
    *_, contract, _ = learned
    (terms,) = contract.files.values()
    frames = [rows_of(seed) for seed in range(4)]
    tags, lengths = terms.columns["tags"], terms.columns["tags (length)"]
    assert (tags.role, terms.columns["w"].role, lengths.role) == ("list", "weights", "number")
    assert tags.distinct == 6 * 1.5 + 10
    assert tags.unseen == 0.2
    empty = [sum(not row for row in frame["tags"]) / len(frame) for frame in frames]
    assert max(empty) < lengths.nulls < 0.33
    assert lengths.range == (0.0, 7.0)  # 1 to 5, half as wide again


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        ({"values": "abcdefg", "longest": 4}, None),
        ({"values": "ABCdef"}, "column 'tags': .* of the elements of its lists are values that no accepted file has"),
        ({"values": "abcdefghijklmnopqrstuvwxyz"}, "column 'tags': 26 distinct values, the bound is 19"),
        ({"empty": 0.6}, r"column 'tags \(length\)': .*% of its rows are null, the bound is"),
        ({"longest": 40}, r"column 'tags \(length\)': .* row\(s\) are above 7, up to 40"),
    ],
)
def test_a_file_whose_lists_are_others_is_refused(learned, changes, said):
    folder, ending, recipe, contract, accepted = learned
    path = write(rows_of(9, **changes), folder / f"day-9.{ending}")
    report = check_file(contract, recipe, path, accepted)
    assert report.accepted == (said is None)
    if said is not None:
        assert any(pd.Series([text]).str.contains(said).all() for text in report.reasons)


def test_the_same_lists_in_another_order_of_rows_are_the_same_rows_and_other_lists_are_not(learned):
    folder, ending, recipe, *_ = learned
    (kind,), frame = recipe.raw_files(), rows_of(5)

    def print_of(changed: pd.DataFrame) -> int:
        return measure_file(kind, "pandas", write(changed, folder / f"new.{ending}")).fingerprint

    base = print_of(frame)
    assert print_of(frame.sample(frac=1.0, random_state=1)) == base
    swapped = frame["tags"].tolist()
    place = next(place for place, row in enumerate(swapped) if len(set(row)) > 1)
    swapped[place] = swapped[place][::-1] if swapped[place] != swapped[place][::-1] else sorted(swapped[place])
    assert print_of(frame.assign(tags=swapped)) != base
    weights = frame["w"].tolist()
    weights[place] = [0.5] * len(weights[place])
    assert print_of(frame.assign(w=weights)) != base


def test_drift_of_elements_and_of_empty_lists_is_measured_as_of_categories(learned):
    folder, ending, recipe, _, _ = learned
    (kind,) = recipe.raw_files()

    def of(name: str, frame: pd.DataFrame):
        return measure_file(kind, "pandas", write(frame, folder / f"{name}.{ending}")).statistics

    old = of("old", rows_of(5, number=3000))
    assert drift(old, of("new", rows_of(6, number=3000)), labels=["clicked"]).verdict == "ok"
    moved = drift(old, of("new", rows_of(7, values="aaaaab", empty=0.5, number=3000)), labels=["clicked"])
    found = {(item.column, item.measure): item for item in moved.measures if item.verdict != "ok"}
    assert set(found) == {("tags", "psi"), ("tags (length)", "nulls")}
    counts = [rows_of(seed, **more)["tags"].map(len).eq(0).mean() for seed, more in (
        (5, {"number": 3000}), (7, {"values": "aaaaab", "empty": 0.5, "number": 3000}))]  # fmt: skip
    assert found["tags (length)", "nulls"].value == pytest.approx(counts[1] - counts[0], abs=1e-9)
    fresh = drift(old, of("new", rows_of(8, values="xbcdef", number=3000)), labels=["clicked"])
    (unseen,) = [item for item in fresh.measures if (item.column, item.measure) == ("tags", "unseen")]
    tags = rows_of(8, values="xbcdef", number=3000)["tags"].explode().dropna()
    assert unseen.value == pytest.approx(tags.eq("x").mean(), abs=0.01)
    assert unseen.verdict == "warn"


def test_few_rows_of_lists_whose_elements_are_equal_are_no_drift_and_other_ones_are(learned):
    folder, ending, recipe, _, _ = learned
    (kind,) = recipe.raw_files()

    def of(name: str, seed: int, rows: int, values: str):
        draw = random.Random(seed)
        frame = rows_of(seed, number=rows)
        frame["tags"] = [[draw.choice(values)] * draw.randrange(1, 20) for _ in range(rows)]
        frame["w"] = [[1.0] * len(row) for row in frame["tags"]]
        return measure_file(kind, "pandas", write(frame, folder / f"{name}.{ending}")).statistics

    letters = "abcdefghijklmnopqrst"
    old = of("old", 10, 2000, letters)
    found = [drift(old, of(f"new-{seed}", seed, 200, letters)).verdicts()["tags"] for seed in range(20, 30)]
    assert found.count("ok") >= 8  # one warning in twenty is chance's, for each of two measures
    assert "drift" not in found
    assert drift(old, of("moved", 40, 300, letters[:5])).verdicts()["tags"] == "drift"


@pytest.mark.parametrize("rare", [False, True])
def test_a_day_of_a_few_dozen_lists_whose_elements_are_equal_is_no_drift(rare):
    """Of 60 old lists and 30 new ones of one kind a quarter of the days had counted as drift."""
    values = range(400) if rare else range(20)
    shares = [1 / (1 + value) if rare else 1.0 for value in values]

    def of(draw: random.Random, rows: int, shares: list[float]) -> Statistics:
        lists = [draw.choices(values, shares) * draw.randrange(1, 20) for _ in range(rows)]
        elements = pd.Series([value for row in lists for value in row], name="tags")
        lengths = pd.Series([float(len(row)) for row in lists]).to_numpy()
        tags, length = CategoryStatistics.of(elements), ColumnStatistics.of(lengths)
        return Statistics(rows, {}, {"tags (length)": length}, {"tags": tags}, {"tags": "tags"})

    found = [
        drift(of(random.Random(seed), 60, shares), of(random.Random(1000 + seed), 30, shares)).verdicts()["tags"]
        for seed in range(100)
    ]
    assert found.count("drift") <= 2
    assert found.count("ok") >= 70
    moved = [1.0 * (value < 3) for value in values] if not rare else [1.0 * (value > 300) for value in values]
    assert drift(of(random.Random(0), 600, shares), of(random.Random(1), 90, moved)).verdicts()["tags"] == "drift"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("list<element: string>", "large_list<item: large_string>", True),
        ("list<element: string>", "list<element: int64>", False),
        ("list<element: int32>", "list<item: int64 not null>", True),
        ("list<element: string>", "string", False),
    ],
)
def test_lists_of_one_kind_of_element_are_one_type(one, other, same):
    assert (family(one) == family(other)) == same


def test_the_command_learns_and_checks_files_with_lists(tmp_path, capsys):
    folder = tmp_path / "raw"
    folder.mkdir()
    for seed in range(3):
        write(rows_of(seed), folder / f"day-{seed}.parquet")
    config = tmp_path / "run.yaml"
    raw = {
        "name": "lists", "recipe": "table", "device": "cpu", "engine": "pandas",
        "artifacts": str(tmp_path / "artifacts"), "runs": str(tmp_path / "runs"),
        "features": settings(folder), "model": {"kind": "lr"},
    }  # fmt: skip
    config.write_text(json.dumps(raw, allow_nan=False))
    assert main(["contract", "--config", str(config)]) == 0
    assert "tags (length)" in (tmp_path / "runs" / "lists" / "contract.yaml").read_text()
    write(rows_of(7), folder / "day-7.parquet")
    assert main(["contract", "--config", str(config), "--check"]) == 0
    write(rows_of(8, values="uvwxyz"), folder / "day-8.parquet")
    capsys.readouterr()
    assert main(["contract", "--config", str(config), "--check"]) == 20
    assert (
        "'tags': 100.00% of the elements of its lists are values that no accepted file has" in capsys.readouterr().out
    )
