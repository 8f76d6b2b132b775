"""CuPy and cuDF without a GPU: the calls that our cuDF engines make, on NumPy and Arrow, every cost counted.

What is counted: `launches` (kernels: one a ufunc, reduction, gather or library call; as many as CuPy's source shows for
calls that take several), `temporaries` and `nbytes` (what was allocated), `reads` (what waits for the device: values
brought to the host, and sizes that CuPy or libcudf must know before they allocate).

Like CuPy's, an array is no NumPy array: what would convert one implicitly raises. A call that is not here raises too.
"""

import contextlib
import dataclasses
import functools
import importlib.machinery
import operator
import types

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from gigabatch.features.engines import pandas as engine_pandas


@dataclasses.dataclass
class Cost:
    launches: int = 0
    reads: int = 0
    temporaries: int = 0
    nbytes: int = 0


_running = Cost()


def spend(launches=0, reads=0, allocated=()):
    _running.launches += launches
    _running.reads += reads
    _running.temporaries += len(allocated)
    _running.nbytes += sum(allocated)


@contextlib.contextmanager
def counted():
    """The cost of what happens inside, known at its end."""
    before, found = dataclasses.replace(_running), Cost()
    yield found
    for field in dataclasses.fields(Cost):
        setattr(found, field.name, getattr(_running, field.name) - getattr(before, field.name))


def fresh(values, launches=1, reads=0):
    """An array that a kernel has written."""
    values = np.asarray(values)
    spend(launches, reads, [values.nbytes])
    return ndarray(values)


def held(value):
    """What an operand is on the host; NumPy's arrays are refused, as CuPy does."""
    if isinstance(value, np.ndarray):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    return value.held if isinstance(value, ndarray) else value


class ndarray:
    __module__ = "cupy"
    __array_ufunc__ = None
    __hash__ = None

    def __init__(self, values):
        self.held = values

    def __array__(self, *args, **kwargs):
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Use `.get()`.")

    def __iter__(self):
        raise TypeError("a loop over an array of the device reads it value by value")

    dtype, shape, ndim, size, nbytes = (
        property(lambda self, name=name: getattr(self.held, name))
        for name in ("dtype", "shape", "ndim", "size", "nbytes")
    )

    @property
    def data(self):
        return types.SimpleNamespace(ptr=self.held.ctypes.data)

    def __len__(self):
        return len(self.held)

    def __dlpack__(self, **options):
        return self.held.__dlpack__()

    def __dlpack_device__(self):
        return self.held.__dlpack_device__()  # the CPU's: torch takes it for what it is

    def __getitem__(self, key):
        if isinstance(key, ndarray):
            # Of a mask CuPy must know how many are True.
            return fresh(self.held[key.held], launches=2, reads=int(key.dtype == np.bool_))
        if isinstance(key, list | np.ndarray):
            raise TypeError("index by an array of the device")
        return ndarray(np.asarray(self.held[key]))  # a view

    def __setitem__(self, key, value):
        spend(launches=1, reads=int(isinstance(key, ndarray) and key.dtype == np.bool_))
        self.held[held(key)] = held(value)

    def view(self, kind):
        return ndarray(self.held.view(kind))

    def ravel(self):
        return ndarray(self.held.reshape(-1))

    def astype(self, kind, copy=True):
        return self if not copy and self.dtype == kind else fresh(self.held.astype(kind))

    def copy(self):
        return fresh(self.held.copy())

    def item(self):
        spend(reads=1)
        return self.held.item()

    def tolist(self):
        spend(reads=1)
        return self.held.tolist()

    def get(self):
        spend(reads=1)
        return self.held.copy()

    __int__ = __index__ = lambda self: int(self.item())

    def __float__(self):
        return float(self.item())

    def __bool__(self):
        return bool(self.item())


def _operation(function, reflected):
    def call(self, other):
        with np.errstate(all="ignore"):
            return fresh(function(held(other), self.held) if reflected else function(self.held, held(other)))

    return call


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift"):
    _function = getattr(operator, f"{_name}_" if _name in ("and", "or") else _name)
    setattr(ndarray, f"__{_name}__", _operation(_function, False))
    setattr(ndarray, f"__r{_name}__", _operation(_function, True))


