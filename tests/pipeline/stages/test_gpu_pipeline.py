"""Whole runs on any device, against the same run on the CPU; on cuDF, against pandas."""

import importlib.util

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.engines.frame import load_engine
from gigabatch.models.model import SCORE_ATOL, SCORE_RTOL

needs_cudf = pytest.mark.skipif(importlib.util.find_spec("cudf") is None, reason="needs cuDF")


def test_a_run_reaches_the_auc_of_the_cpu(tiny, any_device):
    """Without dropout, whose draws differ by device; what is left are rounded sums, in bfloat16 on a GPU."""
    on_cpu, found = (tiny.train(f"device={d}", "model.dropout=0.0").summary for d in ("cpu", any_device))
    assert found["auc"] == pytest.approx(on_cpu["auc"], abs=0.01)
    assert (found["environment"]["device"] == "cpu") is (any_device == "cpu")


def test_the_same_weights_score_alike(trained, any_device):
    made, run = trained
    frame = made.pipeline().features().frame("test")
    expected, found = run.bundle("cpu").predict(frame), run.bundle(any_device).predict(frame)
    np.testing.assert_allclose(found["clicked"], expected["clicked"], rtol=SCORE_RTOL, atol=SCORE_ATOL)


@pytest.mark.gpu
@needs_cudf
def test_cudf_gives_the_features_and_ids_of_pandas(tiny):
    by_pandas, by_cudf = tiny.pipeline("engine=pandas").features(), tiny.pipeline("engine=cudf").features()
    for split in ("train", "valid", "test"):
        found = load_engine("cudf").to_pandas(by_cudf.frame(split))
        pd.testing.assert_frame_equal(found, by_pandas.frame(split), check_dtype=False, rtol=1e-7)
    pandas_table, cudf_table = by_pandas.encode().table("train"), by_cudf.encode().table("train")
    ids = len(pandas_table.schema.ids)
    assert (pandas_table.words[:, :ids] == cudf_table.words[:, :ids]).all()
    floats = slice(ids, ids + len(pandas_table.schema.floats))
    distance = (pandas_table.words[:, floats].long() - cudf_table.words[:, floats].long()).abs().max()
    assert int(distance) <= 1, "floats differ by more than 1 ulp"


@pytest.mark.gpu
@needs_cudf
def test_flights_features_on_cudf_equal_those_on_pandas():
    from gigabatch.features.recipes.flights.recipe import FlightsRecipe, FlightsSettings

    recipe = FlightsRecipe(FlightsSettings())
    by_pandas = recipe.build("pandas").splits["test"]
    by_cudf = load_engine("cudf").to_pandas(recipe.build("cudf").splits["test"])
    pd.testing.assert_frame_equal(by_cudf, by_pandas, check_dtype=False, rtol=1e-6)
