"""Edges of bins in a preprocessor: fitted, saved, grown, in the units of the rows."""

import json

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.encoding.online import OnlineTransformer
from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.encoding.settings import PreprocessorSettings
from gigabatch.features.errors import DataError
from gigabatch.features.schema import Column, Schema

SCHEMA = Schema(
    (
        Column("city", "categorical", "string"),
        Column("price", "continuous", "float32"),
        Column("age", "continuous", "int32"),
        Column("still", "continuous", "float32"),
    ),
    (),
)


def table(rows=3_000, seed=1):
    generator = np.random.default_rng(seed)
    price = generator.lognormal(3, 1, rows).astype(np.float32)
    price[::7] = np.nan
    age = generator.integers(20, 30, rows).astype(np.int32)
    return pd.DataFrame({"city": "Oslo", "price": price, "age": age, "still": np.float32(1.5)})


def test_edges_do_not_depend_on_partitions_and_words_not_on_edges():
    frame = table()
    whole = Preprocessor(SCHEMA, PreprocessorSettings(bins=8)).fit([frame])
    cut = Preprocessor(SCHEMA, PreprocessorSettings(bins=8)).fit([frame[:11], frame[11:2_000], frame[2_000:]])
    other = Preprocessor(SCHEMA, PreprocessorSettings(bins=0)).fit([frame])
    assert whole.edges == cut.edges
    assert list(whole.edges) == ["price", "age"]
    assert other.edges == {}
    assert other.float_edges == ()
    assert whole.checksum != other.checksum
    assert np.array_equal(whole.pack(frame, targets=False), other.pack(frame, targets=False))
    packed = Preprocessor(SCHEMA, PreprocessorSettings(bins=8))
    packed.fit_pack([frame])
    assert packed.edges == whole.edges


@pytest.mark.parametrize("scale", [True, False, "robust"])
def test_edges_are_values_as_a_row_gives_them(scale):
    frame = table()
    preprocessor = Preprocessor(SCHEMA, PreprocessorSettings(bins=8, scale=scale, columns={"age": {"bins": 20}})).fit(
        [frame]
    )
    names = preprocessor.float_names()
    edges = dict(zip(names, preprocessor.float_edges, strict=True))
    assert edges["price_na"] == edges["still"] == ()
    rows = preprocessor.transform(frame, targets=False)
    assert edges["age"] == tuple(np.unique(rows["age"]).tolist())  # few values: each is an edge
    assert set(edges["price"]) <= set(rows["price"].tolist())
    shares = np.histogram(frame["price"].dropna(), preprocessor.edges["price"])[0] / frame["price"].notna().sum()
    assert np.abs(shares - 1 / 8).max() < 0.3 / 8


def test_edges_that_a_refreshed_scale_makes_one_are_told_of(caplog):
    frame = table().assign(price=np.arange(3_000, dtype=np.float32))
    later = frame.assign(price=np.append(np.arange(2_999, dtype=np.float32), np.float32(1e30)))
    kept, stretched, robust = (
        Preprocessor(SCHEMA, PreprocessorSettings(bins=8, scale=scale)).fit([frame]) for scale in (True, True, "robust")
    )
    kept.grow([later])
    robust.grow([later], refresh_scales=True)
    assert len(kept.float_edges[0]) == len(robust.float_edges[0]) == 9
    assert "price" not in caplog.text
    stretched.grow([later], refresh_scales=True)
    assert stretched.float_edges[0] == ()
    assert "column 'price': scaled by" in caplog.text
    assert "0 of its 9 edges of bins are left" in caplog.text
    assert "preprocess.columns.price.scale=robust" in caplog.text


@pytest.mark.parametrize("price", [np.full(3_000, 7.0), 1e9 + 1e3 * np.arange(3_000.0)])
def test_edges_that_a_refreshed_robust_scale_makes_one_are_not_told_to_take_one(price, caplog):
    frame = table().assign(price=np.arange(3_000, dtype=np.float32) / 1_000)
    preprocessor = Preprocessor(SCHEMA, PreprocessorSettings(bins=8, scale="robust")).fit([frame])
    preprocessor.grow([frame.assign(price=price.astype(np.float32))], refresh_scales=True)
    assert preprocessor.float_edges[0] == ()
    assert "column 'price': by its robust scale 0 of its 9 edges of bins are left" in caplog.text
    assert "preprocess.from=null" in caplog.text
    assert "scale=robust" not in caplog.text


def test_they_are_saved_and_a_folder_without_them_has_none(tmp_path):
    frame = table()
    preprocessor = Preprocessor(SCHEMA, PreprocessorSettings(bins=8, columns={"age": {"bins": 4}})).fit([frame])
    assert len(preprocessor.edges["age"]) <= 5
    preprocessor.save(tmp_path)
    loaded = Preprocessor.load(tmp_path)
    assert loaded.edges == preprocessor.edges
    assert loaded.float_edges == preprocessor.float_edges
    assert loaded.checksum == preprocessor.checksum
    assert loaded.settings == preprocessor.settings
    OnlineTransformer.load(tmp_path)
    content = json.loads((tmp_path / "preprocessor.json").read_text())
    content["edges"]["age"].reverse()
    (tmp_path / "preprocessor.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"damaged.*edges of 'age' do not ascend"):
        Preprocessor.load(tmp_path)
    del content["edges"], content["settings"]["bins"], content["settings"]["columns"]["age"]
    (tmp_path / "preprocessor.json").write_text(json.dumps(content))
    assert Preprocessor.load(tmp_path).float_edges == ()


@pytest.mark.parametrize("refresh", [True, False])
def test_growth_keeps_the_edges_that_weights_hang_on(refresh):
    preprocessor = Preprocessor(SCHEMA, PreprocessorSettings(bins=8)).fit([table()])
    edges = preprocessor.edges
    carried = preprocessor.carried_to(SCHEMA, PreprocessorSettings(bins=8))
    carried.grow([table(5_000, seed=2)], refresh_scales=refresh)
    assert carried.edges == edges
    preprocessor.update([table(5_000, seed=3)], refresh_scales=refresh)
    assert preprocessor.edges == edges


@pytest.mark.parametrize("bins", [1, -1, 2.5, True, 5_000, "8"])
def test_numbers_of_bins_that_cannot_be_are_refused(bins):
    with pytest.raises(DataError, match=r"preprocess\.bins: expected 0, or a number from 2 to 1024"):
        PreprocessorSettings(bins=bins)
    with pytest.raises(DataError, match=r"preprocess\.bins"):
        PreprocessorSettings(columns={"age": {"bins": bins}})


def test_settings_of_a_column_of_the_other_role_are_refused():
    with pytest.raises(DataError, match="age is no categorical column"):
        Preprocessor(SCHEMA, PreprocessorSettings(columns={"age": {"min_count": 2}}))
    with pytest.raises(DataError, match="city is no continuous column"):
        Preprocessor(SCHEMA, PreprocessorSettings(columns={"city": {"bins": 2}}))
