"""Which precision is chosen, from what the machine says of itself, and that autocast does what it says."""

import contextlib

import pytest
import torch
from torch import nn

from gigabatch.models.errors import ModelError
from gigabatch.models.optimizers import precision
from gigabatch.models.optimizers.precision import choose_precision

CPUINFO = (
    "processor\t: 0\nvendor_id\t: {vendor}\nmodel name\t: some processor\nflags\t\t: fpu sse2 {flags} avx2\n"
    "bugs\t\t: spectre_v1\n\n"
)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Pretend to be a machine with these flags."""

    def pretend(flags: str, vendor: str = "GenuineIntel") -> None:
        path = tmp_path / "cpuinfo"
        path.write_text(CPUINFO.format(flags=flags, vendor=vendor) * 2)
        monkeypatch.setattr(precision, "CPUINFO", path)

    return pretend


@pytest.mark.parametrize(
    ("vendor", "flags", "dtype", "reason"),
    [
        ("AuthenticAMD", "avx512_bf16", torch.bfloat16, "the processor has avx512_bf16"),
        ("GenuineIntel", "avx512_bf16", torch.float32, "the processor has avx512_bf16, which only AMD's"),
        ("GenuineIntel", "avx512_bf16 amx_bf16", torch.bfloat16, "the processor has amx_bf16"),
        ("GenuineIntel", "avx512f amx_int8", torch.float32, "the processor has neither amx_bf16 nor avx512_bf16"),
        ("AuthenticAMD", "avx512f", torch.float32, "the processor has neither amx_bf16 nor avx512_bf16"),
    ],
)
def test_auto_is_bfloat16_where_the_processor_multiplies_faster_in_it(machine, vendor, flags, dtype, reason):
    machine(flags, vendor)
    found = choose_precision("auto", "cpu")
    assert found.dtype == dtype
    assert found.reason.startswith(reason)


@pytest.mark.parametrize(
    "content", [None, "", "processor : 0\nFeatures : fp asimd bf16\n"], ids=["none", "empty", "arm"]
)
def test_auto_is_float32_where_nothing_is_known(monkeypatch, tmp_path, content):
    path = tmp_path / "cpuinfo"
    if content is not None:
        path.write_text(content)
    monkeypatch.setattr(precision, "CPUINFO", path)
    found = choose_precision("auto", "cpu")
    assert found.dtype == torch.float32
    assert "does not say" in found.reason


@pytest.mark.parametrize("flags", ["", "avx512_bf16"])
@pytest.mark.parametrize("setting", ["float32", "bfloat16"])
def test_what_is_asked_for_is_taken_and_the_reason_names_the_hardware_too(machine, setting, flags):
    machine(flags)
    found = choose_precision(setting, "cpu")
    assert found.name == setting
    assert found.reason.startswith("as asked; the processor has ")


def test_an_unknown_precision_lists_the_known_ones():
    with pytest.raises(ModelError, match=r"unknown precision 'half'\. Known: auto, float32, bfloat16, float16"):
        choose_precision("half", "cpu")


@pytest.mark.parametrize("setting", ["float32", "bfloat16", "float16"])
def test_products_run_in_that_precision_and_gradients_are_float32(setting):
    layer, rows = nn.Linear(3, 2), torch.randn(4, 3)
    with choose_precision(setting, "cpu").autocast("cpu"):
        found = layer(rows)
    assert found.dtype == getattr(torch, setting)
    found.float().sum().backward()
    assert layer.weight.grad.dtype == torch.float32


@pytest.mark.parametrize(
    ("capability", "has_bfloat16", "dtype"),
    [
        ((9, 0), True, torch.bfloat16),
        ((8, 0), True, torch.bfloat16),
        ((7, 5), False, torch.float16),  # T4
        ((7, 0), False, torch.float16),  # V100
        ((6, 1), False, torch.float32),
    ],
)
def test_auto_on_a_gpu_is_the_half_precision_that_it_has(monkeypatch, capability, has_bfloat16, dtype):
    cuda = torch.cuda
    monkeypatch.setattr(cuda, "get_device_name", lambda device: "some GPU")
    monkeypatch.setattr(cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(cuda, "is_bf16_supported", lambda including_emulation: has_bfloat16)
    monkeypatch.setattr(cuda, "device", lambda device: contextlib.nullcontext())
    found = choose_precision("auto", "cuda")
    assert found.dtype == dtype
    assert found.reason.startswith("some GPU ")


@pytest.mark.gpu
def test_auto_on_a_gpu_is_bfloat16_from_ampere_on():
    has = torch.cuda.get_device_capability() >= (8, 0)
    found = choose_precision("auto", "cuda")
    assert found.dtype == (torch.bfloat16 if has else torch.float16)
    assert torch.cuda.get_device_name() in found.reason
