"""Sums of dense gradients: rounded on the way, by DCT where it sends less, and what a checkpoint leaves one rank."""

import logging

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from gigabatch.models.click.lr import LogisticRegression
from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.optimizers.registry import build_optimizer
from gigabatch.models.parallel.data_parallel import DataParallel
from gigabatch.models.parallel.dct import SparseGradients
from gigabatch.models.parallel.gradient_sums import AllReduced, describe, gradient_sums
from gigabatch.models.parallel.ranks import Ranks
from tests.models.parallel.together import together


def drawn(rank):
    draw = torch.Generator().manual_seed(rank)
    return {"weight": torch.randn(30, 40, generator=draw), "bias": torch.randn(30, generator=draw)}


def rounded_sums(ranks):
    found = {}
    for values in ("bfloat16", "float16"):
        gradients = drawn(ranks.rank)
        AllReduced(ranks, values).reduce(gradients)
        found[values] = gradients
    large = {"weight": torch.tensor([40_000.0, 1.0, 1e-8])}
    AllReduced(ranks, "float16").reduce(large)
    return found, large["weight"], dict(ranks.traffic.bytes)


def test_rounded_sums_are_those_of_rounded_numbers_and_the_same_on_all_ranks(tmp_path):
    told = together(rounded_sums, 2, tmp_path)
    for values, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        for name, first in drawn(0).items():
            expected = (first.to(dtype).double() + drawn(1)[name].to(dtype).double()).to(dtype)
            for found, _, _ in told:
                assert torch.equal(found[values][name], expected.float())
                assert found[values][name].dtype == torch.float32
    assert told[0][1].tolist() == [float("inf"), 2.0, 0.0]  # beyond 65,504, and below what float16 holds
    assert told[0][2] == {("all_reduce", "gradients"): 2 * (2 * 1230 + 3)}


def with_a_bad_rank(ranks):
    """A step in which rank 1 says that something of its own is not finite, between two that are."""
    sums, found = SparseGradients(ranks, drop=0.9, values="float32"), []
    for step in range(3):
        gradients = drawn(10 * step + ranks.rank)
        before = {name: one.clone() for name, one in sums.residuals.items()}
        sums.reduce(gradients, lambda step=step: torch.tensor(not (step == 1 and ranks.rank == 1)))
        kept = all(torch.equal(one, sums.residuals[name]) for name, one in before.items())
        found.append((all(bool(one.isnan().all()) for one in gradients.values()), kept))
    return found


def test_what_one_rank_sees_makes_the_step_one_of_none(tmp_path):
    """An owner alone knows the gradients of its rows, and a rank its loss before it is summed."""
    assert together(with_a_bad_rank, 2, tmp_path) == [[(False, True), (True, True), (False, False)]] * 2


def test_one_rank_takes_up_once_what_several_had_not_sent():
    sums = SparseGradients(Ranks())
    left = torch.arange(2400.0).view(2, 1200)
    one = {"residuals": left, "thresholds": torch.ones(2), "steps": 5}
    sums.load_state_dict({"weight": one})
    bad = drawn(0) | {"bias": torch.full((30,), float("nan"))}
    sums.reduce(bad)
    assert torch.equal(bad["weight"], drawn(0)["weight"])  # a step that will be skipped takes nothing
    sums.reduce(skipped := drawn(0), lambda: torch.tensor(False))
    assert torch.equal(skipped["weight"], drawn(0)["weight"])
    again = SparseGradients(Ranks())
    again.load_state_dict(sums.state_dict())  # a checkpoint in between keeps it
    for found, extra in ((drawn(0), left.sum(0).view(30, 40)), (drawn(0), torch.zeros(30, 40))):
        again.reduce(found)
        assert torch.equal(found["weight"], drawn(0)["weight"] + extra)
        assert torch.equal(found["bias"], drawn(0)["bias"])
    assert again.state_dict() == {}


def test_one_rank_takes_up_what_comes_in_several_buckets():
    sums = SparseGradients(Ranks())
    kept = {name: {"residuals": torch.ones(2, 1200), "thresholds": torch.ones(2), "steps": 5} for name in "ab"}
    sums.load_state_dict(kept)
    for expected in (2.0, 0.0):
        for name in "ba":
            sums.reduce(bucket := {name: torch.zeros(30, 40)})
            assert (bucket[name] == expected).all()


class Some(Ranks):
    """The first of so many ranks, which sends nothing here."""

    def __init__(self, num_ranks):
        super().__init__()
        self.num_ranks = num_ranks


