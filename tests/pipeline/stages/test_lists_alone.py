"""Tables whose only features are lists, such as sessions of items, from files to what serves and exports them."""

import json

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.errors import DataError
from gigabatch.features.recipes.table.recipe import TableSettings
from gigabatch.features.schema import ListColumn, Schema
from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ListInputs, ModelInputs
from gigabatch.models.shelf import MODELS, ModelSpec, model_class
from gigabatch.pipeline.bundle import load_bundle
from gigabatch.pipeline.export.export import export_bundle
from gigabatch.pipeline.export.onnx_rows import onnx_inputs
from gigabatch.pipeline.serving.scorer import RowScorer
from gigabatch.pipeline.stages.stages import Pipeline
from tests.pipeline.list_rows import MODEL_SETTINGS, list_config, tag_rows

# One vector has no pair, and din needs a list of an id column.
REFUSED = {"dlrm": "0 id columns, 1 lists and 0 floats make one vector", "din": "share the vocabulary of an id column"}
KINDS = [name for name in MODELS if model_class(name).takes_lists and not model_class(name).entities]
NAMES = ("tags", "seen")


def config_of(folder, kind="tabular", names=NAMES, **changes):
    """The configuration of `list_config` without any column but the lists."""
    path = list_config(folder, kind, name="-".join((kind, *names)), **changes)
    raw = json.loads(path.read_text())
    for role in ("categorical", "continuous"):
        del raw["features"][role]
    raw["features"]["lists"] = {"tags": {}, "seen": {"elements": "int64"}}
    raw["features"]["lists"] = {name: raw["features"]["lists"][name] for name in names}
    raw["model"].pop("crosses", None)  # of wide_deep, of which there are no two columns
    path.write_text(json.dumps(raw))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("lists_alone")


@pytest.fixture(scope="module")
def pipeline(folder):
    changes = {"evaluate": {"importance": True, "importance_repeats": 2, "baselines": ["linear", "boosted"]}}
    return Pipeline.from_config(config_of(folder, "tabm", **changes))


@pytest.fixture(scope="module")
def run(pipeline):
    return pipeline.train()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in REFUSED])
def test_a_model_learns_from_one_list_alone(folder, kind):
    slow = {"train": {"epochs": 20}} if kind == "ft_transformer" else {}
    pipeline = Pipeline.from_config(config_of(folder, kind, ("tags",), **slow))
    run = pipeline.train()
    assert run.summary["targets"]["test"]["clicked"]["auc"] > 0.9
    assert len(load_bundle(run.path / "model").predict(pipeline.features().frame("test"))) > 0


@pytest.mark.parametrize("kind", REFUSED)
def test_a_model_that_one_list_does_not_suffice_is_refused_by_name(folder, kind):
    pipeline = Pipeline.from_config(config_of(folder, kind, ("tags",)))
    with pytest.raises(ModelError, match=f"model {kind}: .*{REFUSED[kind]}"):
        pipeline.train()


def test_of_two_lists_dlrm_takes_their_pair(folder):
    run = Pipeline.from_config(config_of(folder, "dlrm")).train()
    assert run.summary["targets"]["test"]["clicked"]["auc"] > 0.9


def test_tables_without_any_column_are_still_refused():
    with pytest.raises(DataError, match=r"no feature\. Name columns under categorical, continuous or lists"):
        TableSettings(path="a.csv", targets={"y": {"task": "binary"}})


def test_importance_baselines_and_the_report_know_the_lists(run):
    importance = {row["name"]: row["mean"] for row in run.importance}
    assert set(importance) == set(NAMES)
    assert importance["tags"] > 0.3 > 0.05 > importance["seen"]
    told = (run.path / "report.html").read_text()
    assert all(name in told for name in (*NAMES, "boosted trees"))


def test_bundle_requests_and_exports_say_the_same(pipeline, run, tmp_path):
    bundle, frame = load_bundle(run.path / "model"), pipeline.features().frame("test")
    expected = bundle.predict(frame)["clicked"].to_numpy()
    raw = tag_rows(1500)[list(NAMES)].iloc[frame["row_number"].to_numpy()]
    np.testing.assert_allclose(bundle.predict_raw(raw)["clicked"].to_numpy(), expected, rtol=1e-6, atol=1e-6)
    scorer = RowScorer(bundle)
    rows = [{name: list(row[name]) for name in NAMES} for row in raw.to_dict("records")]
    np.testing.assert_allclose(scorer(rows)["clicked"], expected, rtol=1e-5, atol=1e-6)
    for place in (0, 7):  # as many elements as it has, one row
        np.testing.assert_allclose(scorer(rows[place : place + 1])["clicked"], expected[place], rtol=1e-5, atol=1e-6)
    assert len(bundle.predict(frame.iloc[:0])) == 0
    export_bundle(bundle, tmp_path, ["torch", "onnx_rows"])
    session = onnxruntime.InferenceSession(tmp_path / "rows.onnx", providers=["CPUExecutionProvider"])
    for part in (frame, frame.head(1), frame.head(3).assign(tags=[None, [], ["a"]], seen=[None, [], []])):
        found = session.run(["predictions", "ids", "floats"], onnx_inputs(bundle.preprocessor, part))
        np.testing.assert_allclose(found[0][:, 0], bundle.predict(part)["clicked"], rtol=1e-4, atol=1e-5)
        assert [values.shape for values in found[1:]] == [(len(part), 0)] * 2


