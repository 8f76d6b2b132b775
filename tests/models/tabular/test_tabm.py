"""TabM beside the authors' package, and what the mean of its members' predictions is."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.members import mean_of_members
from gigabatch.models.losses import TargetLoss
from gigabatch.models.model import TargetScale
from gigabatch.models.optimizers.param_groups import split_parameters
from gigabatch.models.shelf import ModelSpec, spec_of
from gigabatch.models.tabular import tabm
from tests.models.shelf_helpers import INPUTS, Rows, auc, build, planted_rows, random_rows, spec, stir, train

RECORDED = np.load(Path(__file__).parent.parent / "data" / "tabm.npz")
SMALL = {"members": 4, "layers": (6, 5), "dropout": 0.0}
SEVERAL = (("binary", 1), ("multiclass", 3), ("regression", 1))


def names_there(form: str) -> dict[str, str]:
    """The package's name of each parameter of ours."""
    blocks = {f"layers.{place}.{name}": f"backbone.blocks.{place}.0.{name}"
              for place in range(2) for name in ("weight", "bias")}  # fmt: skip
    own = {"columns.weight": "backbone.affine.weight"}
    if form == "full":
        own = {
            "columns.weight": "backbone.blocks.0.0.r",
            "layers.0.scale_out.weight": "backbone.blocks.0.0.s",
            "layers.1.scale_in.weight": "backbone.blocks.1.0.r",
            "layers.1.scale_out.weight": "backbone.blocks.1.0.s",
        }
    return blocks | own | {"output.weight": "output.weight", "output.bias": "output.bias"}


def as_ours(name: str, array: np.ndarray) -> torch.Tensor:
    """The package has floats first, and then ids."""
    if name in ("columns.weight", "layers.0.weight"):
        array = np.concatenate([array[:, 2:], array[:, :2]], axis=1)
    return torch.tensor(array)


@pytest.mark.parametrize("form", ["full", "mini"])
def test_outputs_and_gradients_of_members_are_those_of_the_authors_package(form):
    """It one-hot encodes ids: tables of as many columns as rows, with ones on the diagonal."""
    there = {"full": "tabm", "mini": "tabm-mini"}[form]
    inputs = ModelInputs((3, 4), 2, 3, targets=(("multiclass", 3),))
    settings = {"members": 5, "layers": (7, 7), "dropout": 0.0, "embedding_widths": (3, 4)}
    model = build("tabm", inputs, form=form, **settings)
    of = names_there(form)
    weights = {name: as_ours(name, RECORDED[f"{there} weight {peer}"]) for name, peer in of.items()}
    weights |= {f"tables.tables.{column}": torch.eye(size) for column, size in enumerate((3, 4))}
    model.load_state_dict(weights)
    ids, floats, labels = (torch.tensor(RECORDED[f"{there} {name}"]) for name in ("ids", "floats", "labels"))
    expected = torch.tensor(RECORDED[f"{there} outputs"])
    torch.testing.assert_close(model.member_outputs(ids, floats), expected)
    loss = model.training_loss(Rows(ids, floats, (labels,)), TargetLoss([("multiclass", 3)]))
    loss.backward()
    torch.testing.assert_close(loss.detach(), torch.tensor(RECORDED[f"{there} loss"]))
    found = dict(model.named_parameters())
    for name, peer in of.items():
        torch.testing.assert_close(found[name].grad, as_ours(name, RECORDED[f"{there} gradient {peer}"]), msg=name)
    predicted = torch.softmax(model.eval()(ids, floats), dim=1)
    torch.testing.assert_close(predicted, torch.softmax(expected, dim=2).mean(dim=1))


