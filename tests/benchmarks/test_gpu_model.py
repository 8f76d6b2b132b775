"""benchmarks/gpu_model counts what a hand counts, of every kernel, stage and part, and says where it is off."""

import ast
import inspect
import json
import math
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks import end_to_end_ours, gpu_model
from benchmarks.end_to_end_ours import SCORED_ROWS, Recipe
from benchmarks.gpu_model import H200, Shapes, Step, Tally, Work
from gigabatch.models.kernels import KERNELS
from gigabatch.models.losses import TargetLoss

BATCH = 512


def test_a_small_network_by_hand():
    """B rows, K inputs, N hidden, 1 output: y = relu(x W + b) v + c, and its backward pass without that of x."""
    B, K, N = 64, 16, 8
    network = nn.Sequential(nn.Linear(K, N), nn.ReLU(), nn.Linear(N, 1))
    rows = torch.ones(B, K)
    with Tally() as forward:
        out = network(rows)
    assert forward.launches_by_name() == {"addmm": 2, "relu": 1}
    work = forward.work("train", "forward")
    assert work.flops == 2 * B * K * N + 2 * B * N
    first = 4 * (B * K + K * N + N + B * N)
    second = 4 * (B * N + N + 1 + B)
    assert work.stream == first + 4 * 2 * B * N + second
    with Tally() as backward:
        out.backward(torch.ones(B, 1))
    # of v: h^T dy; of h: dy v^T; of W: x^T dh. No gradient of x.
    assert backward.work("train", "backward").flops == 2 * B * N + 2 * B * N + 2 * B * K * N
    assert backward.launches_by_name()["mm"] == 3


def moved(call):
    with Tally() as tally:
        call()
    work = tally.work("", "")
    return work.stream, work.random, work.launches


@pytest.mark.parametrize(
    ("call", "num_bytes", "launches"),
    [
        (lambda: torch.ones(100).add_(1), 4 * 100 + 2 * 4 * 100, 2),  # filled; read and written
        (lambda: torch.empty(100).fill_(1), 4 * 100, 1),
        (lambda: torch.empty(10, 10).t()[2:].expand(8, 10), 0, 0),  # views
        (lambda: torch.empty(100).copy_(torch.empty(1).expand(100)), 4 + 4 * 100, 1),  # one number is read
        (lambda: torch.index_select(torch.empty(9999, 7), 0, torch.empty(5).long() * 0), 5 * 4 + 2 * 5 * 8 + 5 * 8 * 2 + 2 * 5 * 7 * 4, 3),  # noqa: E501
        (lambda: torch.mm(torch.empty(2, 3), torch.empty(3, 5), out=torch.empty(2, 5)), 4 * (6 + 15 + 10), 1),
        (lambda: torch.sort(torch.empty(50).int()), 50 * 4 + 50 * 4 + (50 * 4 + 4 * 2 * 50 * 12), 1 + 4 + 3),
    ],
)  # fmt: skip
def test_operations_by_hand(call, num_bytes, launches):
    assert moved(call) == (num_bytes, 0, launches)


def test_products_in_place_of_an_output_count_their_flops():
    with Tally() as tally:
        torch.mm(torch.empty(2, 3), torch.empty(3, 5), out=torch.empty(2, 5))
    assert tally.work("", "").flops == 2 * 2 * 3 * 5


def test_every_function_of_every_kernel_is_counted():
    """What a step may call is what the Triton versions have in public, found by listing."""
    for name in KERNELS:
        module = import_module(f"gigabatch.models.kernels.{name}.cuda")
        public = {
            word: found
            for word, found in vars(module).items()
            if inspect.isfunction(found) and found.__module__ == module.__name__ and not word.startswith("_")
        }
        assert public, name
        for word, found in public.items():
            counted = getattr(gpu_model.CountedKernels, word, None)
            assert counted is not None, f"{name}.{word} is not counted"
            names = list(inspect.signature(found).parameters)
            inspect.signature(counted).bind(None, *names)


