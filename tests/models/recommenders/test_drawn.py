"""Losses of positives against their drawn negatives: against loops over rows, and how they learn."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch import Pipeline, load_bundle
from gigabatch.features.schema import IdColumn, Target, TensorSchema
from gigabatch.features.synthetic.movielens import write_movielens
from gigabatch.loaders.negatives.draws import UniformNegatives
from gigabatch.loaders.negatives.implicit import ImplicitBatches, apart_from
from gigabatch.loaders.tables.entity_rows import EntityRows
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import EntityColumns, ModelInputs
from gigabatch.models.losses import TargetLoss
from gigabatch.models.optimizers.registry import build_optimizer
from gigabatch.models.recommenders.drawn import drawn_bpr, drawn_softmax
from gigabatch.models.shelf import ModelSpec, model_class
from tests.examples import examples
from tests.models.shelf_helpers import BINARY, Rows, check_round_trip, check_rows_alone

INPUTS = ModelInputs((6, 9), 0, 1, user=EntityColumns(0, (0,)), item=EntityColumns(1, (1,)))
MODELS = [("mf", {"dim": 3}), ("ncf", {"gmf_dim": 3, "mlp_dim": 4, "layers": (5,)})]
every_model = pytest.mark.parametrize(("name", "small"), MODELS, ids=["mf", "ncf"])
every_loss = pytest.mark.parametrize("loss", ["bpr", "softmax"])


@dataclass
class Drawn(Rows):
    """Rows with the number of each row's positive."""

    group: torch.Tensor | None = None
    log_q: torch.Tensor | None = None


def build(name, small, **more):
    torch.manual_seed(0)
    return ModelSpec(name, INPUTS, model_class(name).Settings(**(small | more))).build()


def drawn_rows(num_positives=5, num_negatives=3, weight=None):
    draw = torch.Generator().manual_seed(1)
    copies = 1 + num_negatives
    users = torch.randint(6, (num_positives,), generator=draw).repeat_interleave(copies)
    items = torch.stack([torch.randperm(9, generator=draw)[:copies] for _ in range(num_positives)]).flatten()
    group = torch.arange(num_positives).repeat_interleave(copies)
    target = (torch.arange(len(users)) % copies == 0).float()
    weight = None if weight is None else torch.tensor(weight).repeat_interleave(copies)
    return Drawn(torch.stack([users, items], 1).int(), torch.empty(len(users), 0), (target,), weight, group.int())


def slow_loss(loss, scores, target, group, weight):
    """In float64, a positive at a time."""
    total = mass = 0.0
    for row in range(len(scores)):
        if target[row] != 1:
            continue
        others = [j for j in range(len(scores)) if group[j] == group[row] and target[j] == 0]
        if loss == "bpr":
            value = np.mean([np.log1p(np.exp(scores[j] - scores[row])) for j in others])
        else:
            value = np.log(sum(np.exp(scores[j]) for j in [row, *others])) - scores[row]
        total, mass = total + weight[row] * value, mass + weight[row]
    return total / mass


@settings(max_examples=examples(40))
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(0, 1000), st.sampled_from([1.0, 50.0]),
    st.sampled_from(["bpr", "softmax"]),
)  # fmt: skip
def test_losses_equal_loops_over_rows(counts, seed, spread, loss):
    group = np.repeat(np.arange(len(counts)), np.array(counts) + 1)
    target = np.concatenate([[1] + [0] * count for count in counts])
    scores = np.random.default_rng(seed).normal(0, spread, len(group)).astype("float32")
    function = drawn_bpr if loss == "bpr" else drawn_softmax
    found = function(torch.tensor(scores), torch.tensor(target == 1), torch.tensor(group))
    mean = float(found[torch.tensor(target == 1)].double().mean())
    expected = slow_loss(loss, scores.astype("float64"), target, group, np.ones(len(group)))
    assert mean == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("function", [drawn_bpr, drawn_softmax])
