"""GPLVMF against scikit-learn's Gaussian processes, quadrature and loops, and contexts of which some matter."""

import copy
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gigabatch.loaders.tables.packed import Batch
from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import EntityColumns, ModelInputs
from gigabatch.models.losses import TargetLoss
from gigabatch.models.optimizers.registry import build_optimizer
from gigabatch.models.recommenders.gplvmf import GPLVMFSettings
from gigabatch.models.shelf import ModelSpec

# id columns: user, user's country, item, weather, weekday; floats: user's age, hour
USERS, ITEMS = 6, 5
INPUTS = ModelInputs((USERS, 2, ITEMS, 3, 4), 2, 1, user=EntityColumns(0, (0, 1), (0,)), item=EntityColumns(2, (2,)))
VALUES = TargetLoss([("regression", 1)])
COUNTS = (7, 1, 0, 12, 4, 3)  # train rows of each user; user 2 has none


def table(counts=COUNTS, seed=0):
    """ids, floats and target of a train split whose users have these numbers of rows, shuffled."""
    random = np.random.default_rng(seed)
    user = random.permutation(np.repeat(np.arange(len(counts)), counts))
    others = [random.integers(0, size, len(user)) for size in INPUTS.num_ids[1:]]
    ids = torch.from_numpy(np.stack([user, *others], axis=1)).int()
    ids[ids[:, 2] == 4, 2] = 3  # no row has item 4
    floats = torch.from_numpy(random.normal(size=(len(user), 2))).float()
    return ids, floats, torch.from_numpy(random.normal(3, 2, len(user))).float()


def build(seed=0, inputs=INPUTS, dtype=torch.float32, deviation=None, data=None, **settings):
    """A model that remembers `data`, with weights and kernel parameters drawn at random.

    deviation: of all q(x); None for random ones.
    """
    torch.manual_seed(seed)
    model = ModelSpec("gplvmf", inputs, GPLVMFSettings(**settings)).build()
    with torch.no_grad():
        for parameter in (*model.biases.tables, model.float_weights, model.log_relevance):
            parameter.normal_().mul_(0.5)
        for log_deviation in model.log_deviations.tables:
            log_deviation.normal_().mul_(0.5).sub_(0.5)
            if deviation is not None:
                log_deviation.fill_(math.log(deviation))
    ids, floats, target = data or table()
    model.to(dtype).remember(ids, floats, [target])
    if dtype == torch.float64:  # what was stored in float32, unrounded
        model.rows.floats, model.rows.targets = model.rows.floats.double(), model.rows.targets.double()
    return model


def batch_of(ids, floats, target, weight=None):
    return Batch(ids, floats, (target,), weight)


def test_a_batch_of_no_rows_is_refused():
    ids, floats, target = table()
    with pytest.raises(ModelError, match="loss: a batch of 0 rows has no mean loss"):
        build().training_loss(batch_of(ids[:0], floats[:0], target[:0]), TargetLoss([("regression", 1)]))


def latent_rows(model, ids, floats):
    """Points of the kernel at the latent means: item, weather and weekday, then the hour."""
    means = [t.detach().double().numpy() for t in model.means.tables]
    columns = [means[c][ids[:, place].numpy()] for c, place in enumerate((2, 3, 4))]
    return np.concatenate([*columns, floats[:, 1:].double().numpy()], axis=1)


def mean_of(model, ids, floats):
    """m of rows all of whose ids were seen."""
    biases = sum(t.detach().double().numpy()[ids[:, c].numpy(), 0] for c, t in enumerate(model.biases.tables))
    return biases + floats.double().numpy() @ model.float_weights.detach().double().numpy()


