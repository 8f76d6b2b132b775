"""Every function of the cuDF engines, run on NumPy-backed stand-ins of cuDF and CuPy: its values are the pandas
engine's, and what it costs stays within bounds that are said here."""

import contextlib
import importlib
import importlib.util
import inspect
import types

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from gigabatch.features.engines import frame as engine_frame
from gigabatch.features.engines import pandas as on_pandas
from gigabatch.features.engines.frame import CodedColumn, FloatWord, IdWord
from gigabatch.features.errors import DataError
from gigabatch.features.exact.column_statistics import ColumnStatistics
from gigabatch.features.exact.dense_counts import DenseCounts
from gigabatch.features.exact.float_order import InfinityFound
from gigabatch.features.exact.quantiles import RadixHistogram, Search, middle_ranks, selected
from gigabatch.features.exact.sums import ExactSum, sum_of_squares
from gigabatch.features.reading.sources import _cast_text
from gigabatch.features.recipes.trivago.chunk import Chunk
from gigabatch.features.recipes.trivago.log import ITEM_ACTIONS, Books

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the stand-in lies in host memory; a GPU has the real thing"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton"),
]
ENGINES = ("cudf", "cudf_plain")
ROWS = 5000


def table(rows=ROWS):
    """Columns with nulls, ties, both zeros and long text."""
    rng = np.random.default_rng(4)
    words = np.array([f"a value of some length {number}" for number in range(40)] + ["", "a", "é", "a\0"])
    text = np.where(rng.random(rows) < 0.1, None, rng.choice(words, rows))
    narrow = [None if odd < 0.1 else int(10 * odd) for odd in rng.random(rows)]
    columns = {
        "text": (text, pa.string()),
        "whole": (rng.integers(-9, 9, rows) * 10**9, pa.int64()),
        "narrow": (narrow, pa.int32()),
        "wide": (rng.integers(0, 9, rows).astype(np.uint64), pa.uint64()),
        "x": (np.where(rng.random(rows) < 0.2, None, rng.normal(size=rows)), pa.float32()),
        "y": (np.where(rng.random(rows) < 0.5, -0.0, rng.normal(size=rows)), pa.float32()),
        "z": (rng.integers(0, 3, rows).astype(np.float32), pa.float32()),
    }
    return pd.DataFrame({name: pd.array(values, pd.ArrowDtype(kind)) for name, (values, kind) in columns.items()})


def counted_by(engine, frame):
    return engine.value_counts(frame["text"])


def searches(engine, frame):
    """Columns and what is looked for: their medians, after a first pass."""
    found = {name: on_pandas.column_statistics(table(len(frame))[name]).histogram for name in ("x", "y", "z")}
    return [(frame[name], Search.start(item, middle_ranks(item.total))) for name, item in found.items()]


def words_of(engine, frame):
    """Arguments of `pack`: three id columns, two floats, an indicator."""
    coded = engine.coded(frame["text"])
    table = engine.arrays.arange(coded.num_codes + 1, dtype="int32")
    table[coded.order] = engine.arrays.arange(3, 3 + len(coded.order), dtype="int32")
    plain = engine.arrays.arange(len(frame), dtype="int32")
    ids = [IdWord(coded.codes, 1, table), IdWord(plain, 0), IdWord(plain.view("float32"), 5)]
    return (
        len(frame),
        6,
        ids,
        [FloatWord(frame["x"], 0.25, 0.1, 1.7, 2, 4), FloatWord(frame["y"], 0.0, 0.0, 0.0, 3, -1)],
    )


def stored(path):
    if not path.exists():
        on_pandas.write_parquet(table(50), path)
    return path


def csv(path):
    path.write_text("a,b\n1,x\n2,\n")
    return path


