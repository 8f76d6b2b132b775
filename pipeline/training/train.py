"""The training loop: one function, read from top to bottom; `train_step.py` has what happens to one batch.

Nothing inside a step waits for the device: losses are gathered in a tensor and read once an epoch. Order, schedule
and weights are functions of (seed, step), and a checkpoint also holds the random state of dropout, so a run that was
killed goes on bit for bit as if it had not been.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.schema import indicator_name
from gigabatch.loaders.batches.dataset import BatchDataset, BatchSource
from gigabatch.loaders.batches.loader import BatchLoader
from gigabatch.loaders.batches.stream import StreamedDataset
from gigabatch.loaders.negatives.implicit import ImplicitBatches
from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.loaders.tables.packed import Batch, PackedTable
from gigabatch.models.inputs import EntityColumns, ListInputs, ModelInputs
from gigabatch.models.kernels import using_kernels
from gigabatch.models.layers.dropout import FallingDropout
from gigabatch.models.layers.line import BesideLine
from gigabatch.models.losses import TargetLoss, weighted
from gigabatch.models.model import Model, model_call
from gigabatch.models.modes import modes_kept
from gigabatch.models.optimizers.ema import WeightAverage
from gigabatch.models.optimizers.moments import moment_kinds, read_moments, shrink_sums
from gigabatch.models.optimizers.precision import choose_precision
from gigabatch.models.optimizers.registry import OPTIMIZERS, build_optimizer
from gigabatch.models.optimizers.schedule import Schedule, build_schedule
from gigabatch.models.output_curves import OutputCurve
from gigabatch.models.parallel.codistill import Peers
from gigabatch.models.parallel.data_parallel import DataParallel, part_of, require_equal, require_shareable
from gigabatch.models.parallel.des_tables import substitute_tables
from gigabatch.models.parallel.gradient_sums import describe, gradient_sums
from gigabatch.models.parallel.ranks import Ranks
from gigabatch.models.parallel.sharded import shard_tables
from gigabatch.models.parallel.spread_tables import SpreadTables
from gigabatch.models.recommenders.fitted import FittedModel
from gigabatch.models.shelf import OWN, ModelSpec, spec_of
from gigabatch.pipeline.bundle import BLOCK_ROWS
from gigabatch.pipeline.config.config import LESS_IS_BETTER, RunConfig, TrainSettings, WholeTrainSettings
from gigabatch.pipeline.display import progress
from gigabatch.pipeline.launched import ranks_of_machine
from gigabatch.pipeline.machine import free_memory
from gigabatch.pipeline.store.files import atomic_write, json_text
from gigabatch.pipeline.training.calibration import (
    binary_places,
    fit_curves,
    fits_level,
    prior_shift,
    require_calibratable,
    require_prior_fits,
)
from gigabatch.pipeline.training.callbacks import Callback, call
from gigabatch.pipeline.training.checkpoint import (
    SECONDS_BETWEEN,
    Progress,
    TrainingError,
    TrainingState,
    load_checkpoint,
    save_checkpoint,
)
from gigabatch.pipeline.training.codistill import Codistillation, require_can_codistill
from gigabatch.pipeline.training.defaults import id_sizes, rule_of, settle
from gigabatch.pipeline.training.lines import lines
from gigabatch.pipeline.training.lists import require_lists_can, require_lists_fit
from gigabatch.pipeline.training.start import Carried, TrainingRecord
from gigabatch.pipeline.training.target_metrics import require_selectable, selected_metric
from gigabatch.pipeline.training.target_scales import (
    fitted_loss,
    log_odds,
    require_labels,
    require_steps_in_order,
    require_weights,
    target_scales,
)
from gigabatch.pipeline.training.train_step import TrainStep, hold_in_tensors, use_cuda_graph

__all__ = ["Trained", "TrainingError", "model_inputs", "new_model", "table_loss", "table_outputs", "train_model"]
log = logging.getLogger(__name__)
CURVE_POINTS_PER_EPOCH = 10
MAX_SKIPPED_IN_A_ROW = 20
FEWEST_ROWS_OF_A_SHARE, SHARE_OF_ONE_ROW = 100, 0.2  # of a valid loss by which an epoch is chosen
SENT, PEERS = "sent_bytes", "peers"  # of a point of the curve


@dataclass
class Trained:
    """A trained model.

    Parameters
    ----------
    model
        With the selected weights.
    curve
        The learning curve: dicts of step, epoch, train_loss (None where all of its steps were skipped) and lr, and at
        the end of an epoch valid_loss and loss, the description of both, and the metric of `select_by`, such as
        valid_auc.
    best_epoch
        From 0, the one whose weights these are; -1 where none was trained (`epochs: 0`).
    steps, rows
        Those trained on, all epochs together.
    skipped_steps
        Those of `steps` that changed no weight, because their loss or gradient was not finite.
    earlier_rows, earlier_seconds
        Of `rows`, those up to the checkpoint that this process went on from, and the seconds that they took.
    record
        The optimizer's state at the step of these weights, for a training that goes on from here.
    prior_shift
        What `train.prior` raises the binary target's logit by.
    """

    model: Model
    curve: list[dict[str, Any]]
    best_epoch: int
    steps: int
    rows: int
    skipped_steps: int = 0
    earlier_rows: int = 0
    earlier_seconds: float = 0.0
    record: TrainingRecord = field(default_factory=TrainingRecord)
    prior_shift: float = 0.0


def train_model(
    model: Model,
    train: PackedTable | BatchSource,
    valid_table: PackedTable,
    loss: TargetLoss,
    settings: TrainSettings,
    *,
    seed: int,
    device: str,
    folder: Path | None,
    after_step: Callable[[int], None] = lambda step: None,
    negatives: ImplicitBatches | None = None,
    start: Carried | None = None,
    callbacks: Sequence[Callback] = (),
    ranks: Ranks | None = None,
    id_counts: Mapping[int, Tensor] | None = None,
    codistillation: Codistillation | None = None,
    run: str = "",
) -> Trained:
    """Train `model` (in place) and return it with the weights that `settings.select` asks for.

    Parameters
    ----------
    model
        On any device; moved to `device`. One that takes no steps (`FittedModel`) is fitted to all rows of `train`,
        which must be a packed table, and its probabilities to `valid_table`; settings of steps do nothing then, and
        nothing is checkpointed. Regression targets are standardised by the mean and deviation that they have
        in `train`, unless the model has scales already (`Model.target_scales`); losses are in these units.
    train
        A packed table, whose rows above weight 0 are shuffled by `seed` and cut into batches of `settings.batch_size`,
        or any source of batches. What is fitted to labels (scales of targets, `balanced` weights of classes, the share
        of label 1 for `settings.prior`) is fitted to all rows, also those that fill no batch; of a source whose
        `tables` is None, to the batches of one epoch.
    valid_table
        Rows whose loss, and metric (`settings.select_by`), is measured after each epoch.
    loss
        Of the schema's targets.
    settings
        Epochs, optimizer, schedule and the rest; what is not set follows from rows and columns (`settle`).
    seed
        Of the order of rows. Weights and dropout follow torch's random state.
    device
        As torch names it.
    folder
        Where checkpoints and metrics.jsonl go; it is made where it is missing. If it holds a checkpoint of the same
        run, training goes on there. None writes nothing.
    after_step
        Called with the number of steps done.
    negatives
        Drawn anew each epoch for the rows of `train`, which are positives then; `valid_table` has its own.
    start
        Of `WarmStart.carry`, which has given `model` its weights: the optimizer goes on from its state.
    callbacks
        Called before the first step, after each epoch and at the end; never within a step.
    ranks
        The processes that train together. Each calls this with the same arguments, a model of the same weights and the
        same random state of torch; a `train` that is a source of batches gives this rank's. All return the same. The
        first alone writes files and calls callbacks, and, where tables are spread (`settings.tables`), has the whole
        model.
    id_counts
        By the place of an id column, and of C id columns by C + l for list column l, how often each of its values
        occurs: where tables are spread, the plan follows it.
    codistillation
        The group that this training is, whose peers teach it; `train` has the group's own rows.
    run
        Names the training: a checkpoint in `folder` that one of another name wrote is refused.

    Returns
    -------
    Trained
        The model, its learning curve, and how much it was trained.

    Raises
    ------
    ModelError
        Where a setting of the model does not fit the targets (`Model.require_targets`).
    TrainingError
        Where a valid loss is not finite, more than `MAX_SKIPPED_IN_A_ROW` steps in a row were skipped because their
        gradient was not, no step of all changed the model, a setting does not fit the device, a checkpoint cannot be
        used, or a callback raises; where no target has the metric of `settings.select_by`, or several ranks cannot do
        as a setting says.

    Examples
    --------
    >>> from gigabatch import LogisticRegression
    >>> from gigabatch.features.schema import Target, TensorSchema
    >>> schema = TensorSchema((), ("x",), (Target("clicked", "binary"),))
    >>> x = torch.linspace(-1, 1, 64)
    >>> table = PackedTable.from_columns(schema, [], [x], [(x > 0).float()])
    >>> model = LogisticRegression(ModelInputs(num_ids=(), num_floats=1), LogisticRegression.Settings())
    >>> settings = TrainSettings(epochs=4, batch_size=16, lr_max=0.1)
    >>> loss = TargetLoss([("binary", 1)])
    >>> trained = train_model(model, table, table, loss, settings, seed=1, device="cpu", folder=Path("."))
    >>> trained.steps, trained.curve[-1]["valid_loss"] < trained.curve[0]["train_loss"]
    (16, True)
    """
    if settings.ensemble > 1:
        raise TrainingError("train.ensemble: train_model trains one model. `Pipeline` trains an ensemble's members.")
    ranks = Ranks() if ranks is None else ranks
    for split, table in (("train", train), ("valid", valid_table)):
        if isinstance(table, PackedTable):
            require_weights(table, split)
    train = train.counted() if isinstance(train, PackedTable) else train
    if folder is not None:  # now, and not at the first checkpoint
        folder.mkdir(parents=True, exist_ok=True)
    if isinstance(model, FittedModel):
        refuse_steps(model, ranks, start, codistillation)
        return fitted_at_once(model, train, valid_table, loss, settings, device, folder, callbacks)
    rule = rule_of(type(model), model.inputs) if isinstance(model, Model) else {}
    if isinstance(train, PackedTable):
        settings = settle(settings, len(train), id_sizes(train.schema), **rule)
        source: BatchSource = table_batches(train, settings, seed, ranks)
    else:
        given = settings.model_copy(update={"batch_size": train.global_batch_size})
        settings = settle(given, train.num_rows, id_sizes(train.schema), **rule)
        source = train
    source.kernels = settings.kernels
    if negatives is not None:
        negatives.use_kernels(settings.kernels)
    if source.schema.lists:
        require_lists_can(settings, ranks.num_ranks)
    loader, batch_size = BatchLoader(source, device=device), source.global_batch_size
    steps_per_epoch = len(loader)
    num_steps = steps_per_epoch * settings.epochs
    kind, further = (settings.schedule, settings.schedule_settings) if num_steps else ("constant", {})
    schedule = build_schedule(kind, settings.lr_max, max(num_steps, 1), **further)
    if ranks.num_ranks > 1:
        require_ranks_can(model, settings, source, negatives is not None)
    copies = 1 if negatives is None else negatives.copies
    tables = spread_tables(model, settings, ranks, batch_size, device, id_counts, copies, list_lengths(source.lists))
    model.to(device)
    for module in model.modules():
        if isinstance(module, BesideLine):  # its last bits are those of a processor and its threads
            for buffer in module.buffers():
                ranks.broadcast(buffer, "lines")
    model.require_targets([target.task for target in source.schema.targets])
    for split, given_rows in (("train", train), ("valid", valid_table)):
        require_steps_in_order(model, given_rows, split)
    model.calibrate(())
    require_calibratable(settings.calibration, model, valid_table)
    require_prior_fits(settings, loss)
    level = valid_table if fits_level(settings.calibration, model) else None
    counts_labels = settings.prior is not None and settings.prior.serve is not None and settings.prior.train is None
    # Some sources show each rank its part of the rows and no more.
    parted = ranks.num_ranks > 1 and isinstance(train, BatchSource) and train.tables() is None
    if counts_labels and level is None and negatives is None and parted:
        raise TrainingError("train.prior: several ranks see a part of a source each. Set train.prior.train.")
    shift = prior_shift(settings.prior, settings.negatives, model, train, level)
    tasks = {target.task for target in source.schema.targets}
    if parted:
        if not model.target_scales and "regression" in tasks:
            raise TrainingError("several ranks: give the model its target scales, of which a source shows each a part.")
        if loss.asks_for_counts:
            raise TrainingError("several ranks: give class_weights as numbers, of which a source shows each a part.")
    loss = prepared_loss(loss, train, valid_table, settings)
    if not model.target_scales:
        model.scale_targets(target_scales(train, loss))
    require_links(model, loss)
    require_selectable(settings.select_by, valid_table, loss)
    average = None if settings.ema_decay is None else WeightAverage(model, settings.ema_decay)
    losses = torch.zeros(steps_per_epoch, device=device)
    peers = None
    if codistillation is not None:
        require_can_codistill(model, settings, tables is not None)
        peers = codistillation.begin(model, ranks, num_steps)
    falling = falling_dropout(model, settings, num_steps)
    step = make_step(model, loss, settings, device, average, negatives, ranks, batch_size, tables, peers)
    optimizer, precision = step.optimizer, step.precision
    if start is not None:
        start.put_into(model, optimizer, average, tables)
        if num_steps:  # without a step the record is the start's
            shrink_sums(optimizer, settings.sums_kept)
    log.info("training in %s on %s: %s", precision.name, device, precision.reason)
    sums = None if step.parallel is None else step.parallel.sums
    parts = (model, optimizer, loader, losses, precision, average, step.loss_scale, tables, ranks, sums)
    state = TrainingState(*parts, run=run)
    done, started = Progress(), time.perf_counter()
    checkpoint = None if folder is None else folder / "checkpoint.pt"
    if checkpoint is not None and checkpoint.exists():
        done = load_checkpoint(checkpoint, state)
        log.info(
            "training goes on at step %s of %s, after %.1f s",
            f"{done.step:,}",
            f"{num_steps:,}",
            done.seconds,
        )
    ranks.traffic.clear()  # what was said before is none of the first epoch's
    callbacks = callbacks if ranks.is_first else ()
    earlier_rows, earlier_seconds = done.step * batch_size, done.seconds
    if losses.device.type == "cuda":
        hold_in_tensors(optimizer, losses.device)
    obstacle = model.capture_obstacle if peers is None else "its loss changes as peers come (train.codistill)"
    if falling is not None:
        obstacle = "its dropout falls as steps go by (train.dropout_schedule)"
    if source.schema.lists:
        obstacle = "a batch's lists have another size each time"
    asked = settings.cuda_graph, losses.device, optimizer, schedule, obstacle, settings.kernels
    if use_cuda_graph(*asked, ranks.num_ranks):
        step.capture(source.schema, batch_size, required=settings.cuda_graph == "on")

    total_rows = num_steps * batch_size
    if not num_steps:
        valid_loss = table_loss(evaluated(state), valid_table, loss, device, ranks, evaluated_tables(state))
        told = {"step": 0, "epoch": 0.0, "train_loss": None, "lr": settings.lr_max}
        done.curve = [told | {"valid_loss": valid_loss, "loss": loss.description}]
        if ranks.is_first and folder is not None:
            write_curve(folder / "metrics.jsonl", done.curve)
    saved = -math.inf
    with using_kernels(settings.kernels), progress(total_rows, "train") as bar, closing(step):
        bar.resume(earlier_rows)
        call(callbacks, "begin", model, num_steps, done.step, device=losses.device)
        while done.step < num_steps and not done.has_stalled(steps_per_epoch, settings.patience):
            model.train()
            for batch in loader:
                if codistillation is not None:
                    codistillation.before_step(done.step)
                if falling is not None:
                    falling.begin(done.step)
                place = source.epoch, source.positions(done.step % steps_per_epoch)[0]
                losses[done.step % steps_per_epoch] = step(batch, *schedule.at(done.step), place)
                done.step += 1
                bar.advance(batch_size)
                if checkpoint and done.step % settings.checkpoint_every_steps == 0 and done.step % steps_per_epoch:
                    skipped_at_end(losses[: done.step % steps_per_epoch].cpu(), done)
                    done.seconds = earlier_seconds + time.perf_counter() - started
                    save_checkpoint(checkpoint, state, done)
                after_step(done.step)
            keep, told_points = settings.select == "best" and done.step < num_steps, len(done.curve)
            end_epoch(state, done, valid_table, loss, schedule, keep, ranks, codistillation, settings.select_by)
            bar.advance(0, valid_text(done.curve[-1], settings.select_by))
            # Before the checkpoint, so that a run killed between the two does not skip the last lines.
            if ranks.is_first and folder is not None:
                write_curve(folder / "metrics.jsonl", done.curve)
            call(callbacks, "epoch", done.curve[told_points:], model, device=losses.device)
            # Of the last epoch there is none: it would be several times the bundle, which is written next, and a run
            # that is killed in between repeats no more than from a checkpoint to the next.
            left = done.step < num_steps and not done.has_stalled(steps_per_epoch, settings.patience)
            alone = ranks.num_ranks == 1 and codistillation is None  # others save when this one does
            if left and checkpoint and not (alone and time.perf_counter() < saved + SECONDS_BETWEEN):
                done.seconds = earlier_seconds + time.perf_counter() - started
                save_checkpoint(checkpoint, state, done)
                saved = time.perf_counter()

    if falling is not None:
        falling.end()
    if codistillation is not None:
        codistillation.end(done.step)
    if num_steps:  # with epochs 0 nothing was to be trained
        require_a_trained_step(done)
    epochs = done.step // steps_per_epoch
    if epochs < settings.epochs:
        log.info(
            "stopped after epoch %d of %d: no better valid %s since %d",
            epochs, settings.epochs, settings.select_by, done.best_epoch + 1,
        )  # fmt: skip
    best = done.best_epoch if settings.select == "best" and num_steps else epochs - 1
    if best < epochs - 1:
        if epochs == settings.epochs:
            said = "the weights are those after epoch %d of %d, of the best valid %s"
            log.info(said, best + 1, epochs, settings.select_by)
        moments, updates = done.best_moments, done.best_updates
    else:
        moments, updates = read_moments(model, optimizer), 0 if average is None else average.num_updates
    weights = done.best_weights if settings.select == "best" and num_steps else evaluated(state).state_dict()
    kinds = moment_kinds(model, optimizer)
    if tables is not None:
        moments, weights = tables.gather_moments(moments), tables.gather_weights(weights)
        kinds = tables.whole_names(kinds)
    record = TrainingRecord(moments, kinds, updates)
    if tables is None:
        model.load_state_dict(weights)
        if num_steps and ranks.num_ranks == 1 and OWN.name_of(type(model)) is not None:
            warn_unless_kept(model, valid_table, loss, device, done.curve, best)
    elif ranks.is_first:
        tables.release(weights)
    if (
        tables is None
        and ranks.num_ranks == 1
        and num_steps
        and settings.select_by == "loss"
        and best + 1 <= epochs / 2
    ):
        warn_of_one_row(model, valid_table, loss, device, best, epochs)
    if tables is None or ranks.is_first:
        calibrate(model, valid_table, settings.calibration, shift, device, ranks if tables is None else None)
    call(callbacks, "end", done.curve, model, device=losses.device)
    rows = done.step * batch_size
    skipped = done.skipped_steps
    return Trained(model, done.curve, best, done.step, rows, skipped, earlier_rows, earlier_seconds, record, shift)


def warn_of_one_row(
    model: Model, valid_table: PackedTable, loss: TargetLoss, device: str, best: int, epochs: int
) -> None:
    """Warn where an early epoch of a regression was the best by a loss of which one valid row makes much.

    Of 2,900 houses one of six deviations made the fourth epoch of thirty the best, whose typical error was 1.4 times
    that of the last (docs/tried.md)."""
    if [task for task, _ in loss.tasks] != ["regression"] or len(valid_table) < FEWEST_ROWS_OF_A_SHARE:
        return
    losses, weight = row_losses(model, valid_table, loss, device)
    rows = weighted(losses.double(), weight)
    share = float(rows.max() / rows.sum())
    # Of a quantile, or of counts most of which are 0, the mae is the least where another number than that is predicted.
    typical = loss.regression[0].kind in ("mse", "huber")
    advice = " train.select_by=mae chooses the epoch by typical rows." if typical else ""
    if share > SHARE_OF_ONE_ROW:
        log.warning(
            "epoch %d of %d was the best by the valid loss, of which one of %s rows (row %s, counted from 0) makes "
            "%.0f %%. Look at its label.%s",
            best + 1, epochs, f"{len(rows):,}", f"{int(rows.argmax()):,}", 100 * share, advice,
        )  # fmt: skip


def warn_unless_kept(
    model: Model, valid_table: PackedTable, loss: TargetLoss, device: str, curve: list[dict[str, Any]], best: int
) -> None:
    """Warn where a user's model has another valid loss than in training once it is made anew with these weights, as
    whoever loads its bundle makes it."""
    told = [point["valid_loss"] for point in curve if point["epoch"] == best + 1 and "valid_loss" in point]
    if not told:
        return
    try:
        with torch.random.fork_rng([]):
            fresh = spec_of(model).build().to(device)
        fresh.load_state_dict(model.state_dict())
        found = table_loss(fresh, valid_table, loss, device)
    except Exception as error:  # of a user's code, or of memory for a second model: what was trained is not lost by it
        log.info("%s: whether a bundle keeps all of it was not checked: %r", type(model).__name__, error)
        return
    if not math.isclose(found, told[-1], rel_tol=1e-3, abs_tol=1e-6):
        log.warning(
            "%s: valid loss %.5f once it is loaded, and %.5f in training: its outputs follow from chance, or from what "
            "a bundle does not keep, such as attributes and buffers with persistent=False. Keep them in parameters or "
            "persistent buffers.", type(model).__name__, found, told[-1],
        )  # fmt: skip


def refuse_steps(
    model: FittedModel, ranks: Ranks, start: Carried | None, codistillation: Codistillation | None
) -> None:
    """Raise `TrainingError` where a training asks a model that takes no steps for what is about steps."""
    name = type(model).__name__
    asked = {
        "train.start_from: there are no weights to go on from. Set it to null": start is not None,
        "train.codistill: peers teach by steps. Set it to null": codistillation is not None,
        "several ranks: one process fits it to all rows. Start one": ranks.num_ranks > 1,
    }
    for what, is_asked in asked.items():
        if is_asked:
            setting, _, reason = what.partition(": ")
            raise TrainingError(f"{setting}: {name} takes no steps, but is fitted to all rows at once: {reason}.")


def fitted_at_once(
    model: FittedModel,
    train: PackedTable | BatchSource,
    valid_table: PackedTable,
    loss: TargetLoss,
    settings: TrainSettings,
    device: str,
    folder: Path | None,
    callbacks: Sequence[Callback] = (),
) -> Trained:
    """`train_model` of a model that takes no steps: its scores follow from the train rows, its probabilities from the
    valid ones, as a calibration's do."""
    if not isinstance(train, PackedTable):
        raise TrainingError(f"{type(model).__name__} is fitted to all rows at once: give them as a packed table.")
    whole = settle(settings, len(train), id_sizes(train.schema))
    model.to(device)
    model.require_targets([target.task for target in train.schema.targets])
    model.calibrate(())
    require_calibratable(whole.calibration, model, valid_table)
    shift = prior_shift(whole.prior, whole.negatives, model, train, valid_table)
    loss = prepared_loss(loss, train, valid_table, whole)
    call(callbacks, "begin", model, 0, 0, device=torch.device(device))
    warn_of_labels_alike(model, valid_table)
    model.fit(train.unpack(train.words.cpu()))
    blocks = valid_table.words.split(BLOCK_ROWS)
    model.fit_lines(valid_table.unpack(words.to(device)) for words in blocks)
    with using_kernels(whole.kernels):
        valid_loss = table_loss(model, valid_table, loss, device)
    if not math.isfinite(valid_loss):
        raise TrainingError(f"{type(model).__name__}: the valid loss is not finite. Look at the rows' weights.")
    point = {"step": 0, "epoch": 1.0, "train_loss": None, "lr": None}
    curve = [point | {"valid_loss": valid_loss, "loss": loss.description}]
    if folder is not None:
        write_curve(folder / "metrics.jsonl", curve)
    call(callbacks, "epoch", curve, model, device=torch.device(device))
    calibrate(model, valid_table, whole.calibration, shift, device)
    call(callbacks, "end", curve, model, device=torch.device(device))
    return Trained(model, curve, best_epoch=0, steps=0, rows=len(train), prior_shift=shift)


