"""DES against one process that holds whole tables: outputs, gradients, ten steps, states; what it refuses."""

import copy

import pytest
import torch

from gigabatch.models.click.autoint import AutoInt
from gigabatch.models.click.lr import LogisticRegression
from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.kernels import using_kernels
from gigabatch.models.optimizers.registry import build_optimizer
from gigabatch.models.parallel.data_parallel import DataParallel
from gigabatch.models.parallel.des import Router, RowsOfRank, substitute
from gigabatch.models.parallel.des_tables import SubstitutedTables
from gigabatch.models.parallel.ranks import Ranks
from tests.models.parallel.spread import SIZES, backward, batches, built, optimizer_of, part, sum_gradients
from tests.models.parallel.together import together

NUM_ROWS = 37  # of all ranks: ranks have unequal parts
LAYOUTS = [
    ("lr", {"linear": "des"}, 1),
    ("lr", {"linear": "rows"}, 1),
    ("fm", {"linear": "des", "fields": "pairs"}, 1),
    ("fm", {"linear": "des", "fields": "pairs"}, 3),
    ("fm", {"linear": "rows", "fields": "fields"}, 1),
    ("deepfm", {"linear": "des", "fields": "dense"}, 1),
    ("deepfm", {"linear": "des", "fields": "dense"}, 2),
    ("deepfm", {"linear": "rows", "fields": "rows"}, 1),
    ("dlrm", {"fields": "fields"}, 1),
    ("dlrm", {"fields": "rows"}, 1),
    ("lr", {"linear": "rows"}, 3),
    ("deepfm", {"linear": "rows", "fields": "rows"}, 2),
]


def as_one_process(ranks, name, layouts, outputs, num_steps):
    """Largest differences to a model with whole tables that takes the whole batch, in this process too."""
    steps = batches(num_steps, NUM_ROWS)
    whole, model = built(name, num_outputs=outputs), built(name, num_outputs=outputs)
    layout = substitute(model, ranks, part(steps[0], ranks.rank, ranks.num_ranks)[0], layouts)
    optimizers = optimizer_of(whole), optimizer_of(model)
    found = {"chosen": layout.chosen, "outputs": 0.0, "gradients": 0.0}
    for batch in steps:
        for optimizer in optimizers:
            optimizer.zero_grad()
        expected = backward(whole, batch, NUM_ROWS)
        own = backward(model, part(batch, ranks.rank, ranks.num_ranks), NUM_ROWS)
        off = (own - expected.tensor_split(ranks.num_ranks)[ranks.rank]).abs().max()
        found["outputs"] = max(found["outputs"], float(off))
        named = dict(whole.named_parameters())
        sum_gradients(ranks, model)
        for place, parameter in model.named_parameters():
            if parameter.grad is not None:
                found["gradients"] = max(found["gradients"], float((parameter.grad - named[place].grad).abs().max()))
        for optimizer in optimizers:
            optimizer.step()
    state, expected = layout.state_dict(), whole.state_dict()
    found["names"] = sorted(state) == sorted(expected)
    found["weights"] = max(float((state[key].double() - expected[key].double()).abs().max()) for key in expected)
    found["moved"] = float(
        (
            expected[next(iter(layout.homes)) + ".tables.1"]
            - built(name, num_outputs=outputs).state_dict()[next(iter(layout.homes)) + ".tables.1"]
        )
        .abs()
        .max()
    )
    return found


def several(ranks, layouts, num_steps, kernels):
    with using_kernels(kernels):
        return [as_one_process(ranks, *one, num_steps) for one in layouts]


def require_equal(told, layouts):
    for found in told:
        for one, (name, chosen, _) in zip(found, layouts, strict=True):
            assert one["chosen"] == chosen, name
            assert one["names"], (name, chosen)
            assert one["outputs"] < 2e-5, (name, chosen, one)
            assert one["gradients"] < 2e-6, (name, chosen, one)
            assert one["weights"] < 5e-5, (name, chosen, one)
            assert one["moved"] > 0.01, (name, chosen, one)


@pytest.mark.parametrize(
    ("num_ranks", "chosen", "num_steps"),
    [(2, [0, 2, 5], 10), (2, [1, 3, 4, 6, 7, 8, 9, 10, 11], 2), (4, [2], 10), (8, [5], 10)],
)
def test_steps_are_those_of_one_process(num_ranks, chosen, num_steps, tmp_path):
    layouts = [LAYOUTS[place] for place in chosen]
    kernels = "compiled" if num_steps == 10 and num_ranks == 2 else "reference"  # eight processes load numba for long
    require_equal(together(several, num_ranks, tmp_path, layouts, num_steps, kernels), layouts)


