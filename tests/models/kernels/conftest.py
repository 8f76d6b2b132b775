"""Triton kernels run on the GPU where there is one and in Triton's interpreter, on CPU tensors, where there is none."""

import importlib.util

import pytest
import torch

HAS_TRITON = importlib.util.find_spec("triton") is not None


@pytest.fixture(
    scope="session", params=[pytest.param("cpu", id="interpreted"), pytest.param("cuda", marks=pytest.mark.gpu)]
)
def triton_device(request):
    """The device whose tensors the *_cuda kernels take in this run."""
    if not HAS_TRITON:
        pytest.skip("needs triton")
    if request.param == "cpu":
        if torch.cuda.is_available():
            pytest.skip("the kernels run on the GPU here")
        _interpret()
    return request.param


def _interpret():
    import numpy as np
    from triton.runtime import interpreter

    from gigabatch.models.kernels.folded import cuda as folded_cuda

    assert isinstance(folded_cuda._pass, interpreter.InterpretedFunction), "triton was imported before TRITON_INTERPRET"

    def generic_scan(self, arguments):
        """Triton's own walks element by element, 0.6 ms each; this one calls the same function log2(length) times."""
        values = [argument.handle.data for argument in arguments]
        length = values[0].shape[self.axis]
        place = np.arange(length).reshape([-1 if axis == self.axis else 1 for axis in range(values[0].ndim)])
        step = 1
        while step < length:
            tensors = [
                self.to_tensor(data, argument.dtype)
                for rows in ([np.roll(value, step, self.axis) for value in values], values)
                for data, argument in zip(rows, arguments, strict=True)
            ]
            found = self.combine_fn.fn(*tensors)
            found = found if isinstance(found, tuple) else (found,)
            values = [np.where(place >= step, new.handle.data, old) for new, old in zip(found, values, strict=True)]
            step *= 2
        return [self.to_tensor(value, argument.dtype) for value, argument in zip(values, arguments, strict=True)]

    interpreter.ScanOps.generic_scan = generic_scan
