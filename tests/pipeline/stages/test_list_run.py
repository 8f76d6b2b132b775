"""Runs of a table whose label follows from a list column, from files to predictions, and what is refused."""

import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from gigabatch.features.errors import DataError
from gigabatch.loaders.batches.residency import open_source
from gigabatch.loaders.batches.shards import PackedShards, write_shuffled
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.errors import ModelError
from gigabatch.models.parallel.ranks import Ranks
from gigabatch.pipeline.bundle import Bundle, load_bundle, target_loss
from gigabatch.pipeline.config.config import RunConfig, TrainSettings
from gigabatch.pipeline.evaluation.evaluate import evaluate, permutation_importance
from gigabatch.pipeline.lab.experiment import Experiment
from gigabatch.pipeline.lab.plan.plan import make_plan
from gigabatch.pipeline.stages.finished import Run
from gigabatch.pipeline.stages.stages import Encoded, Pipeline
from gigabatch.pipeline.training.train import TrainingError, model_spec, new_model, train_model
from tests.models.parallel.together import together

NUM_ROWS = 3000


def rows_of(number: int, seed: int = 1) -> pd.DataFrame:
    """The label is whether tags a, b and c weigh more than the others; the other columns say nothing."""
    draw = random.Random(seed)
    lists = [[draw.choice("abcdef") for _ in range(draw.randrange(1, 6))] for _ in range(number)]
    weights = [[draw.choice((0.5, 1.0, 2.0)) for _ in row] for row in lists]
    good = [
        sum(w if tag in "abc" else -w for tag, w in zip(*pair, strict=True))
        for pair in zip(lists, weights, strict=True)
    ]
    return pd.DataFrame(
        {
            "item": [place % 9 for place in range(number)],
            "price": [draw.random() for _ in range(number)],
            "clicked": [int(value > 0) for value in good],
            "tags": lists,
            "w": weights,
            "seen": [[draw.randrange(9) for _ in range(draw.randrange(4))] for _ in range(number)],
        }
    )


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    text = frame.copy()
    for name in ("tags", "w", "seen"):
        text[name] = ["|".join(map(str, row)) for row in frame[name]]
    text.to_csv(path, index=False)


def config_of(folder: Path, kind: str = "parquet", lists: bool = True, **changes) -> RunConfig:
    path = folder / f"rows.{kind}"
    if not path.exists():
        frame = rows_of(NUM_ROWS)
        frame.to_parquet(path) if kind == "parquet" else write_csv(frame, path)
    features = {
        "path": str(path), "categorical": {"item": "int64"}, "continuous": ["price"],
        "targets": {"clicked": {"task": "binary"}},
    }  # fmt: skip
    if lists:
        features["lists"] = {"tags": {"weights": "w"}, "seen": {"shares": "item"}}
    raw = {
        "name": "lists", "recipe": "table", "device": "cpu", "engine": "pandas",
        "artifacts": str(folder / "artifacts"), "runs": str(folder / "runs"), "features": features,
        "model": {"kind": "lr"}, "train": {"epochs": 4, "batch_size": 128, "lr_max": 0.05},
        "evaluate": {"importance": False, "baselines": []},
    }  # fmt: skip
    for name, value in changes.items():
        raw[name] = (raw.get(name) or {}) | value if isinstance(value, dict) else value
    return RunConfig(**raw)


@pytest.fixture(scope="module")
def encoded(tmp_path_factory) -> Encoded:
    return Pipeline(config_of(tmp_path_factory.mktemp("lists"))).features().encode()


def tables_of(encoded: Encoded) -> tuple[PackedTable, PackedTable]:
    return encoded.table("train"), encoded.table("valid")


def train(encoded: Encoded, folder: Path, kind: str = "dcn", after_step=lambda step: None, train=None, **settings):
    config = encoded.config.model_copy(update={"model": config_of(encoded_folder(encoded), model={"kind": kind}).model})
    rows, valid = tables_of(encoded)
    folder.mkdir(exist_ok=True)
    model = new_model(model_spec(encoded.preprocessor, config), rows, 1)
    given = TrainSettings(**{"epochs": 2, "batch_size": 128, "lr_max": 0.02} | settings)
    loss = target_loss(encoded.features.schema)
    return train_model(
        model, rows if train is None else train, valid, loss, given, seed=1, device="cpu", folder=folder,
        after_step=after_step,
    )  # fmt: skip


def encoded_folder(encoded: Encoded) -> Path:
    return Path(encoded.features.pipeline.config.artifacts).parent


