"""A finished run: runs/<name>/<id>/ with summary.json, metrics.jsonl, model/ and report.html."""

from __future__ import annotations

import json
import platform
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

import torch

from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.model import Model
from gigabatch.pipeline.bundle import Bundle, load_bundle
from gigabatch.pipeline.config.config import RunConfig
from gigabatch.pipeline.display import format_value, headings, html_table, render_table
from gigabatch.pipeline.evaluation.baselines import advice, baseline_rows, baseline_title, baselines
from gigabatch.pipeline.evaluation.checks import data_warnings
from gigabatch.pipeline.evaluation.evaluate import (
    HEADLINE,
    REGRESSION_HEADLINE,
    column_summary,
    evaluate,
    permutation_importance,
    quality,
)
from gigabatch.pipeline.evaluation.rank_evaluate import ranking_rows
from gigabatch.pipeline.reports.report import ReportData, write_report
from gigabatch.pipeline.runs.pointers import read_pointers
from gigabatch.pipeline.store.artifacts import Artifact
from gigabatch.pipeline.store.files import ArtifactError, json_text, share_file
from gigabatch.pipeline.store.keys import versions

SPLITS = ("train", "valid", "test")
STAGES = ("features", "encode", "train", "evaluate")


@dataclass
class Run:
    """Read a finished run from its folder.

    Parameters
    ----------
    path
        `runs/<name>/<id>/`, which holds summary.json, metrics.jsonl, model/ and report.html.
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
    >>> run.bundle().predict(rows).shape
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
    def curve(self) -> list[dict[str, Any]]:
        """The learning curve: the lines of metrics.jsonl."""
        return read_json_lines(self.path / "metrics.jsonl")

    def bundle(self, device: str = "cpu", engine: str = "pandas") -> Bundle:
        """The model, ready to predict."""
        return load_bundle(self.path / "model", device, engine)

    def show(self) -> None:
        """Print the warnings, the tables of metrics, baselines, ranking and stages, and where the run lies."""
        for part in self._parts():
            if isinstance(part, str):
                print(part)
            else:
                render_table(*part)
        print(f"report  {self.path / 'report.html'}\nmodel   {self.path / 'model'}")
        if (current := read_pointers(self.path.parent).current) is not None:
            is_current = current == self.path.resolve()
            how = "" if is_current else f" (gigabatch promote {self.path.name} makes this run current)"
            print(f"current {'this run' if is_current else current.name}{how}")

    def _repr_html_(self) -> str:
        return "".join(
            f"<p>{escape(part)}</p>" if isinstance(part, str) else html_table(*part) for part in self._parts()
        )

    def _parts(self) -> Iterator[str | tuple[list[dict[str, Any]], str]]:
        """Lines, and tables as rows and title, in the order in which a terminal and a notebook show them."""
        summary = self.summary
        yield from (f"Warning: {text}" for text in summary.get("warnings", ()))
        yield metric_rows(summary), f"Run {summary['name']} {summary['id']}"
        compared = summary.get("baselines")
        if compared and compared["found"]:
            yield baseline_rows(compared), baseline_title(compared)
        yield from (f"Does not apply: {text}." for text in (compared["left_out"] if compared else ()))
        if summary.get("ranking"):
            yield ranking_rows(summary["ranking"]), "Ranking of the test split's choices"
        yield stage_rows(summary, self.skipped), "Stages"


def metric_rows(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row a split with the headline metrics that apply, or a row a split and target where there are several."""
    targets = summary["targets"]
    if all(len(values) == 1 for values in targets.values()):
        return applicable([{"split": split, **values} for split, values in summary["metrics"].items()])
    names = (*HEADLINE, *REGRESSION_HEADLINE)
    return applicable(
        [
            {"split": split, "target": target} | {name: metrics.get(name) for name in names}
            for split, values in targets.items()
            for target, metrics in values.items()
        ]
    )


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
    """A row a stage: rows, seconds, speed (of training over all epochs), and whether it was skipped.

    The seconds of a stage that was skipped are those of the run that made its artifact.
    """
    found = []
    for name in STAGES:
        rows, seconds = summary["rows_by_stage"][name], summary["seconds"][name]
        worked = summary["trained"]["rows"] if name == "train" else rows
        notes = [f"{format_value(summary['trained']['epochs'])} epochs"] if name == "train" else []
        notes += ["skipped, unchanged: seconds of an earlier run"] if name in skipped else []
        speed = worked / max(seconds, 1e-9)
        found.append({"stage": name, "rows": rows, "seconds": seconds, "rows/s": speed, "note": "; ".join(notes)})
    return found


@dataclass(frozen=True)
class RunData:
    """What a trained model is evaluated on, and what led to it.

    tables: by split; evaluation_tables: valid and test as their metrics are measured, with negatives where the run
    draws them.
    rank: how high a model ranks the choices of the test split; None where the configuration asks for none. stages: the
    artifacts before the evaluation. missing: shares of nulls by split and column, of the features stage. item_column:
    place of the items' ids where negatives are drawn.
    """

    config: RunConfig
    device: str
    engine: str
    rows: dict[str, int]
    notes: list[str]
    tables: dict[str, PackedTable]
    evaluation_tables: dict[str, PackedTable]
    rank: Callable[[Model], dict[str, Any]] | None
    stages: dict[str, Artifact]
    missing: dict[str, dict[str, float]]
    item_column: int | None


