"""List columns in the models of the shelf: against tables trained densely by torch, in both kinds of gradients."""

import json
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional

from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import EntityColumns, ListInputs, ModelInputs
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.layers.pooled import POOLINGS, taken_lists
from gigabatch.models.model import require_fit
from gigabatch.models.optimizers.row_optimizer import RowOptimizer
from gigabatch.models.shelf import MODELS, ModelSpec, model_class

# sasrec looks at a single list and has no table of another (recommenders/test_sasrec.py).
TAKING = [name for name in MODELS if model_class(name).takes_lists and name != "sasrec"]


class Lists(NamedTuple):
    ids: torch.Tensor
    offsets: torch.Tensor
    weights: torch.Tensor | None = None


LISTS = (
    Lists(torch.tensor([1, 1, 3, 6], dtype=torch.int32), torch.tensor([0, 2, 2, 4, 4])),
    Lists(torch.tensor([0, 4], dtype=torch.int32), torch.tensor([0, 0, 1, 1, 2]), torch.tensor([2.0, -1.0])),
)
INPUTS = ModelInputs((5, 7), 2, 2, lists=(ListInputs(7, shares=1), ListInputs(6, weighted=True)))
OF_ENTITIES = ModelInputs((5, 7), 2, 1, EntityColumns(0, (0,)), EntityColumns(1, (1,)), lists=INPUTS.lists)
IDS, FLOATS = torch.tensor([[1, 6], [4, 0], [2, 3], [0, 1]], dtype=torch.int32), torch.randn(4, 2)


