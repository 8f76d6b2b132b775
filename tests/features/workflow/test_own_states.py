"""States of a user's operators: what is loaded is what was fitted, or the folder is not written."""

import datetime
import hashlib
import json
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch import FittedOperator, Workflow
from gigabatch.features.errors import DataError
from gigabatch.features.operators import OWN, register_operator
from gigabatch.features.operators.numbers.clip import Clip
from gigabatch.features.workflow.state import StateReader
from gigabatch.features.workflow.steps import to_steps

FRAME = pd.DataFrame({"shop": [0, 2, 3, 5], "km": [10.0, 20.0, 30.0, 50.0]})


class Given(FittedOperator):
    """An operator whose state is what the test sets."""

    reads, writes = ("column",), ("output",)

    def __init__(self, column: str, output: str) -> None:
        self.column, self.output = column, output

    def partial(self, frame):
        return 0

    def merge(self, left, right):
        return left

    def finish(self, partial):
        return partial

    def columns(self, frame, state):
        return {self.output: frame[self.column]}


class GroupMean(Given):
    reads = ("column", "by")

    def __init__(self, column: str, by: str, output: str) -> None:
        self.column, self.by, self.output = column, by, output

    def partial(self, frame):
        return frame.groupby(self.by)[self.column].agg(["sum", "count"])

    def merge(self, left, right):
        return left.add(right, fill_value=0)

    def finish(self, partial):
        return partial["sum"] / partial["count"]

    def columns(self, frame, state):
        return {self.output: frame[self.by].map(state)}


@pytest.fixture(scope="module", autouse=True)
def registered():
    register_operator("given_state")(Given)
    register_operator("mean_of_group")(GroupMean)
    yield
    for name in ("given_state", "mean_of_group"):
        del OWN.kinds[name]


def loaded(state, folder):
    workflow = Workflow([Given("km", "out")])
    workflow.states = {0: state}
    workflow.save(folder)
    return Workflow.load(folder).states[0]


def require_equal(found, state):
    """Equal by pandas' and NumPy's own comparison, with types."""
    assert type(found) is type(state)
    if isinstance(state, pd.DataFrame):
        pd.testing.assert_frame_equal(found, state, check_exact=True)
    elif isinstance(state, pd.Series):
        pd.testing.assert_series_equal(found, state, check_exact=True)
    elif isinstance(state, np.ndarray):
        assert found.dtype == state.dtype
        if state.dtype == object:
            require_equal(list(found), list(state))
        else:
            np.testing.assert_array_equal(found, state)
    elif isinstance(state, dict):
        assert [*map(repr, found)] == [*map(repr, state)]
        for left, right in zip(found.values(), state.values(), strict=True):
            require_equal(left, right)
    elif isinstance(state, Means):
        require_equal((found.by_city, found.table), (state.by_city, state.table))
    elif isinstance(state, list | tuple):
        assert len(found) == len(state)
        for left, right in zip(found, state, strict=True):
            require_equal(left, right)
    else:
        assert repr(found) == repr(state)


def test_a_mean_of_each_group_is_served_as_it_was_fitted(tmp_path):
    workflow = Workflow.from_steps([{"mean_of_group": {"column": "km", "by": "shop", "output": "usual"}}]).fit([FRAME])
    workflow.save(tmp_path)
    assert Workflow.load(tmp_path).transform(FRAME)["usual"].tolist() == FRAME["km"].tolist()


