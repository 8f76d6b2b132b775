"""Tensors as a safetensors file, whose writer tells what the system refused as its own error."""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write contiguous tensors of the CPU to a safetensors file.

    Parameters
    ----------
    tensors
        By name.
    path
        Of the file, which is replaced.

    Raises
    ------
    OSError
        Where the system refuses, such as for a full disk, with its number and the file: safetensors has only a text.

    Examples
    --------
    >>> import tempfile, torch
    >>> from safetensors.torch import load_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_tensors({"weight": torch.ones(2)}, Path(folder) / "weights.safetensors")
    ...     load_file(Path(folder) / "weights.safetensors")
    {'weight': tensor([1., 1.])}
    """
    was_there = path.exists()
    path.touch()  # with the mode of any new file: safetensors puts one in its place that only this user may read
    mode = stat.S_IMODE(path.stat().st_mode)
    try:
        save_file(dict(tensors), path)
        path.chmod(mode)
    except SafetensorError as error:
        if not was_there:
            path.unlink(missing_ok=True)
        if refused := re.search(r"\(os error (\d+)\)", str(error)):
            number = int(refused[1])
            raise OSError(number, os.strerror(number), str(path)) from error
        raise
