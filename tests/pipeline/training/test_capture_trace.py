"""Every model with every optimizer as a captured step: nothing waits for the host, nothing lies there, and no number
that changes from step to step is among those that a graph would keep. See `capture_trace.py` for how, and for what it
does not see."""

import copy
import ctypes
import io
import itertools
import logging
import pickle
import re
from dataclasses import dataclass, field, fields
from itertools import cycle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import gigabatch
from gigabatch.features.schema import IdColumn, Target, TensorSchema
from gigabatch.loaders.negatives.draws import PopularityNegatives, UniformNegatives
from gigabatch.loaders.negatives.implicit import ImplicitBatches, apart_from
from gigabatch.loaders.tables.entity_rows import EntityRows
from gigabatch.loaders.tables.packed import PackedTable, unpack
from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import EntityColumns, ModelInputs
from gigabatch.models.layers import fields as setting_checks
from gigabatch.models.layers import numeric, pooled
from gigabatch.models.losses import REGRESSION_LOSSES, RegressionLoss, TargetLoss
from gigabatch.models.model import TargetScale
from gigabatch.models.optimizers.ema import WeightAverage
from gigabatch.models.optimizers.moments import read_moments, write_moments
from gigabatch.models.optimizers.precision import Precision
from gigabatch.models.optimizers.registry import OPTIMIZERS
from gigabatch.models.optimizers.row_optimizer import RAISED_AT, RowOptimizer, parts_of
from gigabatch.models.optimizers.schedule import Constant, OneCycle
from gigabatch.models.shelf import MODELS, ModelSpec, model_class
from gigabatch.pipeline.config.config import WholeTrainSettings
from gigabatch.pipeline.training import train_step
from gigabatch.pipeline.training.train import optimizer_of
from gigabatch.pipeline.training.train_step import CapturedWork, TrainStep, hold_in_tensors, use_cuda_graph

pytest.importorskip("triton")
from tests.pipeline.training import capture_trace
from tests.pipeline.training.capture_trace import META, CaptureError, as_on_a_gpu, on_meta

SIZES = (6, 300, 40, 9)  # of id columns: user, item, the item's, context
ROWS = 64
TASKS = {
    "binary": (Target("label", "binary"),),
    "regression": (Target("value", "regression"),),
    "multiclass": (Target("kind", "multiclass", 3),),
    "several": (Target("label", "binary"), Target("value", "regression"), Target("kind", "multiclass", 2)),
}


@dataclass
class Case:
    """What is trained, and how."""

    model: str = "tabular"
    optimizer: str = "lamb"
    settings: dict = field(default_factory=dict)
    optimizer_settings: dict = field(default_factory=dict)
    task: str = "binary"
    precision: torch.dtype = torch.float32
    has_weight: bool = False
    pieces: int = 1
    average: bool = False
    negatives: str = ""
    regression: RegressionLoss | None = None
    max_grad_norm: float | str | None = "auto"
    warm: bool = False

    def __str__(self) -> str:
        plain = Case(self.model, self.optimizer)
        rest = [
            f"{f.name}={getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name) != getattr(plain, f.name)
        ]
        return "-".join([self.model, self.optimizer, *rest])


def schema_of(case):
    ids = tuple(IdColumn(f"c{place}", size) for place, size in enumerate(SIZES))
    return TensorSchema(ids, ("x", "y"), TASKS[case.task], has_weight=case.has_weight)


def rows_of(schema, num_rows=ROWS):
    draw = torch.Generator().manual_seed(1)
    labels = [torch.arange(num_rows, dtype=torch.int32) % max(target.num_outputs, 2) for target in schema.targets]
    kinds = [target.task == "multiclass" for target in schema.targets]
    return PackedTable.from_columns(
        schema,
        [torch.randint(column.num_ids, (num_rows,), generator=draw, dtype=torch.int32) for column in schema.ids],
        list(torch.randn(len(schema.floats), num_rows, generator=draw)),
        [label if is_class else label.float() for label, is_class in zip(labels, kinds, strict=True)],
        torch.rand(num_rows, generator=draw) if schema.has_weight else None,
    )


