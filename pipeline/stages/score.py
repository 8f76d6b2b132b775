"""Using a finished run: evaluate it on a split again, or write its predictions."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from gigabatch.features.columns.times import is_dates, is_text, iso_text
from gigabatch.features.engines import arrow_types
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.errors import DataError
from gigabatch.features.reading.encodings import UTF8
from gigabatch.features.reading.sources import PARQUET_ENDINGS, cast, file_columns, kept_files
from gigabatch.features.recipes import recipe_class
from gigabatch.features.recipes.base import Recipe
from gigabatch.features.recipes.interactions.histories import HISTORY
from gigabatch.features.schema import Schema
from gigabatch.features.workflow.workflow import ROW
from gigabatch.pipeline.bundle import BLOCK_ROWS, Bundle, label_types, load_bundle, with_classes
from gigabatch.pipeline.config.config import LossSettings, NegativeSettings, RunConfig
from gigabatch.pipeline.contract.state import obey
from gigabatch.pipeline.evaluation.labels import changed_labels
from gigabatch.pipeline.reports.report import write_report
from gigabatch.pipeline.runs.find import FoundRun, find_run
from gigabatch.pipeline.stages.asked import Evaluation, Request, evaluation_folder, require_score, require_table
from gigabatch.pipeline.stages.finished import SPLITS, Run
from gigabatch.pipeline.stages.run import evaluate_bundle, evaluation_report, threshold_summary
from gigabatch.pipeline.stages.stages import Pipeline, evaluation_data, learnt_of, packed_splits
from gigabatch.pipeline.store.files import behind_links, replacing, require_writable, write_json
from gigabatch.pipeline.store.keys import bytes_checksum

log = logging.getLogger(__name__)
MIDNIGHT = "T00:00:00"
BLANK_BEFORE_CLOCK = r"^\d{4}-\d{2}-\d{2} "
FORMULA = r"^[=+@\t\r-]"


def evaluate(
    config: str | Path | Mapping[str, Any],
    *overrides: str | Mapping[str, Any],
    run: str | Path | None = None,
    split: str = "test",
    out: str | Path | None = None,
) -> dict[str, Any]:
    """Evaluate a run's model on a split of today's features, as it was evaluated in its run: metrics, baselines,
    warnings and all else that `evaluate` of the configuration asks for.

    Parameters
    ----------
    config, overrides
        As of `Pipeline.from_config`.
    run
        `current`, `previous`, `latest`, an id or a folder; None: the current one.
    split
        `train`, `valid`, `test`, or another one of the features stage.
    out
        Folder of summary.json and report.html; None: `evaluation-<split>` in the run's own.

    Returns
    -------
    dict
        What summary.json holds: the split's metrics, `rows`, `targets`, `baselines`, `warnings`, ...

    Raises
    ------
    DataError
        Where the split does not exist, or today's features hold other targets or labels than the model predicts.
    RunError
        Where there is no such run.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch import Pipeline, evaluate
    >>> rows = pd.DataFrame({"city": ["Oslo", "Bonn"] * 50, "price": range(100), "clicked": [1, 0] * 50})
    >>> rows.to_csv("clicks.csv", index=False)
    >>> columns = {"categorical": ["city"], "continuous": ["price"], "targets": {"clicked": {"task": "binary"}}}
    >>> config = {"name": "clicks", "recipe": "table", "features": {"path": "clicks.csv", **columns}}
    >>> run = Pipeline.from_config(config).train()
    >>> found = evaluate(config, split="valid")
    >>> found["id"] == run.summary["id"], found["rows"] == run.summary["rows_by_split"]["valid"]
    (True, True)
    """
    return _evaluated(Pipeline.from_config(config, *overrides), run, split, None if out is None else Path(out)).summary


def evaluate_run(
    config: str | Path,
    overrides: Sequence[str],
    run: str | Path | None,
    split: str | None,
    out: Path | None,
    request: Request | None = None,
) -> int:
    """`evaluate`, printed; what gave no warning is remembered for the same command, where its request is given."""
    pipeline = Pipeline.from_config(config, *overrides)
    key, split = None if request is None or request.key is None else request.features_key(), split or "test"
    with heard() as warned:
        made = _evaluated(pipeline, run, split, out)
    if request is not None and key is not None and not warned:
        request.remember_evaluation(made, key, split)
    made.show(pipeline.config.name, split)
    return 0


@contextlib.contextmanager
def heard() -> Iterator[list[logging.LogRecord]]:
    """The warnings that are logged within the block, but for those of how a run was found."""

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name != find_run.__module__:
                found.append(record)

    found: list[logging.LogRecord] = []
    handler, logger = Heard(logging.WARNING), logging.getLogger("gigabatch")
    logger.addHandler(handler)
    try:
        yield found
    finally:
        logger.removeHandler(handler)


def _evaluated(pipeline: Pipeline, run: str | Path | None, split: str, out: Path | None) -> Evaluation:
    used = find_run(pipeline.config, run)
    path, trained = used.path, Run(used.path).summary["trained"]
    folder = evaluation_folder(path, split, out)
    require_writable(folder)
    steps = trained["steps"] - trained.get("skipped_steps", 0)  # which runs before November 2026 did not count
    bundle = load_bundle(path / "model", pipeline.device, pipeline.engine)
    features = pipeline.features()
    known, today = bundle.schema.targets, features.schema.targets
    was, now = Run(path).summary["config"], pipeline.config.to_dict()
    if changed := list(changed_labels(known, today, was, now)):
        raise DataError(
            f"evaluate: {' '.join(changed)} So the labels of today's features are not those that the model predicts. "
            "Correct them, or train again."
        )
    if known != today:
        raise DataError("evaluate: the model predicts other targets than today's features hold. Train again.")
    if learnt := learnt_of(features, split, Run(path).summary, bundle.info):
        log.warning("evaluate: run %s has learnt from rows of %r (%s): no measurement.", used.id, split, learnt)
    pipeline.config = _trained_by(pipeline.config, was["train"])  # of which features know nothing
    started = time.perf_counter()
    with packed_splits(bundle.preprocessor, features, list(dict.fromkeys([*SPLITS, split]))) as tables:
        data = evaluation_data(features, bundle.preprocessor, tables, [split], split)
        results = evaluate_bundle(bundle, data, Run(path).curve, steps)
    found = results["evaluations"][split]
    summary = {
        "name": pipeline.config.name,
        "id": used.id,
        "states": list(used.states),
        "split": split,
        **found.headline,
        "rows": features.rows[split],
        "seconds": {"evaluate": time.perf_counter() - started},
        "targets": found.metrics,
        "warnings": results["warnings"],
        "calibration": results["calibration"],
        "rates": results["rates"],
        "multilabel": results["multilabel"],
        "members": results["members"],
        "baselines": results["baselines"],
        "ranking": results["ranking"],
        "thresholds": threshold_summary(results["quality"]),
        "slices": [asdict(item) for item in results["slices"]],
    }
    folder.mkdir(parents=True, exist_ok=True)
    written = {"summary.json": write_json(folder / "summary.json", summary)}
    rows = {name: features.rows[name] for name in tables}
    report = evaluation_report(
        results, features.notes, rows, name=f"{summary['name']}, {split} split", run_id=path.name
    )
    written["report.html"] = write_report(folder / "report.html", report)
    return Evaluation(summary, folder, used, {name: bytes_checksum(content) for name, content in written.items()})


def _trained_by(config: RunConfig, was: Mapping[str, Any]) -> RunConfig:
    """Today's configuration with the losses, the calibration and the drawn negatives of a run, which say what its
    predictions are of. was: `train` of the run's configuration."""
    negatives = was.get("negatives")
    own = {
        "losses": {name: LossSettings.model_validate(given) for name, given in was.get("losses", {}).items()},
        "calibration": was.get("calibration", "none"),
        "negatives": None if negatives is None else NegativeSettings.model_validate(negatives),
    }
    return config.model_copy(update={"train": config.train.model_copy(update=own)})


