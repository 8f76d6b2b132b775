"""Handover: packed rows go from encode to training in memory, while a thread writes their artifact behind.

The artifact is the one that encode writes without it, byte for byte and under the same key. Whatever names it waits
until it is whole (`Encoded.artifact`). (On a GPU this has not run yet.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.loaders.batches.residency import choose_residency
from gigabatch.loaders.tables.host_blocks import HostBlocks
from gigabatch.loaders.tables.packed import PackedTable, PackedWriter
from gigabatch.pipeline.config.config import RunConfig
from gigabatch.pipeline.machine import available_memory, free_memory
from gigabatch.pipeline.store.artifacts import Extra, Rest

log = logging.getLogger(__name__)
# Of the host memory that is free, what rows may take that are not on disk yet: they can be neither swapped nor dropped.
HOST_SHARE = 0.5


@dataclass(frozen=True)
class HandedOver:
    """tables: the splits in memory, on the host or on the GPU that trains; preprocessor: as it was saved."""

    tables: Mapping[str, PackedTable]
    preprocessor: Preprocessor

    @property
    def on_host(self) -> bool:
        return all(table.device.type == "cpu" for table in self.tables.values())


def hands_over(
    config: RunConfig,
    engine: str,
    device: str,
    rows: Mapping[str, int],
    row_bytes: int,
    free_device_bytes: int,
    free_host_bytes: int,
) -> bool:
    """Whether encode hands these splits over in memory: all of them, or none. A pure function.

    engine, device: that run. rows: by split; row_bytes: of a packed row. The setting `handover` says what is wanted:
    `off`: no. `auto`: where a GPU trains, and its memory takes the tables by the rule of `residency`; rows that pandas
    packs lie on the host until then, so they must fit in `HOST_SHARE` of its memory too. `on`: also where a CPU trains,
    within `HOST_SHARE`. Never on a cluster, whose workers hand each other files, nor where rows are to be streamed.
    """
    wanted, train = config.handover, config.train
    if wanted == "off" or config.cluster != "none" or train.residency == "stream":
        return False
    num_rows = sum(rows.values())
    on_gpu, packed_there = torch.device(device).type != "cpu", engine.startswith("cudf")
    fits_host = num_rows * row_bytes <= HOST_SHARE * free_host_bytes
    if not on_gpu:
        return wanted == "on" and not packed_there and fits_host
    if train.residency == "host" or (packed_there and train.negatives is not None):
        return False  # negatives are drawn from tables on the host
    copies = 0 if train.negatives is None else train.negatives.per_positive
    measured = num_rows + rows["valid"] * copies
    kind = choose_residency(measured, row_bytes, device, free_device_bytes, free_host_bytes).kind
    return kind == "device" and (packed_there or fits_host)


def hands_over_here(config: RunConfig, engine: str, device: str, rows: Mapping[str, int], row_bytes: int) -> bool:
    """`hands_over` with the memory that is free now; the log says what follows from it."""
    free_device = free_memory(device) if device != "cpu" else 0
    found = hands_over(config, engine, device, rows, row_bytes, free_device, available_memory())
    if config.handover == "on" or (config.handover == "auto" and device != "cpu"):
        how = "rows are handed over in memory" if found else "rows are written, then read again"
        log.info("handover %s: %s", config.handover, how)
    return found


def write_behind(tables: Mapping[str, PackedTable], folder: Path, extra: Extra) -> Rest:
    """What writes the splits' packed tables to `folder`, for `ArtifactStore.build_behind`; extra: for its manifest."""
    blocks = {split: HostBlocks(table.device, table.schema.num_words) for split, table in tables.items()}

    def write(check: Callable[[], None]) -> Extra:
        for split, table in tables.items():
            with PackedWriter(folder / split, table.schema, len(table)) as writer:
                for words in blocks[split](table.words):
                    check()
                    writer.write(table.with_words(words))
        return extra

    return write
