"""Tables, claims and plot of benchmarks/batch_scaling.py."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from scipy.stats import t as student

from benchmarks.batch_scaling_tables import COARSE, CONTENDERS, FINE, STEPS, TABLES, Run
from benchmarks.common import RESULTS, finish
from gigabatch.pipeline.display import render_table
from gigabatch.pipeline.reports.charts import LINE, STYLE, VARIABLES

REQUIRED = -0.001
CONFIDENCE = 0.95
METRICS = ("auc", "mrr")
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
# The page of a run recolours its charts; this plot stands alone, so it takes the light colours of that page.
COLORS = {
    "--ink": "#20262d", "--muted": "#626b75", "--grid": "#e2e3df", "--card": "#ffffff", "--series-1": "#2f6cad",
    "--series-2": "#bf6a26", "--series-3": "#2f8068", "--series-4": "#8a5599",
}  # fmt: skip
Final = Mapping[tuple[str, str, int], Sequence[Run]]
Known = Mapping[str, Mapping[str, Any]]


def bound_below(differences: Sequence[float]) -> tuple[float, float]:
    """Mean and lower bound of the mean at `CONFIDENCE` (Student's t, one-sided) of paired differences."""
    middle = mean(differences)
    spread = stdev(differences) / sqrt(len(differences))
    return middle, middle - float(student.ppf(CONFIDENCE, len(differences) - 1)) * spread


def compare(runs: Sequence[Run], reference: Sequence[Run], known: Known, metric: str) -> tuple[float, float]:
    """`bound_below` of the relative differences of a test metric, paired by seed."""
    pairs = zip(runs, reference, strict=True)
    values = [(known[a.key]["test"][metric], known[b.key]["test"][metric]) for a, b in pairs]
    return bound_below([new / old - 1 for new, old in values])


def valid_score(runs: Sequence[Run], known: Known) -> float:
    return mean(known[run.key]["valid"][metric] for run in runs for metric in METRICS)


def batches(final: Final) -> list[int]:
    """Steps an epoch of the batch sizes, the smallest batch, which is the reference, first."""
    return sorted({steps for _, _, steps in final}, reverse=True)


def best_small(final: Final, known: Known, table: str) -> str:
    """The contender whose small batch has the highest mean of AUC and MRR on the validation rows."""
    most = batches(final)[0]
    small = {contender: runs for (name, contender, steps), runs in final.items() if (name, steps) == (table, most)}
    return max(small, key=lambda contender: valid_score(small[contender], known))


def compared(final: Final, known: Known) -> list[dict[str, Any]]:
    """A row for every table, contender and batch size: means on test, and both comparisons of both metrics."""
    rows = []
    for (table, contender, steps), runs in sorted(
        final.items(), key=lambda item: (item[0][0], item[0][1], -item[0][2])
    ):
        best = best_small(final, known, table)
        row: dict[str, Any] = {
            "table": table, "optimizer": contender, "steps": steps, "batch": runs[0].batch_size, "lr": runs[0].lr,
            "best": best, **{metric: mean(known[run.key]["test"][metric] for run in runs) for metric in METRICS},
        }  # fmt: skip
        for reference, name in (("own", contender), ("best", best)):
            for metric in METRICS:
                row[f"{metric}, {reference}"] = compare(runs, final[table, name, batches(final)[0]], known, metric)
        rows.append(row)
    return rows


def claims_of(rows: Sequence[dict[str, Any]]) -> dict[str, tuple[float, float, bool]]:
    """The lower of the bounds of AUC and MRR at 160 steps an epoch, against either reference."""
    claims = {}
    for row in rows:
        if row["steps"] == STEPS[1]:  # --quick has other batch sizes, and no claims
            for reference in ("own", "best"):
                bound = min(row[f"{metric}, {reference}"][1] for metric in METRICS)
                title = CONTENDERS[row["optimizer"]].title
                text = f"{row['table']}, {title}: train rows/{STEPS[1]} against {reference} small batch, relative"
                claims[text] = (bound, REQUIRED, bound > REQUIRED)
    return claims


def percent(comparison: tuple[float, float]) -> str:
    """Mean and, in brackets, lower bound."""
    return f"{100 * comparison[0]:+.2f} ({100 * comparison[1]:+.2f})"


def table_lines(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "table": row["table"],
            "optimizer": CONTENDERS[row["optimizer"]].title,
            "steps an epoch": f"{row['steps']:,}",
            "batch": f"{row['batch']:,}",
            "lr": f"{row['lr']:.2g}",
            "AUC": f"{row['auc']:.4f}",
            "MRR": f"{row['mrr']:.4f}",
            **{
                f"{metric.upper()} to {reference}, %": percent(row[f"{metric}, {reference}"])
                for reference in ("own", "best")
                for metric in METRICS
            },
        }
        for row in rows
    ]


