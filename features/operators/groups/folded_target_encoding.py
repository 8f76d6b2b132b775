"""FoldedTargetEncoding: the smoothed mean outcome of a key, out of fold for the rows that it was learnt from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gigabatch.features.columns.hashing import buckets_of, hash_values
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError, require_columns
from gigabatch.features.history.grouped_sums import GroupedSums
from gigabatch.features.history.key_index import Indexed, KeyIndex, values_at
from gigabatch.features.operators.base import FittedOperator, unused
from gigabatch.features.setting_checks import require_smoothing

MAX_FOLDS = 100


@dataclass(frozen=True)
class FoldedMeans(Indexed):
    """table: one row a key, sorted: the key columns and, for each target and fold, `<target>__count_<fold>` (int64) and
    `<target>__sum_<fold>` (float64, the nearest to the exact sum). totals: the same in one row over all known targets,
    null keys among them."""

    table: Any
    totals: Any


class FoldedTargetEncoding(FittedOperator):
    """Encode a key by the mean target of the train split, out of fold for the rows that it was learnt from.

    The float32 columns `<target>_encoded_by_<key>_<key>` are (sum + smoothing * prior) / (count + smoothing). sum and
    count are over the train rows with the row's key whose target is known; prior is the mean of all known targets
    (additive smoothing, Micci-Barreca 2001, eq. 4 with lambda = n / (n + smoothing)). A null or unseen key gets the
    prior; without any known target the columns are null. With smoothing 0 a key that was seen gets its mean.

    A train row must not be told its own label, so there are two ways to apply the state, and the caller says which:
    `columns` (and `apply`) for new rows counts all folds and needs neither target nor fold key; `train_columns` (and
    `apply_to_train`), for the rows that the fit saw, leaves the row's own fold out of sum, count and prior. The fold is
    XXH64(fold_key) mod num_folds, so a row has the same one in any partition, order and run.

    Parameters
    ----------
    by
        Key columns.
    targets
        Columns of numbers or booleans. Sums are exact, so the state is the same for any partitions in any order.
    fold_key
        Column of text, integers or booleans, without nulls, not among `by` (else a key would have one fold, and nothing
        to learn from outside it). Rows that share a label's fate (candidates of one list, lists of one session) need a
        fold key in common.
    num_folds
        From 2 to 100.
    smoothing
        Weight of the prior: finite, not negative.

    Raises
    ------
    DataError
        A setting out of range, a column in two roles, a null fold key at train or one that makes a single fold, a
        target that is no number.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import FoldedTargetEncoding
    >>> train = pd.DataFrame({"user": ["a", "a", "b"], "clicked": [1, 0, 1], "session": [0, 1, 2]})
    >>> operator = FoldedTargetEncoding(["user"], ["clicked"], "session", smoothing=1.0)
    >>> operator.apply(pd.DataFrame({"user": ["a", "new"]}), operator.fit([train]))
      user  clicked_encoded_by_user
    0    a                 0.555556
    1  new                 0.666667
    """

    reads = ("by", "targets", "fold_key")

    untold = ("targets",)

    def __init__(
        self,
        by: Sequence[str],
        targets: Sequence[str],
        fold_key: str,
        num_folds: int = 5,
        smoothing: float = 20.0,
    ) -> None:
        if isinstance(by, str) or isinstance(targets, str) or not by or not targets:
            raise DataError("FoldedTargetEncoding: by and targets are lists of one or more column names.")
        where = f"FoldedTargetEncoding of {', '.join(targets)} by {', '.join(by)}"
        shared = sorted({fold_key, *by}.intersection(targets) | {fold_key}.intersection(by))
        if shared:
            raise DataError(
                f"{where}: keys, targets and fold key must be different columns, found {', '.join(map(repr, shared))} "
                "twice."
            )
        if isinstance(num_folds, bool) or not isinstance(num_folds, int) or not 2 <= num_folds <= MAX_FOLDS:
            raise DataError(f"{where}: num_folds must be a whole number from 2 to {MAX_FOLDS}, found {num_folds!r}.")
        require_smoothing(where, smoothing=smoothing)
        sums = [self._sums(target, fold) for target in targets for fold in range(num_folds)]
        taken = [name for pair in sums for name in pair if name in by]
        if taken:
            raise DataError(f"{where}: the key {taken[0]!r} has the name of a sum. Rename it.")
        self.by, self.targets, self.fold_key = tuple(by), tuple(targets), fold_key
        self.num_folds, self.smoothing = num_folds, smoothing

    @property
    def applied_inputs(self) -> tuple[str, ...]:
        return self.by

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(f"{target}_encoded_by_{'_'.join(self.by)}" for target in self.targets)

    @property
    def _fold(self) -> str:
        """The column of folds, while the sums are taken."""
        return unused("fold__", (*self.by, *self.targets))

    def partial(self, frame: Frame) -> tuple[GroupedSums, GroupedSums]:
        """Sums by key and fold, and by fold."""
        fold = self._fold
        folds = frame[[*self.by, *self.targets]].assign(**{fold: engine_of(frame).series(self._folds(frame), frame)})
        where = type(self).__name__
        return (
            GroupedSums.of(folds, (*self.by, fold), self.targets, where, squares=False),
            GroupedSums.of(folds, (fold,), self.targets, where, squares=False),
        )

    def merge(
        self, left: tuple[GroupedSums, GroupedSums], right: tuple[GroupedSums, GroupedSums]
    ) -> tuple[GroupedSums, GroupedSums]:
        return left[0].merge(right[0]), left[1].merge(right[1])

    def finish(self, partial: tuple[GroupedSums, GroupedSums]) -> FoldedMeans:
        by_key, by_fold = partial
        from_pandas = engine_of(by_key.keys).from_pandas
        keyed, key_totals = by_key.on_host()
        # By codes: in texts as Python's objects pandas' own look at a frame ends at a NUL.
        codes = keyed[list(self.by)].assign(**{name: engine_of(keyed).codes(keyed[name]) for name in self.by})
        keys = keyed.loc[~codes.duplicated(), list(self.by)].reset_index(drop=True)
        folds, fold_totals = by_fold.on_host()
        labelled = max(int(total.count.sum()) for total in fold_totals)
        if len(folds) == 1 and labelled > 1:
            raise DataError(
                f"FoldedTargetEncoding: fold key {self.fold_key!r} puts all train rows, {labelled} with a label, into "
                f"one of {self.num_folds} folds, so none could learn from another one. Take a column of more "
                "values, for example a row id."
            )
        import pandas as pd

        everyone = pd.DataFrame(index=[0])
        return FoldedMeans(
            from_pandas(self._wide(keys, KeyIndex(keys, self.by).rows(keyed), keyed[self._fold], key_totals)),
            from_pandas(self._wide(everyone, np.zeros(len(folds), dtype="int64"), folds[self._fold], fold_totals)),
        )

    def _wide(self, keys: Any, rows: np.ndarray, folds: Any, totals: Any) -> Any:
        """The keys with a count and a sum for each target and fold, 0 where no row was."""
        columns: dict[str, np.ndarray] = {}
        for target, total in zip(self.targets, totals, strict=True):
            for place, values in enumerate((total.count, total.sum())):
                table = np.zeros((self.num_folds, len(keys)), dtype=values.dtype)
                table[folds.to_numpy(), rows] = values
                columns |= {self._sums(target, fold)[place]: table[fold] for fold in range(self.num_folds)}
        return keys.assign(**columns)

    def columns(self, frame: Frame, state: FoldedMeans) -> dict[str, Column]:
        """For rows that the fit did not see."""
        return self._encoded(frame, state, None)

    def train_columns(self, frame: Frame, state: FoldedMeans) -> dict[str, Column]:
        """For the rows that the fit saw: what the other folds say."""
        require_columns(frame, (*self.by, self.fold_key), type(self).__name__)
        return self._encoded(frame, state, self._folds(frame))

    def _folds(self, frame: Frame) -> Any:
        """int64 array in [0, num_folds)."""
        hashes, null = hash_values(frame[self.fold_key], type(self).__name__)
        if bool(null.any()):
            raise DataError(
                f"FoldedTargetEncoding: fold key {self.fold_key!r} holds {int(null.sum())} null(s). Every train row "
                "needs a fold: fill the column, for example with a row id."
            )
        return buckets_of(hashes, self.num_folds)

    def _encoded(self, frame: Frame, state: FoldedMeans, own: Any) -> dict[str, Any]:
        engine = engine_of(frame)
        xp = engine.arrays
        rows = state.rows_of(frame, self.by, "FoldedTargetEncoding")
        nothing = xp.zeros(len(frame), dtype="int64")
        found = {}
        for target, output in zip(self.targets, self.outputs, strict=True):
            count, total = self._others(state.table, target, rows, own)
            all_count, all_total = self._others(state.totals, target, nothing, own)
            prior = all_total / xp.maximum(all_count, 1)
            weight = count + self.smoothing
            mean = (total + self.smoothing * prior) / xp.where(weight > 0, weight, 1)
            mean = xp.where(weight > 0, mean, prior)
            found[output] = engine.series(mean.astype("float32"), frame, valid=all_count > 0)
        return found

    @staticmethod
    def _sums(target: str, fold: int) -> tuple[str, str]:
        """The state's columns of count and sum."""
        return f"{target}__count_{fold}", f"{target}__sum_{fold}"

    def _others(self, table: Any, target: str, rows: Any, own: Any) -> tuple[Any, Any]:
        """float64 count and sum at each of the table's rows (none at -1) over every fold but `own`, in their order."""
        engine = engine_of(table)
        xp = engine.arrays
        count, total = xp.zeros(len(rows)), xp.zeros(len(rows))
        for fold in range(self.num_folds):
            counted = 1.0 if own is None else (own != fold).astype("float64")
            for sums, name in zip((count, total), self._sums(target, fold), strict=True):
                sums += values_at(xp, engine.array(table[name]), rows, 0) * counted
        return count, total
