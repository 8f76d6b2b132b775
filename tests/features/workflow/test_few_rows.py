"""A few rows through many steps: what `transform` gives, with like steps as one."""

import re

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.errors import DataError
from gigabatch.features.operators import (
    CleanText,
    DateParts,
    FillMissing,
    Filter,
    HashBucket,
    JoinExternal,
    ParseNumber,
    Rename,
    operator_class,
    operator_names,
)
from gigabatch.features.operators.base import ColumnOperator
from gigabatch.features.reading.sources import cast
from gigabatch.features.workflow.flow import alike
from gigabatch.features.workflow.workflow import Workflow
from gigabatch.pipeline.serving.errors import Refusal
from tests.pipeline.serving.small_bundles import raw_rows_of

TEXTS = {
    "CleanText": (["Oslo ", None, "BONN"], ["oslo"], {"case": "lower"}),
    "ParseNumber": (["$1,027.62", None, "(3)", ""], ["7"], {}),
    "ParseDuration": (["02:13", None], ["1:02:13"], {}),
    "DateParts": (["2026-03-01T08:30:00", None], ["2026-03-01 08:30:00.5+02:00"], {"parts": ["hour", "year"]}),
    "TextHash": (["Red shoes, a long one", None], ["x"], {"num_buckets": 4, "letters": 3}),
}


def values(column):
    """A column's values as Python has them, None for null."""
    return [None if pd.isna(value) else value for value in column.tolist()]


def test_operators_by_value_make_of_columns_end_to_end_what_they_make_of_each():
    known = [operator_class(name) for name in operator_names()]
    kinds = [kind for kind in known if issubclass(kind, ColumnOperator) and kind.by_value]
    assert {kind.__name__ for kind in kinds} == set(TEXTS)
    for kind in kinds:
        one, other, settings = TEXTS[kind.__name__]
        named = {"prefix": "p"} if kind.__name__ in ("DateParts", "TextHash") else {}
        step = kind("x", **settings, **named)
        assert step.inputs == ("x",)
        parts = [step(pd.DataFrame({"x": pd.array(texts, "str")})) for texts in (one, other)]
        whole = step(pd.DataFrame({"x": pd.array(one + other, "str")}))
        for name in step.outputs:
            assert values(whole[name]) == values(parts[0][name]) + values(parts[1][name]), (kind, name)


def test_steps_go_together_that_do_the_same_to_other_columns_and_none_overtakes_another():
    def groups(*steps):
        return alike(steps, [step.outputs for step in steps])

    a, b = CleanText("a", case="lower"), CleanText("b", case="lower")
    assert groups(a, b) == [[0, 1]]
    assert groups(a, CleanText("b", case="upper")) == [[0], [1]]
    assert groups(a, HashBucket("a", 8, "h"), b) == [[0, 2], [1]]  # a hash of what is cleaned
    assert groups(HashBucket("a", 8, "h"), a, b) == [[0], [2], [1]]  # a hash of what is not
    assert groups(CleanText("a", "x", case="lower"), a, b) == [[0, 2], [1]]
    assert groups(a, CleanText("a", "x", case="lower")) == [[0], [1]]
    assert groups(CleanText("a", "x", case="lower"), CleanText("b", "x", case="lower")) == [[0], [1]]
    assert groups(a, Filter("b", ">", 1)) is None


def test_a_few_rows_are_those_of_transform():
    columns = {"a": ["$1", None], "b": ["2", "$3"], "c": [1.0, None], "d": ["2026-03-01", "2026-04-02"]}
    columns |= {"e": ["2026-05-03", None], "f": pd.Categorical(["4", "5"])}
    frame = pd.DataFrame(columns, index=[7, 9])
    steps = [
        HashBucket("a", 100, "raw"), ParseNumber("a"), ParseNumber("b"), ParseNumber("f", "g"), FillMissing("c"),
        DateParts("d", ["hour", "day"], "d"), DateParts("e", ["hour", "day"], "e"), CleanText("d", "text"),
    ]  # fmt: skip
    workflow = Workflow(steps).fit([frame])
    wanted = workflow.transform(frame)
    found = workflow.of_few_rows(dict(frame.items()))
    assert set(found) == set(wanted.columns)
    for name in wanted.columns:
        assert values(found[name]) == values(wanted[name]), name
        assert found[name].index.tolist() == [7, 9]
    assert workflow.of_few_rows(dict(frame.items()))["a"].tolist()[0] == 1.0  # what was given is as it was
    assert frame["a"].tolist()[0] == "$1"