def with_idle_ranks(ranks):
    """A batch whose rows are all on the last rank, evaluated; and a step of a table that not every rank has rows of."""
    batch = batches(1, 5)[0]
    own = batch if ranks.rank == ranks.num_ranks - 1 else tuple(tensor[:0] for tensor in batch)
    found = []
    dense = {"linear": "des", "fields": "dense"}
    for name, layouts in (("deepfm", dense), ("fm", {"linear": "rows", "fields": "rows"})):
        model = built(name)
        expected = model(*batch[:2]).detach()[: len(own[0])]
        substitute(model, ranks, own[0], layouts)
        with torch.no_grad():
            out = model(*own[:2])
        found.append((out.shape == (len(own[0]), 1), float((out - expected).abs().sum())))
    for layouts in ({"linear": "des"}, {"linear": "rows"}):
        small, whole = (LogisticRegression(ModelInputs((2,), 0), LogisticRegression.Settings()) for _ in range(2))
        layout = substitute(small, ranks, own[0][:, :1], layouts)
        for model, part_of in ((small, own), (whole, batch)):
            optimizer = optimizer_of(model)
            backward(model, (part_of[0][:, :1].clamp(max=1), part_of[1][:, :0], part_of[2]), 5)
            if model is small:
                sum_gradients(ranks, model)
            optimizer.step()
        moved, expected = layout.state_dict()["linear.tables.tables.0"], whole.linear.tables.weights[0].detach()
        found.append((bool(expected.abs().max() > 0.01), float((moved - expected).abs().sum())))
    return found


def test_ranks_without_rows_take_part(tmp_path):
    for found in together(with_idle_ranks, 3, tmp_path):
        assert all(right and off < 1e-5 for right, off in found), found


def first_sums_of(ranks, layouts):
    """Of each column the sums of squares of whole tables after a step, of which the least are untouched rows'."""
    model = built("fm")
    batch = batches(1, NUM_ROWS)[0]
    if layouts:
        layout = substitute(model, ranks, batch[0], layouts)
        batch = part(batch, ranks.rank, ranks.num_ranks)
    optimizer = optimizer_of(model)
    backward(model, batch, NUM_ROWS)
    optimizer.step()
    if not layouts:
        return [optimizer.state[table]["exp_avg_sq"].tolist() for table in model.fields.tables.weights]
    rows = layout.homes["fields.tables"]
    return [table.tolist() for table in rows.whole(optimizer.state[rows.tables[0]]["exp_avg_sq"])]


def test_each_column_begins_with_its_own_sum_of_squares_as_on_one_rank(tmp_path):
    expected = first_sums_of(Ranks(), None)
    for found in together(first_sums_of, 2, tmp_path, {"linear": "des", "fields": "rows"}):
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(torch.tensor(one), torch.tensor(other), rtol=1e-4, atol=0)
    assert len({min(column)[0] for column in expected}) == len(SIZES)


def saved(ranks):
    """States and moments of whole tables after two steps."""
    model = built("fm")
    steps = batches(2, NUM_ROWS)
    layout = substitute(model, ranks, steps[0][0], {"linear": "des", "fields": "rows"})
    optimizer = optimizer_of(model, initial_visits=0)
    for batch in steps:
        optimizer.zero_grad()
        backward(model, part(batch, ranks.rank, ranks.num_ranks), NUM_ROWS)
        sum_gradients(ranks, model)
        optimizer.step()
    moments = {
        home: [table.tolist() for table in rows.whole(optimizer.state[rows.tables[0]]["exp_avg_sq"])]
        for home, rows in layout.homes.items()
    }
    return {name: value.tolist() for name, value in layout.state_dict().items()}, moments


def loaded(ranks, state):
    """The state of a new layout that was given another's."""
    model = built("fm", seed=7)
    layout = substitute(model, ranks, batches(1, 9)[0][0], {"linear": "rows", "fields": "pairs"})
    layout.load_state_dict({name: torch.tensor(value) for name, value in state.items()})
    rows = layout.homes["fields.tables"]
    again = rows.whole(rows.own([torch.arange(float(size))[:, None] for size in SIZES]))
    ordered = all(table.flatten().tolist() == list(range(size)) for table, size in zip(again, SIZES, strict=True))
    return {name: value.tolist() for name, value in layout.state_dict().items()}, ordered


def test_states_of_two_ranks_go_on_on_three(tmp_path):
    (state, moments), (other, _) = together(saved, 2, tmp_path)
    assert state == other
    shapes = [(len(table), len(table[0])) for table in moments["fields.tables"]]
    assert shapes == [(size, 1) for size in SIZES]  # Adagrad's, one number a row
    touched = {column: set() for column in range(len(SIZES))}
    for ids, _, _ in batches(2, NUM_ROWS):
        for column in touched:
            touched[column] |= set(ids[:, column].tolist())
    for column, table in enumerate(moments["fields.tables"]):
        assert {row for row, (moment,) in enumerate(table) if moment > 0} == touched[column]
    for found, ordered in together(loaded, 3, tmp_path, state):
        assert found == state
        assert ordered
    whole = built("fm", seed=3)
    whole.load_state_dict({name: torch.tensor(value) for name, value in state.items()})


