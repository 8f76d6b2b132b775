"""Which step of a workflow depends on which, by the names of their columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence

from gigabatch.features.errors import DataError, did_you_mean
from gigabatch.features.operators import operator_name
from gigabatch.features.operators.base import NAMING, ColumnOperator, Configured, FittedOperator
from gigabatch.features.operators.looking_back import looks_back

Reads = Callable[[Configured], tuple[str, ...]]


def to_fit(operator: Configured) -> tuple[str, ...]:
    """What the operator reads to be fitted, and of rows that the fit saw: more than of others where it must not tell
    them their own label."""
    return tuple(dict.fromkeys((*operator.inputs, *to_apply(operator))))


def to_apply(operator: Configured) -> tuple[str, ...]:
    """What the operator reads to be applied once it is fitted."""
    return operator.applied_inputs if isinstance(operator, FittedOperator) else operator.inputs


def place(steps: Sequence[Configured], position: int) -> str:
    """The step's number, from 1, and its name, for messages."""
    return f"step {position + 1} ({operator_name(type(steps[position]))})"


def raw_inputs(
    steps: Sequence[Configured], reads: Reads = to_fit, made: Sequence[tuple[str, ...]] | None = None
) -> tuple[str, ...]:
    """Columns that must be there before the first step, in the order in which they are first read.

    made: the columns that each step makes, once they are fitted; without it, all that they may make counts.
    """
    raw: dict[str, None] = {}
    for position, missing, there in _missing(steps, {}, reads, made):
        raw |= dict.fromkeys(missing)
        passed = dict.fromkeys(missing)
        for step in steps[:position]:
            if type(step).columns_after is not Configured.columns_after:
                passed = after(step, passed)
        if gone := [name for name in missing if name not in passed]:
            raise DataError(
                f"{place(steps, position)}: column {gone[0]!r} is no longer there: an earlier step drops "
                "or renames it. Read it before, or keep it."
            )
        there |= passed
    return tuple(raw)


def after(step: Configured, there: dict[str, None]) -> dict[str, None]:
    """The columns that are there after a step, which may be those that were given, with others added."""
    if type(step).columns_after is Configured.columns_after:
        there |= dict.fromkeys(step.outputs)
        return there
    return dict.fromkeys(step.columns_after(tuple(there)))


def makes_by_pattern(step: Configured) -> bool:
    """Whether the names of some outputs are known only after the fit."""
    return type(step).may_make is not Configured.may_make


def require_untold(steps: Sequence[Configured], labels: Collection[str]) -> None:
    """Raise `DataError`, naming the step, if one makes a column that tells a row its own label."""
    for position, operator in enumerate(steps):
        told = {name: [made for made in operator.tells([name]) if made not in labels] for name in labels}
        for name, made in told.items():
            if made:
                raise DataError(
                    f"{place(steps, position)}: makes {', '.join(map(repr, made))} from the label {name!r}, so that a "
                    "row would be told its own. Encode a label by folded_target_encoding (out of fold) or by "
                    "target_encoding, asof or rolling (as of the row's time); other steps may only change the label "
                    "itself or choose rows by it."
                )


def first_group_wise(steps: Sequence[Configured]) -> int | None:
    """Position of the first step that needs every row of a group; None if a row is enough for all."""
    return next((position for position, step in enumerate(steps) if step.group_keys is not None), None)


def require_inputs(steps: Sequence[Configured], columns: Collection[str]) -> None:
    """Raise `DataError`, naming the step, if one reads a column that neither `columns` nor an earlier step provides."""
    for position, missing, _ in _missing(steps, dict.fromkeys(columns)):
        known = tuple(columns)
        for operator in steps[:position]:
            known = operator.columns_after(known)
        hint = did_you_mean(missing[0], known)
        raise DataError(
            f"{place(steps, position)}: column {missing[0]!r} comes from no earlier step and no input."
            f"{hint} Columns there: {', '.join(map(repr, known))}."
        )


