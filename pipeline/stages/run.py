"""What makes a finished run: runs/<name>/<id>/ with summary.json, metrics.jsonl, model/ and report.html."""

from __future__ import annotations

import math
import platform
import shutil
import statistics
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.ensemble import Ensemble
from gigabatch.models.model import Model
from gigabatch.models.parallel.ranks import Ranks
from gigabatch.pipeline.bundle import Bundle, load_bundle, target_loss
from gigabatch.pipeline.config.config import RunConfig
from gigabatch.pipeline.display import MINUS_LOSS, format_value, importance_text
from gigabatch.pipeline.evaluation.baseline_learners import Keep
from gigabatch.pipeline.evaluation.baselines import (
    advice,
    baselines,
    below_mean,
    far_predictions,
    no_probabilities,
    stretched_columns,
)
from gigabatch.pipeline.evaluation.checks import Flag, data_warnings, rows_worth, sure_warnings, without_earlier
from gigabatch.pipeline.evaluation.decisions import Costs
from gigabatch.pipeline.evaluation.evaluate import (
    CALIBRATION,
    Evaluation,
    ImportanceSample,
    column_summary,
    evaluate,
    feature_words,
    importance_sample,
    permutation_importance,
    quality,
)
from gigabatch.pipeline.evaluation.sample import rows_by_label, rows_of_rarest_label
from gigabatch.pipeline.evaluation.slices import worst_slices
from gigabatch.pipeline.evaluation.told import LEARNT, baseline_rows, ranking_rows
from gigabatch.pipeline.reports.report import FLAG, Quality, ReportData, write_report
from gigabatch.pipeline.runs.earlier import HISTORY_TEXT, history_rows
from gigabatch.pipeline.stages.finished import (
    FIGURES,
    MEMBERS_TITLE,
    SPLITS,
    Run,
    applicable,
    baselines_title,
    stage_rows,
)
from gigabatch.pipeline.stages.shown import (
    applicable_metrics,
    ece_by_chance,
    headline_errors,
    rows_told,
    short_flags,
    slice_tables,
    tile_notes,
    told_columns,
)
from gigabatch.pipeline.store.artifacts import Artifact
from gigabatch.pipeline.store.files import json_text, share_file
from gigabatch.pipeline.store.keys import versions
from gigabatch.pipeline.training.defaults import id_sizes, rows_seen
from gigabatch.pipeline.training.ensemble import MEMBER
from gigabatch.pipeline.training.start import FOLDER as TRAINING
from gigabatch.pipeline.training.target_metrics import mean_of_targets
from gigabatch.pipeline.training.train import PEERS, SENT, table_outputs

MOST_CLASSES = 20  # of a target, whose shares are shown by split
LEFT_OUT = "rows left out"  # by members by folds, whose metrics stand as those of valid
CALIBRATED = ("split", "target")  # of the rows of a calibration, what they are about


