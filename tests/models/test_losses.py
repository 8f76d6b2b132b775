"""TargetLoss against torch's and scikit-learn's losses, target by target."""

import numpy as np
import pytest
import scipy.special
import sklearn.metrics
import torch

from gigabatch.models.errors import ModelError
from gigabatch.models.losses import RegressionLoss, TargetLoss

TASKS = (("binary", 1), ("multiclass", 3), ("regression", 1))
ROWS = 40


@pytest.fixture
def batch():
    """Outputs, targets and weights of a batch with one target of each task."""
    torch.manual_seed(0)
    targets = (torch.randint(2, (ROWS,)).float(), torch.randint(3, (ROWS,), dtype=torch.int32), torch.randn(ROWS))
    return torch.randn(ROWS, 5) * 2, targets, torch.rand(ROWS)


def sklearn_losses(outputs, targets, weight):
    """(log loss, log loss over classes, mean squared error), each a weighted mean, from float64 probabilities."""
    logits, (binary, multiclass, regression) = outputs.double(), targets
    return (
        sklearn.metrics.log_loss(binary, torch.sigmoid(logits[:, 0]), sample_weight=weight),
        sklearn.metrics.log_loss(multiclass, torch.softmax(logits[:, 1:4], 1), sample_weight=weight, labels=[0, 1, 2]),
        sklearn.metrics.mean_squared_error(regression.double(), logits[:, 4], sample_weight=weight),
    )


@pytest.mark.parametrize("weighted", [False, True])
def test_loss_is_the_sum_of_scikit_learns(batch, weighted):
    outputs, targets, weight = batch
    weight = weight if weighted else None
    loss = TargetLoss(TASKS)(outputs, targets, weight)
    assert loss.shape == ()
    assert loss.item() == pytest.approx(sum(sklearn_losses(outputs, targets, weight)), rel=1e-5)


def test_predictions_are_probabilities_and_values(batch):
    outputs, _, _ = batch
    binary, multiclass, regression = TargetLoss(TASKS).predict(outputs)
    torch.testing.assert_close(binary, 1 / (1 + (-outputs[:, 0]).exp()))
    exponentials = outputs[:, 1:4].exp()
    torch.testing.assert_close(multiclass, exponentials / exponentials.sum(dim=1, keepdim=True))
    assert torch.equal(regression, outputs[:, 4].double())


def test_gradients_pass_a_numerical_check(batch):
    outputs, targets, weight = batch
    outputs = outputs.clone().requires_grad_()
    TargetLoss(TASKS)(outputs, targets, weight).backward()
    row, step = 3, 1e-2
    for column in range(5):
        moved = [outputs.detach().clone() for _ in range(2)]
        moved[0][row, column] += step
        moved[1][row, column] -= step
        high, low = (sum(sklearn_losses(o, targets, weight)) for o in moved)
        assert outputs.grad[row, column].item() == pytest.approx((high - low) / (2 * step), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_only_the_proportions_of_weights_matter(batch, scale):
    outputs, targets, weight = batch
    loss = TargetLoss(TASKS)
    torch.testing.assert_close(loss(outputs, targets, weight * scale), loss(outputs, targets, weight))


def test_a_batch_whose_weights_are_all_zero_teaches_nothing(batch):
    outputs, targets, weight = batch
    outputs = outputs.clone().requires_grad_()
    loss = TargetLoss(TASKS)(outputs, targets, torch.zeros_like(weight))
    loss.backward()
    assert loss.item() == 0
    assert not outputs.grad.any()


@pytest.mark.parametrize("outside", [-100, -1, 3, -(2**31)])
def test_a_class_outside_is_an_error(outside):
    """Also -100, which torch's loss ignores by default."""
    loss = TargetLoss([("multiclass", 3)])
    with pytest.raises(IndexError, match="out of bounds"):
        loss(torch.zeros(2, 3), [torch.tensor([0, outside], dtype=torch.int32)])


def test_extreme_logits_stay_finite():
    outputs = torch.tensor([[200.0], [-200.0]], requires_grad=True)
    loss = TargetLoss([("binary", 1)])(outputs, (torch.tensor([0.0, 1.0]),))
    loss.backward()
    assert loss.item() == 200.0
    np.testing.assert_allclose(outputs.grad, [[0.5], [-0.5]])


def test_half_precision_outputs_are_computed_in_float32(batch):
    outputs, targets, _ = batch
    loss = TargetLoss(TASKS)
    found = loss(outputs.bfloat16(), targets)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, loss(outputs.bfloat16().float(), targets), rtol=0, atol=0)
    dtypes = [prediction.dtype for prediction in loss.predict(outputs.bfloat16())]
    assert dtypes == [torch.float32, torch.float32, torch.float64]


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([], "at least one target"),
        ([("ranking", 1)], "unknown task 'ranking'. Known: binary, multiclass, regression"),
        ([("binary", 2)], "a binary target takes one output, not 2"),
        ([("regression", 0)], "a regression target takes one output, not 0"),
        ([("multiclass", 1)], "a multiclass target takes two or more outputs, not 1"),
    ],
)
def test_tasks_that_do_not_exist_or_fit_are_refused(tasks, message):
    with pytest.raises(ModelError, match=message):
        TargetLoss(tasks)


