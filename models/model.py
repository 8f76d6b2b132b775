"""What every model is to the pipeline: ids and floats to outputs, and a training loss.

Shapes: B rows of a batch, C id columns, F float columns, O outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.embeddings import EmbeddingTables, require_id_dtype, table_ids
from gigabatch.models.layers.line import Line
from gigabatch.models.layers.numeric import require_float_columns
from gigabatch.models.layers.pooled import Jagged, require_lists
from gigabatch.models.losses import TargetLoss
from gigabatch.models.output_curves import OutputCurve, packed_curves, require_curves, unpacked_curves

# How far two scores (outputs or predictions) of one row may be apart in float32, alone, among any others or by another
# path: SCORE_ATOL + SCORE_RTOL * |score|. Not 0, because a BLAS adds up a product's terms in an order that depends on
# the product's height, on the row's place in it, on the number of threads and on the processor. The floor is for scores
# of order 1 that are near 0 because their terms cancel. What a model is given, ids and floats, is equal bit for bit on
# every path. tests/models/test_scores.py holds both numbers for every model of the shelf.
SCORE_RTOL = 1e-5
SCORE_ATOL = 1e-5

LEAST_RATE, WHOLE_RATE_FLOATS = 0.1, 2  # of `Model.rule_rate`: its least, and the floats up to which it is 1


class Rows(Protocol):
    """A batch as a model sees it; `gigabatch.loaders.tables.packed.Batch` is one.

    ids [B, C] int32, floats [B, F] float32, targets: one [B] each, weight [B] or None. One with list columns has them
    in `lists` (`lists_of`).
    """

    @property
    def ids(self) -> Tensor: ...
    @property
    def floats(self) -> Tensor: ...
    @property
    def targets(self) -> Sequence[Tensor]: ...
    @property
    def weight(self) -> Tensor | None: ...


EXPECTED = "Return one tensor [rows, outputs] of floats, computed of the parameters."


def lists_of(batch: Rows) -> Sequence[Jagged]:
    """The list columns of a batch; a kind of batch that knows of none has none."""
    found: Sequence[Jagged] = getattr(batch, "lists", ())
    return found


def model_call(model: nn.Module, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
    """`model(ids, floats)`, with the lists where there are some, since not every model's forward takes them."""
    outputs: Tensor = model(ids, floats, lists) if lists else model(ids, floats)
    if not isinstance(outputs, Tensor) or not outputs.is_floating_point():
        found = f"a tensor of {outputs.dtype}" if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ModelError(f"{type(model).__name__}.forward gave {found}. {EXPECTED}")
    return outputs.float() if outputs.dtype.itemsize < 4 else outputs  # NumPy and exports know no bfloat16


