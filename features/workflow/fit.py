"""Fitting many operators at once: in as few passes over the partitions as their states need."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from gigabatch.features.engines.frame import engine_of, load_engine
from gigabatch.features.engines.plain_types import as_plain
from gigabatch.features.operators.base import FittedOperator, call


def fit_together(
    operators: Mapping[Any, FittedOperator],
    parts: Sequence[Any],
    prepare: Callable[[Any], Any],
    view: Callable[[Any, Any], Any] = lambda prepared, key: prepared,
    read: Callable[[Any, list[str]], Any] | None = None,
    scheduler: Any = "threads",
) -> dict[Any, Any]:
    """States of many operators, each as one pass over the partitions (more where an operator has a `following` one).

    A pass is one Dask graph: each partition gives a partial for every operator, and partials are merged
    pairwise, as a tree.

    parts: frames, or Parquet paths paired with an engine as `(engine, path)`; each is one partition. On a GPU one is
    held at a time.
    prepare: called once a partition and pass, with its frame. view: the frame for the operator of that key, from what
    `prepare` gave; for operators that see different stages of one table. read: gives a partition's frame with these
    columns, the inputs of the pass's operators, of types that `prepare` takes; without it whole partitions are read,
    as of `as_plain`.
    scheduler: where the graph is computed, as Dask's `compute` takes it: "threads" holds a partition a core,
    `threads(n)` n of them, and a distributed client as many as its workers have threads.
    """
    scheduler = threads() if scheduler == "threads" else scheduler
    pending: dict[Any, FittedOperator] = dict(operators)
    states: dict[Any, Any] = {}
    engine = load_engine(parts[0][0]) if isinstance(parts[0], tuple) else engine_of(parts[0])
    if engine.NAME.startswith("cudf") and not hasattr(scheduler, "submit"):  # a cluster's workers have a GPU each
        scheduler = "synchronous"
    while pending:
        merged = _one_pass(pending, parts, prepare, view, read, scheduler)
        following = {key: operator.following(merged[key]) for key, operator in pending.items()}
        done = [key for key in pending if following[key] is None]
        finished = engine.map_columns(lambda key: pending[key].finish(merged[key]), done)  # noqa: B023
        states |= dict(zip(done, finished, strict=True))
        pending = {key: operator for key, operator in following.items() if operator is not None}
    return {key: states[key] for key in operators}


def threads(count: int | None = None) -> Callable[..., Any]:
    """A scheduler that holds no more than so many partitions at once, in threads of this process; None: as many as
    Dask is configured for, or one a core."""
    return partial(_computed, count)


def _computed(count: int | None, graph: Any, keys: Any, **options: Any) -> Any:
    """Dask keeps the threads of its own pools, which a forked child waits for and does not have."""
    import dask.threaded
    from dask.system import CPU_COUNT

    if count is None and dask.config.get("pool", None) is not None:
        return dask.threaded.get(graph, keys, **options)
    with ThreadPoolExecutor(count or dask.config.get("num_workers", None) or CPU_COUNT) as pool:
        return dask.threaded.get(graph, keys, pool=pool, **options)


def read_part(part: Any, columns: Collection[str] | None = None) -> Any:
    """A partition's frame; of a file only those of `columns` that it has, where they are given."""
    if not isinstance(part, tuple):
        return part
    engine = load_engine(part[0])
    wanted = None if columns is None else [name for name in engine.parquet_columns(part[1]) if name in columns]
    return engine.read_parquet(part[1], wanted)


def _one_pass(
    operators: Mapping[Any, FittedOperator], parts: Sequence[Any], prepare: Any, view: Any, read: Any, scheduler: Any
) -> dict[Any, Any]:
    """The merged partial of every operator."""
    import dask  # not at the top: `fit_pack` runs where Dask is not installed

    inputs = list(dict.fromkeys(name for operator in operators.values() for name in operator.inputs))

    def partials(part: Any) -> dict[Any, Any]:
        frame = as_plain(read_part(part), inputs) if read is None else read(part, inputs)
        prepared = prepare(frame)

        def contribution(key: Any) -> Any:
            operator = operators[key]
            return call(operator, "partial", view(prepared, key), operator.inputs)

        found = _found_together(operators, lambda key: view(prepared, key))
        rest = [key for key in operators if key not in found]
        alone = engine_of(frame).map_columns(contribution, rest)
        return found | dict(zip(rest, alone, strict=True))

    def merge(left: dict, right: dict) -> dict:
        return {key: operator.merge(left[key], right[key]) for key, operator in operators.items()}

    pending = [dask.delayed(partials)(part) for part in parts]
    while len(pending) > 1:
        pairs = [dask.delayed(merge)(*pending[i : i + 2]) for i in range(0, len(pending) - 1, 2)]
        pending = pairs + pending[len(pairs) * 2 :]
    return pending[0].compute(scheduler=scheduler)


def _found_together(operators: Mapping[Any, FittedOperator], frame_of: Callable[[Any], Any]) -> dict[Any, Any]:
    """The partials of those whose engine finds many in one pass."""
    asked: dict[Any, dict[Any, Any]] = {}
    for key, operator in operators.items():
        function, argument = operator.together(frame_of(key)) or (None, None)
        if function is not None:
            asked.setdefault(function, {})[key] = argument
    found: dict[Any, Any] = {}
    for function, arguments in asked.items():
        partials = function(list(arguments.values()))
        found |= {} if partials is None else dict(zip(arguments, partials, strict=True))
    return found
