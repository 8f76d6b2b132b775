"""A JSON file of what commands found out, by key, so that the next one need not: losing it costs time alone."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gigabatch.pipeline.store.files import atomic_write, json_text

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Remembered:
    """The entries of a file.

    most: how many it keeps, those that were kept last. damaged, unwritten: what it costs where the file cannot be read,
    or written, for warnings.
    """

    path: Path
    most: int
    damaged: str
    unwritten: str

    def read(self) -> dict[str, Any]:
        """By key, those that were kept last at the end; none, with a warning, of a damaged file."""
        try:
            found = json.loads(self.path.read_text())
            return {str(key): entry for key, entry in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError, RecursionError):
            log.warning("%s is damaged; %s", self.path, self.damaged)
            return {}

    def keep(self, key: str, entry: Any, only_new: bool = False) -> None:
        """Put the entry at the end, in the place of an earlier one of this key; only_new: which stays as it is."""
        known = self.read()
        if only_new and key in known:
            return
        known.pop(key, None)
        known[key] = entry
        try:
            atomic_write(self.path, json_text(dict([*known.items()][-self.most :])).encode())
        except OSError as error:
            log.warning("%s could not be written (%s); %s", self.path, error, self.unwritten)
