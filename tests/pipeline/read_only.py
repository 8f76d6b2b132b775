"""Folders in which nothing can be written, and files that cannot be read, whoever runs the tests."""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

CAPABILITIES_V3, DAC_OVERRIDE, DAC_READ_SEARCH = 0x20080522, 1, 2  # of linux/capability.h


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Take the right to write in `folder` away within the block, from root (this thread of it) too."""
    with _without_override() if os.geteuid() == 0 else contextlib.nullcontext():
        folder.chmod(0o555)
        try:
            yield
        finally:
            folder.chmod(0o755)


@contextlib.contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """Take the right to read a file, or to look into a folder, away within the block, from root (this thread of it and
    those that it starts) too."""
    mode = path.stat().st_mode
    with _without_override() if os.geteuid() == 0 else contextlib.nullcontext():
        path.chmod(0)
        try:
            yield
        finally:
            path.chmod(mode)


@contextlib.contextmanager
def _without_override() -> Iterator[None]:
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_V3, 0)  # 0: this thread
    words = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, of capabilities 0 to 31 and of those above
    assert libc.capget(header, words) == 0, os.strerror(ctypes.get_errno())
    before = words[0]
    words[0] &= ~(1 << DAC_OVERRIDE | 1 << DAC_READ_SEARCH)
    assert libc.capset(header, words) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        words[0] = before
        assert libc.capset(header, words) == 0, os.strerror(ctypes.get_errno())
