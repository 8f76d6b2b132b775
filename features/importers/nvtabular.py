"""A fitted NVTabular workflow as one of ours, from the folder that its `Workflow.save` wrote.

Read is the JSON format of NVTabular's development head of March 2026: `graph.json` and `artifacts/node_<id>/`, as
`nvtabular/workflow/graph_serializer.py` writes them (commit 3f36db8387c6, format_version 1). Earlier versions pickled
the workflow; a pickle runs whatever is in it, so those are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from gigabatch.features.errors import UNREADABLE, DataError
from gigabatch.features.importers.base import Imported, field, number, numbers, read_json, scale_of
from gigabatch.features.importers.nvtabular_categories import read_categories, read_statistics
from gigabatch.features.operators import NVTABULAR
from gigabatch.features.operators.base import Configured
from gigabatch.features.operators.groups.join_external import JoinExternal
from gigabatch.features.operators.lists.list_slice import ListSlice
from gigabatch.features.operators.missing.drop_nulls import DropNulls
from gigabatch.features.operators.missing.fill_missing import Fill, FillMissing
from gigabatch.features.operators.numbers.clip import Clip
from gigabatch.features.operators.numbers.log import Log
from gigabatch.features.operators.numbers.min_max import MinMax, Range
from gigabatch.features.operators.numbers.normalize import Normalize
from gigabatch.features.operators.rows.rename import Rename
from gigabatch.features.workflow.workflow import DTYPES, Workflow

GRAPH, PICKLE = "graph.json", "workflow.pkl"
PASSING = ("SelectionOp", "ConcatColumns", "AddMetadata")
SPELLED = {"boolean": "bool", "str": "string", "object": "string"}  # merlin's names of types where ours differ
NO_END = 2**63 - 1  # of a ListSlice
RAW = -1  # the version of a column that no step has changed
STATISTICS = {"count": "Int32", "mean": "float32", "std": "float32", "var": "float32"}  # NVTabular's AGG_DTYPES
# Ours for the operators that are not taken over; those of another name here are in NVTABULAR.
EQUIVALENTS = {
    "Bucketize": "bucketize (its ids start at 1, with 0 for null; NVTabular's at 0)",
    "HashBucket": "hash_bucket (another hash, so its ids cannot be kept)",
    "HashedCross": "hashed_cross",
    # NVTabular draws folds by a row's place in its partition, at every transform: no row has an encoding of its own.
    "TargetEncoding": "folded_target_encoding, fitted again",
    "JoinExternal": "join_external",
    "DifferenceLag": "difference_lag",
    "Filter": "filter",
    "Subgraph": "the steps of the subgraph, one after the other",
}


def import_nvtabular(folder: str | Path) -> Imported:
    """Import a fitted NVTabular workflow; every id, fill and scale is as NVTabular would give it.

    Parameters
    ----------
    folder
        What NVTabular's `Workflow.save` wrote: `graph.json` and `artifacts/`.

    Returns
    -------
    Imported
        The fitted workflow, and what differs from NVTabular.

    Raises
    ------
    DataError
        If there is no `graph.json` (beside a pickle the message says what can be read), operators are not taken over
        (all of them in one message, with ours), a graph reads a column after changing it in another branch, or
        anything is damaged.

    Examples
    --------
    >>> import json, pathlib, tempfile
    >>> import pandas as pd
    >>> from gigabatch.features.importers.nvtabular import import_nvtabular
    >>> columns = [{"name": "price", "tags": [], "properties": {}, "dtype": {"name": "float64"}, "is_list": False}]
    >>> common = {"dependency_ids": [], "selector": {"names": ["price"], "tags": []}, "op_state": {},
    ...           "input_schema": columns, "output_schema": columns}
    >>> nodes = [
    ...     {"id": 0, "op_class": "merlin.dag.ops.selection.SelectionOp", "parent_ids": [], "op_params": {}, **common},
    ...     {"id": 1, "op_class": "nvtabular.ops.clip.Clip", "parent_ids": [0],
    ...      "op_params": {"min_value": 0, "max_value": 9}, **common},
    ... ]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     graph = {"format_version": 1, "output_node_id": 1, "nodes": nodes}
    ...     _ = (pathlib.Path(folder) / "graph.json").write_text(json.dumps(graph))
    ...     workflow = import_nvtabular(folder).workflow
    >>> workflow.transform(pd.DataFrame({"price": [-1.0, 20.0]}))["price"].tolist()
    [0.0, 9.0]
    """
    folder = Path(folder)
    where = f"NVTabular workflow {folder}"
    try:
        graph = _graph(folder, where)
        builder = _Builder(folder, where)
        for node in _in_order(graph, where):
            builder.add(node)
        return builder.finish(field(graph, "output_node_id", int, where))
    except DataError:
        raise
    except UNREADABLE as error:  # such as a number of a thousand digits
        raise DataError(f"{where}: damaged ({error}). Save it again.") from error


def _graph(folder: Path, where: str) -> dict[str, Any]:
    if not (folder / GRAPH).is_file():
        if (folder / PICKLE).is_file():
            raise DataError(_pickled(folder, where))
        raise DataError(f"{where}: there is no {GRAPH}. Give the folder that NVTabular's Workflow.save wrote.")
    graph = read_json(folder / GRAPH, where)
    if field(graph, "format_version", int, where) != 1:
        raise DataError(f"{where}: format_version {graph['format_version']}, this version reads 1.")
    return graph


def _pickled(folder: Path, where: str) -> str:
    found = sorted(str(path.relative_to(folder)) for path in folder.glob("categories/unique.*.parquet"))
    readable = (
        f" The categories are files of their own and can be read: {', '.join(found[:5])}"
        f"{f' and {len(found) - 5} more' if len(found) > 5 else ''}; docs/migrating.md shows how."
        if found
        else ""
    )
    return (
        f"{where}: saved as a pickle ({PICKLE}), which would run whatever code is in it, so it is not read. Where it "
        "was made, load it with NVTabular and write fills and scales as docs/migrating.md shows, or save it again with "
        f"a version that writes {GRAPH}.{readable}"
    )


def _in_order(graph: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """The nodes, parents first."""
    nodes = {field(node, "id", int, where): node for node in field(graph, "nodes", list, where)}
    if len(nodes) != len(graph["nodes"]):
        raise DataError(f"{where}: a node's id is there twice.")
    parents = {}
    for number_, node in sorted(nodes.items()):
        before = field(node, "parent_ids", list, where) + field(node, "dependency_ids", list, where)
        if not all(isinstance(parent, int) and parent in nodes for parent in before):
            raise DataError(f"{where}: node {number_} follows nodes {before}, which are not all there.")
        parents[number_] = before
    order = TopologicalSorter(parents)
    ready: list[int] = []
    try:
        order.prepare()
        while order.is_active():  # of those that may come next the smaller id first, so that columns keep their order
            ready += (found := sorted(order.get_ready()))
            order.done(*found)
        return [nodes[number_] for number_ in ready]
    except CycleError as error:
        raise DataError(f"{where}: nodes follow each other in a circle.") from error


@dataclass
class _Waiting:
    """A node whose step is still to be made. reads: columns and their versions. writes: columns that it overwrites."""

    node: dict[str, Any]
    kind: str
    reads: dict[str, int]
    writes: set[str]


class _Builder:
    """Puts the graph's operators one after the other; `HANDLERS` have a function for each kind of them.

    NVTabular's nodes each hold their own columns; our steps change one table. So every column has a version, the
    node that last changed it, and a node may follow only where the table holds the versions that it reads.
    """

    def __init__(self, folder: Path, where: str) -> None:
        self.folder, self.where = folder, where
        self.steps: list[Configured] = []
        self.states: dict[int, Any] = {}
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.columns: dict[int, dict[str, int]] = {}  # of each node: the version of each column that it gives
        self.waiting: list[_Waiting] = []
        self.table: dict[str, int] = {}  # the version that our table holds
        self.dtypes: dict[str, str] = {}
        self.lists: set[str] = set()
        self.altered: set[str] = set()  # columns that hold other values than the raw ones

    def add(self, node: dict[str, Any]) -> None:
        """Note what the node reads, and which columns it gives; its parents come first."""
        parents = [self.columns[parent] for parent in node["parent_ids"] + node["dependency_ids"]]
        given = {name: version for columns in parents for name, version in columns.items()}
        names, outputs = self._schema(node, "input_schema"), self.names(node, "output_schema")
        reads = {name: given.get(name, RAW) for name in names}
        for name, entry in names.items():
            if reads[name] == RAW:
                self._raw(name, entry)
        path = node.get("op_class")
        kind = "" if path is None else field(node, "op_class", str, self.where).rpartition(".")[2]
        if not kind or kind in PASSING:
            given = reads | given if parents else dict.fromkeys(outputs, RAW) | reads
            self.columns[node["id"]] = {name: given[name] for name in outputs if name in given}
            return
        if kind == "Dropna":
            self.columns[node["id"]] = {name: reads[name] for name in outputs if name in reads}
        else:
            self.columns[node["id"]] = dict.fromkeys(outputs, node["id"])
        if kind not in HANDLERS:
            self.problems.append(f"{kind} of {', '.join(names)} (ours: {(NVTABULAR | EQUIVALENTS).get(kind, 'none')})")
            return
        writes = set() if kind == "Dropna" else {*outputs, *(names if kind == "Rename" else ())}
        self.waiting.append(_Waiting(node, kind, reads, writes))

    def _run(self) -> None:
        """Make the steps of the nodes: parents first, and who reads a column before who overwrites it."""
        while self.waiting:
            ready = [item for item in self.waiting if self._has_parents(item)]
            item = next((one for one in ready if not self._spoils(one)), ready[0])
            self.waiting.remove(item)
            stale = [name for name, version in item.reads.items() if self.table.get(name, RAW) != version]
            if stale:
                self.problems.append(
                    f"{item.kind} reads {', '.join(map(repr, stale))} as it was before another branch changed it "
                    "(ours: give one of the two an output of its own)"
                )
            made = HANDLERS[item.kind](self, item.node, list(item.reads))
            if item.kind not in ("Rename", "Dropna"):
                self.altered |= set(made)
            self.table |= dict.fromkeys({*made, *item.writes}, item.node["id"])

    def _has_parents(self, item: _Waiting) -> bool:
        waiting = {other.node["id"] for other in self.waiting}
        return waiting.isdisjoint(item.reads.values())

    def _spoils(self, item: _Waiting) -> bool:
        """Whether another node that waits reads what this one overwrites, as it is now."""
        others = [other for other in self.waiting if other is not item]
        return any(
            other.reads.get(name, item.node["id"]) == self.table.get(name, RAW)
            for other in others
            for name in item.writes
        )

    def names(self, node: dict[str, Any], schema: str) -> list[str]:
        """The columns of its input_schema or output_schema."""
        return list(self._schema(node, schema))

    def _schema(self, node: dict[str, Any], name: str) -> dict[str, dict[str, Any]]:
        if node.get(name) is None:
            raise DataError(f"{self.at(node)} has no {name}; the workflow was not fitted.")
        return {field(entry, "name", str, self.at(node)): entry for entry in field(node, name, list, self.at(node))}

    def _raw(self, name: str, entry: dict[str, Any]) -> None:
        dtype = entry.get("dtype")
        spelled = str(dtype.get("name")) if isinstance(dtype, dict) else ""
        if entry.get("is_list"):
            self.lists.add(name)
        elif SPELLED.get(spelled, spelled) in DTYPES:
            self.dtypes[name] = SPELLED.get(spelled, spelled)

    def at(self, node: dict[str, Any]) -> str:
        """The node, for messages."""
        return f"{self.where}: node {node['id']}"

    def step(self, operator: Configured, state: Any = None) -> None:
        """Add a step, with its state if it has one."""
        if state is not None:
            self.states[len(self.steps)] = state
        self.steps.append(operator)

    def finish(self, output: int) -> Imported:
        if output not in self.columns:
            raise DataError(f"{self.where}: the output node {output} is not there.")
        self._run()
        outputs = self.columns[output]
        lost = [name for name, version in outputs.items() if self.table.get(name, RAW) != version]
        if lost and not self.problems:
            self.problems.append(
                f"the output keeps {', '.join(map(repr, lost))} as before a step that replaces it (ours: give that "
                "step an output of its own)"
            )
        if self.problems:
            raise DataError(f"{self.where}: not taken over: {'; '.join(self.problems)}. Nothing was written.")
        read = {name for step in self.steps for name in step.inputs} | set(outputs)
        dtypes = {name: dtype for name, dtype in self.dtypes.items() if name in read}
        workflow = Workflow(self.steps, dtypes=dtypes, outputs=outputs)
        workflow.states = self.states
        return Imported(workflow, tuple(dict.fromkeys(self.notes)))


def _fill(builder: _Builder, names: list[str], node: dict[str, Any], values: dict[str, float]) -> list[str]:
    where = builder.at(node)
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


def _fill_missing(builder: _Builder, node: dict[str, Any], names: list[str]) -> list[str]:
    value = field(node, "op_params", dict, builder.at(node)).get("fill_val")
    if isinstance(value, str):
        builder.problems.append(
            f"FillMissing of {', '.join(names)} by text {value!r} (ours: none is needed, null has an id)"
        )
        return names
    filled = number(value, f"{builder.at(node)}: fill_val")
    return _fill(builder, names, node, dict.fromkeys(names, filled))


def _fill_median(builder: _Builder, node: dict[str, Any], names: list[str]) -> list[str]:
    return _fill(builder, names, node, numbers(node.get("op_state"), "medians", builder.at(node)))


def _normalize(builder: _Builder, node: dict[str, Any], names: list[str]) -> list[str]:
    fitted = _by_column(builder, node, names, ("means", "stds"), "no mean and deviation")
    for name, (mean, std) in fitted.items():
        builder.step(Normalize(name), scale_of(mean, std, f"{builder.at(node)}: {name!r}"))
    return names


def _min_max(builder: _Builder, node: dict[str, Any], names: list[str]) -> list[str]:
    for name, (low, high) in _by_column(builder, node, names, ("mins", "maxs"), "no range").items():
        if not low < high:
            builder.problems.append(f"NormalizeMinMax of {name}, which was constant (ours: leave it out)")
        builder.step(MinMax(name), Range(low, high))
    return names


def _by_column(
    builder: _Builder, node: dict[str, Any], names: list[str], keys: tuple[str, str], lacking: str
) -> dict[str, tuple[float, float]]:
    """Two numbers of the node's state for each column."""
    where = builder.at(node)
    left, right = (numbers(node.get("op_state"), key, where) for key in keys)
    for name in names:
        if name not in left or name not in right:
            raise DataError(f"{where}: {lacking} for column {name!r}; the workflow was not fitted.")
    return {name: (left[name], right[name]) for name in names}


