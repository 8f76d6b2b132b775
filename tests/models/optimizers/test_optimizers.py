"""Optimizers by name: which parameters they decay, and the settings that a schedule moves."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import AdamW, lr_scheduler

from gigabatch.models.click.lr import LogisticRegression
from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.losses import TargetLoss
from gigabatch.models.optimizers.lamb import Lamb, lamb_param_groups
from gigabatch.models.optimizers.param_groups import split_parameters
from gigabatch.models.optimizers.registry import build_optimizer, set_lr_and_momentum
from gigabatch.models.optimizers.row_optimizer import Optimizers, RowOptimizer
from gigabatch.models.optimizers.schedule import OneCycle
from gigabatch.models.shelf import ModelSpec, model_class
from gigabatch.models.tabular.tabular import TabularModel, TabularSettings


@pytest.fixture
def model():
    torch.manual_seed(0)
    return TabularModel(ModelInputs((5, 4), 2), TabularSettings(layers=(6,)))


def names_of(model, parameters):
    names = {parameter: name for name, parameter in model.named_parameters()}
    return [names[parameter] for parameter in parameters]


def test_parameters_split_into_tables_weights_and_the_rest(model):
    split = split_parameters(model)
    assert names_of(model, split.embeddings) == ["embeddings.tables.0", "embeddings.tables.1"]
    assert names_of(model, split.decayed) == ["layers.0.0.weight", "layers.1.0.weight"]
    assert names_of(model, split.undecayed) == [
        "float_norm.weight",
        "float_norm.bias",
        "layers.0.2.weight",
        "layers.0.2.bias",
        "layers.1.0.bias",
    ]


def test_norms_of_many_dimensions_embeddings_of_torch_and_frozen_parameters_are_recognised():
    model = nn.ModuleDict({"norm": nn.LayerNorm((2, 3)), "table": nn.Embedding(4, 2), "linear": nn.Linear(2, 2)})
    model["linear"].weight.requires_grad_(False)
    split = split_parameters(model)
    assert names_of(model, split.embeddings) == ["table.weight"]
    assert split.decayed == []
    assert names_of(model, split.undecayed) == ["norm.weight", "norm.bias", "linear.bias"]


def test_a_table_shared_with_a_linear_layer_is_listed_once_as_a_table():
    model = nn.ModuleDict({"linear": nn.Linear(2, 4, bias=False), "table": nn.Embedding(4, 2)})
    model["linear"].weight = model["table"].weight
    split = split_parameters(model)
    assert len(split.embeddings) == 1
    assert split.decayed == []


def test_lamb_groups_hold_every_parameter_and_decay_weights_and_tables_only(model):
    groups = {group["name"]: group for group in lamb_param_groups(model, 0.3)}
    assert {name: g["weight_decay"] for name, g in groups.items()} == {
        "embeddings": 0.3,
        "decayed": 0.3,
        "undecayed": 0.0,
    }
    assert sum(len(group["params"]) for group in groups.values()) == len(list(model.parameters()))


def test_lamb_without_rowwise_treats_tables_as_dense_weights(model):
    optimizer = build_optimizer(model, "lamb", lr=0.1, rowwise=False)
    assert isinstance(optimizer, Lamb)
    assert names_of(model, optimizer.param_groups[0]["params"]) == ["embeddings.tables.0", "embeddings.tables.1"]
    assert model.embeddings.gradients == "dense"


ROWWISE = {
    "lamb": {},
    "adamw": {"rowwise": True},
    "cowclip": {},
}


@pytest.mark.parametrize("name", ROWWISE)
def test_tables_go_to_a_row_optimizer_and_the_rest_to_a_dense_one(model, name):
    rows, dense = build_optimizer(model, name, lr=0.1, **ROWWISE[name]).optimizers
    split = split_parameters(model)
    assert isinstance(rows, RowOptimizer)
    assert isinstance(dense, AdamW if name in ("adamw", "cowclip") else Lamb)
    assert rows.param_groups[0]["params"] == split.embeddings
    assert [group["params"] for group in dense.param_groups] == [split.decayed, split.undecayed]
    assert model.embeddings.gradients == "rows"


@pytest.mark.parametrize("name", ROWWISE)
def test_a_model_without_tables_has_a_dense_optimizer_alone(name):
    found = build_optimizer(nn.Linear(2, 2), name, lr=0.1, **ROWWISE[name])
    assert type(found) is (AdamW if name in ("adamw", "cowclip") else Lamb)


@pytest.mark.parametrize("name", ROWWISE)
@pytest.mark.parametrize("table", [nn.Embedding(4, 2), nn.EmbeddingBag(4, 2)])
def test_tables_of_torch_cannot_be_moved_by_rows(name, table):
    model = nn.ModuleDict({"table": table, "linear": nn.Linear(2, 2)})
    with pytest.raises(ModelError, match=r"table\.weight: rows of nn\.Embedding.*EmbeddingTables.*rowwise=False"):
        build_optimizer(model, name, lr=0.1, **ROWWISE[name])
    split = split_parameters(model)
    for dense in ("lamb", "adamw"):
        groups = build_optimizer(model, dense, lr=0.1, rowwise=False).param_groups
        assert {p for group in groups for p in group["params"]} == {*split.embeddings, *split.decayed, *split.undecayed}


def test_a_frozen_table_is_not_moved_by_rows(model):
    model.embeddings.tables[1].requires_grad_(False)
    with pytest.raises(ModelError, match=r"embeddings\.tables\.1: a frozen table.*rowwise=False"):
        build_optimizer(model, "lamb", lr=0.1)
    groups = build_optimizer(model, "lamb", lr=0.1, rowwise=False).param_groups
    assert names_of(model, groups[0]["params"]) == ["embeddings.tables.0"]


@pytest.mark.parametrize("method", ["adagrad", "lamb"])
@pytest.mark.parametrize("given", [None, 0.0, 0.2])
def test_the_decay_of_rows_is_a_setting_of_its_own(model, method, given):
    """`weight_decay` never reached rows of Adagrad, and still does not unless it is asked for."""
    rows, dense = build_optimizer(
        model, "lamb", lr=0.1, weight_decay=0.3, rowwise_method=method, table_weight_decay=given
    ).optimizers
    own = {"adagrad": 0.0, "lamb": 0.3}[method]
    assert rows.param_groups[0]["weight_decay"] == (own if given is None else given)
    assert dense.param_groups[0]["weight_decay"] == 0.3


def test_rows_that_decay_shrink_and_those_of_no_batch_stay(model):
    model.embeddings.gradients = "dense"
    before = model.embeddings.tables[0].detach().clone()
    optimizer = build_optimizer(model, "lamb", lr=0.1, table_weight_decay=0.5)
    model.embeddings(torch.tensor([[1, 0], [3, 0]])).mul(0).sum().backward()  # a gradient of zero
    optimizer.step()
    kept = torch.tensor([1, 1 - 0.1 * 0.5, 1, 1 - 0.1 * 0.5, 1])  # w - lr weight_decay w
    torch.testing.assert_close(model.embeddings.tables[0].detach(), before * kept[:, None])


def test_the_decay_of_whole_tables_is_that_of_all_weights(model):
    with pytest.raises(ModelError, match=r"rowwise=False.*leave table_lr and table_weight_decay out"):
        build_optimizer(model, "lamb", lr=0.1, rowwise=False, table_weight_decay=0.1)


def test_settings_reach_lamb(model):
    settings = {"lr": 0.2, "weight_decay": 0.3, "betas": (0.8, 0.9), "eps": 1e-4, "trust_clip": None}
    rows, dense = build_optimizer(
        model,
        "lamb",
        max_grad_norm=7.0,
        always_adapt=True,
        trust_floor=0.2,
        rowwise_method="lamb",
        rowwise_second_moment="full",
        rowwise_step="row",
        **settings,
    ).optimizers
    assert dense.max_grad_norm == 7.0
    settings["trust_floor"] = 0.2
    for optimizer in (rows, dense):
        assert {key: optimizer.param_groups[0][key] for key in settings} == settings
    found = {key: rows.param_groups[0][key] for key in ("method", "second_moment", "step", "lr_scale")}
    assert found == {"method": "lamb", "second_moment": "full", "step": "row", "lr_scale": 1.0}


def test_settings_reach_lamb_and_adagrad_of_rows(model):
    settings = {"weight_decay": 0.3, "betas": (0.8, 0.9), "eps": 1e-4, "trust_clip": None}
    rows, dense = build_optimizer(
        model, "lamb", lr=0.2, table_lr=0.05, adagrad_eps=1e-5, max_grad_norm=7.0, **settings
    ).optimizers
    assert dense.max_grad_norm == 7.0
    assert {key: dense.param_groups[0][key] for key in settings} == settings
    wanted = {"method": "adagrad", "eps": 1e-5, "second_moment": "scalar", "weight_decay": 0.0, "lr_scale": 0.25}
    assert {key: rows.param_groups[0][key] for key in wanted} == wanted


def test_settings_reach_cowclip(model):
    settings = {"l2": 0.1, "clip_ratio": 0.5, "clip_floor": 0.2, "betas": (0.8, 0.9), "eps": 1e-4}
    rows, dense = build_optimizer(model, "cowclip", lr=0.2, table_lr=0.1, **settings).optimizers
    assert {key: rows.param_groups[0][key] for key in settings} == settings
    wanted = {"method": "adam", "second_moment": "full", "weight_decay": 0.0, "lr_scale": 0.5}
    assert {key: rows.param_groups[0][key] for key in wanted} == wanted
    assert [group["weight_decay"] for group in dense.param_groups] == [0.0, 0.0]
    assert (dense.param_groups[0]["betas"], dense.param_groups[0]["eps"]) == ((0.8, 0.9), 1e-4)


def test_tables_learn_at_their_own_rate(model):
    optimizer = build_optimizer(model, "lamb", lr=0.2, table_lr=0.05)
    set_lr_and_momentum(optimizer, 0.4, 0.9)
    rows = optimizer.optimizers[0]
    assert (rows._rule().lr, rows.param_groups[0]["lr"]) == (pytest.approx(0.1), 0.4)


@pytest.mark.parametrize("lr", [0.2, torch.tensor(0.2)])
def test_the_tables_rate_is_in_effect_whoever_sets_the_rate(lr):
    """M7. The first step of Adagrad is lr sign(g) of one gradient: a quarter of it under a quarter of the rate."""
    tables = EmbeddingTables([3], [4])
    start = tables.weights[0].detach().clone()
    optimizer = build_optimizer(
        nn.ModuleList([tables, nn.Linear(1, 1)]), "lamb", lr=lr, table_lr=0.05, initial_visits=0
    )
    for rate in (None, 0.4):  # as built, and as any schedule of torch's sets it
        if rate is not None:
            for group in optimizer.param_groups:
                group["lr"] = torch.tensor(rate) if isinstance(lr, torch.Tensor) else rate
        tables(torch.tensor([[1 if rate is None else 2]])).sum().backward()
        optimizer.step()
    moved = (start - tables.weights[0].detach()).mean(1).tolist()
    assert moved == pytest.approx([0, 0.05, 0.1], abs=1e-6)


def test_adamw_decays_weights_and_tables_but_not_biases_and_norms(model):
    """With zero gradients the whole update is the decay: w (1 - lr weight_decay)."""
    optimizer = build_optimizer(model, "adamw", lr=0.1, weight_decay=0.5)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        decays = name.startswith("embeddings") or name in ("layers.0.0.weight", "layers.1.0.weight")
        torch.testing.assert_close(parameter.detach(), before[name] * (0.95 if decays else 1.0))


def test_settings_reach_adamw(model):
    settings = {"lr": 0.2, "betas": (0.8, 0.9), "eps": 1e-4}
    group = build_optimizer(model, "adamw", **settings).param_groups[0]
    assert {key: group[key] for key in settings} == settings


def test_lamb_moves_the_rows_of_tables_by_adagrad(model):
    """What benchmarks/batch_scaling measured as the best: M15."""
    rows, dense = build_optimizer(model, "lamb", lr=0.2).optimizers
    assert (rows.param_groups[0]["method"], type(dense)) == ("adagrad", Lamb)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rowwise_method": "adam"}, "unknown rowwise_method of lamb 'adam'. Known: adagrad, lamb"),
        ({"rowwise": False, "table_lr": 0.1}, "leave table_lr and table_weight_decay out"),
        ({"lr": 0.0, "table_lr": 0.1}, "table_lr 0.1 is a multiple of lr"),
    ],
)
def test_settings_of_lamb_that_contradict_each_other_are_refused(model, settings, message):
    with pytest.raises(ModelError, match=message):
        build_optimizer(model, "lamb", **{"lr": 0.1} | settings)


@pytest.mark.parametrize("name", ["lamb", "adamw"])
def test_lr_and_momentum_of_a_step_are_those_set_before_it(name):
    """After steps with gradients 1 and 0, the mean is b1' (1 - b1), whatever the optimizer does with it."""
    layer = nn.Linear(1, 1, bias=False)
    always = {"trust_floor": 1e9, "trust_clip": 1.0} if name == "lamb" else {}  # a ratio of 1
    optimizer = build_optimizer(layer, name, lr=0.5, weight_decay=0.0, **always)
    for gradient, lr, momentum in ((1.0, 0.1, 0.75), (0.0, 0.0, 0.5)):
        before = layer.weight.item()
        set_lr_and_momentum(optimizer, lr, momentum)
        layer.weight.grad = torch.full((1, 1), gradient)
        optimizer.step()
        assert layer.weight.item() == pytest.approx(before - lr, abs=1e-6)  # Adam's first step is lr long
    assert optimizer.state[layer.weight]["exp_avg"].item() == pytest.approx(0.5 * 0.25)


