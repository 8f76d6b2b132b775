"""What ranks send in a step, by scheme, against formulas; what DES and DCT save, and what DCT costs in AUC.

    python -m benchmarks.communication [--quick] [--save] [--ranks 2,4,8] [--seeds 10]

{lr, fm, deepfm, dlrm} x {parameter server, sparse all-gather, pooled all-to-all, DES, DES + DCT, PowerSGD, bf16} on
gloo ranks of one machine, with ids by Zipf's law: `click` has 26 id columns and 13 floats, 256 rows a rank; `thousands`
has 1,000 id columns, 32 rows a rank. Bytes are what `Ranks.traffic` counts, the mean over ranks of one step after a
few; they depend on neither the machine nor its load. The parameter servers are the ranks themselves, so (N - 1) / N of
the rows travel; with servers of their own all would.

- `bytes_off_formula`: largest |sent / formula - 1| over all cells.
- `des_saving`: least 1 - DES / parameter server of the bytes for tables, over the cells where the formula allows .687,
  with ids counted and without; the cells where it does not are named.
- `dct_dp_factor`: bytes of dense gradients by a dense float32 all-reduce (2 (N - 1) / N of 4 bytes a weight) over those
  of DCT, where AUC is looked at (two ranks). DCT gathers, so with N ranks it is 2 / N of that; both are printed.
- `dct_mp_factor`: bytes of vectors of ids and their gradients that cross, without ids, over those of DCT.
- `dct_auc_loss`: AUC without DCT less that with it, seed by seed: mean and 95 % interval (Student's t).
"""

from __future__ import annotations

import math
from functools import partial
from statistics import mean, stdev
from typing import Any

from benchmarks.common import arguments, finish, needed

with needed():
    import torch

    from benchmarks.communication_quality import aucs, planted_settings, zipf_ids
    from benchmarks.communication_schemes import SCHEMES, Training, on_ranks
    from gigabatch.models.inputs import ModelInputs
    from gigabatch.models.kernels import using_kernels
    from gigabatch.models.parallel.ranks import Ranks
    from gigabatch.models.shelf import model_class
    from gigabatch.pipeline.display import render_table

SAVING, OFF = 0.687, 0.05
WARM_STEPS = 3  # PowerSGD compresses from the third step on
STUDENT = {9: 2.262, 10: 2.228, 11: 2.201, 12: 2.179, 13: 2.16, 14: 2.145, 15: 2.131, 19: 2.093, 23: 2.069, 29: 2.045}
DIM = 16
MODELS: dict[str, dict[str, Any]] = {
    "lr": {},
    "fm": {"embedding_dim": DIM},
    "deepfm": {"embedding_dim": DIM, "layers": (64, 64), "dropout": 0.0, "batch_norm": False},
    "dlrm": {"embedding_dim": DIM, "bottom_layers": (64,), "top_layers": (64,)},
}
# Id columns' sizes, floats, rows of a rank, exponent of Zipf's law.
SETTINGS = {
    "click": ((20_000,) * 6 + (2000,) * 10 + (200,) * 10, 13, 256, 1.05),
    "thousands": ((600,) * 1000, 0, 32, 1.05),
}


def cells(ranks: Ranks, setting: str, names: list[str]) -> list[dict[str, Any]]:
    """Of each model and scheme, bytes that this rank sent in a step, and the formula's."""
    sizes, num_floats, rows, exponent = SETTINGS[setting]
    import numpy as np

    draw = np.random.default_rng([ranks.rank, 5])
    steps = [
        (
            zipf_ids(draw, rows, sizes, exponent),
            torch.tensor(draw.normal(size=(rows, num_floats)).astype(np.float32)),
            torch.tensor((draw.random(rows) < 0.5).astype(np.float32)),
        )
        for _ in range(WARM_STEPS + 1)
    ]
    found = []
    for name in names:
        for scheme in SCHEMES:
            torch.manual_seed(0)
            kind = model_class(name)
            # Half a million dot products of a thousand columns would ask for more weights than all tables have.
            beside = {"interaction": "cat"} if name == "dlrm" and setting == "thousands" else {}
            model = kind(ModelInputs(sizes, num_floats), kind.Settings(**MODELS[name], **beside))
            training = Training(model, name, scheme, ranks, steps[-1][0])
            with using_kernels("reference"):  # which asks for no compiled loops in each of eight processes
                for batch in steps[:-1] if training.dense == "powersgd" else steps[:1]:
                    training.step(*batch)
                    training.forget()
                ranks.traffic.clear()
                training.step(*steps[-1])
            sent = {"values": 0, "ids": 0, "dense": 0, "counts": 0}
            for (_, what), count in ranks.traffic.bytes.items():
                dense = what in ("gradients", "sparse gradients")
                sent["dense" if dense else what if what in sent else "values"] += count
            found.append({
                "setting": setting, "ranks": ranks.num_ranks, "model": name, "scheme": scheme, "sent": sent,
                "formula": training.formula(), "distinct": training.load.distinct, "ids": len(sizes),
            })  # fmt: skip
            training.forget()
            del training, model
    return found


