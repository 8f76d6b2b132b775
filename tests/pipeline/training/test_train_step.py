"""One step: pieces add up to their batch, clipping, compilation, and when and how a step becomes a CUDA graph."""

import contextlib
import functools
import gc
import inspect
import logging
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from gigabatch.features.schema import IdColumn, Target, TensorSchema
from gigabatch.loaders.tables.packed import Batch, PackedTable, unpack
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.losses import TargetLoss
from gigabatch.models.optimizers.ema import WeightAverage
from gigabatch.models.optimizers.precision import Precision
from gigabatch.models.optimizers.registry import build_optimizer
from gigabatch.models.optimizers.schedule import Constant, OneCycle, WarmupPolynomial
from gigabatch.models.recommenders.gplvmf import GPLVMF
from gigabatch.models.shelf import MODELS, model_class
from gigabatch.models.tabular.tabular import TabularModel, TabularSettings
from gigabatch.pipeline.training import train_step
from gigabatch.pipeline.training.train_step import (
    WARMUP_STEPS,
    CapturedWork,
    TrainingError,
    TrainStep,
    dense_parameters,
    hold_in_tensors,
    require_compiler,
    use_cuda_graph,
    words_of,
)
from tests.devices import no_waiting
from tests.models.shelf_helpers import build as shelf_build

FLOAT32 = Precision(torch.float32, "test")
TARGETS = (Target("label", "binary"), Target("value", "regression"))
LOSS = TargetLoss([("binary", 1), ("regression", 1)])


@pytest.fixture(scope="module", autouse=True)
def _what_is_imported_is_not_looked_through():
    """A capture collects what is left of steps: half a second with all that a suite has imported and collected."""
    gc.freeze()
    yield
    gc.unfreeze()


def make_batch(rows: int, seed: int, has_weight: bool = False) -> tuple[Batch, TensorSchema]:
    """A batch of views of packed rows, as a loader gives it; a third of its weights are 0."""
    random = torch.Generator().manual_seed(seed)
    schema = TensorSchema((IdColumn("a", 5), IdColumn("b", 4)), ("x", "y", "z"), TARGETS, has_weight=has_weight)
    table = PackedTable.from_columns(
        schema,
        [torch.randint(size, (rows,), generator=random, dtype=torch.int32) for size in (5, 4)],
        list(torch.randn(3, rows, generator=random)),
        [torch.randint(2, (rows,), generator=random).float(), torch.randn(rows, generator=random)],
        torch.rand(rows, generator=random) * (torch.rand(rows, generator=random) > 0.3) if has_weight else None,
    )
    return table.unpack(table.words), schema


def make_model(seed: int = 0, batch_norm: bool = False, dropout: float = 0.0) -> TabularModel:
    torch.manual_seed(seed)
    settings = TabularSettings((8,), dropout, batch_norm=batch_norm, batch_norm_floats=batch_norm)
    return TabularModel(ModelInputs((5, 4), 3, 2), settings)


def make_step(model: TabularModel, optimizer: str = "adamw", lr: float = 0.1, **settings) -> TrainStep:
    return TrainStep(model, LOSS, build_optimizer(model, optimizer, lr=lr, weight_decay=0.0), FLOAT32, **settings)


def plain_loss(model: TabularModel, batch: Batch) -> torch.Tensor:
    """Binary cross-entropy of the first output plus squared error of the second, each a weighted mean over rows."""
    outputs = model(batch.ids, batch.floats)
    weight = torch.ones(batch.num_rows) if batch.weight is None else batch.weight
    rows = functional.binary_cross_entropy_with_logits(outputs[:, 0], batch.targets[0], reduction="none")
    rows = rows + (outputs[:, 1] - batch.targets[1]) ** 2
    return (rows * weight).sum() / weight.sum()


