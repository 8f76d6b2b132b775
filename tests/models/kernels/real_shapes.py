"""The launches of real trainings: every configuration in conf/, the benchmarks' constants, batches of 4,096 to 819,200.

Each case is a function to call while `recorder.recording()`; a kernel that none of them launches fails
`test_compiled_cuda.py`. Id columns have the sizes of the data sets, as they are encoded.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks import embedding_grid, ncf, step
from gigabatch.features.engines import row_loops_cuda
from gigabatch.features.exact import loops_cuda
from gigabatch.features.schema import IdColumn, Target, TensorSchema
from gigabatch.loaders.negatives import draws_cuda
from gigabatch.loaders.negatives.draws import KnownPositives, PopularityNegatives, UniformNegatives
from gigabatch.loaders.order import gather_cuda
from gigabatch.loaders.order.order import SampleOrder
from gigabatch.loaders.tables.packed import unpack
from gigabatch.models.inputs import EntityColumns, ModelInputs
from gigabatch.models.kernels.dropout import cuda as dropout_cuda
from gigabatch.models.kernels.folded import cuda as folded_cuda
from gigabatch.models.kernels.lookup import cuda as lookup_cuda
from gigabatch.models.kernels.pooled_lookup import cuda as pooled_cuda
from gigabatch.models.kernels.pooled_lookup.reference import POOLINGS
from gigabatch.models.kernels.row_update import cuda as row_update_cuda
from gigabatch.models.kernels.row_update.rules import METHODS, RowRule
from gigabatch.models.losses import TargetLoss
from gigabatch.models.optimizers.precision import Precision
from gigabatch.models.optimizers.registry import build_optimizer
from gigabatch.models.optimizers.row_optimizer import RAISED_AT
from gigabatch.models.shelf import ModelSpec
from gigabatch.models.tabular.tabular import TabularSettings
from gigabatch.pipeline.bundle import BLOCK_ROWS
from gigabatch.pipeline.config.config import load_config
from gigabatch.pipeline.training.train_step import TrainStep, hold_in_tensors
from tests.models.kernels import cases
from tests.models.kernels.recorder import CountedOperators, as_on_a_gpu, recording

CONF = Path(__file__).parents[3] / "conf"
META = torch.device("meta")
BATCHES = (4_096, 14_336, 81_920, 204_800, 819_200)
LOW = cases.LOW
USER, ITEM = EntityColumns(0, (0,)), EntityColumns(1, (1,))
# rows of the train split, ids by column, floats
DATA = {
    "adult": (28_950, (11, 19, 10, 17, 9, 8, 5, 44), 12),
    "flights": (261_876, (18, 986, 817, 6, 93, 188, 18, 58, 7, 6, 10, 22, 17), 118),
    "frappe": (57_000, (960, 4_085, 10, 10, 5, 6, 5, 12, 83, 236), 0),
    "movielens": (988_129, (6_043, 3_709), 0),
    "trivago": (149_407, (2_045, 1_026, 15, 14, 6, 98, 7, 13, 28), 138),
}
Case = Callable[[], Any]


def train(
    spec: ModelSpec,
    optimizer: Mapping[str, Any],
    batch_size: int,
    dtype: torch.dtype,
    num_rows: int = 42_800_000,
    copies: int = 1,
    folded: bool = True,
) -> dict[str, Any]:
    """Steps from the packed table to the moved weights, and one block of an evaluation.

    Returns the launches of one batch by kernel, and how many operators of torch it takes beside them.
    """
    inputs = spec.inputs
    columns = tuple(IdColumn(f"id {place}", size) for place, size in enumerate(inputs.num_ids))
    floats = tuple(f"float {place}" for place in range(inputs.num_floats))
    schema = TensorSchema(columns, floats, (Target("target", "binary"),))
    with as_on_a_gpu(dtype):
        with META:
            model = spec.build()
            if hasattr(model, "folded"):
                model.folded = folded
            moved = build_optimizer(model, **optimizer)
            words = torch.empty(batch_size, schema.num_words, dtype=torch.int32)
            work = TrainStep(model, TargetLoss([("binary", 1)]), moved, Precision(dtype, "a test"))
        hold_in_tensors(moved, META)
        for mover in work._movers():
            mover.steps_taken = max(RAISED_AT)  # steps that raise sums of squares go without a graph
        gather(num_rows, schema.num_words, batch_size)
        batch = unpack(schema, words)
        if copies > 1:  # positives and the negatives drawn for them, in memory of their own
            ids = batch.ids.repeat_interleave(copies, 0)
            target, rest = batch.targets[0].repeat_interleave(copies), batch.floats.repeat_interleave(copies, 0)
            batch = batch._replace(ids=ids, floats=rest, targets=(target,))
        model.train()
        work._on_device(batch)  # makes the optimizer's state too
        with recording() as recorder, CountedOperators() as operators:
            gather(num_rows, schema.num_words, batch_size)
            work._on_device(batch)
        model.eval()
        with torch.no_grad():
            rows = unpack(schema, torch.empty(BLOCK_ROWS, schema.num_words, dtype=torch.int32, device=META))
            model(rows.ids, rows.floats)
    return {"launches": dict(recorder.launches), "operators": operators.counts.total()}


def gather(num_rows: int, num_words: int, batch_size: int) -> None:
    table = torch.empty(num_rows, num_words, dtype=torch.int32, device=META)
    out = torch.empty(batch_size, num_words, dtype=torch.int32, device=META)
    gather_cuda.gather_shuffled(table, SampleOrder(num_rows, 1, 0), 0, batch_size, out)


def of_configuration(name: str, dtype: torch.dtype, batch_size: int | None = None) -> dict[str, Any]:
    """A training by conf/<name>.yaml."""
    config = load_config(CONF / f"{name}.yaml")
    num_rows, num_ids, num_floats = DATA[name]
    entities = (USER, ITEM) if config.train.negatives else (None, None)
    spec = ModelSpec(config.model.kind, ModelInputs(num_ids, num_floats, 1, *entities), config.model.settings)
    settings = {
        "name": config.train.optimizer,
        "lr": config.train.lr_max,
        "weight_decay": config.train.weight_decay,
        **config.train.optimizer_settings,
    }
    copies = 1 if config.train.negatives is None else 1 + config.train.negatives.per_positive
    return train(spec, settings, batch_size or config.train.batch_size, dtype, max(num_rows, 10**6), copies)


def of_step(
    batch_size: int, dtype: torch.dtype, optimizer: str = "lamb", folded: bool = True, **settings: Any
) -> dict[str, Any]:
    """A contender of benchmarks/step.py."""
    layers, dropout = (step.WIDE, step.DROPOUT) if batch_size == step.WIDE_BATCH else (step.LAYERS, 0.0)
    form = TabularSettings(layers, dropout, embedding_widths=step.WIDTHS)
    spec = ModelSpec("tabular", ModelInputs(step.NUM_IDS, step.NUM_FLOATS), form)
    return train(spec, {"name": optimizer, "lr": 1e-3, **settings}, batch_size, dtype, folded=folded)


def of_ncf(batch_size: int, optimizer: Mapping[str, Any]) -> dict[str, Any]:
    """benchmarks/ncf.py: MovieLens-20M's users and items."""
    spec = ModelSpec("ncf", ModelInputs((138_496, 26_747), 0, 1, USER, ITEM), ncf.SETTINGS)
    return train(spec, optimizer, batch_size, torch.float32, 20_000_000, 1 + ncf.NEGATIVES)