def summed(told: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The mean over ranks of what they sent, cell by cell."""
    out = []
    for same in zip(*told, strict=True):
        sent = {kind: mean(one["sent"][kind] for one in same) for kind in same[0]["sent"]}
        formula = same[0]["formula"]
        total = sum(sent.values())
        out.append({**same[0], "sent": sent, "total": total, "off": total / sum(formula.values()) - 1})
    return out


def des_savings(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each model, setting and number of ranks: 1 - DES / parameter server for tables, measured and by formula."""
    place = {(one["setting"], one["ranks"], one["model"], one["scheme"]): one for one in found}
    rows = []
    for (setting, ranks, model, scheme), des in place.items():
        if scheme != "DES":
            continue
        server = place[setting, ranks, model, "parameter server"]
        row = {"setting": setting, "ranks": ranks, "model": model, "distinct a row": round(des["distinct"], 1)}
        for label, kinds in (("with ids", ("values", "ids")), ("values", ("values",))):
            for source in ("sent", "formula"):
                share = [sum(one[source][kind] for kind in kinds) for one in (des, server)]
                row[f"{label}, {source}"] = round(1 - share[0] / share[1], 4)
        rows.append(row)
    return rows


def interval(losses: list[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval."""
    middle, count = mean(losses), len(losses)
    wide = STUDENT[count - 1] * stdev(losses) / math.sqrt(count)
    return middle, middle - wide, middle + wide


def main() -> None:
    flags = arguments(__doc__, ranks="2,4,8", seeds=10)
    ranks = [2] if flags.quick else [int(one) for one in flags.ranks.split(",")]
    names = ["lr", "fm"] if flags.quick else list(MODELS)
    found = []
    for setting in ["click"] if flags.quick else SETTINGS:
        for num_ranks in ranks:
            found += summed(on_ranks(cells, num_ranks, setting, names))
    table = [
        {
            **{key: one[key] for key in ("setting", "ranks", "model", "scheme")},
            **{f"{kind}, kB": round(one["sent"][kind] / 1e3, 1) for kind in ("values", "ids", "dense")},
            "off": round(one["off"], 4),
        }
        for one in found
    ]
    render_table(table, "bytes that a rank sends in a step")
    savings = des_savings(found)
    render_table(savings, "share that DES saves of a parameter server's bytes for tables")
    off = max(abs(one["off"]) for one in found)
    claims: dict[str, tuple[float, float, bool]] = {}
    if not flags.quick:
        claims["bytes_off_formula"] = (off, OFF, off <= OFF)
        for label, text in (("with ids", "des_saving, ids counted"), ("values", "des_saving, values alone")):
            allowed = [row[f"{label}, sent"] for row in savings if row[f"{label}, formula"] >= SAVING]
            least = min(allowed, default=float("nan"))
            claims[f"{text}, in {len(allowed)} of {len(savings)} cells"] = (least, SAVING, least >= SAVING)
    quality = {} if flags.quick else measure_quality(flags.seeds, claims)
    finish(
        "communication",
        f"{', '.join(names)} on {', '.join(map(str, ranks))} gloo ranks, {', '.join(SETTINGS)}",
        {},
        {},
        claims,
        save=flags.save,
        details={"cells": table, "des": savings, "dct": quality},
    )


def against(
    plain: list[dict[str, float]], others: list[dict[str, float]], kind: str
) -> tuple[tuple[float, float, float], float]:
    """What a way costs in AUC, seed by seed, with its interval; and how many times fewer its bytes of a kind are."""
    losses = [one["AUC"] - other["AUC"] for one, other in zip(plain, others, strict=True)]
    return interval(losses), mean(one[kind] for one in plain) / mean(one[kind] for one in others)


def measure_quality(num_seeds: int, claims: dict[str, tuple[float, float, bool]]) -> dict[str, Any]:
    """Trainings with and without DCT on two ranks; adds their claims."""
    details: dict[str, Any] = {}
    for label, settings in planted_settings().items():
        told = on_ranks(partial(aucs, **settings), 2, seeds=list(range(num_seeds)))[0]
        kind, plain = "dense" if label == "dp" else "values", told["plain"]
        found = {way: against(plain, others, kind) for way, others in told.items() if way != "plain"}
        (_, _, high), factor = found["DCT"]
        need = 100 if label == "dp" else 20
        claims[f"dct_{label}_factor"] = (factor, need, factor >= need)
        claims[f"dct_auc_loss, {label}, upper bound of {num_seeds} seeds"] = (high, 0.001, high < 0.001)
        details[label] = {
            "model": settings["name"], "AUC without": round(mean(one["AUC"] for one in plain), 5),
            **{
                way: {"loss": round(middle, 5), "interval": [round(low, 5), round(top, 5)], "factor": round(times, 1)}
                for way, ((middle, low, top), times) in found.items()
            },
        }  # fmt: skip
        print(label, details[label], flush=True)
        if label == "dp":
            details[label]["factor by ranks, all-reduce over gather"] = {n: round(factor * 2 / n, 1) for n in (2, 4, 8)}
    return details


if __name__ == "__main__":
    main()
