"""What is wrong with data more often than with a model: splits that differ, labels that a column gives away.

Each check gives sentences. A difference is told where it is above its stated bound and beyond chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor

from gigabatch.features.engines.frame import engine_of
from gigabatch.features.schema import IdList, Target, TensorSchema, indicator_name
from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.loaders.tables.packed import Batch, PackedTable, unpack
from gigabatch.models.metrics.pointwise import roc_auc
from gigabatch.pipeline.display import apart
from gigabatch.pipeline.evaluation.paired import units_of
from gigabatch.pipeline.evaluation.sample import hashed, spread, spread_rows

CHANCE = 4.0  # standard errors that a difference must exceed, whatever its bound
RATE_RATIO = 1.25  # of the mean of a binary target in a split and in train, either way round
SHARES_DISTANCE = 0.1  # of the classes: total variation distance
MEAN_DEVIATIONS = 0.25  # between the means of a regression target, in the train split's standard deviations
FEW, HOLD = 1_000, 0.9  # one row in so many, and their share of a label's squared distances from its median
FEWEST_LABELS = 20  # below which one of them may well be far off
MISSING_DIFFERENCE = 0.1  # of a column's share of nulls
UNSEEN_SHARE = 0.1  # of rows whose value is not in the vocabulary
OUTSIDE = "outside train's range"
OUTSIDE_SHARE, OUTSIDE_ROWS = 0.25, 50_000  # of rows beyond where 98 % of the train rows lie
LEAK_AUC, LEAK_R2 = 0.99, 0.99  # that a column reaches alone
LEAK_ROWS, LEAK_FEWEST, LEAK_BINS = 50_000, 20, 256
LEAK_GROUPS = 16  # of a bin, where rows have some: those of one are in one half
CLASSES_AT_ONCE = 64
SURE = {"binary": ("auc", 0.999, "AUC"), "regression": ("r2", 0.999, "R²")}  # of a model
SURE_ROWS = 50  # of either label, of numbers all, from which on that says something
LEAK_OF_LABEL = 1_000  # rows of each label that are looked at, where there are as many
MOST_NAMED = 5


class Flag(str):
    """A sentence about the data.

    about: the column or target that it is of; short: the same in a cell of a table, beside its name; splits: which
    differ from train, for a target.
    """

    about: str
    short: str
    splits: tuple[str, ...]

    def __new__(cls, text: str, about: str = "", short: str = "", splits: Iterable[str] = ()) -> Flag:
        made = super().__new__(cls, text)
        made.about, made.short, made.splits = about, short, tuple(splits)
        return made


def data_warnings(
    preprocessor: Any,
    tables: Mapping[str, PackedTable],
    missing: Mapping[str, Mapping[str, float]],
    only_positives: bool = False,
    raw_of: Callable[[str], Sequence[str]] = lambda name: (name,),
) -> list[Flag]:
    """All that the checks of this file say.

    Parameters
    ----------
    preprocessor
        Fitted; its vocabularies say which ids are unseen.
    tables
        Packed rows by split, `train` among them. Rows of weight 0 say nothing.
    missing
        Shares of nulls by split and column; see `missing_shares`.
    only_positives
        Whether every row is a positive, whose label tells nothing.
    raw_of
        The raw columns that a column is made of, as `Workflow.raw_of` gives them.
    """
    tables = {split: table.counted() for split, table in tables.items()}
    rows = {split: len(table) for split, table in tables.items()}
    found = [] if only_positives else [*label_warnings(tables), *leak_warnings(tables["train"], preprocessor)]
    lists = [column.name for column in tables["train"].schema.lists]
    missing, unseen = with_empty_lists(missing, tables), unseen_shares(preprocessor, tables)
    alike = {split: _alike_nulls(preprocessor, table) for split, table in tables.items()}
    found += column_warnings(missing, unseen, rows, lists, raw_of, alike)
    return found + range_warnings(tables) + blank_warnings(preprocessor)


def blank_warnings(preprocessor: Any) -> list[Flag]:
    """Columns of text of which two values differ by blanks at their edges alone."""
    found = []
    for name, vocabulary in preprocessor.vocabularies.items():
        values = engine_of(vocabulary.values).to_pandas(vocabulary.values.to_frame("value"))["value"]
        if not isinstance(values.iloc[0] if len(values) else None, str):
            continue
        plain = values.str.strip()
        twice = values[plain.duplicated(keep=False)]
        if len(twice):
            pair = [value for value in twice if value.strip() == twice.iloc[0].strip()][:2]
            text = (
                f"column {name!r}: {len(twice):,} of its {len(values):,} values differ by blanks at their edges alone, "
                f"such as {pair[0]!r} and {pair[1]!r}. Where a blank stands after each comma of a CSV file, set "
                "separator: ', '."
            )
            found.append(Flag(text, name, "values differ by blanks"))
    return found


def label_warnings(tables: Mapping[str, PackedTable]) -> list[Flag]:
    """Splits that lack a class, and those whose labels, by the rows' weights, differ from train's."""
    found, masses = [], {split: _mass(table) for split, table in tables.items()}
    samples = {split: _whole_groups(table) for split, table in tables.items()}
    for place, target in enumerate(tables["train"].schema.targets):
        labels = {split: table.unpack(table.words).targets[place].cpu() for split, table in tables.items()}
        alike = {split: _alike_labels(target, place, batch) for split, batch in samples.items()}
        if target.task == "regression":
            found += _few_that_hold_the_spread(target, labels["train"], masses["train"])
            found += _means_that_differ(target, labels, masses, alike)
            continue
        size = max(target.num_outputs, 2)
        counts = {split: values.long().bincount(masses[split], size).double() for split, values in labels.items()}
        for split, count in counts.items():
            lacks = [_class_name(target, number) for number in (count == 0).nonzero()[:, 0].tolist()]
            short = f"no row of class {_listed(lacks)}"
            if lacks and split == "train":
                text = f"target {target.name!r}: the train split has {short}, so no model can learn it."
                found.append(Flag(text, target.name, short, [split]))
            elif lacks and len(labels[split]):
                text = f"target {target.name!r}: split {split!r} has {short}. Metrics of it say nothing there."
                found.append(Flag(text, target.name, short, [split]))
        worth = {split: _worth(values, masses[split]) / alike[split] for split, values in labels.items()}
        found += _shares_that_differ(target, counts, worth)
    return found


def _mass(table: PackedTable) -> Tensor | None:
    """The rows' weights: float64 [N]; None where rows have none, as ones would cost more than all that is counted."""
    weight = table.unpack(table.words).weight
    return None if weight is None else weight.cpu().double()