def warn_of_labels_alike(model: FittedModel, valid: PackedTable) -> None:
    """Say that the valid rows, by which scores become probabilities, cannot tell likely rows from unlikely ones."""
    rows = valid.unpack(valid.words)
    labels = rows.targets[0] if rows.weight is None else rows.targets[0][rows.weight > 0]
    if len(labels) and bool((labels == labels[0]).all()):
        log.warning(
            "%s: all of the valid split's %s labels are %d, so its probabilities are near that for every row; only "
            "their order says something. Set train.negatives, or give the valid split rows of both labels.",
            type(model).__name__, f"{len(labels):,}", int(labels[0]),
        )  # fmt: skip


def prepared_loss(
    loss: TargetLoss, train: PackedTable | BatchSource, valid: PackedTable, settings: WholeTrainSettings
) -> TargetLoss:
    """The loss with what it takes from the labels of `train`, which are checked, as those of `valid` are."""
    if loss.asks_for_counts and settings.negatives is not None:
        raise TrainingError(
            "train.losses: class_weights=balanced counts labels, and with train.negatives those of the rows are all 1. "
            "Give numbers."
        )
    for split, rows in (("train", train), ("valid", valid)):
        require_labels(loss, rows, split)
    return fitted_loss(loss, train)


def require_links(model: Model, loss: TargetLoss) -> None:
    """Raise `TrainingError` where the model does not predict as the loss learns: logarithms of the mean, or values."""
    scales = {scale.target: scale for scale in model.target_scales}
    for place, ((task, _), own) in enumerate(zip(loss.tasks, loss.regression, strict=True)):
        scale = scales.get(place)
        if task != "regression" or (scale is not None and scale.log) == own.log_link:
            continue
        raise TrainingError(
            f"the loss {own} does not fit the model's scale of target {place}, {scale}: give `new_model` the loss, or "
            "`target_scales`."
        )
    logs = [str(own) for own in loss.regression if own.log_link]
    bounded = getattr(model.settings, "output_range", None) is not None
    if logs and (bounded or model.compares_rows):
        why = "output_range bounds standardised values" if bounded else "it learns by a loss of its own"
        raise TrainingError(f"train.losses: {logs[0]} does not fit {type(model).__name__}: {why}. Take another loss.")


