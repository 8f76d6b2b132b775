"""RowOptimizer: what a step takes, forgets and saves. What it computes is tested in kernels/test_row_update.py."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from gigabatch.models.click.lr import LogisticRegression
from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.kernels.row_update import reference as row_update_reference
from gigabatch.models.kernels.row_update.rules import METHODS, ROW_STEPS, RowRule
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.optimizers.lamb import Lamb
from gigabatch.models.optimizers.moments import shrink_sums
from gigabatch.models.optimizers.registry import build_optimizer
from gigabatch.models.optimizers.row_optimizer import Optimizers, RowOptimizer

SIZES, WIDTHS = [30, 4], [3, 2]


def make(seed=0, **settings):
    torch.manual_seed(seed)
    tables = EmbeddingTables(SIZES, WIDTHS)
    return tables, RowOptimizer([tables], **{"lr": 0.1, "weight_decay": 0.02} | settings)


def batch(seed, num_rows=8):
    random = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randint(size, (num_rows,), generator=random, dtype=torch.int32) for size in SIZES], 1)
    return ids, torch.randn(num_rows, sum(WIDTHS), generator=random)


def backward(tables, ids, weights):
    """The gradient of what was looked up is `weights`."""
    (tables(ids) * weights).sum().backward()


def train(tables, optimizer, seeds):
    for seed in seeds:
        optimizer.zero_grad()
        backward(tables, *batch(seed))
        optimizer.step()


def weights_of(tables):
    return [table.detach().clone() for table in tables.tables]


@pytest.mark.parametrize("method", METHODS)
def test_steps_equal_the_plain_rule(method):
    settings = {"eps": 1e-4, "l2": 0.1, "second_moment": "full", "step": "row", "trust_clip": 3.0}
    settings |= {"clip_ratio": 0.5, "clip_floor": 0.2, "weight_decay": 0.05}
    tables, optimizer = make(method=method, betas=(0.8, 0.95), **settings)
    expected = [table.double() for table in weights_of(tables)]
    rule = RowRule(method, 0.1, 0.8, 0.95, **settings)
    states = [rule.new_state(table) for table in expected]
    for seed in range(4):
        ids, gradient = batch(seed)
        row_update_reference.update_rows(expected, states, ids, gradient.double(), rule)
    train(tables, optimizer, range(4))
    for found, wanted in zip(weights_of(tables), expected, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("step", ROW_STEPS)
@pytest.mark.parametrize("method", METHODS)
def test_a_run_resumed_from_its_state_dicts_is_bit_equal_to_one_without_a_break(method, step):
    straight, optimizer = make(method=method, step=step)
    train(straight, optimizer, range(6))

    broken, optimizer = make(method=method, step=step)
    train(broken, optimizer, range(3))
    file = io.BytesIO()
    torch.save({"model": broken.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed, optimizer = make(seed=1, method=method, step=step)
    resumed.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    train(resumed, optimizer, range(3, 6))
    assert all(map(torch.equal, weights_of(straight), weights_of(resumed)))


def test_accumulated_batches_are_one_step_with_all_their_rows():
    (parts, part_optimizer), (whole, whole_optimizer) = make(), make()
    batches = [batch(seed) for seed in range(3)]
    for ids, gradient in batches:
        backward(parts, ids, gradient)
    backward(whole, *(torch.cat(tensors) for tensors in zip(*batches, strict=True)))
    part_optimizer.step()
    whole_optimizer.step()
    assert all(map(torch.equal, weights_of(parts), weights_of(whole)))
    assert float(part_optimizer.state[parts.tables[0]]["num_steps"]) == 1


def test_a_step_forgets_what_it_took():
    tables, optimizer = make(method="sgd", weight_decay=0.0)
    backward(tables, *batch(0))
    optimizer.step()
    before = weights_of(tables)
    optimizer.step()
    assert tables.row_gradients == []
    assert all(map(torch.equal, weights_of(tables), before))


def test_zero_grad_forgets_gradients_that_no_step_took():
    (tables, optimizer), (alone, other) = make(), make()
    backward(tables, *batch(0))
    train(tables, optimizer, [1])
    train(alone, other, [1])
    assert all(map(torch.equal, weights_of(tables), weights_of(alone)))


def test_zero_grad_of_the_module_forgets_them_too():
    """A batch that was given up so moved its rows with the next step."""
    (tables, optimizer), (alone, other) = make(), make()
    backward(tables, *batch(0))
    tables.zero_grad()
    backward(tables, *batch(1))
    optimizer.step()
    train(alone, other, [1])
    assert all(map(torch.equal, weights_of(tables), weights_of(alone)))


def test_zero_grad_of_a_model_forgets_gradients_of_rows():
    weights = []
    for given_up in (True, False):
        torch.manual_seed(0)
        model = LogisticRegression(ModelInputs((5, 7), 0), LogisticRegression.Settings())
        optimizer = build_optimizer(model, "lamb", lr=0.1)
        if given_up:
            model(torch.tensor([[1, 2]]), torch.empty(1, 0)).sum().backward()
            model.zero_grad()
        model(torch.tensor([[3, 4]]), torch.empty(1, 0)).sum().backward()
        optimizer.step()
        weights.append([weight.detach() for weight in model.parameters()])
    assert all(map(torch.equal, *weights))


def test_several_modules_move_each_by_its_own_gradients():
    torch.manual_seed(0)
    first, second = EmbeddingTables([30], [3]), EmbeddingTables([4], [2])
    optimizer = RowOptimizer([first, second], lr=0.1)
    before = first.tables[0].detach().clone()
    backward(second, torch.tensor([[1]], dtype=torch.int32), torch.ones(1, 2))
    old = second.tables[0].detach().clone()
    optimizer.step()
    assert torch.equal(first.tables[0], before)
    assert (second.tables[0] != old).any(1).tolist() == [False, True, False, False]


def test_the_closure_is_evaluated_and_its_loss_returned():
    tables, optimizer = make()
    before, losses = weights_of(tables), []

    def closure():
        losses.append(tables(batch(0)[0]).square().sum())
        losses[0].backward()
        return losses[0]

    assert [optimizer.step(closure)] == losses
    assert not torch.equal(tables.tables[0], before[0])


def test_a_copy_goes_on_as_the_original_and_apart_from_it():
    tables, optimizer = make(version="cpu")
    train(tables, optimizer, range(2))
    copied_tables, copied = copy.deepcopy((tables, optimizer))
    assert copied.version == "cpu"
    train(copied_tables, copied, [2])
    assert not torch.equal(copied_tables.tables[0], tables.tables[0])
    train(tables, optimizer, [2])
    assert all(map(torch.equal, weights_of(copied_tables), weights_of(tables)))


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("method", METHODS)
def test_a_table_that_is_frozen_in_between_stays_and_the_other_moves_on(place, method):
    """As with torch's optimizers. It was moved on."""
    (frozen, optimizer), (free, other) = make(method=method), make(method=method)
    train(frozen, optimizer, range(2))
    train(free, other, range(2))
    kept = frozen.tables[place].detach().clone()
    state = copy.deepcopy(optimizer.state[frozen.tables[place]])
    frozen.tables[place].requires_grad_(False)
    train(frozen, optimizer, range(2, 4))
    train(free, other, range(2, 4))
    assert torch.equal(frozen.tables[place], kept)
    assert all(torch.equal(optimizer.state[frozen.tables[place]][name], value) for name, value in state.items())
    torch.testing.assert_close(frozen.tables[1 - place], free.tables[1 - place])


