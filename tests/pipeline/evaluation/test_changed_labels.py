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


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"label_steps": [{"parse_number": {"thousands": None}}]},
            "label_steps was [{'parse_number': {'thousands': None}}]",
        ),
        ({"label_strip": "$"}, "label_strip was '$' when the model was trained, and is None today"),
        ({"label_steps": []}, None),
    ],
)
def test_another_reading_of_a_label_is_named(settings, said):
    def config(more):
        features = {"path": "x.csv", "continuous": ["a"], "targets": {"price": {"task": "regression"} | more}}
        return RunConfig(name="a", recipe="table", features=features).to_dict()

    price = (Target("price", "regression"),)
    found = list(changed_labels(price, price, config(settings), config({})))
    assert len(found) == (said is not None)
    assert all(said in text for text in found)


@pytest.mark.parametrize(
    ("before", "after", "said"), [(3.5, 3.5, None), (3.5, 4, "threshold was 3.5"), (0, None, "threshold was 0"),
                                  (None, 0, "threshold was None when the model was trained, and is 0 today")],
)  # fmt: skip
def test_another_threshold_is_named(before, after, said):
    was, now = (
        {"features": {"targets": {"late": {"task": "binary"} | ({} if item is None else {"threshold": item})}}}
        for item in (before, after)
    )
    found = list(changed_labels(LATE, LATE, was, now))
    assert len(found) == (said is not None)
    assert all(said in text for text in found)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (None, "1", None),  # 1 is the label that counts where none is named
        ("1", None, None),
        (None, "0", "positive was '1' when the model was trained, and is '0' today"),
        ("yes", None, "positive was 'yes' when the model was trained, and is '1' today"),
        (None, "None", "positive was '1' when the model was trained, and is 'None' today"),
    ],
)
def test_the_label_that_counts_is_named_where_it_is_another(before, after, said):
    was, now = ({"features": {"targets": {"late": {"task": "binary", "positive": item}}}} for item in (before, after))
    found = list(changed_labels(LATE, LATE, was, now))
    assert len(found) == (said is not None)
    assert all(said in text for text in found)