def _in_place(name):
    def call(self, other):
        spend(launches=1)
        getattr(operator, f"i{name}")(self.held, held(other))
        return self

    return call


for _name in ("add", "sub", "mul", "or"):
    setattr(ndarray, f"__i{_name}__", _in_place(_name))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(ndarray, f"__{_name}__", _operation(getattr(operator, _name), False))
for _name, _function in (("abs", np.abs), ("invert", np.invert), ("neg", np.negative)):
    setattr(ndarray, f"__{_name}__", lambda self, function=_function: fresh(function(self.held)))
for _name in ("sum", "max", "min", "all", "any", "argmax", "cumsum"):
    setattr(ndarray, _name, lambda self, name=_name: fresh(getattr(self.held, name)(), launches=2))


def _elementwise(function):
    def call(*args, **kwargs):
        with np.errstate(all="ignore"):
            return fresh(function(*map(held, args), **kwargs))

    return call


def _searchsorted(values, wanted, side="left"):
    assert isinstance(wanted, ndarray)
    return fresh(np.searchsorted(held(values), held(wanted), side=side))


def _lexsort(keys):
    return fresh(np.lexsort(keys.held), launches=6)


def _full(shape, value, dtype=None):
    return fresh(np.full(shape, held(value), dtype))


def _created(function, launches):
    return lambda *args, **kwargs: fresh(function(*args, **kwargs), launches)


def _joined(function):
    return lambda parts, **options: fresh(function([held(part) for part in parts], **options))


def _asnumpy(values):
    return values.get() if isinstance(values, ndarray) else np.asarray(values)


def _asarray(values, dtype=None):
    if isinstance(values, Series):
        values = values.to_cupy()
    if isinstance(values, ndarray):
        return values if dtype in (None, values.dtype) else values.astype(dtype)
    return fresh(np.asarray(values, dtype))  # an upload


def _ascontiguousarray(values):
    return values if values.held.flags.c_contiguous else fresh(np.ascontiguousarray(values.held))


def _unique(values, **wanted):
    """CuPy sorts, flags where a value begins, and takes each output by a mask: a read for each (add_remove.py)."""
    found = np.unique(values.held, **wanted)
    several = isinstance(found, tuple)
    spend(6 + 3 * several, 1, [values.nbytes] * 3 + [values.size])
    parts = found if several else (found,)
    for part in parts[1:]:
        spend(2, int(part.shape != values.shape), [part.nbytes])
    return tuple(map(ndarray, parts)) if several else ndarray(found)


def _bincount(values, weights=None, minlength=0):
    spend(4, 2)  # whether one is negative, and the largest (histogram.py), which of none is an error
    if not values.held.size:
        raise ValueError("zero-size array to reduction operation cupy_max which has no identity")
    weights = None if weights is None else weights.held
    return fresh(np.bincount(values.held, weights=weights, minlength=minlength))


cupy = types.ModuleType("cupy")
cupy.__spec__ = importlib.machinery.ModuleSpec("cupy", None)
cupy.__dict__.update(
    {"cuda": types.SimpleNamespace(is_available=lambda: False)}
    | {name: getattr(np, name) for name in ("float32", "float64", "int32", "int64", "uint32", "uint64", "bool_")}
    | {name: _elementwise(getattr(np, name)) for name in (
        "abs", "clip", "cumsum", "exp2", "floor", "isfinite", "isinf", "isnan", "maximum", "minimum", "rint", "where",
    )}
    | {name: _created(getattr(np, name), 1) for name in ("arange", "ones", "zeros")}
    | {"searchsorted": _searchsorted, "lexsort": _lexsort, "full": _full,
       "nonzero": lambda values: (cupy.flatnonzero(values),)}
    | {name: _joined(getattr(np, name)) for name in ("concatenate", "stack")}
    | {"ndarray": ndarray, "asnumpy": _asnumpy, "asarray": _asarray, "ascontiguousarray": _ascontiguousarray,
       "unique": _unique, "bincount": _bincount, "empty": _created(np.empty, 0),
       "argsort": lambda values: fresh(np.argsort(values.held, kind="stable"), launches=2),
       "flatnonzero": lambda values: fresh(np.flatnonzero(values.held), launches=3, reads=1),
       "cuda": types.SimpleNamespace(is_available=lambda: False)}  # no device, so no pool of its memory either
)  # fmt: skip