def score_run(
    config: str | Path,
    overrides: Sequence[str],
    run: str | Path | None,
    split: str | None,
    out: Path | None,
    raw: str | None = None,
    history: str | None = None,
) -> int:
    """Predictions of a split: the recipe's submission format (CSV) where it has one, else keys and predictions.

    The split is read and predicted part by part; of all rows, predictions and what is written beside them are held.

    raw: score the rows of these files instead, which need no label. history: the earlier rows for features of `raw`
    that look back; None for the files of the configuration.
    """
    require_score(raw, split, out, history)
    pipeline = Pipeline.from_config(config, *overrides)
    used = find_run(pipeline.config, run)
    path = used.path
    require_writable(path if out is None else out.parent)
    bundle = load_bundle(path / "model", pipeline.device, pipeline.engine)
    types = label_types(pipeline.config.to_dict()["features"].get("targets"))
    if raw is not None:
        return _score_raw(pipeline, used, bundle, raw, out or path / "scores-raw.parquet", history, types)
    features = pipeline.features()
    split = split or ("score" if "score" in features.rows else "test")
    parts = features.frames(split, BLOCK_ROWS)
    recipe = recipe_class(pipeline.config.recipe)(pipeline.config.features)
    held = _held_columns(recipe, features.schema)
    kept: list[Any] = []

    def told() -> Iterator[Any]:
        for part in parts:
            kept.append(part[held].copy())
            yield part

    found = list(bundle.predict_parts(told()))
    if not found:
        raise DataError(f"split {split!r} has no rows to score.")
    concat = engine_of(found[0]).frames.concat
    frame, predictions = concat(kept, ignore_index=True), concat(found, ignore_index=True)
    submission = recipe.submission(frame, predictions)
    target = out or path / (f"scores-{split}.parquet" if submission is None else "submission.csv")
    content = submission
    if submission is None:
        content = with_keys(bundle.schema, frame, predictions, types)
    return written(content, target, used)