def model_of(case, table, device=META):
    entities = {"user": EntityColumns(0, (0,), (0,)), "item": EntityColumns(1, (1, 2))}
    if case.settings.get("relation") == "none":  # of mrmn, which has no place for context then
        entities["item"] = EntityColumns(1, (1, 2, 3), (1,))
    inputs = ModelInputs(SIZES, 2, table.schema.num_outputs, **entities)
    model = ModelSpec(case.model, inputs, model_class(case.model).Settings(**case.settings)).build()
    batch = table.unpack(table.words)
    model.remember(batch.ids, batch.floats, batch.targets)
    return model.to(device).train()


def moments_of(case, table):
    """What a run on the host leaves to one that starts from it: of a step of the same optimizer."""
    model, batch = model_of(case, table, "cpu"), table.unpack(table.words)
    settings = WholeTrainSettings(
        optimizer=case.optimizer, optimizer_settings=case.optimizer_settings, lr_max=0.1, epochs=1, batch_size=ROWS
    )
    optimizer, _ = optimizer_of(model, settings)
    model.training_loss(batch, TargetLoss([("binary", 1)])).backward()
    optimizer.step()
    return read_moments(model, optimizer)


def negatives_of(case, table):
    items = range(3, SIZES[1])
    known = apart_from(None, items)
    if case.negatives == "uniform":
        sampler = UniformNegatives(items, 3, known, version="reference")
    elif case.negatives == "distinct":
        sampler = UniformNegatives(items, 3, known, replacement=False, version="reference")
    else:
        sampler = PopularityNegatives(items, 3, torch.ones(items.stop), 0.75, known, version="reference")
    from gigabatch.loaders.negatives import draws_cuda

    for name in ("known", "_table", "_start", "log_shares"):
        setattr(sampler, name, on_meta(getattr(sampler, name)))
    sampler.device, sampler._kernels = META, draws_cuda
    return ImplicitBatches(sampler, None, on_meta(EntityRows.of(table, 1, (1, 2))), items)


def traced(monkeypatch, case, tamper=lambda step: None):
    """What two captures of the step note, which differ by learning rate, momentum, epoch and place."""
    torch.manual_seed(0)
    schema = schema_of(case)
    table = rows_of(schema)
    with monkeypatch.context() as patched:
        negatives = negatives_of(case, table) if case.negatives else None
        model = model_of(case, table)
        moments = moments_of(case, table) if case.warm else {}
        with as_on_a_gpu(patched) as watch:
            places = [place for place, target in enumerate(schema.targets) if target.task == "regression"]
            if places and case.model != "gplvmf":
                model.scale_targets([TargetScale(place, place, 1.0, 2.0) for place in places])
            settings = WholeTrainSettings(
                optimizer=case.optimizer, optimizer_settings=case.optimizer_settings, lr_max=0.1, epochs=1,
                batch_size=ROWS, max_grad_norm=case.max_grad_norm,
            )  # fmt: skip
            optimizer, norm = optimizer_of(model, settings)
            write_moments(model, optimizer, moments)
            hold_in_tensors(optimizer, META)
            for part in (one for one in parts_of(optimizer) if isinstance(one, RowOptimizer)):
                part.steps_taken = max(RAISED_AT)  # steps that raise sums of squares go without the graph
            moves = use_cuda_graph("auto", torch.device("cuda"), optimizer, OneCycle(0.1, 10))
            assert moves or use_cuda_graph("auto", torch.device("cuda"), optimizer, Constant(0.1, 10))
            average = WeightAverage(model, 0.9) if case.average else None
            if average is not None:
                average.num_updates = 1  # the first one copies the weights by way of the host, before any capture
            tasks = [(target.task, target.num_outputs) for target in schema.targets]
            loss = TargetLoss(tasks, None if case.regression is None else [case.regression] * len(tasks))
            step = TrainStep(
                model, loss, optimizer, Precision(case.precision, "as on a GPU"), accumulate_steps=case.pieces,
                max_grad_norm=norm, average=average, negatives=negatives,
            )  # fmt: skip
            step.capture(schema, ROWS)
            tamper(step)
            words = torch.empty(ROWS, schema.num_words, dtype=torch.int32, device=META)
            patched.setattr(train_step, "WARMUP_STEPS", 1)  # on a device libraries choose in the others
            step(unpack(schema, words), 0.1, 0.9, (0, 0))
            found, kept = [], []
            for number in range(2):
                step._on_device._graph = None
                momentum = 0.9 - 0.05 * number if moves else 0.9
                step(unpack(schema, words), 0.1 / (number + 3), momentum, (number, 7 * number * ROWS))
                found.append(watch.noted)
                kept.append(dict(kept_tensors(step)))
            assert len(kept[0]) > 5
            changed = [path for path in kept[0] | kept[1] if kept[0].get(path) is not kept[1].get(path)]
            if changed:
                raise CaptureError(f"{', '.join(changed)} is another tensor than the one that a graph reads")
    return found