def test_a_step_that_changes_rows_is_for_transform_and_errors_name_a_step():
    frame = pd.DataFrame({"a": ["1"], "b": ["nothing"]})
    whole = Workflow([ParseNumber("a"), ParseNumber("b")]).fit([frame.head(0)])
    with pytest.raises(DataError, match=r"step 1 \(parse_number\): .*nothing"):
        whole.of_few_rows(dict(frame.items()))
    with pytest.raises(DataError, match="not fitted"):
        Workflow([FillMissing("a")]).of_few_rows({})


def test_a_step_that_reads_no_column_is_left_to_transform():
    workflow = Workflow.from_steps(
        [{"clean_text": {"column": "city"}}, {"expression": {"expression": "1", "output": "one"}}]
    )
    row = pd.DataFrame({"city": [" Oslo"]})
    assert workflow.fit([row]).of_few_rows(dict(row.items())) is None
    assert workflow.transform(row)["one"].tolist() == [1.0]


@pytest.mark.parametrize("number", [158.412, 2.0, -0.5, 158.0, 7, None])
def test_a_number_in_place_of_text_with_a_decimal_comma_stays_that_number(number):
    step = ParseNumber("price", decimal=",", thousands=".")
    workflow = Workflow([step], [], {"price": "string"}).fit([pd.DataFrame({"price": ["1.234,5"]})])
    wanted = [1234.5, np.nan if number is None else number]
    for row in (pd.DataFrame({"price": [number]}), pd.DataFrame({"price": [number]}, dtype="float64")):
        found = workflow.transform(workflow.typed(row))["price"].tolist()
        np.testing.assert_array_equal(found, wanted[1:])
    served = raw_rows_of(workflow, ["price"], null_values=[""])([{"price": "1.234,5"}, {"price": number}])
    np.testing.assert_array_equal([np.nan if pd.isna(value) else value for (value,) in served], wanted)


@pytest.mark.parametrize(
    ("number", "text"), [(3.0, "3"), (3, "3"), (2.5, "2,5"), (-0.0, "0"), (1000.5, "1000,5"), (1e17, None)]
)
def test_a_number_kept_as_a_category_is_the_same_text_in_a_frame_and_in_a_served_row(number, text):
    step = ParseNumber("price", output="amount", decimal=",", thousands=".")
    workflow = Workflow([step], [], {"price": "string"}).fit([pd.DataFrame({"price": ["1.234,5"]})])
    serve = raw_rows_of(workflow, ["price", "amount"])
    row = pd.DataFrame({"price": [number]})
    if text is None:  # such floats skip whole numbers
        with pytest.raises(DataError, match="column 'price'"):
            workflow.typed(row)
        with pytest.raises(Refusal, match="column 'price' is declared string but holds 1e"):
            serve([{"price": number}])
        return
    assert workflow.transform(workflow.typed(row)).values.tolist() == [[text, number]]
    assert serve([{"price": number}]) == [(text, number)]


COMMA = ParseNumber("price", decimal=",", thousands=".")
MIXED = pd.Series(["2,345 €", 1.234, None, 7, np.float64(12.5), np.float32(0.25), np.float32(3), -2.0], dtype=object)
NUMBERS = [2.345, 1.234, np.nan, 7, 12.5, 0.25, 3, -2]