def equal_weights(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return all(name == again and torch.equal(value, found) for (name, value), (again, found) in pairs)


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_label_that_lists_decide_is_learnt(tmp_path, kind):
    pipeline = Pipeline(config_of(tmp_path, kind, evaluate={"importance": True, "importance_repeats": 2}))
    run = pipeline.train()
    assert run.summary["metrics"]["test"]["auc"] > 0.97
    bundle, features = load_bundle(run.path / "model"), pipeline.features()
    table, frame = features.encode().table("test"), features.frame("test")
    predicted = bundle.predict(frame)["clicked"].to_numpy()
    evaluated = evaluate(bundle.model, table, bundle.schema, "cpu").predictions[0].numpy()
    np.testing.assert_allclose(predicted, evaluated, rtol=1e-5, atol=1e-6)
    path = tmp_path / f"rows.{kind}"
    raw = pd.read_parquet(path) if kind == "parquet" else pd.read_csv(path, dtype=str)
    raw = raw.drop(columns="clicked").iloc[frame["row_number"].to_numpy()]
    np.testing.assert_allclose(bundle.predict_raw(raw)["clicked"].to_numpy(), predicted, rtol=1e-6, atol=1e-6)
    with pytest.raises(DataError, match="'tags'"):
        bundle.predict(frame.drop(columns="tags"))
    settings = pipeline.config.evaluate
    metric, rows = permutation_importance(bundle.model, table, bundle.schema, settings, 1, "cpu")
    importance = {row["name"]: row["mean"] for row in rows}
    assert (metric, set(importance)) == ("AUC", {"item", "price", "tags", "seen"})
    assert importance.pop("tags") > 0.3
    assert max(importance.values()) < 0.05


def test_without_the_lists_nothing_is_learnt(tmp_path):
    run = Pipeline(config_of(tmp_path, lists=False)).train()
    assert abs(run.summary["metrics"]["test"]["auc"] - 0.5) < 0.1


def test_a_bundle_predicts_more_rows_than_a_block_as_each_alone(encoded, tmp_path, monkeypatch):
    trained = train(encoded, tmp_path / "work")
    frame = encoded.features.frame("test")
    info = {"name": "lists"}
    whole = Bundle(encoded.preprocessor, trained.model, info).predict(frame)["clicked"].to_numpy()
    monkeypatch.setattr("gigabatch.pipeline.bundle.BLOCK_ROWS", 7)
    parts = Bundle(encoded.preprocessor, trained.model, info).predict(frame)["clicked"].to_numpy()
    np.testing.assert_allclose(parts, whole, rtol=1e-5, atol=1e-6)
    assert len(Bundle(encoded.preprocessor, trained.model, info).predict(frame.iloc[:0])) == 0


@pytest.mark.parametrize("settings", [{}, {"accumulate_steps": 2, "ema_decay": 0.9}])
def test_a_training_that_was_killed_goes_on_as_if_it_had_not_been(encoded, tmp_path, settings):
    def crash(step: int) -> None:
        if step == 23:
            raise KeyboardInterrupt

    given = {"checkpoint_every_steps": 5} | settings
    whole = train(encoded, tmp_path / "whole", **given)
    with pytest.raises(KeyboardInterrupt):
        train(encoded, tmp_path / "killed", after_step=crash, **given)
    resumed = train(encoded, tmp_path / "killed", **given)
    assert resumed.earlier_rows > 0
    assert equal_weights(whole.model, resumed.model)
    assert whole.curve == resumed.curve


def test_streamed_rows_train_as_those_in_memory(encoded, tmp_path):
    rows, _ = tables_of(encoded)
    write_shuffled([rows], tmp_path / "shuffled", rows.schema, len(rows), seed=5, shard_rows=500)
    given = {"batch_size": 128, "shuffle": False, "drop_last": True}
    found = [
        train(encoded, tmp_path / kind, train=open_source(PackedShards(tmp_path / "shuffled"), kind, **given))
        for kind in ("host", "stream")
    ]
    assert equal_weights(found[0].model, found[1].model)


def test_logistic_regression_scores_as_embedding_bags_do(encoded):
    rows = tables_of(encoded)[0]
    model = new_model(model_spec(encoded.preprocessor, encoded.config), rows, 1).eval()
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw))
    frame, table = encoded.features.frame("test"), encoded.table("test")
    vocabularies = encoded.preprocessor.vocabularies
    ids_of = {
        name: {value: place for place, value in enumerate(v.values.tolist(), v.layout.first)}
        for name, v in vocabularies.items()
    }
    item, tags = (weight.detach() for weight in model.linear.tables.weights)
    norm, expected = model.linear.float_norm.eval(), model.linear.bias.detach().clone()
    expected = expected + norm(table.unpack(table.words).floats) @ model.linear.float_weights
    expected = expected + item[[ids_of["item"][value] for value in frame["item"].tolist()]]
    for name, values, weights in (("tags", tags, frame["w"]), ("seen", item, None)):
        owner = "item" if name == "seen" else name
        lists = [[ids_of[owner][value] for value in row] for row in frame[name]]
        flat = torch.tensor([value for row in lists for value in row])
        offsets = torch.tensor([0, *np.cumsum([len(row) for row in lists])[:-1]])
        shares = [[1 / max(len(row), 1)] * len(row) for row in lists]
        if weights is not None:
            shares = [[w / sum(row) for w in row] for row in weights]
        each = torch.tensor([value for row in shares for value in row], dtype=torch.float32)
        bag = torch.nn.EmbeddingBag.from_pretrained(values, mode="sum")
        expected = expected + bag(flat, offsets, per_sample_weights=each)
    found = Bundle(encoded.preprocessor, model, {"name": "lists"}).predict(frame)["clicked"].to_numpy()
    np.testing.assert_allclose(found, torch.sigmoid(expected[:, 0]).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_an_ensemble_that_is_calibrated_and_saved_predicts_by_the_lists(tmp_path):
    config = config_of(tmp_path, model={"kind": "dcn"}, train={"ensemble": 2, "calibration": "temperature"})
    pipeline = Pipeline(config)
    run = pipeline.train()
    assert run.summary["metrics"]["test"]["auc"] > 0.9
    bundle, features = load_bundle(run.path / "model"), pipeline.features()
    predicted = bundle.predict(features.frame("test"))["clicked"].to_numpy()
    evaluated = evaluate(bundle.model, features.encode().table("test"), bundle.schema, "cpu").predictions[0].numpy()
    np.testing.assert_allclose(predicted, evaluated, rtol=1e-5, atol=1e-6)


def run_of(ranks: Ranks, config: RunConfig) -> Path:
    return Pipeline(config, ranks=ranks).train().path


SHARED = {
    "an ensemble": {"model": {"kind": "dcn"}, "train": {"ensemble": 2}},
    "a stream": {"train": {"residency": "stream"}},
}


@pytest.mark.parametrize("name", SHARED)
def test_ranks_that_share_rows_with_lists_make_the_run_of_one(tmp_path, name):
    train = {"epochs": 2, "precision": "float32"} | SHARED[name]["train"]
    evaluate = {"importance": True, "importance_repeats": 1}
    changes = SHARED[name] | {"train": train, "evaluate": evaluate}
    alone = run_of(Ranks(), config_of(tmp_path, **changes))
    (tmp_path / "ranks").mkdir()
    (tmp_path / "rows.parquet").rename(tmp_path / "ranks" / "rows.parquet")  # one key, but no artifact is found
    shared = together(run_of, 2, tmp_path, config_of(tmp_path / "ranks", **changes))
    assert len(set(shared)) == 1
    runs = [Run(path) for path in (alone, shared[0])]
    assert runs[0].summary["metrics"]["test"]["auc"] > 0.9
    assert runs[1].summary["metrics"]["test"]["auc"] == pytest.approx(
        runs[0].summary["metrics"]["test"]["auc"], abs=1e-3
    )
    weights = [run.bundle().model.state_dict() for run in runs]
    for key, value in weights[0].items():
        torch.testing.assert_close(weights[1][key], value, rtol=5e-3, atol=4e-3)  # LAMB turns by rounding
    (sent,) = [point["sent_bytes"] for point in runs[1].curve[-1:]]
    assert sent["all_gather row gradients"] > 0


def test_groups_teach_each_other_with_lists(tmp_path):
    """The second comes when the first is done, and learns from the weights that it has left."""
    asked = {"groups": 2, "burn_in_steps": 2, "every_steps": 2}
    runs = [
        Pipeline(config_of(tmp_path, train={"epochs": 2, "codistill": asked | {"group": group}})).train()
        for group in (0, 1)
    ]
    taught = runs[1].curve[-1]["peers"]["0"]
    assert taught["step"] == runs[0].summary["trained"]["steps"]
    assert runs[0].curve[-1]["peers"]["1"] is None
    assert min(run.summary["metrics"]["test"]["auc"] for run in runs) > 0.9


def test_an_experiment_trains_with_the_lists(encoded):
    experiment = Experiment.of(encoded, max_rows=1500)
    trained = experiment.fit(experiment.settings, seed=1)
    table = encoded.table("test")
    assert evaluate(trained.model, table, experiment.schema, "cpu").headline["auc"] > 0.9


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train": {"compile": "on"}}, "features.lists: 'tags', 'seen': .*Set train.compile=off"),
    ],
)
def test_what_takes_no_lists_is_refused_before_training(encoded, changes, said):
    config = config_of(encoded_folder(encoded), **changes)
    with pytest.raises(ValueError, match=said):
        new_model(model_spec(encoded.preprocessor, config), tables_of(encoded)[0], 1)


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"compile": "on"}, "Set train.compile=off")],
)
def test_a_step_that_takes_no_lists_is_refused(encoded, tmp_path, settings, said):
    with pytest.raises(TrainingError, match=f"list columns: .*{said}"):
        train(encoded, tmp_path / "work", **settings)


