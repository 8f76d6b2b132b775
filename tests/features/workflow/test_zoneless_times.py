"""What a time without a zone means to a workflow that was fitted on times with one."""

import pandas as pd
import pytest

from gigabatch import Workflow
from gigabatch.features.workflow.steps import parse_steps

BERLIN = pd.Series(pd.to_datetime(["2026-07-01T10:00", "2026-07-01T11:00"]).tz_localize("Europe/Berlin"))  # UTC + 2
STEP = {"date_parts": {"column": "at", "parts": ["hour"], "prefix": "at", "unit": "us"}}


@pytest.mark.parametrize(
    ("at", "in_utc"),
    [
        (BERLIN, 8),
        (["2026-07-01T10:00+02:00"], 8),
        (["2026-07-01T10:00"], 10),
        (["2026-07-01 10:00Z"], 10),
        (pd.to_datetime(["2026-07-01T10:00"]), 10),
    ],
    ids=["zoned", "offset", "text", "Z", "timestamp"],
)
@pytest.mark.parametrize(("zone", "ahead"), [({}, 0), ({"zone": "Europe/Berlin"}, 2)], ids=["", "Berlin"])
def test_a_time_without_a_zone_is_utc_whatever_the_training_had(at, in_utc, zone, ahead):
    steps = parse_steps([{"date_parts": STEP["date_parts"] | zone}])
    workflow = Workflow(steps, (), {"at": "datetime"})
    workflow.fit([workflow.typed(pd.DataFrame({"at": BERLIN}))])
    found = workflow.transform(workflow.typed(pd.DataFrame({"at": at})))["at_hour"].iloc[0]
    assert found == in_utc + ahead