@dataclass(frozen=True)
class EvaluationData:
    """What a trained model is evaluated on.

    tables: the packed splits, `train` among them. evaluation_tables: those that metrics are measured on, with negatives
    where the run draws them. split: the one of these that is compared with baselines, ranked and drawn.
    rank: how high a model ranks the choices of `split`; None where the configuration asks for none. missing: shares of
    nulls by split and column, of the features stage. raw_of: the raw columns that one of these is made of. earlier:
    by a label's name the columns that are made of it in earlier rows alone.
    item_column: place of the items' ids where negatives are drawn. ranks: that compute the model's outputs together;
    all of them evaluate. keep_baselines: where what baselines predict is kept. left_out: of an ensemble by folds the
    rows that each member has left out, whose metrics are those of `valid`.
    """

    config: RunConfig
    device: str
    tables: Mapping[str, PackedTable]
    evaluation_tables: Mapping[str, PackedTable]
    split: str
    rank: Callable[[Model], dict[str, Any]] | None
    missing: Mapping[str, Mapping[str, float]]
    raw_of: Callable[[str], Sequence[str]]
    earlier: Callable[[str], Collection[str]]
    item_column: int | None
    ranks: Ranks | None = None
    keep_baselines: Keep | None = None
    left_out: tuple[PackedTable, ...] = ()

    @cached_property
    def measured_tables(self) -> dict[str, PackedTable]:
        """The evaluation tables, with those rows as `valid`."""
        if not self.left_out:
            return {**self.evaluation_tables}
        first, words = self.left_out[0], torch.cat([part.words for part in self.left_out])
        return {"valid": first.with_words(words), **self.evaluation_tables}


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
    if data.config.train.select == "best" and trained["steps"] and MEMBER not in curve[-1]:
        trained["kept_epoch"] = manifest["best_epoch"] + 1
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
    tables, bins = data.measured_tables, settings.calibration_bins
    evaluated = tables[split]
    found, metric, importance, members = shared_evaluation(bundle, data)
    sample = shuffled_sample(data) if importance else None
    compared: dict[str, Any] | None = None
    warnings: list[str] = []
    quantiles = [name for name, loss in data.config.train.losses.items() if loss.kind == "quantile"]
    quantiles += [target.name for target in schema.targets if target.quantiles]
    if settings.baselines:
        compared = baselines(
            settings.baselines,
            data.tables["train"],
            data.evaluation_tables,
            # Baselines learn from the rows as they are, so the model is compared at their share of label 1.
            {name: found[name].without_prior or found[name] for name in data.evaluation_tables},
            seed=data.config.seed,
            split=split,
            bins=bins,
            item_column=data.item_column,
            quantiles=quantiles,
            keep=data.keep_baselines,
            valid=None if data.item_column is not None else data.tables.get("valid"),
        )
        warnings += compared["worse"]
    warnings += below_mean(
        schema.targets, found[split].metrics, split, rows=rows_worth(evaluated), quantiles=quantiles, told=warnings
    )
    ranking = None if data.rank is None else data.rank(model)
    warnings += ((ranking or {}).get("baselines") or {}).get("worse", [])
    scales = bundle.preprocessor.scales  # numbers that are left as they are have no deviations
    far = far_predictions(data.tables["train"], evaluated, found[split].predictions, split, scales)
    # Where a few rows make all of an error, more steps or another rate are no way out.
    of_far = tuple(f"{name!r} on " for name in far)
    others = [place for place, text in enumerate(warnings) if not text.startswith(of_far)]
    if others:
        stretched = [name for name in stretched_columns(data.tables["train"]) if name in scales]
        warnings[others[0]] += f" {advice(curve, steps if model.learns_by_steps else None, stretched)}"
    warnings = [*far.values(), *warnings]
    drawn = data.item_column is not None
    if drawn:
        warnings += no_probabilities(schema.targets, found[split].metrics, split, data.config.train.calibration)
    warnings += data_warnings(bundle.preprocessor, data.tables, data.missing, drawn, data.raw_of)
    if not drawn and split != "train":  # whose labels a model may have learnt by heart
        warnings += sure_warnings(found[split].metrics, evaluated, split, warnings)
    earlier = {target.name: data.earlier(target.name) for target in data.tables["train"].schema.targets}
    warnings = without_earlier(warnings, earlier, model.takes_lines)
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
            beside=(LEFT_OUT if data.left_out else "valid", found["valid"], tables["valid"])
            if split != "valid" and "valid" in found and len(tables["valid"])
            else None,
            drawn=drawn,
            quantiles=quantiles,
        ),
        "slices": worst_slices(
            evaluated, bundle.preprocessor, found[split].predictions, drawn, found[split].negatives, quantiles
        )
        if settings.slices
        else [],
        "errors": headline_errors(found[split], evaluated),
        "ece_by_chance": ece_by_chance(found[split], evaluated, bins),
        "rows_told": rows_told(evaluated, len(data.tables[split])),
        "applies": applicable_metrics(evaluated.schema),
        "columns": column_summary(bundle.preprocessor, data.tables["train"], data.tables[split]),
        "importance": importance,
        "importance_metric": metric,
        "importance_sample": None if sample is None else asdict(sample) | _shuffled(evaluated, sample.rows),
    }