# name -> what prepares the arguments, given the engine, a frame of it and an empty folder.
CASES = {
    "array": [lambda e, f, d: (f["x"], 0.5), lambda e, f, d: (f["whole"],)],
    "as_typed": [lambda e, f, d: (f["whole"], "int64", False), lambda e, f, d: (f["narrow"], "int32", False)],
    "codes": [lambda e, f, d: (f["text"],), lambda e, f, d: (f["narrow"],), lambda e, f, d: (f["wide"],)],
    "coded": [lambda e, f, d, name=name: (f[name],) for name in ("text", "whole", "narrow", "wide")],
    "column_count": [lambda e, f, d, at=at: searches(e, f)[at] for at in range(3)],
    "column_statistics": [lambda e, f, d, name=name: (f[name],) for name in ("x", "y", "z")],
    "counts_together": [lambda e, f, d: (searches(e, f),)],
    "decoded": [lambda e, f, d: (f["text"],)],
    "direct_counts": [lambda e, f, d: (f["wide"],)],
    "float_text": [lambda e, f, d, name=name: (f[name].fillna(0.0),) for name in ("x", "y")],
    "frame": [lambda e, f, d: ({"x": f["x"], "place": e.arrays.arange(len(f))}, f)],
    "from_pandas": [lambda e, f, d: (table(50),)],
    "hash64": [lambda e, f, d: (f["whole"],)],
    "lookup": [lambda e, f, d: (counted_by(e, f)["value"],)],
    "map_columns": [lambda e, f, d: (lambda name: len(f[name]), ["x", "text"])],
    "pack": [lambda e, f, d: words_of(e, f)],
    "parquet_columns": [lambda e, f, d: (stored(d / "t.parquet"),)],
    "places_in_groups": [
        lambda e, f, d, scale=scale: (
            e.arrays.asarray([0, 5, 5, 40]), scale * (3 * e.arrays.arange(40) - 15 * (e.arrays.arange(40) >= 5)),
            e.arrays.arange(len(f)) % 4 - 1, scale * (e.arrays.arange(len(f)) % 97 - 9),
        )
        for scale in (1, 2**55)  # times that are too far apart for a product with the group
    ],
    "positions_and_nulls": [lambda e, f, d: (f["wide"], e.lookup(counted_by(e, f)["value"]))],
    "positions_in": [
        lambda e, f, d: (f["text"], counted_by(e, f)["value"]),
        lambda e, f, d: (f["text"], counted_by(e, f)["value"].take(e.arrays.arange(3))),
        lambda e, f, d: (f["narrow"], e.value_counts(f["whole"])["value"]),
        lambda e, f, d: (f["narrow"], e.value_counts(f["narrow"])["value"]),
        lambda e, f, d: (f["wide"], e.value_counts(f["wide"])["value"]),
    ],
    "ranks_in_groups": [
        lambda e, f, d, descending=descending: (
            e.arrays.arange(len(f)) % 3, e.arrays.arange(len(f)) // 9 % 7, descending
        )
        for descending in (False, True)
    ],
    "read_columns": [lambda e, f, d: (stored(d / "t.parquet"), ["x", "text"])],
    "read_csv": [lambda e, f, d: (csv(d / "t.csv"),)],
    "read_parquet": [lambda e, f, d: (stored(d / "t.parquet"), ["x", "text"])],
    "series": [
        lambda e, f, d: (e.arrays.arange(len(f)), f),
        lambda e, f, d: (e.arrays.arange(len(f)), f, e.arrays.arange(len(f)) < 9),
    ],
    "sort_counts": [lambda e, f, d: (counted_by(e, f),)],
    "stable_order": [lambda e, f, d: (e.arrays.arange(len(f)) % 7 - 3,)],
    "statistics_together": [lambda e, f, d: ([f[name] for name in ("x", "y", "z")],)],
    "sum_counts": [lambda e, f, d: (counted_by(e, f),)],
    "text": [lambda e, f, d: (f["text"],)],
    "to_host": [lambda e, f, d: (e.arrays.arange(5),)],
    "to_pandas": [lambda e, f, d: (f,)],
    "value_counts": [lambda e, f, d, name=name: (f[name],) for name in ("text", "narrow")],
    "with_nulls": [lambda e, f, d: (f["whole"], f["x"].isna())],
    "write_parquet": [lambda e, f, d: (f, d / "new.parquet")],
    "write_passing": [lambda e, f, d: (f, d / "new.parquet")],
}  # fmt: skip
LIBRARY = {
    "float_text",
    "from_pandas",
    "read_columns",
    "read_csv",
    "read_parquet",
    "text",
    "to_pandas",
    "write_parquet",
    "write_passing",
}  # its own reading
# What a call costs: launches, reads, temporaries, and the most of their bytes a row; by case where they differ. A bound
# that lies above would let a kernel or a read more pass, so whoever saves one writes the smaller number here.
BOTH = {
    "array": [(1, 0, 1, 4), (0, 0, 0, 0)], "as_typed": (2, 1, 1, 0), "decoded": (0, 0, 0, 0),
    "direct_counts": (0, 0, 0, 0),
    "frame": (0, 0, 0, 0), "hash64": (3, 1, 2, 8), "map_columns": (0, 0, 0, 0), "parquet_columns": (0, 0, 0, 0),
    "ranks_in_groups": (9, 2, 2, 12),
    "places_in_groups": [(19, 1, 15, 33), (27, 2, 21, 41)], "stable_order": (2, 0, 1, 8),
    "positions_and_nulls": (0, 0, 0, 0), "series": [(0, 0, 0, 0), (1, 0, 1, 8)], "sort_counts": (3, 0, 2, 0),
    "sum_counts": (6, 2, 2, 0), "to_host": (0, 1, 0, 0), "value_counts": [(12, 3, 6, 32), (12, 3, 6, 11)],
    "with_nulls": (1, 0, 1, 8),
}  # fmt: skip
COSTS = {
    "cudf": BOTH | {
        "coded": [(40, 7, 25, 94), (21, 4, 12, 37), (33, 5, 19, 64), (24, 8, 13, 64)],
        "codes": [(44, 7, 27, 102), (37, 5, 21, 72), (14, 6, 8, 64)], "column_count": (2, 0, 1, 0),
        "column_statistics": (2, 1, 1, 0), "counts_together": (2, 0, 1, 0), "lookup": (8, 1, 5, 0),
        "pack": (2, 1, 2, 24),
        "positions_in": [(26, 2, 21, 93), (26, 2, 21, 75), (16, 0, 12, 54), (17, 0, 13, 54), (12, 3, 8, 56)],
        "statistics_together": (2, 1, 1, 0),
    },
    "cudf_plain": BOTH | {
        "coded": [(24, 8, 13, 65), (24, 8, 13, 64), (24, 8, 13, 64), (24, 8, 13, 64)], "codes": (14, 6, 8, 64),
        "column_count": [(24, 4, 16, 34), (23, 5, 15, 45), (23, 5, 15, 40)],
        "column_statistics": [(78, 24, 43, 226), (77, 24, 42, 247), (50, 15, 30, 223)],
        "counts_together": (0, 0, 0, 0), "lookup": (0, 0, 0, 0), "pack": (22, 3, 18, 77),
        "positions_in": [(13, 3, 9, 86), (13, 3, 9, 50), (13, 3, 9, 39), (12, 3, 8, 45), (12, 3, 8, 56)],
        "statistics_together": (0, 0, 0, 0),
    },
}  # fmt: skip
# Tables of fixed size come on top of a row's bytes: 1.5 MB of moments a column, 256 KB of rest counts a bin.
FIXED = {
    "column_statistics": 3 << 19,
    "statistics_together": 9 << 19,
    "column_count": 2 << 18,
    "counts_together": 6 << 18,
}


