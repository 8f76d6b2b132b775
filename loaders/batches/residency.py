"""Where the rows of a packed table are while a model trains on them, and why: in GPU memory, in host memory or on disk.

`device`: the whole table in GPU memory. `host`: in host memory, a local file mapped, so that its pages are shared and
can be dropped. `stream`: on disk or behind a URL, a few blocks in memory. Rows go from the host to a GPU by way of a
loader's page-locked batches, so the table itself is not page-locked.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gigabatch.loaders.batches.dataset import BatchDataset, BatchSource
from gigabatch.loaders.batches.shards import PackedShards
from gigabatch.loaders.batches.stream import StreamedDataset
from gigabatch.loaders.device_memory import free_device_memory
from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.tables.packed import PackedTable

log = logging.getLogger(__name__)
SETTINGS = ("auto", "device", "host", "stream")
# Of the memory that is free now, what a table may take. The rest of a GPU's is for the model, its optimizer and a
# step's activations.
DEVICE_SHARE = 0.7
HOST_SHARE = 0.8
COPY_BYTES = 64 << 20  # of a block that one thread reads
READERS = 4  # threads that read blocks; one more block than these is page-locked while a table is copied to a GPU


@dataclass(frozen=True)
class Residency:
    """kind: device, host or stream; reason: why, in words for the log."""

    kind: str
    reason: str


def choose_residency(
    num_rows: int,
    row_bytes: int,
    device: str,
    free_device_bytes: int,
    free_host_bytes: int,
    setting: str = "auto",
) -> Residency:
    """The fastest residency that fits, or the one of `setting` if it fits. A pure function.

    num_rows, row_bytes: of all tables that are to be there together (a run trains and measures: their sum).
    device: of torch, which trains. free_device_bytes: ignored for `cpu`.

    Raises:
        LoaderError: for an unknown setting, or one that does not fit; it says what would.
    """
    if setting not in SETTINGS:
        raise LoaderError(f"residency {setting!r} is unknown. Known: {', '.join(SETTINGS)}.")
    table_bytes = num_rows * row_bytes
    table = f"{num_rows:,} rows of {row_bytes} bytes, {_gib(table_bytes)},"
    on_gpu = torch.device(device).type != "cpu"
    limits = {"host": (HOST_SHARE, free_host_bytes, "host memory")}
    if on_gpu:
        limits = {"device": (DEVICE_SHARE, free_device_bytes, f"memory of {device}"), **limits}
    fits = [kind for kind, (share, free, _) in limits.items() if table_bytes <= share * free]
    why = {
        kind: f"{table} {'fit' if kind in fits else 'do not fit'} in {share:.0%} of the {_gib(free)} of free {what}"
        for kind, (share, free, what) in limits.items()
    }
    if setting == "stream":
        return Residency("stream", "as configured")
    if setting == "auto":
        kind = fits[0] if fits else "stream"
        tried = list(why)[: list(why).index(kind) + 1] if fits else list(why)
        return Residency(kind, "; ".join(why[name] for name in tried))
    if setting not in limits:
        raise LoaderError(f"residency=device: the run trains on {device}, not on a GPU. Use residency=host or auto.")
    if setting not in fits:
        others = " or ".join(f"residency={kind}" for kind in (*fits, "stream"))
        raise LoaderError(f"residency={setting}: {why[setting]}. Use {others}, or auto.")
    return Residency(setting, f"as configured; {why[setting]}")


def residency_here(tables: list[PackedShards], device: str, free_host_bytes: int, setting: str = "auto") -> Residency:
    """`choose_residency` for these tables together, with the memory that is free on `device` now.

    free_host_bytes: `gigabatch.pipeline.machine.available_memory()`, which knows of cgroups, divided by the ranks on
    this machine, of which each has tables of its own. The choice is logged.
    """
    free_device_bytes = free_device_memory(device) if torch.device(device).type == "cuda" else 0
    num_rows = sum(table.num_rows for table in tables)
    of_lists = sum(column.num_bytes for table in tables for column in table.lists)
    row_bytes = tables[0].row_bytes + -(-of_lists // max(num_rows, 1))
    found = choose_residency(num_rows, row_bytes, device, free_device_bytes, free_host_bytes, setting)
    log.info("residency %s: %s", found.kind, found.reason)
    return found


def open_source(
    table: PackedTable | PackedShards | Path | str,
    residency: Residency | str,
    batch_size: int,
    *,
    device: str = "cpu",
    shuffle: bool = True,
    seed: int = 0,
    drop_last: bool = False,
    rank: int = 0,
    num_ranks: int = 1,
    step_rows: int | None = None,
) -> BatchSource:
    """Open the batches of a packed table from where `residency` wants its rows; wrap it in a `BatchLoader`.

    Parameters
    ----------
    table : PackedTable or PackedShards or Path or str
        A folder, an fsspec URL, or a table that is in memory already (which cannot be streamed).
    residency : Residency or str
        Of `choose_residency`, or its kind: device, host or stream.
    batch_size : int
        Rows of a batch of this rank.
    device : str, default 'cpu'
        The one that trains.
    shuffle, seed, drop_last, rank, num_ranks, step_rows
        As of `BatchDataset`. A stream's ranks have parts of one size.

    Returns
    -------
    BatchSource
        A `BatchDataset`, or a `StreamedDataset` for `stream`.

    Raises
    ------
    LoaderError
        For a damaged table, an unknown residency, `device` without a GPU, or a table that cannot be streamed in this
        way; see `StreamedDataset`.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import PackedTable
    >>> from gigabatch.features.schema import IdColumn, Target, TensorSchema
    >>> schema = TensorSchema(ids=(IdColumn("item", 9),), floats=("price",), targets=(Target("clicked", "binary"),))
    >>> items, clicked = torch.arange(9, dtype=torch.int32), torch.zeros(9)
    >>> table = PackedTable.from_columns(schema, ids=[items], floats=[items / 2], targets=[clicked])
    >>> from gigabatch.loaders.batches.residency import open_source
    >>> source = open_source(table, "host", batch_size=4, shuffle=False)
    >>> len(source), source[0].num_rows
    (3, 4)
    """
    kind = residency.kind if isinstance(residency, Residency) else residency
    if kind not in SETTINGS[1:]:
        raise LoaderError(f"residency {kind!r} cannot be opened. Known: {', '.join(SETTINGS[1:])}.")
    options: dict[str, Any] = {"shuffle": shuffle, "seed": seed, "drop_last": drop_last}
    options |= {"rank": rank, "num_ranks": num_ranks}
    if kind == "stream":
        if isinstance(table, PackedTable):
            raise LoaderError("residency=stream: the table is in memory already. Give its folder, or use host.")
        if step_rows is not None and step_rows != batch_size * num_ranks:
            raise LoaderError(
                f"residency=stream: {num_ranks} ranks cannot share a step of {step_rows} rows evenly. Choose a batch "
                f"that {num_ranks} divides, or residency=host."
            )
        return StreamedDataset(table, batch_size, **options)
    target = torch.device(device)
    if kind == "device" and target.type == "cpu":
        raise LoaderError("residency=device: the run trains on cpu, not on a GPU. Use residency=host.")
    if isinstance(table, PackedTable):
        resident = table.to(target) if kind == "device" else table
    else:
        resident = load_table(table, kind, target)
    return BatchDataset(resident, batch_size, step_rows=step_rows, **options)


def load_table(table: PackedShards | Path | str, kind: str, device: torch.device) -> PackedTable:
    """The whole table in `device` memory (kind `device`) or in host memory (kind `host`)."""
    shards = table if isinstance(table, PackedShards) else PackedShards(table)
    shape = (shards.num_rows, shards.schema.num_words)
    if kind == "device":
        words = torch.empty(shape, dtype=torch.int32, device=device)
        _copy_to_gpu(shards, words)
        return PackedTable(words, shards.schema, tuple(column.to(device) for column in shards.lists))
    if not shards.is_remote and len(shards.shards) == 1:
        shards.read_ahead([(0, shards.num_rows)])  # in one piece, where training would read single pages
        return PackedTable.load(Path(shards.shards[0].path).parent)
    words = torch.empty(shape, dtype=torch.int32)
    blocks = _blocks(shards)
    for _ in _read_in_turn(shards, blocks, [words[start:stop] for start, stop in blocks]):
        pass
    return PackedTable(words, shards.schema, shards.lists)


def _copy_to_gpu(shards: PackedShards, words: Tensor) -> None:
    """Fill `words` [N, W] on a GPU: blocks are read into page-locked memory while those before them are copied."""
    blocks = _blocks(shards)
    shape = (max((stop - start for start, stop in blocks), default=0), words.shape[1])
    staging = [torch.empty(shape, dtype=torch.int32, pin_memory=True) for _ in range(min(READERS, len(blocks)) + 1)]
    copied = [torch.cuda.Event() for _ in staging]
    stream = torch.cuda.current_stream(words.device)
    outs = [staging[number % len(staging)][: stop - start] for number, (start, stop) in enumerate(blocks)]

    def free(number: int) -> None:
        copied[number % len(staging)].synchronize()  # returns at once for an event that was never recorded

    for number in _read_in_turn(shards, blocks, outs, free, ahead=len(staging)):
        start, stop = blocks[number]
        words[start:stop].copy_(outs[number], non_blocking=True)
        copied[number % len(staging)].record(stream)
    stream.synchronize()


def _read_in_turn(
    shards: PackedShards,
    blocks: Sequence[tuple[int, int]],
    outs: Sequence[Tensor],
    free: Callable[[int], None] = lambda number: None,
    ahead: int | None = None,
) -> Iterator[int]:
    """Read each block into its tensor of `outs`, `READERS` at once, and yield their numbers in order as they are there.

    ahead: a block's reading begins only when what was done with the one so many before it is over: its number was
    asked past, and then `free`, called with the block's own number in the thread that reads it, has returned.
    """

    def read(number: int) -> None:
        free(number)
        shards.read_rows([blocks[number]], outs[number])

    limit = len(blocks) if ahead is None else ahead
    with ThreadPoolExecutor(READERS, "read rows") as pool:
        reads = deque(pool.submit(read, number) for number in range(min(limit, len(blocks))))
        try:
            for number in range(len(blocks)):
                reads.popleft().result()
                yield number
                if number + limit < len(blocks):
                    reads.append(pool.submit(read, number + limit))
        finally:
            for waiting in reads:  # where one has failed, the others need not begin
                waiting.cancel()


def _blocks(shards: PackedShards) -> list[tuple[int, int]]:
    """The table's rows in ranges of `COPY_BYTES`."""
    rows = max(1, COPY_BYTES // shards.row_bytes)
    return [(start, min(start + rows, shards.num_rows)) for start in range(0, shards.num_rows, rows)]


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"
