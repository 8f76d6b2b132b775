"""Two-tower: what each tower sees, stored vectors against the whole model, its three losses, and what it learns."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import EntityColumns, ListInputs, ModelInputs
from gigabatch.models.layers.embeddings import embedding_width
from gigabatch.models.losses import TargetLoss
from gigabatch.models.model import SCORE_ATOL, SCORE_RTOL
from gigabatch.models.recommenders.two_tower import TwoTowerSettings
from tests.devices import captured
from tests.models.shelf_helpers import BINARY, Rows, auc, build, planted_rows, random_rows, spec, stir, train

# Columns out of order on purpose: ids item, context, user, item, user; floats context, item, user.
INPUTS = ModelInputs((30, 6, 40, 9, 7), 3, 1, EntityColumns(2, (2, 4), (2,)), EntityColumns(0, (0, 3), (1,)))
SMALL = {"embedding_dim": 4, "layers": (16,), "vector_dim": 8, "top_layers": (8,)}
FORMS = [{"top": top, "loss": loss} for top in ("dot", "mlp") for loss in ("bce", "softmax", "bpr")]
FORM_NAMES = [f"{form['top']}-{form['loss']}" for form in FORMS]
CLOSE = {"rtol": SCORE_RTOL, "atol": SCORE_ATOL}
every_form = pytest.mark.parametrize("form", FORMS, ids=FORM_NAMES)


def make(seed=0, rows=None, **settings):
    """A model with weights from `seed` that has counted the items of `rows`."""
    model = build("two_tower", INPUTS, seed, **SMALL | settings)
    stir(model)
    rows = random_rows(INPUTS) if rows is None else rows
    model.remember(rows.ids, rows.floats, rows.targets)
    return model


# Vectors that are stored and scored later.


@every_form
@pytest.mark.parametrize("kind", [{}, {"batch_norm": True, "normalise": False}], ids=["plain", "batch norm"])
def test_vectors_scored_later_equal_the_model(form, kind):
    model = make(**form, **kind).eval()
    rows = random_rows(INPUTS, 1000)
    with torch.inference_mode():
        whole = model(rows.ids, rows.floats)
        users, items = model.user_vectors(rows.ids, rows.floats), model.item_vectors(rows.ids, rows.floats)
        assert whole.std() > 0
        torch.testing.assert_close(model.score(users, items), whole, **CLOSE)
        everyone = model.score_all(users[:50], items)
        if form["top"] == "mlp":
            assert everyone is None
        else:
            rows_alone = [model.score(users[row : row + 1], items)[:, 0] for row in range(50)]
            torch.testing.assert_close(everyone, torch.stack(rows_alone), **CLOSE)
        for row in (0, 371, 999):
            alone = rows.ids[row : row + 1], rows.floats[row : row + 1]
            user, item = model.user_vectors(*alone), model.item_vectors(*alone)
            torch.testing.assert_close(user[0], users[row], **CLOSE)
            torch.testing.assert_close(item[0], items[row], **CLOSE)
            torch.testing.assert_close(model.score(user, item)[0], whole[row], **CLOSE)
            torch.testing.assert_close(model(*alone)[0], whole[row], **CLOSE)


@every_form
def test_one_user_with_many_items_is_scored_as_rows_are(form):
    model = make(**form).eval()
    rows = random_rows(INPUTS, 100)
    item = model.inputs.item
    ids, floats = rows.ids[:1].repeat(100, 1), rows.floats[:1].repeat(100, 1)
    ids[:, list(item.ids)], floats[:, list(item.floats)] = (
        rows.ids[:, list(item.ids)],
        rows.floats[:, list(item.floats)],
    )
    with torch.inference_mode():
        expected = model(ids, floats)
        user, items = model.user_vectors(ids[:1], floats[:1]), model.item_vectors(rows.ids, rows.floats)
        torch.testing.assert_close(model.score(user, items), expected, **CLOSE)


@given(seed=st.integers(0, 1000), training=st.booleans(), normalise=st.booleans())
def test_a_vector_depends_on_its_own_columns_alone(seed, training, normalise):
    """Columns of the item may change at will without moving the user's vector, context's too not the item's."""
    model = make(normalise=normalise).train(training)
    rows, other = random_rows(INPUTS, 20, seed), random_rows(INPUTS, 20, seed + 1)
    item_ids, item_floats = list(INPUTS.item.ids), list(INPUTS.item.floats)
    mixed_ids, mixed_floats = other.ids.clone(), other.floats.clone()  # the item of rows, user and context of other
    mixed_ids[:, item_ids], mixed_floats[:, item_floats] = rows.ids[:, item_ids], rows.floats[:, item_floats]
    users, items = model.user_vectors(rows.ids, rows.floats), model.item_vectors(rows.ids, rows.floats)
    assert torch.equal(model.item_vectors(mixed_ids, mixed_floats), items)
    assert torch.equal(model.user_vectors(mixed_ids, mixed_floats), model.user_vectors(other.ids, other.floats))
    assert not torch.equal(model.user_vectors(mixed_ids, mixed_floats), users)
    if normalise:
        torch.testing.assert_close(torch.stack([users, items]).norm(dim=2), torch.ones(2, 20))


