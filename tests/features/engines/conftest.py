"""Where Triton kernels run."""

from tests.features.triton_device import triton_device  # noqa: F401
