"""The kernel that a device picks against the reference: large batches, and tables of more than 2^31 words."""

import numpy as np
import pytest
import torch

from gigabatch.models.kernels import kernel
from gigabatch.models.kernels.row_update.rules import RowRule
from tests.devices import require_memory
from tests.models.kernels import cases

SHAPES = [(30_000, 16), (2000, 64), (200, 8), (3, 3)]
WIDTH = sum(width for _, width in SHAPES)
ROWS = {"cpu": 3000, "cuda": 819_200}


@pytest.mark.parametrize("kind", ["uniform", "zipf"])
def test_a_large_batch_is_looked_up_as_by_the_reference(any_device, kind):
    random = np.random.default_rng(1)
    tables = [table.to(any_device) for table in cases.tables(random, SHAPES)]
    ids = cases.ids(random, ROWS[any_device], SHAPES, kind).to(any_device)
    found, wanted = (torch.full((len(ids), WIDTH), 7.0, device=any_device) for _ in range(2))
    kernel("lookup", any_device).lookup(ids, tables, found)
    kernel("lookup", any_device, "reference").lookup(ids, tables, wanted)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("kind", ["uniform", "zipf", "one-hot"])
def test_a_large_batch_moves_rows_as_the_reference_does_in_float64(any_device, kind):
    """Within some roundings of the sum of a row's gradients, each of size 1."""
    random = np.random.default_rng(2)
    tables = [table.to(any_device) for table in cases.tables(random, SHAPES)]
    ids = cases.ids(random, ROWS[any_device], SHAPES, kind).to(any_device)
    gradient, rule = cases.gradient(random, len(ids), WIDTH).to(any_device), RowRule("sgd", lr=0.5)
    wanted, sums = [table.double() for table in tables], [torch.zeros_like(table.double()) for table in tables]
    reference = kernel("row_update", any_device, "reference")
    reference.update_rows(wanted, [rule.new_state(table) for table in wanted], ids, gradient.double(), rule)
    reference.update_rows(sums, [rule.new_state(table) for table in sums], ids, -gradient.double().abs(), rule)
    kernel("row_update", any_device).update_rows(
        tables, [rule.new_state(table) for table in tables], ids, gradient, rule
    )
    for table, expected, moved in zip(tables, wanted, sums, strict=True):
        assert bool(((table - expected).abs() <= 2e-6 + 4e-6 * moved).all())


def test_a_table_of_more_than_two_to_the_31_words(any_device):
    """Rows at both ends; a GPU's table has 8.6 GB."""
    width, rule = 64, RowRule("adagrad", lr=0.5)
    height = 1000 if any_device == "cpu" else 2**31 // width + 1000
    require_memory(any_device, 5 * height * width)
    random = np.random.default_rng(3)
    table = torch.zeros(height, width, device=any_device)
    rows = torch.cat([torch.arange(100), torch.arange(height - 400, height)])
    compact, ids = cases.tables(random, [(500, width)])[0], cases.ids(random, 4096, [(400, width)]) + 50
    table[rows.to(any_device)] = compact.to(any_device)
    there = rows[ids.long()].int().to(any_device)  # row 50 of 500 to row 449

    found = torch.empty(4096, width, device=any_device)
    kernel("lookup", any_device).lookup(there, [table], found)
    assert torch.equal(found.cpu(), compact[ids[:, 0].long()])

    gradient = cases.gradient(random, 4096, width)
    wanted = [compact.double()]
    kernel("row_update", "cpu", "reference").update_rows(
        wanted, [rule.new_state(wanted[0])], ids, gradient.double(), rule
    )
    kernel("row_update", any_device).update_rows([table], [rule.new_state(table)], there, gradient.to(any_device), rule)
    torch.testing.assert_close(table[rows.to(any_device)].cpu().double(), wanted[0], rtol=2e-5, atol=2e-6)
    assert torch.equal(table[:50].cpu(), compact[:50]), "rows that no id names"
    assert torch.equal(table[-50:].cpu(), compact[-50:])
    assert not table[100 : height - 400].any()