def kept_tensors(value, path="step", seen=None):
    """(path, tensor) of all that a step keeps from one call to the next: weights, buffers, states. A graph goes on
    reading and writing those of its capture, so that one which a step puts in their place is never seen."""
    seen = set() if seen is None else seen
    if isinstance(value, torch.Tensor):
        yield path, value
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, dict):
        parts = [(name if isinstance(name, str) else place, part) for place, (name, part) in enumerate(value.items())]
    elif isinstance(value, list | tuple):
        parts = list(enumerate(value))
    elif type(value).__module__.split(".")[0] in ("gigabatch", "torch") and not isinstance(value, CapturedWork):
        parts = list(getattr(value, "__dict__", {}).items())
    else:
        return
    for name, part in parts:
        yield from kept_tensors(part, f"{path}.{name}", seen)


def check(monkeypatch, case, tamper=lambda step: None):
    one, two = traced(monkeypatch, case, tamper)
    assert len(one) > 20
    assert [name for name, _ in one] == [name for name, _ in two], "the two steps are not of the same operations"
    for (name, before), (_, after) in zip(one, two, strict=True):
        if before != after:
            raise CaptureError(f"{name} takes a number that changes by step: {before}, then {after}")


# In the order of `Case.model`; a model with one output takes one target of two kinds.


BUILDERS = {build: name for name, build in OPTIMIZERS.items()}  # two names of one are the same optimizer
# A batch's lists have another size each time, so models that need some are not captured.
STEPPED = [name for name in MODELS if model_class(name).learns_by_steps and not model_class(name).needs_lists]
# An optimizer asks of a parameter whether it is a table, which each model has. So each model goes with two of them.
PAIRS = [(model, name, torch.float32) for model, name in zip(STEPPED, cycle(BUILDERS.values()))]
PAIRS += [(model, name, torch.bfloat16) for model, name in zip(STEPPED, cycle([*BUILDERS.values()][1:]))]


@pytest.mark.parametrize(("model", "optimizer", "precision"), PAIRS, ids=str)
def test_every_model_and_every_optimizer_is_captured(monkeypatch, model, optimizer, precision):
    check(monkeypatch, Case(model, optimizer, precision=precision))


NUMERIC = ("tabular", "fm", "ft_transformer")  # a layer that models share: of floats, of products, of tokens


