"""Sharded tables on two and three gloo ranks against one process with whole tables and the whole batch."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.models.click.deepfm import DeepFM
from gigabatch.models.click.dlrm import DLRM
from gigabatch.models.click.wide_deep import WideDeep
from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import EntityColumns, ListInputs, ModelInputs
from gigabatch.models.kernels import using_kernels
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.optimizers.ema import WeightAverage
from gigabatch.models.optimizers.moments import read_moments, write_moments
from gigabatch.models.optimizers.non_finite import mark_non_finite
from gigabatch.models.optimizers.registry import build_optimizer
from gigabatch.models.optimizers.row_optimizer import RowOptimizer
from gigabatch.models.parallel.placement import Placement
from gigabatch.models.parallel.ranks import Ranks
from gigabatch.models.parallel.sharded import ShardedTables
from gigabatch.models.recommenders.gplvmf import GPLVMF
from gigabatch.models.recommenders.ncf import NCF
from gigabatch.models.recommenders.two_tower import TwoTower
from gigabatch.models.tabular.tabular import TabularModel
from tests.models.parallel.together import together

SIZES, WIDTHS = (40, 7, 5, 23), (3, 2, 4, 1)
MIXED = (Placement("row"), Placement("table", 1), Placement("replicated"), Placement("row"))
RULES = {
    "sgd": {"method": "sgd"},
    "adagrad": {"method": "adagrad"},
    "adagrad full": {"method": "adagrad", "second_moment": "full"},
    "adam": {"method": "adam", "second_moment": "full"},
    "adam scalar row": {"method": "adam", "step": "row", "l2": 0.02},
    "lamb": {"method": "lamb", "weight_decay": 0.02},
    "lamb full row": {"method": "lamb", "second_moment": "full", "step": "row", "trust_clip": 3.0},
    "cowclip": {"method": "adam", "second_moment": "full", "l2": 0.01, "clip_ratio": 0.3, "clip_floor": 0.1},
}


def bounds(num_rows, ranks):
    """The rank's part of a batch, as `RankBatches` cuts it."""
    return num_rows * ranks.rank // ranks.num_ranks, num_rows * (ranks.rank + 1) // ranks.num_ranks


def drawn(seed, num_rows=24, sizes=SIZES):
    random = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randint(size, (num_rows,), generator=random, dtype=torch.int32) for size in sizes], 1)
    return ids, torch.randn(num_rows, sum(WIDTHS), generator=random)


def plain_tables(seed=0):
    torch.manual_seed(seed)
    tables = EmbeddingTables(SIZES, WIDTHS, gradients="rows")
    with torch.no_grad():
        for table in tables.tables:
            table.mul_(30)  # far from zero, where a trust ratio would hide a difference
    return tables


def steps_of(ranks, rule, batches, placements=MIXED):
    """Weights and moments of whole tables after the batches, and what the first forward pass gave."""
    model = plain_tables()
    tables = ShardedTables(model, placements, ranks) if ranks.num_ranks > 1 else None
    optimizer = RowOptimizer([model], lr=0.1, betas=(0.8, 0.95), **({"eps": 1e-4} | RULES[rule]))
    outputs = None
    for ids, weights in batches:
        first, last = bounds(len(ids), ranks)
        ids, weights = ids[first:last], weights[first:last]
        if tables is None:
            found = model(ids)
            (found * weights).sum().backward()
        else:
            with tables.fetched(ids):
                found = model(ids)
                if len(ids):
                    (found * weights).sum().backward()
                tables.exchange_gradients()
        outputs = found.detach() if outputs is None else outputs
        optimizer.step()
    state, moments = model.state_dict(), read_moments(model, optimizer)
    if tables is not None:
        state, moments = tables.gather_weights(state), tables.gather_moments(moments)
    return outputs, state, moments


def all_rules(ranks, batches, kernels, placements=MIXED):
    with using_kernels(kernels):
        rules = RULES if kernels == "reference" else ("adagrad", "adam", "lamb full row", "cowclip")
        return {rule: steps_of(ranks, rule, batches, placements) for rule in rules}