def test_settings_held_in_tensors_are_filled_in_place(model):
    lr, beta1 = torch.tensor(0.1), torch.tensor(0.9)
    optimizer = build_optimizer(model, "lamb", lr=lr, betas=(beta1, 0.999))
    set_lr_and_momentum(optimizer, 0.25, 0.5)
    assert (lr.item(), beta1.item()) == (0.25, 0.5)
    assert all(group["lr"] is lr and group["betas"][0] is beta1 for group in optimizer.param_groups)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("adam", {"lr": 0.1}, "unknown optimizer 'adam'. Known: lamb, adamw, cowclip"),
        ("adamw", {"lr": 0.1, "trust_clip": 1.0}, "setting of adamw 'trust_clip'. Known: lr, weight_decay, betas, eps"),
        ("lamb", {"lr": 0.1, "decay": 1.0}, "setting of lamb 'decay'. Known: lr, table_lr, weight_decay"),
        ("cowclip", {"lr": 0.1, "weight_decay": 1.0}, "setting of cowclip 'weight_decay'. Known: lr, table_lr, l2"),
        ("lamb", {}, "lamb: the setting lr"),
    ],
)
def test_unknown_names_list_the_known_ones(model, name, settings, message):
    with pytest.raises(ModelError, match=message):
        build_optimizer(model, name, **settings)