def test_statistics_tell_rows_and_elements_for_any_partition_and_update():
    rows = pd.DataFrame({"tags": [["a", "b"], [], None, ["a"], ["b", "a", None]]})
    schema = Schema((), (), lists=(ListColumn("tags"),))
    for parts in ([rows], [rows.head(2), rows.tail(3)], [rows.head(0), rows]):
        fitted = Preprocessor(schema).fit(parts)
        assert (fitted.statistics.rows, fitted.version.rows, fitted.statistics.lists["tags"].rows) == (5, (5,), 5)
        assert fitted.vocabularies["tags"].values.tolist() == ["a", "b"]
    assert [part.shape for part in Preprocessor(schema).fit_pack([rows, rows.head(1)])] == [(5, 1), (1, 1)]
    churn = fitted.update([pd.DataFrame({"tags": [["c"], ["c", "a"]]})])
    assert (churn.rows_old, churn.rows, fitted.statistics.rows, fitted.version.rows) == (5, 2, 7, (5, 2))
    assert fitted.vocabularies["tags"].values.tolist() == ["a", "b", "c"]
    churn = fitted.grow([rows, rows])
    assert (churn.rows_old, churn.rows, fitted.statistics.rows) == (7, 10, 10)


def test_statistics_of_lists_alone_are_saved_with_their_rows(tmp_path):
    schema = Schema((), (), lists=(ListColumn("tags"),))
    fitted = Preprocessor(schema).fit([pd.DataFrame({"tags": [["a"], ["b", "a"], None]})])
    fitted.save(tmp_path)
    loaded = Preprocessor.load(tmp_path)
    assert (loaded.statistics.rows, loaded.checksum) == (3, fitted.checksum)


def two_lists(weighted: bool) -> list[JaggedColumn]:
    weights = torch.tensor([1.0, 3.0, 2.0, 2.0]) if weighted else None
    return [
        JaggedColumn(torch.tensor([1, 2, 5, 3], dtype=torch.int32), torch.tensor([0, 2, 2, 4]), weights),
        JaggedColumn(torch.tensor([8], dtype=torch.int32), torch.tensor([0, 0, 1, 1])),
    ]


def built(kind: str, weighted: bool):
    torch.manual_seed(3)
    inputs = ModelInputs((), 0, lists=(ListInputs(6, weighted=weighted), ListInputs(9)))
    return ModelSpec(kind, inputs, model_class(kind).Settings(**MODEL_SETTINGS[kind])).build()


@pytest.mark.parametrize("kind", ["tabular", "tabm"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_row_without_ids_is_its_pooled_lists_side_by_side(kind, weighted):
    model = built(kind, weighted)
    tables = model.embeddings if kind == "tabular" else model.tables
    one, other = (table.detach() for table in tables.tables)
    mean = (one[1] + 3 * one[2]) / 4 if weighted else (one[1] + one[2]) / 2
    nothing, none = torch.zeros_like(one[0]), torch.zeros_like(other[0])
    by_hand = torch.stack([
        torch.cat(pair) for pair in ((mean, none), (nothing, other[8]), ((one[5] + one[3]) / 2, none))
    ])  # fmt: skip
    torch.testing.assert_close(tables(torch.zeros(3, 0, dtype=torch.int32), two_lists(weighted)).detach(), by_hand)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_folded_network_of_lists_alone_is_the_plain_one(weighted):
    found = {}
    for gradients in ("rows", "dense"):  # dense ones fold nothing
        model = built("tabular", weighted).train()
        model.embeddings.gradients = gradients
        assert (model.folding_obstacle() is None) == (gradients == "rows")
        outputs = model(torch.zeros(3, 0, dtype=torch.int32), torch.zeros(3, 0), two_lists(weighted))
        outputs.square().sum().backward()
        found[gradients] = [outputs.detach(), *(part.grad for part in model.layers.parameters())]
    for one, other in zip(found["rows"], found["dense"], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
