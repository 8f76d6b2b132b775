"""How good is the default model beside boosted trees at their best and two tuned networks? The same rows and metrics.

    python -m benchmarks.quality [--tables adult,flights] [--contenders ours,ours_init,lightgbm,...]
                                 [--seeds 5] [--trials 30] [--seconds_of_search 3600] [--seconds_per_fit 600]
                                 [--threads 1] [--net_rows 60000]
                                 [--large 1] [--engine cudf] [--cache FOLDER] [--quick] [--save]

Tables (`quality_tables.py`): flights, adult, a synthetic trivago log, and generated ones of 2,000 to 2,000,000 rows
(the largest with `--large 1`); binary, multiclass and regression; one has lists, which become columns for the peers
(`quality_fits.flat_lists`). Peers (`make quality-env`, `quality_peers.py`) read
the rows of our features stage with native categories and stop early on the valid loss: LightGBM and CatBoost at their
defaults, and with the settings of the lowest valid loss of these and `--trials` random ones, searched with one seed;
RealMLP-TD and TabM-D of pytabkit at their tuned defaults. `ours` has the table's features and no other setting,
`ours_ensemble` also `train.ensemble: 4`, on every table alike, `ours_init` what `gigabatch init` and `fit` choose for
so many rows, `ours_conf` (no default) the configuration that ships with us, of which some settings were searched by
hand. Nothing is chosen by test rows, except the peer that ours is compared with: the best tuned one there.

Ranks are by the mean over seeds of a task's first metric (AUC, log loss, RMSE), among `ours` and the peers.
`large_batch_loss` is the AUC of the best small batch of LAMB on flights less that of a large one; each batch size takes
the better of two learning rates by valid log loss.

Costs: a search ends with the first trial after `--seconds_of_search` of fitting, and its row says how many trials there
were; a tree's fit ends after `--seconds_per_fit` at its best round; a network's has no result then, and none is begun
on more than `--net_rows` train rows. Every fit is a line of `results.jsonl` in `--cache`, by rows, contender, settings,
seed and versions, so that a run that was cut off goes on. The version of ours is a hash of the package's
sources. With `--save` the fits of peers also go to benchmarks/results/quality-peers.jsonl, from
where later runs take them; their seconds are those of the machine and day that the line names. Intervals are 95 %, by
Student's t over the seeds. Peers take `--threads`, ours torch's own. `--quick` takes small generated tables and short
fits.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import arguments, device_of, finish, needed
from benchmarks.quality_fits import FIRST, HIGHER, Fits, Peers, Row, written
from benchmarks.quality_peers import NETS, TREES
from benchmarks.quality_tables import ROOT, TABLES, Table, plain_config

with needed():
    import pyarrow.parquet as pq
    from scipy.stats import rankdata

    from gigabatch.models.optimizers.schedule import square_root_scaled_lr
    from gigabatch.pipeline.display import render_table
    from gigabatch.pipeline.init.training import training_for

OURS, ENSEMBLE, CHOSEN, SHIPPED = "ours", "ours_ensemble", "ours_init", "ours_conf"
OWN = (OURS, ENSEMBLE, CHOSEN, SHIPPED)
MEMBERS = 4  # of the ensemble
CONTENDERS = (OURS, *TREES, *NETS)
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # 97.5 % quantile at n - 1 degrees of freedom
QUICK_TABLES = "small,regression,multiclass"
# What a claim needs at least: trials of a search or its seconds, seeds, seconds of a fit, train rows of networks.
TRIALS, SEARCH_SECONDS, SEEDS, SECONDS, NET_ROWS = 30, 3600.0, 5, 600.0, 60_000
CLAIMED = ("flights", "adult")  # tables of a `less_best` claim
SMALL_BATCHES, LARGE_BATCH = (256, 512, 1024), 8192
BASE_LR, BASE_BATCH, LR_FACTORS = 0.02, 512, (1.0, 2.0)  # rates of `large_batch_loss`, scaled by the root of the batch


def row_of(table: str, contender: str, fits: list[Row], first: str) -> Row:
    """Means over the seeds, with the half width of the first metric's interval where there are several.

    A contender of which a fit was cut off has `cut_off` in place of numbers.
    """
    row: Row = {"table": table, "contender": contender}
    if any("cut_off" in fit for fit in fits):
        return {**row, "cut_off": f"over {max(fit.get('cut_off', 0) for fit in fits):g} s"}
    skipped = {"key", "valid_loss", "rounds", "limit", "out_of_time", "machine", "date"}
    for name in [first, *(name for name in fits[0] if name not in {first, *skipped})]:
        row[name] = round(float(np.mean([fit[name] for fit in fits])), 5)
    if any(fit.get("out_of_time") for fit in fits):
        row["out_of_time"] = sum(bool(fit.get("out_of_time")) for fit in fits)
    if len(fits) > 1:
        spread = float(np.std([fit[first] for fit in fits], ddof=1)) / len(fits) ** 0.5
        row[f"{first}_plus_minus"] = round(STUDENT[len(fits)] * spread, 5)
    return row


def ranked(rows: list[Row], first: str) -> None:
    """Give the rows of one table their `rank`, 1 the best; ties share the mean. Other settings of ours and what has no
    numbers have none."""
    judged = [row for row in rows if row["contender"] not in OWN[1:] and first in row]
    sign = -1 if HIGHER[first] else 1
    for row, rank in zip(judged, rankdata([sign * row[first] for row in judged]), strict=True):
        row["rank"] = float(rank)


def seconds_of(fit: Row) -> float:
    """Of fitting, or after which it was cut off."""
    return float(fit.get("train_seconds", fit.get("cut_off", 0.0)))


def peer_rows(
    fits: Fits, peers: Peers, folder: Path, table: str, contender: str, seeds: range, flags: Any
) -> list[Row]:
    """A peer's rows: at its defaults, and for trees the best trial by valid loss."""
    first = FIRST[json.loads((folder / "layout.json").read_text())["task"]]
    train_rows = pq.read_metadata(folder / "train.parquet").num_rows
    names, searched = {"defaults": 0}, {}
    if contender in NETS and train_rows > flags.net_rows:
        why = f"{train_rows:,} train rows, --net_rows {flags.net_rows:,}"
        return [{"table": table, "contender": f"{contender} defaults", "cut_off": why}]
    if contender in TREES and flags.trials:
        tried: list[Row] = []
        while len(tried) <= flags.trials and sum(map(seconds_of, tried)) < flags.seconds_of_search:
            tried.append(fits.peer(peers, folder, contender, len(tried), 1))
        names["tuned"] = int(np.argmin([fit.get("valid_loss", np.inf) for fit in tried]))
        searched = {"tuned": {"trials": len(tried) - 1}}
    rows = []
    for name, trial in names.items():
        found = []
        for seed in seeds:
            found.append(fits.peer(peers, folder, contender, trial, seed))
            if "cut_off" in found[-1]:  # the next seeds would be, too
                break
        row = row_of(table, f"{contender} {name}", found, first)
        rows.append({**row, "trial": trial, **searched.get(name, {})})
    return rows


