"""`gigabatch plan` of recommenders: samples of their files, and steps with the negatives that a run draws."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from gigabatch.features.recipes import recipe_class
from gigabatch.features.synthetic.movielens import write_movielens
from gigabatch.models.recommenders.ncf import NCF
from gigabatch.pipeline import bundle
from gigabatch.pipeline.config.config import parse_config
from gigabatch.pipeline.lab.plan import probe as plan_probe
from gigabatch.pipeline.lab.plan.sample import measure, sample_files

CLICKS, ITEMS = 1200, 30


@pytest.mark.parametrize("kind", ["ml-100k", "ml-1m", "ml-latest"])
def test_movielens_files_keep_their_names_and_all_but_the_ratings_stay_whole(tmp_path, kind):
    total = write_movielens(tmp_path / "ml", kind, 120, 500)
    features = {"path": str(tmp_path / "ml"), "genres": True, "demographics": kind != "ml-latest"}
    config = parse_config({"name": "m", "recipe": "movielens", "features": features})
    assert measure("movielens", config.features).rows == pytest.approx(total, rel=0.1)
    settings, share = sample_files("movielens", config.features, 0.25, tmp_path / "sample")
    recipe = recipe_class("movielens")(settings)
    assert (recipe.format, settings.path) == (kind, str(tmp_path / "sample"))
    ratings, *whole = [Path(path) for path in recipe.inputs()]
    assert [path.read_bytes() for path in whole] == [(tmp_path / "ml" / path.name).read_bytes() for path in whole]
    taken = ratings.read_text().splitlines()
    header = kind == "ml-latest"
    assert len(taken) - header == pytest.approx(share * total, rel=0.03)
    assert 0.2 < share < 0.3
    rows = (tmp_path / "ml" / ratings.name).read_text().splitlines()
    assert taken == sorted(taken, key=rows.index)
    assert set(taken) <= set(rows)


def test_interactions_are_sampled_and_their_side_tables_read_where_they_lie(tmp_path):
    config = clicks_config(tmp_path)
    settings, share = sample_files("interactions", config.features, 0.3, tmp_path / "sample")
    assert 0.25 < share < 0.35
    assert settings.side_tables == config.features.side_tables
    (sample,) = Path(settings.path).iterdir()
    rows = pd.read_csv(sample)
    assert len(rows) == pytest.approx(share * CLICKS, rel=0.05)
    assert len(rows.merge(pd.read_csv(tmp_path / "clicks.csv"), how="inner")) == len(rows)


def clicks_config(folder: Path, **train):
    """Twenty clicks of each of sixty users; what is known of items is in a file of its own."""
    random = np.random.default_rng(0)
    clicks = [(f"u{user}", f"i{item}") for user in range(60) for item in random.permutation(ITEMS)[:20]]
    pd.DataFrame(clicks, columns=["user", "item"]).to_csv(folder / "clicks.csv", index=False)
    kinds = pd.DataFrame({"item": [f"i{n}" for n in range(ITEMS)], "kind": [f"k{n % 3}" for n in range(ITEMS)]})
    kinds.to_csv(folder / "items.csv", index=False)
    raw = {
        "name": "clicks", "recipe": "interactions", "device": "cpu", "engine": "pandas",
        "artifacts": str(folder / "artifacts"), "runs": str(folder / "runs"),
        "features": {
            "path": str(folder / "clicks.csv"),
            "side_tables": {"item": {"path": str(folder / "items.csv"), "categorical": ["kind"]}},
        },
        "model": {"kind": "ncf", "gmf_dim": 4, "mlp_dim": 4, "layers": [8]},
        "train": {"negatives": {"per_positive": 3}, "epochs": 1, "batch_size": 64} | train,
        "evaluate": {"importance_rows": 100, "ranking": {"k": [3], "negatives": 5}},
    }  # fmt: skip
    return parse_config(raw)


def test_stages_and_steps_are_measured_with_the_negatives_of_the_run(tmp_path, monkeypatch):
    """The steps see the batches of a run: each positive with its negatives, of all items of the predicted tables."""
    config = clicks_config(tmp_path, negatives={"per_positive": 3, "kind": "uniform", "exclude_known": True})
    monkeypatch.setattr(bundle, "BLOCK_ROWS", bundle.BLOCK_ROWS)
    watch = plan_probe.Watch(tmp_path, "cpu")
    plan_probe.run_stages(config, 1.0, True, watch)
    assert [phase["name"] for phase in watch.phases][-4:] == ["train", "evaluate", "importance", "ranking"]
    seen = []
    monkeypatch.setattr(NCF, "training_loss", recorded(NCF.training_loss, seen))
    watch = plan_probe.Watch(tmp_path, "cpu")
    sizes = [3 + 600, 3 + 300, 3 + 3]
    steps = plan_probe.run_steps(config, sizes, watch, tmp_path / "work")
    assert [phase["name"] for phase in watch.phases] == ["sample", "whole"]
    assert steps["step_seconds"] > 0
    batches = seen[len(seen) // 2 :]
    assert {len(batch.ids) for batch in batches} == {64 * 4}
    ids, labels = (torch.cat(parts) for parts in zip(*((b.ids, b.targets[0]) for b in batches), strict=True))
    assert labels.reshape(-1, 4).tolist() == [[1, 0, 0, 0]] * (len(labels) // 4)
    drawn = ids[labels == 0][:, 1]
    assert int(drawn.min()) >= 3
    assert int(drawn.max()) < 303
    assert len(drawn.unique()) > 200  # of 300 items; the sample has 30


def recorded(original, seen):
    """`Model.training_loss` that keeps the batches that it was given."""

    def training_loss(self, batch, loss):
        seen.append(type(batch)(*(part.clone() if torch.is_tensor(part) else part for part in batch)))
        return original(self, batch, loss)

    return training_loss