def shared_evaluation(
    bundle: Bundle, data: EvaluationData
) -> tuple[dict[str, Evaluation], str | None, list[dict[str, Any]], list[dict[str, Any]]]:
    """What all ranks compute together: metrics by evaluation table, the importance of features with its metric, and of
    an ensemble the metrics of its members."""
    settings, device, ranks = data.config.evaluate, data.device, data.ranks
    rest = bundle.schema, device, settings.calibration_bins, ranks, target_loss(bundle.schema, data.config.train.losses)
    prior = bundle.info.get("prior_shift", 0.0), bundle.info.get("prior_serve")
    found = {
        name: evaluate(bundle.model, table, *rest, *prior, outputs=_left_out_outputs(bundle.model, data, name))
        for name, table in data.measured_tables.items()
    }
    members: list[dict[str, Any]] = []
    if isinstance(bundle.model, Ensemble):
        alone = [
            {name: evaluate(member, table, *rest).headline for name, table in data.evaluation_tables.items()}
            for member in bundle.model.models
        ]
        both = {name: found[name] for name in data.evaluation_tables}
        members = member_rows(both, alone) if ranks is None or ranks.is_first else []
    if not settings.importance:
        return found, None, [], members
    evaluated = data.evaluation_tables[data.split]
    sample = shuffled_sample(data)
    shuffled = settings.model_copy(update={"importance_rows": sample.rows, "importance_repeats": sample.repeats})
    asked = bundle.model, evaluated, bundle.schema, shuffled, data.config.seed, device, ranks, prior[0]
    return found, *permutation_importance(*asked), members


def _left_out_outputs(model: Model, data: EvaluationData, name: str) -> Tensor | None:
    """Of rows that members of an ensemble have left out the outputs [N, O] of that member; None of other tables."""
    if name != "valid" or not data.left_out:
        return None
    assert isinstance(model, Ensemble)
    pairs = zip(model.models, data.left_out, strict=True)
    return torch.cat([table_outputs(member, part, data.device, in_units=False) for member, part in pairs])


def shuffled_sample(data: EvaluationData) -> ImportanceSample:
    """Rows and repeats of the importance, which follow from what the training saw; the same on every rank."""
    settings, table, train = data.config.evaluate, data.evaluation_tables[data.split], data.tables["train"]
    seen = rows_seen(data.config.train, len(train), id_sizes(train.schema))
    return importance_sample(settings, len(table), len(feature_words(table)), seen)


def _shuffled(table: PackedTable, most: int) -> dict[str, int | None]:
    """The rows that importance shuffles, whole groups where there are some, and how many have the rarest label."""
    words = table.words[rows_by_label(table, most)]
    return {"rows": len(words), "rarest": rows_of_rarest_label(table.with_words(words))}


def member_rows(
    found: Mapping[str, Evaluation], alone: Sequence[Mapping[str, Mapping[str, float | None]]]
) -> list[dict[str, Any]]:
    """A row a split and member with its headline metrics, one of their mean, and one of the ensemble without prior and
    calibration, which no member has. found: of the ensemble, by split; alone: headlines of each member, by split."""
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
        ensemble = evaluation.without_prior or evaluation
        uncalibrated = {name: mean_of_targets(ensemble.uncalibrated, name, ()) for name in CALIBRATION}
        headline = ensemble.headline | (uncalibrated if ensemble.uncalibrated else {})
        rows.append({"split": split, "member": "ensemble"} | headline)
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
    """`mean of <target>`, by the rows' weights, of binary and regression targets, and `share of <class> in <target>`
    where there are at most `MOST_CLASSES`, which show how a split differs from another."""
    batch = table.unpack(table.words)
    share = None if batch.weight is None else batch.weight.double() / batch.weight.double().sum()
    found = {}
    for target, labels in zip(table.schema.targets, batch.targets, strict=True):
        if target.task != "multiclass":
            mean = labels.double().mean() if share is None else labels.double() @ share
            found[f"mean of {target.name}"] = float(mean)
        elif target.num_outputs <= MOST_CLASSES:
            counts = torch.bincount(labels, share, target.num_outputs).double()
            names = target.classes or range(target.num_outputs)
            shares = (counts / counts.sum()).tolist()
            found |= {f"share of {name} in {target.name}": part for name, part in zip(names, shares, strict=True)}
    return found


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
        "features_key": data.stages["features"].key,
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
            "evaluate": (sum(map(len, data.evaluated.left_out)) or labelled["valid"]) + labelled["test"],
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
        drop = importance_text(results["importance_metric"])
        others = any("auc" not in own for own in results["evaluations"][split].metrics.values())
        if others and results["importance_metric"] != MINUS_LOSS:
            drop += " (of binary targets alone)"
        sample = results["importance_sample"]
        notes.append(
            f"Importance: {drop} when a feature is shuffled, each {sample['repeats']} time(s), over "
            f"{sample['rows']:,} rows of the {split} split"
            + ("." if sample["rarest"] is None else f", of which {sample['rarest']:,} have the rarest label.")
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
        split_more=results["rows_told"] + (f", {LEARNT}" if split == "train" else ""),
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
