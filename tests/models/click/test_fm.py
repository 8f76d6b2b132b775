"""Factorization machine against its double sum over pairs, and what it learns that linear terms cannot."""

import numpy as np
import pytest
import torch

from gigabatch.models.click.fm import PairTerms
from gigabatch.models.inputs import ModelInputs
from tests.models.shelf_helpers import (
    ALL_INPUTS,
    auc,
    build,
    by_hand,
    normed_by_hand,
    planted_rows,
    random_rows,
    stirred,
    train,
)


@pytest.mark.parametrize("num_outputs", [1, 3])
@ALL_INPUTS
def test_outputs_equal_equation_1_summed_pair_by_pair(inputs, num_outputs):
    inputs = ModelInputs(inputs.num_ids, inputs.num_floats, num_outputs)
    model, rows = stirred("fm", inputs, embedding_dim=3), random_rows(inputs, 10)
    got = by_hand(model(rows.ids, rows.floats))

    normed = normed_by_hand(model.float_norm, by_hand(rows.floats))
    shares = np.ones((1, 3)) if num_outputs == 1 else by_hand(model.pairs.weights)
    for b in range(len(rows)):
        weights = [by_hand(table)[rows.ids[b, c]] for c, table in enumerate(model.linear.tables.tables)]
        vectors = [by_hand(table)[rows.ids[b, c]] for c, table in enumerate(model.fields.tables.tables)]
        values = [1.0] * len(weights) + list(normed[b])  # the x of equation 1: a one-hot's only 1, or the float
        if inputs.num_floats:
            weights += list(by_hand(model.linear.float_weights))
            vectors += list(by_hand(model.fields.float_vectors))
        for output in range(num_outputs):
            wanted = by_hand(model.linear.bias)[output]
            wanted += sum(weight[output] * x for weight, x in zip(weights, values, strict=True))
            for i in range(len(values)):
                for j in range(i + 1, len(values)):
                    inner = sum(shares[output, k] * vectors[i][k] * vectors[j][k] for k in range(3))
                    wanted += inner * values[i] * values[j]
            assert got[b, output] == pytest.approx(wanted, rel=1e-4, abs=1e-5)


def test_bins_are_part_of_a_float_s_weight_and_of_its_vector():
    edges = ((-1.0, 0.0, 0.5), ())
    model = stirred("fm", ModelInputs((5, 7), 2, float_edges=edges), embedding_dim=3)
    rows = random_rows(model.inputs, 10)
    got, normed = by_hand(model(rows.ids, rows.floats)), normed_by_hand(model.float_norm, by_hand(rows.floats))
    for b, (first, _) in enumerate(by_hand(rows.floats)):
        parts = np.array([np.clip((first - low) / (high - low), 0, 1) for low, high in ((-1, 0), (0, 0.5))])
        line = by_hand(model.linear.float_weights)[:, 0] @ normed[b]
        line += parts @ by_hand(model.linear.numeric.weight)[0, :, 0] + by_hand(model.linear.bias)[0]
        line += sum(by_hand(table)[rows.ids[b, c], 0] for c, table in enumerate(model.linear.tables.tables))
        vectors = [by_hand(table)[rows.ids[b, c]] for c, table in enumerate(model.fields.tables.tables)]
        vectors += list(by_hand(model.fields.float_vectors) * normed[b][:, None])
        vectors[2] = vectors[2] + parts @ by_hand(model.fields.numeric.weight)[0]
        pairs = sum(vectors[i] @ vectors[j] for i in range(4) for j in range(i + 1, 4))
        assert got[b, 0] == pytest.approx(line + pairs, rel=1e-4, abs=1e-5)


def test_pair_terms_stay_float32_under_autocast():
    vectors = torch.randn(8, 5, 4)
    for pairs in (PairTerms(4, 1), PairTerms(4, 2)):
        with torch.autocast("cpu", torch.bfloat16):
            halved = pairs(vectors)
        assert torch.equal(halved, pairs(vectors))


def test_it_predicts_pairs_that_it_never_saw():
    """A pair's weight follows from what its two values learnt with others: the point of factorising."""
    orders = {(0, 1): 3.0}
    inputs, rows = planted_rows(orders, 6000, seed=1)
    _, fresh = planted_rows(orders, 4000, seed=2)

    def hidden(part):
        return (part.ids[:, 0] + part.ids[:, 1]) % 8 == 0  # 8 of the 64 pairs, one of each value

    model = build("fm", inputs, embedding_dim=8)
    train(model, rows.part(~hidden(rows)), steps=200)
    assert auc(model, fresh.part(hidden(fresh))) > 0.85