def of_grid(rows: int, width: int, num_ids: int, rule: RowRule, dtype: torch.dtype = torch.float32) -> None:
    """A place of benchmarks/embedding_grid.py."""
    table, ids = torch.empty(rows, width, device=META), torch.empty(num_ids, 1, dtype=torch.int32, device=META)
    gradient = torch.empty(num_ids, width, dtype=dtype, device=META)
    lookup_cuda.lookup(ids, [table], torch.empty_like(gradient))
    row_update_cuda.update_rows([table], [rule.new_state(table)], ids, gradient, rule)


def of_lists(num_lists: int, num_elements: int, height: int, width: int, dtype: torch.dtype = torch.float32) -> None:
    """Every pooling of lists over one table, with and without weights, and the gradients of their elements."""
    ids, offsets = (
        torch.empty(n, dtype=k, device=META) for n, k in ((num_elements, torch.int32), (num_lists + 1, torch.int64))
    )
    table, out = (torch.empty(rows, width, device=META) for rows in (height, num_lists))
    gradient, spread = (torch.empty(rows, width, dtype=dtype, device=META) for rows in (num_lists, num_elements))
    chosen = torch.empty(num_lists, width, dtype=torch.int32, device=META)
    for pooling, weighted in product(POOLINGS, (False, True)):
        weights = torch.empty(num_elements, device=META) if weighted else None
        if pooling == "max" and weighted:
            continue
        kept = chosen if pooling == "max" else None
        pooled_cuda.pooled_lookup(ids, offsets, weights, table, pooling, out, kept)
        pooled_cuda.spread_gradient(gradient, offsets, weights, pooling, kept, spread)
        if pooling != "max":
            scales = torch.empty(num_elements, device=META)
            own = scales if pooling == "mean" else None
            pooled_cuda.element_scales(offsets, weights, pooling, ids, own)
            rule, given = RowRule("adagrad", lr=0.1), own if pooling == "mean" else weights
            few = slice(0, row_update_cuda.MOST_ELEMENTS)
            own = (ids[few], ids[few], None if given is None else given[few])
            row_update_cuda.update_elements(table, rule.new_state(table), *own, gradient, rule)