def test_tables_that_are_all_frozen_after_a_backward_pass_stay():
    tables, optimizer = make()
    before = weights_of(tables)
    backward(tables, *batch(0))
    tables.requires_grad_(False)
    optimizer.step()
    assert all(map(torch.equal, weights_of(tables), before))
    assert tables.row_gradients == []


def test_torch_autograd_grad_leaves_no_row_gradients():
    """M9: the next step would have applied them. A backward pass beside it keeps its own."""
    tables, head, _ = pair()
    loss = head(tables(batch(0)[0])).square().sum()
    (found,) = torch.autograd.grad(loss, [head.weight], retain_graph=True)
    assert tables.row_gradients == []
    torch.autograd.grad(loss, [head.weight, *tables.tables], allow_unused=True, retain_graph=True)
    assert tables.row_gradients == []
    loss.backward()
    assert len(tables.row_gradients) == 1
    torch.testing.assert_close(found, head.weight.grad)


@pytest.mark.parametrize(
    "copied", [lambda model: model, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))]
)
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, Lamb])
def test_an_optimizer_of_whole_tables_is_refused_where_gradients_are_kept_by_rows(copied, kind):
    """It moved all but the tables, without a word, and what no step took filled the memory."""
    tables, head, _ = pair()
    model = copied(nn.ModuleList([tables, head]))
    tables, head = model
    before = weights_of(tables)
    whole, others = kind(model.parameters(), lr=0.1), kind(head.parameters(), lr=0.1)
    head(tables(batch(0)[0])).square().sum().backward()
    with pytest.raises(
        ModelError, match=f"{kind.__name__}: it is given embedding tables whose gradients are kept by r"
    ):
        whole.step()
    others.step()  # it has none of them
    for table in tables.weights:
        table.requires_grad_(False)
    whole.step()  # frozen ones are not to move
    assert all(map(torch.equal, weights_of(tables), before))
    for table in tables.weights:
        table.requires_grad_(True)
    tables.gradients = "dense"
    head(tables(batch(0)[0])).square().sum().backward()
    whole.step()
    assert not any(map(torch.equal, weights_of(tables), before))


