"""A finished run: runs/<name>/<id>/ with summary.json, metrics.jsonl, model/ and report.html."""

from __future__ import annotations

import json
import math
import platform
import shutil
import statistics
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

from gigabatch.features.engines.arrow_columns import exact_frame_of
from gigabatch.features.engines.arrow_tables import arrow_table
from gigabatch.features.schema import Schema
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.ensemble import Ensemble
from gigabatch.models.model import Model
from gigabatch.models.parallel.ranks import Ranks
from gigabatch.pipeline.bundle import Bundle, load_bundle, target_loss
from gigabatch.pipeline.config.config import RunConfig
from gigabatch.pipeline.display import STAGES, about_seconds, format_value, headings, html_table, render_table
from gigabatch.pipeline.evaluation.baseline_learners import Keep
from gigabatch.pipeline.evaluation.baselines import (
    advice,
    baseline_rows,
    baseline_title,
    baselines,
    stretched_columns,
)
from gigabatch.pipeline.evaluation.checks import Flag, data_warnings
from gigabatch.pipeline.evaluation.decisions import Costs
from gigabatch.pipeline.evaluation.evaluate import (
    CALIBRATION,
    HEADLINE,
    LOSS_METRICS,
    REGRESSION_HEADLINE,
    Evaluation,
    ImportanceSample,
    column_summary,
    evaluate,
    feature_words,
    importance_sample,
    permutation_importance,
    quality,
)
from gigabatch.pipeline.evaluation.rank_evaluate import ranking_rows
from gigabatch.pipeline.evaluation.slices import worst_slices
from gigabatch.pipeline.reports.report import FLAG, Quality, ReportData, write_report
from gigabatch.pipeline.runs.earlier import HISTORY_TEXT, history_rows
from gigabatch.pipeline.runs.pointers import read_pointers
from gigabatch.pipeline.stages.shown import (
    applicable_metrics,
    headline_errors,
    short_flags,
    slice_tables,
    tile_notes,
    told_columns,
)
from gigabatch.pipeline.store.artifacts import Artifact
from gigabatch.pipeline.store.files import ArtifactError, json_text, share_file
from gigabatch.pipeline.store.keys import versions
from gigabatch.pipeline.training.defaults import id_sizes, rows_seen
from gigabatch.pipeline.training.ensemble import MEMBER
from gigabatch.pipeline.training.start import FOLDER as TRAINING
from gigabatch.pipeline.training.train import PEERS, SENT
from gigabatch.pipeline.views.figures import Drawn, calibration_figure, importance_figure, learning_figure, loss_figure
from gigabatch.pipeline.views.parts import beside, block, links

FIGURES = "figures.json"  # of a run
SPLITS = ("train", "valid", "test")
CALIBRATED = ("split", "target")  # of the rows of a calibration, what they are about
CALIBRATION_TITLE = "Calibration (fitted on valid, so the other splits judge)"
MULTILABEL_TITLE = "Labels of each multilabel target together (macro: mean of labels; micro: all as one list)"
RATES_TITLE = (
    "Log loss and ECE by the share of label 1 (train.prior): of these rows without it, and as where the model serves, "
    "as are those above"
)
WITHOUT_PRIOR = "; log losses are without train.prior, at the share of label 1 in these rows"  # of baselines
MEMBERS_TITLE = (
    "Members of the ensemble, each alone and uncalibrated, and their mean prediction; all without train.prior"
)
Part = str | tuple[list[dict[str, Any]], str]  # a line, or a table's rows and title