def rows_worth(table: PackedTable) -> dict[str, float]:
    """By target, how many independent rows of one weight have a mean label as certain as that of the table's (Kish's
    effective sample size); of classes that of the class which its groups tell the least of."""
    worth, sample = _worth(table.words, _mass(table)), _whole_groups(table)
    return {
        target.name: worth / float(_alike_labels(target, place, sample).max())
        for place, target in enumerate(table.schema.targets)
    }


def design_effects(values: Tensor, mass: Tensor | None, group: Tensor | None) -> Tensor:
    """How many rows tell of a mean as much as one that is independent of the others, as rows of a group are not (the
    design effect of clusters, Kish 1965, "Survey Sampling", section 5.4).

    Parameters
    ----------
    values
        [n, V], of which V means are taken.
    mass
        Weights, float64 [n] from 0, or None.
    group
        [n], or None.

    Returns
    -------
    Tensor
        float64 [V], from 1, as without groups, to what it is where the rows of each group are equal, as of a single
        group and of values that are all alike.

    Examples
    --------
    >>> alike, apart = [0.0, 0.0, 1.0, 1.0] * 50, [0.0, 1.0, 0.0, 1.0] * 50
    >>> values, group = torch.tensor([alike, apart]).T, torch.arange(100).repeat_interleave(2)
    >>> design_effects(values, None, group).round(decimals=1).tolist(), design_effects(values, None, None).tolist()
    ([2.0, 1.0], [1.0, 1.0])
    """
    if group is None or not len(values) or (mass is not None and not bool(mass.any())):
        return torch.ones(values.shape[1], dtype=torch.float64)
    mass = torch.ones(len(values), dtype=torch.float64) if mass is None else mass
    of = group.unique(return_inverse=True)[1]
    groups, rows = units_of(mass, of), units_of(mass, None)
    missed = mass[:, None] * (values.double() - (mass @ values.double()) / mass.sum())
    sums = missed.new_zeros(int(of.max()) + 1, values.shape[1]).index_add_(0, of, missed)
    spread = sums.square().sum(0) * groups / (groups - 1) if groups > 1 else torch.full_like(sums[0], math.nan)
    alone = missed.square().sum(0) * rows / max(rows - 1, 1)
    most = rows / groups
    return (spread / alone).nan_to_num(nan=most, posinf=most).clamp(1.0, max(most, 1.0))


