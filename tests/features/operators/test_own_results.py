"""What an operator of a user gives: its outputs alone, each row at its own place, made of what it says it reads."""

import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.preprocessing import StandardScaler

from gigabatch import ColumnOperator, FittedOperator, Operator, Workflow
from gigabatch.features.engines.shared_memory import holds_columns_of
from gigabatch.features.errors import DataError
from gigabatch.features.operators.missing.drop_nulls import DropNulls

FRAME = pd.DataFrame({"z": [3.0, 1.0, 2.0], "hours": [2.0, 2.0, 4.0], "km": [7.0, 8.0, 9.0], "r": [0, 1, 0]})
KEPT = FRAME.iloc[[0, 2]]  # as a filter leaves it


class Own(ColumnOperator):
    reads, writes = ("column", "by"), ("output",)

    def __init__(self, column="z", by="hours", output="speed"):
        self.column, self.by, self.output = column, by, output


def own(body, *arguments):
    """An operator whose `compute` is this function."""
    return type("Boom", (Own,), {"compute": body, "__module__": __name__})(*arguments)


def share(**methods):
    """A fitted operator with these methods in the place of its own."""

    class Boom(FittedOperator):
        reads, writes = ("column",), ("output",)

        def __init__(self, column="z", output="share"):
            self.column, self.output = column, output

        def partial(self, frame):
            return float(frame[self.column].max())

        def merge(self, left, right):
            return max(left, right)

        def finish(self, partial):
            return partial

        def columns(self, frame, state):
            return {self.output: frame[self.column] / state}

    for name, method in methods.items():
        setattr(Boom, name, method)
    return Boom()


OTHER_ROWS = {
    "index of its own": lambda s, f: {s.output: pd.Series(f[s.column].to_numpy())},
    "sorted": lambda s, f: {s.output: f[s.column].sort_values().reset_index(drop=True)},
    "another order": lambda s, f: {s.output: f[s.column].iloc[::-1]},
    "too few": lambda s, f: {s.output: f[s.column].head(1)},
    "twice": lambda s, f: {s.output: pd.concat([f[s.column]] * 2)},
    "short array": lambda s, f: {s.output: f[s.column].to_numpy()[:1]},
    "long list": lambda s, f: {s.output: [0.0] * 3},
}


@pytest.mark.parametrize("case", OTHER_ROWS)
def test_a_column_of_other_rows_is_an_error(case):
    with pytest.raises(DataError, match=r"Boom.compute: 'speed': returned (\d row\(s\) for 2|another index)"):
        own(OTHER_ROWS[case])(KEPT)
    with pytest.raises(DataError, match="at its own place"):
        Workflow([own(OTHER_ROWS[case])]).transform(KEPT)


@pytest.mark.parametrize(
    "column",
    [
        lambda f: f["z"] * 2,
        lambda f: pd.Series([6.0, 4.0], index=[0, 2]),
        lambda f: f["z"].to_numpy() * 2,
        lambda f: [6.0, 4.0],
        lambda f: pd.array([6.0, 4.0]),
    ],
)
def test_columns_of_its_rows_and_arrays_of_their_number_are_taken(column):
    found = own(lambda s, f: {s.output: column(f)})(KEPT)
    assert found["speed"].tolist() == [6.0, 4.0]
    assert found.index.tolist() == [0, 2]


@pytest.mark.parametrize("value", [1.5, "ab", np.float32(1.5), np.array(1.5)])
def test_a_scalar_stands_for_every_row(value):
    assert own(lambda s, f: {s.output: value})(KEPT)["speed"].tolist() == [value, value]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda s, f: {s.output: 1.0, "km": 0.0, "r": 1}, "Boom.compute returned 'km', 'r'; .* are 'speed'"),
        (lambda s, f: {}, "Boom.compute did not return 'speed'"),
        (lambda s, f: None, "Boom.compute returned None, expected a dict of columns"),
        (lambda s, f: f[[s.column]], "Boom.compute returned DataFrame, expected a dict of columns"),
    ],
)
def test_what_are_not_the_outputs_is_an_error(result, message):
    with pytest.raises(DataError, match=message):
        own(result)(FRAME)
    with pytest.raises(DataError, match=message):
        Workflow([own(result)]).transform(FRAME)


