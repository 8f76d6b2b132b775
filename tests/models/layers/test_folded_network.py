"""Training with batch norms folded into the next layer: outputs, gradients and statistics of the plain network."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.kernels import using_kernels
from gigabatch.models.layers import dropout
from gigabatch.models.optimizers.registry import build_optimizer
from gigabatch.models.tabular.tabular import TabularModel, TabularSettings

FULL = {"num_ids": (50, 7, 300), "num_floats": 5, "num_outputs": 1, "embedding_widths": (16, 3, 8), "layers": (24, 12)}
FORMS = {
    "two layers": {},
    "one layer": {"layers": (9,)},
    "three layers": {"layers": (20, 16, 5)},
    "no batch norm": {"batch_norm": False, "batch_norm_floats": False},
    "no norm of floats": {"batch_norm_floats": False},
    "norm of floats alone": {"batch_norm": False},
    "no floats": {"num_floats": 0},
    "no ids": {"num_ids": (), "embedding_widths": ()},
    "no hidden layer": {"layers": ()},
    "several outputs": {"num_outputs": 4},
    "output range": {"output_range": (-2.0, 3.0)},
    "many columns": {"num_floats": 64},
    "dropout": {"dropout": 0.3},
    "dropout of one layer": {"dropout": (0.0, 0.2)},
    "dropout of the embeddings": {"embedding_dropout": 0.4},
    "dropout everywhere": {"layers": (20, 16, 5), "dropout": (0.1, 0.5, 0.2), "embedding_dropout": 0.25},
    "dropout without batch norm": {"dropout": 0.3, "batch_norm": False, "batch_norm_floats": False},
    "dropout without ids": {"num_ids": (), "embedding_widths": (), "dropout": 0.3, "embedding_dropout": 0.2},
}


def split(form):
    """Inputs and settings."""
    inputs = {name: form[name] for name in ("num_ids", "num_floats", "num_outputs")}
    return ModelInputs(**inputs), TabularSettings(**{name: form[name] for name in form if name not in inputs})


def make(form="two layers", num_rows=150, dtype=torch.float32, seed=0):
    """(plain model with dense gradients, folded one of the same weights), ids, floats, targets."""
    torch.manual_seed(seed)
    inputs, settings = split(FULL | FORMS[form])
    plain, folded = (TabularModel(inputs, settings).to(dtype) for _ in range(2))
    folded.embeddings.gradients = "rows"
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)  # scales and shifts that matter
            elif "tables" in name:
                parameter.mul_(50)
    folded.load_state_dict(plain.state_dict())
    ids = torch.stack([torch.randint(size, (num_rows,)) for size in inputs.num_ids] or [torch.empty(num_rows, 0)], 0)
    ids = ids.t().int() if inputs.num_ids else torch.empty(num_rows, 0, dtype=torch.int32)
    floats = torch.randn(num_rows, inputs.num_floats, dtype=dtype) * 3 + 2
    return (plain, folded), ids, floats, torch.randn(num_rows, inputs.num_outputs, dtype=dtype)


def gradients_of(model):
    """By name; those of tables are rebuilt from what the backward passes left."""
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    if model.embeddings.gradients == "rows":
        for column, table in enumerate(model.embeddings.tables):
            assert table.grad is None
            start = sum(other.shape[1] for other in list(model.embeddings.tables)[:column])
            dense = torch.zeros_like(table)
            for ids, gradient, *_ in model.embeddings.row_gradients:
                part = gradient[:, start : start + table.shape[1]].to(dense.dtype)
                dense.index_add_(0, ids[:, column].long(), part)
            found[f"embeddings.tables.{column}"] = dense
    return found


def backward(model, ids, floats, targets):
    torch.manual_seed(3)  # of dropout
    outputs = model(ids, floats)
    functional.mse_loss(outputs, targets).backward()
    return outputs.detach()


@pytest.fixture
def plain_kernels(monkeypatch):
    """The plain versions of the kernels, which take float64."""
    monkeypatch.setattr(dropout, "FLOATS", (torch.float64,))
    with using_kernels("reference"):
        yield


def assert_same(plain, folded, ids, floats, targets, rtol, atol):
    assert folded.folding_obstacle() is None
    outputs = [backward(model, ids, floats, targets) for model in (plain, folded)]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=rtol, atol=atol)
    torch.testing.assert_close(gradients_of(folded), gradients_of(plain), rtol=rtol, atol=atol)
    torch.testing.assert_close(dict(folded.named_buffers()), dict(plain.named_buffers()), rtol=rtol, atol=atol)


@pytest.mark.parametrize("form", FORMS)
def test_float32_equals_the_plain_network(form):
    (plain, folded), ids, floats, targets = make(form)
    for _ in range(2):
        assert_same(plain, folded, ids, floats, targets, rtol=1e-4, atol=1e-5)
        for model in (plain, folded):
            model.zero_grad()
        folded.embeddings.forget_gradients()


@pytest.mark.parametrize("form", ["no norm of floats", "three layers"])
def test_floats_far_from_zero_train_as_in_the_plain_network(form):
    """Neither normalised nor scaled, so that each hidden column has a mean far above its deviation. Squares added in
    float32 lost its variance, and the outputs were off by half their deviation. Errors against float64 are now at most
    those of the plain network, times 3 since either may be lucky; an activation near 0 may fall on either side of it,
    which a gradient shows as one row of 2,000, a 45th of its norm."""
    (plain, folded), ids, floats, targets = make(form, num_rows=2000)
    exact = copy.deepcopy(plain).double()
    for model in (plain, folded, exact):
        model.float_norm = None
    far = 1000 + torch.randn(floats.shape)
    wanted = backward(exact, ids, far.double(), targets.double())
    results = [{"outputs": backward(model, ids, far, targets)} | gradients_of(model) for model in (plain, folded)]
    for name, value in ({"outputs": wanted} | gradients_of(exact)).items():
        spread = (value - value.mean()).norm() + 1e-3  # a single number has none
        usual, error = (float((one[name] - value).norm() / spread) for one in results)
        assert error < 3 * usual + (1e-3 if name == "outputs" else 0.1), (name, error, usual)


@pytest.mark.parametrize("form", FORMS)
def test_the_formulas_are_exact_in_float64(plain_kernels, form):
    (plain, folded), ids, floats, targets = make(form, dtype=torch.float64)
    assert_same(plain, folded, ids, floats, targets, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("form", "most"), [("two layers", 0.12), ("dropout everywhere", 0.2)])
def test_bfloat16_is_as_near_as_the_plain_network_in_bfloat16(form, most):
    """Errors against float32, as norms: at most 1.5 times those of the plain network under autocast and one rounding
    more, as those of a single number (the last bias) may cancel by chance in either; and under 12% (20% where half the
    signal is dropped)."""
    (plain, folded), ids, floats, targets = make(form, num_rows=2000)
    half = copy.deepcopy(plain)
    results = [{"outputs": backward(plain, ids, floats, targets)} | gradients_of(plain)]
    for model in (half, folded):
        torch.manual_seed(3)  # of dropout
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(ids, floats)
        functional.mse_loss(outputs, targets).backward()
        results.append({"outputs": outputs.detach()} | gradients_of(model))
    exact, rounded, found = results
    for name, wanted in exact.items():
        assert found[name].dtype == torch.float32
        error, usual = ((one[name] - wanted).norm() / wanted.norm() for one in (found, rounded))
        assert error < min(most, 1.5 * usual + torch.finfo(torch.bfloat16).eps), (name, error, usual)
    running = dict(plain.named_buffers())
    for name, value in folded.named_buffers():
        torch.testing.assert_close(value, running[name], rtol=0.02, atol=0.02)


def test_an_id_that_int32_does_not_hold_is_an_error_and_no_other_row():
    (_, folded), ids, floats, _ = make()
    wrong = ids.long()
    wrong[3, 1] += 2**32
    with pytest.raises(IndexError):
        folded(wrong, floats)


def test_two_forward_passes_before_their_backward_passes():
    (plain, folded), ids, floats, targets = make()
    for model in (plain, folded):
        first, second = model(ids[:100], floats[:100]), model(ids[100:], floats[100:])
        (functional.mse_loss(second, targets[100:]) + 2 * functional.mse_loss(first, targets[:100])).backward()
    torch.testing.assert_close(gradients_of(folded), gradients_of(plain), rtol=1e-4, atol=1e-5)


def test_each_pass_drops_anew_and_the_backward_pass_drops_the_same():
    """Two forward passes before their backward passes, as in training with several losses; masks from one generator."""
    (plain, folded), ids, floats, targets = make("dropout everywhere")
    outputs = []
    for model in (plain, folded):
        torch.manual_seed(5)
        first, second = model(ids, floats), model(ids, floats)
        assert not torch.allclose(first, second)
        (functional.mse_loss(second, targets) + 2 * functional.mse_loss(first, targets)).backward()
        outputs.append(torch.cat([first, second]).detach())
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradients_of(folded), gradients_of(plain), rtol=1e-4, atol=1e-5)


def test_without_dropout_nothing_is_drawn():
    (_, folded), ids, floats, targets = make()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    functional.mse_loss(folded(ids, floats), targets).backward()
    assert torch.equal(torch.get_rng_state(), state)


def test_floats_far_from_zero():
    (plain, folded), ids, floats, targets = make()
    assert_same(plain, folded, ids, floats + 2000, targets, rtol=2e-3, atol=1e-4)  # 2000 leaves 13 bits of a float32


def test_ids_of_64_bits_and_ids_and_floats_inside_packed_rows():
    (plain, folded), ids, floats, targets = make()
    packed = torch.cat([ids, floats.view(torch.int32)], 1)
    wanted = backward(plain, ids.long(), floats, targets)
    torch.testing.assert_close(backward(folded, ids.long(), floats, targets), wanted, rtol=1e-4, atol=1e-5)
    outputs = folded(packed[:, :3], packed.view(torch.float32)[:, 3:])
    torch.testing.assert_close(outputs, wanted, rtol=1e-4, atol=1e-5)


def test_a_batch_of_one_row_is_an_error():
    (plain, folded), ids, floats, _ = make(num_rows=1)
    for model in (plain, folded):
        with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
            model(ids, floats)


def test_ids_and_floats_must_fit_the_model_and_each_other():
    (_, folded), ids, floats, _ = make()
    with pytest.raises(ValueError, match=r"ids must be \[rows, 3\]"):
        folded(ids[:, :2], floats)
    with pytest.raises(ValueError, match="149 rows of ids but 150 rows of floats"):
        folded(ids[1:], floats)
    ids[3, 1] = 7
    with pytest.raises(IndexError, match="column 1 holds ids from 0 to 7, its table has 7 rows"):
        folded(ids, floats)


def test_evaluation_takes_the_plain_path(monkeypatch):
    (plain, folded), ids, floats, _ = make()
    monkeypatch.setattr("gigabatch.models.tabular.tabular.folded_forward", None)  # a call would fail
    for model in (plain, folded):
        model.eval()
    torch.testing.assert_close(folded(ids, floats), plain(ids, floats))
    with torch.no_grad():
        torch.testing.assert_close(folded.train()(ids, floats), plain.train()(ids, floats))
    folded.folded = False
    functional.mse_loss(folded(ids, floats), torch.zeros(150, 1)).backward()
    functional.mse_loss(plain(ids, floats), torch.zeros(150, 1)).backward()
    torch.testing.assert_close(gradients_of(folded), gradients_of(plain), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "obstacle"),
    [
        ({"linear_first": False}, "a batch norm is not between"),
        ({"batch_norm_last": True}, "a batch norm is not between"),
    ],
)
def test_networks_of_another_form_take_the_plain_path(monkeypatch, change, obstacle):
    model = TabularModel(*split(FULL | change))
    model.embeddings.gradients = "rows"
    assert obstacle in model.folding_obstacle()
    monkeypatch.setattr("gigabatch.models.tabular.tabular.folded_forward", None)
    model(torch.zeros(4, 3, dtype=torch.int32), torch.randn(4, 5)).sum().backward()
    assert len(model.embeddings.row_gradients) == 1


@pytest.mark.parametrize(
    "freeze",
    [
        lambda norm: norm.eval(),
        lambda norm: setattr(norm, "momentum", None),
        lambda norm: setattr(norm, "track_running_stats", False),
    ],
)
@pytest.mark.parametrize("place", [0, -1])
def test_a_batch_norm_that_was_frozen_stays_so(place, freeze):
    """M8: the folded pass took the batch's statistics and moved the running ones."""
    (plain, folded), ids, floats, targets = make()
    for model in (plain, folded):
        freeze([module for module in model.modules() if isinstance(module, nn.BatchNorm1d)][place])
    outputs = [backward(model, ids, floats, targets) for model in (plain, folded)]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradients_of(folded), gradients_of(plain), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dict(folded.named_buffers()), dict(plain.named_buffers()), rtol=1e-4, atol=1e-5)


