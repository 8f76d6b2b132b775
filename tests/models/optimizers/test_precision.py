"""Which precision is chosen, from what the machine says of itself, and that autocast does what it says."""

import ast
import contextlib
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from gigabatch.models.errors import ModelError
from gigabatch.models.optimizers import processor
from gigabatch.models.optimizers.precision import REDUCTIONS, choose_precision, full_reductions

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("features", "loaders", "models", "pipeline", "benchmarks", "tools")
# Switches of a whole process that change what a product or a sum is rounded to, by torch's names and variables.
SWITCH = re.compile(
    r"allow_(tf32|bf16|fp16)|matmul_precision|fp32_precision|set_default_(dtype|tensor_type)|flush_denormal"
    r"|use_deterministic_algorithms|preferred_\w+_library|TF32|reduced_precision"
)
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
        monkeypatch.setattr(processor, "CPUINFO", path)

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
    monkeypatch.setattr(processor, "CPUINFO", path)
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


def switches(text: str) -> list[str]:
    """Where a source names a switch of precision, or anything of `torch.backends`: function or `module`, and name."""
    found = []
    if not SWITCH.search(text) and "backends" not in text:  # most files; parsing all takes seconds
        return found
    tree = ast.parse(text)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    owner = {id(node): "module" for node in ast.walk(tree)}
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
        owner |= {id(node): function.name for node in ast.walk(function)}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name):
                names = [name]
            case ast.Constant(value=str(name)) if id(node) not in docstrings:
                names = [name]
            case ast.ImportFrom(module=module, names=aliases):
                names = [f"{module}.{alias.name}" for alias in aliases]
            case ast.Import(names=aliases):
                names = [alias.name for alias in aliases]
            case _:
                names = []
        for name in names:
            of_torch = re.search(r"torch\.backends|^backends$", name) is not None
            if of_torch or SWITCH.search(name):
                found.append(f"{owner[id(node)]}: {name}")
    return found


def test_switches_of_precision_are_set_in_one_place():
    files = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    found = {str(path.relative_to(ROOT)): named for path in files if (named := switches(path.read_text()))}
    assert found == {
        # What the process had is set again at the end of the block.
        "models/modes.py": ["plain_defaults: set_default_dtype"] * 2,
        "models/optimizers/precision.py": [
            *(f"module: {name}" for name in REDUCTIONS),
            "full_reductions: backends",
        ],
    }


@pytest.mark.parametrize(
    "planted",
    [
        "torch.backends.cuda.matmul.allow_tf32 = True", "from torch.backends import cudnn\ncudnn.benchmark = True",
        "import torch.backends.cudnn as c", 'torch.set_float32_matmul_precision("high")',
        'setattr(matmul, "allow_bf16_reduced_precision_reduction", True)', 'os.environ["NVIDIA_TF32_OVERRIDE"] = "1"',
        "m = torch.backends.cuda.matmul\nm.fp32_precision = 'tf32'", "torch.set_default_dtype(torch.float16)",
    ],
)  # fmt: skip
def test_a_switch_of_precision_elsewhere_is_found(planted):
    assert switches(planted)


def settings_of_backends() -> dict[str, object]:
    """All that can be read of how torch multiplies."""
    owners = {"matmul": torch.backends.cuda.matmul, "cudnn": torch.backends.cudnn, "mkldnn": torch.backends.mkldnn}
    names = {
        "matmul": [*REDUCTIONS, *(f"{name}_split_k" for name in REDUCTIONS), "allow_tf32", "fp32_precision"],
        "cudnn": ["allow_tf32", "benchmark", "deterministic", "enabled", "fp32_precision"],
        "mkldnn": ["enabled", "deterministic", "fp32_precision"],
    }
    read = {f"{o}.{n}": getattr(owners[o], n, None) for o, of_owner in names.items() for n in of_owner}
    return read | {"float32": torch.get_float32_matmul_precision(), "dtype": torch.get_default_dtype()}


@pytest.mark.parametrize("before", [True, False])
def test_switches_of_precision_are_set_back_also_after_an_exception(before):
    """Whether it comes from the work or from a switch itself, which a later torch may refuse."""
    matmul = torch.backends.cuda.matmul
    default = {name: getattr(matmul, name) for name in REDUCTIONS}
    try:
        for name in REDUCTIONS:
            setattr(matmul, name, before)
        found = settings_of_backends()
        with contextlib.suppress(ZeroDivisionError), full_reductions():
            assert not any(getattr(matmul, name) for name in REDUCTIONS)
            raise ZeroDivisionError
        assert settings_of_backends() == found
    finally:
        for name, value in default.items():
            setattr(matmul, name, value)


def test_a_switch_that_is_refused_leaves_the_others_as_they_were(monkeypatch):
    class Refusing:
        allow_bf16_reduced_precision_reduction = True
        _fp16 = True

        @property
        def allow_fp16_reduced_precision_reduction(self):
            return self._fp16

        @allow_fp16_reduced_precision_reduction.setter
        def allow_fp16_reduced_precision_reduction(self, value):
            if not value:
                raise RuntimeError("this switch is gone")

    switch = Refusing()
    monkeypatch.setattr(torch.backends.cuda, "matmul", switch)
    with pytest.raises(RuntimeError, match="is gone"), full_reductions():
        raise AssertionError
    assert switch.allow_bf16_reduced_precision_reduction is True