def rows_of(table: Table, fits: Fits, peers: Peers | None, chosen: list[str], seeds: range, flags: Any) -> list[Row]:
    """The rows of one table, with their ranks."""
    folder = written(table, fits.cache, fits.device, flags.quick)
    first = FIRST[json.loads((folder / "layout.json").read_text())["task"]]
    rows = []
    for contender in chosen:
        settings = [f"train.ensemble={MEMBERS}"] if contender == ENSEMBLE else []
        if contender in (OURS, ENSEMBLE):
            path = plain_config(table, fits.cache, flags.quick)
        elif contender == CHOSEN:
            path = chosen_config(table, fits.cache, folder, flags.quick)
        elif contender == SHIPPED and table.config:
            path = shipped_config(table, fits.cache, flags.quick)
        else:
            continue
        found = [fits.our(contender, path, folder, seed, *settings) for seed in seeds]
        rows.append(row_of(table.name, contender, found, first))
    for contender in (one for one in (*TREES, *NETS) if one in chosen):
        assert peers is not None
        rows += peer_rows(fits, peers, folder, table.name, contender, seeds, flags)
    ranked(rows, first)
    return rows


def shipped_config(table: Table, cache: Path, quick: bool) -> Path:
    """The file of conf/ with the features of the plain configuration, whose paths are right."""
    from ruamel.yaml import YAML

    yaml, plain = YAML(typ="safe"), plain_config(table, cache, quick)
    content = yaml.load((ROOT / f"conf/{table.config}.yaml").read_text())
    path = plain.with_name("shipped.yaml")
    content["features"] = yaml.load(plain.read_text())["features"]
    path.write_text(json.dumps(content, indent=1, allow_nan=False))
    return path