def write_run(folder: Path, run_id: str, data: RunData) -> dict[str, Any]:
    """Evaluate the trained artifact into an empty folder; returns what summary.json holds."""
    started = time.perf_counter()
    artifact = data.stages["train"]
    shutil.copytree(artifact.path / "model", folder / "model", copy_function=share_file)
    share_file(artifact.path / "metrics.jsonl", folder / "metrics.jsonl")
    manifest, curve = artifact.manifest, Run(folder).curve
    trained = {"epochs": round(curve[-1]["epoch"]), "steps": manifest["steps"], "rows": manifest["rows"]}
    results = evaluate_bundle(load_bundle(folder / "model", data.device, data.engine), data)
    if results["baselines"] and results["baselines"]["worse"]:
        results["warnings"][0] += f" {advice(curve, trained['steps'])}"
    seconds = {name: float(stage.manifest["seconds"]) for name, stage in data.stages.items()}
    seconds["evaluate"] = time.perf_counter() - started
    summary = summarise(run_id, data, results, seconds, trained)
    (folder / "summary.json").write_text(json_text(summary, indent=1))
    write_report(folder / "report.html", report_data(data.config, summary, results, curve))
    return summary


def evaluate_bundle(bundle: Bundle, data: RunData) -> dict[str, Any]:
    """Metrics on valid and test, and what the report draws of test."""
    settings, schema, model, test = data.config.evaluate, bundle.schema, bundle.model, data.evaluation_tables["test"]
    bins, device = settings.calibration_bins, data.device
    found = {split: evaluate(model, table, schema, device, bins) for split, table in data.evaluation_tables.items()}
    metric: str | None = None
    importance: list[dict[str, Any]] = []
    if settings.importance:
        metric, importance = permutation_importance(model, test, schema, settings, data.config.seed, device)
    compared: dict[str, Any] | None = None
    if settings.baselines:
        compared = baselines(
            settings.baselines,
            data.tables["train"],
            data.evaluation_tables,
            found,
            seed=data.config.seed,
            bins=bins,
            item_column=data.item_column,
            quantiles=[name for name, loss in data.config.train.losses.items() if loss.kind == "quantile"],
        )
    drawn = data.item_column is not None
    return {
        "baselines": compared,
        "warnings": (compared["worse"] if compared else [])
        + data_warnings(bundle.preprocessor, data.tables, data.missing, only_positives=drawn),
        "ranking": None if data.rank is None else data.rank(model),
        "target_means": {split: target_means(table) for split, table in data.tables.items()},
        "evaluations": found,
        "quality": quality(schema, found["test"], test, bins),
        "columns": column_summary(bundle.preprocessor, data.tables["train"], data.tables["test"]),
        "importance": importance,
        "importance_metric": metric,
    }


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
        "ranking": results["ranking"],
        "target_means": results["target_means"],
        "rows_by_stage": {
            "features": sum(data.rows.values()),
            "encode": sum(labelled.values()),
            "train": labelled["train"],
            "evaluate": labelled["valid"] + labelled["test"],
        },
        "trained": trained,
        "skipped": [name for name, artifact in data.stages.items() if artifact.skipped],
        "notes": data.notes,
        "environment": environment(data.device),
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
    means = summary["target_means"]
    notes = list(summary["notes"])
    notes += [f"Loss: {kind}." for kind in sorted({row["loss"] for row in curve if "loss" in row})]
    if summary["baselines"]:
        notes += [f"Does not apply as a baseline: {text}." for text in summary["baselines"]["left_out"]]
    if results["importance"]:
        notes.append(
            f"Importance: drop of {results['importance_metric']} on the test split when a feature is shuffled."
        )
    return ReportData(
        name=summary["name"],
        run_id=summary["id"],
        created_utc=summary["created_utc"],
        notes=notes,
        warnings=summary["warnings"],
        metrics=summary["metrics"]["test"],
        baselines=baseline_rows(summary["baselines"]) if summary["baselines"] else (),
        baselines_title=baseline_title(summary["baselines"]) if summary["baselines"] else "",
        splits=[{"split": name, "rows": rows} | means.get(name, {}) for name, rows in summary["rows_by_split"].items()],
        ranking=ranking_rows(results["ranking"]) if results["ranking"] else (),
        learning_curve=[{name: value for name, value in row.items() if name != "loss"} for row in curve],
        quality=results["quality"],
        stages=[
            row | {"rows/s": round(row["rows/s"]), "reused": row["stage"] in summary["skipped"]}
            for row in stage_rows(summary, summary["skipped"])
        ],
        columns=results["columns"],
        importance=results["importance"],
        environment=summary["environment"],
        configuration=config.to_yaml(),
    )
