"""What the phases of a training step have to move and to compute at least, from the shapes alone, and what
this machine's memory and arithmetic can do at most, measured in a second or two.

Shapes: B rows of a batch, C id columns of tables [V_c, D_c], of which a batch touches U_c rows, W the sum of D_c, T
elements of all lists of a batch. With drawn negatives P positives with K each, B = P (1 + K).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gigabatch.features.schema import TensorSchema
from gigabatch.loaders.negatives.draws import PopularityNegatives
from gigabatch.loaders.negatives.implicit import ImplicitBatches
from gigabatch.loaders.tables.packed import Batch
from gigabatch.models.kernels import kernel
from gigabatch.models.model import Model
from gigabatch.models.recommenders.ncf import NCF
from gigabatch.models.shelf import spec_of
from gigabatch.models.tabular.tabular import TabularModel
from gigabatch.pipeline.lab.experiment import wait_for
from gigabatch.pipeline.lab.profile.step_phases import (
    BACKWARD,
    DENSE,
    DRAW,
    EMBEDDING,
    FORWARD,
    GATHER,
    LOOKUP,
    LOSS,
    PhasedStep,
)
from gigabatch.pipeline.training.train import TrainingError

REPEATS = 5
EMBEDDING_WORDS = 16  # of a random read: 64 bytes, a cache line and a common width of an embedding


@dataclass(frozen=True)
class Rates:
    """copy: bytes read and written a second by a large copy. random, packed: bytes a second of rows read in random
    order from a large table, rows of 64 bytes and of `packed_words` words; ids and output are not counted. matmul:
    floating-point operations a second of a square matrix product in `dtype`."""

    copy: float
    random: float
    packed: float
    packed_words: int
    matmul: float
    dtype: torch.dtype

    def __str__(self) -> str:
        return (
            f"copy {self.copy / 1e9:,.1f} GB/s; random rows of 64 bytes {self.random / 1e9:,.1f} GB/s "
            f"({self.random / 4 / EMBEDDING_WORDS / 1e6:,.0f}M/s), of {4 * self.packed_words} bytes "
            f"{self.packed / 1e9:,.1f} GB/s; products in {str(self.dtype).removeprefix('torch.')} "
            f"{self.matmul / 1e9:,.0f} GFLOP/s"
        )


def measure_rates(
    device: str, dtype: torch.dtype, packed_words: int, num_bytes: int = 1 << 29, side: int = 2048
) -> Rates:
    """Measure on `device`, medians of five: torch's copy and product, and reads by the kernel `lookup`.

    num_bytes: of the table that is copied and read from; it should be far larger than the caches. side: of the square
    matrices, far larger than a model's, so that the rate is one that its products cannot reach.
    """
    # Random, for zeros would be one page of the system's until written, and a GPU multiplies equal numbers with less
    # power and at a higher clock than a model's.
    drawn = torch.randn(1 << 18, device=device, generator=torch.Generator(device).manual_seed(1))
    words = drawn.repeat(-(-num_bytes // drawn.nbytes))
    half = len(words) // 2
    left, right = torch.randn(2, side, side, device=device, generator=torch.Generator(device).manual_seed(2)).to(dtype)
    product = torch.empty(side, side, device=device, dtype=dtype)
    copied = seconds_of(lambda: words[:half].copy_(words[half : 2 * half]), device)
    multiplied = seconds_of(lambda: torch.mm(left, right, out=product), device)
    return Rates(
        copy=2 * half * 4 / copied,
        random=_random_rate(words, EMBEDDING_WORDS),
        packed=_random_rate(words, packed_words),
        packed_words=packed_words,
        matmul=2 * side**3 / multiplied,
        dtype=dtype,
    )


def _random_rate(words: torch.Tensor, row_words: int) -> float:
    """Bytes a second of rows of `row_words` words, read in random order from `words` taken as a table of such rows."""
    table = words[: len(words) // row_words * row_words].view(-1, row_words)
    ids = torch.randint(len(table), (max(len(table) // 8, 1), 1), dtype=torch.int32, device=words.device)
    rows = torch.empty(len(ids), row_words, device=words.device)
    lookup = kernel("lookup", words.device).lookup  # fetches ahead, which torch's own gather does not
    return rows.numel() * 4 / seconds_of(lambda: lookup(ids, [table], rows), str(words.device))


def seconds_of(work: Callable[[], object], device: str) -> float:
    """Median seconds of `work` after one run that is not counted."""
    work()
    seconds = []
    for _ in range(REPEATS):
        wait_for(device)
        started = time.perf_counter()
        work()
        wait_for(device)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


@dataclass(frozen=True)
class Need:
    """What a phase moves and computes at least: bytes in order (stream), of table rows in random order (random), of
    packed rows in random order (packed), and floating-point operations."""

    stream: float = 0.0
    random: float = 0.0
    packed: float = 0.0
    flops: float = 0.0

    @property
    def num_bytes(self) -> float:
        return self.stream + self.random + self.packed

    def floor_seconds(self, rates: Rates) -> float:
        """The longer of what memory and arithmetic take at the machine's rates, as if they ran side by side."""
        memory = self.stream / rates.copy + self.random / rates.random + self.packed / rates.packed
        return max(memory, self.flops / rates.matmul)


