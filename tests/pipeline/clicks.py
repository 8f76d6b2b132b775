"""A small table of clicks with its configuration, and commands in processes of their own that tell what they import."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OF_READERS = ("torch", "dask", "matplotlib", "sklearn", "jinja2")  # heavy for commands that read rows
HEAVY = ("pandas", "numba", *OF_READERS)
SETTINGS = {
    "name": "clicks",
    "recipe": "table",
    "device": "cpu",
    "engine": "pandas",
    "features": {
        "path": "clicks.csv",
        "categorical": ["city"],
        "continuous": ["price"],
        "targets": {"clicked": {"task": "binary"}},
    },
    "model": {"layers": [4]},
    "train": {"epochs": 1},
    "evaluate": {"importance": False, "baselines": []},
}
ROWS = "".join(f"{'Oslo' if place % 3 else 'Bonn'},{place},{place % 2}\n" for place in range(120))


def write_clicks(folder: Path, settings: dict = SETTINGS) -> None:
    (folder / "clicks.csv").write_text(f"city,price,clicked\n{ROWS}")
    (folder / "clicks.yaml").write_text(json.dumps(settings))  # JSON is YAML


def in_a_process(*arguments, heavy=HEAVY, cwd=None, **environment):
    """Exit code, standard output and error of a command in a process of its own, and which of `heavy` it imported."""
    program = (
        "import sys; from gigabatch.pipeline.commands.app import main; code = main(sys.argv[1:])\n"
        f"print('imported', [name for name in {heavy} if name in sys.modules]); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    out, _, imported = done.stdout.rpartition("imported ")
    return done.returncode, out, done.stderr, imported.strip()