@pytest.fixture(scope="module")
def shapes():
    return Shapes.of(1_000_000, sample_rows=20_000)


@pytest.fixture(scope="module")
def step(shapes):
    return Step.of(shapes, Recipe(BATCH, 0.1, 0.1, "lamb"), torch.bfloat16)


def works(shapes, step):
    return gpu_model.benchmark_path(shapes, Recipe(step.batch, 0.1, 0.1, "lamb"), step, SCORED_ROWS["cuda"])


def test_lookup_and_row_update_by_hand(shapes):
    """Two tables, one of few rows: ids once, each row of a batch at most once, gradients once, a sort of the others."""
    from gigabatch.models.kernels.row_update.rules import RowRule

    tables = [torch.zeros(1000, 8), torch.zeros(3, 1)]
    rule, tally = RowRule(), Tally()
    kernels = gpu_model.CountedKernels(tally)
    ids, gradient = torch.zeros(64, 2, dtype=torch.int32), torch.zeros(64, 9, dtype=torch.bfloat16)
    kernels.lookup(ids, tables, torch.zeros(64, 32), torch.zeros(64, 5))
    (looked,) = tally.pieces
    assert looked.stream == 4 * 64 * (2 + 32 + 5)
    assert looked.random == 64 * 32 + 3 * (4 + 28)  # 32-byte rows are sectors; one of four bytes lies in a sector
    tally.pieces.clear()
    kernels.update_rows(tables, [rule.new_state(table) for table in tables], ids, gradient, rule)
    (update,) = tally.pieces
    # weights and first moment of 8 (1) numbers and the second of one: 17 (3) numbers, read and written
    assert update.random == 2 * 64 * (4 * 17 + 28) + 2 * 3 * (4 * 3 + 28)
    assert update.stream == 4 * 64 * 2 + 2 * 64 * 9 + 64 * (4 + 4 * 2 * 12)
    # steps; the small table's two; keys, the sort's seven, one group's two
    assert update.launches == 1 + 2 + 1 + 7 + 2


def test_a_step_reads_nothing_on_the_host_and_one_that_does_is_seen(shapes, step, monkeypatch):
    assert step.reads_of_host == 0
    assert step.operations["mm"] == 3 * 3, "three layers, forward and twice backward"
    whole = TargetLoss.__call__

    def reading(self, *arguments, **named):
        loss = whole(self, *arguments, **named)
        loss.item()
        return loss

    monkeypatch.setattr(TargetLoss, "__call__", reading)
    assert Step.of(shapes, Recipe(BATCH, 0.1, 0.1, "lamb"), torch.bfloat16).reads_of_host == 1


def test_the_trace_leaves_everything_as_it_was():
    from gigabatch.models.kernels import kernel
    from gigabatch.models.layers import folded

    def traced(fails):
        with gpu_model.counted_as_on_a_gpu(torch.bfloat16) as tally:
            assert folded.kernel is not kernel
            assert torch.ones(1, device="meta").is_cuda
            assert not torch.ones(1).is_cuda
            assert not fails, "planted"
        return tally

    before = torch.autocast, torch.is_autocast_enabled, torch.get_autocast_dtype
    with pytest.raises(AssertionError, match="planted"):
        traced(fails=True)
    tally = traced(fails=False)
    assert tally.launches_by_name() == {"ones": 2}
    assert folded.kernel is kernel
    assert not torch.ones(1, device="meta").is_cuda
    assert "is_cuda" not in vars(torch.Tensor)
    assert (torch.autocast, torch.is_autocast_enabled, torch.get_autocast_dtype) == before


