"""Trainings and predictions are float32 on the device that they are asked for, whatever torch makes by default."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch

import gigabatch
from gigabatch import BatchDataset, BatchLoader, PackedTable, Preprocessor
from gigabatch.features.schema import Column, Schema
from gigabatch.pipeline.bundle import load_bundle
from gigabatch.pipeline.python.estimators import GigabatchClassifier

DEFAULTS = [torch.float64, torch.bfloat16, "meta"]


@pytest.fixture
def rows() -> pd.DataFrame:
    random = np.random.default_rng(0)
    return pd.DataFrame({"city": random.choice(list("abcd"), 240), "x": random.normal(size=240)})


@pytest.fixture
def defaults():
    """Sets the default, and that of before again."""
    before = torch.get_default_dtype()

    def set_to(given):
        if isinstance(given, str):
            torch.set_default_device(given)
        else:
            torch.set_default_dtype(given)

    yield set_to
    torch.set_default_device(None)
    torch.set_default_dtype(before)


def asked(given) -> bool:
    """Whether the default is still what was set."""
    return (str(torch.get_default_device()) if isinstance(given, str) else torch.get_default_dtype()) == given


@pytest.mark.parametrize("given", DEFAULTS, ids=str)
@pytest.mark.parametrize("kind", ["lr", "deepfm", "tabular", "tabm", "realmlp", "ft_transformer"])
def test_an_estimator_is_float32_whatever_torchs_defaults(rows, defaults, kind, given):
    model = GigabatchClassifier(kind, random_state=0, train={"epochs": 1})
    expected = model.fit(rows, rows["x"] > 0).predict_proba(rows)
    defaults(given)
    assert np.array_equal(model.predict_proba(rows), expected)
    again = GigabatchClassifier(kind, random_state=0, train={"epochs": 1}).fit(rows, rows["x"] > 0)
    assert np.array_equal(again.predict_proba(rows), expected)
    assert np.array_equal(pickle.loads(pickle.dumps(again)).predict_proba(rows), expected)
    assert asked(given)
    assert {weight.dtype for weight in again.bundle_.model.parameters()} == {torch.float32}


@pytest.mark.parametrize("given", DEFAULTS, ids=str)
def test_a_run_is_the_same_whatever_torchs_defaults(rows, defaults, tmp_path, given):
    rows["sold"] = (rows["x"] > 0).map({True: "yes", False: "no"})

    def fitted(folder):
        settings = {"train.epochs": 1, "artifacts": str(tmp_path / folder), "runs": str(tmp_path / folder / "runs")}
        return gigabatch.fit(rows, settings, target="sold", final=False)

    plain = fitted("plain")
    expected = plain.predict(rows)
    defaults(given)
    run = fitted("other")
    pd.testing.assert_frame_equal(run.predict(rows), expected)
    bundle = load_bundle(plain.path / "model")
    pd.testing.assert_frame_equal(bundle.predict_raw(rows.drop(columns="sold")), expected)
    assert run.summary["metrics"] == plain.summary["metrics"]
    assert asked(given)


def test_rows_are_packed_and_put_in_order_on_the_host_whatever_torchs_default_device(rows, defaults):
    preprocessor = Preprocessor(
        Schema((Column("city", "categorical", "string"), Column("x", "continuous", "float64")), ())
    )
    preprocessor.fit([rows])

    def epoch():
        packed = torch.from_numpy(preprocessor.pack(rows))
        loader = BatchLoader(BatchDataset(PackedTable.from_rows(preprocessor.tensor_schema, packed), 50, seed=1))
        return [(batch.ids.tolist(), batch.floats.tolist()) for batch in loader]

    expected = epoch()
    defaults("meta")
    assert epoch() == expected
