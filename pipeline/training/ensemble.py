"""An ensemble's members: trained on the same rows, or on all but a fold of their own (`folds.py`), in turn or side by
side, each with a seed, checkpoints and a best epoch of its own, and then put together as the model whose predictions
are the mean of theirs.

A member that is finished lies in the folder of checkpoints until the last one is, so that a killed training goes on
with the members that it was at. This process holds at most one member in training, and all of them once none trains
any more; those that train side by side are in processes of their own (`beside.py`).
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gigabatch.loaders.order.order import start_state
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.ensemble import Ensemble
from gigabatch.models.losses import TargetLoss
from gigabatch.models.parallel.ranks import Ranks
from gigabatch.models.shelf import ModelSpec, model_class
from gigabatch.pipeline.bundle import AsAllocated
from gigabatch.pipeline.config.config import TrainSettings, WholeTrainSettings
from gigabatch.pipeline.display import progress
from gigabatch.pipeline.store.locks import folder_lock
from gigabatch.pipeline.training.beside import Beside, CannotCross, MemberDone, MemberTraining, Train, train_beside
from gigabatch.pipeline.training.calibration import fits_level, prior_shift, require_calibratable, require_prior_fits
from gigabatch.pipeline.training.checkpoint import (
    TrainingError,
    checksum_file,
    read_checked,
    require_run,
    write_checked,
)
from gigabatch.pipeline.training.folds import num_folds
from gigabatch.pipeline.training.start import Carried, TrainingRecord
from gigabatch.pipeline.training.target_scales import fitted_loss
from gigabatch.pipeline.training.train import Trained, calibrate, table_loss, write_curve

log = logging.getLogger(__name__)
FINISHED = "member.pt"
MEMBER = "member"  # of a point of the curve
OF_ONE = {"ensemble": 1, "calibration": "none", "prior": None}  # settings of a member's own training


def member_seed(seed: int, number: int) -> int:
    """Of a member's weights, order of rows, dropout and drawn negatives: the run's own for member 0.

    Examples
    --------
    >>> member_seed(7, 0), member_seed(7, 1) == member_seed(7, 1), member_seed(7, 1) == member_seed(7, 2)
    (7, True, False)
    """
    return seed if not number else start_state(seed, number) & ((1 << 63) - 1)


def require_members_differ(settings: TrainSettings, kind: str) -> None:
    """Raise `TrainingError` for an ensemble of a model, by its name, that is fitted to all rows at once."""
    if settings.ensemble > 1 and not model_class(kind).learns_by_steps:
        raise TrainingError(
            f"train.ensemble: every member of a model {kind!r} would be the same, as no seed enters it. Set it to 1."
        )


@dataclass
class _Finished:
    """A member whose training is over. seconds: of all processes; earlier_rows, earlier_seconds: see `Trained`."""

    weights: dict[str, Tensor]
    curve: list[dict[str, Any]]
    best_epoch: int
    steps: int
    rows: int
    skipped_steps: int
    seconds: float
    record: TrainingRecord
    carried: Carried | None

    @classmethod
    def read(cls, path: Path) -> _Finished:
        """What `write` wrote, on the host."""

        def use(content: dict[str, Any]) -> _Finished:
            require_run(path, content, _run_of(path))
            del content["run"]
            carried = content.pop("carried")
            if carried is not None:
                carried["record"] = TrainingRecord(**carried["record"])
            return cls(
                record=TrainingRecord(**content.pop("record")),
                carried=None if carried is None else Carried(**carried),
                **content,
            )

        return read_checked(path, torch.device("cpu"), True, use)

    def write(self, path: Path) -> None:
        """As tensors and plain values."""
        carried = None if self.carried is None else dict(vars(self.carried))
        if carried is not None:  # its moments are those that the training began with
            carried["record"] = {"trained": carried["record"].trained}
        told = {"record": dict(vars(self.record)), "carried": carried, "run": _run_of(path)}
        write_checked(path, vars(self) | told)


def _run_of(path: Path) -> str:
    """What names the training of a member: its folder, in that of the run."""
    return f"{path.parent.parent.name}/{path.parent.name}"


def train_member(train: Train, asked: MemberTraining) -> MemberDone:
    """Train a member and write what came of it to its folder. A process whose parent was killed may still be at it for
    a moment, and is waited for."""
    with folder_lock(asked.folder.with_suffix(".lock"), "trains the same member"):
        asked.folder.mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        trained, carried = train(asked)
        _Finished(
            weights=trained.model.state_dict(),
            curve=trained.curve,
            best_epoch=trained.best_epoch,
            steps=trained.steps,
            rows=trained.rows,
            skipped_steps=trained.skipped_steps,
            seconds=trained.earlier_seconds + time.perf_counter() - started,
            record=trained.record,
            carried=carried,
        ).write(asked.folder / FINISHED)
        (asked.folder / "checkpoint.pt").unlink(missing_ok=True)
    return MemberDone(asked.number, trained.earlier_rows, trained.earlier_seconds)


def train_members(
    train: Train,
    spec: ModelSpec,
    rows: PackedTable,
    valid: PackedTable,
    loss: TargetLoss,
    settings: WholeTrainSettings,
    *,
    seed: int,
    device: str,
    folder: Path,
    ranks: Ranks | None = None,
    beside: Beside | None = None,
) -> tuple[Trained, Carried | None, dict[str, Any]]:
    """Train `settings.ensemble` members and put them together; calibration and prior are fitted to the mean of them.

    Parameters
    ----------
    train
        Trains a member; called for those that no earlier process has finished, in order, unless they are `beside`.
    spec
        Of the ensemble.
    rows
        That are trained on; what the ensemble's loss and `train.prior` take from labels is theirs.
    valid
        Rows whose loss is measured and which calibrate; with `isotonic`, `train.prior` counts their labels.
    loss
        Of the schema's targets.
    settings
        Of the run.
    seed
        Of the run, from which those of members follow.
    device
        As torch names it; the ensemble lies there in the end.
    folder
        Of the run's checkpoints, in which each member has one of its own, and of metrics.jsonl.
    ranks
        That train together. Each trains every member; the first alone puts them together, and the others get a model
        without weights.
    beside
        How members are trained side by side; None trains them in turn, which gives the same weights.

    Returns
    -------
    Trained, Carried or None, dict
        All members together: sums of steps, rows and seconds, and curves one after the other, each point with the
        number of its `member`. What a warm start has carried. For the run's manifest: of each member `seeds`,
        `best_epochs` (from 0), `valid_losses` (of the weights that are kept) and `seconds`; the ensemble's
        `valid_loss`; how many were trained `at_once`, and the seconds that all took by the clock (`elapsed_seconds`).
        By folds their number (`folds`), each member's loss is of the fold that it left out, and `valid_loss` is None.

    Raises
    ------
    ConfigError, TrainingError
        As of `train_model`; before any training where the calibration or the prior cannot be.
    """
    ranks = Ranks() if ranks is None else ranks
    with torch.device("meta"):
        shape = replace(spec, members=1).build()
    require_calibratable(settings.calibration, shape, valid)
    require_prior_fits(settings, loss)
    level = valid if fits_level(settings.calibration, shape) else None
    shift = prior_shift(settings.prior, settings.negatives, shape, rows, level)
    alone = settings.model_copy(update=OF_ONE)
    seeds = [member_seed(seed, number) for number in range(spec.members)]
    finished = [folder / f"{MEMBER}-{number}" / FINISHED for number in range(spec.members)]
    left, known = [], set[int]()
    for number, (own, path) in enumerate(zip(seeds, finished, strict=True)):
        if ranks.tell(path.exists() and checksum_file(path).exists(), "members"):
            log.info("ensemble: member %d of %d was trained before", number + 1, spec.members)
            known.add(number)
            if ranks.is_first:
                _Finished.read(path)  # so that a damaged one is told of before the others are trained
        else:
            left.append(MemberTraining(number, own, path.parent, alone))
    started, done = time.perf_counter(), list[MemberDone]()
    at_once = 1
    if beside is not None and len(left) > 1:
        try:
            with progress(spec.members * settings.epochs, "train, epochs of all members") as bar:
                bar.resume(len(known) * settings.epochs)
                done = train_beside(beside, train, left, bar.advance)
            at_once = beside.at_once
        except CannotCross as error:
            log.warning("ensemble: members are trained in turn: %s", error)
    if not done:
        done = _in_turn(train, left, spec.members, ranks)
    elapsed = time.perf_counter() - started
    if not ranks.is_first:
        with torch.device("meta"):
            return Trained(spec.build(), [], -1, 0, 0), None, {}
    members = [_Finished.read(path) for path in finished]
    model = _together(spec, members).to(device)
    losses, by_folds = [_kept_loss(member) for member in members], settings.by_folds
    # By folds there is no row that no member has learnt.
    valid_loss = None if by_folds else table_loss(model, valid, fitted_loss(loss, rows), device)
    earlier = [members[number].seconds for number in known] + [member.earlier_seconds for member in done]
    earlier_seconds = max(sum(earlier) / at_once, max(earlier))  # as of so many at once; nobody has kept the clock
    calibrate(model, valid, settings.calibration, shift, device)
    curve = [point | {MEMBER: number} for number, member in enumerate(members) for point in member.curve]
    write_curve(folder / "metrics.jsonl", curve)
    told = {
        "seeds": seeds,
        "best_epochs": [member.best_epoch for member in members],
        "valid_losses": losses,
        "seconds": [member.seconds for member in members],
        "valid_loss": valid_loss,
        "at_once": at_once,
        "elapsed_seconds": earlier_seconds + elapsed,
    } | ({"folds": num_folds(spec.members)} if by_folds else {})
    together = Trained(
        model=model,
        curve=curve,
        best_epoch=members[0].best_epoch,
        steps=sum(member.steps for member in members),
        rows=sum(member.rows for member in members),
        skipped_steps=sum(member.skipped_steps for member in members),
        earlier_rows=sum(members[number].rows for number in known) + sum(member.earlier_rows for member in done),
        earlier_seconds=earlier_seconds,
        record=TrainingRecord.of_members([member.record for member in members]),
        prior_shift=shift,
    )
    return together, members[0].carried, told


def _in_turn(train: Train, left: Sequence[MemberTraining], members: int, ranks: Ranks) -> list[MemberDone]:
    """Train what is left of so many members in this process; of several ranks the first writes what comes of it."""
    done = []
    with progress(members, "train, members") as bar:
        bar.resume(members - len(left))
        for asked in left:
            log.info("ensemble: member %d of %d, seed %d", asked.number + 1, members, asked.seed)
            if ranks.is_first:
                done.append(train_member(train, asked))
            else:
                train(asked)
            bar.advance()
    return done


def _together(spec: ModelSpec, members: list[_Finished]) -> Ensemble:
    """The ensemble of these members, on the host."""
    with AsAllocated():
        model = spec.build()
    assert isinstance(model, Ensemble), "it has two members and more"
    for own, member in zip(model.models, members, strict=True):
        own.load_state_dict(member.weights)
    scales = [own.target_scales for own in model.models]
    assert scales[1:] == scales[:-1], "all are those of the same rows"
    model.scale_targets(scales[0])
    return model


def _kept_loss(member: _Finished) -> float:
    """The valid loss of the epoch whose weights are kept."""
    losses = [float(point["valid_loss"]) for point in member.curve if point.get("valid_loss") is not None]
    return losses[max(member.best_epoch, 0)]


def members_text(told: dict[str, Any]) -> str:
    """What became of the members, in words, for the log and the report.

    Examples
    --------
    >>> told = {"seeds": [1, 5], "valid_losses": [0.4, 0.6], "valid_loss": 0.45, "seconds": [1.0, 2.0]}
    >>> text = members_text(told | {"at_once": 2, "elapsed_seconds": 2.3})
    >>> text[:80]
    'Ensemble of 2 members: valid loss 0.45000 of their mean prediction, 0.50000 of a'
    >>> text[121:]
    'They were trained 2 at a time, in 2.3 s by the clock and 3.0 s of all members together.'
    """
    losses, seeds, seconds, at_once = told["valid_losses"], told["seeds"], sum(told["seconds"]), told["at_once"]
    how = f"one after another, in {seconds:.1f} s together."
    if at_once > 1:
        how = (
            f"{at_once} at a time, in {told['elapsed_seconds']:.1f} s by the clock and {seconds:.1f} s of all members "
            "together."
        )
    named = f"Ensemble of {len(seeds)} members: "
    of_each = f"{statistics.mean(losses):.5f} of a member on average ({min(losses):.5f} to {max(losses):.5f})"
    if "folds" in told:
        return (
            f"{named}each left out another of {told['folds']} parts of train and valid, by which its best epoch was "
            "chosen. What is told of valid is of these rows, predicted by the member that left them out; the loss is "
            f"{of_each}. They were trained {how}"
        )
    return f"{named}valid loss {told['valid_loss']:.5f} of their mean prediction, {of_each}. They were trained {how}"