class CategoricalDtype:
    kind = "O"


class ListDtype:
    kind = "O"

    def __init__(self, element_type):
        self.element_type = element_type

    def __str__(self):
        return "list"


class Index:
    def __init__(self, index):
        self.held = index

    @property
    def values(self):
        return ndarray(self.held.to_numpy())


def _arrow(values):
    """Arrow's array of a pandas series."""
    found = values.array.__arrow_array__() if isinstance(values.dtype, pd.ArrowDtype) else pa.Array.from_pandas(values)
    return engine_pandas.one_array(found)


def _is_list(kind):
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _dtype(kind):
    """The type of a column that is of this one of Arrow's."""
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return np.dtype("O") if text else np.dtype(kind.to_pandas_dtype())


def _pandas(values, index=None):
    array = values.held if isinstance(values, ndarray) else values
    if isinstance(array, np.ndarray):
        array = pa.array(array)
    return pd.Series(pd.arrays.ArrowExtensionArray(array), index=index)


class Series:
    __module__ = "cudf.core.series"
    __hash__ = None

    def __init__(self, values=None, index=None, dtype=None, name=None):
        if isinstance(values, list):
            kind = pa.string() if dtype in ("str", None) else pa.from_numpy_dtype(np.dtype(dtype))
            self.held = _pandas(pa.array(values, kind)).rename(name)
        elif isinstance(values, Series):
            self.held = values.held
        elif isinstance(values, pd.Series):
            self.held = values if isinstance(values.dtype, pd.ArrowDtype) else _pandas(_arrow(values), values.index)
        else:
            self.held = _pandas(values, None if index is None else index.held)

    @property
    def name(self):
        return self.held.name

    @name.setter
    def name(self, name):
        self.held = self.held.rename(name)

    @property
    def index(self):
        return Index(self.held.index)

    @index.setter
    def index(self, index):
        self.held = self.held.set_axis(index.held)

    @property
    def str(self):
        return Text(self)

    @property
    def list(self):
        return Lists(self)

    @classmethod
    def from_pylibcudf(cls, column):
        return cls(column.held)

    @property
    def null_count(self):
        return _arrow(self.held).null_count

    @property
    def dtype(self):
        kind = self.held.dtype.pyarrow_dtype
        if pa.types.is_dictionary(kind):
            return CategoricalDtype()
        return ListDtype(_dtype(kind.value_type)) if _is_list(kind) else _dtype(kind)

    def __len__(self):
        return len(self.held)

    def __ne__(self, other):
        return self._compared(pc.not_equal, other)

    def __eq__(self, other):
        return self._compared(pc.equal, other)

    def _compared(self, function, other):
        """Null beside null."""
        found = function(_arrow(self.held), _arrow(other.held) if isinstance(other, Series) else other)
        return self._made(_pandas(found, self.held.index))

    def __getitem__(self, key):
        assert key.dtype == np.bool_
        return self._made(self.held[np.asarray(key.held, bool)], 2, 1)

    def __add__(self, other):
        return self._made(self.held + other)

    def __radd__(self, other):
        return self._made(other + self.held)

    def __and__(self, other):
        return self._made(_pandas(pc.and_kleene(_arrow(self.held), _arrow(other.held)), self.held.index))

    def __or__(self, other):
        return self._made(_pandas(pc.or_kleene(_arrow(self.held), _arrow(other.held)), self.held.index))

    def rename(self, name):
        return Series(self.held.rename(name))

    def to_frame(self, name):
        return DataFrame(pd.DataFrame({name: self.held}))

    def unique(self):
        return self._made(_pandas(_arrow(self.held).unique()), 6, 2)

    def head(self, number):
        return Series(self.held.head(number))

    def max(self):
        spend(1, 1)
        return pc.max(_arrow(self.held)).as_py()

    def all(self):
        spend(1, 1)
        return bool(pc.all(_arrow(self.held)).as_py())

    def sum(self):
        spend(1, 1)
        return pc.sum(_arrow(self.held)).as_py() or 0

    def explode(self):
        """A null for a list without entries, as libcudf's `explode_outer`."""
        return self._made(self.held.explode(), 6, 2)

    def _made(self, values, launches=1, reads=0):
        spend(launches, reads, [_arrow(values).nbytes])
        return Series(values.rename(self.name))

    def _bool(self, values):
        return self._made(pd.Series(pd.arrays.ArrowExtensionArray(pa.array(np.asarray(values, bool))),
                                    index=self.held.index))  # fmt: skip

    def to_pylibcudf(self):
        """As pylibcudf has it: buffers by address, and where in them the column begins."""
        array = _arrow(self.held)
        if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
            return Memory(array), {}
        bitmap, data = array.buffers()
        span = lambda buffer: None if buffer is None else types.SimpleNamespace(ptr=buffer.address)  # noqa: E731
        values = {"data": span(data), "null_mask": span(bitmap), "size": len(array), "null_count": array.null_count}
        return Memory(array, **{name: (lambda value=value: value) for name, value in values.items()}), {}

    def to_cupy(self, na_value=None):
        if self.null_count and na_value is None and self.dtype.kind == "f":
            na_value = np.nan
        if self.null_count and na_value is None:
            raise ValueError("a column with nulls: fill them first")
        array = _arrow(self.fillna(na_value).held if self.null_count else self.held)
        return ndarray(array.to_numpy(zero_copy_only=False))

    def fillna(self, value):
        return self._made(self.held.fillna(value)) if self.null_count else self

    def isna(self):
        return self._bool(_arrow(self.held).is_null(nan_is_null=True))

    def notna(self):
        return self._bool(pc.invert(_arrow(self.held).is_null(nan_is_null=True)))

    def any(self):
        spend(1, 1)
        return bool(pc.any(_arrow(self.held)).as_py())

    def dropna(self):
        return self._made(self.held[~_arrow(self.held).is_null(nan_is_null=True).to_numpy(zero_copy_only=False)], 2, 1)

    def astype(self, kind):
        if kind == "str":  # libcudf writes ten digits of a float
            form = "{:.10g}" if self.dtype.kind == "f" else "{}"
            texts = [None if value is None else form.format(value) for value in _arrow(self.held).to_pylist()]
            return self._made(_pandas(pa.array(texts, pa.string()), self.held.index))
        if isinstance(kind, np.dtype) and kind.kind == "O":
            return self._made(_pandas(_arrow(self.held).cast(pa.string()), self.held.index))
        if self.dtype == np.dtype(kind):
            return self
        found = _arrow(self.held).cast(pa.from_numpy_dtype(np.dtype(kind)), safe=False)  # a fraction is cut
        return self._made(_pandas(found, self.held.index))

    def abs(self):
        return self._made(self.held.abs())

    def __ge__(self, bound):
        return self._bool(self.held >= bound)

    def __invert__(self):
        return self._made(~self.held)

    def where(self, cond, other=None):
        keep, other = cond.held.to_numpy(dtype=bool), None if other is None else _arrow(other.held)
        if other is not None:
            other = other.cast(_arrow(self.held).type)
        return self._made(_pandas(pc.if_else(pa.array(keep), _arrow(self.held), other), self.held.index))

    def mask(self, cond):
        drop = cond.held.to_numpy(dtype=bool)
        return self._made(_pandas(pc.if_else(pa.array(drop), None, _arrow(self.held)), self.held.index))

    def take(self, rows):
        spend(reads=1)  # whether all lie inside
        return self._made(self.held.take(rows.held))

    def reset_index(self, drop):
        assert drop
        return Series(self.held.reset_index(drop=True))

    def factorize(self):
        """cuDF drops nulls, makes values unique, joins them to the rows and sorts the rows back."""
        codes, values = pd.factorize(self.held)
        spend(12, 6, [8 * len(codes)] * 6)
        return fresh(codes), Series(pd.Series(values))

    def hash_values(self, method):
        assert method == "xxhash64"
        hashes = engine_pandas.hash64(self.held.fillna("" if self.dtype.kind == "O" else 0))
        return self._made(_pandas(hashes.view(np.uint64), self.held.index))

    def to_pandas(self):
        spend(reads=1)
        return self.held