DAYS = pd.DatetimeIndex(["2026-03-29", "2026-10-25"], dtype="datetime64[ns]", name="day")
SECONDS = DAYS.as_unit("s")
INDEXES = {
    "text": pd.Index(["b", "a"], name="city"),
    "whole": pd.Index([3, 1], name="shop"),
    "small": pd.Index([3, 1], dtype="int8"),
    "floats": pd.Index([0.5, np.nan]),
    "counted floats": pd.Index([0.0, 1.0]),
    "flags": pd.Index([True, False]),
    "days": DAYS,
    "each day": pd.date_range("2026-03-28", periods=2, unit="ns"),
    "zone": DAYS.tz_localize("Europe/Berlin"),
    "ranged": pd.RangeIndex(4, 8, 2),
    "named": pd.RangeIndex(2, name="row"),
    "classes": pd.CategoricalIndex(["b", "a"], categories=["b", "a", "c"], ordered=True),
    "cuts": pd.interval_range(0, 2),
    "dates": pd.Index([datetime.date(2026, 3, 29), datetime.date(2026, 3, 30)]),
    "mixed": pd.Index(["a", 1], dtype=object),
    "bytes": pd.Index([b"a", b"b"], dtype=object),
    "object text": pd.Index(["b", "a"], dtype=object, name="city"),
    "seconds": SECONDS,
    "each second": pd.date_range("2026-03-28", periods=2, freq="s", unit="s"),
    "object text and seconds": pd.MultiIndex.from_arrays([pd.Index(["b", "a"], dtype=object), SECONDS]),
    "two": pd.MultiIndex.from_tuples([("b", 1), ("a", 2)], names=["city", None]),
    "two of a name": pd.MultiIndex.from_tuples([("b", 1.5), ("a", 2.5)], names=["x", "x"]),
    "days of shops": pd.MultiIndex.from_arrays([DAYS, [1, 2]]),
    "default": pd.RangeIndex(2),
}


@dataclass(frozen=True)
class Means:
    by_city: dict[str, list[float]]
    table: Any


EXACT = {
    "series of a pair": pd.Series([1], name=("a", 1)),
    "scalars": [np.bool_(True), np.float32(1.5), np.float64(0.1), np.int64(2**62), np.uint8(3), np.str_("x")],
    "scalar keys": {np.int64(3): 1.5},
    "two levels": FRAME.groupby("shop").agg({"km": ["sum", "count"]}),
    "pivot": pd.DataFrame({"a": ["x", "y"], "b": ["u", "u"], "c": [1.0, 2.0]}).pivot(
        index="a", columns="b", values="c"
    ),
    "days": np.array(["2024-01-01"], "datetime64[D]"),
    "texts": np.array(["a", "bb"]),
    "one name twice": pd.DataFrame([[1, 2]], columns=["a", "a"]),
    "whole names": pd.DataFrame([[1, 2]], columns=[0, 1]),
    "text among objects": pd.DataFrame({"a": pd.Series(["x", np.nan], dtype=object), "b": ["x", None]}),
    "whole numbers among objects": pd.Series([1, 2], pd.Index([2, 1], dtype=object), dtype=object),
    "seconds": pd.Series(SECONDS),
    "seconds of a zone": pd.DataFrame({"a": SECONDS.tz_localize("Europe/Berlin")}, SECONDS.tz_localize("+01:00")),
    "counted names": pd.DataFrame(np.eye(2)),
    "names in steps": pd.DataFrame(np.eye(2), columns=pd.RangeIndex(1, 5, 2)),
    "fields of tables": Means({"a": [np.float64(0.5), -0.0, math.nan]}, pd.DataFrame(np.eye(2))),
    "0 and '0'": pd.DataFrame([[1, 2]], columns=[0, "0"]),
    "no rows": FRAME.groupby("shop").mean().head(0),
}


@pytest.mark.parametrize("name", INDEXES)
def test_an_index_is_kept_or_the_folder_is_refused(tmp_path, name):
    for number, state in enumerate((pd.Series([1.5, 2.5], INDEXES[name]), pd.DataFrame({"a": [1, 2]}, INDEXES[name]))):
        if name == "mixed":
            with pytest.raises(DataError, match=r"step 1 \(given_state\) cannot be saved: .*own_code\.md"):
                loaded(state, tmp_path / str(number))
        else:
            require_equal(loaded(state, tmp_path / str(number)), state)


@pytest.mark.parametrize("name", EXACT)
def test_what_is_kept_comes_back_with_its_types(tmp_path, name):
    require_equal(loaded(EXACT[name], tmp_path), EXACT[name])


@dataclass
class Loose:
    mean: float


@dataclass(frozen=True)
class AnyField:
    mean: Any


