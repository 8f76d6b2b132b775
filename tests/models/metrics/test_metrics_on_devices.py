"""Metrics where the rows lie: a device gives what the CPU gives, whose values the other files check."""

import pytest
import torch

from gigabatch.models.metrics import pointwise
from gigabatch.models.metrics.ranking import RankedGroups, gauc, grouped_mrr

RANDOM = torch.Generator().manual_seed(0)
SCORES, LABELS = torch.rand(10_000, generator=RANDOM), torch.randint(2, (10_000,), generator=RANDOM)
TIED, GROUPS = (torch.randint(high, (10_000,), generator=RANDOM) for high in (50, 500))


@pytest.mark.parametrize(
    "metric", ["roc_auc", "log_loss", "accuracy", "expected_calibration_error", "rmse", "mae", "r2"]
)
def test_a_pointwise_metric(any_device, metric):
    found = getattr(pointwise, metric)(SCORES.to(any_device), LABELS.to(any_device))
    assert found.device.type == any_device
    torch.testing.assert_close(found.cpu(), getattr(pointwise, metric)(SCORES, LABELS))


def test_the_roc_curve(any_device):
    found = pointwise.roc_curve(SCORES.to(any_device), LABELS.to(any_device))
    torch.testing.assert_close([part.cpu() for part in found], list(pointwise.roc_curve(SCORES, LABELS)))


@pytest.mark.parametrize("name", ["hit_rate", "recall", "precision", "ndcg"])
def test_a_metric_of_the_first_rows_of_a_group(any_device, name):
    """With ties; the sums of a group are float64."""
    rows = TIED.float(), LABELS.bool(), GROUPS
    found = getattr(RankedGroups(*(column.to(any_device) for column in rows)), name)(5)
    assert found.device.type == any_device
    torch.testing.assert_close(
        found.cpu(), getattr(RankedGroups(*rows), name)(5), rtol=1e-12, atol=1e-12, equal_nan=True
    )


def test_auc_and_reciprocal_rank_by_group(any_device):
    rows = TIED.float(), LABELS, GROUPS
    moved = tuple(column.to(any_device) for column in rows)
    assert gauc(*moved).auc.item() == pytest.approx(gauc(*rows).auc.item(), abs=1e-12)
    torch.testing.assert_close(grouped_mrr(*moved).cpu(), grouped_mrr(*rows))