def of_passes(batch_size: int, width: int, dtype: torch.dtype) -> None:
    """Each pass over activations of a width."""
    values, row = torch.empty(batch_size, width, dtype=dtype, device=META), torch.empty(width, device=META)
    seed = torch.empty(2, dtype=torch.int64, device=META)
    folded_cuda.column_moments(values)
    for bias in (None, row):
        folded_cuda.relu_moments(values, bias)
    folded_cuda.norm_relu_backward(values, values, row, row)
    folded_cuda.norm_relu_backward(values, values, row, row, row, seed, 0.1)
    folded_cuda.dropped_sums(values, values, seed, 0.1)
    dropout_cuda.dropout(values, values, seed, 0.1)
    dropout_cuda.dropout(values, values, seed, 0.1, row, row)


def of_columns(width: int) -> None:
    """What the cuDF engine launches over a partition: exact sums of float columns, quantiles, packed rows."""
    column = loops_cuda.DeviceColumn(16, 0, 0, 5000)
    loops_cuda.add_leading_moments32([column] * 2, torch.zeros(2, 1 << 16, 3, dtype=torch.int64))
    loops_cuda.add_rest_counts32([column] * 2, *(torch.zeros(2, 1 << 16, dtype=torch.int32) for _ in range(2)))
    zeros = torch.zeros(5000, width, dtype=torch.int32)
    row_loops_cuda.pack_words(
        [row_loops_cuda.DeviceWord(row_loops_cuda.FLOAT, column)] * width, zeros, zeros[0].clone()
    )


def features() -> Iterator[tuple[str, Case]]:
    for width in (5, 48):  # less than a program writes; more, and a multiple of 16
        yield f"columns, {width} words", partial(of_columns, width)


def of_negatives(replacement: bool, weighted: bool, num_negatives: int) -> None:
    """Draws for a batch of positives; the samplers' tables need numbers, so these tensors lie on the CPU."""
    sampler_of(replacement, weighted, num_negatives)(torch.arange(4_096), torch.zeros(4_096, dtype=torch.int32))


def sampler_of(replacement: bool, weighted: bool, num_negatives: int) -> Any:
    """Of MovieLens' sizes, which draws as on a GPU."""
    users, items = torch.randint(0, 6_040, (50_000,)), torch.randint(3, 3_709, (50_000,))
    known = KnownPositives.from_pairs(users, items, 6_040)
    sampler: Any
    if weighted:
        sampler = PopularityNegatives(
            range(3, 3_709), num_negatives, torch.bincount(items, minlength=3_709), known=known
        )
    else:
        sampler = UniformNegatives(range(3, 3_709), num_negatives, known, replacement)
    sampler._kernels = draws_cuda
    return sampler


