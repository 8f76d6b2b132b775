"""Packed tables: the row layout, views, and errors that name the column."""

import math
import struct

import pytest
import torch

from gigabatch.features.schema import IdColumn, Target, TensorSchema
from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.tables.packed import CPU_BLOCK_ROWS, Batch, PackedTable

SMALL = TensorSchema(ids=(IdColumn("item", 5),), floats=("price",), targets=(Target("clicked", "binary"),))


def small_table(ids=(0, 4, 2), floats=(0.5, -1.0, 2.0), targets=(0.0, 1.0, 1.0)) -> PackedTable:
    return PackedTable.from_columns(
        SMALL, [torch.tensor(ids, dtype=torch.int32)], [torch.tensor(floats)], [torch.tensor(targets)]
    )


def bits(batch: Batch) -> list[list[int]]:
    """Every column of a batch as lists of 32-bit patterns, so that -0.0 and 0.0 differ."""
    columns = [*batch.ids.unbind(1), *batch.floats.unbind(1), *batch.targets, batch.weight, batch.group]
    return [column.contiguous().view(torch.int32).tolist() for column in columns]


def test_a_row_is_ids_floats_targets_weight_group_as_struct_packs_them(schema, make_columns):
    columns = make_columns(5)
    table = PackedTable.from_columns(schema, **columns)
    values = [*columns["ids"], *columns["floats"], *columns["targets"], columns["weight"], columns["group"]]
    for row in range(5):
        expected = struct.pack("=2i3f1f1i1f1f1i", *(column[row].item() for column in values))
        assert table.words[row].numpy().tobytes() == expected


@pytest.mark.parametrize("num_rows", [0, 1, CPU_BLOCK_ROWS - 1, CPU_BLOCK_ROWS, 2 * CPU_BLOCK_ROWS + 3])
def test_unpacking_gives_back_the_columns(schema, make_columns, num_rows):
    columns = make_columns(num_rows)
    table = PackedTable.from_columns(schema, **columns)
    batch = table.unpack(table.words)
    assert len(table) == table.num_rows == batch.num_rows == num_rows
    assert table.num_bytes == 4 * 10 * num_rows
    expected = Batch(torch.stack(columns["ids"], 1), torch.stack(columns["floats"], 1), tuple(columns["targets"]),
                     columns["weight"], columns["group"])  # fmt: skip
    assert [column.dtype for column in batch.targets] == [torch.float32, torch.int32, torch.float32]
    assert bits(batch) == bits(expected)


def test_every_field_of_a_batch_is_a_view_of_the_words(make_table):
    table = make_table(6)
    words = table.words.clone()
    batch = table.unpack(words)
    columns = [batch.ids, batch.floats, *batch.targets, batch.weight, batch.group]
    assert {column.untyped_storage().data_ptr() for column in columns} == {words.data_ptr()}
    offsets = [(column.data_ptr() - words.data_ptr()) // 4 for column in columns]
    assert offsets == [0, 2, 5, 6, 7, 8, 9]
    words[3, 2:5] = torch.tensor([1.5, 2.5, 3.5]).view(torch.int32)
    assert batch.floats[3].tolist() == [1.5, 2.5, 3.5]


def test_a_schema_without_weight_or_group_gives_none():
    batch = small_table().unpack(small_table().words)
    assert batch.weight is None
    assert batch.group is None
    assert batch.to("cpu").weight is None


def test_columns_may_be_strided_read_only_views():
    frame = torch.arange(12, dtype=torch.float32).reshape(4, 3)
    schema = TensorSchema(ids=(), floats=("a", "b"), targets=())
    table = PackedTable.from_columns(schema, [], [frame[:, 0], frame[:, 2]], [])
    assert table.unpack(table.words).floats.tolist() == [[0, 2], [3, 5], [6, 8], [9, 11]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": (0, 5, 2)}, r"id column 'item': 1 of 3 rows .* 5 in row 1; ids must be in \[0, 5\)"),
        ({"ids": (0, 0, -1)}, r"id column 'item': 1 of 3 rows .* -1 in row 2"),
        (
            {"floats": (math.nan, 1.0, math.nan)},
            r"float column 'price': 2 of 3 rows .* nan in row 0; values must be fin",
        ),
        ({"floats": (0.0, math.inf, 1.0)}, r"float column 'price': 1 of 3 .* inf in row 1"),
        ({"floats": (0.0, 1.0, -math.inf)}, r"float column 'price': 1 of 3 .* -inf in row 2"),
        ({"targets": (0.0, math.nan, 1.0)}, r"binary target 'clicked': 1 of 3 .* nan in row 1; .* drop rows without"),
        ({"targets": (0.0, 2.0, 1.0)}, r"binary target 'clicked': 1 of 3 .* 2.0 in row 1; labels must be 0 or 1"),
        (
            {"targets": (0.0, 0.5, 0.25)},
            r"'clicked': 2 of 3 .* 0.5 in row 1; .*make a share a regression target",
        ),
        ({"targets": (0.0, 1e-40, 1.0)}, r"'clicked': 1 of 3 .* in row 1; labels must be 0 or 1"),
    ],
)
def test_a_bad_value_is_refused_with_column_row_and_value(change, message):
    with pytest.raises(LoaderError, match=message):
        small_table(**change)