def test_flops_of_a_step_are_three_products_a_layer(shapes, step):
    """Inputs of the first layer are padded to a multiple of 32 columns."""
    from benchmarks.end_to_end_ours import LAYERS, OTHER_WIDTH, WIDTHS

    width = sum(WIDTHS.get(column.name, OTHER_WIDTH) for column in shapes.schema.ids) + len(shapes.schema.floats)
    sizes = [-(-width // 32) * 32, *LAYERS, 1]
    products = sum(a * b for a, b in pairwise(sizes))
    assert step.replayed.flops == pytest.approx(3 * 2 * BATCH * products, rel=0.05)  # and a few products of vectors


def test_twice_the_rows_are_twice_the_bytes(shapes, step):
    """What does not grow is known: the model's tables, and the sorts of distinct values."""
    sizes = [gpu_model.replace(shapes, rows=times * shapes.rows) for times in (1, 2, 3)]
    assert [size.train for size in sizes] == [800_000, 1_600_000, 2_400_000]
    for one, two, three in zip(*(works(size, step) for size in sizes), strict=True):
        assert (one.stage, one.what) == (two.stage, two.what) == (three.stage, three.what)
        moved = [work.stream + work.random for work in (one, two, three)]
        assert moved[2] - moved[1] == pytest.approx(moved[1] - moved[0]), one
        if (one.stage, one.what) != ("encode train", "ids"):
            assert moved[1] == pytest.approx(2 * moved[0]), one
        assert moved[1] > moved[0] or one.stage == "model"
    twice = sizes[1]
    assert sum(H200.seconds(work) for work in works(twice, step) if work.stage == "train") == pytest.approx(
        2 * sum(H200.seconds(work) for work in works(shapes, step) if work.stage == "train")
    )


def test_stages_are_the_parts_that_the_benchmark_times(shapes, step):
    """A part of end_to_end_ours that the model leaves out fails; `pack` is a view."""
    source = ast.parse(Path(end_to_end_ours.__file__).read_text())
    clocks = [node for node in ast.walk(source) if isinstance(node, ast.Call)]
    parts = {node.args[0].value for node in clocks if isinstance(node.func, ast.Name) and node.func.id == "clock"}
    assert parts == {*gpu_model.stages_of(works(shapes, step)), "pack"}


def test_encoding_a_column_of_text_by_hand(shapes):
    """A table of one text column of 10 letters and a 4-byte offset, 1,000 rows of which 800 train, 50 values."""
    from gigabatch.features.schema import IdColumn, TensorSchema

    schema = TensorSchema((IdColumn("user_id", 53),), (), ())
    sizes = {"rows": 1000, "column_bytes": {"user_id": 14.0}, "text_bytes": {"user_id": 10.0}, "schema": schema}
    encoding = gpu_model.Encoding(gpu_model.replace(shapes, distinct={"user_id": 50.0}, **sizes))
    ids = encoding._keys("encode train", 800, fitted=True)
    sort = 8 + 8 * (16 + 16)  # keys once to count, then eight passes that read and write 16 bytes
    assert ids.stream == 800 * (14 + 8 + 40 + sort + 8 + 17 + 16 + 8 + 12) + 2 * 50 * sort
    assert ids.random == 800 * 2 * 32
    assert encoding._keys("encode valid", 200, fitted=False).stream == 200 * (14 + 8 + 40 + 24)


def result(**parts):
    return {"details": {"ours by part": parts}}


def test_a_measurement_is_compared_part_by_part():
    modelled = {"read": 1.0, "train": 2.0}
    lines = gpu_model.compare(modelled, result(read=3.0, train=3.0, pack=0.5, **{"of which waiting": 9.0}))
    assert {line["part"]: line["times"] for line in lines} == {"read": 3.0, "train": 1.5, "whole": 6.5 / 3}
    with pytest.raises(ValueError, match="only one side has: train"):
        gpu_model.compare(modelled, result(read=3.0))
    with pytest.raises(ValueError, match="only one side has: metrics"):
        gpu_model.compare(modelled, result(read=3.0, train=3.0, metrics=1.0))


def test_what_bounds_a_piece_and_a_sum_of_pieces():
    plain = Work("s", "w", stream=4.3e12, flops=790e12 / 2, launches=1e5)
    assert H200.by_bound(plain) == {"bytes": pytest.approx(1.0)}
    # A traced piece is as long as its operations one after the other: half bound by bytes, half by launches.
    traced = Work(
        "s",
        "w",
        stream=4.3e12,
        launches=1e6 + 1,
        pieces=(Work("", "a", stream=4.3e12, launches=1), Work("", "b", launches=1e6)),
    )
    assert H200.by_bound(traced) == {"bytes": pytest.approx(1.0), "launches": pytest.approx(3.0)}
    assert H200.seconds(traced.repeated(3)) == pytest.approx(12.0)
    assert H200.seconds(traced.times(2)) == pytest.approx(5.0)  # twice as long, in as many launches


def test_what_runs_behind_counts_where_it_ends_last():
    train = Work("train", "w", stream=4.3e12)  # 1 s
    written = Work("artifact", "disk", disk=2.5 * H200.disk, behind=True)
    hashed = Work("artifact", "checksum", hashed=2.0 * H200.hashed, behind=True)
    assert gpu_model.total_seconds([written, hashed, train], H200) == {"artifact": pytest.approx(1.5), "train": 1.0}
    longer = gpu_model.replace(train, stream=5 * 4.3e12)
    assert gpu_model.total_seconds([written, longer], H200) == {"artifact": 0.0, "train": 5.0}
    meanwhile = gpu_model.replace(hashed, behind=False, beside=True)
    after = gpu_model.replace(train, stage="artifact")
    assert gpu_model.total_seconds([after, meanwhile], H200) == {"artifact": pytest.approx(2.0)}
    assert gpu_model.total_seconds([longer, gpu_model.replace(meanwhile, stage="train")], H200) == {"train": 5.0}
    first = gpu_model.replace(written, behind=False)
    assert sum(gpu_model.total_seconds([first, train], H200).values()) == pytest.approx(3.5)


def test_ceilings_can_be_replaced_by_name(tmp_path):
    path = tmp_path / "ceilings.json"
    path.write_text(json.dumps({"stream": 4.0e12}))
    assert gpu_model.read_ceilings(str(path)) == gpu_model.replace(H200, stream=4.0e12)
    with pytest.raises(ValueError, match="unknown copy"):
        gpu_model.read_ceilings('{"copy": 1}')


def test_make_train_without_the_hand_over_takes_what_is_written_and_read_back(shapes, step):
    path = works(shapes, step)
    after, before = (
        gpu_model.total_seconds(gpu_model.train_path(shapes, path, handover=on), H200) for on in (True, False)
    )
    packed = shapes.rows * 4 * shapes.schema.num_words
    one_thread = packed / H200.host + 0.8 * packed / H200.hashed  # to the cache, then the checksum of the train file
    written = max(one_thread, packed / H200.disk)
    assert before["artifact"] == pytest.approx(written + packed / H200.host, rel=0.01)
    following = sum(after[stage] for stage in ("model", "train", "metrics"))
    assert after["artifact"] == pytest.approx(max(0, written - following), rel=0.01)
    slow = gpu_model.replace(H200, hashed=H200.disk / 4)
    hashing = gpu_model.total_seconds(gpu_model.train_path(shapes, path, handover=False), slow)["artifact"]
    assert hashing == pytest.approx(2 * packed / H200.host + 0.8 * packed / slow.hashed, rel=0.01)
    assert before["features"] == after["features"]
    assert math.isfinite(sum(after.values()))


def test_order_and_gather_are_one_launch_where_the_kernel_is(shapes, monkeypatch):
    def found(is_there):
        monkeypatch.setattr(gpu_model.importlib.util, "find_spec", lambda name: is_there or None)
        return gpu_model.gather_work(shapes, BATCH)

    kernel, plain = found(True), found(False)
    assert kernel.launches == 1
    assert kernel.stream == BATCH * 4 * shapes.schema.num_words
    assert plain.launches > 50
    assert plain.stream > kernel.stream