@pytest.mark.parametrize(
    "read", [lambda f: f["r"], lambda f: f[["z", "r"]]["r"], lambda f: f[["r"]]["r"], lambda f: f.r]
)
def test_a_column_that_it_does_not_say_it_reads_is_an_error(read):
    with pytest.raises(
        DataError, match=r"Boom.compute reads column 'r', which .* `reads` lists; it lists 'z', 'hours'"
    ):
        own(lambda s, f: {s.output: read(f)})(FRAME)


def test_an_error_of_its_own_stays_what_it_is():
    with pytest.raises(KeyError, match="nowhere"):
        own(lambda s, f: {}["nowhere"])(FRAME)


def test_what_it_assigns_reaches_no_other_step():
    def careless(self, frame):
        frame[self.column] = 0.0
        frame["km"] = -1.0
        frame["r"] = 1
        return {self.output: frame[self.by] * 2}

    later = own(lambda s, f: {s.output: f[s.column] + f[s.by]}, "z", "km", "later")
    found = Workflow([own(careless), later]).transform(FRAME)
    assert found["speed"].tolist() == [4.0, 4.0, 8.0]
    assert found["later"].tolist() == [10.0, 9.0, 11.0]
    assert found[FRAME.columns].equals(FRAME)


def test_operators_that_learn_are_held_to_the_same():
    cases = {
        "Boom.partial reads column 'r'": share(partial=lambda s, f: float(f["r"].max())),
        "Boom.columns reads column 'r'": share(columns=lambda s, f, state: {s.output: f["r"]}),
        "Boom.columns returned None": share(columns=lambda s, f, state: None),
        "Boom.columns returned 'km'": share(columns=lambda s, f, state: {s.output: 1.0, "km": 0.0}),
        r"Boom.columns: 'share': returned another index": share(
            columns=lambda s, f, state: {s.output: f[s.column].reset_index(drop=True)}
        ),
        "Boom.train_columns: 'share': returned 1": share(train_columns=lambda s, f, state: {s.output: f["z"].head(1)}),
    }
    for message, operator in cases.items():
        with pytest.raises(DataError, match=message):
            operator.apply_to_train(KEPT, operator.fit([KEPT]))
        with pytest.raises(DataError, match=message):
            Workflow([operator]).fit_transform([KEPT])


def test_what_partial_assigns_reaches_no_other_operator():
    def careless(self, frame):
        frame[self.column] = 9.0
        return 1.0

    careless, other = share(partial=careless), share()
    other.output = "other"
    found = Workflow([careless, other]).fit_transform([FRAME])
    assert pd.concat(found)["other"].tolist() == [1.0, 1 / 3, 2 / 3]


def transforming(body, changes=False):
    """An operator that reads `z` and writes `speed` by this `transform`."""
    methods = {"transform": lambda s, f: body(f), "inputs": ("z",), "outputs": ("speed",), "changes_rows": changes}
    return type("Free", (Operator,), methods | {"__module__": __name__})()


def in_place(frame):
    frame["r"] = 1
    return frame.assign(speed=1.0)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (in_place, "Free.transform returned other values in column 'r', which is none of the outputs"),
        (lambda f: f.assign(speed=1.0, r=f["z"] > 1), "other values in column 'r'"),
        (lambda f: f.assign(speed=1.0, r=f["r"].astype("float64")), "other values in column 'r'"),
        (lambda f: f.sort_values("z").reset_index(drop=True).assign(speed=1.0), "or the rows in another order"),
        (lambda f: f.sort_values("z").assign(speed=1.0), r"returned another index than that of its frame"),
        (lambda f: f[f["z"] > 1].assign(speed=1.0), r"returned 2 row\(s\) for 3.* `changes_rows = True`"),
        (lambda f: f.assign(speed=1.0, more=f["r"]), "Free.transform returned 'more'; .* are 'speed'"),
        (lambda f: f, "Free.transform: its result: .*speed"),
        (lambda f: None, "Free.transform returned None, expected a frame"),
        (lambda f: f["z"], "Free.transform returned Series, expected a frame"),
    ],
)
def test_an_operator_leaves_what_it_does_not_name_as_it_was(body, message):
    """It could give every row another label, or rows in the order of a column."""
    with pytest.raises(DataError, match=message):
        transforming(body)(FRAME)
    with pytest.raises(DataError, match=message):
        Workflow([transforming(body)]).transform(FRAME)


