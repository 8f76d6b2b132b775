"""Churn of retrains: single models against codistilled ones, ensembles of two seeds, and models on half of the rows.

    python -m benchmarks.codistillation --save

A retrain is the same training on the same rows with another seed, which decides initial weights, order, and of groups
their rows. Data are planted clicks (`communication_quality.planted`), another draw for each pair of retrains, and one
test set of other rows. The ways:

    all rows          one model on all train rows: what is churned against
    half the rows     one model on what a group of two has: what codistillation does to a model of equal rows
    ensemble          the mean of two models on all rows, of different seeds: twice the training, twice the serving
    codistilled       group 0 of two; together they take as many steps and rows as `all rows`, so on one machine the
                      same time but for the teachers' forward passes
    ... same steps    the same with twice the epochs: each group makes as many steps as `all rows` does
    ... all rows      group 0 of two that are both trained on all rows: the training of `ensemble`, the serving of one

Both groups run here, in two threads that take turns step by step, so that ages of peers are the same each time.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import arguments, finish, needed

with needed():
    from benchmarks.communication_quality import NUM_FLOATS, SIZES, Table, planted
    from gigabatch.features.schema import IdColumn, Target, TensorSchema
    from gigabatch.loaders.tables.packed import PackedTable
    from gigabatch.models.inputs import ModelInputs
    from gigabatch.models.losses import TargetLoss
    from gigabatch.models.metrics.pointwise import log_loss, prediction_churn, roc_auc
    from gigabatch.models.model import Model
    from gigabatch.models.shelf import model_class
    from gigabatch.pipeline.config.config import CodistillSettings, TrainSettings
    from gigabatch.pipeline.display import silence
    from gigabatch.pipeline.lab.experiment import mean_margin
    from gigabatch.pipeline.training.codistill import Codistillation, seed_of, share_rows
    from gigabatch.pipeline.training.train import train_model

MODEL: dict[str, Any] = {"embedding_dim": 8, "layers": (64, 64)}
LEAST, WAYS = 0.25, ("all rows", "half the rows", "ensemble", "codistilled", "codistilled, same steps",
              "codistilled, all rows")  # fmt: skip


def packed(table: Table) -> PackedTable:
    """The table as a training takes it."""
    ids, floats = tuple(IdColumn(f"id{i}", n) for i, n in enumerate(SIZES)), tuple(f"x{i}" for i in range(NUM_FLOATS))
    schema = TensorSchema(ids, floats, (Target("clicked", "binary"),))
    return PackedTable.from_columns(schema, list(table.ids.T), list(table.floats.T), [table.targets])


class Trainer:
    """Trains on one draw of rows; returns probabilities of the test rows."""

    def __init__(self, rows: PackedTable, valid: PackedTable, test: Table, epochs: int, batch: int, every: int) -> None:
        self.rows, self.valid, self.test = rows, valid, test
        self.epochs, self.batch, self.every = epochs, batch, every

    def fit(self, seed: int, rows: PackedTable, epochs: int, codistillation: Codistillation | None = None,
            after_step: Callable[[int], None] = lambda step: None, model: Model | None = None) -> Tensor:  # fmt: skip
        """One training."""
        settings = TrainSettings(epochs=epochs, batch_size=self.batch, lr_max=0.02, select="last")
        with tempfile.TemporaryDirectory() as folder:
            trained = train_model(
                model or new_model(seed), rows, self.valid, TargetLoss([("binary", 1)]), settings, seed=seed,
                device="cpu", folder=Path(folder), codistillation=codistillation, after_step=after_step,
            )  # fmt: skip
        with torch.no_grad():
            return torch.sigmoid(trained.model.eval()(self.test.ids, self.test.floats)[:, 0])

    def share(self, seed: int, group: int) -> PackedTable:
        """The rows of a group of two."""
        places = torch.from_numpy(share_rows(len(self.rows), CodistillSettings(group=group), seed))
        return PackedTable(self.rows.words[places], self.rows.schema)

    def codistilled(self, seed: int, epochs: int, is_shared: bool = True) -> Tensor:
        """Group 0 of two, which are trained in turns; is_shared: each on its share of the rows."""
        turns, found, errors = [threading.Semaphore(1), threading.Semaphore(0)], {}, []
        asked = [CodistillSettings(group=group, every_steps=self.every) for group in (0, 1)]
        seeds = [seed_of(seed, settings) for settings in asked]
        models = [new_model(own) for own in seeds]  # here, since the generator is that of all threads

        def work(group: int, folder: Path) -> None:
            def hand_over(_: int) -> None:
                turns[1 - group].release()
                turns[group].acquire()

            turns[group].acquire()
            try:
                mine = Codistillation(asked[group], folder, {})
                rows = self.share(seed, group) if is_shared else self.rows
                found[group] = self.fit(seeds[group], rows, epochs, mine, hand_over, models[group])
            except BaseException as error:
                errors.append(error)
            finally:
                for _ in range(10**5):  # the other one goes on without waiting
                    turns[1 - group].release()

        with tempfile.TemporaryDirectory() as folder:
            threads = [threading.Thread(target=work, args=(group, Path(folder))) for group in (0, 1)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if errors:
            raise errors[0]
        return found[0]

    def predictions(self, seed: int) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Of every way, from this seed on: probabilities [n], and seconds."""
        found, seconds = dict[str, Tensor](), dict[str, float]()

        def timed(way: str, work: Callable[[], Tensor]) -> None:
            started = time.perf_counter()
            found[way] = work()
            seconds[way] = time.perf_counter() - started

        timed("all rows", lambda: self.fit(seed, self.rows, self.epochs))
        timed("half the rows", lambda: self.fit(seed, self.share(seed, 0), self.epochs))
        timed("ensemble", lambda: (found["all rows"] + self.fit(seed + 500, self.rows, self.epochs)) / 2)
        seconds["ensemble"] += seconds["all rows"]
        timed("codistilled", lambda: self.codistilled(seed, self.epochs))
        timed("codistilled, same steps", lambda: self.codistilled(seed, 2 * self.epochs))
        timed("codistilled, all rows", lambda: self.codistilled(seed, self.epochs, is_shared=False))
        return found, seconds


