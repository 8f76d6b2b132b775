"""Exports: other runtimes give the bundle's ids bit for bit and its scores within the tolerance, or it is an error."""

import importlib.util
import json
import logging
import shutil
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.encoding.settings import PreprocessorSettings
from gigabatch.features.errors import DataError
from gigabatch.features.schema import Column, Schema, Target
from gigabatch.loaders.tables.packed import Batch
from gigabatch.models.inputs import EntityColumns, ModelInputs
from gigabatch.models.layers.fields import LinearTerms
from gigabatch.models.model import Model
from gigabatch.models.shelf import MODELS, ModelSpec, model_class
from gigabatch.pipeline.bundle import Bundle, model_outputs
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.export import export
from gigabatch.pipeline.export.export import export_bundle, traced
from gigabatch.pipeline.export.export_check import (
    ABSOLUTE,
    RELATIVE,
    ExportError,
    difference,
    sample_rows,
    vocabulary_values,
)
from gigabatch.pipeline.export.onnx_rows import NULL_INTEGER, onnx_inputs, rows_graph
from gigabatch.pipeline.training.train import model_inputs
from tests.examples import THOROUGH, examples, some
from tests.processes import python

UNTRACEABLE = {
    "gplvmf": "its first call solves a system for every user",
    "top_frequency": "it looks up which items a user has",
    "item_knn": "it looks up which items a user has",
    "ease": "it looks up which items a user has",
}
FEATURES = (
    Column("city", "categorical", "string"),
    Column("store", "categorical", "int64"),
    Column("slot", "categorical", "int32"),
    Column("member", "categorical", "bool"),
    Column("age", "continuous", "float32"),
    Column("gap", "continuous", "float64"),
    Column("count", "continuous", "int32"),
)
CLICK, KIND, VALUE = (
    Target("click", "binary"),
    Target("kind", "multiclass", 3, ("a", "b", "c")),
    Target("v", "regression"),
)
TARGETS = {"click": "float32", "kind": "int32", "v": "float32"}


