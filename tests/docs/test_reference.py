"""docs/reference, which docs/_generate.py makes from the code: nothing is left out, and its examples can be given."""

import importlib.util
import inspect
import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
import typer
from pydantic import BaseModel
from ruamel.yaml import YAML

import gigabatch
from gigabatch.features.operators import operator_class, operator_names
from gigabatch.features.recipes import RECIPES, recipe_class
from gigabatch.models.optimizers.registry import OPTIMIZERS
from gigabatch.models.optimizers.schedule import SCHEDULES
from gigabatch.models.shelf import MODELS, model_class
from gigabatch.pipeline.commands.app import make_app
from gigabatch.pipeline.config.config import RunConfig, parse_config, setting_paths

DOCS = Path(__file__).resolve().parents[2] / "docs"
SPEC = importlib.util.spec_from_file_location("generate_docs", DOCS / "_generate.py")
generate = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(generate)
SHIPPED = sorted(name for name, path in RECIPES.items() if path.startswith("gigabatch."))  # tests have more


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    generate.write_pages(folder)
    return {path.stem: path.read_text(encoding="utf-8") for path in folder.iterdir()}


def section(page: str, heading: str) -> str:
    """What stands under a heading, up to the next one of its level or a higher one."""
    level = heading.partition(" ")[0]
    start = page.index(f"\n{heading}\n")
    end = re.search(rf"^#{{1,{len(level)}}} ", page[start + len(heading) + 2 :], re.MULTILINE)
    return page[start:] if end is None else page[start : start + len(heading) + 2 + end.start()]


def test_every_setting_of_a_configuration_has_an_entry(pages):
    entries = set(re.findall(r"^\[`([^`]+)`\]\{#\1\}$", pages["settings"], re.MULTILINE))
    assert not set(setting_paths(RunConfig)) - entries
    assert "train.losses.NAME.kind" in entries  # those that stand under names of the user's, too
    assert "preprocess.columns.NAME.min_count" in entries


def test_an_entry_says_type_unit_bounds_default_and_example(pages):
    (entry,) = re.findall(r"^\[`serve.timeout_seconds`\].*?\n\n", pages["settings"], re.MULTILINE | re.DOTALL)
    assert entry == (
        "[`serve.timeout_seconds`]{#serve.timeout_seconds}\n"
        ": longest time to read a body (408), and to wait for the model (503).\\\n"
        "  number above 0, to 600 · unit: seconds · default `2.0` · example `serve.timeout_seconds=1.0`\n\n"
    )


def test_a_setting_that_a_section_takes_over_is_described_as_there(pages):
    """`preprocess` has the settings of a `Preprocessor`, whose class a reader of the page does not see."""
    (entry,) = re.findall(r"^\[`preprocess.edges`\].*?\n\n", pages["settings"], re.MULTILINE | re.DOTALL)
    assert ": Where the others lie: `quantile`, so that bins hold equally many rows, or `tree`" in entry
    assert not re.findall(r"^: As of `\w+`\.", pages["settings"], re.MULTILINE)


def leaves():
    for path, annotation, default, _, _ in generate.config_settings():
        if not (isinstance(default, BaseModel) or generate.sections_inside(annotation)[0]) and path not in (
            "features",
            "model",
        ):
            yield pytest.param(path, annotation, default, id=path)


