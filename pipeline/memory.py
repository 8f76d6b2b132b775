"""Want of memory, known by what the library that met it says."""

from __future__ import annotations

import errno

NO_MEMORY = (  # oneDNN, torch, numba's threads, C++
    "could not create a primitive", "can't allocate memory", "cannot allocate memory", "unable to mmap",
    "unable to allocate", "bad_alloc", "can't start new thread", "out of memory",
)  # fmt: skip


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: an error made for it, or one of the texts of libraries that have none."""
    if isinstance(error, MemoryError) or type(error).__name__ in ("OutOfMemoryError", "ArrowMemoryError"):
        return True
    text = str(error).lower()
    if isinstance(error, OSError) and error.errno is not None:  # its text names a file
        return error.errno == errno.ENOMEM or "mapping failed" in text
    told = isinstance(error, RuntimeError | OSError) or type(error).__name__ == "ParserError"  # that of pandas
    return told and any(words in text for words in (*NO_MEMORY, "mapping failed"))
