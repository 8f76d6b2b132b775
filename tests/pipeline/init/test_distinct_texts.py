"""What is told by the different texts of a column is what its rows tell."""

import re

import numpy as np
import pandas as pd
import pytest

from gigabatch.pipeline.init.columns import IN_FIELD, Seen, _shapes, _units_beside
from gigabatch.pipeline.init.doubts import UNKNOWN, unknown_numbers
from gigabatch.pipeline.init.leaks import leak
from gigabatch.pipeline.init.look import look
from gigabatch.pipeline.init.texts import Texts


def test_texts_give_each_row_its_own():
    draw = np.random.default_rng(0)
    column = pd.Series(draw.choice(["a", "b", "", "NA", None], 60), dtype="str", index=range(7, 67))
    texts = Texts.of(column)
    rows = [None if pd.isna(text) else text for text in column]
    assert texts.distinct.tolist() == list(dict.fromkeys(text for text in rows if text is not None))
    assert texts.of_rows(texts.distinct).tolist() == rows
    kept = texts.kept(~texts.distinct.isin(["", "NA"]).to_numpy())
    left = [text if text in ("a", "b") else None for text in rows]
    assert kept.of_rows(kept.distinct).tolist() == left
    assert [left[row] for row in kept.first_rows] == kept.distinct.tolist()
    assert dict(zip(kept.distinct, kept.counts, strict=True)) == {text: left.count(text) for text in ("a", "b")}
    assert kept.num_rows == 60 - left.count(None)
    known = [text for text in left if text is not None]
    assert kept.among_first(1).tolist() == known[:1]
    assert Texts.of(pd.Series([None], dtype="str")).among_first(5).tolist() == []


@pytest.mark.parametrize("may_be_code", [False, True])
def test_units_beside_numbers_do_not_depend_on_their_digits(may_be_code):
    draw = np.random.default_rng(1)
    numbers = ["5", "12", "1,234.50", "1e5", "2E-3", "12 345", "1'000", "7.", "3,-", ".5", "0.00"]
    behind = [
        "",
        " kg",
        "m2",
        " m3",
        "k",
        " k USD",
        "%",
        "M",
        "s",
        " days",
        " m²",
        "°C",
        ")",
        "- $",
        "Ⅷ2",
        "m23",
        " km/h",
    ]
    before = ["", "", "$", "USD ", "kg", "-", "(", "x"]
    for _ in range(60):
        ends, starts = draw.choice(behind, draw.integers(1, 3)), draw.choice(before, draw.integers(1, 3))
        made = {draw.choice(starts) + draw.choice(numbers) + draw.choice(ends) for _ in range(draw.integers(1, 9))}
        texts = pd.Series(sorted(made), dtype="str")
        counts, shapes = draw.integers(1, 9, len(texts)), _shapes(texts)
        of_shapes = np.bincount(shapes.codes, counts).astype("int64")
        expected = _units_beside(texts, counts, may_be_code)
        assert _units_beside(shapes.distinct, of_shapes, may_be_code) == expected, texts.tolist()
        bare = [re.sub(IN_FIELD, "0", text, count=1) for text in texts]
        assert [re.sub(IN_FIELD, "0", shapes.distinct[code], count=1) for code in shapes.codes] == bare


def test_numbers_that_stand_for_unknown_lie_at_the_ends():
    """Against a look at every number."""
    draw = np.random.default_rng(2)
    for _ in range(200):
        choice = draw.choice([-999.0, -99, 77, 88, 99, 99.9, 100, 999, 3, 4, 5, 60], draw.integers(1, 9))
        values = draw.choice(choice, 12)
        numbers, counts = np.unique(values, return_counts=True)
        alike = [bool(UNKNOWN.fullmatch(f"{x:.12g}")) and n > 1 for x, n in zip(numbers, counts, strict=True)]
        others = [x for x, is_alike in zip(numbers, alike, strict=True) if not is_alike]
        expected = [
            f"{x:.12g}" for x, is_alike in zip(numbers, alike, strict=True)
            if is_alike and len(others) > 1 and max(others[0] - x, x - others[-1]) > others[-1] - others[0]
        ]  # fmt: skip
        found = [told.split()[0] for told in unknown_numbers({"x": Seen("x", "number", values)})]
        assert found == expected, values


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_a_leak_is_told_by_numbers_of_texts_as_by_texts(task):
    draw = np.random.default_rng(3)
    label = draw.integers(0, 2 if task == "binary" else 5, 2000).astype(float)
    told = np.array(["ab", "cd", "ef", "gh", "ij"])[label.astype(int)]
    for texts, tells in ((told, True), (draw.choice(["x", "y"], 2000), False)):
        values = np.where(draw.random(2000) < 0.002, None, texts.astype(object))
        expected = leak(values, label, task)
        assert bool(expected) == tells
        assert leak(Texts.of(pd.Series(values, dtype="str")).codes, label, task) == expected


def test_a_large_file_is_looked_at_as_pandas_reads_it(tmp_path):
    draw = np.random.default_rng(4)
    frame = pd.DataFrame(
        {f"c{k}": draw.choice(["", "NA", "007", " a ", "-0", "1e5", 'x, "y"', "ü"], 40_000) for k in range(9)}
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    table = look(str(tmp_path / "t.csv"), 100_000)
    assert table.whole
    pd.testing.assert_frame_equal(table.sample, frame.astype("str"))
