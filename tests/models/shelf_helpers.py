"""What the tests of the shelf share: small inputs, planted data, a short training, and what every model must keep."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.models.inputs import EntityColumns, ListInputs, ModelInputs
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.losses import TargetLoss
from gigabatch.models.model import SCORE_ATOL, SCORE_RTOL, Model
from gigabatch.models.optimizers.registry import build_optimizer
from gigabatch.models.shelf import ModelSpec, model_class

INPUTS = ModelInputs(
    num_ids=(5, 7, 4),
    num_floats=2,
    user=EntityColumns(key=0, ids=(0,), floats=(0,)),
    item=EntityColumns(key=1, ids=(1,), floats=()),
)
NO_FLOATS = ModelInputs(num_ids=(5, 7, 4), num_floats=0)
NO_IDS = ModelInputs(num_ids=(), num_floats=3)
ALL_INPUTS = pytest.mark.parametrize("inputs", [INPUTS, NO_FLOATS, NO_IDS], ids=["both", "no_floats", "no_ids"])
BINARY = TargetLoss([("binary", 1)])


@dataclass
class Rows:
    """A batch as models see it (`gigabatch.models.model.Rows`)."""

    ids: Tensor
    floats: Tensor
    targets: tuple[Tensor, ...] = ()
    weight: Tensor | None = None
    lists: Sequence[JaggedColumn] = field(default=(), kw_only=True)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def given(self) -> tuple[Any, ...]:
        """What a model's forward is given of them."""
        return (self.ids, self.floats, self.lists) if self.lists else (self.ids, self.floats)

    def part(self, rows: Tensor) -> "Rows":
        """The rows of these numbers."""
        weight = None if self.weight is None else self.weight[rows]
        lists = tuple(column.rows(rows) for column in self.lists)
        return Rows(
            self.ids[rows], self.floats[rows], tuple(target[rows] for target in self.targets), weight, lists=lists
        )


def random_rows(inputs: ModelInputs, num_rows: int = 64, seed: int = 0) -> Rows:
    """Uniform ids, normal floats, lists of none to six uniform ids, and labels that depend on nothing."""
    draw = torch.Generator().manual_seed(seed)
    columns = [torch.randint(size, (num_rows,), generator=draw) for size in inputs.num_ids]
    ids = torch.stack(columns, dim=1).int() if columns else torch.empty(num_rows, 0, dtype=torch.int32)
    floats = torch.randn(num_rows, inputs.num_floats, generator=draw)
    labels = (torch.randint(2, (num_rows,), generator=draw).float(),)
    return Rows(ids, floats, labels, lists=tuple(_random_lists(item, num_rows, draw) for item in inputs.lists))


def _random_lists(item: ListInputs, num_rows: int, draw: torch.Generator) -> JaggedColumn:
    ends = torch.randint(7, (num_rows,), generator=draw).cumsum(0)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), ends])
    ids = torch.randint(item.num_ids, (int(offsets[-1]),), generator=draw, dtype=torch.int32)
    return JaggedColumn(ids, offsets, torch.rand(len(ids), generator=draw) if item.weighted else None)


def with_needed_lists(name: str, inputs: ModelInputs) -> ModelInputs:
    """The inputs, for a model that needs lists with one of the item's vocabulary, or without items of column 0's."""
    if not model_class(name).needs_lists or inputs.lists or not inputs.num_ids:
        return inputs
    place = 0 if inputs.item is None else inputs.item.key
    return replace(inputs, lists=(ListInputs(inputs.num_ids[place], shares=place),))


# Planted data: ids of SIGNS_OF columns carry a sign each, as many +1 as -1, drawn from `seed` alone. The product of
# the signs of k columns is a k-th order interaction: no function of fewer of these columns says anything about it.

NUM_VALUES = 8


def signs(num_columns: int, seed: int = 0) -> Tensor:
    """[num_columns, NUM_VALUES] of +1 and -1, each row half and half."""
    draw = torch.Generator().manual_seed(seed)
    half = torch.arange(NUM_VALUES) % 2 * 2.0 - 1
    return torch.stack([half[torch.randperm(NUM_VALUES, generator=draw)] for _ in range(num_columns)])


def planted_rows(
    orders: dict[tuple[int, ...], float], num_rows: int, seed: int, num_columns: int = 4
) -> tuple[ModelInputs, Rows]:
    """Rows with logit = the sum of strength x product of the signs of the named columns.

    orders: strength by columns, such as {(0,): 1.0, (1, 2): 2.0}. seed: of the rows; signs are the same for all.
    """
    inputs = ModelInputs((NUM_VALUES,) * num_columns, 0)
    rows = random_rows(inputs, num_rows, seed)
    table = signs(num_columns)
    of_row = torch.stack([table[column, rows.ids[:, column].long()] for column in range(num_columns)], dim=1)
    logit = sum(strength * of_row[:, list(columns)].prod(dim=1) for columns, strength in orders.items())
    draw = torch.Generator().manual_seed(seed + 1_000_003)
    labels = (torch.rand(num_rows, generator=draw) < torch.sigmoid(logit)).float()
    return inputs, Rows(rows.ids, rows.floats, (labels,))


def train(
    model: Model,
    rows: Rows,
    *,
    steps: int,
    batch_size: int = 512,
    optimizer: str = "adamw",
    loss: TargetLoss = BINARY,
    seed: int = 0,
    **settings: object,
) -> list[float]:
    """Train for `steps` batches drawn from `rows`, or of all of them if they fit; the loss of each."""
    torch.manual_seed(seed)
    moving = build_optimizer(model, optimizer, **({"lr": 0.01} | settings))
    model.train()
    losses = []
    for _ in range(steps):
        batch = rows if batch_size >= len(rows) else rows.part(torch.randint(len(rows), (batch_size,)))
        value = model.training_loss(batch, loss)
        moving.zero_grad()
        value.backward()
        moving.step()
        losses.append(float(value.detach()))
    return losses


