"""A table in parts: the rows, bits, schema and notes of the whole table, whatever the size of a part."""

import csv
import io
import itertools
import logging

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.errors import DataError
from gigabatch.features.reading.blocks import NotInParts, about_rows, read_blocks
from gigabatch.features.reading.csv_records import csv_records
from gigabatch.features.reading.sources import read_files
from gigabatch.features.recipes.base import SPLITS, SplitFractions, typed_rows
from gigabatch.features.recipes.staging import SplitWriter, StagedRows
from gigabatch.features.recipes.table.recipe import TableRecipe, TableSettings
from gigabatch.features.schema import Column, Schema, Target

LATE = {"late": {"task": "binary"}}
SIZE = 400


def run_here(function, tasks):
    return [function(task) for task in tasks]


def shop(seed=0, size=SIZE, shuffled=True):
    rng = np.random.default_rng(seed)
    at = rng.integers(0, 60, size) * 60_000_000
    frame = pd.DataFrame({
        "city": rng.choice(["Oslo", "Bonn", "Nice", "007", None], size), "code": rng.integers(0, 30, size),
        "price": rng.gamma(2, 10, size).round(2), "half": rng.choice([0.0, 1.0, 2.5], size),
        "gift": rng.choice(["true", "False", None], size), "late": rng.integers(0, 2, size),
        "kind": rng.choice(["ham", "egg", "spam"], size), "w": rng.uniform(0, 2, size),
        "visit": [f"v{i // 5}" for i in range(size)], "at": at if shuffled else np.sort(at),
        "paid": rng.gamma(2, 10, size),
    })  # fmt: skip
    frame.loc[rng.random(size) < 0.1, "price"] = np.nan
    frame["when"] = pd.to_datetime(frame["at"] * 1000).dt.strftime("%Y-%m-%dT%H:%M:%S")
    return frame


STEPS = (
    {"fill_missing": {"column": "price"}},
    {"log": {"column": "price", "output": "price_log"}},
    {"min_max": {"column": "half"}},
    {"filter": {"column": "code", "op": ">", "value": 3}},
)
FOLDED = {"folded_target_encoding": {"by": ["city"], "targets": ["late"], "fold_key": "visit", "num_folds": 3}}
USED = {"categorical": {"city": "string", "code": "int64", "gift": "bool"}, "continuous": ("price", "half")}
CASES = {
    "by row": {"targets": LATE, **USED},
    "by key": {"targets": LATE, **USED, "split_key": "visit", "group": "visit", "weight": "w", "keys": ("kind",)},
    "by time": {"targets": LATE, **USED, "time": "when"},
    "by numbers": {"targets": LATE, **USED, "time": "at", "split": {"valid_rows": 30, "test_rows": 50}},
    "classes": {"targets": {"kind": {"task": "multiclass"}, **LATE}, **USED, "time": "at"},
    "numbers of rows": {"targets": {"paid": {"task": "regression"}}, **USED,
                        "split": {"valid_rows": 30, "test_rows": 50}},
    "steps": {"targets": LATE, **USED, "continuous": ("price", "price_log", "half"), "steps": STEPS},
    "encoded labels": {"targets": LATE, **USED, "continuous": ("price", "late_encoded_by_city"), "time": "when",
                       "inputs": {"visit": "string"}, "steps": (*STEPS[::3], FOLDED)},
    "flags of text": {"targets": LATE, "categorical": ("gift", "city"), "continuous": ("price",)},
}  # fmt: skip


def recipe(given):
    split = {"split": SplitFractions(**given["split"])} if "split" in given else {}
    return TableRecipe(TableSettings(**given | split))


def whole(given):
    tables = recipe(given).build("pandas")
    return tables, {name: typed_rows(tables.schema, name, frame) for name, frame in tables.splits.items()}


def in_parts(given, folder, rows):
    folder.mkdir()
    return recipe(given).write_parts("pandas", folder, rows, run_here)


def require_equal(given, folder, rows):
    tables, splits = whole(given)
    parts = in_parts(given, folder, rows)
    assert parts is not None
    assert (parts.schema, parts.notes) == (tables.schema, tables.notes)
    for split in SPLITS:
        paths = sorted((folder / split).glob("part-*.parquet"))
        found = pd.concat([pd.read_parquet(path) for path in paths], ignore_index=True)
        splits[split].to_parquet(folder / "whole.parquet", index=False)
        expected = pd.read_parquet(folder / "whole.parquet")
        assert parts.rows[split] == len(expected)
        pd.testing.assert_frame_equal(found, expected, check_exact=True)
    for place, of_parts in ((folder / "a", parts.workflow), (folder / "b", tables.workflow)):
        of_parts.save(place)
    assert (folder / "a" / "workflow.json").read_bytes() == (folder / "b" / "workflow.json").read_bytes()
    assert sorted(path.name for path in folder.iterdir()) == sorted(["a", "b", *SPLITS, "whole.parquet"])
    return parts