def test_the_prediction_is_the_mean_of_the_members_predictions_whatever_the_task():
    outputs = 4 * torch.randn(9, 6, 5, generator=torch.Generator().manual_seed(0))
    label, classes, value = TargetLoss(SEVERAL).predict(mean_of_members(outputs, SEVERAL))
    members = outputs.double()
    torch.testing.assert_close(label.double(), torch.sigmoid(members[:, :, 0]).mean(1), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(classes.double(), torch.softmax(members[:, :, 1:4], 2).mean(1), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(value, members[:, :, 4].mean(1), rtol=1e-5, atol=1e-6)


def test_of_outputs_that_are_logarithms_the_mean_is_of_the_values():
    outputs = torch.tensor([[[0.0, 1.0], [2.0, 3.0]]])
    found = mean_of_members(outputs, (("regression", 1), ("regression", 1)), logs=(1,))
    torch.testing.assert_close(found, torch.tensor([[1.0, np.log((np.exp(1.0) + np.exp(3.0)) / 2)]]).float())


@pytest.mark.parametrize(
    ("logits", "expected"),
    [((200.0, 200.0), 200.0), ((-150.0, -150.0), -150.0), ((300.0, -300.0), 0.0), ((-100.0, -102.0), -100.5662)],
)
def test_the_mean_of_probabilities_that_float32_rounds_to_0_or_1_has_a_logit(logits, expected):
    """-100.5662 is -100 + ln((1 + e^-2) / 2), by the tail of the sigmoid, e^x."""
    found = mean_of_members(torch.tensor(logits).view(1, 2, 1), [("binary", 1)])
    assert found.item() == pytest.approx(expected, abs=1e-3)
    at_the_end = mean_of_members(torch.tensor([[[500.0, 0.0], [500.0, 0.0]]]), [("multiclass", 2)])
    assert at_the_end.tolist() == [[pytest.approx(0, abs=1e-5), pytest.approx(-500)]]


def test_members_learn_each_by_its_own_loss():
    inputs = ModelInputs(INPUTS.num_ids, INPUTS.num_floats, 5, targets=SEVERAL)
    model, rows = build("tabm", inputs, **SMALL), random_rows(inputs, 20)
    stir(model)
    loss = TargetLoss(SEVERAL)
    draw = torch.Generator().manual_seed(3)
    targets = rows.targets[0], torch.randint(3, (20,), generator=draw), torch.randn(20, generator=draw)
    weight = torch.rand(20, generator=draw)
    batch = Rows(rows.ids, rows.floats, targets, weight)
    outputs = model.member_outputs(rows.ids, rows.floats).detach()
    share = weight / weight.sum()
    expected = 0.0
    for member in range(4):
        logits, classes, values = outputs[:, member, 0], outputs[:, member, 1:4], outputs[:, member, 4]
        of_rows = functional.binary_cross_entropy_with_logits(logits, targets[0], reduction="none")
        of_rows = of_rows - torch.log_softmax(classes, 1)[torch.arange(20), targets[1]] + (values - targets[2]) ** 2
        expected += float((share * of_rows).sum()) / 4
    assert model.training_loss(batch, loss).item() == pytest.approx(expected, rel=1e-5)
    assert loss(model(rows.ids, rows.floats), targets, weight).item() < expected  # the mean is better than its members


def test_a_loss_of_other_targets_than_it_was_built_for_is_refused():
    inputs, rows = ModelInputs((5,), 1, 2), random_rows(ModelInputs((5,), 1))
    model = build("tabm", inputs, **SMALL)
    with pytest.raises(ModelError, match=r"the loss has the targets .*multiclass.* built for .*binary.*binary"):
        model.training_loss(rows, TargetLoss([("multiclass", 2)]))
    with pytest.raises(ModelError, match="have 3 outputs, and num_outputs is 2"):
        ModelInputs((5,), 1, 2, targets=(("multiclass", 3),))


@pytest.mark.parametrize("name", ["tabm", "realmlp"])
def test_told_targets_come_back_from_json_and_losses_in_bfloat16_are_near_those_in_float32(name):
    inputs = ModelInputs(INPUTS.num_ids, INPUTS.num_floats, 5, targets=SEVERAL, float_edges=((0.0, 1.0), ()))
    described = spec(name, inputs, layers=(6, 5), dropout=0.0, numeric="bins")
    again = ModelSpec.from_dict(json.loads(json.dumps(described.to_dict())))
    assert again == described
    assert ModelInputs.from_dict({"num_ids": [3], "num_floats": 0}).targets == ()
    model, rows = described.build(), random_rows(inputs, 200)
    stir(model)
    targets = rows.targets[0], torch.arange(200) % 3, rows.floats[:, 0]
    batch, losses = Rows(rows.ids, rows.floats, targets), []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            losses.append(model.training_loss(batch, TargetLoss(SEVERAL)))
        losses[-1].backward()
    assert losses[1].dtype == torch.float32
    assert losses[0].item() != losses[1].item() == pytest.approx(losses[0].item(), rel=0.02)


def test_without_told_targets_those_with_a_scale_are_regressions():
    model = build("tabm", ModelInputs((5,), 1, 2), **SMALL)
    model.scale_targets([TargetScale(1, 1, 3.0, 2.0)])
    assert model.targets == (("binary", 1), ("regression", 1))
    again = spec_of(model).build()
    again.load_state_dict(model.state_dict())
    assert again.targets == model.targets


@torch.no_grad()
def test_rows_in_parts_have_the_outputs_of_all_at_once(monkeypatch):
    model, rows = build("tabm", **SMALL), random_rows(INPUTS, 50)
    stir(model)
    whole = model.eval()(rows.ids, rows.floats)
    seen = []
    run = model._members
    monkeypatch.setattr(model, "_members", lambda part: seen.append(len(part)) or run(part))
    monkeypatch.setattr(tabm, "NUMBERS_AT_A_TIME", 4 * 14 * 8)  # the columns side by side are the widest: 4 + 5 + 3 + 2
    torch.testing.assert_close(model(rows.ids, rows.floats), whole)
    assert seen == [8] * 6 + [2]
    assert model(rows.ids[:0], rows.floats[:0]).shape == (0, 1)


def test_members_start_apart_by_one_sign_a_column():
    model = build("tabm", ModelInputs((50, 6), 1), members=64)
    widths = model.settings.widths((50, 6))
    for part in model.columns.weight.split([*widths, 1], dim=1):
        assert (part == part[:, :1]).all()
        assert part.unique().tolist() == [-1, 1]
    assert all((layer.scale_out.weight == 1).all() for layer in model.layers)
    assert all((layer.bias == layer.bias[0]).all() for layer in model.layers)


def test_scales_of_members_do_not_decay():
    model = build("tabm", **SMALL)
    split = split_parameters(model)
    scales = {id(p) for name, p in model.named_parameters() if "scale" in name or "columns" in name or "bias" in name}
    assert {id(parameter) for parameter in split.undecayed} == scales
    assert len(split.decayed) == 3


def test_it_finds_an_interaction_of_three_columns():
    """Lines see nothing there; the best is .90."""
    inputs, rows = planted_rows({(0, 1, 2): 2.0}, 4000, seed=1)
    _, others = planted_rows({(0, 1, 2): 2.0}, 2000, seed=2)
    model = build("tabm", inputs, members=8, layers=(32, 32), dropout=0.0)
    train(model, rows, steps=150, lr=0.01)
    assert auc(model, others) > 0.85