def new_model(seed: int) -> Model:
    """With the weights of this seed."""
    torch.manual_seed(seed)
    kind = model_class("deepfm")
    return kind(ModelInputs(SIZES, NUM_FLOATS), kind.Settings(**MODEL))


def main() -> None:
    flags = arguments(__doc__ or "", rows=20_000, pairs=5, epochs=2, batch=256, every=20)
    num_rows, pairs = (4_000, 2) if flags.quick else (flags.rows, flags.pairs)
    test, valid = planted(4_000 if flags.quick else 20_000, 10**6), packed(planted(2_000, 10**6 + 1))
    churn: dict[str, list[float]] = {way: [] for way in WAYS}
    losses, aucs, seconds = ({way: list[float]() for way in WAYS} for _ in range(3))
    for pair in range(pairs):
        trainer = Trainer(packed(planted(num_rows, pair)), valid, test, flags.epochs, flags.batch, flags.every)
        retrains = []
        for seed in (1000 * pair + 1, 1000 * pair + 2):
            with silence():
                found, took = trainer.predictions(seed)
            retrains.append(found)
            for way in WAYS:
                losses[way].append(float(log_loss(found[way], test.targets)))
                aucs[way].append(float(roc_auc(found[way], test.targets)))
                seconds[way].append(took[way])
        for way in WAYS:
            churn[way].append(float(prediction_churn(retrains[0][way], retrains[1][way])))
        told = {way: [round(churn[way][-1], 5), round(statistics.fmean(losses[way][-2:]), 5)] for way in WAYS}
        print(f"pair {pair + 1}, churn and log loss: {told}", flush=True)
    details: dict[str, Any] = {}
    for way in WAYS:
        saved = [1 - own / plain for own, plain in zip(churn[way], churn["all rows"], strict=True)]
        # A pair's two retrains share their rows, so a pair is one value.
        gaps = [a - b for a, b in zip(losses[way], losses["all rows"], strict=True)]
        worse = [(a + b) / 2 for a, b in zip(gaps[::2], gaps[1::2], strict=True)]
        details[way] = {
            "churn": statistics.fmean(churn[way]),
            "less churn": statistics.fmean(saved),
            "less churn ± 95 %": mean_margin(saved, 0.975),
            "log loss": statistics.fmean(losses[way]),
            "log loss less that of all rows": statistics.fmean(worse),
            "± 95 %": mean_margin(worse, 0.975),
            "AUC": statistics.fmean(aucs[way]),
        }
    claims = {}
    for way in WAYS[3:]:
        told = details[way]
        holds = told["less churn"] >= LEAST and told["log loss less that of all rows"] <= 0
        name = way.replace("codistilled", "codistill_churn")
        text = f"{name} (less than one model on all rows, at no higher log loss)"
        claims[text] = (told["less churn"], LEAST, holds)
    finish(
        "codistillation",
        f"deepfm {MODEL}, {num_rows:,} planted rows, batch {flags.batch}, {flags.epochs} epochs, {pairs} pairs of "
        f"retrains, exchange every {flags.every} steps, burn-in of a fifth",
        {way: statistics.fmean(values) for way, values in seconds.items()},
        {f"churn of {way} / all rows": details[way]["churn"] / details["all rows"]["churn"] for way in WAYS[1:]},
        {} if flags.quick else claims,
        save=flags.save,
        details={way: {name: round(value, 5) for name, value in told.items()} for way, told in details.items()},
    )


if __name__ == "__main__":
    main()