@pytest.mark.parametrize(("case", "rows", "kind"), [
    *itertools.product(CASES, (61, SIZE - 1), ("csv",)), *itertools.product(CASES, (64,), ("parquet", "csv.gz")),
])  # fmt: skip
def test_parts_are_the_whole_table(case, rows, kind, tmp_path):
    frame, path = shop(), tmp_path / f"shop.{kind}"
    frame.to_parquet(path, index=False) if kind == "parquet" else frame.to_csv(path, index=False)
    require_equal(CASES[case] | {"path": str(path)}, tmp_path / "parts", rows)


def saved(folder, frame, name="shop.csv"):
    folder.mkdir(exist_ok=True)
    frame.to_csv(folder / name, index=False)
    return str(folder / name)


def test_files_that_are_splits_already_and_many_files_of_a_folder(tmp_path):
    for number in range(3):
        for folder in ("many", "others"):
            saved(tmp_path / folder, shop(number, 50 + 150 * number), f"{number}.csv")
    apart = {"train_path": str(tmp_path / "many"), "test_path": str(tmp_path / "others" / "1.csv")}
    require_equal({"targets": LATE, **USED} | apart, tmp_path / "cut", 60)
    three = apart | {"valid_path": str(tmp_path / "others" / "0.csv")}
    require_equal({"targets": LATE, **USED} | three, tmp_path / "given", 60)


def test_rows_without_a_label_and_rows_that_are_left_out(tmp_path, monkeypatch):
    frame = shop().astype({"late": "float64"})
    frame.loc[::3, "late"] = np.nan
    path = saved(tmp_path, frame)
    monkeypatch.setattr(TableRecipe, "__init__", leaving_out(path, [0, 57, 399], TableRecipe.__init__))
    given = {"targets": LATE, **USED, "path": path, "drop_null_targets": True}
    notes = require_equal(given, tmp_path / "parts", 60).notes
    assert notes[0] == f"{path}: 131 of 397 rows left out, because their target 'late' is null."


def leaving_out(path, places, real):
    def init(self, chosen):
        real(self, chosen)
        self.without = {path: places}

    return init


def test_rows_of_one_time_are_not_sorted_in_memory(tmp_path):
    """A day of three has nearly all rows, in two places of the file: they stay in the order of the file."""
    frame = shop().assign(at=0)
    frame.loc[[3, 250], "at"] = -5
    frame.loc[[60, 390, 399], "at"] = 7
    parts = list(staged_frames(frame, tmp_path / "staged", 50))
    assert max(map(len, parts)) <= 55
    expected = frame.assign(row_number=range(400)).sort_values(["at", "row_number"])["row_number"].tolist()
    assert pd.concat(parts)["row_number"].tolist() == expected


def staged_frames(frame, folder, rows):
    staged = StagedRows("pandas", folder, rows, "at", "row_number")
    frame = frame.assign(row_number=range(len(frame)))
    for start in range(0, len(frame), rows):
        staged.add(frame.iloc[start : start + rows].reset_index(drop=True))
    staged.settle()
    return staged.frames()


@pytest.mark.parametrize("rows", [1, 7, 40])
def test_rows_of_one_time_come_in_one_frame_where_they_have_no_order(rows, tmp_path):
    frame = shop(size=120).sort_values("at")[["at", "price"]].reset_index(drop=True)  # several rows of each time
    staged = StagedRows("pandas", tmp_path / "staged", rows, "at", None)
    for start in range(0, len(frame), rows):
        staged.add(frame.iloc[start : start + rows].reset_index(drop=True))
    staged.settle()
    found = list(staged.frames())
    assert all(one["at"].max() < two["at"].min() for one, two in itertools.pairwise(found))
    pd.testing.assert_frame_equal(pd.concat(found, ignore_index=True).sort_values(["at", "price"], ignore_index=True),
                                  frame.sort_values(["at", "price"], ignore_index=True))  # fmt: skip


def test_a_file_is_a_part_of_a_split_without_a_copy_where_its_columns_fit(tmp_path):
    frame = pd.DataFrame({"x": [0.5, 1.5], "y": [0.0, 1.0]}, dtype="float32")
    schema = Schema((Column("x", "continuous", "float32"), Column("y", "target", "float32")), (Target("y", "binary"),))
    for name, rows in (("a", frame), ("b", frame.astype({"x": "int64"}))):
        rows.to_parquet(tmp_path / f"{name}.parquet", index=False)
    writer = SplitWriter("pandas", tmp_path / "made", lambda made: schema)
    (tmp_path / "made").mkdir()
    for split in SPLITS:
        writer.write_file(split, tmp_path / "a.parquet")
    writer.write("train", frame)
    assert (tmp_path / "made/train/part-00000.parquet").samefile(tmp_path / "a.parquet")
    assert len(pd.read_parquet(tmp_path / "made/train/part-00001.parquet")) == 2
    assert writer.finish(SPLITS) == ({"train": 4, "valid": 2, "test": 2}, schema)
    writer = SplitWriter("pandas", tmp_path / "made", lambda made: str(made.dtypes.to_dict()))
    writer._schema, writer._checks = str(frame.dtypes.to_dict()), None
    with pytest.raises(NotInParts, match="columns of other types"):
        writer.write_file("train", tmp_path / "b.parquet")