@dataclass(frozen=True)
class Whole:
    mean: int


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (Loose(1.5), r"Loose is not frozen\. Write @dataclass\(frozen=True\)"),
        (AnyField(1.5), r"AnyField\.mean is annotated Any.*Annotate it as float"),
        (Whole(1.5), r"its state could not be read again: Whole\.mean: expected a whole number, found 1\.5"),
        (np.array([1 + 1j]), "Parquet cannot hold a ndarray of these values"),
        (np.complex128(1j), "a value of type complex128"),
        (np.longdouble(1), "a value of type longdouble"),
        (Counter("ab"), r"its state is 'Counter of 2' and would come back as 'dict of 2'"),
        ({"means": [np.array(["a", None], object)]}, r"its state\['means'\]\[0\]\[1\] is 'NoneType None' and would"),
        (
            {"a": [1, (2, Counter("b"))]},
            r"its state\['a'\]\[1\]\[1\] is 'Counter of 1' and would come back as 'dict of 1'",
        ),
        (pd.Series([[1, 2]]), r"its state: column 'value'\[0\] is 'list of 2' and would come back as 'array'"),
        (
            pd.Series(["a", None], dtype=object),
            r"its state: column 'value'\[1\] is 'NoneType None' and would come back as",
        ),
    ],
)
def test_what_would_come_back_otherwise_is_refused(tmp_path, state, reason):
    with pytest.raises(DataError, match=rf"^step 1 \(given_state\) cannot be saved: {reason}"):
        loaded(state, tmp_path)


VALUES = st.sampled_from([
    pd.array([1, 2]), pd.array([1.5, np.nan]), pd.array([True, None], dtype="boolean"), np.float32([1, -0.0]),
    pd.array([1, None], dtype="Int8"), pd.array([0.5, None], dtype="Float64"), pd.array([1, None], "int64[pyarrow]"),
    pd.array(["a", None], dtype="str"), pd.array(["a", None], dtype="string"), pd.array(["a", None], dtype=object),
    pd.Categorical(["b", "a"]), pd.Categorical([2, None]), np.float16([1, 2]), DAYS, DAYS.as_unit("s"),
    pd.to_timedelta([1, 2], unit="s"), pd.period_range("2024-01", periods=2, freq="M"), pd.arrays.SparseArray([0, 1]),
    pd.array([datetime.date(2024, 1, 1), None], dtype=object), pd.array([b"x", "y"], dtype=object),
    pd.array([[1], [2]], dtype=object), np.uint64([2**63 + 5, 0]), np.complex128([1j, 0]),
])  # fmt: skip
NAMES = st.none() | st.text(max_size=3) | st.integers(-3, 3) | st.tuples(st.text(max_size=1), st.integers(0, 1))
SERIES = st.builds(lambda values, index, name: pd.Series(values, INDEXES[index], name=name),
                   VALUES, st.sampled_from([*INDEXES]), NAMES)  # fmt: skip


@st.composite
def frames(draw):
    index, columns = INDEXES[draw(st.sampled_from([*INDEXES]))], draw(st.lists(VALUES, max_size=3))
    found = (
        pd.concat([pd.Series(values, index) for values in columns], axis=1) if columns else pd.DataFrame(index=index)
    )
    labels = draw(st.lists(NAMES | st.floats(), min_size=len(columns), max_size=len(columns)))
    found.columns = pd.Index(labels, name=draw(NAMES), tupleize_cols=draw(st.booleans()))
    return found


ARRAYS = VALUES.map(lambda values: np.asarray(pd.Series(values)))
SCALARS = st.sampled_from(
    [np.float64(-0.0), np.float16("nan"), np.uint64(2**63), np.bytes_(b"x"), np.datetime64("2024")]
)
TABLES = SERIES | frames() | ARRAYS
STATES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | SCALARS | TABLES,
    lambda inside: st.lists(inside, max_size=3) | st.tuples(inside, inside)
    | st.dictionaries(NAMES | st.booleans(), inside, max_size=3) | st.frozensets(st.integers(), max_size=2),
    max_leaves=5,
)  # fmt: skip


@settings(deadline=None, max_examples=100)
@given(STATES)
def test_a_state_comes_back_as_it_is_or_is_not_saved(tmp_path_factory, state):
    try:
        found = loaded(state, tmp_path_factory.mktemp("state", numbered=True))
    except DataError as error:
        assert str(error).startswith("step 1 (given_state) cannot be saved: ")  # noqa: PT017
        return
    require_equal(found, state)


@dataclass(frozen=True)
class Told:
    """Fields that say what they are, as a user's sums of a column do."""

    total: int
    mean: float
    share: float | None
    full: bool
    by_shop: dict[int, float]


