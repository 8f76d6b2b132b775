"""Logistic regression: linear in its columns, equal to scikit-learn's where both are trained to the end."""

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from gigabatch.models.inputs import ModelInputs
from tests.models.shelf_helpers import build, planted_rows, random_rows, train


def test_changing_one_column_moves_the_output_by_the_same_amount_whatever_the_others_hold():
    torch.manual_seed(0)
    inputs = ModelInputs((6, 6, 6), 1)
    model, rows = build("lr", inputs).eval(), random_rows(inputs)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    changed = rows.ids.clone()
    rows.ids[:, 1], changed[:, 1] = 2, 5
    difference = (model(changed, rows.floats) - model(rows.ids, rows.floats)).detach()
    assert difference.abs().min() > 1e-3
    torch.testing.assert_close(difference, difference[:1].expand_as(difference), rtol=1e-4, atol=1e-5)


def test_trained_to_the_end_it_predicts_as_scikit_learns_does():
    inputs, rows = planted_rows({(0,): 1.0, (1,): -0.5}, 2000, seed=1)
    model = build("lr", inputs)
    train(model, rows, steps=400, batch_size=2000, lr=0.05, weight_decay=0.0)
    ours = torch.sigmoid(model.eval()(rows.ids, rows.floats))[:, 0].detach().numpy()
    one_hot = np.concatenate([np.eye(8)[rows.ids[:, column]] for column in range(4)], axis=1)
    labels = rows.targets[0].numpy()
    theirs = LogisticRegression(C=np.inf, max_iter=1000).fit(one_hot, labels).predict_proba(one_hot)[:, 1]
    assert np.abs(ours - theirs).max() < 0.02
    assert np.abs(theirs - labels.mean()).max() > 0.2  # the data say something
