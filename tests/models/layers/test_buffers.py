"""A pool of memory: what is given back is used again where it fits."""

import copy
import pickle

import pytest
import torch

from gigabatch.models.layers.embeddings import MAX_FREE, BufferPool

CPU = torch.device("cpu")


def test_memory_in_use_is_not_handed_out_again():
    pool = BufferPool()
    pool.give(pool.take((10,), torch.float32, CPU))
    first, second = (pool.take((10,), torch.float32, CPU) for _ in range(2))
    assert first.data_ptr() != second.data_ptr()


@pytest.mark.parametrize(("size", "again"), [(101, False), (100, True), (50, True), (49, False)])
def test_memory_is_used_where_it_is_large_enough_and_at_most_twice_that(size, again):
    pool = BufferPool()
    old = pool.take((100,), torch.float32, CPU)
    pool.give(old)
    assert (pool.take((size,), torch.float32, CPU).data_ptr() == old.data_ptr()) == again


def test_the_smallest_that_fits_is_taken():
    pool = BufferPool()
    buffers = [pool.take((size,), torch.float32, CPU) for size in (150, 110, 190)]
    for buffer in buffers:
        pool.give(buffer)
    assert pool.take((100,), torch.float32, CPU).data_ptr() == buffers[1].data_ptr()


def test_a_view_gives_back_the_whole():
    pool = BufferPool()
    whole = pool.take((10, 8), torch.float32, CPU)
    pool.give(whole[2:, 3:])
    assert pool.take((10, 8), torch.float32, CPU).data_ptr() == whole.data_ptr()


def test_a_pool_keeps_so_many_buffers_and_the_newest():
    pool = BufferPool()
    buffers = [pool.take((64,), torch.float32, CPU) for _ in range(MAX_FREE + 5)]
    for buffer in buffers:
        pool.give(buffer)
    found = {pool.take((64,), torch.float32, CPU).data_ptr() for _ in range(1)}
    kept = [pool.take((64,), torch.float32, CPU) for _ in range(MAX_FREE - 1)]
    assert found | {buffer.data_ptr() for buffer in kept} == {buffer.data_ptr() for buffer in buffers[5:]}


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda pool: pickle.loads(pickle.dumps(pool))])
def test_a_copy_is_empty(copied):
    pool = BufferPool()
    old = pool.take((100,), torch.float32, CPU)
    pool.give(old)
    assert copied(pool).take((100,), torch.float32, CPU).data_ptr() != old.data_ptr()
    assert pool.take((100,), torch.float32, CPU).data_ptr() == old.data_ptr()


def test_memory_given_back_is_used_for_any_dtype_that_fits():
    pool = BufferPool()
    first = pool.take((100, 4), torch.float32, CPU)
    place = first.data_ptr()
    pool.give(first)
    second = pool.take((2, 300), torch.bfloat16, CPU)
    assert (second.data_ptr(), second.shape, second.dtype) == (place, (2, 300), torch.bfloat16)
    assert second.is_contiguous()


@pytest.mark.gpu
def test_a_gpu_keeps_its_own_memory():
    pool, device = BufferPool(), torch.device("cuda")
    taken = pool.take((4, 5), torch.float32, device)
    pool.give(taken)
    assert (taken.device.type, taken.shape) == ("cuda", (4, 5))
    assert pool._free == []
