"""A bundle for other runtimes: the model by torch.export, and ONNX of rows to predictions.

Every file is loaded again and compared with the bundle on rows made from its vocabularies before it takes its name; one
that differs is an error and is not left behind. docs/export.md says how each is used.
"""

from __future__ import annotations

import importlib.util
import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.engines.frame import engine_of
from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.model import Model, model_call
from gigabatch.models.modes import modes_kept
from gigabatch.models.shelf import OWN, model_class
from gigabatch.pipeline.bundle import Bundle, load_bundle
from gigabatch.pipeline.export.asked import ExportError, format_names, require_formats
from gigabatch.pipeline.export.export_check import Sample, difference, sample_rows
from gigabatch.pipeline.export.onnx_rows import (
    list_outputs,
    model_list_inputs,
    onnx_inputs,
    require_carriable,
    rows_graph,
)
from gigabatch.pipeline.store.files import refusals_named, write_json
from gigabatch.pipeline.store.locks import locked, own_folder, remove_leftovers, temporary_path

log = logging.getLogger(__name__)
LOGGERS = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")  # of what writes the files
TRACED_ROWS = 128
LOCK = ".export.lock"  # in the folder, while it is written
ONNX_BYTES = 2**31 - 2**24  # a protobuf file holds at most 2 GiB
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class Exported:
    """A written and checked file. largest_difference: from the bundle's outputs or predictions, on the sample rows."""

    format: str
    path: Path
    largest_difference: float