def _whole_groups(table: PackedTable) -> Batch | None:
    """A sample of whole groups, on the host; None of a table without groups or rows."""
    rows = spread_rows(table, LEAK_ROWS) if table.schema.has_group else ()
    return table.unpack(table.words[rows].cpu()) if len(rows) else None


def _alike_labels(target: Target, place: int, batch: Batch | None) -> Tensor:
    """`design_effects` of the labels of the target at this place, or of each of its classes: float64 [1] or [K]. batch:
    as of `_whole_groups`."""
    size = 1 if target.task == "regression" else max(target.num_outputs, 2)
    if batch is None:
        return torch.ones(size, dtype=torch.float64)
    labels, mass = batch.targets[place], None if batch.weight is None else batch.weight.double()
    if target.task == "regression":
        return design_effects(labels[:, None], mass, batch.group)
    blocks = torch.arange(size).split(CLASSES_AT_ONCE)
    return torch.cat([design_effects(labels.long()[:, None] == block, mass, batch.group) for block in blocks])


def _alike_nulls(preprocessor: Any, table: PackedTable) -> dict[str, float]:
    """`design_effects` by column of what is null in it, as far as packed rows tell."""
    batch = _whole_groups(table)
    if batch is None:
        return {}
    places = {name: place for place, name in enumerate(table.schema.floats)}
    owners = indicator_owners(table.schema)
    nulls = {
        column.name: batch.ids[:, place] == preprocessor.vocabularies[column.name].layout.null
        for place, column in enumerate(table.schema.ids)
    }
    nulls |= {name: batch.floats[:, places[indicator]] > 0 for indicator, name in owners.items()}
    nulls |= {item.name: own.offsets.diff() == 0 for item, own in zip(table.schema.lists, batch.lists, strict=True)}
    if not nulls:
        return {}
    found = design_effects(torch.stack(list(nulls.values()), dim=1), None, batch.group)
    return dict(zip(nulls, found.tolist(), strict=True))


def _worth(values: Tensor, mass: Tensor | None) -> float:
    """The same of `values` [n, ...] with weights `mass` [n], or None."""
    if mass is None:
        return float(len(values))
    return float(mass.sum() ** 2 / mass.square().sum()) if len(mass) else 0.0


def _class_name(target: Target, number: int) -> str:
    return repr(target.classes[number]) if target.classes else str(number)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _shares_that_differ(target: Target, counts: Mapping[str, Tensor], rows: Mapping[str, Tensor]) -> list[Flag]:
    """Sentences about the classes of a target, from their weight by split. rows: what each split is worth by class."""
    if not bool(rows["train"].any()):
        return []
    train, differ, splits = counts["train"] / counts["train"].sum(), [], []
    for split, count in counts.items():
        if split == "train" or not bool(rows[split].any()):
            continue
        share = count / count.sum()
        pooled = (rows["train"] * train + rows[split] * share) / (rows["train"] + rows[split])
        errors = (pooled * (1 - pooled) * (1 / rows["train"] + 1 / rows[split])).sqrt()
        if target.task == "binary":
            ratio = float(share[1] / train[1]) if train[1] > 0 else math.inf
            beyond = abs(float(share[1] - train[1])) > CHANCE * float(errors[1])
            if beyond and not 1 / RATE_RATIO <= ratio <= RATE_RATIO:
                differ.append(f"{split} {float(share[1]):.3g}")
                splits.append(split)
        else:
            # Half the sum of the classes' errors is about what the distance is by chance alone.
            distance = float((share - train).abs().sum() / 2)
            if distance > max(SHARES_DISTANCE, CHANCE / 2 * float(errors.sum()) / 2):
                differ.append(f"{split} by {distance:.2f}")
                splits.append(split)
    if not differ:
        return []
    if target.task == "binary":
        text = (
            f"target {target.name!r}: the share of 1 differs between the splits: train {float(train[1]):.3g}, "
            f"{', '.join(differ)} (more than {RATE_RATIO:g} times)."
        )
        return [Flag(text, target.name, f"share of 1 is not train's {float(train[1]):.3g}", splits)]
    text = (
        f"target {target.name!r}: the shares of the classes differ from train's, {', '.join(differ)} in total "
        f"variation (more than {SHARES_DISTANCE:g})."
    )
    return [Flag(text, target.name, "classes are not train's", splits)]