@dataclass
class Run:
    """Read a finished run from its folder.

    Parameters
    ----------
    path
        `runs/<name>/<id>/`, which holds summary.json, metrics.jsonl, figures.json, model/ and report.html.
    skipped
        Stages that were not made again.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch import Pipeline
    >>> rows = pd.DataFrame({"city": ["Oslo", "Bonn"] * 50, "price": range(100), "clicked": [1, 0] * 50})
    >>> rows.to_csv("clicks.csv", index=False)
    >>> columns = {"categorical": ["city"], "continuous": ["price"], "targets": {"clicked": {"task": "binary"}}}
    >>> config = RunConfig(name="clicks", recipe="table", features={"path": "clicks.csv", **columns})
    >>> run = Run(Pipeline(config).train().path)
    >>> run.summary["rows"], run.curve[-1]["epoch"]
    (100, 40.0)
    >>> [row["name"] for row in run.importance], len(run.calibration) > 0
    (['city', 'price'], True)
    >>> run.bundle().predict(rows).shape
    (100, 1)
    >>> run.predict(rows[["city", "price"]]).shape
    (100, 1)
    """

    path: Path
    skipped: tuple[str, ...] = ()

    @property
    def summary(self) -> dict[str, Any]:
        """auc, logloss, ece and mrr (null where one does not apply), with a regression target rmse, mae and r2, rows,
        seconds by stage, and the rest."""
        return read_json_lines(self.path / "summary.json", lines=False)[0]

    @property
    def curve(self) -> Drawn:
        """The learning curve: the lines of metrics.jsonl, drawn in a notebook. `gigabatch.curves` compares runs."""
        return Drawn(read_json_lines(self.path / "metrics.jsonl"), learning_figure)

    @property
    def importance(self) -> Drawn:
        """How much `metric` drops on the test split where a column is shuffled: `name`, `mean` and `std`, the most
        important first; drawn in a notebook. Empty without `evaluate.importance`.

        Raises
        ------
        ArtifactError
            Where the run has no figures.json, as runs before November 2026.
        """
        return Drawn(self._figures()["importance"], importance_figure)

    @property
    def calibration(self) -> Drawn:
        """Bins of test rows by prediction: `target`, mean `predicted`, share of positives `observed` and `rows`, or the
        sum of their weights; drawn in a notebook. Of binary targets, with `train.prior` as where the model serves.

        Raises
        ------
        ArtifactError
            As of `importance`.
        """
        return Drawn(self._figures()["calibration"], calibration_figure)

    def _figures(self) -> dict[str, Any]:
        path = self.path / FIGURES
        if not path.exists():
            raise ArtifactError(f"{path}: not there, the run is older than its figures. Train again to have them.")
        return read_json_lines(path, lines=False)[0]

    def bundle(self, device: str = "cpu", engine: str = "pandas") -> Bundle:
        """The model, ready to predict."""
        return load_bundle(self.path / "model", device, engine)

    def predict(self, frame: Any) -> Any:
        """Predictions for raw rows, which need no label.

        Parameters
        ----------
        frame
            Of pandas, Polars or cuDF, or an Arrow table, with the columns that the recipe reads, as they were in the
            files or in the frame that was trained on: also as `pandas.read_csv` gives them, with dates as text and
            whole numbers beside a null as floats. A time without a zone is UTC, also where the training's had one.

        Returns
        -------
        data frame or pyarrow.Table
            As `Bundle.predict` gives it: of pandas with the index of `frame`, of Arrow for all others. Before the
            probabilities of a multiclass target, `<target>_<class>`, stands its likeliest class, `<target>`. Of which
            label a binary target's probability is, `positive` says.

        Raises
        ------
        DataError
            Where a column is missing or holds what its type cannot, or features need more than the row.
        """
        bundle = self._bundle
        table = arrow_table(frame, "predict", bundle.raw_workflow.applied_inputs)
        found = with_classes(bundle.schema, bundle.predict_raw(exact_frame_of(table)))
        if isinstance(frame, pd.DataFrame):
            found.index = frame.index
            return found
        return pa.Table.from_pandas(found, preserve_index=False).replace_schema_metadata(None)

    @property
    def positive(self) -> dict[str, str]:
        """By binary target: the label whose probability is predicted, as text."""
        given = self.summary["config"]["features"].get("targets") or {}

        def told(name: str) -> str:
            positive = (given.get(name) or {}).get("positive")
            return "1" if positive is None else str(positive)

        return {target.name: told(target.name) for target in self._bundle.schema.targets if target.task == "binary"}

    @cached_property
    def _bundle(self) -> Bundle:
        return self.bundle()

    def show(self) -> None:
        """Print the warnings, the tables of metrics, baselines, ranking and stages, and where the run lies."""
        show_parts(self._parts())
        print(f"report  {self.path / 'report.html'}\nmodel   {self.path / 'model'}")
        if (current := read_pointers(self.path.parent).current) is not None:
            is_current = current == self.path.resolve()
            how = "" if is_current else f" (gigabatch promote {self.path.name} makes this run current)"
            print(f"current {'this run' if is_current else current.name}{how}")

    def _repr_html_(self) -> str:
        parts = [f"<p>{escape(part)}</p>" if isinstance(part, str) else html_table(*part) for part in self._parts()]
        first = next(place for place, part in enumerate(parts) if part.startswith("<table")) + 1
        drawn = [*loss_figure(self.curve).parts]
        if (self.path / FIGURES).exists():
            drawn += [part for rows in (self.importance, self.calibration) if rows for part in rows.figure().parts]
        places = {
            name: self.path / file for name, file in (("report", "report.html"), ("model", "model"), ("folder", ""))
        }
        return "".join([*parts[:first], links(places), block(beside(drawn)), *parts[first:]])

    def _parts(self) -> Iterator[Part]:
        """Lines, and tables as rows and title, in the order in which a terminal and a notebook show them."""
        summary = self.summary
        if summary.get("measured"):
            yield summary["notes"][0]
        yield from evaluation_parts(summary, metric_rows(summary), f"Run {summary['name']} {summary['id']}")
        yield stage_rows(summary, self.skipped), "Stages"


