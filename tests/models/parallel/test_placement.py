"""The planner of tables: its costs against bytes that were sent, its bounds, and what it refuses."""

import pytest
import torch

from gigabatch.models.click.wide_deep import WideDeep
from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ListInputs, ModelInputs
from gigabatch.models.kernels import using_kernels
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.optimizers.registry import build_optimizer
from gigabatch.models.optimizers.row_optimizer import RowOptimizer
from gigabatch.models.parallel.placement import IMBALANCE, TableUse, expected_distinct, plan_tables, table_uses
from gigabatch.models.parallel.ranks import Ranks
from gigabatch.models.parallel.sharded import ShardedTables, shard_tables
from tests.models.parallel.together import together


def kinds(plan):
    return [placement.kind if placement.kind != "table" else placement.rank for placement in plan.placements]


def test_small_tables_are_replicated_and_large_ones_go_by_rows():
    uses = [
        TableUse("user", 1_000_000, 16, 4, 900.0),
        TableUse("hour", 24, 16, 4),
        TableUse("shop", 40_000, 16, 4, 500.0),
        TableUse("city", 40_000, 16, 4, 500.0),
    ]
    plan = plan_tables(uses, 2, 1024)
    assert kinds(plan) == ["row", "replicated", 0, 1]
    assert plan_tables(uses, 2, 1024) == plan
    assert kinds(plan_tables(uses, 1, 1024)) == ["replicated"] * 4
    lines = plan.report().splitlines()
    assert lines[1].split() == ["user", "1,000,000", "16", "68.00", "900", "rows", "on", "all", "ranks"]
    assert lines[2].split() == ["hour", "24", "16", "0.00", "replicated"]
    assert lines[4].endswith("rank 1")
    assert len(lines) == 7


def test_traffic_is_balanced_too():
    """Two tables of one size, of which one has all the use, do not fill a rank each: the used one goes by rows."""
    uses = [TableUse("used", 50_000, 16, 4, 4000.0), TableUse("idle", 50_000, 16, 4, 1.0)]
    plan = plan_tables(uses, 4, 4096)
    assert kinds(plan)[0] == "row"


@pytest.mark.parametrize("seed", range(20))
def test_no_rank_is_much_fuller_than_the_mean(seed):
    random = torch.Generator().manual_seed(seed)
    num_tables, num_ranks = (int(torch.randint(low, 9, (), generator=random)) for low in (1, 2))
    uses = []
    for place in range(num_tables):
        size = int(10 ** (5 * float(torch.rand((), generator=random)) + 2))
        width = int(torch.randint(1, 65, (), generator=random))
        used = float(torch.rand((), generator=random)) * min(size, 2048)
        uses.append(TableUse(f"t{place}", size, width, 4 * width, used))
    plan = plan_tables(uses, num_ranks, 2048)
    for loads in (plan.rank_bytes, plan.rank_traffic):
        assert max(loads) <= 1.01 * IMBALANCE * sum(loads) / num_ranks  # a table of 100 rows does not divide evenly
    whole = sum(use.num_bytes for use, placed in zip(uses, plan.placements, strict=True) if placed.kind != "replicated")
    copies = sum(use.num_bytes for use in uses) - whole
    assert sum(plan.rank_bytes) == pytest.approx(whole + num_ranks * copies)


def test_tables_that_do_not_fit_are_refused_with_what_would_do():
    uses = [TableUse("user", 1_000_000, 16, 4), TableUse("hour", 24, 16, 4)]
    with pytest.raises(
        ModelError, match=r"fullest of 2 ranks would hold 34\.0 MB .* has 20\.0 MB\. It takes at least 4"
    ):
        plan_tables(uses, 2, 1024, memory_bytes=20e6)
    assert max(plan_tables(uses, 4, 1024, memory_bytes=20e6).rank_bytes) < 20e6
    with pytest.raises(ModelError, match="more memory"):
        plan_tables(uses, 2, 1024, memory_bytes=100.0)
    with pytest.raises(ModelError, match="names that differ: user, user"):
        plan_tables([uses[0], uses[0]], 2, 1024)


def test_expected_distinct_is_what_draws_give():
    counts = torch.tensor([1000, 200, 50, 50, 10, 1, 1, 0])
    random = torch.Generator().manual_seed(0)
    draws = torch.multinomial(counts.double(), 40 * 4000, True, generator=random).view(4000, 40)
    mean = sum(len(row.unique()) for row in draws) / 4000
    assert expected_distinct(counts, 40) == pytest.approx(mean, rel=0.02)
    assert expected_distinct(torch.zeros(3), 40) == 0


