"""List columns of the preprocessor against Python's lists: vocabularies, shared ones too, growth, saved states."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.encoding.settings import CategorySettings, PreprocessorSettings
from gigabatch.features.errors import DataError
from gigabatch.features.schema import Column, ListColumn, Schema

SCHEMA = Schema(
    (Column("item", "categorical", "string"),),
    (),
    lists=(ListColumn("history of it", shares="item", max_length=3), ListColumn("tags", "int64", weights="w")),
)
FIRST = 3  # the first id of a value, after padding, null and unseen
VALUES = st.none() | st.sampled_from("abcde")
ROWS = st.lists(
    st.tuples(VALUES, st.none() | st.lists(VALUES, max_size=5), st.lists(st.none() | st.integers(-3, 3), max_size=4)),
    min_size=1, max_size=9,
)  # fmt: skip


def frame_of(rows) -> pd.DataFrame:
    items, histories, tags = zip(*rows, strict=True)
    weights = [[place / 4 for place in range(len(row))] for row in tags]
    return pd.DataFrame(
        {"item": pd.Series(items, dtype="str"), "history of it": list(histories), "tags": list(tags), "w": weights}
    )


def ranked(values) -> dict:
    """Ids by descending count, ties by value, as docs/design.md has them."""
    counts = Counter(value for value in values if value is not None)
    order = sorted(counts, key=lambda value: (-counts[value], value))
    return {value: FIRST + place for place, value in enumerate(order)}


def kept(row) -> list:
    return [value for value in row or [] if value is not None]


@settings(derandomize=True, max_examples=25, deadline=None)
@given(ROWS, st.integers(1, 4))
def test_ids_are_those_of_a_slow_loop_however_the_rows_are_cut(rows, size):
    items = ranked([row[0] for row in rows] + [value for row in rows for value in kept(row[1])[-3:]])
    tags = ranked([value for row in rows for value in kept(row[2])])
    frame = frame_of(rows)
    parts = [frame[start : start + size] for start in range(0, len(frame), size)]
    preprocessor = Preprocessor(SCHEMA).fit(parts)
    assert preprocessor.checksum == Preprocessor(SCHEMA).fit([frame]).checksum
    history, tagged = preprocessor.pack_lists(frame)
    assert history.ids.tolist() == [items[value] for row in rows for value in kept(row[1])[-3:]]
    assert history.offsets.tolist() == [0, *np.cumsum([len(kept(row[1])[-3:]) for row in rows])]
    assert tagged.ids.tolist() == [tags[value] for row in rows for value in kept(row[2])]
    weights = [place / 4 for row in rows for place, value in enumerate(row[2]) if value is not None]
    assert tagged.weights.tolist() == weights
    words = preprocessor.pack(frame)
    assert words[:, 0].tolist() == [items.get(row[0], 1) for row in rows]  # equal values have equal ids
    assert words[:, 1].tolist() == words[:, 2].tolist() == list(range(len(rows)))
    for part, start in zip(parts, range(0, len(frame), size), strict=True):  # a row alone has the same ids
        own = preprocessor.pack_lists(part)[0]
        first, last = history.offsets[[start, start + len(part)]]
        assert own.ids.tolist() == history.ids[first:last].tolist()


ROW = [("a", ["a", "b"], [7, 7, 9])]


def test_unseen_elements_nulls_that_were_not_there_and_a_very_long_list():
    preprocessor = Preprocessor(SCHEMA).fit([frame_of(ROW)])
    rows = [(None, ["z", None, "a"], [None] * 5), (None, None, [9, 8] * 50_000), ("b", [], [])]
    history, tags = preprocessor.pack_lists(frame_of(rows))
    assert (history.ids.tolist(), history.offsets.tolist()) == ([2, 3], [0, 2, 2, 2])
    assert (tags.ids[:4].tolist(), tags.offsets.tolist()) == ([4, 2, 4, 2], [0, 0, 100_000, 100_000])


def test_a_list_column_that_is_all_empty():
    rows = [("a", [], []), ("b", None, [])]
    preprocessor = Preprocessor(SCHEMA).fit([frame_of(rows)])
    assert preprocessor.tensor_schema.lists[1].num_ids == FIRST
    assert [column.ids.tolist() for column in preprocessor.pack_lists(frame_of(rows))] == [[], []]
    history, tags = preprocessor.pack_lists(frame_of([("a", ["b", "c"], [1])]))
    assert (history.ids.tolist(), tags.ids.tolist()) == ([4, 2], [2])


def test_settings_of_a_list_are_those_of_a_category():
    chosen = PreprocessorSettings(columns={"tags": CategorySettings(min_count=2, oov_buckets=4)})
    preprocessor = Preprocessor(SCHEMA, chosen).fit([frame_of(ROW)])
    assert preprocessor.vocabularies["tags"].values.tolist() == [7]
    plain = Schema((Column("tags", "categorical", "int64"),), ())
    values = pd.DataFrame({"tags": [7, 7, 9, 1, 2, 3]})
    alone = Preprocessor(plain, chosen).fit([values[:3]])
    asked = frame_of([(None, None, values["tags"].tolist())])
    assert preprocessor.pack_lists(asked)[1].ids.tolist() == alone.pack(values)[:, 0].tolist()
    with pytest.raises(DataError, match="history of it is no categorical column"):
        Preprocessor(SCHEMA, PreprocessorSettings(columns={"history of it": CategorySettings()}))


@pytest.mark.parametrize("way", ["update", "grow"])
def test_growth_moves_no_id_and_saved_states_are_the_same(tmp_path, way):
    old, new = frame_of(ROW), frame_of([("c", ["d", "d"], [1])])
    preprocessor = Preprocessor(SCHEMA).fit([old])
    preprocessor.save(tmp_path / "first")
    loaded = Preprocessor.load(tmp_path / "first")
    assert loaded.checksum == preprocessor.checksum
    before = loaded.pack_lists(old)
    report = loaded.update([new]) if way == "update" else loaded.grow([old, new])
    assert loaded.vocabularies["item"].values.tolist() == ["a", "b", "d", "c"]
    assert loaded.vocabularies["tags"].values.tolist() == [7, 9, 1]
    assert [item.column for item in report.categories] == ["item", "history of it", "tags"]
    for mine, other in zip(loaded.pack_lists(old), before, strict=True):
        assert mine.ids.tolist() == other.ids.tolist()
    loaded.save(tmp_path / "second")
    assert Preprocessor.load(tmp_path / "second").checksum == loaded.checksum


def test_a_start_with_other_lists_is_refused():
    preprocessor = Preprocessor(SCHEMA).fit([frame_of(ROW)])
    other = replace(SCHEMA, lists=(replace(SCHEMA.lists[0], max_length=4),))
    with pytest.raises(DataError, match=r"max_length of list column 'history of it' is 4, not 3.*'tags' is gone"):
        preprocessor.carried_to(other, preprocessor.settings)


BAD = {
    "fewer weights": ({"w": [[1.0]]}, "3 elements in list column 'tags' and 1 weights"),
    "null weight": ({"w": [[1.0, None, 2.0]]}, "hold a null, NaN or infinity in row 0"),
    "infinite weight": ({"w": [[1.0, np.inf, 2.0]]}, "hold a null, NaN or infinity in row 0"),
    "text": ({"tags": ["7|9|1"]}, "no separator is set"),
    "numbers": ({"tags": [7]}, "holds no lists"),
    "words for numbers": ({"tags": [["x", "y", "z"]]}, "declared int64"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_list_of_its_type_is_refused(name):
    changed, message = BAD[name]
    preprocessor = Preprocessor(SCHEMA).fit([frame_of(ROW)])
    with pytest.raises(DataError, match=message):
        preprocessor.pack_lists(frame_of(ROW).assign(**changed))


BAD_SCHEMAS = {
    "another type": (ListColumn("h", "int64", shares="item"), "which is of type string"),
    "no such column": (ListColumn("h", shares="thing"), "which is none of these"),
    "one name": (ListColumn("item"), "listed twice"),
    "a column of weights that is one already": (ListColumn("h", weights="item"), "listed twice"),
}


@pytest.mark.parametrize("name", BAD_SCHEMAS)
def test_lists_that_fit_no_schema_are_refused(name):
    column, message = BAD_SCHEMAS[name]
    with pytest.raises(DataError, match=message):
        Schema((Column("item", "categorical", "string"),), (), lists=(column,))


def test_a_schema_goes_to_json_and_back():
    assert Schema.from_json(SCHEMA.to_json()) == SCHEMA
    assert "lists" not in replace(SCHEMA, lists=()).to_json()
    with pytest.raises(DataError, match="max_length"):
        ListColumn("tags", max_length=0)


def test_integers_that_float32_rounds_lie_beside_lists():
    schema = Schema((Column("size", "continuous", "int64"),), (), lists=(ListColumn("tags"),))
    frame = pd.DataFrame({"size": [2**30, 2**30 + 1, 2**31], "tags": [["a"], [], ["b", "a"]]})
    one, two = Preprocessor(schema), Preprocessor(schema).fit([frame])
    np.testing.assert_array_equal(one.fit_pack([frame])[0], two.pack(frame))
    assert one.checksum == two.checksum