def calibrate(
    model: Model, valid: PackedTable, kind: str, shift: float, device: str, ranks: Ranks | None = None
) -> None:
    """Fit the curves of `kind` (`fit_curves`) to the model's logits of these rows, and have it predict by them.

    shift: to be added to what the curve of the binary target gives (`prior_shift`). ranks: each computes the outputs of
    a part of the rows, and all fit the same."""
    targets, curves = valid.schema.targets, dict[int, OutputCurve]()
    if kind != "none":
        outputs, rows = table_outputs(model, valid, device, ranks, in_units=False), valid.unpack(valid.words)
        curves = {curve.output: curve for curve in fit_curves(kind, targets, outputs, rows.targets, rows.weight)}
    if shift:
        ((_, output),) = binary_places(targets)
        curves[output] = curves.get(output, OutputCurve(output, (0.0,), (0.0,), 1.0)).shifted(shift)
    model.calibrate(tuple(curves.values()))
    for curve in model.calibration:
        log.info("calibrated: output %d, %d point(s), slope %.4g", curve.output, len(curve.x), curve.slope)


def model_spec(preprocessor: Preprocessor, config: RunConfig) -> ModelSpec:
    """The configured model for these vocabularies and targets.

    Raises:
        ConfigError: for list columns together with a setting that has no use for them (`require_lists_fit`).
    """
    require_lists_fit(config, preprocessor.schema)
    return ModelSpec(config.model.kind, model_inputs(preprocessor), config.model.settings)


