"""DLRM against its interactions written out, and that it multiplies floats with ids."""

import numpy as np
import pytest
import torch

from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ModelInputs
from tests.models.shelf_helpers import (
    INPUTS,
    NO_IDS,
    NUM_VALUES,
    Rows,
    auc,
    build,
    by_hand,
    check_gradients,
    mlp_by_hand,
    normed_by_hand,
    random_rows,
    signs,
    stirred,
    train,
)

SMALL = {"embedding_dim": 8, "bottom_layers": (16,), "top_layers": (32, 32)}


@pytest.mark.parametrize("interaction", ["dot", "cat"])
@pytest.mark.parametrize("num_floats", [0, 2])
@pytest.mark.parametrize("num_outputs", [1, 2])
def test_outputs_equal_bottom_dots_and_top_written_out(interaction, num_floats, num_outputs):
    inputs = ModelInputs(INPUTS.num_ids, num_floats, num_outputs)
    model = stirred("dlrm", inputs, **SMALL, interaction=interaction)
    rows = random_rows(inputs, 10)
    got = by_hand(model(rows.ids, rows.floats))
    dense = normed_by_hand(model.float_norm, by_hand(rows.floats))
    bottom = mlp_by_hand(model.bottom, dense) if num_floats else None
    for b in range(len(rows)):
        vectors = [] if bottom is None else [bottom[b]]
        vectors += [by_hand(table)[rows.ids[b, column]] for column, table in enumerate(model.tables.tables)]
        if interaction == "cat":
            seen = [number for vector in vectors for number in vector]
        else:
            seen = [] if bottom is None else list(bottom[b])
            for i in range(len(vectors)):
                for j in range(i + 1, len(vectors)):
                    seen.append(sum(vectors[i][k] * vectors[j][k] for k in range(8)))
        np.testing.assert_allclose(got[b], mlp_by_hand(model.top, np.array([seen]))[0], rtol=1e-3, atol=1e-4)


def test_the_bottom_network_ends_in_a_relu_of_the_fields_width():
    """As in facebookresearch/dlrm: every layer of the bottom has one."""
    kinds = [type(part).__name__ for part in build("dlrm", **SMALL).bottom]
    assert kinds == ["Linear", "ReLU", "Linear", "ReLU"]
    assert build("dlrm", **SMALL).bottom[2].out_features == 8
    assert build("dlrm", bottom_layers=[]).bottom[0].out_features == 16


def float_rows(num_rows, seed):
    """Labels by sign(id 0) x sign(id 1) x float: no pair of the three says anything."""
    inputs = ModelInputs((NUM_VALUES,) * 2, 1)
    rows = random_rows(inputs, num_rows, seed)
    table = signs(2)
    logit = 4 * table[0, rows.ids[:, 0].long()] * table[1, rows.ids[:, 1].long()] * rows.floats[:, 0]
    labels = (torch.rand(num_rows, generator=torch.Generator().manual_seed(seed + 1)) < torch.sigmoid(logit)).float()
    return inputs, Rows(rows.ids, rows.floats, (labels,))


def test_it_learns_a_product_of_a_float_and_two_ids_that_pairs_do_not_hold():
    inputs, rows = float_rows(8000, seed=1)
    _, fresh = float_rows(2000, seed=5)
    models = {"dlrm": build("dlrm", inputs, **SMALL), "fm": build("fm", inputs, embedding_dim=8)}
    for model in models.values():
        train(model, rows, steps=300)
    reached = {name: auc(model, fresh) for name, model in models.items()}
    assert reached["dlrm"] > 0.85, reached
    assert reached["fm"] < 0.6, reached


@pytest.mark.parametrize("inputs", [NO_IDS, ModelInputs((5,), 0)], ids=["only_floats", "one_id_column"])
def test_one_vector_has_no_pair_and_is_refused_unless_concatenated(inputs):
    with pytest.raises(ModelError, match="one vector, which has no pair"):
        build("dlrm", inputs)
    check_gradients("dlrm", inputs, **SMALL, interaction="cat")
