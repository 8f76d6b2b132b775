"""What an evaluation found as rows of tables, from a summary alone: a command that shows one need not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HEADLINE = ("auc", "logloss", "ece", "mrr")
REGRESSION_HEADLINE = ("rmse", "mae", "r2")
NOISE = 2.0  # standard errors: a difference of chance alone is seldom larger, about once in 40 in either direction
NAMES = {
    "constant": "the constant", "popularity": "the items' popularity", "linear": "the linear model",
    "boosted": "the boosted trees",
}  # fmt: skip
LEARNT = "from which model and baselines have learnt, so no test of either"  # of the train split
TITLES = {"sampled": "sampled negatives", "catalogue": "whole catalogue"}


def baseline_title(found: Mapping[str, Any]) -> str:
    """What stands above the table of `baseline_rows`."""
    split = compared_split(found)
    rows = f"{found['rows'][split]:,} {split} rows"
    if split == "train":
        return f"Baselines on {rows}, {LEARNT}: how much closer than each the model fits them"
    return f"Baselines on {rows}; gain of the model over each, ± {NOISE:g} standard errors"


def compared_split(found: Mapping[str, Any]) -> str:
    """The split of `baselines`; summaries written before November 2026 do not name it, and theirs is test."""
    return str(found.get("split", "test"))


def baseline_rows(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What `baselines` found as rows of a table: the model's metrics on the same rows first, then each baseline's. Of
    train rows, which all of them have learnt, no noise is told, nor where the model is worse: a closer fit is no better
    model."""
    tests = compared_split(found) != "train"
    shown: list[dict[str, Any]] = []
    several = len({item["target"] for item in found["found"]}) > 1
    any_worse = tests and any(item["worse"] for item in found["found"])
    for item in found["found"]:
        names = [part["metric"] for part in item["differences"]]
        of_target = {"target": item["target"]} if several else {}
        if not any(row.get("target", item["target"]) == item["target"] for row in shown):
            # Of each baseline, as they are compared by more or fewer metrics.
            alike = [other for other in found["found"] if other["target"] == item["target"]]
            own = {part["metric"]: part["model"] for other in alike for part in other["differences"]}
            shown.append({"": "this model"} | of_target | own)
        metrics = {name: item["metrics"][compared_split(found)][name] for name in names}
        gains = {f"gain of {part['metric']}": part["gain"] for part in item["differences"]}
        errors = {f"± of {part['metric']}": NOISE * part["error"] for part in item["differences"]}
        paired = {key: value for pair in zip(gains.items(), errors.items(), strict=True) for key, value in pair}
        paired = paired if tests else {name.replace("gain of", "closer by"): gain for name, gain in gains.items()}
        row = {"": NAMES[item["name"]].removeprefix("the ")} | of_target | metrics | paired
        row |= {"train rows": item["rows"], "seconds": item["seconds"]}
        shown.append(row | ({"the model is worse by": ", ".join(item["worse"])} if any_worse else {}))
    return shown


def ranking_rows(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What `rank_evaluate` found as rows of a table; with baselines, these below the model."""
    others = (found.get("baselines") or {}).get("found", [])
    rows: list[dict[str, Any]] = []
    for name, title in TITLES.items():
        if name not in found:
            continue
        model = {"by": "this model"} if others else {}
        rows.append({"ranked among": title} | model | found[name])
        rows += [{"ranked among": title, "by": o["name"]} | o[name] | {"seconds": o["seconds"]} for o in others]
    return rows