def settings_of(model):
    """Settings of a model that differ from the default in one place: every name that a choice knows, every switch,
    every dropout, every part that is left out by default. But for the pooling of lists: these rows have none."""
    kind = model_class(model).Settings
    known = {}
    with pytest.MonkeyPatch.context() as patched:
        for module in (setting_checks, pooled, numeric):  # where choices are checked
            patched.setattr(
                module, "require_known", lambda name, values, names: known.update(dict.fromkeys(values, names))
            )
        default = kind()
    for entry in fields(kind):
        if entry.name == "pooling" or (entry.name == "numeric" and model not in NUMERIC):
            continue
        value = getattr(default, entry.name)
        if isinstance(value, bool):
            others = [not value]
        elif isinstance(value, str):
            others = [name for name in known[value] if name != value]
        elif entry.name.endswith("dropout"):
            others = [0.3 if value == 0 else 0.0]
        else:
            others = [3] if value is None else []
        for other in others:
            try:
                kind(**{entry.name: other})
            except ModelError:
                continue
            yield {entry.name: other}


DRAWN = ("mf", "ncf")  # whose losses but bce compare a positive with what is drawn for it
VARIANTS = [
    Case(model, settings=settings, negatives="uniform" if model in DRAWN and "loss" in settings else "")
    for model in STEPPED
    for settings in settings_of(model)
]
VARIANTS += [Case("two_tower", settings={"loss": loss, "top": "mlp"}) for loss in ("softmax", "bpr")]


@pytest.mark.parametrize("case", VARIANTS, ids=str)
def test_every_setting_of_a_model_is_captured(monkeypatch, case):
    check(monkeypatch, case)


OPTIMIZER_SETTINGS = [
    ("lamb", {"rowwise": False}),
    ("lamb", {"rowwise_method": "lamb", "rowwise_second_moment": "full", "rowwise_step": "row"}),
    ("lamb", {"rowwise_method": "lamb", "trust_clip": None, "table_lr": 0.01}),
    ("adamw", {"rowwise": True}),
    ("adamw", {"rowwise": True, "rowwise_step": "row", "rowwise_second_moment": "scalar"}),
    ("cowclip", {"table_lr": 0.01}),
]


@pytest.mark.parametrize(("optimizer", "settings"), OPTIMIZER_SETTINGS, ids=str)
def test_every_form_of_an_optimizer_is_captured(monkeypatch, optimizer, settings):
    check(monkeypatch, Case("deepfm", optimizer, optimizer_settings=settings))


STEPS = [
    Case(model, optimizer, **settings)
    for model, optimizer in (("tabular", "lamb"), ("deepfm", "adamw"), ("two_tower", "cowclip"))
    for settings in (
        {"pieces": 3, "has_weight": True},
        {"average": True, "max_grad_norm": 0.5, "task": "regression"},
        {"negatives": "distinct", "pieces": 2, "max_grad_norm": None},
        {"negatives": "popularity", "average": True, "has_weight": True},
    )
]
STEPS += [
    Case("tabular", optimizer, task=task, has_weight=True) for optimizer, task in zip(cycle(BUILDERS.values()), TASKS)
]
STEPS += [Case("multi_task", task="several"), Case("tabular", precision=torch.bfloat16, settings={"dropout": 0.3})]
STEPS += [Case("tabular", task="regression", regression=RegressionLoss(kind)) for kind in REGRESSION_LOSSES]
STEPS += [Case("deepfm", name, precision=torch.float16, average=True) for name in BUILDERS.values()]
STEPS += [Case("deepfm", name, warm=True, average=True) for name in BUILDERS.values()]
STEPS += [Case(model, negatives="uniform", pieces=2) for model in ("ncf", "mf", "mrmn", "two_tower")]


@pytest.mark.parametrize("case", STEPS, ids=str)
def test_every_kind_of_step_is_captured(monkeypatch, case):
    check(monkeypatch, case)


# Planted defects


