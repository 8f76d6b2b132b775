"""Folders as NVTabular's Workflow.save writes them, written by hand.

The JSON follows `serialize_graph` and `_serialize_node` of nvtabular/workflow/graph_serializer.py at commit
3f36db8387c6dbf11e6f7290a6f09f1e7023853d (format_version 1); the Parquet files follow `_save_encodings` of
nvtabular/ops/categorify.py of version 23.06 and later: a pandas frame whose RangeIndex is the ids, and a meta file.
"""

import json

import pandas as pd

CLASSES = {
    "SelectionOp": "merlin.dag.ops.selection.SelectionOp",
    "ConcatColumns": "merlin.dag.ops.concat_columns.ConcatColumns",
    "FillMissing": "nvtabular.ops.fill.FillMissing",
    "FillMedian": "nvtabular.ops.fill.FillMedian",
    "Normalize": "nvtabular.ops.normalize.Normalize",
    "NormalizeMinMax": "nvtabular.ops.normalize.NormalizeMinMax",
    "Clip": "nvtabular.ops.clip.Clip",
    "LogOp": "nvtabular.ops.logop.LogOp",
    "Dropna": "nvtabular.ops.dropna.Dropna",
    "AddMetadata": "nvtabular.ops.add_metadata.AddMetadata",
    "Rename": "nvtabular.ops.rename.Rename",
    "ListSlice": "nvtabular.ops.list_slice.ListSlice",
    "LambdaOp": "nvtabular.ops.lambdaop.LambdaOp",
    "HashBucket": "nvtabular.ops.hash_bucket.HashBucket",
    "JoinGroupby": "nvtabular.ops.join_groupby.JoinGroupby",
    "TargetEncoding": "nvtabular.ops.target_encoding.TargetEncoding",
    "Categorify": "nvtabular.ops.categorify.Categorify",
}
CATEGORIFY = {
    "freq_threshold": 0, "cat_cache": "host", "dtype": None, "on_host": True, "encode_type": "joint", "name_sep": "_",
    "search_sorted": False, "num_buckets": None, "max_size": 0, "single_table": False,
    "cardinality_memory_limit": None, "split_out": 1, "split_every": 8,
}  # fmt: skip


def schema(names, dtype="float64", is_list=False):
    return [
        {"name": name, "tags": [], "properties": {}, "dtype": {"name": dtype}, "is_list": is_list, "is_ragged": is_list}
        for name in names
    ]


class Saved:
    """A folder to which nodes are added; `close` writes graph.json and metadata.json."""

    def __init__(self, folder):
        self.folder, self.nodes = folder, []
        folder.mkdir(parents=True, exist_ok=True)

    def node(self, op, names, parents=(), outputs=None, params=None, state=None, dtype="float64", is_list=False):
        self.nodes.append({
            "id": len(self.nodes), "op_class": None if op is None else CLASSES[op], "op_params": params or {},
            "op_state": state or {}, "parent_ids": list(parents), "dependency_ids": [],
            "selector": {"names": list(names), "tags": []}, "input_schema": schema(names, dtype, is_list),
            "output_schema": schema(names if outputs is None else outputs, dtype, is_list),
        })  # fmt: skip
        return len(self.nodes) - 1

    def select(self, *names, dtype="float64", is_list=False):
        return self.node(
            "SelectionOp", names, dtype=dtype, is_list=is_list, params={"selector": {"names": list(names)}}
        )

    def concat(self, *parents):
        names = [entry["name"] for parent in parents for entry in self.nodes[parent]["output_schema"]]
        return self.node("ConcatColumns", names, parents)

    def categorify(self, names, parent, uniques, outputs=None, storage=None, buckets=None, index=True, **params):
        """uniques: stored name -> frame of values and counts."""
        number = len(self.nodes)
        records = []
        for name, frame in uniques.items():
            path = self.folder / "artifacts" / f"node_{number}" / "categories" / f"unique.{name}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_uniques(path, frame, buckets or 1, index)
            records.append({"key": [name], "path": f"categories/unique.{name}.parquet"})
        return self.node("Categorify", names, [parent], outputs, {**CATEGORIFY, "num_buckets": buckets, **params},
                         {"categories": records, "storage_name": storage or {}})  # fmt: skip

    def join_groupby(self, names, parents, groups, values, stats, outputs):
        """groups: stored name -> frame of keys and statistics, as `_write_gb_stats` writes it."""
        number, records = len(self.nodes), []
        for name, frame in groups.items():
            path = self.folder / "artifacts" / f"node_{number}" / "categories" / f"cat_stats.{name}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            frame.to_parquet(path, compression=None)
            records.append({"key": [name], "path": f"categories/cat_stats.{name}.parquet"})
        params = {"cont_cols": values, "stats": stats, "split_out": None, "split_every": None, "on_host": False,
                  "cat_cache": "host", "name_sep": "_"}  # fmt: skip
        return self.node("JoinGroupby", [*names, *values], parents, outputs, params,
                         {"categories": records, "storage_name": {}})  # fmt: skip

    def close(self, output=None):
        versions = {"nvtabular": "26.3.0", "pandas": "2.2.0", "python": "3.10"}
        (self.folder / "metadata.json").write_text(json.dumps({"versions": versions, "generated_timestamp": 1}))
        graph = {
            "format_version": 1,
            "output_node_id": len(self.nodes) - 1 if output is None else output,
            "nodes": self.nodes,
        }
        (self.folder / "graph.json").write_text(json.dumps(graph, indent=2))
        return self.folder


def write_uniques(path, frame, buckets, index=True):
    frame = frame.reset_index(drop=True)
    if index:
        frame.index = pd.RangeIndex(2 + buckets, 2 + buckets + len(frame))
    frame.to_parquet(path, compression=None)
    size = next((name for name in frame.columns if name.endswith("_size")), None)
    meta = {"kind": ["pad", "null", "oov", "unique"], "offset": [0, 1, 2, 2 + buckets],
            "num_indices": [1, 1, buckets, len(frame)]}  # fmt: skip
    if size is not None:
        meta["num_observed"] = [0, 0, 0, int(frame[size].sum())]
    pd.DataFrame(meta).to_parquet(path.with_name(path.name.replace("unique.", "meta.")))


def counted(name, values, counts, dtype=None):
    return pd.DataFrame({name: pd.Series(values, dtype=dtype), f"{name}_size": counts})
