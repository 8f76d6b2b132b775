"""Warm start: a training that goes on from an earlier run's weights and optimizer, over vocabularies that have grown.

Rows of embedding tables follow the values that they stand for, whatever id these have now, and their optimizer rows
with them. Everything else is carried as it is: dense weights, batch norm, target scales, moments, numbers of steps.
What a model remembers of the train rows (`Model.remembered`) is tonight's. Nothing here depends on versions of the
code: a run's folder holds names, settings and tensors, and one that lacks the optimizer starts with fresh moments.

Shapes: V ids of a column (rows of its tables), D width of a table.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.errors import UNREADABLE, DataError, raise_of_system
from gigabatch.features.schema import IdList, TensorSchema
from gigabatch.loaders.tables.packed import PackedTable, rows_of_lists
from gigabatch.models.ensemble import Ensemble
from gigabatch.models.errors import ModelError
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.layers.numeric import NumericEmbedding, kind_of
from gigabatch.models.model import Model
from gigabatch.models.optimizers.ema import WeightAverage
from gigabatch.models.optimizers.moments import Moments, moment_kinds, write_moments
from gigabatch.models.parallel.spread_tables import SpreadTables
from gigabatch.models.shelf import ModelSpec, model_class, spec_of
from gigabatch.pipeline.bundle import WEIGHTS, Bundle, load_bundle
from gigabatch.pipeline.store.keys import BLAKE2B, file_checksum
from gigabatch.pipeline.store.tensors import save_tensors
from gigabatch.pipeline.training.checkpoint import TrainingError

log = logging.getLogger(__name__)
FOLDER, TENSORS, RECORD = "training", "optimizer.safetensors", "optimizer.json"
FORMAT = 1
SEPARATOR = "|"  # between the name of a parameter and that of its state
OWN_BUFFERS = ("saved_target_scales", "saved_calibration")  # whose shapes differ; a calibration is fitted anew
TRAINED = "trained rows of"  # no parameter's name: it has spaces
ADVICE = (
    "Set preprocess.from to the same run, which keeps ids, fills and scales; or set train.changed=cold, which then "
    "trains anew and says so."
)


def member_prefix(number: int) -> str:
    """What the names of a member's parameters begin with in its ensemble."""
    return f"members.{number}."


class ChangedError(TrainingError):
    """A training cannot go on from a run, because its data or its model are others now; the message says which."""