def public_functions(module):
    return {name for name, value in vars(module).items() if inspect.isfunction(value) and not name.startswith("_")
            and value.__module__.startswith("gigabatch.features.engines.cudf")}  # fmt: skip


def test_every_function_of_the_engine_is_run_and_every_cost_is_of_one(engine):
    assert public_functions(engine) == set(CASES)
    assert all(set(costs) | LIBRARY == set(CASES) for costs in COSTS.values())


def plain(value):
    """On the host, in a form that `==` and NumPy compare; codes as places in the order of values."""
    if isinstance(value, DenseCounts):
        return value.histogram()
    if isinstance(value, CodedColumn):
        codes, order = (getattr(part, "held", part) for part in (value.codes, value.order))
        place = np.full(value.num_codes + 1, -1)
        place[order] = np.arange(len(order))
        return place[codes].tolist(), plain(value.counted)
    if isinstance(value, np.ndarray) or type(value).__name__ == "ndarray":
        array = getattr(value, "held", value)
        return str(array.dtype), array.tolist()
    if isinstance(getattr(value, "held", value), pd.DataFrame):
        frame = getattr(value, "held", value)
        return {name: plain(frame[name]) for name in frame.columns}
    if isinstance(getattr(value, "held", value), pd.Series):
        return on_pandas.to_arrow(getattr(value, "held", value)).to_pylist()
    if isinstance(value, list | tuple):
        return type(value)(plain(item) for item in value)
    return value


def alike(name, found, expected, together):
    """Whether two results say the same; what an engine need not give (None) is given one column at a time."""
    if found is None and name not in ("write_parquet", "write_passing"):
        return name in ("direct_counts", "positions_and_nulls", "lookup", "statistics_together", "counts_together",
                        "as_typed")  # fmt: skip
    if name == "lookup":
        return len(found.values) == len(found.keys)
    if name == "sum_counts":  # in no order
        return sorted(zip(*plain(found).values(), strict=True)) == sorted(zip(*plain(expected).values(), strict=True))
    return plain(found) == plain(together if expected is None else expected)