def some_rows(rows: int = 400, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    hidden = lambda share: draw.random(rows) < share  # noqa: E731
    return pd.DataFrame(
        {
            "city": pd.Series(draw.choice(["Oslo", "Łódź", "東京", "a b", "7"], rows), dtype="str").mask(hidden(0.1)),
            "store": pd.Series(draw.integers(-3, 9, rows) * 10**12, dtype="Int64").mask(hidden(0.1)),
            "slot": pd.Series(draw.integers(0, 30, rows), dtype="Int32"),
            "member": pd.Series(draw.random(rows) < 0.5, dtype="boolean").mask(hidden(0.1)),
            "age": draw.normal(40, 10, rows).astype("float32"),
            "gap": np.where(hidden(0.2), np.nan, 1e3 * draw.normal(size=rows)),
            "count": draw.integers(0, 50, rows).astype("int32"),
            "click": (draw.random(rows) < 0.4).astype("float32"),
            "kind": draw.integers(0, 3, rows).astype("int32"),
            "v": draw.normal(size=rows).astype("float32"),
        }
    )


def fitted(targets=(CLICK,), columns=FEATURES, rows=None, **options) -> Preprocessor:
    named = [Column(target.name, "target", TARGETS[target.name]) for target in targets]
    schema = Schema((*columns, *named), tuple(targets))
    return Preprocessor(schema, PreprocessorSettings(**options)).fit([some_rows() if rows is None else rows])


def bundle_of(preprocessor: Preprocessor, name: str = "tabular", **options) -> Bundle:
    """A model of the shelf with weights that are all at work."""
    tensors = preprocessor.tensor_schema
    sizes = tuple(column.num_ids for column in tensors.ids)
    entities = (EntityColumns(0, (0,), ()), EntityColumns(1, (1,), ())) if len(sizes) > 1 else (None, None)
    inputs = ModelInputs(sizes, len(tensors.floats), tensors.num_outputs, *entities)
    torch.manual_seed(0)
    model = ModelSpec(name, inputs, model_class(name).Settings(**options)).build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    if not model.learns_by_steps:
        ids = torch.stack([torch.randint(size, (99,)) for size in sizes], dim=1)
        model.fit(Batch(ids, torch.zeros(99, inputs.num_floats), (torch.ones(99),)))
    return Bundle(preprocessor, model, {"name": "test"})


def by_hand(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """Inputs of the graph of rows, cell by cell."""
    text = np.array(["" if pd.isna(cell) else cell for cell in frame["city"]], dtype=object)
    whole = {
        name: np.array([-(2**63) if pd.isna(cell) else int(cell) for cell in frame[name]], np.int64)
        for name in ("store", "slot", "member")
    }
    floats = {name: np.array(frame[name], np.float64).astype(np.float32) for name in ("age", "gap", "count")}
    return {"city": text, **whole, **floats}


def close(found: np.ndarray, expected: np.ndarray) -> bool:
    return bool((np.abs(found - expected) <= ABSOLUTE + RELATIVE * np.abs(expected)).all())


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return bundle_of(fitted((CLICK, KIND, VALUE)))


@pytest.fixture(scope="module")
def folder(bundle, tmp_path_factory):
    """Where the bundle lies in both formats."""
    path = tmp_path_factory.mktemp("export")
    export_bundle(bundle, path, ["torch", "onnx_rows"])
    return path


@pytest.fixture(scope="module")
def program(folder):
    return torch.export.load(folder / "model.pt2").module()


@pytest.fixture(scope="module")
def rows_session(folder):
    return onnxruntime.InferenceSession(folder / "rows.onnx", providers=["CPUExecutionProvider"])


def unseen_and_null_rows() -> pd.DataFrame:
    rows = some_rows(500, seed=9)
    rows.loc[:20, "city"] = "Atlantis"
    rows.loc[10:30, "store"] = 5
    rows.loc[20:40, "slot"] = 99
    rows.loc[30:50, ["city", "store", "slot", "member"]] = None
    rows.loc[40:60, ["age", "gap"]] = np.nan  # age was never null at the fit
    return rows


def test_rows_through_onnx_are_the_bundles(bundle, rows_session):
    """ids and floats bit for bit, predictions within the tolerance, for nulls, unseen values and NaN."""
    rows = unseen_and_null_rows()
    predictions, ids, floats = rows_session.run(["predictions", "ids", "floats"], by_hand(rows))
    packed = bundle.preprocessor.pack(rows, targets=False)
    assert ids.dtype == np.int32
    assert np.array_equal(ids, packed[:, :4])
    assert np.array_equal(floats.view(np.int32), packed[:, 4:])
    expected = bundle.predict(rows)
    assert list(expected.columns) == ["click", "kind_a", "kind_b", "kind_c", "v"]
    assert predictions.dtype == np.float64  # as there is a regression target
    assert close(predictions, expected.to_numpy())
    assert (ids == 1).any(axis=0).all()  # each column has nulls,
    assert (ids[:, :3] == 2).any(axis=0).all()  # and each that can, unseen values


CELLS = {
    "city": st.sampled_from(["Oslo", "Łódź", "東京", "a b", "oslo", " ", None]) | st.text("aÅ\x00\n7 ", min_size=1),
    "store": st.sampled_from([-3 * 10**12, 0, 8 * 10**12, None]) | st.integers(-(2**63) + 1, 2**63 - 1),
    "slot": st.none() | st.integers(-(2**31), 2**31 - 1) | st.integers(0, 30),
    "member": st.sampled_from([True, False, None]),
    "age": st.floats(-(2.0**100), 2.0**100, width=32) | st.just(float("nan")),
    "gap": st.floats(-(2.0**100), 2.0**100, width=32) | st.just(float("nan")),
    "count": st.integers(-(2**31), 2**31 - 1),
}  # fmt: skip
KINDS = {"city": "str", "store": "Int64", "slot": "Int32", "member": "boolean", "gap": "float64", "count": "int32"}


@settings(max_examples=examples(60))
@given(st.lists(st.fixed_dictionaries(CELLS), min_size=1, max_size=6))
def test_any_rows_have_the_ids_and_floats_of_the_preprocessor(bundle, rows_session, cells):
    rows = pd.DataFrame(
        {name: pd.Series([row[name] for row in cells], dtype=KINDS.get(name, "float32")) for name in CELLS}
    )
    feed = by_hand(rows)
    feed["count"] = np.array(rows["count"], np.int32).astype(np.float32)
    ids, floats = rows_session.run(["ids", "floats"], feed)
    packed = bundle.preprocessor.pack(rows, targets=False)
    assert np.array_equal(ids, packed[:, :4])
    assert np.array_equal(floats.view(np.int32), packed[:, 4:])
    ours = onnx_inputs(bundle.preprocessor, rows)
    assert list(ours) == list(feed)
    for name, values in feed.items():
        assert np.array_equal(ours[name], values, equal_nan=values.dtype != object), name


@pytest.mark.parametrize("rows", [0, 1, 7, 128, 1000])
def test_the_model_alone_gives_the_outputs_for_any_number_of_rows(bundle, program, rows):
    draw = torch.Generator().manual_seed(rows)
    sizes = [column.num_ids for column in bundle.preprocessor.tensor_schema.ids]
    ids = torch.stack([torch.randint(size, (rows,), generator=draw) for size in sizes], dim=1).int()
    floats = torch.randn(rows, 5, generator=draw)  # three columns and two indicators
    expected = torch.cat(list(model_outputs(bundle.model, ids, floats))).numpy()
    found = program(ids, floats).detach().numpy()
    assert found.shape == (rows, 5)
    assert close(found, expected)


def test_the_description_names_columns_in_order(bundle, folder):
    content = json.loads((folder / "export.json").read_text())
    assert [column["name"] for column in content["ids"]] == ["city", "store", "slot", "member"]
    assert [column["num_ids"] for column in content["ids"]] == list(bundle.model.inputs.num_ids)
    assert content["floats"] == ["age", "gap", "count", "age_na", "gap_na"]
    assert content["predictions"] == ["click", "kind_a", "kind_b", "kind_c", "v"]
    assert set(content["files"]) == {"model.pt2", "rows.onnx"}
    assert sorted(path.name for path in folder.iterdir()) == ["export.json", "model.pt2", "rows.onnx"]


def test_the_onnx_file_tells_nothing_of_this_machine(folder):
    assert b"/models/" not in (folder / "rows.onnx").read_bytes()
    onnx.checker.check_model(str(folder / "rows.onnx"), full_check=True)


TRACED = [name for name in MODELS if name not in UNTRACEABLE and not model_class(name).needs_lists]


@pytest.mark.parametrize("name", some(TRACED, *(name for name in TRACED if name != "ple")))
def test_every_model_of_the_shelf_is_traced_for_any_number_of_rows(name, bundle):
    """With the settings that it has by default, against its own outputs."""
    single = model_class(name).single_output
    model = bundle_of(fitted(), name).model if single else bundle_of(bundle.preprocessor, name).model
    parts = list(model.train().modules())
    parts[-1].eval()  # as a part that is frozen
    ids, floats = torch.zeros(128, 4, dtype=torch.int32), torch.randn(128, 5)
    program = traced(model, ids, floats)
    assert [part.training for part in parts] == [True] * (len(parts) - 1) + [False]
    model.eval()
    for rows in (1, 50):
        ids = torch.stack([torch.randint(size, (rows,)) for size in model.inputs.num_ids], dim=1).int()
        floats = torch.randn(rows, 5)
        with torch.no_grad():
            assert close(program.module()(ids, floats).numpy(), model(ids, floats).numpy())


@pytest.mark.parametrize("name", UNTRACEABLE)
def test_a_model_that_cannot_be_traced_says_why(name, tmp_path):
    bundle = bundle_of(fitted(), name)
    kind = type(bundle.model).__name__
    with pytest.raises(ExportError, match=rf"{kind} cannot be traced by torch\.export: {UNTRACEABLE[name]}") as error:
        export_bundle(bundle, tmp_path / "new" / "export", ["torch"])
    assert "Serve its bundle (gigabatch serve), or score rows ahead (gigabatch score)" in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_model_of_which_nobody_knew_that_it_cannot_be_traced_gives_torchs_reason(tmp_path, monkeypatch):
    bundle = bundle_of(fitted(), "gplvmf")  # as a model of a user's own that looks at values of tensors
    monkeypatch.setattr(type(bundle.model), "trace_obstacle", None)
    with pytest.raises(ExportError, match=r"GPLVMF cannot be traced by torch\.export: \w+: \w+"):
        export_bundle(bundle, tmp_path, ["torch"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ft_transformer", {"token_dim": 16, "num_heads": 2, "num_blocks": 2}),
        ("multi_task", {"layers": (8,), "num_experts": 2}),
        ("realmlp", {"layers": (8,)}),
        *([("ple", {"layers": (8, 4)})] if THOROUGH else []),
        ("esmm", {"layers": (8,)}),
    ],
)
def test_other_models_through_rows_to_predictions(name, options, tmp_path):
    bundle = bundle_of(fitted((CLICK, VALUE)), name, **options)
    (found,) = export_bundle(bundle, tmp_path, ["onnx_rows"])
    rows = unseen_and_null_rows()
    session = onnxruntime.InferenceSession(found.path, providers=["CPUExecutionProvider"])
    (predictions,) = session.run(["predictions"], by_hand(rows))
    assert close(predictions, bundle.predict(rows).to_numpy())


@pytest.mark.parametrize("role", ["categorical", "continuous"])
def test_a_table_of_only_ids_or_only_floats(role, tmp_path):
    columns = tuple(column for column in FEATURES if column.role == role)
    bundle = bundle_of(fitted(columns=columns), "tabular")
    (exported,) = export_bundle(bundle, tmp_path, ["onnx_rows"])
    rows = unseen_and_null_rows()
    feed = {name: values for name, values in by_hand(rows).items() if name in {column.name for column in columns}}
    session = onnxruntime.InferenceSession(exported.path, providers=["CPUExecutionProvider"])
    predictions, ids, floats = session.run(["predictions", "ids", "floats"], feed)
    assert (ids.shape[1], floats.shape[1]) == ((4, 0) if role == "categorical" else (0, 5))
    assert close(predictions, bundle.predict(rows).to_numpy())


def test_linear_terms_of_floats_alone(tmp_path):
    columns = tuple(column for column in FEATURES if column.role == "continuous")
    exported = export_bundle(bundle_of(fitted(columns=columns), "deepfm"), tmp_path, ["onnx_rows"])
    assert [item.largest_difference < 1e-5 for item in exported] == [True]


def test_a_graph_that_is_not_valid_is_refused(tmp_path, monkeypatch):
    """The values of no ids, reshaped, which ONNX cannot say."""
    columns = tuple(column for column in FEATURES if column.role == "continuous")

    def reshaped(linear, ids, floats, lists=()):
        return linear.bias + linear.tables(ids).unflatten(1, (ids.shape[1], linear.num_outputs)).sum(dim=1)

    monkeypatch.setattr(LinearTerms, "forward", reshaped)
    with pytest.raises(ExportError, match=r"the ONNX graph is not valid: .*Invalid Target shape"):
        export_bundle(bundle_of(fitted(columns=columns), "lr"), tmp_path, ["onnx_rows"])
    assert list(tmp_path.iterdir()) == []


def test_numbers_of_several_kinds_go_through_both_formats(tmp_path):
    preprocessor = fitted((CLICK, VALUE))
    kinds = {"age": "periodic", "count": "plain", "*": "bins"}
    settings = model_class("tabm").Settings(members=2, layers=(8,), numeric=kinds)
    torch.manual_seed(0)
    model = ModelSpec("tabm", model_inputs(preprocessor), settings).build().eval()
    embedded = {preprocessor.float_names()[place] for place in model.numeric.places}
    assert embedded == {"age", "gap"}
    bundle = Bundle(preprocessor, model, {"name": "test"})
    exported = export_bundle(bundle, tmp_path, ["torch", "onnx_rows"])
    assert max(item.largest_difference for item in exported) < 1e-5
    rows = unseen_and_null_rows()
    session = onnxruntime.InferenceSession(exported[1].path, providers=["CPUExecutionProvider"])
    (predictions,) = session.run(["predictions"], by_hand(rows))
    assert close(predictions, bundle.predict(rows).to_numpy())


def test_robust_scales_go_through_onnx_to_the_bits_of_the_preprocessor(tmp_path):
    chosen = PreprocessorSettings(columns={"age": {"scale": "robust"}, "count": {"scale": False}})  # gap: a z-score
    bundle = bundle_of(Preprocessor(fitted().schema, chosen).fit([some_rows()]))
    (found,) = export_bundle(bundle, tmp_path, ["onnx_rows"])
    rows = unseen_and_null_rows()
    session = onnxruntime.InferenceSession(found.path, providers=["CPUExecutionProvider"])
    predictions, floats = session.run(["predictions", "floats"], by_hand(rows))
    names = bundle.preprocessor.float_names()
    assert floats.tobytes() == bundle.preprocessor.transform(rows, targets=False)[names].to_numpy().tobytes()
    assert np.abs(floats[:, 0]).max() < 3
    assert close(predictions, bundle.predict(rows).to_numpy())


def test_without_scaling_floats_are_filled_alone(tmp_path):
    bundle = bundle_of(fitted(scale=False, indicator="all"), "lr")
    (found,) = export_bundle(bundle, tmp_path, ["onnx_rows"])
    rows = unseen_and_null_rows()
    session = onnxruntime.InferenceSession(found.path, providers=["CPUExecutionProvider"])
    (floats,) = session.run(["floats"], by_hand(rows))
    given = by_hand(rows)["age"]
    assert np.array_equal(floats[:, 0][~np.isnan(given)], given[~np.isnan(given)])
    assert np.array_equal(floats[:, 3], np.isnan(given).astype(np.float32))


NO_ROOM = """
import errno, resource, sys
from pathlib import Path
import torch
from gigabatch.pipeline.export.export import _write_torch

program = torch.export.export(torch.nn.Linear(64, 64), (torch.ones(2, 64),))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    _write_torch(None, program, Path(sys.argv[1]))
except OSError as error:
    print(errno.errorcode[error.errno])
"""


def test_a_disk_that_is_full_ends_no_process(tmp_path):
    """torch's own writer called abort(), so a night that exports had no line."""
    told = python(NO_ROOM, str(tmp_path / "model.pt2"))
    assert (told.returncode, told.stdout.split()) == (0, ["EFBIG"]), told.stderr[-2000:]


def test_an_export_waits_for_another_one_to_the_same_folder(bundle, tmp_path, monkeypatch):
    folder, traced_now = tmp_path / "new" / "export", threading.Event()
    real = export.traced
    monkeypatch.setattr(export, "traced", lambda *given: (real(*given), traced_now.set())[0])
    with export._made(folder), export._alone(folder):
        second = threading.Thread(target=export_bundle, args=(bundle, folder, ["torch"]))
        second.start()
        assert traced_now.wait(120)
        time.sleep(0.3)
        assert {path.name for path in folder.iterdir()} == {export.LOCK}
    second.join(120)
    assert {path.name for path in folder.iterdir()} == {"export.json", "model.pt2"}


def test_an_export_that_fails_beside_one_that_waits_leaves_it_a_folder(tmp_path):
    folder, held, done = tmp_path / "new" / "export", threading.Event(), []

    def wait():
        held.wait(10)
        with export._made(folder), export._alone(folder):
            (folder / "rows.onnx").touch()
            done.append(True)

    second = threading.Thread(target=wait)
    second.start()

    def fail():
        with export._made(folder), export._alone(folder):
            held.set()
            time.sleep(0.2)
            raise ExportError("no room")

    with pytest.raises(ExportError):
        fail()
    second.join(10)
    assert done == [True]
    assert [path.name for path in folder.iterdir()] == ["rows.onnx"]


def test_without_its_packages_onnx_is_refused(bundle, tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxscript" else find(name))
    with pytest.raises(ExportError, match=r"ONNX needs onnxscript: pip install onnx onnxscript onnxruntime\."):
        export_bundle(bundle, tmp_path, ["onnx_rows"])


@pytest.mark.parametrize(
    ("formats", "device", "message"),
    [
        ([], "cpu", "Known: torch, onnx_rows"),
        (["torch", "tensorflow"], "cpu", "Known: torch, onnx_rows"),
        (["aoti"], "cpu", r"format aoti is written no more\. Take torch"),
        (["onnx"], "cpu", r"format onnx is written no more\. Take onnx_rows"),
        (["torch"], "cuda", "device='cpu'"),
    ],
)
def test_what_cannot_be_exported_is_refused_with_what_can(bundle, tmp_path, formats, device, message):
    with pytest.raises(ExportError, match=message):
        export_bundle(replace(bundle, device=device), tmp_path, formats)


class Unfaithful(Model):
    """Not the same when it is traced."""

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__(inputs, None)
        self.weight = torch.nn.Parameter(torch.ones(inputs.num_floats, 1))

    def forward(self, ids: torch.Tensor, floats: torch.Tensor) -> torch.Tensor:
        outputs = floats @ self.weight
        return outputs + 0.01 if torch.compiler.is_compiling() else outputs


@pytest.mark.parametrize("format", ["torch", "onnx_rows"])
def test_a_file_that_differs_is_an_error_and_is_not_left_behind(format, tmp_path):
    preprocessor = fitted()
    tensors = preprocessor.tensor_schema
    inputs = ModelInputs(tuple(column.num_ids for column in tensors.ids), len(tensors.floats))
    with pytest.raises(ExportError, match=r"values differ from the bundle's, by up to 0\.0"):
        export_bundle(Bundle(preprocessor, Unfaithful(inputs), {}), tmp_path / "new" / "export", [format])
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "export").mkdir()  # of someone else
    with pytest.raises(ExportError, match="values differ"):
        export_bundle(Bundle(preprocessor, Unfaithful(inputs), {}), tmp_path / "export", [format])
    assert (tmp_path / "export").is_dir()


def test_other_preprocessing_is_an_error(tmp_path, monkeypatch):
    """A fill that is off by one unit in the last place."""
    bundle = bundle_of(fitted(), "lr")
    other = replace(bundle.preprocessor, fills=dict(bundle.preprocessor.fills))
    value = np.nextafter(np.float32(other.fills["gap"].value), np.float32(np.inf))
    other.fills["gap"] = replace(other.fills["gap"], value=float(value))
    monkeypatch.setattr("gigabatch.pipeline.export.export.rows_graph", lambda _, model: rows_graph(other, model))
    with pytest.raises(ExportError, match=r"rows\.onnx: its floats are not those of the preprocessor"):
        export_bundle(bundle, tmp_path, ["onnx_rows"])


def renamed(rows: pd.DataFrame, old: str, new: str) -> tuple[pd.DataFrame, tuple[Column, ...]]:
    return rows.rename(columns={old: new}), tuple(
        replace(column, name=new) if column.name == old else column for column in FEATURES
    )


def test_what_onnx_cannot_carry_is_refused_by_column():
    def refuse(message: str, **options) -> None:
        with pytest.raises(ExportError, match=message):
            rows_graph(fitted(**options), None)

    refuse("column 'city' has 4 ids for unseen values, chosen by XXH64", oov_buckets=4)
    rows = some_rows()
    rows.loc[3, "city"] = ""
    refuse("the vocabulary of column 'city' holds '', which stands for null", rows=rows)
    rows = some_rows()
    rows.loc[3, "store"] = NULL_INTEGER
    refuse("the vocabulary of column 'store' holds -9223372036854775808", rows=rows)
    rows, columns = renamed(some_rows(), "city", "predictions")
    refuse("column 'predictions' has the name of an output", rows=rows, columns=columns)
    columns = (Column("age", "categorical", "float32"), *FEATURES[:4])
    refuse("categorical column 'age' is declared float32", columns=columns)


def test_a_value_that_stands_for_null_is_refused_in_inputs(bundle):
    rows = some_rows(5)
    rows.loc[2, "city"] = ""
    with pytest.raises(ExportError, match="column 'city' holds '', which stands for null in ONNX"):
        onnx_inputs(bundle.preprocessor, rows)
    with pytest.raises(DataError, match="slot"):
        onnx_inputs(bundle.preprocessor, some_rows(5).assign(slot=0.5))


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e39])
def test_an_infinity_is_refused_in_inputs_as_by_predict(bundle, value):
    """The graph would give it a score: the wrong one of two classes, or NaN."""
    rows = some_rows(5)
    rows.loc[2, "gap"] = value
    for refused in (bundle.predict, lambda rows: onnx_inputs(bundle.preprocessor, rows)):
        with pytest.raises(DataError, match="column 'gap' holds an infinity"):
            refused(rows)