@given(rows=st.integers(12, 60), count=st.integers(1, 12), seed=st.integers(0, 99), has_weight=st.booleans())
def test_pieces_give_the_loss_and_the_gradient_of_the_batch(rows, count, seed, has_weight):
    batch, _ = make_batch(rows, seed, has_weight)
    reference, model = make_model(seed), make_model(seed)
    expected = plain_loss(reference, batch)
    expected.backward()
    found = make_step(model, accumulate_steps=count)(batch, 0.0, 0.9)  # at a learning rate of 0 nothing moves
    torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=1e-6)
    for wanted, parameter in zip(reference.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, wanted.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("rows", "count"), [(1, 2), (3, 5), (4, 5), (2, 12)])
@pytest.mark.parametrize("has_weight", [False, True])
def test_a_batch_of_fewer_rows_than_pieces_is_trained_on(rows, count, has_weight):
    """A piece without rows had the loss NaN, so that the step was skipped as not finite."""
    batch, _ = make_batch(rows, 3, has_weight)
    if has_weight:
        batch.weight.copy_(torch.arange(1, rows + 1))
    reference, model = make_model(), make_model()
    expected = plain_loss(reference, batch)
    expected.backward()
    found = make_step(model, accumulate_steps=count)(batch, 0.0, 0.9)
    torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=1e-6)
    for wanted, parameter in zip(reference.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, wanted.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("rows", "count", "sizes"), [(4, 3, [2, 2]), (6, 5, [2, 2, 2]), (2, 3, [2])])
def test_fewer_positives_than_pieces_stay_with_their_negatives(rows, count, sizes):
    batch = make_batch(rows, 3)[0]._replace(log_q=torch.arange(rows).float(), copies=2)
    parts = list(train_step.pieces(batch, count, together=2))
    assert [part.num_rows for part, _ in parts] == sizes
    assert {part.copies for part, _ in parts} == {2}
    assert torch.equal(torch.cat([part.log_q for part, _ in parts]), batch.log_q)
    assert torch.equal(torch.cat([part.ids for part, _ in parts]), batch.ids)
    assert sum(1.0 if share is None else share for _, share in parts) == pytest.approx(1)


def test_a_batch_without_any_weight_trains_nothing():
    batch, _ = make_batch(20, 1, has_weight=True)
    batch.weight.zero_()
    model = make_model()
    assert make_step(model, accumulate_steps=3)(batch, 0.1, 0.9).item() == 0
    assert all(not parameter.grad.any() for parameter in model.parameters())


SKIPPING = {
    "lamb": ("lamb", {}),
    "lamb by rows": ("lamb", {"rowwise_method": "lamb"}),
    "lamb by rows, own steps": ("lamb", {"rowwise_method": "lamb", "rowwise_step": "row"}),
    "lamb of whole tables": ("lamb", {"rowwise": False}),
    "lamb without clipping": ("lamb", {"max_grad_norm": None}),
    "adamw": ("adamw", {}),
    "adamw by rows": ("adamw", {"rowwise": True}),
    "cowclip": ("cowclip", {}),
}


def skipping_run(name: str, settings: dict, spoilt: tuple[int, ...], how: str, device: str = "cpu", captured=False):
    """Losses of eight steps without those of the spoilt batches between them, and all that the run has become."""
    model = make_model(batch_norm=True).to(device).train()
    optimizer = build_optimizer(model, name, lr=0.1, **settings)
    step = TrainStep(model, LOSS, optimizer, FLOAT32, max_grad_norm=1.0 if name == "adamw" else None)
    if device == "cuda":
        hold_in_tensors(optimizer, torch.device("cuda"))
    losses, counted = [], []
    for seed in range(8):
        for is_spoilt in (True, False) if seed in spoilt else (False,):
            batch, schema = make_batch(64, seed)
            if captured and not (losses or counted):
                step.capture(schema, 64)
            if is_spoilt and how == "a row":
                batch.floats[3, 1] = math.inf
            elif is_spoilt:
                batch.targets[1][5] = 3e38  # the loss is finite in no digit, nor is a gradient
            batch = unpack(schema, words_of(batch, schema.num_words).to(device))
            loss = step(batch, 0.02, 0.9).clone()
            (counted if is_spoilt else losses).append(loss.item())
    state = {key: value for group in optimizer.state.values() for key, value in group.items()}
    return losses, counted, model.state_dict(), state


