"""What the CUDA versions keep on the device for a set of tables goes with these tables, so that a process may train
as often as it likes (G7)."""

import gc
import importlib
import weakref

import pytest
import torch

from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers import dropout, embeddings, folded
from gigabatch.models.optimizers import row_optimizer
from gigabatch.models.optimizers.registry import build_optimizer
from gigabatch.models.tabular.tabular import TabularModel, TabularSettings

# Triton's interpreter divides in every lane, in those that a mask leaves out too.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture
def cuda_versions(triton_device, monkeypatch):
    """Models on the CPU run the Triton kernels, interpreted."""

    def version_of_cuda(name, device, version=None):
        return importlib.import_module(f"gigabatch.models.kernels.{name}.cuda")

    for module in (embeddings, folded, dropout, row_optimizer):
        monkeypatch.setattr(module, "kernel", version_of_cuda)
    return triton_device


def kept():
    """The two caches: (columns of lookups, plans of updates), by their first table."""
    from gigabatch.models.kernels.lookup import cuda as lookup_cuda
    from gigabatch.models.kernels.row_update import cuda as row_update_cuda

    return lookup_cuda._cached_columns, row_update_cuda._plans


def trained(device, num_steps=2):
    """A model of a small, a wide and a narrow table, and its optimizer, after some steps."""
    model = TabularModel(ModelInputs((9, 200, 300), 2), TabularSettings(layers=(8,))).to(device)
    optimizer = build_optimizer(model, "lamb", lr=0.1)
    for _ in range(num_steps):
        ids, floats = torch.randint(0, 9, (40, 3), dtype=torch.int32), torch.randn(40, 2)
        model(ids.to(device), floats.to(device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def test_what_is_kept_lives_as_long_as_the_tables(cuda_versions):
    gc.collect()
    before = [len(cache) for cache in kept()]
    model, optimizer = trained(cuda_versions)
    assert [len(cache) for cache in kept()] == [number + 1 for number in before]
    first = model.embeddings.weights[0]
    columns, plans = (cache[first] for cache in kept())
    assert [len(columns), len(plans)] == [1, 1], "made anew for a step of the same tables"
    gone = [weakref.ref(first), weakref.ref(*columns.values()), weakref.ref(next(iter(plans.values())).sorted_tables)]
    del columns, plans, first
    gc.collect()
    assert all(one() is not None for one in gone), "a captured graph reads it for as long as the tables are there"
    del model, optimizer
    gc.collect()
    assert [one() for one in gone] == [None, None, None]
    assert [len(cache) for cache in kept()] == before


def test_trainings_one_after_the_other_leave_nothing(cuda_versions):
    gc.collect()
    before = [len(cache) for cache in kept()]
    for _ in range(3):
        trained(cuda_versions, 1)
    gc.collect()
    assert [len(cache) for cache in kept()] == before


@pytest.mark.gpu
def test_trainings_one_after_the_other_leave_no_memory_on_the_gpu():
    def allocated():
        gc.collect()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    trained("cuda")
    before = allocated()
    for _ in range(3):
        trained("cuda")
    assert allocated() == before