def _freeze(module):
    module.eval()


def _switch_off(module):
    module.p = 0.0


def _change(module):
    module.p = 0.6


@pytest.mark.parametrize("change", [_freeze, _switch_off, _change])
def test_dropout_is_that_of_the_modules_as_they_are_now(change):
    """The folded pass took its rates from the settings, whatever had become of the modules."""
    (plain, folded), ids, floats, targets = make("dropout everywhere")
    for model in (plain, folded):
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                change(module)
    assert_same(plain, folded, ids, floats, targets, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("part", [nn.Identity(), nn.Tanh(), nn.Dropout(1.0)])
def test_a_part_that_was_replaced_counts(part):
    (plain, folded), ids, floats, targets = make("dropout everywhere")
    for model in (plain, folded):
        model.layers[0][-1] = part
    outputs = [backward(model, ids, floats, targets) for model in (plain, folded)]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradients_of(folded), gradients_of(plain), rtol=1e-4, atol=1e-5)
    assert (folded.folding_obstacle() is None) == isinstance(part, nn.Identity)


def _block(*parts):
    return lambda model: setattr(model.layers, "0", nn.Sequential(model.layers[0][0], *parts))


CHANGES = {
    "no relu": _block(nn.Identity(), nn.BatchNorm1d(24)),
    "norm first": _block(nn.BatchNorm1d(24), nn.ReLU()),
    "dropout before the relu": _block(nn.Dropout(0.3), nn.ReLU(), nn.BatchNorm1d(24)),
    "dropout before the norm": _block(nn.ReLU(), nn.Dropout(0.3), nn.BatchNorm1d(24)),
    "a relu at the end": lambda model: model.layers[-1].append(nn.ReLU()),
    "dropout at the end": lambda model: model.layers[-1].append(nn.Dropout(0.3)),
    "another dropout of embeddings": lambda model: setattr(model, "embedding_dropout", nn.AlphaDropout(0.4)),
    "another norm of floats": lambda model: setattr(model, "float_norm", nn.LayerNorm(5)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_order_of_parts_takes_the_plain_path(change):
    (plain, folded), ids, floats, targets = make()
    for model in (plain, folded):
        CHANGES[change](model)
    outputs = [backward(model, ids, floats, targets) for model in (plain, folded)]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradients_of(folded), gradients_of(plain), rtol=1e-4, atol=1e-5)
    assert folded.folding_obstacle() is not None


def test_a_hook_is_called():
    (_, folded), ids, floats, _ = make()
    seen = []
    handle = folded.layers[0].register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    folded(ids, floats)
    assert seen == [(150, 24)]
    handle.remove()
    assert folded.folding_obstacle() is None


def test_gradients_of_the_folded_pass_are_not_left_behind():
    """M9: `torch.autograd.grad` gives gradients, and a later step must not apply them to the tables."""
    (_, folded), ids, floats, targets = make()
    loss = functional.mse_loss(folded(ids, floats), targets)
    torch.autograd.grad(loss, [parameter for name, parameter in folded.named_parameters() if "embeddings" not in name])
    assert folded.embeddings.row_gradients == []


def test_gradients_of_the_floats_come_from_the_plain_path():
    (plain, folded), ids, floats, targets = make()
    found = []
    for model in (plain, folded):
        inputs = floats.clone().requires_grad_()
        backward(model, ids, inputs, targets)
        found.append(inputs.grad)
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)
    assert found[0].any()