class GivenTold(Given):
    def __init__(self, column: str, output: str, by: int = 1, bounds: tuple[float, ...] = (), told: Told | None = None):
        super().__init__(column, output)
        self.by, self.bounds, self.told = by, bounds, told

    def columns(self, frame, state: Told):
        return {self.output: frame[self.column] - state.total * self.by}


NUMPY = Told(np.int64(110), np.float32(27.5), np.int8(3), np.bool_(True), {np.int64(3): np.float64(0.5)})


def test_annotated_fields_may_hold_scalars_of_numpy(tmp_path, monkeypatch):
    monkeypatch.setattr(OWN, "kinds", OWN.kinds | {"given_told": GivenTold})
    workflow = Workflow([GivenTold("km", "out")])
    workflow.states = {0: NUMPY}
    workflow.save(tmp_path)
    assert repr(Workflow.load(tmp_path).states[0]) == repr(NUMPY)
    for wrong in (
        Told(np.float64(1.5), 1, 1, True, {}),
        Told(1, np.bool_(True), 1, True, {}),
        Told(1, 1, 1, np.int64(1), {}),
    ):
        workflow.states = {0: wrong}
        with pytest.raises(DataError, match=r"cannot be saved: its state could not be read again: Told\.\w+: expected"):
            workflow.save(tmp_path / "wrong")


def test_settings_of_scalars_of_numpy_are_numbers_of_python(tmp_path, monkeypatch):
    monkeypatch.setattr(OWN, "kinds", OWN.kinds | {"given_told": GivenTold})
    step = GivenTold("km", "out", np.int64(2), (np.float32(0.5), np.array(1.5)), NUMPY)
    clip = Clip("km", np.float64(15), np.int64(30))
    workflow = Workflow([step, clip])
    workflow.states = {0: NUMPY}
    workflow.save(tmp_path)
    found, clipped = Workflow.load(tmp_path).steps
    told = Told(110, 27.5, 3, True, {3: 0.5})
    assert repr(found.settings()) == repr(
        {"column": "km", "output": "out", "by": 2, "bounds": (0.5, 1.5), "told": told}
    )
    assert repr(clipped) == "Clip(column='km', low=15.0, high=30, output='km')"
    assert repr(to_steps([clip])) == "[{'clip': {'column': 'km', 'low': 15.0, 'high': 30, 'output': 'km'}}]"


def test_a_folder_of_an_earlier_version_is_read(tmp_path):
    pd.DataFrame({"value": [1.5, 2.5]}).to_parquet(tmp_path / "step-001-0.parquet")
    content = (tmp_path / "step-001-0.parquet").read_bytes()
    files = {"step-001-0.parquet": {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}}
    reader = StateReader(tmp_path, files, "pandas")
    text = '{"dict": [["a", {"array": "step-001-0.parquet"}], ["f", {"frame": "step-001-0.parquet"}],' \
        '["s", {"series": {"file": "step-001-0.parquet", "name": "x"}}]]}'  # fmt: skip
    expected = {
        "a": np.array([1.5, 2.5]),
        "f": pd.DataFrame({"value": [1.5, 2.5]}),
        "s": pd.Series([1.5, 2.5], name="x"),
    }
    require_equal(reader.decode(json.loads(text), Given), expected)


@pytest.mark.parametrize("dtypes", [["value"], {"other": "object"}, {"value": "int8"}, {"value": 1}])
def test_other_types_of_columns_are_refused(tmp_path, dtypes):
    pd.DataFrame({"value": [1.5, 2.5]}).to_parquet(tmp_path / "step-001-0.parquet")
    content = (tmp_path / "step-001-0.parquet").read_bytes()
    files = {"step-001-0.parquet": {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}}
    table = {"file": "step-001-0.parquet", "dtypes": dtypes}
    for saved in ({"frame": table}, {"series": table | {"name": None}}, {"array": table}):
        with pytest.raises(DataError, match=r"^dtypes: expected columns and their types, found "):
            StateReader(tmp_path, files, "pandas").decode(saved, Given)


def test_a_folder_that_is_not_there_is_said_to_be_so(tmp_path):
    with pytest.raises(DataError, match=r"^workflow .*/nowhere: there is no such folder\."):
        Workflow.load(tmp_path / "nowhere")