LINEAR = {
    "lamb": {},
    "row-lamb": {"rowwise_method": "lamb"},
    "dense-lamb": {"rowwise": False},
    "lamb-no-decay": {"weight_decay": 0.0},
    "row-lamb-adapt": {"rowwise_method": "lamb", "always_adapt": True},
}


def linear_rows(num_outputs):
    """Rows whose targets are drawn from a linear model of ids and floats, and the least loss, of that model itself."""
    torch.manual_seed(3)
    ids, floats = torch.randint(1, 6, (4000, 2), dtype=torch.int32), torch.randn(4000, 3) * torch.tensor([0.5, 3.0, 1])
    logits = torch.randn(6, num_outputs)[ids[:, 0].long()] + torch.randn(6, num_outputs)[ids[:, 1].long()]
    logits = 1.5 * logits + floats @ torch.randn(3, num_outputs)
    if num_outputs == 1:
        return ids, floats, torch.bernoulli(torch.sigmoid(logits[:, 0]))
    return ids, floats, torch.distributions.Categorical(logits=logits).sample()


@pytest.mark.parametrize("num_outputs", [1, 3])
@pytest.mark.parametrize("name", LINEAR)
def test_linear_terms_learn_under_lamb_as_under_adamw(name, num_outputs):
    """M2, M3: weights that start at zero; the log loss is within 2 % of AdamW's at the same rates."""
    ids, floats, targets = linear_rows(num_outputs)
    loss = TargetLoss([("binary", 1) if num_outputs == 1 else ("multiclass", num_outputs)])

    def final_loss(optimizer, **settings):
        model = LogisticRegression(ModelInputs((6, 6), 3, num_outputs), LogisticRegression.Settings())
        built, schedule = build_optimizer(model, optimizer, lr=0.1, **settings), OneCycle(0.1, 120)
        for step in range(120):
            rows = slice(step % 8 * 500, step % 8 * 500 + 500)
            set_lr_and_momentum(built, *schedule.at(step))
            built.zero_grad()
            loss(model(ids[rows], floats[rows]), [targets[rows]]).backward()
            built.step()
        return loss(model.eval()(ids, floats), [targets]).item()

    wanted = final_loss("adamw")
    assert wanted < 0.75 * float(np.log(max(2, num_outputs)))
    assert final_loss("lamb", **LINEAR[name]) < 1.02 * wanted