def test_gradients_equal_finite_differences(function):
    rows = drawn_rows(3, 2)
    scores = torch.randn(9, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    positive = rows.targets[0] == 1
    mask = positive.double()

    def total(values):
        return (function(values, positive, rows.group).double() * mask).sum()

    (gradient,) = torch.autograd.grad(total(scores), scores)
    for place in range(9):
        step = torch.zeros(9, dtype=torch.float64)
        step[place] = 1e-3
        with torch.no_grad():
            slope = float((total(scores + step) - total(scores - step)) / 2e-3)
        assert float(gradient[place]) == pytest.approx(slope, abs=1e-3)


@every_model
def test_a_softmax_takes_off_what_popular_items_are_drawn_more_often(name, small):
    model, rows = build(name, small, loss="softmax"), drawn_rows()
    shares = np.array([0.3, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05])
    rows.log_q = torch.tensor(np.log(shares)).float()[rows.ids[:, 1].long()]
    outputs = model(rows.ids, rows.floats)
    scores = outputs[:, 0].detach().double().numpy()
    corrected = scores - np.log(shares[rows.ids[:, 1].numpy()])
    ranked = slow_loss("softmax", corrected, rows.targets[0].numpy(), rows.group.numpy(), np.ones(len(scores)))
    calibrated = float(BINARY(outputs.detach(), rows.targets, None))
    assert float(model.training_loss(rows, BINARY).detach()) == pytest.approx(ranked + calibrated, rel=1e-5)
    pairs = build(name, small, loss="bpr")  # compares pairs, and is not to be corrected
    found = pairs.training_loss(rows, BINARY).detach()
    rows.log_q = None
    assert pairs.training_loss(rows, BINARY).detach() == found


@every_model
@every_loss
@pytest.mark.parametrize("weight", [None, [1.0, 0.0, 2.0, 0.5, 1.0]])
def test_a_models_loss_is_the_mean_over_positives_by_weight(name, small, loss, weight):
    model, rows = build(name, small, loss=loss), drawn_rows(weight=weight)
    found = model.training_loss(rows, BINARY)
    outputs = model(rows.ids, rows.floats)
    scores = outputs[:, 0].detach().double().numpy()  # exp(0) s + 0 at the start
    weights = np.ones(len(scores)) if weight is None else rows.weight.numpy()
    ranked = slow_loss(loss, scores, rows.targets[0].numpy(), rows.group.numpy(), weights)
    calibrated = float(BINARY(outputs.detach(), rows.targets, rows.weight))
    assert float(found.detach()) == pytest.approx(ranked + calibrated, rel=1e-5)
    assert model.compares_rows
    assert not build(name, small).compares_rows


@every_model
@every_loss
def test_calibration_moves_scale_and_offset_alone(name, small, loss):
    model, rows = build(name, small, loss=loss), drawn_rows()
    model.training_loss(rows, BINARY).backward()
    ranked = {key: value.grad.clone() for key, value in model.named_parameters()}
    model.zero_grad()
    BINARY(model(rows.ids, rows.floats), rows.targets, None).backward()
    for key, value in model.named_parameters():
        same = torch.allclose(ranked[key], value.grad)
        assert same == (key.rsplit(".")[-1] in ("log_scale",) or key in ("output.bias", "output_scale.bias")), key


@every_model
@every_loss
def test_rows_without_drawn_negatives_are_refused(name, small, loss):
    model, rows = build(name, small, loss=loss), drawn_rows()
    labelled = Rows(rows.ids, rows.floats, rows.targets)
    with pytest.raises(
        ModelError, match=rf"{name}: the loss {loss} compares .* Set train\.negatives, or model\.loss=b"
    ):
        model.training_loss(labelled, BINARY)
    apart = Drawn(rows.ids, rows.floats, rows.targets, None, torch.arange(len(rows)).int())
    with pytest.raises(ModelError, match="rows came without any"):
        model.training_loss(apart, BINARY)
    with pytest.raises(ModelError, match="needs one binary target"):
        model.training_loss(rows, TargetLoss([("regression", 1)]))
    with pytest.raises(ModelError, match=f"unknown loss of {name} 'hinge'. Known: bce, bpr, softmax"):
        build(name, small, loss="hinge")


@every_loss
def test_batches_with_drawn_negatives_are_what_the_losses_take(loss):
    schema = TensorSchema((IdColumn("user", 6), IdColumn("item", 9)), (), (Target("chosen", "binary"),))
    words = torch.randint(3, 6, (40, 3), dtype=torch.int32, generator=torch.Generator().manual_seed(0))
    words[:, 2] = torch.ones(1).view(torch.int32)
    positives = PackedTable(words, schema)
    item_ids = range(3, 9)
    sampler = UniformNegatives(item_ids, 4, apart_from(None, item_ids), seed=0)
    batches = ImplicitBatches(sampler, None, EntityRows.of(positives, 1, (1,)), item_ids)
    batches.begin(0, 0)
    batch = batches(positives.unpack(positives.words))
    value = build("mf", {"dim": 3}, loss=loss).training_loss(batch, BINARY)
    assert torch.isfinite(value)


@every_model
@every_loss
def test_it_learns_what_users_choose(name, small, loss):
    """Users like the items of their own parity."""
    draw, rng = torch.Generator().manual_seed(3), np.random.default_rng(3)
    model = build(name, small, loss=loss)
    optimizer = build_optimizer(model, "adamw", lr=0.05, weight_decay=0.0)
    for _ in range(80):
        users = torch.randint(6, (64,), generator=draw)
        positives = 2 * torch.randint(4, (64,), generator=draw) + users % 2
        negatives = torch.tensor(rng.integers(0, 8, (64, 4)))
        items = torch.cat([positives[:, None], negatives], 1)
        ids = torch.stack([users.repeat_interleave(5), items.flatten()], 1).int()
        target = torch.tensor([1.0, 0, 0, 0, 0]).repeat(64)
        group = torch.arange(64).repeat_interleave(5).int()
        optimizer.zero_grad()
        model.training_loss(Drawn(ids, torch.empty(320, 0), (target,), None, group), BINARY).backward()
        optimizer.step()
    users, items = (grid.flatten() for grid in torch.meshgrid(torch.arange(6), torch.arange(8), indexing="ij"))
    with torch.no_grad():
        outputs = model(torch.stack([users, items], 1).int(), torch.empty(48, 0))[:, 0].reshape(6, 8)
    suits = (users % 2 == items % 2).reshape(6, 8)
    for user in range(6):  # scores of different users are not comparable
        assert outputs[user][suits[user]].min() > outputs[user][~suits[user]].max()


@every_model
@every_loss
def test_it_scores_each_row_alone_and_is_built_again_from_json(name, small, loss):
    check_rows_alone(name, INPUTS, **small, loss=loss)
    check_round_trip(name, INPUTS, **small, loss=loss)


@every_loss
def test_a_run_of_the_shipped_kind_trains_by_it_and_predicts(tmp_path, loss):
    """From files to a bundle that is loaded again, with negatives drawn by the pipeline."""
    write_movielens(tmp_path / "ml", "ml-100k", 40, 110)
    config = {
        "name": "movies", "recipe": "movielens", "device": "cpu", "engine": "pandas", "seed": 3,
        "artifacts": str(tmp_path / "artifacts"), "runs": str(tmp_path / "runs"),
        "features": {"path": str(tmp_path / "ml")}, "model": {"kind": "ncf", "loss": loss},
        "train": {"negatives": {"per_positive": 3}, "epochs": 1, "batch_size": 128, "optimizer": "adamw"},
        "evaluate": {"importance": False, "ranking": {"k": [5], "negatives": 19, "full_catalogue": True}},
    }  # fmt: skip
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    pipeline = Pipeline.from_config(tmp_path / "run.yaml")
    run = pipeline.train()
    assert 0 <= run.summary["ranking"]["catalogue"]["ndcg@5"] <= 1
    predicted = load_bundle(run.path / "model").predict(pipeline.features().frame("test"))
    assert np.isfinite(np.asarray(predicted)).all()
    labelled = Pipeline.from_config(tmp_path / "run.yaml", "train.negatives=null", "evaluate.ranking=null")
    with pytest.raises(ModelError, match=r"ncf: the loss .* Set train\.negatives, or model\.loss=bce"):
        labelled.train()