@pytest.mark.parametrize("pooling", ["sum", "mean", "root"])
def test_a_table_shared_with_an_id_column_moves_as_one_of_torchs_does(pooling):
    """Rows 1, 3 and 6 occur in both: a step by each source alone would be another with momentum or AdaGrad."""
    torch.manual_seed(1)
    tables = EmbeddingTables((5, 7), (3, 4, 2), lists=INPUTS.lists, pooling=pooling)
    plain = [nn.Parameter(table.detach().clone()) for table in tables.weights]
    rows = RowOptimizer([tables], lr=0.1, method="adagrad", second_moment="full", eps=1e-10)
    dense = torch.optim.Adagrad(plain, lr=0.1, eps=1e-10)
    direction = torch.randn(4, 13)
    for _ in range(3):
        first, second = LISTS
        # One element a list: the sum over its absolute weight, over the root of it, or as it is.
        power = {"sum": 0.0, "mean": 1.0, "root": 0.5}[pooling]
        weights = second.weights / second.weights.abs() ** power
        of_rows = torch.tensor([0.5**0.5, 1.0, 0.5**0.5, 1.0])[:, None] if pooling == "root" else 1.0  # 2, 0, 2, 0
        wanted = torch.cat(
            [
                *(functional.embedding(IDS[:, place].long(), plain[place]) for place in range(2)),
                of_rows * functional.embedding_bag(
                    first.ids.long(), plain[1], first.offsets, mode="mean" if pooling == "mean" else "sum",
                    include_last_offset=True,
                ),
                functional.embedding_bag(
                    second.ids.long(), plain[2], second.offsets, mode="sum", per_sample_weights=weights,
                    include_last_offset=True,
                ),
            ],
            dim=1,
        )  # fmt: skip
        found = tables(IDS, LISTS)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
        for outputs, optimizer in ((found, rows), (wanted, dense)):
            optimizer.zero_grad()
            (outputs * direction).square().sum().backward()
            optimizer.step()
    for one, other in zip(tables.weights, plain, strict=True):
        torch.testing.assert_close(one.detach(), other.detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", TAKING)
def test_both_kinds_of_gradients_give_the_same_outputs_and_dense_gradients(name):
    torch.manual_seed(2)
    inputs = OF_ENTITIES if model_class(name).entities else INPUTS
    model = ModelSpec(name, inputs, model_class(name).Settings()).build().eval()
    modules = [module for module in model.modules() if isinstance(module, EmbeddingTables)]
    for module in modules:
        for table in module.weights:
            nn.init.normal_(table)
    dense = model(IDS, FLOATS, LISTS)
    dense.square().sum().backward()
    grads = {table: table.grad.clone() for module in modules for table in module.weights}
    assert any(float(grads[module.weights[2]].abs().sum()) > 0 for module in modules if len(module.weights) > 2)
    model.zero_grad()
    for module in modules:
        module.gradients = "rows"
    outputs = model(IDS, FLOATS, LISTS)
    torch.testing.assert_close(outputs, dense, rtol=1e-5, atol=1e-5)
    before = {table: table.detach().clone() for table in grads}
    optimizer = RowOptimizer(modules, lr=1.0, method="sgd")
    model(IDS, FLOATS, LISTS).square().sum().backward()
    optimizer.step()
    for table, gradient in grads.items():
        torch.testing.assert_close(before[table] - table.detach(), gradient, rtol=1e-3, atol=1e-4)
    with torch.inference_mode():
        others = (Lists(LISTS[0].ids + 0, torch.tensor([0, 0, 2, 3, 4])), LISTS[1])
        assert not torch.equal(model(IDS, FLOATS, others), model(IDS, FLOATS, LISTS))


PLAIN = ModelInputs((5, 7), 2, 2, lists=(ListInputs(7, shares=1), ListInputs(6)))
PLAIN_OF_ENTITIES = replace(PLAIN, num_outputs=1, user=EntityColumns(0, (0,)), item=EntityColumns(1, (1,)))


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("name", [name for name in TAKING if name != "din"])  # which weighs the elements
def test_a_list_counts_as_one_id_whose_row_is_what_torch_makes_of_its_rows(name, pooling):
    torch.manual_seed(4)
    inputs = PLAIN_OF_ENTITIES if model_class(name).entities else PLAIN
    model = ModelSpec(name, inputs, model_class(name).Settings(pooling=pooling)).build().eval()
    reduced = {
        "sum": lambda rows: rows.sum(0), "mean": lambda rows: rows.mean(0), "max": lambda rows: rows.amax(0),
        "root": lambda rows: rows.sum(0) / 3**0.5,
    }  # fmt: skip
    for module in model.modules():
        for table in module.weights if isinstance(module, EmbeddingTables) else ():
            with torch.no_grad():
                table.normal_()
                table[5 if len(table) > 5 else 4] = reduced[pooling](table[[1, 2, 2]])
    ids, floats = IDS[:2].clone(), FLOATS[:2]
    several = [Lists(torch.tensor([1, 2, 2], dtype=torch.int32), torch.tensor([0, 3, 3]))] * 2
    one = [Lists(torch.tensor([5], dtype=torch.int32), torch.tensor([0, 1, 1]))] * 2
    other = [Lists(torch.tensor([3], dtype=torch.int32), torch.tensor([0, 1, 1]))] * 2
    with torch.inference_mode():
        found = model(ids, floats, several)
        torch.testing.assert_close(found, model(ids, floats, one), rtol=1e-5, atol=1e-5)
        assert not torch.allclose(found[0], model(ids, floats, other)[0], rtol=1e-3)


@pytest.mark.parametrize("name", TAKING)
def test_bundles_of_before_there_was_a_choice_take_means_and_an_unknown_pooling_is_refused(name):
    inputs = OF_ENTITIES if model_class(name).entities else INPUTS
    spec = ModelSpec(name, inputs, model_class(name).Settings(pooling="sum"))
    saved = json.loads(json.dumps(spec.to_dict(), allow_nan=False))
    assert ModelSpec.from_dict(saved) == spec
    del saved["settings"]["pooling"]
    assert ModelSpec.from_dict(saved).settings.pooling == "mean"
    with pytest.raises(ModelError, match="unknown pooling 'least'"):
        model_class(name).Settings(pooling="least")
    with pytest.raises(ModelError, match="Take sum or mean"):
        ModelSpec(name, inputs, model_class(name).Settings(pooling="max")).build()


def test_a_gate_of_finalmlp_sees_the_lists_of_its_entity_alone():
    """List 0 shares column 1's vocabulary, which is the item's; in the user's gate it has a table of its own."""
    lists = (ListInputs(7, shares=1), ListInputs(7, shares=2), ListInputs(3))
    user, item = EntityColumns(0, (0,), (0,), lists=(0, 1)), EntityColumns(1, (1,))
    inputs = ModelInputs((5, 7), 2, user=user, item=item, lists=lists)
    torch.manual_seed(5)
    model = ModelSpec("finalmlp", inputs, model_class("finalmlp").Settings(embedding_dim=4)).build().eval()
    gates = model.first_selection, model.second_selection
    sizes = [[len(table) for table in gate.fields.tables.weights] for gate in gates]
    assert sizes == [[5, 7], [7]]
    carried = model.origins(model, [torch.full((size,), place) for place, size in enumerate((5, 7, 7, 7, 3))])
    assert [int(carried[table][0]) for gate in gates for table in gate.fields.tables.weights] == [0, 2, 1]
    for gate in gates:
        for table in gate.fields.tables.weights:
            nn.init.normal_(table)
    given = [LISTS[0], LISTS[0], Lists(LISTS[1].ids * 0, LISTS[1].offsets)]
    weights = [gate(IDS, FLOATS, given) for gate in gates]
    for place, seen in ((0, [True, False]), (1, [True, False]), (2, [False, False])):
        changed = list(given)
        changed[place] = Lists((given[place].ids + 1) % 3, given[place].offsets)
        found = [not torch.equal(gate(IDS, FLOATS, changed), old) for gate, old in zip(gates, weights, strict=True)]
        assert found == seen


def test_crosses_of_wide_deep_stand_between_the_ids_and_the_lists():
    """Each table of the wide part is the terms of its own column: a row of it moves the output by itself."""
    lists = (ListInputs(4), ListInputs(4, shares=2), ListInputs(7, shares=1))
    inputs = ModelInputs((5, 7), 1, lists=lists)
    torch.manual_seed(6)
    model = ModelSpec("wide_deep", inputs, model_class("wide_deep").Settings(crosses=[[0, 1]], layers=(4,))).build()
    tables = model.eval().wide.tables
    assert [len(table) for table in tables.weights] == [5, 7, 35, 4]
    own = Lists(torch.tensor([1, 2, 2]), torch.tensor([0, 0, 2, 2, 3]))
    given = [own, Lists(torch.tensor([3]), torch.tensor([0, 1, 1, 1, 1])), LISTS[0]]
    with torch.inference_mode():
        before = model(IDS, FLOATS[:, :1], given)
        for place, table in enumerate(tables.weights):
            table.copy_(10.0**place * torch.arange(len(table))[:, None])
        terms = model(IDS, FLOATS[:, :1], given) - before
    pooled = [[3.0, 1.5, 0.0, 2.0], [1.0, 0.0, 4.5, 0.0]]  # of the lists 0 and 1 together, and of list 2
    wanted = [
        one + 10 * other + 100 * (7 * one + other) + 1000 * pooled[0][row] + 10 * pooled[1][row]
        for row, (one, other) in enumerate(IDS.tolist())
    ]
    torch.testing.assert_close(terms[:, 0], torch.tensor(wanted), rtol=1e-5, atol=1e-2)
    carried = model.origins(model, [torch.arange(size) for size in (5, 7, 4, 4, 7)])
    assert [len(carried[table]) for table in tables.weights] == [5, 7, 35, 4]


def test_realmlp_starts_from_rows_with_their_lists():
    """Each unit of the first layer has deviation 1 over the rows it started from (numpy's deviation)."""
    torch.manual_seed(7)
    inputs = ModelInputs((5,), 1, lists=(ListInputs(6, weighted=True),))
    model = ModelSpec("realmlp", inputs, model_class("realmlp").Settings(layers=(8,), numeric="plain")).build()
    number = (1 << 14) * 2 + 5  # more than it looks at
    lengths = torch.randint(0, 4, (number,))
    offsets = nn.functional.pad(lengths.cumsum(0), (1, 0))
    total = int(offsets[-1])
    lists = Lists(torch.randint(0, 6, (total,)), offsets, torch.rand(total) + 0.1)
    ids, floats = torch.randint(0, 5, (number, 1)), torch.randn(number, 1)
    model.remember(ids, floats, (), [lists])
    units = []
    model.layers[0].register_forward_hook(lambda module, args, output: units.append(output))
    with torch.inference_mode():
        model.eval()(ids, floats, [lists])
    deviations = units[0].numpy().std(axis=0)
    assert abs(deviations - 1).max() < 0.05
    taken = taken_lists(lists, torch.tensor([7, 7, 0]))
    rows = [lists.ids[offsets[place] : offsets[place + 1]].tolist() for place in (7, 7, 0)]
    assert [list(part) for part in taken.ids.split(taken.offsets.diff().tolist())] == rows
    assert taken.weights.tolist() == [
        value for place in (7, 7, 0) for value in lists.weights[offsets[place] : offsets[place + 1]].tolist()
    ]


def test_members_of_tabm_start_with_one_number_for_each_list():
    torch.manual_seed(8)
    model = ModelSpec("tabm", INPUTS, model_class("tabm").Settings(layers=(8,))).build()
    widths = [len(table[0]) for table in model.tables.weights]
    parts = model.columns.weight.split([*widths[:2], widths[1], widths[2], 1, 1], dim=1)  # list 0 has column 1's width
    assert all(torch.equal(part, part[:, :1].expand_as(part)) for part in parts)
    assert all(not torch.equal(one[:, 0], next_one[:, 0]) for one, next_one in pairwise(parts))
    with pytest.raises(ModelError, match="embedding_widths has 2 entries for 3 tables of id columns and lists"):
        ModelSpec("tabm", INPUTS, model_class("tabm").Settings(embedding_widths=(2, 2))).build()


def test_the_folded_pass_and_the_plain_one_of_tabular_learn_the_same():
    grown = []
    for folded in (True, False):
        torch.manual_seed(3)
        model = ModelSpec("tabular", INPUTS, model_class("tabular").Settings(layers=(8,))).build()
        model.folded = folded
        optimizer = RowOptimizer([model.embeddings], lr=0.5, method="sgd")
        assert model.folding_obstacle() is None
        model(IDS, FLOATS, LISTS).square().sum().backward()
        optimizer.step()
        grown.append([table.detach().clone() for table in model.embeddings.weights])
    for one, other in zip(*grown, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_other_models_say_that_they_take_no_lists():
    inputs = replace(INPUTS, user=EntityColumns(0, (0,)), item=EntityColumns(1, (1,)))
    others = sorted(name for name in MODELS if not model_class(name).takes_lists)
    assert "ease" in others
    for name in others:
        with pytest.raises(ModelError, match="no use for list columns"):
            require_fit(model_class(name), name, inputs)


def test_inputs_go_to_json_and_back_and_stay_as_they_were_without_lists():
    assert ModelInputs.from_dict(INPUTS.to_dict()) == INPUTS
    assert "lists" not in ModelInputs((5,), 1).to_dict()
    with pytest.raises(ModelError, match="shares the vocabulary"):
        ModelInputs((5,), 1, lists=(ListInputs(7, shares=0),))


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ((), "2 list columns, found 0"),
        ((LISTS[0], Lists(*LISTS[1][:2])), "a weight for each id"),
        ((Lists(LISTS[0].ids, torch.tensor([0, 3, 2, 4, 4])), LISTS[1]), "must ascend"),
        ((Lists(LISTS[0].ids, torch.tensor([0, 3, 4])), LISTS[1]), "5 offsets"),
    ],
)
def test_lists_that_do_not_fit_are_refused(lists, message):
    model = ModelSpec("dcn", INPUTS, model_class("dcn").Settings()).build()
    with pytest.raises(ModelError, match=message):
        model(IDS, FLOATS, lists)


def test_lists_of_neither_user_nor_item_are_context():
    lists = (ListInputs(7, shares=1), ListInputs(4), ListInputs(3))
    user, item = EntityColumns(0, (0,)), EntityColumns(1, (1,), lists=(1,))
    inputs = ModelInputs((5, 7), 0, user=user, item=item, lists=lists)
    assert inputs.context_lists == (0, 2)
    saved = json.loads(json.dumps(inputs.to_dict(), allow_nan=False))
    assert ModelInputs.from_dict(saved) == inputs
    assert "lists" not in saved["user"]
    with pytest.raises(ModelError, match="lies outside 2 ids, 0 floats and 1 lists"):
        ModelInputs((5, 7), 0, item=EntityColumns(1, (1,), lists=(1,)), lists=lists[:1])