def test_shapes_that_would_broadcast_are_refused(batch):
    outputs, targets, _ = batch
    loss = TargetLoss(TASKS)
    with pytest.raises(ModelError, match=r"outputs must be \[rows, 5\], found \[40, 4\]"):
        loss(outputs[:, :4], targets)
    with pytest.raises(ModelError, match="2 targets given, 3 expected"):
        loss(outputs, targets[:2])
    with pytest.raises(ModelError, match=r"a target must be \[40\], one value a row, not \[40, 1\]"):
        loss(outputs, (targets[0][:, None], *targets[1:]))
    with pytest.raises(ModelError, match=r"weight must be \[40\], not \[40, 1\]"):
        loss(outputs, targets, torch.ones(ROWS, 1))


@pytest.mark.parametrize("weighted", [False, True])
def test_huber_and_quantile_losses_are_those_of_scipy_and_scikit_learn(weighted):
    draw = torch.Generator().manual_seed(1)
    outputs, targets, weight = (3 * torch.randn(ROWS, generator=draw) for _ in range(3))
    weight = weight.abs() if weighted else None
    values, labels = outputs.double().numpy(), targets.double().numpy()
    found = {
        loss: TargetLoss([("regression", 1)], [loss])(outputs[:, None], (targets,), weight).item()
        for loss in (RegressionLoss("huber", delta=0.7), RegressionLoss("quantile", tau=0.9))
    }
    expected = [
        np.average(scipy.special.huber(0.7, labels - values), weights=weight),
        sklearn.metrics.mean_pinball_loss(labels, values, sample_weight=weight, alpha=0.9),
    ]
    assert list(found.values()) == pytest.approx(expected, rel=1e-5)
    assert [str(loss) for loss in found] == ["huber(delta=0.7)", "quantile(tau=0.9)"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RegressionLoss("hinge"), "unknown loss of a regression target 'hinge'. Known: mse, huber, quantile"),
        (lambda: RegressionLoss("huber", delta=0.0), "delta of the huber loss must be above 0, not 0.0"),
        (lambda: RegressionLoss("quantile", tau=1.0), r"tau of the quantile loss must be in \(0, 1\), not 1.0"),
        (lambda: TargetLoss(TASKS, [None]), "1 losses are given for 3 targets"),
        (lambda: TargetLoss(TASKS, [RegressionLoss(), None, None]), "a binary target has one loss; mse is for regress"),
    ],
)
def test_losses_that_cannot_be_are_refused(make, message):
    with pytest.raises(ModelError, match=message):
        make()


def test_the_description_says_what_is_summed():
    loss = TargetLoss(TASKS, [None, None, RegressionLoss("huber", delta=2)])
    assert loss.description == "log loss + log loss of classes + huber(delta=2) in deviations"