def sklearn_process(model):
    """The same process at fixed latent inputs, without its mean."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    signal, noise = (float(p.detach().double().exp()) for p in (model.log_signal, model.log_noise))
    lengths = np.exp(-0.5 * model.log_relevance.detach().double().numpy())
    kernel = ConstantKernel(signal, "fixed") * RBF(lengths, "fixed")
    return GaussianProcessRegressor(kernel, alpha=noise + model.settings.jitter * signal, optimizer=None)


def standardised(target):
    return (target.double().numpy() - target.double().numpy().mean()) / target.double().numpy().std()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-4)])
def test_log_likelihoods_equal_sklearns(dtype, tolerance):
    model = build(dtype=dtype)
    ids, floats, target = table()
    rows = model._rows_of(torch.arange(USERS), max(COUNTS))
    found = model.log_likelihoods(rows, rows.inputs.mean)
    for user in range(USERS):
        own = ids[:, 0] == user
        if not own.any():
            assert found[user] == 0
            continue
        residuals = standardised(target)[own] - mean_of(model, ids[own], floats[own])
        process = sklearn_process(model).fit(latent_rows(model, ids[own], floats[own]), residuals)
        assert found[user].item() == pytest.approx(process.log_marginal_likelihood_value_, rel=tolerance)


@given(st.permutations(range(USERS)), st.integers(1, USERS), st.integers(12, 20))
def test_padded_batches_equal_one_user_at_a_time(order, size, most_rows):
    model, users = build(), torch.tensor(order[:size])
    with torch.no_grad():
        together = model._rows_of(users, most_rows)
        likelihoods, penalties = model.log_likelihoods(together, together.inputs.mean), model.penalties(together)
        for place, user in enumerate(users):
            alone = model._rows_of(user[None], COUNTS[user])
            torch.testing.assert_close(model.log_likelihoods(alone, alone.inputs.mean)[0], likelihoods[place])
            torch.testing.assert_close(model.penalties(alone)[0], penalties[place])


def test_posterior_mean_equals_sklearns():
    model = build(deviation=1e-6).eval()
    ids, floats, target = table()
    new_ids, new_floats, _ = table(seed=1)  # the same users, other items, contexts and floats
    outputs = model(new_ids, new_floats)
    assert outputs.shape == (len(new_ids), 1)
    assert outputs.dtype == torch.float32
    for user in (0, 1, 3, 4, 5):
        own, new = ids[:, 0] == user, new_ids[:, 0] == user
        process = sklearn_process(model)
        residuals = standardised(target)[own] - mean_of(model, ids[own], floats[own])
        process.fit(latent_rows(model, ids[own], floats[own]), residuals)
        expected = process.predict(latent_rows(model, new_ids[new], new_floats[new]))
        expected = (expected + mean_of(model, new_ids[new], new_floats[new])) * target.double().numpy().std()
        np.testing.assert_allclose(outputs[new, 0], expected + target.double().mean().item(), rtol=2e-4, atol=2e-4)


def test_penalties_add_up_to_the_divergence_from_the_prior():
    """Over all users: KL(q | p) of the ids that were seen, by torch.distributions, and the biases' penalty."""
    model = build(dtype=torch.float64, bias_deviation=0.7)
    ids, _, _ = table()
    expected = 0.0
    for column, place in enumerate((2, 3, 4)):
        seen = ids[:, place].long().unique()
        mean, deviation = model.means.tables[column][seen], model.log_deviations.tables[column][seen].exp()
        prior = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
        expected += torch.distributions.kl_divergence(torch.distributions.Normal(mean, deviation), prior).sum().item()
    for column, biases in enumerate(model.biases.tables):
        seen = ids[:, column].long().unique()
        expected += (biases[seen].square() / (2 * 0.7**2)).sum().item()
    rows = model._rows_of(torch.arange(USERS), max(COUNTS))
    assert model.penalties(rows).sum().item() == pytest.approx(expected, rel=1e-9)


def test_the_loss_is_minus_the_bound_over_all_rows():
    model = build(deviation=1e-6)
    ids, floats, target = table()
    rows = model._rows_of(torch.arange(USERS), max(COUNTS))
    bound = (model.log_likelihoods(rows, rows.inputs.mean) - model.penalties(rows)).sum().item()
    whole = model.training_loss(batch_of(ids, floats, target), VALUES).item()
    assert whole == pytest.approx(-bound / len(ids), rel=1e-4)

    parts = [slice(start, start + 9) for start in range(0, 27, 9)]  # its mean over batches is that of all rows
    losses = [model.training_loss(batch_of(ids[p], floats[p], target[p]), VALUES).item() for p in parts]
    assert len(ids) == 27
    assert np.mean(losses) == pytest.approx(whole, rel=1e-4)
    assert np.std(losses) > 0.01

    doubled = torch.ones(9)
    doubled[3] = 2.0  # a weight of 2 is a row that stands there twice
    places = torch.tensor([*range(9), 3])
    twice = model.training_loss(batch_of(ids[places], floats[places], target[places]), VALUES).item()
    weighted = model.training_loss(batch_of(ids[:9], floats[:9], target[:9], doubled), VALUES).item()
    assert weighted == pytest.approx(twice, rel=1e-4)


