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
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._dynamo.variables.torch  # which lists functions as they are then, and some are replaced here
import triton
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from gigabatch.models import kernels

ROOT = Path(__file__).parents[3]
FOLDERS = ("features", "loaders", "models", "pipeline")
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
        if bound := re.search(r"'maxnreg': (\d+)", str(key)):  # which the hook is not told
            options["maxnreg"] = int(bound[1])
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


def jit_functions(root: Path = ROOT) -> set[str]:
    """Every function under `triton.jit` in the four folders, as module.name, found in the sources.

    However Triton was imported, nested in what it may be, and where `jit` is called on a function's name.
    """
    found = set()
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            if "triton" in (text := path.read_text()):
                module = ".".join(("gigabatch", *path.relative_to(root).with_suffix("").parts))
                found |= {f"{module}.{name}" for name in kernels_of(ast.parse(text))}
    return found


def kernels_of(tree: ast.Module) -> Iterator[str]:
    """Names of the functions of a module that `jit` is put over or called with."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(map(_is_jit, node.decorator_list)):
            yield node.name
        elif isinstance(node, ast.Call) and _is_jit(node.func):
            yield from (given.id for given in node.args if isinstance(given, ast.Name))


def _is_jit(mark: ast.expr) -> bool:
    """`triton.jit`, `jit`, of another name of the module, with arguments or without."""
    return ast.unparse(mark.func if isinstance(mark, ast.Call) else mark).rpartition(".")[2] == "jit"


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
