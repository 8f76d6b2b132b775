"""A finished run as it lies on disk: what it says of itself, and its model for who asks for it.

What only reads, such as a `train` whose stages are all up to date, imports neither torch nor pandas.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gigabatch.features.errors import raise_of_system
from gigabatch.pipeline.config.config import LOSS_METRICS
from gigabatch.pipeline.display import STAGES, about_seconds, format_value, headings, html_table, render_table
from gigabatch.pipeline.evaluation.told import (
    HEADLINE,
    REGRESSION_HEADLINE,
    baseline_rows,
    baseline_title,
    ranking_rows,
)
from gigabatch.pipeline.runs.pointers import read_pointers
from gigabatch.pipeline.store.files import ArtifactError
from gigabatch.pipeline.views.figures import Drawn, calibration_figure, importance_figure, learning_figure, loss_figure
from gigabatch.pipeline.views.parts import beside, block, links

if TYPE_CHECKING:
    from gigabatch.features.schema import Schema
    from gigabatch.pipeline.bundle import Bundle

FIGURES = "figures.json"  # of a run
SPLITS = ("train", "valid", "test")
CALIBRATION_TITLE = "Calibration (fitted on valid, so the other splits judge)"
MULTILABEL_TITLE = "Labels of each multilabel target together (macro: mean of labels; micro: all as one list)"
RATES_TITLE = (
    "Log loss and ECE by the share of label 1 (train.prior): of these rows without it, and as where the model serves, "
    "as are those above"
)
WITHOUT_PRIOR = "; log losses are without train.prior, at the share of label 1 in these rows"  # of baselines
MEMBERS_TITLE = (
    "Members of the ensemble, each alone, and their mean prediction (ensemble); all uncalibrated and without "
    "train.prior; with several targets each metric is the mean over those that have it"
)
SHOWN_METRICS = (*HEADLINE, *REGRESSION_HEADLINE, *LOSS_METRICS)
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
    >>> from gigabatch.pipeline.config.config import RunConfig
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
        """How much `metric` drops on the test split where a column is shuffled: `name`, `mean` and `std` (None
        where it was shuffled once), the most important first; drawn in a notebook. Empty without `evaluate.importance`.

        Raises
        ------
        ArtifactError
            Where the run has no figures.json, as runs before November 2026.
        """
        return Drawn(self._figures()["importance"], importance_figure)

    @property
    def calibration(self) -> Drawn:
        """Bins of test rows by prediction: `target`, mean `predicted`, share of positives `observed` and `rows`, or the
        sum of their weights; drawn in a notebook. Of binary targets, with `train.prior` as where the model serves; of
        classes by the likeliest one's probability, and the share of rows whose class it is.

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
        from gigabatch.pipeline.bundle import load_bundle

        return load_bundle(self.path / "model", device, engine)

    def predict(self, frame: Any, history: Any = None) -> Any:
        """Predictions for raw rows, which need no label.

        Parameters
        ----------
        frame
            Of pandas, Polars or cuDF, or an Arrow table, with the columns that the recipe reads, as they were in the
            files or in the frame that was trained on: also as `pandas.read_csv` gives them, with dates as text and
            whole numbers beside a null as floats. A time without a zone is UTC, also where the training's had one.
        history
            For features that look back: the earlier rows, with their labels, as of `Bundle.predict_raw`. Those without
            a label are left out, as in training.

        Returns
        -------
        data frame or pyarrow.Table
            As `Bundle.predict` gives it: of pandas with the index of `frame`, of Arrow for all others. Before the
            probabilities of a multiclass target, `<target>_<class>`, stands its likeliest class, `<target>`: in the
            type of the labels in the frame that `gigabatch.fit` trained on, else in the target's `label_type`, else as
            text. Of which label a binary target's probability is, `positive` says.

        Raises
        ------
        DataError
            Where a column is missing or holds what its type cannot, or features need more than the row and, as far as
            they look back, `history`.
        """
        from gigabatch.pipeline.bundle import label_types, predict_rows

        types = label_types(self.summary["config"]["features"].get("targets"))
        return predict_rows(self._bundle, frame, types, history)

    @property
    def positive(self) -> dict[str, str]:
        """By binary target: the label whose probability is predicted, as text."""
        return positive_labels(self.summary["config"]["features"].get("targets"), self._bundle.schema)

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
    return applicable(
        [
            {"split": split, "target": target}
            | {name: metrics.get(name) for name in SHOWN_METRICS}
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
        raise_of_system(error, str(path))
        raise ArtifactError(
            f"{path}: missing or damaged ({error}). Remove the run's folder and train again."
        ) from error
    if not all(isinstance(item, dict) for item in found):
        raise ArtifactError(f"{path}: damaged, it holds no JSON object. Remove its folder and train again.")
    return found


def positive_labels(settings: Mapping[str, Any] | None, schema: Schema) -> dict[str, str]:
    """By binary target: the label whose probability is predicted, as text. settings: of targets by name."""
    found = {}
    for name in (target.name for target in schema.targets if target.task == "binary"):
        positive = ((settings or {}).get(name) or {}).get("positive")
        found[name] = "1" if positive is None else str(positive)
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
        if trained.get("kept_epoch", trained.get("epochs")) != trained.get("epochs"):
            notes.append(f"the weights are those after epoch {trained['kept_epoch']}, the best by the valid split")
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