def test_users_of_the_first_rows_stand_for_a_larger_batch():
    ids, floats, target = table()
    model = build(deviation=1e-6, users_per_step=5)
    first = model.training_loss(batch_of(ids[:5], floats[:5], target[:5]), VALUES).item()
    assert model.training_loss(batch_of(ids, floats, target), VALUES).item() == pytest.approx(first, rel=1e-4)


def test_rows_beyond_the_most_of_a_user_still_count_in_the_average():
    """A user's bound of few stored rows is divided by all rows, so that the sum over batches has it once."""
    ids, floats, target = table()
    model = build(deviation=1e-6, max_rows_per_user=4)
    rows = model._rows_of(torch.arange(USERS), 4)
    bound = (model.log_likelihoods(rows, rows.inputs.mean) - model.penalties(rows)).sum().item()
    assert int(rows.inside.sum()) == 4 + 1 + 0 + 4 + 4 + 3
    loss = model.training_loss(batch_of(ids, floats, target), VALUES).item()
    assert loss == pytest.approx(-bound / len(ids), rel=1e-4)


def test_gradients_equal_finite_differences():
    model = build(dtype=torch.float64)
    ids, floats, target = table()
    batch = batch_of(ids, floats.double(), target.double())

    def loss():
        torch.manual_seed(5)  # the same draw each time
        return model.training_loss(batch, VALUES)

    loss().backward()
    for name, parameter in model.named_parameters():
        flat, gradient = parameter.data.view(-1), parameter.grad.view(-1)
        place = int(gradient.abs().argmax())
        before = float(flat[place])
        flat[place] = before + 1e-5
        above = loss().item()
        flat[place] = before - 1e-5
        slope = (above - loss().item()) / 2e-5
        flat[place] = before
        assert gradient[place].item() == pytest.approx(slope, rel=1e-4), name
        assert slope != 0


def test_a_user_without_rows_gets_the_mean_and_new_ids_their_prior():
    model = build(deviation=0.5).eval()
    scale, mean = model.rows.target_scale.item(), model.rows.target_mean.item()
    ids = torch.tensor([[2, 0, 1, 2, 3], [2, 0, 4, 2, 3]], dtype=torch.int32)  # user 2 has no rows; item 4 was not seen
    floats = torch.tensor([[0.3, -0.4], [0.3, -0.4]])
    with torch.no_grad():
        b = [t[:, 0].double() for t in model.biases.tables]
        linear = (floats[0] * model.float_weights).sum().item()
    base = b[1][0] + b[3][2] + b[4][3] + linear  # user 2 itself was not seen either, so that its bias is 0
    expected = torch.stack([base + b[2][1], base]) * scale + mean
    torch.testing.assert_close(model(ids, floats)[:, 0].double(), expected, rtol=1e-5, atol=1e-5)

    unseen = model._inputs(ids, floats)
    assert unseen.mean[1, 0].tolist() == [0, 0]
    assert unseen.variance[1, 0].tolist() == [1, 1]
    assert unseen.variance[0, 0].tolist() == pytest.approx([0.25, 0.25])


def test_predictions_follow_the_weights():
    model = build().eval()
    ids, floats, target = table()
    with torch.inference_mode():
        before = model(ids, floats).clone()
    saved = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.train()
    optimizer = build_optimizer(model, "adamw", lr=0.1)
    model.training_loss(batch_of(ids, floats, target), VALUES).backward()
    optimizer.step()
    after = model.eval()(ids, floats)
    assert (after - before).abs().max() > 0.01
    copied = copy.deepcopy(model)
    assert torch.equal(copied(ids, floats), after)
    model.load_state_dict(saved)
    assert torch.equal(model(ids, floats), before)
    assert torch.equal(copied(ids, floats), after)
    with torch.no_grad():
        model.log_noise.add_(1.0)  # in evaluation mode, as an average of weights moves
    assert (model(ids, floats) - before).abs().max() > 0.01