@dataclass(frozen=True)
class Network:
    """What of a model decides how much its phases move and compute.

    columns: place among a row's ids of each table's column. num_ids, widths: of the tables, in that order, after which
    those of lists alone follow. list_tables: which table each list's elements are looked up in.
    num_floats: that enter. hidden: numbers a row that are written between inputs and outputs. weights: of all
    products. elementwise: further additions and multiplications of a row.
    """

    columns: tuple[int, ...]
    num_ids: tuple[int, ...]
    widths: tuple[int, ...]
    num_floats: int
    hidden: int
    num_outputs: int
    weights: int
    elementwise: int = 0
    list_tables: tuple[int, ...] = ()

    @classmethod
    def of(cls, model: Model) -> Network:
        """`TrainingError` for a model whose phases are not told apart here."""
        if not isinstance(model, TabularModel | NCF):
            raise TrainingError(
                "profile: what a step needs is known of model.kind=tabular and ncf, and this run's is "
                f"{spec_of(model).name}. Profile it with torch.profiler."
            )
        tables = list(model.embeddings.tables)
        *inner, last = (module for module in model.modules() if isinstance(module, nn.Linear))
        matrices = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() == 2)
        columns, num_floats = tuple(range(model.embeddings.num_columns)), model.inputs.num_floats
        hidden, elementwise = sum(layer.out_features for layer in inner), 0
        if isinstance(model, NCF):  # by the equations at the top of models/recommenders/ncf.py
            columns, num_floats = tuple(model.places.tolist()), model.num_floats
            gmf = model.settings.gmf_dim
            products = last.in_features - (inner[-1].out_features if inner else 0)  # p q, or p q, p c and q c
            mean = gmf if products > gmf else 0  # width of c, which is written too
            hidden, elementwise = hidden + products + mean, products + mean * (len(tables) - 1)
        return cls(
            columns=columns,
            num_ids=tuple(table.shape[0] for table in tables),
            widths=tuple(table.shape[1] for table in tables),
            num_floats=num_floats,
            hidden=hidden,
            num_outputs=last.out_features,
            weights=matrices - sum(table.numel() for table in tables),
            elementwise=elementwise,
            list_tables=model.embeddings.list_tables,
        )


@dataclass(frozen=True)
class Form:
    """What of a model and its optimizer decides how much is moved, beside the shapes.

    activation_bytes, lookup_bytes: of a number in the network, and of the looked up rows. touched_row_bytes: of each
    table, read and written when a row moves, weight and state; None where tables take dense gradients.
    """

    activation_bytes: int
    lookup_bytes: int
    touched_row_bytes: tuple[float, ...] | None

    @classmethod
    def of(cls, step: PhasedStep) -> Form:
        """As `step` has it; its optimizer must have taken a step, which makes the state."""
        activation, model = step.precision.dtype.itemsize, step.model
        folds = isinstance(model, TabularModel) and model.folding_obstacle() is None
        lookup = activation if folds else 4
        if step.dense_tables:
            return cls(activation, lookup, None)
        tables, state_of = list(model.embeddings.tables), step.optimizer.state
        states = [state_of.get(table, {}).values() for table in tables]
        touched = [
            2.0 * (4 * table.shape[1] + sum(part.nbytes for part in state if part.dim()) / table.shape[0])
            for table, state in zip(tables, states, strict=True)
        ]
        return cls(activation, lookup, tuple(touched))