def in_short(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the page shows: the batches of the bar; the JSON has all."""
    left_out = ("steps an epoch", "batch", "lr", "MRR", "MRR to best, %")
    steps = {line["steps an epoch"] for line in lines}
    shown = {f"{STEPS[1]:,}"} & steps or steps  # --quick has others
    return [
        {name: value for name, value in line.items() if name not in left_out}
        for line in lines
        if line["steps an epoch"] in shown
    ]


def markdown(lines: Sequence[dict[str, Any]]) -> str:
    head = list(lines[0])
    body = [" | ".join(str(line[name]) for name in head) for line in lines]
    return "\n".join([f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {line} |" for line in body)])


def plot(final: Final, known: Known, rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Per table: differences to the best small batch, then by optimizer the training loss of the first seed by
    samples, a line a batch size."""
    tables = list(dict.fromkeys(table for table, _, _ in final))
    contenders = list(dict.fromkeys(contender for _, contender, _ in final))
    shown = batches(final)
    colors = dict(zip(shown, list(VARIABLES)[4:], strict=False))
    with matplotlib.rc_context(STYLE | {"font.size": 8}):
        figure = Figure(figsize=(2.5 * (1 + len(contenders)), 2.4 * len(tables)))
        canvas = FigureCanvasSVG(figure)
        axes = figure.subplots(len(tables), 1 + len(contenders), squeeze=False)
        for line, table in zip(axes, tables, strict=True):
            _differences(line[0], [row for row in rows if row["table"] == table], contenders, colors)
            for ax, contender in zip(line[1:], contenders, strict=True):
                ax.set_title(f"{table}: {CONTENDERS[contender].title}", fontsize=8)
                ax.set(xlabel="samples", ylabel="training loss")
                ax.xaxis.set_major_formatter(EngFormatter(sep=""))
                losses = []
                for steps in shown:
                    found = known[final[table, contender, steps][0].key]
                    ax.plot(found["samples"], found["curve"], color=colors[steps], label=f"{steps:,} steps", **LINE)
                    losses += found["curve"][len(found["curve"]) // 3 :]
                ax.set_ylim(0.98 * min(losses), 1.05 * max(losses))
        axes[0][1].legend(frameon=False, title="an epoch")
        canvas.print_figure(path, format="svg", metadata={"Date": None})
    text = path.read_text()
    for placeholder, name in VARIABLES.items():
        text = text.replace(placeholder, COLORS[name])
    path.write_text(text)


def _differences(ax: Any, rows: Sequence[dict[str, Any]], contenders: Sequence[str], colors: Mapping[int, str]) -> None:
    """AUC against the best small batch, in %: the mean, and a line down to the lower bound."""
    ax.set_title(f"{rows[0]['table']}: AUC to the best small batch", fontsize=8)
    for row in rows:
        middle, low = (100 * value for value in row["auc, best"])
        place = contenders.index(row["optimizer"]) + 0.2 * (list(colors).index(row["steps"]) - 1)
        ax.plot([place, place], [low, middle], color=colors[row["steps"]], **LINE)
        ax.plot([place], [middle], "o", color=colors[row["steps"]], markersize=3.5)
    ax.axhline(100 * REQUIRED, color=list(VARIABLES)[1], linewidth=0.8, dashes=(3, 3))
    ax.set_yscale("symlog", linthresh=0.2)
    ax.set_xticks(range(len(contenders)), contenders, rotation=20)
    ax.set_ylabel("% (bar: -0.1)")


def write_docs(folder: Path, lines: Sequence[dict[str, Any]], note: str) -> None:
    """The table between the markers of batch_scaling.md, whose other text stays."""
    page = folder / "batch_scaling.md"
    figures = f"{BEGIN}\n{note}\n\n{markdown(lines)}\n\n![Quality and loss by batch size](batch_scaling.svg)\n{END}"
    if not page.exists():
        page.write_text(figures + "\n")
        return
    text = page.read_text()
    if BEGIN not in text or END not in text:
        raise SystemExit(f"{page}: the markers {BEGIN} and {END} are missing. Put them back where the table belongs.")
    page.write_text(text[: text.index(BEGIN)] + figures + text[text.index(END) + len(END) :])


def report(final: Final, known: Known, sizes: Mapping[str, Mapping[str, int]], docs: Path, flags: Any) -> None:
    """Print and write everything; see benchmarks/batch_scaling.py."""
    rows = compared(final, known)
    lines = table_lines(rows)
    render_table(lines, "Test rows, means of the seeds; relative differences in %, lower 95 % bounds in brackets")
    best = {row["table"]: CONTENDERS[row["best"]].title for row in rows}
    seeds = len(next(iter(final.values())))
    trained = ", ".join(
        f"{table}: {size['train']:,} train rows, {TABLES[table].epochs} epoch(s)" for table, size in sizes.items()
    )
    budget = (
        f"Search at each batch size: {len(COARSE) + len(FINE)} runs of one seed, at "
        f"{', '.join(f'{x:g}' for x in COARSE)} times the centre and {', '.join(f'{x:g}' for x in FINE)} times the "
        "best of them. Centres: "
        f"{', '.join(f'{contender.title} {contender.centre:g}' for contender in CONTENDERS.values())}."
    )
    note = (
        f"{trained[0].upper()}{trained[1:]}. {seeds} seeds. {budget} Best small batch: "
        f"{', '.join(f'{table} {title}' for table, title in best.items())}."
    )
    print(note)
    plot(final, known, rows, docs / "batch_scaling.svg")
    write_docs(docs, in_short(lines), note)
    every = [{**json.loads(key), **{k: result[k] for k in ("valid", "test")}} for key, result in known.items()]
    if flags.save and not flags.quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "batch_scaling-runs.jsonl").write_text(
            "".join(json.dumps(run, allow_nan=False) + "\n" for run in every)
        )
    finish(
        "batch_scaling",
        trained,
        {},
        {},
        {} if flags.quick else claims_of(rows),
        save=flags.save,
        details={
            "seeds": seeds,
            "budget": budget,
            "best small batch": best,
            "runs": len(every),
            "chosen": [asdict(runs[0]) | {"seed": None, "folder": None} for runs in final.values()],
            "table": lines,
        },
    )