@dataclass(frozen=True)
class TrainingRecord:
    """What a run keeps of its training beside the weights, in `training/`.

    moments: of the optimizer, at the step of the weights that were selected; by the parameter's name. kinds: what they
    mean, see `moment_kinds`; empty where none were saved. ema_updates: of the average that the weights are, else 0; of
    an ensemble those of each member. trained: by id column, bool [V]: which rows any training of the lineage has seen.
    """

    moments: Moments = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    ema_updates: int | tuple[int, ...] = 0
    trained: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of_members(cls, records: Sequence[TrainingRecord]) -> TrainingRecord:
        """Of an ensemble, from those of its members, whose parameters have their names in it."""
        names = [member_prefix(number) for number in range(len(records))]
        return cls(
            {
                f"{name}{key}": value
                for name, own in zip(names, records, strict=True)
                for key, value in own.moments.items()
            },
            {
                f"{name}{key}": value
                for name, own in zip(names, records, strict=True)
                for key, value in own.kinds.items()
            },
            tuple(own.updates for own in records),
            records[0].trained,
        )

    def of_member(self, number: int) -> TrainingRecord:
        """That of a member, from its ensemble's."""
        name = member_prefix(number)
        moments, kinds = (
            {key.removeprefix(name): value for key, value in values.items() if key.startswith(name)}
            for values in (self.moments, self.kinds)
        )
        updates = self.ema_updates[number] if isinstance(self.ema_updates, tuple) else self.ema_updates
        return TrainingRecord(cast(Moments, moments), cast(dict[str, str], kinds), updates, self.trained)

    @property
    def updates(self) -> int:
        """`ema_updates` of one model."""
        assert isinstance(self.ema_updates, int), "an ensemble's are its members'"
        return self.ema_updates

    def save(self, folder: Path) -> None:
        """Write `optimizer.safetensors` and `optimizer.json` to `folder`: the same bytes for the same record."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {
            f"{name}{SEPARATOR}{key}": value for name, state in self.moments.items() for key, value in state.items()
        }
        tensors |= {f"{TRAINED}{SEPARATOR}{name}": rows.to(torch.uint8) for name, rows in self.trained.items()}
        save_tensors({name: value.cpu() for name, value in tensors.items()}, folder / TENSORS)
        content = {"format": FORMAT, "kinds": self.kinds, "ema_updates": self.ema_updates}
        (folder / RECORD).write_text(json.dumps(content, indent=1, sort_keys=True, allow_nan=False))

    @classmethod
    def load(cls, folder: Path) -> TrainingRecord | None:
        """What `save` wrote; None where there is no such folder, as in runs of older versions.

        Raises
        ------
        TrainingError
            For files that are damaged, or of a later format.
        """
        if not folder.is_dir():
            return None
        try:
            content = json.loads((folder / RECORD).read_text())
            if content["format"] != FORMAT:
                raise TrainingError(f"{folder}: format {content['format']}, this version reads {FORMAT}.")
            moments: Moments = {}
            trained = {}
            for name, value in load_file(folder / TENSORS, device="cpu").items():
                owner, _, key = name.partition(SEPARATOR)
                if owner == TRAINED:
                    trained[key] = value.bool()
                else:
                    moments.setdefault(owner, {})[key] = value
            updates = content["ema_updates"]
            updates = tuple(map(int, updates)) if isinstance(updates, list) else int(updates)
            return cls(moments, dict(content["kinds"]), updates, trained)
        except TrainingError:
            raise
        except (*UNREADABLE, SafetensorError) as error:
            raise_of_system(error, str(folder))
            raise TrainingError(f"{folder}: missing or damaged ({error}). Take another run to start from.") from error


@dataclass(frozen=True)
class WarmStart:
    """An earlier run as another training goes on from it.

    run: its id. weights: the checksum of its weights. key: checksums of everything that the new training takes of it.
    """

    run: str
    bundle: Bundle
    record: TrainingRecord | None
    weights: str
    key: dict[str, str]

    @classmethod
    def load(cls, run: Path, engine: str) -> WarmStart:
        """From a run's folder, which has been verified; engine: of the preprocessor that it is held against.

        Raises
        ------
        BundleError, TrainingError
            Where a file cannot be used.
        """
        names = [f"model/{name}" for name in (WEIGHTS, "bundle.json")]
        names += [f"{FOLDER}/{name}" for name in (TENSORS, RECORD) if (run / FOLDER / name).exists()]
        key = {name: file_checksum(run / name) for name in names}
        bundle, record = load_bundle(run / "model", engine=engine), TrainingRecord.load(run / FOLDER)
        return cls(run.name, bundle, record, file_checksum(run / "model" / WEIGHTS, BLAKE2B), key)

    @property
    def lineage(self) -> dict[str, Any]:
        """What the info of a bundle that goes on from here says of it: `warm_starts` since the last cold training."""
        before = self.bundle.info.get("started_from") or {}
        return {"run": self.run, "weights": self.weights, "warm_starts": int(before.get("warm_starts", 0)) + 1}

    def spec_after(self, spec: ModelSpec) -> ModelSpec:
        """`spec` with the widths of this start's tables where its settings leave them to a rule of the vocabularies."""
        before = spec_of(self.bundle.model)
        if spec.name != before.name:
            return spec
        kind = model_class(before.name)
        settings = kind.settings_after(spec.settings, spec.inputs, before.settings, before.inputs)
        return replace(spec, settings=settings)

    def of_member(self, number: int) -> WarmStart:
        """What a member of an ensemble goes on from: that in its place."""
        model = self.bundle.model
        assert isinstance(model, Ensemble), "`require_unchanged` refuses another"
        record = None if self.record is None else self.record.of_member(number)
        return replace(self, bundle=replace(self.bundle, model=model.models[number]), record=record)

    def require_unchanged(self, preprocessor: Preprocessor, spec: ModelSpec, loss: str) -> None:
        """Raise `ChangedError`, which names all that is another now, unless weights can be carried over.

        spec: of the model that is to be trained, by `spec_after`. loss: what its loss is, in words.
        """
        if found := [*self._changed_data(preprocessor), *self._changed_model(spec, loss)]:
            raise ChangedError(f"train.start_from: run {self.run} was trained with {'; '.join(found)}. {ADVICE}")
        try:
            rows = self.rows(preprocessor)
            with torch.device("meta"):
                model = spec.build()
            model.origins(self.bundle.model, [column.origin for column in _by_input(preprocessor, rows)])
        except (DataError, ModelError) as error:
            raise ChangedError(f"train.start_from: run {self.run} cannot be carried over: {error} {ADVICE}") from error

    def _changed_data(self, preprocessor: Preprocessor) -> list[str]:
        old, new = self.bundle.preprocessor, preprocessor
        found = []
        before, now = old.tensor_schema, new.tensor_schema
        names = (
            ("id columns", [column.name for column in before.ids], [column.name for column in now.ids]),
            ("float columns", list(before.floats), list(now.floats)),
            ("list columns", [_list_text(item) for item in before.lists], [_list_text(item) for item in now.lists]),
        )
        for what, was, is_now in names:
            if was != is_now:
                found.append(f"other {what} ({_difference(was, is_now)})")
        if before.targets != now.targets:
            found.append(f"other targets ({_listed(before.targets)}; now {_listed(now.targets)})")
        entities = [name for name in ("user", "item") if old.schema.entity(name) != new.schema.entity(name)]
        found += [f"another {name} (features.entities)" for name in entities]
        both = [name for name in new.schema.names("continuous") if name in old.fills]
        for name in both:
            fill, own = old.fills[name], new.fills[name]
            if fill.value != own.value:
                found.append(f"another fill of {name!r} ({fill.value:.6g}, now {own.value:.6g})")
            if (fill.indicator, fill.silent) != (own.indicator, own.silent):
                found.append(f"another indicator of {name!r} ({_indicator(fill)}, now {_indicator(own)})")
            scale, own_scale = old.scales.get(name), new.scales.get(name)
            if scale != own_scale:
                found.append(f"another scale of {name!r} ({_scale(scale)}, now {_scale(own_scale)})")
        modules = self.bundle.model.modules()
        if any(isinstance(module, NumericEmbedding) and module.has_bins for module in modules):
            numeric = getattr(self.bundle.model.settings, "numeric", "bins")
            changed = [name for name in both if old.edges.get(name) != new.edges.get(name)]
            found += [f"other edges of the bins of {name!r}" for name in changed if kind_of(numeric, name) == "bins"]
        for name, vocabulary in new.vocabularies.items():
            if name in old.vocabularies and old.vocabularies[name].layout != vocabulary.layout:
                found.append(f"another layout of the ids of {name!r} ({old.vocabularies[name].layout})")
        return found

    def _changed_model(self, spec: ModelSpec, loss: str) -> list[str]:
        before = spec_of(self.bundle.model)
        if before.name != spec.name:
            return [f"the model {before.name}, now {spec.name}"]
        if not self.bundle.model.learns_by_steps:
            return [f"the model {spec.name}, which is fitted to all train rows and has no weights to go on from"]
        was, is_now = asdict(before.settings), asdict(spec.settings)
        sizes, sizes_now = before.inputs.table_sizes, spec.inputs.table_sizes
        if "embedding_widths" in was and sizes and len(sizes) == len(sizes_now):
            # Widths are compared as they are, whether a rule gave them or they were set.
            was["embedding_widths"] = before.settings.widths(sizes)
            is_now["embedding_widths"] = spec.settings.widths(sizes_now)
        found = [f"model.{key} {was[key]}, now {is_now[key]}" for key in was if was[key] != is_now[key]]
        if before.members != spec.members:
            found.append(f"train.ensemble {before.members}, now {spec.members}")
        trained_by = self.bundle.info.get("loss", loss)
        return found + ([f"the loss {trained_by}, now {loss}"] if trained_by != loss else [])

    def rows(self, preprocessor: Preprocessor) -> list[ColumnRows]:
        """Of each id column, then of each list with a vocabulary of its own, where its ids come from; `DataError` where
        a column's values are of another kind."""
        old, new = self.bundle.preprocessor.vocabularies, preprocessor.vocabularies
        return [_column_rows(name, old[name], new[name]) for name in _with_vocabulary(preprocessor.tensor_schema)]

    def carry(self, preprocessor: Preprocessor, model: Model, new_rows: str, held: Mapping[str, Tensor]) -> Carried:
        """Give `model`, built anew for `preprocessor`, this run's weights, in place.

        Parameters
        ----------
        preprocessor
            That `require_unchanged` has found to fit.
        model
            On the host, with what it remembers of the train rows.
        new_rows
            Where a table's row of a new value starts: `mean` of the column's values that were trained, or at the row
            that it had as an `unseen` one.
        held
            Which ids of each vocabulary the train rows hold (`held_ids`), for the report.

        Returns
        -------
        Carried
            The optimizer's part, and what became of each column's values.
        """
        columns = self.rows(preprocessor)
        inputs = _by_input(preprocessor, columns)
        origins = model.origins(self.bundle.model, [column.origin for column in inputs])
        of_column = columns_of_tables(model)
        trained = self._trained(columns)
        weights = self.bundle.model.state_dict()
        record = self.record or TrainingRecord()
        moments: Moments = {}
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                state = record.moments.get(name)
                if parameter not in origins:
                    parameter.copy_(weights[name])
                    if state is not None:
                        moments[name] = dict(state)
                    continue
                origin, place = origins[parameter], of_column[parameter]
                _carry_rows(parameter, weights[name], origin)
                if place is not None:  # a new combination of a cross starts as in a cold training
                    fresh, column = (origin < 0).nonzero()[:, 0], inputs[place]
                    parameter[fresh] = _new_rows(weights[name], column, trained[column.name], fresh, new_rows)
                if state is not None:
                    moments[name] = {key: _grown(value, origin) for key, value in state.items()}
            for name, buffer in model.named_buffers():
                if name in weights and name.partition(".")[0] not in (*model.remembered, *OWN_BUFFERS):
                    buffer.copy_(weights[name])
        model.scale_targets(self.bundle.model.target_scales)
        seen = {
            column.name: torch.where(column.origin >= 0, trained[column.name][column.origin.clamp(min=0)], False)
            for column in columns
        }
        kept = TrainingRecord(moments, record.kinds, record.ema_updates, seen)
        absent = {column.name: (column.origin >= 0) & ~held[column.name] for column in columns}
        counts = [column.counts | {"absent": int(absent[column.name][column.first :].sum())} for column in columns]
        return Carried(self.run, kept, self.record is not None, counts)

    def _trained(self, columns: Sequence[ColumnRows]) -> dict[str, Tensor]:
        """Which rows of each column this run's lineage has trained, bool [V of this run].

        Runs of older versions do not say, or not of lists; of them those of the values that their train split held.
        """
        found = {} if self.record is None else dict(self.record.trained)
        for column in columns:
            if self.record is not None and column.name in found:
                continue
            vocabulary = self.bundle.preprocessor.vocabularies[column.name]
            counted = torch.as_tensor(vocabulary.counts.to_numpy() > 0)
            found[column.name] = torch.cat([torch.zeros(column.first, dtype=torch.bool), counted])
        return found


