"""Vectors of floats against plain loops over the papers' formulas."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from gigabatch.models.click.lr import LogisticRegression
from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.kernels import using_kernels
from gigabatch.models.layers.fields import FieldEmbeddings, InputRow, LinearTerms
from gigabatch.models.layers.numeric import LOOP_ROWS, NumericEmbedding, checked_numeric
from gigabatch.models.optimizers.param_groups import split_parameters
from gigabatch.models.tabular.tabular import TabularModel

EDGES = ((-1.0, 0.0, 0.5, 3.0), (), (2.0, 10.0))
INPUTS = ModelInputs(num_ids=(5,), num_floats=3, float_edges=EDGES)
FLOATS = torch.tensor([[-9.0, 1, 1], [-1, 2, 2], [-0.25, 3, 4], [0.5, 4, 10], [2.0, 5, 11], [99.0, 6, 5]])


def encoded(value, edges):
    """The paper's piecewise-linear encoding of one value, clipped at the outermost edges."""
    return [min(max((value - low) / (high - low), 0), 1) for low, high in pairwise(edges)]


def test_bins_are_the_paper_s_encoding_and_a_linear_layer():
    embedding = NumericEmbedding(INPUTS, "bins", 4)
    assert embedding.places == (0, 2)
    columns = []
    for row, column in enumerate((0, 2)):
        parts = torch.tensor([encoded(value, EDGES[column]) for value in FLOATS[:, column].tolist()])
        columns.append(parts @ embedding.weight[row, : parts.shape[1]])
    wanted = torch.stack(columns, dim=1)
    assert torch.allclose(embedding(FLOATS), wanted, atol=1e-6)
    gradient = torch.randn_like(wanted)
    (mine,) = torch.autograd.grad((embedding(FLOATS) * gradient).sum(), embedding.weight)
    (theirs,) = torch.autograd.grad((wanted * gradient).sum(), embedding.weight)
    assert torch.allclose(mine, theirs, atol=1e-5)
    assert (embedding.of_all(FLOATS)[:, [0, 2]] == embedding(FLOATS)).all()
    assert (embedding.of_all(FLOATS)[:, 1] == 0).all()


def test_the_compiled_loops_and_torch_agree():
    torch.manual_seed(3)
    edges = tuple(tuple(sorted(set(torch.randn(size).tolist()))) for size in (2, 3, 49, 17))
    embedding = NumericEmbedding(ModelInputs((), 4, float_edges=edges), "bins", 8)
    floats = torch.cat(
        [torch.randn(2_000, 4) * 1.5, torch.tensor([[one[-1] for one in edges], [one[0] for one in edges]])]
    )
    gradient = torch.randn(2_002, 4, 8)
    found = {}
    for choice in ("compiled", "reference"):
        with using_kernels(choice):
            out = embedding(floats)
            found[choice] = out.detach(), *torch.autograd.grad((out * gradient).sum(), embedding.weight)
    assert "_Interpolated" in str(embedding(floats).grad_fn)
    assert torch.allclose(found["compiled"][0], found["reference"][0], atol=1e-6)
    assert torch.allclose(found["compiled"][1], found["reference"][1], atol=1e-3)
    with torch.no_grad():
        assert torch.equal(embedding(floats), found["reference"][0])  # as a service computes a few rows


def test_many_rows_are_evaluated_by_the_loops_that_train():
    torch.manual_seed(3)
    edges = tuple(tuple(sorted(set(torch.randn(size).tolist()))) for size in (2, 49))
    embedding = NumericEmbedding(ModelInputs((), 2, float_edges=edges), "bins", 8)
    floats = torch.randn(LOOP_ROWS, 2)
    trained = embedding(floats).detach()
    with torch.no_grad():
        assert torch.equal(embedding(floats), trained)
        with using_kernels("reference"):
            plain = embedding(floats)
    assert not torch.equal(plain, trained)
    assert torch.allclose(plain, trained, atol=1e-6)


def test_a_value_on_an_edge_and_its_neighbours_are_in_order():
    embedding = NumericEmbedding(ModelInputs((), 1, float_edges=((0.0, 1 / 3, 1.0),)), "bins", 1)
    torch.nn.init.ones_(embedding.weight)
    edge = np.float32(1 / 3)
    values = torch.tensor([np.nextafter(edge, np.float32(0)), edge, np.nextafter(edge, np.float32(1))])[:, None]
    assert embedding(values).flatten().diff().ge(0).all()
    assert embedding(values)[1].item() == 1.0


