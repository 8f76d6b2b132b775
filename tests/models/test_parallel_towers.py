"""Every way to run two towers gives outputs and gradients of running them one after the other, or refuses to run."""

import copy
from contextlib import contextmanager
from threading import Barrier
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from models import ModelError
from models.fields import mlp
from models.model import EntityColumns, ModelInputs
from models.parallel import towers as parallel
from models.parallel.towers import MODES, choose_mode, run_towers
from models.two_tower import Tower, TwoTowerSettings

INPUTS = ModelInputs((50, 30, 20), 3, 1, EntityColumns(0, (0,), (0, 2)), EntityColumns(1, (1, 2), (1,)))
CLOSE = {"rtol": 1e-10, "atol": 1e-12}  # of float64: sums in another order differ in the last bits and no more
HERE = ("threads", "batched")  # modes that a CPU can run besides `sequential`


@pytest.fixture(autouse=True)
def two_threads():
    """Two threads of torch, which the mode `threads` needs, also on one core."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def make(rows=300, layers=(32, 16), item_layers=None, batch_norm=False, seed=0, same_width=False):
    """Two towers in float64, ids and floats."""
    torch.manual_seed(seed)
    settings = TwoTowerSettings(embedding_dim=8, vector_dim=8, batch_norm=batch_norm)
    item = ((1,), (1, 2)) if same_width else ((1, 2), (1,))
    towers = nn.ModuleList(
        [
            Tower(INPUTS, (0,), (0, 2), settings, layers),
            Tower(INPUTS, *item, settings, layers if item_layers is None else item_layers),
        ]
    )
    with torch.no_grad():
        for tower in towers:
            for table in tower.embeddings.tables:
                table.mul_(50)  # so that outputs and gradients are of the order of 1
            for layer in tower.network:
                if isinstance(layer, nn.Linear):
                    layer.weight.mul_(2.5)
    ids = torch.stack([torch.randint(size, (rows,)) for size in INPUTS.num_ids], dim=1).int()
    return towers.double(), ids, torch.randn(rows, INPUTS.num_floats, dtype=torch.float64)


def in_float32(towers, ids, floats):
    return towers.float(), ids, floats.float()


def passed(mode, towers, ids, floats):
    """Outputs, gradients of parameters and what the row-wise tables were given, of one forward and backward pass."""
    towers = copy.deepcopy(towers)
    first, second = run_towers(mode, tuple(towers), ids, floats)
    ((first * second).sum(1) ** 2).mean().backward()
    gradients = {name: parameter.grad for name, parameter in towers.named_parameters()}
    rows = [[gradient for _, gradient, _ in tower.embeddings.row_gradients] for tower in towers]
    return (first.detach(), second.detach()), gradients, rows, dict(towers.named_buffers())


def check_equal(found, expected, **tolerance):
    for part, other in zip(found, expected, strict=True):
        torch.testing.assert_close(part, other, **tolerance)


def test_sequential_is_each_tower_by_itself():
    towers, ids, floats = make()
    first, second = run_towers("sequential", tuple(towers), ids, floats)
    assert torch.equal(first, towers[0](ids, floats))
    assert torch.equal(second, towers[1](ids, floats))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("same_width", [False, True])
@pytest.mark.parametrize("mode", HERE)
def test_outputs_gradients_and_statistics_equal_sequential(mode, batch_norm, same_width):
    towers, ids, floats = make(batch_norm=batch_norm, same_width=same_width)
    expected = passed("sequential", towers, ids, floats)
    assert any(gradient.abs().max() > 0.1 for gradient in expected[1].values())
    check_equal(passed(mode, towers, ids, floats), expected, **CLOSE)


@pytest.mark.parametrize("mode", HERE)
def test_row_gradients_equal_sequential(mode):
    towers, ids, floats = in_float32(*make())
    for tower in towers:
        tower.embeddings.gradients = "rows"
    expected = passed("sequential", towers, ids, floats)
    assert [len(rows) for rows in expected[2]] == [1, 1]
    assert all(gradient is None for name, gradient in expected[1].items() if "tables" in name)
    check_equal(passed(mode, towers, ids, floats), expected, rtol=1e-4, atol=1e-5)


@given(
    rows=st.integers(2, 200),
    layers=st.lists(st.integers(1, 40), max_size=3).map(tuple),
    seed=st.integers(0, 100),
    mode=st.sampled_from(HERE),
)
def test_any_shape_equals_sequential(rows, layers, seed, mode):
    towers, ids, floats = make(rows, layers, seed=seed)
    check_equal(passed(mode, towers, ids, floats)[:2], passed("sequential", towers, ids, floats)[:2], **CLOSE)


def test_threads_take_towers_of_different_depth():
    towers, ids, floats = make(item_layers=(40,))
    check_equal(passed("threads", towers, ids, floats), passed("sequential", towers, ids, floats), **CLOSE)


@pytest.mark.parametrize("mode", HERE)
def test_without_gradients_outputs_are_the_same_and_have_no_graph(mode):
    towers, ids, floats = make()
    with torch.no_grad():
        found = run_towers(mode, tuple(towers), ids, floats)
        check_equal(found, run_towers("sequential", tuple(towers), ids, floats), **CLOSE)
    assert not any(output.requires_grad for output in found)
    with torch.inference_mode():
        assert all(output.is_inference() for output in run_towers(mode, tuple(towers), ids, floats))


@pytest.mark.parametrize("mode", HERE)
def test_bfloat16_is_taken_over(mode):
    towers, ids, floats = in_float32(*make())
    in_full = passed("sequential", towers, ids, floats)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = (passed(kind, towers, ids, floats) for kind in (mode, "sequential"))
    assert found[0][0].dtype == torch.float32  # the last layer stays there
    assert (found[0][0] - in_full[0][0]).abs().max() > 1e-4
    check_equal(found[0], expected[0], rtol=0.02, atol=0.01)
    for name, gradient in found[1].items():
        assert gradient.dtype == torch.float32
        assert (gradient - expected[1][name]).norm() <= 0.03 * expected[1][name].norm(), name


def test_threads_compute_side_by_side_and_each_has_half_of_torchs_threads():
    """Each network waits for the other in the middle: one after the other they would never get past it."""
    meeting, seen = Barrier(2, timeout=120), []

    class Meet(nn.Module):
        def forward(self, rows):
            meeting.wait()
            seen.append(torch.get_num_threads())
            return Both.apply(rows)

    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx, rows):
            return rows.clone()

        @staticmethod
        def backward(ctx, gradient):
            meeting.wait()
            return gradient

    towers, ids, floats = make()
    for tower in towers:
        tower.network.append(Meet())
    torch.set_num_threads(4)
    first, second = run_towers("threads", tuple(towers), ids, floats)
    (first.sum() + second.sum()).backward()
    assert seen == [2, 2]
    assert torch.get_num_threads() == 4


def test_threads_raise_what_a_network_raises():
    towers, ids, floats = make()
    towers[1].network = mlp(5, (4,), 8).double()  # does not fit what it is given
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        run_towers("threads", tuple(towers), ids, floats)


def test_threads_leave_a_frozen_tower_alone():
    towers, ids, floats = make()
    towers[1].requires_grad_(False)
    found = passed("threads", towers, ids, floats)
    assert all(gradient is None for name, gradient in found[1].items() if name.startswith("1."))
    check_equal(found, passed("sequential", towers, ids, floats), **CLOSE)


def test_batched_multiplies_once_for_both_towers(monkeypatch):
    towers, ids, floats = make(same_width=True)
    calls, product = [], torch.baddbmm

    def counted(*args, **kwargs):
        calls.append(args[1].shape)
        return product(*args, **kwargs)

    monkeypatch.setattr(torch, "baddbmm", counted)
    with torch.no_grad():
        run_towers("batched", tuple(towers), ids, floats)
    assert [shape[0] for shape in calls] == [2, 2, 2]


def test_batched_refuses_unequal_layers():
    for item_layers in ((32, 17), (32,)):
        towers, ids, floats = make(item_layers=item_layers)
        with pytest.raises(ModelError, match=r"batched needs towers of equal layers.*sequential"):
            run_towers("batched", tuple(towers), ids, floats)


def test_threads_refuse_a_single_thread():
    towers, ids, floats = make()
    torch.set_num_threads(1)
    with pytest.raises(ModelError, match="two of torch's threads, there are 1"):
        run_towers("threads", tuple(towers), ids, floats)


@pytest.mark.parametrize(("mode", "message"), [("streams", "need a CUDA device"), ("devices", "on two GPUs")])
def test_gpu_modes_refuse_a_cpu(mode, message):
    towers, ids, floats = make()
    with pytest.raises(ModelError, match=message):
        run_towers(mode, tuple(towers), ids, floats)


def test_unknown_modes_list_the_known_ones():
    towers, ids, floats = make()
    for call in (lambda: run_towers("fork", tuple(towers), ids, floats), lambda: choose_mode("fork", ids.device)):
        with pytest.raises(ModelError, match=r"'fork'. Known: .*sequential, streams"):
            call()


def test_auto_is_by_device_and_every_other_setting_is_itself():
    assert choose_mode("auto", torch.device("cpu")) == "sequential"
    assert choose_mode("auto", torch.device("cuda")) == "streams"
    for mode in MODES:
        assert choose_mode(mode, torch.device("cpu")) == mode


def test_streams_fork_before_and_join_after(monkeypatch):
    """The order in which the host asks CUDA for work, with stand-ins for CUDA."""
    asked = []

    class Stream:
        def __init__(self, name):
            self.name = name

        def wait_stream(self, other):
            asked.append(f"{self.name} waits for {other.name}")

    class Output:
        def record_stream(self, stream):
            asked.append(f"output is kept for {stream.name}")

    current, running = Stream("current"), []

    @contextmanager
    def on(stream):
        running.append(stream)
        yield
        running.pop()

    def stand_in(name):
        def network(rows):
            asked.append(f"{name} on {running[-1].name if running else 'current'}")
            return Output()

        return SimpleNamespace(embed=lambda ids, floats: None, network=network)

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(parallel, "_side_stream", lambda index: Stream("side"))
    ids = SimpleNamespace(device=torch.device("cuda", 0))
    run_towers("streams", (stand_in("user"), stand_in("item")), ids, None)
    assert asked == [
        "side waits for current",
        "item on side",
        "user on current",
        "current waits for side",
        "output is kept for current",
    ]


def test_a_second_gpu_is_another_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert parallel.second_device(torch.device("cuda", 0)) == torch.device("cuda", 1)
    assert parallel.second_device(torch.device("cuda", 1)) == torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert parallel.second_device(torch.device("cuda", 0)) is None


# On a GPU. These have not run: no machine with one was at hand.


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["streams", "batched"])
def test_a_gpu_gives_what_sequential_gives_there(mode):
    towers, ids, floats = make(rows=5000)
    towers, ids, floats = (part.cuda() for part in in_float32(towers, ids, floats))
    for _ in range(3):  # memory is used again from the second time on
        found, expected = (passed(kind, towers, ids, floats) for kind in (mode, "sequential"))
        check_equal(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_streams_are_captured_in_one_graph():
    towers, ids, floats = make(rows=4096, layers=(256, 256))
    towers, ids, floats = (part.cuda() for part in in_float32(towers, ids, floats))

    def step():
        for parameter in towers.parameters():
            parameter.grad = None
        first, second = run_towers("streams", tuple(towers), ids, floats)
        loss = ((first * second).sum(1) ** 2).mean()
        loss.backward()
        return loss.detach()

    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=beside):
        loss = step()
    captured = [parameter.grad for parameter in towers.parameters()]
    ids.copy_(ids.flip(0))
    floats.copy_(floats.flip(0) * 2)
    graph.replay()
    torch.cuda.synchronize()
    _, expected, _, _ = passed("sequential", towers, ids, floats)
    assert loss.isfinite()
    for gradient, other in zip(captured, expected.values(), strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_gpus_give_what_one_gives():
    towers, ids, floats = make(rows=5000)
    towers, ids, floats = (part.cuda() for part in in_float32(towers, ids, floats))
    expected = passed("sequential", towers, ids, floats)
    towers[1].to("cuda:1")
    outputs, gradients, _, _ = passed("devices", towers, ids, floats)
    assert [output.device for output in outputs] == [ids.device] * 2
    check_equal(outputs, expected[0], rtol=1e-4, atol=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient.to(ids.device), expected[1][name], rtol=1e-4, atol=1e-5)