def chosen_config(table: Table, cache: Path, folder: Path, quick: bool) -> Path:
    """The plain configuration with the sections that `gigabatch init` writes for a table of so many rows."""
    plain = plain_config(table, cache, quick)
    rows = sum(pq.read_metadata(folder / f"{split}.parquet").num_rows for split in ("train", "valid", "test"))
    layout = json.loads((folder / "layout.json").read_text())
    chosen = training_for(rows, bool(layout["categorical"]), len(layout["continuous"]), task=layout["task"])
    content = json.loads(plain.read_text()) | chosen
    path = plain.with_name("chosen.yaml")
    path.write_text(json.dumps(content, indent=1, allow_nan=False))
    return path


def batch_rows(fits: Fits, seeds: range, batches: list[int]) -> list[Row]:
    """LAMB on flights by batch size: the learning rate of the lower valid log loss, then a mean over the seeds."""
    table = TABLES["flights"]
    folder, path, rows = written(table, fits.cache, fits.device), plain_config(table, fits.cache), []
    for batch in batches:
        scaled = square_root_scaled_lr(BASE_LR, batch, BASE_BATCH)
        arms = [
            (f"train.batch_size={batch}", "train.optimizer=lamb", f"train.lr_max={factor * scaled:.3g}")
            for factor in LR_FACTORS
        ]
        best = min(arms, key=lambda arm: fits.our(OURS, path, folder, 1, *arm)["valid_loss"])
        found = [fits.our(OURS, path, folder, seed, *best) for seed in seeds]
        rows.append({**row_of("flights", f"batch {batch}", found, "auc"), "lr_max": float(best[-1].partition("=")[2])})
    return rows


def less_best(rows: list[Row], table: str, contender: str = OURS) -> float | None:
    """AUC of ours less that of the best tuned peer; None where ours or a tuned peer has no numbers."""
    of = {row["contender"]: row.get("auc") for row in rows if row["table"] == table}
    tuned = [of.get(f"{peer} tuned") for peer in TREES]
    if of.get(contender) is None or None in tuned:
        return None
    return of[contender] - max(auc for auc in tuned if auc is not None)


def searched_whole(rows: list[Row], table: str) -> bool:
    """Whether each tuned peer of a table made `TRIALS` trials, and none of its fits that stand here ran out of time."""
    tuned = [row for row in rows if row["table"] == table and row["contender"] in {f"{one} tuned" for one in TREES}]
    return bool(tuned) and all(row["trials"] >= TRIALS and not row.get("out_of_time") for row in tuned)


def claims_of(
    rows: list[Row], batches: list[Row], *, complete: bool, searched: bool
) -> dict[str, tuple[float, float, bool]]:
    """What can be claimed: of a table only beside both peers after a search that no flag (`searched`) and no clock cut
    off; `mean_rank` only of all tables and contenders (`complete`), too."""
    found: dict[str, tuple[float, float, bool]] = {}
    whole_tables = {row["table"] for row in rows if searched and searched_whole(rows, row["table"])}
    for table in (one for one in CLAIMED if one in whole_tables):
        for contender, name in ((OURS, ""), (ENSEMBLE, f", {MEMBERS} members")):
            less = less_best(rows, table, contender)
            if less is not None:
                found[f"{table}_less_best{name}"] = (less, -0.001, less > -0.001)
    ranks = [row["rank"] for row in rows if row["contender"] == OURS]
    if complete and ranks and whole_tables == {row["table"] for row in rows}:
        found["mean_rank"] = (float(np.mean(ranks)), 2, float(np.mean(ranks)) <= 2)
    if batches:
        *small, large = [row["auc"] for row in batches]
        loss = max(small) - large
        found["large_batch_loss"] = (loss, 0.001, loss <= 0.001)
    return found