def test_the_score_is_what_the_docstring_says():
    model = make(top="mlp", temperature=0.3).eval()
    rows = random_rows(INPUTS, 30)
    with torch.no_grad():
        users, items = model.user_vectors(rows.ids, rows.floats), model.item_vectors(rows.ids, rows.floats)
        first, last = (layer for layer in model.top if isinstance(layer, nn.Linear))
        u, v = users.double().numpy(), items.double().numpy()
        hidden = np.concatenate([u, v, u * v], axis=1) @ first.weight.double().numpy().T + first.bias.double().numpy()
        s = (u * v).sum(1) / 0.3 + (np.maximum(hidden, 0) @ last.weight.double().numpy().T)[:, 0]
        expected = math.exp(model.log_scale.item()) * s + model.bias.item()
        np.testing.assert_allclose(model(rows.ids, rows.floats)[:, 0], expected, rtol=1e-4, atol=1e-5)


def test_embedding_widths_follow_the_rule_when_asked():
    widths = [table.shape[1] for table in make(embedding_dim=None).user_tower.embeddings.tables]
    assert widths == [embedding_width(size) for size in (40, 7, 6)]  # the user's columns, then context


# Losses.


def expected_loss(model, batch, form, counts):
    """The training loss by loops over rows, from the model's own vectors."""
    with torch.no_grad():
        users, items = model.user_vectors(batch.ids, batch.floats), model.item_vectors(batch.ids, batch.floats)
        rows = len(users)
        scores = np.array([[float(model._similarity(users[i : i + 1], items[j : j + 1])) for j in range(rows)]
                           for i in range(rows)])  # fmt: skip
    keys, labels, weights = batch.ids[:, 0].tolist(), batch.targets[0].tolist(), batch.weight.tolist()
    log_q = np.log(counts[keys] / counts.sum())
    total, positives = 0.0, [i for i in range(rows) if labels[i] == 1]
    for place, i in enumerate(positives):
        if form["loss"] == "bpr":
            others = [(i + k) % rows for k in range(1, 6)]
        elif form["top"] == "dot":
            others = positives[place // 16 * 16 : place // 16 * 16 + 16]
        else:
            others = positives[place + 1 : place + 6]  # behind the last positives there are rows that do not count
        others = [j for j in others if keys[j] != keys[i]]
        if form["loss"] == "softmax":
            corrected = scores[i] - log_q
            loss = np.log(np.exp(corrected[[i, *others]]).sum()) - corrected[i]
        else:
            loss = np.mean([np.log1p(np.exp(scores[i, j] - scores[i, i])) for j in others])
        total += weights[i] * loss
    output = math.exp(model.log_scale.item()) * np.diag(scores) + model.bias.item()
    own = np.log1p(np.exp(np.where(np.array(labels) == 1, -output, output)))
    return total / np.dot(labels, weights) + np.dot(own, weights) / sum(weights)


@pytest.mark.parametrize("form", [form for form in FORMS if form["loss"] != "bce"], ids=str)
def test_ranking_losses_equal_loops_over_rows(form):
    known = random_rows(INPUTS, 500)
    model = make(rows=known, **form, softmax_rows=16, negatives=5, temperature=0.5)
    batch = random_rows(INPUTS, 80, seed=5)
    batch.weight = torch.linspace(0.5, 2, 80)
    assert 16 < batch.targets[0].sum() < 64, "more than a window of positives, and the last 16 rows no positives"
    counts = np.maximum(np.bincount(known.ids[known.targets[0] == 1, 0].numpy(), minlength=30), 1)
    with torch.no_grad():
        found = model.eval().training_loss(batch, BINARY)
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(expected_loss(model, batch, form, counts), rel=1e-4)


def test_bce_is_the_targets_loss_of_the_outputs():
    model, batch = make(), random_rows(INPUTS, 40)
    batch.weight = torch.rand(40)
    expected = BINARY(model.eval()(batch.ids, batch.floats), batch.targets, batch.weight)
    assert torch.equal(model.training_loss(batch, BINARY), expected)
    regression = TargetLoss([("regression", 1)])
    assert torch.equal(
        model.training_loss(batch, regression), regression(model(batch.ids, batch.floats), batch.targets, batch.weight)
    )


@pytest.mark.parametrize("form", [form for form in FORMS if form["loss"] != "bce"], ids=str)
def test_calibration_moves_scale_and_offset_alone(form):
    """With no positives there is nothing to rank; the outputs' own loss has no way into the towers."""
    model, batch = make(**form).train(), random_rows(INPUTS, 40)
    batch.targets = (torch.zeros(40),)
    model.training_loss(batch, BINARY).backward()
    for name, parameter in model.named_parameters():
        moved = parameter.grad is not None and bool(parameter.grad.any())
        assert moved == (name in ("log_scale", "bias")), name


@pytest.mark.parametrize("top", ["dot", "mlp"])
def test_softmax_is_blind_to_rows_without_a_positive(top):
    """Drawn negatives' items do not occur as positives' do, so log q would be wrong for them."""
    model, found = make(loss="softmax", top=top).eval(), []
    for seed in (1, 2):
        batch, positives = random_rows(INPUTS, 100, seed), random_rows(INPUTS, 20, seed=3)
        batch.targets[0][:] = 0
        for part, of_positives in ((batch.ids, positives.ids), (batch.floats, positives.floats)):
            part[::5] = of_positives
        batch.targets[0][::5] = 1
        model.zero_grad()
        model.training_loss(batch, BINARY).backward()
        found.append({name: parameter.grad for name, parameter in model.named_parameters() if parameter.dim() == 2})
    assert sum(bool(gradient.any()) for gradient in found[0].values()) == len(found[0]) > 8
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-4, atol=1e-6)


