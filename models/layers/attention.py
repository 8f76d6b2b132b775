"""Attention whose dropout is that of the whole batch, where several ranks share it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from gigabatch.models.layers.dropout import draws_own, dropped


def attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    dropout: float = 0.0,
    scale: float | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """What queries take from values: softmax(scale queries keys^T) values (Vaswani et al., arXiv 1706.03762).

    It is torch's, but where `Dropout` computes its own masks (on a CPU, and wherever ranks share a batch): torch would
    draw other masks on two ranks than on one, so weights are laid out there, and `Dropout`'s mask is put on them.

    Parameters
    ----------
    queries : Tensor
        [B, H, Q, d] of H heads.
    keys, values : Tensor
        [B, H, T, d].
    dropout : float, default 0.0
        Of the weights [B, H, Q, T]; 0 where a model does not train.
    scale : float or None, default None
        Of the logits; None for 1 / sqrt(d).
    mask : Tensor or None, default None
        bool, of a shape that goes to [B, H, Q, T]: True where a query sees a key, at least one key of each query.

    Returns
    -------
    Tensor
        [B, H, Q, d].

    Examples
    --------
    >>> import torch
    >>> from gigabatch.models.layers.attention import attention
    >>> keys = torch.zeros(1, 1, 2, 4)  # equal logits: the mean of values
    >>> attention(keys[:, :, :1], keys, torch.tensor([1.0, 3.0]).view(1, 1, 2, 1)).item()
    2.0
    """
    if not dropout or torch.compiler.is_compiling() or not draws_own(queries, dropout):
        return functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, dropout_p=dropout, scale=scale
        )
    logits = (queries.shape[-1] ** -0.5 if scale is None else scale) * (queries @ keys.transpose(-2, -1))
    if mask is not None:
        logits = logits.masked_fill(~mask, float("-inf"))
    return dropped(torch.softmax(logits, dim=-1), dropout) @ values
