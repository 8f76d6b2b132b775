"""What this machine has to give (host memory under its cgroup's limit, GPU memory, disk) and what a process holds.

Of a CPU all is told without torch, which takes seconds to import.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import platform
import resource
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gigabatch.features.errors import DataError
from gigabatch.pipeline.display import about_bytes, set_aside, tell

log = logging.getLogger(__name__)
BUSY = 1.75  # load over cores
COMPILING_S = 3.0  # of compilation, after which the log says what takes the time; loops from numba's cache take none


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
    gpu = free_memory(device) if device != "cpu" else 0
    return Machine(available_memory(), gpu, shutil.disk_usage(folder).free, available_cores())


def processor() -> dict[str, str | int]:
    """What the speed of a program depends on here, as far as the system tells: processor, cores and system."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = {line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "CPU part"))}
    return {"names": ", ".join(sorted(names)), "cores": available_cores(), "system": platform.platform()}


def are_cores_taken(told: Path = Path("/proc/loadavg")) -> bool:
    """Whether as many threads as the machine has cores run now beside this one; False where the system does not tell.

    told: the file in which it does.
    """
    try:
        running = int(told.read_text().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return False
    return running > (os.cpu_count() or 1)


def available_cores() -> int:
    """Cores that this process may use: those it is bound to where the system can tell (Linux), else all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Within it torch and the compiled loops have so many threads; one where a fork left this process one."""
    import numba
    import torch

    from gigabatch.loops import is_serial

    def take(number: int) -> None:  # numba first: as its threads start they set torch's number
        numba.set_num_threads(min(number, numba.config.NUMBA_NUM_THREADS))
        torch.set_num_threads(number)

    before = torch.get_num_threads()
    count = 1 if is_serial() else count
    if count == before:
        yield
        return
    take(count)
    try:
        yield
    finally:
        take(before)


def busy_text(num_threads: int) -> str:
    """What to do where others want more than the cores that there are, and `num_threads` of this process would wait for
    each other at every step; else empty. Read from the load of the last minute, of which this process may have had as
    much as the cores give."""
    load, cores = os.getloadavg()[0], available_cores()
    if num_threads == 1 or load <= BUSY * cores:
        return ""
    return (
        f"a load of {load:.1f} on {cores} cores. {num_threads} threads that wait for each other may "
        "train several times slower than one. Set num_threads=1, or end what else runs."
    )


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


def resident_bytes() -> tuple[int, int]:
    """(peak, current) resident set of this process."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        found = {name: int(value.split()[0]) * 1024 for name, _, value in (line.partition(":") for line in lines)
                 if name in ("VmHWM", "VmRSS")}  # fmt: skip
        return found["VmHWM"], found["VmRSS"]
    except (OSError, KeyError):  # not Linux
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return peak, peak


def reset_peak() -> None:
    """Let the peak of `resident_bytes` begin anew. Where the kernel cannot, it stays that of the whole process."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): reset the peak of the resident set


def free_memory(device: str) -> int:
    """Bytes that a model can have on `device`, as torch names it."""
    if device == "cpu":
        return available_memory()
    from gigabatch.loaders.device_memory import free_device_memory

    return free_device_memory(device)


def resolve_device(name: str) -> str:
    """`auto` is cuda where there is one, else cpu."""
    if name == "cpu":
        return name
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise DataError(f"device: {name} was asked for, but torch sees no CUDA device. Use device=cpu or auto.")
    return name


@functools.cache
def tell_of_compilation() -> None:
    """From here on it is said, once in a process, that loops are being compiled, where that takes `COMPILING_S`, and
    the seconds of compilations are in no rate that is shown."""
    from numba.core import event

    from gigabatch.loops import Compilations

    class Told(Compilations):
        has_told = False

        def begun(self, seconds: float) -> None:
            if not self.has_told and seconds > COMPILING_S:
                self.has_told = True
                text = "compiling loops for this processor as they are called, once (gigabatch warm does it ahead)"
                tell(log, "compile", text)

        def ended(self, seconds: float) -> None:
            set_aside(seconds)

    event.register("numba:compile", Told())
