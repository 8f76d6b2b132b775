"""TargetLoss against torch's and scikit-learn's losses, target by target."""

import numpy as np
import pytest
import scipy.special
import sklearn.metrics
import sklearn.utils.class_weight
import torch

from gigabatch.features.schema import Target
from gigabatch.models.errors import ModelError
from gigabatch.models.losses import ClassLoss, RegressionLoss, TargetLoss
from gigabatch.models.metrics.pointwise import pinball_loss, tweedie_deviance
from gigabatch.models.parallel.codistill import CodistilledLoss
from gigabatch.pipeline.training.target_metrics import target_metrics

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


@pytest.mark.parametrize("weighted", [False, True])
def test_smoothed_labels_are_soft_labels_in_training_and_whole_ones_in_measures(batch, weighted):
    """Torch's cross-entropy of soft labels, a binary one as two classes of logits 0 and x."""
    outputs, targets, weight = batch
    weight = weight if weighted else torch.ones(ROWS)
    share = weight / weight.sum()
    pairs = torch.stack([torch.zeros(ROWS), outputs[:, 0]], dim=1), outputs[:, 1:4]
    expected = float((share * (outputs[:, 4] - targets[2]) ** 2).sum())
    for logits, labels in zip(pairs, targets, strict=False):
        classes = logits.shape[1]
        soft = 0.7 * torch.nn.functional.one_hot(labels.long(), classes) + 0.3 / classes
        expected += float((share * torch.nn.functional.cross_entropy(logits, soft, reduction="none")).sum())
    smoothed, plain = TargetLoss(TASKS, label_smoothing=0.3), TargetLoss(TASKS)
    assert smoothed(outputs, targets, weight).item() == pytest.approx(expected, rel=1e-5)
    assert torch.equal(smoothed.sums(outputs, targets, weight)[0], plain.sums(outputs, targets, weight)[0])
    assert smoothed.description == plain.description
    peers = [torch.zeros(ROWS, 5)]
    taught = [CodistilledLoss(loss, peers, 0.5)(outputs, targets, weight).item() for loss in (smoothed, plain)]
    assert taught[0] - taught[1] == pytest.approx(expected - plain(outputs, targets, weight).item(), rel=1e-3)


@pytest.mark.parametrize(
    ("tasks", "share", "message"),
    [
        (TASKS, 1.0, r"label_smoothing must be in \[0, 1\), not 1.0"),
        (TASKS, -0.1, "label_smoothing must be in"),
        ((("regression", 1),), 0.1, "label_smoothing is for binary and multiclass targets; there is none"),
    ],
)
def test_labels_that_cannot_be_smoothed_are_refused(tasks, share, message):
    with pytest.raises(ModelError, match=message):
        TargetLoss(tasks, label_smoothing=share)


def test_smoothing_and_the_focal_loss_are_refused_together():
    with pytest.raises(ModelError, match="label_smoothing and the focal loss do not go together"):
        TargetLoss([("binary", 1)], classes=[ClassLoss("focal")], label_smoothing=0.1)


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


@pytest.mark.parametrize("weighted", [False, True])
def test_a_batch_of_no_rows_has_no_mean_and_sums_of_0(batch, weighted):
    outputs, targets, weight = batch
    none = outputs[:0], [target[:0] for target in targets], weight[:0] if weighted else None
    with pytest.raises(ModelError, match="loss: a batch of 0 rows has no mean loss"):
        TargetLoss(TASKS)(*none)
    sums, count = TargetLoss(TASKS).sums(*none)
    assert (sums.tolist(), count.item()) == ([0.0, 0.0, 0.0], 0.0)
    assert [len(found) for found in TargetLoss(TASKS).predict(none[0])] == [0, 0, 0]


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
        (lambda: TargetLoss(TASKS, [RegressionLoss(), None, None]), "mse is for regression, and a target is binary"),
    ],
)
def test_losses_that_cannot_be_are_refused(make, message):
    with pytest.raises(ModelError, match=message):
        make()


def test_the_description_says_what_is_summed():
    loss = TargetLoss(TASKS, [None, None, RegressionLoss("huber", delta=2)])
    assert loss.description == "log loss + log loss of classes + huber(delta=2) in deviations"
    tags = TargetLoss([("binary", 1)] * 20 + [("regression", 1)])
    assert tags.description == "20 x log loss + mse in deviations"