NUMBERS = itertools.count(1)
PLANTED = {
    "item": lambda x: x * float(x.sum().item() + 1),
    "bool": lambda x: x if bool(x.sum() >= 0) else -x,
    "nonzero": lambda x: x + (x.reshape(1) >= 0).nonzero().sum(),
    "mask": lambda x: x + x.reshape(1)[x.reshape(1) > 0].sum(),
    "cpu": lambda x: x + x.detach().cpu().sum(),
    "tolist": lambda x: x + sum(x.detach().flatten().tolist()),
    "numpy": lambda x: x + x.detach().cpu().numpy().sum(),
    "tensor": lambda x: x * torch.tensor(2.0, device=x.device),
    "on the host": lambda x: x + torch.zeros(1),
    "0-d on the host": lambda x: x * torch.ones(()),
    "unique": lambda x: x + x.reshape(1).unique().sum(),
    "float": lambda x: x + float(x.detach()),
    "int of a shape": lambda x: x + x.new_zeros(int(x.detach() > 0)).sum(),
    "new_tensor": lambda x: x * x.new_tensor([2.0]).sum(),
    "multiply by a number of the step": lambda x: x * next(NUMBERS),
    "places in a list": lambda x: x + x.reshape(1)[[0]].sum(),
    "places in an array": lambda x: x + x.reshape(1)[np.zeros(1, int)].sum(),
    "print": lambda x: (print(x), x)[1],
    "format": lambda x: (f"{x}", x)[1],
    "log": lambda x: (logging.getLogger("a").warning("%s", x), x)[1],
    "svd": lambda x: x + torch.linalg.svd(x.reshape(1, 1))[1].sum(),
    "eigh": lambda x: x + torch.linalg.eigvalsh(x.reshape(1, 1)).sum(),
    "histc": lambda x: x + torch.histc(x).sum(),
    "multinomial": lambda x: x + torch.multinomial(x.reshape(1), 1).sum(),
    "a generator of its own": lambda x: x + torch.rand((), device=x.device, generator=torch.Generator()),
    "linspace": lambda x: x + torch.linspace(0, x.detach(), 3, device=x.device).sum(),
    "masked_fill": lambda x: x.masked_fill(x > 0, x.detach()),
}
# What reads a tensor's memory and is no operator of torch.
READS = {
    "torch.save": lambda x: torch.save({"loss": [x]}, io.BytesIO()),
    "pickle": pickle.dumps,
    "of a parameter": lambda x: pickle.dumps(nn.Parameter(x)),
    "to another process": ForkingPickler.dumps,
    "deepcopy": copy.deepcopy,
    "untyped_storage": lambda x: x.untyped_storage().tolist(),
    "_typed_storage": lambda x: x._typed_storage(),
    "set_": lambda x: torch.empty(1, device=x.device).set_(x.untyped_storage()),
    "share_memory_": lambda x: x.untyped_storage().share_memory_(),
    "data_ptr": lambda x: ctypes.string_at(x.data_ptr() or 0, 0),
    "__dlpack__": lambda x: x.__dlpack__(),
    "to_dlpack": torch.utils.dlpack.to_dlpack,
    "from_dlpack": torch.from_dlpack,
    "numpy.from_dlpack": np.from_dlpack,
    "__cuda_array_interface__": lambda x: x.__cuda_array_interface__,
    "numpy.asarray": np.asarray,
    "numpy.stack": lambda x: np.stack([x]),
    "numpy.multiply": lambda x: x * np.ones(1),
    "numpy force": lambda x: x.numpy(force=True),
    "apply_": lambda x: x.apply_(abs),
    "map_": lambda x: x.map_(x, max),
}
PLANTED |= {name: lambda x, read=read: (read(x.detach()), x)[1] for name, read in READS.items()}
for module, names in capture_trace.WAITS:
    for name in names:
        given = (0,) if name in ("sleep", "manual_seed", "manual_seed_all") else ()
        PLANTED[f"{module.__name__}.{name}"] = lambda x, of=module, n=name, g=given: (getattr(of, n)(*g), x)[1]


@pytest.mark.parametrize("defect", PLANTED)
def test_a_wait_in_a_forward_pass_is_found(monkeypatch, defect):
    def tamper(step):
        before = step.model.training_loss
        step.model.training_loss = lambda *given: PLANTED[defect](before(*given))

    own = (NotImplementedError, RuntimeError, BufferError, TypeError, ValueError, AttributeError)  # torch's: no values
    with pytest.raises((CaptureError, *own)):
        check(monkeypatch, Case("lr"), tamper)