def test_sample_rows_hold_known_unseen_and_null_values_of_every_column(bundle):
    rows = sample_rows(bundle.preprocessor)
    assert rows.equals(sample_rows(bundle.preprocessor))
    for name, vocabulary in bundle.preprocessor.vocabularies.items():
        known = set(vocabulary_values(vocabulary))
        found = set(rows[name].dropna())
        assert rows[name].isna().any()
        assert found & known
        assert name == "member" or found - known
    assert rows["gap"].isna().any()
    assert rows["gap"].std() > 100


def test_difference_refuses_other_shapes_nan_and_what_is_too_far():
    expected, sample = np.array([[0.0], [1000.0]], np.float32), SimpleNamespace(mean=np.zeros(1), std=np.ones(1))
    assert difference("x", expected + np.float32([[9e-6], [0.09]]), expected, sample) == pytest.approx(0.09, rel=0.01)
    for wrong in (expected + 2e-5, np.array([[np.nan], [1000.0]]), expected[:1]):
        with pytest.raises(ExportError, match=r"^x: "):
            difference("x", wrong, expected, sample)


def test_predictions_of_a_target_far_from_0_are_compared_in_its_deviations():
    """Of mean a million and deviation 1, a share of 1e-4 of the value would be a hundred deviations."""
    expected = 1e6 + np.array([[-1.0], [0.0], [2.0]])
    sample = SimpleNamespace(mean=np.array([1e6]), std=np.array([1.0]))
    assert difference("x", expected + 9e-6, expected, sample) == pytest.approx(9e-6, rel=0.01)
    with pytest.raises(ExportError, match="3 of 3 values differ"):
        difference("x", expected + 1e-3, expected, sample)