def _held_columns(recipe: Recipe, schema: Schema) -> list[str]:
    """Columns of the features stage that scores of it are written from."""
    own = () if type(recipe).submission is Recipe.submission else recipe.submission_columns
    asked = schema.table_columns if own is None else own
    return list(dict.fromkeys((*schema.names("key", "group", "time"), *asked)))


def _score_raw(
    pipeline: Pipeline, used: FoundRun, bundle: Bundle, raw: str, target: Path, history: str | None,
    types: Mapping[str, str | None],
) -> int:  # fmt: skip
    if history is None and bundle.looking_back is None:
        frame = raw_rows(pipeline, bundle, raw)
        return written(with_keys(bundle.schema, frame, bundle.predict_raw(frame), types), target, used)
    steps = bundle.raw_steps(history=True)
    frame = raw_rows(pipeline, bundle, raw, history=True)
    recipe = _obeying(pipeline)
    earlier, number = recipe.history_rows(pipeline.engine, history, steps.applied_inputs)
    print(f"history  {len(earlier):,} rows  {history or ', '.join(recipe.inputs())}")
    later = frame.assign(**{ROW: frame[ROW] + number}) if ROW in frame.columns else frame
    groups = dict.fromkeys(name for step in steps.steps for name in step.group_keys or ())
    return written(with_keys(bundle.schema, frame, bundle.predict_raw(later, earlier), types, groups), target, used)


def _obeying(pipeline: Pipeline) -> Recipe:
    """The recipe, which leaves out what was decided on."""
    recipe = recipe_class(pipeline.config.recipe)(pipeline.config.features)
    obey(pipeline.config.runs / pipeline.config.name, recipe, pipeline.store.root)
    return recipe


def raw_rows(pipeline: Pipeline, bundle: Bundle, raw: str, also: Sequence[str] = (), history: bool = False) -> Any:
    """The rows of files that need no label, as the recipe reads them and the bundle's `predict_raw` takes them.

    also: more columns of the files that the recipe knows. history: whether they are for steps that look back."""
    recipe = recipe_class(pipeline.config.recipe)(pipeline.config.features)
    steps = bundle.raw_steps(history)
    unknown = set(steps.labels)
    if history:
        unknown |= set(steps.of_others).difference(*(columns_of(pipeline, path) for path in kept_files(raw)))
    columns = [name for name in steps.applied_inputs if name not in unknown]
    lists = getattr(pipeline.config.features, "history", None)
    if lists is not None:
        if HISTORY in columns:
            items = bundle.preprocessor.list_vocabulary(HISTORY).values
            there = [path for path in kept_files(raw) if HISTORY in columns_of(pipeline, path)]
            lists.require_whole_ids(items, there)
        # looked up from files that were decided on
        obey(pipeline.config.runs / pipeline.config.name, recipe, pipeline.store.root)
    before = _states(raw)
    frame = recipe.raw_rows(pipeline.engine, raw, [*columns, *also])
    if changed := sorted(path for path, _ in before.items() ^ _states(raw).items()):
        raise DataError(f"input {changed[0]} changed while it was read. Run again when it is complete.")
    name = bundle.dated_column
    if name is None or name not in frame.columns or not is_dates(frame[name]):
        return frame
    were_text = [text for path in kept_files(raw) if (text := _is_text(path, name)) is not None]
    if were_text:  # of which the recipe made dates
        dtype = steps.dtypes[name]
        times = cast(frame[[name]], {name: dtype}, "score", nullable=(name,))[name]
        bundle.require_dates(times, all(were_text))
    return frame