def _means_that_differ(
    target: Target, labels: Mapping[str, Tensor], masses: Mapping[str, Tensor | None], alike: Mapping[str, Tensor]
) -> list[Flag]:
    """Sentences about the mean of a target. alike: `design_effects` of its labels by split."""
    found = {split: _mean_and_variance(values.double(), masses[split]) for split, values in labels.items()}
    if found["train"] is None:
        return []
    mean, variance, rows = found["train"]
    deviation, differ = math.sqrt(variance), {}
    for split, other in found.items():
        if split == "train" or other is None:
            continue
        error = math.sqrt(variance / rows * float(alike["train"]) + other[1] / other[2] * float(alike[split]))
        if abs(other[0] - mean) > max(MEAN_DEVIATIONS * deviation, CHANCE * error):
            differ[split] = other[0]
    if not differ:
        return []
    own, *others = apart([mean, *differ.values()])
    told = ", ".join(f"{split} {text}" for split, text in zip(differ, others, strict=True))
    text = (
        f"target {target.name!r}: the mean differs between the splits: train {own}, {told} (more "
        f"than {MEAN_DEVIATIONS:g} standard deviations, of which one is {deviation:.4g})."
    )
    return [Flag(text, target.name, f"mean is not train's {own}", differ)]


def _few_that_hold_the_spread(target: Target, labels: Tensor, mass: Tensor | None) -> list[Flag]:
    """A sentence where one row in `FEW`, or one alone, holds nearly all of a label's spread. Of 17,914 columns of
    numbers of public tables one in two hundred is such: typing errors, codes such as 999999, and sums among the parts.
    """
    if mass is not None:  # a row that counts for nothing is not one of the few
        labels, mass = labels[mass > 0], mass[mass > 0]
    if len(labels) < FEWEST_LABELS:
        return []
    values = labels.double()
    median = float(values.median())
    weighed = (values - median).square_()
    if mass is not None:
        weighed *= mass
    far = weighed.topk(max(len(values) // FEW, 1)).indices
    share = float(weighed[far].sum() / weighed.sum())
    if not share > HOLD:  # labels that are all alike have none
        return []
    farthest = values[far[(values[far] - median).abs().argmax()]]
    text = (
        f"target {target.name!r}: {len(far):,} of {len(values):,} train rows hold {share:.1%} of the label's squared "
        f"distances from its median, {median:.4g}; the farthest is {farthest:.6g}. So they decide nearly alone "
        "what is learnt, and how it is judged. Correct or leave out what is a mistake or stands for an unknown label; "
        "else learn its logarithm."
    )
    return [Flag(text, target.name, f"{len(far):,} rows hold {share:.0%} of its spread")]


def _mean_and_variance(values: Tensor, mass: Tensor | None) -> tuple[float, float, float] | None:
    """Mean, variance, and how many rows these are worth; None where they are not worth more than one."""
    rows = _worth(values, mass)
    if rows <= 1:
        return None
    if mass is None:
        return float(values.mean()), float(values.var()), rows
    mean = (values * mass).sum() / mass.sum()
    variance = ((values - mean).square() * mass).sum() / mass.sum() * rows / (rows - 1)
    return float(mean), float(variance), rows


def missing_shares(
    parts: Mapping[str, Sequence[Path]], columns: Sequence[str], weight: str | None = None
) -> dict[str, dict[str, float]]:
    """By split and column, the share of nulls, from the footers of Parquet files of the features stage.

    weight: a column of weights, None where there is none. Rows that weigh 0 are left out, for which columns with nulls
    are read.
    """
    found = {}
    for split, paths in parts.items():
        nulls, rows = dict.fromkeys(columns, 0), 0
        for path in paths:
            with pq.ParquetFile(path) as file:
                names = file.schema_arrow.names
                for group in range(file.metadata.num_row_groups):
                    counted = None if weight is None else pc.greater(file.read_row_group(group, [weight]).column(0), 0)
                    if counted is not None and pc.all(counted).as_py():
                        counted = None  # as of rows that no weight leaves out
                    rows += file.metadata.row_group(group).num_rows if counted is None else counted.to_numpy().sum()
                    for name in columns:
                        statistics = file.metadata.row_group(group).column(names.index(name)).statistics
                        known = statistics is not None and statistics.has_null_count
                        if known and (counted is None or statistics.null_count == 0):
                            nulls[name] += statistics.null_count
                            continue
                        values = file.read_row_group(group, [name]).column(0)
                        of_these = values if counted is None else values.filter(counted)
                        nulls[name] += of_these.null_count
        found[split] = {name: count / max(int(rows), 1) for name, count in nulls.items()}
    return found


def with_empty_lists(
    missing: Mapping[str, Mapping[str, float]], tables: Mapping[str, PackedTable]
) -> dict[str, dict[str, float]]:
    """`missing_shares`, and of each list column the share of the split's rows whose list is empty or null."""
    found = {split: dict(shares) for split, shares in missing.items()}
    for split in found.keys() & tables.keys():
        table = tables[split]
        for column, lists in zip(table.schema.lists, table.unpack(table.words).lists, strict=True):
            empty = (lists.offsets.diff() == 0).double()
            found[split][column.name] = float(empty.mean()) if len(empty) else 0.0
    return found


def column_warnings(
    missing: Mapping[str, Mapping[str, float]],
    unseen: Mapping[str, Mapping[str, float]],
    rows: Mapping[str, int],
    lists: Collection[str] = (),
    raw_of: Callable[[str], Sequence[str]] = lambda name: (name,),
    alike: Mapping[str, Mapping[str, float]] | None = None,
) -> list[Flag]:
    """Columns of which more is missing in a split than in train, and those of many values that train does not have.

    missing, unseen: shares by split and column; rows: by split. lists: columns of lists, of which `missing` has empty
    ones and `unseen` shares of elements. raw_of: as for `data_warnings`. alike: by split and column, how many rows tell
    as much of its nulls as one; those that it lacks, and all without it, as much as each.
    """

    def called(name: str) -> str:
        raw = raw_of(name)
        return f"column {name!r}" if tuple(raw) == (name,) else f"column {name!r}, made of {_listed([*map(repr, raw)])}"

    found = []
    for name, before in missing["train"].items():
        differ = []
        for split in missing.keys() - {"train"}:
            of = {part: (alike or {}).get(part, {}).get(name, 1.0) for part in ("train", split)}
            now, count, known = missing[split][name], rows[split] / of[split], rows["train"] / of["train"]
            pooled = (before * known + now * count) / max(known + count, 1)
            error = math.sqrt(pooled * (1 - pooled) * (1 / max(known, 1) + 1 / max(count, 1)))
            if count and abs(now - before) > max(MISSING_DIFFERENCE, CHANCE * error):
                differ.append(split)
        if differ:
            shares = ", ".join(f"{split} {missing[split][name]:.0%}" for split in missing if split in differ)
            what = "empty lists" if name in lists else "missing values"
            text = (
                f"{called(name)}: the share of {what} differs: train {before:.0%}, {shares} (more than "
                f"{MISSING_DIFFERENCE:.0%} of the rows)."
            )
            found.append(Flag(text, name, f"{what}: {shares}"))
    for name, before in unseen["train"].items():
        above = [split for split in unseen if split != "train" and rows[split] and unseen[split][name] > UNSEEN_SHARE]
        if above:
            shares = ", ".join(f"{unseen[split][name]:.0%} of {split}" for split in above)
            rare = f"; {100 * before:.3g}% of train, as values that are too rare" if before else ""
            what = ", of all elements of its lists, is" if name in lists else " has values that are"
            text = f"{called(name)}: {shares}{what} not in the vocabulary (more than {UNSEEN_SHARE:.0%}{rare})."
            found.append(Flag(text, name, f"unseen: {shares}"))
    return found


def range_warnings(tables: Mapping[str, PackedTable]) -> list[Flag]:
    """Floats that lie elsewhere in a split than in train, as counts do that only grow, and numbers of rows or days.

    So too the length of a list. Told where the share of rows below the 1st or above the 99th percentile of the train
    rows is above `OUTSIDE_SHARE`; of each split some `OUTSIDE_ROWS` rows are looked at.
    """
    samples = {
        split: table.unpack(table.words[spread_rows(table, OUTSIDE_ROWS)].cpu()) for split, table in tables.items()
    }
    floats = {split: _numbers(batch) for split, batch in samples.items()}
    if not len(floats["train"]) or not floats["train"].shape[1]:
        return []
    low, high = np.quantile(floats["train"], [0.01, 0.99], axis=0)
    beyond = {
        split: (values < low) | (values > high) for split, values in floats.items() if split != "train" and len(values)
    }
    outside = {split: values.mean(0) for split, values in beyond.items()}
    worth = {
        split: len(values) / design_effects(torch.from_numpy(values), None, samples[split].group).numpy()
        for split, values in beyond.items()
    }
    found = []
    schema = tables["train"].schema
    owners = indicator_owners(schema)  # whose nulls `column_warnings` tells of
    names = [(name, f"column {name!r}") for name in schema.floats]
    names += [(column.name, f"column {column.name!r}, length of its lists") for column in schema.lists]
    for place, (owner, name) in enumerate(names):
        if owner in owners:
            continue
        above = {
            split: share[place]
            for split, share in outside.items()
            if share[place] > OUTSIDE_SHARE + CHANCE * math.sqrt(OUTSIDE_SHARE / worth[split][place])
        }
        if above:
            shares = ", ".join(f"{share:.0%} of {split}" for split, share in above.items())
            text = (
                f"{name}: {shares} lies outside the range of 98% of the train rows (more than "
                f"{OUTSIDE_SHARE:.0%}). A number that grows with time, such as a count of all rows so far, tells when "
                "a row is, and nothing that will come again: take a share, a difference or a window, or leave it out."
            )
            found.append(Flag(text, owner, f"{OUTSIDE}: {shares}"))
    return found


def _numbers(batch: Batch) -> np.ndarray:
    """The floats, and the lengths of the lists: float64 [B, F + L]."""
    lengths = [lists.offsets.diff()[:, None].double() for lists in batch.lists]
    return torch.cat([batch.floats.double(), *lengths], dim=1).numpy()


def unseen_shares(preprocessor: Any, tables: Mapping[str, PackedTable]) -> dict[str, dict[str, float]]:
    """By split and categorical column, the share of rows whose value has no id of its own; of lists that of their
    elements."""
    found: dict[str, dict[str, float]] = {}
    for split, table in tables.items():
        batch, found[split] = table.unpack(table.words), {}
        ids = batch.ids
        for position, column in enumerate(table.schema.ids):
            layout = preprocessor.vocabularies[column.name].layout
            unseen = layout.is_unseen(ids[:, position])
            found[split][column.name] = float(unseen.double().mean()) if len(table) else 0.0
        for item, lists in zip(table.schema.lists, batch.lists, strict=True):
            unseen = preprocessor.vocabularies[list_owner(table.schema, item.name)].layout.is_unseen(lists.ids)
            found[split][item.name] = float(unseen.double().mean()) if len(unseen) else 0.0
    return found


def indicator_owners(schema: TensorSchema) -> dict[str, str]:
    """Of each float that is an indicator the float that it speaks of."""
    return {own: name for name in schema.floats if (own := indicator_name(name)) in schema.floats}


def list_owner(schema: TensorSchema, name: str) -> str:
    """The column whose vocabulary the elements of a list column have: itself, or the one that it shares."""
    shares = {column.name: column.shares for column in schema.lists}
    while (other := shares.get(name)) is not None:
        name = other
    return name


def leak_warnings(train: PackedTable, preprocessor: Any = None) -> list[Flag]:
    """Columns that alone give a label away: an AUC above .99, R² for a regression target.

    A column's values are those of an id, or of one of 256 bins of a float, fewer of few groups; each half of a sample
    of train rows is scored by the mean labels of the other half, which has no row of its groups. Of classes, the mean
    over one against the rest. Of a float and a regression target also the squared correlation. Of lists each element
    alone: whether it is in a row's list, by the value that `preprocessor` has for its id; and how long lists are.
    """
    table = train.with_words(train.words[_leak_rows(train)].cpu())
    batch = table.unpack(table.words)
    columns, of_indicators = [column.name for column in table.schema.ids], indicator_owners(table.schema)
    owners = columns + [of_indicators.get(name, name) for name in table.schema.floats]
    owners += [column.name for column in table.schema.lists]
    names = columns + [f"{own} (is null)" if (own := of_indicators.get(name)) else name for name in table.schema.floats]
    codes = [np.unique(batch.ids[:, i].numpy(), return_inverse=True)[1] for i in range(len(table.schema.ids))]
    unit = torch.arange(len(table)) if batch.group is None else batch.group.unique(return_inverse=True)[1]
    bins = LEAK_BINS if batch.group is None else min(LEAK_BINS, max(len(unit.unique()) // LEAK_GROUPS, 2))
    codes += [_binned(values, bins) for values in batch.floats.numpy().T]
    floats = [None] * len(table.schema.ids) + [values.astype(np.float64) for values in batch.floats.numpy().T]
    for column, lists in zip(table.schema.lists, batch.lists, strict=True):
        lengths = lists.offsets.diff().numpy()
        names.append(f"{column.name} (length)")
        codes.append(np.unique(lengths, return_inverse=True)[1])
        floats.append(lengths.astype(np.float64))
    side = (hashed(len(table)) & 1)[unit].numpy().astype(np.int64)
    found = []
    for place, target in enumerate(table.schema.targets):
        labels = batch.targets[place].numpy()
        for owner, name, code, values in zip(owners, names, codes, floats, strict=True):
            value = _alone(target, 2 * code + side, values, labels)
            metric, bound = ("R²", LEAK_R2) if target.task == "regression" else ("AUC", LEAK_AUC)
            if value is not None and value > bound:
                text = (
                    f"column {name!r} may leak target {target.name!r}: alone it reaches an {metric} of {value:.4f} "
                    f"(above {bound:g}). If it is known only after the label, leave it out."
                )
                found.append(Flag(text, owner, f"may leak {target.name}"))
        for column, lists in zip(table.schema.lists, batch.lists, strict=True):
            found += _elements_that_leak(
                target, column.name, lists, labels, _element_names(preprocessor, table, column)
            )
    return found


def sure_warnings(
    metrics: Mapping[str, Mapping[str, float | None]], evaluated: PackedTable, split: str, told: Sequence[str]
) -> list[Flag]:
    """Binary and regression targets that the model knows almost all, where no column alone gives them away.

    metrics: by target, of `Evaluation`. evaluated: its rows. told: warnings of `leak_warnings` among others.
    """
    found, batch = [], evaluated.counted()
    for target, labels in zip(batch.schema.targets, batch.unpack(batch.words).targets, strict=True):
        metric, bound, called = SURE.get(target.task, ("", 0.0, ""))
        value, short = metrics[target.name].get(metric), f"may leak {target.name}"
        if value is None or not value > bound:
            continue
        if any(isinstance(flag, Flag) and flag.short == short for flag in told):
            continue
        positive, others = int((labels == 1).sum()), int((labels != 1).sum())
        if (len(labels) if target.task == "regression" else min(positive, others)) >= SURE_ROWS:
            text = (
                f"target {target.name!r}: on the {split} split the model reaches an {called} of {value:.4f} (above "
                f"{bound:g}), and no column does alone. See whether several columns together hold what is known "
                "only after the label, and leave them out."
            )
            found.append(Flag(text, target.name, short))
    return found


def without_earlier(warnings: Sequence[str], earlier: Mapping[str, Collection[str]], straight: bool) -> list[str]:
    """The warnings but those that a column of labels of earlier rows, which are known in time, gives its label away,
    and that it leaves the range of train.

    earlier: by target such columns, as `Workflow.earlier` gives them. straight: whether the model goes on straight
    beyond the range of train; else what leaves it is still told.
    """
    columns = {name for names in earlier.values() for name in names}
    return [
        text
        for text in warnings
        if not isinstance(text, Flag)
        or (
            not any(text.about in names and text.short == f"may leak {target}" for target, names in earlier.items())
            and not (straight and text.about in columns and text.short.startswith(OUTSIDE))
        )
    ]


def _leak_rows(train: PackedTable) -> Tensor:
    """A spread sample of the rows, and of each binary label that is rare in it some rows more: an AUC compares the rows
    of two labels, however many either has."""
    rows = spread_rows(train, LEAK_ROWS)
    if len(rows) == len(train):
        return rows
    batch = unpack(train.schema, train.words)
    labels = [values.cpu() for target, values in zip(train.schema.targets, batch.targets, strict=True)
              if target.task == "binary"]  # fmt: skip
    most, found = min(LEAK_OF_LABEL, LEAK_ROWS // max(2 * len(labels), 1)), [rows]
    for values in labels:
        of_label_1 = int(values[rows].sum())
        for number, count in ((0, len(rows) - of_label_1), (1, of_label_1)):
            if count < most:
                own = (values == number).nonzero()[:, 0]
                found.append(own[spread(len(own), most)])
    return torch.cat(found).unique()


def _element_names(preprocessor: Any, table: PackedTable, column: IdList) -> Callable[[int], str]:
    """What a sentence calls the element of an id."""
    if preprocessor is None:
        return lambda element: f"of id {element}"
    vocabulary = preprocessor.vocabularies[list_owner(table.schema, column.name)]
    values = engine_of(vocabulary.values).to_pandas(vocabulary.values.to_frame("value"))["value"]
    first = vocabulary.layout.first
    return lambda element: repr(values.iloc[element - first]) if element >= first else f"of id {element}"


def _elements_that_leak(
    target: Target, name: str, lists: JaggedColumn, labels: np.ndarray, named: Callable[[int], str]
) -> list[Flag]:
    """Sentences about elements whose presence in a list tells the label: of classes the AUC of one against the rest.

    Elements of fewer than `LEAK_FEWEST` rows, or missing in fewer, are left out. As an element has only two values, and
    no mean of few rows, no half is scored by the other.
    """
    if len(labels) < LEAK_FEWEST:
        return []
    rows = np.repeat(np.arange(len(labels)), lists.offsets.diff().numpy())
    pairs = np.unique(np.stack([rows, lists.ids.numpy().astype(np.int64)]), axis=1)  # an element counts once a row
    size = int(pairs[1].max(initial=-1)) + 1
    held = np.bincount(pairs[1], minlength=size).astype(np.float64)
    often = (held >= LEAK_FEWEST) & (held <= len(labels) - LEAK_FEWEST)
    scores = []  # by element, and the class that it tells
    if target.task == "regression":
        centred = labels.astype(np.float64) - labels.astype(np.float64).mean()
        total = float((centred**2).sum())
        sums = np.bincount(pairs[1], centred[pairs[0]], minlength=size)
        explained = sums**2 * len(labels) / np.maximum(held * (len(labels) - held), 1)
        scores = [(explained / total if total > 0 else np.zeros(size), "")]
    else:
        for number in range(target.num_outputs) if target.task == "multiclass" else [1]:
            own = labels == number
            if not LEAK_FEWEST <= own.sum() <= len(own) - LEAK_FEWEST:
                continue
            hits = np.bincount(pairs[1], own[pairs[0]], minlength=size)
            area = 0.5 + np.abs(hits / own.sum() - (held - hits) / (~own).sum()) / 2
            scores.append((area, f" of class {_class_name(target, number)}" if target.task == "multiclass" else ""))
    metric, bound = ("R²", LEAK_R2) if target.task == "regression" else ("AUC", LEAK_AUC)
    return [
        Flag(
            f"column {name!r} may leak target {target.name!r}: whether the element {named(element)} is in a list "
            f"reaches an {metric}{of} of {score[element]:.4f} (above {bound:g}). If it is put there only after the "
            "label is known, take it out of the lists.",
            name,
            f"may leak {target.name}",
        )
        for score, of in scores
        for element in np.flatnonzero(often & (score > bound)).tolist()[:MOST_NAMED]
    ]


def _binned(values: np.ndarray, bins: int) -> np.ndarray:
    """The number of each value's bin, of `bins` of about as many rows."""
    edges = np.unique(np.quantile(values, np.linspace(0, 1, bins + 1)[1:-1])) if len(values) else values
    return np.searchsorted(edges, values, side="right")


def _alone(target: Target, cell: np.ndarray, values: np.ndarray | None, labels: np.ndarray) -> float | None:
    """AUC or R² of the labels by the codes (those of a float's `values`) alone; None where too few rows tell, or none
    are in another half, as those of a single group.

    cell: twice the code of each row, and one more in the second half.
    """
    if len(np.unique(cell & 1)) < 2:
        return None
    if target.task == "regression":
        centred = labels.astype(np.float64) - labels.astype(np.float64).mean()
        total = float((centred**2).sum())
        if len(labels) < LEAK_FEWEST or total == 0:
            return None
        explained = 1 - float(((centred - _means_of_the_other_half(cell, centred)[cell]) ** 2).sum()) / total
        if values is None or values.min() == values.max():
            return explained
        return max(explained, float(np.corrcoef(values, centred)[0, 1] ** 2))
    found = []
    for number in range(target.num_outputs) if target.task == "multiclass" else [1]:
        own = (labels == number).astype(np.float64)
        if LEAK_FEWEST <= own.sum() <= len(own) - LEAK_FEWEST:  # rows of a cell share a score, so cells are enough
            scores, rows = (torch.from_numpy(found) for found in (_means_of_the_other_half(cell, own), _sums(cell)))
            hits = torch.from_numpy(_sums(cell, own))
            twice, ones = torch.cat([scores, scores]), torch.cat([torch.ones_like(hits), torch.zeros_like(hits)])
            found.append(float(roc_auc(twice, ones, torch.cat([hits, rows - hits]))))
    return float(np.mean(found)) if found else None


def _sums(cell: np.ndarray, values: np.ndarray | None = None) -> np.ndarray:
    """Sums by cell, or how many rows it has: float64, an even number of them."""
    return np.bincount(cell, values, minlength=2 * (int(cell.max()) // 2 + 1)).astype(np.float64)


def _means_of_the_other_half(cell: np.ndarray, values: np.ndarray) -> np.ndarray:
    """For each cell the mean value of its code among the rows of the other half, drawn to the mean of all as by one row
    of it. A hash says to which half a row belongs: rows in turn would be all positives where these stand in turn."""
    count, total = _sums(cell).reshape(-1, 2), _sums(cell, values).reshape(-1, 2)
    means = np.array([values[cell & 1 == half].mean() for half in (0, 1)])
    return np.ascontiguousarray(((total + means) / (count + 1))[:, ::-1]).reshape(-1)
