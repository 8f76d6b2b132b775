"""Groups that codistil: which rows each trains on, and the weights that they leave each other in a folder.

A group writes a file every some steps, and reads what the others have written. There is nothing else between groups, so
one may end, go on or come late, and the others only find older weights, or none. A file holds the whole model, or what
has changed since the file before: all that is dense, and of embedding tables the rows that are other ones now. A group
begins with a whole one, and writes another when its changes have become larger than that; earlier files are removed
then. So whoever comes late reads one whole model and what follows it.

Files are named group-<group>-<number>-<life>-<whole or rows>.safetensors; a life is one process of a group.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from gigabatch.loaders.order.order import GOLDEN, splitmix64, start_state
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.model import Model
from gigabatch.models.parallel.codistill import Peers
from gigabatch.models.parallel.ranks import Ranks
from gigabatch.pipeline.config.config import CodistillSettings, WholeTrainSettings
from gigabatch.pipeline.store.files import json_text, replacing
from gigabatch.pipeline.training.checkpoint import TrainingError

log = logging.getLogger(__name__)
BLOCK = 1 << 20  # rows that are dealt at a time
BURN_IN = 5  # part of the steps that are the burn-in where none is set
ROWS = "|rows"  # behind a table's name: which of its rows a file holds
NAME = re.compile(r"group-\d+-(\d+)-([0-9a-f]+)-(whole|rows)\.safetensors")
MALFORMED = (OSError, SafetensorError, ValueError, KeyError, TypeError)


def share_rows(num_rows: int, settings: CodistillSettings, seed: int) -> np.ndarray:
    """The rows of a group, int64 ascending: each row is of one group, by a hash of its place and the seed.

    Examples
    --------
    >>> shares = [share_rows(10, CodistillSettings(groups=2, group=group), seed=1).tolist() for group in (0, 1)]
    >>> sorted(shares[0] + shares[1]) == list(range(10))
    True
    """
    start, found = start_state(seed, settings.groups), []
    for first in range(0, num_rows, BLOCK):
        places = torch.arange(first, min(first + BLOCK, num_rows))
        dealt = (splitmix64((places + 1) * GOLDEN + start) & ((1 << 62) - 1)) % settings.groups
        found.append(places[dealt == settings.group])
    return torch.cat(found).numpy() if found else np.zeros(0, "int64")


def seed_of(seed: int, settings: CodistillSettings | None) -> int:
    """Of a group's weights, order of rows and dropout: that of the configuration for group 0, others for others."""
    return seed if settings is None or not settings.group else start_state(seed, settings.group) & ((1 << 63) - 1)


def require_can_codistill(model: Model, settings: WholeTrainSettings, is_sharded: bool) -> None:
    """Raise `TrainingError` where peers cannot teach this model in this way."""
    if model.compares_rows:
        raise TrainingError(
            f"train.codistill: the loss of {type(model).__name__} compares rows of a batch, and peers teach outputs of "
            "single rows. Take another loss or model."
        )
    for name in ("compile", "cuda_graph"):
        if getattr(settings, name) == "on":
            raise TrainingError(f"train.codistill: peers come while a training runs, so set train.{name}=off.")
    if is_sharded:
        raise TrainingError("train.codistill: peers are whole models on each rank. Set train.tables=replicated.")


class File(NamedTuple):
    """What a file's name tells."""

    number: int
    life: str
    is_whole: bool
    path: Path