@pytest.mark.parametrize(("num_ranks", "kernels"), [(2, "compiled"), (3, "reference")])
def test_ten_steps_of_every_rule_equal_one_process(tmp_path, num_ranks, kernels):
    batches = [drawn(seed) for seed in range(10)]
    expected = all_rules(Ranks(), batches, kernels)
    told = together(all_rules, num_ranks, tmp_path, batches, kernels)
    for rule, (outputs, weights, moments) in expected.items():
        assert torch.equal(torch.cat([one[rule][0] for one in told]), outputs)  # the rows themselves: bit for bit
        _, found, found_moments = told[0][rule]
        assert found.keys() == weights.keys()
        assert found_moments.keys() == moments.keys()
        for name, table in weights.items():
            torch.testing.assert_close(found[name], table, rtol=2e-5, atol=2e-6)
            for key, value in moments[name].items():
                torch.testing.assert_close(found_moments[name][key], value, rtol=2e-5, atol=2e-6)
        assert not told[1][rule][1]  # whole tables are on the first rank alone
        assert not any(told[1][rule][2].values())


LIST_INPUTS = (  # of the fourth column, of its own with weights, of the second, and of one before it
    ListInputs(23, shares=3), ListInputs(9, weighted=True), ListInputs(7, shares=1), ListInputs(9, shares=5)
)  # fmt: skip
LIST_PLACEMENTS = (*MIXED, Placement("row"))


def drawn_lists(seed, num_rows):
    """Lists of 0 to 4 elements; every third batch has none at all in its first column."""
    random = torch.Generator().manual_seed(100 + seed)
    found = []
    for place, item in enumerate(LIST_INPUTS):
        most = 1 if place == 0 and seed % 3 == 2 else 5
        offsets = torch.randint(most, (num_rows,), generator=random).cumsum(0)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), offsets])
        ids = torch.randint(item.num_ids, (int(offsets[-1]),), generator=random, dtype=torch.int32)
        weights = torch.randn(len(ids), generator=random) if item.weighted else None
        found.append(JaggedColumn(ids, offsets, weights))
    return found


def steps_with_lists(ranks, rule, pooling):
    """As `steps_of`, of a module whose tables lists look up too."""
    inputs = [ListInputs(item.num_ids, item.shares) for item in LIST_INPUTS] if pooling == "max" else LIST_INPUTS
    torch.manual_seed(0)
    model = EmbeddingTables(SIZES, (*WIDTHS, 5), gradients="rows", lists=inputs, pooling=pooling)
    with torch.no_grad():
        for table in model.tables:
            table.mul_(30)
    tables = ShardedTables(model, LIST_PLACEMENTS, ranks) if ranks.num_ranks > 1 else None
    optimizer = RowOptimizer([model], lr=0.1, betas=(0.8, 0.95), **({"eps": 1e-4} | RULES[rule]))
    outputs = []
    for seed in range(4):
        ids, lists = drawn(seed)[0], drawn_lists(seed, 24)
        wanted = torch.randn(24, model.width, generator=torch.Generator().manual_seed(seed))
        first, last = bounds(24, ranks)
        ids, wanted, lists = ids[first:last], wanted[first:last], [item.slice(first, last) for item in lists]
        if pooling == "max":
            lists = [item._replace(weights=None) for item in lists]
        with nullcontext() if tables is None else tables.fetched(ids, lists):
            found = model(ids, lists)
            (found * wanted).sum().backward()
            if tables is not None:
                tables.exchange_gradients()
        outputs.append(found.detach())
        optimizer.step()
    state, moments = model.state_dict(), read_moments(model, optimizer)
    if tables is not None:
        state, moments = tables.gather_weights(state), tables.gather_moments(moments)
    return outputs[0], state, moments, ranks.traffic.bytes


def all_with_lists(ranks):
    found = {}
    # The other rules see the same gradients of rows; `all_rules` compares them.
    few = ("sgd", "adagrad full", "adam scalar row", "cowclip")
    for kernels, rules in (("reference", few), ("compiled", ("adagrad", "lamb full row", "cowclip"))):
        with using_kernels(kernels):
            for rule in rules:
                for pooling in ("mean", "sum", "max", "root"):
                    found[kernels, rule, pooling] = steps_with_lists(ranks, rule, pooling)
    return found


def test_steps_with_lists_equal_one_process(tmp_path):
    """Elements of lists, whether their table is a column's or their own, its rows on all ranks, on one, or on each."""
    expected, told = all_with_lists(Ranks()), together(all_with_lists, 2, tmp_path)
    for case, (outputs, weights, moments, _) in expected.items():
        # The rows themselves are equal bit for bit, and so what a pooling adds up in the order of the list.
        assert torch.equal(torch.cat([one[case][0] for one in told]), outputs), case
        _, found, found_moments, sent = told[0][case]
        for name, table in weights.items():
            torch.testing.assert_close(found[name], table, rtol=1e-4, atol=1e-5, msg=f"{case} {name}")
            for key, value in moments[name].items():
                torch.testing.assert_close(found_moments[name][key], value, rtol=1e-4, atol=1e-5)
        assert {name for _, name in sent} > {"ids", "rows", "gradients of rows", "gradients of replicated tables"}


