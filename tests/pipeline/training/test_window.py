"""Which rows a warm start trains on, against a loop over times."""

import numpy as np
import pytest

from gigabatch.features.errors import DataError
from gigabatch.pipeline.training.window import INTERVALS, choose_rows, times_held


def held_of(times):
    return {"train_times": times_held(np.asarray(times))}


@pytest.mark.parametrize("kind", ["int64", "float64"])
def test_intervals_count_every_row_once(kind):
    times = np.random.default_rng(1).integers(0, 40_000, 30_000).astype(kind)
    held = times_held(times)
    assert len(held["until"]) == len(held["rows"]) <= INTERVALS
    assert sum(held["rows"]) == len(times)
    assert held["until"][-1] == times.max()
    starts = [-np.inf, *held["until"][:-1]]
    for start, stop, rows in zip(starts, held["until"], held["rows"], strict=True):
        assert rows == sum(start < time <= stop for time in times) if rows < 40 else rows > 0


def test_rows_after_the_start_are_new_and_others_are_drawn():
    random = np.random.default_rng(2)
    earlier = random.integers(0, 1000, 4000)
    times = random.permutation(np.concatenate([earlier, random.integers(1000, 1200, 600)]))
    window = choose_rows(times, held_of(earlier), replay=0.5, seed=1)
    new = {place for place, time in enumerate(times) if time > earlier.max()}
    assert new <= set(window.rows.tolist())
    assert len(window.rows) == len(set(window.rows.tolist())) == len(new) + round(0.5 * len(new))
    assert (np.diff(window.rows) > 0).all()
    assert window.counts() == {
        "rows": len(window.rows), "new": len(new), "late": 0, "late_trained": 0, "replayed": round(0.5 * len(new)),
        "gone": 0,
    }  # fmt: skip
    again, other = (choose_rows(times, held_of(earlier), replay=0.5, seed=seed) for seed in (1, 2))
    assert (again.rows == window.rows).all()
    assert (other.rows != window.rows).any()


def test_the_older_rows_of_two_nights_are_not_the_same():
    """One seed would draw the same of the oldest each night, and others never."""
    one, other = (
        choose_rows(np.arange(2000 + night), held_of(np.arange(1000 + night)), replay=0.2, seed=1) for night in (0, 1)
    )
    assert len(set(one.rows[one.rows < 1000]) & set(other.rows[other.rows < 1000])) < 100


def test_all_older_rows_where_there_are_fewer():
    window = choose_rows(np.arange(100), held_of(np.arange(10)), replay=3, seed=1)
    assert window.rows.tolist() == list(range(100))
    assert window.replayed == 10


def test_late_rows_are_counted_and_trained_on_with_their_interval():
    earlier = np.arange(0, 51_200)  # a hundred to an interval
    times = np.concatenate([earlier, [7, 7, 30_050], np.arange(51_200, 51_300)])
    window = choose_rows(times, held_of(earlier), replay=0, seed=1)
    assert (window.new, window.late, window.late_trained, window.replayed) == (100, 3, 203, 0)
    chosen = set(window.rows.tolist())
    assert {51_200, 51_201, 51_202} <= chosen  # the late ones themselves
    assert len(chosen) == 303


def test_late_rows_alone_are_something_to_train_on():
    window = choose_rows(np.append(np.arange(1000), 4), held_of(np.arange(1000)), replay=0, seed=1)
    assert window.late == 1
    assert window.new == 0
    assert 1000 in window.rows


def test_rows_that_are_gone_are_counted():
    window = choose_rows(np.arange(50, 130), held_of(np.arange(100)), replay=0, seed=1)
    assert (window.gone, window.new, window.late) == (50, 30, 0)


def test_nothing_new_is_refused_in_a_sentence():
    with pytest.raises(DataError, match=r"no row of the train split is later than those of the run .* \(99\)"):
        choose_rows(np.arange(100), held_of(np.arange(100)), replay=0.5, seed=1)
    times = np.arange(1_794_441_592_000_000 - 99, 1_794_441_592_000_001)  # dates are microseconds
    with pytest.raises(DataError, match=r"those of the run to start from \(2026-11-11T23:59:52\+00:00\), so"):
        choose_rows(times, held_of(times), replay=0.5, seed=1)


def test_a_row_without_a_time_counts_as_old():
    times = np.array([1.0, np.nan, 2.0, 3.0, np.nan])
    held = times_held(times)
    assert (held["until"], held["rows"]) == ([1.0, 2.0, 3.0], [1, 1, 1])
    window = choose_rows(times, held_of([1.0, 2.0]), replay=9, seed=1)
    assert (window.new, window.replayed) == (1, 4)


def test_after_a_run_of_an_older_version_no_row_is_left_out():
    """Its last time is that of its valid rows, which it was not trained on."""
    window = choose_rows(np.arange(100), {"trained_until": 79.0}, replay=0, seed=1)
    assert window.rows.tolist() == list(range(100))
    assert (window.new, window.late, window.late_trained) == (20, 0, 80)
    assert "20 later than those of the start, 80 others, since the start does not tell" in window.note()
    with pytest.raises(DataError, match="tells no times"):
        choose_rows(np.arange(100), {}, replay=0, seed=1)


def test_a_late_row_in_an_interval_that_lost_one_is_trained_on():
    """The interval held as many rows as before, so that no training ever saw the late one."""
    earlier = np.arange(0, 102_400, 2)  # a hundred rows to an interval
    times = np.concatenate([np.delete(earlier, [120, 30_000]), [201, 60_001], np.arange(102_400, 102_500)])
    window = choose_rows(times, held_of(earlier), replay=0, seed=1)
    chosen = set(times[window.rows].tolist())
    assert {201, 60_001} <= chosen
    assert (window.new, window.late, window.gone) == (100, 2, 2)
    assert len(chosen) == 100 + window.late_trained == 300


@pytest.mark.parametrize("kind", ["int64", "float64"])
def test_times_that_stay_are_those_of_before_whatever_their_type_and_order(kind):
    random = np.random.default_rng(3)
    earlier = random.integers(-5000, 50_000, 30_000)
    times = random.permutation(np.append(earlier, 60_000)).astype(kind)
    window = choose_rows(times, held_of(earlier), replay=0, seed=1)
    assert (len(window.rows), window.late, window.gone) == (1, 0, 0)


def test_a_run_that_tells_numbers_of_rows_alone_is_gone_on_from():
    held = {name: value for name, value in times_held(np.arange(100)).items() if name != "times"}
    window = choose_rows(np.append(np.arange(1, 100), [0.5, 200]), {"train_times": held}, replay=0, seed=1)
    assert (window.new, window.late) == (1, 1)