def export_bundle(bundle: Bundle, folder: str | Path, formats: Sequence[str], run: str | None = None) -> list[Exported]:
    """Write the bundle to `folder` in each of `formats`, keys of `FORMATS`, with `export.json`, which names columns.

    torch: `model.pt2`, for `torch.export.load`; it takes ids int32 [N, C], floats float32 [N, F] and of each list
    column ids int32 [T], offsets int64 [N + 1] and, where it has some, weights float32 [T], and gives outputs [N, O],
    for any N and T: float32, or float64 where a target is a regression. onnx_rows: `rows.onnx`, see
    `pipeline/export/onnx_rows.py`. run: id for export.json.

    Errors (`ExportError`): an unknown format, a missing package, a model or preprocessing that the format cannot carry,
    and a file whose scores differ by more than 1e-5 + 1e-4 of their size, or whose ids and floats differ at all.
    An export that is there stays whole then; `export.json` is removed before the files that it names are replaced, or
    removed where they are of formats that are not asked for, and written last, so what lies there without one, after a
    kill, is no export. Files that it does not name stay, with a warning where they have a format's name. A second
    export to the same folder waits for the first.
    """
    require_formats(formats)
    engines = {engine_of(vocabulary.values).NAME for vocabulary in bundle.preprocessor.vocabularies.values()}
    if torch.device(bundle.device).type != "cpu" or engines - {"pandas"}:
        raise ExportError("export works on the CPU. Load the bundle with device='cpu' and engine='pandas'.")
    for name in dict.fromkeys(formats):  # before any work
        FORMATS[name].require()
    folder = Path(folder)
    sample = Sample.of(bundle)
    # Clones: of a table of only ids or only floats both are views of one memory, which torch.export.save refuses.
    lists = [column.slice(0, TRACED_ROWS) for column in sample.lists]
    program = traced(bundle.model, sample.ids[:TRACED_ROWS].clone(), sample.floats[:TRACED_ROWS].clone(), lists)
    found = []
    with _made(folder), _alone(folder), own_folder(scratch := temporary_path(folder / "export")):
        for name in dict.fromkeys(formats):
            chosen = FORMATS[name]
            with refusals_named(folder):
                chosen.write(bundle, program, scratch / chosen.file)
            difference = chosen.compare(scratch / chosen.file, sample)
            found.append(Exported(name, folder / chosen.file, difference))
        content = description(bundle, found) | {"run": run}
        earlier = _named(folder)
        (folder / "export.json").unlink(missing_ok=True)
        for path in filter(Path.exists, (folder / item.file for item in FORMATS.values())):
            is_new = path in {item.path for item in found}
            if path.name not in earlier:
                if not is_new:
                    log.warning("%s stays: no export.json named it, and it is none of this export's files", path)
                continue
            if not is_new:
                log.warning("%s of an earlier export is removed; name all formats that are wanted in one export", path)
            path.unlink()  # the new ones too: after a kill nothing would tell of whom it is
        for item in found:
            os.replace(scratch / item.path.name, item.path)
        write_json(folder / "export.json", content)
    return found


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Make a folder, without what a killed export left there; one that is new and empty after an error goes again."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    try:
        yield
    except BaseException:
        with suppress(OSError):  # not empty: another has written there meanwhile
            for path in new:
                path.rmdir()
        raise


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other export writes to the folder: of two at once files of both would lie there."""
    lock = folder / LOCK
    while True:
        folder.mkdir(parents=True, exist_ok=True)  # one that has failed takes its new folder away again
        with suppress(FileNotFoundError):
            file = locked(lock)
            break
    with file:
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _named(folder: Path) -> set[str]:
    """Names of the files of the export in this folder; empty where there is none, or its export.json is no such one."""
    try:
        return set(json.loads((folder / "export.json").read_bytes())["files"])
    except (OSError, ValueError, LookupError, TypeError):
        return set()


def description(bundle: Bundle, exported: Sequence[Exported]) -> dict[str, Any]:
    """What a user of the files has to know: columns in order, and how outputs become predictions."""
    tensors = bundle.preprocessor.tensor_schema
    return {
        "ids": [asdict(column) for column in tensors.ids],
        "floats": list(tensors.floats),
        "lists": [asdict(column) for column in tensors.lists],
        "targets": [asdict(target) for target in tensors.targets],
        "predictions": list(bundle.predict(sample_rows(bundle.preprocessor, 1)).columns),
        "files": {item.path.name: {"format": item.format, "largest_difference": item.largest_difference}
                  for item in exported},
        "info": bundle.info,
    }  # fmt: skip


class Traceable(nn.Module):
    """A model whose outputs are in their targets' own units and calibrated, as `model_outputs` gives them, and whose
    lists come as single arrays, which is what graphs take."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model, self.weighted = model, [item.weighted for item in model.inputs.lists]
        self.training = model.training

    def forward(self, ids: Tensor, floats: Tensor, *arrays: Tensor) -> Tensor:
        """As `Model.forward`; float64 where there are scales. arrays: as `flat_lists` gives them."""
        lists, first = [], 0
        for weighted in self.weighted:
            own = arrays[first : first + 2 + weighted]
            torch._check(own[1].shape[0] == ids.shape[0] + 1)  # else the number of rows traced may become a guard
            lists.append(JaggedColumn(own[0], own[1], own[2] if weighted else None))
            first += len(own)
        return self.model.in_target_units(model_call(self.model, ids, floats, lists))


def flat_lists(lists: Sequence[JaggedColumn]) -> tuple[Tensor, ...]:
    """ids, offsets and, where it has some, weights of each list column, one after the other."""
    return tuple(part for column in lists for part in column if part is not None)


def require_exportable(kind: str, formats: Sequence[str], preprocessor: Preprocessor | None = None) -> None:
    """Raise `ExportError` where it is known before a training that the formats could not be written.

    kind: of the model, its name on the shelf. preprocessor: that of the training, once there is one.
    """
    for name in formats:
        FORMATS[name].require()
    if formats and (obstacle := model_class(kind).trace_obstacle) is not None:
        raise ExportError(f"the model {kind} cannot be traced by torch.export: {obstacle}.")
    if preprocessor is not None and "onnx_rows" in formats:
        require_carriable(preprocessor)


