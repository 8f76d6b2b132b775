"""Small recommenders with random weights, their frames, and run folders of them with stored embeddings; and what serves
the raw rows of a workflow."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.schema import Column, Entity, Schema, Target
from gigabatch.features.workflow.workflow import Workflow
from gigabatch.models.shelf import ModelSpec, model_class
from gigabatch.pipeline.bundle import Bundle
from gigabatch.pipeline.embedding.embed import embed
from gigabatch.pipeline.embedding.settings import EmbedSettings
from gigabatch.pipeline.serving.raw_rows import RawRows
from gigabatch.pipeline.training.train import model_inputs

CREATED = "2026-11-21T00:00:00+00:00"
CITIES = ("Rome", "Oslo", "Lima", "Bonn")
SETTINGS = {
    "two_tower": {"layers": (16,), "vector_dim": 8, "top": "mlp", "top_layers": (8,)},
    "tabular": {"layers": (8,)},
    "mf": {},
}


def schema(context: bool = False, classes: bool = False) -> Schema:
    """Text ids of users, integer ids of items, a float with nulls and a whole number that holds none."""
    columns = [
        Column("user_id", "categorical", "string"),
        Column("city", "categorical", "string"),
        Column("age", "continuous", "float32"),
        Column("visits", "continuous", "int64"),
        Column("item_id", "categorical", "int64"),
        Column("genre", "categorical", "string"),
        Column("price", "continuous", "float32"),
        *([Column("hour", "categorical", "int64"), Column("wait", "continuous", "float32")] if context else []),
        Column("clicked", "target", "int32"),
    ]
    entities = (
        Entity("user", "user_id", ("user_id", "city", "age", "visits")),
        Entity("item", "item_id", ("item_id", "genre", "price")),
    )
    return Schema(
        tuple(columns),
        (Target("clicked", "multiclass", 2, ("no", "yes")) if classes else Target("clicked", "binary"),),
        entities,
    )


def interactions(
    rows: int = 600, users: int = 40, items: int = 60, context: bool = False, seed: int = 0
) -> pd.DataFrame:
    """Rows of the features stage; a user's and an item's own columns are the same in all rows of one."""
    draw = np.random.default_rng(seed)
    user, item = draw.integers(0, users, rows), draw.integers(0, items, rows)
    user[:users], item[:items] = np.arange(users), np.arange(items)
    ages = np.where(draw.random(users) < 0.2, np.nan, draw.normal(40, 12, users))
    frame = pd.DataFrame(
        {
            "user_id": pd.array([f"u{n}" for n in user], "str"),
            "city": pd.array([CITIES[n % 4] for n in user], "str"),
            "age": ages[user].astype("float32"),
            "visits": draw.integers(0, 100, users)[user],
            "item_id": item + 1000,
            "genre": pd.array([f"g{n % 5}" for n in item], "str"),
            "price": draw.lognormal(2, 1, items)[item].astype("float32"),
        }
    )
    if context:
        frame["hour"] = draw.integers(0, 24, rows)
        frame["wait"] = draw.normal(0, 1, rows).astype("float32")
    frame["clicked"] = draw.integers(0, 2, rows).astype("int32")
    return frame


def random_bundle(
    frame: pd.DataFrame,
    kind: str = "two_tower",
    context: bool = False,
    seed: int = 0,
    classes: bool = False,
    **settings,
) -> Bundle:
    """A bundle over these rows whose weights nobody has trained."""
    preprocessor = Preprocessor(schema(context, classes)).fit([frame])
    chosen = model_class(kind).Settings(**{**SETTINGS[kind], **settings})
    torch.manual_seed(seed)
    model = ModelSpec(kind, model_inputs(preprocessor), chosen).build().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # so that scores differ, and no layer is still at zero
            parameter.add_(0.3 * torch.randn_like(parameter))
    return Bundle(preprocessor, model, {"recipe": "small"})


def raw_rows_of(workflow: Workflow, features: Sequence[str], **info) -> RawRows:
    """The raw rows of this workflow as a service takes them, of a model that reads none of its columns."""
    return RawRows(replace(random_bundle(interactions(), "mf"), info=info, workflow=workflow), features)


def write_run(folder: Path, bundle: Bundle, frame: pd.DataFrame, **embedding) -> Path:
    """A run's folder with the bundle, and its users and items stored as the stage `embed` does."""
    bundle.save(folder / "model")
    (folder / "manifest.json").write_text(json.dumps({"created_utc": CREATED}))
    if bundle.schema.entities:
        write_embeddings(folder, bundle, frame, **embedding)
    return folder


def write_embeddings(folder: Path, bundle: Bundle, frame: pd.DataFrame, **embedding) -> None:
    """What the stage `embed` writes of a features stage that holds this frame."""
    part = folder.parent / f"{folder.name}-rows.parquet"
    frame.to_parquet(part)
    features = SimpleNamespace(
        pipeline=SimpleNamespace(engine="pandas", config=SimpleNamespace(recipe="table")),
        rows={"train": len(frame)},
        parts=lambda split: [part],
        artifact=SimpleNamespace(key="small"),
    )
    embed(folder, bundle, features, EmbedSettings(**embedding))