def _clip(builder: _Builder, node: dict[str, Any], names: list[str]) -> list[str]:
    params = field(node, "op_params", dict, builder.at(node))
    low, high = (
        None if params.get(key) is None else number(params[key], f"{builder.at(node)}: {key}")
        for key in ("min_value", "max_value")
    )
    for name in names:
        builder.step(Clip(name, low, high))
    return names


def _log(builder: _Builder, node: dict[str, Any], names: list[str]) -> list[str]:
    for name in names:
        builder.step(Log(name))
    builder.notes.append(
        "log(1 + x) is taken in float64 and rounded once (NVTabular: x + 1 is rounded to float32 first), and a value "
        "of -1 or less is an error (NVTabular: NaN or -infinity)"
    )
    return names


def _list_slice(builder: _Builder, node: dict[str, Any], names: list[str]) -> list[str]:
    where = builder.at(node)
    params = field(node, "op_params", dict, where)
    start = field(params, "start", int, where)
    end = None if params.get("end") is None else field(params, "end", int, where)
    if end is None and start > 0:  # so many from the start on
        start, end = 0, start
    end = None if end == NO_END else end
    pad: float | None = None
    if field(params, "pad", bool, where):
        pad = number(params.get("pad_value"), f"{where}: pad_value")
        pad = int(pad) if pad == int(pad) else pad  # so that ids stay whole numbers
    for name in names:
        if name not in builder.lists:
            raise DataError(f"{where}: slices column {name!r}, which holds no lists.")
        try:
            builder.step(ListSlice(name, start, end, pad=pad, separator=None))
        except DataError as error:
            builder.problems.append(f"ListSlice of {name} ({error})")
    return names