@pytest.mark.parametrize(
    ("name", "at", "value", "message"),
    [
        ("targets", 1, 4, r"multiclass target 'cause': .* 4 in row 2; classes must be in \[0, 4\)"),
        ("targets", 1, -1, "multiclass target 'cause': .* -1 in row 2"),
        ("targets", 2, math.nan, "regression target 'delay': .* nan in row 2"),
        ("weight", None, -0.5, "weight: 1 of 4 rows .* -0.5 in row 2; weights must be finite and not negative"),
        ("weight", None, math.inf, "weight: .* inf in row 2"),
    ],
)
def test_a_bad_target_or_weight_is_refused(schema, make_columns, name, at, value, message):
    columns = make_columns(4)
    column = columns[name] if at is None else columns[name][at]
    column[2] = value
    with pytest.raises(LoaderError, match=message):
        PackedTable.from_columns(schema, **columns)


@pytest.mark.parametrize(
    ("name", "at", "replace", "message"),
    [
        ("ids", 1, lambda c: c.long(), "id column 'city': expected torch.int32, found torch.int64. Cast it"),
        ("floats", 0, lambda c: c.double(), "float column 'price': expected torch.float32, found torch.float64"),
        ("targets", 1, lambda c: c.float(), "multiclass target 'cause': expected torch.int32, found torch.float32"),
        ("floats", 2, lambda c: c[:-1], "float column 'distance': 3 rows, the first column has 4"),
        ("ids", 1, lambda c: c[:, None], r"id column 'city': expected one dimension, found shape \(4, 1\)"),
        ("floats", 1, lambda c: c.to("meta"), "float column 'age': on meta, the first column is on cpu"),
    ],
)
def test_a_column_of_the_wrong_form_is_refused(schema, make_columns, name, at, replace, message):
    columns = make_columns(4)
    columns[name][at] = replace(columns[name][at])
    with pytest.raises(LoaderError, match=message):
        PackedTable.from_columns(schema, **columns)


def test_a_wrong_number_of_columns_is_refused(schema, make_columns):
    columns = make_columns(4)
    with pytest.raises(LoaderError, match=r"3 column\(s\) of floats, 2 were given"):
        PackedTable.from_columns(schema, **{**columns, "floats": columns["floats"][:2]})
    with pytest.raises(LoaderError, match=r"1 column\(s\) of weight, 0 were given"):
        PackedTable.from_columns(schema, **{**columns, "weight": None})
    with pytest.raises(LoaderError, match="the schema has no columns"):
        PackedTable.from_columns(TensorSchema((), (), ()), [], [], [])


def test_a_matrix_that_does_not_fit_the_schema_is_refused():
    with pytest.raises(LoaderError, match="rows have 4 words and the schema asks for 3"):
        PackedTable(torch.zeros((2, 4), dtype=torch.int32), SMALL)
    with pytest.raises(LoaderError, match=r"contiguous int32 matrix, found torch.float32 of shape \(2, 3\)"):
        PackedTable(torch.zeros((2, 3)), SMALL)
    with pytest.raises(LoaderError, match="contiguous"):
        PackedTable(torch.zeros((3, 2), dtype=torch.int32).T, SMALL)


def test_a_table_is_packed_and_moved_on_any_device_with_the_same_words(schema, make_columns, make_table, any_device):
    on_cpu = make_table(20_000)
    columns = make_columns(20_000)
    moved = {
        name: [part.to(any_device) for part in column] if isinstance(column, list) else column.to(any_device)
        for name, column in columns.items()
    }
    assert torch.equal(PackedTable.from_columns(schema, **moved).words.cpu(), on_cpu.words)
    assert torch.equal(PackedTable.from_columns(schema, **columns, device=any_device).words.cpu(), on_cpu.words)
    assert bits(on_cpu.to(any_device).unpack(on_cpu.words.to(any_device)).to("cpu")) == bits(
        on_cpu.unpack(on_cpu.words)
    )
