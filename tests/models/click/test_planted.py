"""Interactions planted in ids, and the orders of interaction that each model of clicks can learn and cannot."""

from dataclasses import replace

import pytest

from gigabatch.models.inputs import EntityColumns
from tests.models.shelf_helpers import auc, build, planted_rows, train

DEEPFM = {"embedding_dim": 8, "layers": (32, 32), "dropout": 0.0}
DLRM = {"embedding_dim": 8, "top_layers": (32, 32)}
CROSS_ONLY = {"embedding_dim": 8, "layers": ()}
AUTOINT = {"embedding_dim": 8, "num_layers": 2, "num_heads": 2, "head_dim": 8}
FINALMLP = {"embedding_dim": 4, "first_layers": (16,), "second_layers": (16,), "num_heads": 4, "gate_layers": (12,)}
FINALMLP |= {"first_dropout": 0.0, "second_dropout": 0.0}
FCN = {"embedding_dim": 8, "exponential_layers": 2, "linear_layers": 2, "dropout": 0.0}
QNN = {"embedding_dim": 8, "num_layers": 2, "num_rows": 2, "dropout": 0.0}
FM = ("fm", {"embedding_dim": 8})
PLANTED = {  # strength by columns; then (model, its settings, least and largest AUC on rows that it has not seen)
    "a column": ({(0,): 2.0}, [("lr", {}, 0.8, 1)]),
    "a pair": ({(0, 1): 2.5}, [(*FM, 0.85, 1), ("dlrm", DLRM, 0.85, 1), ("lr", {}, 0.4, 0.6)]),
    "a third order": (
        {(0, 1, 2): 3.0},
        [
            ("dcn", CROSS_ONLY | {"cross_layers": 2}, 0.85, 1),
            ("autoint", AUTOINT, 0.9, 1),
            ("fcn", FCN, 0.85, 1),
            ("qnn", QNN, 0.85, 1),
            ("dcn", CROSS_ONLY | {"cross_layers": 1}, 0.4, 0.6),
            (*FM, 0.4, 0.6),
        ],
    ),
    "a fourth order": ({(0, 1, 2, 3): 3.0}, [("finalmlp", FINALMLP, 0.9, 1)]),
    "a mix of orders": (
        {(0,): 1.0, (1, 2): 2.0, (0, 1, 3): 3.0},
        [("deepfm", DEEPFM, 0.9, 1), (*FM, 0.69, 0.8), ("lr", {}, 0.5, 0.65)],
    ),
}
CASES = [
    pytest.param(orders, *model, id=f"{planted}-{model[0]}-{number}")
    for planted, (orders, models) in PLANTED.items()
    for number, model in enumerate(models)
]


@pytest.mark.parametrize(("orders", "name", "settings", "least", "largest"), CASES)
def test_a_model_learns_the_orders_that_it_can_express_and_no_others(orders, name, settings, least, largest):
    inputs, rows = planted_rows(orders, 12_000, seed=1)
    _, unseen = planted_rows(orders, 3000, seed=2)
    model = build(name, replace(inputs, user=EntityColumns(0, (0, 1)), item=EntityColumns(2, (2, 3))), **settings)
    train(model, rows, steps=250, lr=0.02, weight_decay=0.0)
    assert least <= auc(model, unseen) <= largest