def test_dct_is_refused_where_it_sends_more_and_warned_about_where_two_bytes_send_less(caplog):
    """Of a share p each of N ranks sends N - 1 others p (place + value) bytes; an all-reduce sends 8 (N - 1) / N."""
    caplog.set_level(logging.INFO)
    gradient_sums(Some(8), "dct", drop=0.99)  # 8 x .01 x (1.08 + 2) bytes against 8: 32 times fewer
    assert not caplog.records
    gradient_sums(Some(8), "dct", drop=0.8)  # 8 x (.2 x 2 + 1 / 8) = 4.2 bytes against 8
    (told,) = caplog.messages
    assert "on 8 ranks compress=dct with drop=0.8 sends 0.5" in told
    assert "compress=bfloat16 sends half" in told
    with pytest.raises(ModelError, match=r"sends 1\.12 times the bytes"):
        gradient_sums(Some(8), "dct", drop=0.5)  # 8 x (.5 x 2 + 1 / 8) = 9 bytes against 8
    with pytest.raises(ModelError, match="on 300 ranks"):
        gradient_sums(Some(300), "dct", drop=0.99)
    gradient_sums(Ranks(), "dct", drop=0.5)  # one rank sends nothing
    with pytest.raises(ModelError, match="compress"):
        gradient_sums(Ranks(), "powersgd")


def test_the_log_says_what_a_rank_sends():
    network = torch.nn.Sequential(torch.nn.Linear(500, 100, bias=False), torch.nn.Linear(100, 1, bias=False))
    optimizer = torch.optim.SGD(network.parameters())
    whole, half, sparse = (
        describe(gradient_sums(Some(2), compress), optimizer) for compress in ("none", "bfloat16", "dct")
    )
    assert "all-reduce as float32, 200.4 kB a step a rank" in whole  # 50,100 numbers: 2 (N - 1) / N 4 bytes each
    assert "all-reduce as bfloat16, 100.2 kB" in half
    assert "dct, drop 0.99 as bfloat16, about 1.9 kB" in sparse  # 500 of 3.08 bytes, and 100 whole
    assert "an all-reduce of float32 sends 200.4 kB" in sparse


def other_parameters_of_one_size(ranks, each_step):
    """A step in which each rank uses another of two layers of one shape (each_step: the next step the other one)."""
    model = torch.nn.ModuleList([torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)])
    parallel = DataParallel(ranks, build_optimizer(model, "adamw", lr=0.1), num_rows=4)
    try:
        for used in (0, 1) if each_step else (ranks.rank,):
            model.zero_grad(set_to_none=True)
            loss = model[used](torch.ones(2, 3)).mean()
            loss.backward()
            parallel.sum_gradients(loss.detach())
    except ModelError as error:
        return str(error)
    return None


@pytest.mark.parametrize(("each_step", "message"), [(False, "of other parameters"), (True, "changed between")])
def test_gradients_of_different_parameters_of_one_size_are_not_summed(tmp_path, each_step, message):
    """Two numbers of elements are equal where the parameters are not."""
    for told in together(other_parameters_of_one_size, 2, tmp_path, each_step):
        assert message in str(told)


def in_ddp(ranks, name, rowwise):
    """What torch's own replicas are told of a model's tables, or the weights after two steps on rows of each rank's."""
    torch.manual_seed(0)
    model = LogisticRegression(ModelInputs((9, 5), 0), LogisticRegression.Settings())
    optimizer = build_optimizer(model, name, lr=0.1, rowwise=rowwise)
    replica = DistributedDataParallel(model, find_unused_parameters=True)
    ids = torch.stack([torch.arange(4) + ranks.rank, torch.arange(4)], dim=1)
    try:
        for _ in range(2):
            optimizer.zero_grad()
            replica(ids, torch.empty(4, 0)).square().add(1).mean().backward()
            optimizer.step()
    except ModelError as error:
        return str(error)
    return torch.cat([table.detach().flatten() for table in model.parameters()]).numpy()


@pytest.mark.parametrize("name", ["lamb", "adamw"])
def test_ddp_of_torch_takes_gradients_of_whole_tables_alone(name, tmp_path):
    """Each rank moved its tables by its own rows, and they parted without a word."""
    for told in together(in_ddp, 2, tmp_path, name, True):
        assert told.startswith("embedding tables: DistributedDataParallel does not sum the gradients of rows")
    first, second = together(in_ddp, 2, tmp_path, name, False)
    assert (first == second).all()
