"""Whole runs on a CUDA device, against the same run on the CPU."""

import importlib.util

import numpy as np
import pandas as pd
import pytest

pytestmark = pytest.mark.gpu
needs_cudf = pytest.mark.skipif(importlib.util.find_spec("cudf") is None, reason="needs cuDF")


def test_a_run_on_the_gpu_reaches_the_auc_of_the_cpu(tiny):
    on_cpu = tiny.train("device=cpu", "engine=pandas").summary
    on_gpu = tiny.train("device=cuda", "engine=pandas").summary
    assert on_gpu["auc"] == pytest.approx(on_cpu["auc"], abs=0.02)
    assert on_gpu["environment"]["device"] != "cpu"


def test_the_same_weights_score_alike_on_both_devices(trained):
    made, run = trained
    frame = made.pipeline().features().frame("test")
    on_cpu, on_gpu = run.bundle("cpu").predict(frame), run.bundle("cuda").predict(frame)
    np.testing.assert_allclose(on_gpu["clicked"], on_cpu["clicked"], rtol=1e-4, atol=1e-5)


@needs_cudf
def test_cudf_gives_the_features_and_ids_of_pandas(tiny):
    by_pandas, by_cudf = tiny.pipeline("engine=pandas").features(), tiny.pipeline("engine=cudf").features()
    for split in ("train", "valid", "test"):
        pd.testing.assert_frame_equal(by_cudf.frame(split).to_pandas(), by_pandas.frame(split), rtol=1e-7)
    pandas_table, cudf_table = by_pandas.encode().table("train"), by_cudf.encode().table("train")
    ids = len(pandas_table.schema.ids)
    assert (pandas_table.words[:, :ids] == cudf_table.words[:, :ids]).all()
    floats = slice(ids, ids + len(pandas_table.schema.floats))
    distance = (pandas_table.words[:, floats].long() - cudf_table.words[:, floats].long()).abs().max()
    assert int(distance) <= 1, "floats differ by more than 1 ulp"


@needs_cudf
def test_flights_features_on_cudf_equal_those_on_pandas():
    from gigabatch.features.recipes.flights.recipe import FlightsRecipe, FlightsSettings

    recipe = FlightsRecipe(FlightsSettings())
    by_pandas = recipe.build("pandas").splits["test"]
    by_cudf = recipe.build("cudf").splits["test"].to_pandas()
    pd.testing.assert_frame_equal(by_cudf, by_pandas, check_dtype=False, rtol=1e-6)
