"""Rows of the features stage to predictions as one ONNX graph: strings and numbers in, no preprocessor needed.

The graph does what `Preprocessor.pack` does: vocabularies become `LabelEncoder` nodes (ai.onnx.ml), nulls are filled
and flagged, floats scaled in float64 and rounded once, as `features/engines/row_loops.py` does; so ids and floats are
the same bits. Then come the model and the activations of `TargetLoss.predict`.

ONNX has no null. What stands for it: "" in a string column, `NULL_INTEGER` in one of integers or flags, NaN in one of
floats. It has no lists of any length either: a list column is given as the elements of all rows one after the
other ([T], under its name) and where each row's begin (`<name>/offsets`, int64 [rows + 1]), with float32 [T] under the
name of its weights. The graph leaves out nulls and all but the last `max_length` elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gigabatch.features.columns.lists import list_entries
from gigabatch.features.encoding.lists import known_entries
from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.errors import DataError
from gigabatch.features.exact.column_statistics import Scale
from gigabatch.features.reading.sources import cast
from gigabatch.features.schema import ListColumn
from gigabatch.features.vocabulary.vocabulary import Vocabulary
from gigabatch.pipeline.export.asked import ExportError
from gigabatch.pipeline.export.export_check import vocabulary_values

NULL_TEXT = ""
NULL_INTEGER = -(2**63)
OUTPUTS = ("predictions", "ids", "floats")
OFFSETS = "/offsets"  # behind a list column's name: an input
IDS, OFFSETS_OUT, WEIGHTS = "/encoded_ids", "/encoded_offsets", "/encoded_weights"  # the same: outputs
PREFIXES = ("rows/", "model/")  # of every name inside the graph
_Arrays = tuple[str, str, str | None]  # names of a list column's ids, offsets and weights
_ZEROS = {"zero": np.array([0], np.int64), "axis": np.array(0, np.int64)}
INTEGERS = ("int32", "int64", "bool")


def onnx_inputs(preprocessor: Preprocessor, frame: Any) -> dict[str, np.ndarray]:
    """A pandas frame of the features stage as the graph's inputs: by column, object (text), int64 or float32 [rows],
    and what the module says of each list column.

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
            with np.errstate(over="ignore"):  # which gives an infinity
                inputs[name] = column.astype("float32").to_numpy(dtype=np.float32, na_value=np.nan)
            if np.isinf(inputs[name]).any():
                raise DataError.infinity(name)
            continue
        inputs[name] = _with_stand_ins(name, column, dtypes[name])
    for item in schema.lists:
        lists = cast(frame[list(item.columns)], item.dtypes(), "export")
        entries, lengths = list_entries(lists[item.name], f"list column {item.name!r}")
        inputs[item.name] = _with_stand_ins(item.name, entries, item.elements)
        inputs[f"{item.name}{OFFSETS}"] = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        if item.weights is not None:
            weights, own = list_entries(lists[item.weights], f"weights {item.weights!r}")
            if not np.array_equal(own, lengths):
                raise ExportError(f"list column {item.name!r}: {item.weights!r} holds other than a weight an element.")
            known_entries(lists, item, where="export")  # raises where a weight is no number
            inputs[item.weights] = weights.to_numpy(dtype=np.float32, na_value=np.nan)
    return inputs


def _with_stand_ins(name: str, column: Any, dtype: str) -> np.ndarray:
    """The values of a column, object (text) or int64, with what stands for null."""
    null = column.isna().to_numpy(dtype=bool)
    stand_in: Any = NULL_TEXT if dtype == "string" else NULL_INTEGER
    values = column.to_numpy(dtype=object)
    if any(value == stand_in for value in values[~null]):
        raise ExportError(f"column {name!r} holds {stand_in!r}, which stands for null in ONNX. Clean the data.")
    values = np.where(null, stand_in, values)
    return values if dtype == "string" else values.astype(np.int64)


def model_list_inputs(preprocessor: Preprocessor) -> list[str]:
    """Names of the model's inputs that are arrays of lists, in the order in which it takes them."""
    return [name for item in preprocessor.schema.lists for name in list_outputs(item)]


def list_outputs(item: ListColumn) -> list[str]:
    """Names of the graph's outputs for a list column: its ids, its offsets and its weights, where it has some."""
    return [f"{item.name}{part}" for part in (IDS, OFFSETS_OUT, *([WEIGHTS] if item.weights is not None else []))]