def test_a_table_of_one_block_takes_the_old_way(tmp_path):
    given = {"targets": LATE, **USED, "path": saved(tmp_path, shop(size=40))}
    assert in_parts(given, tmp_path / "parts", 1_000) is None


@pytest.mark.parametrize(("change", "reason"), [
    ({"steps": ({"rolling": {"by": ["city"], "time": "at", "column": "price", "window": 9, "statistic": "count",
                             "output": "n"}},), "inputs": {"at": "int64"}}, "step 1 (rolling) looks at other rows"),
    ({"lists": {"tags": {}}}, "columns of lists are not read in parts"),
])  # fmt: skip
def test_what_needs_all_rows_is_said(change, reason, tmp_path, caplog):
    path = saved(tmp_path, shop().assign(tags="a|b"))
    with caplog.at_level(logging.INFO):
        assert in_parts({"targets": LATE, **USED, "path": path} | change, tmp_path / "parts", 50) is None
    (record,) = caplog.records
    assert record.message.startswith("about ")
    assert record.message.endswith(f"rows are held in memory at once: {reason}.")


@pytest.mark.parametrize(("column", "early", "late", "reason"), [
    ("price", "true", "1", "column 'price' holds values of several kinds"),
    ("price", str(2**53 + 1), "0.5", "column 'price' holds values of several kinds"),
    ("code", str(2**53 + 1), "", "column 'code' holds whole numbers beyond 2^53 beside nulls"),
    ("at", "5", "2026-01-01", "the times are datetime and int64"),
])  # fmt: skip
def test_blocks_that_the_whole_file_would_read_otherwise_are_not_used(column, early, late, reason, tmp_path, caplog):
    texts = shop().astype("str")
    texts[column] = [early, late] * 200 if column == "code" else [early] * 200 + [late] * 200
    given = {"targets": LATE, **USED, "path": saved(tmp_path, texts), "time": "at" if column == "at" else None}
    with caplog.at_level(logging.INFO):
        assert in_parts(given, tmp_path / "parts", 50) is None
    assert reason in caplog.text
    assert list((tmp_path / "parts").iterdir()) == []


def test_whole_numbers_beside_fractions_are_read_in_parts(tmp_path):
    texts = shop().astype("str")
    texts["price"] = ["5"] * 200 + ["0.5"] * 200
    require_equal({"targets": LATE, **USED, "path": saved(tmp_path, texts)}, tmp_path / "parts", 50)


@pytest.mark.parametrize(("column", "value", "message"), [
    ("late", "3", "a binary label is 0 or 1"),
    ("late", "", "rows 200 to 250: target 'late' is null in 1 of 50 rows"),
    ("w", "-1", "rows 200 to 250: weight 'w' holds negative values"),
    ("visit", "", "rows 200 to 250: column 'visit' is null in 1 of 50 rows"),
    ("price", "x", "line 222: column 'price' is declared float32"),
])  # fmt: skip
def test_errors_name_the_rows(column, value, message, tmp_path):
    texts = shop().fillna({"city": "Oslo", "gift": "true", "price": 1.0}).astype("str")
    texts.loc[220, column] = value
    given = {"targets": {"kind": {"task": "multiclass"}, **LATE}, "weight": "w", "group": "visit"} | USED
    with pytest.raises(DataError, match=message.replace("(", r"\(").replace(")", r"\)")):
        in_parts(given | {"path": saved(tmp_path, texts)}, tmp_path / "parts", 50)


def test_a_class_that_train_has_not_is_found_over_all_parts(tmp_path):
    frame = shop().assign(at=range(SIZE))
    frame.loc[SIZE - 1, "kind"] = "rare"
    given = {"targets": {"kind": {"task": "multiclass"}}, **USED, "path": saved(tmp_path, frame), "time": "at"}
    with pytest.raises(DataError, match="'rare' of the test split are not in the train split"):
        in_parts(given, tmp_path / "parts", 50)