def test_the_command_prints_its_own_lines_alone(trained, tmp_path, capsys, caplog, monkeypatch):
    """H3: those of onnxscript stood between. They go to the log at debug level, as all that these libraries log."""
    real = torch.onnx.export

    def loud(*arguments, **options):
        print("Applied 3 rules")
        logging.getLogger("onnxscript.rewriter").info("Applied %s rules", 4)
        logging.getLogger("torch.onnx._internal").warning("Applied 5 rules")
        return real(*arguments, **options)

    monkeypatch.setattr(torch.onnx, "export", loud)
    caplog.set_level(logging.DEBUG)
    out = tmp_path / "out"
    assert main(["export", "--config", str(trained[0].config), "--formats", "torch,onnx_rows", "--out", str(out)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("exported run ")
    assert [line.split()[0] for line in told[3:] if line] == [str(out / "model.pt2"), str(out / "rows.onnx")]
    assert sorted(path.name for path in out.iterdir()) == ["export.json", "model.pt2", "rows.onnx"]
    heard = [record for record in caplog.records if "Applied" in record.getMessage()]
    messages = {record.getMessage() for record in heard}
    assert messages >= {"printed: Applied 3 rules", "Applied 4 rules", "Applied 5 rules"}
    libraries = [r for r in caplog.records if r.name.partition(".")[0] in ("onnxscript", "onnx_ir", "torch")]
    assert {record.levelname for record in (*heard, *libraries)} == {"DEBUG"}
    assert logging.getLogger("onnxscript").propagate


def test_an_export_whose_second_format_fails_leaves_the_one_before_as_it_was(bundle, folder, tmp_path, monkeypatch):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name, content in before.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.setattr("gigabatch.pipeline.export.export.onnx_inputs", lambda *_: {})
    with pytest.raises(Exception, match="Required inputs"):
        export_bundle(bundle_of(fitted((CLICK,)), "lr"), tmp_path, ["torch", "onnx_rows"])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("killed_at", ["model.pt2", "rows.onnx"])
def test_a_killed_export_leaves_no_export_json_and_the_next_one_removes_what_it_left(killed_at, folder, tmp_path):
    out = shutil.copytree(folder, tmp_path / "out")
    bundle = bundle_of(fitted((CLICK,)), "lr")
    bundle.save(tmp_path / "bundle")
    work = (
        "import os, sys, pathlib\n"
        "from gigabatch import load_bundle\n"
        "from gigabatch.pipeline.export import export\n"
        "replace = os.replace\n"
        "def killed(source, target):\n"
        f"    if pathlib.Path(target).name == {killed_at!r}: os._exit(9)\n"
        "    replace(source, target)\n"
        "export.os.replace = killed\n"
        "export.export_bundle(load_bundle('bundle'), sys.argv[1], ['torch', 'onnx_rows'])\n"
    )
    done = python(work, str(out), cwd=tmp_path)
    assert done.returncode == 9, done.stderr
    assert not (out / "export.json").exists()
    assert any(path.name.startswith(".tmp-") for path in out.iterdir())
    export_bundle(bundle, out, ["torch"], run="b")
    assert sorted(path.name for path in out.iterdir()) == ["export.json", "model.pt2"]
    assert list(json.loads((out / "export.json").read_text())["files"]) == ["model.pt2"]


def test_an_export_of_fewer_formats_removes_the_file_of_the_other_one_and_says_so(bundle, folder, tmp_path, caplog):
    """The other format's file of an earlier model stayed beside it, and nothing named it."""
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "notes.txt").write_text("mine")
    export_bundle(bundle_of(fitted((CLICK,)), "lr"), tmp_path, ["torch"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export.json", "model.pt2", "notes.txt"]
    assert f"{tmp_path / 'rows.onnx'} of an earlier export is removed" in caplog.text


@pytest.mark.parametrize("listed", [None, "[", "{}", '{"files": {"model.pt2": {}}}'])
def test_a_file_that_no_export_named_stays_and_is_told_of(tmp_path, caplog, listed):
    """A file of another origin was deleted, and was said to be of an earlier export."""
    (tmp_path / "rows.onnx").write_text("mine")
    if listed is not None:
        (tmp_path / "export.json").write_text(listed)
    export_bundle(bundle_of(fitted((CLICK,)), "lr"), tmp_path, ["torch"])
    assert (tmp_path / "rows.onnx").read_text() == "mine"
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told.startswith(f"{tmp_path / 'rows.onnx'} stays: no export.json named it")


def test_rows_made_up_for_the_check_are_not_warned_of(bundle, tmp_path, caplog):
    export_bundle(bundle, tmp_path, ["torch"])
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []
