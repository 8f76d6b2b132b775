"""What tests on a GPU share: code in which nothing may wait for the device, and whose warnings are errors there."""

import contextlib
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

OURS = r"(gigabatch|tests|benchmarks|tools|conftest|test_\w*)(\.|$)"  # names of modules; a test file has its bare name
# Libraries warn at their first use of a device, each release of other things, and none of that is news of our code:
# what they say is shown, not raised. torch's C++ warns in the name of the Python line that called it, which may be one
# of ours; its messages end in where they come from.
DEVICE_FILTERS = (
    "default",
    f"error:::{OURS}",
    r"default:(?s).*Triggered internally at",
    "error::pytest.PytestUnhandledThreadExceptionWarning",
    "error::pytest.PytestUnraisableExceptionWarning",
)


@contextlib.contextmanager
def no_waiting(device: str = "cuda") -> Iterator[None]:
    """Whatever waits for the CUDA device raises a RuntimeError inside; the mode is as it was again afterwards.

    torch warns once in a process that this mode is a prototype. On the CPU nothing is asked.
    """
    if device == "cpu":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    try:
        _set_sync_debug_mode("error")
        yield
    finally:
        _set_sync_debug_mode(before)


def _set_sync_debug_mode(mode: int | str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype", UserWarning)
        torch.cuda.set_sync_debug_mode(mode)


def captured(work: Callable[[], Any], device: str, warmups: int = 0) -> Callable[[], Any]:
    """`work` as a CUDA graph, which a call replays; what a call returns is what the capture gave, filled anew.

    warmups: calls before, on the stream of the capture. On the CPU a call of the result is one of `work`.
    """
    if device == "cpu":
        for _ in range(warmups):
            work()
        return work
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warmups):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph, stream=stream):
        result = work()

    def replay() -> Any:
        graph.replay()
        return result

    return replay


@contextlib.contextmanager
def libraries_warn_in_their_own_name() -> Iterator[None]:
    """A library's warning is attributed to the library, not to the line of ours that called it (`stacklevel`).

    So the filters tell ours from theirs.
    """
    warn = warnings.warn

    def attributed(message: Any, category: Any = None, stacklevel: int = 1, source: Any = None, **named: Any) -> None:
        if re.match(OURS, sys._getframe(1).f_globals.get("__name__", "")):
            warn(message, category, stacklevel + 1, source, **named)
        else:
            warn(message, category, 2, source)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warnings, "warn", attributed)
        yield


def require_memory(device: str, num_bytes: int) -> None:
    """Skip the test where a GPU has less memory left."""
    if device == "cuda":
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
        if free < num_bytes:
            pytest.skip(f"needs {num_bytes / 2**30:.1f} GiB of the GPU's memory, {free / 2**30:.1f} are free")
