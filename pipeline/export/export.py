"""A bundle for other runtimes: the model by torch.export, and ONNX of rows to predictions.

Every file is loaded again and compared with the bundle on rows made from its vocabularies before it takes its name; one
that differs is an error and is not left behind. docs/export.md says how each is used.
"""

from __future__ import annotations

import importlib.util
import io
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gigabatch.features.engines.frame import engine_of
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.model import Model
from gigabatch.models.modes import modes_kept
from gigabatch.pipeline.bundle import Bundle, load_bundle
from gigabatch.pipeline.export.export_check import ExportError, Sample, difference, sample_rows
from gigabatch.pipeline.export.onnx_rows import OUTPUTS, onnx_inputs, rows_graph
from gigabatch.pipeline.store.files import write_json

log = logging.getLogger(__name__)
LOGGERS = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")  # of what writes the files
TRACED_ROWS = 128
ONNX_BYTES = 2**31 - 2**24  # a protobuf file holds at most 2 GiB
FORMER = {
    "aoti": "Take torch, whose model.pt2 torch._inductor.aoti_compile_and_package compiles (docs/export.md).",
    "onnx": "Take onnx_rows, which begins at rows and also gives ids and floats, or torch for the model alone.",
}
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class Exported:
    """A written and checked file. largest_difference: from the bundle's outputs or predictions, on the sample rows."""

    format: str
    path: Path
    largest_difference: float


def export_bundle(bundle: Bundle, folder: str | Path, formats: Sequence[str], run: str | None = None) -> list[Exported]:
    """Write the bundle to `folder` in each of `formats`, keys of `FORMATS`, with `export.json`, which names columns.

    torch: `model.pt2`, for `torch.export.load`; it takes ids int32 [N, C] and floats float32 [N, F] and gives outputs
    [N, O], for any N: float32, or float64 where a target is a regression. onnx_rows: `rows.onnx`, see
    `pipeline/export/onnx_rows.py`. run: id for export.json.

    Errors (`ExportError`): an unknown format, a missing package, a model or preprocessing that the format cannot carry,
    and a file whose scores differ by more than 1e-5 + 1e-4 of their size, or whose ids and floats differ at all.
    Files that were finished before stay.
    """
    for name in formats:
        if name in FORMER:
            raise ExportError(f"format {name} is written no more. {FORMER[name]}")
    unknown = [name for name in formats if name not in FORMATS]
    if unknown or not formats:
        raise ExportError(f"unknown format {', '.join(unknown) or '(none)'}. Known: {', '.join(FORMATS)}.")
    engines = {engine_of(vocabulary.values).NAME for vocabulary in bundle.preprocessor.vocabularies.values()}
    if torch.device(bundle.device).type != "cpu" or engines - {"pandas"}:
        raise ExportError("export works on the CPU. Load the bundle with device='cpu' and engine='pandas'.")
    if bundle.schema.lists:
        raise ExportError(
            f"list column {bundle.schema.lists[0].name!r}: models with lists are not exported yet. Predict with the "
            "bundle (gigabatch score, Bundle.predict), or train without features.lists."
        )
    for name in dict.fromkeys(formats):  # before any work
        FORMATS[name].require()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    sample = Sample.of(bundle)
    # Clones: of a table of only ids or only floats both are views of one memory, which torch.export.save refuses.
    program = traced(bundle.model, sample.ids[:TRACED_ROWS].clone(), sample.floats[:TRACED_ROWS].clone())
    found = []
    for name in dict.fromkeys(formats):
        chosen = FORMATS[name]
        with tempfile.TemporaryDirectory(prefix=".export-", dir=folder) as scratch:
            path = Path(scratch) / chosen.file
            chosen.write(bundle, program, path)
            difference = chosen.compare(path, sample)
            os.replace(path, folder / chosen.file)
        found.append(Exported(name, folder / chosen.file, difference))
    write_json(folder / "export.json", description(bundle, found) | {"run": run})
    return found