def traced(model: Model, ids: Tensor, floats: Tensor, lists: Sequence[JaggedColumn] = ()) -> Any:
    """The model in evaluation mode as a `torch.export.ExportedProgram` for any number of rows and of elements of lists;
    `ExportError` says why a model cannot be traced. Its modules' modes and its tables' kind of gradients are
    restored."""
    if model.trace_obstacle is not None:
        raise ExportError(f"{type(model).__name__} cannot be traced by torch.export: {model.trace_obstacle}.")
    rows = torch.export.Dim("rows")
    shapes: list[Any] = [{0: rows}, {0: rows}]
    if lists:
        sizes = [torch.export.Dim(f"elements_{place}") for place in range(len(lists))]
        of_lists = [
            ({0: size}, {0: rows + 1}, *([{0: size}] if column.weights is not None else []))
            for size, column in zip(sizes, lists, strict=True)
        ]
        shapes.append(tuple(shape for own in of_lists for shape in own))
    given = (ids, floats, *(part.clone() for part in flat_lists(lists)))
    tables = [part for part in model.modules() if isinstance(part, EmbeddingTables)]
    kinds = [part.gradients for part in tables]
    try:
        for part in tables:
            part.gradients = "dense"  # torch's own lookup; that of row gradients is ours and has no other runtime
        with modes_kept(model), _quiet(), torch.no_grad():
            model.eval()
            own = OWN.name_of(type(model)) is not None  # whose outputs may be of half precision
            whole = Traceable(model) if model.target_scales or model.calibration or lists or own else model
            return torch.export.export(whole, given, dynamic_shapes=tuple(shapes), strict=True)
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
    # Not to the file itself: where that cannot take it (a full disk) torch's writer ends the process (SIGABRT).
    content = io.BytesIO()
    with _quiet():
        torch.export.save(program, content)
    path.write_bytes(content.getbuffer())


def _onnx_model(program: Any, lists: Sequence[str] = ()) -> Any:
    """The traced model as an `onnx.ModelProto` with inputs `ids`, `floats` and `lists`, and one output, `outputs`."""
    names = ["ids", "floats", *lists]
    try:
        with _quiet():
            exported: Any = torch.onnx.export(
                program, (), dynamo=True, verbose=False, input_names=names, output_names=["outputs"]
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
    names = model_list_inputs(bundle.preprocessor)
    _save_onnx(rows_graph(bundle.preprocessor, _onnx_model(program, names)), path)


def _onnx_session(path: Path) -> Any:
    import onnxruntime

    try:
        return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ExportError(_why(f"onnxruntime cannot load {path.name}", error)) from error


def _compare_torch(path: Path, sample: Sample) -> float:
    with _quiet():
        module = torch.export.load(path).module()
    largest = 0.0
    for start, stop in sample.parts:
        lists = flat_lists([column.slice(start, stop) for column in sample.lists])
        outputs = module(sample.ids[start:stop], sample.floats[start:stop], *lists).detach().numpy()
        largest = max(largest, difference(path.name, outputs, sample.outputs[start:stop], sample))
    return largest


def _compare_rows(path: Path, sample: Sample) -> float:
    session, whole = _onnx_session(path), sample.preprocessor.schema
    largest = 0.0
    for start, stop in sample.parts:
        feed = onnx_inputs(sample.preprocessor, sample.frame.iloc[start:stop])
        expected = {"ids": sample.ids[start:stop], "floats": sample.floats[start:stop]}
        for item, column in zip(whole.lists, sample.lists, strict=True):
            own = column.slice(start, stop)
            expected |= dict(zip(list_outputs(item), flat_lists([own]), strict=True))
        predictions, *found = session.run(["predictions", *expected], feed)
        for (name, wanted), given in zip(expected.items(), found, strict=True):
            same = np.array_equal(given.view(np.int32), wanted.contiguous().numpy().view(np.int32))
            if not same:
                raise ExportError(f"{path.name}: its {name} are not those of the preprocessor. The file was removed.")
        largest = max(largest, difference(path.name, predictions, sample.predictions[start:stop], sample))
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
    names = format_names(formats)
    exported = export_bundle(load_bundle(path / "model"), out or path / "export", names, run=used.id)
    rows = [
        {"file": str(item.path), "bytes": item.path.stat().st_size, "largest difference": item.largest_difference}
        for item in exported
    ]
    render_table(rows, f"exported {used}")
    return 0
