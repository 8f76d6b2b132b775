"""A served run answers on any device as on the CPU, within the tolerance that is promised of scores."""

import numpy as np
import pytest
import torch

from gigabatch.models.model import SCORE_ATOL, SCORE_RTOL
from gigabatch.pipeline.config.serving import ServeSettings
from gigabatch.pipeline.serving.served import load_served


@pytest.fixture
def both(run, any_device):
    return load_served(run), load_served(run, ServeSettings(device=any_device))


def test_rows_score_alike_whole_and_one_by_one(frame, both, any_device):
    rows = frame.drop(columns="clicked").head(50).astype(object).to_dict("records")
    rows = [{name: None if value != value else value for name, value in row.items()} for row in rows]
    expected, found = (served.scorer(rows) for served in both)
    assert torch.device(both[1].bundle.device).type == any_device
    assert found.keys() == expected.keys()
    for name, values in found.items():
        np.testing.assert_allclose(values, expected[name], rtol=SCORE_RTOL, atol=SCORE_ATOL)
        alone = [both[1].scorer([row])[name][0] for row in rows[:5]]
        np.testing.assert_allclose(alone, values[:5], rtol=SCORE_RTOL, atol=SCORE_ATOL)


def test_items_are_ranked_alike(both):
    """The best few have the scores of the CPU's best few, whichever of two that round alike comes first."""
    items = np.arange(len(both[0].ranker.items))
    for user in range(0, len(both[0].ranker.users), 7):
        expected, found = (
            torch.as_tensor(served.ranker.rank(served.ranker.asker_of_row(user), items)).cpu() for served in both
        )
        np.testing.assert_allclose(found, expected, rtol=SCORE_RTOL, atol=SCORE_ATOL)
        (_, best), (_, wanted) = (
            served.ranker.recommend(served.ranker.asker_of_row(user), 5, (), 1) for served in reversed(both)
        )
        np.testing.assert_allclose(best, wanted, rtol=SCORE_RTOL, atol=SCORE_ATOL)