def test_thirty_steps_of_training_stay_close():
    (_, folded), ids, floats, targets = make()
    plain = copy.deepcopy(folded)
    plain.folded = False
    losses = []
    for model in (plain, folded):
        optimizer = build_optimizer(model, "lamb", lr=0.02)
        losses.append([])
        for _ in range(30):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(ids, floats), targets)
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[0][-1] < 0.8 * losses[0][0]
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)


def test_memory_of_a_step_is_used_by_the_next():
    (_, folded), ids, floats, targets = make()
    places = []
    for _ in range(3):
        backward(folded, ids, floats, targets)
        places.append(folded.embeddings.row_gradients[0].gradient.data_ptr())
        folded.embeddings.forget_gradients()
    assert places[1] in places[:1] or places[2] in places[:2]


def test_dense_gradients_are_an_obstacle():
    assert "gradients are dense, not rows" in TabularModel(*split(FULL)).folding_obstacle()


def test_gradients_of_gradients_are_refused_and_those_of_the_plain_network_without_folding():
    (plain, folded), ids, floats, targets = make("two layers")
    found = []
    for model in (plain, folded, folded):
        weights = [weight for name, weight in model.named_parameters() if "tables" not in name]
        loss = functional.mse_loss(model(ids, floats), targets)
        if model is folded and model.folded:
            with pytest.raises(ModelError, match="no gradient of its gradients"):
                torch.autograd.grad(loss, weights, create_graph=True)
            model.folded = False
            continue
        first = torch.autograd.grad(loss, weights, create_graph=True)
        found.append(torch.autograd.grad(sum(part.square().sum() for part in first), weights, allow_unused=True))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)
