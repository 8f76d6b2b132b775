"""Tables that DES spreads over ranks, in a training: whole ones for checkpoints, bundles and a warm start.

A model whose modules `substitute` has replaced has other parameters than it had: the rows that a rank owns of all
tables of a module are one. Here its state dicts, moments and optimizer are turned into those of the model with whole
tables, and back, so that nothing outside of a training knows how it was spread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gigabatch.models.errors import ModelError, require
from gigabatch.models.layers.embeddings import WHOLE_TABLES, EmbeddingTables
from gigabatch.models.layers.pooled import Jagged
from gigabatch.models.model import Model
from gigabatch.models.optimizers.row_optimizer import Optimizers, parts_of
from gigabatch.models.parallel.costs import Load
from gigabatch.models.parallel.des import Layout, operators_of, substitute
from gigabatch.models.parallel.placement import Placement, table_uses
from gigabatch.models.parallel.ranks import Ranks
from gigabatch.models.parallel.sharded import gather_rows, on_first

log = logging.getLogger(__name__)
BY_ROW = Placement("row")


class SubstitutedTables:
    """Tables that `substitute` has spread, as `SpreadTables`; `substitute_tables` makes it.

    Parameters
    ----------
    layout : Layout
        Of `substitute`.
    groups : list of list of list of str
        Of each part of the optimizer of the whole model and each of its groups, the names of the parameters.
    """

    def __init__(self, layout: Layout, groups: list[list[list[str]]]) -> None:
        self.layout, self.ranks, self._groups = layout, layout.ranks, groups
        homes = {rows.tables[0]: home for home, rows in layout.homes.items()}
        state = layout.model.state_dict(keep_vars=True)
        self._home_of = {name: homes[value] for name, value in state.items() if value in homes}
        self._parameter = {
            homes[parameter]: name for name, parameter in layout.model.named_parameters() if parameter in homes
        }

    def of(self, model: nn.Module) -> SubstitutedTables:
        """The same, since a copy of the model has the same names."""
        return self

    @contextmanager
    def fetched(self, ids: Tensor, lists: Sequence[Jagged] = ()) -> Iterator[None]:
        """The model asks for what it needs by itself; all ranks must call it equally often, those without rows too."""
        yield

    def exchange_gradients(self) -> None:
        """Nothing: they came with the backward pass."""

    def gather_weights(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """As `SpreadTables.gather_weights`."""
        whole: dict[str, Tensor] = {}
        done = set()
        for name, value in state.items():
            home = self._home_of.get(name)
            if home is None:
                found = {name: on_first(value, self.ranks)}
            elif home in done:  # the same rows by another name
                continue
            else:
                done.add(home)
                found = self._gather(home, value)
            whole |= found if self.ranks.is_first else {}
        return whole

    def own_weights(self, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """As `SpreadTables.own_weights`."""
        own = {home: rows.own([whole[name] for name in self._names(home)]) for home, rows in self.layout.homes.items()}
        return {
            name: own[self._home_of[name]] if name in self._home_of else whole[name]
            for name in self.layout.model.state_dict()
        }

    def gather_moments(self, moments: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
        """As `SpreadTables.gather_moments`."""
        whole: dict[str, dict[str, Any]] = {}
        for name, state in moments.items():
            for key, value in state.items():
                home = self._home_of.get(name)
                found = {name: on_first(value, self.ranks)} if home is None else self._gather(home, value)
                for table, part in found.items() if self.ranks.is_first else ():
                    whole.setdefault(table, {})[key] = part
        return whole

    def own_moments(self, whole: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
        """As `SpreadTables.own_moments`; a number that all tables of a module have is taken once.

        Raises
        ------
        ModelError
            Where tables of one module were not moved equally often, as of one that was frozen for a time.
        """
        tables = {name: home for home in self.layout.homes for name in self._names(home)}
        found = {name: dict(state) for name, state in whole.items() if name not in tables}
        for home, rows in self.layout.homes.items():
            states = [whole.get(name, {}) for name in self._names(home)]
            if not any(states):
                continue
            own = found[self._parameter[home]] = {}
            for key in sorted({key for state in states for key in state}):
                values = [state[key] for state in states if key in state]
                require(
                    len(values) == len(states)
                    and all(value.dim() > 0 or torch.equal(value, values[0]) for value in values),
                    f"train.tables=des: the tables of {home} were not moved equally often ({key}), and they are one "
                    "here. Set train.tables=sharded.",
                )
                own[key] = rows.own(values) if values[0].dim() else values[0]
        return found

    def whole_names(self, kinds: Mapping[str, Any]) -> dict[str, Any]:
        """As `SpreadTables.whole_names`."""
        return {
            whole: value
            for name, value in kinds.items()
            for whole in (self._names(self._home_of[name]) if name in self._home_of else [name])
        }

    def gather_optimizer(self, optimizer: Optimizer | Optimizers) -> dict[str, Any]:
        """As `SpreadTables.gather_optimizer`."""
        saved = optimizer.state_dict()
        parts = []
        for own, whole, part in zip(self._own_groups(optimizer), self._groups, _parts(saved), strict=True):
            names = [name for group in own for name in group]
            states = self.gather_moments({names[place]: state for place, state in part["state"].items()})
            parts.append(_packed(whole, states, part["param_groups"]))
        if not self.ranks.is_first:
            return {}
        return {"optimizers": parts} if isinstance(optimizer, Optimizers) else parts[0]

    def own_optimizer(self, optimizer: Optimizer | Optimizers, whole: Mapping[str, Any]) -> dict[str, Any]:
        """As `SpreadTables.own_optimizer`."""
        parts = []
        for own, names, part in zip(self._own_groups(optimizer), self._groups, _parts(whole), strict=True):
            flat = [name for group in names for name in group]
            states = self.own_moments({flat[place]: state for place, state in part["state"].items()})
            parts.append(_packed(own, states, part["param_groups"]))
        return {"optimizers": parts} if isinstance(optimizer, Optimizers) else parts[0]

    def release(self, whole: Mapping[str, Tensor]) -> None:
        """As `SpreadTables.release`: the modules are back that `substitute` has replaced."""
        self.layout.undo()
        self.layout.model.load_state_dict(whole)

    def _names(self, home: str) -> list[str]:
        """Those of the whole tables."""
        return [f"{home}.tables.{column}" for column in range(len(self.layout.homes[home].num_ids))]

    def _gather(self, home: str, own: Tensor) -> dict[str, Any]:
        """By the name of a whole table, what `own` has for its rows: weights, or what lies beside them, or a number."""
        rows, ranks = self.layout.homes[home], self.ranks
        if not own.dim():
            return {name: on_first(own, ranks) for name in self._names(home)}
        starts, device = rows.starts[ranks.rank].tolist(), rows.tables[0].device
        return {
            name: gather_rows(own[starts[column] : starts[column + 1]], rows.num_ids[column], BY_ROW, ranks, device)
            for column, name in enumerate(self._names(home))
        }

    def _own_groups(self, optimizer: Optimizer | Optimizers) -> list[list[list[str]]]:
        return parameter_groups(self.layout.model, optimizer)


def parameter_groups(model: nn.Module, optimizer: Optimizer | Optimizers) -> list[list[list[str]]]:
    """Of each part of the optimizer and each of its groups, the names of the parameters, in the order of its state."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    parts = parts_of(optimizer)
    return [[[names[one] for one in group["params"]] for group in part.param_groups] for part in parts]