def test_uses_follow_from_model_optimizer_and_counts():
    model = WideDeep(ModelInputs((30, 9), 0), WideDeep.Settings(4, (8,), crosses=((0, 1),)))
    counts = {0: torch.tensor([5, 5])}
    uses = table_uses(model, build_optimizer(model, "lamb", lr=0.01), 2, counts)
    names = [name for name, _ in model.named_parameters() if ".tables." in name]
    assert [use.name for use in uses] == names
    assert [(use.num_rows, use.width) for use in uses] == [(30, 1), (9, 1), (270, 1), (30, 4), (9, 4)]
    assert [use.state_bytes for use in uses] == [4 + 4, 4 + 4, 4 + 4, 4, 4]  # Adam for linear terms, Adagrad
    assert [use.rows_per_batch for use in uses] == [1.5, None, None, 1.5, None]
    adam = table_uses(model, build_optimizer(model, "cowclip", lr=0.01), 2)
    assert [use.state_bytes for use in adam[3:]] == [2 * 16, 2 * 16]


@using_kernels("reference")
def measured(ranks, sizes, widths, rows):
    """Bytes that a rank sends where each one's batch holds the first `rows` ids of each table."""
    model = EmbeddingTables(sizes, widths)
    optimizer = RowOptimizer([model], lr=0.1, method="adam")
    uses = table_uses(model, optimizer, rows, {place: torch.ones(size) for place, size in enumerate(sizes)})
    uses = [TableUse(use.name, use.num_rows, use.width, use.state_bytes, min(rows, use.num_rows)) for use in uses]
    plan = plan_tables(uses, ranks.num_ranks, rows)
    tables = ShardedTables(model, plan.placements, ranks)
    ids = torch.stack([torch.arange(rows) % size for size in sizes], 1)
    with tables.fetched(ids):
        model(ids).sum().backward()
        tables.exchange_gradients()
    sent = sum(n for (_, name), n in ranks.traffic.bytes.items() if name != "counts of rows")
    optimizer.step()
    held = sum(table.nbytes for table in model.tables)
    held += sum(v.nbytes for s in optimizer.state.values() for v in s.values() if v.dim())
    return kinds(plan), sent, plan.rank_traffic[ranks.rank], held, plan.rank_bytes[ranks.rank]


def test_tables_that_lists_look_up_are_used_by_their_elements():
    """A row has one item and 2.5 of its history, which share a table, and 1.5 tags of their own."""
    inputs = ModelInputs((40,), 0, lists=(ListInputs(40, shares=0), ListInputs(9)))
    model = WideDeep(inputs, WideDeep.Settings(4, (8,)))
    counts = {0: torch.arange(40), 2: torch.arange(9)}  # of the column; the own vocabulary is of the second list
    asked = model, build_optimizer(model, "lamb", lr=0.01), 8, counts
    items, tags = table_uses(*asked, [2.5, 1.5])[2:]  # behind those of the linear terms
    assert (items.lookups_per_row, tags.lookups_per_row) == (3.5, 1.5)
    assert items.rows_per_batch == expected_distinct(counts[0], 28)
    assert tags.rows_per_batch == expected_distinct(counts[2], 12)
    assert [use.rows_per_batch for use in table_uses(*asked)] == [None] * 4  # lists of unknown length: any row


def test_planned_bytes_are_those_that_are_held_and_sent(tmp_path):
    told = together(measured, 3, tmp_path, (900, 60, 60, 60, 6), (8,) * 5, 12)
    for placed, sent, planned, held, bytes_planned in told:
        assert placed == ["row", 0, 1, 2, "replicated"]
        assert sent == pytest.approx(planned)
        assert held == pytest.approx(bytes_planned)


@using_kernels("reference")
def by_setting(ranks):
    found = []
    for setting, memory in (("replicated", None), ("auto", None), ("auto", 1e6), ("auto", 60e3), ("sharded", 1e6)):
        model = EmbeddingTables((900, 60), (8, 8))
        optimizer = RowOptimizer([model], lr=0.1)
        tables = shard_tables(setting, model, optimizer, ranks, batch_rows=12, memory_bytes=memory)
        found.append(tables is not None)
    model = EmbeddingTables((900, 60), (8, 8))
    optimizer = build_optimizer(model, "adamw", lr=0.1)
    with pytest.raises(ModelError, match=r"train\.tables=sharded: an optimizer that takes whole tables"):
        shard_tables("sharded", model, optimizer, ranks, batch_rows=12)
    return found


def test_the_setting_says_whether_tables_are_sharded(tmp_path):
    assert together(by_setting, 2, tmp_path) == [[False, False, False, True, True]] * 2
    model = EmbeddingTables((900,), (8,))
    optimizer = RowOptimizer([model], lr=0.1)
    assert shard_tables("sharded", model, optimizer, Ranks(), batch_rows=12) is None  # one rank has it all
    with pytest.raises(ModelError, match=r"train\.tables"):
        shard_tables("rows", model, optimizer, Ranks(), batch_rows=12)