def rows_graph(preprocessor: Preprocessor, model: Any) -> Any:
    """The ONNX model from columns to `OUTPUTS`: predictions [rows, P], float64 where a target is a regression (as those
    of the bundle), else float32; ids int32 [rows, C], floats float32 [rows, F]; and of each list column what
    `list_outputs` names: what the model is given. A prediction is a column of `Bundle.predict`, in its order.

    model: the ONNX model (`onnx.ModelProto`) from ids, floats and `model_list_inputs` to outputs.
    Errors (`ExportError`): what the graph cannot carry, see `docs/export.md`.
    """
    from onnx import TensorProto, compose, helper

    require_carriable(preprocessor)
    schema = preprocessor.schema
    inner = compose.add_prefix(model, PREFIXES[1])
    taken = {item.name for item in inner.graph.input}
    parts = _Parts()
    parts.inputs = [
        helper.make_tensor_value_info(name, _type(schema.dtypes()[name], name in preprocessor.vocabularies), ["rows"])
        for name in schema.names("categorical", "continuous")
    ]
    for item in schema.lists:
        elements = f"elements of {item.name}"
        given = [(item.name, _type(item.elements, True), elements)]
        given += [(f"{item.name}{OFFSETS}", TensorProto.INT64, "rows + 1")]
        given += [(item.weights, TensorProto.FLOAT, elements)] if item.weights is not None else []
        parts.inputs += [helper.make_tensor_value_info(name, kind, [size]) for name, kind, size in given]
    _encode(parts, preprocessor)
    _scale(parts, preprocessor)
    for place, item in enumerate(schema.lists):
        _encode_list(parts, preprocessor, item, place)
    for name in ("ids", "floats", *model_list_inputs(preprocessor)):
        if f"{PREFIXES[1]}{name}" in taken:  # a model without such columns has no such input
            parts.node("Identity", [name], f"{PREFIXES[1]}{name}")
    parts.nodes.extend(inner.graph.node)
    _predict(parts, preprocessor, inner.graph.output[0].name)
    shapes = {"predictions": (_prediction_type(preprocessor), preprocessor.tensor_schema.num_outputs)}
    shapes["ids"] = (TensorProto.INT32, len(schema.names("categorical")))
    shapes["floats"] = (TensorProto.FLOAT, len(preprocessor.float_names()))
    outputs = [helper.make_tensor_value_info(name, kind, ["rows", width]) for name, (kind, width) in shapes.items()]
    for item in schema.lists:
        kinds = (TensorProto.INT32, TensorProto.INT64, TensorProto.FLOAT)
        elements = f"elements of {item.name} that are not null"
        sizes = (elements, "rows + 1", elements)
        made = zip(list_outputs(item), kinds, sizes, strict=False)  # without weights there are two
        outputs += [helper.make_tensor_value_info(name, kind, [size]) for name, kind, size in made]
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


def require_carriable(preprocessor: Preprocessor) -> None:
    """Raise `ExportError`, which names the column, unless ONNX can do what the preprocessor does."""
    schema, dtypes = preprocessor.schema, preprocessor.schema.dtypes()
    for name in schema.names("categorical", "continuous"):
        if name in OUTPUTS or name.startswith(PREFIXES):
            raise ExportError(f"column {name!r} has the name of an output of the ONNX graph. Rename the column.")
    taken = {*schema.names("categorical", "continuous"), *(name for item in schema.lists for name in item.columns)}
    for item in schema.lists:
        made = {*list_outputs(item), f"{item.name}{OFFSETS}"}
        own = {name for name in item.columns if name in OUTPUTS or name.startswith(PREFIXES)}
        if clash := sorted(own | taken & made):
            raise ExportError(f"column {clash[0]!r} has a name of the ONNX graph's own. Rename the column.")
    for name in schema.names("continuous"):
        if dtypes[name] == "string":
            raise ExportError(f"continuous column {name!r} is declared string. Declare it float32.")
    dtypes |= {item.name: item.elements for item in schema.lists}
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
        _empty(parts, preprocessor, "ids", np.int32)
        return
    axis, columns = parts.constant("column_axis", np.array([1], np.int64)), []
    for place, name in enumerate(names):
        vocabulary, dtype = preprocessor.vocabularies[name], preprocessor.schema.dtypes()[name]
        encoded = _look_up(parts, name, vocabulary, dtype, f"rows/encoded_{place}")
        columns.append(parts.node("Unsqueeze", [encoded, axis], f"rows/id_{place}"))
    wide = parts.node("Concat", columns, "rows/ids_int64", axis=1)
    parts.node("Cast", [wide], "ids", to=TensorProto.INT32)


def _look_up(parts: _Parts, name: str, vocabulary: Vocabulary, dtype: str, output: str) -> str:
    """Adds the ids of the values `name`, int64 of their shape."""
    layout, values = vocabulary.layout, vocabulary_values(vocabulary)
    ids = [layout.null, *range(layout.first, layout.num_ids(len(values)))]
    if dtype == "string":
        keys = {"keys_strings": [NULL_TEXT, *values]}
    else:
        keys = {"keys_int64s": [NULL_INTEGER, *map(int, values)]}
    return parts.node(
        "LabelEncoder", [name], output, domain="ai.onnx.ml", values_int64s=ids, default_int64=layout.unseen, **keys
    )