class Codistillation:
    """A group's part in a codistillation: what it writes, and what it has read.

    Parameters
    ----------
    settings
        `train.codistill`.
    folder
        That all groups share; made where it is missing.
    team
        What all groups must have alike, by what a message calls it. A file of another team is refused.
    """

    def __init__(self, settings: CodistillSettings, folder: Path, team: Mapping[str, str]) -> None:
        self.settings, self.folder, self.team = settings, folder, dict(team)
        self.others = [group for group in range(settings.groups) if group != settings.group]
        self.steps: dict[int, int] = {}  # that the peers' weights have, by group
        self._read: dict[int, File] = {}
        self._unreadable: set[Path] = set()
        self._life, self._number = secrets.token_hex(4), 0
        self._sent: dict[str, Tensor] = {}  # tables as they were last written
        self._whole_bytes = self._row_bytes = 0

    def begin(self, model: Model, ranks: Ranks, num_steps: int) -> Peers:
        """Before the first step of this process; the peers that a step learns from, of which none has come yet."""
        self._model, self._ranks = model, ranks
        self._tables = {
            name
            for name, parameter in model.named_parameters()
            if any(parameter is table for m in model.modules() if isinstance(m, EmbeddingTables) for table in m.weights)
        }
        burn_in = self.settings.burn_in_steps
        self.burn_in = num_steps // BURN_IN if burn_in is None else burn_in
        self.peers = Peers(model, self.others, self.settings.weight)
        self._has_begun = False
        self.folder.mkdir(parents=True, exist_ok=True)
        self._number = max((file.number for file in self._files(self.settings.group)), default=0)
        return self.peers

    def before_step(self, step: int) -> None:
        """Exchange weights where it is time. step: the number of steps done."""
        if step < self.burn_in:
            return
        self.peers.is_teaching = True
        if not self._has_begun or (step - self.burn_in) % self.settings.every_steps == 0:
            self._has_begun = True
            self._write(step)
            self._take()

    def end(self, step: int) -> None:
        """After the last step: leave the last weights, and say which peers were never there."""
        self._write(step)
        for group in self.others:
            if group not in self.steps:
                log.warning(
                    "codistill: group %d has never come (nothing of it is in %s), so nothing was learnt from it",
                    group,
                    self.folder,
                )

    def told(self, step: int) -> dict[str, dict[str, int] | None]:
        """By the number of a peer, the step that its weights have, and how many steps behind this group's they are;
        None where it has never come."""
        return {
            str(group): {"step": self.steps[group], "age": step - self.steps[group]} if group in self.steps else None
            for group in self.others
        }

    def note(self, step: int, rows: int) -> str:
        """In words, for the log and the report."""
        own = "its own " if self.settings.rows == "disjoint" else "all "
        parts = [
            f"group {group} has never come" if found is None else f"group {group} was at step {found['step']:,}"
            for group, found in self.told(step).items()
        ]
        return (
            f"Codistilled: group {self.settings.group} of {self.settings.groups}, on {own}{rows:,} rows, at step "
            f"{step:,} after a burn-in of {self.burn_in:,}; {', '.join(parts)}."
        )

    def _files(self, group: int) -> list[File]:
        """A group's, in order."""
        named = ((NAME.fullmatch(path.name), path) for path in self.folder.glob(f"group-{group}-*.safetensors"))
        return sorted(File(int(told[1]), told[2], told[3] == "whole", path) for told, path in named if told)

    def _write(self, step: int) -> None:
        """The first rank's: all others have the same weights."""
        if not self._ranks.is_first:
            return
        is_whole = not self._tables or not self._whole_bytes or self._row_bytes > self._whole_bytes
        tensors: dict[str, Tensor] = {}
        for name, tensor in self._model.state_dict().items():
            if name not in self._tables:
                tensors[name] = tensor.cpu().clone()
            elif is_whole:
                self._sent[name] = tensor.clone()
                tensors[name] = tensor.cpu().clone()
            else:
                # By their bits, so whatever has moved them: their own gradients, momentum or decay.
                rows = (tensor != self._sent[name]).any(1).nonzero()[:, 0]
                values = tensor[rows]
                self._sent[name][rows] = values
                tensors[name], tensors[name + ROWS] = values.cpu(), rows.cpu()
        told = {"step": str(step), "team": json_text(self.team)}
        content = save(tensors, metadata=told)
        self._number += 1
        kind = "whole" if is_whole else "rows"
        path = self.folder / f"group-{self.settings.group}-{self._number:08d}-{self._life}-{kind}.safetensors"
        with replacing(path) as temporary:
            temporary.write_bytes(content)
        self._ranks.traffic.count("file", f"{kind} of codistillation", len(content))
        if is_whole:
            self._whole_bytes, self._row_bytes = len(content), 0
            for file in self._files(self.settings.group):
                if file.number < self._number:
                    file.path.unlink(missing_ok=True)
        else:
            self._row_bytes += len(content)

    def _take(self) -> None:
        """Give the peers what has come since; the first rank reads files and hands them to the others."""
        for group in self.others:
            contents = self._new_of(group) if self._ranks.is_first else []
            for place in range(int(self._ranks.tell(len(contents), "peers"))):
                content = contents[place] if self._ranks.is_first else b""
                size = int(self._ranks.tell(len(content), "peers"))
                if self._ranks.num_ranks > 1:
                    words = torch.empty(size, dtype=torch.uint8)
                    if self._ranks.is_first:
                        words = torch.frombuffer(bytearray(content), dtype=torch.uint8)
                    content = self._ranks.broadcast(words, "peers").numpy().tobytes()
                tensors = load(content)
                rows = {name.removesuffix(ROWS): tensors.pop(name) for name in [*tensors] if name.endswith(ROWS)}
                self.peers.put(group, tensors, rows or None)
                self.steps[group] = int(header_of(content)["step"])

    def _new_of(self, group: int) -> list[bytes]:
        """Contents of a peer's files from the last whole one on, but for those that have been read; nothing from one on
        that cannot be read or holds no numbers, which is tried again at the next exchange."""
        files = self._files(group)
        wholes = [file.number for file in files if file.is_whole]
        if not wholes:
            return []
        before = self._read.get(group)
        start = wholes[-1]
        if before is not None and before.life == files[-1].life:
            start = max(start, before.number + 1)
        found, last = [], before
        for file in (file for file in files if file.number >= start):
            try:
                content = file.path.read_bytes()
                team = json.loads(header_of(content)["team"])
                finite = all(one.isfinite().all() for one in load(content).values() if one.is_floating_point())
                reason = "" if finite else "its weights are not finite: the group has diverged"
            except FileNotFoundError:  # its group has just written a whole one
                break
            except MALFORMED as error:
                reason = " ".join(str(error).split())[:200]
            if reason:
                if file.path not in self._unreadable:
                    self._unreadable.add(file.path)
                    log.warning(
                        "codistill: %s cannot be read (%s), so group %d teaches with the weights from before",
                        file.path, reason, group,
                    )  # fmt: skip
                break
            self._require_team(file.path, team)
            found.append(content)
            last = file
        if last is not None:
            self._read[group] = last
        return found

    def _require_team(self, path: Path, team: dict[str, str]) -> None:
        other = [name for name in self.team if team.get(name) != self.team[name]]
        if other:
            raise TrainingError(
                f"train.codistill: {path} is of a training with other {', '.join(other)}. Give all groups one "
                "configuration, but for the group's number, and trainings that do not belong together folders of their "
                "own (train.codistill.folder)."
            )


def header_of(content: bytes) -> dict[str, Any]:
    """The metadata of a safetensors file (github.com/huggingface/safetensors, Format): 8 bytes of length, then JSON."""
    size = int.from_bytes(content[:8], "little")
    return dict(json.loads(content[8 : 8 + size])["__metadata__"])