# Deviances, focal loss, weights of classes


def deviances(kind: str, power: float):
    """Outputs, targets of 0 and more, their loss, and scikit-learn's mean deviance of exp(output)."""
    draw = np.random.default_rng(5)
    outputs, targets, weight = draw.normal(size=ROWS), draw.poisson(0.7, ROWS) * 1.3, draw.exponential(size=ROWS)
    loss = TargetLoss([("regression", 1)], [RegressionLoss(kind, power=power)])
    expected = sklearn.metrics.mean_tweedie_deviance(
        targets, np.exp(outputs), sample_weight=weight, power=1 if kind == "poisson" else power
    )
    return outputs, targets, weight, loss, expected


@pytest.mark.parametrize(("kind", "power"), [("poisson", 1.5), ("tweedie", 1.2), ("tweedie", 1.9)])
def test_deviances_are_scikit_learns(kind, power):
    outputs, targets, weight, loss, expected = deviances(kind, power)
    given = (
        torch.from_numpy(outputs).float()[:, None],
        [torch.from_numpy(targets).float()],
        torch.from_numpy(weight).float(),
    )
    assert loss(*given).item() == pytest.approx(expected, rel=1e-5)
    found = tweedie_deviance(
        *map(torch.from_numpy, (np.exp(outputs), targets)), loss.regression[0].deviance_power, torch.from_numpy(weight)
    )
    assert found.item() == pytest.approx(expected, rel=1e-12)
    half = given[0].to(torch.bfloat16)
    assert loss(half, *given[1:]).dtype == torch.float32
    assert loss(half, *given[1:]).item() == pytest.approx(loss(half.float(), *given[1:]).item())


@pytest.mark.parametrize(("kind", "power"), [("poisson", 1.5), ("tweedie", 1.2)])
def test_labels_below_0_of_rows_of_weight_0_count_for_nothing(kind, power):
    """Their deviance is no number, which times 0 is none either."""
    outputs, targets, weight, loss, expected = deviances(kind, power)
    logits, labels, weights = (
        torch.from_numpy(np.append(values, more)).float()
        for values, more in ((outputs, 0.5), (targets, -1), (weight, 0))
    )
    given = logits[:, None].requires_grad_(), [labels], weights
    assert loss(*given).item() == pytest.approx(expected, rel=1e-5)
    total, count = loss.sums(*given)
    assert (total / count).item() == pytest.approx(expected, rel=1e-5)
    (slopes,) = torch.autograd.grad(loss(*given), given[0])
    (own,) = torch.autograd.grad(loss(given[0][:-1], [labels[:-1]], weights[:-1]), given[0])
    torch.testing.assert_close(slopes, own)
    of_power = loss.regression[0].deviance_power
    assert tweedie_deviance(logits.exp(), labels, of_power, weights).item() == pytest.approx(expected, rel=1e-5)
    found = target_metrics(Target("count", "regression"), logits.exp(), labels, None, 15, weights, loss.regression[0])
    assert found["deviance"] == pytest.approx(expected, rel=1e-5)


def test_the_pinball_loss_is_scikit_learns():
    draw = np.random.default_rng(6)
    y, q, weight = draw.normal(size=(3, ROWS))
    weight = np.abs(weight)
    for tau in (0.1, 0.5, 0.9):
        expected = sklearn.metrics.mean_pinball_loss(y, q, sample_weight=weight, alpha=tau)
        assert pinball_loss(*map(torch.from_numpy, (q, y)), tau, torch.from_numpy(weight)).item() == pytest.approx(
            expected
        )


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("weights", [None, (0.5, 3.0)])
def test_focal_loss_and_class_weights_row_by_row(batch, gamma, weights):
    outputs, (binary, multiclass, _), weight = batch
    classes = [ClassLoss("focal", gamma, weights), ClassLoss("focal", gamma, weights and (*weights, 1.5))]
    loss = TargetLoss(TASKS[:2], classes=classes)
    expected = 0.0
    for row in range(ROWS):
        z, label = float(outputs[row, 0]), int(binary[row])
        chance = 1 / (1 + np.exp(-z)) if label else 1 / (1 + np.exp(z))
        kinds = np.exp(outputs[row, 1:4].double().numpy())
        own = kinds[multiclass[row]] / kinds.sum()
        factors = [1, 1] if weights is None else [weights[label], (*weights, 1.5)[multiclass[row]]]
        parts = [-((1 - p) ** gamma) * np.log(p) * factor for p, factor in zip((chance, own), factors, strict=True)]
        expected += float(weight[row]) * sum(parts)
    found = loss(outputs[:, :4], [binary, multiclass], weight)
    assert found.item() == pytest.approx(expected / float(weight.sum()), rel=1e-5)


