"""The loaders that benchmarks/loader.py is measured against, one epoch at each batch size; needs nothing of ours.

    python benchmarks/loader_peers.py torch|fastai WORDS.npy NUM_IDS NUM_FLOATS NUM_ROWS NUM_WORKERS DEVICE BATCH_SIZES

Prints rows a second by batch size as JSON. A row of the file is ids (int32), floats (float32 bits), target.
"""

import json
import sys
import time
import warnings
from typing import Any

import numpy as np


def torch_loader(ids: np.ndarray, floats: np.ndarray, target: np.ndarray, batch_size: int, num_workers: int) -> Any:
    """The item-by-item way: a Dataset that gives one row, and a DataLoader that collates them."""
    import torch

    ids_of, floats_of = torch.from_numpy(ids).long(), torch.from_numpy(floats)
    target_of = torch.from_numpy(target)

    class Rows(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(target_of)

        def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            return ids_of[row], floats_of[row], target_of[row]

    return torch.utils.data.DataLoader(Rows(), batch_size, shuffle=True, num_workers=num_workers)


def fastai_loader(ids: np.ndarray, floats: np.ndarray, target: np.ndarray, batch_size: int, num_workers: int) -> Any:
    """fastai's TabDataLoader: whole batches of a data frame. Ids come coded, so nothing is left to encode."""
    import pandas as pd
    from fastai.tabular.all import CategoryBlock, TabularPandas

    id_names = [f"id_{i}" for i in range(ids.shape[1])]
    float_names = [f"float_{i}" for i in range(floats.shape[1])]
    frame = pd.concat([pd.DataFrame(ids, columns=id_names), pd.DataFrame(floats, columns=float_names)], axis=1)
    frame["target"] = target.astype("int64")
    table = TabularPandas(frame, [], id_names, float_names, y_names="target", y_block=CategoryBlock())
    return table.dataloaders(bs=batch_size, num_workers=num_workers)[0]


def rows_per_second(loader: Any, device: str) -> float:
    import torch

    num_rows = 0
    start = time.perf_counter()
    for ids, floats, target in loader:
        num_rows += len(ids)
        if device != "cpu":
            ids, floats, target = (part.to(device, non_blocking=True) for part in (ids, floats, target))
    if device != "cpu":
        torch.cuda.synchronize()
    return num_rows / (time.perf_counter() - start)


def main() -> None:
    name, path = sys.argv[1:3]
    num_ids, num_floats, num_rows, num_workers = (int(text) for text in sys.argv[3:7])
    device, sizes = sys.argv[7], [int(text) for text in sys.argv[8].split(",")]
    words = np.load(path, mmap_mode="r")[:num_rows]
    columns = (
        np.ascontiguousarray(words[:, :num_ids]),
        np.ascontiguousarray(words[:, num_ids : num_ids + num_floats]).view(np.float32),
        np.ascontiguousarray(words[:, num_ids + num_floats]).view(np.float32),
    )
    make: Any = {"torch": torch_loader, "fastai": fastai_loader}[name]
    next(iter(make(*(column[: sizes[0]] for column in columns), sizes[0], 0)))  # what a first batch costs once
    found = {str(size): rows_per_second(make(*columns, size, num_workers), device) for size in sizes}
    print(json.dumps(found, allow_nan=False))


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    main()
