"""A bundle: everything that turns rows into predictions, in one folder without pickle."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gigabatch.features.columns.categories import nulls_like
from gigabatch.features.columns.numbers import float_values
from gigabatch.features.columns.time_types import time_type
from gigabatch.features.columns.times import is_dates
from gigabatch.features.encoding.lists import PackedList
from gigabatch.features.encoding.online import OnlineTransformer
from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.engines.arrow_columns import exact_frame_of
from gigabatch.features.engines.arrow_tables import arrow_table, given_back, own_frame
from gigabatch.features.engines.frame import engine_of, load_engine
from gigabatch.features.errors import UNREADABLE, DataError, raise_of_system, require_columns
from gigabatch.features.operators import operator_name
from gigabatch.features.operators.rows.lambda_function import LambdaFunction
from gigabatch.features.reading.sources import without_null_words
from gigabatch.features.recipes.table.labels import typed_classes
from gigabatch.features.schema import Schema, Target
from gigabatch.features.workflow.workflow import ROW, Workflow
from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.models.errors import ModelError
from gigabatch.models.losses import ClassLoss, RegressionLoss, TargetLoss
from gigabatch.models.model import Model, model_call
from gigabatch.models.modes import modes_kept, plain_defaults
from gigabatch.models.shelf import ModelSpec, spec_of
from gigabatch.own_code import OwnCodeError, require_told, told
from gigabatch.pipeline.config.config import ConfigError, LossSettings
from gigabatch.pipeline.machine import tell_of_compilation
from gigabatch.pipeline.store.keys import file_checksum
from gigabatch.pipeline.store.tensors import save_tensors
from gigabatch.pipeline.views.stages import bundle_html, predictions_told

log = logging.getLogger(__name__)
FORMAT = 2  # since 2 a model is described by its name, inputs and settings
BLOCK_ROWS = 65_536
FEW_VALUES = 20  # that may all be new, or null, by chance
YEAR = 365 * 86_400 * 10**6  # microseconds of 1970
MORE_NULLS = 0.1  # of the rows, above the share in training
WEIGHTS = "weights.safetensors"
MOST_CLASSES = MOST_COLUMNS = 20  # that a message names
AGAIN = (
    "Put it back from a backup, save it again where it was saved by hand, or take another. gigabatch train mends a run "
    "that it made, none of a night."
)


class BundleError(ValueError):
    """A bundle is damaged or of another version; the message names the file."""


@dataclass
class Bundle:
    """Predict with a trained model and the preprocessor that it was trained with.

    Parameters
    ----------
    preprocessor
        Fitted; turns rows of the features stage into ids and floats.
    model
        Trained, on `device`.
    info
        What the model came from, as JSON types: name, recipe, seed, period of the train data, and `positive`, by binary
        target the label whose probability is predicted.
    device
        Where the model computes, as torch names it.
    workflow
        The steps from raw rows to rows of the features stage, without labels; None where the recipe has none, or they
        need more than the row.
    looking_back
        These steps where they look at earlier rows too; else None.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch import FactorizationMachine, ModelInputs, Preprocessor, Schema
    >>> from gigabatch.features.schema import Column, Target
    >>> columns = Column("city", "categorical", "string"), Column("clicked", "target", "float32")
    >>> rows = pd.DataFrame({"city": ["Oslo", "Bonn"], "clicked": [1.0, 0.0]})
    >>> preprocessor = Preprocessor(Schema(columns, (Target("clicked", "binary"),))).fit([rows])
    >>> inputs = ModelInputs(num_ids=(preprocessor.tensor_schema.ids[0].num_ids,), num_floats=0)
    >>> model = FactorizationMachine(inputs, FactorizationMachine.Settings())
    >>> bundle = Bundle(preprocessor, model, {"name": "clicks"})
    >>> bundle.predict(rows[["city"]]).dtypes.to_dict()
    {'clicked': dtype('float32')}
    """

    preprocessor: Preprocessor
    model: Model
    info: dict[str, Any]
    device: str = "cpu"
    workflow: Workflow | None = None
    looking_back: Workflow | None = None

    @property
    def schema(self) -> Schema:
        return self.preprocessor.schema

    @property
    def positive(self) -> dict[str, str]:
        """By binary target: the label whose probability is predicted, as text; empty where it is not known, as of
        bundles from before 28 November 2026."""
        return dict(self.info.get("positive", {}))

    def __repr__(self) -> str:
        predicted = predictions_told(self.schema, self.info)
        return (
            f"Bundle({self.info.get('name', '')!r}, {type(self.model).__name__}, predicts {predicted}, {self.device})"
        )

    def _repr_html_(self) -> str:
        return bundle_html(self.preprocessor, self.model, self.info, self.workflow, self.device)

    def predict(self, frame: Any) -> Any:
        """Predict rows of the features stage.

        Parameters
        ----------
        frame
            Rows with the categorical, continuous and list columns of the schema; targets need not be there. Of pandas,
            cuDF or Polars, or an Arrow table.

        Returns
        -------
        data frame of the same engine, index and length, or pyarrow.Table for other libraries
            One column a binary target (probability, float32) or regression target (value in the target's own unit,
            float64), `<target>_q<share>` a quantile where it has several, and one float32 column `<target>_<class>` a
            class of a multiclass target (probability). A row's predictions alone and among others are
            equal within `SCORE_RTOL` and `SCORE_ATOL` (models/model.py).

        Raises
        ------
        DataError
            Where a column is missing or holds what its type cannot; the message names it.

        Notes
        -----
        A column of 20 or more values of which none was there in training is named in a warning of the log: CSV files
        are read as text, so a whole number with nulls that was written as `3.0` is not the 3 of a data frame. So are
        columns of which 20 rows or more, and more than a tenth of the rows above the share in training, are null.
        """
        (found,) = self.predict_parts([frame])
        return found

    def predict_parts(self, frames: Iterable[Any]) -> Iterator[Any]:
        """As `predict`, of each part of a table in turn.

        Parameters
        ----------
        frames
            Parts of the rows. The bits are those of the whole where each but the last is a multiple of `BLOCK_ROWS`.

        Yields
        ------
        data frame
            As `predict` gives it, of each part. Behind the last one columns of the whole of which no value was there in
            training, or more is null, are warned of.
        """
        yield from self._predicted(frames, {})

    def _predicted(self, frames: Iterable[Any], types: Mapping[str, str], unlabelled: int = 0) -> Iterator[Any]:
        """`predict_parts`; for warnings, types: by column, of what was given before it was cast, unlabelled: rows
        without a label beside those of the frames."""
        unknown, far = dict[str, tuple[int, str]](), Counter[str]()
        count_rows, nulls = 0, dict.fromkeys(self.schema.names("categorical", "continuous"), 0)
        for number, given in enumerate(frames):
            frame = own_frame(given, "predict", [*nulls, *self._list_names()], ())
            self._require_features(frame)
            with plain_defaults():
                rows = torch.from_dlpack(self.preprocessor.pack(frame, targets=False)).to(self.device)
            num_ids = len(self.schema.names("categorical"))
            ids, floats = rows[:, :num_ids], rows[:, num_ids:].view(torch.float32)
            lists = [column.to(self.device) for column in frame_lists(self.preprocessor, frame)]
            found = dict(self._unknown(ids, lists))
            before = {name: unknown.get(name, (0, ""))[0] for name in found if number == 0 or name in unknown}
            unknown = {name: (before[name] + found[name], types.get(name, str(frame[name].dtype))) for name in before}
            count_rows, unlabelled = count_rows + len(frame), unlabelled + self._unlabelled(frame)
            for name in nulls:
                nulls[name] += int(frame[name].isna().sum())
            outputs = torch.cat(list(model_outputs(self.model, ids, floats, lists)))
            far.update(self._far(outputs))
            yield given_back(self.named(outputs, frame), given)
        for name, (count, dtype) in unknown.items():
            if count >= FEW_VALUES:
                values = self._vocabulary(name).values
                some = ", ".join(map(repr, engine_of(values).to_pandas(values[:3]).tolist()))
                text = (
                    f"column {name!r}: none of its {count:,} values ({dtype}) was there in training, whose values are "
                    f"such as {some}. All count as unseen; is the column spelt or typed as it was?"
                )
                log.warning(text)
        logs = [self.schema.targets[scale.target].name for scale in self.model.target_scales if scale.log]
        for name, count in far.items():
            log.warning(
                "target %r: %s of %s predictions are infinite, NaN or beyond %.2g, the largest float32.%s Look for "
                "extreme values in these rows, or train with preprocess.scale=robust or a step clip, which bound them.",
                name, f"{count:,}", f"{count_rows:,}", torch.finfo(torch.float32).max,
                " Under its loss (poisson, tweedie) a prediction is an exponential, without a bound."
                if name in logs else "",
            )  # fmt: skip
        if more := self._more_nulls(count_rows, nulls):
            shown = list(more.values())[:MOST_COLUMNS]
            shown += [f"{len(more) - MOST_COLUMNS:,} more columns"] if len(more) > MOST_COLUMNS else []
            text = f"more is null than in training: {', '.join(shown)}."
            if unlabelled:
                text += f" {unlabelled:,} of the rows have no label, as none in training: nulls may come with that."
            if any(name in self.schema.names("categorical") for name in more):  # a number is no such word
                words = list(self.info.get("null_values", ("",)))
                text += (
                    " A frame of pandas.read_csv has nulls for words such as None, which may be values here: read it "
                    f"with keep_default_na=False, na_values={words}."
                )
            log.warning(text)

    def _unlabelled(self, frame: Any) -> int:
        """Rows in which a target is null, of those targets that the frame holds."""
        there = [target.name for target in self.schema.targets if target.name in frame.columns]
        return int(frame[there].isna().any(axis=1).sum()) if there else 0

    def _far(self, outputs: Tensor) -> dict[str, int]:
        """Rows of each regression target of which a prediction is no number that float32 holds, where there are any."""
        parts = outputs.split([target.num_outputs for target in self.schema.targets], dim=1)
        lost = {
            target.name: int((~(part.abs() <= torch.finfo(torch.float32).max)).any(1).sum())
            for target, part in zip(self.schema.targets, parts, strict=True)
            if target.task == "regression"
        }
        return {name: count for name, count in lost.items() if count}

    def _more_nulls(self, rows: int, nulls: Mapping[str, int]) -> dict[str, str]:
        """Columns with far more nulls than in training, and what share, in words; nulls: of so many rows by column."""
        shares = self.preprocessor.null_shares
        return {
            name: f"{name!r} {count / rows:.0%} of {rows:,} rows ({shares[name]:.0%} in training)"
            for name, count in nulls.items()
            if count >= FEW_VALUES and name in shares and count / rows > shares[name] + MORE_NULLS
        }

    def _unknown(self, ids: Tensor, lists: Sequence[JaggedColumn]) -> Iterator[tuple[str, int]]:
        """Columns of which no value is known, and how many there are: most often in another spelling, such as 3.0."""
        given = dict(zip(self.schema.names("categorical"), ids.T, strict=True))
        given |= {column.name: found.ids for column, found in zip(self.schema.lists, lists, strict=True)}
        for name, values in given.items():
            vocabulary = self._vocabulary(name)
            if len(vocabulary.values) and not bool((values >= vocabulary.layout.first).any()):
                yield name, int((values != vocabulary.layout.null).sum())

    def _vocabulary(self, name: str) -> Any:
        own = self.preprocessor.vocabularies
        return own[name] if name in self.schema.names("categorical") else self.preprocessor.list_vocabulary(name)

    def predict_raw(self, frame: Any, history: Any = None) -> Any:
        """Predictions for raw rows, as `predict` gives them; they need no label, only the workflow's columns.

        Texts that stood for null in training (`null_values`) do so here. Other columns are passed over, those too whose
        names steps make. A time without a zone is UTC, also where the training's had one.

        Parameters
        ----------
        frame
            The rows. With `history` a label that steps read is null, or not there, where it is not known yet; so is
            another column that steps read of other rows alone.
        history
            For a model whose features look back: the earlier rows, as raw and of the same library, with their labels as
            numbers, 0 and 1 of a binary one. They end before `frame` begins. `row_number` is numbered where it is not
            there: first the history, then the frame.

        Raises
        ------
        DataError
            Where a column is missing or holds what its type cannot; where features look back and there is no history,
            or the other way round; where `frame` is not later than `history`; where a row looks at a label of `frame`,
            or at such a column, that is not known.
        """
        workflow = self.raw_steps(history is not None)
        names = self._raw_names(workflow)
        own = own_frame(frame, "predict_raw", names, ())
        earlier = None
        if history is not None:
            earlier = own_frame(history, "history", names, ())
            own, earlier = self._beside(workflow, own, earlier)
        workflow._require_applied(own, "predict_raw")
        require_columns(own, [name for name in names if name in own.columns], "predict_raw")
        types = {name: str(dtype) for name, dtype in own.dtypes.items()}
        # Of rows of the future no label is known, which says nothing of their other columns.
        unlabelled = self._unlabelled(own) if earlier is None else 0
        (found,) = self._predicted([self.from_raw(own, earlier)], types, unlabelled)
        return given_back(found, frame)

    def _beside(self, workflow: Workflow, rows: Any, history: Any) -> tuple[Any, Any]:
        """Both with the row numbers and the labels that steps read; unknown labels are null."""
        numbers = engine_of(rows).arrays
        if ROW in workflow.applied_inputs and ROW not in rows.columns and ROW not in history.columns:
            history = history.assign(**{ROW: numbers.arange(len(history))})
            rows = rows.assign(**{ROW: numbers.arange(len(history), len(history) + len(rows))})
        ungiven = [name for name in workflow.of_others if name in history.columns and name not in rows.columns]
        for name in ungiven:
            nothing = nulls_like(len(rows), history[name])
            nothing.index = rows.index
            rows = rows.assign(**{name: nothing})
        tasks = {target.name: target.task for target in self.schema.targets}
        if not len(history):
            raise DataError("history: it holds no row with a label. Give the rows before those to be predicted.")
        for name in (name for name in workflow.labels if name in workflow.applied_inputs):
            if name not in rows.columns:
                rows = rows.assign(**{name: numbers.full(len(rows), float("nan"))})
            require_columns(history, [name], "history")
            for frame in (rows, history):
                values = float_values(frame[name], f"label {name!r}")
                wrong = ~numbers.isnan(values) & (values != 0) & (values != 1)
                if tasks.get(name) == "binary" and bool(wrong.any()):
                    raise DataError(
                        f"label {name!r}: steps read it as 0 or 1, found {float(values[wrong][0]):g}. Give the history "
                        "its labels as the model learnt them (threshold, positive and label_steps applied)."
                    )
            # As training has them.
            rows, history = (frame.assign(**{name: frame[name].astype("float32")}) for frame in (rows, history))
        return rows, history

    def _require_features(self, frame: Any) -> None:
        """Raise `DataError` where steps make columns that `frame` lacks: raw rows were given to `predict`."""
        missing = {*self.schema.names("categorical", "continuous"), *self._list_names()} - set(frame.columns)
        made = sorted(missing.difference(self._raw_names(self.workflow))) if missing and self.workflow else ()
        if made:
            raise DataError(
                f"predict: column(s) {', '.join(map(repr, made))} not found, which steps make of raw rows. `predict` "
                "takes rows of the features stage; give raw rows to `predict_raw`."
            )

    def _list_names(self) -> list[str]:
        return [name for column in self.schema.lists for name in column.columns]

    def _raw_names(self, workflow: Workflow) -> tuple[str, ...]:
        """The raw columns that a prediction follows from."""
        return workflow.raw_columns_of([*self.schema.names("categorical", "continuous"), *self._list_names()])

    def from_raw(self, frame: Any, history: Any = None) -> Any:
        """Raw rows, as `predict_raw` takes them, as rows of the features stage, as `predict` takes them."""
        workflow = self.raw_steps(history is not None)
        rows = self._typed(workflow, frame)
        return workflow.transform(rows) if history is None else workflow.following(rows, self._typed(workflow, history))

    def _typed(self, workflow: Workflow, frame: Any) -> Any:
        """The raw columns of the frame as the steps take them."""
        rows = frame[[name for name in self._raw_names(workflow) if name in frame.columns]]
        rows = without_null_words(rows, self.info.get("null_values", ()), workflow.dtypes)
        typed = workflow.typed(rows)
        if (name := self.dated_column) in rows.columns and not is_dates(rows[name]):
            self.require_dates(typed[name], rows[name].dtype.kind not in "iuf")
        return typed

    @property
    def dated_column(self) -> str | None:
        """The raw time column, whose numbers count from 1970, where all rows of the training are of 1971 or later; else
        None."""
        name, start = self.schema.only("time"), self.info.get("trained_from")
        dated = any(column.name == name and column.dtype == "datetime" for column in self.schema.columns)
        workflow = self.workflow or self.looking_back
        dtype = "" if workflow is None else workflow.dtypes.get(name or "", "")
        how = time_type(dtype)
        counted = dtype == "datetime" or (how is not None and not how.pattern)
        return name if dated and counted and start is not None and start >= YEAR else None

    def require_dates(self, times: Any, were_text: bool) -> None:
        """Raise `DataError` where numbers of the `dated_column` are of another unit than they were taken for: all of
        them are of 1970 then. times: as `Workflow.typed` gives them, of text or of numbers, which those of a column
        that is declared in a unit are as text, too."""
        if (name := self.dated_column) is None:
            return
        how = time_type(self.raw_steps(self.looking_back is not None).dtypes[name])
        known = times.dropna()
        known = known[known != 0]  # which may stand for a time that is not known
        if (were_text and how is None) or not len(known) or not bool((abs(known) < YEAR).all()):
            return
        raise DataError(
            f"column {name!r}: its numbers are {'us' if how is None else how.form} since 1970, by which all rows are "
            "of 1970, and none was in training. Give them in that unit, or give timestamps or text (ISO 8601)."
        )

    @property
    def raw_workflow(self) -> Workflow:
        """The workflow; `DataError` where there is none, with the step that needs more than the row."""
        if self.workflow is None:
            reason = self.info.get("raw_refused", "its features need more than the row.")
            raise DataError(
                f"bundle: recipe {self.info.get('recipe')!r} has no way from raw rows alone to predictions: {reason} "
                "Give rows of the features stage to predict, or score a split."
            )
        return self.workflow

    def raw_steps(self, history: bool) -> Workflow:
        """`raw_workflow`; with `history` `looking_back`, and `DataError` where no step looks at earlier rows."""
        if not history or (self.looking_back is None and self.workflow is None):
            return self.raw_workflow
        if self.looking_back is None:
            raise DataError("history: no feature of this model looks at earlier rows. Leave the history out.")
        return self.looking_back

    def online(self) -> OnlineTransformer:
        """For a service: rows of the features stage to ids, floats and lists, the bits that `predict` uses."""
        return OnlineTransformer(self.preprocessor)

    def named(self, outputs: Tensor, frame: Any) -> Any:
        """The predictions that outputs [N, O] of a frame's rows are, as `predict` gives them."""
        engine = engine_of(frame)
        predictions = target_loss(self.schema).predict(outputs)
        columns = {name: part.contiguous() for name, part in named_predictions(self.schema, predictions).items()}
        values = {name: engine.arrays.from_dlpack(column.to(_frame_device(engine))) for name, column in columns.items()}
        return engine.frames.DataFrame(values, index=frame.index)

    def save(self, folder: Path) -> None:
        """Write `weights.safetensors`, `preprocessor/`, and `workflow/` where there is one; then `bundle.json`, which
        holds their checksums and its own."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.preprocessor.save(folder / "preprocessor")
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in self.model.state_dict().items()}
        met: set[int] = set()
        for name, tensor in weights.items():  # safetensors takes no memory twice, which tied weights have
            if (memory := tensor.untyped_storage().data_ptr()) in met:
                weights[name] = tensor.clone()
            met.add(memory)
        save_tensors(weights, folder / WEIGHTS)
        workflow = self.workflow or self.looking_back
        if workflow is not None:
            workflow.save(folder / "workflow")
        has_workflow = workflow is not None
        content = {
            "format": FORMAT, "model": spec_of(self.model).to_dict(), "info": self.info, "workflow": has_workflow,
            "files": {name: file_checksum(path) for name, path in _files(folder, has_workflow).items()},
        }  # fmt: skip
        if own := self._own_code():
            content["own_code"] = own
        content["checksum"] = _own_checksum(content)
        (folder / "bundle.json").write_text(json.dumps(content, indent=1, allow_nan=False))

    def _own_code(self) -> list[dict[str, Any]]:
        """What `load_bundle` imports of a user's code: the model, and operators and functions of the workflow."""
        used = [("model", spec_of(self.model).name)]
        workflow = self.workflow or self.looking_back
        steps = workflow.steps if workflow else ()
        used += [("operator", operator_name(type(step))) for step in steps]
        used += [("function", step.name) for step in steps if isinstance(step, LambdaFunction)]
        return [entry for what, name in dict.fromkeys(used) if (entry := told(what, name)) is not None]


