"""What of today's labels means something else than when a model was trained."""

import pytest

from gigabatch.features.schema import Target
from gigabatch.pipeline.config.config import RunConfig
from gigabatch.pipeline.evaluation.labels import changed_labels

LATE = (Target("late", "binary"),)


@pytest.mark.parametrize(("minutes", "said"), [(15, []), (30, ["features.late_minutes was 15 when the model was"])])
def test_another_bound_of_a_label_is_named(minutes, said):
    was, now = (
        RunConfig(name="a", recipe="flights", features={"path": "x", "late_minutes": number}).to_dict()
        for number in (15, minutes)
    )
    found = list(changed_labels(LATE, LATE, was, now))
    assert len(found) == len(said)
    assert all(text.startswith(start) for text, start in zip(found, said, strict=True))
