"""`make setup`, as far as it goes without a network."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_an_older_python_is_refused_before_anything_is_loaded(tmp_path):
    """pip, which it went to, loaded torch and then spoke of conflicting packages, and left the environment behind."""
    older = tmp_path / "python3"
    older.write_text("#!/bin/sh\nexit 1\n")  # what the question for its version ends in
    older.chmod(0o755)
    venv = tmp_path / "venv"
    found = subprocess.run(
        ["make", "-C", str(ROOT), "setup", f"VENV={venv}"],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "MAKEFLAGS": ""},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 2
    assert found.stderr.startswith("python3 is not Python 3.11 or later. Make the environment by one that is")
    assert not venv.exists()
