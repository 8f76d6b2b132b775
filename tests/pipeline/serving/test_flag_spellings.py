"""A flag is one category however it is written: in files, frames and requests, to `fit`, `score`, `serve`."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigabatch import GigabatchClassifier, fit
from gigabatch.features.errors import DataError
from gigabatch.models.model import SCORE_ATOL, SCORE_RTOL
from gigabatch.pipeline.bundle import load_bundle
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.config.serving import ServeSettings
from gigabatch.pipeline.serving.served import load_served
from gigabatch.pipeline.stages.stages import Pipeline

FAST = {
    "train.epochs": 20, "train.batch_size": 64, "train.lr_max": 0.01, "model.kind": "tabular", "model.layers": [8],
    "device": "cpu", "evaluate.importance": False, "evaluate.baselines": [],
}  # fmt: skip
FLAGS = [True, False, None, True, False]
SPELLINGS = {
    "booleans": [True, False],
    "True": ["True", "False"],
    "true": ["true", "false"],
    "TRUE": ["TRUE", "FALSE"],
    "1": [1, 0],
    "1.0": [1.0, 0.0],
    "'1'": ["1", "0"],
    "'1.0'": ["1.0", "0.0"],
}
OF_ARROW = {bool: pa.bool_(), str: pa.string(), int: pa.int64(), float: pa.float64()}


def table(rows=400, seed=0):
    draw = np.random.default_rng(seed)
    flag = draw.random(rows) < 0.5
    known = draw.random(rows) < 0.8
    sold = draw.random(rows) < np.where(known, np.where(flag, 0.9, 0.1), 0.5)
    return pd.DataFrame({
        "b": pd.array(np.where(known, flag, None), dtype="boolean"), "x": draw.normal(size=rows),
        "sold": sold.astype(int),
    })  # fmt: skip


def spelt(how):
    true, false = SPELLINGS[how]
    return [None if flag is None else true if flag else false for flag in FLAGS]


def rows_of(how):
    kind = type(SPELLINGS[how][0])
    return pa.table({"b": pa.array(spelt(how), OF_ARROW[kind]), "x": pa.array([0.0] * len(FLAGS))})


@pytest.fixture(scope="module", params=["csv", "parquet"])
def home(request, tmp_path_factory):
    """A folder with the run of what `init` writes, of a file of either kind."""
    folder = tmp_path_factory.mktemp(request.param)
    path = folder / f"shop.{request.param}"
    table().to_csv(path, index=False) if request.param == "csv" else table().to_parquet(path)
    assert main(["init", str(path), "--target", "sold", "--out", str(folder / "shop.yaml")]) == 0
    more = {"runs": str(folder / "runs"), "artifacts": str(folder / "artifacts")}
    Pipeline.from_config(folder / "shop.yaml", {**FAST, **more}).train()
    return folder


@pytest.fixture(scope="module")
def wanted(home):
    """Predictions of the rows as booleans."""
    frame = rows_of("booleans").to_pandas(types_mapper={pa.bool_(): pd.BooleanDtype()}.get)
    found = load_bundle(home / "runs/shop/current/model").predict_raw(frame)["sold"].to_numpy()
    assert found[0] > found[2] + 0.05 > found[1] + 0.1  # it is learnt, and null is another category
    return found


def close(found, wanted):
    return np.allclose(np.array(found, float), np.array(wanted, float), rtol=SCORE_RTOL, atol=SCORE_ATOL)


def test_init_declares_flags(home):
    assert "b: bool" in (home / "shop.yaml").read_text()


@pytest.mark.parametrize("how", SPELLINGS)
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_score_reads_every_spelling(home, wanted, how, ending, tmp_path):
    path, out = tmp_path / f"new.{ending}", tmp_path / "scores.csv"
    if ending == "csv":
        lines = [f"{'' if one is None else one},0.0" for one in spelt(how)]
        path.write_text("\n".join(["b,x", *lines]) + "\n")
    else:
        pq.write_table(rows_of(how), path)
    config = ["--config", str(home / "shop.yaml"), f"runs={home / 'runs'}", f"artifacts={home / 'artifacts'}"]
    assert main(["score", "--input", str(path), "--out", str(out), *config]) == 0
    assert close(pd.read_csv(out)["predicted_sold"], wanted)


@pytest.mark.parametrize("how", SPELLINGS)
def test_predict_raw_and_the_service_read_every_spelling(home, wanted, how, make_caller):
    bundle = load_bundle(home / "runs/shop/current/model")
    assert close(bundle.predict_raw(pd.DataFrame({"b": spelt(how), "x": 0.0}))["sold"], wanted)
    assert close(bundle.predict_raw(pd.DataFrame({"b": pd.Series(spelt(how), dtype=object), "x": 0.0}))["sold"], wanted)
    assert close(bundle.predict_raw(rows_of(how)).to_pandas()["sold"], wanted)
    caller = make_caller(load_served(home / "runs/shop/current"), ServeSettings(timeout_seconds=60.0))
    answer = caller.post("/score", {"rows": [{"b": value, "x": 0.0} for value in spelt(how)]})
    assert answer.status_code == 200, answer.text
    assert close(answer.json()["predictions"]["sold"], wanted)
    assert close([caller.post("/score", {"rows": [{"b": value, "x": 0.0}]}).json()["predictions"]["sold"][0]
                  for value in spelt(how)], wanted)  # fmt: skip


@pytest.mark.parametrize("value", [2, "yes", "2", 0.5])
def test_what_is_no_flag_is_refused_with_column_and_value(home, value, make_caller, tmp_path, capsys):
    bundle = load_bundle(home / "runs/shop/current/model")
    with pytest.raises(DataError, match=f"column 'b' is declared bool .*{value}"):
        bundle.predict_raw(pd.DataFrame({"b": [value], "x": [0.0]}))
    caller = make_caller(load_served(home / "runs/shop/current"), ServeSettings(timeout_seconds=60.0))
    answer = caller.post("/score", {"rows": [{"b": value, "x": 0.0}]})
    assert answer.status_code == 422
    assert "column 'b' is declared bool" in answer.text
    path = tmp_path / "new.csv"
    path.write_text(f"b,x\n{value},0.0\n")
    config = ["--config", str(home / "shop.yaml"), f"runs={home / 'runs'}", f"artifacts={home / 'artifacts'}"]
    assert main(["score", "--input", str(path), "--out", str(tmp_path / "out.csv"), *config]) != 0
    assert str(value) in capsys.readouterr().err


@pytest.mark.parametrize("given", [{}, {"categorical": ["b"]}])
def test_fit_and_the_estimator_read_every_spelling(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    rows = table()
    run = fit(rows, FAST, target="sold", **given)
    model = GigabatchClassifier(
        "tabular", {"layers": [8]}, {"epochs": 20, "lr_max": 0.01}, device="cpu", random_state=0, **given
    ).fit(rows.drop(columns="sold"), rows["sold"])  # fmt: skip
    asked = pd.DataFrame({"b": pd.array(spelt("booleans"), dtype="boolean"), "x": 0.0})
    first, second = run.predict(asked)["sold"], model.predict_proba(asked)
    assert first[0] > first[1] + 0.2
    for how in SPELLINGS:
        asked = pd.DataFrame({"b": spelt(how), "x": 0.0})
        assert close(run.predict(asked)["sold"], first)
        assert close(model.predict_proba(asked), second)


def test_flags_that_are_declared_text_are_told(tmp_path):
    """`categorical: [b]` by hand: 1 or true would be another value, so the report says what to declare."""
    path = tmp_path / "shop.parquet"
    table().to_parquet(path)
    features = {"path": str(path), "continuous": ["x"], "targets": {"sold": {"task": "binary"}}}
    for categorical, told in ((["b"], True), ({"b": "bool"}, False)):
        config = {"name": "shop", "recipe": "table", "features": {**features, "categorical": categorical}}
        (tmp_path / "shop.yaml").write_text(json.dumps(config))
        made = Pipeline.from_config(tmp_path / "shop.yaml", {"artifacts": str(tmp_path / "artifacts")}).features()
        assert any("categorical: {b: bool}" in note for note in made.notes) == told
