"""A model of the limit: bytes, operations and launches of each stage, from code and shapes, over a machine's ceilings.

    python -m benchmarks.gpu_model [--rows N] [--batch N] [--save] [--measured RESULT.json] [--ceilings JSON]
    python -m benchmarks.gpu_model --device cpu --rows 1000000 --batch 7168 --measured RESULT.json   # a check of itself

Nothing here is a measurement of a GPU. By default the ceilings are those of an H200 and its host (`H200`), and the
table is the one of benchmarks/end_to_end at 42.8 million rows. The time of a piece of work is the longest of: bytes in
order and in random order over their rates, operations over the rate of products, launches times their cost, bytes over
the link, the disk and a host core; of a traced piece that of each of its operations, added up. Pieces follow each
other, so a stage's time is their sum. These are floors: no piece can be faster, and the first version of anything is
slower.

What is counted, and how:

- a training step, the evaluation: the real `TrainStep` runs on the meta device and the model on the CPU, and every
  operation of torch that would be a kernel is counted with the bytes of its tensors (`Tally`); the project's own
  kernels by what they must read and write (`CountedKernels`), their launches as their wrappers group the tables;
- order and gather: one launch where `loaders/order/gather_cuda.py` exists, else torch's operations on the meta device;
- reading, encoding, packing: by the formulas in `Encoding`, for bytes of columns that a sample of the table has;
- artifacts of `make train`: their bytes over the link, a core's pass into the system's cache, the checksum's rate and
  the disk, beside each other where the code does so. With the hand-over (packed rows go on to training while they are
  written) what is written runs beside training, and only the rest counts.

`--measured` compares with a result of benchmarks/end_to_end, part by part: measured over modelled. `--ceilings`
replaces ceilings by name, with those that were measured on a device. With `--device cpu` they are measured on this
machine, which is how far the counting can be checked without a GPU.
"""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks import pairs
from benchmarks.common import arguments, finish
from benchmarks.end_to_end import FULL_ROWS, MOST_BATCH, OURS
from benchmarks.end_to_end_ours import SCORED_ROWS, Recipe, build, train_rows

SECTOR = 32  # bytes that device memory moves at least
SAMPLE_ROWS = 200_000
READER_LAUNCHES = 100  # of cuDF's Parquet reader and of a filter; not counted from its code
H200_BYTES = 141e9  # of its memory, which sizes the parts of `rows_per_part: auto`
RADIX_BITS = 8  # that a pass of CUB's radix sort takes


@dataclass(frozen=True)
class Work:
    """What a piece of a stage has to do.

    stream, random: bytes of device memory in order, and in rows at random. flops: of products. launches: queued one by
    one; replayed: of a captured graph. link: bytes between host and device. disk: bytes read or written. hashed: bytes
    that one host core takes a checksum of; host: bytes that it passes over; drawn: normal numbers that it draws.
    behind: it may run beside what follows; beside: it runs beside the one before it. pieces: what it is the sum of, one
    after the other.
    """

    stage: str
    what: str
    stream: float = 0.0
    random: float = 0.0
    flops: float = 0.0
    launches: float = 0.0
    replayed: float = 0.0
    link: float = 0.0
    disk: float = 0.0
    hashed: float = 0.0
    host: float = 0.0
    drawn: float = 0.0
    behind: bool = False
    beside: bool = False
    pieces: tuple[Work, ...] = ()

    def times(self, count: float) -> Work:
        """So much more of it in as many launches, which are so many times as long."""
        scaled = ("stream", "random", "flops", "link", "disk", "hashed", "host", "drawn")
        return replace(
            self, **{name: getattr(self, name) * count for name in scaled}, pieces=self._each("times", count)
        )

    def repeated(self, count: float) -> Work:
        """It, one after the other so many times."""
        launches = {"launches": self.launches * count, "replayed": self.replayed * count}
        return replace(self.times(count), **launches, pieces=self._each("repeated", count))

    def _each(self, change: str, count: float) -> tuple[Work, ...]:
        return tuple(getattr(piece, change)(count) for piece in self.pieces)


@dataclass(frozen=True)
class Ceilings:
    """Rates a second of a machine, and seconds of a launch. sources: where they are from."""

    stream: float
    random: float
    flops: float
    launch: float
    replay: float
    link: float
    disk: float
    hashed: float
    host: float
    drawn: float
    sources: str = ""

    def seconds(self, work: Work) -> float:
        """The least that `work` can take."""
        return sum(self.by_bound(work).values())

    def by_bound(self, work: Work) -> dict[str, float]:
        """Its seconds by what bounds them."""
        found: dict[str, float] = {}
        for piece in work.pieces or (work,):
            needs = self._needs(piece)
            bound = max(needs, key=lambda name: needs[name])
            found[bound] = found.get(bound, 0.0) + needs[bound]
        return found

    def _needs(self, work: Work) -> dict[str, float]:
        return {
            "bytes": work.stream / self.stream + work.random / self.random,
            "products": work.flops / self.flops,
            "launches": work.launches * self.launch + work.replayed * self.replay,
            "link": work.link / self.link,
            "disk": work.disk / self.disk,
            "checksum": work.hashed / self.hashed,
            "host": work.host / self.host,
            "drawing": work.drawn / self.drawn,
        }


