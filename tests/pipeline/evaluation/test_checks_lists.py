"""List columns in baselines, warnings, the table of columns and the memory of tables: by hand and by scikit-learn."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.schema import Column, ListColumn, Schema, Target
from gigabatch.models.inputs import ListInputs, ModelInputs
from gigabatch.models.shelf import ModelSpec, model_class
from gigabatch.pipeline.display import format_value
from gigabatch.pipeline.evaluation import baseline_learners as module
from gigabatch.pipeline.evaluation.baseline_learners import Rows
from gigabatch.pipeline.evaluation.baselines import baselines
from gigabatch.pipeline.evaluation.checks import data_warnings, leak_warnings, missing_shares
from gigabatch.pipeline.evaluation.evaluate import Evaluation, column_summary
from gigabatch.pipeline.stages.stages import Pipeline, pack
from gigabatch.pipeline.training.table_memory import large_tables
from gigabatch.pipeline.training.target_metrics import target_metrics
from tests.pipeline.list_rows import list_config, tag_rows

TARGET = Target("clicked", "binary")
TAGS = ListColumn("tags", "string", weights="w"), ListColumn("seen", "int64", shares="item")
ONE_HOT = 1000  # rows


def schema_of(target: Target = TARGET) -> Schema:
    dtype = "float32" if target.task != "multiclass" else "int32"
    columns = Column("item", "categorical", "int64"), Column("price", "continuous", "float32")
    return Schema((*columns, Column(target.name, "target", dtype)), (target,), (), TAGS)


def frame_of(number: int, seed: int, clicked=None) -> pd.DataFrame:
    frame = tag_rows(number, seed).drop(columns=["place", "bought"])
    draw = np.random.default_rng(seed)
    weights = [draw.choice([0.5, 1.0, -2.0], len(row)).tolist() for row in frame["tags"]]
    return frame.assign(w=weights, clicked=frame["clicked"] if clicked is None else clicked)


def shares_of(frame: pd.DataFrame, tags: list[str], items: list[int]) -> np.ndarray:
    """Row by row what the model is given: item one-hot, means of one-hot elements, price."""
    rows = []
    for row in frame.itertuples():
        of_tags, of_seen = dict.fromkeys(tags, 0.0), dict.fromkeys(items, 0.0)
        for tag, weight in zip(row.tags, row.w, strict=True):
            of_tags[tag] += weight / sum(map(abs, row.w))
        for item in row.seen:
            of_seen[item] += 1 / len(row.seen)
        rows.append([*(float(row.item == item) for item in items), *of_tags.values(), *of_seen.values(), row.price])
    return np.array(rows)


def test_the_linear_baseline_is_scikit_learns_on_means_of_one_hot_elements():
    train, test = frame_of(ONE_HOT, 1), frame_of(400, 2)
    preprocessor = Preprocessor(schema_of()).fit([train])
    tables = pack(preprocessor, train), pack(preprocessor, test)
    sample = tables[0].unpack(tables[0].words)
    found = module._Linear(tables[0].schema, sample, 0, 1).predict({"test": Rows.of(tables[1])})["test"].numpy()
    features = [shares_of(frame, list("abcdef"), list(range(9))) for frame in (train, test)]
    scaler = StandardScaler().fit(features[0][:, -1:])
    for part in features:
        part[:, -1:] = scaler.transform(part[:, -1:])
    learner = LogisticRegression(C=1.0, max_iter=1000, tol=1e-8).fit(features[0], train["clicked"])
    np.testing.assert_allclose(found, learner.predict_proba(features[1])[:, 1], atol=2e-3)


def test_baselines_learn_labels_that_only_lists_tell(monkeypatch):
    frames = [tag_rows(number, seed).assign(w=0.0) for number, seed in ((1500, 1), (800, 2))]
    frames = [frame.assign(w=[[1.0] * len(row) for row in frame["tags"]]) for frame in frames]
    preprocessor = Preprocessor(schema_of()).fit(frames[:1])
    train, test = (pack(preprocessor, frame) for frame in frames)
    labels = test.unpack(test.words).targets[0]
    flat = labels * 0 + 0.5
    evaluation = Evaluation({"clicked": target_metrics(TARGET, flat, labels, None, 15)}, {}, (flat,))
    found = baselines(["linear", "boosted"], train, {"test": test}, {"test": evaluation}, seed=1)
    aucs = {item["name"]: item["metrics"]["test"]["auc"] for item in found["found"]}
    assert min(aucs.values()) > 0.95
    assert len(found["worse"]) == 1
    monkeypatch.setattr(module, "CELLS", 100)
    monkeypatch.setattr(module, "FEWEST_ROWS", 7)
    assert module._sample(train, TARGET, 1).num_rows == 7  # item, price, two lists: their elements count as columns


def test_an_element_that_gives_the_label_away_is_named_and_no_good_one():
    random = np.random.default_rng(3)
    y = random.random(4000) < 0.3
    frame = frame_of(4000, 4, y.astype("float32"))
    frame["tags"] = [[*row, "sold"] if label else row for row, label in zip(frame["tags"], y, strict=True)]
    kept = y | (random.random(4000) < 0.2)
    frame["tags"] = [[*row, "good"] if one else row for row, one in zip(frame["tags"], kept, strict=True)]
    frame["w"] = [[1.0] * len(row) for row in frame["tags"]]
    preprocessor = Preprocessor(schema_of()).fit([frame])
    table = pack(preprocessor, frame)
    (text,) = [text for text in leak_warnings(table, preprocessor) if "whether" in text]
    assert "column 'tags' may leak target 'clicked': whether the element 'sold' is in a list" in text
    assert "AUC of 1.0000 (above 0.99)" in text
    assert "element of id" in next(text for text in leak_warnings(table) if "whether" in text)
    flipped = [label if random.random() > 0.004 else 1 - label for label in y]
    wrong = frame.assign(clicked=np.array(flipped, "float32"))
    (text,) = [text for text in leak_warnings(pack(preprocessor, wrong), preprocessor) if "whether" in text]
    auc = roc_auc_score(wrong["clicked"], ["sold" in row for row in frame["tags"]])
    assert f"AUC of {auc:.4f}" in text


@pytest.mark.parametrize("task", ["regression", "multiclass"])
def test_elements_that_tell_a_number_or_a_class_are_named(task):
    random = np.random.default_rng(6)
    held = random.random(3000) < 0.3
    labels = (
        5 + 2 * held + 0.05 * random.normal(size=3000)
        if task == "regression"
        else np.where(held, 2, random.integers(0, 2, 3000))
    )
    target = Target("clicked", task, 3 if task == "multiclass" else 1, ("x", "y", "z") if task == "multiclass" else ())
    frame = frame_of(3000, 7, labels.astype("float32" if task == "regression" else "int32"))
    frame["tags"] = [[*row, "told"] if one else row for row, one in zip(frame["tags"], held, strict=True)]
    frame["w"] = [[1.0] * len(row) for row in frame["tags"]]
    preprocessor = Preprocessor(schema_of(target)).fit([frame])
    (text,) = [text for text in leak_warnings(pack(preprocessor, frame), preprocessor) if "whether" in text]
    assert "'told'" in text
    if task == "regression":
        explained = np.corrcoef(held, labels.astype("float32"))[0, 1] ** 2
        assert f"R² of {explained:.4f}" in text
    else:
        assert "AUC of class 'z' of 1.0000" in text


def test_the_length_of_lists_may_leak_too():
    frame = frame_of(1000, 8)
    frame["clicked"] = [float(len(row) > 0) for row in frame["seen"]]
    preprocessor = Preprocessor(schema_of()).fit([frame])
    found = leak_warnings(pack(preprocessor, frame), preprocessor)
    assert len(found) == 1
    assert "column 'seen (length)' may leak target 'clicked'" in found[0]


def test_splits_whose_lists_are_empty_longer_or_of_unseen_elements_are_told():
    train, test = frame_of(1000, 9), frame_of(1000, 10)
    preprocessor = Preprocessor(schema_of()).fit([train])
    missing = {split: {"item": 0.0, "price": 0.0} for split in ("train", "test")}
    assert (
        data_warnings(preprocessor, {"train": pack(preprocessor, train), "test": pack(preprocessor, test)}, missing)
        == []
    )
    test["tags"] = [["g" if tag == "a" else tag for tag in row] for row in test["tags"]]
    test["seen"] = [row * 9 if place % 2 else [] for place, row in enumerate(test["seen"])]
    tables = {"train": pack(preprocessor, train), "test": pack(preprocessor, test)}
    empty = [np.mean([len(row) == 0 for row in frame["seen"]]) for frame in (train, test)]
    unseen = sum(row.count("g") for row in test["tags"]) / sum(map(len, test["tags"]))
    longer = np.mean([len(row) > 3 for row in test["seen"]])
    assert data_warnings(preprocessor, tables, missing) == [
        f"column 'seen': the share of empty lists differs: train {empty[0]:.0%}, test {empty[1]:.0%} (more than 10% of "
        "the rows).",
        f"column 'tags': {unseen:.0%} of test, of all elements of its lists, is not in the vocabulary (more than 10%).",
        f"column 'seen', length of its lists: {longer:.0%} of test lies outside the range of 98% of the train rows "
        "(more than 25%). A number that grows with time, such as a count of all rows so far, tells when a row is, and "
        "nothing that will come again: take a share, a difference or a window, or leave it out.",
    ]


def test_the_table_of_columns_counts_empty_lists_lengths_and_unseen_elements():
    train = frame_of(4, 11).assign(
        item=[1, 2, 3, 3], seen=[[1, 2], [], None, [3, 3, 1]], tags=[["a"], ["a", "b"], ["c"], []],
        w=[[1.0], [1.0, 2.0], [1.0], []], clicked=[0.0, 1.0, 0.0, 1.0],
    )  # fmt: skip
    test = train.assign(seen=[[1, 7], [8, 9], [], []])
    preprocessor = Preprocessor(schema_of()).fit([train])
    rows = column_summary(preprocessor, pack(preprocessor, train), pack(preprocessor, test))
    found = {row["name"]: row for row in rows}
    assert found["seen"] == {
        "name": "seen", "role": "list", "nulls": 0.5, "cardinality": 3, "unseen_rate": 0.75, "mean_length": 1.25,
    }  # fmt: skip
    assert found["tags"] == {
        "name": "tags", "role": "list", "nulls": 0.25, "cardinality": 3, "unseen_rate": 0.0, "mean_length": 1.0,
    }  # fmt: skip


def test_a_table_of_a_lists_own_vocabulary_is_named_before_it_is_made():
    lists = ListInputs(12, shares=0), ListInputs(1_000_003)
    spec = ModelSpec(
        "tabular", ModelInputs((12,), 1, lists=lists), model_class("tabular").Settings(embedding_width_max=600)
    )
    (text,) = large_tables(spec, ["shop", "words"], 16 << 30)
    assert "column 'words': its table of 1,000,003 ids x 600 numbers takes 2.2 GiB" in text


def test_a_run_with_lists_has_them_in_its_columns_warnings_and_baselines(tmp_path):
    frame = tag_rows(1500)
    frame["tags"] = [
        [*row, "sold"] if label else row for row, label in zip(frame["tags"], frame["clicked"], strict=True)
    ]
    frame.to_parquet(tmp_path / "rows.parquet")
    config = list_config(tmp_path, "lr", evaluate={"baselines": ["linear", "boosted"]})
    pipeline = Pipeline.from_config(config)
    run = pipeline.train()
    lengths = [len(row) for row in pipeline.features().frame("train")["tags"]]
    assert any("whether the element 'sold' is in a list" in text for text in run.summary["warnings"])
    assert all(item["metrics"]["test"]["auc"] > 0.97 for item in run.summary["baselines"]["found"])
    page = (run.path / "report.html").read_text()
    assert "mean length" in page
    assert format_value(float(np.mean(lengths))) in page
    shares = missing_shares({"train": pipeline.features().parts("train")}, ["item", "price"])
    assert shares == {"train": {"item": 0.0, "price": 0.0}}