@pytest.mark.parametrize("kind", ["lr", "fm", "deepfm", "wide_deep"])
@pytest.mark.parametrize("settings", [{}, {"rowwise_method": "lamb"}, {"rowwise": False}])
def test_linear_terms_of_every_model_are_no_layers(kind, settings):
    inputs, known = ModelInputs((5, 4), 2, num_outputs=3), model_class(kind).Settings
    optimizer = build_optimizer(ModelSpec(kind, inputs, known()).build(), "lamb", lr=0.1, **settings)
    adapted = {
        parameter: group["weight_decay"] or group["always_adapt"]
        for group in optimizer.param_groups
        if "always_adapt" in group
        for parameter in group["params"]
    }
    adapted |= {
        p: group["method"] == "lamb" for group in optimizer.param_groups if "method" in group for p in group["params"]
    }
    shapes = {tuple(p.shape) for p, adapts in adapted.items() if not adapts}
    assert {(5, 3), (4, 3), (2, 3)} <= shapes
    assert all(3 not in p.shape[-1:] for p, adapts in adapted.items() if adapts)


def test_any_weights_of_zero_start_learn_under_lamb():
    """Of a user's own model, as a last layer that starts at zero: 300 steps at .01 are worth the way to 1 and more."""
    layer = nn.Linear(4, 2, bias=False)
    nn.init.zeros_(layer.weight)
    optimizer = build_optimizer(layer, "lamb", lr=0.02)
    for _ in range(600):
        optimizer.zero_grad()
        (layer(torch.eye(4)) - 1).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(layer.weight.detach(), torch.ones(2, 4), rtol=0, atol=0.1)