def _drop_nulls(builder: _Builder, node: dict[str, Any], names: list[str]) -> list[str]:
    builder.step(DropNulls(names))
    return []


def _rename(builder: _Builder, node: dict[str, Any], names: list[str]) -> list[str]:
    params = field(node, "op_params", dict, builder.at(node))
    postfix, name = params.get("postfix"), params.get("name")
    if params.get("f") is not None:
        builder.problems.append(f"Rename of {', '.join(names)} by a function (ours: rename with the new names)")
        return names
    new = [old + postfix for old in names] if isinstance(postfix, str) and postfix else [str(name or "")]
    if len(new) != len(names) or not all(new):
        raise DataError(f"{builder.at(node)} renames {names} with {params}.")
    builder.step(Rename(dict(zip(names, new, strict=True))))
    for kept in (builder.altered, builder.lists):
        kept |= {after for before, after in zip(names, new, strict=True) if before in kept}
    return new


def _categorify(builder: _Builder, node: dict[str, Any], names: list[str]) -> list[str]:
    where = builder.at(node)
    changed = [name for name in names if name in builder.altered]
    if changed:
        builder.problems.append(
            f"Categorify of {', '.join(changed)} after other steps changed them (ours: these steps give float32, so "
            "fit Categorify again after them)"
        )
    found = read_categories(builder.folder, node, names, builder.lists, where)
    builder.problems += found.problems
    builder.notes += found.notes
    for operator, vocabulary in found.steps:
        builder.step(operator, vocabulary)
    return [name for operator, _ in found.steps for name in operator.outputs]