def with_classes(schema: Schema, predictions: pd.DataFrame) -> pd.DataFrame:
    """The predictions of `Bundle.predict` with the likeliest class of each multiclass target, as text, before its
    probabilities."""
    found = predictions
    for target in schema.targets:
        if target.task != "multiclass" or not target.classes:
            continue
        names = list(target.prediction_names())
        likeliest = np.asarray(target.classes, dtype=object)[predictions[names].to_numpy().argmax(axis=1)]
        found.insert(found.columns.get_loc(names[0]), target.name, pd.Series(likeliest, index=found.index, dtype="str"))
    return found


def evaluation_parts(
    summary: Mapping[str, Any], metrics: list[dict[str, Any]], title: str, split: str = "test"
) -> Iterator[Part]:
    """What an evaluation found: warnings, the rows `metrics`, baselines, ranking."""
    yield from (f"Warning: {text}" for text in summary.get("warnings", ()))
    yield metrics, title
    if summary.get("members"):
        yield summary["members"], MEMBERS_TITLE
    if summary.get("calibration"):
        yield summary["calibration"], CALIBRATION_TITLE
    if summary.get("multilabel"):
        yield summary["multilabel"], MULTILABEL_TITLE
    if summary.get("rates"):
        yield summary["rates"], RATES_TITLE
    compared = summary.get("baselines")
    if compared and compared["found"]:
        yield baseline_rows(compared), baselines_title(compared, summary)
    yield from (f"Does not apply: {text}." for text in (compared["left_out"] if compared else ()))
    if summary.get("ranking"):
        yield ranking_rows(summary["ranking"]), f"Ranking of the {split} split's choices"
        beside = summary["ranking"].get("baselines") or {"left_out": ()}
        yield from (f"Left out: {text}." for text in beside["left_out"])


