"""Embedding tables: widths, lookup against a slow loop, initial weights."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ListInputs
from gigabatch.models.layers.embeddings import EmbeddingTables, embedding_width
from tests.examples import examples


@pytest.mark.parametrize(
    ("num_ids", "width"),
    # Computed by fastai 2.8.12's emb_sz_rule.
    [(1, 2), (2, 2), (3, 3), (7, 5), (40, 13), (56, 15), (1000, 77), (27842, 493), (100_000, 600), (10**9, 600)],
)
def test_width_follows_fastais_rule(num_ids, width):
    assert embedding_width(num_ids) == width


def test_a_column_without_ids_has_no_width():
    with pytest.raises(ModelError, match="at least one id, not 0"):
        embedding_width(0)


@settings(max_examples=examples(30))
@given(
    sizes=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5)), min_size=1, max_size=4),
    num_rows=st.integers(0, 6),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    seed=st.integers(0, 2**31),
)
def test_lookup_concatenates_one_row_of_each_table_in_column_order(sizes, num_rows, dtype, seed):
    torch.manual_seed(seed)
    tables = EmbeddingTables(*zip(*sizes, strict=True))
    ids = torch.stack([torch.randint(rows, (num_rows,)) for rows, _ in sizes], dim=1).to(dtype)
    weights = [table.detach().numpy() for table in tables.tables]
    expected = [np.concatenate([w[i] for w, i in zip(weights, row, strict=True)]) for row in ids.tolist()]
    found = tables(ids).detach().numpy()
    assert found.shape == (num_rows, tables.width)
    np.testing.assert_array_equal(found, np.reshape(expected, found.shape))


def test_initial_weights_are_a_folded_normal_of_scale_one_hundredth():
    torch.manual_seed(0)
    weights = EmbeddingTables([50_000], [20]).tables[0].detach()
    assert weights.abs().max() < 0.02
    # x - 2 trunc(x / 2) for a standard normal x has variance 0.7498 (integrated numerically).
    assert weights.std().item() == pytest.approx(0.01 * 0.7498**0.5, rel=5e-3)
    assert abs(weights.mean().item()) < 5e-5


def test_the_padding_row_is_trained_like_any_other():
    tables = EmbeddingTables([4], [3])
    assert tables.tables[0][0].abs().sum() > 0
    tables(torch.zeros(2, 1, dtype=torch.int32)).sum().backward()
    torch.testing.assert_close(tables.tables[0].grad[0], torch.full((3,), 2.0))


@settings(max_examples=examples(20))
@given(num_rows=st.integers(1, 40), dtype=st.sampled_from([torch.int32, torch.int64]), seed=st.integers(0, 1000))
def test_rows_keep_the_ids_and_gradients_from_which_dense_gradients_can_be_built(num_rows, dtype, seed):
    torch.manual_seed(seed)
    dense, rows = EmbeddingTables([9, 5], [3, 2]), EmbeddingTables([9, 5], [3, 2], "rows")
    rows.load_state_dict(dense.state_dict())
    ids = torch.stack([torch.randint(size, (num_rows,)) for size in (9, 5)], dim=1).to(dtype)
    assert torch.equal(rows(ids), dense(ids))
    for tables in (dense, rows):
        tables(ids).sin().sum().backward()
    ((kept, gradient, *_),) = rows.row_gradients
    assert kept.dtype == torch.int32
    assert torch.equal(kept, ids.int())
    for column, (table, part) in enumerate(zip(dense.tables, gradient.split([3, 2], 1), strict=True)):
        assert rows.tables[column].grad is None
        torch.testing.assert_close(torch.zeros_like(table).index_add_(0, ids[:, column].long(), part), table.grad)


def test_evaluation_keeps_no_gradients():
    tables = EmbeddingTables([4], [3], "rows")
    with torch.no_grad():
        assert not tables(torch.zeros(2, 1, dtype=torch.int32)).requires_grad
    assert tables.row_gradients == []


def test_gradients_are_forgotten_when_asked_and_when_their_kind_changes():
    tables = EmbeddingTables([4], [3], "rows")
    for forget in (tables.forget_gradients, lambda: setattr(tables, "gradients", "dense")):
        tables(torch.zeros(2, 1, dtype=torch.int32)).sum().backward()
        assert len(tables.row_gradients) == 1
        forget()
        assert tables.row_gradients == []


def test_an_unknown_kind_of_gradients_lists_the_known_ones():
    with pytest.raises(ModelError, match=r"unknown kind of embedding gradients 'sparse'. Known: dense, rows"):
        EmbeddingTables([4], [3], "sparse")


@pytest.mark.parametrize("gradients", ["dense", "rows"])
@pytest.mark.parametrize("bad", [4, -1])
def test_an_id_outside_its_table_is_an_error(gradients, bad):
    with pytest.raises(IndexError):
        EmbeddingTables([4], [3], gradients)(torch.tensor([[bad]]))


@pytest.mark.parametrize("gradients", ["dense", "rows"])
@pytest.mark.parametrize("bad", [2**32 + 3, -(2**32) + 3, 2**31, 2**63 - 1, -(2**63)])
def test_an_id_that_int32_does_not_hold_is_an_error_and_no_other_row(gradients, bad):
    """Cast to int32, 2^32 + 3 was row 3."""
    with pytest.raises(IndexError):
        EmbeddingTables([5], [3], gradients)(torch.tensor([[bad]]))


@pytest.mark.parametrize("shape", [(3, 1), (3, 3), (3,)])
def test_ids_must_have_one_column_for_each_table(shape):
    with pytest.raises(ModelError, match=r"ids must be \[rows, 2\]"):
        EmbeddingTables([4, 4], [3, 3])(torch.zeros(shape, dtype=torch.int64))


@pytest.mark.parametrize("kind", [torch.float32, torch.bool])
@pytest.mark.parametrize("gradients", ["dense", "rows"])
def test_ids_that_are_no_integers_are_refused(gradients, kind):
    """Cast to int32, 2.7 was row 2."""
    with pytest.raises(ModelError, match=f"embedding tables: ids must be whole numbers, found {kind}"):
        EmbeddingTables([4], [3], gradients)(torch.tensor([[2.7]]).to(kind))


def test_widths_must_match_the_columns():
    with pytest.raises(ModelError, match="2 id columns but 1 widths"):
        EmbeddingTables([4, 4], [3])


def test_lookup_on_any_device_equals_the_cpu(any_device):
    torch.manual_seed(2)
    tables = EmbeddingTables([9, 5], [3, 2])
    ids = torch.randint(5, (100, 2), dtype=torch.int32)
    expected = tables(ids)
    torch.testing.assert_close(tables.to(any_device)(ids.to(any_device)).cpu(), expected, rtol=0, atol=0)


def some_lists(weights=None):
    return JaggedColumn(torch.tensor([1, 0, 2, 1], dtype=torch.int32), torch.tensor([0, 3, 3, 4]), weights)


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_tables_that_were_converted_are_looked_up_as_with_dense_gradients(kind):
    """A trained model, whose gradients are `rows`, ended with a bare assertion after `double`."""
    torch.manual_seed(0)
    tables = EmbeddingTables([5, 4], [3, 2], "rows", lists=(ListInputs(4, shares=1),))
    ids, lists = torch.tensor([[1, 3], [0, 2], [4, 0]]), [some_lists()]
    expected = torch.cat([tables.tables[0][ids[:, 0]], tables.tables[1][ids[:, 1]]], dim=1)
    rows = tables.tables[1].detach()
    pooled = torch.stack([(rows[1] + rows[0] + rows[2]) / 3, torch.zeros(2), rows[1]])
    expected = torch.cat([expected, pooled], dim=1).to(kind)
    tables.to(kind)
    close = {"rtol": 2e-2, "atol": 1e-4} if kind == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-7}
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            torch.testing.assert_close(tables(ids, lists), expected, **close)


def test_weights_of_lists_in_any_memory_are_the_same():
    tables = EmbeddingTables([], [2], "rows", lists=(ListInputs(4, weighted=True),))
    ids, column = torch.empty(3, 0, dtype=torch.int64), some_lists(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    strided = JaggedColumn(*(torch.stack([part, part], dim=1)[:, 0] for part in column))
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            torch.testing.assert_close(tables(ids, [strided]), tables(ids, [column]), rtol=0, atol=0)


def test_weights_of_lists_of_another_type_are_refused():
    column = some_lists(torch.ones(4, dtype=torch.float64))
    for gradients in ("dense", "rows"):
        tables = EmbeddingTables([], [2], gradients, lists=(ListInputs(4, weighted=True),))
        with pytest.raises(ModelError, match=r"weights of lists must be torch\.float32, found torch\.float64"):
            tables(torch.empty(3, 0, dtype=torch.int64), [column])


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("gradients", ["dense", "rows"])
def test_weights_of_lists_get_their_gradient_or_are_refused(gradients, frozen):
    """Where rows are moved they got none, without a word."""
    tables = EmbeddingTables([], [2], gradients, lists=(ListInputs(4, weighted=True),), pooling="sum")
    tables.requires_grad_(not frozen)
    column = some_lists(torch.ones(4, requires_grad=True))
    ids = torch.empty(3, 0, dtype=torch.int64)
    if gradients == "rows" and not frozen:
        with pytest.raises(ModelError, match="weights of lists that ask for a gradient would get none"):
            tables(ids, [column])
        return
    tables(ids, [column]).sum().backward()
    torch.testing.assert_close(column.weights.grad, tables.tables[0].detach()[column.ids.long()].sum(1))
