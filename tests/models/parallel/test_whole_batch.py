"""Batch norm, dropout and the folded pass of several ranks against the same on one: outputs, gradients, statistics."""

import copy

import pytest
import torch
from torch import nn

from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.kernels.dropout import cpu, reference
from gigabatch.models.layers.attention import attention
from gigabatch.models.layers.batch_norm import BatchNorm1d
from gigabatch.models.layers.dropout import Dropout
from gigabatch.models.parallel.data_parallel import part_of, require_equal
from gigabatch.models.tabular.tabular import TabularModel, TabularSettings
from gigabatch.models.whole_batch import using_ranks
from tests.models.parallel.together import together

ROWS = 23  # that neither 2 nor 3 divides


def passed(ranks, module, values):
    """Outputs of this rank's rows, gradients of inputs and parameters, running statistics."""
    first, stop = part_of(len(values), ranks.rank, ranks.num_ranks)
    own = values[first:stop].clone().requires_grad_()
    module = copy.deepcopy(module)
    torch.manual_seed(3)
    with using_ranks(ranks, len(values), first, stop - first):
        out = module(own)
        (out.flatten(1) * torch.arange(first, stop)[:, None].add(1).sqrt()).square().sum().backward()
    return out.detach(), own.grad, [p.grad for p in module.parameters()], list(module.buffers())


def norm_of(affine: bool) -> BatchNorm1d:
    norm = BatchNorm1d(4, affine=affine)
    if affine:
        nn.init.uniform_(norm.weight, 0.5, 2.0)
        nn.init.uniform_(norm.bias)
    return norm


def torchs(norm):
    """The weights and running statistics that torch's batch norm has too."""
    return {name: value for name, value in norm.state_dict().items() if name != "batch_rows"}


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_batch_norm_of_ranks_is_torchs_of_the_whole_batch(num_ranks, affine, tmp_path):
    torch.manual_seed(0)
    values = torch.randn(ROWS, 4) * torch.tensor([1.0, 5.0, 0.1, 30.0]) + torch.tensor([0.0, 50.0, -3.0, 1e3])
    norm = norm_of(affine)
    plain = nn.BatchNorm1d(4, affine=affine).double()
    plain.load_state_dict(torchs(norm))
    exact = values.double().requires_grad_()
    out = plain(exact)
    (out * torch.arange(ROWS)[:, None].add(1).sqrt()).square().sum().backward()
    told = together(passed, num_ranks, tmp_path, norm, values)
    close = {"rtol": 1e-4, "atol": 1e-4, "check_dtype": False}
    torch.testing.assert_close(torch.cat([part[0] for part in told]), out.detach(), **close)
    torch.testing.assert_close(torch.cat([part[1] for part in told]), exact.grad, **close)
    for place, parameter in enumerate(plain.parameters()):
        torch.testing.assert_close(sum(part[2][place] for part in told), parameter.grad, **close)
    for part in told:
        *running, rows = part[3]
        torch.testing.assert_close(running, list(plain.buffers()), **close)
        assert rows == ROWS


def test_batch_norm_of_one_process_is_torchs_to_the_bit():
    torch.manual_seed(0)
    values, norm = torch.randn(ROWS, 4), norm_of(True)
    plain = nn.BatchNorm1d(4)
    plain.load_state_dict(torchs(norm))
    assert torch.equal(norm(values), plain(values))
    assert torch.equal(norm.running_var, plain.running_var)


def test_masks_of_ranks_are_those_of_one(tmp_path):
    values = torch.ones(ROWS, 3, 5)
    torch.manual_seed(3)
    whole = Dropout(0.4)(values)
    told = together(passed, 3, tmp_path, Dropout(0.4), values)
    assert torch.equal(torch.cat([part[0] for part in told]), whole)
    assert torch.equal(torch.cat([part[1] for part in told]).bool(), whole.bool()), "the backward pass drops others"