@pytest.mark.parametrize("how", ["a row", "a target"])
@pytest.mark.parametrize("case", SKIPPING)
def test_a_step_without_a_finite_gradient_changes_nothing(case, how):
    """M13: one made a NaN of all weights, by LAMB's common norm. Moments, counts and statistics stay as well."""
    losses, _, weights, state = skipping_run(*SKIPPING[case], (), how)
    found, counted, kept, kept_state = skipping_run(*SKIPPING[case], (0, 4), how)
    assert len(counted) == 2
    assert all(map(math.isnan, counted))
    assert found == losses
    for name in weights:
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(kept[name], weights[name]), name
    assert all(torch.equal(kept_state[name], state[name]) for name in state)


@pytest.mark.gpu
@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("case", [case for case in SKIPPING if not case.startswith(("adamw", "cowclip"))] + ["adamw"])
def test_a_step_is_skipped_on_the_gpu_too(case, captured):
    losses, _, weights, state = skipping_run(*SKIPPING[case], (), "a row", "cuda", captured)
    found, counted, kept, kept_state = skipping_run(*SKIPPING[case], (0, 4, 6), "a row", "cuda", captured)
    assert all(map(math.isnan, counted))
    assert found == pytest.approx(losses, rel=1e-3)
    torch.testing.assert_close(kept | {n: w for n, w in weights.items() if n.endswith("tracked")}, weights)
    torch.testing.assert_close(kept_state, state)


@pytest.mark.parametrize(("bound", "is_clipped"), [(0.01, True), (1e6, False)])
def test_gradients_are_scaled_down_to_the_bound_and_never_up(bound, is_clipped):
    batch, _ = make_batch(30, 2)
    reference, model = make_model(), make_model()
    plain_loss(reference, batch).backward()
    norm = math.sqrt(sum(float(p.grad.double().square().sum()) for p in reference.parameters()))
    make_step(model, max_grad_norm=bound, accumulate_steps=2)(batch, 0.0, 0.9)
    scale = bound / norm if is_clipped else 1.0
    for wanted, parameter in zip(reference.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, scale * wanted.grad, rtol=1e-3, atol=1e-7)


def test_only_parameters_that_are_updated_as_a_whole_count_for_the_norm():
    model = make_model()
    step = make_step(model, "lamb")
    step(make_batch(30, 2)[0], 0.0, 0.9)
    tables = set(model.embeddings.parameters())
    found = dense_parameters(step.optimizer)
    assert len(found) == len(set(model.parameters()) - tables)
    assert not tables & set(found)
    groups = [{"params": list(model.layers.parameters())}, {"params": list(tables), "rowwise": True}]
    for parameter in tables:
        parameter.grad = torch.ones_like(parameter)
    assert set(dense_parameters(torch.optim.SGD(groups, lr=0.1))) == set(found)
    whole = build_optimizer(model, "lamb", lr=0.1, rowwise=False)
    TrainStep(model, LOSS, whole, FLOAT32)(make_batch(30, 2)[0], 0.0, 0.9)
    assert set(dense_parameters(whole)) == set(model.parameters())


def test_a_step_moves_the_weights_as_the_optimizer_alone_would():
    batch, _ = make_batch(30, 3)
    reference, model = make_model(), make_model()
    optimizer = torch.optim.AdamW(reference.parameters(), lr=0.05, betas=(0.8, 0.999), weight_decay=0.0)
    step = make_step(model)
    for _ in range(3):
        optimizer.zero_grad()
        plain_loss(reference, batch).backward()
        optimizer.step()
        step(batch, 0.05, 0.8)
    torch.testing.assert_close(dict(model.state_dict()), dict(reference.state_dict()), rtol=1e-4, atol=1e-6)


def test_the_loss_is_float32_and_near_that_of_float32_when_products_are_bfloat16():
    batch, _ = make_batch(200, 4)
    wanted = make_step(make_model())(batch, 0.0, 0.9)
    model = make_model()
    optimizer = build_optimizer(model, "adamw", lr=0.1)
    found = TrainStep(model, LOSS, optimizer, Precision(torch.bfloat16, "test"))(batch, 0.0, 0.9)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(wanted.item(), rel=0.02)
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in model.parameters())