@every_form
def test_bfloat16_changes_the_loss_by_no_more_than_its_rounding(form):
    model, batch = make(**form, temperature=1.0), random_rows(INPUTS, 40)
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            found = model.training_loss(batch, BINARY)
        expected = model.training_loss(batch, BINARY)
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(float(expected), rel=0.05)
    assert not torch.equal(found, expected)


def test_log_q_is_the_share_of_positives_and_an_item_without_rows_counts_once():
    ids = torch.zeros(10, 5, dtype=torch.int32)
    ids[:, 0] = torch.tensor([3, 3, 3, 3, 3, 7, 7, 29, 7, 5])
    target = torch.tensor([1.0] * 8 + [0.0] * 2)
    model = build("two_tower", INPUTS, **SMALL, loss="softmax")
    model.remember(ids, torch.zeros(10, 3), (target,))
    counts = np.ones(30)
    counts[[3, 7]] = 5, 2
    np.testing.assert_allclose(model.item_log_q, np.log(counts / counts.sum()), rtol=1e-6)
    assert "item_log_q" not in build("two_tower", INPUTS, **SMALL, loss="softmax", log_q=False).state_dict()


def test_counts_are_saved_with_the_weights():
    model, rows = make(loss="softmax"), random_rows(INPUTS)
    loaded = build("two_tower", INPUTS, 1, **SMALL, loss="softmax")
    loaded.load_state_dict(model.state_dict())
    assert torch.equal(loaded.training_loss(rows, BINARY), model.training_loss(rows, BINARY))