class Text:
    """`Series.str`."""

    def __init__(self, column):
        self.column = column

    def _made(self, values):
        return self.column._made(_pandas(values, self.column.held.index))

    def __getattr__(self, name):
        assert name in ("len", "lower", "replace", "slice", "strip")
        return lambda *args, **kwargs: self.column._made(getattr(self.column.held.str, name)(*args, **kwargs))

    def match(self, pattern):
        return self._made(pc.match_substring_regex(_arrow(self.column.held), f"^(?:{pattern})"))

    def contains(self, text, regex):
        assert not regex
        return self._made(pc.match_substring(_arrow(self.column.held), text))

    def split(self, separator, regex):
        assert not regex
        return self._made(pc.split_pattern(_arrow(self.column.held), separator))


class Lists:
    """`Series.list`."""

    def __init__(self, column):
        self.column = column

    def len(self):
        lengths = pc.list_value_length(_arrow(self.column.held)).cast(pa.int32())
        return self.column._made(_pandas(lengths, self.column.held.index))


class DataFrame:
    __module__ = "cudf.core.dataframe"
    iloc = None

    def __init__(self, columns, index=None):
        if isinstance(columns, dict):
            columns = pd.DataFrame({name: Series(values, index).held for name, values in columns.items()})
        self.held = columns

    @property
    def columns(self):
        return self.held.columns

    @property
    def index(self):
        return Index(self.held.index)

    def __len__(self):
        return len(self.held)

    def __getitem__(self, key):
        if isinstance(key, ndarray | Series):
            assert key.dtype == np.bool_
            return self._made(self.held[np.asarray(key.held, bool)], 2, 1)
        found = self.held[key]
        return Series(found) if isinstance(found, pd.Series) else DataFrame(found)

    def assign(self, **columns):
        found = DataFrame(self.held.copy())
        for name, values in columns.items():
            found[name] = values
        return found

    def copy(self, deep=True):
        return DataFrame(self.held.copy(deep))

    def take(self, rows):
        spend(reads=1)
        return self._made(self.held.take(rows.held), 1)

    def head(self, number):
        return DataFrame(self.held.head(number))

    def __setitem__(self, name, values):
        self.held[name] = Series(values, index=self.index).held

    def _made(self, frame, launches, reads=0):
        spend(launches, reads, [_arrow(frame[name]).nbytes for name in frame.columns])
        return DataFrame(frame)

    def sort_values(self, by, ascending=True):
        return self._made(self.held.sort_values(by, ascending=ascending), 3)

    def reset_index(self, drop=False):
        return DataFrame(self.held.reset_index(drop=drop))

    def dropna(self, subset):
        return self._made(self.held.dropna(subset=subset), 2, 1)

    def merge(self, other, on, how):
        found = self.held.merge(other.held, on=on, how=how)
        return self._made(found.sample(frac=1, random_state=0), 6, 2)  # a join keeps no order

    def groupby(self, by):
        def agg(how):
            found = self.held.groupby(by).agg(how)
            return self._made(found.sample(frac=1, random_state=0).reset_index(), 6, 2).held.set_index(by)

        return GroupBy(
            agg=lambda how: DataFrame(agg(how)),
            rank=lambda name, **how: self._ranked(by, name, how),
            transform=lambda name, how: self._transformed(by, name, how),
        )

    def _ranked(self, by, name, how):
        return self._made(pd.DataFrame({name: self.held.groupby(by)[name].rank(**how)}), 8, 2)[name]  # rows in order

    def _transformed(self, by, name, how):
        return self._made(pd.DataFrame({name: self.held.groupby(by)[name].transform(how)}), 8, 2)[name]  # rows in order

    def to_parquet(self, path, index, compression="snappy", row_group_size_rows=1_000_000):  # cuDF's defaults
        assert not index
        spend(reads=1)
        self.held.to_parquet(path, index=False, compression=compression.lower(), row_group_size=row_group_size_rows)

    def to_pandas(self):
        spend(reads=1)
        return self.held