def outside_of_a_list(ranks):
    torch.manual_seed(0)
    model = EmbeddingTables((4,), (2, 3), gradients="rows", lists=(ListInputs(6),))
    tables = ShardedTables(model, [Placement("row")] * 2, ranks)
    wrong = 6 if ranks.rank else 5
    lists = [JaggedColumn(torch.tensor([0, wrong], dtype=torch.int32), torch.tensor([0, 2]))]
    try:
        with tables.fetched(torch.zeros(1, 1, dtype=torch.int32), lists):
            return None
    except IndexError as error:
        return str(error)


def test_an_element_outside_its_table_is_named_on_every_rank(tmp_path):
    text = "sharded tables: a batch of rank 1 holds the id 6 of tables.1, a table of 6 rows."
    assert together(outside_of_a_list, 2, tmp_path) == [text, text]


def test_sums_in_one_order_are_bit_equal(tmp_path):
    """Where each rank has a row once at most, its gradients are added rank after rank, as one process does."""
    ids = torch.stack([torch.arange(5) * step % size for step, size in zip((3, 1, 2, 7), SIZES, strict=True)], 1).int()
    batch = torch.cat([ids, ids]), drawn(3, 10)[1]
    placements = (Placement("row"), Placement("table", 1), Placement("table", 0), Placement("row"))
    expected = all_rules(Ranks(), [batch], "reference", placements)
    found = together(all_rules, 2, tmp_path, [batch], "reference", placements)[0]
    for rule, (_, weights, moments) in expected.items():
        assert all(torch.equal(found[rule][1][name], table) for name, table in weights.items()), rule
        for name, state in moments.items():
            assert all(torch.equal(found[rule][2][name][key], value) for key, value in state.items()), rule


def test_a_rank_without_rows(tmp_path):
    """A batch of one row leaves a rank of two none; then a whole one follows."""
    batches = [drawn(0, 1), drawn(1, 9), drawn(2, 1)]
    found = together(all_rules, 2, tmp_path, batches, "reference")[0]
    for rule, (_, weights, _) in all_rules(Ranks(), batches, "reference").items():
        for name, table in weights.items():
            torch.testing.assert_close(found[rule][1][name], table, rtol=2e-5, atol=2e-6)


def models():
    """Every way in which models look tables up, without batch norm, whose sums are another matter."""
    user, item = EntityColumns(key=0, ids=(0,)), EntityColumns(key=1, ids=(1, 2))
    inputs, entities = ModelInputs((30, 9, 5), 0), ModelInputs((30, 9, 5), 0, user=user, item=item)
    folded = TabularModel.Settings(layers=(8, 6), batch_norm=False, dropout=(0.0, 0.0), embedding_dropout=0.0)
    return {
        "crosses": WideDeep(inputs, WideDeep.Settings(4, (8,), 0.0, False, crosses=((0, 1), (1, 2)), cross_buckets=50)),
        "deepfm": DeepFM(inputs, DeepFM.Settings(embedding_dim=4, layers=(8,), dropout=0.0, batch_norm=False)),
        "dlrm": DLRM(inputs, DLRM.Settings(embedding_dim=4, bottom_layers=(8,), top_layers=(8,))),
        "folded": TabularModel(inputs, folded),
        "ncf": NCF(entities, NCF.Settings(layers=(8, 4))),
        "towers": TwoTower(entities, TwoTower.Settings(layers=(8,), vector_dim=4, dropout=0.0, batch_norm=False)),
    }