@plain_defaults()
def load_bundle(folder: str | Path, device: str = "cpu", engine: str = "pandas") -> Bundle:
    """Read what `Bundle.save` wrote.

    Parameters
    ----------
    folder
        The bundle's folder, such as runs/<name>/<id>/model.
    device
        Where the model is to compute, as torch names it.
    engine
        Library of the data frames that `predict` takes: pandas, cudf, or auto.

    Raises
    ------
    BundleError
        Where the folder is of another version, or a file is not the one that was saved, by its checksum; or where a
        model or operator is of a user's file (docs/own_code.md) that is gone or has changed. The message names it.
    OSError
        Where the system does not give a file, which may be whole: no permission, too many open files, a failing disk.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch import FactorizationMachine, ModelInputs, Preprocessor, Schema
    >>> from gigabatch.features.schema import Column, Target
    >>> columns = Column("city", "categorical", "string"), Column("clicked", "target", "float32")
    >>> rows = pd.DataFrame({"city": ["Oslo", "Bonn"], "clicked": [1.0, 0.0]})
    >>> preprocessor = Preprocessor(Schema(columns, (Target("clicked", "binary"),))).fit([rows])
    >>> inputs = ModelInputs(num_ids=(preprocessor.tensor_schema.ids[0].num_ids,), num_floats=0)
    >>> model = FactorizationMachine(inputs, FactorizationMachine.Settings())
    >>> Bundle(preprocessor, model, {"name": "clicks"}).save("model")
    >>> bundle = load_bundle("model")
    >>> bundle.info, bundle.predict(rows).shape
    ({'name': 'clicks'}, (2, 1))
    """
    folder = Path(folder)
    tell_of_compilation()
    if not (folder / "bundle.json").exists() and (folder / "model" / "bundle.json").exists():
        raise BundleError(f"bundle {folder}: this is a run's folder: its bundle is {folder / 'model'}.")
    try:
        content = json.loads((folder / "bundle.json").read_text())
        if content["format"] != FORMAT:
            raise BundleError(f"bundle {folder}: format {content['format']}, this version reads {FORMAT}.")
        info, has_workflow = dict(content["info"]), content.get("workflow", False)
        _check(folder, content, has_workflow)
        require_told(content.get("own_code", ()))
        with AsAllocated():
            model = ModelSpec.from_dict(content["model"]).build()
        model.load_state_dict(load_file(folder / WEIGHTS, device="cpu"))
    except BundleError:
        raise
    except OwnCodeError as error:
        raise BundleError(f"bundle {folder}: {error}") from error
    except (*UNREADABLE, SafetensorError) as error:
        raise_of_system(error, f"bundle {folder}")
        raise BundleError(f"bundle {folder}: missing or damaged ({error}). {AGAIN}") from error
    name = load_engine(engine).NAME
    try:
        preprocessor = Preprocessor.load(folder / "preprocessor", name)
        workflow = Workflow.load(folder / "workflow", name) if has_workflow else None
    except DataError as error:
        raise BundleError(f"bundle {folder}: {error}") from error
    expected = [column.num_ids for column in preprocessor.tensor_schema.ids]
    if list(model.inputs.num_ids) != expected:
        raise BundleError(f"bundle {folder}: the model's tables {model.inputs.num_ids} do not fit the vocabularies.")
    lists = [(column.num_ids, column.weighted) for column in preprocessor.tensor_schema.lists]
    if [(column.num_ids, column.weighted) for column in model.inputs.lists] != lists:
        raise BundleError(f"bundle {folder}: the model's lists {model.inputs.lists} do not fit the vocabularies.")
    model = model.to(device).eval()
    if workflow is not None and workflow.needs_history:
        return Bundle(preprocessor, model, info, device, None, workflow)
    return Bundle(preprocessor, model, info, device, workflow)


