"""DeepFM against its equations written out, and that it learns what takes both of its halves."""

import numpy as np
import pytest

from gigabatch.models.inputs import ModelInputs
from tests.models.shelf_helpers import (
    ALL_INPUTS,
    INPUTS,
    build,
    by_hand,
    mlp_by_hand,
    normed_by_hand,
    random_rows,
    stirred,
)

SMALL = {"embedding_dim": 8, "layers": (32, 32), "dropout": 0.0}


@pytest.mark.parametrize("num_outputs", [1, 2])
@ALL_INPUTS
def test_outputs_equal_linear_terms_plus_pairs_plus_network(inputs, num_outputs):
    inputs = ModelInputs(inputs.num_ids, inputs.num_floats, num_outputs)
    model, rows = stirred("deepfm", inputs, **SMALL), random_rows(inputs, 10)
    got = by_hand(model(rows.ids, rows.floats))

    normed = normed_by_hand(model.float_norm, by_hand(rows.floats))
    shares = np.ones((1, 8)) if num_outputs == 1 else by_hand(model.pairs.weights)
    for b in range(len(rows)):
        vectors = [by_hand(table)[rows.ids[b, c]] for c, table in enumerate(model.fields.tables.tables)]
        vectors += [normed[b, f] * by_hand(model.fields.float_vectors)[f] for f in range(inputs.num_floats)]
        wanted = by_hand(model.linear.bias)
        wanted = wanted + sum(by_hand(table)[rows.ids[b, c]] for c, table in enumerate(model.linear.tables.tables))
        wanted = wanted + sum(normed[b, f] * by_hand(model.linear.float_weights)[f] for f in range(inputs.num_floats))
        for i in range(len(vectors)):
            for j in range(i):
                wanted = wanted + shares @ (vectors[i] * vectors[j])
        wanted = wanted + mlp_by_hand(model.deep, np.concatenate(vectors)[None])[0]
        np.testing.assert_allclose(got[b], wanted, rtol=1e-4, atol=1e-4)


def test_network_and_factorization_machine_share_their_vectors():
    """Each value has one vector: d numbers, beside the one of its linear weight."""
    model = build("deepfm", **SMALL)
    tables = [tuple(table.shape) for name, table in model.named_parameters() if "tables" in name]
    assert sorted(tables) == sorted([(size, width) for size in INPUTS.num_ids for width in (1, 8)])
