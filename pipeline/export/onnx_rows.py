"""Rows of the features stage to predictions as one ONNX graph: strings and numbers in, no preprocessor needed.

The graph does what `Preprocessor.pack` does: vocabularies become `LabelEncoder` nodes (ai.onnx.ml), nulls are filled
and flagged, floats scaled in float64 and rounded once, as `features/engines/row_loops.py` does; so ids and floats are
the same bits. Then come the model and the activations of `TargetLoss.predict`.

ONNX has no null. What stands for it: "" in a string column, `NULL_INTEGER` in one of integers or flags, NaN in one of
floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.exact.column_statistics import Scale
from gigabatch.features.reading.sources import cast
from gigabatch.pipeline.export.export_check import ExportError, vocabulary_values

NULL_TEXT = ""
NULL_INTEGER = -(2**63)
OUTPUTS = ("predictions", "ids", "floats")
PREFIXES = ("rows/", "model/")  # of every name inside the graph
INTEGERS = ("int32", "int64", "bool")


def onnx_inputs(preprocessor: Preprocessor, frame: Any) -> dict[str, np.ndarray]:
    """A pandas frame of the features stage as the graph's inputs: by column, object (text), int64 or float32 [rows].

    Errors (`ExportError`): a value that stands for null here. (`DataError`): one that does not fit its column.
    """
    schema = preprocessor.schema
    categorical, dtypes = schema.names("categorical"), schema.dtypes()
    names = schema.names("categorical", "continuous")
    typed = cast(frame[names], {name: dtypes[name] for name in names}, "export", nullable=set(categorical))
    inputs: dict[str, np.ndarray] = {}
    for name in names:
        column = typed[name]
        if name not in categorical:
            inputs[name] = column.astype("float32").to_numpy(dtype=np.float32, na_value=np.nan)
            continue
        null = column.isna().to_numpy(dtype=bool)
        stand_in: Any = NULL_TEXT if dtypes[name] == "string" else NULL_INTEGER
        values = column.to_numpy(dtype=object)
        if any(value == stand_in for value in values[~null]):
            raise ExportError(f"column {name!r} holds {stand_in!r}, which stands for null in ONNX. Clean the data.")
        values = np.where(null, stand_in, values)
        inputs[name] = values if dtypes[name] == "string" else values.astype(np.int64)
    return inputs


def rows_graph(preprocessor: Preprocessor, model: Any) -> Any:
    """The ONNX model from columns to `OUTPUTS`: predictions [rows, P], float64 where a target is a regression (as those
    of the bundle), else float32; ids int32 [rows, C], floats float32 [rows, F]. A prediction is a column of
    `Bundle.predict`, in its order.

    model: the ONNX model (`onnx.ModelProto`) from ids and floats to outputs.
    Errors (`ExportError`): what the graph cannot carry, see `docs/export.md`.
    """
    from onnx import TensorProto, compose, helper

    _require_carriable(preprocessor)
    schema = preprocessor.schema
    inner = compose.add_prefix(model, PREFIXES[1])
    taken = {item.name for item in inner.graph.input}
    parts = _Parts()
    parts.inputs = [
        helper.make_tensor_value_info(name, _type(schema.dtypes()[name], name in preprocessor.vocabularies), ["rows"])
        for name in schema.names("categorical", "continuous")
    ]
    _encode(parts, preprocessor)
    _scale(parts, preprocessor)
    for name in ("ids", "floats"):
        if f"{PREFIXES[1]}{name}" in taken:  # a model without such columns has no such input
            parts.node("Identity", [name], f"{PREFIXES[1]}{name}")
    parts.nodes.extend(inner.graph.node)
    _predict(parts, preprocessor, inner.graph.output[0].name)
    shapes = {"predictions": (_prediction_type(preprocessor), preprocessor.tensor_schema.num_outputs)}
    shapes["ids"] = (TensorProto.INT32, len(preprocessor.vocabularies))
    shapes["floats"] = (TensorProto.FLOAT, len(preprocessor.float_names()))
    outputs = [helper.make_tensor_value_info(name, kind, ["rows", width]) for name, (kind, width) in shapes.items()]
    graph = helper.make_graph(
        parts.nodes, "rows_to_predictions", parts.inputs, outputs, [*parts.constants, *inner.graph.initializer]
    )
    opsets = [*inner.opset_import]
    if not any(opset.domain == "ai.onnx.ml" for opset in opsets):
        opsets.append(helper.make_opsetid("ai.onnx.ml", 3))
    return helper.make_model(
        graph, opset_imports=opsets, ir_version=inner.ir_version, functions=list(inner.functions),
        producer_name="gigabatch",
    )  # fmt: skip


class _Parts:
    """A graph in the making."""

    def __init__(self) -> None:
        self.inputs: list[Any] = []
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def node(self, kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Adds a node with one output; its name."""
        from onnx import helper

        self.nodes.append(helper.make_node(kind, list(inputs), [output], name=output, **attributes))
        return output

    def constant(self, name: str, values: Any) -> str:
        """Adds a constant; its name."""
        from onnx import numpy_helper

        self.constants.append(numpy_helper.from_array(np.asarray(values), f"{PREFIXES[0]}{name}"))
        return f"{PREFIXES[0]}{name}"


