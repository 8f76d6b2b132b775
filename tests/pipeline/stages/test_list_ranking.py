"""Recommenders of rows with lists from files to ranks: negatives, ranking, two towers and stored vectors."""

import json
import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from gigabatch.features.engines.frame import load_engine
from gigabatch.loaders.batches.residency import open_source
from gigabatch.loaders.batches.shards import PackedShards, write_shuffled
from gigabatch.models.model import SCORE_ATOL, SCORE_RTOL
from gigabatch.models.retrieval import top_k
from gigabatch.pipeline.bundle import Bundle, load_bundle, model_outputs, target_loss
from gigabatch.pipeline.config.config import TrainSettings
from gigabatch.pipeline.embedding.embed import embed, update_embeddings
from gigabatch.pipeline.embedding.embeddings import STAGE, EmbeddingsError, StoredEmbeddings
from gigabatch.pipeline.embedding.settings import EmbedSettings
from gigabatch.pipeline.evaluation.rank_evaluate import Catalogue, positive_rows, rank_evaluate
from gigabatch.pipeline.lab.experiment import Experiment
from gigabatch.pipeline.stages.stages import Pipeline
from gigabatch.pipeline.training.negatives import implicit_batches
from gigabatch.pipeline.training.train import model_inputs, model_spec, new_model, train_model

