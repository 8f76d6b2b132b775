"""Progress in a kernel of Jupyter: an output of the cell that is drawn in place, and nothing red.

The cells run in one kernel; each test looks at the outputs of its own.
"""

import html
import re

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

CELLS = {
    "import": "import logging, sys, time\nfrom gigabatch.pipeline.display import *\n"
    "from gigabatch.pipeline.display import tell_skipped, silence, detail\nlog = logging.getLogger('gigabatch.test')",
    "stage": """
with progress(400, "train") as bar:
    for _ in range(4):
        bar.advance(100, "loss <b>0.4</b>")
        time.sleep(0.21)
""",
    "within": """
with progress(None, "evaluate") as bar:
    for _ in progress(list(range(3)), "importance"):
        log.info("looked")
    bar.advance(70)
""",
    "stopped": """
try:
    with progress(10, "encode") as bar:
        bar.advance(4)
        raise ValueError
except ValueError:
    pass
""",
    "skipped": "tell_skipped('features')",
    "note": "note('fit: <city> is a category')",
    "warning": "log.warning('%d rows have no <label>', 7)\nlog.info('read')",
    "silence": "with silence():\n    for _ in progress([1], 'one of many'): log.info('x')\n    tell_skipped('train')",
    "quiet": "with detail('quiet'):\n    for _ in progress([1], 'one'): pass\n    note('x')\n    tell_skipped('train')",
    "table": "render_table([{'<b>name</b>': 'a&b', 'rows': 4_000}], '<i>rows</i>')",
    "drawn": """
from gigabatch.pipeline import display
draw, drawn = display.CellOutput.draw, []
display.CellOutput.draw = lambda self, html, text: drawn.append((text, "width:25.0%" in html))
with progress(400, "train", clock=iter(range(99)).__next__) as bar:
    bar.advance(100)
    log.info("compiling")
display.CellOutput.draw = draw
print(*drawn, sep="\\n")
""",
    "own log": """
logging.basicConfig(stream=sys.stdout, format="own: %(message)s")
log.warning("once")
""",
}
OPERATOR = """
from gigabatch import Pipeline, register_operator
from gigabatch.features.operators.base import ColumnOperator

@register_operator("{name}")
class {kind}(ColumnOperator):
    reads, writes = ("column",), ("output",)
    def __init__(self, column, output):
        self.column, self.output = column, output
    def compute(self, frame):
        return {{self.output: frame[self.column] * {factor}}}
"""
OWN_CODE = {
    "rows": """
import pandas as pd
pd.DataFrame({"x": [float(i) for i in range(100)], "y": [0, 1] * 50}).to_csv("rows.csv", index=False)
""",
    "file": "%%writefile my_steps.py" + OPERATOR.format(name="from_file", kind="FromFile", factor=2),
    "cell": OPERATOR.format(name="from_cell", kind="FromCell", factor=3),
    "used": """
def columns():
    steps = [{f"from_{place}": {"column": "x", "output": place}} for place in ("file", "cell")]
    job = Pipeline.from_config({
        "name": "own", "imports": ["my_steps.py"], "recipe": "table",
        "features": {"path": "rows.csv", "inputs": {"x": "float64"}, "steps": steps,
                     "continuous": ["x", "file", "cell"], "targets": {"y": {"task": "binary"}}},
    })
    found = job.features().frame("train", ["x", "file", "cell"])
    print((found["file"] / found["x"]).max(), (found["cell"] / found["x"]).max())

columns()
""",
    "again": "columns()",
    "cell, changed": OPERATOR.format(name="from_cell", kind="FromCell", factor=5),
    "used, changed": "columns()",
}


def run_cells(sources, folder):
    cells = [nbformat.v4.new_code_cell(text, id=re.sub(r"\W+", "-", name)) for name, text in sources.items()]
    notebook = nbformat.v4.new_notebook(cells=cells)
    place = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=90, startup_timeout=300, kernel_name="python3", resources=place).execute()
    return {name: cell.outputs for name, cell in zip(sources, notebook.cells, strict=True)}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    return run_cells(CELLS, tmp_path_factory.mktemp("cells"))


def shown(output):
    """What a reader sees of an output: its text, one space between parts."""
    assert output.output_type == "display_data"
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", output.data["text/html"])).split())


def test_nothing_is_written_on_standard_error(outputs):
    streams = {(name, item.name) for name, found in outputs.items() for item in found if item.output_type == "stream"}
    assert streams == {("own log", "stdout"), ("drawn", "stdout")}


def test_a_stage_is_one_output_however_often_it_is_drawn(outputs):
    (line,) = outputs["stage"]
    assert re.fullmatch(r"✓ train 400 in \d\.\d s, [\d,.]+/s, loss <b>0\.4</b>", shown(line))
    assert "<b>0.4" not in line.data["text/html"]
    assert line.data["text/plain"].startswith("train: done, 400 in ")


def test_while_it_lasts_a_stage_has_a_bar_and_tells_what_the_log_says(outputs):
    (printed,) = outputs["drawn"]
    assert re.sub(r"\d+\.\d s|, [\d.]+/s", "", printed.text).splitlines() == [
        "('train: 0 of 400 (0 %), ', False)",
        "('train: 100 of 400 (25 %), ', True)",
        "('train: 100 of 400 (25 %), , compiling', True)",
        "('train: done, 100 in ', False)",
    ]


def test_what_shows_progress_within_a_stage_has_no_line_of_its_own(outputs):
    (line,) = outputs["within"]
    assert re.fullmatch(r"✓ evaluate 70 in \d\.\d s, [\d,.]+/s", shown(line))


def test_a_stage_that_was_stopped_says_so(outputs):
    (line,) = outputs["stopped"]
    assert re.match(r"✗ encode stopped after 4 of 10 in ", shown(line))


def test_a_stage_that_was_skipped_says_so(outputs):
    (line,) = outputs["skipped"]
    assert shown(line) == "✓ features skipped, unchanged"
    assert line.data["text/plain"] == "features: skipped, unchanged"


def test_notes_and_warnings_are_outputs_with_their_text_escaped(outputs):
    assert [shown(line) for line in outputs["note"]] == ["fit: <city> is a category"]
    assert [shown(line) for line in outputs["warning"]] == ["Warning: 7 rows have no <label>"]


@pytest.mark.parametrize("kind", ["silence", "quiet"])
def test_what_is_to_be_silent_is(outputs, kind):
    assert outputs[kind] == []


def test_a_table_is_a_table_with_its_text_escaped(outputs):
    (table,) = outputs["table"]
    assert shown(table) == "<i>rows</i> <b>name</b> rows a&b 4,000"
    assert table.data["text/plain"].splitlines()[0] == "<i>rows</i>"


def test_a_log_that_the_user_set_up_shows_a_warning_once(outputs):
    (line,) = outputs["own log"]
    assert line.text == "own: once\n"


def test_code_of_a_cell_and_of_a_file_computes_and_what_changes_is_made_again(tmp_path):
    outputs = run_cells(OWN_CODE, tmp_path)
    told = {name: [item.get("text") or shown(item) for item in outputs[name]] for name in OWN_CODE}
    assert told["used"][-1] == "2.0 3.0\n"
    assert told["again"] == ["✓ features skipped, unchanged", "2.0 3.0\n"]
    assert told["used, changed"][-1] == "2.0 5.0\n"
    assert not any("skipped" in text for text in told["used, changed"])
