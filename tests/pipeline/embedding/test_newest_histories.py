"""The history stored with a user is what the user has chosen up to now, the newest too: by a loop over the log."""

import json
import random

import pandas as pd
import pytest

from gigabatch.pipeline.bundle import load_bundle
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.embedding.embeddings import STAGE, StoredEmbeddings

LENGTH, HALF_LIFE = 4, 10  # days
START = pd.Timestamp("2026-01-01")


def write_log(path) -> pd.DataFrame:
    """Interactions in no order, in which users meet items again and some times are equal."""
    draw = random.Random(7)
    rows = [
        {
            "user": f"u{user}",
            "item": f"i{draw.randrange(12)}",
            "time": (START + pd.Timedelta(hours=12 * draw.randrange(80))).strftime("%Y-%m-%dT%H:%M:%S"),
            "rating": draw.randrange(1, 6),
        }
        for user in range(40)
        for _ in range(draw.randrange(6, 14))
    ]
    draw.shuffle(rows)
    log = pd.DataFrame(rows)
    log.to_csv(path, index=False)
    return log


def expected_of(log: pd.DataFrame, user: str) -> tuple[list[str], list[float]]:
    """The last items that the user rated 4 and more, oldest first, of equal times in the order of the file; and
    weights as of the newest such row of all."""
    liked = [row for row in log.itertuples() if row.rating >= 4]
    now = max(pd.Timestamp(row.time) for row in liked)
    own = sorted((pd.Timestamp(row.time), place, row.item) for place, row in enumerate(liked) if row.user == user)
    last = own[-LENGTH:]
    return [item for _, _, item in last], [0.5 ** ((now - time) / pd.Timedelta(days=HALF_LIFE)) for time, _, _ in last]


@pytest.mark.parametrize("rules", [{}, {"repeats": "all"}, {"split_by": "time"}])
def test_a_stored_history_holds_all_that_the_user_has_chosen(tmp_path, rules):
    log = write_log(tmp_path / "log.csv")
    config = tmp_path / "log.yaml"
    columns = {"user": "user", "item": "item", "time": "time", "rating": "rating", "id_type": "string"}
    history = {"history": {"length": LENGTH, "half_life": f"{HALF_LIFE}d"}}
    settings = {
        "name": "log",
        "recipe": "interactions",
        "runs": str(tmp_path / "runs"),
        "artifacts": str(tmp_path / "artifacts"),
        "features": {"path": str(tmp_path / "log.csv"), **columns, "threshold": 4, **history, **rules},
        "model": {"kind": "two_tower", "loss": "softmax", "layers": [8], "vector_dim": 4, "embedding_dim": 4},
        "train": {"epochs": 1, "batch_size": 64},
    }
    config.write_text(json.dumps(settings))
    assert main(["train", "--config", str(config)]) == 0
    assert main(["embed", "--config", str(config)]) == 0
    run = (tmp_path / "runs" / "log" / "latest").resolve()
    stored = StoredEmbeddings.load(run / STAGE, load_bundle(run / "model"))
    rows = stored.user.rows().set_index("user")
    assert len(rows) >= 30
    for user, row in rows.iterrows():
        items, weights = expected_of(log, user)
        assert list(row["history"]) == items, user
        assert list(row["history_weights"]) == pytest.approx(weights, rel=1e-5), user
