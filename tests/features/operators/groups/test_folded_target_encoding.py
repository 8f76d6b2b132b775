"""FoldedTargetEncoding against a slow loop and scikit-learn, and that no row is told its own label."""

from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import TargetEncoder

from gigabatch.features.errors import DataError
from gigabatch.features.operators.groups.folded_target_encoding import FoldedTargetEncoding
from tests.examples import examples
from tests.features.partitioned import COUNTS, cut

ROW = st.tuples(
    st.sampled_from(["a", "b", "c", None]),
    st.integers(0, 1),
    st.none() | st.integers(0, 1),
    st.none() | st.floats(-1e6, 1e6),
    st.sampled_from(["s0", "s1", "s2", "s3", "s4", "s5"]),
)
ROWS = st.lists(ROW, min_size=1, max_size=25).filter(
    lambda rows: len(rows) == 1 or len({fold_of(row[4]) for row in rows}) > 1
)
OUTPUTS = ["hit_encoded_by_k_j", "x_encoded_by_k_j"]


def frame_of(rows):
    frame = pd.DataFrame(rows, columns=["k", "j", "hit", "x", "session"])
    types = {"k": "str", "j": "int64", "hit": "float64", "x": "float64", "session": "str"}
    return frame.astype(types).set_index(np.arange(len(rows)) * 2 + 3)


def encoder(smoothing=2.5, num_folds=3):
    return FoldedTargetEncoding(("k", "j"), ["hit", "x"], "session", num_folds, smoothing)


def fold_of(session, num_folds=3):
    return xxhash.xxh64_intdigest(session.encode()) % num_folds


def slow(rows, target, smoothing, asked, out_of_fold):
    """One value for each asked row, by a loop over all rows, in fractions."""
    place = {"hit": 2, "x": 3}[target]
    found = []
    for key, part, *_, session in asked:
        seen = [
            row for row in rows if row[place] is not None and not (out_of_fold and fold_of(row[4]) == fold_of(session))
        ]
        same = [Fraction(row[place]) for row in seen if key is not None and row[:2] == (key, part)]
        if not seen:
            found.append(np.nan)
            continue
        prior = sum(Fraction(row[place]) for row in seen) / len(seen)
        weight = len(same) + Fraction(smoothing)
        found.append(float((sum(same) + Fraction(smoothing) * prior) / weight if weight else prior))
    return np.array(found)


def assert_close(found, expected, rows):
    # Cancelling sums of float64 keep an absolute error near the largest value's last bits.
    size = max([abs(row[3]) for row in rows if row[3] is not None], default=1)
    np.testing.assert_allclose(found, expected, rtol=2e-7, atol=1e-12 * size + 1e-40)


@given(rows=ROWS, smoothing=st.sampled_from([0.0, 0.5, 20.0]))
@settings(max_examples=examples(40), deadline=None)
def test_equals_a_loop_for_new_and_for_train_rows(rows, smoothing):
    frame, operator = frame_of(rows), encoder(smoothing)
    state = operator.fit([frame])
    unseen = [("z", 0, None, None, "s0"), ("a", 1, None, None, "s9")]
    for target, output in zip(("hit", "x"), OUTPUTS, strict=True):
        train = operator.apply_to_train(frame, state)[output]
        assert train.dtype == "float32"
        assert_close(train, slow(rows, target, smoothing, rows, True), rows)
        new = operator.apply(frame_of(rows + unseen)[["k", "j"]], state)[output]
        assert_close(new, slow(rows, target, smoothing, rows + unseen, False), rows)


@given(rows=ROWS, count=COUNTS, seed=st.integers(0, 99))
@settings(max_examples=examples(10), deadline=None)
def test_fit_and_both_ways_to_apply_do_not_depend_on_partitions(rows, count, seed):
    frame, operator = frame_of(rows), encoder()
    state = operator.fit([frame])
    parts = cut(frame.sample(frac=1, random_state=seed), count, seed)
    found = operator.fit(parts)
    pd.testing.assert_frame_equal(found.table, state.table, check_exact=True)
    pd.testing.assert_frame_equal(found.totals, state.totals, check_exact=True)
    for apply in (operator.apply, operator.apply_to_train):
        whole = apply(frame, state)
        cuts = pd.concat([apply(part, state) for part in parts]).loc[whole.index]
        pd.testing.assert_frame_equal(cuts, whole, check_exact=True)
        alone = pd.concat([apply(frame.iloc[[row]], state) for row in range(min(len(frame), 5))])
        pd.testing.assert_frame_equal(alone, whole.head(5), check_exact=True)