def _states(raw: str) -> dict[str, tuple[int, ...]]:
    """What is another of each file of a pattern once somebody has written to it; of a pipe or a URL it is not known."""
    found = {path: os.stat(path) for path in kept_files(raw) if "://" not in path}
    return {
        path: (state.st_size, state.st_mtime_ns, state.st_ino)
        for path, state in found.items()
        if stat.S_ISREG(state.st_mode)
    }


def _is_text(path: str, name: str) -> bool | None:
    """Whether the times of a raw file's column are written as text; None where they are timestamps or dates."""
    if not path.endswith(PARQUET_ENDINGS):
        return True
    with fsspec.open(path, "rb") if "://" in path else contextlib.nullcontext(path) as source:
        kind = pq.read_schema(source).field(name).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return None if pa.types.is_temporal(kind) else arrow_types.is_text(kind)


def columns_of(pipeline: Pipeline, path: str) -> Sequence[str]:
    """Names of the columns of a raw file of this configuration."""
    given = pipeline.config.features
    form = getattr(given, "separator", ","), getattr(given, "encoding", UTF8)
    return getattr(given, "column_names", None) or file_columns(pipeline.engine, path, *form)


def written(content: Any, target: Path, used: FoundRun) -> int:
    """Write rows as `write_frame` does, and say how many they are, where they lie and which run made them."""
    target.parent.mkdir(parents=True, exist_ok=True)
    write_frame(content, target)
    print(f"{len(content):,} rows  {target}  by {used}")
    return 0


def with_keys(
    schema: Any, frame: Any, predictions: Any, types: Mapping[str, str | None], also: Iterable[str] = ()
) -> Any:
    """Key, group and time columns and those of `also`, as far as they are there, beside the predictions
    (`predicted_<target>`), of classes the likeliest before their probabilities. types: as of `label_types`."""
    engine, dtypes = engine_of(frame), schema.dtypes()
    found = {
        name: as_written(frame[name], dtypes.get(name, ""))
        for name in dict.fromkeys((*schema.names("key", "group", "time"), *also))
        if name in frame.columns
    }
    if any(target.task == "multiclass" for target in schema.targets):
        predictions = engine.from_pandas(with_classes(schema, engine.to_pandas(predictions), types))
    found |= {f"predicted_{name}": predictions[name] for name in predictions.columns}
    return engine.frames.DataFrame(found)


def as_written(column: Any, dtype: str) -> Any:
    """Times of the calendar as ISO 8601 text in UTC, however they came, as dates where none has a time of day, and with
    a blank before the time of day where they are texts that all have one; other columns as they are."""
    sign = "T"
    if dtype == "datetime" and is_text(column):
        sign = " " if bool(column.dropna().str.contains(BLANK_BEFORE_CLOCK).all()) else "T"
    if dtype == "datetime":
        column = cast(column.to_frame("time"), {"time": dtype}, "score", nullable=("time",))["time"]
    if dtype != "datetime" and not is_dates(column):
        return column
    text = iso_text(column)
    if bool(text.dropna().str.endswith(MIDNIGHT).all()):
        return text.str.slice(0, 10)
    return text if sign == "T" else text.str.replace("T", sign, regex=False)


def write_frame(frame: Any, path: Path) -> None:
    """CSV or Parquet by the file's ending, whole or not at all.

    Values are written as they are, so that keys can be joined again; a warning names the columns of a CSV file in which
    a spreadsheet would take some for formulas.
    """
    require_table(path)
    with replacing(behind_links(path)) as temporary:
        if path.suffix == ".csv":
            if names := formula_columns(frame):
                log.warning(
                    "%s: column(s) %s hold text that begins with =, +, -, @, a tab or a return, which a spreadsheet "
                    "runs as a formula. Import them as text there, or write Parquet.",
                    path,
                    ", ".join(map(repr, names)),
                )
            frame.to_csv(temporary, index=False)
        else:
            engine_of(frame).write_parquet(frame, temporary)


def formula_columns(frame: Any) -> list[str]:
    """Text columns with a value that a spreadsheet takes for a formula when it opens a CSV file."""
    texts = [name for name in frame.columns if str(frame[name].dtype) in ("object", "str", "string")]
    return [name for name in texts if bool(frame[name].dropna().astype("str").str.match(FORMULA).any())]