class AsAllocated(TorchFunctionMode):
    """Within it weights are not drawn: those of a bundle come from its file, and drawing tables of a million ids takes
    longer than reading them. torch's random state stays as it is."""

    DRAWS = (Tensor.normal_, Tensor.uniform_, Tensor.bernoulli_, Tensor.exponential_, Tensor.random_)

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        if function in self.DRAWS or getattr(function, "__module__", None) == "torch.nn.init":
            return arguments[0] if arguments else (options or {})["tensor"]
        if function in (torch.randn, torch.rand):
            return torch.zeros(*arguments, **(options or {}))
        return function(*arguments, **(options or {}))


def _files(folder: Path, has_workflow: bool) -> dict[str, Path]:
    """What a bundle consists of beside bundle.json, by name; hidden files and those of others are none of it."""
    parts = [folder / WEIGHTS, *(folder / "preprocessor").rglob("[!.]*")]
    parts += (folder / "workflow").rglob("[!.]*") if has_workflow else []
    return {path.relative_to(folder).as_posix(): path for path in sorted(parts) if path.is_file()}


def _own_checksum(content: Mapping[str, Any]) -> str:
    text = json.dumps(
        {key: value for key, value in content.items() if key != "checksum"}, sort_keys=True, allow_nan=False
    )
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _check(folder: Path, content: Mapping[str, Any], has_workflow: bool) -> None:
    """Raise `BundleError` unless bundle.json and the files beside it are those that were saved.

    Bundles of before there were checksums have neither key; one without the other is damage.
    """
    if not content.keys() & {"files", "checksum"}:
        return
    if content.get("checksum") != _own_checksum(content):
        raise BundleError(f"bundle {folder}: damaged, bundle.json is not what was saved. {AGAIN}")
    found = _files(folder, has_workflow)
    for name in sorted(content["files"].keys() | found.keys()):
        saved = str(content["files"].get(name))
        if name not in found or file_checksum(found[name], saved) != saved:
            what = "missing" if name not in found else "not what was saved"
            raise BundleError(f"bundle {folder}: missing or damaged, {name} is {what}. {AGAIN}")