def _join_groupby(builder: _Builder, node: dict[str, Any], names: list[str]) -> list[str]:
    where = builder.at(node)
    params, state = (field(node, name, dict, where) for name in ("op_params", "op_state"))
    separator = field(params, "name_sep", str, where)
    lacking = builder.names(node, "output_schema")
    made: list[str] = []
    for entry in field(state, "categories", list, where):
        table = read_statistics(builder.folder / "artifacts" / f"node_{node['id']}", entry, where)
        keys = [name for name in table.columns if name not in lacking]
        found = [name for name in table.columns if name in lacking]
        if not keys or not set(keys) <= set(names):
            raise DataError(f"{where}: statistics by {keys}, expected some of {names}. Save the workflow again.")
        changed = [name for name in keys if name in builder.altered]
        if changed:
            builder.problems.append(f"JoinGroupby by {', '.join(changed)} after other steps changed them (ours: "
                                    "join_groupby, fitted again)")  # fmt: skip
            continue
        if bool(table[keys].isna().any().any()):
            builder.problems.append(
                f"JoinGroupby by {', '.join(keys)} with statistics of null keys, which are joined there and null here "
                "(ours: join_groupby, fitted again)"
            )
            continue
        for name in found:
            if table[name].dtype.kind not in "iuf":
                raise DataError(f"{where}: statistic {name!r} holds {table[name].dtype}, expected numbers.")
            for statistic, dtype in STATISTICS.items():
                if name.endswith(separator + statistic):
                    table[name] = table[name].astype(dtype)
        builder.step(JoinExternal(table, keys, {name: name for name in found}, f"NVTabular's groups by {keys}"))
        made += found
        lacking = [name for name in lacking if name not in found]
    if lacking and not builder.problems:
        raise DataError(f"{where}: no statistics for {', '.join(map(repr, lacking))}; the workflow was not fitted.")
    builder.notes.append(
        "JoinGroupby is a table that is joined (join_external): a new fit leaves its statistics as they are, and "
        "counts of unseen keys are null (NVTabular: an error on pandas)"
    )
    return made


HANDLERS: dict[str, Callable[[_Builder, dict[str, Any], list[str]], list[str]]] = {
    "Categorify": _categorify,
    "Clip": _clip,
    "Dropna": _drop_nulls,
    "FillMedian": _fill_median,
    "FillMissing": _fill_missing,
    "JoinGroupby": _join_groupby,
    "ListSlice": _list_slice,
    "LogOp": _log,
    "Normalize": _normalize,
    "NormalizeMinMax": _min_max,
    "Rename": _rename,
}
