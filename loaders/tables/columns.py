"""What each column of a packed table must look like, and the check of all of them with one wait for the device."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gigabatch.features.schema import LARGEST_WEIGHT, Target, TensorSchema
from gigabatch.loaders.errors import LoaderError

FLOAT32_MAX = torch.finfo(torch.float32).max
INT32 = torch.iinfo(torch.int32)


@dataclass(frozen=True)
class ColumnSpec:
    """One column: every value must be of `dtype` and in [low, high], or with `ends_only` one of the two; `rule` says so
    in words."""

    label: str
    dtype: torch.dtype
    low: float
    high: float
    rule: str
    ends_only: bool = False


def column_specs(schema: TensorSchema) -> list[ColumnSpec]:
    """One specification per word of a row but those of lists, in row order."""
    if schema.num_words == 0:
        raise LoaderError("packed table: the schema has no columns. Give it at least one id, float or target.")
    specs = [
        _int_spec(f"id column {column.name!r}", 0, column.num_ids - 1, f"ids must be in [0, {column.num_ids})")
        for column in schema.ids
    ]
    specs += [_float_spec(f"float column {name!r}", "fill or drop such values first") for name in schema.floats]
    specs += [_target_spec(target) for target in schema.targets]
    if schema.has_weight:
        rule = "weights must be finite and not negative, and at most 2^64, since only their ratios count"
        specs.append(ColumnSpec("weight", torch.float32, 0.0, LARGEST_WEIGHT, rule))
    if schema.has_group:
        specs.append(_int_spec("group", INT32.min, INT32.max, "groups must be int32"))
    return specs


def check_columns(specs: Sequence[ColumnSpec], columns: Sequence[Tensor]) -> None:
    """Raise `LoaderError` naming the first column whose form or values do not fit its specification."""
    for spec, column in zip(specs, columns, strict=True):
        _check_form(spec, column, columns[0])
    if columns[0].shape[0] == 0:
        return
    # One pass a column and one wait in all: a NaN anywhere makes both ends NaN, an infinity shows as an end.
    ends = [end.to(torch.float64) for column in columns for end in torch.aminmax(column)]
    between = [
        ((column > spec.low) & (column < spec.high)).any().to(torch.float64)
        for spec, column in zip(specs, columns, strict=True)
        if spec.ends_only
    ]
    found = torch.stack([*ends, *between]).tolist()
    others = iter(found[len(ends) :])
    for spec, column, low, high in zip(specs, columns, found[: len(ends) : 2], found[1 : len(ends) : 2], strict=True):
        if not (spec.low <= low and high <= spec.high) or (spec.ends_only and next(others)):
            raise _bad_values(spec, column)


def require_same_schema(expected: TensorSchema, found: TensorSchema, where: str) -> None:
    """Raise `LoaderError` naming the first part in which two schemas differ."""
    for part in ("ids", "floats", "targets", "has_weight", "has_group", "lists"):
        wanted, got = getattr(expected, part), getattr(found, part)
        if wanted != got:
            raise LoaderError(f"{where}: {part} differ. Expected {wanted}, found {got}. Pack all with one schema.")


def _int_spec(label: str, low: int, high: int, rule: str) -> ColumnSpec:
    return ColumnSpec(label, torch.int32, low, high, rule)


def _float_spec(label: str, advice: str) -> ColumnSpec:
    return ColumnSpec(label, torch.float32, -FLOAT32_MAX, FLOAT32_MAX, f"values must be finite; {advice}")


def _target_spec(target: Target) -> ColumnSpec:
    label = f"{target.task} target {target.name!r}"
    if target.task == "multiclass":
        return _int_spec(label, 0, target.num_outputs - 1, f"classes must be in [0, {target.num_outputs})")
    if target.task == "binary":
        rule = "labels must be 0 or 1; drop rows without a label first, and make a share a regression target"
        return ColumnSpec(label, torch.float32, 0.0, 1.0, rule, ends_only=True)
    return _float_spec(label, "drop rows without a label first")


def _check_form(spec: ColumnSpec, column: Tensor, first: Tensor) -> None:
    if column.dim() != 1:
        raise LoaderError(f"{spec.label}: expected one dimension, found shape {tuple(column.shape)}.")
    if column.dtype != spec.dtype:
        raise LoaderError(f"{spec.label}: expected {spec.dtype}, found {column.dtype}. Cast it before packing.")
    if column.shape != first.shape:
        raise LoaderError(f"{spec.label}: {column.shape[0]} rows, the first column has {first.shape[0]}.")
    if column.device != first.device:
        raise LoaderError(f"{spec.label}: on {column.device}, the first column is on {first.device}. Use one device.")


def _bad_values(spec: ColumnSpec, column: Tensor) -> LoaderError:
    """The error for a column known to hold a bad value; looks for the first one."""
    bad = ~((column >= spec.low) & (column <= spec.high))
    if spec.ends_only:
        bad |= (column > spec.low) & (column < spec.high)
    row = int(bad.to(torch.uint8).argmax())
    return LoaderError(
        f"{spec.label}: {int(bad.sum())} of {column.shape[0]} rows are out of range, the first is {column[row].item()} "
        f"in row {row}; {spec.rule}."
    )