def test_periodic_is_the_paper_s_formula():
    embedding = NumericEmbedding(INPUTS, "periodic", 3)
    found = embedding(FLOATS)
    assert found.shape == (6, 3, 3)
    angles = [2 * math.pi * c * FLOATS[2, 1].item() for c in embedding.frequencies[1].tolist()]
    waves = torch.tensor([math.cos(a) for a in angles] + [math.sin(a) for a in angles])
    assert torch.allclose(found[2, 1], torch.relu(embedding.linear(waves)), atol=1e-5)


NAMED = ModelInputs((5,), 4, float_edges=(*EDGES, (0.0, 9.0)), float_names=("a", "b", "c", "d"))


@pytest.mark.parametrize("kernels", ["compiled", "reference"])
def test_each_column_is_what_it_would_be_among_columns_of_its_kind_alone(kernels):
    """a by waves, b (no edges) and d by bins, c plain."""
    mixed = NumericEmbedding(NAMED, {"c": "plain", "a": "periodic", "*": "bins"}, 4)
    assert mixed.places == (0, 3)
    waves = NumericEmbedding(ModelInputs((), 1), "periodic", 4)
    waves.load_state_dict({name: weight for name, weight in mixed.state_dict().items() if name != "weight"})
    bins = NumericEmbedding(ModelInputs((), 1, float_edges=((0.0, 9.0),)), "bins", 4)
    bins.load_state_dict({"weight": mixed.weight})
    floats = torch.cat([FLOATS, FLOATS[:, :1] + 3], dim=1)
    with using_kernels(kernels):
        found, of_all = mixed(floats), mixed.of_all(floats)
    assert torch.equal(found[:, 0], waves(floats[:, :1])[:, 0])
    assert torch.allclose(found[:, 1], bins(floats[:, 3:])[:, 0], atol=1e-6)
    assert torch.allclose(of_all[:, [0, 3]], found, atol=1e-6)
    assert (of_all[:, [1, 2]] == 0).all()
    assert torch.equal(mixed(floats, waves_of=floats / 2)[:, 0], waves(floats[:, :1] / 2)[:, 0])
    before = found.detach()
    mixed.shrink(0.5)
    assert torch.allclose(mixed(floats), before / 2, atol=1e-6)  # of a ReLU of a linear layer too


def test_kinds_by_name_say_what_the_others_are():
    assert checked_numeric({"a": "periodic"}, "bins") == {"a": "periodic", "*": "bins"}
    assert checked_numeric({"a": "periodic", "*": "plain"}, "bins") == {"a": "periodic", "*": "plain"}
    assert checked_numeric({"*": "periodic"}, "bins") == "periodic"
    assert LogisticRegression.Settings(numeric={"a": "bins"}).numeric == {"a": "bins", "*": "plain"}
    assert TabularModel.Settings(numeric={}).numeric == "bins"


def test_kinds_and_columns_that_are_not_there_are_refused():
    with pytest.raises(ModelError, match=r"unknown numeric of 'a' 'wave'\. Known: plain, bins, periodic"):
        TabularModel.Settings(numeric={"a": "wave"})
    with pytest.raises(ModelError, match=r"unknown numeric of lr 'periodic'\. Known: plain, bins"):
        LogisticRegression.Settings(numeric={"a": "periodic"})
    with pytest.raises(ModelError, match=r"unknown float column of numeric 'e'\. Known: a, b, c, d"):
        TabularModel(NAMED, TabularModel.Settings(numeric={"e": "plain", "a": "periodic"}))
    with pytest.raises(ModelError, match="the inputs do not name their float columns"):
        TabularModel(INPUTS, TabularModel.Settings(numeric={"a": "periodic"}))
    with pytest.raises(ModelError, match="float_names must be 3 different names"):
        ModelInputs((5,), 3, float_names=("a", "b", "a"))