@dataclass(frozen=True)
class ColumnRows:
    """Where the ids of a column come from.

    origin: int64 [V], the id that each id's value had in the start, -1 for a new value. unseen: int64 [V], the id that
    the start gives a new value, one of the unseen ones; elsewhere `origin`. first: the first value's id.
    counts: `carried`, `new` and `dropped` values.
    """

    name: str
    origin: Tensor
    unseen: Tensor
    first: int
    counts: dict[str, Any]


def _difference(was: Sequence[str], is_now: Sequence[str]) -> str:
    gone, came = ([name for name in one if name not in other] for one, other in ((was, is_now), (is_now, was)))
    parts = [f"without {', '.join(came)}"] * bool(came) + [f"with {', '.join(gone)}"] * bool(gone)
    return " and ".join(parts) or f"in the order {', '.join(was)}"


def _listed(targets: Sequence[Any]) -> str:
    return ", ".join(f"{target.name}: {target.task} of {target.num_outputs}" for target in targets)


def _indicator(fill: Any) -> str:
    if not fill.indicator:
        return "none"
    return "always 0, as there were no nulls or hardly any" if fill.silent else "1 where a null was"


def _scale(scale: Any) -> str:
    if scale is None:
        return "none"
    kind = ("median", "range between quartiles") if scale.clip else ("mean", "deviation")
    return f"{kind[0]} {scale.mean:.6g}, {kind[1]} {scale.std:.6g}"