@dataclass(frozen=True)
class Draws:
    """What decides how much is moved when negatives are drawn.

    per_positive: K. knows: whether users' known positives are left out. comparisons: with these, for one draw, a mean
    over the batches' users: ceil(log2(n + 1)) of a user with n. weighted: drawn by popularity. item_words: columns of
    the item, its key among them. items: different ones in a batch, a mean.
    """

    per_positive: int
    knows: bool
    comparisons: float
    weighted: bool
    item_words: int
    items: float

    @classmethod
    def of(cls, negatives: ImplicitBatches, batches: Iterable[Batch]) -> Draws:
        """batches: with their negatives. Waits for the device."""
        rounds, column = comparisons_by_user(negatives), negatives.user_column
        compared, items = [], []
        for batch in batches:
            items.append(len(batch.ids[:, negatives.item.key_column].unique()))
            if rounds is not None and column is not None:
                users = batch.ids[:: negatives.copies, column].long()
                compared.append(float(rounds[users].double().mean()))
        return cls(
            per_positive=negatives.copies - 1,
            knows=rounds is not None,
            comparisons=statistics.fmean(compared) if compared else 0.0,
            weighted=isinstance(negatives.sampler, PopularityNegatives),
            item_words=len(negatives.item.id_columns) + len(negatives.item.float_columns),
            items=statistics.fmean(items),
        )


def comparisons_by_user(negatives: ImplicitBatches) -> Tensor | None:
    """Rounds [U] of the binary search among each user's known positives that could be drawn; None where none are
    left out."""
    known, drawn = negatives.sampler.known, negatives.item_ids
    if known is None or not negatives.num_users:
        return None
    inside = (known.items >= drawn.start) & (known.items < drawn.stop)
    counts = torch.bincount(known.users[inside], minlength=known.num_users)[: negatives.num_users]
    return torch.frexp(counts.double()).exponent  # 2^(e-1) <= n < 2^e


@dataclass(frozen=True)
class Asked:
    """What a batch asks of the tables, means over batches. unique: different ids of each table, of its column and of
    the lists that share it together. elements: of each list, of all rows together. weighted: which lists have
    weights."""

    unique: tuple[float, ...]
    elements: tuple[float, ...] = ()
    weighted: tuple[bool, ...] = ()

    @classmethod
    def of(cls, batches: Iterable[Batch], network: Network) -> Asked:
        """At least one batch. Waits for the device."""
        unique: list[list[int]] = []
        elements: list[list[int]] = []
        weighted: tuple[bool, ...] = ()
        for batch in batches:
            parts = [[batch.ids[:, column]] for column in network.columns]
            parts += [[] for _ in network.num_ids[len(parts) :]]
            for table, item in zip(network.list_tables, batch.lists, strict=True):
                parts[table].append(item.ids)
            unique.append([len(torch.cat(part).unique()) for part in parts])
            elements.append([len(item.ids) for item in batch.lists])
            weighted = tuple(item.weights is not None for item in batch.lists)
        of_tables, of_lists = (tuple(map(statistics.fmean, zip(*found, strict=True))) for found in (unique, elements))
        return cls(of_tables, of_lists, weighted)

    @property
    def element_words(self) -> float:
        """4-byte words of the elements' ids and weights."""
        return sum(count * (1 + has) for count, has in zip(self.elements, self.weighted, strict=True))


