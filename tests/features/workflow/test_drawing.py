"""The graph as Mermaid text: complete, and harmless whatever columns are called."""

from gigabatch.features.operators.groups.folded_target_encoding import FoldedTargetEncoding
from gigabatch.features.operators.history.rank_within_group import RankWithinGroup
from gigabatch.features.operators.missing.drop_nulls import DropNulls
from gigabatch.features.operators.numbers.log import Log
from gigabatch.features.operators.numbers.min_max import MinMax
from gigabatch.features.workflow.drawing import graph
from gigabatch.features.workflow.workflow import Workflow
from tests.features.workflow.workflow_steps import STEPS, table


def test_the_picture_names_every_step_column_and_what_was_fitted():
    whole = Workflow.from_steps(STEPS, labels=["clicked"]).fit([table()])
    text = whole.to_mermaid()
    nodes = [line for line in text.splitlines() if ":::" in line]
    assert len(nodes) == len(whole.steps) + len(whole.inputs)
    for name in ("fill_missing", "categorify", "join_groupby", "price → log_price", "cross → city_kinds", "clicked"):
        assert name in text
    assert f"mean {whole.states[5].mean:,.6g}" in text
    assert "3 rows" in text  # of join_groupby: one a city
    assert whole._repr_markdown_() == f"```mermaid\n{text}```"


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
    workflow = Workflow([FoldedTargetEncoding(["city"], ["clicked"], "row")], labels=["clicked"])
    arrows = [line.strip() for line in workflow.to_mermaid().splitlines() if "-> " in line]
    assert arrows == ["c0 --> s0", "c1 -.-> s0", "c2 -.-> s0"]


def test_names_of_columns_are_text_and_nothing_else():
    body = Workflow([Log('"]<script>alert(1)</script>&amp;#', "b")]).to_mermaid()
    assert "<script" not in body
    assert "#quot;]#lt;script#gt;" in body


def test_a_workflow_without_steps_is_an_empty_picture():
    assert {line.split()[0] for line in Workflow([]).to_mermaid().splitlines()[1:]} == {"classDef"}
