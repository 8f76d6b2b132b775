"""What the CUDA versions would launch, recorded without a GPU: Triton's own launch path with the launch left out.

Triton decides what a kernel is compiled for (types, 16-byte alignment, numbers that are 1, constants, warps) from the
arguments of its launch, and asks `knobs.runtime.jit_cache_hook` before it compiles. The hook here notes that and says
no, so nothing is compiled or run. Tensors may lie on the CPU or on the meta device, where those of 819,200 rows cost
nothing; `as_on_a_gpu` makes the code under test take its CUDA way with them. Only where TRITON_INTERPRET is not set.
"""

import ast
import contextlib
import importlib
import inspect
import pkgutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import driver
from triton.runtime.jit import JITFunction

import gigabatch
from gigabatch.models import kernels

OPTIONS = ("num_warps", "num_ctas", "num_stages", "enable_fp_fusion")


class NoGpu:
    """What `JITFunction.run` asks a driver for before it compiles."""

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=None):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)


@dataclass(frozen=True)
class Variant:
    """One form of a kernel that Triton compiles. text: all that it is compiled for, which tells variants apart."""

    function: JITFunction
    signature: dict
    constants: dict
    attributes: dict
    options: dict
    text: str

    @property
    def name(self) -> str:
        return self.function.fn.__name__

    def compiled(self, capability: int) -> Any:
        source = ASTSource(self.function, self.signature, self.constants, self.attributes)
        return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=self.options)


class Recorder:
    """variants: those asked for, by their text. launches: how often each kernel was launched, by name."""

    def __init__(self) -> None:
        self.variants: dict[str, Variant] = {}
        self.launches: Counter[str] = Counter()

    def note(self, *, key, fn, compile, **rest) -> bool:
        """Triton's hook: True keeps it from compiling."""
        function = fn.jit_function
        options = {name: compile[name] for name in OPTIONS}
        text = f"{function.module}.{function.fn.__name__} {key}"
        if text not in self.variants:
            found = compile["signature"], compile["constants"], compile["configs"][0]
            self.variants[text] = Variant(function, *found, options, text)
        self.launches[function.fn.__name__] += 1
        return True


@contextlib.contextmanager
def recording() -> Iterator[Recorder]:
    recorder = Recorder()
    driver.set_active(NoGpu())
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.jit_cache_hook = recorder.note
        yield recorder


@contextlib.contextmanager
def as_on_a_gpu(dtype: torch.dtype = torch.float32) -> Iterator[None]:
    """Tensors on the meta device take the way of CUDA tensors, under autocast to `dtype` where it is not float32."""

    def version_of_cuda(name: str, device: Any, version: str | None = None) -> Any:
        return importlib.import_module(f"gigabatch.models.kernels.{name}.cuda")

    choose, optimizer = kernels.kernel, sys.modules["torch.optim.optimizer"]
    users = [module for module in list(sys.modules.values()) if getattr(module, "kernel", None) is choose]
    with contextlib.ExitStack() as stack:

        def replace(where: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(where, name, value))

        for module in users:
            replace(module, "kernel", version_of_cuda)
        replace(torch.Tensor, "is_cuda", property(lambda tensor: tensor.is_meta))
        replace(torch.Tensor, "__float__", lambda tensor: 0.0)  # LAMB reads its steps once, before its first step
        # torch's fused AdamW and its autocast know no meta device; the folded pass asks autocast for its type alone
        replace(optimizer, "_get_fused_kernels_supported_devices", lambda: ["meta"])
        replace(torch, "_fused_adamw_", lambda *args, **kwargs: None)
        replace(torch, "autocast", lambda *args, **kwargs: contextlib.nullcontext())
        replace(torch, "is_autocast_enabled", lambda kind: dtype != torch.float32)
        replace(torch, "get_autocast_dtype", lambda kind: dtype)
        yield


class CountedOperators(TorchDispatchMode):
    """Torch's operators that launch something: all but views of what is there and memory that is only reserved."""

    FREE = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "detach", "set_", "resize_")

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if not function.is_view and function.overloadpacket.__name__ not in self.FREE:
            self.counts[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


def jit_functions(packages: Iterable[str] = ("loaders", "models", "pipeline")) -> list[JITFunction]:
    """Every function of these packages under `triton.jit`, by looking into each module that mentions Triton.

    Those of features/ are compiled by tests/features/engines/test_compiled_kernels.py.
    """
    found = []
    for package in packages:
        root = importlib.import_module(f"gigabatch.{package}")
        for item in pkgutil.walk_packages(root.__path__, f"{root.__name__}."):
            spec = item.module_finder.find_spec(item.name, None)
            if spec is None or spec.origin is None or "triton" not in Path(spec.origin).read_text():
                continue
            module = importlib.import_module(item.name)
            for value in vars(module).values():
                while not isinstance(value, JITFunction) and hasattr(value, "fn"):
                    value = value.fn  # an autotuner's or a heuristic's
                if isinstance(value, JITFunction) and value.module == module.__name__:
                    found.append(value)
    assert found, gigabatch.__file__
    return found


def reached_by(launched: set[JITFunction]) -> set[JITFunction]:
    """These kernels and the functions that they call, directly or not."""
    reached: set[JITFunction] = set()
    waiting = list(launched)
    while waiting:
        function = waiting.pop()
        if function in reached:
            continue
        reached.add(function)
        tree = ast.parse(textwrap.dedent(inspect.getsource(function.fn)))
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        called = (function.fn.__globals__.get(name) for name in names)
        waiting += [one for one in called if isinstance(one, JITFunction)]
    return reached