def representative() -> Iterator[tuple[str, Case]]:
    """The most used trainings: of them every kernel takes part in one."""
    yield "flights, bfloat16", partial(of_configuration, "flights", torch.bfloat16)
    yield "flights, float16", partial(of_configuration, "flights", torch.float16)
    yield "step, 204,800", partial(of_step, 204_800, torch.bfloat16)
    yield "gather", partial(gather, 42_800_000, 46, 819_200)
    yield "lists", partial(of_lists, 204_800, 2_048_000, 1_000_000, 16)
    yield "draws", partial(of_negatives, True, False, 4)
    yield "weighted draws", partial(of_negatives, True, True, 4)
    yield "distinct draws", partial(of_negatives, False, False, 4)


def neighbours() -> Iterator[tuple[str, Case]]:
    """Batches of about as many rows as the first's: a kernel that is compiled anew for each would be another there."""
    for batch_size in (204_800, 204_816, 203_776, 200_001):
        yield f"step, {batch_size}", partial(of_step, batch_size, torch.bfloat16)


def every() -> Iterator[tuple[str, Case]]:
    """All of them."""
    yield from representative()
    for name, dtype in product(DATA, (torch.float32, *LOW)):
        for batch_size in (None, *BATCHES) if name in ("flights", "trivago") else (None,):
            yield f"{name}, {batch_size}, {dtype}", partial(of_configuration, name, dtype, batch_size)
    for batch_size, dtype in product(BATCHES, (torch.float32, *LOW)):
        yield f"step, {batch_size}, {dtype}", partial(of_step, batch_size, dtype)
        yield f"step, plain form, {batch_size}", partial(of_step, batch_size, dtype, folded=False)
    for batch_size in step.BATCHES:
        yield f"step, LAMB, {batch_size}", partial(of_step, batch_size, torch.bfloat16, rowwise_method="lamb")
        yield f"step, CowClip, {batch_size}", partial(of_step, batch_size, torch.bfloat16, "cowclip")
    for batch_size in (ncf.BATCH, ncf.OUR_BATCH):
        yield f"ncf, {batch_size}", partial(of_ncf, batch_size, ncf.OURS)
    for width, dtype in product((1, 8, 64, 200), (torch.float32, *LOW)):
        yield f"lists, {width}, {dtype}", partial(of_lists, 204_800, 2_048_000, 1_000_000, width, dtype)
    for shape in product(embedding_grid.ROWS, embedding_grid.WIDTHS, embedding_grid.NUM_IDS):
        yield f"grid, {shape}", partial(of_grid, *shape, RowRule("sgd", lr=embedding_grid.LR))
    for method, form in product(METHODS, (("scalar", "global", None), ("full", "row", 1.0))):
        second, rows_step, clip = form
        rule = RowRule(method, lr=0.1, second_moment=second, step=rows_step, clip_ratio=clip)
        for dtype in (torch.float32, *(LOW if method == "lamb" else ())):
            for rows, width in ((100_000, 7), (100_000, 600), (5, 40)):
                yield f"{rule}, {rows} x {width}, {dtype}", partial(of_grid, rows, width, 81_920, rule, dtype)
    for batch_size, width, dtype in product((4_096, 819_200), (1, 20, 1000), (torch.float32, *LOW)):
        yield f"passes, {batch_size} x {width}, {dtype}", partial(of_passes, batch_size, width, dtype)
    for num_words, batch_size in product((1, 2, 46, 47, 1000), BATCHES):
        yield f"gather, {num_words} words", partial(gather, 10_000_000, num_words, batch_size)
    yield "gather beyond 2^31 rows", partial(gather, 2**33, 46, 819_200)
    for replacement, weighted, count in ((True, False, 1), (True, True, 1), (False, False, 100), (False, False, 1000)):
        yield f"draws, {replacement}, {weighted}, {count}", partial(of_negatives, replacement, weighted, count)
