"""Every model that takes lists, from a configuration file to metrics of rows whose labels only the lists tell."""

import pytest

from gigabatch.models.shelf import MODELS, model_class
from gigabatch.pipeline.bundle import load_bundle
from gigabatch.pipeline.stages.stages import Pipeline
from tests.examples import some
from tests.pipeline.list_rows import list_config

# Models of users and items learn from other rows, and have tests of their own.
KINDS = [
    name
    for name in MODELS
    if model_class(name).takes_lists and not (model_class(name).entities or model_class(name).needs_lists)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("list_models")


def test_all_models_without_entities_take_lists():
    assert {*KINDS, "din"} == {name for name in MODELS if not model_class(name).entities}  # din has its own tests


@pytest.mark.parametrize("kind", some(KINDS, "lr", "deepfm", "dcn", "tabular", "tabm", "ft_transformer", "multi_task"))
def test_a_model_learns_from_lists_what_no_other_column_says(folder, kind):
    aucs = {}
    for lists in (True, False):
        slow = {"train": {"epochs": 20}} if kind == "ft_transformer" else {}  # learns late
        run = Pipeline.from_config(list_config(folder, kind, lists, **slow)).train()
        aucs[lists] = run.summary["targets"]["test"]["clicked"]["auc"]
    assert aucs[True] > 0.9
    assert aucs[True] > aucs[False] + 0.25


@pytest.mark.parametrize("pooling", ["sum", "root", "max"])
def test_a_pooling_of_the_configuration_is_that_of_the_saved_model(folder, pooling):
    config = list_config(folder, "tabular", name=f"pool-{pooling}", model={"pooling": pooling})
    pipeline = Pipeline.from_config(config)
    run = pipeline.train()
    assert run.summary["metrics"]["test"]["auc"] > 0.9
    bundle, frame = load_bundle(run.path / "model"), pipeline.features().frame("test")
    assert bundle.model.settings.pooling == bundle.model.embeddings.pooling == pooling
    once = bundle.predict(frame)["clicked"].to_numpy()
    twice = bundle.predict(frame.assign(tags=frame["tags"].map(lambda row: [*row, *row])))["clicked"].to_numpy()
    assert (abs(twice - once).max() < 1e-5) == (pooling == "max")  # of each number the largest, however often
