"""Which rank holds which rows of which embedding table, planned from sizes, use and memory.

Of a step of N ranks, each of whose batches holds u distinct rows of a table of V rows and d columns, a rank sends so
many bytes (4 an id, 4 a number; algebra of a de-duplicated exchange, as `sharded.py` does it):

    replicated     2 (N - 1) / N 4 V (d + 1)         an all-reduce of all gradients and of who has some
    by rows        (N - 1) / N u (4 + 8 d)           ids and gradients to owners, rows from them
    on one rank    (N - 1) u 4 d on that rank, u (4 + 4 d) on the others: the same, summed over ranks

So small tables whose rows are in nearly every batch are replicated, and sharding costs the same wherever rows lie: what
is left is to spread bytes and traffic evenly, which rows do by themselves, in more and smaller pieces.

Shapes: N ranks, V rows of a table, d its columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isinf

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gigabatch.models.errors import require, require_known
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.model import Model
from gigabatch.models.optimizers.row_optimizer import Optimizers, RowOptimizer, parts_of

KINDS = ("replicated", "table", "row")
ID_BYTES = NUMBER_BYTES = 4
REPLICATED_TRAFFIC = 1.5  # a table is replicated where its all-reduce costs at most so many times its exchange
IMBALANCE = 1.2  # of the fullest rank over the mean, above which a rank's largest table is spread by rows


@dataclass(frozen=True)
class Placement:
    """Where a table lies: `replicated` on all ranks, as a whole on one (`table`), or row i on rank i mod N (`row`)."""

    kind: str
    rank: int = 0

    def __post_init__(self) -> None:
        require_known("placement of a table", [self.kind], KINDS)


@dataclass(frozen=True)
class TableUse:
    """A table and its use.

    Parameters
    ----------
    name : str
        For the report.
    num_rows, width : int
        V and d.
    state_bytes : float
        Of the optimizer, a row: 4 for a scalar second moment, 4 d for a full one, 4 d more for a mean.
    rows_per_batch : float or None, default None
        Distinct rows in a rank's batch, as `expected_distinct` counts them; None for all rows, or the batch's.
    lookups_per_row : float, default 1.0
        Ids that a row of the batch looks up: 1 of an id column, and the elements of lists.
    """

    name: str
    num_rows: int
    width: int
    state_bytes: float
    rows_per_batch: float | None = None
    lookups_per_row: float = 1.0

    @property
    def num_bytes(self) -> float:
        """Of weights and optimizer state."""
        return self.num_rows * (NUMBER_BYTES * self.width + self.state_bytes)


@dataclass(frozen=True)
class TablePlan:
    """Placements in the order of the tables, and what they cost.

    Parameters
    ----------
    tables : tuple of TableUse
        Those planned.
    placements : tuple of Placement
        Of each.
    rank_bytes, rank_traffic : tuple of float
        By rank: bytes of weights and state that it holds, and bytes that it sends a step.
    """

    tables: tuple[TableUse, ...]
    placements: tuple[Placement, ...]
    rank_bytes: tuple[float, ...]
    rank_traffic: tuple[float, ...]

    def report(self) -> str:
        """A line a table and a line a rank."""
        names = [table.name for table in self.tables]
        wide = max([len("table"), *map(len, names)])
        lines = [f"{'table':{wide}}  {'rows':>13}  {'width':>5}  {'MB':>10}  {'a batch':>9}  placement"]
        for table, placement in zip(self.tables, self.placements, strict=True):
            used = "" if table.rows_per_batch is None else f"{table.rows_per_batch:,.0f}"
            where = {"table": f"rank {placement.rank}", "row": "rows on all ranks"}.get(placement.kind, placement.kind)
            lines.append(
                f"{table.name:{wide}}  {table.num_rows:>13,}  {table.width:>5}  {table.num_bytes / 1e6:>10,.2f}  "
                f"{used:>9}  {where}"
            )
        for rank, (held, sent) in enumerate(zip(self.rank_bytes, self.rank_traffic, strict=True)):
            lines.append(f"rank {rank}: {held / 1e6:,.2f} MB of tables and state, sends {sent / 1e3:,.1f} kB a step")
        return "\n".join(lines)


def expected_distinct(counts: Tensor, num_rows: float) -> float:
    """Distinct values that `num_rows` rows are expected to hold, drawn by counts [V]: the sum of 1 - (1 - p)^n.

    Examples
    --------
    >>> import torch
    >>> from gigabatch.models.parallel.placement import expected_distinct
    >>> expected_distinct(torch.tensor([1, 1]), 1), expected_distinct(torch.tensor([3, 1]), 2)
    (1.0, 1.375)
    """
    share = counts.double() / counts.sum().clamp(min=1)
    return float((1 - (1 - share).pow(num_rows)).sum())


def table_uses(
    model: nn.Module,
    optimizer: Optimizer | Optimizers,
    batch_rows: int,
    counts: Mapping[int, Tensor] | None = None,
    list_lengths: Sequence[float] | None = None,
) -> list[TableUse]:
    """The tables of a model and their use, in the order of `ShardedTables.names`.

    Parameters
    ----------
    model : nn.Module
        With whole tables; on the meta device too.
    optimizer : Optimizer or Optimizers
        Of `build_optimizer`, which says how much state a row has.
    batch_rows : int
        Of a rank.
    counts : mapping of int to Tensor or None, default None
        By the place of an id column, and of C id columns by C + l for list column l, how often each of its values
        occurs in the train split (a vocabulary's `counts`). Of one without them, and of a cross, any row may be in a
        batch.
    list_lengths : sequence of float or None, default None
        Mean number of elements of each list column; None where they are not known, and then all rows of a table that
        lists look up may be in a batch.

    Returns
    -------
    list of TableUse
        Names are those of the parameters.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    num_columns = len(model.inputs.num_ids) if isinstance(model, Model) else None
    parts = parts_of(optimizer)
    rules = {
        table: part._rule()
        for part in parts
        if isinstance(part, RowOptimizer)
        for group in part.param_groups
        for table in group["params"]
    }
    found = []
    for module in model.modules():
        if not isinstance(module, EmbeddingTables):
            continue
        for number, (table, column) in enumerate(zip(module.weights, module.columns, strict=True)):
            lists = [place for own, place in zip(module.list_tables, module.list_places, strict=True) if own == number]
            lookups = float(number < module.num_columns)
            if lists:
                lookups += inf if list_lengths is None else sum(list_lengths[place] for place in lists)
            if number in module.table_lists and num_columns is not None:
                column = num_columns + module.table_lists[number]
            state = rules[table].new_state(torch.empty(1, table.shape[1], device="meta")) if table in rules else {}
            num_bytes = sum(value.nbytes for value in state.values() if value.dim())
            known = None if counts is None or column is None else counts.get(column)
            used = None if known is None or isinf(lookups) else expected_distinct(known, batch_rows * lookups)
            found.append(TableUse(names[table], len(table), table.shape[1], num_bytes, used, lookups))
    return found


def plan_tables(
    tables: Sequence[TableUse], num_ranks: int, batch_rows: int, memory_bytes: float | None = None
) -> TablePlan:
    """Place each table; the same arguments give the same plan.

    Tables whose all-reduce costs at most `REPLICATED_TRAFFIC` of what their exchange does are replicated. A table of
    more than a rank's share of the rest goes by rows. The others go one by one, the largest first, to the rank that is
    then least full by the larger of its shares of bytes and of traffic; while a rank is more than `IMBALANCE` fuller
    than the mean, its largest table goes by rows.

    Parameters
    ----------
    tables : sequence of TableUse
        In the order of `ShardedTables.names`.
    num_ranks : int
        N.
    batch_rows : int
        Of a rank's batch: the most distinct rows of a table that it can hold.
    memory_bytes : float or None, default None
        Of a rank, for tables and their state; None for no bound.

    Returns
    -------
    TablePlan
        Placements, and their cost by rank.

    Raises
    ------
    ModelError
        Where the fullest rank would hold more than `memory_bytes`, with the least number of ranks that could do.

    Examples
    --------
    >>> from gigabatch.models.parallel.placement import TableUse, plan_tables
    >>> users, days = TableUse("user", 1_000_000, 16, state_bytes=4), TableUse("day", 9, 16, state_bytes=4)
    >>> plan = plan_tables([users, days], num_ranks=4, batch_rows=1024)
    >>> [placement.kind for placement in plan.placements], [round(size) for size in plan.rank_bytes]
    (['row', 'replicated'], [17000612, 17000612, 17000612, 17000612])
    """
    require(num_ranks >= 1, f"a plan of tables needs at least one rank, not {num_ranks}.")
    names = [table.name for table in tables]
    require(len(set(names)) == len(names), f"a plan of tables needs names that differ: {', '.join(names)}.")
    used = {table: _used(table, batch_rows) for table in tables}
    found = {table: Placement("replicated") for table in tables}
    spread = [
        table
        for table in tables
        if num_ranks > 1
        and _replicated(table, num_ranks) > REPLICATED_TRAFFIC * _by_rows(table, used[table], num_ranks)
    ]
    share_bytes = sum(table.num_bytes for table in spread) / num_ranks
    spread.sort(key=lambda table: (-table.num_bytes, names.index(table.name)))
    by_row = {table for table in spread if table.num_bytes > share_bytes}
    while True:
        for table in by_row:
            found[table] = Placement("row")
        own: list[list[TableUse]] = [[] for _ in range(num_ranks)]
        for table in spread:
            if table not in by_row:
                rank = min(range(num_ranks), key=lambda r: (_fullness([*own[r], table], used, num_ranks), r))
                own[rank].append(table)
                found[table] = Placement("table", rank)
        placements = tuple(found[table] for table in tables)
        held, sent = _loads(tables, placements, used, num_ranks)
        mean = [sum(loads) / num_ranks for loads in (held, sent)]
        over = [max(held[r] / max(mean[0], 1), sent[r] / max(mean[1], 1)) for r in range(num_ranks)]
        worst = max((rank for rank in range(num_ranks) if own[rank]), key=lambda r: (over[r], -r), default=None)
        if worst is None or over[worst] <= IMBALANCE:
            break
        by_row.add(own[worst][0])
    if memory_bytes is not None and max(held) > memory_bytes:
        replicated = sum(t.num_bytes for t, p in zip(tables, placements, strict=True) if p.kind == "replicated")
        rest = sum(table.num_bytes for table in spread)
        left = memory_bytes - replicated
        needed = f"at least {-int(-rest // left)} ranks" if left > 0 else "more memory, since small tables are on all"
        require(
            False,
            f"tables: the fullest of {num_ranks} ranks would hold {max(held) / 1e6:,.1f} MB of tables and optimizer "
            f"state, and has {memory_bytes / 1e6:,.1f} MB. It takes {needed}, narrower tables, or "
            "preprocess.min_count.",
        )
    return TablePlan(tuple(tables), placements, tuple(held), tuple(sent))


def _used(table: TableUse, batch_rows: int) -> float:
    used = table.num_rows if table.rows_per_batch is None else table.rows_per_batch
    return min(used, table.num_rows, batch_rows * table.lookups_per_row)


def _replicated(table: TableUse, num_ranks: int) -> float:
    return 2 * (num_ranks - 1) / num_ranks * NUMBER_BYTES * table.num_rows * (table.width + 1)


def _by_rows(table: TableUse, used: float, num_ranks: int) -> float:
    return (num_ranks - 1) / num_ranks * used * (ID_BYTES + 2 * NUMBER_BYTES * table.width)


def _fullness(own: Sequence[TableUse], used: dict[TableUse, float], num_ranks: int) -> float:
    """The larger of a rank's shares, of all tables here, by bytes and by rows that it is asked for."""
    everything = sum(table.num_bytes for table in used), sum(used[table] * table.width for table in used)
    held = sum(table.num_bytes for table in own), sum(used[table] * table.width for table in own)
    return max(part / max(whole, 1) for part, whole in zip(held, everything, strict=True))


def _loads(
    tables: Sequence[TableUse], placements: Sequence[Placement], used: dict[TableUse, float], num_ranks: int
) -> tuple[list[float], list[float]]:
    """Bytes held and bytes sent a step, by rank."""
    held, sent = [0.0] * num_ranks, [0.0] * num_ranks
    for table, placement in zip(tables, placements, strict=True):
        u, d = used[table], table.width
        for rank in range(num_ranks):
            if placement.kind == "row":
                rows = len(range(rank, table.num_rows, num_ranks))
                held[rank] += table.num_bytes * rows / max(table.num_rows, 1)
                sent[rank] += _by_rows(table, u, num_ranks)
            elif placement.kind == "replicated":
                held[rank] += table.num_bytes
                sent[rank] += _replicated(table, num_ranks)
            elif rank == placement.rank:
                held[rank] += table.num_bytes
                sent[rank] += (num_ranks - 1) * u * NUMBER_BYTES * d
            else:
                sent[rank] += u * (ID_BYTES + NUMBER_BYTES * d)
    return held, sent