def description(bundle: Bundle, exported: Sequence[Exported]) -> dict[str, Any]:
    """What a user of the files has to know: columns in order, and how outputs become predictions."""
    tensors = bundle.preprocessor.tensor_schema
    return {
        "ids": [asdict(column) for column in tensors.ids],
        "floats": list(tensors.floats),
        "targets": [asdict(target) for target in tensors.targets],
        "predictions": list(bundle.predict(sample_rows(bundle.preprocessor, 1)).columns),
        "files": {item.path.name: {"format": item.format, "largest_difference": item.largest_difference}
                  for item in exported},
        "info": bundle.info,
    }  # fmt: skip


class InTargetUnits(nn.Module):
    """A model whose outputs are in their targets' own units and calibrated, as `model_outputs` gives them."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.training = model.training

    def forward(self, ids: Tensor, floats: Tensor) -> Tensor:
        """As `Model.forward`; float64 where there are scales."""
        return self.model.in_target_units(self.model(ids, floats))


def traced(model: Model, ids: Tensor, floats: Tensor) -> Any:
    """The model in evaluation mode as a `torch.export.ExportedProgram` for any number of rows; `ExportError` says why
    a model cannot be traced. Its modules' modes and its tables' kind of gradients are restored."""
    if model.trace_obstacle is not None:
        raise ExportError(f"{type(model).__name__} cannot be traced by torch.export: {model.trace_obstacle}.")
    rows = torch.export.Dim("rows")
    tables = [part for part in model.modules() if isinstance(part, EmbeddingTables)]
    kinds = [part.gradients for part in tables]
    try:
        for part in tables:
            part.gradients = "dense"  # torch's own lookup; that of row gradients is ours and has no other runtime
        with modes_kept(model), _quiet(), torch.no_grad():
            model.eval()
            whole = InTargetUnits(model) if model.target_scales or model.calibration else model
            return torch.export.export(whole, (ids, floats), dynamic_shapes=({0: rows}, {0: rows}), strict=True)
    except Exception as error:  # torch raises what its own code and the model's raise
        raise ExportError(_why(f"{type(model).__name__} cannot be traced by torch.export", error)) from error
    finally:
        for part, kind in zip(tables, kinds, strict=True):
            part.gradients = kind


@contextmanager
def _quiet() -> Iterator[None]:
    """Nothing of torch and ONNX on the console: what they print and log below errors goes to our log at debug level.

    Without warnings about torch's own use of what torch deprecates.
    """
    loggers, handler = [logging.getLogger(name) for name in LOGGERS], _ToDebug()
    before = [(logger.propagate, logger.handlers) for logger in loggers]
    for logger in loggers:
        logger.propagate, logger.handlers = False, [handler]
    printed = io.StringIO()
    try:
        with warnings.catch_warnings(), redirect_stdout(printed):
            for kind in (DeprecationWarning, FutureWarning):
                warnings.simplefilter("ignore", kind)
            yield
    finally:
        for logger, (propagate, handlers) in zip(loggers, before, strict=True):
            logger.propagate, logger.handlers = propagate, handlers
        for line in printed.getvalue().splitlines():
            log.debug("printed: %s", line)


class _ToDebug(logging.Handler):
    """Records of other libraries as ours: errors as they are, all else at debug level."""

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelno if record.levelno >= logging.ERROR else logging.DEBUG
        if log.isEnabledFor(level):
            record.levelno, record.levelname = level, logging.getLevelName(level)
            log.handle(record)


def _why(what: str, error: Exception) -> str:
    """The first lines of an error; torch's messages go on for pages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{what}: {type(error).__name__}: {' '.join(lines[:3])[:500] or 'no message'}"


def _write_torch(bundle: Bundle, program: Any, path: Path) -> None:
    with _quiet():
        torch.export.save(program, path)