def frame_lists(preprocessor: Preprocessor, frame: Any) -> tuple[JaggedColumn, ...]:
    """The list columns of a frame, encoded, on the host."""
    if not preprocessor.schema.lists:
        return ()
    return jagged(preprocessor.pack_lists(frame))


def jagged(packed: Sequence[PackedList]) -> tuple[JaggedColumn, ...]:
    """Encoded list columns as a model takes them, on the host."""
    return tuple(
        JaggedColumn(
            _tensor(column.ids), _tensor(column.offsets), None if column.weights is None else _tensor(column.weights)
        )
        for column in packed
    )


def _tensor(values: np.ndarray) -> Tensor:
    """The array's memory, or a copy where it may not be written, which torch does not know of."""
    return torch.from_numpy(values if values.flags.writeable else values.copy())


def model_outputs(model: Model, ids: Tensor, floats: Tensor, lists: Sequence[JaggedColumn] = ()) -> Iterator[Tensor]:
    """Outputs [rows of block, O] of each block of `BLOCK_ROWS` rows, in evaluation mode; regression values in their
    target's own unit.

    ids [N, C] int32, floats [N, F] float32, lists of N rows each, on the model's device. The mode of each of the
    model's modules is restored.
    """
    yield from map(model.in_target_units, standardised_outputs(model, ids, floats, lists))


