"""A fitted NVTabular workflow as one of ours, from the folder that its `Workflow.save` wrote.

Read is the JSON format of NVTabular's development head of March 2026: `graph.json` and `artifacts/node_<id>/`, as
`nvtabular/workflow/graph_serializer.py` writes them (commit 3f36db8387c6, format_version 1). Earlier versions pickled
the workflow; a pickle runs whatever is in it, so those are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from features.errors import UNREADABLE, DataError
from features.importers.base import Imported, field, read_json
from features.importers.nvtabular_operators import EQUIVALENTS, HANDLERS
from features.operators.base import Configured
from features.workflow import DTYPES, Workflow

GRAPH, PICKLE = "graph.json", "workflow.pkl"
PASSING = ("SelectionOp", "ConcatColumns", "AddMetadata")
SPELLED = {"boolean": "bool", "str": "string", "object": "string"}  # merlin's names of types where ours differ
RAW = -1  # the version of a column that no step has changed


def import_nvtabular(folder: Path) -> Imported:
    """The workflow in a folder, fitted; every id, fill and scale as NVTabular would give it.

    Errors (`DataError`): a folder without `graph.json` (with one of a pickle: what can be read of it); operators that
    are not taken over, all of them in one message with ours; a graph that reads a column after changing it in
    another branch; anything damaged.
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
    """The nodes, parents first, else by id."""
    nodes = {field(node, "id", int, where): node for node in field(graph, "nodes", list, where)}
    if len(nodes) != len(graph["nodes"]):
        raise DataError(f"{where}: a node's id is there twice.")
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for number_, node in nodes.items():
        before = field(node, "parent_ids", list, where) + field(node, "dependency_ids", list, where)
        if not all(isinstance(parent, int) and parent in nodes for parent in before):
            raise DataError(f"{where}: node {number_} follows nodes {before}, which are not all there.")
        sorter.add(number_, *before)
    try:
        sorter.prepare()
    except CycleError as error:
        raise DataError(f"{where}: nodes follow each other in a circle.") from error
    ordered: list[int] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        ordered += ready
        sorter.done(*ready)
    return [nodes[number_] for number_ in ordered]


@dataclass
class _Waiting:
    """A node whose step is still to be made. reads: columns and their versions. writes: columns that it overwrites."""

    node: dict[str, Any]
    kind: str
    reads: dict[str, int]
    writes: set[str]


class _Builder:
    """Puts the graph's operators one after the other.

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
        names, outputs = self._schema(node, "input_schema"), list(self._schema(node, "output_schema"))
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
            self.problems.append(f"{kind} of {', '.join(names)} (ours: {EQUIVALENTS.get(kind, 'none')})")
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

    def _schema(self, node: dict[str, Any], name: str) -> dict[str, dict[str, Any]]:
        if node.get(name) is None:
            raise DataError(f"{self.where}: node {node['id']} has no {name}; the workflow was not fitted.")
        where = f"{self.where}: node {node['id']}"
        return {field(entry, "name", str, where): entry for entry in field(node, name, list, where)}

    def _raw(self, name: str, entry: dict[str, Any]) -> None:
        dtype = entry.get("dtype")
        spelled = str(dtype.get("name")) if isinstance(dtype, dict) else ""
        if entry.get("is_list"):
            self.lists.add(name)
        elif SPELLED.get(spelled, spelled) in DTYPES:
            self.dtypes[name] = SPELLED.get(spelled, spelled)

    def step(self, operator: Configured, state: Any = None) -> None:
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
