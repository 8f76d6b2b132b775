"""Bytes of layouts against counts of a slow loop and the numbers of the published algebra."""

import random

import pytest

from gigabatch.models.errors import ModelError
from gigabatch.models.parallel.costs import Bytes, Choice, Load, cheapest, step_bytes, total_bytes


def test_the_published_example():
    """Rong et al.'s setting by our notes (8 ranks, 39 ids, 23 distinct): LR saves 70 % of a parameter server's values,
    FM 67 %, with servers of their own; as ids 8 bytes each they are 11 % and 60 %."""
    load = Load(8, 1000, 39, 23)
    server = 8 / 7  # servers that are no ranks
    for width, aggregate, saved in ((1, 1, 0.696), (16, 17.5, 0.666)):
        des = step_bytes("des", load, width, aggregate)
        assert 1 - des.values / (server * step_bytes("rows", load, width).values) == pytest.approx(saved, abs=0.002)


@pytest.mark.parametrize("num_ranks", [2, 5])
def test_against_a_count_of_what_moves(num_ranks):
    """Every id, row and sum is counted where it leaves a rank; owners are drawn, so shares hold on average."""
    draw = random.Random(0)
    num_rows, columns, width, aggregate, vocabulary = 400, 3, 4, 6, 150
    batches = [
        [[draw.randrange(vocabulary) for _ in range(columns)] for _ in range(num_rows)] for _ in range(num_ranks)
    ]
    sent = {scheme: [0, 0] for scheme in ("rows", "replicated", "tables", "des")}
    distinct_total = 0
    for rank, rows in enumerate(batches):
        distinct = {(column, one) for row in rows for column, one in enumerate(row)}
        distinct_total += len(distinct)
        for _, one in distinct:
            sent["replicated"][0] += 4 * width * (num_ranks - 1)
            sent["replicated"][1] += 4 * (num_ranks - 1)
            if one % num_ranks != rank:
                sent["rows"][0] += 4 * width + 4 * width  # its row comes, its gradient goes
                sent["rows"][1] += 4
        for row in rows:
            for one in row:
                sent["tables"][0] += 8 * width * (one % num_ranks != rank)
                sent["tables"][1] += 4 * (one % num_ranks != rank)
                sent["des"][1] += 4 * (one % num_ranks != rank)
            sent["des"][0] += 4 * aggregate * (num_ranks - 1) * 2  # others send their sums, their gradient goes to them
            sent["des"][1] += num_ranks - 1
    load = Load(num_ranks, num_rows, columns, distinct_total / num_ranks / num_rows)
    for scheme, (values, ids) in sent.items():
        found = step_bytes(scheme, load, width, aggregate)
        assert found.values == pytest.approx(values / num_ranks, rel=0.04), scheme
        assert found.ids == pytest.approx(ids / num_ranks, rel=0.04), scheme


def test_ids_of_one_scheme_travel_once():
    load = Load(2, 100, 10, 10)
    two = {"linear": Choice("des", 1, 1), "fields": Choice("des", 8, 9)}
    parts = [step_bytes("des", load, *choice[1:]) for choice in two.values()]
    assert total_bytes(two, load) == sum(part.values for part in parts) + parts[0].ids
    assert total_bytes(two, load, count_ids=False) == sum(part.values for part in parts)
    two["linear"] = Choice("rows", 1)
    assert total_bytes(two, load) == sum(step_bytes("rows", load, 1)) + sum(parts[1])


def test_an_operator_may_join_the_scheme_of_another_for_its_ids_sake():
    """Linear terms alone would be fetched; where FM's sums have brought the ids to the owners, sums cost less."""
    load = Load(2, 100, 20, 5)
    linear = {"rows": Choice("rows", 1), "des": Choice("des", 1, 1)}
    pairs = {"rows": Choice("rows", 64), "des": Choice("des", 64, 65)}
    assert cheapest({"linear": linear}, load)[0] == {"linear": "rows"}
    assert cheapest({"linear": linear, "pairs": pairs}, load)[0] == {"linear": "des", "pairs": "des"}
    assert cheapest({"linear": linear}, load, count_ids=False)[0] == {"linear": "des"}


def test_unknown_schemes_and_a_missing_aggregate_are_refused():
    assert step_bytes("rows", Load(1, 10, 3, 3), 4) == Bytes(0, 0)
    with pytest.raises(ModelError, match="unknown scheme of tables 'ps'"):
        step_bytes("ps", Load(2, 10, 3, 3), 4)
    with pytest.raises(ModelError, match="aggregate"):
        step_bytes("des", Load(2, 10, 3, 3), 4)
