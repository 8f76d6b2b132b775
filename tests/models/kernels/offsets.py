"""Run as a script: where a kernel computes an address in 32 bits that do not hold it at the largest launches.

    python -m tests.models.kernels.offsets

Each kernel is launched on meta tensors of the largest sizes that are supported, and nothing runs. Its form in Triton's
first language (TTIR, whose functions are inlined) is followed with the interval of every integer: those of the launch's
numbers and of `program_id` are known, a loaded number may be any of its type, and a loop's counter is taken to run to
what it is compared with, else to the number of programs. Prints JSON. found: sums and products of 32 bits that can pass
them on their way into an address or a comparison; too_large: grids that CUDA refuses; unreached: kernels that no launch
reaches; planted: what is found in kernels with and without the mistake.
"""

import json
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any
from unittest import mock

import torch
import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from gigabatch.features.engines import row_loops_cuda
from gigabatch.features.exact import loops_cuda
from gigabatch.loaders.order import gather_cuda
from gigabatch.loaders.order.order import SampleOrder
from gigabatch.models.kernels.lookup import cuda as lookup_cuda
from gigabatch.models.kernels.row_update import cuda as row_update_cuda
from gigabatch.models.kernels.row_update.rules import RowRule
from tests.models.kernels import real_shapes
from tests.models.kernels.recorder import NoGpu, jit_functions, reached_by

