"""Thresholds, precision and recall, gains and costs, against scikit-learn and counts by hand."""

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics as sk
import torch

from gigabatch.models.errors import ModelError
from gigabatch.pipeline.evaluation.decisions import Costs, Decisions, as_written, threshold_table
from gigabatch.pipeline.stages.score import write_frame

INF = float("inf")


def drawn(rows=500, seed=0, weighted=False):
    """Scores with ties, labels that follow them, and weights, of which some are 0."""
    random = np.random.default_rng(seed)
    scores = np.round(random.random(rows), 2).astype(np.float32)
    labels = (random.random(rows) < scores).astype(np.float32)
    weight = random.choice([0.0, 0.5, 1.0, 3.0], rows).astype(np.float32) if weighted else None
    return scores, labels, weight


def decisions(scores, labels, weight=None):
    return Decisions.of(*(None if part is None else torch.as_tensor(part) for part in (scores, labels, weight)))


@pytest.mark.parametrize("weighted", [False, True])
def test_precision_and_recall_are_those_of_scikit_learn(weighted):
    scores, labels, weight = drawn(weighted=weighted)
    found = decisions(scores, labels, weight)
    precision, recall, threshold = sk.precision_recall_curve(labels, scores, sample_weight=weight)
    for value, *expected in zip(threshold, precision, recall, strict=False):
        row = found.at(float(value), Costs())
        assert [row["precision"], row["recall"]] == pytest.approx(expected)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("false_positive", "false_negative"), [(1, 1), (1, 5), (3, 0.5), (0, 1), (1, 0)])
def test_cost_and_its_least_are_those_of_trying_every_threshold(weighted, false_positive, false_negative):
    scores, labels, weight = drawn(200, 1, weighted)
    found, costs = decisions(scores, labels, weight), Costs(false_positive, false_negative)
    mass = np.ones(len(scores)) if weight is None else weight.astype(float)
    tried = {}
    for threshold in [INF, *np.unique(scores)[::-1]]:
        flagged = scores >= threshold
        too_many, missed = (mass[rows].sum() for rows in (flagged & (labels == 0), ~flagged & (labels == 1)))
        wrong = false_positive * too_many + false_negative * missed
        tried[float(threshold)] = wrong / mass.sum()
    for threshold, cost in tried.items():
        assert found.at(threshold, costs)["cost_per_1000_rows"] == pytest.approx(1000 * cost)
    best = found.least_cost(costs)
    assert tried[best] == pytest.approx(min(tried.values()))
    assert best == max(threshold for threshold, cost in tried.items() if cost < min(tried.values()) + 1e-12)


def test_the_threshold_of_the_best_f1_is_that_of_scikit_learn():
    scores, labels, _ = drawn(300, 2)
    best = max(sk.f1_score(labels, scores >= value) for value in np.unique(scores))
    assert sk.f1_score(labels, scores >= decisions(scores, labels).best_f1()) == pytest.approx(best)


def test_gains_are_those_of_counting_and_do_not_depend_on_the_order_of_tied_rows():
    scores, labels, _ = drawn(400, 3)
    share, recall = (part.numpy() for part in decisions(scores, labels).by_share())
    for rows in (2, 100, 200, 400):
        above = scores > np.sort(scores)[::-1][rows - 1]
        tied = scores == np.sort(scores)[::-1][rows - 1]
        found = labels[above].sum() + labels[tied].sum() * (rows - above.sum()) / tied.sum()
        assert recall[np.isclose(share, rows / 400)].item() == pytest.approx(found / labels.sum())
    flat = decisions(np.full(10, 0.5, np.float32), np.r_[np.ones(3), np.zeros(7)].astype(np.float32))
    assert flat.by_share()[1].numpy() == pytest.approx(flat.by_share()[0].numpy())  # as by chance


def test_the_thinned_curve_keeps_its_ends_and_lies_on_the_whole_one():
    random = np.random.default_rng(4)
    scores = random.random(20_000).astype(np.float32)
    labels = (random.random(20_000) < scores).astype(np.float32)
    recall, precision = (part.numpy() for part in decisions(scores, labels).precision_recall(100))
    whole_precision, whole_recall, _ = sk.precision_recall_curve(labels, scores)
    pairs = set(zip(whole_recall.round(9), whole_precision.round(9), strict=True))
    assert 50 < len(recall) <= 100
    assert set(zip(recall.round(9), precision.round(9), strict=True)) <= pairs
    assert (recall[-1], np.all(np.diff(recall) >= 0)) == (1.0, True)