def _onnx_model(program: Any) -> Any:
    """The traced model as an `onnx.ModelProto` with inputs `ids` and `floats` and one output, `outputs`."""
    try:
        with _quiet():
            exported: Any = torch.onnx.export(
                program, (), dynamo=True, verbose=False, input_names=["ids", "floats"], output_names=["outputs"]
            )
            model = exported.model_proto
    except Exception as error:
        raise ExportError(_why("torch.onnx cannot export the model", error)) from error
    graph = model.graph
    symbol = graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for item in (*graph.input, *graph.output, *graph.value_info):
        del item.metadata_props[:]
        for dim in item.type.tensor_type.shape.dim:
            if dim.dim_param == symbol:
                dim.dim_param = "rows"
    for node in graph.node:  # it holds paths and source lines of the machine that exported
        del node.metadata_props[:]
    return model


def _save_onnx(model: Any, path: Path) -> None:
    import onnx

    size = model.ByteSize()
    if size > ONNX_BYTES:
        raise ExportError(f"the ONNX file would have {size:,} bytes; one file holds at most 2 GiB. Use format torch.")
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:
        raise ExportError(_why("the ONNX graph is not valid", error)) from error
    onnx.save(model, str(path))


def _write_onnx_rows(bundle: Bundle, program: Any, path: Path) -> None:
    _save_onnx(rows_graph(bundle.preprocessor, _onnx_model(program)), path)


def _onnx_session(path: Path) -> Any:
    import onnxruntime

    try:
        return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ExportError(_why(f"onnxruntime cannot load {path.name}", error)) from error


def _compare_torch(path: Path, sample: Sample) -> float:
    """Of all rows and of one, which is not the number that was traced."""
    with _quiet():
        module = torch.export.load(path).module()
    largest = 0.0
    for rows in (1, len(sample.ids)):
        outputs = module(sample.ids[:rows], sample.floats[:rows]).detach().numpy()
        largest = max(largest, difference(path.name, outputs, sample.outputs[:rows], sample))
    return largest


def _compare_rows(path: Path, sample: Sample) -> float:
    session, inputs = _onnx_session(path), onnx_inputs(sample.preprocessor, sample.frame)
    largest = 0.0
    for rows in (1, len(sample.ids)):
        feed = {name: values[:rows] for name, values in inputs.items()}
        predictions, ids, floats = session.run(list(OUTPUTS), feed)
        for what, found, expected in (("ids", ids, sample.ids), ("floats", floats, sample.floats)):
            same = np.array_equal(found.view(np.int32), expected[:rows].numpy().view(np.int32))
            if not same:
                raise ExportError(f"{path.name}: its {what} are not those of the preprocessor. The file was removed.")
        largest = max(largest, difference(path.name, predictions, sample.predictions[:rows], sample))
    return largest


def _require_onnx() -> None:
    missing = [name for name in ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ExportError(f"ONNX needs {', '.join(missing)}: pip install {' '.join(ONNX_PACKAGES)}.")


@dataclass(frozen=True)
class Format:
    """How a format is written and compared. require: raises `ExportError` where what it needs is missing."""

    file: str
    write: Callable[[Bundle, Any, Path], None]
    compare: Callable[[Path, Sample], float]
    require: Callable[[], None]


FORMATS = {
    "torch": Format("model.pt2", _write_torch, _compare_torch, lambda: None),
    "onnx_rows": Format("rows.onnx", _write_onnx_rows, _compare_rows, _require_onnx),
}


def export_run(
    config: str | Path, overrides: Sequence[str], run: str | Path | None, formats: str, out: Path | None
) -> int:
    """The command `gigabatch export`. formats: separated by commas. out: by default `export` in the run's folder."""
    from gigabatch.pipeline.config.config import load_config
    from gigabatch.pipeline.display import render_table
    from gigabatch.pipeline.runs.find import find_run

    used = find_run(load_config(config, overrides), run)
    path = used.path
    names = [name.strip() for name in formats.split(",") if name.strip()]
    exported = export_bundle(load_bundle(path / "model"), out or path / "export", names, run=used.id)
    rows = [
        {"file": str(item.path), "bytes": item.path.stat().st_size, "largest difference": item.largest_difference}
        for item in exported
    ]
    render_table(rows, f"exported {used}")
    return 0