def _column_rows(name: str, old: Any, new: Any) -> ColumnRows:
    given = torch.as_tensor(_host(old.encode(new.values))).long()
    first = new.layout.first
    special = torch.arange(first)  # padding, null and unseen: the layouts are one
    origin = torch.where(given >= first, given, -1)
    num_carried = int((origin >= 0).sum())
    counts = {
        "column": name,
        "carried": num_carried,
        "new": len(origin) - num_carried,
        "dropped": len(old.values) - num_carried,
    }
    return ColumnRows(name, torch.cat([special, origin]), torch.cat([special, given]), first, counts)


def _host(array: Any) -> Any:
    return array.get() if hasattr(array, "get") else array


def _with_vocabulary(schema: TensorSchema) -> list[str]:
    """Id columns, then the lists that share no other column's vocabulary."""
    own = [item.name for item in schema.lists if item.shares is None]
    return [*(column.name for column in schema.ids), *own]


def vocabulary_owners(schema: TensorSchema) -> dict[str, str]:
    """By id column and list the column whose vocabulary it has, in the order of a model's inputs."""
    found = {column.name: column.name for column in schema.ids}
    for item in schema.lists:
        found[item.name] = item.name if item.shares is None else found[item.shares]
    return found


def _by_input(preprocessor: Preprocessor, columns: Sequence[ColumnRows]) -> list[ColumnRows]:
    """Those of each id column, then of each list, as `Model.origins` takes them."""
    known = {column.name: column for column in columns}
    return [known[owner] for owner in vocabulary_owners(preprocessor.tensor_schema).values()]