def test_labels_whose_differences_float32_loses_are_found_over_all_parts(tmp_path):
    frame = shop().assign(paid=np.linspace(1e9, 1e9 + 3, SIZE))
    given = {"targets": {"paid": {"task": "regression"}}, **USED, "path": saved(tmp_path, frame)}
    with pytest.raises(DataError, match="moves values by up to"):
        in_parts(given, tmp_path / "parts", 50)


def test_three_labels_of_a_binary_target_are_found_over_all_parts(tmp_path):
    frame = shop().assign(late=["a"] * 200 + ["b"] * 150 + ["c"] * 50)
    given = {"targets": {"late": {"task": "binary", "positive": "a"}}, **USED, "path": saved(tmp_path, frame)}
    with pytest.raises(DataError, match="a binary label has two values"):
        in_parts(given, tmp_path / "parts", 50)


@pytest.mark.parametrize("place", range(3, 9))
@pytest.mark.parametrize("wide", ["1,Bonn, Sued,7,9", "1,Bonn,Sued,7,", "1,Bonn"])
def test_a_row_of_another_width_is_refused_or_read_alike_wherever_a_block_begins(tmp_path, place, wide):
    lines = [f"{k % 2},Oslo,{k},{k % 5}" for k in range(12)]
    lines[place] = wide
    path = tmp_path / "shop.csv"
    path.write_text("late,city,code,price\n" + "\n".join(lines) + "\n")
    dtypes = {"late": "float32", "city": "string", "code": "string", "price": "float64"}
    try:
        whole = read_files("pandas", str(path), dtypes)
    except DataError:
        with pytest.raises(DataError):
            list(read_blocks(str(path), dtypes, 3))
        return
    found = pd.concat(list(read_blocks(str(path), dtypes, 3)), ignore_index=True)
    pd.testing.assert_frame_equal(found, whole.reset_index(drop=True))


def test_records_end_where_pythons_csv_module_ends_them():
    rng = np.random.default_rng(5)
    letters = ["a", '"', '""', ",", "\n", " ", "b\r\n", '"x,\ny"', ',"q""\n",']
    for _ in range(400):
        fields = [["".join(rng.choice(letters, rng.integers(0, 5))) for _ in range(3)] for _ in range(6)]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(fields)
        _, records = csv_records(io.BytesIO(text.getvalue().encode()), ",", has_header=False)
        found = [next(csv.reader(io.StringIO(record.decode(), newline=""))) for record in records]
        assert found == fields


@pytest.mark.parametrize("text", ["x,s\r1,p\n2,q\n", "x,s\n1,p\r2,q\n", "x,s\r1,p\r2,q\r", 'x,s\n1,p\n2,"q"\r3,p\n'])
def test_a_carriage_return_alone_is_read_whole(tmp_path, text):
    """Readers take it for a line break, so where a record ends the line feeds do not tell."""
    path, dtypes = tmp_path / "mixed.csv", {"x": "float32", "s": "string"}
    path.write_text(text, newline="")
    assert len(read_files("pandas", str(path), dtypes)) == len(pd.read_csv(path))
    with pytest.raises(NotInParts, match="carriage return alone"):
        list(read_blocks(str(path), dtypes, 1))


def test_a_carriage_return_in_quotes_is_text(tmp_path):
    path, dtypes = tmp_path / "quoted.csv", {"x": "float32", "s": "string"}
    path.write_text('x,s\r\n1,"a\rb"\r\n2,"c\r\nd\re"\r\n', newline="")
    found = pd.concat(list(read_blocks(str(path), dtypes, 1)))
    assert found["s"].tolist() == ["a\rb", "c\r\nd\re"]


def test_a_row_too_wide_is_refused_where_pandas_reads_its_next_piece(tmp_path):
    """Of three columns pandas' piece begins with row 262,144."""
    lines = [f"{k % 7},p,{k % 2}" for k in range(262_150)]
    lines[262_144] = "7,1,250,p,1"
    path = tmp_path / "long.csv"
    path.write_text("x,s,late\n" + "\n".join(lines) + "\n")
    with pytest.raises(DataError, match="Expected 3 fields in line 262146, saw 5"):
        read_files("pandas", str(path), {"x": "float32", "s": "string", "late": "float64"})


@pytest.mark.parametrize("ending", ["csv.gz", "csv.zip", "parquet"])
def test_a_file_that_is_cut_has_no_known_number_of_rows_and_is_refused_by_whoever_reads_it(tmp_path, ending):
    path, frame = tmp_path / f"rows.{ending}", shop()
    frame.to_parquet(path) if ending == "parquet" else frame.to_csv(path, index=False)
    assert about_rows(str(path)) > SIZE / 8
    path.write_bytes(path.read_bytes()[:-20])
    assert about_rows(str(path)) == 0
    with pytest.raises(DataError, match=rf"rows\.{ending}: cannot be read"):
        list(read_blocks(str(path), {"at": "int64"}, 100))