@pytest.mark.parametrize(
    ("body", "changes", "expected"),
    [
        (lambda f: f.assign(speed=f["z"] * 2), False, [6.0, 2.0, 4.0]),
        (lambda f: f.assign(speed=f["z"] * 2)[["speed", "r"]], False, [6.0, 2.0, 4.0]),
        (lambda f: f[f["z"] > 1].assign(speed=f["z"]), True, [3.0, 2.0]),
        (lambda f: f.sort_values("z").reset_index(drop=True).assign(speed=f["z"]), True, [3.0, 1.0, 2.0]),
    ],
)
def test_an_operator_that_does_so_is_taken(body, changes, expected):
    frame = FRAME.assign(r=[None, "a", "b"])
    before = frame.copy()
    assert transforming(body, changes)(frame)["speed"].tolist() == expected
    pd.testing.assert_frame_equal(frame, before)


@pytest.mark.parametrize("again", [lambda f: f, lambda f: f.take(range(len(f)))])
@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1.0, math.nan, None], pa.float32()),
        ([[1.0, math.nan], None, []], pa.list_(pa.float64())),
        ([1, None, 3], pa.decimal128(25, 2)),
        (["a", None, "b"], pa.string()),
    ],
)
def test_a_column_of_arrow_that_is_left_alone_is_no_other(values, dtype, again):
    frame = FRAME.assign(r=pd.Series(pa.array(values, dtype, from_pandas=False), dtype=pd.ArrowDtype(dtype)))
    assert transforming(lambda f: again(f).assign(speed=f["z"]))(frame)["speed"].tolist() == [3.0, 1.0, 2.0]
    with pytest.raises(DataError, match="other values in column 'r'"):
        transforming(lambda f: f.assign(speed=1.0, r=f["r"].iloc[[0, 0, 0]].set_axis(f.index)))(frame)


def test_memory_tells_columns_that_were_left_alone():
    frame = FRAME.assign(name=["a", "b", None], day=pd.date_range("2026-01-01", periods=3, tz="UTC"))
    assert holds_columns_of(frame.assign(speed=1.0), frame)
    for changed in (FRAME.assign(z=1.0), FRAME.assign(z=FRAME["hours"]), FRAME[["km", "hours", "z", "r"]], FRAME[::-1]):
        assert not holds_columns_of(changed, FRAME)
    assert not holds_columns_of(frame.assign(name=["a", "c", None]), frame)
    assert not holds_columns_of(FRAME.rename(columns={"z": "y"}), FRAME)


def merged(frame):
    return frame.merge(pd.DataFrame({"z": [3.0, 2.0], "speed": [5, 6]}), on="z", how="left")


def test_a_merge_keeps_the_rows_at_their_places():
    found = Workflow([DropNulls(["name"]), transforming(merged)]).transform(FRAME.assign(name=["a", None, "b"]))
    assert found["speed"].to_dict() == {0: 5, 2: 6}  # under the index that the filter left
    with pytest.raises(DataError, match="or the rows in another order"):
        transforming(lambda f: merged(f)[::-1].reset_index(drop=True))(KEPT)


def test_changes_rows_is_named_only_where_their_count_differs():
    with pytest.raises(DataError, match="another index than that of its frame") as raised:
        transforming(lambda f: f.set_axis([5, 7]).assign(speed=1.0))(KEPT)
    assert "changes_rows" not in str(raised.value)


@pytest.mark.parametrize(
    ("give", "what"),
    [
        (lambda column: column.astype("Sparse[float64]"), "a sparse column"),
        (lambda column: np.stack([column, column], axis=1), "an array of 2 dimensions"),
        (lambda column: column.to_numpy()[None], "an array of 2 dimensions"),
        (lambda column: column.to_numpy()[:, None, None], "an array of 3 dimensions"),
        (lambda column: (value for value in column), "a generator"),
    ],
)
def test_what_can_be_no_column_is_an_error(give, what):
    workflow = Workflow([own(lambda self, frame: {"speed": give(frame["z"])})])
    with pytest.raises(DataError, match=rf"^step 1 \(boom\): Boom\.compute: 'speed' is {what}\. Return a dense"):
        workflow.transform(FRAME)


def test_an_array_of_one_column_is_a_column():
    workflow = Workflow([own(lambda self, frame: {"speed": StandardScaler().fit_transform(frame[["z"]])})])
    found = workflow.transform(FRAME)["speed"]
    pd.testing.assert_series_equal(found, (FRAME["z"] - 2) / (2 / 3) ** 0.5, check_names=False)