@runtime_checkable
class Towers(Protocol):
    """A model whose users and items become vectors apart from each other, as in models/recommenders/two_tower.py.

    Where a class has `score_all` beside its `score`, of users [U, d] and items [N, d], the whole catalogue is ranked by
    it: [U, N] float32, or None where pairs are to be scored. Scores of equal vectors may then differ in their last
    bits, as in any matrix product, and are no ties.
    """

    def user_vectors(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor: ...
    def item_vectors(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor: ...
    def score(self, user_vectors: Tensor, item_vectors: Tensor) -> Tensor: ...


@runtime_checkable
class WholeRows(Protocol):
    """A model that scores all items for a user at once, as in models/recommenders/fitted.py."""

    def catalogue_scores(self, ids: Tensor, floats: Tensor) -> Tensor: ...


def tower_vectors(model: nn.Module, entity: str, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
    """The vectors [B, d] of `user` or `item` that a model with towers makes of whole rows, with the lists where there
    are some, since not every tower takes them."""
    tower = getattr(model, f"{entity}_vectors")
    vectors: Tensor = tower(ids, floats, lists) if lists else tower(ids, floats)
    return vectors


class TargetScale(NamedTuple):
    """Mean and deviation of a regression target in the train split, and which target and which output it is.

    log: the output is the logarithm of the value over `std`, which is the train split's mean then, and `mean` is 0."""

    target: int
    output: int
    mean: float
    std: float
    log: bool = False


class Model(nn.Module):
    """Base of the models on the shelf (`models/shelf.py`); weights come from torch's global generator.

    A model learns regression targets in standard deviations from their mean, so that none depends on its unit (of a
    log link it learns the logarithm of the value over the mean):
    `training_loss` is given standardised targets and `forward` gives such outputs, where `scale_targets` has said what
    they are. `in_target_units` takes outputs back; whatever predicts calls it. The scales are saved with the weights,
    and so are the curves that calibrate logits (`calibrate`), which `in_target_units` applies and no loss sees.

    Class attributes: `Settings`, a frozen dataclass of what a user may set, which refuses what cannot be
    (`ModelError`); `entities`, which of `user` and `item` the schema must name for this model; `single_output`, the
    model gives one number a row, so it takes one binary or regression target; `capture_obstacle`, why a training step
    does not go into a CUDA graph, None where it does; `remembered`, the buffers (or modules of buffers) that `remember`
    fills; `learns_by_steps`, False of a model that is fitted to all train rows at once
    (models/recommenders/fitted.py), which takes no optimizer;
    `multiplies_floats`, whether it multiplies the vectors of floats with each other, for which the rule's learning rate
    is too large (`rule_rate`);
    `trace_obstacle`, why `torch.export` cannot trace it where that is known, else None; `takes_lists`, whether it has a
    use for list columns; `needs_lists`, whether it has none for data without them (`list_obstacle` says which);
    `item_is_its_key`, whether an item's vector, or score, follows from the id of its key alone, so that all items that
    train does not have share one;
    `averages_from`, the rows above which the rule has an average of the weights (`train.ema_decay: auto`);
    `targets_are_steps`, whether label 1 of a target needs label 1 of the one before it, which a training checks;
    `for_positives`, of the sections `model` and `train` of YAML what is taken where every row is a positive and the
    user leaves it out.

    Parameters
    ----------
    inputs : ModelInputs
        What the data ask of the model.
    settings : Settings
        What a user may set.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import Model, ModelInputs
    >>> class FirstFloat(Model):
    ...     def forward(self, ids, floats):
    ...         self.require_inputs(ids, floats)
    ...         return floats[:, :1]
    >>> model = FirstFloat(ModelInputs(num_ids=(5,), num_floats=2), settings=None)
    >>> model(torch.tensor([[3]]), torch.tensor([[0.5, 7.0]])).item()
    0.5
    """

    Settings: ClassVar[type]
    entities: ClassVar[tuple[str, ...]] = ()
    single_output: ClassVar[bool] = False
    capture_obstacle: ClassVar[str | None] = None
    remembered: ClassVar[tuple[str, ...]] = ()
    learns_by_steps: ClassVar[bool] = True
    multiplies_floats: ClassVar[bool] = False
    trace_obstacle: ClassVar[str | None] = None
    takes_lists: ClassVar[bool] = False
    needs_lists: ClassVar[bool] = False
    item_is_its_key: bool = False  # of an ensemble, as of its members
    averages_from: ClassVar[int] = 60_000
    targets_are_steps: ClassVar[bool] = False
    for_positives: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __init__(self, inputs: ModelInputs, settings: Any) -> None:
        super().__init__()
        name, known = type(self).__name__, getattr(type(self), "Settings", object)
        for argument, value, kind in (("inputs", inputs, ModelInputs), ("settings", settings, known)):
            if not isinstance(value, kind):
                raise ModelError(
                    f"{name}: {argument} must be {kind.__module__}.{kind.__qualname__}, found {type(value).__name__}. "
                    f"Build it as {name}(ModelInputs(...), {name}.Settings(...))."
                )
        require_float_columns(inputs, getattr(settings, "numeric", "plain"))
        self.inputs, self.settings = inputs, settings
        self.target_scales: tuple[TargetScale, ...] = ()
        self.register_buffer("saved_target_scales", None)  # so that weights of a model without scales have no such name
        self.calibration: tuple[OutputCurve, ...] = ()
        self.register_buffer("saved_calibration", None)

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """ids [B, C] int32 or int64, floats [B, F] float32, B lists of each list column -> outputs
        [B, O] float32: logits, or values (regression), which are standardised where `target_scales` are set.

        In evaluation mode a row's outputs depend on that row alone, within `SCORE_RTOL` and `SCORE_ATOL`.
        """
        raise NotImplementedError

    def training_loss(self, batch: Rows, loss: TargetLoss) -> Tensor:
        """Scalar float32 loss of a batch in training; by default the targets' own loss of the outputs.

        The batch's targets are standardised. Called under autocast where training runs in bfloat16; what needs float32
        must turn it off for itself.
        """
        outputs = model_call(self, batch.ids, batch.floats, lists_of(batch))
        return loss(outputs, batch.targets, batch.weight)

    def require_targets(self, tasks: Sequence[str]) -> None:
        """Raise `ModelError` where a setting does not fit the tasks of the targets, which training asks before all."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's; gradients of rows, which are none of a parameter, are forgotten with the others."""
        super().zero_grad(set_to_none)
        for module in self.modules():
            if isinstance(module, EmbeddingTables):
                module.forget_gradients()

    def scale_targets(self, scales: Sequence[TargetScale]) -> None:
        """Learn and predict these regression targets in standard deviations; those without a scale as they are."""
        for scale in scales:
            if not (0 <= scale.output < self.inputs.num_outputs and scale.std > 0):
                raise ModelError(
                    f"{type(self).__name__}: {scale} does not fit {self.inputs.num_outputs} outputs; a deviation is "
                    "above 0."
                )
        self.target_scales = tuple(scales)
        device = next((tensor.device for tensor in self.parameters()), None)
        columns = 5 if any(scale.log for scale in self.target_scales) else 4
        rows = [tuple(map(float, scale))[:columns] for scale in self.target_scales]
        self.saved_target_scales = torch.tensor(rows, dtype=torch.float64, device=device) if rows else None

    def start_at(self, log_odds: Mapping[int, float]) -> None:
        """Called once before training: by output of a binary target the log odds of label 1 in train. A model may let
        its outputs start there, so that the first steps of a rare label do not move all weights to say that it is rare
        (Lin et al., Focal Loss for Dense Object Detection, ICCV 2017, section 3.3); by default nothing happens."""

    @property
    def takes_lines(self) -> bool:
        """Whether `start_beside` is to be called."""
        return False

    def start_beside(self, lines: Mapping[int, Line]) -> None:
        """Called once before training where `takes_lines`: by output of a regression without a log link a linear
        regression of its standardised label on the floats of the train rows. A model may learn what this leaves alone.
        """

    def standardised(self, targets: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Targets, one [B] each, with those of regression as what the model learns: float32, computed in float64."""
        found = list(targets)
        for scale in self.target_scales:
            found[scale.target] = ((targets[scale.target].double() - scale.mean) / scale.std).float()
        return tuple(found)

    def calibrate(self, curves: Sequence[OutputCurve]) -> None:
        """Predict by these curves of logits from now on; none takes them away."""
        require_curves(curves, self.inputs.num_outputs)
        self.calibration = tuple(curves)
        rows = packed_curves(self.calibration)
        device = next((tensor.device for tensor in self.parameters()), None)
        self.saved_calibration = None if rows is None else rows.to(device)

    def in_target_units(self, outputs: Tensor, calibrated: bool = True) -> Tensor:
        """Outputs [B, O] with regression values in their target's own unit: float64 where there are scales, since
        float32 may hold the deviation and not the mean beside it; other outputs keep their value, but for logits that
        are calibrated. calibrated: False for logits as the model gives them."""
        curves = self.calibration if calibrated else ()
        if not (self.target_scales or curves):
            return outputs
        columns = list(outputs.double().unbind(1))
        for scale in self.target_scales:
            value = columns[scale.output]
            columns[scale.output] = (value.exp() if scale.log else value) * scale.std + scale.mean
        for first, stop in self._quantile_places:  # so that none crosses another
            columns[first:stop] = torch.stack(columns[first:stop], dim=1).sort(dim=1).values.unbind(1)
        for curve in curves:
            columns[curve.output] = curve.of(columns[curve.output])
        found = torch.stack(columns, dim=1)
        return found if self.target_scales else found.to(outputs.dtype)

    @property
    def _quantile_places(self) -> list[tuple[int, int]]:
        """Of each target of several scales, which are those of its quantiles, its first output and that behind them."""
        outputs = groupby(self.target_scales, key=lambda scale: scale.target)
        places = [[scale.output for scale in scales] for _, scales in outputs]
        return [(own[0], own[-1] + 1) for own in places if len(own) > 1]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        saved = state_dict.get(f"{prefix}saved_target_scales")  # there is none in weights saved before there were any
        rows = [] if saved is None else saved.tolist()
        self.scale_targets([TargetScale(int(row[0]), int(row[1]), *row[2:4], *map(bool, row[4:])) for row in rows])
        self.calibrate(unpacked_curves(state_dict.get(f"{prefix}saved_calibration")))
        super()._load_from_state_dict(state_dict, prefix, *others)

    def remember(self, ids: Tensor, floats: Tensor, targets: Sequence[Tensor], lists: Sequence[Jagged] = ()) -> None:
        """Called once before training with all rows of the train split, on the host; targets in their own units.

        lists: the list columns of these rows. What a model keeps of them (counts of items, say) goes into buffers, so
        that it is saved with the weights; the buffers' shapes must be known from inputs and settings, or be restored in
        `_load_from_state_dict`.
        """

    def origins(self, earlier: Model, rows: Sequence[Tensor]) -> dict[nn.Parameter, Tensor]:
        """Which row of `earlier`, a model of the same kind, each row of each embedding table goes on from.

        Parameters
        ----------
        earlier : Model
            With the same settings, over other vocabularies.
        rows : sequence of Tensor
            Of each id column, then of each list column, int64 [num_ids]: the id that the value
            of each id had in `earlier`, -1 for a new value.

        Returns
        -------
        dict of Parameter to Tensor
            By table, int64 [V]: its row in `earlier`'s table, -1 for a new one.

        Raises
        ------
        ModelError
            Where rows of a table cannot be told.
        """
        modules = [module for module in self.modules() if isinstance(module, EmbeddingTables)]
        found = {
            table: rows[column]
            for module in modules
            for table, column in zip(module.weights, module.columns, strict=True)
            if column is not None
        }
        told = len(self.inputs.num_ids) + len(self.inputs.lists)
        if len(rows) != told:
            raise ModelError(f"origins: give the rows of each of {told} columns and lists, found {len(rows)}.")
        for module in modules:
            for table, place in module.table_lists.items():
                found[module.weights[table]] = rows[len(self.inputs.num_ids) + place]
        return found

    def table_ids(self, ids: Tensor) -> dict[EmbeddingTables, Tensor]:
        """The ids [B, its columns] that each `EmbeddingTables` looks up in a pass over ids [B, C]: what is fetched for
        it from other ranks, beside the elements of its lists.

        Raises
        ------
        ModelError
            Where a pass looks up rows that do not follow from the batch's ids, so that tables cannot be sharded.
        """
        return table_ids(self, ids)

    @classmethod
    def fit_bytes(cls, inputs: ModelInputs) -> int:
        """Memory that a model which takes no steps needs at least while it is fitted, beside the rows; else 0."""
        return 0

    @classmethod
    def list_obstacle(cls, inputs: ModelInputs) -> str | None:
        """Why a model that needs certain lists cannot work on those of the inputs, and what to set; else None."""
        return None

    @classmethod
    def rule_rate(cls, inputs: ModelInputs) -> float:
        """How many times the learning rate of the rule (`pipeline.training.defaults`) suits the model under `lamb`.

        A step of LAMB moves every vector by a share of its length, and with it all products that it is in: the more
        floats, the further the output moves. Measured: docs/tried.md.

        Examples
        --------
        >>> from gigabatch import FactorizationMachine, ModelInputs
        >>> [FactorizationMachine.rule_rate(ModelInputs((5,), number)) for number in (0, 2, 8, 40)]
        [1.0, 1.0, 0.25, 0.1]
        """
        if not cls.multiplies_floats:
            return 1.0
        return min(1.0, max(LEAST_RATE, WHOLE_RATE_FLOATS / max(inputs.num_floats, 1)))

    @property
    def table_rate(self) -> float:
        """How many times the learning rate the rows of tables move by under `lamb` where no `table_lr` is set."""
        return 1.0

    @property
    def compares_rows(self) -> bool:
        """Whether `training_loss` is more than a mean over the rows of losses of single rows: it compares rows of a
        batch, or takes some of them. Then several ranks, which see a part of a batch each, cannot share it."""
        return False

    @classmethod
    def settings_after(cls, settings: Any, inputs: ModelInputs, before: Any, inputs_before: ModelInputs) -> Any:
        """These settings for a model that goes on from one with the settings and inputs `before`: what they leave to a
        rule of the vocabularies' sizes is what it was there, since a table's width cannot grow."""
        if getattr(settings, "embedding_widths", ()) is not None:
            return settings
        widths = before.widths(inputs_before.table_sizes)
        return settings if settings.widths(inputs.table_sizes) == widths else replace(settings, embedding_widths=widths)

    def require_inputs(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> None:
        """Raise `ModelError` unless ids are [B, C] whole numbers, floats [B, F] float32 (or as the model's weights
        are, where these were converted) and lists those of B rows."""
        columns, name = len(self.inputs.num_ids), type(self).__name__
        if ids.dim() != 2 or ids.shape[1] != columns:
            raise ModelError(f"{name}: ids must be [rows, {columns}], found {list(ids.shape)}.")
        if floats.dim() != 2 or floats.shape[1] != self.inputs.num_floats:
            raise ModelError(f"{name}: floats must be [rows, {self.inputs.num_floats}], found {list(floats.shape)}.")
        if ids.shape[0] != floats.shape[0]:  # not `require`, whose message would fix the rows of an exported graph
            raise ModelError(f"{name}: {len(ids)} rows of ids but {len(floats)} rows of floats.")
        require_id_dtype(name, ids)
        if floats.dtype != torch.float32 and self.inputs.num_floats:
            # Where there are buffers alone, float64 among narrower ones is that of sums.
            weights: list[Tensor] = [*self.parameters()] or sorted(self.buffers(), key=lambda item: item.dtype.itemsize)
            own = next((item.dtype for item in weights if item.is_floating_point()), torch.float32)
            if floats.dtype != own:
                raise ModelError(f"{name}: floats must be {own}, found {floats.dtype}. Give floats.to({own}).")
        require_lists(lists, self.inputs.lists, ids.shape[0])


def require_fit(model: type[Model], name: str, inputs: ModelInputs) -> None:
    """Raise `ModelError` where a model cannot work on these inputs: entities that are not named, lists that it has no
    use for or that it lacks, several outputs."""
    missing = [entity for entity in model.entities if getattr(inputs, entity) is None]
    if missing:
        raise ModelError(
            f"model {name}: it needs to know which columns are those of {' and '.join(missing)}. Name them in the "
            "recipe's settings (features.entities), or choose another model."
        )
    if inputs.lists and not model.takes_lists:
        raise ModelError(
            f"model {name}: it has no use for list columns, and the schema has {len(inputs.lists)}. Leave them out, or "
            "choose another model, such as tabular or dcn."
        )
    if (obstacle := model.list_obstacle(inputs)) is not None:
        raise ModelError(f"model {name}: {obstacle}")
    if model.single_output and inputs.num_outputs != 1:
        raise ModelError(
            f"model {name}: it gives one number a row, and the targets ask for {inputs.num_outputs}. Keep one binary "
            "or regression target, or choose another model."
        )
