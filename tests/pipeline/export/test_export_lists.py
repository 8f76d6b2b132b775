"""Exports of models with lists: ids, offsets and weights bit for bit, scores within the tolerance, refusals by name."""

import json

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.encoding.settings import CategorySettings, PreprocessorSettings
from gigabatch.features.errors import DataError
from gigabatch.features.schema import Column, ListColumn, Schema, Target
from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.models.layers.fields import tables_of
from gigabatch.models.model import Model
from gigabatch.models.shelf import MODELS, ModelSpec, model_class
from gigabatch.pipeline.bundle import Bundle, jagged, model_outputs
from gigabatch.pipeline.export.asked import ExportError
from gigabatch.pipeline.export.export import export_bundle, flat_lists, traced
from gigabatch.pipeline.export.export_check import ABSOLUTE, RELATIVE, sample_rows
from gigabatch.pipeline.export.onnx_rows import onnx_inputs, rows_graph
from gigabatch.pipeline.training.train import model_inputs
from tests.examples import examples, some

TAKING = [name for name in MODELS if model_class(name).takes_lists and not model_class(name).entities]
NULL = -(2**63)
TAGS = ListColumn("tags", "int64", weights="w", max_length=3)
LISTS = (ListColumn("seen", shares="item", max_length=2), TAGS, ListColumn("words"))


def schema_of(lists=LISTS) -> Schema:
    columns = Column("item", "categorical", "string"), Column("price", "continuous", "float32")
    return Schema((*columns, Column("y", "target", "float32")), (Target("y", "binary"),), (), tuple(lists))


def some_rows(rows: int = 200) -> pd.DataFrame:
    draw = np.random.default_rng(1)
    tags = [draw.integers(0, 6, size).tolist() for size in draw.integers(0, 5, rows)]
    words = [[str(value) for value in draw.choice(["x y", "ü", "7"], size)] for size in draw.integers(0, 3, rows)]
    return pd.DataFrame(
        {
            "item": draw.choice(list("abcd"), rows), "price": draw.normal(size=rows).astype("float32"),
            "y": draw.integers(0, 2, rows).astype("float32"),
            "seen": [[str(value) for value in draw.choice(list("abcde"), size)] for size in draw.integers(0, 4, rows)],
            "tags": tags, "w": [[1.0] * len(row) for row in tags],
            "words": words,
        }
    )  # fmt: skip


def fitted(lists=LISTS, **columns) -> Preprocessor:
    return Preprocessor(schema_of(lists), PreprocessorSettings(columns=columns)).fit([some_rows()])


def bundle_of(preprocessor: Preprocessor, name: str = "deepfm", **options) -> Bundle:
    torch.manual_seed(0)
    model = ModelSpec(name, model_inputs(preprocessor), model_class(name).Settings(**options)).build()
    return Bundle(preprocessor, at_work(model), {"name": "lists"})


