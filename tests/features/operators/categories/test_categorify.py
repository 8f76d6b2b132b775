"""Categorify: the fit does not depend on partitions, and rare values encode as unseen."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.engines import pandas as engine_pandas
from gigabatch.features.errors import DataError
from gigabatch.features.operators.categories.categorify import Categorify
from gigabatch.features.workflow.workflow import Workflow
from tests.examples import examples
from tests.features.partitioned import COUNTS, cut

WORDS = st.lists(st.one_of(st.none(), st.sampled_from(["a", "b", "cc", "d"])), max_size=40)


def frame_of(values):
    return pd.DataFrame({"word": pd.Series(values, dtype="str")})


def state(vocabulary):
    return vocabulary.values.tolist(), vocabulary.counts.tolist()


def test_apply_replaces_the_column_and_keeps_index_and_input():
    frame = frame_of(["b", "a"]).set_index(pd.Index([5, 2]))
    operator = Categorify("word")
    found = operator.apply(frame, operator.fit([frame]))
    assert found["word"].to_dict() == {5: 4, 2: 3}
    assert str(found["word"].dtype) == "int32"
    assert frame["word"].tolist() == ["b", "a"]


def test_no_partition_is_an_error():
    with pytest.raises(ValueError, match=r"Categorify: nothing to fit on"):
        Categorify("word").fit([])


@given(values=WORDS, count=COUNTS, seed=st.integers(0, 99), min_count=st.integers(1, 5), max_size=st.integers(1, 5))
@settings(max_examples=examples(60), deadline=None)
def test_the_most_frequent_stay_ties_by_value_in_any_partitions(values, count, seed, min_count, max_size):
    counts = Counter(v for v in values if v is not None)
    kept = sorted((v for v in counts if counts[v] >= min_count), key=lambda v: (-counts[v], v))[:max_size]
    operator = Categorify("word", min_count, max_size=max_size)
    fitted = operator.fit(cut(frame_of(values), count, seed))
    assert state(fitted) == (kept, [counts[v] for v in kept])
    ids = {v: 3 + k for k, v in enumerate(kept)}
    expected = [1 if v is None else ids.get(v, 2) for v in values]
    assert operator.apply(frame_of(values), fitted)["word"].tolist() == expected


@given(
    home=st.lists(st.one_of(st.none(), st.integers(-3, 3)), max_size=20),
    away=st.lists(st.one_of(st.none(), st.integers(-3, 3)), max_size=20),
    count=COUNTS,
    seed=st.integers(0, 99),
    buckets=st.integers(1, 3),
)
@settings(max_examples=examples(60), deadline=None)
def test_a_shared_vocabulary_counts_the_columns_together(home, away, count, seed, buckets):
    size = min(len(home), len(away))
    home, away = home[:size], away[:size]
    frame = pd.DataFrame({"home": pd.array(home, "Int64"), "away": pd.array(away, "Int64")})
    operator = Categorify(shared=["home", "away"], min_count=2, oov_buckets=buckets)
    fitted = operator.fit(cut(frame, count, seed))
    counts = Counter(v for v in [*home, *away] if v is not None)
    ordered = sorted((v for v in counts if counts[v] >= 2), key=lambda v: (-counts[v], v))
    assert fitted.values.tolist() == ordered
    found = operator.apply(frame, fitted)
    for name, values in (("home", home), ("away", away)):
        for value, number in zip(values, found[name], strict=True):
            if value is None:
                assert number == 1
            elif value in ordered:
                assert number == 2 + buckets + ordered.index(value)
            else:
                assert number == 2 + xxhash.xxh64_intdigest(value.to_bytes(8, "little", signed=True)) % buckets


LISTS = st.lists(st.one_of(st.none(), st.lists(st.one_of(st.none(), st.sampled_from("abc")), max_size=4)), max_size=12)


def slow_lists(rows, train):
    counts = Counter(v for row in train if row is not None for v in row if v is not None)
    ids = {v: 3 + k for k, v in enumerate(sorted(counts, key=lambda v: (-counts[v], v)))} | {None: 1}
    return [[ids.get(v, 2) for v in row or []] for row in rows]


@given(rows=LISTS, count=COUNTS, seed=st.integers(0, 99))
@settings(max_examples=examples(60), deadline=None)
def test_lists_become_lists_of_ids_in_any_partitions(rows, count, seed):
    frame = pd.DataFrame({"tags": pd.Series(rows, dtype=object)})
    operator = Categorify("tags", lists=True, output="ids")
    fitted = operator.fit(cut(frame, count, seed))
    found = pd.concat([operator.apply(part, fitted) for part in cut(frame, count, seed)]).sort_index()
    assert [ids.tolist() for ids in found["ids"]] == slow_lists(rows, rows)
    assert all(ids.dtype == "int32" for ids in found["ids"])
    flat, lengths = operator.entries(frame["tags"], fitted)
    assert flat.tolist() == [number for row in slow_lists(rows, rows) for number in row]
    assert lengths.tolist() == [len(row or []) for row in rows]


@given(rows=LISTS)
@settings(max_examples=examples(40), deadline=None)
def test_delimited_text_is_read_as_lists_whose_empty_entries_are_null(rows):
    # "" is a list of one empty entry, so a list without any entry cannot be written as text.
    rows = [row or None for row in rows]
    text = [None if row is None else "|".join(v or "" for v in row) for row in rows]
    operator = Categorify("tags", separator="|")
    frame = pd.DataFrame({"tags": pd.Series(text, dtype="str")})
    found = operator.apply(frame, operator.fit([frame]))
    assert [ids.tolist() for ids in found["tags"]] == slow_lists(rows, rows)


def test_lists_of_ids_survive_parquet_and_read_back_as_lists(tmp_path):
    frame = pd.DataFrame({"tags": [np.array([7, 8]), None, np.array([], "int64"), np.array([8])]})
    operator = Categorify("tags", lists=True)
    fitted = operator.fit([frame])
    engine_pandas.write_parquet(operator.apply(frame, fitted), tmp_path / "x.parquet")
    back = engine_pandas.read_parquet(tmp_path / "x.parquet")
    assert [row.tolist() for row in back["tags"]] == [[4, 3], [], [], [3]]
    # Lists of ids are lists again, so they can be categories themselves.
    again = Categorify("tags", lists=True)
    assert again.fit([back]).values.tolist() == [3, 4]


def test_unseen_entries_and_an_unknown_column_of_lists():
    operator = Categorify("tags", lists=True)
    fitted = operator.fit([pd.DataFrame({"tags": [["a", "b"], ["a"]]})])
    found = operator.apply(pd.DataFrame({"tags": [["z", "a"], [None]]}, index=[9, 4]), fitted)
    assert {k: v.tolist() for k, v in found["tags"].to_dict().items()} == {9: [2, 3], 4: [1]}
    with pytest.raises(DataError, match=r"Categorify of 'tags': not a column of lists"):
        operator.fit([pd.DataFrame({"tags": ["a|b"]})])
    with pytest.raises(DataError, match=r"Categorify of 'tags': not a column of lists"):
        operator.fit([pd.DataFrame({"tags": [["a"], [1]]})])


def test_a_given_vocabulary_keeps_its_order_and_needs_no_rows():
    operator = Categorify("word", vocabulary=["z", "a"], oov_buckets=2)
    fitted = operator.fit([frame_of([])])
    assert state(fitted) == (["z", "a"], [0, 0])
    bucket = 2 + xxhash.xxh64_intdigest(b"q") % 2
    assert operator.apply(frame_of(["a", "z", None, "q"]), fitted)["word"].tolist() == [5, 4, 1, bucket]
    assert operator.fit([frame_of(["x"]), frame_of(["y", "y"])]).values.tolist() == ["z", "a"]
    assert operator.update(fitted, operator.partial(frame_of(["x"]))) is fitted


@pytest.mark.parametrize(
    "form", ["named.parquet", "only.parquet", "word.parquet", "named.csv", "only.csv", "lines.txt"]
)
def test_a_given_vocabulary_is_read_from_a_file(form, tmp_path):
    path = tmp_path / form
    frame = pd.DataFrame({"value": ["z", "a", "ä b"]})
    frame = frame if form.startswith("named") else frame.rename(columns={"value": "word"})
    if not form.startswith("only"):
        frame = frame.assign(more=[1, 2, 3])
    if path.suffix == ".txt":
        path.write_text("z\na\nä b\n", encoding="utf-8")
    elif path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path)
    fitted = Categorify("word", vocabulary=str(path)).fit([frame_of([])])
    assert fitted.values.tolist() == ["z", "a", "ä b"]


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.csv", "word\n\nz\n\n \na b\n\n"), ("b.csv", "word\r\nz\r\na b\r\n\r\n"), ("c.txt", "z\n\na b\n\n"),
     ("d.txt", "z\r\n \r\na b\r\n\r\n"), ("e.csv", "word,more\nz,1\n\na b,2\n\n")],
)  # fmt: skip
def test_blank_lines_of_a_vocabulary_are_no_values(name, text, tmp_path):
    """In files of one column they were nulls, and in text a value."""
    (tmp_path / name).write_text(text, newline="")
    fitted = Categorify("word", vocabulary=str(tmp_path / name)).fit([frame_of([])])
    assert fitted.values.tolist() == ["z", "a b"]


@pytest.mark.parametrize(("name", "text"), [("a.csv", 'word\nz\n""\n'), ("b.csv", "word\nz\nNA\n"), ("c.txt", "\n\n")])
def test_a_null_that_is_written_in_a_vocabulary_is_refused(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match="is empty or holds a null"):
        Categorify("word", vocabulary=str(tmp_path / name)).fit([frame_of([])])


def test_a_given_vocabulary_may_be_numbers():
    fitted = Categorify("word", vocabulary=[30, 10]).fit([pd.DataFrame({"word": [1]})])
    assert fitted.encode(pd.Series([10.0, 30.0, None])).tolist() == [4, 3, 1]


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [([], "empty or holds a null"), (["a", None], "empty or holds a null"),
     (["a", "b", "a"], r"twice, for example \['a'\]"),
     ([1, "a"], "Python objects"), ("nowhere.txt", "cannot be read"), ("nowhere.parquet", "cannot be read"),
     ("two.csv", "has the columns 'a', 'b'"), ("latin.txt", "cannot be read"), ("empty.csv", "cannot be read")],
)  # fmt: skip
def test_a_given_vocabulary_that_is_none_is_an_error(vocabulary, message, tmp_path):
    (tmp_path / "two.csv").write_text("a,b\n1,2\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "latin.txt").write_bytes("ä".encode("latin-1"))
    given = str(tmp_path / vocabulary) if isinstance(vocabulary, str) else vocabulary
    with pytest.raises(DataError, match=f"Categorify of 'word'.*{message}"):
        Categorify("word", vocabulary=given).fit([frame_of(["a"])])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({}, "give one of column, shared and combined"), ({"column": "a", "shared": ["b", "c"]}, "give one of"),
     ({"shared": ["a"]}, "two or more"), ({"shared": ["a", "a"]}, "two or more"), ({"shared": "ab"}, "a list of names"),
     ({"shared": ["a", "b"], "output": "c"}, "shared ones are replaced"), ({"combined": ["a", "b"]}, "need an output"),
     ({"combined": ["a", "b"], "output": "c", "lists": True}, "combined columns take no lists"),
     ({"combined": ["a", "b"], "output": "c", "vocabulary": ["a"]}, "no given vocabulary"),
     ({"combined": ["a", "count"], "output": "c"}, "no column named 'count'"),
     ({"column": "a", "vocabulary": ["a"], "min_count": 2}, "taken whole"),
     ({"column": "a", "vocabulary": ["a"], "max_size": 2}, "taken whole"),
     ({"column": "a", "min_count": 0}, "min_count must be at least 1, found 0"),
     ({"column": "a", "separator": ""}, "must not be empty"), ({"column": "a", "max_size": 0}, "max_size must be at"),
     ({"column": "a", "oov_buckets": 0}, "oov_buckets must be at"),
     ({"column": "a", "oov_buckets": True}, "oov_buckets"),
     ({"column": "a", "max_cardinality": 0}, "max_cardinality must be at")],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused_at_once(arguments, message):
    with pytest.raises(DataError, match=message):
        Categorify(**arguments)


def test_too_many_distinct_values_are_an_error_that_names_hash_bucket():
    parts = [frame_of(["a", "b", "a"]), frame_of(["b", "c", "c"])]
    assert len(Categorify("word", max_cardinality=3).fit(parts).values) == 3
    with pytest.raises(DataError, match=r"Categorify of 'word': more than 2 distinct values.*hash_bucket"):
        Categorify("word", max_cardinality=2).fit(parts)
    with pytest.raises(DataError, match=r"more than 1 distinct values"):
        Categorify("word", max_cardinality=1).fit(parts[:1])
    pairs = pd.DataFrame({"a": [1, 2, 3], "b": [1, 1, None]})
    with pytest.raises(DataError, match=r"more than 2 distinct values.*hashed_cross"):
        Categorify(combined=["a", "b"], output="ab", max_cardinality=2).fit([pairs])


@pytest.mark.parametrize(
    "operator",
    [Categorify("word", 2, oov_buckets=3), Categorify(shared=["word", "other"]), Categorify("word", max_size=1),
     Categorify(combined=["word", "number"], output="both", oov_buckets=2), Categorify("tags", separator="|"),
     Categorify("lists", lists=True, output="ids"), Categorify("word", vocabulary=["b", "z"]), Categorify("number"),
     Categorify("flag")],
    ids=repr,
)  # fmt: skip
def test_every_form_survives_the_saving_of_a_workflow(operator, tmp_path):
    frame = pd.DataFrame({
        "word": ["a", "b", None, "a"], "other": ["c", None, "a", "c"],
        "number": pd.array([2**60 + 1, None, 3, 3], "Int64"),
        "tags": ["x|y", None, "", "x"], "lists": [[1, 2], None, [], [2]], "flag": [True, None, False, True],
    })  # fmt: skip
    workflow = Workflow([operator]).fit([frame.iloc[:2], frame.iloc[2:]])
    workflow.save(tmp_path)
    loaded = Workflow.load(tmp_path)
    rows = pd.concat([frame, frame.assign(word="new", number=7, tags="new|x")], ignore_index=True)
    pd.testing.assert_frame_equal(loaded.transform(rows), workflow.transform(rows))
    state = loaded.states[0]
    assert state.layout == workflow.states[0].layout
    assert state.num_ids == workflow.states[0].num_ids
    updated = operator.update(state, operator.partial(rows))
    assert updated.num_ids >= state.num_ids


def test_a_list_of_categories_is_a_step_each_in_yaml():
    steps = [{"categorify": {"column": ["a", "b"], "min_count": 2}},
             {"categorify": {"combined": ["a", "b"], "output": "ab"}}]  # fmt: skip
    found = Workflow.from_steps(steps[1:] + steps[:1]).steps
    assert [repr(step) for step in found] == [
        "Categorify(combined=('a', 'b'), output='ab')", "Categorify(column='a', min_count=2)",
        "Categorify(column='b', min_count=2)",
    ]  # fmt: skip