def test_thresholds_are_chosen_on_the_other_rows_and_told_of_these():
    chosen_on = decisions([0.9, 0.8, 0.3, 0.2], [1, 1, 0, 0])  # flagging from .8 on costs nothing there
    decided = decisions([0.9, 0.7, 0.85, 0.1], [1, 1, 0, 0])
    made = threshold_table(decided, Costs(), "test", chosen_on, "valid")
    (row,) = [row for row in made.rows if row["chosen_by"] == "least cost on valid"]
    assert (row["false_positives"], row["false_negatives"], row["flagged"]) == (1, 1, 0.5)
    assert row["cost_per_1000_rows"] == 500
    assert made.text.startswith("Least cost on valid: flag a row from a score of 0.8 on. That costs 500 per 1,000 rows")
    assert "flatters" not in made.text
    assert "flatters" in threshold_table(decided, Costs(), "test").text


def test_where_nothing_pays_the_text_says_to_flag_no_row():
    made = threshold_table(decisions([0.9, 0.1, 0.5], [0, 1, 0]), Costs(100, 1), "test")
    assert "flag no row" in made.text
    (row,) = [row for row in made.rows if row["chosen_by"].startswith("least cost")]
    assert (row["threshold"], row["precision"], row["recall"], row["flagged"]) == (None, None, 0.0, 0.0)


def test_the_threshold_of_the_costs_is_the_chance_at_which_both_decisions_cost_the_same():
    costs = Costs(false_positive=1, false_negative=9)
    assert costs.threshold == pytest.approx(0.1)
    assert (1 - costs.threshold) * costs.false_positive == pytest.approx(costs.threshold * costs.false_negative)


def test_rows_of_one_label_have_counts_and_no_shares_of_what_is_not_there():
    none = decisions([0.2, 0.4], [0, 0])
    assert not none.has_both
    assert none.at(0.3, Costs()) == {
        "threshold": 0.3, "flagged": 0.5, "precision": 0.0, "recall": None,
        "false_positives": 1, "false_negatives": 0, "cost_per_1000_rows": 500.0,
    }  # fmt: skip
    with pytest.raises(ModelError, match="there are no rows"):
        decisions(np.empty(0, np.float32), np.empty(0, np.float32))


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_threshold_takes_the_same_rows_of_scores_that_were_written(tmp_path, ending):
    """The row that lies on it was missed: 0.6 in a CSV file is less than the 0.6000000238 of float32."""
    random = np.random.default_rng(5)
    scores = random.random(5000).astype(np.float32)
    scores = np.unique(np.r_[scores, np.nextafter(scores[:500], np.float32(0)), np.float32([0.1, 0.6, 0.7, 0.9, 1e-6])])
    labels = (random.random(len(scores)) < scores).astype(np.float32)
    path = tmp_path / f"scores.{ending}"
    write_frame(pd.DataFrame({"predicted_sold": scores}), path)
    written = (pd.read_csv(path) if ending == "csv" else pd.read_parquet(path))["predicted_sold"].to_numpy("float64")
    for threshold, score in zip(map(as_written, scores.astype("float64")), scores, strict=True):
        assert (written >= threshold).sum() == (scores >= score).sum()
        assert float(f"{threshold:.9g}") == threshold
    for row in threshold_table(decisions(scores, labels), Costs(1, 2), "test").rows:
        assert (written >= row["threshold"]).mean() == pytest.approx(row["flagged"], abs=1e-12)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize(("costs", "shown"), [((3, 7), 0.3), ((0.3, 0.7), 0.3), ((7, 3), 0.7), ((1, 2), 0.333333333)])
@pytest.mark.parametrize("on_it", [True, False])
def test_the_threshold_of_the_costs_is_readable_and_takes_what_the_table_says(tmp_path, ending, costs, shown, on_it):
    """.3 was .299999999, and 0.7 of a CSV file was taken where the table said that its row is not."""
    nearest = np.float32(shown)
    around = [np.nextafter(nearest, np.float32(0)), np.nextafter(nearest, np.float32(1))]
    scores = np.r_[np.linspace(0.05, 0.95, 50).astype(np.float32), around, [nearest] * (7 if on_it else 0)]
    scores = scores[(scores != nearest) | on_it].astype(np.float32)
    labels = np.arange(len(scores)) % 2
    made = threshold_table(decisions(scores, labels), Costs(*costs), "test").rows
    (row,) = [row for row in made if row["chosen_by"] == "the costs alone"]
    path = tmp_path / f"scores.{ending}"
    write_frame(pd.DataFrame({"predicted_sold": scores}), path)
    written = (pd.read_csv(path) if ending == "csv" else pd.read_parquet(path))["predicted_sold"].to_numpy("float64")
    assert (written >= row["threshold"]).mean() == pytest.approx(row["flagged"], abs=1e-12)
    # A score that is the nearest float32 to .7 is 0.7 in a CSV file and 0.69999998808 in a Parquet file.
    assert row["threshold"] == ({0.7: 0.699999988, 0.333333333: 0.33333334}.get(shown, shown) if on_it else shown)