def model_inputs(preprocessor: Preprocessor) -> ModelInputs:
    """What these vocabularies, targets, entities and lists ask of a model."""
    schema, tensors = preprocessor.schema, preprocessor.tensor_schema
    ids = [column.name for column in tensors.ids]
    indicators = {indicator_name(name): name for name in schema.names("continuous")}
    entities = {}
    for entity in schema.entities:
        floats = [place for place, name in enumerate(tensors.floats) if indicators.get(name, name) in entity.columns]
        places = tuple(ids.index(name) for name in ids if name in entity.columns)
        first = preprocessor.vocabularies[entity.key].layout.first
        own_lists = tuple(place for place, column in enumerate(tensors.lists) if column.name in entity.columns)
        entities[entity.name] = EntityColumns(ids.index(entity.key), places, tuple(floats), first, own_lists)
    sizes = tuple(column.num_ids for column in tensors.ids)
    targets = tuple((target.task, target.num_outputs) for target in tensors.targets)
    edges, user, item = preprocessor.float_edges, entities.get("user"), entities.get("item")
    tables = [*ids, *(column.name for column in tensors.lists)]  # whose places `ListInputs.shares` tells
    lists = tuple(
        ListInputs(column.num_ids, None if column.shares is None else tables.index(column.shares), column.weighted)
        for column in tensors.lists
    )
    names = tuple(tensors.floats)
    return ModelInputs(sizes, len(names), tensors.num_outputs, user, item, targets, edges, lists, names)


