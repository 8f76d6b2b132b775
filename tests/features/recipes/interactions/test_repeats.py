"""`repeats: last`: which rows stay of a log that meets many pairs again, and that nothing later changes earlier ones.

A slow loop over the rows says what the whole table is, histories too.
"""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gigabatch.features.columns.hashing import unit_interval
from gigabatch.features.errors import DataError
from gigabatch.features.recipes.base import SplitFractions
from gigabatch.features.recipes.interactions.histories import HistorySettings
from gigabatch.features.recipes.interactions.layout import Layout
from gigabatch.features.recipes.interactions.splits import GIVEN, InteractionRules, _hashed, interaction_tables
from tests.examples import examples
from tests.features.interaction_logs import SPLITS, all_rows, build

CONTEXT = {"user": "int64", "item": "int64", "place": "string"}
TIMED = Layout("user", "item", CONTEXT, time="at", rating="stars")
UNTIMED = Layout("user", "item", CONTEXT, rating="stars")
ROW = st.tuples(
    st.integers(0, 2), st.integers(0, 3), st.integers(0, 9), st.sampled_from([1, 5, 5]), st.sampled_from([None, "x"])
)  # of few values, so that most pairs come again and many rows are of one moment
LOGS = st.lists(ROW, min_size=4, max_size=40)
LENGTH = 4


class GivenRules(InteractionRules):
    """Rules of splits that the rows bring along."""

    way = "given"


def as_frame(rows):
    frame = pd.DataFrame(rows, columns=["user", "item", "at", "stars", "place"])
    return frame.assign(
        row_number=np.arange(len(frame)), stars=frame["stars"].astype("float64"), place=frame["place"].astype("str")
    )


def slow_splits(rows, rules, way, timed, place_of):
    """Row numbers by split, in order, or None where one is empty. place_of: split of each row, where the way is given
    or random."""
    least = rules.threshold or (4 if rules.task == "rating" else -math.inf)
    order = sorted(range(len(rows)), key=lambda number: (rows[number][2] if timed else 0, number))
    pair = [(user, item, place) for user, item, _, _, place in rows]
    asked = [rules.task == "rating" or row[3] >= least for row in rows]

    def newest(numbers):
        """The last row of each pair, of those that are asked about."""
        numbers = [number for number in numbers if asked[number]]
        kept = {pair[number]: number for number in numbers} if rules.repeats == "last" else {n: n for n in numbers}
        return [number for number in numbers if number in kept.values()]

    if way in ("given", "random"):
        return [newest([number for number in order if place_of[number] == split]) for split in range(3)]
    met, seen = [], set()
    for number in order:
        if asked[number] and (rules.repeats == "all" or pair[number] not in seen):
            seen.add(pair[number])
            met.append(number)
    if not met:
        return [[], [], []]
    if way == "time":
        ends = [rows[met[max(end - 1, 0)]][2] for end in rules.split.ends(len(met))]
        split_of = {number: sum(rows[number][2] > end for end in ends) for number in met}
        known = [number for number in order if rows[number][2] <= ends[0]]
    else:
        split_of, known = {}, []
        for user in {row[0] for row in rows}:
            own = [number for number in met if rows[number][0] == user]
            left_out = own[-2:] if len(own) >= 3 else []
            split_of |= dict.fromkeys(own, 0) | dict(zip(left_out, (1, 2), strict=False))
            for number in order:
                if left_out and number == left_out[0]:
                    break
                known += [number] if rows[number][0] == user else []
    later = [[number for number in met if split_of[number] == split] for split in (1, 2)]
    return [newest([number for number in order if number in known]), *later]


def slow_history(rows, number, least, sees):
    """Items that the user of a row liked before, of the rows that it sees (bool by number)."""
    user, _, at, _, _ = rows[number]
    liked = [n for n in range(len(rows)) if rows[n][0] == user and rows[n][2] < at and rows[n][3] >= least and sees[n]]
    return [rows[n][1] for n in sorted(liked, key=lambda n: (rows[n][2], n))][-LENGTH:]


