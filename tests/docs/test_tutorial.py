"""docs/tutorial.md: its commands and its code run, in order, in an empty folder, on fewer rows."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from ruamel.yaml import YAML

from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.nightly.nightly import KEPT, PROMOTED

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
ROWS = "20000", "1500"


def blocks(page):
    """(language, text) of every fenced block, in order."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def add_to_configuration(path, text):
    """The lists of a snippet of `features`, put behind those of the file."""
    yaml = YAML(typ="safe")
    snippet, found = yaml.load(text), yaml.load(path.read_text())
    for name, items in snippet.items():
        found["features"][name] = [*found["features"][name], *items]
    yaml.dump(found, path)


def run_command(line, outcomes):
    if line.startswith("gigabatch "):
        code = main(shlex.split(line)[1:])
        outcomes.append(code)
        assert code in ((PROMOTED, KEPT) if line.startswith("gigabatch nightly") else (0,)), line
    else:
        line = line.replace("python ", f"{sys.executable} ").replace(*ROWS)
        assert ROWS[0] not in line
        subprocess.run(["bash", "-c", line], check=True)


@pytest.mark.slow
def test_the_tutorial_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # which takes the disk's time alone
    outcomes = []
    for language, text in blocks(PAGE):
        if language == "python" and "sys.argv" in text:
            Path("make_visits.py").write_text(text)
        elif language == "python":
            exec(text, {})
        elif language == "yaml":
            add_to_configuration(Path("conf/visits.yaml"), text)
        elif language == "sh":
            for line in text.splitlines():
                run_command(line, outcomes)
    assert len(outcomes) == 9
    scores = pd.read_csv("new/scores.csv")
    assert len(scores) == int(ROWS[1])
    assert scores["predicted_bought"].between(0, 1).all()
    printed = capsys.readouterr().out
    assert re.search(r"bought\n0 +0\.\d+", printed)
    assert re.search(r"^(Promoted|Kept): ", printed, re.MULTILINE)
    assert len(list(Path("runs/visits").glob("*/summary.json"))) >= 3
