"""numba's threads beside torch's."""

from functools import lru_cache

import torch


@lru_cache(maxsize=1)
def start_threads() -> None:
    """Start numba's threads, as many as torch has, and leave torch's number as it is (see `models/kernels`)."""
    import numba

    threads = torch.get_num_threads()
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    torch.set_num_threads(threads)
