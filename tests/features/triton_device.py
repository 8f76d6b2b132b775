"""Triton kernels run on the GPU where there is one, and in Triton's interpreter, on CPU tensors, where there is none.

tests/conftest.py sets TRITON_INTERPRET. Imported by the conftest of each folder that tests them.
"""

import importlib.util

import pytest
import torch


@pytest.fixture(
    scope="session", params=[pytest.param("cpu", id="interpreted"), pytest.param("cuda", marks=pytest.mark.gpu)]
)
def triton_device(request):
    """The device whose memory the kernels are given."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs triton")
    if request.param == "cpu" and torch.cuda.is_available():
        pytest.skip("the kernels run on the GPU here")
    if request.param == "cpu":
        from triton.runtime import interpreter

        from gigabatch.features.exact import loops_cuda

        assert isinstance(loops_cuda._words, interpreter.InterpretedFunction), "triton came before TRITON_INTERPRET"
    return request.param