def test_which_rows_of_a_trivago_log_are_such_actions_is_one_lookup(engine, stand_in):
    """A chunk asks a dozen times. The second time it costs a table of as many entries as there are names, and a gather;
    nothing is read."""
    names = sorted([*ITEM_ACTIONS, "filter selection", "search for poi"])
    frames = {"action_type": pd.DataFrame({"value": pd.array(names, pd.ArrowDtype(pa.string()))})}
    action = np.random.default_rng(3).integers(-1, len(names), ROWS)
    chunk = types.SimpleNamespace(
        books=Books(engine.__name__.rpartition(".")[2], frames),
        row={"action": stand_in.cupy.asarray(action)},
        xp=stand_in.cupy,
    )
    for actions in (ITEM_ACTIONS, ("no such action",), ITEM_ACTIONS[:2]):
        with stand_in.counted() as cost:
            found = Chunk.acted(chunk, actions)
        assert stand_in.cupy.asnumpy(found).tolist() == [code >= 0 and names[code] in actions for code in action]
    assert (cost.launches, cost.reads) <= (3, 0), cost


def test_parquet_is_written_for_readers_on_a_gpu(engine, stand_in, tmp_path):
    """A part of more rows than cuDF puts into a row group by itself is one, and zstd, slow to unpack, is not used."""
    frame = stand_in.from_pandas(pd.DataFrame({"x": np.arange(1_000_001) % 7}))
    engine.write_parquet(frame, tmp_path / "part.parquet")
    written = pq.read_metadata(tmp_path / "part.parquet")
    assert [written.row_group(number).num_rows for number in range(written.num_row_groups)] == [1_000_001]
    assert written.row_group(0).column(0).compression == "SNAPPY"


@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name, cases in CASES.items() for case in range(len(cases))]
)
def test_values_are_those_of_pandas_at_a_bounded_cost(stand_in, engine, tmp_path, name, case):
    frame = stand_in.from_pandas(table())
    given = CASES[name][case](engine, frame, tmp_path)
    with stand_in.counted() as cost:
        found = getattr(engine, name)(*given)
    (tmp_path / "expected").mkdir()
    arguments = CASES[name][case](on_pandas, table(), tmp_path / "expected")
    expected = getattr(on_pandas, name)(*arguments)
    one = {"statistics_together": lambda: [on_pandas.column_statistics(column) for column in arguments[0]],
           "counts_together": lambda: [on_pandas.column_count(*pair) for pair in arguments[0]]}  # fmt: skip
    assert alike(name, found, expected, one[name]() if name in one else None)
    if name in LIBRARY:
        return
    costs = COSTS[engine.__name__.rpartition(".")[2]][name]
    *numbers, row_bytes = costs[case] if isinstance(costs, list) else costs
    assert [cost.launches, cost.reads, cost.temporaries] == numbers, cost
    assert cost.nbytes <= ROWS * row_bytes + FIXED.get(name, 0) + 2_000, cost