class GroupBy:
    def __init__(self, agg, rank, transform):
        self.agg, self._rank, self._transform = agg, rank, transform

    def __getitem__(self, name):
        return types.SimpleNamespace(
            rank=lambda **how: self._rank(name, **how), transform=lambda how: self._transform(name, how)
        )


def from_pandas(frame):
    """NaN and null are two things, as in Arrow; columns begin inside their buffers, as those of a part of a frame."""
    columns = {}
    for name in frame.columns:
        array = _arrow(frame[name])
        before = array.slice(0, 3)
        columns[name] = _pandas(pa.concat_arrays([before, array]).slice(len(before)), frame.index)
    found = pd.DataFrame(columns)
    spend(1, 0, [_arrow(found[name]).nbytes for name in found.columns])
    return DataFrame(found)


class Memory:
    """A column of pylibcudf: its Arrow array, and its buffers by address where it has been asked for them."""

    def __init__(self, array, **buffers):
        self.held = array
        self.__dict__.update(buffers)

    @classmethod
    def from_cuda_array_interface(cls, values):
        assert values.held.flags.c_contiguous
        return cls(pa.array(values.held))

    def offset(self):
        return self.held.offset

    def copy(self):
        spend(1, 0, [self.held.nbytes])
        found = self.held.take(pa.array(np.arange(len(self.held))))
        assert found.offset == 0
        return Memory(found)


