"""The kernels' own fixture, which decides whether Triton interprets."""

from tests.models.kernels.conftest import triton_device

__all__ = ["triton_device"]
