"""A training step traced on the meta device as a CUDA graph would capture it, without a GPU.

The whole of `TrainStep` and `CapturedWork` runs as on a GPU, on meta tensors: they have shapes and types but no values,
so whatever waits for a value fails. The Triton wrappers run too; only their launches are left out. While the step is
"captured", every operation of torch and every launch is looked at and noted with its numbers.

What it does not see: values, order among streams, memory, what a library does inside of one operation (`REFUSED` lists
those that are known to wait), and code behind `device.type == "cuda"`.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from importlib import import_module
from typing import Any

import pytest
import torch
import torch._dynamo.variables.torch  # which lists functions as they are then, and some are replaced here
import triton
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from gigabatch.models import kernels

META = torch.device("meta")
# Operations that wait for the device although neither their shape nor their result is a number on the host.
REFUSED = (
    "_linalg_check_errors", "_assert_async", "lift_fresh", "lift", "pin_memory", "is_pinned",
    # On the meta device their own look at an error code or at a range is left out.
    "_linalg_svd", "_linalg_eigh", "linalg_eig", "_linalg_eigvals", "linalg_lstsq", "histc", "multinomial",
    "embedding_renorm_", "segment_reduce",
)  # fmt: skip
# Given a tensor in place of a number, their CUDA versions fetch it; those of the meta device do not.
FETCHED = ("linspace", "logspace", "masked_fill", "masked_fill_", "index_fill", "index_fill_")
# Of torch's functions that reach no operator these tell a tensor's form, or set a switch of the host.
FORM = {
    "grad", "device", "shape", "dtype", "stride", "is_sparse", "dim", "ndim", "is_complex", "is_floating_point",
    "requires_grad", "is_contiguous", "is_cuda", "is_leaf", "is_meta", "is_nested", "numel", "nelement", "element_size",
    "itemsize", "nbytes", "layout", "size", "storage_offset", "get_device", "names", "grad_fn", "__len__", "__hash__",
    "__set__", "_version", "_set_grad_enabled", "register_post_accumulate_grad_hook", "register_hook",
}  # fmt: skip
ADDRESSES = ("gigabatch.models.kernels.", "gigabatch.loaders.order.gather_cuda")  # handed to our kernels and kept
# What autocast casts to the lower type, of all that models call: products.
PRODUCTS = {
    torch.mm, torch.bmm, torch.matmul, torch.addmm, torch.baddbmm, torch.einsum, torch.mv, torch.addmv,
    torch.nn.functional.linear, torch.nn.functional.scaled_dot_product_attention, torch.conv1d,
    Tensor.mm, Tensor.bmm, Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__, Tensor.addmm, Tensor.mv,
}  # fmt: skip


class CaptureError(AssertionError):
    """What a CUDA graph could not hold, or would keep as it was at the capture."""


class Watch(TorchDispatchMode):
    """Notes every operation with the numbers among its arguments; while `strict`, refuses what a graph cannot hold."""

    def __init__(self) -> None:
        super().__init__()
        self.strict = False
        self.operators = 0
        self.noted: list[tuple[str, tuple]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.operators += 1
        name = func._schema.name.removeprefix("aten::")
        if name == "_local_scalar_dense" and not self.strict:  # of the first steps, which may wait
            return 0.0
        if self.strict:
            self._look(func, name, args, kwargs)
        # torch 2.13 has no meta version of the fused step whose learning rate is a tensor; it returns nothing.
        found = None if name in ("_fused_adamw_", "_fused_adam_") else func(*args, **kwargs)
        if self.strict:
            for tensor in _tensors(found):
                _require(tensor.device == META, f"{name} makes a tensor on {tensor.device}")
        return found

    def launched(self, kernel: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        """A launch of a Triton kernel."""
        if self.strict:
            name = getattr(kernel, "__name__", str(kernel))
            for tensor in _tensors((args, kwargs)):
                _require(tensor.device == META, f"the kernel {name} is given a tensor on {tensor.device}")
            self.noted.append((name, _numbers((args, kwargs))))

    def _look(self, func: Any, name: str, args: Any, kwargs: Any) -> None:
        tags = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
        is_index = name.startswith(("index", "_index_put", "_unsafe_index")) and len(args) > 1
        _require(is_index or not any(tag in func.tags for tag in tags), f"{name} waits for the device")
        if is_index:
            masks = [tensor for tensor in _tensors(args[1]) if tensor.dtype in (torch.bool, torch.uint8)]
            _require(not masks, f"{name} by a mask waits for the device")
        is_fetched = name in FETCHED and "Tensor" in func._overloadname
        _require(name not in REFUSED and not is_fetched, f"{name} waits for the device or copies from the host")
        for tensor in _tensors((args, kwargs)):
            _require(tensor.device == META, f"{name} is given a tensor on {tensor.device}")
        own = [part for part in tree_flatten((args, kwargs))[0] if isinstance(part, torch.Generator)]
        _require(not own, f"{name} draws from a generator of its own, which the capture does not move on")
        device = kwargs.get("device")
        _require(device is None or torch.device(device) == META, f"{name} is asked for a tensor on {device}")
        self.noted.append((name, _numbers((args, kwargs))))


class NoHostData(TorchFunctionMode):
    """Refuses what makes a tensor of numbers on the host, or the other way: on the meta device nothing is copied, so
    no operation shows it.

    Whatever else of torch reaches no operator (pickling, copies by way of the storage, DLPack, addresses) is refused
    too, but for what tells a form (`FORM`) or hands back what it was given.
    """

    CALLS = (
        torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy, torch.frombuffer, Tensor.new_tensor,
        Tensor.numpy, Tensor.tolist, Tensor.cpu, Tensor.item, Tensor.__array__, Tensor.pin_memory,
        Tensor.__repr__, Tensor.__format__, Tensor.__deepcopy__, Tensor.apply_, Tensor.map_, Tensor.map2_,
    )  # fmt: skip

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _require(func not in self.CALLS, f"{getattr(func, '__name__', func)} moves numbers to or from the host")
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            places = args[1] if isinstance(args[1], tuple) else (args[1],)
            on_host = [
                place for place in places if isinstance(place, list | range) or type(place).__module__ == "numpy"
            ]
            _require(not on_host, f"{func.__name__} copies the places {on_host} from the host")
        before = self.watch.operators
        found = func(*args, **(kwargs or {}))
        if self.watch.operators == before and not any(found is given for given in args):
            name = getattr(func, "__name__", str(func))
            name = func.__self__.__name__ if name == "__get__" else name  # of a property
            for_a_kernel = name == "data_ptr" and _asking().startswith(ADDRESSES)
            _require(name in FORM or for_a_kernel, f"{name} reaches a tensor's memory without an operator")
        return found


def _asking() -> str:
    """The module that called torch."""
    frame: Any = sys._getframe(2)
    while frame.f_globals["__name__"].startswith((__name__, "torch")):
        frame = frame.f_back
    return frame.f_globals["__name__"]


class MetaAutocast(TorchFunctionMode):
    """`torch.autocast` for meta tensors, which torch has none for: casts what enters a product."""

    active: list[torch.dtype | None]

    def __init__(self, kind: str, dtype: torch.dtype | None = None, enabled: bool = True, **_: Any) -> None:
        super().__init__()
        self.dtype = dtype if enabled else None

    def __enter__(self) -> Any:
        self.active.append(self.dtype)
        return super().__enter__()

    def __exit__(self, *exit: Any) -> None:
        self.active.pop()
        super().__exit__(*exit)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        dtype = self.active[-1]

        def cast(value: Any) -> Any:
            return value.to(dtype) if isinstance(value, Tensor) and value.dtype.is_floating_point else value

        if dtype is not None and func in PRODUCTS:
            args, kwargs = tree_map(cast, (args, kwargs or {}))
        return func(*args, **(kwargs or {}))


# What makes the host wait, or the device, and needs no tensor for it; a missing GPU keeps the first of torch silent.
WAITS = (
    (torch.cuda, ("synchronize", "empty_cache", "ipc_collect", "mem_get_info", "memory_stats", "memory_summary",
                  "manual_seed", "manual_seed_all")),
    (torch.accelerator, ("synchronize",)), (torch, ("manual_seed",)), (time, ("sleep",)), (gc, ("collect",)),
)  # fmt: skip


class _Stream:
    def __init__(self, device: Any = None) -> None:
        self.device = META

    def wait_stream(self, other: Any) -> None: ...


class _Graph:
    def replay(self) -> None: ...


@contextlib.contextmanager
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """Within it meta tensors take the place of those on a GPU: streams, captures, launches, the choice of kernels.

    Gives the watch over all operations, which is strict inside of `torch.cuda.graph`.
    """
    watch = Watch()

    @contextlib.contextmanager
    def graph(graph: Any, stream: Any = None, **_: Any) -> Iterator[None]:
        watch.strict, watch.noted = True, []
        try:
            with NoHostData(watch):
                yield
        finally:
            watch.strict = False

    for name, stand_in in (
        ("Stream", _Stream),
        ("CUDAGraph", _Graph),
        ("graph", graph),
        ("graph_pool_handle", lambda: (0, 1)),
        ("stream", lambda stream: contextlib.nullcontext()),
        ("current_stream", lambda device=None: _Stream()),
        ("get_rng_state", lambda device=None: torch.empty(0, dtype=torch.uint8)),
    ):
        monkeypatch.setattr(torch.cuda, name, stand_in)

    def waits(name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: _require(not watch.strict, f"{name} is called")

    for module, names in WAITS:
        for name in names:
            monkeypatch.setattr(module, name, waits(f"{module.__name__}.{name}"))

    def launch(kernel: Any, grid: Any) -> Callable[..., None]:
        return lambda *args, **kwargs: watch.launched(kernel, args, kwargs)

    monkeypatch.setattr(triton.runtime.jit.KernelInterface, "__getitem__", launch)

    def cuda_kernel(name: str, device: Any, version: str | None = None) -> Any:
        return import_module(f"gigabatch.models.kernels.{name}.{version or 'cuda'}")

    original = kernels.kernel
    for module in [module for name, module in sys.modules.items() if name.startswith("gigabatch.")]:
        if vars(module).get("kernel") is original:
            monkeypatch.setattr(module, "kernel", cuda_kernel)
    optim = sys.modules[torch.optim.Optimizer.__module__]
    fused = optim._get_fused_kernels_supported_devices
    monkeypatch.setattr(optim, "_get_fused_kernels_supported_devices", lambda *given: [*fused(*given), "meta"])
    clips = sys.modules[torch.nn.utils.clip_grad_norm_.__module__]
    for name in ("_has_foreach_support", "_device_has_foreach_support"):
        monkeypatch.setattr(clips, name, lambda *given: True)
    autocast, is_enabled, dtype = torch.autocast, torch.is_autocast_enabled, torch.get_autocast_dtype
    MetaAutocast.active = [None]

    def autocast_of(kind: str, *args: Any, **kwargs: Any) -> Any:
        return (MetaAutocast if kind == "meta" else autocast)(kind, *args, **kwargs)

    monkeypatch.setattr(torch, "autocast", autocast_of)
    monkeypatch.setattr(
        torch,
        "is_autocast_enabled",
        lambda kind: MetaAutocast.active[-1] is not None if kind == "meta" else is_enabled(kind),
    )
    monkeypatch.setattr(
        torch, "get_autocast_dtype", lambda kind: MetaAutocast.active[-1] if kind == "meta" else dtype(kind)
    )
    with watch:
        yield watch


def on_meta(value: Any) -> Any:
    """A tensor, or what holds some (tuples, lists, dataclasses), on the meta device."""
    if isinstance(value, Tensor):
        return value.to(META)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: on_meta(getattr(value, field.name)) for field in fields(value)})
    return type(value)(map(on_meta, value)) if type(value) in (list, tuple) else value


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_flatten(values)[0] if isinstance(value, Tensor)]


def _numbers(values: Any) -> tuple:
    return tuple(repr(value) for value in tree_flatten(values)[0] if isinstance(value, int | float))  # NaN is not NaN


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise CaptureError(f"a captured step: {text}")