def test_a_state_that_does_not_fit_is_refused():
    layout = substitute(built("fm"), Ranks(), batches(1, 4)[0][0])
    state = layout.state_dict()
    with pytest.raises(ModelError, match=r"lacks fields\.tables\.tables\.2"):
        layout.load_state_dict({name: value for name, value in state.items() if name != "fields.tables.tables.2"})
    with pytest.raises(ModelError, match="new is there once only"):
        layout.load_state_dict({**state, "new": torch.zeros(1)})


@pytest.mark.parametrize("layouts", [{"linear": "des", "fields": "pairs"}, {"linear": "rows", "fields": "rows"}])
@pytest.mark.parametrize(("wrong", "told"), [(17, "from 0 to 17"), (-1, "from -1 to 4")])
def test_an_id_outside_its_table_is_named(layouts, wrong, told):
    model = built("fm")
    ids, floats, _ = batches(1, 4)[0]
    substitute(model, Ranks(), ids, layouts)
    ids[:, 2] = torch.tensor([0, 1, 4, wrong])
    with pytest.raises(IndexError, match=f"column 2 holds ids {told}, its table has 17 rows"):
        model(ids, floats)


def test_ids_of_a_batch_whose_memory_is_filled_again_are_read_anew():
    model, whole = built("fm"), built("fm")
    first, second = batches(2, 6)
    substitute(model, Ranks(), first[0], {"linear": "des", "fields": "pairs"})
    ids = first[0].clone()
    model(ids, first[1])
    ids.numpy()[:] = second[0].numpy()  # as a loader's compiled loop does, which torch does not see
    torch.testing.assert_close(model(ids, second[1]), whole(second[0], second[1]))


def test_what_cannot_be_spread_is_refused_by_name():
    inputs = ModelInputs(SIZES, 0)
    ids = batches(1, 4)[0][0]
    with pytest.raises(ModelError, match="AutoInt: DES knows the operators of lr, fm, deepfm and dlrm"):
        substitute(AutoInt(inputs, AutoInt.Settings()), Ranks(), ids)
    with pytest.raises(ModelError, match=r"unknown layout of fields 'dense'\. Known: rows, fields, pairs"):
        substitute(built("fm"), Ranks(), ids, {"fields": "dense"})
    with pytest.raises(ModelError, match="unknown operator 'pairs'"):
        substitute(built("fm"), Ranks(), ids, {"pairs": "des"})
    model = built("fm")
    substitute(model, Ranks(), ids)
    with pytest.raises(ModelError, match="rowwise=True"):
        build_optimizer(model, "lamb", lr=0.1, rowwise=False)


def test_no_random_number_is_drawn_and_no_graph_is_captured():
    model = built("fm")
    state = torch.get_rng_state()
    substitute(model, Ranks(), batches(1, 4)[0][0])
    assert torch.equal(torch.get_rng_state(), state)
    assert "host reads" in model.capture_obstacle
    assert built("fm").capture_obstacle is None


def measured(ranks, name, layouts, num_rows):
    """Bytes of a step by what was sent, and what the layout foretold."""
    batch = part(batches(1, num_rows * ranks.num_ranks)[0], ranks.rank, ranks.num_ranks)
    model = built(name)
    layout = substitute(model, ranks, batch[0], layouts)
    ranks.traffic.clear()
    with using_kernels("reference"):
        backward(model, batch, num_rows)
    return ranks.traffic.total, layout.num_bytes, layout.chosen


@pytest.mark.parametrize("layouts", [{"linear": "des", "fields": "dense"}, {"linear": "rows", "fields": "rows"}])
def test_bytes_are_those_foretold(layouts, tmp_path):
    told = together(measured, 3, tmp_path, "deepfm", layouts, 1000)
    sent = sum(one[0] for one in told) / 3
    assert sent == pytest.approx(told[0][1], rel=0.05)
    assert sent > 2000
    assert len({str(one[1:]) for one in told}) == 1  # all ranks agree


@pytest.mark.parametrize(
    ("num_rows", "chosen"), [(6, {"linear": "des", "fields": "pairs"}), (200, {"linear": "rows", "fields": "rows"})]
)
def test_the_layout_follows_from_bytes(num_rows, chosen, tmp_path):
    """Of two ranks with 6 rows each, some 22 distinct rows of 4 and 1 numbers come and go (22 (2 + 4 4 + 4) = 484), FM
    and LR sum to 6 numbers a row (6 48 + 66 = 354); of 200 rows all 101 of the tables, and 9,600 bytes of sums."""
    assert [one[2] for one in together(measured, 2, tmp_path, "fm", None, num_rows)] == [chosen] * 2