@pytest.mark.parametrize("start", [0, 40, 2**31 - 2, 2**32 - 3, 2**33 + 5])
def test_elements_are_numbered_from_a_start_modulo_two_to_the_32(start):
    seed, values = torch.tensor([123456789, 3987654321]), torch.ones(7, 6)
    numbers = (torch.arange(42) + start) % 2**32
    hashes = reference._mixed(reference._mixed(numbers ^ seed[0]) ^ seed[1])
    expected = (hashes // 2 >= reference.threshold(0.5)).view(7, 6)
    for version in (reference, cpu):
        out = torch.empty(7, 6)
        version.dropout(values, out, seed, 0.5, start=start)
        assert torch.equal(out.bool(), expected), version.__name__


def test_dropout_of_other_rows_than_the_batchs_is_refused():
    with using_ranks(Two(), 8, 4, 4), pytest.raises(ModelError, match="one row a row of the batch, 4 here"):
        Dropout(0.5)(torch.ones(5, 2))


class Two:
    num_ranks = 2


def test_batch_norm_of_other_rows_than_the_batchs_is_refused():
    with using_ranks(Two(), 8, 4, 4), pytest.raises(ModelError, match="one row a row of the batch, 4 here, not 12"):
        BatchNorm1d(2)(torch.ones(12, 2))  # three tokens of each row: the sums are of 24 rows, not of 8


def test_dropout_of_a_type_without_a_kernel_is_refused():
    with using_ranks(Two(), 8, 4, 4), pytest.raises(ModelError, match="float64"):
        Dropout(0.5)(torch.ones(4, 2, dtype=torch.float64))


def drawn(ranks):
    """What is said of ranks before, and after one has drawn a number more; then of other weights."""
    torch.manual_seed(0)
    model, told = nn.Linear(2, 1), []
    for change in (lambda: None, lambda: torch.rand(1 + ranks.rank), lambda: model.bias.data.add_(ranks.rank)):
        change()
        try:
            require_equal(model, ranks)
            told.append("")
        except ModelError as error:
            told.append(str(error))
    return told


def test_ranks_whose_weights_or_random_numbers_part_are_told_so(tmp_path):
    for equal, random, weights in together(drawn, 2, tmp_path):
        assert equal == ""
        assert "different amounts of random numbers" in random
        assert "weights are no longer equal" in weights


def weighed(ranks, parts):
    """What this rank's rows take of values, and the gradients of all three."""
    first, stop = part_of(ROWS, ranks.rank, ranks.num_ranks)
    own = [part[first:stop].clone().requires_grad_() for part in parts]
    torch.manual_seed(3)
    with using_ranks(ranks, ROWS, first, stop - first):
        taken = attention(*own, dropout=0.4)
        (taken.flatten(1) * torch.arange(first, stop)[:, None].add(1).sqrt()).square().sum().backward()
    return [taken.detach(), *(part.grad for part in own)]


def test_attention_of_ranks_drops_what_that_of_one_drops(tmp_path):
    torch.manual_seed(0)
    parts = [torch.randn(ROWS, 2, 5, 3) for _ in range(3)]
    (one,) = together(weighed, 1, tmp_path, parts)
    told = together(weighed, 3, tmp_path, parts)
    for place, expected in enumerate(one):
        torch.testing.assert_close(torch.cat([part[place] for part in told]), expected)

    torch.manual_seed(3)  # number by number, with the mask that the hash of the dropout kernel says
    (seed,) = reference.draw_seeds(1, torch.device("cpu"))
    mask = reference.kept(seed, 0.4, ROWS * 2 * 5, 5).view(ROWS, 2, 5, 5).double()
    queries, keys, values = (part.double() for part in parts)
    logits = torch.einsum("bhqd,bhtd->bhqt", queries, keys).div(3**0.5).exp()
    weights = logits / logits.sum(3, keepdim=True) * mask / 0.6
    expected = torch.einsum("bhqt,bhtd->bhqd", weights, values)
    torch.testing.assert_close(one[0].double(), expected, rtol=1e-5, atol=1e-6)  # rounding of float32


def tabular(ranks, folded, ids, floats, state):
    first, stop = part_of(len(ids), ranks.rank, ranks.num_ranks)
    model = TabularModel(
        ModelInputs((7, 5), 3, 1), TabularSettings(layers=(16, 8), dropout=0.25, embedding_dropout=0.2)
    )
    model.load_state_dict(state)
    model.folded, model.embeddings.gradients = folded, "rows"
    torch.manual_seed(9)
    with using_ranks(ranks, len(ids), first, stop - first):
        out = model(ids[first:stop], floats[first:stop])
        (out[:, 0] * torch.linspace(-1, 2, len(ids))[first:stop]).sum().backward()
    (rows,) = model.embeddings.row_gradients
    return (
        out.detach(),
        rows.gradient.clone(),
        {name: p.grad for name, p in model.named_parameters() if p.grad is not None},
        model.state_dict(),
    )


@pytest.mark.parametrize("folded", [True, False])
def test_a_network_of_ranks_is_that_of_one(folded, tmp_path):
    torch.manual_seed(1)
    ids = torch.stack([torch.randint(size, (ROWS,)) for size in (7, 5)], dim=1).int()
    floats = torch.randn(ROWS, 3)
    like = TabularModel(ModelInputs((7, 5), 3, 1), TabularSettings(layers=(16, 8)))
    (one,) = together(tabular, 1, tmp_path, folded, ids, floats, like.state_dict())
    told = together(tabular, 3, tmp_path, folded, ids, floats, like.state_dict())
    close = {"rtol": 1e-4, "atol": 2e-6}
    torch.testing.assert_close(torch.cat([part[0] for part in told]), one[0], **close)
    torch.testing.assert_close(torch.cat([part[1] for part in told]), one[1], **close)
    for name, gradient in one[2].items():
        torch.testing.assert_close(sum(part[2][name] for part in told), gradient, **close)
    for part in told:
        torch.testing.assert_close(part[3], one[3], **close)