# What it learns.


def pairs(num_rows, seed):
    """Labels by the product of a user's and an item's hidden sign: of either alone nothing can be said."""
    inputs, rows = planted_rows({(0, 1): 3.0}, num_rows, seed, num_columns=3)
    return replace(inputs, user=EntityColumns(0, (0,)), item=EntityColumns(1, (1,))), rows


def auc_by_user(model, rows):
    """Mean over users: softmax and BPR compare a user's items and say nothing about different users."""
    return np.mean([auc(model, rows.part(rows.ids[:, 0] == user)) for user in rows.ids[:, 0].unique()])


@pytest.mark.parametrize("form", [FORMS[0], FORMS[1], FORMS[5]], ids=str)
def test_it_learns_which_user_goes_with_which_item(form):
    (inputs, known), (_, held_out) = pairs(6000, 1), pairs(3000, 2)
    model = build("two_tower", inputs, **SMALL, **form)
    model.remember(known.ids, known.floats, known.targets)
    train(model, known, steps=200)
    assert auc_by_user(model, held_out) > 0.93  # of 0.953 with the planted probabilities themselves


def choices(num_rows=30_000, num_users=12, num_items=40):
    """Rows (user, item the user chose) and log P(item | user) [users, items]; items differ much in how often they are
    chosen, beside what each user prefers."""
    draw = np.random.default_rng(0)
    taste = draw.normal(size=(num_users, 3)) @ draw.normal(size=(3, num_items))
    scores = 0.7 * taste + draw.normal(size=num_items) * 1.5
    log_p = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    users = draw.integers(0, num_users, num_rows)
    items = (draw.random((num_rows, 1)) > np.exp(log_p).cumsum(1)[users]).sum(1)
    ids = torch.from_numpy(np.stack([users, items.clip(max=num_items - 1)], axis=1)).int()
    inputs = ModelInputs((num_users, num_items), 0, 1, EntityColumns(0, (0,)), EntityColumns(1, (1,)))
    return inputs, Rows(ids, torch.empty(num_rows, 0), (torch.ones(num_rows),)), log_p


def learnt_correlation(log_q):
    """Of the learnt scores with log P(item | user), over a user's items that are chosen at all often; their mean."""
    inputs, rows, log_p = choices()
    settings = {"layers": (), "vector_dim": 16, "normalise": False, "temperature": 1.0, "negatives": 20}
    model = build("two_tower", inputs, **settings, loss="softmax", log_q=log_q)
    model.remember(rows.ids, rows.floats, rows.targets)
    train(model, rows, steps=300, batch_size=256, lr=0.02)
    users, items = torch.meshgrid(torch.arange(12), torch.arange(40), indexing="ij")
    ids = torch.stack([users.flatten(), items.flatten()], dim=1).int()
    with torch.no_grad():
        found = model.eval()(ids, torch.empty(len(ids), 0)).view(12, 40).numpy()
    often = np.exp(log_p) > 0.003
    return np.mean([np.corrcoef(found[user, often[user]], log_p[user, often[user]])[0, 1] for user in range(12)])