@pytest.mark.parametrize("steps", [
    [COMMA],
    [CleanText("price", case="lower"), COMMA],
    [CleanText("price", "copy", case="lower"), ParseNumber("copy", "price", decimal=",", thousands=".")],
    [CleanText("price", "word", case="lower"), COMMA],
    [Rename({"price": "cost"}), ParseNumber("cost", "price", decimal=",", thousands=".")],
])  # fmt: skip
@pytest.mark.parametrize("rows", [MIXED, MIXED[[1, 4]], MIXED[[1, 2]], MIXED.astype("category")])
def test_floats_among_objects_stay_numbers_beside_text_with_a_decimal_comma(steps, rows):
    workflow = Workflow(steps, [], {"price": "string"}).fit([pd.DataFrame({"price": ["1.234,5"]})])
    found = workflow.transform(workflow.typed(pd.DataFrame({"price": rows})))["price"]
    np.testing.assert_array_equal(found, np.array(NUMBERS)[rows.index])


def test_a_row_made_of_a_series_has_the_number_of_its_frame():
    workflow = Workflow([COMMA], [], {"price": "string"}).fit([pd.DataFrame({"price": ["1.234,5"]})])
    row = pd.DataFrame({"city": ["Oslo"], "price": [1.234]}).iloc[0].to_frame().T
    assert row["price"].dtype == object
    assert workflow.transform(workflow.typed(row))["price"].tolist() == [1.234]


def test_parse_number_itself_takes_floats_among_objects_as_they_are():
    np.testing.assert_array_equal(COMMA(pd.DataFrame({"price": MIXED}))["price"], NUMBERS)
    point = pd.DataFrame({"price": pd.Series(["$1,234.5", 1.234, np.float32(12.5)], dtype=object)})
    assert ParseNumber("price")(point)["price"].tolist() == [1234.5, 1.234, 12.5]


def test_the_key_of_a_joined_table_is_not_written_with_the_comma_of_what_is_joined():
    join = JoinExternal(pd.DataFrame({"key": ["12.5"], "price": ["3,5"]}), ["key"], {"price": "price"})
    rows = pd.DataFrame({"key": pd.Series([12.5], dtype=object)})
    workflow = Workflow([join, COMMA], [], {"key": "string"}).fit([rows.astype("str")])
    assert workflow.transform(workflow.typed(rows))["price"].tolist() == [3.5]


@pytest.mark.parametrize("value", [28.0, np.float64(28), np.float32(28), 28, np.int64(28), "28"])
@pytest.mark.parametrize("others", [[], ["A3"], [None], [True]])
def test_a_category_is_one_text_whatever_number_stands_for_it_among_objects(value, others):
    rows = pd.DataFrame({"code": pd.Series([value, *others], dtype=object)})
    assert cast(rows, {"code": "string"}, "here")["code"].tolist()[0] == "28"
    assert cast(rows.astype("category"), {"code": "string"}, "here")["code"].tolist()[0] == "28"


def test_raw_times_of_a_declared_form_are_refused_with_the_form_and_what_reads_them():
    form = "datetime[%d.%m.%Y %H:%M]"
    workflow = Workflow([DateParts("Bestell Zeit", ["hour"], "at")], [], {"Bestell Zeit": form})
    rows = pd.DataFrame({"Bestell Zeit": ["28.11.2026 06:12"]})
    workflow.fit([workflow.typed(rows)])
    said = rf"'Bestell Zeit' is declared {re.escape(form)}.*Give transform\(workflow\.typed\(rows\)\)"
    with pytest.raises(DataError, match=said) as refused:
        workflow.transform(rows)
    assert "2013-01-31" not in str(refused.value)
    assert workflow.transform(workflow.typed(rows))["at_hour"].tolist() == [6]
    other = Workflow([DateParts("Bestell Zeit", ["hour"], "at")]).fit([workflow.typed(rows)])
    with pytest.raises(DataError, match="Write them like 2013-01-31"):
        other.transform(rows)
