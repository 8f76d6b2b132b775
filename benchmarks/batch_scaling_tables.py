"""The packed tables that benchmarks/batch_scaling.py trains on, each with a train, a validation and a test split."""

from __future__ import annotations

import tempfile
from pathlib import Path

SPLITS = ("train", "valid", "test")


def write_pair_splits(folder: Path, rows: int) -> None:
    """Packed tables of the pair table: of ten lists one validates and one tests."""
    import torch

    from benchmarks.pairs import schema, write_pairs
    from features.preprocessor import Preprocessor
    from features.schema import Column, Schema
    from loaders.packed import PackedTable

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
        words = torch.from_dlpack(preprocessor.weave(frames[split]))
        PackedTable.from_rows(preprocessor.tensor_schema, words).save(folder / split)


def write_trivago_splits(folder: Path, rows: int) -> None:
    """Packed tables of a synthetic log of so many rows, split by time by the recipe."""
    from features.recipes.trivago_synthetic import write_synthetic_log
    from pipeline import Pipeline

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
