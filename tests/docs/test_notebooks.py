"""Every notebook runs from top to bottom in an empty folder, as a newcomer would run it."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

# What each leaves in the folder that it runs in.
LEAVES = {
    "01_quickstart": ["runs/flights/latest/report.html"],
    "02_workflow": ["workflow/workflow.json"],
    "03_recommenders": [
        "runs/movielens/latest/report.html",
        "runs/towers/latest/embeddings/latest/items/vectors.npy",
    ],
}
NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=500,
        startup_timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("text/html" in output.get("data", {}) for output in outputs)
    assert all((tmp_path / name).exists() for name in LEAVES[path.stem])