def test_what_uses_a_trained_model_without_its_lists_is_refused(tmp_path, encoded):
    trained = train(encoded, tmp_path / "work", epochs=1)
    batch = encoded.table("test").unpack(encoded.table("test").words)
    with pytest.raises(ModelError, match="2 list columns, found 0"):
        trained.model(batch.ids, batch.floats)


def test_a_plan_of_few_rows_measures_its_lists(tmp_path, forked_probes):
    config = config_of(tmp_path)
    plan = make_plan(config)
    assert plan.fits
    assert plan.handover == "off"
    tables = [Pipeline(config).features().encode().table(name) for name in ("train", "valid")]
    assert plan.stages[2].mapped_bytes == sum(table.num_bytes for table in tables)
    assert plan.id_sizes == {"item": 9 + 3, "tags": 6 + 3}


def kept_of(run: Path) -> dict[str, bytes]:
    """The weights, vocabularies and optimizer of a run."""
    found = [path for folder in ("model", "training") for path in sorted((run / folder).rglob("*.*"))]
    return {str(path.relative_to(run)): path.read_bytes() for path in found if path.name != "bundle.json"}


@pytest.mark.parametrize("train", [{}, {"ensemble": 2, "ema_decay": 0.9}])
def test_a_warm_start_without_a_step_or_a_new_element_gives_the_run_that_it_began_from(tmp_path, train):
    given = {"model": {"kind": "dcn"}, "train": {"epochs": 1} | train}
    first = Pipeline(config_of(tmp_path, **given)).train()
    begun = {"train": given["train"] | {"epochs": 0, "start_from": str(first.path)}}
    warm = Pipeline(config_of(tmp_path, **given | begun, preprocess={"from": str(first.path)})).train()
    assert kept_of(warm.path) == kept_of(first.path)
    columns = {row["column"]: row for row in warm.summary["started"]["columns"]}
    assert columns["tags"] == {"column": "tags", "carried": 6, "new": 0, "dropped": 0, "absent": 0}
    assert set(columns) == {"item", "tags"}
    # Other lists are refused by name, or trained cold by choice.
    with pytest.raises(TrainingError, match=r"other list columns .without tags and with tags with weights, seen of"):
        Pipeline(config_of(tmp_path, **given | begun, features={"lists": {"tags": {}}})).train()


def test_a_list_that_comes_later_is_trained_cold_by_choice(tmp_path):
    first = Pipeline(config_of(tmp_path, lists=False, train={"epochs": 1})).train()
    begun = {"epochs": 1, "start_from": str(first.path), "changed": "cold"}
    run = Pipeline(config_of(tmp_path, train=begun)).train()
    (note,) = [note for note in run.summary["notes"] if "Trained cold" in note]
    assert "other list columns (without tags with weights, seen of the vocabulary of item)" in note


def test_lists_of_which_no_element_is_known_are_told(encoded, caplog):
    trained = new_model(model_spec(encoded.preprocessor, encoded.config), tables_of(encoded)[0], 1)
    bundle = Bundle(encoded.preprocessor, trained, {"name": "lists"})
    frame = encoded.features.frame("test")
    bundle.predict(frame)
    assert not caplog.records
    bundle.predict(frame.assign(tags=pd.Series([["A"] * len(row) for row in frame["tags"]], index=frame.index)))
    assert "column 'tags': none of its" in caplog.text