@pytest.mark.parametrize("first", ["lamb", "adamw"])
@pytest.mark.parametrize("second", ["lamb", "adamw", "cowclip"])
def test_the_optimizer_that_was_built_last_has_the_tables(first, second):
    """M9: the first one went on and moved no table, without a word."""
    tables, head, _ = pair()
    model = nn.ModuleList([tables, head])
    old, new = (build_optimizer(model, name, lr=0.1) for name in (first, second))
    before = weights_of(tables)
    head(tables(batch(0)[0])).square().sum().backward()
    if (first, second) != ("adamw", "adamw"):  # dense gradients serve both
        old.zero_grad(set_to_none=False)
        head(tables(batch(0)[0])).square().sum().backward()
        told = "handed to one that was built later" if first == "lamb" else "whose gradients are kept by rows"
        with pytest.raises(ModelError, match=told):
            old.step()
        assert all(map(torch.equal, weights_of(tables), before))
    new.step()
    if (first, second) != ("adamw", "adamw"):
        with pytest.raises(ModelError, match="handed to one that was built later"):  # nor with gradients of others
            old.step()
    assert not any(map(torch.equal, weights_of(tables), before))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "rmsprop"}, "unknown method of the row optimizer 'rmsprop'. Known: sgd, adagrad, adam, lamb"),
        ({"second_moment": "row"}, "unknown second_moment of the row optimizer 'row'. Known: scalar, full"),
        ({"step": "local"}, "unknown step of the row optimizer 'local'. Known: global, row"),
        ({"lr": -1.0}, "lr must not be negative"),
        ({"betas": (1.0, 0.9)}, "betas must be in"),
        ({"weight_decay": -0.1}, "weight_decay must not be negative"),
        ({"l2": -0.1}, "l2 must not be negative"),
        ({"clip_floor": -0.1}, "clip_floor must not be negative"),
        ({"trust_floor": -0.1}, "trust_floor must not be negative"),
        ({"trust_clip": 0.0}, "trust_clip must be positive"),
        ({"clip_ratio": 0.0}, "clip_ratio must be positive"),
        ({"eps": 0.0}, "eps must be positive"),
        ({"lr_scale": 0.0}, "lr_scale must be positive"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ModelError, match=message):
        make(**settings)


def pair():
    tables, rows = make()
    head = nn.Linear(5, 1)
    return tables, head, Optimizers(rows, Lamb(head.parameters(), lr=0.1))


def test_several_optimizers_are_one():
    tables, head, optimizer = pair()
    assert len(optimizer.param_groups) == 2
    optimizer.param_groups[0]["lr"] = optimizer.param_groups[1]["lr"] = 0.05
    before = [*weights_of(tables), head.weight.detach().clone()]
    head(tables(batch(0)[0])).sum().backward()
    optimizer.step()
    assert not any(map(torch.equal, [*weights_of(tables), head.weight], before))
    assert set(optimizer.state) == {*tables.tables, *head.parameters()}
    head(tables(batch(0)[0])).sum().backward()
    optimizer.zero_grad()
    assert head.weight.grad is None
    assert tables.row_gradients == []