@pytest.mark.parametrize(("path", "annotation", "default"), list(leaves()))
def test_a_setting_has_an_example_that_a_configuration_takes(path, annotation, default, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my_steps.py").write_text("")
    value = generate.example_value(path, annotation, default)
    assert value is not None or path in generate.EXAMPLES, f"give docs/_generate.py an example of {path}"
    assert default is MISSING or value != default
    assert YAML(typ="safe").load(generate.yaml_text(value)) == value
    raw = {"name": "a", "recipe": "flights"}
    if path == "recipe":
        raw["features"] = {"path": "a.csv", "categorical": ["a"], "targets": {"b": {"task": "binary"}}}
    for dotted, item in ({path: value} | generate.TOGETHER.get(path, {})).items():
        *parents, last = dotted.split(".")
        inside = raw
        for name in parents:
            inside = inside.setdefault(name, {})
        inside[last] = item
    assert isinstance(parse_config(raw), RunConfig)


def test_no_setting_is_left_without_a_description():
    missing = [path for path, *_, text in generate.config_settings() if not text.strip(". ")]
    for name in SHIPPED:
        missing += [f"{name}: {row[0]}" for row in generate.all_settings(recipe_class(name).Settings) if not row[-1]]
    for name in MODELS:
        missing += [f"{name}: {row[0]}" for row in generate.settings_of(model_class(name).Settings) if not row[-1]]
    assert missing == []


def test_no_setting_is_described_by_the_name_of_a_class():
    """`preprocess.scale` read "As of `PreprocessorSettings`.", a class that the page does not show."""
    assert [path for path, *_, text in generate.config_settings() if re.search(r"\bAs of `[A-Z]", text)] == []
    texts = {path: text for path, *_, text in generate.config_settings()}
    assert texts["preprocess.min_count"].startswith("Values that the train split holds in fewer rows are unseen.")


@pytest.mark.parametrize("name", SHIPPED)
def test_every_setting_of_a_recipe_has_an_entry(pages, name):
    text = section(pages["settings"], f"## `features`, recipe `{name}`")
    assert [item.name for item in fields(recipe_class(name).Settings) if f"[`features.{item.name}`]" not in text] == []


@pytest.mark.parametrize("name", operator_names())
def test_every_operator_has_its_arguments_described(pages, name):
    text = section(pages["operators"], f"### `{name}`")
    for argument in inspect.signature(operator_class(name)).parameters:
        assert re.search(rf"^- `{argument}` \(.*\): \S", text, re.MULTILINE), argument


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_its_settings_with_defaults(pages, name):
    text = section(pages["models"], f"## `{name}`")
    for item in fields(model_class(name).Settings):
        (said,) = re.findall(rf"^\[`{item.name}`\].*?(?=\n\n)", text, re.MULTILINE | re.DOTALL)
        shown = re.search(r"default `([^`]*)`", said)[1]
        default = getattr(model_class(name).Settings(), item.name)
        assert YAML(typ="safe").load(shown) == (list(default) if isinstance(default, tuple) else default)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_the_equations_and_the_source_of_its_file(pages, name):
    text, told = section(pages["models"], f"## `{name}`"), inspect.getdoc(inspect.getmodule(model_class(name)))
    assert [line for line in told.splitlines() if line.startswith("    ") and line.strip() not in text] == []
    assert set(re.findall(r"arXiv \d+\.\d+", told)) <= set(re.findall(r"arXiv \d+\.\d+", text))


def test_every_optimizer_and_schedule_is_there(pages):
    for name in (*OPTIMIZERS, *SCHEDULES):
        section(pages["models"], f"### `{name}`")


def test_every_command_has_its_options(pages):
    app = typer.main.get_command(make_app())
    assert len(app.commands) > 20
    for name, command in app.commands.items():
        text = section(pages["commands"], f"### `gigabatch {name}`")
        for item in command.params:
            if item.param_type_name == "option" and item.name not in ("verbose", "quiet", "help"):
                assert all(f"`{option}`" in text for option in item.opts), f"{name} {item.opts}"
                assert item.help, f"{name} {item.opts}"


def test_every_metric_is_there(pages):
    names = {"roc_auc", "log_loss", "gauc", "grouped_mrr", "RankedGroups", "PositiveRanks"}
    assert names < generate.metric_functions().keys()
    for name in generate.metric_functions():
        section(pages["metrics"], f"## `{name}`")


def test_every_public_name_is_there(pages):
    told = set(re.findall(r"^\.\. auto(?:class|function):: gigabatch\.(\w+)$", pages["python"], re.MULTILINE))
    assert told == set(gigabatch.__all__) - {"__version__"}