@using_kernels("reference")
def train_models(ranks, optimizer_name, kind):
    found = {}
    torch.manual_seed(1)
    for name, model in models().items():
        sharded = None
        if ranks.num_ranks > 1:
            count = sum(len(m.tables) for m in model.modules() if isinstance(m, EmbeddingTables))
            sharded = ShardedTables(model, [Placement(kind, place % ranks.num_ranks) for place in range(count)], ranks)
        settings = {"rowwise": True} if optimizer_name == "adamw" else {}
        optimizer = build_optimizer(model, optimizer_name, lr=0.01, **settings)
        average = WeightAverage(model, 0.9)
        losses = []
        for seed in range(5):
            ids, floats = drawn(seed, 16, (30, 9, 5))[0], torch.zeros(16, 0)
            target = (ids[:, :1] % 2).float()
            first, last = bounds(16, ranks)
            optimizer.zero_grad()
            part, wanted = ids[first:last], target[first:last]
            if sharded is None:
                loss = nn.functional.binary_cross_entropy_with_logits(model(part, floats), wanted)
                loss.backward()
            else:
                with sharded.fetched(part):
                    outputs = torch.cat([model(half, floats[: len(half)]) for half in part.split(3)])  # in pieces
                    loss = nn.functional.binary_cross_entropy_with_logits(outputs, wanted, reduction="sum") / 16
                    loss.backward()
                    sharded.exchange_gradients()
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        ranks.all_reduce(parameter.grad, "gradients")
                ranks.all_reduce(loss.detach(), "loss")
            assert float(mark_non_finite(optimizer, loss)) == 0
            average.begin_update()
            optimizer.step()
            average.update()
            losses.append(float(loss.detach()))
        state, averaged = model.state_dict(), average.model.state_dict()
        ids, floats = drawn(99, 6, (30, 9, 5))[0], torch.zeros(6, 0)
        with torch.no_grad():
            if sharded is None:
                scores = average.model(ids, floats)
            else:
                of_average = sharded.of(average.model)
                with of_average.fetched(ids[: 6 * ranks.rank]):  # none on the first rank
                    scores = average.model(ids[: 6 * ranks.rank], floats[: 6 * ranks.rank])
                state, averaged = sharded.gather_weights(state), of_average.gather_weights(averaged)
        found[name] = losses, state, averaged, scores
    return found


@pytest.mark.parametrize(("name", "kind"), [("lamb", "row"), ("cowclip", "table"), ("adamw", "row")])
def test_models_train_as_in_one_process(tmp_path, name, kind):
    expected = train_models(Ranks(), name, kind)
    told = together(train_models, 2, tmp_path, name, kind)
    for model, (losses, weights, averaged, scores) in expected.items():
        assert told[0][model][0] == pytest.approx(losses, rel=1e-5), model
        for state, found in ((weights, told[0][model][1]), (averaged, told[0][model][2])):
            assert list(found) == list(state)
            for key, value in state.items():
                torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-6, msg=f"{model} {key}")
        torch.testing.assert_close(told[1][model][3], scores, rtol=1e-4, atol=1e-6)


@using_kernels("reference")
def outside(ranks, bad):
    model = plain_tables()
    tables = ShardedTables(model, MIXED, ranks)
    told = []
    for place, value in bad:
        ids = drawn(0, 4)[0].long()
        if ranks.rank == 1:
            ids[2, place] = value
        said = f"rank 1 holds the id .* of tables.{place}, a table of {SIZES[place]} "
        with pytest.raises(IndexError, match=said), tables.fetched(ids):
            raise AssertionError("not reached")
        told.append(model.fetched is None)
    with tables.fetched(drawn(0, 4)[0]):  # and all go on
        model(drawn(0, 4)[0])
    return told


def test_ids_outside_a_table_are_an_error_on_every_rank(tmp_path):
    bad = [(0, 40), (1, -1), (2, 5), (3, 2**40 + 1)]
    assert together(outside, 2, tmp_path, bad) == [[True] * 4] * 2


def hot(ranks):
    """One id a million times: half of them on each rank."""
    model = EmbeddingTables([9], [2], gradients="rows")
    tables = ShardedTables(model, [Placement("row")], ranks)
    optimizer = RowOptimizer([model], lr=1.0, method="sgd")
    ids = torch.full((500_000, 1), 5, dtype=torch.int32)
    before = tables.gather_weights(model.state_dict())
    ranks.traffic.clear()
    with tables.fetched(ids):
        (model(ids) * torch.tensor([1.0, 0.25])).sum().backward()
        tables.exchange_gradients()
    sent = ranks.traffic.total
    optimizer.step()
    return before, tables.gather_weights(model.state_dict()), sent


