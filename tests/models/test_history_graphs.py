"""Models of histories as exported graphs, for any number of rows and elements."""

import pytest
import torch
from torch import Tensor, nn

from gigabatch.loaders.tables.jagged import JaggedColumn
from tests.models.shelf_scores import rows_of, shelf_model


class Flat(nn.Module):
    """The model, given its one list column as two tensors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, floats: Tensor, elements: Tensor, offsets: Tensor) -> Tensor:
        torch._check(offsets.shape[0] == ids.shape[0] + 1)
        return self.model(ids, floats, (JaggedColumn(elements, offsets),))


@pytest.mark.parametrize("name", ["din", "sasrec"])
@torch.no_grad()
def test_a_graph_of_rows_with_histories_gives_the_models_outputs(name):
    """Histories have up to six elements, and sasrec looks at four, so that some are cut in the graph."""
    model, rows = shelf_model(name), rows_of(name)
    (history,) = rows.lists
    number, size = torch.export.Dim("number"), torch.export.Dim("size")
    shapes = ({0: number}, {0: number}, {0: size}, {0: number + 1})
    given = rows.ids, rows.floats, history.ids, history.offsets
    program = torch.export.export(Flat(model), given, dynamic_shapes=shapes, strict=True).module()
    assert max(history.offsets.diff()) == 6
    for count in (1, 4, 50):
        part = rows.part(torch.arange(count))
        found = program(part.ids, part.floats, *part.lists[0][:2])
        torch.testing.assert_close(found, model(*part.given), rtol=1e-5, atol=1e-5)
