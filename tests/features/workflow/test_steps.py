"""Steps in YAML: what they stand for, and every mistake as an error that names the step."""

import io

import pandas as pd
import pytest
from ruamel.yaml import YAML

from gigabatch.features.errors import DataError
from gigabatch.features.operators.groups.join_external import JoinExternal
from gigabatch.features.operators.history.asof import AsOf, Count, Last, Mean
from gigabatch.features.operators.lists.explode_lists import ExplodeLists
from gigabatch.features.operators.missing.fill_missing import FillMissing
from gigabatch.features.operators.numbers.clip import Clip
from gigabatch.features.operators.numbers.log import Log
from gigabatch.features.operators.numbers.normalize import Normalize
from gigabatch.features.operators.rows.rename import Rename
from gigabatch.features.workflow.steps import parse_steps, table_files, to_steps
from gigabatch.features.workflow.workflow import Workflow


def from_yaml(text):
    return parse_steps(YAML(typ="safe", pure=True).load(text))


def described(operators):
    return [(type(operator), operator.settings()) for operator in operators]


def test_yaml_and_python_give_the_same_operators():
    found = from_yaml("""
    - fill_missing: {column: [price, age], indicator: all}
    - normalize: {columns: [price, age]}
    - log: {column: income, offset: 1e-3, invalid: "null"}
    - clip: {column: age, low: 0}
    - rename: {mapping: {a: b}}
    - explode_lists: {lists: {shown: [item, int64]}, position: place, keep: [user]}
    """)
    expected = [
        FillMissing("price", "all"), FillMissing("age", "all"), Normalize("price"), Normalize("age"),
        Log("income", offset=1e-3, invalid="null"), Clip("age", low=0), Rename({"a": "b"}),
        ExplodeLists({"shown": ("item", "int64")}, "place", ("user",)),
    ]  # fmt: skip
    assert [type(item) for item in found] == [type(item) for item in expected]
    assert to_steps(found) == to_steps(expected)
    again = io.StringIO()
    YAML(typ="safe", pure=True).dump(to_steps(found), again)
    assert described(from_yaml(again.getvalue())) == described(found)


def test_dataclasses_among_the_arguments_are_mappings_of_their_name():
    found = from_yaml("""
    - asof:
        by: [user]
        at: at
        known_at: done
        order: row
        aggregations:
          - count: {output: n, window: 60}
          - mean: {value: clicked, output: rate, smoothing: 20}
          - last: {columns: {price: last_price}}
    """)
    parts = [Count("n", 60), Mean("clicked", "rate", smoothing=20), Last({"price": "last_price"})]
    assert described(found) == described([AsOf(["user"], "at", "done", parts, "row")])


