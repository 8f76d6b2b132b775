"""Pages of the shelf against the models: YAML that the config takes; tests/docs/test_reference.py has the settings."""

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from gigabatch.models.shelf import MODELS, model_class
from gigabatch.pipeline.config.config import TrainSettings, model_choice

PAGES = Path(__file__).resolve().parents[2] / "docs" / "models"


@pytest.mark.parametrize("name", MODELS)
def test_a_page_has_yaml_of_its_model_that_is_taken(name):
    page = (PAGES / f"{name}.md").read_text()
    blocks = [YAML(typ="safe").load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    kinds = [model_choice(block["model"]).kind for block in blocks if "model" in block]
    assert name in kinds
    for block in blocks:
        TrainSettings(**block.get("train", {}))
    assert f"(../reference/models.md#{name})" in page


def test_the_index_lists_every_model_with_its_page():
    index = (PAGES / "README.md").read_text()
    listed = re.findall(r"^\| \[(\w+)\]\((\w+)\.md\)", index, re.MULTILINE)
    assert [name for name, _ in listed] == list(MODELS)
    assert all(name == page for name, page in listed)


@pytest.mark.parametrize("name", MODELS)
def test_the_index_states_which_entities_and_targets_a_model_takes(name):
    (line,) = re.findall(rf"^\| \[{name}\].*$", (PAGES / "README.md").read_text(), re.MULTILINE)
    *_, entities, targets = (cell.strip() for cell in line.strip("|").split("|"))
    model = model_class(name)
    assert entities == {(): "", ("user", "item"): "both"}[model.entities]
    assert targets.startswith("one output") == model.single_output
