"""Pages of the shelf against the models: every setting named, tables of defaults true, YAML that the config takes."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from gigabatch.models.shelf import MODELS, model_class
from gigabatch.pipeline.config.config import TrainSettings, model_choice

PAGES = Path(__file__).resolve().parents[2] / "docs" / "models"


@pytest.mark.parametrize("name", MODELS)
def test_a_page_names_every_setting_and_its_yaml_is_taken(name):
    page = (PAGES / f"{name}.md").read_text()
    settings = model_class(name).Settings
    missing = [field.name for field in fields(settings) if f"`{field.name}`" not in page]
    assert not missing
    blocks = [YAML(typ="safe").load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    kinds = [model_choice(block["model"]).kind for block in blocks if "model" in block]
    assert name in kinds
    for block in blocks:
        TrainSettings(**block.get("train", {}))


@pytest.mark.parametrize("name", ["lr", "fm", "deepfm", "wide_deep", "dlrm", "dcn", "fcn", "qnn", "tabular"])
def test_the_table_of_settings_states_the_defaults(name):
    page = (PAGES / f"{name}.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|", page, re.MULTILINE)
    stated = {setting: YAML(typ="safe").load(default) for setting, default in rows}
    settings = model_class(name).Settings()
    defaults = {field.name: getattr(settings, field.name) for field in fields(settings)}
    assert stated == {key: list(value) if isinstance(value, tuple) else value for key, value in defaults.items()}


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