def _require_carriable(preprocessor: Preprocessor) -> None:
    """Raise `ExportError`, which names the column, unless ONNX can do what the preprocessor does."""
    schema, dtypes = preprocessor.schema, preprocessor.schema.dtypes()
    for name in schema.names("categorical", "continuous"):
        if name in OUTPUTS or name.startswith(PREFIXES):
            raise ExportError(f"column {name!r} has the name of an output of the ONNX graph. Rename the column.")
    for name in schema.names("continuous"):
        if dtypes[name] == "string":
            raise ExportError(f"continuous column {name!r} is declared string. Declare it float32.")
    for name, vocabulary in preprocessor.vocabularies.items():
        if vocabulary.layout.buckets > 1:
            raise ExportError(
                f"column {name!r} has {vocabulary.layout.buckets} ids for unseen values, chosen by XXH64, which ONNX "
                "does not have. Train with oov_buckets: 1, or export the model alone (format torch) and encode before "
                "it with OnlineTransformer (docs/online.md)."
            )
        if dtypes[name] not in ("string", *INTEGERS):
            raise ExportError(
                f"categorical column {name!r} is declared {dtypes[name]}, and the runtimes look up only text and "
                "integers. Declare it string or int64, or export the model alone (format torch)."
            )
        stand_in = NULL_TEXT if dtypes[name] == "string" else NULL_INTEGER
        if stand_in in vocabulary_values(vocabulary):
            raise ExportError(
                f"the vocabulary of column {name!r} holds {stand_in!r}, which stands for null in ONNX. Make it null "
                "or another value before the fit."
            )


def _type(dtype: str, categorical: bool) -> int:
    """ONNX type of the input of a column."""
    from onnx import TensorProto

    if not categorical:
        return TensorProto.FLOAT
    return TensorProto.STRING if dtype == "string" else TensorProto.INT64


def _encode(parts: _Parts, preprocessor: Preprocessor) -> None:
    """Adds `ids`: every categorical column through its vocabulary, int32 [rows, C]."""
    from onnx import TensorProto

    names = preprocessor.schema.names("categorical")
    if not names:
        _empty(parts, "ids", np.int32)
        return
    axis, columns = parts.constant("column_axis", np.array([1], np.int64)), []
    for place, name in enumerate(names):
        vocabulary = preprocessor.vocabularies[name]
        layout, values = vocabulary.layout, vocabulary_values(vocabulary)
        ids = [layout.null, *range(layout.first, layout.num_ids(len(values)))]
        if preprocessor.schema.dtypes()[name] == "string":
            keys = {"keys_strings": [NULL_TEXT, *values]}
        else:
            keys = {"keys_int64s": [NULL_INTEGER, *map(int, values)]}
        encoded = parts.node(
            "LabelEncoder", [name], f"rows/encoded_{place}", domain="ai.onnx.ml", values_int64s=ids,
            default_int64=layout.unseen, **keys,
        )  # fmt: skip
        columns.append(parts.node("Unsqueeze", [encoded, axis], f"rows/id_{place}"))
    wide = parts.node("Concat", columns, "rows/ids_int64", axis=1)
    parts.node("Cast", [wide], "ids", to=TensorProto.INT32)


