"""Folds of the rows that are not test's, of which each member of an ensemble leaves out one (`train.ensemble_by`)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gigabatch.features.recipes.table.recipe import PARTED_BY, TableSettings
from gigabatch.loaders.order.order import splitmix64
from gigabatch.loaders.tables.packed import PackedTable, unpack
from gigabatch.pipeline.config.config import ConfigError, RunConfig
from gigabatch.pipeline.training.checkpoint import TrainingError

FOLDS = 8  # or as many as there are members


def num_folds(members: int) -> int:
    """How many folds the rows are in, for so many members."""
    return max(FOLDS, members)


class Folds(NamedTuple):
    """Rows in folds: no two members leave out the same rows, and each row is learnt by all members but at most one.

    Bagging by folds (Breiman, Machine Learning 1996; Erickson et al., AutoGluon-Tabular, arXiv 2003.06505).

    Parameters
    ----------
    rows
        A packed table of N rows.
    of_row
        The fold of each, from 0: int64 [N], on the device of the rows.

    Examples
    --------
    >>> from gigabatch.features.schema import Target, TensorSchema
    >>> x = torch.arange(80.0)
    >>> schema = TensorSchema((), ("x",), (Target("clicked", "binary"),))
    >>> table = PackedTable.from_columns(schema, [], [x], [(x > 39).float()])
    >>> learnt, left_out = Folds.deal(table, None, 4, seed=1).tables(0)
    >>> len(learnt), len(left_out), left_out.unpack(left_out.words).targets[0].sum().item()
    (70, 10, 5.0)
    """

    rows: PackedTable
    of_row: Tensor

    @classmethod
    def deal(cls, train: PackedTable, valid: PackedTable | None, members: int, seed: int) -> Folds:
        """Deal the rows of a run to folds, of which each member leaves out the one of its number.

        Each fold has its share of the labels of the first target. Where most rows differ, those that are equal in all
        columns but lists are in one fold, as they may be copies; where most do not, or half a fold's rows are equal,
        they are as many observations. Rows of weight 0 are in none.

        Parameters
        ----------
        train, valid
            Packed tables of one schema. Without `valid` the rows are those of `train`.
        members
            Of the ensemble.
        seed
            Of the run: the folds of all members follow from it.

        Raises
        ------
        TrainingError
            For fewer rows than folds.
        """
        rows = (train if valid is None else PackedTable.concat([train, valid])).counted()
        words, folds = rows.words.cpu(), num_folds(members)
        hashes = _hashes(words[:, : rows.schema.first_list])
        _, kind, counts = np.unique(hashes, return_inverse=True, return_counts=True)
        # Rows that are dealt one by one: of many copies, or a fold would be of one kind; all, where most are copies.
        alone = (counts * 2 * folds > len(rows))[kind] | (2 * len(counts) < len(rows))
        in_order = np.argsort(kind, kind="stable")  # by what rows are, wherever they stand
        begins = alone[in_order] | (np.diff(kind[in_order], prepend=-1) > 0)
        places, unit_of_row = in_order[begins], np.empty(len(rows), dtype=np.int64)
        unit_of_row[in_order] = np.cumsum(begins) - 1
        units = len(places)
        if units < folds:
            raise TrainingError(
                f"train.ensemble_by: train and valid have {units:,} rows, fewer than {folds} folds. Set it to seeds."
            )
        label = unpack(rows.schema, words).targets[0].numpy()[places]
        random = np.random.default_rng(seed)
        order = np.lexsort((random.random(units), label))
        # Each stretch of as many rows of one label, or of labels near to each other, has a row in each fold.
        dealt = random.permuted(np.tile(np.arange(folds), (-(-units // folds), 1)), axis=1).reshape(-1)
        fold = np.empty(units, dtype=np.int64)
        fold[order] = dealt[:units]
        return cls(rows, torch.from_numpy(fold[unit_of_row]).to(rows.device))

    def tables(self, number: int) -> tuple[PackedTable, PackedTable]:
        """What a member learns, and the fold that it leaves out, by which its best epoch is chosen.

        Of up to 8 members about 7 N / 8 rows and N / 8. number: of the member, from 0.
        """
        own = self.of_row == number
        return self.rows.with_words(self.rows.words[~own]), self.rows.with_words(self.rows.words[own])


def _hashes(words: Tensor) -> np.ndarray:
    """One number of each row, int64 [N], by which equal rows are found: to sort rows themselves takes minutes."""
    found = torch.zeros(len(words), dtype=torch.int64)
    for column in words.unbind(1):
        found = splitmix64(found ^ column)
    return found.numpy()


def require_folds_fit(config: RunConfig, num_ranks: int = 1) -> None:
    """Raise `ConfigError` where valid is not as random a part of the rows as a fold is, and where several ranks
    train."""
    if not config.train.by_folds:
        return

    def refuse(reason: str) -> ConfigError:
        return ConfigError(f"train.ensemble_by=folds: {reason} Set it to seeds, or leave it and train.ensemble out.")

    features = config.features
    if not isinstance(features, TableSettings):
        raise refuse(f"the recipe {config.recipe!r} does not split its rows at random.")
    for name in PARTED_BY:
        if value := getattr(features, name):
            raise refuse(f"features.{name}={value}: rows of train and valid are not parted at random, row by row.")
    if num_ranks > 1:
        raise refuse(f"{num_ranks} ranks share the train rows as they lie.")