USERS, ITEMS, TAGS = 60, 40, "abcdefgh"
TAGS_OF = {item: [TAGS[item % 8], TAGS[(item // 8 + 3) % 8]][: 1 + item % 2] for item in range(ITEMS)}
CLOSE = {"rtol": SCORE_RTOL, "atol": SCORE_ATOL}


def choices(seed: int = 1) -> pd.DataFrame:
    """Each user likes one tag for the whole of a history, whose items say which; the user's id says nothing of it.

    Rows are positives. `seen` are up to four items that the user chose before, with newer ones weighing more; a club
    is the user's; tags are the item's."""
    draw, rows = random.Random(seed), []
    by_tag = {tag: [item for item, tags in TAGS_OF.items() if tag in tags] for tag in TAGS}
    for user in range(USERS):
        for _ in range(12):
            liked = by_tag[draw.choice(TAGS)]
            seen = [draw.choice(liked) for _ in range(draw.randrange(1, 5))]
            rows.append((user, draw.choice(liked), seen, [0.5 + place for place in range(len(seen))]))
    draw.shuffle(rows)
    frame = pd.DataFrame(rows, columns=["user", "item", "seen", "age"])
    return frame.assign(
        tags=[TAGS_OF[item] for item in frame["item"]],
        clubs=[[f"c{user % 7}"] * (user % 3) for user in frame["user"]],
        hour=[draw.randrange(4) for _ in rows],
        chosen=1,
    )


def yaml_of(folder: Path, **changes) -> Path:
    choices().to_parquet(folder / "rows.parquet")
    raw = {
        "name": "choices", "recipe": "table", "device": "cpu", "engine": "pandas", "seed": 1,
        "artifacts": str(folder / "artifacts"), "runs": str(folder / "runs"),
        "features": {
            "path": str(folder / "rows.parquet"),
            "categorical": {"user": "int64", "item": "int64", "hour": "int64"},
            "targets": {"chosen": {"task": "binary"}},
            "lists": {
                "seen": {"shares": "item", "weights": "age"}, "clubs": {}, "tags": {},
            },
            "entities": {"user": {"key": "user", "columns": ["clubs"]}, "item": {"key": "item", "columns": ["tags"]}},
        },
        "model": {"kind": "two_tower", "loss": "softmax", "layers": [16], "vector_dim": 8, "embedding_dim": 8},
        "train": {"epochs": 12, "batch_size": 64, "lr_max": 0.05, "negatives": {"per_positive": 2}, "select": "last"},
        "evaluate": {
            "importance": False, "baselines": [],
            "ranking": {"k": [5], "negatives": 10, "baselines": ["popularity", "ease"]},
        },
    }  # fmt: skip
    for name, value in changes.items():
        raw[name] = raw[name] | value if isinstance(value, dict) else value
    path = folder / "choices.yaml"
    path.write_text(json.dumps(raw, allow_nan=False))  # JSON is YAML
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(pipeline, run) of the two towers."""
    pipeline = Pipeline.from_config(yaml_of(tmp_path_factory.mktemp("choices")))
    return pipeline, pipeline.train()


def test_what_lists_alone_say_is_ranked_high_beside_baselines_that_look_at_ids(trained):
    ranked = trained[1].summary["ranking"]
    others = {other["name"]: other["catalogue"]["ndcg@5"] for other in ranked["baselines"]["found"]}
    assert set(others) == {"popularity", "EASE"}
    assert ranked["catalogue"]["ndcg@5"] > 1.25 * max(others.values())


def test_a_model_without_towers_learns_the_same_lists(tmp_path):
    changes = {"model": {"kind": "dcn"}, "train": {"epochs": 6, "batch_size": 64, "negatives": {"per_positive": 4}}}
    raw = json.loads(yaml_of(tmp_path, train=changes["train"]).read_text()) | {"model": changes["model"]}
    (tmp_path / "dcn.yaml").write_text(json.dumps(raw, allow_nan=False))
    found = Pipeline.from_config(tmp_path / "dcn.yaml").train().summary["ranking"]
    best = max(other["catalogue"]["ndcg@5"] for other in found["baselines"]["found"])
    assert found["catalogue"]["ndcg@5"] > 1.5 * best


def slow_mrr(pipeline, bundle: Bundle, questions: int) -> float:
    """Of the first positives of test, by `Bundle.predict` of frames that have each candidate's columns."""
    features = pipeline.features()
    frames = {split: features.frame(split) for split in ("train", "test")}
    known = set(zip(frames["train"]["user"], frames["train"]["item"], strict=True))
    tags = dict(zip(frames["train"]["item"], frames["train"]["tags"], strict=True))
    found = []
    for row in frames["test"].head(questions).to_dict("records"):
        items = [item for item in sorted(tags) if item == row["item"] or (row["user"], item) not in known]
        rows = pd.DataFrame([row | {"item": item, "tags": tags[item]} for item in items])
        scores = bundle.predict(rows)["chosen"].to_numpy()
        own = scores[items.index(row["item"])]
        found.append(1 / ((scores > own).sum() + ((scores == own).sum() + 1) / 2))
    return float(np.mean(found))


def test_the_ranks_are_those_of_a_loop_over_predictions(trained):
    pipeline, run = trained
    bundle, encoded = load_bundle(run.path / "model"), pipeline.features().encode()
    tables = {split: encoded.table(split) for split in ("train", "valid", "test")}
    inputs, settings = model_inputs(bundle.preprocessor), pipeline.config.evaluate.ranking
    positives = positive_rows(tables["test"])
    few = positives.with_words(positives.words[:8].contiguous())
    catalogue = Catalogue.of(tables, inputs, "cpu")
    found = rank_evaluate(bundle.model, few, catalogue, settings, seed=1, device="cpu")["catalogue"]
    assert found["mrr"] == pytest.approx(slow_mrr(pipeline, bundle, 8), abs=1e-6)


def test_evaluation_rows_have_the_lists_of_the_items_that_were_drawn(trained):
    encoded = trained[0].features().encode()
    table, plain = encoded.evaluation_table("valid"), encoded.features.frame("valid")
    batch, copies = table.unpack(table.words), 3
    item_ids, tag_ids = (
        {value: place for place, value in enumerate(encoded.preprocessor.vocabularies[name].values.tolist(), 3)}
        for name in ("item", "tags")
    )
    items = {place: value for value, place in item_ids.items()}
    tags, seen = batch.lists[2].to_lists(), batch.lists[0].to_lists()
    assert len(table) == copies * len(plain)
    drawn = 0
    for row, found in enumerate(batch.ids[:, 1].tolist()):
        own = plain.iloc[row // copies]
        assert tags[row] == [tag_ids[tag] for tag in TAGS_OF[items[found]]]
        assert seen[row] == [item_ids[item] for item in own["seen"]]
        drawn += items[found] != own["item"]
    assert drawn == 2 * len(plain)


def fitted(pipeline, folder: Path, source=None, after_step=lambda step: None, **settings):
    """Training on drawn negatives, of the train split or of a source of its batches."""
    encoded, config = pipeline.features().encode(), pipeline.config
    rows, spec = encoded.table("train"), model_spec(encoded.preprocessor, config)
    given = TrainSettings(**{"epochs": 2, "batch_size": 64, "lr_max": 0.02, "checkpoint_every_steps": 3} | settings)
    folder.mkdir(exist_ok=True)
    negatives = implicit_batches(encoded.preprocessor, spec.inputs, rows, config.train.negatives, 1, "cpu")
    return train_model(
        new_model(spec, rows, 1), rows if source is None else source, encoded.evaluation_table("valid"),
        target_loss(encoded.features.schema), given, seed=1, device="cpu", folder=folder, after_step=after_step,
        negatives=negatives,
    )  # fmt: skip


def equal_weights(one, other) -> bool:
    pairs = zip(one.model.state_dict().items(), other.model.state_dict().items(), strict=True)
    return all(name == again and torch.equal(value, found) for (name, value), (again, found) in pairs)


@pytest.mark.parametrize("settings", [{}, {"accumulate_steps": 2}])
def test_a_killed_training_on_drawn_rows_with_lists_goes_on_bit_for_bit(trained, tmp_path, settings):
    def crash(step: int) -> None:
        if step == 10:
            raise KeyboardInterrupt

    whole = fitted(trained[0], tmp_path / "whole", **settings)
    with pytest.raises(KeyboardInterrupt):
        fitted(trained[0], tmp_path / "killed", after_step=crash, **settings)
    resumed = fitted(trained[0], tmp_path / "killed", **settings)
    assert resumed.earlier_rows > 0
    assert equal_weights(whole, resumed)


def test_streamed_positives_learn_what_those_in_memory_do(trained, tmp_path):
    rows = trained[0].features().encode().table("train")
    write_shuffled([rows], tmp_path / "shuffled", rows.schema, len(rows), seed=5, shard_rows=100)
    given = {"batch_size": 64, "shuffle": False, "drop_last": True}
    one, other = (
        fitted(trained[0], tmp_path / kind, open_source(PackedShards(tmp_path / "shuffled"), kind, **given))
        for kind in ("host", "stream")
    )
    assert equal_weights(one, other)


def test_an_experiment_draws_and_trains_as_the_run_does(trained, tmp_path):
    encoded = trained[0].features().encode()
    given = {"epochs": 1, "batch_size": 64, "lr_max": 0.02}
    alone = fitted(trained[0], tmp_path / "alone", **given)
    experiment = Experiment.of(encoded, None)
    assert equal_weights(experiment.fit(TrainSettings(**given), seed=1), alone)
    few = Experiment.of(encoded, 100, 20)
    assert few.valid.unpack(few.valid.words).lists[2].num_rows == len(few.valid) < len(experiment.valid)
    trained_on_few = few.fit(TrainSettings(**given), seed=1)
    assert np.isfinite(trained_on_few.curve[-1]["valid_loss"])


def stored_of(pipeline, run, folder: Path, more: Path | None = None) -> tuple[StoredEmbeddings, Bundle]:
    bundle = load_bundle(run.path / "model")
    if more is None:
        embed(folder, bundle, pipeline.features(), EmbedSettings())
    else:
        update_embeddings(folder, bundle, pipeline, [str(more)], EmbedSettings())
    return StoredEmbeddings.load(folder / STAGE, bundle), bundle


def whole_table(pipeline) -> pd.DataFrame:
    features = pipeline.features()
    return pd.concat([features.frame(split) for split in features.rows], ignore_index=True)


def test_stored_vectors_find_what_predictions_rank(trained, tmp_path):
    """Of users as of their last row: its history is theirs, its hour is of a request and left out."""
    pipeline, run = trained
    found, bundle = stored_of(pipeline, run, tmp_path)
    table = whole_table(pipeline)
    newest, items = table.groupby("user").tail(1).set_index("user"), table.groupby("item").tail(1).set_index("item")
    best = top_k(found.user.vectors, found.item.vectors, k=5)
    for place, user in enumerate(found.user.keys.tolist()[:10]):
        row = newest.loc[user]
        asked = pd.DataFrame(
            [{"user": user, "item": item, "hour": None, "seen": row["seen"], "age": row["age"], "clubs": row["clubs"],
              "tags": items.loc[item, "tags"]} for item in found.item.keys]
        )  # fmt: skip
        asked["hour"] = asked["hour"].astype("Int64")
        scores = bundle.predict(asked)["chosen"].to_numpy()
        ranked = torch.sigmoid(bundle.model.score(found.user.vectors[[place]], found.item.vectors))[:, 0]
        np.testing.assert_allclose(ranked.detach().numpy(), scores, **CLOSE)
        np.testing.assert_allclose(scores[best.rows[place].numpy()], np.sort(scores)[::-1][:5], **CLOSE)
    history = found.user.lists[0].to_lists()
    ids = {value: place for place, value in enumerate(bundle.preprocessor.vocabularies["item"].values.tolist(), 3)}
    assert history == [[ids[item] for item in newest.loc[user, "seen"]] for user in found.user.keys]
    assert set(found.user.lists) == {0, 1}
    assert set(found.item.lists) == {2}


def test_an_update_computes_what_lists_have_changed(trained, tmp_path):
    pipeline, run = trained
    before, bundle = stored_of(pipeline, run, tmp_path / "run")
    table = whole_table(pipeline).drop_duplicates("item", keep="last").head(5)
    changed = table.assign(tags=[["a", "b", "c"], *table["tags"].tolist()[1:]])[["item", "tags"]]
    load_engine("pandas").write_parquet(changed, tmp_path / "more.parquet")
    found, _ = stored_of(pipeline, run, tmp_path / "run", tmp_path / "more.parquet")
    assert found.manifest["entities"]["item"]["computed"] == 1
    assert found.manifest["entities"]["user"]["computed"] == 0
    place = found.item.keys.tolist().index(table["item"].iloc[0])
    moved = (found.item.vectors != before.item.vectors).any(1).nonzero()[:, 0].tolist()
    assert moved == [place]
    rows = torch.from_dlpack(bundle.preprocessor.pack(table.head(1), targets=False))
    lists = [column.slice(place, place + 1) if number == 2 else column.slice(0, 1) for number, column in
             ((0, before.user.lists[0]), (1, before.user.lists[1]), (2, found.item.lists[2]))]  # fmt: skip
    with torch.inference_mode():
        own = bundle.model.eval().item_vectors(rows, torch.empty(1, 0), lists)
    torch.testing.assert_close(found.item.vectors[[place]], own, **CLOSE)


def test_damaged_lists_are_refused(trained, tmp_path):
    found, bundle = stored_of(*trained, tmp_path)
    path = found.folder / "items" / "list-002-ids.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-4])
    with pytest.raises(EmbeddingsError, match=r"list-002-ids\.npy is not what the manifest says"):
        StoredEmbeddings.load(tmp_path / STAGE, bundle)


def test_a_whole_bundle_of_towers_predicts_as_its_stored_parts(trained):
    pipeline, run = trained
    bundle, table = load_bundle(run.path / "model"), pipeline.features().encode().table("test")
    batch = table.unpack(table.words)
    with torch.inference_mode():
        model = bundle.model.eval()
        given = batch.ids, batch.floats, batch.lists
        scores = model.score(model.user_vectors(*given), model.item_vectors(*given))
        torch.testing.assert_close(torch.cat(list(model_outputs(model, *given))), scores, **CLOSE)