def _scale(parts: _Parts, preprocessor: Preprocessor) -> None:
    """Adds `floats`: continuous columns filled and scaled, then the indicators, float32 [rows, F].

    As the loops do: fill in float32, subtract, divide and bound in float64, round to float32 once.
    """
    from onnx import TensorProto

    names = preprocessor.schema.names("continuous")
    if not names:
        _empty(parts, "floats", np.float32)
        return
    axis = parts.constant("float_axis", np.array([1], np.int64))
    columns = [parts.node("Unsqueeze", [name, axis], f"rows/float_{place}") for place, name in enumerate(names)]
    fills = [preprocessor.fills[name] for name in names]
    scales = [preprocessor.scales.get(name, Scale(0.0, 1.0)) for name in names]  # changes no bit
    given = parts.node("Concat", columns, "rows/given", axis=1)
    null = parts.node("IsNaN", [given], "rows/null")
    fill = parts.constant("fills", np.array([[fill.value for fill in fills]], np.float64).astype(np.float32))
    filled = parts.node("Where", [null, fill, given], "rows/filled")
    wide = parts.node("Cast", [filled], "rows/filled_float64", to=TensorProto.DOUBLE)
    means = parts.constant("means", np.array([[scale.mean for scale in scales]], np.float64))
    stds = parts.constant("stds", np.array([[scale.std for scale in scales]], np.float64))
    scaled = parts.node("Div", [parts.node("Sub", [wide, means], "rows/centred"), stds], "rows/scaled_float64")
    if any(scale.clip for scale in scales):
        # Endless where nothing bounds a column, which changes no bit of it.
        clips = parts.constant("clips", np.array([[scale.clip or np.inf for scale in scales]], np.float64))
        part = parts.node("Div", [scaled, clips], "rows/of_clip")
        more = parts.node("Add", [parts.node("Mul", [part, part], "rows/of_clip_squared"),
                                  parts.constant("one", np.array(1.0))], "rows/clip_squared")  # fmt: skip
        scaled = parts.node("Div", [scaled, parts.node("Sqrt", [more], "rows/clip_root")], "rows/clipped_float64")
    rounded = parts.node("Cast", [scaled], "rows/scaled", to=TensorProto.FLOAT)
    flagged = [place for place, fill in enumerate(fills) if fill.indicator]
    if not flagged:
        parts.node("Identity", [rounded], "floats")
        return
    picked = parts.constant("flagged", np.array(flagged, np.int64))
    loud = parts.constant("loud", np.array([[not fills[place].silent for place in flagged]], bool))
    flags = parts.node("And", [parts.node("Gather", [null, picked], "rows/of_flagged", axis=1), loud], "rows/flags")
    numbers = parts.node("Cast", [flags], "rows/flags_float", to=TensorProto.FLOAT)
    parts.node("Concat", [rounded, numbers], "floats", axis=1)


def _empty(parts: _Parts, name: str, dtype: Any) -> None:
    """Adds an output [rows, 0]."""
    from onnx import numpy_helper

    rows = parts.node("Shape", [parts.inputs[0].name], f"rows/{name}_rows")
    shape = parts.node("Concat", [rows, parts.constant(f"{name}_width", np.array([0], np.int64))], f"rows/{name}_shape",
                       axis=0)  # fmt: skip
    parts.node("ConstantOfShape", [shape], name, value=numpy_helper.from_array(np.zeros(1, dtype)))


def _predict(parts: _Parts, preprocessor: Preprocessor, outputs: str) -> None:
    """Adds `predictions`: sigmoid of binary targets, softmax of multiclass ones, values otherwise."""
    from onnx import TensorProto, helper

    targets = preprocessor.schema.targets
    sizes = parts.constant("target_sizes", np.array([target.num_outputs for target in targets], np.int64))
    split = [f"rows/target_{place}" for place in range(len(targets))]
    parts.nodes.append(helper.make_node("Split", [outputs, sizes], split, name="rows/targets", axis=1))
    found = []
    for target, part in zip(targets, split, strict=True):
        if target.task != "regression":
            part = parts.node("Cast", [part], f"{part}_logits", to=TensorProto.FLOAT)
            kind, options = ("Sigmoid", {}) if target.task == "binary" else ("Softmax", {"axis": 1})
            part = parts.node(kind, [part], f"{part}_probabilities", **options)
        found.append(parts.node("Cast", [part], f"{part}_as_given", to=_prediction_type(preprocessor)))
    parts.node("Concat", found, "predictions", axis=1)


def _prediction_type(preprocessor: Preprocessor) -> int:
    from onnx import TensorProto

    has_values = any(target.task == "regression" for target in preprocessor.schema.targets)
    return int(TensorProto.DOUBLE if has_values else TensorProto.FLOAT)
