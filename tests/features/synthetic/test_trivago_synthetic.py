"""The synthetic trivago log: the official format, planted preferences whose best MRR is known, bounded memory."""

import csv
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from gigabatch.features.errors import DataError
from gigabatch.features.synthetic.trivago import COLUMNS, main, write_synthetic_log
from gigabatch.features.synthetic.trivago_world import START, Effects

EXCERPT = Path(__file__).parents[4] / "shared" / "data" / "trivago_sample"
NO_EFFECT = {
    "quality": 0.0, "taste": 0.0, "sensitivity": (0.0,) * 5, "position": 0.0, "filters": 0.0, "interacted": 0.0,
    "last_interacted": 0.0, "reclicked": 0.0, "searched": 0.0,
}  # fmt: skip
BOUNDARY = START + 6 * 86_400


def read(folder: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(folder / name, dtype={"reference": "str", "prices": "str", "impressions": "str"})


def first_line(path: Path) -> str:
    return path.read_text().partition("\n")[0]


def clickouts(folder: Path) -> pd.DataFrame:
    """All clickouts with their reference, hidden ones included, with lists as Python lists."""
    test, truth = read(folder, "test.csv"), read(folder, "ground_truth.csv")
    log = pd.concat([read(folder, "train.csv"), test[~(test.impressions.notna() & test.reference.isna())], truth])
    found = log[log.impressions.notna()].sort_values(["user_id", "session_id", "step"]).reset_index(drop=True)
    found["impressions"] = found["impressions"].str.split("|")
    found["prices"] = [[int(p) for p in text.split("|")] for text in found["prices"]]
    found["clicked"] = [items.index(r) for items, r in zip(found["impressions"], found["reference"], strict=True)]
    return found


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    folder = tmp_path_factory.mktemp("log")
    write_synthetic_log(folder, rows=60_000, seed=3)
    return folder


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    folder = tmp_path_factory.mktemp("noise")
    write_synthetic_log(folder, rows=60_000, seed=3, noise_labels=True)
    return folder


def test_writes_exactly_the_rows_asked_for(log, tmp_path):
    assert len(read(log, "train.csv")) + len(read(log, "test.csv")) == 60_000
    write_synthetic_log(tmp_path, rows=1)
    assert len(read(tmp_path, "train.csv")) + len(read(tmp_path, "test.csv")) == 1


def test_header_and_action_names_are_the_official_ones(log):
    if not EXCERPT.exists():
        pytest.skip("needs shared/data/trivago_sample")
    official = pd.concat([pd.read_csv(EXCERPT / f"{name}_small.csv", dtype="str") for name in ("train", "test")])
    for name in ("train.csv", "test.csv", "ground_truth.csv"):
        assert first_line(log / name) == first_line(EXCERPT / "train_small.csv")
    ours = read(log, "train.csv")
    assert set(official["action_type"]) <= set(ours["action_type"])
    assert set(ours["device"]) == set(official["device"])
    assert ours["user_id"].str.len().eq(12).all()
    assert ours["session_id"].str.fullmatch("[0-9a-f]{13}").all()
    assert ours["current_filters"].isna().mean() > 0.5


def test_quoting_is_that_of_a_standard_csv_writer(log, tmp_path):
    for name in ("train.csv", "test.csv", "ground_truth.csv"):
        with open(log / name, newline="") as source, open(tmp_path / name, "w", newline="") as copy:
            csv.writer(copy, lineterminator="\n").writerows(csv.reader(source))
        assert (tmp_path / name).read_bytes() == (log / name).read_bytes()


def test_lists_are_on_clickouts_only_and_prices_go_with_items(log):
    for name in ("train.csv", "test.csv"):
        rows = read(log, name)
        is_clickout = rows["action_type"] == "clickout item"
        assert (rows["impressions"].notna() == is_clickout).all()
        assert (rows["prices"].notna() == is_clickout).all()
    found = clickouts(log)
    lengths = found["impressions"].str.len()
    assert (lengths == found["prices"].str.len()).all()
    assert lengths.max() == 25
    assert found["impressions"].map(lambda items: len(set(items)) == len(items)).all()
    assert 2.0 < lengths.sum() / 60_000 < 2.4


def test_items_of_the_log_are_in_the_metadata(log):
    metadata = pd.read_csv(log / "item_metadata.csv")
    assert list(metadata.columns) == ["item_id", "properties"]
    assert metadata["item_id"].is_unique
    shown = {int(item) for items in clickouts(log)["impressions"] for item in items}
    assert shown <= set(metadata["item_id"])
    assert metadata["properties"].str.contains("5 Star").any()


def test_steps_count_from_one_and_time_never_goes_back(log):
    for name in ("train.csv", "test.csv"):
        rows = read(log, name)
        sessions = rows.groupby("session_id", sort=False)
        assert (rows["step"] == sessions.cumcount() + 1).all()
        assert (sessions["timestamp"].diff().fillna(0) >= 0).all()
        assert (sessions["user_id"].nunique() == 1).all()
        order = rows[["user_id", "session_id", "step"]]
        assert order.equals(order.sort_values(["user_id", "session_id", "step"]).reset_index(drop=True))


def test_sessions_that_start_in_the_first_six_days_are_train(log):
    train = read(log, "train.csv").groupby("session_id")["timestamp"].min()
    test = read(log, "test.csv").groupby("session_id")["timestamp"].min()
    assert START <= train.min() <= train.max() < BOUNDARY <= test.min()
    assert test.max() < START + 8 * 86_400
    assert not set(train.index) & set(test.index)
    assert 0.15 < len(test) / (len(test) + len(train)) < 0.35


def test_only_final_clickouts_of_test_sessions_lose_their_reference_and_the_truth_holds_it(log):
    assert read(log, "train.csv")["reference"].notna().all()
    test, truth = read(log, "test.csv"), read(log, "ground_truth.csv")
    hidden = test[(test["action_type"] == "clickout item") & test["reference"].isna()]
    assert (hidden["step"] == test.groupby("session_id")["step"].max().loc[hidden["session_id"]].to_numpy()).all()
    pd.testing.assert_frame_equal(
        hidden.drop(columns="reference").reset_index(drop=True), truth.drop(columns="reference")
    )
    shown = zip(truth["reference"], truth["impressions"], strict=True)
    assert all(reference in items.split("|") for reference, items in shown)
    labelled = test[(test["action_type"] == "clickout item") & test["reference"].notna()]
    assert len(labelled) > 100
    assert len(hidden) > 100


def test_same_seed_same_bytes_and_another_seed_another_log(tmp_path):
    for name, seed in (("once", 3), ("again", 3), ("other", 4)):
        write_synthetic_log(tmp_path / name, rows=4_000, seed=seed)
    for name in ("train.csv", "test.csv", "ground_truth.csv", "item_metadata.csv", "oracle.json", "oracle.parquet"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "once" / name).read_bytes(), name
    assert (tmp_path / "other" / "train.csv").read_bytes() != (tmp_path / "once" / "train.csv").read_bytes()


def test_memory_does_not_grow_with_rows(tmp_path):
    def peak(rows: int) -> int:
        tracemalloc.start()
        write_synthetic_log(tmp_path / str(rows), rows=rows)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(1000)  # what a first call imports stays, and is no part of a log
    assert peak(200_000) < 1.3 * peak(100_000)


def test_reported_mrr_by_position_is_that_of_the_written_files(log):
    parts = json.loads((log / "oracle.json").read_text())["parts"]
    found = clickouts(log)
    mrr = (1 / (1 + found["clicked"])).mean()
    assert parts["all"]["position_mrr"] == pytest.approx(mrr, abs=1e-12)
    assert parts["all"]["clickouts"] == len(found)
    assert parts["all"]["pairs"] == found["impressions"].str.len().sum()
    hidden = read(log, "ground_truth.csv")
    assert parts["hidden"]["clickouts"] == len(hidden)
    oracle = pd.read_parquet(log / "oracle.parquet")
    for part in ("train", "test", "hidden"):
        rows = oracle[oracle["part"] == part]
        assert parts[part]["oracle_mrr"] == pytest.approx(rows["oracle_rr"].mean(), abs=1e-6)
        assert parts[part]["expected_oracle_mrr"] == pytest.approx(rows["expected_oracle_rr"].mean(), abs=1e-6)
    keyed = found.merge(oracle, on=["session_id", "step"], validate="one_to_one")
    assert len(keyed) == len(found)
    np.testing.assert_allclose(keyed["position_rr"], 1 / (1 + keyed["clicked"]), rtol=1e-6)
    assert (keyed["candidates"] == keyed["impressions"].str.len()).all()


def test_clicks_are_drawn_with_the_probability_that_the_oracle_knows(log):
    oracle = pd.read_parquet(log / "oracle.parquet")
    for kind in ("oracle", "position"):
        difference = oracle[f"{kind}_rr"] - oracle[f"expected_{kind}_rr"]
        assert abs(difference.mean()) < 4 * difference.std() / np.sqrt(len(difference))
    assert oracle["expected_oracle_rr"].mean() > oracle["expected_position_rr"].mean() + 0.15


def oracle_mrr_of(folder: Path, **sizes) -> tuple[float, pd.DataFrame]:
    report = write_synthetic_log(folder, rows=20_000, effects=Effects(**{**NO_EFFECT, **sizes}))
    return report["parts"]["all"]["oracle_mrr"], clickouts(folder)


def test_with_position_alone_the_oracle_is_the_shown_order(tmp_path):
    mrr, found = oracle_mrr_of(tmp_path, position=0.8)
    assert mrr == pytest.approx((1 / (1 + found["clicked"])).mean(), abs=1e-12)


def test_with_price_alone_the_oracle_is_cheapest_first(tmp_path):
    mrr, found = oracle_mrr_of(tmp_path, sensitivity=(1.0,) * 5)
    by_price = [
        1 / (1 + list(np.argsort(prices, kind="stable")).index(clicked))
        for prices, clicked in zip(found["prices"], found["clicked"], strict=True)
    ]
    assert mrr == pytest.approx(np.mean(by_price), abs=1e-12)
    assert mrr > np.mean(1 / (1 + found["clicked"])) + 0.05


def test_with_last_interaction_alone_the_oracle_puts_the_last_visited_item_first(tmp_path):
    mrr, _ = oracle_mrr_of(tmp_path, last_interacted=3.0)
    test, truth = read(tmp_path, "test.csv"), read(tmp_path, "ground_truth.csv")
    key = ["session_id", "step"]
    test = test.merge(truth[[*key, "reference"]], on=key, how="left", suffixes=("", "_true"))
    test["reference"] = test["reference"].fillna(test.pop("reference_true"))
    reciprocal = []
    for _, session in pd.concat([read(tmp_path, "train.csv"), test]).groupby("session_id"):
        last = None
        for row in session.itertuples():
            if row.action_type.startswith("interaction") or row.action_type == "search for item":
                last = row.reference
            elif row.action_type == "search for destination":
                last = None
            elif row.action_type == "clickout item":
                items = row.impressions.split("|")
                ranked = sorted(items, key=lambda item: item != last)
                reciprocal.append(1 / (1 + ranked.index(row.reference)))
    # A few visits lose their reference, and a return to the same city forgets: the loop sees slightly less or more.
    assert mrr == pytest.approx(np.mean(reciprocal), abs=0.01)
    assert mrr > 0.35


def test_with_quality_alone_better_items_are_clicked_in_every_list(tmp_path):
    mrr, found = oracle_mrr_of(tmp_path, quality=2.0)
    clicks = found["reference"].value_counts()
    shown = found["impressions"].explode().value_counts()
    rate = (clicks.reindex(shown.index, fill_value=0) + 1) / (shown + 20)
    half = len(found) // 2
    ranked = [
        1 / (1 + sorted(items, key=lambda item: -rate[item]).index(reference))
        for items, reference in zip(found["impressions"][half:], found["reference"][half:], strict=True)
    ]
    assert 0.8 * mrr < np.mean(ranked) <= mrr + 0.05


def test_noise_labels_are_uniform_over_the_list(noise):
    found = clickouts(noise)
    assert (found["impressions"].str.len() == 25).all()
    assert stats.chisquare(np.bincount(found["clicked"], minlength=25)).pvalue > 1e-4
    expected = np.sum(1 / np.arange(1, 26)) / 25
    parts = json.loads((noise / "oracle.json").read_text())["parts"]
    assert parts["all"]["expected_oracle_mrr"] == pytest.approx(expected, abs=1e-9)
    assert parts["all"]["expected_position_mrr"] == pytest.approx(expected, abs=1e-9)


def test_noise_labels_do_not_depend_on_interactions_price_or_item(noise):
    rows = read(noise, "train.csv")
    rows["item"] = rows["reference"].where(rows["action_type"].str.startswith("interaction item"))
    rows["last"] = rows.groupby("session_id")["item"].ffill()
    asked = rows[rows["impressions"].notna() & rows["last"].notna()]
    lists = asked["impressions"].str.split("|")
    seen = np.array([last in items for items, last in zip(lists, asked["last"], strict=True)])
    chance = (1 / lists.str.len()).to_numpy()[seen]
    hits = (asked["last"] == asked["reference"]).to_numpy()[seen]
    assert len(hits) > 1_000
    assert abs(hits.sum() - chance.sum()) < 4 * np.sqrt((chance * (1 - chance)).sum())
    found = clickouts(noise)
    rank = [stats.rankdata(p)[c] / (len(p) + 1) for p, c in zip(found["prices"], found["clicked"], strict=True)]
    assert abs(np.mean(rank) - 0.5) < 4 * np.sqrt(1 / 12 / len(rank))


def test_rows_must_be_positive(tmp_path):
    with pytest.raises(DataError, match="rows must be at least 1, found 0"):
        write_synthetic_log(tmp_path, rows=0)


def test_command_line_writes_the_log_and_says_what_it_wrote(tmp_path, capsys):
    main(["--rows", "3000", "--out", str(tmp_path), "--seed", "5", "--noise-labels"])
    assert "3,000 log rows" in capsys.readouterr().out
    assert json.loads((tmp_path / "oracle.json").read_text())["noise_labels"] is True
    assert first_line(tmp_path / "train.csv") == ",".join(COLUMNS)