def whole(flags: Any) -> bool:
    """Whether no flag gives peers less, or an average fewer seeds, than a claim needs."""
    least = {"trials": TRIALS, "seconds_of_search": SEARCH_SECONDS, "seeds": SEEDS, "seconds_per_fit": SECONDS,
             "net_rows": NET_ROWS}  # fmt: skip
    return not flags.quick and all(getattr(flags, name) >= bound for name, bound in least.items())


def main() -> None:
    flags = arguments(
        __doc__ or "", tables="", contenders=",".join(CONTENDERS), seeds=SEEDS, trials=TRIALS, threads=1, large=0,
        seconds_of_search=SEARCH_SECONDS, seconds_per_fit=SECONDS,
        net_rows=NET_ROWS, batches=1, engine="pandas", cache="/tmp/gigabatch-quality",
    )  # fmt: skip
    if not 1 <= flags.seeds <= 5:
        raise SystemExit("benchmarks.quality: --seeds is from 1 to 5.")
    standard = [table.name for table in TABLES.values() if flags.large or not table.large]
    names = (flags.tables or (QUICK_TABLES if flags.quick else ",".join(standard))).split(",")
    chosen = flags.contenders.split(",")
    known = (*OWN, *TREES, *NETS)
    for what, given, there in (("table", names, TABLES), ("contender", chosen, known)):
        if unknown := [name for name in given if name not in there]:
            raise SystemExit(f"benchmarks.quality: unknown {what}(s) {', '.join(unknown)}. Known: {', '.join(there)}.")
    if flags.quick:
        flags.seeds, flags.trials = 1, min(flags.trials, 2)
    seeds = range(1, flags.seeds + 1)
    place = device_of(flags).type + (f"+{flags.engine}" if flags.engine != "pandas" else "")
    fits = Fits(Path(flags.cache), flags.threads, flags.seconds_per_fit, place, flags.quick)
    wanted = [one for one in chosen if one in (*TREES, *NETS)]
    rows: list[Row] = []
    with Peers() if wanted else nullcontext() as peers:
        if peers and (lacking := [one for one in wanted if one not in peers.versions]):
            raise SystemExit(
                f"benchmarks.quality: the peers' environment lacks packages of {', '.join(lacking)}. Run make "
                "quality-env, or leave them out of --contenders."
            )
        for number, name in enumerate(names, 1):
            print(f"table {name} ({number} of {len(names)})", file=sys.stderr, flush=True)
            rows += rows_of(TABLES[name], fits, peers, chosen, seeds, flags)
    of_batches = flags.batches and not flags.quick and "flights" in names and OURS in chosen
    batches = batch_rows(fits, seeds, [*SMALL_BATCHES, LARGE_BATCH]) if of_batches else []
    for name in names:
        shown = [{key: str(value) for key, value in row.items()} for row in rows if row["table"] == name]
        render_table(shown, f"{name}: means over {len(seeds)} seed(s)")
    if batches:
        render_table([{key: str(value) for key, value in row.items()} for row in batches], "flights by batch size")
    complete = set(standard) <= set(names) and set(CONTENDERS) <= set(chosen)
    seconds = {f"{row['table']} {row['contender']}": row["train_seconds"] for row in rows if "train_seconds" in row}
    trials = [row["trials"] for row in rows if "trials" in row]
    made = f"{min(trials)} to {max(trials)} trials of search on valid" if trials else "no search"
    workload = f"{','.join(names)}: {len(seeds)} seed(s), {made}, {flags.threads} thread(s)"
    claims = claims_of(rows, batches if flags.seeds >= SEEDS else [], complete=complete, searched=whole(flags))
    if flags.save:
        fits.commit_peers()
    finish(
        "quality", workload, seconds, {}, claims, save=flags.save, device=device_of(flags),
        details={"rows": rows, "batches": batches},
    )  # fmt: skip


if __name__ == "__main__":
    main()
