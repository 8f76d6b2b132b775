"""Embedding tables for id columns: one table a column, looked up together and concatenated.

Shapes: B rows of a batch, C id columns, W the sum of the tables' widths.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.errors import ModelError, require


def embedding_width(num_ids: int) -> int:
    """Width of the table of a column with `num_ids` ids: min(600, round(1.6 n^0.56)), fastai's `emb_sz_rule`."""
    require(num_ids >= 1, f"an id column needs at least one id, not {num_ids}.")
    return min(600, round(1.6 * num_ids**0.56))


def lookup(ids: Tensor, tables: Sequence[Tensor], sparse_gradients: bool = False) -> Tensor:
    """Row `ids[b, c]` of table c, for all c side by side: [B, C] int32 or int64 -> [B, W] in the tables' dtype.

    The plain-torch reference that faster kernels are tested against.
    """
    rows = [functional.embedding(ids[:, column], table, sparse=sparse_gradients) for column, table in enumerate(tables)]
    return torch.cat(rows, dim=1)


class EmbeddingTables(nn.Module):
    """One table [num_ids[c], widths[c]] float32 for each id column c.

    Id 0 is the project's padding, yet its row is an ordinary one: it is initialised, looked up and trained.
    Weights start as fastai's `Embedding` does: standard normal, folded into (-2, 2) by fmod, times 0.01.

    sparse_gradients: gradients come as sparse COO tensors holding only the rows of the batch (for row-wise
        optimizers, see `Lamb`) instead of dense ones as large as the table.
    """

    def __init__(self, num_ids: Sequence[int], widths: Sequence[int], sparse_gradients: bool = False) -> None:
        super().__init__()
        require(
            len(num_ids) == len(widths),
            f"embedding tables: {len(num_ids)} id columns but {len(widths)} widths; give one width for each column.",
        )
        self.sparse_gradients = sparse_gradients
        self.tables = nn.ParameterList(torch.empty(rows, width) for rows, width in zip(num_ids, widths, strict=True))
        self.reset_parameters()

    @property
    def width(self) -> int:
        """Columns of the output: the sum of the tables' widths."""
        return sum(table.shape[1] for table in self.tables)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw new weights from torch's global generator."""
        for table in self.tables:
            table.normal_().fmod_(2).mul_(0.01)

    def forward(self, ids: Tensor) -> Tensor:
        """[B, C] int32 or int64 -> [B, W] float32. An id outside its table is an IndexError (CUDA: device assert)."""
        if ids.dim() != 2 or ids.shape[1] != len(self.tables):
            raise ModelError(
                f"embedding tables: ids must be [rows, {len(self.tables)}], one column a table, not {list(ids.shape)}."
            )
        if not len(self.tables):
            return torch.empty(len(ids), 0, device=ids.device)
        return lookup(ids, list(self.tables), self.sparse_gradients)

    def extra_repr(self) -> str:
        return f"num_tables={len(self.tables)}, width={self.width}, sparse_gradients={self.sparse_gradients}"
