"""The drawn graph: well-formed, complete, harmless, and nothing drawn over anything else."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pandas as pd
import pytest
from workflow_steps import STEPS, LabelMean, table

from features.drawing import graph
from features.operators.drop_nulls import DropNulls
from features.operators.log import Log
from features.operators.min_max import MinMax
from features.operators.normalize import Normalize
from features.operators.rank_within_group import RankWithinGroup
from features.workflow import Workflow

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def whole():
    return Workflow.from_steps(STEPS, labels=["clicked"]).fit([table()])


def shapes(workflow):
    root = ET.fromstring(workflow.draw())
    texts = ["".join(item.itertext()) for item in root.iter(f"{SVG}text")]
    boxes = [
        tuple(float(item.get(k)) for k in ("x", "y", "width", "height")) for item in root.findall(f"{SVG}rect")[1:]
    ]
    return root, texts, boxes, list(root.iter(f"{SVG}path"))


def test_the_picture_names_every_step_column_and_what_was_fitted(whole):
    root, texts, boxes, _ = shapes(whole)
    assert len(boxes) == len(whole.steps) + len(whole.inputs)
    for name in ("fill_missing", "categorify", "join_groupby", "price → log_price", "cross → city_kinds", "clicked"):
        assert name in texts
    assert f"mean {whole.states[5].mean:,.6g}" in texts
    assert "3 rows" in texts  # of join_groupby: one a city
    assert root.get("width") == root.get("viewBox").split()[2]


def test_boxes_lie_apart_and_inside_the_picture(whole):
    root, _, boxes, _ = shapes(whole)
    width, height = float(root.get("width")), float(root.get("height"))
    for k, (x, y, w, h) in enumerate(boxes):
        assert 0 <= x < x + w <= width
        assert 0 <= y < y + h <= height
        for x2, y2, w2, h2 in boxes[:k]:
            assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y


def test_every_line_goes_from_left_to_right(whole):
    *_, lines = shapes(whole)
    assert lines
    for line in lines:
        across = [float(x) for x, _ in re.findall(r"(-?[\d.]+) (-?[\d.]+)", line.get("d"))]
        assert across == sorted(across)
        assert across[0] < across[-1]


def test_lines_run_between_the_boxes(whole):
    _, _, boxes, lines = shapes(whole)
    for line in lines:
        for x, y in re.findall(r"L(-?[\d.]+) (-?[\d.]+)", line.get("d")):  # where a line has passed a column
            inside = [b for b in boxes if b[0] < float(x) - 1 < b[0] + b[2] and b[1] < float(y) < b[1] + b[3]]
            assert not inside
    assert any("L" in line.get("d") for line in lines)


def test_edges_are_the_flow_of_the_columns():
    steps = [Log("a", "b"), MinMax("b"), DropNulls(["c"]), RankWithinGroup(["a"], "b", "d")]
    nodes, edges = graph(steps, {}, ("c",))
    assert [(node.title, node.kind) for node in nodes] == [
        ("a", "raw"), ("c", "label"), ("log", "row-wise"), ("min_max", "fitted"), ("drop_nulls", "row-wise"),
        ("rank_within_group", "group-wise"),
    ]  # fmt: skip
    # Columns that are read after rows were dropped come through the step that drops them.
    assert {(edge.start, edge.end, edge.column) for edge in edges} == {
        ("c0", "s0", "a"), ("s0", "s1", "b"), ("c1", "s2", "c"), ("c0", "s2", "a"), ("s1", "s2", "b"),
        ("s2", "s3", "a"), ("s2", "s3", "b"),
    }  # fmt: skip


def test_a_column_that_is_read_only_to_fit_is_dashed():
    workflow = Workflow([LabelMean("city", "clicked")], labels=["clicked"])
    *_, lines = shapes(workflow)
    assert [line.get("stroke-dasharray") for line in lines] == [None, "4 3"]


def test_mermaid_holds_the_same_graph():
    workflow = Workflow([Log("a", "b"), Normalize("b")], labels=[]).fit([pd.DataFrame({"a": np.float64([0, 1, 2])})])
    mean = float(np.log1p([0.0, 1.0, 2.0]).astype("float32").astype("float64").mean())
    text = workflow.to_mermaid().splitlines()
    assert text[0] == "flowchart LR"
    assert [line.strip() for line in text[1:6]] == [
        'c0(["a"]):::raw', 's0["<b>log</b><br/>a → b"]:::rowwise',
        f's1["<b>normalize</b><br/>b<br/>mean {mean:.6g}<br/>std {workflow.states[1].std:.6g}"]:::fitted',
        "c0 --> s0", "s0 --> s1",
    ]  # fmt: skip


def test_names_of_columns_are_text_and_nothing_else():
    hostile = '"]<script>alert(1)</script>&amp;#'
    workflow = Workflow([Log(hostile, "b")])
    _, texts, _, _ = shapes(workflow)
    assert hostile in texts
    assert "<script" not in workflow.draw()
    body = workflow.to_mermaid()
    assert "<script" not in body
    assert "#quot;]#lt;script#gt;" in body
    assert workflow._repr_html_().startswith('<div style="overflow-x:auto"><svg ')


def test_a_workflow_without_steps_is_an_empty_picture():
    root, texts, boxes, lines = shapes(Workflow([]))
    assert (texts, boxes, lines) == ([], [], [])
    assert float(root.get("width")) > 0
