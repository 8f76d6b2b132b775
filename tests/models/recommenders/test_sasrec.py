"""SASRec against torch's own attention, row by row without padding; its losses against loops; what it may look at."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.loaders.tables.packed import Batch
from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import EntityColumns, ListInputs, ModelInputs
from gigabatch.models.losses import TargetLoss
from gigabatch.models.model import SCORE_ATOL, SCORE_RTOL
from gigabatch.models.optimizers.row_optimizer import RowOptimizer
from gigabatch.models.recommenders.sasrec import SASRec
from gigabatch.models.shelf import ModelSpec
from tests.models.shelf_helpers import BINARY, Rows, build, stir

# Ids of users, of a context, of items, of which 0 to 2 are none; beside the history a list of something else.
INPUTS = ModelInputs(
    (6, 4, 12),
    1,
    1,
    user=EntityColumns(0, (0,), first=3),
    item=EntityColumns(2, (2,), first=3),
    lists=(ListInputs(5), ListInputs(12, shares=2)),
)
HISTORIES = [[3, 7, 4], [], [11], [5, 6, 5, 9, 3, 8], [10, 4]]
SMALL = {"dim": 6, "num_heads": 2, "num_blocks": 2, "length": 4, "dropout": 0.0}


def jagged(lists: list[list[int]]) -> JaggedColumn:
    offsets = torch.tensor([0, *(len(item) for item in lists)]).cumsum(0)
    return JaggedColumn(torch.tensor([key for item in lists for key in item], dtype=torch.int32), offsets)


def rows_of(histories: list[list[int]] = HISTORIES) -> Rows:
    draw = torch.Generator().manual_seed(1)
    columns = [torch.randint(3 if size > 5 else 0, size, (len(histories),), generator=draw) for size in INPUTS.num_ids]
    labels = torch.arange(len(histories)) % 3 != 1
    others = jagged([[1, 2]] * len(histories))
    floats = torch.randn(len(histories), 1, generator=draw)
    return Rows(torch.stack(columns, 1).int(), floats, (labels.float(),), lists=(others, jagged(histories)))


def made(inputs: ModelInputs = INPUTS, **settings: object) -> SASRec:
    model = build("sasrec", inputs, **(SMALL | settings))
    stir(model)
    return model.eval()


def attended(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """[P, d] -> [P, d] by torch's multi-head attention and an upper triangle that is not seen."""
    weight = torch.cat([block.queries.weight, block.keys_values.weight])
    bias = torch.cat([block.queries.bias, block.keys_values.bias])
    unseen = torch.ones(len(x), len(x)).triu(1).bool()

    def norm(layer: nn.LayerNorm, y: torch.Tensor) -> torch.Tensor:
        centred = y - y.mean(-1, keepdim=True)
        return centred / (y.var(-1, unbiased=False, keepdim=True) + layer.eps).sqrt() * layer.weight + layer.bias

    def network(y: torch.Tensor) -> torch.Tensor:
        first, _, _, second = block.network
        return torch.relu(y @ first.weight.t() + first.bias) @ second.weight.t() + second.bias

    def mixed(y: torch.Tensor) -> torch.Tensor:
        rows, last = (y[:, None],) * 3, (block.mixed.weight, block.mixed.bias)
        found, _ = functional.multi_head_attention_forward(
            *rows, len(y[0]), block.num_heads, weight, bias, None, None, False, 0.0, *last, attn_mask=unseen
        )
        return found[:, 0]

    if block.norm_first:
        x = x + mixed(norm(block.attention_norm, x))
        return x + network(norm(block.network_norm, x))
    x = norm(block.attention_norm, x + mixed(x))
    return norm(block.network_norm, x + network(x))


def user_by_hand(model: SASRec, history: list[int]) -> torch.Tensor:
    """One user's vector [d] of a history without padding, places counted from its end."""
    cut = history[-model.settings.length :]
    table = model.tables.weights[0]
    elements = [
        table[key] * model.settings.dim**0.5 + model.positions[len(cut) - 1 - place] for place, key in enumerate(cut)
    ]
    x = torch.stack([model.start, *elements])
    for block in model.blocks:
        x = attended(block, x)
    return (
        functional.layer_norm(x[-1], (len(x[0]),), model.last_norm.weight, model.last_norm.bias)
        if (model.settings.norm_first)
        else x[-1]
    )