def test_rows_of_a_column_smaller_than_the_ranks():
    class Fourth(Ranks):
        def __init__(self):
            super().__init__()
            self.rank, self.num_ranks = 3, 4

    rows = RowsOfRank(built("fm").fields.tables, Fourth())
    assert rows.starts[3].tolist() == [0, 0, 12, 16, 16, 23]  # ids 3, 7, ... of 3, 50, 17, 2 and 29
    assert rows.tables[0].shape == (23, 4)
    assert Router(SIZES, Fourth()).starts.tolist() == rows.starts.tolist()


def spread_alone(layouts):
    """An fm whose tables are spread over one rank."""
    model = built("fm")
    substitute(model, Ranks(), torch.zeros(3, len(SIZES), dtype=torch.int64), layouts)
    return model


def test_cowclip_is_refused_where_gradients_come_summed():
    with pytest.raises(ModelError, match="how often a row came"):
        build_optimizer(spread_alone({"linear": "rows", "fields": "rows"}), "cowclip", lr=0.1)
    build_optimizer(spread_alone({"linear": "des", "fields": "pairs"}), "cowclip", lr=0.1)


def test_spread_tables_are_not_summed_twice():
    model = spread_alone({"linear": "des", "fields": "pairs"})
    with pytest.raises(ModelError, match="by themselves"):
        DataParallel(Ranks(), build_optimizer(model, "lamb", lr=0.1), num_rows=4)


def test_frozen_tables_stay_frozen():
    model = built("fm")
    model.fields.tables.requires_grad_(False)
    layout = substitute(model, Ranks(), torch.zeros(3, len(SIZES), dtype=torch.int64))
    assert not layout.homes["fields.tables"].tables[0].requires_grad
    assert layout.homes["linear.tables"].tables[0].requires_grad
    model = built("fm")
    model.fields.tables.tables[1].requires_grad_(False)
    with pytest.raises(ModelError, match="freeze all or none"):
        substitute(model, Ranks(), torch.zeros(3, len(SIZES), dtype=torch.int64))


def copied(ranks):
    """Bytes that the copy of a spread model sends, as `ranks` counts them."""
    model = built("fm")
    substitute(model, ranks, torch.zeros(3, len(SIZES), dtype=torch.int64), {"linear": "des", "fields": "pairs"})
    other = copy.deepcopy(model)
    ranks.traffic.clear()
    other(torch.zeros(3, len(SIZES), dtype=torch.int64), torch.zeros(3, 2))
    return ranks.traffic.bytes["reduce_scatter", "linear"]


def test_what_a_copy_of_a_model_sends_counts(tmp_path):
    assert together(copied, 2, tmp_path) == [3 * 4] * 2  # (N - 1) / N of the numbers of both ranks' three rows


def test_undone_a_model_is_what_it_was():
    ids, floats = batches(1, 6)[0][:2]
    for name, layouts in (("lr", {"linear": "rows"}), ("deepfm", {"linear": "des", "fields": "dense"}), ("dlrm", None)):
        model, expected = built(name), built(name)
        layout = substitute(model, Ranks(), ids, layouts)
        whole = layout.state_dict()
        layout.undo()
        model.load_state_dict(whole)
        assert [(n, type(m)) for n, m in model.named_modules()] == [(n, type(m)) for n, m in expected.named_modules()]
        assert torch.equal(model(ids, floats), expected(ids, floats))
        assert model.capture_obstacle is None
        assert not model._forward_pre_hooks


def test_tables_that_were_not_moved_equally_often_are_refused():
    model = built("lr")
    tables = SubstitutedTables(substitute(model, Ranks(), torch.zeros(3, len(SIZES), dtype=torch.int64)), [])
    state = {
        f"linear.tables.tables.{column}": {"exp_avg_sq": torch.full((size, 1), column), "num_steps": torch.tensor(4.0)}
        for column, size in enumerate(SIZES)
    }
    (own,) = tables.own_moments(state).values()
    assert own["num_steps"] == 4
    assert own["exp_avg_sq"].flatten().tolist() == [c for c, size in enumerate(SIZES) for _ in range(size)]
    assert tables.own_moments({}) == {}  # before the first step
    for wrong in ({"exp_avg_sq": torch.zeros(50, 1), "num_steps": torch.tensor(5.0)}, {}):
        with pytest.raises(ModelError, match="not moved equally often"):
            tables.own_moments(state | {"linear.tables.tables.1": wrong})