def test_a_table_among_the_arguments_is_a_file(tmp_path):
    table = pd.DataFrame({"shop": ["a", "b"], "size": [3, 4]})
    table.to_parquet(tmp_path / "shops.parquet")
    table.to_csv(tmp_path / "shops.csv", index=False)
    for name in ("shops.parquet", "shops.csv"):
        steps = [{"join_external": {"table": str(tmp_path / name), "on": ["shop"], "columns": {"size": "shop_size"}}}]
        (operator,) = parse_steps(steps)
        assert isinstance(operator, JoinExternal)
        assert operator(pd.DataFrame({"shop": ["b", "a"]}))["shop_size"].tolist() == [4, 3]
        assert table_files(steps) == [str(tmp_path / name)]
    with pytest.raises(DataError, match=r"step 1 \(join_external\): input .*none\.csv': no such file"):
        parse_steps([{"join_external": {"table": str(tmp_path / "none.csv"), "on": ["shop"], "columns": {}}}])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- log: {column: a}\n- lgo: {column: a}", r"step 2 \(lgo\): unknown operator 'lgo'\. Did you mean 'log'\?"),
        ("- log: {colum: a}", r"step 1 \(log\): unknown argument 'colum'\. Did you mean 'column'\? Known: column, out"),
        ("- log: {offset: 1}", r"step 1 \(log\): argument\(s\) column missing\. Known: column, output, offset"),
        ("- log:", r"step 1 \(log\): argument\(s\) column missing"),
        ("- log: {column: 7}", r"step 1 \(log\): column: expected text, found 7"),
        ("- log: {column: a, offset: two}", r"offset: expected a number, found 'two'"),
        ("- log: {column: a, offset: true}", r"offset: expected a number, found True"),
        ("- hash_bucket: {column: a, num_buckets: 2.0}", r"num_buckets: expected a whole number, found 2\.0"),
        ("- clip: {column: a, low: x}", r"low: expected a number or null, found 'x'"),
        ("- clip: {column: a}", r"step 1 \(clip\): Clip of 'a': give low, high or both"),
        ("- drop_nulls: {columns: a}", r"columns: expected a list of text, found 'a'"),
        ("- drop_nulls: {columns: [a, 1]}", r"columns: expected a list of text, found \['a', 1\]"),
        ("- rename: {mapping: [a, b]}", r"mapping: expected a mapping, found"),
        ("- explode_lists: {lists: {a: [b]}, position: p, keep: []}", r"lists.a: expected a list of text and text, f"),
        ("- explode_lists: {lists: {}, position: p, keep: []}", r"give one column of lists or more"),
        ("- explode_lists: {lists: {a: [b, int]}, position: p, keep: []}", r"of 'a': unknown dtype 'int'. Known: "),
        ("- clean_text: {column: a, replace: {b: c, d: 5}}", r"replace.d: expected text or null, found 5"),
        ("- clean_text: {column: a, replace: {5: b}}", r"replace: a key: expected text, found 5"),
        ("- log: {column: [a, b], output: c}", r"output: 'c' cannot hold 2 columns"),
        ("- log: {column: [a, a]}", r"column: name one or more different columns"),
        ("- log: {column: []}", r"column: name one or more different columns"),
        ("- log: {column: a, columns: [b]}", r"columns: name one or more different columns|columns"),
        ("- log: [a]", r"step 1 \(log\): expected arguments by name"),
        ("- log", r"step 1: expected one operator and its arguments, such as"),
        ("- {log: {column: a}, clip: {column: a, low: 1}}", r"step 1: expected one operator"),
        ("log: {column: a}", r"steps: expected a list of steps"),
        ("- asof: {by: [u], at: a, known_at: a, order: r, aggregations: [{sum: {}}]}",
         r"aggregations: expected a list of \{count: \.\.\.\} or \{mean: \.\.\.\} or \{last"),
        ("- asof: {by: [u], at: a, known_at: a, order: r, aggregations: [{count: {name: n}}]}",
         r"aggregations: unknown 'name' in count\. Known: output, window"),
        ("- asof: {by: [u], at: a, known_at: a, order: r, aggregations: [{count: {}}]}", r"aggregations: .*'output'"),
        ("- join_external: {table: 3, on: [a], columns: {}}", r"table: expected a data frame or the path of one, fo"),
    ],
)  # fmt: skip
def test_a_mistake_is_an_error_that_names_the_step(text, message):
    with pytest.raises(DataError, match=message):
        from_yaml(text)


@pytest.mark.parametrize("later", ["log", "normalize"])
def test_a_column_whose_word_the_fit_did_not_see_is_told_with_the_step_that_would_make_it(later):
    workflow = Workflow.from_steps([{"text_flags": {"column": "t", "prefix": "has_"}}, {later: {"column": "has_wifi"}}])
    seen, other = pd.DataFrame({"t": ["WiFi|Pool", None]}), pd.DataFrame({"t": ["Pool", None]})
    assert "has_wifi" in workflow.fit([seen]).transform(seen)
    with pytest.raises(DataError, match=r"'has_wifi' not found.* of step 1 \(text_flags\) are named after"):
        workflow.fit([other]).transform(other)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (["city"], r"step 2 is no operator.*found \['city'\]\.$"),
        (Clip, r"step 2 is no operator.*found <class .*Clip'>\.$"),
        (lambda frame: frame, r"step 2 is no operator.*Register it \(register_function\)"),
        (FillMissing(["a", "b"]), r"FillMissing: column names one column, found \['a', 'b'\]"),
    ],
    ids=["list", "class", "function", "several columns"],
)
def test_what_is_no_step_is_refused(step, message):
    with pytest.raises(DataError, match=message):
        Workflow([Log("a"), step])
