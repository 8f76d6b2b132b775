"""Rows whose labels follow from a list column alone, as a file, and configurations that train on them."""

import json
import random
from pathlib import Path
from typing import Any

import pandas as pd

MODEL_SETTINGS = {  # small ones, and steps that learn in a few epochs
    "tabular": {"layers": [16]},
    "deepfm": {"layers": [16]},
    "wide_deep": {"layers": [16], "crosses": [[0, 1]]},
    "dlrm": {"bottom_layers": [8], "top_layers": [16]},
    "dcn": {"layers": [16]},
    "finalmlp": {"first_layers": [16], "second_layers": [16], "num_heads": 2, "gate_layers": [8]},
    "autoint": {"num_layers": 1, "layers": [16]},
    "ft_transformer": {"token_dim": 16, "num_heads": 2, "num_blocks": 1},
    "tabm": {"members": 4, "layers": [16]},
    "realmlp": {"layers": [16]},
    "multi_task": {"layers": [16], "num_experts": 2, "tower_layers": [8]},
    "ple": {"layers": [16], "tower_layers": [8]},
    "esmm": {"layers": [16]},
}


def tag_rows(number: int, seed: int = 1) -> pd.DataFrame:
    """Clicked: more of a row's tags are a, b or c than others. Bought: clicked, and a is among the tags. The columns
    beside tags and seen say nothing of either."""
    draw = random.Random(seed)
    tags = [[draw.choice("abcdef") for _ in range(draw.randrange(1, 6))] for _ in range(number)]
    clicked = [int(sum(1 if tag in "abc" else -1 for tag in row) > 0) for row in tags]
    return pd.DataFrame(
        {
            "item": [draw.randrange(9) for _ in range(number)],
            "place": [draw.choice(["left", "right"]) for _ in range(number)],
            "price": [draw.random() for _ in range(number)],
            "clicked": clicked,
            "bought": [one * int("a" in row) for one, row in zip(clicked, tags, strict=True)],
            "tags": tags,
            "seen": [[draw.randrange(9) for _ in range(draw.randrange(4))] for _ in range(number)],
        }
    )


def list_config(folder: Path, kind: str, lists: bool = True, rows: int = 1500, **changes: Any) -> Path:
    """A configuration file of a model of this kind on such rows, whose file is made where there is none."""
    path = folder / "rows.parquet"
    if not path.exists():
        tag_rows(rows).to_parquet(path)
    steps = kind == "esmm"
    features = {
        "path": str(path), "categorical": {"item": "int64", "place": "string"}, "continuous": ["price"],
        "targets": {name: {"task": "binary"} for name in (("clicked", "bought") if steps else ("clicked",))},
    }  # fmt: skip
    if lists:
        features["lists"] = {"tags": {}, "seen": {"shares": "item"}}
    raw = {
        "name": f"{kind}-{lists}", "recipe": "table", "device": "cpu", "engine": "pandas",
        "artifacts": str(folder / "artifacts"), "runs": str(folder / "runs"), "features": features,
        "model": {"kind": kind} | MODEL_SETTINGS.get(kind, {}),
        "train": {"epochs": 5, "batch_size": 64, "lr_max": 0.03},
        "evaluate": {"importance": False, "baselines": []},
    }  # fmt: skip
    for name, value in changes.items():
        raw[name] = raw.get(name, {}) | value if isinstance(value, dict) else value
    config = folder / f"{raw['name']}.yaml"
    config.write_text(json.dumps(raw, allow_nan=False))
    return config