def _list_text(item: IdList) -> str:
    """What tells whether a list is read as before."""
    shares = "" if item.shares is None else f" of the vocabulary of {item.shares}"
    return f"{item.name}{shares}{' with weights' * item.weighted}"


def columns_of_tables(model: Model) -> dict[Any, int | None]:
    """Place among the id columns, and then the lists, of what each embedding table is of; None for one of no single
    column."""
    modules = [module for module in model.modules() if isinstance(module, EmbeddingTables)]
    found: dict[Any, int | None] = {
        table: place for module in modules for table, place in zip(module.weights, module.columns, strict=True)
    }
    for module in modules:
        for table, place in module.table_lists.items():
            found[module.weights[table]] = len(model.inputs.num_ids) + place
    return found


def _carry_rows(table: Tensor, old: Tensor, origin: Tensor) -> None:
    """Rows of `table` [V, D] that have an origin become those of `old`."""
    there = (origin >= 0).nonzero()[:, 0]
    table[there] = old[origin[there]]


def _new_rows(old: Tensor, column: ColumnRows, trained: Tensor, fresh: Tensor, rule: str) -> Tensor:
    """Where the rows `fresh` of a table start: [number of fresh, D]."""
    values = trained.clone()
    values[: column.first] = False  # of null and unseen rows nothing is averaged
    if rule == "mean" and bool(values.any()):
        return old[values].double().mean(0).to(old.dtype).expand(len(fresh), -1)
    return old[column.unseen[fresh]]