def test_a_focal_loss_of_a_row_that_is_right_has_a_slope():
    output = torch.tensor([[200.0]], requires_grad=True)
    TargetLoss([("binary", 1)], classes=[ClassLoss("focal", 0.5)])(output, [torch.ones(1)]).backward()
    assert output.grad.item() == 0


def test_balanced_weights_are_scikit_learns():
    labels = np.array([0] * 70 + [1] * 20 + [2] * 10)
    expected = sklearn.utils.class_weight.compute_class_weight("balanced", classes=np.arange(3), y=labels)
    asked = TargetLoss([("multiclass", 3), ("regression", 1)], classes=[ClassLoss(class_weights="balanced"), None])
    assert asked.asks_for_counts == (0,)
    with pytest.raises(ModelError, match="yet to be fitted"):
        asked(torch.zeros(1, 4), [torch.zeros(1, dtype=torch.int64), torch.zeros(1)])
    loss = asked.balanced([torch.bincount(torch.from_numpy(labels)), None])
    assert loss.classes[0].class_weights == pytest.approx(tuple(expected))
    assert loss.asks_for_counts == ()
    with pytest.raises(ModelError, match="rows of each class"):
        asked.balanced([torch.tensor([3, 0, 1]), None])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RegressionLoss("tweedie", power=2.0), r"in \(1, 2\), not 2"),
        (lambda: ClassLoss("hinge"), "unknown loss of a binary or multiclass target"),
        (lambda: ClassLoss("focal", gamma=-1), "0 or more"),
        (lambda: ClassLoss(class_weights="even"), "or balanced, not 'even'"),
        (lambda: ClassLoss(class_weights=(1.0, 0.0)), "must be above 0"),
        (lambda: TargetLoss([("binary", 1)], classes=[ClassLoss(class_weights=(1.0, 1.0, 1.0))]), "of 2 classes"),
        (
            lambda: TargetLoss([("regression", 1)], classes=[ClassLoss()]),
            "for classes, and a target is a regression",
        ),
    ],
)
def test_settings_of_losses_that_cannot_be_are_refused(make, message):
    with pytest.raises(ModelError, match=message):
        make()


@pytest.mark.parametrize("kind", ["poisson", "tweedie", "huber", "mse"])
def test_a_row_of_weight_0_far_beyond_all_others_has_no_part_in_loss_and_gradient(kind):
    loss = TargetLoss([("regression", 1)], regression=[RegressionLoss(kind)])
    outputs = torch.tensor([[0.3], [1e4], [-0.7]], requires_grad=True)
    labels, weight = torch.tensor([1.0, 2.0, 0.0]), torch.tensor([2.0, 0.0, 1.0])
    value = loss(outputs, [labels], weight)
    value.backward()
    kept = torch.tensor([[0.3], [-0.7]], requires_grad=True)
    expected = loss(kept, [labels[[0, 2]]], weight[[0, 2]])
    expected.backward()
    assert value.item() == expected.item()
    assert outputs.grad[[0, 2]].tolist() == kept.grad.tolist()
    assert outputs.grad[1].item() == 0.0


@pytest.mark.parametrize("kind", ["poisson", "tweedie"])
def test_peers_teach_a_row_of_weight_0_nothing_however_far_it_is(kind):
    loss = CodistilledLoss(TargetLoss([("regression", 1)], [RegressionLoss(kind)]), [torch.zeros(3, 1)], 1.0)
    outputs = torch.tensor([[0.3], [1e4], [-0.7]], requires_grad=True)
    loss(outputs, [torch.tensor([1.0, 2.0, 0.0])], torch.tensor([2.0, 0.0, 1.0])).backward()
    assert outputs.grad.isfinite().all()
    assert outputs.grad[1].item() == 0.0
