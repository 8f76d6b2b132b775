"""Compiled gathers: the same rows as torch's order and index_select, for any table, batch and number of threads."""

import threading
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gigabatch.loaders.order.gather as gather_module
import gigabatch.loaders.order.order as order_module
from gigabatch.loaders.batches.dataset import BatchDataset
from gigabatch.loaders.kernels import gather_loops as kernels
from gigabatch.loaders.order.gather import gather_shuffled
from gigabatch.loaders.order.order import MAX_ROWS, SORTED_ROWS, SampleOrder
from tests.examples import examples


def numbered_table(num_rows: int, num_words: int) -> torch.Tensor:
    """Words that tell their row and their place in it."""
    return torch.arange(num_rows * num_words, dtype=torch.int32).reshape(num_rows, num_words)


def compiled_rows(order: SampleOrder, start: int, stop: int) -> torch.Tensor:
    rows, left, right = (np.empty(stop - start, dtype) for dtype in (np.int64, np.uint32, np.uint32))
    kernels.order_rows(start, rows, left, right, order.network_numbers)
    return torch.from_numpy(rows)


@given(
    num_rows=st.integers(SORTED_ROWS + 1, 2**21) | st.integers(SORTED_ROWS + 1, MAX_ROWS),
    seed=st.integers(-(2**63), 2**63),
    epoch=st.integers(0, 2**40),
    data=st.data(),
)
@settings(max_examples=examples(150))
def test_the_compiled_order_is_bit_equal_to_the_one_in_torch(num_rows, seed, epoch, data):
    order = SampleOrder(num_rows, seed, epoch)
    start = data.draw(st.integers(0, num_rows - 1))
    stop = min(num_rows, start + data.draw(st.integers(0, 3000)))
    assert torch.equal(compiled_rows(order, start, stop), order(torch.arange(start, stop)))


@given(num_rows=st.integers(2, 700), seed=st.integers(0, 2**32))
@settings(max_examples=examples(150))
def test_the_compiled_network_is_the_same_on_tiny_sides(num_rows, seed):
    """Sides of 1 and 2, and many values outside, which walk."""
    with mock.patch.object(order_module, "SORTED_ROWS", 1):
        order = SampleOrder(num_rows, seed, 0)
    assert torch.equal(compiled_rows(order, 0, num_rows), order(torch.arange(num_rows)))


@pytest.mark.parametrize("num_rows", [1, 100, SORTED_ROWS, SORTED_ROWS + 1, 30_011])
@pytest.mark.parametrize("num_words", [1, 16, 47])
def test_rows_are_those_of_index_select(num_rows, num_words):
    table, order = numbered_table(num_rows, num_words), SampleOrder(num_rows, 3, 1)
    for start, stop in ((0, num_rows), (0, 0), (num_rows // 3, num_rows // 2), (num_rows - 1, num_rows)):
        room = torch.full((stop - start + 2, num_words), -7, dtype=torch.int32)
        out = room[1:-1]
        assert gather_shuffled(table, order, start, stop, out) is out
        assert torch.equal(out, table[order(torch.arange(start, stop))])
        assert (room[[0, -1]] == -7).all()  # nothing beside the batch is written


@pytest.mark.parametrize("num_threads", [1, 3])
def test_the_number_of_threads_does_not_change_the_rows(num_threads, monkeypatch):
    monkeypatch.setattr(gather_module, "TASK_ROWS", 100)
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    table, order = numbered_table(20_000, 6), SampleOrder(20_000, 5, 0)
    out = torch.empty(19_950, 6, dtype=torch.int32)
    gather_shuffled(table, order, 50, 20_000, out)
    assert torch.equal(out, table[order(torch.arange(50, 20_000))])


def test_tasks_are_done_once_each_also_when_helpers_never_start(monkeypatch):
    """As in a forked process: a pool whose threads do not run."""
    stuck, release = ThreadPoolExecutor(1), threading.Event()
    stuck.submit(release.wait)
    monkeypatch.setattr(gather_module, "_helpers", lambda count: stuck)
    done: list[int] = []
    gather_module._share(done.append, 10, num_threads=2)
    assert done == list(range(10))
    release.set()
    stuck.shutdown()


def test_an_error_in_a_helper_reaches_the_caller():
    caller = threading.get_ident()
    helper_failed = threading.Event()

    def task(number: int) -> None:
        if threading.get_ident() == caller:
            assert helper_failed.wait(60)
        else:
            helper_failed.set()
            raise OSError("page could not be read")

    with pytest.raises(OSError, match="page could not be read"):
        gather_module._share(task, 2, num_threads=2)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_worker_of_a_torch_dataloader_gathers_too(make_table, monkeypatch):
    """Its parent's helper threads are not there any more."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(gather_module, "TASK_ROWS", 500)
    dataset = BatchDataset(make_table(6000), 3000, seed=1)
    expected = [dataset[index].group.tolist() for index in range(2)]
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="fork")
    assert [batch.group.tolist() for batch in loader] == expected
