"""A finished run: runs/<name>/<id>/ with summary.json, metrics.jsonl, model/ and report.html."""

from __future__ import annotations

import json
import platform
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from loaders.packed import PackedTable
from models.model import Model, ModelInputs
from pipeline.artifacts import Artifact, artifact_key, atomic_symlink, source_hash
from pipeline.bundle import Bundle, load_bundle
from pipeline.display import html_table, render_table
from pipeline.evaluate import column_summary, evaluate, permutation_importance, quality
from pipeline.rank_evaluate import Catalogue, positive_rows, rank_evaluate, ranking_rows
from pipeline.report import ReportData, Stage, write_report

if TYPE_CHECKING:
    from pipeline.stages import Encoded

SPLITS = ("train", "valid", "test")
STAGES = ("features", "encode", "train", "evaluate")


@dataclass
class Run:
    """The folder of a finished run."""

    path: Path
    skipped: tuple[str, ...] = ()

    @property
    def summary(self) -> dict[str, Any]:
        """auc, logloss, ece, mrr (null where one does not apply), rows, seconds by stage, and the rest."""
        return json.loads((self.path / "summary.json").read_text())

    @property
    def curve(self) -> list[dict[str, Any]]:
        """The learning curve: the lines of metrics.jsonl."""
        return [json.loads(line) for line in (self.path / "metrics.jsonl").read_text().splitlines()]

    def bundle(self, device: str = "cpu", engine: str = "pandas") -> Bundle:
        """The model, ready to predict."""
        return load_bundle(self.path / "model", device, engine)

    def show(self) -> None:
        """Print the tables of metrics and stages."""
        summary = self.summary
        metrics = [{"split": split, **values} for split, values in summary["metrics"].items()]
        render_table(metrics, f"{summary['name']} {summary['id']}")
        if summary.get("ranking"):
            render_table(ranking_rows(summary["ranking"]), "Ranking of the test split's choices")
        render_table(self._stage_rows(), "Stages")
        print(f"report  {self.path / 'report.html'}\nmodel   {self.path / 'model'}")

    def _stage_rows(self) -> list[dict[str, Any]]:
        summary = self.summary
        return [
            {
                "stage": name,
                "rows": summary["rows_by_stage"][name],
                "seconds": summary["seconds"][name],
                "rows/s": summary["rows_by_stage"][name] / max(summary["seconds"][name], 1e-9),
                "": "skipped, unchanged" if name in self.skipped else "",
            }
            for name in STAGES
        ]

    def _repr_html_(self) -> str:
        summary = self.summary
        metrics = [{"split": split, **values} for split, values in summary["metrics"].items()]
        return html_table(metrics, f"Run {summary['name']} {summary['id']}") + html_table(self._stage_rows(), "Stages")


def publish(encoded: Encoded, trained: Artifact) -> Run:
    """Evaluate a trained artifact and put the run's folder in place, then point runs/<name>/latest at it."""
    features, pipeline = encoded.features, encoded.features.pipeline
    config = pipeline.config
    settings = {"evaluate": config.to_dict()["evaluate"], "name": config.name}
    key = artifact_key("evaluate", {"train": trained.key}, settings, source_hash(["pipeline", "models"]))

    def write(folder: Path) -> dict[str, Any]:
        started = time.perf_counter()
        shutil.copytree(trained.path / "model", folder / "model")
        shutil.copy(trained.path / "metrics.jsonl", folder / "metrics.jsonl")
        stages = {"features": features.artifact, "encode": encoded.artifact, "train": trained}
        results = judge(encoded, load_bundle(folder / "model", pipeline.device, pipeline.engine))
        seconds = {name: float(artifact.manifest["seconds"]) for name, artifact in stages.items()}
        seconds["evaluate"] = time.perf_counter() - started
        summary = summarise(encoded, key, results, seconds, {name: a.skipped for name, a in stages.items()})
        (folder / "summary.json").write_text(json.dumps(summary, indent=1))
        curve = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        write_report(folder / "report.html", report_data(encoded, summary, results, curve))
        return {"rows": summary["rows"], "seconds": seconds["evaluate"]}

    artifact = pipeline.store.build("evaluate", key, write)
    path = config.runs / config.name / key[:12]
    if not path.exists():
        pipeline.store.copy(artifact, path)
    atomic_symlink(Path(path.name), path.parent / "latest")
    artifacts = {"features": features.artifact, "encode": encoded.artifact, "train": trained, "evaluate": artifact}
    return Run(path, tuple(name for name, item in artifacts.items() if item.skipped))


