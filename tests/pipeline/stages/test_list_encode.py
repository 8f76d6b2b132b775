"""The encode stage of list columns in parts, by this process and by workers, against one frame."""

import pickle
import tempfile
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.reading.sources import cast
from gigabatch.features.schema import Column, ListColumn, Schema, Target
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.pipeline.stages.asked import PREPROCESSOR
from gigabatch.pipeline.stages.cluster import Cluster
from gigabatch.pipeline.stages.encode import encode_split, fit, pack
from gigabatch.pipeline.stages.stages import Pipeline
from tests.pipeline.list_rows import list_config

SCHEMA = Schema(
    (
        Column("item", "categorical", "int64"),
        Column("clicked", "target", "float32"),
        Column("user", "group", "string"),
    ),
    (Target("clicked", "binary"),),
    lists=(
        ListColumn("history", "int64", shares="item", max_length=3),
        ListColumn("tags", weights="tag_weights"),
        ListColumn("shown", "int64", shares="item"),
    ),
)
ITEMS = st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(1, 6)), max_size=5))
TAGS = st.one_of(st.none(), st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from([-1.0, 0.5, 2.0])), max_size=4))
ROWS = st.lists(
    st.tuples(st.integers(1, 6), st.integers(0, 1), st.sampled_from("uvw"), ITEMS, TAGS, ITEMS), max_size=12
)


def frame_of(rows) -> pd.DataFrame:
    item, clicked, user, history, tags, shown = (list(part) for part in zip(*rows, strict=True)) if rows else [[]] * 6
    frame = pd.DataFrame(
        {
            "item": pd.Series(item, dtype="int64"),
            "clicked": pd.Series(clicked, dtype="float32"),
            "user": pd.Series(user, dtype="str"),
            "history": pd.Series(history, dtype=object),
            "tags": pd.Series([None if row is None else [tag for tag, _ in row] for row in tags], dtype=object),
            "tag_weights": pd.Series([None if row is None else [w for _, w in row] for row in tags], dtype=object),
            "shown": pd.Series(shown, dtype=object),
        }
    )
    kinds = {"history": "int64", "tags": "string", "tag_weights": "float32", "shown": "int64"}
    return cast(frame, {name: f"list[{kind}]" for name, kind in kinds.items()}, "rows")


class Workers(Cluster):
    """Workers of this process: what a task is, and what it gives, travels as bytes."""

    distributed = True

    def in_turn(self, function, tasks):
        call = pickle.dumps(function)
        for task in tasks:
            yield pickle.loads(pickle.dumps(pickle.loads(call)(pickle.loads(pickle.dumps(task)))))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@given(rows=ROWS, cuts=st.lists(st.integers(0, 12), max_size=4))
@settings(deadline=None, max_examples=25)
def test_parts_of_workers_are_the_bytes_of_one_frame(rows, cuts):
    """However rows are cut: with parts of no rows, of null lists alone, or of no list at all."""
    whole = frame_of(rows)
    bounds = sorted({0, len(rows), *(min(cut, len(rows)) for cut in cuts)}) if rows else [0, 0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = []
        for number, (start, stop) in enumerate(pairwise(bounds)):
            paths.append(folder / f"part-{number}.parquet")
            whole.iloc[start:stop].to_parquet(paths[-1], index=False)
        one = Preprocessor(SCHEMA).fit([whole])
        pack(one, whole).save(folder / "one" / "train")
        one.save(folder / "one" / PREPROCESSOR)
        for workers in (Cluster(), Workers()):
            own, preprocessor = folder / type(workers).__name__, Preprocessor(SCHEMA)
            assert fit(preprocessor, "pandas", paths, workers) == []
            preprocessor.save(own / PREPROCESSOR)
            encode_split(preprocessor, "pandas", paths, len(rows), own / "train", workers)
            assert contents(own / "train") == contents(folder / "one" / "train")
        # What is known of an empty part is written with another index of pandas; so the preprocessors of both.
        assert contents(folder / "Workers") == contents(folder / "Cluster")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_two_workers_encode_lists_as_this_process(tmp_path, monkeypatch):
    for module in ("asked", "stages"):
        monkeypatch.setattr(f"gigabatch.pipeline.stages.{module}.source_hash", lambda modules: "sources")
    config, found = list_config(tmp_path, "tabular", rows=600), []
    workers = ("cluster=local", "cluster_settings.workers=2", "cluster_settings.threads_per_worker=1")
    for name, cluster in (("one", ()), ("two", workers)):
        pipeline = Pipeline.from_config(config, f"artifacts={tmp_path / name}", "rows_per_part=90", *cluster)
        features = pipeline.features()
        assert len(features.parts("train")) > 4
        encoded = features.encode()
        found.append(
            (encoded.artifact.key, {split: contents(encoded.artifact.path / split) for split in features.rows})
        )
        for split in features.rows:
            assert len(PackedTable.load(encoded.artifact.path / split).lists) == 2
    assert found[0] == found[1]
