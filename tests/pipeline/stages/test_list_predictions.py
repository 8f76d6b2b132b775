"""One training on rows with lists, from a YAML file, and every way to its predictions: all give the same numbers."""

import asyncio
import json
import random

import httpx
import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
import yaml

from gigabatch.features.encoding.online import OnlineTransformer
from gigabatch.pipeline.bundle import load_bundle
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.config.serving import ServeSettings
from gigabatch.pipeline.export.export import flat_lists
from gigabatch.pipeline.export.onnx_rows import onnx_inputs
from gigabatch.pipeline.serving.http.app import create_app
from gigabatch.pipeline.serving.metrics import Metrics
from gigabatch.pipeline.serving.served import load_served
from gigabatch.pipeline.serving.swap import Slot
from gigabatch.pipeline.stages.stages import Pipeline

NUM_ROWS = 600


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """The YAML file of a run that was trained and exported."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("lists")
    draw = random.Random(2)
    tags = [[draw.choice("abcdef") for _ in range(draw.randrange(5))] for _ in range(NUM_ROWS)]
    seen = [[draw.randrange(9) for _ in range(draw.randrange(5))] for _ in range(NUM_ROWS)]
    frame = pd.DataFrame(
        {
            "row": range(NUM_ROWS), "item": [place % 9 for place in range(NUM_ROWS)],
            "price": [draw.random() for _ in range(NUM_ROWS)], "clicked": [int("a" in row) for row in tags],
            "tags": ["|".join(row) for row in tags],
            "w": ["|".join(str(draw.choice((0.5, 1, 2))) for _ in row) for row in tags],
            "seen": ["|".join(map(str, row)) for row in seen],
        }
    )  # fmt: skip
    frame.to_csv(folder / "rows.csv", index=False)
    lists = {"tags": {"weights": "w"}, "seen": {"shares": "item", "max_length": 2}}
    raw = {
        "name": "lists", "recipe": "table", "device": "cpu", "engine": "pandas",
        "artifacts": str(folder / "artifacts"), "runs": str(folder / "runs"),
        "features": {
            "path": str(folder / "rows.csv"), "categorical": {"item": "int64"}, "continuous": ["price"],
            "targets": {"clicked": {"task": "binary"}}, "lists": lists, "list_separator": "|",
        },
        "model": {"kind": "lr"}, "train": {"epochs": 8, "batch_size": 64, "lr_max": 0.1},
        "evaluate": {"importance": False, "baselines": []},
    }  # fmt: skip
    path = folder / "lists.yaml"
    path.write_text(yaml.safe_dump(raw))
    assert main(["train", "--config", str(path)]) == 0
    assert main(["export", "--config", str(path), "--out", str(folder / "exported")]) == 0
    yield path
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def rows(config):
    """Rows of the test split, of the features stage."""
    return Pipeline.from_config(config).features().frame("test")


@pytest.fixture(scope="module")
def run(config):
    return config.parent / "runs" / "lists" / "latest"


@pytest.fixture(scope="module")
def bundle(run):
    return load_bundle(run / "model")


@pytest.fixture(scope="module")
def expected(bundle, rows):
    found = bundle.predict(rows)["clicked"].to_numpy()
    tags = [[] if row is pd.NA else list(row) for row in rows["tags"]]  # empty text of a CSV file is read as null
    has_a = np.array(["a" in row for row in tags])
    assert found[has_a].mean() > found[~has_a].mean() + 0.2  # the lists were learnt
    assert [] in tags
    return found


def same(found, expected, tolerance=1e-5) -> bool:
    return np.allclose(np.asarray(found, float), expected, rtol=tolerance, atol=tolerance)


def raw_rows(config, rows) -> pd.DataFrame:
    whole = pd.read_csv(config.parent / "rows.csv", dtype=str)
    return whole.drop(columns="clicked").iloc[rows["row_number"].to_numpy()]


def test_raw_rows_in_memory_and_by_the_command(config, rows, bundle, expected, tmp_path):
    raw = raw_rows(config, rows)
    assert same(bundle.predict_raw(raw)["clicked"], expected)
    raw.to_csv(tmp_path / "raw.csv", index=False)
    arguments = ["score", "--config", str(config), "--input", str(tmp_path / "raw.csv")]
    assert main([*arguments, "--out", str(tmp_path / "raw.parquet")]) == 0
    assert same(pd.read_parquet(tmp_path / "raw.parquet")["predicted_clicked"], expected)


def test_a_split_by_the_command(config, expected, tmp_path):
    assert main(["score", "--config", str(config), "--split", "test", "--out", str(tmp_path / "test.parquet")]) == 0
    assert same(pd.read_parquet(tmp_path / "test.parquet")["predicted_clicked"], expected)


def as_json(bundle, rows) -> list[dict]:
    columns = bundle.online().columns
    plain = lambda value: None if value is pd.NA else value.tolist() if isinstance(value, np.ndarray) else value  # noqa: E731
    found = rows[list(columns)].astype(object).to_dict("records")
    return [{name: plain(value) for name, value in row.items()} for row in found]


def test_a_service(run, bundle, rows, expected):
    app = create_app(Slot(load_served(run.resolve())), ServeSettings(), Metrics())

    async def ask(content):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://served") as client:
            return await client.post("/score", json=content)

    asked = as_json(bundle, rows)
    json.dumps(asked, allow_nan=False)
    answer = asyncio.run(ask({"rows": asked}))
    assert answer.status_code == 200, answer.text
    assert same(answer.json()["predictions"]["clicked"], expected)
    one = asyncio.run(ask({"rows": asked[3:4]})).json()["predictions"]["clicked"]
    assert same(one, expected[3:4])


def test_exported_graphs(config, run, bundle, rows, expected):
    folder = config.parent / "exported"
    session = onnxruntime.InferenceSession(folder / "rows.onnx", providers=["CPUExecutionProvider"])
    (predictions,) = session.run(["predictions"], onnx_inputs(bundle.preprocessor, rows))
    assert same(predictions[:, 0], expected, 1e-4)
    transformer = OnlineTransformer.load(run / "model" / "preprocessor")
    asked = as_json(bundle, rows)
    ids, floats = map(torch.from_numpy, transformer.batch(asked))
    packed = transformer.pack_lists(asked)
    for one, other in zip(packed, bundle.preprocessor.pack_lists(rows), strict=True):
        assert all(a is b is None or a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))
    lists = [torch.from_numpy(part) for column in packed for part in column if part is not None]
    outputs = torch.export.load(folder / "model.pt2").module()(ids, floats, *lists)
    assert same(torch.sigmoid(outputs[:, 0]).detach(), expected, 1e-4)
    assert len(lists) == len(flat_lists(tuple(packed)))