def baselines_title(compared: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """What stands above the baselines `compared`; found: a summary or an evaluation, whose `rates` tell of a prior."""
    return baseline_title(compared) + (WITHOUT_PRIOR if found.get("rates") else "")


def show_parts(parts: Iterable[Part]) -> None:
    """Print lines and tables."""
    for part in parts:
        if isinstance(part, str):
            print(part)
        else:
            render_table(*part)


def metric_rows(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row a split with the headline metrics that apply, or a row a split and target where there are several."""
    targets = summary["targets"]
    if all(len(values) == 1 for values in targets.values()):
        return applicable(
            [{"split": split, **values, **_accuracy(targets[split])} for split, values in summary["metrics"].items()]
        )
    names = (*HEADLINE, *REGRESSION_HEADLINE, *LOSS_METRICS)
    return applicable(
        [
            {"split": split, "target": target}
            | {name: metrics.get(name) for name in names}
            | _accuracy({target: metrics})
            for split, values in targets.items()
            for target, metrics in values.items()
        ]
    )


def _accuracy(targets: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Of classes, which no AUC judges."""
    (found,) = targets.values()
    return {"accuracy": found["accuracy"]} if "accuracy" in found and "auc" not in found else {}


def applicable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows without columns that are None in all of them."""
    names = [name for name in headings(rows) if any(row.get(name) is not None for row in rows)]
    return [{name: row.get(name) for name in names} for row in rows]


def read_json_lines(path: Path, lines: bool = True) -> list[dict[str, Any]]:
    """The JSON objects of a run's file, one a line, or with lines False the one that it is; `ArtifactError` names a
    file that is missing or damaged."""
    try:
        text = path.read_text()
        found = [json.loads(part) for part in (text.splitlines() if lines else [text])]
    except (OSError, ValueError, RecursionError) as error:
        raise ArtifactError(
            f"{path}: missing or damaged ({error}). Remove the run's folder and train again."
        ) from error
    if not all(isinstance(item, dict) for item in found):
        raise ArtifactError(f"{path}: damaged, it holds no JSON object. Remove its folder and train again.")
    return found


def stage_rows(summary: Mapping[str, Any], skipped: Collection[str]) -> list[dict[str, Any]]:
    """A row a stage: rows, seconds, speed, and whether it was skipped.

    The speed of training is that of all epochs, in all processes where one went on from another's checkpoint. A stage
    that was skipped has no seconds; its note says what it took in the run that made its artifact.
    """
    found = []
    for name in STAGES:
        rows, seconds = summary["rows_by_stage"][name], summary["seconds"][name]
        trained = summary["trained"] if name == "train" else {}
        worked = trained.get("rows", rows)
        notes = [f"{format_value(trained['epochs'])} epochs"] if trained else []
        notes += [f"of {trained['members']} members together"] if "members" in trained else []
        if earlier := trained.get("earlier_rows"):
            notes.append(f"{earlier:,} of {worked:,} rows before a break, with their seconds")
        if skipped_steps := trained.get("skipped_steps"):
            notes.append(f"{skipped_steps:,} of {trained['steps']:,} steps skipped")
        speed: float | None = worked / max(seconds, 1e-9)
        if name in skipped:
            notes.append(f"skipped, unchanged: an earlier run took {about_seconds(seconds)}")
            seconds = speed = None
        found.append({"stage": name, "rows": rows, "seconds": seconds, "rows/s": speed, "note": "; ".join(notes)})
    return found


@dataclass(frozen=True)
class EvaluationData:
    """What a trained model is evaluated on.

    tables: the packed splits, `train` among them. evaluation_tables: those that metrics are measured on, with negatives
    where the run draws them. split: the one of these that is compared with baselines, ranked and drawn.
    rank: how high a model ranks the choices of `split`; None where the configuration asks for none. missing: shares of
    nulls by split and column, of the features stage. item_column: place of the items' ids where negatives are drawn.
    ranks: that compute the model's outputs together; all of them evaluate. keep_baselines: where what baselines predict
    is kept.
    """

    config: RunConfig
    device: str
    tables: Mapping[str, PackedTable]
    evaluation_tables: Mapping[str, PackedTable]
    split: str
    rank: Callable[[Model], dict[str, Any]] | None
    missing: Mapping[str, Mapping[str, float]]
    item_column: int | None
    ranks: Ranks | None = None
    keep_baselines: Keep | None = None


@dataclass(frozen=True)
class RunData:
    """What a run is made from. config: with nothing left to a rule; stages: the artifacts before the evaluation;
    measured: of a final run, what `measurement` keeps of the other one."""

    config: RunConfig
    engine: str
    rows: dict[str, int]
    notes: list[str]
    stages: dict[str, Artifact]
    evaluated: EvaluationData
    measured: dict[str, Any] | None = None


def write_run(folder: Path, run_id: str, data: RunData) -> dict[str, Any]:
    """Evaluate the trained artifact into an empty folder; returns what summary.json holds."""
    started = time.perf_counter()
    artifact, device = data.stages["train"], data.evaluated.device
    shutil.copytree(artifact.path / "model", folder / "model", copy_function=share_file)
    if (artifact.path / TRAINING).is_dir():
        shutil.copytree(artifact.path / TRAINING, folder / TRAINING, copy_function=share_file)
    share_file(artifact.path / "metrics.jsonl", folder / "metrics.jsonl")
    manifest, curve = artifact.manifest, Run(folder).curve
    trained = trained_epochs(curve)
    trained |= {name: manifest[name] for name in ("steps", "skipped_steps", "rows", "earlier_rows", "threads")}
    bundle = load_bundle(folder / "model", device, data.engine)
    results = evaluate_bundle(bundle, data.evaluated, curve, trained["steps"] - trained["skipped_steps"])
    seconds = {name: float(stage.manifest["seconds"]) for name, stage in data.stages.items()}
    seconds["evaluate"] = time.perf_counter() - started
    summary = summarise(run_id, data, results, seconds, trained)
    (folder / FIGURES).write_text(json_text(figures_of(results)))
    (folder / "summary.json").write_text(json_text(summary, indent=1))
    write_report(folder / "report.html", report_data(data.config, summary, results, curve))
    return summary


def figures_of(results: Mapping[str, Any]) -> dict[str, Any]:
    """What figures.json holds of an evaluation: rows of `Run.importance` and of `Run.calibration`."""
    metric = results["importance_metric"]
    calibration = [
        {"target": quality.title, "predicted": predicted, "observed": observed, "rows": count}
        for quality in results["quality"]
        if (bins := quality.calibration) is not None
        for predicted, observed, count in zip(
            *(np.asarray(values, float).tolist() for values in (bins.predicted, bins.observed, bins.count)), strict=True
        )
        if count > 0
    ]
    return {"importance": [{**row, "metric": metric} for row in results["importance"]], "calibration": calibration}


def trained_epochs(curve: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """`epochs` of a training by its curve; of an ensemble those of all its `members` together."""
    last = {point.get(MEMBER): round(point["epoch"]) for point in curve}
    return {"epochs": sum(last.values())} | ({} if None in last else {"members": len(last)})


def evaluate_bundle(
    bundle: Bundle, data: EvaluationData, curve: Sequence[Mapping[str, Any]], steps: int
) -> dict[str, Any]:
    """Metrics on the evaluation tables, baselines and warnings, and what the report draws of `data.split`.

    curve, steps: of the training, for the advice where a baseline is better.
    """
    settings, schema, model, split = data.config.evaluate, bundle.schema, bundle.model, data.split
    evaluated, bins = data.evaluation_tables[split], settings.calibration_bins
    found, metric, importance, members = shared_evaluation(bundle, data)
    sample = shuffled_sample(bundle, data) if importance else None
    compared: dict[str, Any] | None = None
    warnings: list[str] = []
    if settings.baselines:
        compared = baselines(
            settings.baselines,
            data.tables["train"],
            data.evaluation_tables,
            # Baselines learn from the rows as they are, so the model is compared at their share of label 1.
            {name: item.without_prior or item for name, item in found.items()},
            seed=data.config.seed,
            split=split,
            bins=bins,
            item_column=data.item_column,
            quantiles=[name for name, loss in data.config.train.losses.items() if loss.kind == "quantile"]
            + [target.name for target in schema.targets if target.quantiles],
            keep=data.keep_baselines,
        )
        if split == "train":  # whose labels the baselines have learnt by heart, as far as they can
            compared["worse"] = []
        warnings += compared["worse"]
    ranking = None if data.rank is None else data.rank(model)
    warnings += ((ranking or {}).get("baselines") or {}).get("worse", [])
    if warnings:
        scales = bundle.preprocessor.scales  # numbers that are left as they are have no deviations
        stretched = [name for name in stretched_columns(data.tables["train"]) if name in scales]
        warnings[0] += f" {advice(curve, steps if model.learns_by_steps else None, stretched)}"
    drawn = data.item_column is not None
    warnings += data_warnings(bundle.preprocessor, data.tables, data.missing, only_positives=drawn)
    return {
        "split": split,
        "baselines": compared,
        "warnings": warnings,
        "calibration": calibration_rows(found),
        "multilabel": [{"split": split} | row for split, evaluation in found.items() for row in evaluation.multilabel],
        "rates": [{"split": split} | row for split, evaluation in found.items() for row in evaluation.rates],
        "members": members,
        "ranking": ranking,
        "target_means": {name: target_means(table) for name, table in data.tables.items()},
        "evaluations": found,
        "quality": quality(
            schema,
            found[split],
            evaluated,
            bins,
            costs=Costs(settings.false_positive_cost, settings.false_negative_cost),
            split=split,
            beside=("valid", found["valid"], data.evaluation_tables["valid"])
            if split != "valid" and "valid" in found and len(data.evaluation_tables["valid"])
            else None,
            drawn=drawn,
        ),
        "slices": worst_slices(evaluated, bundle.preprocessor, found[split].predictions, drawn, found[split].negatives)
        if settings.slices
        else [],
        "errors": headline_errors(found[split], evaluated),
        "applies": applicable_metrics(evaluated.schema),
        "columns": column_summary(bundle.preprocessor, data.tables["train"], data.tables[split]),
        "importance": importance,
        "importance_metric": metric,
        "importance_sample": None if sample is None else asdict(sample),
    }


def shared_evaluation(
    bundle: Bundle, data: EvaluationData
) -> tuple[dict[str, Evaluation], str | None, list[dict[str, Any]], list[dict[str, Any]]]:
    """What all ranks compute together: metrics by evaluation table, the importance of features with its metric, and of
    an ensemble the metrics of its members."""
    settings, device, ranks = data.config.evaluate, data.device, data.ranks
    rest = bundle.schema, device, settings.calibration_bins, ranks, target_loss(bundle.schema, data.config.train.losses)
    prior = bundle.info.get("prior_shift", 0.0), bundle.info.get("prior_serve")
    found = {name: evaluate(bundle.model, table, *rest, *prior) for name, table in data.evaluation_tables.items()}
    members: list[dict[str, Any]] = []
    if isinstance(bundle.model, Ensemble):
        alone = [
            {name: evaluate(member, table, *rest).headline for name, table in data.evaluation_tables.items()}
            for member in bundle.model.models
        ]
        members = member_rows(found, alone) if ranks is None or ranks.is_first else []
    if not settings.importance:
        return found, None, [], members
    evaluated = data.evaluation_tables[data.split]
    sample = shuffled_sample(bundle, data)
    shuffled = settings.model_copy(update={"importance_rows": sample.rows, "importance_repeats": sample.repeats})
    asked = bundle.model, evaluated, bundle.schema, shuffled, data.config.seed, device, ranks
    return found, *permutation_importance(*asked), members


def shuffled_sample(bundle: Bundle, data: EvaluationData) -> ImportanceSample:
    """Rows and repeats of the importance, which follow from what the training saw; the same on every rank."""
    settings, table, train = data.config.evaluate, data.evaluation_tables[data.split], data.tables["train"]
    seen = rows_seen(data.config.train, len(train), id_sizes(train.schema))
    return importance_sample(settings, len(table), len(feature_words(table)), seen)


def member_rows(
    found: Mapping[str, Evaluation], alone: Sequence[Mapping[str, Mapping[str, float | None]]]
) -> list[dict[str, Any]]:
    """A row a split and member with its headline metrics, one of their mean, and one of the ensemble without a prior,
    which no member has. found: of the ensemble, by split; alone: headlines of each member, by split."""
    rows: list[dict[str, Any]] = []
    for split, evaluation in found.items():
        own = [member[split] for member in alone]
        rows += [{"split": split, "member": str(number)} | dict(values) for number, values in enumerate(own)]
        mean = {
            name: None if any(values[name] is None for values in own)
            else statistics.mean(cast(float, values[name]) for values in own)
            for name in evaluation.headline
        }  # fmt: skip
        rows.append({"split": split, "member": "mean of these"} | mean)
        rows.append({"split": split, "member": "ensemble"} | (evaluation.without_prior or evaluation).headline)
    return applicable(rows)


def evaluate_beside(bundle: Bundle, data: EvaluationData) -> None:
    """A rank's part of the evaluation that the first one writes."""
    shared_evaluation(bundle, data)


def calibration_rows(found: Mapping[str, Evaluation]) -> list[dict[str, Any]]:
    """Of a calibrated model, a row a split and target: log loss and ECE before and after."""
    return [
        {"split": split, "target": target}
        | {f"{name} {when}": values[name]
           for name in CALIBRATION for when, values in (("before", before), ("after", evaluation.metrics[target]))}
        for split, evaluation in found.items()
        for target, before in evaluation.uncalibrated.items()
    ]  # fmt: skip


def threshold_summary(found: Sequence[Quality]) -> dict[str, list[dict[str, Any]]]:
    """By binary target, the rows of its table of thresholds; a threshold that flags no row is None."""
    return {item.title: [dict(row) for row in item.thresholds] for item in found if item.thresholds}


def target_means(table: PackedTable) -> dict[str, float]:
    """`mean of <target>` of the binary and regression targets, which shows how a split differs from another."""
    targets = zip(table.schema.targets, table.unpack(table.words).targets, strict=True)
    return {f"mean of {t.name}": float(labels.double().mean()) for t, labels in targets if t.task != "multiclass"}


def summarise(
    run_id: str, data: RunData, results: dict[str, Any], seconds: dict[str, float], trained: dict[str, Any]
) -> dict[str, Any]:
    """What summary.json holds; trained: epochs that were trained, and their steps and rows together."""
    labelled = {split: data.rows[split] for split in SPLITS}
    evaluations = results["evaluations"]
    return {
        "name": data.config.name,
        "id": run_id,
        "created_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        **evaluations["test"].headline,
        "rows": sum(labelled.values()),
        "seconds": seconds,
        "metrics": {split: found.headline for split, found in evaluations.items()},
        "targets": {split: found.metrics for split, found in evaluations.items()},
        "rows_by_split": data.rows,
        "warnings": results["warnings"],
        "baselines": results["baselines"],
        "calibration": results["calibration"],
        "rates": results["rates"],
        "multilabel": results["multilabel"],
        "members": results["members"],
        "ensemble": data.stages["train"].manifest.get("ensemble"),
        "ranking": results["ranking"],
        "thresholds": threshold_summary(results["quality"]),
        "slices": [asdict(item) for item in results["slices"]],
        "importance_sample": results["importance_sample"],
        "target_means": results["target_means"],
        "rows_by_stage": {
            "features": sum(data.rows.values()),
            "encode": sum(labelled.values()),
            "train": labelled["train"],
            "evaluate": labelled["valid"] + labelled["test"],
        },
        "trained": trained,
        "started": data.stages["train"].manifest.get("started"),
        "measured": data.measured,
        "skipped": [name for name, artifact in data.stages.items() if artifact.skipped],
        "notes": data.notes,
        "environment": environment(data.evaluated.device),
        "config": data.config.to_dict(),
    }


def environment(device: str) -> dict[str, Any]:
    """Machine, versions and threads, for summaries and benchmark results."""
    return {
        "machine": platform.processor() or platform.machine(),
        "system": platform.platform(),
        **versions(),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu",
        "threads": torch.get_num_threads(),
    }


def report_data(
    config: RunConfig, summary: dict[str, Any], results: dict[str, Any], curve: list[dict[str, Any]]
) -> ReportData:
    """The report of one run."""
    notes = list(summary["notes"])
    notes += [f"Loss: {kind}." for kind in sorted({row["loss"] for row in curve if "loss" in row})]
    notes += sent_notes(curve)
    return evaluation_report(
        results,
        notes,
        summary["rows_by_split"],
        name=summary["name"],
        run_id=summary["id"],
        created_utc=summary["created_utc"],
        history=history_rows(config.runs / config.name, summary),
        history_text=HISTORY_TEXT,
        learning_curve=[
            {name: value for name, value in row.items() if name not in ("loss", SENT, PEERS)} for row in curve
        ],
        stages=[
            row | {"rows/s": None if row["rows/s"] is None else round(row["rows/s"])}
            for row in stage_rows(summary, summary["skipped"])
        ],
        environment=summary["environment"],
        configuration=config.to_yaml(),
    )


def sent_notes(curve: Iterable[Mapping[str, Any]]) -> list[str]:
    """What ranks have sent each other in training, and a group of a codistillation has written, as a sentence."""
    sent: Counter[str] = Counter()
    for row in curve:
        sent.update(row.get(SENT, {}))
    parts = ", ".join(f"{count:,} of {kind}" for kind, count in sent.most_common())
    return (
        [f"Sent by all ranks together, or left for other groups, in training: {sent.total():,} bytes: {parts}."]
        if sent
        else []
    )


def evaluation_report(
    results: Mapping[str, Any], notes: Sequence[str], rows: Mapping[str, int], **of_the_run: Any
) -> ReportData:
    """What `evaluate_bundle` found as a report. rows: by split; of_the_run: further fields of `ReportData`."""
    compared, split = results["baselines"], results["split"]
    notes = [*notes, *(f"Does not apply as a baseline: {text}." for text in (compared["left_out"] if compared else ()))]
    beside = (results["ranking"] or {}).get("baselines") or {"left_out": ()}
    notes += [f"Left out: {text}." for text in beside["left_out"]]
    if results["importance"]:
        notes.append(
            f"Importance: drop of {results['importance_metric']} when a feature is shuffled, each "
            "{repeats} time(s), over {rows:,} rows".format(**results["importance_sample"])
            + f" of the {split} split."
        )
    for row in results["calibration"]:
        if row["split"] == split:
            values = ", ".join(f"{name} {format_value(value)}" for name, value in row.items() if name not in CALIBRATED)
            notes.append(f"Calibrated by the valid split; {row['target']} on {split}: {values}.")
    for row in results["multilabel"]:
        if row["split"] == split:
            values = ", ".join(f"{name} {format_value(row[name])}" for name in row if name not in CALIBRATED)
            notes.append(f"All labels of {row['target']} on {split}: {values}.")
    for row in results["rates"]:
        if row["split"] == split:
            values = ", ".join(f"{name} {format_value(row[name])}" for name in row if name not in ("split", "at"))
            where = "these rows, without train.prior" if row["at"] == "these rows" else "where the model serves"
            notes.append(f"Log loss and ECE on {split} at the share of label 1 of {where}: {values}.")
    flags = [text for text in results["warnings"] if isinstance(text, Flag)]
    columns = []
    for row in results["columns"]:
        mark = short_flags(flag for flag in flags if flag.about == row["name"] and not flag.splits)
        columns.append({"name": row["name"], FLAG: mark} | row)
    columns.sort(key=lambda row: not row[FLAG])
    return ReportData(
        notes=notes,
        warnings=results["warnings"],
        metrics={
            name: math.nan if value is None and name in results["applies"] else value
            for name, value in results["evaluations"][split].headline.items()
        },
        metric_notes=tile_notes(results),
        split_rows=rows.get(split),
        baselines=told_columns(baseline_rows(compared)) if compared else (),
        baselines_title=baselines_title(compared, results) if compared else "",
        splits=told_columns(
            [
                {"split": name, FLAG: short_flags(flag for flag in flags if name in flag.splits), "rows": count}
                | results["target_means"].get(name, {})
                for name, count in rows.items()
            ]
        ),
        split=split,
        members=results["members"],
        members_title=MEMBERS_TITLE,
        ranking=ranking_rows(results["ranking"]) if results["ranking"] else (),
        quality=results["quality"],
        slices=slice_tables(results["slices"], split, results["evaluations"][split].negatives != 1),
        columns=told_columns(columns),
        importance=results["importance"],
        **of_the_run,
    )