@given(rows=ROWS, fold=st.integers(0, 2), seed=st.integers(0, 99))
@settings(max_examples=examples(40), deadline=None)
def test_labels_of_a_fold_do_not_reach_its_own_rows(rows, fold, seed):
    frame, operator = frame_of(rows), encoder()
    inside = frame["session"].map(fold_of) == fold
    changed = frame.copy()
    for name in ("hit", "x"):
        values = frame.loc[inside, name].to_numpy()
        changed.loc[inside, name] = np.random.default_rng(seed).permutation(values) * 3 + 1
    found = operator.apply_to_train(frame[inside], operator.fit([frame]))[OUTPUTS]
    again = operator.apply_to_train(changed[inside], operator.fit([changed]))[OUTPUTS]
    pd.testing.assert_frame_equal(found, again, check_exact=True)


@pytest.mark.parametrize("smoothing", [0.5, 20.0])
def test_equals_scikit_learns_fitted_on_the_other_folds(smoothing):
    rng = np.random.default_rng(4)
    frame = pd.DataFrame({"city": rng.choice(list("abcdefgh"), 500), "row": np.arange(500), "y": rng.normal(size=500)})
    operator = FoldedTargetEncoding(["city"], ["y"], "row", 4, smoothing)
    state = operator.fit([frame])

    def sklearn(train, asked):
        peer = TargetEncoder(smooth=smoothing, target_type="continuous").fit(train[["city"]], train["y"])
        return peer.transform(asked[["city"]])[:, 0]

    new = pd.DataFrame({"city": list("hgfedcbaz")})
    found = operator.apply(new, state)["y_encoded_by_city"]
    np.testing.assert_allclose(found, sklearn(frame, new), rtol=3e-7)
    fold = np.array([xxhash.xxh64_intdigest(int(row).to_bytes(8, "little")) % 4 for row in frame["row"]])
    found = operator.apply_to_train(frame, state)["y_encoded_by_city"]
    for k in range(4):
        expected = sklearn(frame[fold != k], frame[fold == k])
        np.testing.assert_allclose(found[fold == k], expected, rtol=3e-7)


@pytest.mark.parametrize("key", [["s", "s", "s"], [7, 7, 7], [True, True, True]])
def test_a_fold_key_that_makes_one_fold_is_refused(key):
    """F15: every train row was null, and rows that were served had real encodings."""
    frame = pd.DataFrame({"k": ["a", "b", "a"], "y": [1, 0, 1], "session": key})
    with pytest.raises(DataError, match=r"fold key 'session' puts all train rows, 3 with a label, into one of 5 folds"):
        FoldedTargetEncoding(["k"], ["y"], "session").fit([frame.head(1), frame.tail(2)])


def test_a_fold_key_with_nulls_or_missing_is_an_error_at_train_only():
    frame = pd.DataFrame({"k": ["a", "b"], "y": [1, 0], "session": ["s", None]})
    operator = FoldedTargetEncoding(["k"], ["y"], "session")
    with pytest.raises(DataError, match=r"fold key 'session' holds 1 null\(s\). Every train row needs a fold"):
        operator.fit([frame])
    state = operator.fit([frame.head(1)])
    assert operator.apply(frame[["k"]], state)["y_encoded_by_k"].tolist() == [1, 1]
    with pytest.raises(DataError, match=r"fold key 'session' holds 1 null"):
        operator.apply_to_train(frame, state)
    with pytest.raises(DataError, match=r"FoldedTargetEncoding: column.* 'session' not found"):
        operator.apply_to_train(frame[["k"]], state)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"by": "k"}, "by and targets are lists"),
        ({"targets": []}, "by and targets are lists"),
        ({"fold_key": "k"}, "must be different columns, found 'k' twice"),
        ({"fold_key": "y"}, "must be different columns, found 'y' twice"),
        ({"num_folds": 1}, "num_folds must be a whole number from 2 to 100, found 1"),
        ({"num_folds": 2.5}, "found 2.5"),
        ({"smoothing": -1.0}, "smoothing must be a number, finite and not negative, found -1.0"),
        ({"smoothing": float("nan")}, "found nan"),
    ],
)
def test_settings_without_meaning_are_an_error(arguments, message):
    with pytest.raises(DataError, match=f"FoldedTargetEncoding.*{message}"):
        FoldedTargetEncoding(**{"by": ["k"], "targets": ["y"], "fold_key": "row"} | arguments)


@pytest.mark.parametrize("dtype", ["object", "str"])
def test_texts_that_differ_behind_a_nul_are_two_keys(dtype):
    frame = pd.DataFrame({"k": ["", "\0x", "", "\0x", "a", "a\0"], "j": ["", "", "b", "b", "", ""]}, dtype=dtype)
    frame = frame.assign(y=range(6), f=range(6))
    operator = FoldedTargetEncoding(["k", "j"], ["y"], "f", num_folds=2, smoothing=0.0)
    assert operator.apply(frame, operator.fit([frame]))["y_encoded_by_k_j"].tolist() == [0, 1, 2, 3, 4, 5]