def _parts(saved: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(saved["optimizers"]) if "optimizers" in saved else [saved]


def _packed(names: list[list[str]], states: Mapping[str, Any], groups: list[dict[str, Any]]) -> dict[str, Any]:
    """A state dict as torch has it: states by the parameter's number, which groups name."""
    number = count()
    placed = [[(next(number), name) for name in group] for group in names]
    return {
        "state": {place: states[name] for group in placed for place, name in group if name in states},
        "param_groups": [
            saved | {"params": [place for place, _ in group]} for saved, group in zip(groups, placed, strict=True)
        ],
    }


def substitute_tables(
    model: Model,
    optimizer: Optimizer | Optimizers,
    ranks: Ranks,
    *,
    batch_rows: int,
    counts: Mapping[int, Tensor] | None = None,
) -> SubstitutedTables | None:
    """What `train.tables=des` asks for: the tables of lr, fm, deepfm or dlrm by id on several ranks, in place.

    Of each operator the layout is taken that sends the fewest bytes by the expected numbers of distinct ids, so that
    the same training takes the same one whenever it goes on. The log of the first rank names it.

    Parameters
    ----------
    model, optimizer
        Whole, with the same weights on every rank, and before the first step. The optimizer only tells its rule: build
        that of the training afterwards.
    ranks : Ranks
        Those that train together.
    batch_rows : int
        Of a rank.
    counts : mapping of int to Tensor or None, default None
        As of `table_uses`; of a column without them all ids, or as many as there are rows.

    Returns
    -------
    SubstitutedTables or None
        None on one rank, and for a model without tables.

    Raises
    ------
    ModelError
        For another model, CowClip, or an optimizer that takes whole tables.

    Examples
    --------
    >>> from gigabatch import FactorizationMachine, ModelInputs
    >>> from gigabatch.models.optimizers.registry import build_optimizer
    >>> from gigabatch.models.parallel.des_tables import substitute_tables
    >>> from gigabatch.models.parallel.ranks import Ranks
    >>> model = FactorizationMachine(ModelInputs(num_ids=(5, 7), num_floats=0), FactorizationMachine.Settings())
    >>> substitute_tables(model, build_optimizer(model, "lamb", lr=0.1), Ranks(), batch_rows=4)  # one rank alone
    """
    tables = [module for module in model.modules() if isinstance(module, EmbeddingTables) and len(module.tables)]
    if ranks.num_ranks == 1 or not tables:
        return None
    operators_of(model)  # refuses other models
    require(all(module.gradients == "rows" for module in tables), f"train.tables=des: {WHOLE_TABLES}")
    if any(module.counts_gradients for module in tables):
        raise ModelError(
            "train.tables=des: cowclip asks how often a row came, which not every layout tells. Set "
            "train.tables=sharded, or take another optimizer."
        )
    uses = table_uses(model, optimizer, batch_rows, counts)[
        -len(model.inputs.num_ids) :
    ]  # of one module, a column each
    distinct = sum(min(use.num_rows, batch_rows, use.rows_per_batch or batch_rows) for use in uses)
    load = Load(ranks.num_ranks, batch_rows, len(uses), distinct / max(batch_rows, 1))
    groups = parameter_groups(model, optimizer)
    layout = substitute(model, ranks, load)
    for module in layout.tables.values():  # whose rows lie with their owners now
        for table in module.weights:
            table.data = table.new_empty(0, table.shape[1])
    if ranks.is_first:
        log.info(
            "tables by id on %d ranks, about %s kB a step a rank:\n%s",
            ranks.num_ranks, f"{layout.num_bytes / 1e3:,.1f}", layout.report(),
        )  # fmt: skip
    return SubstitutedTables(layout, groups)