@settings(max_examples=examples(200), deadline=None)
@given(
    rows=LOGS,
    way=st.sampled_from(["leave_one_out", "time", "random", "given"]),
    task=st.sampled_from(["ranking", "rating"]),
    threshold=st.sampled_from([None, 3.0]),
    repeats=st.sampled_from(["last", "all"]),
    timed=st.booleans(),
    told=st.booleans(),
)
def test_the_whole_table_is_that_of_a_slow_loop(rows, way, task, threshold, repeats, timed, told):
    assume(timed or way in ("random", "given"))  # leave_one_out without a time: below
    told = told and timed
    kind = GivenRules if way == "given" else InteractionRules
    rules = kind(
        task=task, threshold=threshold, repeats=repeats, split_by=None if way == "given" else way,
        split=SplitFractions(0.5, 0.25, 0.25), history=HistorySettings(LENGTH) if told else None,
    )  # fmt: skip
    frame, layout = as_frame(rows), TIMED if timed else UNTIMED
    place_of = (np.arange(len(rows)) * 3 // len(rows)).tolist()
    if way == "given":
        frame[GIVEN] = place_of
    if way == "random":
        place_of = np.digitize(unit_interval(_hashed(frame, layout, rules.seed)), [0.5, 0.75]).tolist()
    expected = slow_splits(rows, rules, way, timed, place_of)
    try:
        tables = interaction_tables(frame, layout, rules, {})
    except DataError:
        labels = {rows[number][3] >= 4 for part in expected for number in part}
        assert not all(expected) or (task == "rating" and len(labels) == 1)
        return
    found = [tables.splits[name]["row_number"].tolist() for name in SPLITS]
    assert found == expected
    least = rules.least_positive or -math.inf
    for split, part in enumerate(tables.splits.values()) if told else ():
        sees = [way in ("leave_one_out", "time") or place <= split for place in place_of]
        for number, history in zip(part["row_number"], part["history"], strict=True):
            assert list(history) == slow_history(rows, number, least, sees)
    if way in ("leave_one_out", "time") and repeats == "last":
        kept = [rows[number][:2] + rows[number][4:] for part in found for number in part]
        assert len(set(kept)) == len(kept)


@settings(max_examples=examples(60), deadline=None)
@given(rows=LOGS, threshold=st.sampled_from([None, 3.0]))
def test_without_a_time_a_repeat_is_one_with_the_row_that_it_repeats(rows, threshold):
    """Leaving one out by a hash, a pair's last row in the file counts, as if the others were not there."""
    last = {row[:2] + row[4:]: number for number, row in enumerate(rows) if threshold is None or row[3] >= threshold}
    assume(last)
    alone = as_frame(rows).iloc[sorted(last.values())].reset_index(drop=True)
    rules = InteractionRules(threshold=threshold)
    try:
        expected = interaction_tables(alone, UNTIMED, InteractionRules(threshold=threshold, repeats="all"), {})
    except DataError:
        with pytest.raises(DataError):
            interaction_tables(as_frame(rows), UNTIMED, rules, {})
        return
    found = interaction_tables(as_frame(rows), UNTIMED, rules, {})
    for name in SPLITS:
        assert found.splits[name]["row_number"].tolist() == expected.splits[name]["row_number"].tolist()


def comparable(frame):
    """Rows that `==` compares, lists of them too."""
    return [tuple(str(value) for value in row) for row in frame.itertuples(index=False, name=None)]


def cut_after(numbers, known):
    """Shares that cut behind the first `known` of so many interactions."""
    return SplitFractions(known / numbers, (numbers - known - 1) / numbers, 1 / numbers)


@settings(max_examples=examples(80), deadline=None)
@given(
    rows=LOGS,
    later=LOGS,
    known=st.integers(1, 6),
    task=st.sampled_from(["ranking", "rating"]),
    history=st.sampled_from([None, HistorySettings(LENGTH)]),
)
def test_what_comes_after_the_cut_changes_no_row_of_train(rows, later, known, task, history):
    assume(task == "ranking" or len({row[3] for row in rows}) > 1)
    more = [*rows, *((user, item, at + 10, stars, place) for user, item, at, stars, place in later)]
    trains = []
    for log in (rows, more):
        numbers = len({row[:2] + row[4:] for row in log})
        assume(known + 2 <= numbers)
        rules = InteractionRules(task=task, split_by="time", split=cut_after(numbers, known), history=history)
        try:
            trains.append(comparable(interaction_tables(as_frame(log), TIMED, rules, {}).splits["train"]))
        except DataError:  # a moment that holds too many rows leaves a split empty
            assume(False)
    assert trains[0] == trains[1]


@settings(max_examples=examples(60), deadline=None)
@given(rows=LOGS, later=LOGS, history=st.sampled_from([None, HistorySettings(LENGTH)]))
def test_leaving_one_out_what_others_do_later_changes_no_row_of_a_user(rows, later, history):
    more = [*rows, *((user + 3, item, at + 10, stars, place) for user, item, at, stars, place in later)]
    rules, found = InteractionRules(history=history), []
    for log in (rows, more):
        try:
            tables = interaction_tables(as_frame(log), TIMED, rules, {})
        except DataError:  # nobody met three
            assume(False)
        found.append([comparable(part[part["user"] < 3]) for part in tables.splits.values()])
    assert found[0] == found[1]


def test_what_a_user_meets_again_stays_known(tmp_path):
    """A repeat in the days of test took the pair out of train, and out of the histories in between."""
    plays = [("a", "x", 1), ("a", "y", 2), ("a", "z", 3), ("a", "x", 4), ("b", "w", 5), ("a", "v", 6), ("a", "x", 7)]
    frame = pd.DataFrame(plays, columns=["who", "what", "when"]).assign(stars=5.0)
    shares = SplitFractions(0.6, 0.2, 0.2)
    tables = build(tmp_path, frame, split_by="time", split=shares, history=HistorySettings(9))
    train, valid, test = (tables.splits[name] for name in SPLITS)
    assert train["row_number"].tolist() == [0, 1, 2]
    assert [list(row) for row in train["history"]] == [[], ["x"], ["x", "y"]]
    assert (valid["row_number"].tolist(), test["row_number"].tolist()) == ([4], [5])
    assert list(test["history"].iloc[0]) == ["x", "y", "z", "x"]
    said = "2 of 7 rows are repeated later (who, what); "
    told = f"{said}train keeps the last up to its end, valid and test the first."
    assert told in tables.notes
    frame.loc[3, "when"] = 3  # of the moment at which train ends
    tables = build(tmp_path, frame, split_by="time", split=shares)
    assert [tables.splits[name]["row_number"].tolist() for name in SPLITS] == [[1, 2, 3], [4], [5]]
    assert told in tables.notes


def test_no_question_is_asked_with_its_answer_in_the_history(tmp_path):
    """An item that is new to the user in the days of test and bought twice there is asked about once, as it was new."""
    plays = [*(("a", f"i{n}", n) for n in range(8)), ("a", "i3", 8), ("a", "new", 20), ("a", "new", 21)]
    frame = pd.DataFrame(plays, columns=["who", "what", "when"]).assign(stars=5.0)
    for way in ("time", "leave_one_out"):
        tables = build(tmp_path, frame, split_by=way, history=HistorySettings(50))
        test = tables.splits["test"]
        assert test["row_number"].tolist() == [9]
        assert list(test["history"].iloc[0]) == [*(f"i{n}" for n in range(8)), "i3"]
        rows = all_rows(tables)
        assert len(rows) == 9
        assert not any(what in list(history) for what, history in zip(rows["what"], rows["history"], strict=True))