def standardised_outputs(
    model: Model, ids: Tensor, floats: Tensor, lists: Sequence[JaggedColumn] = ()
) -> Iterator[Tensor]:
    """`model_outputs` as the model learns them, which is what losses are of."""
    with modes_kept(model), torch.inference_mode():
        model.eval()
        for start in range(0, max(len(floats), 1), BLOCK_ROWS):  # no rows are one empty block
            stop = min(start + BLOCK_ROWS, len(floats))
            own = [column.slice(start, stop) for column in lists]
            with plain_defaults():
                found = model_call(model, ids[start:stop], floats[start:stop], own)
            yield found


def named_predictions(schema: Schema, predictions: Sequence[Tensor]) -> dict[str, Tensor]:
    """The columns of `Bundle.predict` [N] by name, in order, of each target's predictions."""
    columns: dict[str, Tensor] = {}
    for target, prediction in zip(schema.targets, predictions, strict=True):
        names = target.prediction_names()
        columns |= dict(zip(names, prediction.unbind(1) if prediction.dim() == 2 else [prediction], strict=True))
    return columns


def target_loss(
    schema: Schema,
    losses: Mapping[str, LossSettings] | None = None,
    label_smoothing: float = 0.0,
    classes_called: Sequence[str] = (),
) -> TargetLoss:
    """The loss that a schema's targets ask for. losses: of targets by name (`train.losses`); `balanced` weights are yet
    to be fitted (`fitted_loss`). label_smoothing: of what is learnt by (`train.label_smoothing`). classes_called: what
    `class_weights` call the classes of the one target there is, in order, where that is not what the schema does.

    Raises:
        ConfigError: for a name that is no target, a loss of another task, or labels to smooth without classes.
    """
    losses, known = losses or {}, {target.name: target.task for target in schema.targets}
    if unknown := [name for name in losses if name not in known]:
        raise ConfigError(
            f"train.losses: {', '.join(map(repr, unknown))} is no target. Targets: {', '.join(known) or 'none'}."
        )
    if label_smoothing and all(target.task == "regression" for target in schema.targets):
        raise ConfigError("train.label_smoothing: all targets are regressions, which have no classes. Set it to 0.")
    values: list[RegressionLoss | None] = [None] * len(known)
    classes: list[ClassLoss | None] = [None] * len(known)
    for place, (name, task) in enumerate(known.items()):
        quantiles = schema.targets[place].quantiles
        if quantiles:
            values[place] = RegressionLoss("quantile", taus=quantiles)
            if name in losses:
                raise ConfigError(f"train.losses.{name}: the target has quantiles, and so their loss. Leave one out.")
        if name not in losses:
            continue
        given = losses[name].model_dump(exclude_none=True)
        try:
            if task == "regression":
                if "class_weights" in given:
                    raise ModelError("class_weights are for binary and multiclass targets.")
                values[place] = RegressionLoss(**given)
            else:
                if "class_weights" in given:
                    given["class_weights"] = _in_order(given["class_weights"], schema.targets[place], classes_called)
                classes[place] = ClassLoss(**given)
        except (ModelError, TypeError) as error:
            raise ConfigError(f"train.losses.{name}, a {task} target: {error}") from error
    try:
        tasks = [(target.task, target.num_outputs) for target in schema.targets]
        return TargetLoss(tasks, values, classes, label_smoothing)
    except ModelError as error:
        raise ConfigError(f"train.losses: {error}") from error