def id_counts(preprocessor: Preprocessor) -> dict[int, Tensor]:
    """How often each value of each id column, and of each list with a vocabulary of its own, occurs in the train split,
    by the column's place among the ids, behind which the lists stand."""
    schema = preprocessor.tensor_schema
    names = [*(column.name for column in schema.ids), *(column.name for column in schema.lists)]
    shared = {column.name for column in schema.lists if column.shares is not None}
    return {
        place: torch.tensor(preprocessor.vocabularies[name].counts.to_numpy())
        for place, name in enumerate(names)
        if name not in shared
    }


def list_lengths(lists: Sequence[JaggedColumn]) -> tuple[float, ...]:
    """The mean number of elements of each list column."""
    return tuple(len(column.ids) / max(column.num_rows, 1) for column in lists)


def new_model(
    spec: ModelSpec,
    train: PackedTable,
    seed: int,
    loss: TargetLoss | None = None,
    scaled_by: PackedTable | None = None,
) -> Model:
    """The model with the weights that a run of this seed starts from, on the host, and with what it keeps of `train`.

    loss: that it is trained with, where it asks for other scales of targets (`target_scales`). scaled_by: the rows
    whose scales these are, where they are not those of `train`.

    torch's generator is seeded and goes on from there.
    """
    torch.manual_seed(seed)
    model = spec.build()
    model.require_targets([target.task for target in train.schema.targets])
    require_weights(train, "train")
    train = train.counted()
    model.scale_targets(target_scales(train if scaled_by is None else scaled_by.counted(), loss))
    if type(model).start_at is not Model.start_at:
        model.start_at(log_odds(train, loss))
    if model.takes_lines:
        model.start_beside(lines(model, train))
    if type(model).remember is not Model.remember:
        batch = train.unpack(train.words.cpu())
        model.remember(batch.ids, batch.floats, batch.targets, batch.lists)
    return model


def table_batches(
    table: PackedTable, settings: WholeTrainSettings, seed: int, ranks: Ranks | None = None
) -> BatchDataset:
    """The table as shuffled whole batches of `batch_size_for` rows, or of each the part of this rank."""
    shares = rank_shares(batch_size_for(len(table), settings), ranks)
    return BatchDataset(table, shuffle=True, seed=seed, drop_last=True, **shares)