def test_with_log_q_scores_are_log_probabilities_and_without_popular_items_are_held_back():
    corrected, plain = learnt_correlation(True), learnt_correlation(False)
    assert corrected > 0.95
    assert plain < 0.6


# Settings and errors.


def test_lists_of_a_yaml_file_are_tuples():
    assert TwoTowerSettings(layers=[64, 32], user_layers=[8]).tower_layers == ((8,), (64, 32))


def test_ranking_losses_need_a_binary_target():
    with pytest.raises(ModelError, match=r"needs one binary target.*the target is regression. Set model.loss=bce"):
        make(loss="bpr").training_loss(random_rows(INPUTS), TargetLoss([("regression", 1)]))


def test_softmax_needs_counts():
    model = build("two_tower", INPUTS, **SMALL, loss="softmax")
    with pytest.raises(ModelError, match="Call remember with the train rows"):
        model.training_loss(random_rows(INPUTS), BINARY)


def test_rows_of_another_shape_are_refused():
    model, rows = make(), random_rows(INPUTS)
    for call in (model, model.user_vectors, model.item_vectors):
        with pytest.raises(ModelError, match=r"TwoTower: ids must be \[rows, 5\], found \[64, 4\]"):
            call(rows.ids[:, 1:], rows.floats)


def test_tables_are_counted_before_they_are_made():
    assert spec("two_tower", INPUTS, **SMALL, loss="softmax").table_parameters == 4 * sum(INPUTS.num_ids)


@every_form
def test_a_loss_is_captured_in_a_graph(form, any_device):
    """No part of it waits for the host, or changes shape with the labels."""
    rows = random_rows(INPUTS, 512)
    model = make(rows=rows, **form).to(any_device).train()
    batch = Rows(rows.ids.to(any_device), rows.floats.to(any_device), (rows.targets[0].to(any_device),))

    def work():
        model.zero_grad()
        loss = model.training_loss(batch, BINARY)
        loss.backward()
        return loss.detach()

    replay = captured(work, any_device, warmups=3)
    batch.targets[0].copy_(1 - batch.targets[0])
    found = float(replay())
    assert found == pytest.approx(model.training_loss(batch, BINARY).item(), rel=1e-4)
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


# Lists. In the order of the columns: the item's tags by weight, what the user saw and put away (of the item's
# vocabulary, the one context and the other the user's), and clubs of the user.

LISTED = ModelInputs(
    (30, 40),
    0,
    1,
    EntityColumns(1, (1,), lists=(2, 3)),
    EntityColumns(0, (0,), lists=(0,)),
    lists=(ListInputs(6, weighted=True), ListInputs(30, 0), ListInputs(30, 0), ListInputs(5)),
)
TAGS_LIST, SEEN_LIST, AWAY_LIST, CLUBS_LIST = range(4)


def random_lists(num_rows, seed=0):
    draw, found = torch.Generator().manual_seed(seed), []
    for column in LISTED.lists:
        lengths = torch.randint(0, 4, (num_rows,), generator=draw)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        ids = torch.randint(column.num_ids, (int(offsets[-1]),), dtype=torch.int32, generator=draw)
        found.append(JaggedColumn(ids, offsets, torch.rand(len(ids), generator=draw) if column.weighted else None))
    return found


def listed(seed=0, **settings):
    model = build("two_tower", LISTED, seed, **SMALL | settings)
    stir(model)
    return model.eval()


def bag(table, column, pooling):
    """Pooled rows by `nn.EmbeddingBag`, of weights that sum to one for a mean."""
    weights = column.weights
    if weights is not None and pooling == "mean":
        sums = torch.stack([part.sum() for part in weights.split(column.offsets.diff().tolist())])
        weights = weights / sums.repeat_interleave(column.offsets.diff())
    mode = "sum" if weights is not None else pooling
    module = nn.EmbeddingBag.from_pretrained(table.detach(), mode=mode, include_last_offset=True)
    return module(column.ids.long(), column.offsets, per_sample_weights=weights)