def at_work(model: Model) -> Model:
    """With weights of which each says something."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return model.eval()


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return bundle_of(fitted(), layers=(8,))


@pytest.fixture(scope="module")
def folder(bundle, tmp_path_factory):
    path = tmp_path_factory.mktemp("export")
    exported = export_bundle(bundle, path, ["torch", "onnx_rows"])
    assert max(item.largest_difference for item in exported) < 1e-5
    return path


@pytest.fixture(scope="module")
def program(folder):
    return torch.export.load(folder / "model.pt2").module()


@pytest.fixture(scope="module")
def session(folder):
    return onnxruntime.InferenceSession(folder / "rows.onnx", providers=["CPUExecutionProvider"])


def close(found, expected) -> bool:
    return bool((np.abs(found - expected) <= ABSOLUTE + RELATIVE * np.abs(expected)).all())


def by_hand(rows: list[dict]) -> dict[str, np.ndarray]:
    """Inputs of the graph, element by element."""
    feed = {
        "item": np.array([row["item"] or "" for row in rows], dtype=object),
        "price": np.array([np.nan if row["price"] is None else row["price"] for row in rows], np.float32),
    }
    for name, null, kind in (("seen", "", object), ("tags", NULL, np.int64), ("words", "", object)):
        flat = [null if value is None else value for row in rows for value in row[name] or []]
        feed[name] = np.array(flat, dtype=kind)
        feed[f"{name}/offsets"] = np.cumsum([0, *(len(row[name] or []) for row in rows)])
    feed["w"] = np.array([value for row in rows for value in row["w"] or []], np.float32)
    return feed


WORD = st.none() | st.sampled_from(["a", "b", "e", "z", "x y", "7"]) | st.text("aü ", min_size=1, max_size=2)
NUMBER = st.none() | st.integers(0, 7) | st.integers(NULL + 1, 2**63 - 1)
ROW = st.fixed_dictionaries(
    {
        "item": WORD, "price": st.none() | st.floats(-9, 9, width=32), "seen": st.none() | st.lists(WORD, max_size=5),
        "tags": st.none() | st.lists(NUMBER, max_size=6), "words": st.lists(WORD, max_size=3),
    }
)  # fmt: skip
EMPTY = {"item": "a", "price": 1.0, "seen": None, "tags": None, "words": []}


@settings(max_examples=examples(60), deadline=None)
@given(rows=st.lists(ROW, min_size=1, max_size=6), factor=st.sampled_from([0.5, -1.5]))
@example(rows=[EMPTY], factor=1.0)
@example(rows=[{**EMPTY, "tags": [None, None]}, EMPTY], factor=1.0)
@example(rows=[EMPTY, {**EMPTY, "tags": [1], "seen": ["a", None, "b", "e"]}, EMPTY], factor=1.0)
def test_rows_through_onnx_are_the_bundles(bundle, session, rows, factor):
    for row in rows:
        row["w"] = None if row["tags"] is None else [factor * (place + 1) for place in range(len(row["tags"]))]
    frame = pd.DataFrame(rows).astype({"item": "str", "price": "float32"})
    feed = by_hand(rows)
    names = [f"{item.name}/encoded_{part}" for item in LISTS for part in ("ids", "offsets")]
    predictions, weights, *found = session.run(["predictions", "tags/encoded_weights", *names], feed)
    packed = bundle.preprocessor.pack_lists(frame)
    expected = [part for column in packed for part in column[:2]]
    for name, one, other in zip(names, found, expected, strict=True):
        assert (one.dtype, one.tolist()) == (other.dtype, other.tolist()), name
    assert weights.tobytes() == packed[1].weights.tobytes()
    assert close(predictions[:, 0], bundle.predict(frame)["y"].to_numpy())
    ours = onnx_inputs(bundle.preprocessor, frame)
    assert ours.keys() == feed.keys()
    for name, values in feed.items():
        assert np.array_equal(ours[name], values, equal_nan=values.dtype != object), name


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 300])
@pytest.mark.parametrize("most", [0, 1, 4])
def test_the_model_alone_gives_the_outputs_for_any_number_of_rows_and_elements(bundle, program, rows, most):
    draw = torch.Generator().manual_seed(rows + most)
    lists = []
    for item in bundle.preprocessor.tensor_schema.lists:
        lengths = torch.randint(most + 1, (rows,), generator=draw)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        ids = torch.randint(item.num_ids, (int(offsets[-1]),), generator=draw).int()
        lists.append(JaggedColumn(ids, offsets, torch.randn(len(ids), generator=draw) if item.weighted else None))
    ids = torch.randint(bundle.model.inputs.num_ids[0], (rows, 1), generator=draw).int()
    floats = torch.randn(rows, bundle.model.inputs.num_floats, generator=draw)
    found = program(ids, floats, *flat_lists(lists)).detach().numpy()
    expected = torch.cat(list(model_outputs(bundle.model, ids, floats, lists))).numpy()
    assert found.shape == (rows, 1)
    assert close(found, expected)


def test_the_description_names_the_lists_in_order(folder):
    content = json.loads((folder / "export.json").read_text())
    assert [(column["name"], column["weighted"]) for column in content["lists"]] == [
        ("seen", False), ("tags", True), ("words", False)
    ]  # fmt: skip


def test_the_rows_that_are_compared_have_every_kind_of_list(bundle):
    rows = sample_rows(bundle.preprocessor)
    lists = rows["tags"].tolist()
    assert lists[0] == []
    assert sum(row is None for row in lists) > 5
    assert max(len(row) for row in lists if row is not None) > TAGS.max_length
    packed = jagged(bundle.preprocessor.pack_lists(rows))
    assert [bool((column.ids == 2).any()) for column in packed] == [True] * 3  # unseen
    assert all(any(value is None for row in rows[name].dropna() for value in row) for name in ("seen", "tags", "words"))


class Pooled(Model):
    """The sum of the numbers of each list's pooled rows."""

    takes_lists = True

    def __init__(self, inputs, pooling) -> None:
        super().__init__(inputs, object())
        self.tables = tables_of(inputs, 3, pooling=pooling)

    def forward(self, ids, floats, lists=()):
        self.require_inputs(ids, floats, lists)
        return self.tables(ids, lists).sum(1, keepdim=True)