def rank_shares(batch_size: int, ranks: Ranks | None) -> dict[str, Any]:
    """What a source of batches is told, so that these ranks share steps of `batch_size` rows."""
    if ranks is None or ranks.num_ranks == 1:
        return {"batch_size": batch_size}
    largest = -(-batch_size // ranks.num_ranks)
    return {"batch_size": largest, "step_rows": batch_size, "rank": ranks.rank, "num_ranks": ranks.num_ranks}


def spread_tables(
    model: Model,
    settings: WholeTrainSettings,
    ranks: Ranks,
    batch_size: int,
    device: str,
    counts: Mapping[int, Tensor] | None,
    copies: int = 1,
    list_lengths: Sequence[float] | None = None,
) -> SpreadTables | None:
    """The model's tables spread over the ranks, in place, as `train.tables` wants it; None where each keeps them.

    copies: rows that each row of a batch becomes, with its negatives. list_lengths: mean number of elements of each
    list column."""
    if ranks.num_ranks == 1 or settings.tables == "replicated":
        return None
    optimizer, _ = optimizer_of(model, settings)  # for its rule: that of the training is made once tables are spread
    rows = copies * -(-batch_size // ranks.num_ranks)
    if settings.tables == "des":
        return substitute_tables(model, optimizer, ranks, batch_rows=rows, counts=counts)
    own = free_memory(device) // (ranks_of_machine() if device == "cpu" else 1)
    return shard_tables(
        settings.tables,
        model,
        optimizer,
        ranks,
        batch_rows=rows,
        memory_bytes=min(ranks.gather(own, "memory")),
        counts=counts,
        list_lengths=list_lengths,
    )


def require_ranks_can(model: Model, settings: WholeTrainSettings, source: BatchSource, draws: bool) -> None:
    """Raise an error where the ranks would not train what one rank trains. draws: whether negatives are drawn."""
    require_shareable(model)
    if settings.accumulate_steps > 1:
        raise TrainingError(
            f"train.accumulate_steps={settings.accumulate_steps}: the pieces of several ranks would hold other rows "
            "than those of one. Set it to 1: each rank holds a part of the batch only."
        )
    if settings.compile == "on":
        raise TrainingError("train.compile=on is for one rank. Set train.compile=off.")
    drops = any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())
    if isinstance(source, StreamedDataset) and source.shuffle and (drops or draws):
        raise TrainingError(
            "train.residency=stream: a shuffled stream deals rows to ranks in turn, so dropout and drawn negatives "
            "would be others than on one rank. Set train.residency=host, or train without both."
        )


def batch_size_for(num_rows: int, settings: WholeTrainSettings) -> int:
    """settings.batch_size, or the rows that there are, which the log says."""
    batch_size = min(settings.batch_size, num_rows)
    if batch_size < settings.batch_size:
        log.warning("batch_size %s is larger than the train split; using its %s rows", settings.batch_size, batch_size)
    if batch_size < 2 * settings.accumulate_steps:
        raise TrainingError(
            f"train.accumulate_steps: {settings.accumulate_steps} pieces of a batch of {batch_size} rows have fewer "
            "than 2 rows, which batch norm needs. Lower it."
        )
    return batch_size


def falling_dropout(model: Model, settings: WholeTrainSettings, num_steps: int) -> FallingDropout | None:
    """What moves the model's dropout, None where it stays; `TrainingError` for a step that is to be compiled."""
    if settings.dropout_schedule == "constant" or not num_steps:
        return None
    if settings.compile == "on":
        raise TrainingError(
            "train.dropout_schedule=flat_cosine: a compiled step would be compiled anew for each rate of dropout. Set "
            "train.compile=off."
        )
    return FallingDropout(model, num_steps)


def make_step(
    model: Model,
    loss: TargetLoss,
    settings: WholeTrainSettings,
    device: str,
    average: WeightAverage | None = None,
    negatives: ImplicitBatches | None = None,
    ranks: Ranks | None = None,
    batch_size: int = 0,
    tables: SpreadTables | None = None,
    peers: Peers | None = None,
) -> TrainStep:
    """One update of `model`, which lies on `device`, as these settings have it, here and in the lab.

    ranks, batch_size: those that share a batch, and its rows; None for one process. tables: where ranks share them too.
    peers: that teach the model.
    """
    optimizer, max_grad_norm = optimizer_of(model, settings)
    return TrainStep(
        model,
        loss,
        optimizer,
        choose_precision(settings.precision, device),
        accumulate_steps=settings.accumulate_steps,
        max_grad_norm=max_grad_norm,
        average=average,
        compiled=settings.compile == "on",
        negatives=negatives,
        parallel=None if ranks is None else shared_step(model, optimizer, settings, ranks, batch_size, tables),
        peers=peers,
    )


def shared_step(
    model: Model,
    optimizer: Any,
    settings: WholeTrainSettings,
    ranks: Ranks,
    batch_size: int,
    tables: SpreadTables | None,
) -> DataParallel | None:
    """The whole batch of ranks that share it; of one rank None, unless a checkpoint of several may have left it what
    they had not sent."""
    asked = settings.gradients
    if ranks.num_ranks == 1 and asked.compress != "dct":
        return None
    given = asked.model_dump(exclude={"compress"}, exclude_none=True)
    sums = gradient_sums(ranks, asked.compress, **given)
    if ranks.is_first and ranks.num_ranks > 1:
        log.info("%s", describe(sums, optimizer))
    return DataParallel(ranks, optimizer, batch_size, sums, tables, model)


def optimizer_of(model: nn.Module, settings: WholeTrainSettings) -> tuple[Any, float | None]:
    """The optimizer, and the norm that is left for the step to clip to: None where the optimizer clips by itself.

    Raises:
        TrainingError: for a model that takes no steps, of which nothing can be tuned, profiled or shared by ranks.
    """
    if isinstance(model, Model):
        require_steps(type(model))
    norm = settings.max_grad_norm
    if norm == "auto":
        norm = 1.0 if "lamb" in settings.optimizer else None
    takes = inspect.signature(OPTIMIZERS[settings.optimizer]).parameters
    common = {"lr": settings.lr_max, "weight_decay": settings.weight_decay, "max_grad_norm": norm}
    if "weight_decay" not in takes:
        log.info(
            "%s has no weight decay: train.weight_decay=%s has no effect", settings.optimizer, settings.weight_decay
        )
    given = {key: value for key, value in common.items() if key in takes} | settings.optimizer_settings
    rate = model.table_rate if isinstance(model, Model) else 1.0
    if settings.optimizer == "lamb" and rate != 1 and "table_lr" not in given and given.get("rowwise", True):
        given["table_lr"] = rate * settings.lr_max
        log.info("tables of %s move at %g times train.lr_max", type(model).__name__, rate)
    optimizer = build_optimizer(model, settings.optimizer, **given)
    by_rows = [group for group in optimizer.param_groups if group.get("method") == "adagrad"]
    asked = settings.weight_decay and "weight_decay" in settings.model_fields_set
    if asked and any(not group["weight_decay"] for group in by_rows):
        log.info(
            "train.weight_decay=%s does not reach the embedding tables, whose rows move by Adagrad without decay "
            "(train.optimizer_settings.table_weight_decay sets it)",
            settings.weight_decay,
        )
    return optimizer, None if "max_grad_norm" in takes else norm


def require_steps(kind: type[Model]) -> None:
    """Raise `TrainingError` for a model that takes no steps, of which nothing can be tuned, profiled or shared."""
    if not kind.learns_by_steps:
        raise TrainingError(
            f"{kind.__name__} takes no steps: it has no optimizer, learning rate or batch size to try. Train it, or "
            "compare it with other models (gigabatch compare)."
        )


def end_epoch(
    state: TrainingState,
    done: Progress,
    valid_table: PackedTable,
    loss: TargetLoss,
    schedule: Schedule,
    keep_moments: bool,
    ranks: Ranks | None = None,
    codistillation: Codistillation | None = None,
    select_by: str = "loss",
) -> None:
    """Read the epoch's losses, measure the valid split, remember the best weights.

    keep_moments: and the optimizer's state that belongs to them, which the epochs that follow move. select_by: what the
    best are told by (`train.select_by`).
    """
    per_epoch = len(state.losses)
    epoch = done.step // per_epoch
    host = state.losses.cpu()
    model = evaluated(state)
    ranks = Ranks() if ranks is None else ranks
    outputs: list[Tensor] = []
    asked = (outputs,) if select_by != "loss" else ()
    where = str(state.losses.device), ranks, evaluated_tables(state)
    valid_loss = table_loss(model, valid_table, loss, *where, *asked)
    require_equal(state.model, ranks)
    done.skipped_in_a_row = skipped_at_end(host, done)
    finite = host.isfinite()
    learns = bool(finite.any())
    # Every rank asks for the rows, as they are gathered.
    if not math.isfinite(valid_loss) and (few := a_few_far_rows(model, valid_table, loss, *where)) and learns:
        raise TrainingError(f"epoch {epoch}: the train loss is finite, but {few}")
    for split, is_finite in (("train", learns or bool(host.isinf().any())), ("valid", math.isfinite(valid_loss))):
        if not is_finite:
            raise TrainingError(
                f"training diverged in epoch {epoch}: the {split} loss is not finite. Lower train.lr_max or use a "
                "longer warm-up."
            )
    if overflowed := int(host.isinf().sum()):
        done.overflowed_steps += overflowed
        log.log(
            logging.INFO if learns else logging.WARNING,  # then the epoch has left the model as it was
            "epoch %d: %s of %s steps lowered the scale of the float16 loss and did nothing else",
            epoch, f"{overflowed:,}", f"{per_epoch:,}",
        )  # fmt: skip
    if skipped := int(host.isnan().sum()):
        done.skipped_steps += skipped
        log.warning(
            "epoch %d: %s of %s steps were skipped, because their loss or gradient was not finite",
            epoch, f"{skipped:,}", f"{per_epoch:,}",
        )  # fmt: skip
    number = min(CURVE_POINTS_PER_EPOCH, per_epoch)
    points = [i * per_epoch // number for i in range(number + 1)]
    for start, stop in pairwise(points):
        step = (epoch - 1) * per_epoch + stop
        point = host[start:stop][finite[start:stop]]
        done.curve.append(
            {
                "step": step,
                "epoch": step / per_epoch,
                "train_loss": float(point.double().mean()) if len(point) else None,
                "lr": schedule.at(step - 1)[0],
            }
        )
    told: dict[str, Any] = {"valid_loss": valid_loss, "loss": loss.description}
    score = valid_loss
    if asked:
        rows = torch.cat(ranks.all_gather_rows(torch.cat(outputs), "outputs"))
        metric = ranks.tell(selected_metric(select_by, valid_table, loss, rows), "valid metric")
        if not math.isfinite(metric):
            raise TrainingError(
                f"training diverged in epoch {epoch}: the valid {select_by} is not finite. Lower train.lr_max or use a "
                "longer warm-up."
            )
        told[f"valid_{select_by}"] = metric
        score = metric if select_by in LESS_IS_BETTER else -metric
    done.curve[-1] |= told | ({"skipped_steps": skipped} if skipped else {})
    done.curve[-1] |= {"overflowed_steps": overflowed} if overflowed else {}
    done.curve[-1] |= {SENT: sent_bytes(ranks)} if ranks.num_ranks > 1 or codistillation is not None else {}
    done.curve[-1] |= {PEERS: codistillation.told(done.step)} if codistillation is not None else {}
    if score < done.best_score:
        done.best_score, done.best_epoch = score, epoch - 1
        done.best_weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        done.best_moments = read_moments(state.model, state.optimizer) if keep_moments else {}
        done.best_updates = 0 if state.average is None else state.average.num_updates


def row_losses(
    model: Model,
    table: PackedTable,
    loss: TargetLoss,
    device: str,
    ranks: Ranks | None = None,
    tables: SpreadTables | None = None,
) -> tuple[Tensor, Tensor]:
    """The loss of each row that this rank evaluates, all targets together, and its weight: [B] float32 each; arguments
    as of `table_loss`."""
    losses, weights = [], []
    for batch, outputs in evaluated_blocks(model, own_blocks(table, ranks), device, tables, len(table)):
        losses.append(loss.of_rows(outputs, model.standardised(batch.targets)))
        weights.append(torch.ones_like(losses[-1]) if batch.weight is None else batch.weight)
    return torch.cat(losses), torch.cat(weights)


def a_few_far_rows(
    model: Model, valid: PackedTable, loss: TargetLoss, device: str, ranks: Ranks, tables: SpreadTables | None
) -> str:
    """What to do where the loss of some valid rows is not finite and that of others is, which no rate is to blame for;
    empty where it is that of all, or of none."""
    own = row_losses(model, valid, loss, device, ranks, tables)
    rows, weight = (torch.cat(ranks.all_gather_rows(part, "valid loss")) for part in own)
    far = (~rows.isfinite() & (weight > 0)).nonzero()[:, 0]
    if not 0 < len(far) < int((weight > 0).sum()):
        return ""
    return (
        f"{len(far):,} of {len(rows):,} valid rows (row {int(far[0]):,}, counted from 0, first) are predicted so far "
        "off that float32 cannot hold their loss. Look for extreme values there and correct them, or bound numbers by "
        "preprocess.scale=robust or a step clip; losses with a log link (poisson, tweedie) grow exponentially with "
        "them."
    )


def valid_text(point: Mapping[str, Any], select_by: str) -> str:
    """What an epoch's last point of the curve says of the valid split, for the progress bar."""
    metric = f", {select_by} {point[f'valid_{select_by}']:.5f}" if select_by != "loss" else ""
    return f"valid loss ({point['loss']}) {point['valid_loss']:.5f}{metric}"


def sent_bytes(ranks: Ranks) -> dict[str, int]:
    """What all ranks together have sent since this was last asked for, in bytes, by kind of collective and name."""
    own = [[kind, name, count] for (kind, name), count in sorted(ranks.traffic.bytes.items())]
    ranks.traffic.clear()
    found: Counter[str] = Counter()
    for kind, name, count in itertools.chain(*ranks.gather(own, "accounting")):
        found[f"{kind} {name}"] += count
    return dict(sorted(found.items()))


def skipped_at_end(losses: Tensor, done: Progress) -> int:
    """How many of an epoch's steps so far were skipped at the end of `losses`, on the host, those before it counted in.
    Steps that lowered the scale of a float16 loss, whose loss is infinite there, are not among them.

    Raises:
        TrainingError: where more than `MAX_SKIPPED_IN_A_ROW` were skipped one after the other.
    """
    finite = losses.isnan().logical_not().nonzero()[:, 0]
    ends = torch.tensor([-1 - done.skipped_in_a_row]), finite, torch.tensor([len(losses)])
    in_a_row = torch.cat(ends).diff() - 1
    if int(in_a_row.max()) > MAX_SKIPPED_IN_A_ROW:
        raise TrainingError(
            f"training diverged: {int(in_a_row.max()):,} steps in a row were skipped, because their loss or gradient "
            f"was not finite; more than {MAX_SKIPPED_IN_A_ROW} end a training. Lower train.lr_max, use a longer "
            "warm-up, or look for extreme values among the floats and weights."
        )
    return int(in_a_row[-1])


def require_a_trained_step(done: Progress) -> None:
    """Raise `TrainingError` where every step of a whole training was skipped or only lowered the scale of a loss."""
    if 0 < done.step == done.skipped_steps + done.overflowed_steps:
        raise TrainingError(
            f"training changed nothing: the gradients of all of its {done.step:,} steps overflowed. Set "
            "train.precision=float32 (in float16 the first steps may only find the scale of the loss; more epochs or a "
            "smaller train.batch_size are more steps), or look for extreme values among the floats and weights."
        )


def evaluated(state: TrainingState) -> Model:
    """The model whose weights are measured and kept: the average, where there is one."""
    return cast(Model, state.model if state.average is None else state.average.model)


def evaluated_tables(state: TrainingState) -> SpreadTables | None:
    """Those of `evaluated`, where they are spread over ranks."""
    return state.tables if state.tables is None or state.average is None else state.tables.of(state.average.model)


def table_outputs(
    model: Model, table: PackedTable, device: str, ranks: Ranks | None = None, in_units: bool = True
) -> Tensor:
    """Outputs [N, O] of every row, on `device`, by `Model.in_target_units`; as the model gives them without `in_units`.

    Of the rows themselves `BLOCK_ROWS` are on the device at a time, wherever the table lies. ranks: each computes some
    of the blocks, and all get all outputs.
    """
    own = own_blocks(table, ranks)
    blocks = evaluated_blocks(model, own, device)
    found = torch.cat([model.in_target_units(outputs) if in_units else outputs for _, outputs in blocks])
    return found if ranks is None else torch.cat(ranks.all_gather_rows(found, "outputs"))


def own_blocks(table: PackedTable, ranks: Ranks | None) -> PackedTable:
    """The rows that this rank evaluates: whole blocks, so that all are computed as by one rank; there may be none."""
    if ranks is None or ranks.num_ranks == 1:
        return table
    first, stop = part_of(-(-len(table) // BLOCK_ROWS), ranks.rank, ranks.num_ranks)
    return table.with_words(table.words[first * BLOCK_ROWS : stop * BLOCK_ROWS])


def table_loss(
    model: Model,
    table: PackedTable,
    loss: TargetLoss,
    device: str,
    ranks: Ranks | None = None,
    tables: SpreadTables | None = None,
    collected: list[Tensor] | None = None,
) -> float:
    """The loss over a whole table, in evaluation mode; of regression targets in standard deviations, as in training;
    not a number where no row weighs anything.

    It is computed on `device` by blocks of `BLOCK_ROWS` rows, wherever the table lies, and added up in float64. ranks:
    each computes some of the blocks. tables: of the model, where they are spread over ranks. collected: gets the
    outputs of this rank's blocks, in the targets' units.
    """
    parts = []
    for batch, outputs in evaluated_blocks(model, own_blocks(table, ranks), device, tables, len(table)):
        parts.append(loss.sums(outputs, model.standardised(batch.targets), batch.weight))
        if collected is not None:
            collected.append(model.in_target_units(outputs))
    totals, counts = (torch.stack(part) for part in zip(*parts, strict=True))  # a row a block
    if ranks is not None:  # a rank without a block has an empty one, which adds nothing
        totals, counts = (torch.cat(ranks.all_gather_rows(part, "valid loss")) for part in (totals, counts))
    return float((totals.sum(0) / counts.sum(0)).sum())


def evaluated_blocks(
    model: Model, table: PackedTable, device: str, tables: SpreadTables | None = None, all_rows: int = 0
) -> Iterator[tuple[Batch, Tensor]]:
    """Rows of the table on `device` and the model's outputs [B, O] for them, in evaluation mode, in the blocks in which
    a bundle predicts; regression values are standardised. No rows are one empty block.

    tables: of the model, where they are spread over ranks, which then all go through as many blocks as the one that has
    the most of `all_rows`, since each asks the others for rows."""
    with modes_kept(model), torch.inference_mode():
        model.eval()
        blocks = list(table.words.split(BLOCK_ROWS))
        if tables is not None:
            most = -(-all_rows // (BLOCK_ROWS * tables.ranks.num_ranks))
            blocks += [table.words[:0]] * (most - len(blocks))
        for words in blocks:
            batch = table.unpack(words.to(device))
            with nullcontext() if tables is None else tables.fetched(batch.ids, batch.lists):
                outputs = model_call(model, batch.ids, batch.floats, batch.lists)
            yield batch, outputs


def write_curve(path: Path, curve: list[dict[str, Any]]) -> None:
    """metrics.jsonl: one JSON object a line. Written whole each time, so a resumed run has no line twice."""
    atomic_write(path, "".join(json_text(row) + "\n" for row in curve).encode())