def test_what_was_solved_is_dropped_when_any_parameter_is_written_to_in_evaluation_mode():
    model = build(deviation=0.5).eval()
    ids, floats, _ = table()
    for name, parameter in model.named_parameters():
        model(ids, floats)
        with torch.no_grad():
            parameter.add_(0.3 * torch.randn_like(parameter))
        anew = copy.deepcopy(model)
        anew.train().eval()  # training mode drops it
        assert torch.equal(model(ids, floats), anew(ids, floats)), name


@pytest.mark.parametrize(("optimizer", "options"), [("lamb", {"rowwise": False}), ("lamb", {})])
def test_what_was_solved_is_dropped_after_a_compiled_step_in_evaluation_mode(optimizer, options):
    """Also where no parameter of the kernel moves."""
    model = build().eval()
    ids, floats, target = table()
    for parameter in (model.log_relevance, model.log_signal, model.log_noise):
        parameter.requires_grad_(False)
    step = build_optimizer(model, optimizer, lr=0.1, **options)
    before = model(ids, floats)
    model.training_loss(batch_of(ids, floats, target), VALUES).backward()
    step.step()
    anew = build().eval()
    anew.load_state_dict(model.state_dict())
    assert torch.equal(model(ids, floats), anew(ids, floats))
    assert (model(ids, floats) - before).abs().max() > 0.01


def test_all_is_float32_under_autocast():
    model = build(deviation=1e-6).eval()
    ids, floats, target = table()
    outputs = model(ids, floats)
    torch.manual_seed(1)
    loss = model.training_loss(batch_of(ids, floats, target), VALUES)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model.train().eval()
        assert torch.equal(model(ids, floats), outputs)
        torch.manual_seed(1)
        assert torch.equal(model.training_loss(batch_of(ids, floats, target), VALUES), loss)


def test_a_binary_target_gives_logits_of_the_clipped_value():
    model = build()
    ids, floats, target = table()
    labels = (target > 3).float()
    model.remember(ids, floats, [labels])
    values = model.eval()(ids, floats)
    assert values.max() > 0.999  # so that the clipping is tested
    model.training_loss(batch_of(ids, floats, labels), TargetLoss([("binary", 1)]))
    torch.testing.assert_close(torch.sigmoid(model(ids, floats)), values.clamp(0.001, 0.999))


def test_spec_and_stored_rows_round_trip():
    from safetensors.torch import load, save

    model = build(max_rows_per_user=9, kept="random").eval()
    ids, floats, _ = table(seed=2)
    spec = ModelSpec("gplvmf", INPUTS, GPLVMFSettings(max_rows_per_user=9, kept="random"))
    again = ModelSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec
    weights = load(save({name: tensor.contiguous() for name, tensor in model.state_dict().items()}))
    copied = again.build().eval()
    copied.load_state_dict(weights)
    assert torch.equal(copied(ids, floats), model(ids, floats))
    assert copied.rows.most_rows == 9
    weights["rows.targets"] = weights["rows.targets"][:-1]
    with pytest.raises(RuntimeError, match=r"24 of ids, 24 of floats and 23 targets do not fit offsets that end at 24"):
        again.build().load_state_dict(weights)


