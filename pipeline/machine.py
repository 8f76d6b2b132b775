"""What this machine has to give: host memory under its cgroup's limit, GPU memory, disk."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Machine:
    """Bytes that a new process can have now. gpu_bytes: 0 where the run uses no GPU."""

    host_bytes: int
    gpu_bytes: int
    disk_bytes: int
    cores: int

    def __str__(self) -> str:
        gpu = f", {about_bytes(self.gpu_bytes)} of GPU memory" if self.gpu_bytes else ""
        return (
            f"{self.cores} core(s), {about_bytes(self.host_bytes)} of memory{gpu} and {about_bytes(self.disk_bytes)} "
            "of disk are free"
        )


def this_machine(folder: Path, device: str) -> Machine:
    """folder: on the disk that is meant. device: of torch; `cpu` for no GPU."""
    gpu = torch.cuda.mem_get_info(device)[0] if device != "cpu" else 0
    return Machine(available_memory(), gpu, shutil.disk_usage(folder).free, len(os.sched_getaffinity(0)))


def available_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that can be had without swapping: MemAvailable of proc(5), or less where a cgroup (v2 or v1) sets a limit.

    Of what a cgroup uses, file pages that were not touched lately count as free, as they do in MemAvailable.
    """
    found = []
    meminfo = proc / "meminfo"
    if meminfo.exists():
        lines = meminfo.read_text().splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    for limit, usage, inactive in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        for group in _groups(proc, cgroups, limit):
            text = (group / limit).read_text().strip()
            if not text.isdigit():  # `max`
                continue
            stat = (group / limit).with_name("memory.stat").read_text().splitlines()
            idle = sum(int(line.split()[1]) for line in stat if line.split()[0] == inactive)
            found.append(max(int(text) - int((group / usage).read_text()) + idle, 0))
    return min(found) if found else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _groups(proc: Path, cgroups: Path, limit: str) -> list[Path]:
    """The folders with such a file: the root as this process sees it, and those on the way to its own group."""
    own = proc / "self" / "cgroup"
    names = [line.split(":", 2)[2].strip("/") for line in own.read_text().splitlines()] if own.exists() else []
    folders = {cgroups}
    if limit == "memory.max":
        for name in names:
            parts = Path(name).parts
            folders |= {cgroups.joinpath(*parts[: count + 1]) for count in range(len(parts))}
    return sorted(folder for folder in folders if (folder / limit).exists())


def about_bytes(count: float) -> str:
    """Two digits that mean something: 850 MiB, 3.4 GiB."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30)):
        if count >= size:
            value = count / size
            return f"{value:.1f} {unit}" if value < 10 else f"{value:,.0f} {unit}"
    return f"{round(count / 2**20, -1) if count >= 100 * 2**20 else count / 2**20:.0f} MiB"


def about_seconds(seconds: float) -> str:
    """8.4 s, 55 s, 12 min, 3.5 h."""
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