def test_weights_are_layers_without_decay_too():
    """Without weight decay the ratio was switched off, which made LAMB Adam and hid M2."""
    torch.manual_seed(0)
    layer = nn.Linear(50, 50, bias=False)
    norm = layer.weight.norm().item()
    before = layer.weight.detach().clone()
    optimizer = build_optimizer(layer, "lamb", lr=0.1, weight_decay=0.0)
    layer(torch.randn(8, 50)).square().sum().backward()
    optimizer.step()
    assert (layer.weight - before).norm().item() == pytest.approx(0.1 * norm, rel=1e-4)


def test_rows_of_one_number_change_their_sign_under_lamb():
    """A weight that starts on the wrong side: LAMB's step is a share of its own size and would never cross zero."""
    terms = EmbeddingTables([2, 3], [1, 1])
    with torch.no_grad():
        for table in terms.tables:
            table.fill_(0.5)
    optimizer = build_optimizer(nn.ModuleList([terms, nn.Linear(1, 1)]), "lamb", lr=0.1, rowwise_method="lamb")
    for _ in range(40):
        optimizer.zero_grad()
        (terms(torch.tensor([[1, 2]])) + 1).square().sum().backward()  # wants each of the two at -1
        optimizer.step()
    assert terms(torch.tensor([[1, 2]])).sum().item() == pytest.approx(-2, abs=0.4)
    mixed = nn.ModuleList([EmbeddingTables([2, 3], [1, 4]), EmbeddingTables([5], [1]), nn.Linear(1, 1)])
    parts = build_optimizer(mixed, "lamb", lr=0.1, rowwise_method="lamb").optimizers[:-1]
    assert [one.param_groups[0]["method"] for one in parts] == ["lamb", "adam"]


def test_cowclip_leaves_linear_terms_unclipped():
    """M18: as the authors' code does. They start at zero, where the bound is all but zero."""
    model = ModelSpec("deepfm", ModelInputs((5, 4), 2), model_class("deepfm").Settings(layers=(4,))).build()
    parts = build_optimizer(model, "cowclip", lr=0.1, clip_ratio=0.5).optimizers[:-1]
    assert [part.param_groups[0]["clip_ratio"] for part in parts] == [0.5, None]
    assert parts[1].modules == [model.linear.tables]