def test_a_row_optimizer_moves_the_rows_of_the_users_alone():
    model = build(users_per_step=1)
    ids, floats, target = table()
    user = int(ids[0, 0])
    own = ids[ids[:, 0] == user]
    optimizer = build_optimizer(model, "lamb", lr=0.1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.training_loss(batch_of(ids, floats, target), VALUES).backward()
    optimizer.step()
    for module, places in (("means", (2, 3, 4)), ("log_deviations", (2, 3, 4)), ("biases", (0, 1, 2, 3, 4))):
        for number, place in enumerate(places):
            name = f"{module}.tables.{number}"
            moved = (model.state_dict()[name] != before[name]).any(1).nonzero()[:, 0]
            assert moved.tolist() == own[:, place].long().unique().tolist(), name


def test_relevance_is_by_column():
    model = build()
    with torch.no_grad():
        model.log_relevance.copy_(torch.tensor([0.1, 0.2, 1.0, 2.0, 5.0, 6.0, 9.0]).log())
    found = model.relevance()
    assert found.ids == pytest.approx({2: 0.3, 3: 3.0, 4: 11.0})
    assert found.floats == pytest.approx({1: 9.0})


def test_what_cannot_be():
    ids, floats, target = table()
    new = ModelSpec("gplvmf", INPUTS, GPLVMFSettings()).build()
    with pytest.raises(ModelError, match="no rows are remembered"):
        new.training_loss(batch_of(ids, floats, target), VALUES)
    with pytest.raises(ModelError, match="no rows to remember"):
        new.remember(ids[:0], floats[:0], [target[:0]])
    with pytest.raises(ModelError, match=r"the targets of all rows are alike.* not from drawn negatives"):
        new.remember(ids, floats, [torch.ones(len(ids))])
    with pytest.raises(ModelError, match="one target is needed, 2 are given"):
        new.remember(ids, floats, [target, target])
    broken = build()
    with torch.no_grad():
        broken.log_signal.fill_(math.nan)
    assert broken.training_loss(batch_of(ids, floats, target), VALUES).isnan()
    with pytest.raises(ModelError, match="not positive definite in float32"):
        broken.eval()(ids, floats)


def planted(seed):
    """1,500 ratings of 30 users: every user likes items by an own wave over item, weather and the first float; the
    weekday and the second float are noise."""
    random = np.random.default_rng(seed)
    user = np.repeat(np.arange(30), 50)
    item, weather, weekday = (random.integers(0, size, 1500) for size in (12, 4, 5))
    floats = random.normal(size=(1500, 2))
    taste, phase = random.normal(size=(30, 3)), random.uniform(0, 2 * math.pi, 30)
    angle = taste[user, 0] * random.normal(size=12)[item] + 1.5 * taste[user, 1] * random.normal(size=4)[weather]
    wave = np.sin(angle + taste[user, 2] * floats[:, 0] + phase[user])
    rating = 3 + 0.5 * random.normal(size=30)[user] + 0.5 * random.normal(size=12)[item] + wave
    rating += 0.2 * random.normal(size=1500)
    order = random.permutation(1500)
    ids = torch.from_numpy(np.stack([user, item, weather, weekday], axis=1)[order]).int()
    return ids, torch.from_numpy(floats[order]).float(), torch.from_numpy(rating[order]).float()


def rmse(predicted, target):
    return float((predicted - target).double().square().mean().sqrt())


def test_finds_the_contexts_that_matter_and_beats_biases():
    inputs = ModelInputs((30, 12, 4, 5), 2, 1, user=EntityColumns(0, (0,)), item=EntityColumns(1, (1,)))
    ids, floats, target = planted(seed=0)
    train, test = slice(0, 1200), slice(1200, 1500)
    torch.manual_seed(0)
    model = ModelSpec("gplvmf", inputs, GPLVMFSettings()).build()
    model.remember(ids[train], floats[train], [target[train]])
    optimizer = build_optimizer(model, "adamw", lr=0.03, weight_decay=0.0)
    for _ in range(40):
        for places in torch.randperm(1200).split(240):
            optimizer.zero_grad()
            model.training_loss(batch_of(ids[places], floats[places], target[places]), VALUES).backward()
            optimizer.step()
    relevance = model.relevance()
    assert relevance.ids[2] > 20 * relevance.ids[3], relevance
    assert relevance.floats[0] > 20 * relevance.floats[1], relevance
    found = rmse(model.eval()(ids[test], floats[test])[:, 0], target[test])

    hot = [torch.nn.functional.one_hot(ids[:, c].long(), size) for c, size in enumerate(inputs.num_ids)]
    x, y = torch.cat([*hot, floats], dim=1).double(), (target - target[train].mean()).double()
    ridge = torch.linalg.solve(x[train].T @ x[train] + torch.eye(x.shape[1]), x[train].T @ y[train])
    biases = rmse(x[test] @ ridge, y[test])
    assert found < 0.75 * biases, (found, biases)


def test_the_loss_on_any_device_equals_that_on_a_cpu(any_device):
    """Where users are not made distinct; with q(x) so narrow that draws hardly differ."""
    ids, floats, target = table()
    model = build(deviation=1e-6)
    batch = batch_of(ids, floats, target)
    expected, outputs = model.training_loss(batch, VALUES).item(), model.eval()(ids, floats)
    model.to(any_device)
    moved = batch_of(ids.to(any_device), floats.to(any_device), target.to(any_device))
    assert model.training_loss(moved, VALUES).item() == pytest.approx(expected, rel=1e-4)
    torch.testing.assert_close(model(moved.ids, moved.floats).cpu(), outputs, rtol=1e-4, atol=1e-4)