def _in_order(weights: Any, target: Target, called: Sequence[str]) -> Any:
    """`class_weights` of a target in the order of its classes; `balanced` as it is. called: their names, if others.

    Raises:
        ModelError: where a mapping does not name each class, or a list has another length.
    """
    if isinstance(weights, str):
        return weights
    named = called or target.classes or tuple(map(str, range(max(target.num_outputs, 2))))
    names = [str(name) for name in named]
    shown = ", ".join(map(repr, names[:MOST_CLASSES])) + (", ..." if len(names) > MOST_CLASSES else "")
    if isinstance(weights, Mapping):
        unknown = [name for name in weights if name not in names]
        missing = [name for name in names if name not in weights]
        wrong = [f"unknown: {', '.join(map(repr, unknown[:MOST_CLASSES]))}"] if unknown else []
        wrong += [f"missing: {', '.join(map(repr, missing[:MOST_CLASSES]))}"] if missing else []
        if wrong:
            meant = " (1 is the positive label)" if target.task == "binary" and not called else ""
            raise ModelError(
                f"class_weights names each class once; {'; '.join(wrong)}. The classes are {shown}{meant}."
            )
        return [weights[name] for name in names]
    if len(weights) != len(names):
        raise ModelError(
            f"class_weights holds {len(weights)} numbers for a target of {len(names)} classes, which are in this "
            f"order: {shown}. Give each one, or a mapping by class."
        )
    return weights