@pytest.mark.parametrize("pooling", ["mean", "sum"])
def test_lists_enter_their_towers_as_embedding_bags_do(pooling):
    model, rows, lists = listed(layers=(), normalise=False, pooling=pooling), random_rows(LISTED, 50), random_lists(50)
    users, of_seen, clubs = model.user_tower.embeddings.weights
    items, tags = model.item_tower.embeddings.weights
    assert [len(table) for table in (users, of_seen, clubs, items, tags)] == [40, 30, 5, 30, 6]
    parts = {
        "user": [users[rows.ids[:, 1].long()], *(bag(table, lists[place], pooling) for table, place in
                 ((of_seen, AWAY_LIST), (clubs, CLUBS_LIST), (of_seen, SEEN_LIST)))],
        "item": [items[rows.ids[:, 0].long()], bag(tags, lists[TAGS_LIST], pooling)],
    }  # fmt: skip
    with torch.inference_mode():
        for name, columns in parts.items():
            (layer,) = getattr(model, f"{name}_tower").network
            expected = torch.cat(columns, 1) @ layer.weight.T + layer.bias
            found = getattr(model, f"{name}_vectors")(rows.ids, rows.floats, lists)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@every_form
def test_a_vector_depends_on_its_own_lists_alone(form):
    model, rows = listed(**form), random_rows(LISTED, 40)
    lists, others = random_lists(40), random_lists(40, seed=1)
    swapped = [others[TAGS_LIST], *lists[1:]]
    with torch.inference_mode():
        users, items = (getattr(model, f"{name}_vectors")(rows.ids, rows.floats, lists) for name in ("user", "item"))
        assert torch.equal(model.user_vectors(rows.ids, rows.floats, swapped), users)
        moved = (model.item_vectors(rows.ids, rows.floats, swapped) != items).any(1)
        changed = [a != b for a, b in zip(*(c[TAGS_LIST].to_lists() for c in (lists, others)), strict=True)]
        assert moved[torch.tensor(changed)].all()
        for place in (SEEN_LIST, AWAY_LIST, CLUBS_LIST):
            other = [others[p] if p == place else column for p, column in enumerate(lists)]
            assert torch.equal(model.item_vectors(rows.ids, rows.floats, other), items)
            assert not torch.equal(model.user_vectors(rows.ids, rows.floats, other), users)
        scores = model(rows.ids, rows.floats, lists)
        torch.testing.assert_close(model.score(users, items), scores, **CLOSE)


def test_a_history_and_the_items_tower_move_tables_of_their_own():
    model, rows, lists = listed(loss="bpr"), random_rows(LISTED, 40), random_lists(40)
    rows.lists, rows.targets = lists, (torch.ones(40),)
    model.training_loss(rows, BINARY).backward()
    of_seen, items = model.user_tower.embeddings.weights[1], model.item_tower.embeddings.weights[0]
    seen = {id for place in (SEEN_LIST, AWAY_LIST) for id in lists[place].ids.tolist()}
    assert set(of_seen.grad.abs().sum(1).nonzero()[:, 0].tolist()) == seen
    assert set(items.grad.abs().sum(1).nonzero()[:, 0].tolist()) == set(rows.ids[:, 0].tolist())


def test_widths_are_those_of_columns_then_of_vocabularies_of_lists():
    model = build("two_tower", LISTED, 0, **SMALL | {"embedding_widths": (3, 4, 5, 6)})  # items, users, tags, clubs
    assert [table.shape[1] for table in model.user_tower.embeddings.weights] == [4, 3, 6]
    assert [table.shape[1] for table in model.item_tower.embeddings.weights] == [3, 5]
    with pytest.raises(ModelError, match="has 2 entries for 4"):
        build("two_tower", LISTED, 0, **SMALL | {"embedding_widths": (3, 4)})