def judge(encoded: Encoded, bundle: Bundle) -> dict[str, Any]:
    """Metrics on valid and test, and what the report draws of test."""
    pipeline, schema = encoded.features.pipeline, encoded.features.schema
    settings, device = pipeline.config.evaluate, pipeline.device
    tables = {split: encoded.table(split) for split in SPLITS}
    judged = {split: encoded.judged(split) for split in ("valid", "test")}
    found = {s: evaluate(bundle.model, judged[s], schema, device, settings.calibration_bins) for s in judged}
    importance: list[dict[str, Any]] = []
    metric = None
    if settings.importance:
        metric, importance = permutation_importance(
            bundle.model, judged["test"], schema, settings, pipeline.config.seed, device
        )
    return {
        "ranking": rank(encoded, bundle),
        "target_means": {split: target_means(table) for split, table in tables.items()},
        "evaluations": found,
        "quality": quality(schema, found["test"], judged["test"], settings.calibration_bins),
        "columns": column_summary(bundle.preprocessor, tables["train"], tables["test"]),
        "importance": importance,
        "importance_metric": metric,
    }


def rank(encoded: Encoded, bundle: Bundle) -> dict[str, Any] | None:
    """How high the test split's choices rank, where the configuration asks for it."""
    ranking = ranking_of(encoded, bundle.model.inputs)
    return None if ranking is None else ranking(bundle.model)


def ranking_of(encoded: Encoded, inputs: ModelInputs) -> Callable[[Model], dict[str, Any]] | None:
    """`rank_evaluate` on the test split, of models with these inputs; None where the configuration asks for none."""
    pipeline = encoded.features.pipeline
    settings = pipeline.config.evaluate.ranking
    if settings is None:
        return None
    vocabularies, entities = encoded.preprocessor.vocabularies, encoded.features.schema.entities
    first = {f"first_{entity.name}": vocabularies[entity.key].layout.first for entity in entities}
    tables = {split: encoded.table(split) for split in SPLITS}
    catalogue, positives = Catalogue.of(tables, inputs, pipeline.device, **first), positive_rows(tables["test"])
    return partial(
        rank_evaluate,
        positives=positives,
        catalogue=catalogue,
        settings=settings,
        seed=pipeline.config.seed,
        device=pipeline.device,
    )


def target_means(table: PackedTable) -> dict[str, float]:
    """`mean of <target>` of the binary and regression targets, which shows how a split differs from another."""
    targets = zip(table.schema.targets, table.unpack(table.words).targets, strict=True)
    return {f"mean of {t.name}": float(labels.double().mean()) for t, labels in targets if t.task != "multiclass"}


def summarise(
    encoded: Encoded, key: str, results: dict[str, Any], seconds: dict[str, float], skipped: dict[str, bool]
) -> dict[str, Any]:
    """What summary.json holds."""
    config, rows = encoded.features.pipeline.config, encoded.features.rows
    labelled = {split: rows[split] for split in ("train", "valid", "test")}
    evaluations = results["evaluations"]
    return {
        "name": config.name,
        "id": key[:12],
        "created_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        **evaluations["test"].headline,
        "rows": sum(labelled.values()),
        "seconds": seconds,
        "metrics": {split: found.headline for split, found in evaluations.items()},
        "targets": {split: found.metrics for split, found in evaluations.items()},
        "rows_by_split": rows,
        "ranking": results["ranking"],
        "target_means": results["target_means"],
        "rows_by_stage": {
            "features": sum(rows.values()),
            "encode": sum(labelled.values()),
            "train": labelled["train"] * config.train.epochs,
            "evaluate": labelled["valid"] + labelled["test"],
        },
        "skipped": [name for name, was in skipped.items() if was],
        "notes": encoded.features.notes,
        "environment": environment(encoded.features.pipeline.device),
        "config": config.to_dict(),
    }


def environment(device: str) -> dict[str, Any]:
    """Versions and machine, for summaries and benchmark results."""
    import numpy
    import pandas
    import pyarrow

    return {
        "machine": platform.processor() or platform.machine(),
        "system": platform.platform(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "pandas": pandas.__version__,
        "pyarrow": pyarrow.__version__,
        "numpy": numpy.__version__,
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu",
        "threads": torch.get_num_threads(),
    }


def report_data(
    encoded: Encoded, summary: dict[str, Any], results: dict[str, Any], curve: list[dict[str, Any]]
) -> ReportData:
    """The report of one run."""
    skipped = set(summary["skipped"])
    stages = [
        Stage(
            name,
            summary["seconds"][name],
            summary["rows_by_stage"][name],
            summary["rows_by_stage"][name] / max(summary["seconds"][name], 1e-9),
            name in skipped,
        )
        for name in STAGES
    ]
    metrics = summary["metrics"]["test"]
    splits = [
        {"split": name, "rows": count, **summary["target_means"].get(name, {})}
        for name, count in summary["rows_by_split"].items()
    ]
    notes = list(summary["notes"])
    if results["importance"]:
        notes.append(
            f"Importance: drop of {results['importance_metric']} on the test split when a feature is shuffled."
        )
    return ReportData(
        name=summary["name"],
        run_id=summary["id"],
        created_utc=summary["created_utc"],
        notes=notes,
        metrics=metrics,
        splits=splits,
        ranking=ranking_rows(results["ranking"]) if results["ranking"] else (),
        learning_curve=curve,
        quality=results["quality"],
        stages=stages,
        columns=results["columns"],
        importance=results["importance"],
        environment=summary["environment"],
        configuration=encoded.features.pipeline.config.to_yaml(),
    )