@torch.no_grad()
def auc(model: Model, rows: Rows) -> float:
    """scikit-learn's ROC AUC of the first output, in evaluation mode."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(rows.targets[0], model.eval()(rows.ids, rows.floats)[:, 0]))


def spec(name: str, inputs: ModelInputs = INPUTS, **settings: object) -> ModelSpec:
    """The model `name` of the shelf with these settings, others as they are by default."""
    return ModelSpec(name, with_needed_lists(name, inputs), model_class(name).Settings(**settings))


def build(name: str, inputs: ModelInputs = INPUTS, seed: int = 0, **settings: object) -> Model:
    """A model of the shelf with weights from `seed`."""
    torch.manual_seed(seed)
    return spec(name, inputs, **settings).build()


def by_hand(weights: Tensor) -> np.ndarray:
    """As a float64 array, for formulas written out in NumPy."""
    return weights.detach().double().numpy()


def mlp_by_hand(network: nn.Sequential, x: np.ndarray) -> np.ndarray:
    """What `layers.fields.mlp` computes in evaluation mode, layer by layer in float64; [B, in] -> [B, out]."""
    for layer in network:
        if isinstance(layer, nn.Linear):
            x = x @ by_hand(layer.weight).T + (0 if layer.bias is None else by_hand(layer.bias))
        elif isinstance(layer, nn.BatchNorm1d):
            x = normed_by_hand(layer, x) * by_hand(layer.weight) + by_hand(layer.bias)
        elif isinstance(layer, nn.ReLU):
            x = np.maximum(x, 0)
        else:
            assert isinstance(layer, nn.Dropout), layer
    return x


def normed_by_hand(norm: nn.Module, x: np.ndarray) -> np.ndarray:
    """Batch norm by running statistics, without scale and shift; `x` itself where the norm is `nn.Identity`."""
    if isinstance(norm, nn.Identity):
        return x
    return (x - by_hand(norm.running_mean)) / np.sqrt(by_hand(norm.running_var) + norm.eps)


@torch.no_grad()
def stirred(name: str, inputs: ModelInputs = INPUTS, **settings: object) -> Model:
    """A model in evaluation mode whose weights and running statistics are all different from where they start."""
    model = build(name, inputs, **settings)
    stir(model)
    rows = random_rows(model.inputs, 32, seed=7)
    model.train()(rows.ids, 3 * rows.floats + 1, *rows.given[2:])
    return model.eval()


# What every model of the shelf keeps. Each takes the model's name and its settings, and asserts.


def check_gradients(name: str, inputs: ModelInputs = INPUTS, **settings: object) -> None:
    """Every parameter gets a gradient, not all zero, from the training loss."""
    model = build(name, inputs, **settings).train()
    stir(model)
    model.training_loss(random_rows(model.inputs), BINARY).backward()
    idle = [key for key, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()]
    assert not idle


def check_rows_alone(name: str, inputs: ModelInputs = INPUTS, **settings: object) -> None:
    """In evaluation mode a row's outputs are the same alone, among others, and in another order, within the tolerance
    that models/model.py promises."""
    model = build(name, inputs, **settings)
    stir(model)
    rows = random_rows(model.inputs)
    with torch.no_grad():
        together = model.eval()(*rows.given)
        alone = torch.cat([model(*rows.part(torch.tensor([i])).given) for i in range(8)])
        turned = model(*rows.part(torch.arange(len(rows)).flip(0)).given).flip(0)
    assert together.shape == (len(rows), inputs.num_outputs)
    assert together.dtype == torch.float32
    assert together.std() > 0
    torch.testing.assert_close(alone, together[:8], rtol=SCORE_RTOL, atol=SCORE_ATOL)
    torch.testing.assert_close(turned, together, rtol=SCORE_RTOL, atol=SCORE_ATOL)


def check_row_optimizer(name: str, inputs: ModelInputs = INPUTS, **settings: object) -> None:
    """An optimizer that moves rows lowers the loss on a fixed batch, and no table gets a gradient of its own."""
    model = build(name, inputs, **settings)
    losses = train(model, random_rows(model.inputs, 32), steps=25, optimizer="lamb", lr=0.05)
    tables = [module for module in model.modules() if isinstance(module, EmbeddingTables) and len(module.tables)]
    assert all(module.gradients == "rows" for module in tables)
    assert all(table.grad is None for module in tables for table in module.tables)
    assert sum(losses[-3:]) < 0.98 * sum(losses[:3]), losses


def check_round_trip(name: str, inputs: ModelInputs = INPUTS, **settings: object) -> None:
    """A model built again from its description in JSON, with its weights loaded, gives the same bits."""
    described = spec(name, inputs, **settings)
    again = ModelSpec.from_dict(json.loads(json.dumps(described.to_dict())))
    assert again == described
    model = described.build()
    stir(model)
    rows = random_rows(model.inputs)
    model.train()(*rows.given)  # moves the running statistics of batch norms
    loaded = again.build()
    loaded.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(model.eval()(*rows.given), loaded.eval()(*rows.given))


@torch.no_grad()
def stir(model: Model, seed: int = 1) -> None:
    """Add noise to all parameters, so that none is at a start that hides others, such as zeros."""
    draw = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.add_(0.3 * torch.randn(parameter.shape, generator=draw))
