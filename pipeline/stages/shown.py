"""What of an evaluation its report shows: what stands below a metric, flags beside rows, slices, earlier runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gigabatch.features.schema import TensorSchema
from gigabatch.loaders.tables.packed import PackedTable, unpack
from gigabatch.models.metrics.pointwise import calibration_error_by_chance
from gigabatch.pipeline.display import format_value, headings, metric_label
from gigabatch.pipeline.evaluation.baseline_learners import Rows
from gigabatch.pipeline.evaluation.checks import Flag
from gigabatch.pipeline.evaluation.evaluate import CALIBRATION, Evaluation
from gigabatch.pipeline.evaluation.paired import METRICS, MORE_IS_BETTER, with_error
from gigabatch.pipeline.evaluation.slices import MOST_SHOWN, Slices
from gigabatch.pipeline.evaluation.told import NAMES, NOISE, REGRESSION_HEADLINE
from gigabatch.pipeline.reports.report import SliceTables
from gigabatch.pipeline.training.target_metrics import IN_UNITS, serving_weight


def applicable_metrics(schema: TensorSchema) -> set[str]:
    """Names of the headline's metrics that rows of this schema can have."""
    tasks = {target.task for target in schema.targets}
    found: set[str] = {"auc", "logloss", "ece"} if "binary" in tasks else set()
    found |= {"logloss", "ece"} if "multiclass" in tasks else set()
    found |= {"mrr"} if "binary" in tasks and schema.has_group else set()
    of_numbers = [target for target in schema.targets if target.task == "regression"]
    found |= set(REGRESSION_HEADLINE) if of_numbers else set()
    return found - set(IN_UNITS) if len(of_numbers) > 1 else found  # of several units there is no mean


def rows_told(table: PackedTable, rows: int) -> str:
    """What follows the number of a split's rows where `table`, of which metrics are, is more than these or less: drawn
    negatives, rows of weight 0."""
    more = f" and {len(table) - rows:,} drawn negatives" if len(table) > rows else ""
    counted = _counted(table)
    return more + (f", of which {counted:,} weigh something" if counted < len(table) else "")


def _counted(table: PackedTable) -> int:
    """How many rows weigh something."""
    weight = unpack(table.schema, table.words).weight
    return len(table) if weight is None else int((weight > 0).sum())


def headline_errors(evaluation: Evaluation, table: PackedTable) -> dict[str, float]:
    """Two standard errors of the headline's metrics of a single target, by name, of at most 200,000 rows: of more the
    error of so many, times the root of their share. Empty with several targets."""
    if len(table.schema.targets) != 1:
        return {}
    (target,) = table.schema.targets
    rows = Rows.of(table)
    scores = rows.of_all(evaluation.predictions[0])
    if target.quantiles:
        scores = scores[:, target.central]
    labelled = rows.labelled(target, 0)
    served = labelled
    if target.task == "binary":
        mass = serving_weight(labelled.labels, labelled.weight, evaluation.negatives)
        served = replace(labelled, weight=mass)
    if not bool(labelled.mass.sum() > 0):
        return {}
    share = int((labelled.mass > 0).sum()) / _counted(table)  # a sample has rows that weigh something alone
    found: dict[str, float] = {}
    for name in METRICS[target.task]:
        if evaluation.headline.get(name) is not None:
            error = with_error(name, scores, served if name == "logloss" else labelled)[1]
            found |= {name: NOISE * error * math.sqrt(share)} if math.isfinite(error) else {}
    return found


def ece_by_chance(evaluation: Evaluation, table: PackedTable, bins: int) -> float | None:
    """What the calibration error of a single target would be, about, were its probabilities right; None for others."""
    if len(table.schema.targets) != 1 or evaluation.headline.get("ece") is None or evaluation.rates:
        return None
    (predictions,) = evaluation.predictions
    weight = unpack(table.schema, table.words).weight
    return float(calibration_error_by_chance(predictions, bins, weight if weight is None else weight.to(predictions)))


def slice_tables(found: Sequence[Slices], split: str, serving: bool = False) -> list[SliceTables]:
    """What the report shows of `worst_slices`. serving: means of binary targets are as where the model serves."""
    made = []
    for item in found:
        label = metric_label(item.metric)
        if not item.looked:
            text = f"No value of a column has enough rows of {split} to be looked at."
            made.append(SliceTables(item.target, text))
            continue
        told = f"{len(item.worse)} of {item.looked:,} looks" if item.worse else f"None of {item.looked:,} looks"
        text = (
            f"{label} of the {item.rows:,} rows looked at: {format_value(item.overall)}. {told} at a value of a "
            "category or a fifth of a number found a worse one beyond chance; ± is a 95 % interval over all looks "
            "together."
        )
        if item.overall_off is not None:
            side = "above" if item.overall_off > 0 else "below"
            off = format_value(float(f"{abs(item.overall_off):.3g}"))
            text += f" Over all rows the mean label is {off} {side} the mean prediction."
            if serving and item.metric == "auc":
                text += " Means are as where the model serves (train.prior), AUC is the same there."
        made.append(
            SliceTables(
                item.target,
                text,
                f"Worse {label} than all rows",
                [
                    {label if key == item.metric else key: value for key, value in row.items()}
                    for row in item.worse[:MOST_SHOWN]
                ],
                item.off[:MOST_SHOWN],
            )
        )
    return made


def tile_notes(results: Mapping[str, Any]) -> dict[str, str]:
    """What stands below each metric of the headline: of how many targets it is the mean, two standard errors, the best
    baseline at its share of label 1, and the calibration error that so few rows have by chance."""
    notes: dict[str, list[str]] = {
        name: [f"± {format_value(float(f'{error:.2g}'))}"] for name, error in results["errors"].items()
    }
    evaluation: Evaluation = results["evaluations"][results["split"]]
    for name in evaluation.headline:
        of = sum(values.get(name) is not None for values in evaluation.metrics.values())
        if of > 1:
            notes.setdefault(name, []).append(f"mean of {of} targets")
    apart = CALIBRATION if results.get("rates") else ()
    compared = results["baselines"]
    if compared and len({item["target"] for item in compared["found"]}) == 1:
        beside: dict[str, list[tuple[float, str]]] = {}
        for item in compared["found"]:
            for part in item["differences"]:
                beside.setdefault(part["metric"], []).append((part["baseline"], item["name"]))
        for name, own in beside.items():
            if name in apart:
                continue
            value, best = max(own) if name in MORE_IS_BETTER else min(own)
            notes.setdefault(name, []).append(f"{NAMES[best].removeprefix('the ')} {format_value(value)}")
    if chance := results.get("ece_by_chance"):
        notes.setdefault("ece", []).append(f"{format_value(float(f'{chance:.2g}'))} by chance alone")
    for name in apart:
        notes.setdefault(name, []).append("where the model serves")
    return {name: "; ".join(parts) for name, parts in notes.items()}


def short_flags(flags: Iterable[Flag]) -> str:
    """The short forms of the flags, each once."""
    return "; ".join(dict.fromkeys(flag.short for flag in flags))


def told_columns(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows without the columns that hold nothing in any of them; the first, which names the rows, stays."""
    if not rows:
        return []
    first, *others = headings(rows)
    names = [first] + [name for name in others if any(row.get(name) not in ("", None) for row in rows)]
    return [{name: row[name] for name in names if name in row} for row in rows]
