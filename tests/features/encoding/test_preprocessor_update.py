"""Preprocessor.update: fit, save, load and update again, with the churn that it reports."""

import json

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.encoding.settings import PreprocessorSettings
from gigabatch.features.errors import DataError
from gigabatch.features.refit.update import checksum
from tests.features.statistics_columns import SCHEMA

OLD = [("a", 1, 1), ("a", 2, 3), ("b", 2, None), (None, 2, 5)]
NEW = [("c", 2, 7), ("a", None, 9), ("c", 9, 11), ("e", 2, 13)]


def table(rows):
    frame = pd.DataFrame(rows, columns=["word", "number", "x"])
    frame = frame.astype({"word": "str", "number": "Int64", "x": "float32"})
    return frame.assign(y=np.zeros(len(frame), "float32"))


def fitted(rows=OLD, **chosen):
    return Preprocessor(SCHEMA, PreprocessorSettings(**chosen)).fit([table(rows)])


def test_an_update_reports_and_extends():
    preprocessor = fitted()
    report = preprocessor.update([table(NEW)])
    word, number = report.categories
    assert (report.version, report.rows_old, report.rows) == (1, 4, 4)
    assert (word.new.examples, word.vanished.examples) == ((("c", 2), ("e", 1)), (("b", 1),))
    assert (word.unseen_rate, number.null_rate, report.numbers[0].mean) == (0.75, 0.25, 10.0)
    assert preprocessor.vocabularies["word"].values.tolist() == ["a", "b", "c", "e"]
    assert preprocessor.vocabularies["number"].values.tolist() == [2, 1, 9]
    assert (preprocessor.version.number, preprocessor.version.rows) == (2, (4, 4))
    assert preprocessor.tensor_schema.ids[0].num_ids == 3 + 4
    second = preprocessor.update([table([("c", 2, 1)])])
    assert second.version == 2
    assert second.categories[0].absent_since == {1: 1, 2: 2}  # b; a and e


def test_min_count_holds_over_all_versions():
    preprocessor = fitted(min_count=2)
    assert preprocessor.vocabularies["word"].values.tolist() == ["a"]
    preprocessor.update([table([("b", 2, 1), ("new", 2, 1)])])
    assert preprocessor.vocabularies["word"].values.tolist() == ["a", "b"]


def test_refreshed_scales_are_those_of_a_fit_on_everything():
    frozen, refreshed, whole = fitted(), fitted(), fitted(OLD + NEW)
    frozen.update([table(NEW)])
    assert (frozen.fills, frozen.scales) == (fitted().fills, fitted().scales)
    refreshed.update([table(NEW)], refresh_scales=True)
    assert (refreshed.fills, refreshed.scales) == (whole.fills, whole.scales)


def test_parquet_parts_update_like_frames(tmp_path):
    for position in range(2):
        table(NEW).iloc[2 * position : 2 * position + 2].to_parquet(tmp_path / f"{position}.parquet")
    one, other = fitted(), fitted()
    report = one.update([("pandas", tmp_path / f"{position}.parquet") for position in range(2)])
    assert report == other.update([table(NEW)])
    assert checksum(one.learned) == checksum(other.learned)


def test_a_saved_preprocessor_goes_on_where_it_was(tmp_path):
    saved = fitted()
    saved.update([table(NEW)])
    saved.save(tmp_path / "p")
    loaded = Preprocessor.load(tmp_path / "p")
    assert (loaded.version, checksum(loaded.learned)) == (saved.version, checksum(saved.learned))
    assert loaded.update([table(OLD)]) == saved.update([table(OLD)])
    assert checksum(loaded.learned) == checksum(saved.learned)
    assert {path.suffix for path in (tmp_path / "p").iterdir()} == {".json", ".parquet"}


def test_a_preprocessor_without_statistics_transforms_but_cannot_be_updated(tmp_path):
    whole = fitted()
    bare = Preprocessor(SCHEMA, whole.settings, whole.vocabularies, whole.fills, whole.scales)
    bare.save(tmp_path / "p")
    for preprocessor in (bare, Preprocessor.load(tmp_path / "p")):
        pd.testing.assert_frame_equal(preprocessor.transform(table(NEW)), whole.transform(table(NEW)))
        with pytest.raises(DataError, match=r"holds no statistics of its fit"):
            preprocessor.update([table(NEW)])


def change(**items):
    def damage(folder):
        state = json.loads((folder / "preprocessor.json").read_text())
        state["version"] |= items
        (folder / "preprocessor.json").write_text(json.dumps(state))

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        change(number=2),
        change(rows=[5]),
        change(parent="0" * 32),
        lambda folder: (folder / "statistics.json").unlink(),
        lambda folder: (folder / "statistics-numbers.parquet").unlink(),
        lambda folder: (folder / "statistics.json").write_text("{}"),
    ],
)
def test_a_damaged_version_is_an_error(tmp_path, damage):
    fitted().save(tmp_path / "p")
    damage(tmp_path / "p")
    with pytest.raises(DataError):
        Preprocessor.load(tmp_path / "p")


def test_statistics_of_another_schema_are_refused(tmp_path):
    fitted().save(tmp_path / "p")
    raw = json.loads((tmp_path / "p" / "statistics.json").read_text())
    raw["categories"] = {"other": raw["categories"].pop("word")} | raw["categories"]
    (tmp_path / "p" / "statistics.json").write_text(json.dumps(raw))
    with pytest.raises(DataError, match=r"statistics are of the columns"):
        Preprocessor.load(tmp_path / "p")


def test_a_refused_update_changes_nothing():
    preprocessor = fitted()
    before = checksum(preprocessor.learned)
    for parts, message in (
        ([], "no partition"),
        ([table([])], "no rows"),
        ([table(NEW).drop(columns="word")], "'word' not found"),
        ([table(NEW).assign(x=[1.0, np.inf, 1.0, 1.0])], "column 'x' holds an infinity"),
        ([table(NEW).assign(number=["a", "b", "c", "d"])], "column 'number'"),
    ):
        with pytest.raises(DataError, match=message):
            preprocessor.update(parts)
    assert checksum(preprocessor.learned) == before
    with pytest.raises(DataError, match=r"not fitted"):
        Preprocessor(SCHEMA).update([table(NEW)])