def test_groups_without_parameters_are_left_out():
    assert [group["name"] for group in lamb_param_groups(nn.Linear(2, 2, bias=False), 0.1)] == ["decayed"]


@pytest.mark.parametrize(
    ("name", "lr", "settings"),
    [
        ("lamb", 0.05, {}),
        ("lamb", 0.05, {"rowwise": False}),
        ("adamw", 0.05, {}),
        ("adamw", 0.05, {"rowwise": True}),
        ("lamb", 0.05, {"table_lr": 0.2}),
        ("cowclip", 0.05, {"clip_floor": 1.0}),
    ],
)
def test_training_lowers_the_loss(model, name, lr, settings):
    ids, floats = torch.randint(4, (64, 2), dtype=torch.int32), torch.randn(64, 2)
    targets = floats[:, :1] + ids[:, :1] - 1
    optimizer = build_optimizer(model, name, lr=lr, **settings)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(ids, floats), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


LR = 0.2
SCHEDULES = {
    "step": lambda moved: lr_scheduler.StepLR(moved, 2, 0.5),
    "cosine": lambda moved: lr_scheduler.CosineAnnealingLR(moved, 5),
    "one cycle": lambda moved: lr_scheduler.OneCycleLR(moved, LR, total_steps=8),
    "cyclic": lambda moved: lr_scheduler.CyclicLR(moved, 0.01, LR, 2),
    "own": lambda moved: lr_scheduler.LambdaLR(moved, lambda step: 1 / (1 + step)),
    "in turn": lambda moved: lr_scheduler.SequentialLR(
        moved, [lr_scheduler.LinearLR(moved, 0.1, total_iters=2), lr_scheduler.ExponentialLR(moved, 0.9)], [2]
    ),
}


def tabled():
    """A model with a table and a layer, the optimizers that `adamw` has for rows, and a backward pass."""
    torch.manual_seed(0)
    tables, layer = EmbeddingTables([5], [4]), torch.nn.Linear(4, 1)
    model = torch.nn.ModuleList([tables, layer])
    moved = build_optimizer(model, "adamw", lr=LR, rowwise=True)
    return moved, model, lambda: layer(tables(torch.tensor([[1], [2]])).flatten(1)).square().sum().backward()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_of_torch_move_several_optimizers_as_they_move_one(name):
    moved, model, backward = tabled()
    alone = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], lr=LR)
    one, several = SCHEDULES[name](alone), SCHEDULES[name](moved)
    assert isinstance(moved, Optimizers)
    for _ in range(6):
        found = {(group["lr"], group["betas"][0]) for group in moved.param_groups}
        assert found == {(alone.param_groups[0]["lr"], alone.param_groups[0]["betas"][0])}
        still = alone.param_groups[0]["lr"] == 0
        before = [parameter.clone() for parameter in model.parameters()]
        moved.zero_grad()
        backward()
        for optimizer, schedule in ((alone, one), (moved, several)):
            optimizer.step()
            schedule.step()
        assert all(torch.equal(*pair) == still for pair in zip(before, model.parameters(), strict=True))
    assert several.state_dict().keys() == one.state_dict().keys()


def test_a_plateau_lowers_the_rate_of_all_groups():
    moved, _, _ = tabled()
    schedule = lr_scheduler.ReduceLROnPlateau(moved, factor=0.5, patience=0)
    for loss in (1.0, 1.0, 1.0):
        schedule.step(loss)
    assert {group["lr"] for group in moved.param_groups} == {LR / 4}


def test_several_optimizers_are_copied_hooked_and_closed_over_as_one_is():
    moved, model, backward = tabled()
    lr_scheduler.StepLR(moved, 1)
    told = []
    moved.register_step_post_hook(lambda optimizer, args, kwargs: told.append(optimizer))
    assert moved.step(lambda: (backward(), 7)[1]) == 7
    assert told == [moved]
    again, other = copy.deepcopy((moved, model))
    assert [part.state_dict()["param_groups"] for part in again.optimizers] == [
        part.state_dict()["param_groups"] for part in moved.optimizers
    ]
    own = {id(parameter) for parameter in other.parameters()}
    assert {id(parameter) for group in again.param_groups for parameter in group["params"]} == own
    again.step()
    assert not told[1:]
    with pytest.raises(ModelError, match="take no further group"):
        moved.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