@pytest.mark.parametrize(("pooling", "lists"), [("max", (LISTS[0], LISTS[2])), ("root", LISTS)])
def test_lists_of_other_poolings_go_through_both_formats(tmp_path, pooling, lists):
    preprocessor = fitted(lists)
    torch.manual_seed(1)
    bundle = Bundle(preprocessor, at_work(Pooled(model_inputs(preprocessor), pooling)), {})
    exported = export_bundle(bundle, tmp_path, ["torch", "onnx_rows"])
    assert max(item.largest_difference for item in exported) < 1e-5


@pytest.mark.parametrize("name", some(TAKING, "tabular", "deepfm", "din", "tabm", "multi_task", "ft_transformer"))
def test_every_model_that_takes_lists_is_traced_for_any_number_of_rows(name, bundle):
    model = at_work(ModelSpec(name, bundle.model.inputs, model_class(name).Settings()).build())
    rows = sample_rows(bundle.preprocessor, 60)
    ids, floats = torch.randint(4, (60, 1), dtype=torch.int32), torch.randn(60, model.inputs.num_floats)
    lists = jagged(bundle.preprocessor.pack_lists(rows))
    program = traced(model, ids, floats, lists).module()
    for start, stop in ((0, 1), (1, 2), (5, 40)):
        own = [column.slice(start, stop) for column in lists]
        found = program(ids[start:stop], floats[start:stop], *flat_lists(own)).detach().numpy()
        with torch.no_grad():
            assert close(found, model(ids[start:stop], floats[start:stop], own).numpy())


def test_a_file_whose_lists_are_others_is_not_left_behind(tmp_path, monkeypatch):
    other = fitted((LISTS[0], ListColumn("tags", "int64", weights="w", max_length=2), LISTS[2]))
    monkeypatch.setattr("gigabatch.pipeline.export.export.rows_graph", lambda _, model: rows_graph(other, model))
    with pytest.raises(ExportError, match="its tags/encoded_ids are not those of the preprocessor"):
        export_bundle(bundle_of(fitted(), "lr"), tmp_path, ["onnx_rows"])
    assert list(tmp_path.iterdir()) == []


def test_what_no_graph_can_carry_is_refused_by_the_lists_name():
    with pytest.raises(ExportError, match="'words' has 4 ids for unseen values"):
        rows_graph(fitted(words=CategorySettings(oov_buckets=4)), None)
    rows = some_rows().rename(columns={"words": "ids"})
    named = Preprocessor(schema_of((*LISTS[:2], ListColumn("ids")))).fit([rows])
    with pytest.raises(ExportError, match="'ids' has a name of the ONNX graph's own"):
        rows_graph(named, None)
    rows = some_rows().assign(**{"tags/offsets": [["a"]] * 200})
    named = Preprocessor(schema_of((*LISTS[:2], ListColumn("tags/offsets")))).fit([rows])
    with pytest.raises(ExportError, match="'tags/offsets' has a name of the ONNX graph's own"):
        rows_graph(named, None)
    rows = some_rows().assign(words=[["", "a"]] * 200)
    with pytest.raises(ExportError, match="vocabulary of column 'words' holds ''"):
        rows_graph(Preprocessor(schema_of()).fit([rows]), None)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"words": [["a", ""]] * 200}, "'words' holds '', which stands for null"),
        ({"tags": [[NULL]] * 200, "w": [[1.0]] * 200}, "'tags' holds -9223372036854775808"),
        ({"w": [[1.0] * 9] * 200}, "list column 'tags': 'w' holds other than a weight an element"),
    ],
)
def test_rows_that_onnx_cannot_say_are_refused(bundle, changed, said):
    with pytest.raises(ExportError, match=said):
        onnx_inputs(bundle.preprocessor, some_rows().assign(**changed))


@pytest.mark.parametrize("weight", [None, np.nan, np.inf])
def test_weights_that_are_no_numbers_are_refused_in_inputs_as_by_predict(bundle, weight):
    rows = some_rows(3).assign(tags=[[1], [2, 3], []], w=[[1.0], [1.0, weight], []])
    for refused in (bundle.predict, lambda rows: onnx_inputs(bundle.preprocessor, rows)):
        with pytest.raises(
            DataError, match="the weights 'w' of list column 'tags' hold a null, NaN or infinity in row 1"
        ):
            refused(rows)
    unread = some_rows(3).assign(tags=[[1], [None, 3], [1, 2, 3, 4]], w=[[1.0], [weight, 1.0], [weight, 1.0, 1.0, 1.0]])
    bundle.predict(unread)  # of an element that is null, or not among the last three
    onnx_inputs(bundle.preprocessor, unread)