# Compilation


def test_a_compiled_step_does_what_an_eager_one_does_and_logs_its_time(monkeypatch, caplog):
    """With dynamo's own eager backend, which takes no compiler; test runs of g++ would take too long here."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    eager, compiled = make_model(batch_norm=True), make_model(batch_norm=True)
    steps = make_step(eager), make_step(compiled, compiled=True)
    for seed in range(2):
        losses = [step(make_batch(40, seed)[0], 0.01, 0.9) for step in steps]
        torch.testing.assert_close(*losses)
    torch.testing.assert_close(dict(eager.state_dict()), dict(compiled.state_dict()))
    assert caplog.text.count("compile took") == 1


def test_a_failed_compilation_says_how_to_do_without(monkeypatch):
    def broken(graph, inputs):
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=broken))
    with pytest.raises(TrainingError, match=r"(?s)train\.compile: .*no such instruction.*Set train\.compile=off"):
        make_step(make_model(), compiled=True)(make_batch(40, 0)[0], 0.01, 0.9)


def test_without_a_compiler_the_error_says_so_at_once(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(TrainingError, match=r"no no-such-compiler.*apt-get install g\+\+.*CXX.*train\.compile=off"):
        make_step(make_model(), compiled=True)
    require_compiler(torch.device("cuda"))  # there the compiler makes no C++


# CUDA graphs


def test_packed_rows_are_found_again_behind_their_views():
    batch, schema = make_batch(20, 5, has_weight=True)
    words = words_of(batch, schema.num_words)
    again = unpack(schema, words)
    assert words.shape == (20, schema.num_words)
    assert words.data_ptr() == batch.ids.data_ptr()
    assert torch.equal(again.weight, batch.weight)
    part = words_of(unpack(schema, words[7:12]), schema.num_words)
    assert torch.equal(part, words[7:12])
    with pytest.raises(AssertionError):
        words_of(batch._replace(ids=batch.ids.contiguous()), schema.num_words)


@pytest.mark.parametrize(
    ("name", "schedule", "possible"),
    [
        ("lamb", OneCycle(0.1, 10), True),
        ("adamw", OneCycle(0.1, 10), False),
        ("adamw", OneCycle(0.1, 1000, moms=(0.9, 0.9, 0.9)), True),
        ("adamw", WarmupPolynomial(0.1, 10), True),
        ("adamw", Constant(0.1, 10), True),
    ],
)
def test_an_optimizer_whose_momentum_a_graph_would_freeze_is_not_captured(name, schedule, possible, caplog):
    caplog.set_level(logging.INFO)
    optimizer, device = build_optimizer(make_model(), name, lr=0.1), torch.device("cuda")
    assert use_cuda_graph("auto", device, optimizer, schedule) is possible
    assert ("cuda_graph auto: off, because the optimizer reads its momentum" in caplog.text) is not possible
    if possible:
        assert use_cuda_graph("on", device, optimizer, schedule)
    else:
        with pytest.raises(TrainingError, match=r"train\.cuda_graph=on: the optimizer reads its momentum on the host"):
            use_cuda_graph("on", device, optimizer, schedule)
    assert not use_cuda_graph("off", device, optimizer, schedule)


def test_settings_held_in_tensors_train_lamb_as_numbers_do():
    models = [make_model(), make_model()]
    steps = [make_step(model, "lamb") for model in models]
    hold_in_tensors(steps[1].optimizer, torch.device("cpu"))
    for seed in range(4):
        for step in steps:
            step(make_batch(30, seed)[0], 0.05 / (seed + 1), 0.95 - 0.05 * seed)
    torch.testing.assert_close(dict(models[0].state_dict()), dict(models[1].state_dict()), rtol=1e-5, atol=1e-7)
    for group in steps[1].optimizer.param_groups:
        assert group["lr"].item() == pytest.approx(0.0125)
        assert group["betas"][0].item() == pytest.approx(0.8)


def test_torchs_optimizer_keeps_its_momentum_as_a_number():
    optimizer = build_optimizer(make_model(), "adamw", lr=0.1, betas=(0.8, 0.9))
    hold_in_tensors(optimizer, torch.device("cpu"))
    for group in optimizer.param_groups:
        assert isinstance(group["lr"], torch.Tensor)
        assert (group["betas"], group["capturable"]) == ((0.8, 0.9), True)


class FakeGenerator:
    """A CUDA generator: one that a capture that failed holds on to refuses to draw."""

    device = "cuda:0"

    def __init__(self, device=None) -> None:
        self.state = {"captured": device is None, "random": None}

    def set_state(self, state) -> None:
        self.state["random"] = state

    def graphsafe_get_state(self):
        return self

    def graphsafe_set_state(self, other) -> None:
        self.state = other.state


class FakeCuda:
    """Streams that do nothing, and a graph that remembers its work instead of running it; replay runs it."""

    def __init__(self, monkeypatch) -> None:
        self.capturing = False
        self.captures = self.replays = 0
        self.fail = False
        self.pools: list[tuple[int, int] | None] = []  # of captures that are under way for torch 2.11's allocator
        self.released: list[tuple[int, int]] = []
        cuda, fake = train_step.torch.cuda, self

        class Stream:
            device = torch.device("cuda:0")

            def __init__(self, device=None) -> None:
                self.is_side = device is not None

            def wait_stream(self, other) -> None:
                assert self.is_side != other.is_side
                fake.order.append("side waits" if self.is_side else "current waits")

        class Graph:
            def replay(self) -> None:
                fake.replays += 1
                fake.rerun()

        @contextlib.contextmanager
        def graph(graph, stream, capture_error_mode, pool=None):
            fake.pools.append(pool)
            if fake.fail:
                raise RuntimeError("operation not permitted when stream is capturing")
            fake.captures += 1
            fake.capturing = True
            yield
            fake.capturing = False
            fake.pools.remove(pool)

        def end_allocate_to_pool(device, pool):
            if pool not in fake.pools:
                raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
            fake.pools.remove(pool)

        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end_allocate_to_pool)
        monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda device, pool: fake.released.append(pool))
        monkeypatch.setattr(cuda, "graph_pool_handle", lambda: (0, 7))

        self.streams: list[object] = []  # that were made the current one
        monkeypatch.setattr(cuda, "set_stream", self.streams.append)
        monkeypatch.setattr(cuda, "get_rng_state", lambda device: torch.get_rng_state())
        monkeypatch.setattr(cuda, "default_generators", (FakeGenerator(),))
        plain = torch.Generator
        monkeypatch.setattr(
            torch, "Generator", lambda device="cpu": plain() if device == "cpu" else FakeGenerator(device)
        )
        monkeypatch.setattr(cuda, "Stream", Stream)
        monkeypatch.setattr(cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(cuda, "graph", graph)
        monkeypatch.setattr(cuda, "stream", lambda stream: contextlib.nullcontext())
        monkeypatch.setattr(cuda, "current_stream", lambda device=None: Stream())
        self.result = torch.zeros(())
        self.sums: list[float] = []
        self.order: list[str] = []  # of work and waits among streams

    def work(self, batch: Batch) -> torch.Tensor:
        """Sums the floats of a batch and notes the sum."""
        self.order.append("work")
        if self.capturing:  # nothing runs: only where to read and write is remembered
            self.rerun = lambda: self.sums.append(self.result.copy_(batch.floats.sum()).item())
            return self.result
        self.sums.append(batch.floats.sum().item())
        return torch.tensor(self.sums[-1])


def test_batches_are_worked_on_once_each_before_and_after_the_capture(monkeypatch):
    """The order of calls, on a make-believe GPU; the gpu tests below show that real graphs do the same."""
    fake = FakeCuda(monkeypatch)
    schema = make_batch(1, 0)[1]
    captured = CapturedWork(fake.work, schema, 16, torch.device("cpu"))
    batches = [make_batch(5 if index == 6 else 16, index)[0] for index in range(10)]
    results = [captured(batch).item() for batch in batches]
    assert results == fake.sums == [batch.floats.sum().item() for batch in batches]
    assert fake.captures == 1
    assert fake.replays == len(batches) - WARMUP_STEPS - 1  # the small one goes without
    beside = ["side waits", "work", "current waits"]
    assert fake.order == beside * WARMUP_STEPS + ["work", "work"]  # the capture, and the small one


def test_steps_that_ask_the_host_go_without_the_graph_before_and_after_its_capture(monkeypatch):
    """As a row optimizer does that raises its sums in the steps 1, 2, 4 and 8; replays are counted for it."""

    class Mover:
        steps_taken = 0

        def raises_next(self):
            return self.steps_taken + 1 in (1, 2, 4, 8)

    mover, fake = Mover(), FakeCuda(monkeypatch)
    batch, schema = make_batch(16, 0)

    def work(batch):  # a step counts itself, also in the capture
        mover.steps_taken += 1
        return fake.work(batch)

    captured = CapturedWork(work, schema, 16, torch.device("cpu"), movers=[mover])
    for step in range(1, 11):
        captured(batch)
        assert mover.steps_taken == step
    assert (fake.captures, fake.order.count("side waits"), fake.replays) == (1, 5, 5)  # 1, 2, 3, 4 and 8


def test_nothing_is_collected_while_a_step_is_captured(monkeypatch):
    """What Python's collector lets go of may be memory of the device, which ends a capture."""
    fake, seen = FakeCuda(monkeypatch), []

    def work(batch):
        seen.append((fake.capturing, gc.isenabled()))
        return fake.work(batch)

    batch, schema = make_batch(16, 0)
    captured = CapturedWork(work, schema, 16, torch.device("cpu"))
    for _ in range(WARMUP_STEPS + 2):
        captured(batch)
    assert seen == [(False, True)] * WARMUP_STEPS + [(True, False)]
    assert gc.isenabled()


def test_a_capture_that_fails_names_the_setting(monkeypatch):
    fake = FakeCuda(monkeypatch)
    fake.fail = True
    batch, schema = make_batch(16, 0)
    captured = CapturedWork(fake.work, schema, 16, torch.device("cpu"))
    for _ in range(WARMUP_STEPS):
        captured(batch)
    with pytest.raises(TrainingError, match=r"cannot be captured \(operation not permitted.*Set train\.cuda_graph=off"):
        captured(batch)
    assert fake.pools == []  # the allocator knows that it is over
    assert fake.released == [(0, 7)]
    assert len(fake.streams) == 1  # CuPy's and cuDF's work is ordered with the stream of before, and with no other
    assert gc.isenabled()


def test_a_failed_capture_that_torch_has_ended_itself_is_not_released_again(monkeypatch):
    """From torch 2.12 on."""
    fake = FakeCuda(monkeypatch)
    train_step.end_allocation(torch.device("cuda:0"), (0, 7))
    assert fake.released == []


def failing_cuda(monkeypatch, step) -> FakeCuda:
    """A make-believe GPU whose captures fail at their end: what they did to tensors is undone, as none of it ran."""
    fake = FakeCuda(monkeypatch)

    @contextlib.contextmanager
    def graph(graph, stream, capture_error_mode, pool=None):
        fake.captures += 1
        fake.pools.append(pool)
        kept = (*step.model.parameters(), *step.model.buffers())
        states = [value for state in step.optimizer.state.values() for value in state.values()]
        states += [] if step.average is None else list(step.average.model.state_dict().values())
        states += [] if step.loss_scale is None else list(step.loss_scale.state_dict().values())
        before = [(tensor, tensor.detach().clone()) for tensor in (*kept, *states)]
        random = torch.get_rng_state()
        yield
        with torch.no_grad():
            for tensor, value in before:
                tensor.copy_(value)
        torch.set_rng_state(random)
        try:
            raise RuntimeError("operation not permitted when stream is capturing")
        except RuntimeError:
            raise RuntimeError("capture_end: invalid")  # noqa: B904 - as the end of a failed capture raises

    monkeypatch.setattr(train_step.torch.cuda, "graph", graph)
    return fake


@pytest.mark.parametrize("precision", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("optimizer", ["lamb", "adamw", "cowclip"])
def test_after_a_failed_capture_the_steps_go_on_without_a_graph(monkeypatch, caplog, optimizer, precision):
    """G5: bit for bit as a run that never tried, and the log says why once."""
    found = []
    for tries in (False, True):
        model = shelf_build("deepfm", ModelInputs((5, 4), 3, 2), layers=(8,)).train()
        settings = {"weight_decay": 0.0} if optimizer != "cowclip" else {}
        average = WeightAverage(model, 0.9)
        built = build_optimizer(model, optimizer, lr=0.1, **settings)
        step = TrainStep(model, LOSS, built, Precision(precision, "test"), average=average)
        if step.loss_scale is not None:  # so that a step before the capture is none that is skipped, and states exist
            step.loss_scale.scale.fill_(2.0**14)
        torch.manual_seed(3)
        losses = []
        with monkeypatch.context() as patched:
            fake = failing_cuda(patched, step) if tries else None
            for seed in range(8):
                batch, schema = make_batch(32, seed)
                if tries and seed == 0:
                    step._on_device = CapturedWork(
                        step._work, schema, 32, torch.device("cpu"), required=False, movers=step._movers()
                    )
                losses.append(step(batch, 0.02, 0.9).item())
            if fake is not None:
                assert fake.captures == 1
                assert fake.replays == 0
                assert (fake.pools, fake.released) == ([], [(0, 7)])
                assert not torch.cuda.default_generators[0].state["captured"]
        found.append((losses, model.state_dict() | {f"mean.{k}": v for k, v in average.model.state_dict().items()}))
    assert found[0][0] == found[1][0]
    for name, value in found[0][1].items():
        assert torch.equal(value, found[1][1][name]), name
    said = [record for record in caplog.records if "cuda_graph auto" in record.message]
    assert [record.levelname for record in said] == ["WARNING"]
    assert "cannot be captured (operation not permitted when stream is capturing)" in said[0].message


def test_a_model_that_cannot_be_captured_is_known_before_the_first_step(caplog):
    caplog.set_level(logging.INFO)
    optimizer, device, obstacle = (
        build_optimizer(make_model(), "lamb", lr=0.1),
        torch.device("cuda"),
        GPLVMF.capture_obstacle,
    )
    assert not use_cuda_graph("auto", device, optimizer, Constant(0.1, 10), obstacle)
    assert "cuda_graph auto: off, because of the model: its factorisations" in caplog.text
    with pytest.raises(TrainingError, match=r"train\.cuda_graph=on: of the model: its factorisations"):
        use_cuda_graph("on", device, optimizer, Constant(0.1, 10), obstacle)
    using = [name for name in MODELS if "linalg" in inspect.getsource(inspect.getmodule(model_class(name)))]
    assert using, "the models are looked through"
    assert [name for name in using if model_class(name).capture_obstacle is None] == []
    obstacles = {name for name in MODELS if model_class(name).capture_obstacle is not None}
    assert obstacles == {"gplvmf"} | {name for name in MODELS if not model_class(name).learns_by_steps}


CASES_OF_STEPS = {
    "lamb": ("lamb", {}),
    "lamb in pieces": ("lamb", {"accumulate_steps": 3}),
    "adamw clipped": ("adamw", {"max_grad_norm": 0.1}),
    "average": ("lamb", {"average": 0.9}),
}


def run_of_steps(device: str, captured: bool, name: str, settings: dict, rows: int = 256, num_steps: int = 20):
    """Losses and weights of so many steps with dropout and batch norm, each step on rows of its own."""
    model = make_model(batch_norm=True, dropout=0.3).to(device).train()
    average = WeightAverage(model, settings["average"]) if "average" in settings else None
    step = make_step(model, name, **settings | {"average": average})
    hold_in_tensors(step.optimizer, torch.device(device))
    torch.manual_seed(7)
    losses = []
    for seed in range(num_steps):
        batch, schema = make_batch(rows, seed)
        if captured and seed == 0:
            step.capture(schema, rows)
        batch = unpack(schema, words_of(batch, schema.num_words).to(device))
        losses.append(step(batch, 0.05 / (seed + 1), 0.9 if name == "adamw" else 0.95 - 0.01 * seed).clone())
    weights = model.state_dict() | (
        {} if average is None else {f"mean.{k}": v for k, v in average.model.state_dict().items()}
    )
    random_state = torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()
    return torch.stack(losses), weights, random_state


@pytest.mark.parametrize("case", CASES_OF_STEPS)
def test_twenty_replayed_steps_equal_twenty_eager_ones(case, any_device):
    """On a GPU up to rounding: for a graph cuBLAS has a workspace of its own, and may choose other products."""
    eager, captured = (run_of_steps(any_device, on, *CASES_OF_STEPS[case]) for on in (False, any_device == "cuda"))
    exact = any_device == "cpu"
    torch.testing.assert_close(eager[0], captured[0], rtol=0 if exact else 1e-3, atol=0 if exact else 1e-5)
    torch.testing.assert_close(eager[1], captured[1], rtol=0 if exact else 1e-2, atol=0 if exact else 1e-3)
    assert torch.equal(eager[2], captured[2])  # dropout drew as often


@pytest.mark.gpu
def test_a_step_that_waits_runs_without_a_graph_and_dropout_goes_on_drawing(caplog):
    """G5, on a real GPU: a capture that fails leaves the stream, the memory and the random state usable."""
    found = []
    for tries in (False, True):
        model = make_model(dropout=0.3).cuda().train()
        step = make_step(model, "lamb")
        hold_in_tensors(step.optimizer, torch.device("cuda"))
        before = step._forward
        step._loss_of = lambda piece, before=before: before(piece) * (1.0 if piece.floats.sum().item() < 1e9 else 0.0)
        torch.cuda.manual_seed(7)
        losses = []
        for seed in range(8):
            batch, schema = make_batch(64, seed)
            if tries and seed == 0:
                step.capture(schema, 64, required=False)
            batch = unpack(schema, words_of(batch, schema.num_words).cuda())
            losses.append(step(batch, 0.02, 0.9).item())
        found.append((losses, model.state_dict(), torch.cuda.get_rng_state()))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-3)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-2, atol=1e-3)
    assert torch.equal(found[0][2], found[1][2])
    assert caplog.text.count("the step cannot be captured") == 1
    del step, model, batch
    torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph()  # the allocator takes the next capture
    with torch.cuda.graph(graph):
        zeros = torch.zeros(8, device="cuda")
    graph.replay()
    assert not zeros.any()


@pytest.mark.parametrize("rows", [256, 4096])
def test_neither_an_eager_nor_a_replayed_step_waits_for_the_device(rows, any_device):
    model = make_model(batch_norm=True, dropout=0.3).to(any_device).train()
    step = make_step(model, "lamb", accumulate_steps=2)
    hold_in_tensors(step.optimizer, torch.device(any_device))
    batch, schema = make_batch(rows, 0)
    batch = unpack(schema, words_of(batch, schema.num_words).to(any_device))
    if any_device == "cuda":
        step.capture(schema, rows)
    for _ in range(WARMUP_STEPS + 1):
        step(batch, 0.01, 0.9)
    with no_waiting(any_device):
        step(batch, 0.01, 0.9)
        step._work(batch)


def test_products_of_half_precision_are_added_up_in_float32_whoever_makes_the_step(monkeypatch):
    """A benchmark that calls a step has what training has; what was set before is set again."""
    settings = torch.backends.cuda.matmul
    names = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")
    before = [getattr(settings, name) for name in names]
    assert any(before), "torch's default"
    model = make_model()
    step, seen = make_step(model), []
    model.register_forward_hook(lambda *_: seen.append([getattr(settings, name) for name in names]))
    step(make_batch(30, 2)[0], 0.01, 0.9)
    assert seen == [[False, False]]
    assert [getattr(settings, name) for name in names] == before