def require_free(
    steps: Sequence[Configured], columns: Iterable[str], made: Sequence[tuple[str, ...]] | None = None
) -> None:
    """Raise `DataError`, naming the step, if one would overwrite a column that nobody chose to have replaced.

    made: the columns that each step makes, once they are fitted; without it, those that are known before.
    """
    there = dict.fromkeys(columns)
    for position, operator in enumerate(steps):
        outputs = operator.outputs if made is None else made[position]
        try:
            operator.require_free(there, outputs)
        except DataError as error:
            raise DataError(f"{place(steps, position)}: {error}") from error
        there = after(operator, there) | dict.fromkeys(outputs)


def _missing(
    steps: Sequence[Configured],
    there: dict[str, None],
    reads: Reads = to_fit,
    made: Sequence[tuple[str, ...]] | None = None,
) -> Iterator[tuple[int, list[str], dict[str, None]]]:
    """Steps that read what no column of `there` and no earlier step provides: (position, those names, the columns that
    are there then, to which the caller may add)."""
    by_pattern: list[Configured] = []
    for position, operator in enumerate(steps):
        missing = [name for name in reads(operator) if name not in there]
        if made is None:
            missing = [name for name in missing if not any(
                name not in other.outputs and other.may_make(name) for other in by_pattern)]  # fmt: skip
        if missing:
            yield position, missing, there
        there = after(operator, there)
        if made is not None:
            there |= dict.fromkeys(made[position])
        if makes_by_pattern(operator):
            by_pattern.append(operator)


def maker(steps: Sequence[Configured], position: int, name: str) -> int | None:
    """The last step before `position` that makes or replaces the column; None where it is still the raw one."""
    makers = [k for k in range(position) if steps[k].may_make(name)]
    return makers[-1] if makers else None


def dependencies(steps: Sequence[Configured]) -> list[frozenset[int]]:
    """For each step, all the steps that must be applied before it: makers of what it reads, and the last that changes
    the rows; and those that they depend on themselves."""
    found: list[frozenset[int]] = []
    last_change: int | None = None
    for position, operator in enumerate(steps):
        direct = {maker(steps, position, name) for name in to_fit(operator)} | {last_change}
        needed = {k for k in direct if k is not None}
        found.append(frozenset(needed.union(*(found[k] for k in needed))))
        if operator.changes_rows:
            last_change = position
    return found


def needed_for(
    steps: Sequence[Configured],
    made: Sequence[tuple[str, ...]],
    outputs: Iterable[str],
    labels: Collection[str],
    history: bool = False,
) -> tuple[list[int], tuple[str, ...]]:
    """(positions of the steps that make the output columns row by row; raw columns that they and the outputs read).

    made: the columns that each step makes. Steps that change the rows are left out; what steps make that rows to be
    served bring (`Configured.brought`) is raw. history: whether the earlier rows are there too, with their labels; then
    steps that leave rows out before others look back are kept, for them. `DataError`, naming the step, if an output
    needs one of those that are left out, other rows of its group, of which `history` are earlier ones, or a label of
    its own.
    """
    given: dict[str, None] = {}
    reader: dict[str, int | None] = dict.fromkeys(outputs)  # a wanted column, and the step that wants it
    of_others: set[str] = set()  # labels that are wanted of other rows alone
    kept: list[int] = []
    for position in reversed(range(len(steps))):
        wanted = [name for name in made[position] if name in reader]
        looking = [k for k in kept if steps[k].group_keys is not None] if steps[position].changes_rows else []
        if looking and (made[position] or steps[position].group_keys is not None):
            raise DataError(
                f"{place(steps, position)}: changes the rows that {place(steps, looking[0])} looks back at, so that "
                "rows to be predicted would get other numbers than in training. Leave what that step makes out of the "
                "model, or change the rows before the workflow."
            )
        if not wanted and not looking:
            continue
        if steps[position].brought({}) and not history:
            given |= dict.fromkeys(wanted)
            for name in wanted:
                del reader[name]
            continue
        if steps[position].changes_rows and wanted:
            raise DataError(
                f"{place(steps, position)}: makes {', '.join(map(repr, wanted))} by changing the rows, "
                "which serving cannot: it predicts for the rows it is given. Leave those columns out of "
                "the model, or make them before the workflow."
            )
        grouped = steps[position].group_keys is not None
        if grouped and history and not looks_back(steps[position]):
            raise DataError(
                f"{place(steps, position)}: makes {', '.join(map(repr, wanted))} from other rows of the group, and "
                "not from earlier ones alone, so that rows to be predicted would get other numbers than in training. "
                "Leave those columns out of the model."
            )
        if grouped and not history:
            raise DataError(
                f"{place(steps, position)}: makes {', '.join(map(repr, wanted))} from other rows of the group, which "
                "serving does not have: it would give other numbers than in training. Give the earlier rows too: score "
                "--input takes those of the configuration, or --history FILES, predict and predict_raw history= "
                "(docs/forecasting.md). Or leave those columns out of the model."
            )
        kept.insert(0, position)
        read = to_apply(steps[position])
        for_others = grouped or bool(looking) or of_others.issuperset(wanted)
        for name in wanted:
            del reader[name]
        of_others.difference_update(wanted)
        if for_others:
            of_others.update(name for name in read if name in labels and name not in reader)
        else:
            of_others.difference_update(read)
        reader |= dict.fromkeys(read, position)
    for name in labels:
        if name in reader and name not in of_others:
            user = reader[name]
            where = "outputs" if user is None else place(steps, user)
            raise DataError(
                f"{where}: needs the label {name!r}, which rows to be served do not have. Name outputs "
                "that do not need it, or use an operator that reads it only to fit."
            )
    return kept, tuple(dict.fromkeys((*reader, *given)))


