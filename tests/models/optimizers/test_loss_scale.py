"""The scale of a float16 loss: how it moves, that it leaves no trace in a step, and which steps it skips."""

import math

import pytest
import torch

from gigabatch.features.schema import IdColumn, Target, TensorSchema
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.losses import TargetLoss
from gigabatch.models.optimizers import loss_scale
from gigabatch.models.optimizers.loss_scale import START, LossScale
from gigabatch.models.optimizers.precision import Precision
from gigabatch.models.optimizers.registry import OPTIMIZERS, build_optimizer
from gigabatch.pipeline.training.train_step import TrainStep
from tests.models.shelf_helpers import build

SCHEMA = TensorSchema((IdColumn("a", 5), IdColumn("b", 9)), ("x",), (Target("label", "binary"),))


def batch_of(seed, rows=40):
    draw = torch.Generator().manual_seed(seed)
    ids = [torch.randint(column.num_ids, (rows,), generator=draw, dtype=torch.int32) for column in SCHEMA.ids]
    floats = torch.randn(rows, generator=draw)
    table = PackedTable.from_columns(SCHEMA, ids, [floats], [(floats > 0).float()])
    return table.unpack(table.words)


def step_of(optimizer, precision, settings=None, **more):
    model = build("deepfm", ModelInputs((5, 9), 1), layers=(8,), dropout=0.0).train()
    built = build_optimizer(model, optimizer, lr=0.05, **(settings or {}))
    return TrainStep(model, TargetLoss([("binary", 1)]), built, Precision(precision, "test"), **more)


def test_the_scale_moves_as_torchs_does(monkeypatch):
    monkeypatch.setattr(loss_scale, "GROWTH_STEPS", 3)
    own = LossScale("cpu")
    scale, steps = torch.full((1,), START), torch.zeros(1, dtype=torch.int32)
    draw = torch.Generator().manual_seed(2)
    seen = set()
    for _ in range(60):
        found = (torch.rand(1, generator=draw) < 0.22).float()
        torch._amp_update_scale_(scale, steps, found, 2.0, 0.5, 3)
        own.update(found[0])
        assert (own.scale.item(), own.steps.item()) == (scale.item(), steps.item())
        seen.add(scale.item())
    assert len(seen) > 4


def test_the_scale_stays_between_one_and_what_float32_holds(monkeypatch):
    monkeypatch.setattr(loss_scale, "GROWTH_STEPS", 1)
    scale = LossScale("cpu")
    for found, bound in ((0.0, 2.0**127), (1.0, 1.0)):
        for _ in range(300):
            scale.update(torch.tensor(found))
        assert scale.scale.item() == pytest.approx(bound)


@pytest.mark.parametrize("settings", [{}, {"max_grad_norm": 0.01}, {"accumulate_steps": 2}], ids=str)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_power_of_two_leaves_no_trace_in_a_step(optimizer, settings):
    """In float32, where nothing is rounded by it: weights, moments and losses are bit-equal to those without."""
    plain, scaled = (step_of(optimizer, torch.float32, **settings) for _ in range(2))
    scaled.loss_scale = LossScale("cpu")
    for seed in range(4):
        assert plain(batch_of(seed), 0.05, 0.9).item() == scaled(batch_of(seed), 0.05, 0.9).item()
    for name, value in plain.model.state_dict().items():
        assert torch.equal(value, scaled.model.state_dict()[name]), name
    states = [[v for state in step.optimizer.state.values() for v in state.values()] for step in (plain, scaled)]
    assert all(torch.equal(*pair) for pair in zip(*states, strict=True))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_gradients_that_float16_takes_for_zero_move_the_weights(optimizer):
    """A loss of 2^-20 has gradients far below 6e-8; scaled by 2^16 they are there."""
    moved = []
    for scale in (START, 1.0):
        step = step_of(optimizer, torch.float16)
        before = step.model.training_loss
        step.model.training_loss = lambda batch, loss, before=before: before(batch, loss) * 2.0**-20
        step.loss_scale.scale.fill_(scale)
        step(batch_of(0), 0.05, 0.9)
        gradients = [p.grad for p in step.model.parameters() if p.grad is not None and p.dim() == 2]
        moved.append(sum(int((gradient != 0).sum()) for gradient in gradients))
    assert moved[0] > 2 * moved[1]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_that_overflows_halves_the_scale_and_changes_nothing_else(optimizer):
    step = step_of(optimizer, torch.float16)
    step.loss_scale.scale.fill_(2.0**8)
    step(batch_of(0), 0.05, 0.9)
    step.loss_scale.scale.fill_(2.0**60)
    before = {name: value.clone() for name, value in step.model.state_dict().items()}
    assert step(batch_of(1), 0.05, 0.9).item() == math.inf
    assert step.loss_scale.scale.item() == 2.0**59
    for name, value in step.model.state_dict().items():
        assert name.endswith("num_batches_tracked") or torch.equal(value, before[name]), name
    step.loss_scale.scale.fill_(2.0**8)
    assert math.isfinite(step(batch_of(2), 0.05, 0.9).item())


@pytest.mark.parametrize(("factor", "scale"), [(math.inf, START), (math.nan, START), (1e38, 1.0)])
def test_a_loss_or_gradient_that_is_not_finite_by_itself_is_no_overflow(factor, scale):
    step = step_of("lamb", torch.float16)
    before = step.model.training_loss
    step.model.training_loss = lambda batch, loss: before(batch, loss) * factor
    step.loss_scale.scale.fill_(scale)
    assert math.isnan(step(batch_of(1), 0.05, 0.9).item())


def test_the_state_comes_back():
    one, other = LossScale("cpu"), LossScale("cpu")
    for found in (1.0, 1.0, 0.0):
        one.update(torch.tensor(found))
    other.load_state_dict(one.state_dict())
    assert (other.scale.item(), other.steps.item()) == (START / 4, 1)


def test_only_float16_is_scaled():
    scales = [step_of("lamb", dtype).loss_scale for dtype in (torch.float32, torch.bfloat16, torch.float16)]
    assert [scale is not None for scale in scales] == [False, False, True]
