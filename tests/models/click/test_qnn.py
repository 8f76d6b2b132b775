"""QNN-alpha against its equations row by row, its self-ensemble against a loop, and what it refuses."""

import numpy as np
import pytest
import torch

from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.losses import ClassLoss, RegressionLoss, TargetLoss
from tests.models.shelf_helpers import ALL_INPUTS, Rows, build, by_hand, normed_by_hand, random_rows, stirred

SMALL = {"embedding_dim": 4, "num_layers": 2, "num_rows": 3}


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("num_heads", [1, 2])
@ALL_INPUTS
def test_outputs_equal_the_equations_row_by_row(inputs, num_heads, batch_norm):
    inputs = ModelInputs(inputs.num_ids, inputs.num_floats, 2)
    model = stirred("qnn", inputs, **SMALL, num_heads=num_heads, batch_norm=batch_norm)
    rows = random_rows(inputs, 10)
    got = by_hand(model(rows.ids, rows.floats))
    floats = normed_by_hand(model.fields.float_norm, by_hand(rows.floats))
    num_fields, part = len(inputs.num_ids) + inputs.num_floats, 4 // num_heads
    for b in range(len(rows)):
        vectors = [by_hand(table)[rows.ids[b, column]] for column, table in enumerate(model.fields.tables.tables)]
        if inputs.num_floats:
            vectors += list(floats[b][:, None] * by_hand(model.fields.float_vectors))
        x = np.concatenate(vectors)
        for layer in model.layers:
            mapped = by_hand(layer.map.weight) @ x
            if batch_norm:
                mapped = normed_by_hand(layer.norm, mapped) * by_hand(layer.norm.weight) + by_hand(layer.norm.bias)
            else:
                mapped = mapped + by_hand(layer.map.bias)
            wanted = []
            for head in range(num_heads):
                for field in range(num_fields):
                    for number in range(part):
                        place = len(wanted)
                        taken = x[field * 4 + head * part + number]
                        rows_of = [max(0.0, mapped[r * len(x) + place]) for r in range(3)]
                        wanted.append(taken * sum(rows_of) + x[place])
            x = np.array(wanted)
        outputs = by_hand(model.output.weight) @ x + by_hand(model.output.bias)
        np.testing.assert_allclose(got[b], outputs, rtol=1e-3, atol=1e-3)


def log_loss(p, q, weight):
    return -(weight * (q * np.log(p) + (1 - q) * np.log(1 - p))).sum() / weight.sum()


@pytest.mark.parametrize(
    ("task", "weighted", "smoothing"),
    [("binary", False, 0.0), ("binary", True, 0.0), ("regression", False, 0.0), ("regression", True, 0.0),
     ("binary", True, 0.2)],
)  # fmt: skip
def test_self_ensemble_and_its_gradient_equal_the_formula(task, weighted, smoothing):
    """Labels are smoothed, and predictions that teach are not."""
    draw = np.random.default_rng(0)
    weight = draw.random(9) if weighted else np.ones(9)
    labels = (draw.random(9) < 0.5).astype(float) if task == "binary" else draw.normal(size=9)
    passes = [draw.normal(size=9), 2 * draw.normal(size=9)]
    leaves = [torch.tensor(outputs[:, None], requires_grad=True) for outputs in passes]
    given, model = iter(leaves), build("qnn", **SMALL)
    model._of_vectors = lambda x: next(given)
    batch = Rows(
        torch.zeros(9, 3).int(), torch.zeros(9, 2), (torch.tensor(labels),), torch.tensor(weight) if weighted else None
    )
    found = model.training_loss(batch, TargetLoss([(task, 1)], label_smoothing=smoothing))
    found.backward()
    labels = labels * (1 - smoothing) + smoothing / 2 if smoothing else labels

    def by_formula(one, other, fixed):
        if task == "regression":
            apart = [(one + other) / 2 - labels, one - fixed, other - fixed]
            return sum((weight * error**2).sum() / weight.sum() for error in apart)
        p, q = (1 / (1 + np.exp(-outputs)) for outputs in (one, other))
        return log_loss((p + q) / 2, labels, weight) + log_loss(p, fixed, weight) + log_loss(q, fixed, weight)

    one, other = passes
    sigmoid = [1 / (1 + np.exp(-outputs)) for outputs in passes] if task == "binary" else passes
    fixed = (sigmoid[0] + sigmoid[1]) / 2
    assert found.item() == pytest.approx(by_formula(one, other, fixed), rel=1e-5)
    for outputs, leaf in zip(passes, leaves, strict=True):
        for row in range(9):
            kept, sides = outputs[row], []
            for step in (1e-5, -1e-5):
                outputs[row] = kept + step
                sides.append(by_formula(one, other, fixed))
            outputs[row] = kept
            assert leaf.grad[row, 0].item() == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=1e-3, abs=1e-5)


def test_sure_passes_have_a_finite_loss():
    """Probabilities that round to 1: the logit of their mean is taken without them."""
    model, rows = build("qnn", **SMALL), random_rows(build("qnn").inputs, 4)
    outputs = iter([torch.full((4, 1), 200.0, requires_grad=True), torch.full((4, 1), 180.0, requires_grad=True)])
    model._of_vectors = lambda x: next(outputs)
    loss = model.training_loss(Rows(rows.ids, rows.floats, (torch.zeros(4),)), TargetLoss([("binary", 1)]))
    loss.backward()
    assert loss.item() == pytest.approx(180 + np.log(2), abs=1)


def test_without_dropout_there_is_one_pass():
    rows, loss = random_rows(build("qnn").inputs), TargetLoss([("binary", 1)])
    for settings, passes in (({}, 2), ({"dropout": 0.0}, 1), ({"self_ensemble": False}, 1)):
        model, calls = build("qnn", **SMALL | settings).train(), []
        model.layers.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        model.training_loss(rows, loss)
        assert len(calls) == passes


def test_a_target_whose_predictions_are_no_number_is_refused():
    inputs = ModelInputs((5, 6), 0, 3)
    with pytest.raises(ModelError, match=r"self_ensemble .* multiclass .*model\.self_ensemble=false"):
        build("qnn", inputs).require_targets(["multiclass"])
    plain = build("qnn", inputs, self_ensemble=False)
    plain.require_targets(["multiclass"])
    assert plain.training_loss(
        Rows(random_rows(inputs).ids, torch.zeros(64, 0), (torch.arange(64) % 3,)), TargetLoss([("multiclass", 3)])
    ).isfinite()


@pytest.mark.parametrize(
    "loss",
    [
        TargetLoss([("regression", 1)], [RegressionLoss("poisson")]),
        TargetLoss([("regression", 2)], [RegressionLoss("quantile", taus=(0.1, 0.9))]),
        TargetLoss([("binary", 1)], classes=[ClassLoss(class_weights=(1.0, 3.0))]),
        TargetLoss([("binary", 1)], classes=[ClassLoss("focal")]),
    ],
)
def test_losses_that_do_not_take_a_mean_prediction_for_a_label_are_refused(loss):
    inputs = ModelInputs((5,), 1, loss.num_outputs)
    rows = random_rows(inputs, 4)
    model = build("qnn", inputs, **SMALL)
    with pytest.raises(ModelError, match=r"self_ensemble .*model\.self_ensemble=false"):
        model.training_loss(Rows(rows.ids, rows.floats, [torch.zeros(4)]), loss)
