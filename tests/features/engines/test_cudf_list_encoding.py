"""List columns that the preprocessor encodes on the stand-ins of cuDF and CuPy: vocabularies, ids and packed lists are
those of the pandas engine."""

import importlib.util
import random

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.encoding.settings import CategorySettings, PreprocessorSettings
from gigabatch.features.engines import pandas as on_pandas
from gigabatch.features.errors import DataError
from gigabatch.features.schema import Column, ListColumn, Schema
from gigabatch.pipeline.contract.measure import _hashed_lists
from tests.features.engines.test_cudf_lists import plain, rows_of

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the stand-in lies in host memory; a GPU has the real thing"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton"),
]
SCHEMA = Schema(
    (Column("item", "categorical", "string"),),
    (),
    lists=(
        ListColumn("history", shares="item", max_length=3),
        ListColumn("tags", "int64", weights="w"),
        ListColumn("words", weights="v", max_length=2),
    ),
)
BUCKETS = PreprocessorSettings(columns={"item": CategorySettings(min_count=2, oov_buckets=4),
                                        "tags": CategorySettings(max_size=2, oov_buckets=7)})  # fmt: skip


def frame_of(seed, size=60):
    rng = random.Random(seed)
    histories, words = rows_of("string", seed, size), rows_of("string", seed + 1, size)
    tags = rows_of("int64", seed + 2, size)
    columns = {
        "item": ([rng.choice(["a", "é", "", None]) for _ in range(size)], pa.string()),
        "history": (histories, pa.list_(pa.string())), "tags": (tags, pa.list_(pa.int64())),
        "w": ([[rng.randrange(9) / 8 for _ in row or []] for row in tags], pa.list_(pa.float32())),
        "words": (words, pa.list_(pa.string())),
        "v": ([[rng.randrange(9) / 8 for _ in row or []] for row in words], pa.list_(pa.float32())),
    }  # fmt: skip
    return pd.DataFrame({name: pd.array(pa.array(values, kind), pd.ArrowDtype(kind))
                         for name, (values, kind) in columns.items()}, index=range(9, 9 + size))  # fmt: skip


@pytest.mark.parametrize("chosen", [PreprocessorSettings(), BUCKETS], ids=["plain", "buckets"])
def test_vocabularies_and_packed_lists_are_those_of_pandas(stand_in, engine, chosen):
    parts = [frame_of(1), frame_of(2, 30)]
    expected = Preprocessor(SCHEMA, chosen).fit(parts)
    found = Preprocessor(SCHEMA, chosen).fit([stand_in.from_pandas(part) for part in parts])
    for name, vocabulary in expected.vocabularies.items():
        assert plain(found.vocabularies[name].values) == vocabulary.values.tolist()
        assert plain(found.vocabularies[name].counts) == vocabulary.counts.tolist()
    for frame in (*parts, frame_of(3)):
        device = stand_in.from_pandas(frame)
        assert found.pack(device).held.tolist() == expected.pack(frame).tolist()
        for mine, other in zip(found.pack_lists(device), expected.pack_lists(frame), strict=True):
            for one, wanted in zip(mine, other, strict=True):
                assert (one is None) == (wanted is None)
                if wanted is not None:
                    assert type(one) is np.ndarray
                    assert (one.dtype, one.tolist()) == (wanted.dtype, wanted.tolist())


def test_ids_are_those_of_a_slow_loop(stand_in, engine):
    frame = frame_of(4)
    preprocessor = Preprocessor(SCHEMA).fit([stand_in.from_pandas(frame)])
    history, tags, words = preprocessor.pack_lists(stand_in.from_pandas(frame))
    places = {name: {value: 3 + place for place, value in enumerate(plain(one.values))}
              for name, one in preprocessor.vocabularies.items()}  # fmt: skip
    histories, tagged = ([[value for value in row or [] if value is not None] for row in plain(frame[name])]
                         for name in ("history", "tags"))  # fmt: skip
    assert history.ids.tolist() == [places["item"][one] for row in histories for one in row[-3:]]
    assert history.offsets.tolist() == np.cumsum([0, *(len(row[-3:]) for row in histories)]).tolist()
    assert tags.ids.tolist() == [places["tags"][one] for row in tagged for one in row]
    weighed = [
        [weight for one, weight in zip(row or [], weights, strict=True) if one is not None][-2:]
        for row, weights in zip(plain(frame["words"]), plain(frame["v"]), strict=True)
    ]
    assert words.weights.tolist() == [weight for row in weighed for weight in row]


@pytest.mark.parametrize(("weights", "said"), [
    ([[1.0], [2.0, 3.0]], r"row 0 has 2 elements in list column 'tags' and 1 weights in 'w'"),
    ([[1.0, 2.0], [None, 3.0]], "the weights 'w' of list column 'tags' hold a null, NaN or infinity in row 1"),
    ([[1.0, 2.0], [3.0, float("inf")]], "the weights 'w' of list column 'tags' hold a null, NaN or infinity in row 1"),
])  # fmt: skip
def test_weights_that_cannot_be_are_refused_by_their_row(stand_in, engine, weights, said):
    schema = Schema((Column("item", "categorical", "string"),), (), lists=(ListColumn("tags", "int64", weights="w"),))
    frame = pd.DataFrame({
        "item": pd.array(pa.array(["a", "b"]), pd.ArrowDtype(pa.string())),
        "tags": pd.array(pa.array([[1, 2], [3, 4]]), pd.ArrowDtype(pa.list_(pa.int64()))),
        "w": pd.array(pa.array(weights, pa.list_(pa.float32())), pd.ArrowDtype(pa.list_(pa.float32()))),
    })  # fmt: skip
    for one in (frame, stand_in.from_pandas(frame)):
        with pytest.raises(DataError, match=said):
            Preprocessor(schema).fit([one]).pack_lists(one)


def test_lists_that_are_all_empty_and_frames_without_rows(stand_in, engine):
    frame = frame_of(5)
    for rows in (frame.iloc[:0], frame[frame["history"].isna() | (frame["history"].list.len() == 0)]):
        fitted = Preprocessor(SCHEMA).fit([stand_in.from_pandas(frame)])
        expected = Preprocessor(SCHEMA).fit([frame])
        for mine, other in zip(fitted.pack_lists(stand_in.from_pandas(rows)), expected.pack_lists(rows), strict=True):
            assert [part.tolist() for part in mine[:2]] == [part.tolist() for part in other[:2]]


@pytest.mark.parametrize(("kind", "dtype"), [("string", "string"), ("int64", "int64"), ("float32", "float32")])
def test_a_contracts_hash_of_lists_is_that_of_pandas(stand_in, engine, kind, dtype):
    rows = rows_of(kind, 6)
    for values in (rows, [None, [], None]):
        lists = pa.array(values, pa.list_({"string": pa.string(), "int64": pa.int64(), "float32": pa.float32()}[kind]))
        frame = pd.DataFrame({"c": pd.array(lists, pd.ArrowDtype(lists.type))})
        expected = _hashed_lists(frame["c"], dtype, on_pandas)
        assert _hashed_lists(stand_in.from_pandas(frame)["c"], dtype, engine).held.tolist() == expected.tolist()
        assert len(set(expected.tolist())) == len({repr(row) for row in values})
