"""What the next night starts from, however long ago it was used."""

from __future__ import annotations

from gigabatch.pipeline.config.config import RunConfig
from gigabatch.pipeline.runs.find import run_link
from gigabatch.pipeline.store.leases import Lease


def needed(config: RunConfig) -> list[Lease]:
    """Leases of the runs and artifacts that the configuration itself names as starts."""
    found = []
    names = [name for name in (config.preprocess.from_, config.train.start_from) if name is not None]
    for path in (run_link(config, name).resolve() for name in names):
        for root in (config.runs, config.artifacts):
            if path.is_relative_to(root.resolve()):
                found.append(lease := Lease(root))
                lease.add("/".join(path.relative_to(root.resolve()).parts[:2]))
    return found
