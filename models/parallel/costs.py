"""Bytes that a rank sends in a step, by how tables are spread over ranks, and the layout that needs the fewest.

N ranks with b rows each; m ids a row (id columns); u distinct ids a row (the distinct ids of a rank's batch over b);
tables d wide; a numbers that an operator hands on a row (its aggregate); 4 bytes an id and a number. A rank sends, of
which what stays on the rank itself is not counted:

    rows        values 8 (N - 1) / N b u d      ids 4 (N - 1) / N b u        each rank fetches rows, returns gradients
    replicated  values 4 (N - 1) b u d          ids 4 (N - 1) b u            all gather gradients of rows
    tables      values 8 (N - 1) / N b m d      ids 4 (N - 1) / N b m        whole tables on a rank, pooled all-to-all
    des         values 8 (N - 1) b a            ids 4 (N - 1) / N b m + w (N - 1) b    partial sums, no weight moves

with w 1 byte for at most 255 columns, else 2: how many of a row's ids go to a rank. `rows` is a parameter server whose
servers are the ranks; with servers of their own it sends N / (N - 1) times as much. `des` is Distributed Equivalent
Substitution (Rong et al., arXiv 1909.04823) with reduce-scatter and all-gather in the place of its all-reduce.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import NamedTuple

from gigabatch.models.errors import require, require_known

ID_BYTES = VALUE_BYTES = 4
SCHEMES = ("rows", "replicated", "tables", "des")


class Load(NamedTuple):
    """What a step asks for: num_ranks N, rows of a rank's batch b, ids a row m, distinct ids a row u."""

    num_ranks: int
    rows: int
    ids: float
    distinct: float


class Bytes(NamedTuple):
    """Bytes that a rank sends in a step, forward and backward together."""

    values: float
    ids: float


def step_bytes(scheme: str, load: Load, width: int, aggregate: int | None = None) -> Bytes:
    """Bytes of tables of one width in a step.

    Parameters
    ----------
    scheme : {'rows', 'replicated', 'tables', 'des'}
        How tables are spread, see the module.
    load : Load
        Ranks, rows and ids.
    width : int
        Numbers in a table's row, d.
    aggregate : int or None, default None
        Numbers a row that the operator hands on, a; needed by `des` alone.

    Returns
    -------
    Bytes
        Of values and of ids.

    Raises
    ------
    ModelError
        For an unknown scheme, or `des` without an aggregate.

    Examples
    --------
    >>> from gigabatch.models.parallel.costs import Load, step_bytes
    >>> load = Load(num_ranks=8, rows=1024, ids=39, distinct=23)
    >>> fm, server = step_bytes("des", load, 16, aggregate=17), step_bytes("rows", load, 16)
    >>> round(1 - fm.values / server.values, 3), round(1 - sum(fm) / sum(server), 3)
    (0.63, 0.588)
    """
    require_known("scheme of tables", [scheme], SCHEMES)
    others = load.num_ranks - 1
    share = others / load.num_ranks
    if scheme == "des":
        require(aggregate is not None, "the bytes of des depend on the operator's aggregate; give it.")
        assert aggregate is not None
        counts = others * load.rows * count_bytes(load.ids)
        return Bytes(2 * VALUE_BYTES * others * load.rows * aggregate, ID_BYTES * share * load.rows * load.ids + counts)
    if scheme == "replicated":
        distinct = others * load.rows * load.distinct
        return Bytes(VALUE_BYTES * distinct * width, ID_BYTES * distinct)
    moved = share * load.rows * (load.distinct if scheme == "rows" else load.ids)
    return Bytes(2 * VALUE_BYTES * moved * width, ID_BYTES * moved)


def count_bytes(num_columns: float) -> int:
    """Bytes of a number of ids of one row."""
    return 1 if num_columns <= 255 else 2


class Choice(NamedTuple):
    """One way to lay out an operator: the scheme, the tables' width, and the aggregate where the scheme is `des`."""

    scheme: str
    width: int
    aggregate: int | None = None


def total_bytes(choices: Mapping[str, Choice], load: Load, count_ids: bool = True) -> float:
    """Bytes of all operators. Those of one scheme share their ids, which travel once."""
    found = [(choice.scheme, step_bytes(choice.scheme, load, *choice[1:])) for choice in choices.values()]
    ids = {scheme: one.ids for scheme, one in found}
    return sum(one.values for _, one in found) + (sum(ids.values()) if count_ids else 0)


def cheapest(
    operators: Mapping[str, Mapping[str, Choice]], load: Load, count_ids: bool = True
) -> tuple[dict[str, str], float]:
    """The layout of each operator that sends the fewest bytes together; where two are equal, the one named first.

    Parameters
    ----------
    operators : mapping of str to mapping of str to Choice
        By operator, its layouts by name.
    load : Load
        Ranks, rows and ids.
    count_ids : bool, default True
        Whether ids count; where they are exchanged beside the computation of the step before, they need not.

    Returns
    -------
    dict of str to str, float
        Name of the layout by operator, and the bytes.

    Examples
    --------
    >>> from gigabatch.models.parallel.costs import Choice, Load, cheapest
    >>> pairs = {"rows": Choice("rows", 16), "des": Choice("des", 16, 17)}
    >>> [cheapest({"pairs": pairs}, Load(8, 1024, ids, ids))[0]["pairs"] for ids in (4, 39)]
    ['rows', 'des']
    """
    ways = [
        {name: (layout, choice) for name, (layout, choice) in zip(operators, picked, strict=True)}
        for picked in product(*(layouts.items() for layouts in operators.values()))
    ]
    priced = [(total_bytes({name: choice for name, (_, choice) in way.items()}, load, count_ids), way) for way in ways]
    least, best = min(priced, key=lambda one: one[0])
    return {name: layout for name, (layout, _) in best.items()}, least


def place_bytes(share: float) -> float:
    """Bytes of an element's place where that share of a vector's elements, at random places, is sent."""
    stops = [(1 - share) ** stop / (1 - (1 - share) ** stop) for stop in (255, 65535)]
    return min(1 + stops[0], 2 * (1 + stops[1]), 1 / (8 * share))


def all_reduce_over_sparse(num_ranks: int, share: float, value_bytes: int) -> float:
    """Bytes of a float32 all-reduce over those of ranks that gather a share of each other's elements.

    An all-reduce sends 8 (N - 1) / N bytes an element, a gather (N - 1) share (place + value): 8 / (N share s).

    Examples
    --------
    >>> from gigabatch.models.parallel.costs import all_reduce_over_sparse
    >>> [round(all_reduce_over_sparse(count, 0.01, 2), 1) for count in (2, 8, 400)]
    [129.7, 32.4, 0.6]
    """
    return 2 * VALUE_BYTES / (num_ranks * share * (place_bytes(share) + value_bytes))