H200 = Ceilings(
    stream=4.3e12,
    random=2.15e12,
    flops=790e12,
    launch=3e-6,
    replay=1.5e-6,
    link=55e9,
    disk=3e9,
    hashed=4.7e9,
    host=10e9,
    drawn=0.15e9,
    sources="copy 4.3 TB/s and bf16 products 790 TFLOP/s seen on an H200; assumed: random rows at half of the copy "
    "(FBGEMM's 775M lookups/s with Adam move 70 % of an H100's), PCIe 5 x16 at 55 GB/s, NVMe at 3 GB/s, plain passes "
    "at 10 GB/s and 0.15e9 normal numbers/s a core, 3 us a launch and 1.5 us in a graph; measured on a core of a Xeon: "
    "files in the system's cache read and hashed by XXH3 at 4.7 GB/s",
)


# What torch's operations move

# Products by name, and the place of the factor whose last dimension is summed over.
PRODUCTS = {"mm": 0, "bmm": 0, "mv": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}


class Tally(TorchDispatchMode):
    """Counts the operations that would be kernels on a GPU: launches, bytes read and written, operations of products.

    A tensor counts as large as its distinct elements are; views, empty tensors and numbers on the host cost nothing.
    Looked up rows count twice (read, written), not the table. Sorts take a pass for each 8 bits of a key, which reads
    and writes key and place, and one more that counts. An operation that torch makes of several kernels counts as one.
    """

    FREE = ("empty", "new_empty", "scalar_tensor", "lift_fresh", "set_", "_local_scalar_dense", "profiler::")
    ROWS = ("index_select", "embedding", "gather", "index", "take")
    WRITTEN = ("fill_", "zero_", "copy_", "normal_", "uniform_", "random_")  # whose first argument is not read

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[Work] = []
        self.reads_of_host = 0
        self.counting = True

    def add(self, name: str, stream: float = 0.0, random: float = 0.0, flops: float = 0.0, launches: float = 1) -> None:
        if self.counting:
            self.pieces.append(Work("", name, stream, random, flops, launches))

    def launches_by_name(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for piece in self.pieces:
            found[piece.what] = found.get(piece.what, 0) + round(piece.launches)
        return dict(sorted(found.items()))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name == "_local_scalar_dense":
            self.reads_of_host += 1
            if args[0].is_meta:
                return 0.0
        found = func(*args, **(kwargs or {}))
        if not (func.is_view or name.startswith(self.FREE) or name == "detach"):
            self._count(name, args, kwargs or {}, found)
        return found

    def _count(self, name: str, args: Any, kwargs: Mapping[str, Any], found: Any) -> None:
        others = {key: value for key, value in kwargs.items() if key != "out"}
        inputs = [leaf for leaf in tree_leaves((args, others)) if isinstance(leaf, Tensor)]
        outputs = [leaf for leaf in tree_leaves(found) if isinstance(leaf, Tensor)]
        changed = [leaf for leaf in tree_leaves(args[:1]) if isinstance(leaf, Tensor)]  # where nothing is returned
        written = sum(map(num_bytes, outputs or changed))
        if name in PRODUCTS:
            self.add(
                name,
                sum(map(num_bytes, inputs)) + written,
                flops=2.0 * outputs[0].numel() * args[PRODUCTS[name]].shape[-1],
            )
        elif name in self.ROWS:
            self.add(name, 2 * written + sum(map(num_bytes, inputs[1:])))
        elif name in ("sort", "argsort"):
            self.add(name, *sorting(inputs[0].numel(), inputs[0].element_size()))
        else:
            self.add(name, sum(map(num_bytes, inputs[1:] if name in self.WRITTEN else inputs)) + written)

    def work(self, stage: str, what: str, replayed: bool = False) -> Work:
        """All that was counted, as one piece of a stage."""
        moved = [replace(p, launches=0.0, replayed=p.launches) if replayed else p for p in self.pieces]
        sums = ("stream", "random", "flops", "launches", "replayed")
        whole = {name: sum(getattr(piece, name) for piece in moved) for name in sums}
        return Work(stage, what, **whole, pieces=tuple(moved))


def num_bytes(tensor: Tensor) -> int:
    """Bytes of the tensor's distinct elements: an expanded dimension counts once."""
    sizes = [size if stride else min(size, 1) for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return math.prod(sizes) * tensor.element_size()


def sorting(count: float, key_bytes: int) -> tuple[float, float, float, int]:
    """Bytes in order, bytes at random, flops and launches of a radix sort of keys with 8-byte places."""
    passes = 8 * key_bytes // RADIX_BITS
    return count * (key_bytes + passes * 2 * (key_bytes + 8)), 0.0, 0.0, passes + 3


# What the project's kernels move


class CountedKernels:
    """Stands in for every kernel of models/kernels: counts what it must move, and leaves outputs as they are."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally

    def lookup(self, ids: Tensor, tables: Sequence[Tensor], out: Tensor, floats: Any = None, *_: Any) -> None:
        """Ids, of each table the rows of a batch at most once, floats and outputs."""
        rows = sum(min(len(ids), len(table)) * sectors(4 * table.shape[1]) for table in tables)
        moved = num_bytes(ids) + num_bytes(out) + (0 if floats is None else num_bytes(floats))
        self.tally.add("lookup", moved, rows)

    def pooled_lookup(
        self, ids: Tensor, offsets: Tensor, weights: Any, table: Tensor, pooling: str, out: Tensor, chosen: Any = None
    ) -> None:
        """Ids, offsets and weights, the rows of the elements at most once each, and outputs."""
        rows = min(len(ids), len(table)) * sectors(4 * table.shape[1])
        parts = [ids, offsets, out, *(part for part in (weights, chosen) if part is not None)]
        self.tally.add("pooled_lookup", sum(map(num_bytes, parts)), rows)

    def spread_gradient(
        self, gradient: Tensor, offsets: Tensor, weights: Any, pooling: str, chosen: Any, out: Tensor
    ) -> None:
        """Each list's gradient once, and an element's for every element."""
        parts = [gradient, offsets, out, *(part for part in (weights, chosen) if part is not None)]
        self.tally.add("spread_gradient", sum(map(num_bytes, parts)))

    def element_scales(self, offsets: Tensor, weights: Any, pooling: str, places: Tensor, scales: Any) -> None:
        """Offsets and, for a mean, weights; a list and a scale for every element."""
        read = () if scales is None or weights is None else (weights,)
        parts = [offsets, places, *read, *(() if scales is None else (scales,))]
        self.tally.add("element_scales", sum(map(num_bytes, parts)))

    def column_moments(self, values: Tensor) -> tuple[Tensor, Tensor]:
        return self._sums("column_moments", num_bytes(values), values)

    def relu_moments(self, values: Tensor, bias: Any = None) -> tuple[Tensor, Tensor]:
        return self._sums("relu_moments", 2 * num_bytes(values), values)

    def dropped_sums(
        self, gradient: Tensor, hidden: Tensor, seed: Tensor, rate: float, start: int = 0
    ) -> tuple[Tensor, Tensor]:
        return self._sums("dropped_sums", num_bytes(gradient) + num_bytes(hidden), gradient)

    def norm_relu_backward(self, gradient: Tensor, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        return self._sums("norm_relu_backward", 2 * num_bytes(gradient) + num_bytes(hidden), gradient)[0]

    def _sums(self, name: str, moved: float, like: Tensor) -> tuple[Tensor, Tensor]:
        """Of the columns; a second launch adds up the programs' parts."""
        self.tally.add(name, moved, launches=2)
        with without(self.tally):
            return tuple(torch.ones(2, like.shape[1], dtype=torch.float64, device=like.device))

    def dropout(self, values: Tensor, out: Tensor, *_: Any, **__: Any) -> None:
        self.tally.add("dropout", num_bytes(values) + num_bytes(out))

    def update_rows(
        self, tables: Sequence[Tensor], states: Sequence[Any], ids: Tensor, gradient: Tensor, rule: Any
    ) -> None:
        """Ids and gradients once; tables of many rows sort their ids, and move the batch's rows and their state."""
        in_order = num_bytes(ids) + len(ids) * sum(table.shape[1] for table in tables) * gradient.element_size()
        self._moved("update_rows", tables, states, ids, in_order, rule)

    def update_elements(
        self, table: Tensor, state: Any, ids: Tensor, places: Tensor, scales: Any, gradient: Tensor, rule: Any
    ) -> None:
        """As `update_rows`, with the place and the scale of each element, and the gradient of each list once."""
        parts = [ids, places, gradient, *(() if scales is None else (scales,))]
        self._moved("update_elements", [table], [state], ids[:, None], sum(map(num_bytes, parts)), rule)

    def _moved(
        self, name: str, tables: Sequence[Tensor], states: Sequence[Any], ids: Tensor, in_order: float, rule: Any
    ) -> None:
        """`in_order` bytes, a sort of the ids of tables of many rows, and the batch's rows and their state."""
        plan = row_plan([tuple(table.shape) for table in tables])
        at_random = 0.0
        for table, state in zip(tables, states, strict=True):
            kept = sum(part.numel() for part in state.values() if part.dim()) / len(table)
            at_random += 2 * min(len(ids), len(table)) * sectors(4 * (table.shape[1] + kept))
        launches = int(rule.step == "global") + 2 * len(plan.small)
        if plan.wide:
            width = 8 if plan.key_dtype == torch.int64 else 4
            sort, _, _, sorts = sorting(len(ids) * sum(group.num_tables for group in plan.wide), width)
            in_order += sort
            launches += 1 + sorts + 2 * len(plan.wide)
        self.tally.add(name, in_order, at_random, launches=launches)


def row_plan(shapes: Sequence[tuple[int, ...]]) -> Any:
    """How the Triton version groups tables of these shapes into launches."""
    from gigabatch.models.kernels.row_update.cuda import _new_plan

    return _new_plan([(0, 0, 0, 0)] * len(shapes), shapes, torch.device("cpu"))


def sectors(row_bytes: float) -> float:
    """Bytes that memory moves for a row at any place of four bytes."""
    return row_bytes if row_bytes % SECTOR == 0 else row_bytes + SECTOR - 4


@contextmanager
def without(tally: Tally) -> Iterator[None]:
    """Within it nothing is counted."""
    tally.counting = False
    yield
    tally.counting = True


@contextmanager
def counted_as_on_a_gpu(dtype: torch.dtype = torch.float32) -> Iterator[Tally]:
    """Within it operations of torch and all kernels are counted, and tensors of the meta device are as on a GPU.

    dtype: of products under autocast, which torch has none of for that device.
    """
    from gigabatch.models import kernels

    tally = Tally()
    stand_in, real = CountedKernels(tally), kernels.kernel
    holders = [module for module in list(sys.modules.values()) if getattr(module, "kernel", None) is real]
    with patches() as patch:
        for module in holders:
            patch(module, "kernel", lambda *_, **__: stand_in)
        patch(torch, "autocast", lambda *_, **__: nullcontext())
        patch(torch, "is_autocast_enabled", lambda *_: dtype != torch.float32)
        patch(torch, "get_autocast_dtype", lambda *_: dtype)
        patch(Tensor, "is_cuda", property(lambda tensor: tensor.is_meta))
        with tally:
            yield tally


@contextmanager
def patches() -> Iterator[Callable[[Any, str, Any], None]]:
    """Attributes that are set within it are as before after it."""
    with ExitStack() as before:

        def patch(owner: Any, name: str, value: Any) -> None:
            if name in vars(owner):
                before.callback(setattr, owner, name, vars(owner)[name])
            else:  # inherited
                before.callback(delattr, owner, name)
            setattr(owner, name, value)

        yield patch


# The table


@dataclass(frozen=True)
class Shapes:
    """A table of `rows` rows, from a sample: bytes a row of the file, of each column in memory (text: its letters and
    offset), of its letters alone, different values by id column, and the packed row's schema."""

    rows: int
    file_bytes: float
    column_bytes: Mapping[str, float]
    text_bytes: Mapping[str, float]
    distinct: Mapping[str, float]
    schema: Any

    @property
    def train(self) -> int:
        return train_rows(self.rows)

    @property
    def valid(self) -> int:
        return self.rows - self.train

    @property
    def memory(self) -> float:
        """Bytes a row of all columns."""
        return sum(self.column_bytes.values())

    @property
    def packed(self) -> float:
        """Bytes of a packed row."""
        return 4.0 * self.schema.num_words

    @classmethod
    def of(cls, rows: int, sample_rows: int = SAMPLE_ROWS) -> Shapes:
        import pyarrow.parquet as pq

        from gigabatch.features.encoding.preprocessor import Preprocessor

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "sample.parquet"
            pairs.write_pairs_from_device(path, sample_rows, "cpu")
            table, size = pq.read_table(path), path.stat().st_size
        names = [*pairs.schema().names("categorical", "continuous", "target"), "row_id"]
        frame = pq_frame(table)
        schema = Preprocessor(pairs.schema()).fit([frame]).tensor_schema
        train = train_rows(rows)
        distinct = {name: expected_distinct(size, train) for name, size in pairs.CARDINALITY.items()}
        distinct |= dict.fromkeys(pairs.FLAGS, 2.0)
        ids = tuple(replace(column, num_ids=3 + round(distinct[column.name])) for column in schema.ids)
        texts = {name: table[name].nbytes / sample_rows - 4 for name in pairs.TEXT}
        return cls(
            rows,
            size / sample_rows,
            {name: table[name].nbytes / sample_rows for name in names},
            texts,
            distinct,
            replace(schema, ids=ids),
        )


def pq_frame(table: Any) -> Any:
    """An Arrow table as the frame that the preprocessor takes."""
    import pandas as pd

    return table.to_pandas(types_mapper=pd.ArrowDtype)


def expected_distinct(cardinality: int, rows: int) -> float:
    """How many of the values are drawn at least once among `rows` rows."""
    import numpy as np

    weights = np.arange(1, cardinality + 1) ** -pairs.EXPONENT
    return float((-np.expm1(rows * np.log1p(-weights / weights.sum()))).sum()) if cardinality > 1 else 1.0


# The stages


class Encoding:
    """Reading, splitting and encoding by cuDF, whose numbers of passes are these.

    read: compressed pages cross the link, are read and unpacked (2 x file), and decoded into columns (2 x memory).
    split: every column is read and written once, in one of the two frames.
    fit, of a column of ids, as `engines/cudf.py` numbers values: its bytes are read and a 64-bit key written; keys are
    sorted with their places (`sorting`), fetched in that order and compared with their neighbours (8 at random, 8
    written, 17), numbered (16) and the numbers scattered to the rows (8, 8 at random), and cast (12). A text is
    compared with its number's first (fetched, both read). Distinct values are sorted by count and value.
    encode: a key, a binary search in keys that lie in the cache, its number (24), the same comparison.
    A float is read once for its statistics, once more for its median, and once to be packed; packing writes whole rows.
    """

    def __init__(self, table: Shapes) -> None:
        self.table = table

    def read(self) -> list[Work]:
        file, memory = (self.table.rows * size for size in (self.table.file_bytes, self.table.memory))
        return [Work("read", "Parquet", 2 * file + 2 * memory, launches=READER_LAUNCHES, link=file)]

    def split(self) -> list[Work]:
        moved = 2 * self.table.rows * self.table.memory
        launches = 2 * len(self.table.column_bytes)
        return [Work("split", "train and valid", moved, launches=READER_LAUNCHES + launches)]

    def fit(self) -> list[Work]:
        return [
            self._keys("encode train", self.table.train, fitted=True),
            self._floats(),
            self._pack("encode train", self.table.train),
        ]

    def encode(self) -> list[Work]:
        return [self._keys("encode valid", self.table.valid, False), self._pack("encode valid", self.table.valid)]

    def _keys(self, stage: str, rows: int, fitted: bool) -> Work:
        stream = random = 0.0
        launches = 0
        for column in self.table.schema.ids:
            name = column.name
            stream += rows * (self.table.column_bytes[name] + 8)
            if name in self.table.text_bytes:
                stream += rows * 4 * self.table.text_bytes[name]
                launches += 8
            if fitted:
                sort, distinct = sorting(rows, 8), sorting(self.table.distinct[name], 8)
                stream += rows * (8 + 17 + 16 + 8 + 12) + sort[0] + 2 * distinct[0]
                random += rows * 2 * SECTOR
                launches += int(sort[3] + 2 * distinct[3]) + 12
            else:
                stream += rows * 24
                launches += 8
        return Work(stage, "ids", stream, random, launches=launches)

    def _floats(self) -> Work:
        names = pairs.CONTINUOUS
        one = self.table.train * sum(self.table.column_bytes[name] for name in names)
        return Work("encode train", "statistics of floats", 2 * one, launches=2 * 3)

    def _pack(self, stage: str, rows: int) -> Work:
        floats = sum(self.table.column_bytes[name] for name in pairs.CONTINUOUS)
        targets = 4.0 * len(self.table.schema.targets)
        read = 4.0 * len(self.table.schema.ids) + floats + targets
        return Work(stage, "packing", rows * (read + self.table.packed), launches=4)


@dataclass(frozen=True)
class Step:
    """A training step of `batch` rows: order and gather, what the host queues, and what the graph replays."""

    batch: int
    gather: Work
    queued: Work
    replayed: Work
    reads_of_host: int
    operations: Mapping[str, int]

    def parts(self) -> list[Work]:
        return [self.gather, self.queued, self.replayed]

    @classmethod
    def of(cls, table: Shapes, recipe: Recipe, dtype: torch.dtype) -> Step:
        """Traced on the meta device."""
        from gigabatch.loaders.tables.packed import unpack
        from gigabatch.models.losses import TargetLoss
        from gigabatch.models.optimizers.precision import Precision
        from gigabatch.models.optimizers.registry import set_lr_and_momentum
        from gigabatch.models.optimizers.row_optimizer import RAISED_AT
        from gigabatch.pipeline.training.train_step import TrainStep, hold_in_tensors

        batch = recipe.batch_size
        with torch.random.fork_rng([]):
            model, optimizer = build(SimpleNamespace(schema=table.schema), recipe, "meta")
        step = TrainStep(model, TargetLoss((("binary", 1),)), optimizer, Precision(dtype, "as a GPU"))
        hold_in_tensors(optimizer, torch.device("meta"))
        for mover in step._movers():
            mover.steps_taken = max(RAISED_AT)  # steps that raise sums of squares are eleven of a training
        words = torch.zeros(batch, table.schema.num_words, dtype=torch.int32, device="meta")
        with counted_as_on_a_gpu(dtype) as first:  # makes the optimizers' state
            step._work(unpack(table.schema, words))
        with counted_as_on_a_gpu(dtype) as queued:
            set_lr_and_momentum(optimizer, recipe.lr, 0.9)
            torch.empty_like(words).copy_(words)
        with counted_as_on_a_gpu(dtype) as replayed:
            step._work(unpack(table.schema, words))
        assert len(first.pieces) >= len(replayed.pieces), "the first step makes the state"
        return cls(
            batch,
            gather_work(table, batch),
            queued.work("train", "learning rate, the batch into the graph"),
            replayed.work("train", "step", replayed=True),
            replayed.reads_of_host,
            replayed.launches_by_name(),
        )


def gather_work(table: Shapes, batch: int) -> Work:
    """The rows of a batch in the order of the epoch: read at random, written in order."""
    from gigabatch.loaders.order.gather import gather_shuffled
    from gigabatch.loaders.order.order import SampleOrder

    written = batch * table.packed
    if importlib.util.find_spec("gigabatch.loaders.order.gather_cuda") is not None:
        return Work("train", "order and gather", written, batch * sectors(table.packed), launches=1)
    words = torch.empty(table.train, table.schema.num_words, dtype=torch.int32, device="meta")
    out = torch.empty(batch, table.schema.num_words, dtype=torch.int32, device="meta")
    order = SampleOrder(table.train, 0, 0)
    with Tally() as tally:
        gather_shuffled(words, order, 0, batch, out)
    return tally.work("train", "order and gather")


def model_work(table: Shapes) -> Work:
    """The model is drawn on the host and copied."""
    from benchmarks.end_to_end_ours import OTHER_WIDTH, WIDTHS

    weights = sum(column.num_ids * WIDTHS.get(column.name, OTHER_WIDTH) for column in table.schema.ids)
    return Work("model", "tables drawn on the host", drawn=weights, link=4.0 * weights)


def metrics_work(table: Shapes, recipe: Recipe, block: int, traced_rows: int = 1 << 15) -> list[Work]:
    """Scores of the validation rows in blocks, then AUC and log loss over all; traced on fewer rows and scaled."""
    from gigabatch.loaders.tables.packed import unpack
    from gigabatch.models.metrics.pointwise import log_loss, roc_auc

    with torch.random.fork_rng([]):
        model, _ = build(SimpleNamespace(schema=table.schema), recipe, "cpu")
    batch = unpack(table.schema, torch.zeros(traced_rows, table.schema.num_words, dtype=torch.int32))
    labels = torch.arange(traced_rows) % 2
    with torch.inference_mode(), counted_as_on_a_gpu() as scored:
        scores = model.eval()(batch.ids, batch.floats)[:, 0].sigmoid()
    probabilities = torch.linspace(0.1, 0.9, len(scores))
    with torch.inference_mode(), counted_as_on_a_gpu() as judged:
        roc_auc(probabilities, labels), log_loss(probabilities, labels)
    scale, blocks = table.valid / traced_rows, math.ceil(table.valid / block)
    found = []
    for what, tally, count in (("scores", scored, blocks), ("AUC, log loss", judged, 1)):
        found.append(tally.work("metrics", what).times(scale / count).repeated(count))
    return found


def benchmark_path(table: Shapes, recipe: Recipe, step: Step, block: int) -> list[Work]:
    """benchmarks/end_to_end: a Parquet file to the metrics of one epoch."""
    encoding, steps = Encoding(table), table.train / recipe.batch_size
    return [
        *encoding.read(),
        *encoding.split(),
        *encoding.fit(),
        *encoding.encode(),
        model_work(table),
        *(part.repeated(steps) for part in step.parts()),
        *metrics_work(table, recipe, block),
    ]


def train_path(table: Shapes, benchmark: Sequence[Work], handover: bool) -> list[Work]:
    """`make train`, from the file on: features as Parquet, packed rows as an artifact, and the epoch between them.

    The file gets a checksum, by one thread. An artifact is written to the system's cache; then its files get theirs,
    each by a thread (`ArtifactStore._put`), while the disk takes them in, which it begins to do with packed rows while
    they are written (`FlushBehind`): one file of them is longer than all others. Features of several parts are read to
    fit, to find medians, and to be packed. Without the hand-over training reads back what was written.
    """
    from gigabatch.features.reading.row_bytes import RowBytes
    from gigabatch.pipeline.stages.part_rows import rows_of_part

    row = RowBytes(table.memory, max(table.column_bytes[name] for name in table.text_bytes))
    part_rows = rows_of_part("auto", row, H200_BYTES)
    parts = math.ceil(table.train / part_rows)
    by_stage = {stage: [work for work in benchmark if work.stage == stage] for stage in stages_of(benchmark)}
    rows, file = table.rows, table.rows * table.file_bytes
    packed = rows * table.packed
    features = [
        Work("features", "checksum of the file", hashed=file),
        *(replace(work, stage="features") for work in (*by_stage["read"], *by_stage["split"])),
        Work("features", "Parquet written", 3 * rows * table.memory, launches=READER_LAUNCHES, link=file, host=file),
        Work("features", "flushed, checksums beside it", hashed=slowest_thread(file, part_rows / rows), disk=file),
    ]
    cached = Work("", "", packed, link=packed, host=packed)
    hashed = Work("", "", hashed=slowest_thread(packed, table.train / rows))
    written = [
        Work("artifact", "to the system's cache, then checksums", pieces=(cached, hashed), behind=handover),
        Work("artifact", "flushed meanwhile", disk=packed, behind=handover, beside=not handover),
    ]
    if not handover:
        written.append(Work("artifact", "read back", packed, host=packed, link=packed))
    work_of = [work for stage in ("read", "encode train", "encode valid") for work in by_stage[stage]]
    encode = [replace(work, stage="encode", launches=parts * work.launches) for work in work_of]
    again = [work.repeated(2) for work in encode[:1] if parts > 1]
    following = [work for stage in ("model", "train", "metrics") for work in by_stage[stage]]
    return [*features, *again, *encode, *written, *following]


def slowest_thread(num_bytes: float, largest: float) -> float:
    """Bytes of which the busiest of the store's threads takes checksums: a file is one's. largest: share of a file."""
    from gigabatch.pipeline.store.files import THREADS

    return num_bytes * max(largest, 1 / THREADS)


def stages_of(works: Sequence[Work]) -> list[str]:
    return list(dict.fromkeys(work.stage for work in works))


def total_seconds(works: Sequence[Work], ceilings: Ceilings) -> dict[str, float]:
    """Seconds by stage; of what runs behind others only what is left when all that follows it has ended.

    What runs behind in one stage is done side by side: its slowest piece counts. So it is with a piece that runs beside
    the one before it.
    """
    found: dict[str, float] = dict.fromkeys(stages_of(works), 0.0)
    behind: dict[str, float] = {}
    beside = before = 0.0
    for work in works:
        seconds = ceilings.seconds(work)
        if work.behind:
            behind[work.stage] = max(behind.get(work.stage, 0.0), seconds)
            beside = 0.0
        else:
            more = max(0.0, seconds - before) if work.beside else seconds
            found[work.stage] += more
            beside += more
            before = seconds
    for stage, seconds in behind.items():
        found[stage] += max(0.0, seconds - beside)
    return found


def rows_of(works: Sequence[Work], ceilings: Ceilings) -> list[dict[str, Any]]:
    """A line a piece, for people."""
    found = []
    for work in works:
        seconds = ceilings.by_bound(work)
        found.append(
            {
                "stage": work.stage,
                "work": work.what + (" (behind)" if work.behind else " (beside)" if work.beside else ""),
                "GB": (work.stream + work.random) / 1e9,
                "TFLOP": work.flops / 1e12,
                "launches": round(work.launches + work.replayed),
                "host GB": max(
                    piece.link or piece.disk or piece.hashed or piece.host for piece in work.pieces or (work,)
                )
                / 1e9,
                "seconds": sum(seconds.values()),
                "bound by": max(seconds, key=lambda name: seconds[name]),
            }
        )
    return found


def measured_ceilings(table: Shapes, dtype: torch.dtype) -> Ceilings:
    """This machine's, on its CPU: nothing crosses a link, files lie in the system's cache."""
    from gigabatch.pipeline.lab.profile.step_needs import measure_rates

    rates = measure_rates("cpu", dtype, table.schema.num_words)
    small, count = torch.zeros(8), 2000
    started = time.perf_counter()
    for _ in range(count):
        small.add_(1)
    launch = (time.perf_counter() - started) / count
    part, count = torch.empty(1 << 16), 100
    started = time.perf_counter()
    for _ in range(count):
        part.normal_().fmod_(2).mul_(0.01)  # as tables are drawn
    drawn = count * len(part) / (time.perf_counter() - started)
    free = dict.fromkeys(("link", "disk", "hashed"), math.inf)
    rate = {"stream": rates.copy, "random": rates.random, "flops": rates.matmul, "host": rates.copy, "drawn": drawn}
    return Ceilings(**rate, **free, launch=launch, replay=launch, sources=str(rates))


def read_ceilings(text: str, base: Ceilings = H200) -> Ceilings:
    """Those of `base`, but for what JSON text or a file of it names; ValueError for a name that is none."""
    given = json.loads(Path(text).read_text() if not text.lstrip().startswith("{") else text)
    known = {field.name for field in fields(Ceilings)}
    unknown = sorted(set(given) - known)
    if unknown:
        raise ValueError(f"--ceilings: unknown {', '.join(unknown)}. Known: {', '.join(sorted(known))}.")
    return replace(base, **given)


def compare(modelled: Mapping[str, float], result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A line for each part of a result of benchmarks/end_to_end; ValueError where the model lacks one that took time.

    `pack` is the model's nothing: packed rows become a tensor without a copy.
    """
    measured = {k: v for k, v in result["details"]["ours by part"].items() if not k.startswith("of which")}
    missing = sorted(set(measured) - set(modelled) - {"pack"})
    missing += sorted(set(modelled) - set(measured))
    if missing:
        raise ValueError(f"--measured: parts that only one side has: {', '.join(missing)}.")
    lines = [
        {"part": part, "measured": seconds, "modelled": modelled[part], "times": seconds / modelled[part]}
        for part, seconds in measured.items()
        if part in modelled
    ]
    whole, model = sum(measured.values()), sum(modelled.values())
    return [*lines, {"part": "whole", "measured": whole, "modelled": model, "times": whole / model}]


def main() -> None:
    flags = arguments(__doc__ or "", rows=FULL_ROWS, batch=MOST_BATCH, measured="", ceilings="")
    from gigabatch.models.optimizers.precision import choose_precision
    from gigabatch.pipeline.display import render_table

    here = flags.device == "cpu"
    rows = 1_000_000 if flags.quick and flags.rows == FULL_ROWS else flags.rows
    table = Shapes.of(rows)
    dtype = choose_precision("auto", "cpu").dtype if here else torch.bfloat16
    ceilings = read_ceilings(flags.ceilings or "{}", measured_ceilings(table, dtype) if here else H200)
    recipe = replace(OURS, batch_size=min(flags.batch, table.train))
    step = Step.of(table, recipe, dtype)
    benchmark = benchmark_path(table, recipe, step, SCORED_ROWS["cpu" if here else "cuda"])
    paths: dict[str, Sequence[Work]] = {"end to end": benchmark}
    if not here:
        paths["make train"] = train_path(table, benchmark, handover=True)
        paths["make train, no hand-over"] = train_path(table, benchmark, handover=False)
    seconds = {name: total_seconds(works, ceilings) for name, works in paths.items()}
    for name, works in paths.items():
        whole = sum(seconds[name].values())
        render_table(rows_of(works, ceilings), f"MODELLED, not measured: {name}, {rows:,} rows, {whole:.3f} s")
    totals = {f"modelled, {name}": sum(found.values()) for name, found in seconds.items()}
    totals["modelled, epoch"] = seconds["end to end"]["train"]
    ways = {name: max(found, key=lambda stage: found[stage]) for name, found in seconds.items()}
    for name, stage in ways.items():
        print(f"{name}: {stage} stands in the way, {seconds[name][stage]:.3f} of {sum(seconds[name].values()):.3f} s")
    ratios: dict[str, float] = {}
    if flags.measured:
        lines = compare(seconds["end to end"], json.loads(Path(flags.measured).read_text()))
        render_table(lines, f"Measured over modelled: {flags.measured}")
        ratios = {f"measured over modelled, {line['part']}": line["times"] for line in lines}
    claims: Mapping[str, tuple[float, float, bool]] = {}
    if not here and rows == FULL_ROWS:
        bars = {"modelled, end to end": 3.0, "modelled, epoch": 1.0, "modelled, make train": 6.0}
        claims = {f"seconds {name}": (totals[name], bar, totals[name] < bar) for name, bar in bars.items()}
    finish(
        "gpu_model-of-this-cpu" if here else "gpu_model-h200-modelled",
        f"MODELLED, nothing was run on a GPU: pair table, {rows:,} rows, batch {recipe.batch_size:,}",
        totals,
        ratios,
        claims,
        save=flags.save,
        details={
            "ceilings": {name: value if value != math.inf else None for name, value in asdict(ceilings).items()},
            "dtype": str(dtype),
            "words of a packed row": table.schema.num_words,
            "in the way": ways,
            "seconds by stage": {n: {s: round(x, 5) for s, x in found.items()} for n, found in seconds.items()},
            "launches a step": {part.what: round(part.launches + part.replayed) for part in step.parts()},
            "operations of a step": step.operations,
            "reads of the host in a step": step.reads_of_host,
        },
    )


if __name__ == "__main__":
    main()
