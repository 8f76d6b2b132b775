"""What the phases of a training step have to move and to compute at least, from the shapes alone.

Shapes: B rows of a batch, C id columns of tables [V_c, D_c], of which a batch touches U_c rows, W the sum of D_c. With
drawn negatives P positives with K each, B = P (1 + K).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from features.schema import TensorSchema
from loaders.implicit import ImplicitBatches
from loaders.negatives import PopularityNegatives
from loaders.packed import Batch
from models import TabularModel
from models.model import EntityColumns
from models.ncf import NCFSettings
from models.shelf import ModelSpec
from models.tabular import TabularSettings
from pipeline.machine_rates import Rates
from pipeline.step_phases import BACKWARD, DENSE, DRAW, EMBEDDING, FORWARD, GATHER, LOOKUP, LOSS, PhasedStep
from pipeline.train import TrainingError


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

    columns: place among a row's ids of each table's column. num_ids, widths: of the tables, in that order.
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

    @classmethod
    def of(cls, spec: ModelSpec) -> Network:
        """`TrainingError` for a model whose bytes and flops are not written down here."""
        if isinstance(spec.settings, TabularSettings):
            return cls._of_tabular(spec)
        if isinstance(spec.settings, NCFSettings):
            return cls._of_ncf(spec)
        raise TrainingError(
            f"profile: what a step needs is known of model.kind=tabular and ncf, and this run's is {spec.name}. "
            "Profile it with torch.profiler."
        )

    @classmethod
    def _of_tabular(cls, spec: ModelSpec) -> Network:
        inputs, layers, widths = spec.inputs, spec.settings.layers, spec.settings.widths(spec.inputs.num_ids)
        sizes = (sum(widths) + inputs.num_floats, *layers, inputs.num_outputs)
        return cls(
            columns=tuple(range(len(inputs.num_ids))),
            num_ids=inputs.num_ids,
            widths=widths,
            num_floats=inputs.num_floats,
            hidden=sum(layers),
            num_outputs=inputs.num_outputs,
            weights=sum(a * b for a, b in pairwise(sizes)),
        )

    @classmethod
    def _of_ncf(cls, spec: ModelSpec) -> Network:
        """By the equations at the top of models/ncf.py. The mean c of the context's vectors is written too."""
        settings, inputs = spec.settings, spec.inputs
        assert isinstance(inputs.user, EntityColumns)
        assert isinstance(inputs.item, EntityColumns)
        keys = (inputs.user.key, inputs.item.key)
        used = settings.context != "none"
        others = [place for place in range(len(inputs.num_ids)) if used and place not in keys]
        num_floats = inputs.num_floats if used else 0
        in_mlp, in_gmf = (settings.context in (place, "both") for place in ("mlp", "gmf"))
        gmf, mlp, layers = settings.gmf_dim, settings.mlp_dim, settings.layers if settings.mlp_dim else ()
        narrow = in_mlp * settings.context_dim + in_gmf * gmf
        mlp_inputs = 2 * mlp + in_mlp * (len(others) * settings.context_dim + num_floats)
        mean = gmf if in_gmf and (others or num_floats) else 0  # width of c
        products = gmf + 2 * mean  # p q, p c, q c
        weights = sum(a * b for a, b in pairwise((mlp_inputs, *layers))) + products + sum(layers[-1:])
        columns = (*keys, *others)
        return cls(
            columns=columns,
            num_ids=tuple(inputs.num_ids[place] for place in columns),
            widths=(gmf + mlp, gmf + mlp, *(narrow for _ in others)),
            num_floats=num_floats,
            hidden=sum(layers) + mean + products,
            num_outputs=1,
            weights=weights + (num_floats * gmf if in_gmf else 0),
            elementwise=products + mean * (len(others) + 1),
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
    if known is None:
        return None
    inside = (known.items >= drawn.start) & (known.items < drawn.stop)
    counts = torch.bincount(known.users[inside], minlength=known.num_users)
    return torch.frexp(counts.double()).exponent  # 2^(e-1) <= n < 2^e


def unique_ids(batches: Iterable[Batch], columns: Sequence[int]) -> list[float]:
    """Mean number of different ids of each of these columns over the batches."""
    counts = [[len(batch.ids[:, column].unique()) for column in columns] for batch in batches]
    return [statistics.fmean(column) for column in zip(*counts, strict=True)]


def step_needs(
    network: Network,
    schema: TensorSchema,
    num_rows: int,
    unique: Sequence[float],
    form: Form,
    draws: Draws | None = None,
) -> dict[str, Need]:
    """What each phase of a step on `num_rows` packed rows of `schema` has to move and compute; these are positives
    where there are `draws`.

    Products count a multiplication and an addition each, the forward pass one product a layer and the backward pass
    two. A dense optimizer reads weight, gradient and two moments and writes all but the gradient: 28 bytes a number.
    Every activation is written once and read once on the way up, read once and replaced by its gradient on the way
    down.
    """
    packed = 4.0 * num_rows * schema.num_words
    needs = {GATHER: Need(stream=packed + 8.0 * num_rows, packed=packed)}
    rows = num_rows
    if draws is not None:
        needs[DRAW] = draw_need(draws, schema, num_rows)
        rows *= 1 + draws.per_positive
    width = sum(network.widths)
    inputs, hidden, outputs = rows * (width + network.num_floats), rows * network.hidden, rows * network.num_outputs
    looked_up, ids = form.lookup_bytes * rows * width, 4.0 * rows * len(network.num_ids)
    touched = sum(4.0 * count * wide for count, wide in zip(unique, network.widths, strict=True))
    up = form.activation_bytes * (inputs + 2 * hidden) + 4.0 * outputs
    down = form.activation_bytes * (2 * inputs + 3 * hidden) + 4.0 * outputs
    flops = 2.0 * rows * network.weights + rows * network.elementwise
    if form.touched_row_bytes is None:  # a gradient as large as the tables is cleared and filled, and moves all rows
        tables = sum(count * wide for count, wide in zip(network.num_ids, network.widths, strict=True))
        embedding = Need(stream=ids + looked_up + 4.0 * tables, random=2 * touched)
        dense = Need(stream=28.0 * (network.weights + tables))
    else:
        moved = sum(count * size for count, size in zip(unique, form.touched_row_bytes, strict=True))
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
    """What drawing negatives for a batch moves, and putting them beside their positives (loaders/implicit.py).

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