def step_needs(
    network: Network,
    schema: TensorSchema,
    num_rows: int,
    asked: Asked,
    form: Form,
    draws: Draws | None = None,
) -> dict[str, Need]:
    """What each phase of a step on `num_rows` packed rows of `schema` has to move and compute; these are positives
    where there are `draws`.

    Products count a multiplication and an addition each, the forward pass one product a layer and the backward pass
    two. A dense optimizer reads weight, gradient and two moments and writes all but the gradient: 28 bytes a number.
    Every activation is written once and read once on the way up, read once and replaced by its gradient on the way
    down. Of lists the gather reads two bounds of 8 bytes a row, and elements with their weights, and writes these and
    B + 1 offsets. The lookup reads them and writes one vector of float32 a row and list, whose gradient the tables'
    update reads beside them.
    """
    packed, offsets = 4.0 * num_rows * schema.num_words, 8.0 * (num_rows + 1) * len(network.list_tables)
    elements, bounds = 4.0 * asked.element_words, 16.0 * num_rows * len(network.list_tables)
    needs = {GATHER: Need(stream=packed + 8.0 * num_rows + elements + offsets, packed=packed + elements + bounds)}
    rows = num_rows
    if draws is not None:
        needs[DRAW] = draw_need(draws, schema, num_rows)
        rows *= 1 + draws.per_positive
    width = sum(network.widths[: len(network.columns)])
    pooled = sum(network.widths[table] for table in network.list_tables)
    inputs = rows * (width + pooled + network.num_floats)
    hidden, outputs = rows * network.hidden, rows * network.num_outputs
    looked_up, ids = float(form.lookup_bytes * rows * width), 4.0 * rows * len(network.columns)
    looked_up, ids = looked_up + 4.0 * rows * pooled, ids + elements + offsets
    touched = sum(4.0 * count * wide for count, wide in zip(asked.unique, network.widths, strict=True))
    up = form.activation_bytes * (inputs + 2 * hidden) + 4.0 * outputs
    down = form.activation_bytes * (2 * inputs + 3 * hidden) + 4.0 * outputs
    flops = 2.0 * rows * network.weights + rows * network.elementwise
    if form.touched_row_bytes is None:  # a gradient as large as the tables is cleared and filled, and moves all rows
        tables = sum(count * wide for count, wide in zip(network.num_ids, network.widths, strict=True))
        embedding = Need(stream=ids + looked_up + 4.0 * tables, random=2 * touched)
        dense = Need(stream=28.0 * (network.weights + tables))
    else:
        moved = sum(count * size for count, size in zip(asked.unique, form.touched_row_bytes, strict=True))
        embedding = Need(stream=ids + looked_up, random=moved)
        dense = Need(stream=28.0 * network.weights)
    return needs | {
        LOOKUP: Need(stream=ids + looked_up, random=touched),
        FORWARD: Need(stream=up, flops=flops),
        LOSS: Need(stream=8.0 * outputs + 4.0 * rows * len(schema.targets)),
        BACKWARD: Need(stream=down, flops=2 * flops),
        EMBEDDING: embedding,
        DENSE: dense,
    }


def draw_need(draws: Draws, schema: TensorSchema, num_positives: int) -> Need:
    """What drawing negatives for a batch moves, and putting them beside their positives
    (loaders/negatives/implicit.py).

    A positive: its place (8 bytes), user and item (4 each) are set apart and read; of its user's list the bounds, and
    how much may be drawn and its logarithm (28). A draw: id and log q are written, the id is read by the test against
    the positive's own item, written, and read again to be put into its row; each comparison with a known positive
    reads 4 bytes, of weighted draws 8, and these read two bounds (8), a sum (8) and a logarithm (4) more. Then ids,
    floats and weight of the positives are read, and whole rows with target and group written; where the item has more
    columns than its key, those of each item are read once and written into every row. Draws are whole numbers: no
    flops.
    """
    rows, num_draws = num_positives * (1 + draws.per_positive), num_positives * draws.per_positive
    weight = int(schema.has_weight)
    columns = len(schema.ids) + len(schema.floats) + weight
    apart = (2 * 8 + 2 * 4 + 2 * 4) * num_positives
    stream = apart + 20 * num_draws + 4 * columns * num_positives + 4 * (columns + 2) * rows
    random = (28 * num_positives if draws.knows else 0) + (8 if draws.weighted else 4) * draws.comparisons * num_draws
    if draws.weighted:
        random += 20 * num_draws
    if draws.item_words > 1:
        stream += 4 * draws.item_words * rows
        random += 4 * draws.item_words * draws.items
    return Need(stream=float(stream), random=float(random))