def _frame_device(engine: Any) -> str:
    return "cuda" if engine.NAME == "cudf" else "cpu"


def predict_rows(bundle: Bundle, frame: Any, types: Mapping[str, str | None], history: Any = None) -> Any:
    """`Run.predict` of the run that has this bundle. types: of likeliest classes, as of `label_types`."""
    workflow, earlier = bundle.raw_steps(history is not None), None
    optional: tuple[str, ...] = ()
    if history is not None:
        labels = [target.name for target in bundle.schema.targets]
        unread = [name for name in labels if name not in workflow.applied_inputs]
        names = _wanted(history, [*workflow.applied_inputs, *unread], (ROW, *unread))
        earlier = exact_frame_of(arrow_table(history, "history", names))
        earlier = earlier.dropna(subset=[name for name in labels if name in names])  # as rows of the training's files
        optional = (ROW, *workflow.labels, *workflow.of_others)
    table = arrow_table(frame, "predict", _wanted(frame, workflow.applied_inputs, optional))
    found = with_classes(bundle.schema, bundle.predict_raw(exact_frame_of(table), earlier), types)
    if isinstance(frame, pd.DataFrame):
        found.index = frame.index
        return found
    return pa.Table.from_pandas(found, preserve_index=False).replace_schema_metadata(None)