def _encode_list(parts: _Parts, preprocessor: Preprocessor, item: ListColumn, place: int) -> None:
    """Adds what `list_outputs` names: the elements of each row that are not null, the last `max_length` of them."""
    from onnx import TensorProto

    at, vocabulary = f"list_{place}", preprocessor.list_vocabulary(item.name)
    ids = _look_up(parts, item.name, vocabulary, item.elements, f"rows/{at}_found")
    null = parts.constant(f"{at}_null_id", np.array(vocabulary.layout.null, np.int64))
    known = parts.node("Not", [parts.node("Equal", [ids, null], f"rows/{at}_null")], f"rows/{at}_known")
    found = _kept(parts, known, (ids, f"{item.name}{OFFSETS}", item.weights), f"{at}_known")
    if item.max_length is not None:
        last = _among_last(parts, found[0], found[1], item.max_length, at)
        found = _kept(parts, last, found, f"{at}_last")
    ids, offsets, weights = found
    made = [parts.node("Cast", [ids], f"rows/{at}_ids", to=TensorProto.INT32), offsets]
    made += [weights] if weights is not None else []
    for name, output in zip(made, list_outputs(item), strict=True):
        parts.node("Identity", [name], output)


def _kept(parts: _Parts, kept: str, arrays: _Arrays, at: str) -> _Arrays:
    """ids, offsets and weights of the elements that are kept, bool [T]."""
    from onnx import TensorProto

    ids, offsets, weights = arrays
    zero, axis = (parts.constant(f"{at}_{name}", value) for name, value in _ZEROS.items())
    counted = parts.node("Cast", [kept], f"rows/{at}_counted", to=TensorProto.INT64)
    summed = parts.node("CumSum", [counted, axis], f"rows/{at}_summed")
    before = parts.node("Concat", [zero, summed], f"rows/{at}_before", axis=0)
    fewer = parts.node("Gather", [before, offsets], f"rows/{at}_offsets", axis=0)
    own = None if weights is None else parts.node("Compress", [weights, kept], f"rows/{at}_weights", axis=0)
    return parts.node("Compress", [ids, kept], f"rows/{at}_ids", axis=0), fewer, own


def _among_last(parts: _Parts, ids: str, offsets: str, most: int, at: str) -> str:
    """Which elements are among the last `most` of their row, bool [T]: a running sum of 1 where such begin and -1 where
    a row ends is 1 within them. The two are at one place, and nothing is left, for a row without elements."""
    from onnx import numpy_helper

    zero, axis = (parts.constant(f"{at}_cut_{name}", value) for name, value in _ZEROS.items())
    one, last, far, size = (
        parts.constant(f"{at}_cut_{name}", np.array([value], np.int64))
        for name, value in (("one", 1), ("minus_one", -1), ("far", 2**62), ("most", most))
    )
    starts = parts.node("Slice", [offsets, zero, last, zero], f"rows/{at}_starts")
    ends = parts.node("Slice", [offsets, one, far, zero], f"rows/{at}_ends")
    begins = parts.node("Max", [starts, parts.node("Sub", [ends, size], f"rows/{at}_earliest")], f"rows/{at}_begins")
    ups = parts.node(
        "ConstantOfShape", [parts.node("Shape", [begins], f"rows/{at}_num_rows")], f"rows/{at}_ups",
        value=numpy_helper.from_array(np.ones(1, np.int64)),
    )  # fmt: skip
    num_ids = parts.node("Shape", [ids], f"rows/{at}_num_ids")
    still = parts.node(
        "ConstantOfShape", [parts.node("Add", [num_ids, one], f"rows/{at}_num_marks")], f"rows/{at}_still",
        value=numpy_helper.from_array(np.zeros(1, np.int64)),
    )  # fmt: skip
    places = parts.node("Concat", [begins, ends], f"rows/{at}_places", axis=0)
    steps = parts.node("Concat", [ups, parts.node("Neg", [ups], f"rows/{at}_downs")], f"rows/{at}_steps", axis=0)
    marks = parts.node("ScatterElements", [still, places, steps], f"rows/{at}_marks", axis=0, reduction="add")
    inside = parts.node("CumSum", [marks, axis], f"rows/{at}_inside")
    return parts.node(
        "Greater",
        [parts.node("Slice", [inside, zero, num_ids, zero], f"rows/{at}_each"), zero],
        f"rows/{at}_among_last",
    )


def _scale(parts: _Parts, preprocessor: Preprocessor) -> None:
    """Adds `floats`: continuous columns filled and scaled, then the indicators, float32 [rows, F].

    As the loops do: fill in float32, subtract, divide and bound in float64, round to float32 once.
    """
    from onnx import TensorProto

    names = preprocessor.schema.names("continuous")
    if not names:
        _empty(parts, preprocessor, "floats", np.float32)
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


def _empty(parts: _Parts, preprocessor: Preprocessor, name: str, dtype: Any) -> None:
    """Adds an output [rows, 0]."""
    from onnx import numpy_helper

    columns = preprocessor.schema.names("categorical", "continuous")
    # An input of a list holds its elements; beside lists alone only offsets tell of rows, of which they are one more.
    counted = columns[0] if columns else f"{preprocessor.schema.lists[0].name}{OFFSETS}"
    rows = parts.node("Shape", [counted], f"rows/{name}_rows")
    if not columns:
        one = parts.constant(f"{name}_one", np.array([1], np.int64))
        rows = parts.node("Sub", [rows, one], f"rows/{name}_rows_of_offsets")
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
