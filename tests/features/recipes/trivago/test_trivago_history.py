"""History over chunks: what a loop over all earlier events says, wherever the log is cut."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gigabatch.features.engines import pandas as engine_pandas
from gigabatch.features.recipes.trivago.history import FIRST, LAST, NONE, SUM, Family, Ledger, read_arrays, write_arrays

RULES = {"number": SUM, "total": SUM, "first": FIRST, "last": LAST}
# (key, moment step, value, whether it is an event or a question)
ROWS = st.lists(
    st.tuples(st.integers(-1, 4), st.integers(0, 2), st.integers(-5, 5), st.booleans()), min_size=1, max_size=60
)


def by_loop(keys, moments, values, is_event):
    """(number, total, first, last) of each row's earlier events."""
    found = []
    for key, moment in zip(keys, moments, strict=True):
        earlier = [
            value
            for k, m, value, event in zip(keys, moments, values, is_event, strict=True)
            if event and k == key >= 0 and m < moment
        ]
        found.append((len(earlier), sum(earlier), earlier[0] if earlier else NONE, earlier[-1] if earlier else NONE))
    return found


def by_chunks(keys, moments, values, is_event, cuts):
    """The same through the three passes, cut before those positions (moments are never parted)."""
    starts = sorted({0, *(int(np.searchsorted(moments, moments[cut % len(moments)])) for cut in cuts)})
    pieces = [slice(a, b) for a, b in zip(starts, [*starts[1:], len(keys)], strict=True)]
    ledger, found = Ledger(RULES), []
    for piece in pieces:
        asked = np.unique(keys[piece][keys[piece] >= 0])
        carried = ledger.carry(asked)
        family = Family(engine_pandas, {"rows": keys[piece]}, carried)
        events = family.events("rows", moments[piece], is_event[piece])
        question = events.ask(family.codes["rows"], moments[piece])
        found += zip(
            question.count(family.before("number")).tolist(),
            question.sum(family.before("total"), values[piece]).tolist(),
            question.first(family.before("first", FIRST), values[piece]).tolist(),
            question.last(family.before("last", LAST), values[piece]).tolist(),
            strict=True,
        )
        order = np.argsort(family.distinct)
        totals = {
            "number": events.total(), "total": events.total(values[piece]),
            "first": events.first(values[piece]), "last": events.last(values[piece]),
        }  # fmt: skip
        ledger.add(family.distinct[order], {name: array[order] for name, array in totals.items()})
    return found


@given(rows=ROWS, cuts=st.lists(st.integers(0, 1000), max_size=8))
def test_every_question_is_answered_as_a_loop_over_all_earlier_events_answers_it(rows, cuts):
    keys, steps, values, is_event = (np.array(column) for column in zip(*rows, strict=True))
    # Groups are numbered by keys of any size.
    keys = np.where(keys < 0, -1, keys.astype(np.int64) << 40)
    moments = np.cumsum(steps)
    expected = by_loop(keys.tolist(), moments.tolist(), values.tolist(), is_event.tolist())
    assert by_chunks(keys, moments, values, is_event, cuts) == expected


@given(keys=st.lists(st.integers(-1, 3), min_size=1, max_size=40), steps=st.data())
def test_events_asked_about_themselves_are_answered_as_any_question_is(keys, steps):
    moments = np.cumsum(steps.draw(st.lists(st.integers(0, 2), min_size=len(keys), max_size=len(keys))))
    family = Family(engine_pandas, {"rows": np.array(keys, dtype=np.int64)})
    events, codes = family.events("rows", moments), family.codes["rows"]
    before = family.before("number")
    found, expected = events.ask_own(), events.ask(codes, moments)
    assert found.count(before).tolist() == expected.count(before).tolist()
    assert found.sum(before, moments).tolist() == expected.sum(before, moments).tolist()


def test_a_ledger_forgets_what_it_is_told_to_and_tells_of_everything_when_asked():
    ledger = Ledger({"number": SUM, "last": LAST})
    ledger.add(np.array([2, 5, 9]), {"number": np.array([1, 2, 3]), "last": np.array([7, NONE, 8])})
    ledger.add(np.array([1, 5]), {"number": np.array([10, 20]), "last": np.array([NONE, 6])})
    whole = ledger.carry()
    assert whole["key"].tolist() == [1, 2, 5, 9]
    assert whole["number"].tolist() == [10, 1, 22, 3]
    assert whole["last"].tolist() == [NONE, 7, 6, 8]
    ledger.keep(whole["key"] > 4)
    assert ledger.carry(np.array([1, 5, 6]))["key"].tolist() == [5]
    assert ledger.carry(np.array([1, 5, 6]))["number"].tolist() == [22]
    # What it told of is a copy: adding later changes nothing that a file was made of.
    told = ledger.carry()
    ledger.add(np.array([5]), {"number": np.array([1]), "last": np.array([1])})
    assert told["number"].tolist() == [22, 3]


def test_arrays_are_written_whole_and_without_pickle(tmp_path):
    arrays = {"user/key": np.arange(3), "user/hits": np.array([], dtype=np.int64)}
    write_arrays(tmp_path / "carried-00001", arrays)
    found = read_arrays(tmp_path / "carried-00001")
    assert {name: values.tolist() for name, values in found.items()} == {"user/key": [0, 1, 2], "user/hits": []}
    assert [path.name for path in tmp_path.iterdir()] == ["carried-00001"]
