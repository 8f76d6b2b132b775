"""DCT against a slow loop in NumPy: sums, residuals, thresholds; activations that cross; hooks, states, NaN."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gigabatch.models.errors import ModelError
from gigabatch.models.kernels import using_kernels
from gigabatch.models.parallel.dct import SparseGradients, ThresholdedExchange, ddp_hook
from gigabatch.models.parallel.des import substitute
from gigabatch.models.parallel.exchange import Exchange
from gigabatch.models.parallel.ranks import Ranks
from tests.models.parallel.spread import backward, batches, built, part
from tests.models.parallel.together import together

SHAPES = {"weight": (40, 30), "bias": (40,), "wide": (7, 100)}


def gradients_of(rank, step):
    """Of heavy tails, so that a few are large; smaller at later steps, as in training."""
    draw = np.random.default_rng([rank, step])
    return {name: (draw.standard_t(2, shape) / (1 + step)).astype(np.float32) for name, shape in SHAPES.items()}


def slow(num_ranks, num_steps, drop, refresh):
    """By step the sums, and the residuals at the end, of one element after another."""
    residuals = [{name: [0.0] * int(np.prod(shape)) for name, shape in SHAPES.items()} for _ in range(num_ranks)]
    thresholds = [{} for _ in range(num_ranks)]
    sums = []
    for step in range(num_steps):
        total = {name: [0.0] * int(np.prod(shape)) for name, shape in SHAPES.items()}
        for rank in range(num_ranks):
            for name, gradient in gradients_of(rank, step).items():
                flat = [
                    np.float32(g) + np.float32(e) for g, e in zip(gradient.flat, residuals[rank][name], strict=True)
                ]
                if len(flat) < 256:
                    total[name] = [a + b for a, b in zip(total[name], flat, strict=True)]
                    continue
                keep = max(1, round(len(flat) * (1 - drop)))
                order = sorted(range(len(flat)), key=lambda i: -abs(flat[i]))
                if step % refresh == 0:
                    thresholds[rank][name] = abs(flat[order[keep - 1]])
                sent = {i for i in range(len(flat)) if abs(flat[i]) >= thresholds[rank][name]}
                if len(sent) > 2 * keep:
                    sent = set(order[:keep])
                    thresholds[rank][name] = abs(flat[order[keep - 1]])
                for i in range(len(flat)):
                    if i in sent:
                        total[name][i] += flat[i]
                    residuals[rank][name][i] = 0.0 if i in sent else flat[i]
        sums.append(total)
    return sums, residuals


def reduced(ranks, num_steps, settings):
    compression = SparseGradients(ranks, **settings)
    sums = []
    for step in range(num_steps):
        gradients = {name: torch.tensor(one) for name, one in gradients_of(ranks.rank, step).items()}
        compression.reduce(gradients)
        sums.append({name: one.flatten().numpy() for name, one in gradients.items()})
    residuals = {name: one.numpy() for name, one in compression.residuals.items()}
    return sums, residuals, dict(ranks.traffic.bytes)


@pytest.mark.parametrize(("num_ranks", "refresh"), [(2, 4), (3, 1)])
def test_sums_and_residuals_are_those_of_a_slow_loop(num_ranks, refresh, tmp_path):
    settings = {"drop": 0.97, "refresh_steps": refresh}
    told = together(reduced, num_ranks, tmp_path, 9, settings)
    sums, residuals = slow(num_ranks, 9, 0.97, refresh)
    for rank, (found, kept, _) in enumerate(told):
        for step, expected in enumerate(sums):
            for name, values in expected.items():
                np.testing.assert_allclose(found[step][name], values, rtol=1e-5, atol=1e-6)
                assert (found[step][name] == told[0][0][step][name]).all()  # the same bits on all ranks
        assert sorted(kept) == ["weight", "wide"]
        for name, values in kept.items():
            np.testing.assert_allclose(values, residuals[rank][name], rtol=1e-5, atol=1e-6)
    assert any(abs(one).max() > 0 for one in residuals[0].values() for one in [np.array(one)])


@pytest.mark.parametrize("values", ["float32", "bfloat16", "float16"])
def test_error_feedback_conserves_the_sum(values, tmp_path):
    """What was sent and what is kept is all that ever came, rounding included."""
    told = together(reduced, 2, tmp_path, 12, {"drop": 0.99, "refresh_steps": 5, "values": values})
    for name in ("weight", "wide"):
        came = sum(gradients_of(rank, step)[name].astype(np.float64) for rank in range(2) for step in range(12))
        sent = sum(step[name].astype(np.float64) for step in told[0][0])
        kept = sum(residuals[name].astype(np.float64) for _, residuals, _ in told)
        np.testing.assert_allclose(sent + kept, came.flatten(), atol=2e-5)
        assert abs(sent - came.flatten()).max() > 0.1  # which without the residuals is not so


def plain(ranks):
    found = []
    for settings in ({"drop": 0.0}, {"drop": 0.9, "dense_below": 10_000}):
        gradients = {name: torch.tensor(one) for name, one in gradients_of(ranks.rank, 0).items()}
        flat = ranks.all_reduce(torch.cat([one.flatten() for one in gradients.values()]), "plain")
        SparseGradients(ranks, **settings).reduce(gradients)
        found.append(bool((torch.cat([one.flatten() for one in gradients.values()]) == flat).all()))
    return found


def test_dropping_nothing_is_a_plain_all_reduce(tmp_path):
    assert together(plain, 2, tmp_path) == [[True, True]] * 2


def test_bytes_of_a_step(tmp_path):
    """Of 1,900 elements 19 are sent a step at first; 2 bytes of place at most, and 2 of value."""
    (_, _, sent), _ = together(reduced, 2, tmp_path, 1, {"drop": 0.99, "values": "bfloat16"})
    assert 19 * 3 <= sent["all_gather", "sparse gradients"] <= 19 * 4
    assert sent["all_reduce", "gradients"] == 4 * 40
    assert sent["all_gather", "counts"] == 8 * 8


def with_equal_elements(ranks):
    """All elements alike, so all are at the threshold; then a step of zeros, which has none to send."""
    compression = SparseGradients(ranks, drop=0.99, refresh_steps=3)
    counts = []
    for value in (1.0, 0.0, 0.0, 0.0):
        ranks.traffic.clear()
        gradients = {"weight": torch.full((1000,), value)}
        compression.reduce(gradients)
        counts.append(int((gradients["weight"] != 0).sum()))
    return counts, ranks.traffic.total


def test_equal_elements_are_cut_and_zeros_are_not_sent(tmp_path):
    assert together(with_equal_elements, 2, tmp_path)[0][0] == [10] * 4


def poisoned(ranks, bad):
    compression = SparseGradients(ranks, drop=0.9, refresh_steps=2)
    found = []
    for step in range(4):
        gradients = {name: torch.tensor(one) for name, one in gradients_of(ranks.rank, step).items()}
        if step == 2 and ranks.rank == 1:
            gradients["bias" if bad == "small" else "weight"].view(-1)[5] = float("inf" if bad == "inf" else "nan")
        before = {name: one.clone() for name, one in compression.residuals.items()}
        compression.reduce(gradients)
        if step == 2:
            found.append(all(one.isnan().all() for one in gradients.values()))
            found.append(all(torch.equal(one, compression.residuals[name]) for name, one in before.items()))
        else:
            found.append(all(one.isfinite().all() for one in gradients.values()))
    found.append(all(one.isfinite().all() for one in compression.residuals.values()))
    return [bool(one) for one in found], compression.steps["weight"]


@pytest.mark.parametrize("bad", ["nan", "inf", "small"])
def test_a_step_that_is_not_finite_is_one_for_all_and_leaves_nothing(bad, tmp_path):
    assert together(poisoned, 2, tmp_path, bad) == [([True] * 6, 3)] * 2


def with_other_weights(ranks, sizes):
    """Rank r has gradients of these numbers of elements by name, two steps long."""
    compression, found = SparseGradients(ranks), []
    for _ in range(2):
        try:
            compression.reduce({name: torch.ones(size) for name, size in sizes[ranks.rank].items()})
            found.append("summed")
        except ModelError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ([{"a": 1000}, {"a": 1000, "b": 10}], "gradients of other weights, of 1000, 1010 elements"),
        ([{"a": 1000}, {"b": 1000}], "gradients of other weights, of 1000, 1000 elements"),
        ([{"a": 300, "b": 400}, {"a": 400, "b": 300}], "gradients of other weights, of 700, 700 elements"),
        ([{}, {"a": 1000}], "gradients of other weights, of 0, 1000 elements"),  # whose next step would meet this one
    ],
)
def test_ranks_with_gradients_of_other_weights_are_an_error_on_all(sizes, told, tmp_path):
    for found in together(with_other_weights, 2, tmp_path, sizes):
        assert len(found) == 2
        assert all(told in one for one in found)


def in_any_order(ranks):
    names = ("a", "b")[:: 1 if ranks.rank else -1]
    values = {"a": torch.arange(300.0), "b": -torch.arange(300.0)}
    gradients = {name: values[name].clone() for name in names}
    compression = SparseGradients(ranks, drop=0.0, dense_below=0)
    compression.reduce(gradients)
    compression.reduce({})
    return all(torch.equal(gradients[name], 2 * values[name]) for name in names)


def test_names_may_come_in_any_order_and_all_ranks_may_have_none(tmp_path):
    assert together(in_any_order, 2, tmp_path) == [True, True]


def saved(ranks):
    compression = SparseGradients(ranks, drop=0.95, refresh_steps=4)
    for step in range(3):
        compression.reduce({name: torch.tensor(one) for name, one in gradients_of(ranks.rank, step).items()})
    state = compression.state_dict()
    gone_on = {name: torch.tensor(one) for name, one in gradients_of(ranks.rank, 3).items()}
    compression.reduce(gone_on)
    again = SparseGradients(ranks, drop=0.95, refresh_steps=4)
    again.load_state_dict(state)
    resumed = {name: torch.tensor(one) for name, one in gradients_of(ranks.rank, 3).items()}
    again.reduce(resumed)
    same = all(torch.equal(one, resumed[name]) for name, one in gone_on.items())
    return same, {name: {k: np.asarray(v) for k, v in one.items()} for name, one in state.items()}


def loaded(ranks, state):
    compression = SparseGradients(ranks, drop=0.95, refresh_steps=4)
    compression.load_state_dict(
        {
            name: {
                "residuals": torch.tensor(one["residuals"]),
                "thresholds": torch.tensor(one["thresholds"]),
                "steps": 3,
            }
            for name, one in state.items()
        }
    )
    kept = ranks.all_reduce(compression.residuals["weight"].clone(), "kept")
    gradients = {name: torch.tensor(one) for name, one in gradients_of(ranks.rank, 3).items()}
    compression.reduce(gradients)
    return kept.numpy(), bool(gradients["weight"].isfinite().all())


def test_states_go_on_bit_for_bit_and_on_other_numbers_of_ranks(tmp_path):
    told = together(saved, 2, tmp_path)
    assert [same for same, _ in told] == [True, True]
    state = told[0][1]
    assert (state["weight"]["residuals"] == told[1][1]["weight"]["residuals"]).all()
    for kept, finite in together(loaded, 3, tmp_path, state):
        np.testing.assert_allclose(kept, state["weight"]["residuals"].sum(0), atol=1e-5)
        assert finite


def through_ddp(ranks):
    """Largest difference to the hook's work done by hand, over steps of a small network."""
    torch.manual_seed(0)
    network, same = (nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 1)) for _ in range(2))
    same.load_state_dict(network.state_dict())
    replica = DistributedDataParallel(network)
    settings = {"drop": 0.9, "refresh_steps": 2}
    replica.register_comm_hook(None, ddp_hook(SparseGradients(ranks, **settings), network))
    by_hand, off = SparseGradients(ranks, **settings), 0.0
    for step in range(4):
        rows = torch.randn(8, 20, generator=torch.Generator().manual_seed(10 * step + ranks.rank))
        for module in (replica, same):
            module.zero_grad()
            module(rows).square().mean().backward()
        by_hand.reduce({name: parameter.grad for name, parameter in same.named_parameters()})
        for ours, theirs in zip(same.parameters(), network.parameters(), strict=True):
            off = max(off, float((ours.grad / ranks.num_ranks - theirs.grad).abs().max()))
            with torch.no_grad():
                ours -= 0.1 * theirs.grad
                theirs -= 0.1 * theirs.grad
    return off, float(network[0].weight.grad.abs().max())