def test_many_columns_are_counted_by_several_launches_of_bounded_memory(stand_in, monkeypatch):
    """A thousand columns of sixty bins each would take tables of 16 GB at once."""
    from gigabatch.features.engines import row_loops_cuda
    from gigabatch.features.exact import loops_cuda

    cudf, shapes = importlib.import_module("gigabatch.features.engines.cudf"), []
    stand_in.count_launches(monkeypatch, loops_cuda, row_loops_cuda)

    def counted(columns, rows, found):
        shapes.append(len(found))
        return loops_cuda.add_rest_counts32(columns, rows, found)

    monkeypatch.setattr(cudf, "TOGETHER_BINS", 7)
    monkeypatch.setattr(cudf, "add_rest_counts32", counted)
    values = np.random.default_rng(0).normal(size=(4, 300)).astype("float32")
    frame = pd.DataFrame({f"c{place}": column for place, column in enumerate(values)})
    histograms = {name: on_pandas.column_statistics(frame[name]).histogram for name in frame}
    wanted = {name: Search.start(item, [0, item.total // 2, item.total - 1]) for name, item in histograms.items()}
    device = stand_in.from_pandas(frame)
    found = cudf.counts_together([(device[name], search) for name, search in wanted.items()])
    expected = [on_pandas.column_count(frame[name], search) for name, search in wanted.items()]
    assert plain(found) == expected
    assert shapes == [6, 6]
    values = [one.narrowed(search).values().tolist() for one, search in zip(found, wanted.values(), strict=True)]
    assert values == [np.sort(frame[name])[[0, 150, 299]].tolist() for name in frame]
    monkeypatch.setattr(cudf, "KEPT_BINS", 6)  # the tables of the second launch go to the host
    again = cudf.counts_together([(device[name], search) for name, search in wanted.items()])
    assert [isinstance(one, RadixHistogram) for one in again] == [False, False, True, True]
    assert plain(again) == expected
    monkeypatch.setattr(cudf, "TOGETHER_BINS", 2)  # more bins than that of one column are looked into elsewhere
    assert cudf.counts_together([(device[name], search) for name, search in wanted.items()]) == expected


def test_the_stand_in_counts_every_read_and_lets_no_array_become_one_of_numpy(stand_in):
    array = stand_in.cupy.arange(3, dtype="float32")
    reads = (lambda: array[0].item(), lambda: float(array[1]), lambda: int(array[1]), lambda: bool(array[0] == 1),
             array.tolist, array.get, lambda: stand_in.cupy.asnumpy(array), lambda: array[array > 1],
             lambda: [1, 2, 3][array[1]])  # fmt: skip
    for read in reads:
        with stand_in.counted() as cost:
            read()
        assert cost.reads == 1
    for implicit in (lambda: np.asarray(array), lambda: np.isnan(array), lambda: array + np.ones(3),
                     lambda: list(array), lambda: np.ones(3) + array, lambda: pd.Series(array)):  # fmt: skip
        with pytest.raises(TypeError):
            implicit()


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_an_infinity_is_refused_by_name_and_an_odd_nan_is_null(stand_in, engine, value):
    odd = np.array([0x7F800001, 0xFF900000], np.uint32).view(np.float32)
    frame = stand_in.from_pandas(pd.DataFrame({
        "fine": pd.array(np.ones(6000), pd.ArrowDtype(pa.float32())),
        "bad": pd.Series(pd.arrays.ArrowExtensionArray(pa.array(np.full(6000, value, np.float32)))),
        "odd": pd.Series(pd.arrays.ArrowExtensionArray(pa.array(np.append(np.zeros(5998, np.float32), odd)))),
    }))  # fmt: skip
    with pytest.raises(InfinityFound):
        engine.column_statistics(frame["bad"])
    assert engine.column_statistics(frame["odd"]).nulls == 2
    if engine.__name__.endswith("cudf"):
        with pytest.raises(DataError, match="column 'bad' holds an infinity"):
            engine.statistics_together([frame["fine"], frame["bad"]])
    word = FloatWord(frame["bad"], 0.0, 0.0, 1.0, 0, -1)
    with pytest.raises(DataError, match="column 'bad' holds an infinity"):
        engine.pack(6000, 1, [], [word])


def test_rows_without_values_and_frames_without_rows(stand_in, engine):
    nothing = pd.DataFrame(
        {"text": pd.array([], pd.ArrowDtype(pa.string())), "x": pd.array([], pd.ArrowDtype(pa.float32()))}
    )
    nulls = nothing.reindex(range(3))
    for frame in (nothing, nulls):
        device = stand_in.from_pandas(frame)
        known = on_pandas.value_counts(table()["text"])["value"]
        assert plain(engine.coded(device["text"])) == plain(on_pandas.coded(frame["text"]))
        assert engine.positions_in(device["text"], stand_in.Series(known)).held.tolist() == [-1] * len(frame)
        assert engine.column_statistics(device["x"]) == on_pandas.column_statistics(frame["x"])
        word = FloatWord(device["x"], 0.5, 0.0, 0.0, 0, 1)
        assert engine.pack(len(frame), 2, [], [word]).held.view(np.float32).tolist() == [[0.5, 1.0]] * len(frame)


def test_floats_become_the_text_that_pandas_writes(stand_in, engine):
    """Two floats are two categories, though libcudf writes one text for both."""
    values = [0.1234567890123, 0.1234567890124, 7.0, None, 1e-7]
    frame = pd.DataFrame({"x": pd.array(values, pd.ArrowDtype(pa.float64()))})
    found = _cast_text(stand_in.from_pandas(frame)["x"], ".")
    assert found.held.tolist()[:3] == ["0.1234567890123", "0.1234567890124", "7"]
    assert found.isna().held.tolist() == [False, False, False, True, False]
    assert found.held.tolist()[4] == _cast_text(pd.Series(values), ".").tolist()[4]


def test_values_whose_hashes_collide_are_told_apart(stand_in, engine, monkeypatch):
    """With a hash of 5 values: the exact path takes over, and says so."""
    frame = table()
    real = stand_in.Series.hash_values

    def poor(self, method):
        return stand_in.Series(stand_in._pandas(stand_in.ndarray(real(self, method).held.to_numpy() % np.uint64(5))))

    monkeypatch.setattr(stand_in.Series, "hash_values", poor)
    device = stand_in.from_pandas(frame)["text"]
    loud = pytest.warns(UserWarning, match="two of its values have one 64-bit hash")
    with loud if engine.__name__.endswith("cudf") else contextlib.nullcontext():
        assert plain(engine.coded(device)) == plain(on_pandas.coded(frame["text"]))
    counted = on_pandas.value_counts(frame["text"])["value"]
    with loud if engine.__name__.endswith("cudf") else contextlib.nullcontext():
        found = engine.positions_in(device, stand_in.Series(counted))
    assert found.held.tolist() == on_pandas.positions_in(frame["text"], counted).tolist()
    # Three known values whose hashes differ, and 41 others that have one of these.
    hashes = on_pandas.hash64(counted).view(np.uint64) % 5
    few = counted.iloc[[int(np.flatnonzero(hashes == number)[0]) for number in (0, 2, 4)]].reset_index(drop=True)
    found = engine.positions_in(device, stand_in.Series(few))
    assert found.held.tolist() == on_pandas.positions_in(frame["text"], few).tolist()


def test_a_fit_reads_once_a_partition_and_pass(stand_in, engine):
    """Medians, scales and nulls of all float columns: two passes over two partitions."""
    from gigabatch.features.refit.statistics import FillAndScale
    from gigabatch.features.workflow.fit import fit_together

    operators = {name: FillAndScale(name) for name in ("x", "y", "z")}
    parts = [table(3000), table(2000)]
    expected = fit_together(operators, parts, lambda frame: frame)
    devices = [stand_in.from_pandas(part) for part in parts]
    engine_frame.load_engine(engine.__name__.rpartition(".")[2])
    assert engine_frame.engine_of(devices[0]) is engine
    with stand_in.counted() as cost:
        found = fit_together(operators, devices, lambda frame: frame)
    assert found == expected
    if engine.__name__.endswith("cudf"):
        assert (cost.reads, cost.launches) == (2, 8)  # the tables of a second pass stay there
    else:
        assert cost.reads > 50


def test_once_asked_for_the_plain_engine_stands_for_all_cudf_frames(stand_in):
    frame = stand_in.from_pandas(table(5))
    assert engine_frame.engine_of(frame) is engine_frame.load_engine("cudf")
    plain_engine = engine_frame.load_engine("cudf_plain")
    assert plain_engine.__name__.endswith("cudf_plain")
    assert engine_frame.engine_of(frame) is plain_engine
    assert engine_frame.load_engine("cudf") is plain_engine


# Of features/exact on CuPy's arrays, 5,000 values: launches, reads, temporaries.
EXACT = {
    "sum of float64": (lambda values: ExactSum.of(values.astype("float64")), (25, 8, 13)),
    "sum of float32": (ExactSum.of, (24, 8, 12)),
    "sum of integers": (lambda values: ExactSum.of(values.astype("int64")), (9, 2, 7)),
    "sum of squares": (lambda values: sum_of_squares(values.astype("float64")), (42, 12, 24)),
    "statistics": (ColumnStatistics.of, (77, 24, 42)),
    "histogram": (RadixHistogram.of, (8, 3, 4)),
    "distinct": (RadixHistogram.distinct, (22, 6, 14)),
    "median": (lambda values: selected(Search.start(RadixHistogram.of(values), [2500]), [values]).values().tolist(),
               (31, 7, 19)),
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_exact_sums_and_ranks_of_cupy_arrays_are_those_of_numpy_at_a_bounded_cost(stand_in, name):
    function, costs = EXACT[name]
    values = np.random.default_rng(1).normal(size=ROWS).astype(np.float32)
    device = stand_in.fresh(values.copy())
    with stand_in.counted() as cost:
        found = function(device)
    assert found == function(values)
    assert (cost.launches, cost.reads, cost.temporaries) == costs, cost