def _grown(state: Tensor, origin: Tensor) -> Tensor:
    """A table's moments by row [V, ...], zeros for new rows; what is one number for the whole table stays."""
    if state.dim() == 0:
        return state
    found = state.new_zeros(len(origin), *state.shape[1:])
    _carry_rows(found, state, origin)
    return found


@dataclass
class Carried:
    """What a training takes up beside the weights. columns: a row a column: its `ColumnRows.counts`, and `absent`, the
    number of carried values that no row of the train split holds. has_record: whether the start kept its optimizer."""

    run: str
    record: TrainingRecord
    has_record: bool
    columns: list[dict[str, Any]]
    moments: str = ""  # `carried`, or why they are fresh

    def put_into(
        self, model: Model, optimizer: Any, average: WeightAverage | None, tables: SpreadTables | None = None
    ) -> None:
        """Give the optimizer of `model` the start's moments, and the average its number of updates.

        To be called once, after the model lies on its device, and before a checkpoint is loaded or learning rates
        become tensors; tables: where they are spread over ranks. An average begins with the model's weights, which are
        the start's.
        """
        if average is not None:
            average.num_updates = self.record.updates
        kinds = moment_kinds(model, optimizer)
        kinds = kinds if tables is None else tables.whole_names(kinds)
        if not self.has_record:
            self.moments = f"fresh, as run {self.run} is of a version that kept none"
        elif kinds != self.record.kinds:
            name = next(
                name for name in {**kinds, **self.record.kinds} if kinds.get(name) != self.record.kinds.get(name)
            )
            was, is_now = self.record.kinds.get(name, "none"), kinds.get(name, "none")
            self.moments = f"fresh, as those of {name} are of another optimizer ({was}, now {is_now})"
        else:
            whole = self.record.moments
            write_moments(model, optimizer, whole if tables is None else tables.own_moments(whole))
            self.moments = "carried"
        log.info("train.start_from: moments of the optimizer: %s", self.moments)

    def note(self) -> str:
        """In words, for the log and the report."""
        parts = [
            f"{row['column']} {row['carried']:,} carried ({row['absent']:,} of them in no train row), {row['new']:,} "
            f"new, {row['dropped']:,} dropped"
            for row in self.columns
        ]
        return f"Started from run {self.run}. Values by column: {'; '.join(parts) or 'no columns of ids'}."


def held_ids(table: PackedTable) -> dict[str, Tensor]:
    """Which ids of each vocabulary rows of the table hold, in its id column or in a list that shares it: bool [V] by id
    column and by list with a vocabulary of its own, on the host."""
    schema = table.schema
    owners, names = vocabulary_owners(schema), _with_vocabulary(schema)
    sizes = {column.name: column.num_ids for column in schema.ids}
    sizes |= {item.name: item.num_ids for item in schema.lists}
    found = {name: torch.zeros(sizes[name], dtype=torch.bool, device=table.device) for name in names}
    for words in table.words.split(1 << 20):
        for column, ids in zip(schema.ids, words[:, : len(schema.ids)].unbind(1), strict=True):
            found[column.name][ids.long()] = True
        for item, lists in zip(schema.lists, rows_of_lists(schema, words, table.lists), strict=True):
            found[owners[item.name]][lists.ids.to(table.device).long()] = True
    return {name: held.cpu() for name, held in found.items()}
