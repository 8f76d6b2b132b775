"""Rounding to bfloat16 in compiled loops, beside torch's."""

import numba
import numpy as np
import pytest
import torch

from gigabatch.models.kernels import row_loops
from gigabatch.models.kernels.row_loops import (
    has_instruction,
    quickly_to_bfloat16,
    rounded_by_instruction,
    to_bfloat16,
)


def every_exponent() -> np.ndarray:
    """float32 numbers of all exponents and signs with random lower bits, ties of both kinds among them; infinities."""
    random = np.random.default_rng(0)
    upper = np.repeat(np.arange(1 << 16, dtype=np.uint32) << 16, 4)
    lower = np.tile(np.array([0, 0x7FFF, 0x8000, 0x8001], np.uint32), 1 << 16)
    bits = np.concatenate([upper | lower, random.integers(0, 1 << 32, 200_000, dtype=np.uint32)])
    values = bits.view(np.float32)
    return values[~np.isnan(values)]


def rounded(how, values: np.ndarray) -> np.ndarray:
    @numba.njit
    def loop(values, out):
        for i in range(len(values)):
            out[i] = how(values[i])

    out = np.empty(len(values), np.uint16)
    loop(values, out)
    return out


FORMS = [
    to_bfloat16,
    pytest.param(
        rounded_by_instruction, marks=pytest.mark.skipif(not has_instruction(), reason="the processor has none")
    ),
]


@pytest.mark.parametrize("how", FORMS)
def test_rounding_is_torchs(how):
    """But for numbers below 2^-126, which the instruction takes for zero."""
    values = every_exponent()
    if how is rounded_by_instruction:
        tiny = np.abs(values) < np.finfo(np.float32).tiny
        assert not (rounded(how, values[tiny]) & 0x7FFF).any()
        values = values[~tiny]
    expected = torch.from_numpy(values.copy()).bfloat16().view(torch.uint16).numpy()
    np.testing.assert_array_equal(rounded(how, values), expected)


@pytest.mark.parametrize("how", FORMS)
def test_a_nan_stays_one(how):
    bits = np.array([0x7F800001, 0x7FC00000, 0xFFFFFFFF, 0x7F80FFFF], np.uint32)
    found = torch.from_numpy(rounded(how, bits.view(np.float32)).view(np.int16)).view(torch.bfloat16)
    assert found.isnan().all()


def test_the_instruction_is_used_only_where_numba_compiles_for_this_processor(monkeypatch):
    """With other features LLVM would call a function that is nowhere, and the process would end."""
    assert quickly_to_bfloat16 is (rounded_by_instruction if has_instruction() else to_bfloat16)
    monkeypatch.setattr(row_loops.llvm, "get_host_cpu_features", lambda: {"avx512bf16": True})
    monkeypatch.setattr(numba.config, "CPU_NAME", None)
    assert has_instruction()
    monkeypatch.setattr(numba.config, "CPU_NAME", "generic")
    assert not has_instruction()
    monkeypatch.setattr(numba.config, "CPU_NAME", None)
    monkeypatch.setattr(row_loops.llvm, "get_host_cpu_features", dict)
    assert not has_instruction()