def test_plain_and_inputs_without_edges_have_no_weight_and_draw_nothing():
    for inputs, kind in ((INPUTS, "plain"), (ModelInputs((5,), 3), "bins")):
        state = torch.get_rng_state()
        embedding = NumericEmbedding(inputs, kind, 4)
        assert torch.equal(torch.get_rng_state(), state)
        assert not list(embedding.parameters())
        assert embedding(FLOATS).shape == (6, 0, 4)


@pytest.mark.parametrize("edges", [((0.0,), (), ()), ((1.0, 1.0), (), ()), ((2.0, 1.0), (), ()), ((0.0, 1.0),)])
def test_edges_that_cannot_be_are_refused(edges):
    with pytest.raises(ModelError, match="float_edges"):
        ModelInputs((5,), 3, float_edges=edges)


def test_inputs_with_edges_go_to_json_and_those_without_are_as_they_were():
    assert ModelInputs.from_dict(INPUTS.to_dict()) == INPUTS
    assert "float_edges" not in ModelInputs((5,), 3).to_dict()


def test_fields_rows_and_linear_terms_add_the_vectors():
    ids = torch.zeros(6, 1, dtype=torch.int32)
    fields = FieldEmbeddings(INPUTS, 4, numeric="bins").eval()
    plain = fields.float_norm(FLOATS)[:, :, None] * fields.float_vectors
    assert torch.allclose(fields(ids, FLOATS)[:, 1:], plain + fields.numeric.of_all(FLOATS))
    row = InputRow(INPUTS, 4, True, "bins", 2).eval()
    assert row(ids, FLOATS).shape == (6, row.width) == (6, 4 + 3 + 4)
    terms = LinearTerms(INPUTS, numeric="bins").eval()
    assert (terms(ids, FLOATS) == 0).all()
    torch.nn.init.normal_(terms.numeric.weight)
    assert torch.allclose(terms(ids, FLOATS), terms.numeric(FLOATS).sum(1))


@pytest.mark.parametrize("kind", ["bins", "periodic"])
@pytest.mark.parametrize("num_ids", [(5, 40), ()])
def test_the_folded_pass_trains_the_vectors_as_the_plain_one(kind, num_ids):
    inputs = ModelInputs(num_ids, 3, float_edges=EDGES)
    settings = TabularModel.Settings(layers=(16, 8), numeric=kind, numeric_width=4)
    model = TabularModel(inputs, settings)
    ids = (
        torch.stack([torch.randint(size, (64,)) for size in num_ids], 1).int() if num_ids else torch.zeros(64, 0).int()
    )
    floats = torch.randn(64, 3) * 3
    found = {}
    for folded in (True, False):
        model.folded = folded
        model.embeddings.gradients = "rows"
        model.train().zero_grad(set_to_none=True)
        assert model.folding_obstacle() is None
        model(ids, floats).square().sum().backward()
        found[folded] = {
            name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None
        }
        model.embeddings.row_gradients.clear()
    assert found[True].keys() == found[False].keys()
    assert any(name.startswith("numeric") for name in found[True])
    for name, gradient in found[True].items():
        assert torch.allclose(gradient, found[False][name], atol=2e-4, rtol=1e-3), name


def test_bins_of_linear_terms_are_linear_terms_to_an_optimizer():
    model = LogisticRegression(INPUTS, LogisticRegression.Settings(numeric="bins"))
    split = split_parameters(model)
    assert [id(weight) for weight in split.linear] == [id(model.linear.float_weights), id(model.linear.numeric.weight)]
    assert not split.decayed


def test_a_gradient_of_a_gradient_is_that_of_plain_torch():
    """The compiled loops' gradient was a constant to the second pass, without a word."""
    inputs = ModelInputs(num_ids=(), num_floats=2, float_edges=((0.0, 1.0, 3.0), (-1.0, 0.0, 0.5, 2.0)))
    torch.manual_seed(0)
    embedding, floats = NumericEmbedding(inputs, "bins", width=3), 2 * torch.randn(50, 2)
    found = []
    for kernels in ("compiled", "reference"):
        with using_kernels(kernels):
            loss = embedding(floats).sin().sum()
            (first,) = torch.autograd.grad(loss, [embedding.weight], create_graph=True)
            found.append((first, *torch.autograd.grad(first.square().sum(), [embedding.weight])))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
