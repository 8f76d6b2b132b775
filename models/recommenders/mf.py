"""Matrix factorisation: a vector of the user, one of the item, and how popular the item is by itself.

    s = <p_u, q_i> + b_i, with the loss bce + b_u
    output = exp(a) s + b

The model that every recommender is to be held against (Rendle et al., Neural Collaborative Filtering vs. Matrix
Factorization Revisited, RecSys 2020, arXiv 2005.09683). It takes the keys of user and item; all further columns are
left out. All losses but bce know differences of s alone; a and b make logits of it. The user's own bias b_u, how high
the user rates or how often it clicks, cancels in these, so bce alone learns it: most of what ratings differ by are both
biases (Koren, Bell and Volinsky, Matrix Factorization Techniques for Recommender Systems, Computer 2009). A bias is one
more number of its vector, beside a 1 in the other's, so vectors can be stored and searched as those of the two towers.

Shapes: B rows of a batch, C id columns, F float columns, d `dim`, v numbers of a vector: d + 1, with `user_bias` d + 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.nn import functional

from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.layers.fields import check_settings, one_of, positive_number
from gigabatch.models.layers.pooled import Jagged
from gigabatch.models.losses import TargetLoss
from gigabatch.models.model import Model, Rows
from gigabatch.models.recommenders.catalogue import Catalogue, Vectors, catalogue_training_loss, copies_of
from gigabatch.models.recommenders.drawn import LOSSES, OutputScale, drawn_training_loss


@dataclass(frozen=True)
class MFSettings:
    """Settings of matrix factorisation.

    Parameters
    ----------
    dim : int, default 64, with positives alone 128
        Numbers in a user's and in an item's vector, without the biases.
    loss : {'bce', 'bpr', 'softmax', 'catalogue'}, default 'bce', with positives alone 'catalogue'
        `bce`: the target's own loss (squared error for regression). `bpr`, `softmax`: a positive above, or among, the
        negatives that are drawn for it (`train.negatives`). `catalogue`: a positive among all items.
    catalogue_items : int, default 2048
        `catalogue` compares so many items at most: of a larger catalogue some that each batch draws, which count for
        all (`models/recommenders/catalogue.py`).
    initial_std : float, default 0.1
        Deviation of the vectors' numbers at the start. Near 0 their product has hardly a gradient.
    user_bias : bool, default True
        Whether users have a bias too. With another loss than `bce` none has one.

    Raises
    ------
    ModelError
        For a value that cannot be.

    Examples
    --------
    >>> MFSettings(dim=32, loss="softmax").initial_std
    0.1
    """

    dim: int = 64
    loss: str = "bce"
    catalogue_items: int = 2048
    initial_std: float = 0.1
    user_bias: bool = True

    def __post_init__(self) -> None:
        check_settings(self)
        one_of("loss of mf", self.loss, (*LOSSES, "catalogue"))
        positive_number("initial_std", self.initial_std)
        if self.loss != "bce":
            object.__setattr__(self, "user_bias", False)


class MatrixFactorization(Model):
    """Matrix factorisation: scores [B, 1] of a user and an item; see the module.

    Parameters
    ----------
    inputs : ModelInputs
        Sizes of the id tables; which columns are the keys of user and item.
    settings : MFSettings
        What a user may set.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import MatrixFactorization, ModelInputs
    >>> from gigabatch.models.inputs import EntityColumns
    >>> user, item = EntityColumns(key=0, ids=(0,)), EntityColumns(key=1, ids=(1,))
    >>> inputs = ModelInputs((5, 7), num_floats=0, num_outputs=1, user=user, item=item)
    >>> model = MatrixFactorization(inputs, MatrixFactorization.Settings(dim=4))
    >>> ids, floats = torch.tensor([[1, 6], [4, 0], [2, 3]]), torch.empty(3, 0)
    >>> users, items = model.user_vectors(ids, floats), model.item_vectors(ids, floats)  # to be stored
    >>> users.shape, model.score(users, items).shape
    (torch.Size([3, 6]), torch.Size([3, 1]))
    """

    Settings = MFSettings
    entities = ("user", "item")
    single_output = True
    item_is_its_key = True
    for_positives: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "model": {"loss": "catalogue", "dim": 128},
        "train": {"select": "last"},  # the valid loss is of probabilities, which this one does not look at
    }

    user_place: Tensor
    item_place: Tensor

    def __init__(self, inputs: ModelInputs, settings: MFSettings) -> None:
        super().__init__(inputs, settings)
        user, item = inputs.entity("user").key, inputs.entity("item").key
        self.item_key = item
        # On the device: an index list would be copied there in every step, which a CUDA graph cannot hold.
        self.register_buffer("user_place", torch.tensor([user]), persistent=False)
        self.register_buffer("item_place", torch.tensor([item]), persistent=False)
        self.user_biases = int(settings.user_bias)
        self.users = EmbeddingTables([inputs.num_ids[user]], [settings.dim + self.user_biases], columns=[user])
        self.items = EmbeddingTables([inputs.num_ids[item]], [settings.dim + 1], columns=[item])
        with torch.no_grad():
            for tables in (self.users, self.items):
                tables.weights[0].mul_(settings.initial_std / 0.01)  # the deviation that tables start with
                tables.weights[0][:, settings.dim :].zero_()
        self.output = OutputScale()
        first = inputs.entity("item").first
        self.catalogue = Catalogue(first, inputs.num_ids[item], settings.catalogue_items)

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """ids [B, C], floats [B, F] -> [B, 1] float32, the `score` of `user_vectors` and `item_vectors`."""
        return self.score(self.user_vectors(ids, floats), self.item_vectors(ids, floats))

    def user_vectors(self, ids: Tensor, floats: Tensor) -> Tensor:
        """The users' vectors, a 1 and any biases of theirs [B, v] float32, from whole rows ids [B, C] and floats."""
        self.require_inputs(ids, floats)
        rows, dim = self.users(ids.index_select(1, self.user_place)).float(), self.settings.dim
        return torch.cat([rows[:, :dim], torch.ones_like(rows[:, :1]), rows[:, dim:]], dim=1)

    def item_vectors(self, ids: Tensor, floats: Tensor) -> Tensor:
        """The items' vectors, biases and a 1 for a user's [B, v] float32, from whole rows ids [B, C] and floats."""
        self.require_inputs(ids, floats)
        rows = self.items(ids.index_select(1, self.item_place)).float()
        return functional.pad(rows, (0, self.user_biases), value=1.0)

    def score(self, user_vectors: Tensor, item_vectors: Tensor) -> Tensor:
        """Output [B, 1] float32 of the vectors of users [B, v], or [1, v] for one user, and of items [B, v]."""
        return cast(Tensor, self.output(self._scores(user_vectors, item_vectors)))

    def score_all(self, user_vectors: Tensor, item_vectors: Tensor) -> Tensor:
        """`score` of each user [U, v] with each item [N, v], by one matrix product: [U, N] float32."""
        return cast(Tensor, self.output(user_vectors @ item_vectors.T))

    def _scores(self, users: Tensor, items: Tensor) -> Tensor:
        return (users * items).sum(1, keepdim=True)

    def training_loss(self, batch: Rows, loss: TargetLoss) -> Tensor:
        """`bce`: the target's loss of the outputs. `bpr`, `softmax`: `models/recommenders/drawn.py`. `catalogue`:
        `models/recommenders/catalogue.py`, of the rows with target 1.

        Raises:
            ModelError: for all but bce of a target that is not binary; for bpr and softmax without drawn negatives.
        """
        if self.settings.loss == "bce":
            return super().training_loss(batch, loss)
        if self.settings.loss == "catalogue":
            return self._catalogue_loss(batch, loss)
        vectors = self.user_vectors(batch.ids, batch.floats), self.item_vectors(batch.ids, batch.floats)
        return drawn_training_loss("mf", self.settings.loss, batch, self._scores(*vectors), self.output, loss)

    def _catalogue_loss(self, batch: Rows, loss: TargetLoss) -> Tensor:
        with torch.no_grad():
            scores = self._scores(
                self.user_vectors(batch.ids, batch.floats), self.item_vectors(batch.ids, batch.floats)
            )
        copies, drawn = copies_of(batch), self.catalogue.draw()
        ids, floats = batch.ids[::copies], batch.floats[::copies]
        vectors = Vectors(
            self.user_vectors(ids, floats),
            self.item_vectors(ids, floats),
            self.items(drawn[:, None]).float(),
            drawn,
            scores,
        )
        keys = batch.ids[:, self.item_key]
        return catalogue_training_loss("mf", "catalogue", self.catalogue, batch, vectors, keys, self.output, loss)

    def table_ids(self, ids: Tensor) -> dict[EmbeddingTables, Tensor]:
        """As of every model; of a loss over the catalogue, which looks up other items too, refused."""
        if self.settings.loss != "catalogue":
            return super().table_ids(ids)
        raise ModelError(
            "mf: a step looks up items that are not of its batch, so tables cannot be sharded. Set "
            "train.tables=replicated, or another model.loss."
        )

    @property
    def compares_rows(self) -> bool:
        """But for `bce`."""
        return bool(self.settings.loss != "bce")
