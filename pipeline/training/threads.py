"""On how many threads of the CPU a training runs where `num_threads` leaves it open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.model import Model, model_call
from gigabatch.models.modes import modes_kept
from gigabatch.models.recommenders.fitted import FittedModel
from gigabatch.pipeline.machine import using_threads

# Operations of a step, below which threads wait for each other longer than they work: a step waits some twenty times.
WORTH_SHARING = 5e8  # one or two milliseconds of a core
OF_A_LOOKUP = 1_000  # of a row of a table, looked up and moved, as operations that take as long
FORWARD_AND_BACKWARD = 3  # times the products of a forward pass
COUNTED_ROWS = 2


@contextmanager
def training_threads(
    model: Model, rows: PackedTable, batch_size: int, device: str, num_threads: int | None, num_ranks: int = 1
) -> Iterator[int]:
    """Within it torch and the compiled loops have the `threads_of_training`; yields their number."""
    threads = threads_of_training(model, rows, batch_size, device, num_threads, num_ranks)
    with using_threads(threads):
        yield threads


def threads_of_training(
    model: Model, rows: PackedTable, batch_size: int, device: str, num_threads: int | None, num_ranks: int = 1
) -> int:
    """How many threads a training of `model` gets.

    One where a step is less than `WORTH_SHARING`, else those that torch has, as with several ranks and with a
    `num_threads` that is set. It follows from the model and the batch alone, not from a clock or the machine's load,
    because the last bits of the weights depend on it.

    rows: some as they are trained on. batch_size: rows of a step, drawn negatives among them.
    """
    before = torch.get_num_threads()
    is_open = num_threads is None and num_ranks == 1 and device == "cpu" and not isinstance(model, FittedModel)
    is_small = is_open and before > 1 and step_operations(model, rows, batch_size) < WORTH_SHARING
    return 1 if is_small else before


def step_operations(model: Model, rows: PackedTable, batch_size: int) -> float:
    """About how many operations a step takes: products, counted as the model evaluates a few rows, and lookups."""
    from torch.utils.flop_counter import flop_registry  # which imports Triton, for a training alone

    class Products(TorchDispatchMode):
        """Counts as torch's `FlopCounterMode` does, which loads `torch._dynamo`: a second and more of CPU."""

        found = 0

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # nothing here is compiled

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            if (count := flop_registry.get(func._overloadpacket)) is not None:
                self.found += count(*args, **(kwargs or {}), out_val=made)
            return made

    few = rows.unpack(rows.words[:COUNTED_ROWS].cpu())
    # Without a graph, but not in inference mode, where a layer's product is not told apart from the layer.
    with modes_kept(model), torch.no_grad(), Products() as counter:
        model.eval()
        model_call(model, few.ids, few.floats, few.lists)
    products = counter.found / max(len(few.ids), 1)
    lookups = len(rows.schema.ids) + len(rows.schema.lists)
    return batch_size * (FORWARD_AND_BACKWARD * products + OF_A_LOOKUP * lookups)
