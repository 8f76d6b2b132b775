"""What a notebook shows of the stages of a pipeline and of a bundle."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from markupsafe import Markup

from gigabatch.features.encoding.online import as_list
from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.schema import Schema
from gigabatch.features.workflow.workflow import Workflow
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.model import Model
from gigabatch.pipeline.config.config import RunConfig
from gigabatch.pipeline.display import html_table
from gigabatch.pipeline.views.columns import column_rows, numbers_drawn, value_shares
from gigabatch.pipeline.views.parts import block, folded_table, heading, links, share_bar, short

ROWS_LOOKED_AT = 10_000  # the first of the train split
VALUES = 6  # of a vocabulary


def pipeline_html(config: RunConfig, engine: str, device: str) -> str:
    """Name, recipe and what the configuration sets; settings at their defaults are not told."""
    rows = [{"setting": name, "value": short(value, 160)} for name, value in changed_settings(config).items()]
    text = f"recipe {config.recipe}, model {config.model.kind}, on {device} by {engine}"
    home = config.runs / config.name
    return block(
        heading(f"Pipeline {config.name}", text),
        html_table([row for row in rows if row["setting"] not in ("name", "recipe")]),
        links({"newest run's report": home / "latest" / "report.html", "its folder": home / "latest"}),
    )


def changed_settings(config: RunConfig) -> dict[str, Any]:
    """Settings that are not at their defaults, by dotted names."""
    found: dict[str, Any] = {}

    def add(place: str, value: Any) -> None:
        if isinstance(value, Mapping) and value and place.count(".") < 2:
            for name, inner in value.items():
                add(f"{place}.{name}", inner)
        elif value != {}:
            found[place] = value

    plain = config.model_dump(mode="json", by_alias=True, exclude={"features", "model"}, exclude_defaults=True)
    written = config.to_dict()
    for place, own in (("features", config.features), ("model", config.model.settings)):
        fields = dataclasses.fields(own) if dataclasses.is_dataclass(own) else ()
        changed = {item.name: written[place][item.name] for item in fields if getattr(own, item.name) != _default(item)}
        plain[place] = ({"kind": config.model.kind} if place == "model" else {}) | changed
    for name, value in plain.items():
        add(name, value)
    return found


def _default(item: dataclasses.Field[Any]) -> Any:
    made = item.default_factory
    return item.default if made is dataclasses.MISSING else made()


def features_html(name: str, rows: Mapping[str, int], schema: Schema, first: pa.Table, notes: list[str]) -> str:
    """Rows by split, and columns at a glance. first: the first rows of the train split."""
    roles = {column.name: (str(column.role), column.dtype) for column in schema.columns}
    for column in schema.lists:
        roles |= {part: ("list", dtype) for part, dtype in column.dtypes().items()}
    for target in schema.targets:
        roles[target.name] = (f"target, {target.task}", roles[target.name][1])
    counts = ", ".join(f"{split} {count:,}" for split, count in rows.items())
    looked = "" if len(first) >= rows["train"] else f"; below, the first {len(first):,} of train"
    said = [Markup('<div style="opacity:.8">{}</div>').format(note) for note in notes]
    return block(
        heading(f"Features of {name}", f"{counts} rows{looked}"), folded_table(column_rows(first, roles)), *said
    )


def encoded_html(preprocessor: Preprocessor, train: PackedTable, valid: PackedTable, rows: Mapping[str, int]) -> str:
    """What models are given: of each column its ids or numbers, over the first rows of two splits."""
    schema = preprocessor.tensor_schema
    first, later = (table.unpack(table.words[:ROWS_LOOKED_AT].cpu()) for table in (train, valid))
    found: list[dict[str, Any]] = []
    for place, column in enumerate(schema.ids):
        vocabulary = preprocessor.vocabularies[column.name]
        own, others = first.ids[:, place].numpy(), later.ids[:, place].numpy()
        layout = vocabulary.layout
        unseen = (others >= layout.unseen) & (others < layout.unseen + layout.buckets)
        counts = np.bincount(own, minlength=layout.first)[layout.first :]
        most = np.argsort(-counts, kind="stable")[:VALUES]
        names = as_list(vocabulary.decode(layout.first + most))
        found.append(
            {
                "column": column.name,
                "given as": "id",
                "ids": column.num_ids,
                "nulls": share_bar(float((own == layout.null).mean())) if len(own) else None,
                "unseen in valid": share_bar(float(unseen.mean())) if len(others) else None,
                "distribution": value_shares(names, (counts[most] / max(len(own), 1)).tolist()),
            }
        )
    for place, name in enumerate(schema.floats):
        values = first.floats[:, place].numpy()
        found.append({"column": name, "given as": "number", "distribution": numbers_drawn(values)})
    found += [{"column": column.name, "given as": "list of ids", "ids": column.num_ids} for column in schema.lists]
    told = ", ".join(f"{split} {count:,}" for split, count in rows.items())
    text = f"{told} rows of {4 * schema.num_words:,} bytes"
    return block(heading("Encoded", text), folded_table(found))


def predictions_told(schema: Schema, info: Mapping[str, Any]) -> str:
    """The columns that a bundle predicts, and of which label a binary target's probability is where it is not 1."""
    labels = {name: label for name, label in info.get("positive", {}).items() if label != "1"}
    names = [name for target in schema.targets for name in target.prediction_names()]
    return ", ".join(f"{name} (of {labels[name]!r})" if name in labels else name for name in names)


def bundle_html(
    preprocessor: Preprocessor, model: Model, info: Mapping[str, Any], workflow: Workflow | None, device: str
) -> str:
    """The model, the columns that it is given, and those that it predicts."""
    schema = preprocessor.schema
    weights = sum(tensor.numel() for tensor in model.state_dict().values())
    rows: list[dict[str, Any]] = []
    for column in schema.columns:
        if column.role not in ("categorical", "continuous"):
            continue
        known = None
        if column.role == "categorical":
            values = preprocessor.vocabularies[column.name].values
            names = [*map(short, as_list(values.head(3))), *(["…"] if len(values) > 3 else [])]
            known = f"{len(values):,}: {', '.join(names)}"
        rows.append({"column": column.name, "role": column.role, "type": column.dtype, "known values": known})
    rows += [{"column": column.name, "role": "list", "type": f"list[{column.elements}]"} for column in schema.lists]
    seed = f", seed {info['seed']}" if "seed" in info else ""
    takes = "" if workflow is None else f"; predict_raw takes {', '.join(workflow.applied_inputs)}"
    return block(
        heading(f"Bundle {info.get('name', '')}", f"{type(model).__name__}, {weights:,} weights{seed}, on {device}"),
        folded_table(rows),
        heading("", f"predicts {predictions_told(schema, info)}{takes}"),
    )
