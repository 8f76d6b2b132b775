"""What a workflow reads is worked out once: it took more time than the steps, and once for each column of a call."""

import pandas as pd

from gigabatch.features.workflow import workflow as module
from gigabatch.features.workflow.workflow import Workflow


def test_inputs_are_worked_out_once_for_a_fit_and_again_for_another(monkeypatch):
    calls = []
    found = module.raw_inputs
    monkeypatch.setattr(module, "raw_inputs", lambda *arguments: calls.append(1) or found(*arguments))
    dtypes = {f"x{place}": "float32" for place in range(8)}
    steps = [{"min_max": {"column": name}} for name in dtypes]
    workflow = Workflow(Workflow.from_steps(steps).steps, dtypes=dtypes)
    frame = pd.DataFrame({name: [0.0, 2.0] for name in dtypes})
    workflow.fit([frame])
    calls.clear()
    for _ in range(3):
        assert workflow.transform(workflow.typed(frame))["x7"].tolist() == [0.0, 1.0]
    assert workflow.applied_inputs == tuple(dtypes)
    assert len(calls) == 1


def test_inputs_follow_from_the_columns_that_each_fit_found():
    """One column a word of the train rows: a word that is not there must be given as a column."""
    steps = [{"text_flags": {"column": "words", "prefix": "is_"}}, {"clip": {"column": "is_b", "low": 0.5}}]
    workflow = Workflow.from_steps(steps)
    assert workflow.fit([pd.DataFrame({"words": ["a|b", "b"]})]).applied_inputs == ("words",)
    assert workflow.fit([pd.DataFrame({"words": ["a", "a"]})]).applied_inputs == ("words", "is_b")
