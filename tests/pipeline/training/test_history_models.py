"""`din` and `sasrec` from a YAML file and a table with histories to predictions."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from ruamel.yaml import YAML

from gigabatch.models.errors import ModelError
from gigabatch.pipeline.bundle import load_bundle
from gigabatch.pipeline.evaluation.evaluate import evaluate
from gigabatch.pipeline.stages.stages import Pipeline

NUM_ROWS, NUM_ITEMS = 4000, 24
MODELS = {
    "din": {"kind": "din", "embedding_dim": 8, "attention_layers": [16], "layers": [16]},
    "sasrec": {"kind": "sasrec", "dim": 16, "num_blocks": 1, "length": 4, "dropout": 0.0},
}
TRAIN = {"epochs": 10, "batch_size": 128, "optimizer": "adamw", "optimizer_settings": {"rowwise": True}, "lr_max": 0.01}


def rows_of(kind: str) -> pd.DataFrame:
    """`din`: a click where the history holds the row's item. `sasrec`: one where the item is the neighbour of the
    history's last. About half of the rows are; empty histories have no click."""
    draw = np.random.default_rng(1)
    histories = [draw.integers(NUM_ITEMS, size=draw.integers(6)) for _ in range(NUM_ROWS)]
    items = draw.integers(NUM_ITEMS, size=NUM_ROWS)
    labels = []
    for place, history in enumerate(histories):
        wanted = (history[-1:] + 1) % NUM_ITEMS if kind == "sasrec" else history
        if len(history) and place % 2:
            items[place] = draw.choice(wanted)
        labels.append(int(items[place] in wanted))
    return pd.DataFrame(
        {
            "user": draw.integers(50, size=NUM_ROWS),
            "item": items,
            "clicked": labels,
            "history": [[int(seen) for seen in history] for history in histories],
        }
    )


def write_config(folder: Path, kind: str, lists: bool = True) -> Path:
    rows_of(kind).to_parquet(folder / "rows.parquet")
    features = {
        "path": str(folder / "rows.parquet"),
        "categorical": {"user": "int64", "item": "int64"},
        "targets": {"clicked": {"task": "binary"}},
        "entities": {"user": {"key": "user", "columns": []}, "item": {"key": "item", "columns": []}},
    }
    if lists:
        features["lists"] = {"history": {"shares": "item"}}
    raw = {
        "name": kind, "recipe": "table", "device": "cpu", "engine": "pandas", "features": features,
        "artifacts": str(folder / "artifacts"), "runs": str(folder / "runs"), "model": MODELS[kind], "train": TRAIN,
        "evaluate": {"importance": False, "baselines": []},
    }  # fmt: skip
    with open(folder / "run.yaml", "w") as file:
        YAML(typ="safe").dump(raw, file)
    return folder / "run.yaml"


@pytest.mark.parametrize("kind", MODELS)
def test_a_label_that_follows_from_history_and_item_is_learnt_and_predicted_from_the_bundle(kind, tmp_path):
    pipeline = Pipeline.from_config(write_config(tmp_path, kind))
    run = pipeline.train()
    assert run.summary["metrics"]["test"]["auc"] > 0.95
    bundle, features = load_bundle(run.path / "model"), pipeline.features()
    frame = features.frame("test")
    predicted = bundle.predict(frame)["clicked"].to_numpy()
    evaluated = evaluate(bundle.model, features.encode().table("test"), bundle.schema, "cpu").predictions[0].numpy()
    np.testing.assert_allclose(predicted, evaluated, rtol=1e-5, atol=1e-6)
    assert any(len(history) == 0 for history in frame["history"])
    assert np.isfinite(predicted).all()


@pytest.mark.parametrize("kind", MODELS)
def test_a_table_without_a_history_is_refused_with_what_to_set(kind, tmp_path):
    with pytest.raises(ModelError, match=rf"model {kind}: .*Set features\.history \(recipe interactions\)"):
        Pipeline.from_config(write_config(tmp_path, kind, lists=False)).train()