@pytest.mark.parametrize("settings", [{}, {"norm_first": False}, {"num_blocks": 1, "hidden_dim": 9}, {"length": 20}])
@torch.no_grad()
def test_vectors_and_scores_are_those_of_torchs_attention_row_by_row(settings):
    model, rows = made(**settings), rows_of()
    users = model.user_vectors(rows.ids, rows.floats, rows.lists)
    items = model.item_vectors(rows.ids, rows.floats)
    wanted = torch.stack([user_by_hand(model, history) for history in HISTORIES])
    torch.testing.assert_close(users, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(items, model.tables.weights[0][rows.ids[:, 2].long()])
    scale, shift = model.output.log_scale.exp(), model.output.bias
    scores = scale * (wanted * items).sum(1, keepdim=True) + shift
    torch.testing.assert_close(model(*rows.given), scores, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        model.score_all(users[:1], items).t(), model.score(users[:1], items), rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(
        model.score(users[:1], items), scale * (items @ wanted[:1].t()) + shift, rtol=1e-4, atol=1e-5
    )


@torch.no_grad()
def test_a_row_scores_alone_as_beside_longer_histories_and_with_an_empty_one():
    model, rows = made(), rows_of()
    whole = model(*rows.given)
    for row in range(len(HISTORIES)):
        alone = model(*rows.part(torch.tensor([row])).given)
        torch.testing.assert_close(alone[0], whole[row], rtol=SCORE_RTOL, atol=SCORE_ATOL)
    empty = rows_of([[]] * 3)
    assert bool(model(*empty.given).isfinite().all())
    assert model(*empty.part(torch.zeros(0, dtype=torch.int64)).given).shape == (0, 1)


@torch.no_grad()
def test_only_the_history_and_the_item_count_and_what_is_too_long_ago_does_not():
    model, rows = made(), rows_of()
    before = model(*rows.given)
    other = replace(rows, floats=rows.floats + 1, lists=(jagged([[4]] * 5), rows.lists[1]))
    other.ids = rows.ids.clone()
    other.ids[:, :2] = 0
    assert torch.equal(model(*other.given), before)
    turned = [history[::-1] for history in HISTORIES]
    found = model(rows.ids, rows.floats, (rows.lists[0], jagged(turned)))
    assert not torch.allclose(found[0], before[0], atol=1e-4)  # the order counts
    cut = [history[-4:] for history in HISTORIES]
    torch.testing.assert_close(model(rows.ids, rows.floats, (rows.lists[0], jagged(cut))), before)


def full_by_hand(model: SASRec, rows: Rows) -> torch.Tensor:
    """Mean of the cross-entropy of torch over items 3 to 11, of the positives with one of them."""
    users = torch.stack([user_by_hand(model, history) for history in HISTORIES])
    logits = users @ model.tables.weights[0][3:].t()
    keys = rows.ids[:, 2].long()
    chosen = (rows.targets[0] == 1) & (keys >= 3)
    return functional.cross_entropy(logits[chosen], keys[chosen] - 3)


@pytest.mark.parametrize("kind", ["dense", "rows"])
def test_the_full_softmax_and_its_gradients_are_torchs_cross_entropy(kind):
    rows = rows_of()
    rows.ids[2, 2] = 1  # unseen: nothing that could be found
    model = made(loss="full")
    with torch.no_grad():
        model.output.log_scale.zero_()
        model.output.bias.zero_()
    plain = copy.deepcopy(model)
    wanted = full_by_hand(plain, rows)
    wanted.backward()
    model.tables.gradients = kind
    before = model.tables.weights[0].detach().clone()
    moving = RowOptimizer([model.tables], lr=1.0, method="sgd") if kind == "rows" else None
    found = model.training_loss(rows, BINARY)
    own = TargetLoss([("binary", 1)])(model(*rows.given).detach(), rows.targets, None)
    torch.testing.assert_close(found, wanted.detach() + own, rtol=1e-4, atol=1e-5)
    found.backward()
    if moving is None:
        table = model.tables.weights[0].grad
    else:
        moving.step()
        table = before - model.tables.weights[0].detach()
    torch.testing.assert_close(table, plain.tables.weights[0].grad, rtol=1e-3, atol=1e-5)
    others = dict(plain.named_parameters())
    for name, parameter in model.named_parameters():
        if not name.startswith(("tables", "output")):
            torch.testing.assert_close(parameter.grad, others[name].grad, rtol=1e-3, atol=1e-5)


def test_a_history_is_gone_through_once_for_a_positive_and_its_negatives(monkeypatch):
    rows = rows_of()
    places = torch.arange(len(HISTORIES)).repeat_interleave(3)
    drawn = rows.part(places)
    drawn.ids = drawn.ids.clone()
    drawn.ids[:, 2] = torch.where(torch.arange(len(places)) % 3 == 0, drawn.ids[:, 2], 5)
    target = (torch.arange(len(places)) % 3 == 0).float()
    batch = Batch(drawn.ids, drawn.floats, (target,), None, None, drawn.lists, copies=3)
    model = made(loss="full")
    found = model.training_loss(batch, BINARY)
    wanted = model.training_loss(batch._replace(copies=1), BINARY)
    torch.testing.assert_close(found, wanted)
    seen, plain = [], SASRec.user_vectors
    monkeypatch.setattr(
        SASRec, "user_vectors", lambda self, ids, *given: seen.append(len(ids)) or plain(self, ids, *given)
    )
    model.training_loss(batch, BINARY)
    assert seen == [len(HISTORIES)]


@pytest.mark.parametrize("log_q", [True, False])
def test_the_softmax_of_the_batch_is_a_loop_over_other_positives(log_q):
    rows = rows_of([*HISTORIES, [3], [4, 5], []])
    model = made(loss="softmax", log_q=log_q, softmax_rows=100)
    if log_q:
        with pytest.raises(ModelError, match=r"needs the items' counts\. Call remember"):
            model.training_loss(rows, BINARY)
    model.remember(rows.ids, rows.floats, rows.targets)
    keys, positive = rows.ids[:, 2].tolist(), (rows.targets[0] == 1).tolist()
    own = [key for key, is_positive in zip(keys, positive, strict=True) if is_positive]
    counts = {key: max(own.count(key), 1) for key in range(12)}
    total = sum(counts.values())
    users, items = model.user_vectors(*rows.given), model.item_vectors(rows.ids, rows.floats)
    losses = []
    for i in (place for place in range(8) if positive[place]):
        among = [j for j in range(8) if j == i or (positive[j] and keys[j] != keys[i])]
        logits = torch.stack([users[i] @ items[j] for j in among])
        if log_q:
            logits = logits - torch.tensor([counts[keys[j]] / total for j in among]).log()
        losses.append(functional.cross_entropy(logits[None], torch.tensor([among.index(i)])))
    learnt = BINARY(model(*rows.given).detach(), rows.targets, None)
    torch.testing.assert_close(model.training_loss(rows, BINARY), torch.stack(losses).mean() + learnt)


def test_drawn_losses_compare_a_positive_with_its_negatives_and_ask_for_them():
    rows = rows_of([HISTORIES[0]] * 3 + [HISTORIES[3]] * 3)
    rows.targets = (torch.tensor([1.0, 0, 0, 1, 0, 0]),)
    for kind in ("drawn", "bpr"):
        model = made(loss=kind)
        with pytest.raises(ModelError, match=f"sasrec: the loss {kind} compares .*Set train.negatives"):
            model.training_loss(rows, BINARY)
        rows.group = torch.tensor([0, 0, 0, 1, 1, 1])
        users, items = model.user_vectors(*rows.given), model.item_vectors(rows.ids, rows.floats)
        scores = (users * items).sum(1)
        groups = scores.view(2, 3)
        wanted = {
            "drawn": functional.cross_entropy(groups, torch.zeros(2, dtype=torch.int64)),
            "bpr": functional.softplus(groups[:, 1:] - groups[:, :1]).mean(),
        }[kind]
        learnt = BINARY(model(*rows.given).detach(), rows.targets, None)
        torch.testing.assert_close(model.training_loss(rows, BINARY), wanted + learnt)
        del rows.group


def test_losses_of_a_softmax_ask_for_one_binary_target():
    rows = rows_of()
    for kind in ("full", "softmax", "drawn"):
        with pytest.raises(ModelError, match=f"sasrec: the loss {kind} needs one binary target"):
            made(loss=kind, log_q=False).training_loss(rows, TargetLoss([("regression", 1)]))


@pytest.mark.parametrize(
    ("lists", "item_lists", "message"),
    [
        ((), (), "the schema has none"),
        ((ListInputs(5),), (), "the schema has none"),
        ((ListInputs(12, shares=2), ListInputs(12, shares=3)), (), "the schema has 2"),
        ((ListInputs(12, shares=2),), (0,), "the schema has none"),
        ((ListInputs(12, shares=2, weighted=True),), (), "its history takes no weights.*half_life"),
    ],
)
def test_a_schema_without_one_history_says_what_to_set(lists, item_lists, message):
    inputs = replace(INPUTS, lists=lists, item=EntityColumns(2, (2,), first=3, lists=item_lists))
    with pytest.raises(ModelError, match=rf"^model sasrec: .*{message}.*features\.lists"):
        ModelSpec("sasrec", inputs, SASRec.Settings()).build()
    with pytest.raises(ModelError, match=f"^sasrec: .*{message}"):
        SASRec(inputs, SASRec.Settings())


def test_settings_that_cannot_be_are_refused():
    for settings, message in (
        ({"num_heads": 5}, "num_heads 5 does not divide dim, 64"),
        ({"loss": "gbce"}, r"unknown loss of sasrec 'gbce'\. Known: full, softmax, drawn, bpr, bce"),
        ({"softmax_rows": 1}, "softmax_rows must be at least 2"),
        ({"initial_std": 0}, "initial_std must be a positive number"),
        ({"length": 0}, "length must be an integer from 1 up"),
    ):
        with pytest.raises(ModelError, match=message):
            SASRec.Settings(**settings)


def test_an_item_that_follows_from_the_last_one_is_learnt():
    """Forty items in a circle: the next one is the last one's neighbour, whatever came before. Popularity has 1/40."""
    draw = torch.Generator().manual_seed(0)
    inputs = ModelInputs(
        (4, 43), 0, 1, EntityColumns(0, (0,)), EntityColumns(1, (1,), first=3), lists=(ListInputs(43, shares=1),)
    )

    def rows(count: int) -> Rows:
        lengths = torch.randint(1, 6, (count,), generator=draw)
        offsets = functional.pad(lengths.cumsum(0), (1, 0))
        history = torch.randint(40, (int(offsets[-1]),), generator=draw)
        item = (history[offsets[1:] - 1] + 1) % 40 + 3
        ids = torch.stack([torch.zeros(count, dtype=torch.int64), item], 1).int()
        lists = (JaggedColumn((history + 3).int(), offsets),)
        return Rows(ids, torch.empty(count, 0), (torch.ones(count),), lists=lists)

    model = build("sasrec", inputs, dim=16, num_blocks=1, length=5, dropout=0.0)
    moving = torch.optim.Adam(model.train().parameters(), lr=0.01)
    for _ in range(120):
        loss = model.training_loss(rows(256), BINARY)
        moving.zero_grad()
        loss.backward()
        moving.step()
    asked = rows(500)
    with torch.no_grad():
        users = model.eval().user_vectors(*asked.given)
        found = (users @ model.tables.weights[0][3:].t()).argmax(1) + 3
    assert float((found == asked.ids[:, 1]).float().mean()) > 0.9
