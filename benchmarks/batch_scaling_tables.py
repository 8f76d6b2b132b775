"""What benchmarks/batch_scaling.py compares: optimizers, runs, and packed tables with a train, valid and test split."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from typing import Any

from benchmarks.end_to_end_ours import LAYERS

SPLITS = ("train", "valid", "test")
STEPS = (4_000, 160, 40)  # an epoch, by batch size; the first is the reference, the bar is for the second
COARSE, FINE = (0.25, 1.0, 4.0), (0.5, 2.0)


@dataclass(frozen=True)
class Contender:
    """An optimizer of `build_optimizer`.

    centre: learning rate that the search starts from. settings: further ones, of a batch's size over 1,000 and the
    learning rate.
    """

    title: str
    optimizer: str
    centre: float
    settings: Callable[[float, float], dict[str, Any]] = lambda scale, lr: {}


def cowclip_settings(scale: float, lr: float) -> dict[str, Any]:
    """The paper's rules from a batch of 1,000: the tables' rate stays (that of the rest grows by the square root), l2
    grows with the batch. The search moves both rates together."""
    return {"table_lr": 5.0 * lr / sqrt(scale), "l2": 1e-5 * scale}


CONTENDERS = {
    "lamb": Contender("LAMB, rows and layers", "lamb", 0.08, lambda scale, lr: {"rowwise_method": "lamb"}),
    "adamw": Contender("AdamW", "adamw", 0.02),
    "adagrad_lamb": Contender("Adagrad on rows, LAMB", "lamb", 0.08, lambda scale, lr: {"table_lr": lr}),
    "cowclip": Contender("CowClip", "cowclip", 0.02, cowclip_settings),
}


@dataclass(frozen=True)
class Table:
    """Data and model. widths: of embeddings by column; None: the rule, at most 16."""

    name: str
    epochs: int
    layers: tuple[int, ...]
    dropout: float
    fixed_widths: bool


TABLES = {
    "pairs": Table("pairs", 1, LAYERS, 0.0, True),
    "trivago": Table("trivago", 1, (128, 64), 0.1, False),
}


@dataclass(frozen=True)
class Run:
    """One training: everything that its result depends on. folder: of the packed tables."""

    table: str
    rows: int
    contender: str
    steps: int
    batch_size: int
    lr: float
    seed: int
    epochs: int
    device: str
    folder: str

    @property
    def key(self) -> str:
        return json.dumps({name: value for name, value in asdict(self).items() if name != "folder"}, allow_nan=False)


def write_pair_splits(folder: Path, rows: int) -> None:
    """Packed tables of the pair table: of ten lists one validates and one tests."""
    import torch

    from benchmarks.pairs import schema, write_pairs
    from gigabatch.features.encoding.preprocessor import Preprocessor
    from gigabatch.features.schema import Column, Schema
    from gigabatch.loaders.tables.packed import PackedTable

    plain = schema()
    grouped = Schema((*plain.columns, Column("row_id", "group", "int64")), plain.targets)
    with tempfile.TemporaryDirectory() as temporary:
        path = f"{temporary}/pairs.parquet"
        write_pairs(path, rows)
        preprocessor = Preprocessor(grouped)
        frame = preprocessor.read(("pandas", path))
    remainder = frame["row_id"].to_numpy() % 10
    masks = {"train": remainder % 5 != 0, "valid": remainder == 0, "test": remainder == 5}
    frames = {split: frame[masks[split]].reset_index(drop=True) for split in SPLITS}
    preprocessor.fit([frames["train"]])
    for split in SPLITS:
        words = torch.from_dlpack(preprocessor.pack(frames[split]))
        PackedTable.from_rows(preprocessor.tensor_schema, words).save(folder / split)


def write_trivago_splits(folder: Path, rows: int) -> None:
    """Packed tables of a synthetic log of so many rows, split by time by the recipe."""
    from gigabatch.features.synthetic.trivago import write_synthetic_log
    from gigabatch.pipeline.stages.stages import Pipeline

    with tempfile.TemporaryDirectory() as temporary:
        write_synthetic_log(Path(temporary) / "log", rows, seed=11)
        options = [f"{name}={temporary}/{name}" for name in ("artifacts", "runs")]
        pipeline = Pipeline.from_config(
            "conf/trivago.yaml", f"features.path={temporary}/log", *options, "engine=pandas", "device=cpu"
        )
        encoded = pipeline.features().encode()
        for split in SPLITS:
            encoded.table(split).save(folder / split)


def splits_folder(cache: Path, name: str, rows: int) -> Path:
    """Where the packed tables are, made unless they are there."""
    folder = cache / f"{name}-{rows}"
    if not (folder / "test" / "layout.json").exists():
        write = {"pairs": write_pair_splits, "trivago": write_trivago_splits}[name]
        write(folder, rows)
    return folder