def test_one_id_a_million_times(tmp_path):
    (before, after, sent), (_, _, others) = together(hot, 2, tmp_path)
    moved = before["tables.0"] - after["tables.0"]
    torch.testing.assert_close(moved[5], torch.tensor([1e6, 0.25e6]), rtol=1e-6, atol=0)
    assert not moved[[0, 1, 2, 3, 4, 6, 7, 8]].any()
    counts = 8 * (1 + 2)
    assert sent == counts + 4 + 2 * 4  # the first rank asks for one row and sends its gradient
    assert others == counts + 2 * 4  # the second owns it and sends the row


@using_kernels("reference")
def sent_bytes(ranks, ids, placements, frozen):
    model = plain_tables()
    for place in frozen:
        model.tables[place].requires_grad_(False)
    before = [table.clone() for table in model.tables]
    tables = ShardedTables(model, placements, ranks)
    optimizer = RowOptimizer([model], lr=0.1)
    first, last = bounds(len(ids), ranks)
    with tables.fetched(ids[first:last]):
        model(ids[first:last]).sum().backward()
        tables.exchange_gradients()
    sent = dict(ranks.traffic.bytes)
    optimizer.step()
    whole = tables.gather_weights(model.state_dict())
    stayed = [torch.equal(whole[name], before[p]) for p, name in enumerate(tables.names)] if whole else None
    return sent, stayed


def test_traffic_is_what_the_formula_says_and_frozen_tables_send_no_gradients(tmp_path):
    """algorithms.md 4.2 with de-duplication, by sets of ids: 4 bytes an id, 4 an element, of rows that others own."""
    ids, frozen = drawn(5, 30)[0], [3]
    placements = (Placement("row"), Placement("table", 1), Placement("replicated"), Placement("row"))
    told = together(sent_bytes, 3, tmp_path, ids, placements, frozen)
    asked = []  # by rank and table the set of rows
    for rank in range(3):
        part = ids[10 * rank : 10 * (rank + 1)].tolist()
        asked.append([{row[place] for row in part} for place in range(4)])
    for rank, (sent, _) in enumerate(told):
        wanted = gradients = answered = 0
        for place in (0, 1, 3):
            by_row = placements[place].kind == "row"
            owners = {row: row % 3 if by_row else 1 for part in asked for row in part[place]}
            away = sum(owners[row] != rank for row in asked[rank][place])
            wanted += 4 * away
            gradients += 4 * WIDTHS[place] * away * (place not in frozen)
            answered += 4 * WIDTHS[place] * sum(
                owners[row] == rank for other in range(3) if other != rank for row in asked[other][place]
            )  # fmt: skip
        assert sent["all_to_all", "ids"] == wanted
        assert sent["all_to_all", "gradients of rows"] == gradients
        assert sent["all_to_all", "rows"] == answered
        assert sent["all_to_all", "counts of rows"] == 2 * 8 * (4 + 2)
        assert sent["all_reduce", "gradients of replicated tables"] == round(2 * 2 / 3 * 4 * 5 * (4 + 1))
        assert len(sent) == 5
    assert told[0][1] == [False, False, False, True]


@using_kernels("reference")
def resumed(ranks, saved, batches):
    model = plain_tables(seed=7)
    tables = ShardedTables(model, MIXED, ranks)
    optimizer = RowOptimizer([model], lr=0.1, **RULES["lamb full row"])
    if saved is not None:
        model.load_state_dict(tables.own_weights(saved["model"]))
        optimizer.load_state_dict(tables.own_optimizer(optimizer, saved["optimizer"]))
    for ids, weights in batches:
        first, last = bounds(len(ids), ranks)
        with tables.fetched(ids[first:last]):
            (model(ids[first:last]) * weights[first:last]).sum().backward()
            tables.exchange_gradients()
        optimizer.step()
    moments = read_moments(model, optimizer)
    whole = {"model": tables.gather_weights(model.state_dict()), "optimizer": tables.gather_optimizer(optimizer)}
    back = copy.deepcopy(moments)
    write_moments(model, optimizer, tables.own_moments(all_of(tables.gather_moments(moments), ranks)))
    again = read_moments(model, optimizer)
    assert all(torch.equal(back[name][key], again[name][key]) for name in back for key in back[name])
    if ranks.is_first:
        tables.release(whole["model"])
        ids = batches[0][0]
        assert torch.equal(model(ids), plain_copy(whole["model"])(ids))
    return whole


def all_of(moments, ranks):
    """The first rank's moments on every rank, as a file that all can read."""
    told = [moments]
    torch.distributed.broadcast_object_list(told, 0)
    return told[0]


def plain_copy(state):
    model = plain_tables(seed=8)
    model.load_state_dict(state)
    return model


