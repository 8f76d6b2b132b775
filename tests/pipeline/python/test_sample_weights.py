"""A row of weight 0 given to an estimator is a row that is not given: it splits, scales, names and learns nothing."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from gigabatch.pipeline.python.estimators import GigabatchClassifier, GigabatchRegressor

TRAIN = {"epochs": 3, "batch_size": 64}


def rows_with_idle(kind: str):
    """X, y and weights; two fifths weigh 0 and hold what no other row does."""
    random = np.random.default_rng(0)
    idle = random.random(500) < 0.4
    frame = pd.DataFrame({"city": random.choice(["Oslo", "Bonn", "Rom"], 500), "price": random.normal(size=500)})
    value = 3 * frame["price"] + (frame["city"] == "Rom")
    frame.loc[idle, "price"], frame.loc[idle, "city"] = 1e30, "Atlantis"
    if kind == "regression":
        return frame, np.where(idle, 999999.0, value), np.where(idle, 0.0, 2.0), idle
    labels = np.where(value > 1, "much", np.where(value > -1, "some", "none"))
    labels = np.where(labels == "none", "some", labels) if kind == "binary" else labels
    return frame, np.where(idle, "absurd", labels), np.where(idle, 0.0, 2.0), idle


@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression"])
@pytest.mark.parametrize("given", ["frame", "table"])
def test_rows_of_weight_0_are_as_if_they_were_not_given(kind, given):
    frame, y, weight, idle = rows_with_idle(kind)
    estimator = GigabatchRegressor if kind == "regression" else GigabatchClassifier
    x = pa.Table.from_pandas(frame) if given == "table" else frame
    found = estimator(random_state=0, train=TRAIN).fit(x, y, weight)
    expected = estimator(random_state=0, train=TRAIN).fit(frame[~idle], y[~idle], weight[~idle])
    assert found.curve_ == expected.curve_
    if kind == "regression":
        np.testing.assert_array_equal(found.predict(frame[~idle]), expected.predict(frame[~idle]))
        return
    assert found.classes_.tolist() == expected.classes_.tolist()
    assert "absurd" not in found.classes_
    np.testing.assert_array_equal(found.predict_proba(frame[~idle]), expected.predict_proba(frame[~idle]))


def test_a_few_rows_that_count_among_many_choose_the_best_epoch():
    """Of 300 rows 12 count. Were the rows that choose taken of all, they would often weigh nothing, a loss of 0."""
    random = np.random.default_rng(0)
    x = random.normal(size=(300, 3)).astype(np.float32)
    weight = np.zeros(300)
    weight[random.permutation(300)[:12]] = 1
    for seed in range(6):
        model = GigabatchRegressor(random_state=seed, train=TRAIN).fit(x, x @ [3.0, -2.0, 0.0], weight)
        assert all(point.get("valid_loss", 1) > 0 for point in model.curve_)


def test_one_class_alone_that_weighs_something_is_refused():
    x, y = np.arange(20.0)[:, None], np.repeat(["a", "b"], 10)
    with pytest.raises(ValueError, match="holds one class alone, 'b'"):
        GigabatchClassifier().fit(x, y, np.repeat([0.0, 1.0], 10))