def test_the_state_of_several_is_restored():
    def steps(tables, head, optimizer, seeds):
        for seed in seeds:
            optimizer.zero_grad()
            head(tables(batch(seed)[0])).square().sum().backward()
            optimizer.step()

    tables, head, optimizer = pair()
    steps(tables, head, optimizer, range(3))
    saved = copy.deepcopy((tables.state_dict(), head.state_dict(), optimizer.state_dict()))
    steps(tables, head, optimizer, range(3, 6))
    resumed_tables, resumed_head, resumed = pair()
    for module, state in zip((resumed_tables, resumed_head, resumed), saved, strict=True):
        module.load_state_dict(state)
    steps(resumed_tables, resumed_head, resumed, range(3, 6))
    assert all(map(torch.equal, weights_of(tables), weights_of(resumed_tables)))
    assert torch.equal(head.weight, resumed_head.weight)


@pytest.mark.parametrize(
    ("state", "found"), [({}, "none"), ({"optimizers": []}, "0"), ({"state": {}, "param_groups": []}, "none")]
)
def test_the_state_of_another_number_of_optimizers_is_an_error(state, found):
    _, _, optimizer = pair()
    with pytest.raises(ModelError, match=f"2 optimizers are to be restored, the state holds {found}"):
        optimizer.load_state_dict(state)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.0])
def test_rows_go_on_learning_over_sixty_nights_where_adagrads_sums_are_shrunk(share):
    """Ten steps a night, whose gradients are all 1: a step is lr over the root of the sum of their squares."""
    tables, optimizer = make(method="adagrad", weight_decay=0.0, eps=1e-12)
    ids = torch.zeros(1, len(SIZES), dtype=torch.int32)
    total, moves = 0.0, []
    for _ in range(60):
        shrink_sums(optimizer, share)
        total *= share
        before = weights_of(tables)[0][0, 0]
        wanted = 0.0
        for _ in range(10):
            backward(tables, ids, torch.ones(1, sum(WIDTHS)))
            optimizer.step()
            total += 1
            wanted += 0.1 / total**0.5
        moves.append(float(before - weights_of(tables)[0][0, 0]))
        assert moves[-1] == pytest.approx(wanted, rel=1e-4)
    assert (moves[-1] > 0.5 * moves[0]) == (share < 1)  # with all of them a tenth of the first night's


@pytest.mark.parametrize("settings", [{"rowwise_method": "lamb"}, {"rowwise": False}])
def test_moving_averages_are_not_shrunk(settings):
    model = nn.Sequential(EmbeddingTables(SIZES, WIDTHS), nn.Linear(sum(WIDTHS), 1))
    optimizer = build_optimizer(model, "lamb", lr=0.01, **settings)
    model(batch(0)[0]).sum().backward()
    optimizer.step()
    states = [state["exp_avg_sq"].clone() for state in optimizer.state.values()]
    shrink_sums(optimizer, 0.25)
    assert states
    assert all(
        torch.equal(state["exp_avg_sq"], one) for state, one in zip(optimizer.state.values(), states, strict=True)
    )


def test_tables_that_were_converted_do_not_step():
    tables, optimizer = make()
    tables.double()
    (tables(batch(0)[0]) * 1.0).sum().backward()
    with pytest.raises(ModelError, match=r"the tables were converted from torch\.float32"):
        optimizer.step()


def test_another_group_is_refused():
    """Its parameters never moved."""
    _, optimizer = make()
    with pytest.raises(ModelError, match="a RowOptimizer has one group"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})


def test_torchs_one_cycle_moves_lr_and_momentum():
    """It said that the optimizer has no momentum."""
    tables, optimizer = make(method="adam")
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=4, base_momentum=0.85, max_momentum=0.95)
    assert optimizer.param_groups[0]["betas"][0] == 0.95
    backward(tables, *batch(0))
    optimizer.step()
    schedule.step()
    assert 0.85 <= optimizer.param_groups[0]["betas"][0] < 0.95