def test_the_hook_of_ddp(tmp_path):
    for off, size in together(through_ddp, 2, tmp_path):
        assert off < 1e-6
        assert size > 1e-4


def kept_by_ddp(ranks, state):
    """Mean gradient of equal rows on all ranks, which two ranks send the large half of, or what goes on from there."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 20), nn.Linear(20, 15))
    replica = DistributedDataParallel(network)
    compression = SparseGradients(ranks, drop=0.9, dense_below=1)
    if state is not None:
        compression.load_state_dict(torch.load(state))
    replica.register_comm_hook(None, ddp_hook(compression, network))
    found = []
    for step in range(2 if state is None else 1):
        network.zero_grad()
        rows = torch.randn(8, 20, generator=torch.Generator().manual_seed(step))
        replica(rows).square().mean().backward()
        found.append([parameter.grad.clone() for parameter in network.parameters()])
    return [sum(parts).numpy() for parts in zip(*found, strict=True)], compression.state_dict()


def test_what_ddp_has_not_sent_is_sent_on_another_number_of_ranks(tmp_path):
    """Of one rank all is sent at once: with the steps before, the sum of the whole gradients of all steps."""
    (whole, _), *_ = together(kept_by_ddp, 1, tmp_path, None)
    (sent, state), *_ = together(kept_by_ddp, 2, tmp_path, None)
    assert len(state) == 6
    assert any(one["residuals"].any() for one in state.values())
    torch.save(state, tmp_path / "state")
    torch.save({}, tmp_path / "nothing")
    (last, left), *_ = together(kept_by_ddp, 1, tmp_path, tmp_path / "state")
    (first, _), *_ = together(kept_by_ddp, 1, tmp_path, tmp_path / "nothing")
    assert left == {}
    for parts in zip(whole, sent, last, first, strict=True):
        np.testing.assert_allclose(parts[1] + parts[2] - parts[3], parts[0], atol=1e-6)


SEND = [[1, 3], [2, 4]]  # rows from a rank to a rank


def crossing(ranks, drop, values):
    """What comes of own rows, and the gradient that comes back of a given one; rows are drawn by rank."""
    exchange = ThresholdedExchange(ranks, drop=drop, refresh_steps=2, values=values)
    send, receive = SEND[ranks.rank], [row[ranks.rank] for row in SEND]
    found = []
    for step in range(3):
        rows = torch.tensor(rows_of(ranks.rank, step), requires_grad=True)
        out = exchange.all_to_all(rows, send, receive, "rows")
        out.backward(torch.tensor(gradient_of(ranks.rank, step)))
        found.append((out.detach().numpy(), rows.grad.numpy()))
    return found


def rows_of(rank, step):
    return np.random.default_rng([rank, step, 1]).normal(size=(sum(SEND[rank]), 6)).astype(np.float32)


def gradient_of(rank, step):
    return np.random.default_rng([rank, step, 2]).normal(size=(sum(row[rank] for row in SEND), 6)).astype(np.float32)


def test_activations_that_cross_are_those_of_a_slow_loop(tmp_path):
    told = together(crossing, 2, tmp_path, 0.75, "float32")
    thresholds = [0.0, 0.0]
    for step in range(3):
        sent, masks = {}, {}
        for rank in range(2):
            other = 1 - rank
            first = 0 if rank == 1 else SEND[0][0]
            cross = rows_of(rank, step)[first : first + SEND[rank][other]]
            keep = max(1, round(cross.size * 0.25))
            order = sorted(abs(cross).flat, reverse=True)
            if step % 2 == 0:
                thresholds[rank] = order[keep - 1]
            mask = abs(cross) >= thresholds[rank]
            if mask.sum() > 2 * keep:
                thresholds[rank] = order[keep - 1]
                mask = abs(cross) >= thresholds[rank]
            sent[rank], masks[rank] = np.where(mask, cross, 0), mask
        for rank in range(2):
            own = rows_of(rank, step)[: SEND[0][0]] if rank == 0 else rows_of(rank, step)[SEND[1][0] :]
            came = [own, sent[1]] if rank == 0 else [sent[0], own]
            np.testing.assert_array_equal(told[rank][step][0], np.concatenate(came))
            back = gradient_of(1 - rank, step)  # the other's, for the rows that this one sent
            back = back[: SEND[0][1]] if rank == 0 else back[SEND[0][0] :]
            back = np.where(masks[rank], back, 0)
            stayed = gradient_of(rank, step)[: SEND[0][0]] if rank == 0 else gradient_of(rank, step)[SEND[0][1] :]
            expected = [stayed, back] if rank == 0 else [back, stayed]
            np.testing.assert_array_equal(told[rank][step][1], np.concatenate(expected))


def as_whole(ranks, layouts):
    """Without a share to drop the exchange is the plain one; with one, outputs differ, and not in evaluation."""
    batch = part(batches(1, 40)[0], ranks.rank, ranks.num_ranks)
    found = []
    for exchange in (Exchange(ranks), ThresholdedExchange(ranks, drop=0.0), ThresholdedExchange(ranks, drop=0.8)):
        model = built("deepfm")
        substitute(model, ranks, batch[0], layouts, exchange=exchange)
        with using_kernels("reference"):
            trained = backward(model, batch, 40)
            with torch.no_grad():
                evaluated = model(*batch[:2])
        found.append((trained, evaluated))
    plain, whole, thinned = found
    return [
        torch.equal(plain[0], whole[0]),
        torch.equal(plain[1], thinned[1]),
        bool((plain[0] - thinned[0]).abs().max() > 1e-4),
        bool((plain[0] - thinned[0]).abs().max() < 1),
    ]


@pytest.mark.parametrize("layouts", [{"linear": "rows", "fields": "rows"}, {"linear": "des", "fields": "dense"}])
def test_models_train_through_a_thinned_exchange_and_are_evaluated_whole(layouts, tmp_path):
    assert together(as_whole, 2, tmp_path, layouts) == [[True] * 4] * 2


def test_one_rank_alone_keeps_nothing():
    compression = SparseGradients(Ranks(), drop=0.99)
    compression.reduce({"weight": torch.ones(1000)})
    assert not compression.residuals


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"drop": 1.0}, "drop"),
        ({"drop": -0.1}, "drop"),
        ({"refresh_steps": 0}, "refresh_steps"),
        ({"values": "int8"}, "int8"),
    ],
)
@pytest.mark.parametrize("kind", [SparseGradients, ThresholdedExchange])
def test_settings_that_cannot_be_are_refused(kind, settings, told):
    with pytest.raises(ModelError, match=told):
        kind(Ranks(), **settings)
