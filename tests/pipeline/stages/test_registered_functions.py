"""A registered function is part of the features' key: a changed one makes them anew, the same one does not."""

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.operators.rows.lambda_function import FUNCTIONS, register_function
from gigabatch.pipeline.stages.stages import Pipeline


def registered(by, outputs=("scaled",)):
    def scaled(frame):
        return frame.assign(scaled=frame["x"] * by)[list(outputs)]

    register_function("scaled", scaled, inputs=["x"], outputs=outputs, replace=True)


@pytest.fixture
def config(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=200), "y": rng.integers(0, 2, 200)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "c.yaml").write_text(f"""
recipe: table
name: lambda
artifacts: {tmp_path}/artifacts
runs: {tmp_path}/runs
engine: pandas
features:
  path: {tmp_path}/t.csv
  inputs: {{x: float64}}
  continuous: [scaled]
  targets: {{y: {{task: binary}}}}
  steps:
    - lambda_function: {{name: scaled}}
""")
    yield str(tmp_path / "c.yaml")
    FUNCTIONS.kinds.pop("scaled", None)


def test_a_changed_function_makes_the_features_anew(config):
    registered(2)
    first = Pipeline.from_config(config).features()
    registered(2)
    assert Pipeline.from_config(config).features().artifact.key == first.artifact.key
    registered(3)
    second = Pipeline.from_config(config).features()
    assert second.artifact.key != first.artifact.key
    low, high = (pd.concat(map(pd.read_parquet, one.parts("train")))["scaled"] for one in (first, second))
    np.testing.assert_allclose(high, low * 1.5, rtol=1e-6)
