"""The features stage of a table in parts: the same artifact as of the whole table, and what it says of itself."""

import logging

import numpy as np
import pandas as pd
import pytest

from gigabatch.pipeline.stages.stages import Pipeline

SPLITS = ("train", "valid", "test")


@pytest.fixture
def raw(tmp_path):
    rng = np.random.default_rng(3)
    rows = 600
    (tmp_path / "raw").mkdir()
    for number, size in enumerate((40, 500, 60)):
        frame = pd.DataFrame({
            "city": rng.choice(["Oslo", "Bonn"], rows), "price": rng.gamma(2, 10, rows).round(2),
            "at": rng.permutation(rows) + number * 500, "late": rng.integers(0, 2, rows),
        })  # fmt: skip
        frame.loc[::7, "price"] = np.nan
        frame.head(size).to_csv(tmp_path / "raw" / f"day-{number}.csv", index=False)
    return tmp_path / "raw"


def pipeline(raw, work, **changes):
    steps = [{"fill_missing": {"column": "price"}}, {"min_max": {"column": "price"}}]
    features = {"path": str(raw), "categorical": ["city"], "continuous": ["price"], "time": "at",
                "targets": {"late": {"task": "binary"}}, "steps": steps}  # fmt: skip
    settings = {"name": "shop", "recipe": "table", "artifacts": str(work / "artifacts"), "runs": str(work / "runs")}
    return Pipeline.from_config(settings | {"features": features, "device": "cpu"} | changes)


def test_a_table_in_parts_is_the_artifact_of_the_whole(raw, tmp_path):
    whole = pipeline(raw, tmp_path / "whole").features()
    parts = pipeline(raw, tmp_path / "parts", rows_per_part=100).features()
    assert parts.artifact.key == whole.artifact.key
    assert (parts.rows, parts.notes, parts.schema) == (whole.rows, whole.notes, whole.schema)
    assert (len(whole.parts("train")), len(parts.parts("train"))) == (1, 5)
    for split in SPLITS:
        pd.testing.assert_frame_equal(parts.frame(split), whole.frame(split), check_exact=True)
    folders = [{path.name for path in found.artifact.path.iterdir()} for found in (parts, whole)]
    assert folders[0] == folders[1]
    states = [found.workflow.transform(pd.DataFrame({"price": [1.0, None]}))["price"].tolist() for found in
              (parts, whole)]  # fmt: skip
    assert states[0] == states[1]
    packed = [found.encode().artifact.path for found in (parts, whole)]
    for file in packed[0].rglob("words*.npy"):
        assert file.read_bytes() == (packed[1] / file.relative_to(packed[0])).read_bytes()


def test_small_files_are_not_parsed_again_the_next_night(raw, tmp_path):
    (raw / "day-2.csv").rename(tmp_path / "day-2.csv")
    pipeline(raw, tmp_path, rows_per_part=100).features()
    (tmp_path / "day-2.csv").rename(raw / "day-2.csv")
    found = pipeline(raw, tmp_path, rows_per_part=100).features()
    states = {entry["file"]: entry["state"] for entry in found.artifact.manifest["inputs"]}
    assert states == {"day-0.csv": "reused", "day-1.csv": "read", "day-2.csv": "read"}


def test_a_table_that_cannot_be_had_in_parts_is_read_whole_and_said(raw, tmp_path, caplog):
    rows = pd.read_csv(raw / "day-1.csv", dtype="str", keep_default_na=False)
    rows["price"] = [str(2**53 + 1)] * 300 + ["0.5"] * 200  # whole numbers, and floats that skip them
    rows.to_csv(raw / "day-1.csv", index=False)
    with caplog.at_level(logging.INFO):
        found = pipeline(raw, tmp_path / "parts", rows_per_part=100).features()
    told = [record.message for record in caplog.records if "are held in memory at once" in record.message]
    assert len(told) == 1
    assert told[0].endswith("day-1.csv: column 'price' holds values of several kinds.")
    assert [entry["file"] for entry in found.artifact.manifest["inputs"]] == [f"day-{n}.csv" for n in range(3)]
    whole = pipeline(raw, tmp_path / "whole").features()
    for split in SPLITS:
        pd.testing.assert_frame_equal(found.frame(split), whole.frame(split), check_exact=True)