def _wanted(frame: Any, names: Sequence[str], optional: Collection[str]) -> list[str]:
    """The names without those of `optional` that are no columns of the frame, of whatever library."""
    there = getattr(frame, "column_names", None)  # of Arrow
    known = set(getattr(frame, "columns", ()) if there is None else there)
    return [name for name in names if name not in optional or name in known]


def label_types(targets: Mapping[str, Mapping[str, Any]] | None) -> dict[str, str | None]:
    """By target the type of its classes, as settings of a recipe declare it; None for text."""
    return {name: item.get("label_type") for name, item in (targets or {}).items()}


def with_classes(schema: Schema, predictions: pd.DataFrame, types: Mapping[str, str | None]) -> pd.DataFrame:
    """The predictions of `Bundle.predict` with the likeliest class of each multiclass target, in its type or else as
    text, before its probabilities."""
    found = predictions
    for target in schema.targets:
        if target.task != "multiclass" or not target.classes:
            continue
        names = list(target.prediction_names())
        classes = typed_classes(target.name, target.classes, types.get(target.name))
        likeliest = classes[predictions[names].to_numpy().argmax(axis=1)]
        kind = "str" if classes.dtype.kind == "O" else classes.dtype
        found.insert(found.columns.get_loc(names[0]), target.name, pd.Series(likeliest, index=found.index, dtype=kind))
    return found