def alike(steps: Sequence[Configured], made: Sequence[tuple[str, ...]]) -> list[list[int]] | None:
    """Positions of the steps in groups, in an order in which each may be given nothing but the columns that it reads.

    Steps of a group do the same to columns of other names (`ColumnOperator.by_value`), and none reads or replaces what
    another reads or makes. made: the columns that each step makes. None where a step does more than add columns, or
    reads none.
    """
    if not all(_only_adds(step) and to_apply(step) for step in steps):
        return None
    groups: dict[Hashable, list[int]] = {}
    turns: list[int] = []  # a step's is behind those of all earlier ones that it must not overtake
    for position, step in enumerate(steps):
        reads, writes = set(to_apply(step)), set(made[position])
        turn = 0
        for k in range(position):
            if (reads | writes).intersection(made[k]) or writes.intersection(to_apply(steps[k])):
                turn = max(turn, turns[k] + 1)
        turns.append(turn)
        kind: Hashable = position
        if isinstance(step, ColumnOperator) and step.by_value:
            rest = {name: value for name, value in step.settings().items() if name not in NAMING}
            kind = type(step), repr(rest)
        groups.setdefault((turn, kind), []).append(position)
    return sorted(groups.values(), key=lambda group: turns[group[0]])


def side_by_side(
    steps: Sequence[Configured], made: Sequence[tuple[str, ...]], positions: Iterable[int]
) -> list[list[int]]:
    """The positions in batches of neighbours that do no more than add columns to one frame: none of a batch reads or
    makes what another one of it makes, be it of rows that the fit saw or of others. Another step is a batch of its own.
    made: the columns that each step makes."""
    batches: list[list[int]] = []
    taken: set[str] | None = None  # what those of the last batch make; None where it takes no further step
    for position in positions:
        step = steps[position]
        adds = _only_adds(step)
        if taken is None or not adds or taken.intersection((*to_fit(step), *made[position])):
            batches.append([])
            taken = set() if adds else None
        batches[-1].append(position)
        if taken is not None:
            taken.update(made[position])
    return batches


def _only_adds(step: Configured) -> bool:
    """Whether applying the step leaves rows and other columns alone, and needs no other row."""
    if type(step).columns_after is not Configured.columns_after or step.changes_rows or step.group_keys is not None:
        return False
    if isinstance(step, FittedOperator):
        own = type(step)
        return own.apply is FittedOperator.apply and own.apply_to_train is FittedOperator.apply_to_train
    return isinstance(step, ColumnOperator) and type(step).transform is ColumnOperator.transform
