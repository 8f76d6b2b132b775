"""A fit that fails leaves what was fitted before."""

import pandas as pd
import pytest

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.errors import DataError
from gigabatch.features.schema import Column, Schema
from gigabatch.features.workflow.failed_fit import keeps_last_fit
from gigabatch.features.workflow.workflow import Workflow

STEPS = [{"min_max": {"column": "price"}}, {"categorify": {"column": "city"}}, {"normalize": {"column": "age"}}]
GOOD = pd.DataFrame({"price": [1.0, 3.0], "city": ["Oslo", "Bonn"], "age": [2.0, 4.0]})
BAD = GOOD.assign(price=[5.0, 9.0], city=["Rome", "Rome"], age=["two", "four"])


@pytest.mark.parametrize("fit", ["fit", "fit_transform", "fit_transform_splits"])
def test_a_workflow_keeps_its_last_fit(fit):
    """Its states were gone, or some those of the fit that failed."""
    workflow = Workflow.from_steps(STEPS)
    given = {"train": BAD} if fit == "fit_transform_splits" else [BAD]
    with pytest.raises(DataError, match="age"):
        getattr(workflow, fit)(given)
    assert not workflow.fitted
    assert workflow.states == {}
    expected = workflow.fit([GOOD]).transform(GOOD)
    with pytest.raises(DataError, match="age"):
        getattr(workflow, fit)(given)
    pd.testing.assert_frame_equal(workflow.transform(GOOD), expected)
    assert expected["price"].tolist() == [0, 1]


def test_a_workflow_whose_rows_cannot_be_transformed_keeps_its_last_fit(monkeypatch):
    workflow = Workflow.from_steps(STEPS[:1])
    workflow.fit([GOOD])
    monkeypatch.setattr(Workflow, "_through", lambda *given, **named: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        workflow.fit_transform([BAD])
    monkeypatch.undo()
    assert workflow.transform(GOOD)["price"].tolist() == [0, 1]


def test_another_thread_never_misses_what_was_fitted():
    class Seen(dict):
        """Attributes that are told of each that goes."""

        def __init__(self, *given):
            super().__init__(*given)
            self.gone = []

        def clear(self):
            self.gone += self
            super().clear()

        def __delitem__(self, name):
            self.gone.append(name)
            super().__delitem__(name)

    class Fitted:
        @keeps_last_fit
        def fit(self):
            self.state, self.half = 2, 3
            raise ValueError("broken")

    fitted = Fitted()
    fitted.state = 1
    fitted.__dict__ = seen = Seen(vars(fitted))
    with pytest.raises(ValueError, match="broken"):
        fitted.fit()
    assert vars(fitted) == {"state": 1}
    assert seen.gone in ([], ["half"])


def test_a_preprocessor_keeps_its_last_fit():
    preprocessor = Preprocessor(
        Schema((Column("city", "categorical", "string"), Column("age", "continuous", "float32")), ())
    )
    expected = preprocessor.fit([GOOD]).transform(GOOD)
    for fit in (preprocessor.fit, preprocessor.fit_pack):
        with pytest.raises(DataError, match="age"):
            fit([BAD])
        pd.testing.assert_frame_equal(preprocessor.transform(GOOD), expected)