def _column(kind, size, data, mask, null_count, offset, children):
    """What `pylibcudf.Column` makes of lists."""
    assert (kind, data, offset) == ("list", None, 0)
    offsets, entries = (child.held for child in children)
    assert offsets.type == pa.int32()
    assert len(offsets) == size + 1
    assert entries.offset == 0
    assert (0 if mask is None else mask.null_count) == null_count
    return Memory(pa.ListArray.from_arrays(offsets, entries, mask=None if mask is None else pc.invert(mask.known)))


def _bools_to_mask(column):
    spend(1, 1, [len(column.held) // 8])
    nulls = len(column.held) - pc.sum(column.held).as_py()
    return types.SimpleNamespace(known=column.held, null_count=nulls), nulls


pylibcudf = types.ModuleType("pylibcudf")
pylibcudf.Column = type("Column", (), {"__new__": lambda cls, *args: _column(*args),
                                       "from_cuda_array_interface": Memory.from_cuda_array_interface})  # fmt: skip
pylibcudf.DataType = lambda kind: kind
pylibcudf.TypeId = types.SimpleNamespace(LIST="list")
pylibcudf.transform = types.SimpleNamespace(bools_to_mask=_bools_to_mask)


def _concat(parts, ignore_index):
    assert ignore_index
    frames = [part.held for part in parts]
    if isinstance(parts[0], DataFrame):
        return DataFrame(pd.concat(frames, ignore_index=True))
    values = pa.concat_arrays([_arrow(frame) for frame in frames])
    return parts[0]._made(_pandas(values).rename(frames[0].name))


cudf = types.ModuleType("cudf")
cudf.__spec__ = importlib.machinery.ModuleSpec("cudf", None)
cudf.__dict__.update(
    Series=Series,
    DataFrame=DataFrame,
    CategoricalDtype=CategoricalDtype,
    ListDtype=ListDtype,
    from_pandas=from_pandas,
    concat=_concat,
    read_csv=lambda path, **options: from_pandas(pd.read_csv(path, **options)),
    read_parquet=lambda path, columns=None: from_pandas(
        pd.read_parquet(path, columns=columns, dtype_backend="pyarrow")
    ),
)


def count_launches(monkeypatch, *modules):
    """Each call of a Triton kernel that one of the modules declares is a launch."""
    from triton.runtime.interpreter import InterpretedFunction

    kernels = {value for module in modules for value in vars(module).values() if isinstance(value, InterpretedFunction)}
    for kernel in kernels:

        @functools.wraps(kernel.run)
        def run(*args, _run=kernel.run, **kwargs):
            spend(launches=1)
            return _run(*args, **kwargs)

        monkeypatch.setattr(kernel, "run", run)
    return kernels
