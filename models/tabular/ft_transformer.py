"""FT-Transformer: every column becomes a token, and a Transformer gathers them in one token that predicts.

    T_j = b_j + x_j w_j of a float, b_j + e_j[id_j] of an id, b_j + the mean of a list's e_j[id]
    T = (T_1, ..., T_N, CLS)                                                                         feature tokenizer
    T = T + attention(norm(T)),  T = T + W_2 ReGLU(W_1 norm(T)),  ReGLU(a, b) = a ReLU(b)            each block
    output = W ReLU(norm(T_CLS))

Gorishniy, Rubachev, Khrulkov and Babenko, Revisiting Deep Learning Models for Tabular Data, NeurIPS 2021 (arXiv
2106.11959), section 3.3 and appendix E; as in the authors' code the first block has no norm before its attention, and
only the CLS token is computed in the last. Use it for tables of up to some hundred thousand rows whose signal is in the
floats: it is the slowest of the shelf, with attention among all columns at every row.

Shapes: B rows of a batch, C id columns, L lists, F float columns, N = C + L + F, d token_dim, O outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from gigabatch.models.errors import require
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.attention import attention
from gigabatch.models.layers.dropout import Dropout
from gigabatch.models.layers.fields import OutputLinear, check_settings, positive_number, rows_of, tables_of
from gigabatch.models.layers.numeric import Numeric, NumericEmbedding
from gigabatch.models.layers.pooled import Jagged, PoolingSettings
from gigabatch.models.model import Model


@dataclass(frozen=True)
class FTTransformerSettings(PoolingSettings):
    """Settings of FT-Transformer; defaults are the authors'.

    Parameters
    ----------
    token_dim : int, default 192
        Numbers in a token.
    num_heads : int, default 8
        Heads of the attention; divides `token_dim`.
    num_blocks : int, default 3
        Transformer blocks.
    hidden_factor : float, default 4 / 3
        Width of the ReGLU layer over `token_dim`.
    attention_dropout : float, default 0.2
        Of attention weights, in training.
    hidden_dropout : float, default 0.1
        Within the ReGLU layer, in training.
    residual_dropout : float, default 0.0
        Of what is added to the tokens, in training.
    numeric : str or dict of str to str, default 'bins'
        Vectors beside the float columns, of their quantile bins; or `periodic`, or `plain`: none. By column: its
        name and kind, and `*` for the others.
    pooling : {'sum', 'mean', 'root', 'max'}, default 'mean'
        What becomes of the vectors of a list column's elements; `max` takes no weights.

    Raises
    ------
    ModelError
        For a value that cannot be.

    Examples
    --------
    >>> FTTransformerSettings(token_dim=64).num_heads
    8
    """

    token_dim: int = 192
    num_heads: int = 8
    num_blocks: int = 3
    hidden_factor: float = 4 / 3
    attention_dropout: float = 0.2
    hidden_dropout: float = 0.1
    residual_dropout: float = 0.0
    numeric: Numeric = "bins"

    def __post_init__(self) -> None:
        check_settings(self)
        require(
            self.token_dim % self.num_heads == 0,
            f"num_heads {self.num_heads} does not divide token_dim {self.token_dim}. Choose a divisor.",
        )
        positive_number("hidden_factor", self.hidden_factor)
        require(
            int(self.hidden_factor * self.token_dim) >= 1,
            f"hidden_factor must be a positive number that leaves a width of 1 or more, not {self.hidden_factor!r}.",
        )


class FeatureTokenizer(nn.Module):
    """Ids, lists and floats to tokens, each with a bias of its column's own: [B, N, d].

    All weights start uniform in +-1 / sqrt(d), tables too (which elsewhere start near 0).
    """

    def __init__(self, inputs: ModelInputs, dim: int, numeric: Numeric = "plain", pooling: str = "mean") -> None:
        super().__init__()
        self.dim = dim
        num_ids, num_floats = len(inputs.num_ids) + len(inputs.lists), inputs.num_floats
        self.tables = tables_of(inputs, dim, pooling=pooling)
        self.float_vectors = nn.Parameter(torch.empty(num_floats, dim)) if num_floats else None
        self.bias = nn.Parameter(torch.empty(num_ids + num_floats, dim))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(dim**-0.5), dim**-0.5)
        self.numeric = NumericEmbedding(inputs, numeric, dim)

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """ids [B, C], floats [B, F], B lists of each list column -> tokens [B, N, d]: ids first, floats last."""
        tokens = rows_of(self.tables, ids, lists).unflatten(1, (ids.shape[1] + len(lists), self.dim))
        if self.float_vectors is not None:
            vectors = floats[:, :, None] * self.float_vectors
            if self.numeric.num_columns:
                vectors = vectors + self.numeric.of_all(floats)
            tokens = torch.cat([tokens, vectors], dim=1)
        return tokens + self.bias


class Attention(nn.Module):
    """Multi-head self-attention with biases (Vaswani et al., 2017), as `torch.nn.MultiheadAttention` computes it."""

    def __init__(self, dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.queries = nn.Linear(dim, dim)
        self.keys_values = nn.Linear(dim, 2 * dim)
        self.output = nn.Linear(dim, dim)
        for linear in (self.queries, self.keys_values, self.output):
            nn.init.zeros_(linear.bias)

    def forward(self, asking: Tensor, tokens: Tensor) -> Tensor:
        """What each of `asking` [B, Q, d] takes from `tokens` [B, T, d]: [B, Q, d]."""
        keys, values = self.keys_values(tokens).chunk(2, dim=2)
        queries, keys, values = (
            part.unflatten(2, (self.num_heads, -1)).transpose(1, 2) for part in (self.queries(asking), keys, values)
        )
        dropout = self.dropout if self.training else 0.0
        taken = attention(queries, keys, values, dropout)
        return self.output(taken.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention, then a ReGLU layer, each behind a layer norm and added to the tokens.

    first: without the norm before the attention. last: only the last token comes out, [B, 1, d].
    """

    def __init__(self, settings: FTTransformerSettings, first: bool, last: bool) -> None:
        super().__init__()
        dim, hidden = settings.token_dim, int(settings.token_dim * settings.hidden_factor)
        self.last = last
        self.attention_norm = nn.Identity() if first else nn.LayerNorm(dim)
        self.attention = Attention(dim, settings.num_heads, settings.attention_dropout)
        self.hidden_norm = nn.LayerNorm(dim)
        self.widen = nn.Linear(dim, 2 * hidden)
        self.narrow = nn.Linear(hidden, dim)
        self.hidden_dropout = Dropout(settings.hidden_dropout)
        self.residual_dropout = Dropout(settings.residual_dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, T, d] -> [B, T, d], or [B, 1, d]."""
        normed = self.attention_norm(tokens)
        if self.last:
            tokens, asking = tokens[:, -1:], normed[:, -1:]
        else:
            asking = normed
        tokens = tokens + self.residual_dropout(self.attention(asking, normed))
        linear, gate = self.widen(self.hidden_norm(tokens)).chunk(2, dim=2)
        hidden = self.hidden_dropout(linear * functional.relu(gate))
        return tokens + self.residual_dropout(self.narrow(hidden))


class FTTransformer(Model):
    """FT-Transformer: tokens of the columns and a CLS token through Transformer blocks, read off the CLS token.

    Parameters
    ----------
    inputs : ModelInputs
        Sizes of the id tables, number of floats and of outputs.
    settings : FTTransformerSettings
        What a user may set.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import FTTransformer, ModelInputs
    >>> inputs = ModelInputs(num_ids=(5, 7), num_floats=2)
    >>> model = FTTransformer(inputs, FTTransformer.Settings(token_dim=8, num_heads=2))
    >>> ids, floats = torch.tensor([[1, 6], [4, 0], [2, 3]]), torch.zeros(3, 2)
    >>> model(ids, floats).shape
    torch.Size([3, 1])
    """

    Settings = FTTransformerSettings
    takes_lists = True

    def __init__(self, inputs: ModelInputs, settings: FTTransformerSettings) -> None:
        super().__init__(inputs, settings)
        dim, last = settings.token_dim, settings.num_blocks - 1
        self.tokenizer = FeatureTokenizer(inputs, dim, settings.numeric, settings.pooling)
        self.cls = nn.Parameter(torch.empty(dim).uniform_(-(dim**-0.5), dim**-0.5))
        self.blocks = nn.Sequential(
            *(Block(settings, first=number == 0, last=number == last) for number in range(settings.num_blocks))
        )
        self.norm = nn.LayerNorm(dim)
        self.output = OutputLinear(dim, inputs.num_outputs)

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """As `Model.forward`."""
        self.require_inputs(ids, floats, lists)
        tokens = self.tokenizer(ids, floats, lists)
        tokens = torch.cat([tokens, self.cls.expand(tokens.shape[0], 1, -1)], dim=1)
        gathered = self.blocks(tokens)[:, 0]
        return self.output(functional.relu(self.norm(gathered))).float()