@pytest.mark.parametrize("optimizer", BUILDERS.values())
def test_a_wait_in_an_optimizer_is_found(monkeypatch, optimizer):
    def tamper(step):
        parts = getattr(step.optimizer, "optimizers", [step.optimizer])
        before = parts[-1].step
        parts[-1].step = lambda: (step.model.parameters().__next__().sum().item(), before())

    with pytest.raises(CaptureError, match=r"item moves numbers|_local_scalar_dense waits"):
        check(monkeypatch, Case(optimizer=optimizer), tamper)


def test_a_wait_in_the_loss_is_found(monkeypatch):
    def tamper(step):
        before = step.loss.forward
        step.loss.forward = lambda *given: before(*given) * given[0].sum().item()

    with pytest.raises(CaptureError, match=r"item moves numbers|_local_scalar_dense waits"):
        check(monkeypatch, Case(), tamper)


@pytest.mark.parametrize(("optimizer", "name"), [("lamb", "lr"), ("adamw", "lr"), ("cowclip", "lr"), ("lamb", "betas")])
def test_a_number_that_a_graph_would_keep_is_found(monkeypatch, optimizer, name):
    def tamper(step):
        for group in step.optimizer.param_groups:
            group[name] = 0.1 if name == "lr" else (0.9, 0.999)

    with pytest.raises(CaptureError, match="takes a number that changes by step"):
        check(monkeypatch, Case(optimizer=optimizer), tamper)


def test_a_rate_of_the_average_that_is_a_number_is_found(monkeypatch):
    def tamper(step):
        step.average.update = lambda: [
            own.lerp_(live, 1 / (9 + step.average.num_updates)) for own, live in step.average._averaged
        ]

    with pytest.raises(CaptureError, match="lerp_ takes a number that changes by step"):
        check(monkeypatch, Case(average=True), tamper)


REBOUND = {
    "loss_scale.scale": lambda step: setattr(step.loss_scale, "scale", step.loss_scale.scale * 0.5),
    "average._averaged": lambda step: setattr(
        step.average, "_averaged", [(own.lerp(live, 0.1), live) for own, live in step.average._averaged]
    ),
    "running_mean": lambda step: [
        setattr(norm, "running_mean", norm.running_mean * 0.9)
        for norm in step.model.modules() if getattr(norm, "running_mean", None) is not None
    ],
    "state": lambda step: [
        state.update({name: value + 1})
        for state in step.optimizer.optimizers[0].state.values() for name, value in state.items()
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", REBOUND)
def test_a_tensor_that_takes_the_place_of_one_that_a_graph_reads_is_found(monkeypatch, name):
    def tamper(step):
        before = step.restore_statistics
        step.restore_statistics = lambda *given: (before(*given), REBOUND[name](step))

    with pytest.raises(CaptureError, match=rf"{name}.* is another tensor"):
        check(monkeypatch, Case("tabular", precision=torch.float16, average=True), tamper)


def test_a_module_that_stays_on_the_host_is_found(monkeypatch):
    def tamper(step):
        step.model.extra = nn.Linear(1, 1)
        before = step.model.forward
        step.model.forward = lambda ids, floats: before(ids, floats) * step.model.extra.weight

    with pytest.raises((CaptureError, RuntimeError)):
        check(monkeypatch, Case(), tamper)


def test_no_step_asks_whether_a_tensor_is_of_cuda():
    """Then the trace, whose tensors are on the meta device, would take another branch than a GPU."""
    root = Path(gigabatch.__file__).parent
    folders = [root / "models", root / "loaders", root / "pipeline" / "training"]
    found = [path for folder in folders for path in sorted(folder.resolve().rglob("*.py"))]
    assert len(found) > 80
    asking = [str(path) for path in found if re.search(r"\.is_cuda\b", path.read_text())]
    assert not asking, "ask for device.type != 'cpu'"
