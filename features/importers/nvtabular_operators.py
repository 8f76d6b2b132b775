"""What each operator of an NVTabular graph becomes: a function a kind, and ours for those that are not taken over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from features.errors import DataError
from features.importers.base import field, number, numbers, scale_of
from features.importers.nvtabular_categories import ImportedCategories, read_categories
from features.operators.base import Configured
from features.operators.clip import Clip
from features.operators.drop_nulls import DropNulls
from features.operators.fill_missing import Fill, FillMissing
from features.operators.log import Log
from features.operators.min_max import MinMax, Range
from features.operators.normalize import Normalize
from features.operators.rename import Rename

EQUIVALENTS = {
    "Bucketize": "bucketize (its ids start at 1, with 0 for null; NVTabular's at 0)",
    "HashBucket": "hash_bucket (another hash, so its ids cannot be kept)",
    "HashedCross": "hashed_cross",
    "TargetEncoding": "folded_target_encoding, fitted again",
    "JoinGroupby": "join_groupby, fitted again",
    "JoinExternal": "join_external",
    "DifferenceLag": "difference_lag",
    "Groupby": "groupby_to_sequence, or rolling for statistics",
    "ListSlice": "list_slice",
    "LambdaOp": "lambda_function with a registered function, or expression",
    "UDF": "lambda_function with a registered function, or expression",
    "Filter": "filter",
    "Subgraph": "the steps of the subgraph, one after the other",
    "DropLowCardinality": "leave the columns out",
    "ReduceDtypeSize": "cast",
}


class Steps(Protocol):
    """Where the functions put their steps. altered: columns with other values than the raw ones. lists: of lists.

    problems: what cannot be taken over. notes: what differs. where: for messages.
    """

    folder: Path
    where: str
    problems: list[str]
    notes: list[str]
    altered: set[str]
    lists: set[str]

    def step(self, operator: Configured, state: Any = None) -> None:
        """Add a step, with its state if it has one."""


def _fill(builder: Steps, names: list[str], node: dict[str, Any], values: dict[str, float]) -> list[str]:
    where = f"{builder.where}: node {node['id']}"
    flagged = field(field(node, "op_params", dict, where), "add_binary_cols", bool, where)
    for name in names:
        if name not in values:
            raise DataError(f"{where}: no fill for column {name!r}; the workflow was not fitted.")
        operator = FillMissing(name, "all" if flagged else "none", "constant", values[name])
        # NVTabular keeps no count of the nulls at fit.
        builder.step(operator, Fill(values[name], flagged, 0.0))
    if flagged:
        builder.step(Rename({f"{name}_na": f"{name}_filled" for name in names}))
        builder.notes.append("indicators are float32 0 and 1 (NVTabular: bool), their names are kept")
    builder.notes.append("filled columns are float32 (NVTabular: their own type), and null rates at fit are not known")
    return [*names, *(f"{name}_filled" for name in names if flagged)]


def _fill_missing(builder: Steps, node: dict[str, Any], names: list[str]) -> list[str]:
    value = field(node, "op_params", dict, f"{builder.where}: node {node['id']}").get("fill_val")
    if isinstance(value, str):
        builder.problems.append(f"FillMissing of {', '.join(names)} by text {value!r} (ours: expression)")
        return names
    filled = number(value, f"{builder.where}: node {node['id']}: fill_val")
    return _fill(builder, names, node, dict.fromkeys(names, filled))


def _fill_median(builder: Steps, node: dict[str, Any], names: list[str]) -> list[str]:
    return _fill(builder, names, node, numbers(node.get("op_state"), "medians", f"{builder.where}: node {node['id']}"))


def _normalize(builder: Steps, node: dict[str, Any], names: list[str]) -> list[str]:
    where = f"{builder.where}: node {node['id']}"
    means, stds = (numbers(node.get("op_state"), name, where) for name in ("means", "stds"))
    for name in names:
        if name not in means or name not in stds:
            raise DataError(f"{where}: no mean and deviation for column {name!r}; the workflow was not fitted.")
        builder.step(Normalize(name), scale_of(means[name], stds[name], f"{where}: {name!r}"))
    return names


def _min_max(builder: Steps, node: dict[str, Any], names: list[str]) -> list[str]:
    where = f"{builder.where}: node {node['id']}"
    lows, highs = (numbers(node.get("op_state"), name, where) for name in ("mins", "maxs"))
    for name in names:
        if name not in lows or name not in highs:
            raise DataError(f"{where}: no range for column {name!r}; the workflow was not fitted.")
        if not lows[name] < highs[name]:
            builder.problems.append(f"NormalizeMinMax of {name}, which was constant (ours: leave it out)")
        builder.step(MinMax(name), Range(lows[name], highs[name]))
    return names


def _clip(builder: Steps, node: dict[str, Any], names: list[str]) -> list[str]:
    params = field(node, "op_params", dict, f"{builder.where}: node {node['id']}")
    bounds = [
        None if params.get(key) is None else number(params[key], f"{builder.where}: node {node['id']}: {key}")
        for key in ("min_value", "max_value")
    ]
    for name in names:
        builder.step(Clip(name, *bounds))
    return names


def _log(builder: Steps, node: dict[str, Any], names: list[str]) -> list[str]:
    for name in names:
        builder.step(Log(name))
    builder.notes.append(
        "log(1 + x) is taken in float64 and rounded once (NVTabular: x + 1 is rounded to float32 first), and a value "
        "of -1 or less is an error (NVTabular: NaN or -infinity)"
    )
    return names


def _drop_nulls(builder: Steps, node: dict[str, Any], names: list[str]) -> list[str]:
    builder.step(DropNulls(names))
    return []


def _rename(builder: Steps, node: dict[str, Any], names: list[str]) -> list[str]:
    params = field(node, "op_params", dict, f"{builder.where}: node {node['id']}")
    postfix, name = params.get("postfix"), params.get("name")
    if params.get("f") is not None:
        builder.problems.append(f"Rename of {', '.join(names)} by a function (ours: rename with the new names)")
        return names
    new = [old + postfix for old in names] if isinstance(postfix, str) and postfix else [str(name or "")]
    if len(new) != len(names) or not all(new):
        raise DataError(f"{builder.where}: node {node['id']} renames {names} with {params}.")
    builder.step(Rename(dict(zip(names, new, strict=True))))
    for kept in (builder.altered, builder.lists):
        kept |= {after for before, after in zip(names, new, strict=True) if before in kept}
    return new


def _categorify(builder: Steps, node: dict[str, Any], names: list[str]) -> list[str]:
    where = f"{builder.where}: node {node['id']}"
    changed = [name for name in names if name in builder.altered]
    if changed:
        builder.problems.append(
            f"Categorify of {', '.join(changed)} after other steps changed them (ours: these steps give float32, so "
            "fit Categorify again after them)"
        )
    found: ImportedCategories = read_categories(builder.folder, node, names, builder.lists, where)
    builder.problems += found.problems
    builder.notes += found.notes
    for operator, vocabulary in found.steps:
        builder.step(operator, vocabulary)
    return [name for operator, _ in found.steps for name in operator.outputs]


HANDLERS: dict[str, Callable[[Steps, dict[str, Any], list[str]], list[str]]] = {
    "Categorify": _categorify,
    "Clip": _clip,
    "Dropna": _drop_nulls,
    "FillMedian": _fill_median,
    "FillMissing": _fill_missing,
    "LogOp": _log,
    "Normalize": _normalize,
    "NormalizeMinMax": _min_max,
    "Rename": _rename,
}
