"""Batches of an epoch on the device that trains, resumable at any step."""

from collections.abc import Iterator, Mapping

import torch

from loaders.dataset import BatchDataset
from loaders.errors import LoaderError
from loaders.packed import Batch


class BatchLoader:
    """Iterates over the batches of the current epoch of `dataset`, each on `device` (the table's own by default).

    Iterating continues at `step`, the number of batches of this epoch that were handed out; after the last one the
    loader stands at step 0 of the next epoch, which the next `for` runs. A batch counts as handed out before its
    consumer works on it, so a state saved after a training step resumes with the next one. A state saved after the
    last batch gives an epoch with no batches left, so that what follows an epoch (evaluation, say) is not skipped.

    From a CPU table to a GPU, a batch is gathered into page-locked memory, copied as one block without waiting, and
    unpacked there. PyTorch's pinned allocator keeps that memory until the copy is done.
    """

    def __init__(self, dataset: BatchDataset, device: torch.device | str | None = None) -> None:
        self.dataset = dataset
        self.device = torch.device(device) if device is not None else dataset.table.device
        self.step = 0

    @property
    def epoch(self) -> int:
        return self.dataset.epoch

    def __len__(self) -> int:
        """Batches in a whole epoch, wherever the loader stands."""
        return len(self.dataset)

    def __iter__(self) -> Iterator[Batch]:
        while self.step < len(self.dataset):
            batch = self._batch(self.step)
            self.step += 1
            yield batch
        self.dataset.set_epoch(self.epoch + 1)
        self.step = 0

    def _batch(self, index: int) -> Batch:
        pin_memory = self.device.type == "cuda" and self.dataset.table.device.type == "cpu"
        words = self.dataset.words(index, pin_memory=pin_memory)
        return self.dataset.table.unpack(words.to(self.device, non_blocking=pin_memory))

    def state_dict(self) -> dict[str, int | bool]:
        """Where the loader stands, and what the order of the remaining batches depends on."""
        return {"epoch": self.epoch, "step": self.step, **self._settings()}

    def load_state_dict(self, state: Mapping[str, int | bool]) -> None:
        """Stand where `state` was saved.

        Raises:
            LoaderError: where the table or a setting differs, so that the remaining batches would not be the same.
        """
        settings = self._settings()
        missing = [name for name in ("epoch", "step", *settings) if name not in state]
        if missing:
            raise LoaderError(f"loader state: {', '.join(missing)} not found. It holds {', '.join(state)}.")
        for name, value in settings.items():
            if state[name] != value:
                raise LoaderError(
                    f"loader state: saved with {name}={state[name]}, this loader has {name}={value}. "
                    "Resume with the saved setting and the same table, or start anew."
                )
        if not 0 <= state["step"] <= len(self):
            raise LoaderError(f"loader state: step {state['step']} is outside [0, {len(self)}].")
        self.dataset.set_epoch(int(state["epoch"]))
        self.step = int(state["step"])

    def _settings(self) -> dict[str, int | bool]:
        dataset = self.dataset
        return {
            "seed": dataset.seed,
            "num_rows": dataset.table.num_rows,
            "batch_size": dataset.batch_size,
            "shuffle": dataset.shuffle,
            "drop_last": dataset.drop_last,
        }