META = torch.device("meta")
MOST_ROWS = 2**31 - 1  # of a partition
BATCH = 2**26  # rows, with the negatives drawn for them
MOST_GRID = (2**31 - 1, 65_535, 65_535)
TARGET = GPUTarget("cuda", 90, 32)
Interval = tuple[int, int]
# What only moves a number, or makes one that follows from it by arithmetic.
CARRIES = (
    "addi", "subi", "muli", "shli", "extsi", "extui", "trunci", "divsi", "divui", "minsi", "maxsi", "minui", "maxui",
    "select", "splat", "broadcast", "expand_dims", "reshape", "trans", "gather",
)  # fmt: skip
FULL = {bits: (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (1, 8, 16, 32, 64)}


def launches() -> None:
    """Each kernel at its largest; what the wrappers do beside is done on the meta device."""
    column = loops_cuda.DeviceColumn(16, 16, 5, MOST_ROWS)
    moments = torch.empty(300, 1 << 16, 3, dtype=torch.int64, device=META)
    loops_cuda.add_leading_moments32([column] * 300, moments)
    counts = torch.empty(600, 1 << 16, dtype=torch.int32, device=META)
    looked_into = torch.empty(300, 1 << 16, dtype=torch.int32, device=META)
    loops_cuda.add_rest_counts32([column] * 300, looked_into, counts)
    words = [row_loops_cuda.DeviceWord(row_loops_cuda.FLOAT, column)] * 132
    rows = torch.empty(MOST_ROWS, 132, dtype=torch.int32, device=META)
    row_loops_cuda.pack_words(words, rows, torch.empty(132, dtype=torch.int32, device=META))
    for num_words in (131, 132):
        table = torch.empty(2**33, num_words, dtype=torch.int32, device=META)
        out = torch.empty(BATCH, num_words, dtype=torch.int32, device=META)
        gather_cuda.gather_shuffled(table, SampleOrder(2**33, 1, 0), 2**32, 2**32 + BATCH, out)
    for width in (40, 2000):
        real_shapes.of_passes(BATCH, width, torch.bfloat16)
    tables = [torch.empty(height, width, device=META) for height, width in ((2**31 - 2**22, 128), (5, 40), (70, 7))]
    ids = torch.empty(BATCH, 132, dtype=torch.int32, device=META)[:, : len(tables)]
    gradient = torch.empty(BATCH, 1200, dtype=torch.bfloat16, device=META)
    floats, factor = torch.empty(BATCH, 132, device=META), torch.empty(100, device=META)
    lookup_cuda.lookup(ids, tables, gradient, floats[:, :100], factor, factor)
    real_shapes.of_lists(BATCH, 2**31 - 1, 2**31 - 2**22, 128)
    for rule in (RowRule("lamb", lr=0.1, second_moment="full", step="row", clip_ratio=1.0), RowRule("adagrad", lr=0.1)):
        row_update_cuda.update_rows(tables, [rule.new_state(table) for table in tables], ids, gradient, rule)
    positions, users = (torch.empty(BATCH, dtype=kind, device=META) for kind in (torch.int64, torch.int32))
    for replacement, weighted, count in ((True, False, 100), (True, True, 100), (False, False, 100)):
        real_shapes.sampler_of(replacement, weighted, count)(positions, users)


@triton.jit
def planted(out, num_rows, width, IN_LOOP: tl.constexpr, WIDE: tl.constexpr):
    """Row numbers of 32 bits are enough, a row's first element is beyond them."""
    begin = tl.program_id(0) * 128
    if WIDE:
        begin = begin.to(tl.int64)
    if IN_LOOP:
        while begin < num_rows:
            tl.store(out + begin * width, 1)
            begin += tl.num_programs(0) * 128
    else:
        tl.store(out + (begin + tl.arange(0, 128)) * width, 1)


class Launches:
    """Of each launch: the kernel's TTIR, the numbers it is given, in the order of its arguments, and its grid."""

    def __init__(self) -> None:
        self.found: list[tuple[JITFunction, str, list[Any], tuple[int, ...]]] = []
        self._run, self._asked = JITFunction.run, {}

    def run(self, function: JITFunction, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        self._asked.clear()
        self._run(function, *args, grid=grid, warmup=warmup, **options)
        bound = function.signature.bind_partial(*args, **{k: v for k, v in options.items() if k in function.arg_names})
        numbers = _numbers_of(bound.arguments, self._asked["signature"])
        self.found.append((function, self._text(function), numbers, (*grid, 1, 1)[:3]))

    def note(self, *, key: str, fn: Any, compile: dict, **rest: Any) -> bool:
        self._asked = compile
        return True

    def _text(self, function: JITFunction) -> str:
        asked = self._asked
        source = ASTSource(function, asked["signature"], asked["constants"], asked["configs"][0])
        backend = make_backend(TARGET)
        options = backend.parse_options({"num_warps": asked["num_warps"]})
        context = ir.context()
        ir.load_dialects(context)
        backend.load_dialects(context)
        made = backend.get_codegen_implementation(options), backend.get_module_map()
        module = source.make_ir(TARGET, options, *made, context)
        return backend.make_ttir(module, {}, options, TARGET.arch).str_nodebug()


def _numbers_of(arguments: dict[str, Any], signature: dict[str, Any]) -> list[Any]:
    """The values of the arguments that TTIR has: all but constants, tuples laid out."""

    def flat(value: Any, kind: Any) -> Iterator[Any]:
        if isinstance(kind, tuple):
            for one, its_kind in zip(value, kind, strict=True):
                yield from flat(one, its_kind)
        elif kind != "constexpr":
            yield value

    return [number for name, kind in signature.items() for number in flat(arguments.get(name), kind)]


def passed(text: str, numbers: Sequence[Any], grid: Sequence[int]) -> list[str]:
    """Lines of a kernel's TTIR whose 32 bits may not hold what goes into an address or a comparison."""
    lines = list(_with_names_of_their_own(text))
    counter = max(MOST_GRID[1], *grid)
    known, _, compared = _followed(lines, numbers, grid, counter)
    ends = [known[end][1] for begun, end in compared if begun.startswith("%arg") and end in known]
    _, found, _ = _followed(lines, numbers, grid, max([counter, *(end for end in ends if end < FULL[32][1])]))
    return found


def _followed(
    lines: Sequence[str], numbers: Sequence[Any], grid: Sequence[int], counter: int
) -> tuple[dict[str, Interval], list[str], list[list[str]]]:
    """Intervals by name, what passes its 32 bits, and the pairs that a "less than" compares; counter: the most that a
    loop's values are taken to be."""
    known: dict[str, Interval] = {}
    beyond: dict[str, str] = {}
    sources: dict[str, list[str]] = {}
    sinks: set[str] = set()
    compared = []
    header = next(line for line in lines if "tt.func public" in line)
    for place, (name, kind) in enumerate(re.findall(r"(%\w+): ([^,{)]+)", header.split(") attributes")[0])):
        if kind.strip().startswith("i"):
            known[name] = (int(numbers[place]),) * 2
    for line in lines:
        for name, kind in zip(*_loop_values(line), strict=True):
            known[name] = (0, counter) if _bits(kind) == 32 else FULL[_bits(kind)]
        match = re.match(r"\s*(%[\w#]+)(?::\d+)? = \"?(?:arith|tt|scf|math)\.(\w+)\"?(.*)", line)
        if match is None:
            continue
        name, kind, rest = match.groups()
        body, _, types = rest.rpartition(" : ")
        operands = re.findall(r"%[\w#]+", body)
        result = types.rpartition("to " if " to " in types else "-> ")[2] if kind not in ("cmpi", "addptr") else "i1"
        if kind == "addptr":
            sinks.add(operands[1])
        elif kind in ("cmpi", "int_to_ptr"):
            sinks |= set(operands)
            compared += [operands] if " slt," in rest else []
        if kind in CARRIES:
            sources[name] = operands[1:] if kind == "select" else operands[:1] if kind == "gather" else operands
        bits = _bits(result)
        low, high = _interval(kind, rest, [known.get(one, FULL[bits]) for one in operands], bits, grid)
        least, most = FULL[bits]
        if low < least or high > most:
            if bits == 32 and kind in ("addi", "subi", "muli"):
                beyond[name] = f"{line.strip()}: {low:,} to {high:,}"
            low, high = least, most
        known[name] = (low, high)
    reached, waiting = set(), list(sinks)
    while waiting:
        if (name := waiting.pop()) not in reached:
            reached.add(name)
            waiting += sources.get(name, [])
    return known, [line for name, line in beyond.items() if name in reached], compared


def _with_names_of_their_own(text: str) -> Iterator[str]:
    """The lines, with names that neighbouring regions share told apart."""
    names: dict[str, str] = {}
    for number, line in enumerate(text.splitlines()):
        made = [*re.findall(r"^\s*(%\w+)(?::\d+)? =", line), *_loop_values(line)[0]]
        names |= {name: f"{name}_{number}" for name in made}
        yield "".join(names.get(part, part) for part in re.split(r"(%\w+)", line))


def _loop_values(line: str) -> tuple[list[str], list[str]]:
    """Names that a loop gives its values, and their types."""
    if (match := re.search(r"scf\.while \((.*?)\) : \((.*?)\) -> ", line)) is not None:
        return re.findall(r"(%\w+) =", match[1]), _types(match[2])
    if (match := re.search(r"scf\.for (%\w+) = .* (i\d+) \{", line)) is not None:
        carried = re.search(r"iter_args\((.*?)\) -> \((.*?)\)", line)
        names, kinds = (re.findall(r"(%\w+) =", carried[1]), _types(carried[2])) if carried else ([], [])
        return [match[1], *names], [match[2], *kinds]
    if (match := re.search(r"\^bb\d+\((.*)\):", line)) is not None:
        pairs = re.findall(r"(%\w+): ([^,)]+)", match[1])
        return [name for name, _ in pairs], [kind for _, kind in pairs]
    return [], []


def _types(text: str) -> list[str]:
    return [part.strip() for part in text.strip("() ").split(",") if part.strip()]


def _bits(kind: str) -> int:
    """Of an integer or of a tensor of them; 64 for what is none, of which nothing is asked."""
    found = re.search(r"(?:^|x)i(\d+)>?", kind.strip().strip("(){} "))
    return int(found[1]) if found is not None else 64


def _interval(kind: str, rest: str, given: list[Interval], bits: int, grid: Sequence[int]) -> Interval:
    """Of an operation's result, before it is wrapped; that of its type where the operation is not followed."""
    if kind == "constant":
        found = re.search(r"(?:dense<)?(-?\d+)>? :", rest)
        return (int(found[1]),) * 2 if found is not None else FULL[bits]
    if kind in ("get_program_id", "get_num_programs"):
        size = grid["xyz".index(rest.split()[0])]
        return (0, size - 1) if kind == "get_program_id" else (size, size)
    if kind == "make_range":
        end, start = re.search(r"end = (\d+).*start = (\d+)", rest).groups()
        return int(start), int(end) - 1
    (low, high), *others = given or [FULL[bits]]
    if kind in ("extsi", "trunci", "splat", "broadcast", "expand_dims", "reshape", "trans", "gather"):
        return (low, high) if FULL[bits][0] <= low and high <= FULL[bits][1] else FULL[bits]
    if kind == "select":
        return min(one[0] for one in others), max(one[1] for one in others)
    if kind in ("addi", "subi", "muli", "minsi", "maxsi", "divsi", "remsi"):
        return _arithmetic(kind, (low, high), others[0], FULL[bits])
    if kind in ("shli", "shrsi", "shrui") and others[0][0] == others[0][1]:
        by = others[0][0]
        if kind == "shli":
            return low << by, high << by
        return (low >> by, high >> by) if kind == "shrsi" or low >= 0 else (0, (2**bits - 1) >> by)
    if kind == "andi":
        masks = [one for one in given if one[0] >= 0]
        return (0, min(one[1] for one in masks)) if masks else FULL[bits]
    return FULL[bits]


def _arithmetic(kind: str, one: Interval, other: Interval, whole: Interval) -> Interval:
    (low, high), (least, most) = one, other
    if kind == "addi":
        return low + least, high + most
    if kind == "subi":
        return low - most, high - least
    if kind == "muli":
        products = [a * b for a in one for b in other]
        return min(products), max(products)
    if kind in ("minsi", "maxsi"):
        choose = min if kind == "minsi" else max
        return choose(low, least), choose(high, most)
    if least < 1:
        return whole
    if kind == "remsi":
        return max(low, 1 - most) if low < 0 else 0, min(high, most - 1) if high > 0 else 0
    return min(low, 0) // least, max(high, 0) // least


def main() -> None:
    warnings.filterwarnings("ignore")
    driver.set_active(NoGpu())
    seen = Launches()
    with triton.knobs.runtime.scope(), mock.patch.object(JITFunction, "run", lambda *a, **k: seen.run(*a, **k)):
        triton.knobs.runtime.jit_cache_hook = seen.note
        launches()
        last = len(seen.found)
        for in_loop, wide in product((True, False), (True, False)):
            planted[(BATCH // 128 if not in_loop else 4,)](
                torch.empty(1, device=META), BATCH, 132, IN_LOOP=in_loop, WIDE=wide
            )
    of_planted = [passed(*rest) for _, *rest in seen.found[last:]]
    del seen.found[last:]
    reached = reached_by({function for function, *_ in seen.found})
    found = {
        f"{function.fn.__name__}, grid {grid}: {line}"
        for function, text, numbers, grid in seen.found
        for line in passed(text, numbers, grid)
    }
    too_large = [
        f"{function.fn.__name__}: {grid}"
        for function, _, _, grid in seen.found
        if any(size > most for size, most in zip(grid, MOST_GRID, strict=True))
    ]
    unreached = sorted(jit_functions() - {f"{one.module}.{one.fn.__name__}" for one in reached})
    launched = sorted({function.fn.__name__ for function, *_ in seen.found})
    told = {"found": sorted(found), "too_large": too_large, "unreached": unreached, "launched": launched}
    json.dump({**told, "planted": of_planted}, sys.stdout)


if __name__ == "__main__":
    main()
