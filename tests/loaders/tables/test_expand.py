"""`expand`: positives and their negatives as one batch, against a loop; the page's examples run."""

import re
from pathlib import Path

import pytest
import torch

from gigabatch.features.schema import IdColumn, Target, TensorSchema
from gigabatch.loaders.batches.dataset import BatchDataset
from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.negatives.draws import expand
from gigabatch.loaders.tables.packed import Batch, PackedTable

PAGE = Path(__file__).parents[3] / "docs" / "loading.md"


def test_expand_puts_each_positive_before_its_negatives():
    num_rows, num_negatives = 5, 3
    generator = torch.Generator().manual_seed(0)
    batch = Batch(
        ids=torch.randint(0, 9, (num_rows, 4), generator=generator, dtype=torch.int32),
        floats=torch.randn(num_rows, 2, generator=generator),
        targets=(torch.ones(num_rows),),
        weight=torch.rand(num_rows, generator=generator),
        group=torch.zeros(num_rows, dtype=torch.int32),
    )
    before = batch.ids.clone()
    negatives = torch.arange(100, 100 + num_rows * num_negatives, dtype=torch.int32).view(num_rows, num_negatives)
    positions = torch.arange(70, 70 + num_rows)
    out = expand(batch, negatives, item_column=2, positions=positions)
    assert torch.equal(batch.ids, before)
    assert out.num_rows == num_rows * (1 + num_negatives)
    for row in range(num_rows):
        for k in range(1 + num_negatives):
            at = row * (1 + num_negatives) + k
            ids = batch.ids[row].tolist()
            if k:
                ids[2] = negatives[row, k - 1].item()
            assert out.ids[at].tolist() == ids
            assert out.floats[at].tolist() == batch.floats[row].tolist()
            assert out.weight[at] == batch.weight[row]
            assert out.group[at].item() == 70 + row
            assert out.targets[0][at].item() == (k == 0)
    assert (out.ids.dtype, out.group.dtype, out.targets[0].dtype) == (torch.int32, torch.int32, torch.float32)


@pytest.mark.parametrize("num_rows", [0, 1])
def test_expand_of_few_rows_shares_no_memory_with_the_batch(num_rows):
    batch = Batch(torch.ones((num_rows, 2), dtype=torch.int32), torch.ones((num_rows, 0)), ())
    negatives = torch.full((num_rows, 2), 7, dtype=torch.int32)
    out = expand(batch, negatives, 0, torch.arange(num_rows))
    assert out.ids.tolist() == [[1, 1], [7, 1], [7, 1]] * num_rows
    assert out.floats.shape == (3 * num_rows, 0)
    assert out.group.tolist() == [0, 0, 0] * num_rows
    assert out.weight is None
    out.ids.add_(1)
    out.group.add_(1)
    assert out.ids.tolist() == [[2, 2], [8, 2], [8, 2]] * num_rows
    assert out.group.tolist() == [1, 1, 1] * num_rows


def test_expand_refuses_several_targets():
    batch = Batch(torch.ones((1, 2), dtype=torch.int32), torch.ones((1, 0)), (torch.ones(1), torch.ones(1)))
    with pytest.raises(LoaderError, match="the batch has 2"):
        expand(batch, torch.ones((1, 1), dtype=torch.int32), 0, torch.arange(1))


def test_the_example_of_the_page_runs():
    generator = torch.Generator().manual_seed(0)
    columns = (IdColumn("user", 40), IdColumn("item", 300))
    schema = TensorSchema(columns, ("age",), (Target("clicked", "binary"),), has_group=True)
    users, items = (torch.randint(3, top, (500,), generator=generator, dtype=torch.int32) for top in (40, 300))
    number = torch.arange(500, dtype=torch.int32)
    table = PackedTable.from_columns(schema, [users, items], [torch.rand(500)], [torch.ones(500)], group=number)
    section = PAGE.read_text().partition("## Negatives\n")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    given = {"dataset": BatchDataset(table, 100), "table": table, "train": lambda *_: None}
    exec(block, given)