def test_states_do_not_depend_on_the_number_of_ranks(tmp_path):
    """Saved on 3, gone on with on 2, is as on 2 throughout; and what was saved is what one process has."""
    batches = [drawn(seed) for seed in range(6)]
    three = together(resumed, 3, tmp_path, None, batches[:3])[0]
    on_two = together(resumed, 2, tmp_path, three, batches[3:])[0]
    straight = together(resumed, 2, tmp_path, None, batches)[0]
    for name, table in straight["model"].items():
        torch.testing.assert_close(on_two["model"][name], table, rtol=2e-5, atol=2e-6)
    model = plain_tables(seed=7)
    optimizer = RowOptimizer([model], lr=0.1, version="reference", **RULES["lamb full row"])
    model.load_state_dict(three["model"])
    optimizer.load_state_dict(three["optimizer"])
    for ids, weights in batches[3:]:
        (model(ids) * weights).sum().backward()
        optimizer.step()
    for name, table in model.state_dict().items():
        torch.testing.assert_close(on_two["model"][name], table, rtol=2e-5, atol=2e-6)
    saved = on_two["optimizer"]["state"]
    for place, state in optimizer.state_dict()["state"].items():
        for key, value in state.items():
            torch.testing.assert_close(saved[place][key], value, rtol=2e-5, atol=2e-6)


def test_what_cannot_be_is_refused():
    model = plain_tables()
    with pytest.raises(ModelError, match=r"3 placements for 4 tables \(tables.0, "):
        ShardedTables(model, MIXED[:3], Ranks())
    with pytest.raises(ModelError, match="has none"):
        ShardedTables(nn.Linear(2, 1), [], Ranks())
    assert not model.is_sharded
    tables = ShardedTables(model, [Placement("row")] * 4, Ranks())
    ids = drawn(0, 4)[0]
    with pytest.raises(ModelError, match=r"within `ShardedTables\.fetched"):
        model(ids)
    with tables.fetched(ids[:2]), pytest.raises(IndexError, match="were not fetched"):
        model(ids)
    with tables.fetched(ids), pytest.raises(ModelError, match="another batch"), tables.fetched(ids):
        raise AssertionError("not reached")
    optimizer = RowOptimizer([model], lr=0.1)
    with tables.fetched(ids):
        model(ids).sum().backward()
    with pytest.raises(ModelError, match="exchange_gradients before a step"):  # its ids are places among what came
        optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(ModelError, match="within `fetched`"):
        tables.exchange_gradients()
    with tables.fetched(ids):
        model(ids).sum().backward()
        tables.exchange_gradients()
        with pytest.raises(ModelError, match="exchanged already"):
            tables.exchange_gradients()
    with pytest.raises(ModelError, match="none of the 1"):
        ShardedTables(plain_tables(), MIXED, Ranks())
    model.gradients = "dense"
    with tables.fetched(ids), pytest.raises(ModelError, match="whole tables cannot move them"):
        model(ids)


def test_a_model_that_looks_up_other_rows_is_refused():
    user, item = EntityColumns(key=0, ids=(0,)), EntityColumns(key=1, ids=(1,))
    model = GPLVMF(ModelInputs((5, 7), 0, user=user, item=item), GPLVMF.Settings())
    before = [table.clone() for table in model.means.tables]
    with pytest.raises(ModelError, match="gplvmf: a pass looks up rows that are not of its batch"):
        ShardedTables(model, [Placement("row")] * 4, Ranks())
    assert all(map(torch.equal, model.means.tables, before))


@using_kernels("reference")
def not_a_number(ranks):
    model = plain_tables()
    tables = ShardedTables(model, MIXED, ranks)
    optimizer = RowOptimizer([model], lr=0.1)
    ids, weights = drawn(0, 4)
    weights[0, 0] = float("nan") if ranks.rank == 1 else 1.0
    before = [table.clone() for table in model.tables]
    with tables.fetched(ids):
        (model(ids) * weights).sum().backward()
        tables.exchange_gradients()
    mark = mark_non_finite(optimizer, torch.zeros(()))
    ranks.all_reduce(mark, "mark")  # the owner alone has seen it
    optimizer.step()
    return float(mark), all(map(torch.equal, before, model.tables))


def test_a_gradient_that_is_not_finite_is_seen_after_the_exchange(tmp_path):
    for mark, stayed in together(not_a_number, 2, tmp_path):
        assert mark > 0
        assert stayed
