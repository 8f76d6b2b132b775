"""Preprocessor: features-stage rows to model inputs. Fitted on the train split, saved without pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import dask

from features.errors import DataError, require_columns
from features.frame import engine_of, load_engine
from features.operators.base import FittedOperator
from features.operators.categorify import Categorify
from features.operators.fill_missing import Fill, FillMissing
from features.operators.normalize import KnownMoments, Normalize, Scale
from features.schema import IdColumn, Schema, TensorSchema
from features.sources import cast
from features.vocabulary import Vocabulary

FORMAT = 1


@dataclass(frozen=True)
class PreprocessorSettings:
    """min_count: rarer categories encode as unseen. indicator: see FillMissing. scale: z-score continuous columns."""

    min_count: int = 1
    indicator: str = "auto"
    scale: bool = True


@dataclass
class Preprocessor:
    """Categories to ids, medians for nulls, z-scores; the same function for training, scoring and serving.

    States are empty until `fit` or `load`. `transform` needs no label.
    """

    schema: Schema
    settings: PreprocessorSettings = field(default_factory=PreprocessorSettings)
    vocabularies: dict[str, Vocabulary] = field(default_factory=dict)
    fills: dict[str, Fill] = field(default_factory=dict)
    scales: dict[str, Scale] = field(default_factory=dict)

    @property
    def fitted(self) -> bool:
        continuous = set(self.schema.names("continuous"))
        return (
            set(self.vocabularies) == set(self.schema.names("categorical"))
            and set(self.fills) == continuous
            and set(self.scales) == (continuous if self.settings.scale else set())
        )

    def fit(self, parts: Sequence[Any]) -> Preprocessor:
        """Learn from the train split.

        parts: frames, or Parquet paths paired with an engine as `(engine, path)`; each is one partition. One pass.
        """
        if not parts:
            raise DataError("Preprocessor: nothing to fit on, no partition was given.")
        categorical, continuous = self.schema.names("categorical"), self.schema.names("continuous")
        operators: dict[tuple[str, str], FittedOperator] = {
            **{("id", name): Categorify(name, self.settings.min_count) for name in categorical},
            **{("fill", name): FillMissing(name, self.settings.indicator) for name in continuous},
            **{("moments", name): KnownMoments(name) for name in continuous if self.settings.scale},
        }
        states = fit_together(operators, parts, lambda frame: self._typed(frame, targets=False))
        self.vocabularies = {name: states["id", name] for name in categorical}
        self.fills = {name: states["fill", name] for name in continuous}
        self.scales = {
            name: states["moments", name].filled(fill.value).scale()
            for name, fill in self.fills.items()
            if self.settings.scale
        }
        return self

    @property
    def tensor_schema(self) -> TensorSchema:
        """What `transform` yields, in the order of a packed row."""
        self._require_fitted()
        ids = tuple(IdColumn(name, self.vocabularies[name].num_ids) for name in self.schema.names("categorical"))
        return TensorSchema(
            ids,
            tuple(self.float_names()),
            self.schema.targets,
            has_weight=self.schema.only("weight") is not None,
            has_group=self.schema.only("group") is not None,
        )

    def float_names(self) -> list[str]:
        """Continuous columns, then the indicators of those that have one."""
        names = self.schema.names("continuous")
        return names + [f"{name}_na" for name in names if self.fills[name].indicator]

    def transform(self, frame: Any, targets: bool = True) -> Any:
        """The frame with int32 ids, float32 continuous and `_na` columns, and with `targets` also targets,
        weight and group (int32 numbers, equal for equal groups of this frame), in the order of a packed row."""
        self._require_fitted()
        frame = self._typed(frame, targets)
        engine = engine_of(frame)
        categorical = self.schema.names("categorical")
        encoded = engine.map_columns(lambda name: self.vocabularies[name].encode(frame[name]), categorical)
        columns = {name: engine.series(ids, frame) for name, ids in zip(categorical, encoded, strict=True)}
        floats = {
            k: v for found in engine.map_columns(partial(self._floats, frame), self.fills) for k, v in found.items()
        }
        columns |= {name: floats[name] for name in self.float_names()}
        if targets:
            columns |= self._labels(frame)
        return engine.frames.DataFrame(columns, copy=False)  # every column is new already

    def _floats(self, frame: Any, name: str) -> dict[str, Any]:
        """The continuous column of that name, filled and scaled, and its indicator if it has one."""
        found = FillMissing(name).columns(frame, self.fills[name])
        if name in self.scales:
            found |= Normalize(name).columns(found, self.scales[name])
        return found

    def _labels(self, frame: Any) -> dict[str, Any]:
        engine = engine_of(frame)
        found = {
            target.name: frame[target.name].astype("int32" if target.task == "multiclass" else "float32")
            for target in self.schema.targets
        }
        weight, group = self.schema.only("weight"), self.schema.only("group")
        if weight:
            found[weight] = frame[weight].astype("float32")
        if group:
            found[group] = engine.series(engine.codes(frame[group]).astype("int32"), frame)
        return found

    def _typed(self, frame: Any, targets: bool) -> Any:
        """Columns that are needed, cast to the schema's types, so that a frame from elsewhere cannot lie."""
        roles = ("categorical", "continuous") + (("target", "weight", "group") if targets else ())
        names = self.schema.names(*roles)
        require_columns(frame, names, "Preprocessor")
        dtypes = {name: dtype for name, dtype in self.schema.dtypes().items() if name in set(names)}
        return cast(frame[names], dtypes, "Preprocessor", nullable=set(self.schema.names("categorical")))

    def _require_fitted(self) -> None:
        if not self.fitted:
            raise DataError("Preprocessor: not fitted. Call fit with the train split, or load a saved one.")

    def save(self, folder: Path) -> None:
        """`preprocessor.json` and one Parquet file a vocabulary, numbered in schema order."""
        self._require_fitted()
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for position, name in enumerate(self.schema.names("categorical")):
            self.vocabularies[name].save(folder / f"vocabulary-{position:03d}.parquet")
        state = {
            "format": FORMAT,
            "schema": json.loads(self.schema.to_json()),
            "settings": asdict(self.settings),
            "fills": {name: asdict(fill) for name, fill in self.fills.items()},
            "scales": {name: asdict(scale) for name, scale in self.scales.items()},
        }
        (folder / "preprocessor.json").write_text(json.dumps(state, indent=1))

    @classmethod
    def load(cls, folder: Path, engine: str = "pandas") -> Preprocessor:
        """What `save` wrote, ready to transform frames of `engine`; a damaged folder is an error."""
        folder = Path(folder)
        try:
            state = json.loads((folder / "preprocessor.json").read_text())
            if state["format"] != FORMAT:
                raise DataError(f"preprocessor {folder}: format {state['format']}, this version reads {FORMAT}.")
            schema = Schema.from_json(json.dumps(state["schema"]))
            found = cls(
                schema,
                PreprocessorSettings(**state["settings"]),
                fills={name: Fill(**fill) for name, fill in state["fills"].items()},
                scales={name: Scale(**scale) for name, scale in state["scales"].items()},
            )
            for position, name in enumerate(schema.names("categorical")):
                found.vocabularies[name] = Vocabulary.load(folder / f"vocabulary-{position:03d}.parquet", engine)
        except DataError:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"preprocessor {folder}: damaged ({error}). Run the encode stage again.") from error
        found._require_fitted()
        return found


def fit_together(operators: Mapping[Any, FittedOperator], parts: Sequence[Any], prepare: Any) -> dict[Any, Any]:
    """States of many operators, each as one pass over the partitions (more where an operator has a `following` one).

    A pass is one Dask graph in threads: each partition gives a partial for every operator, and partials are merged
    pairwise, as a tree.
    """
    pending: dict[Any, FittedOperator] = dict(operators)
    states: dict[Any, Any] = {}
    while pending:
        merged = _one_pass(pending, parts, prepare)
        following = {key: operator.following(merged[key]) for key, operator in pending.items()}
        done = [key for key in pending if following[key] is None]
        engine = load_engine(parts[0][0]) if isinstance(parts[0], tuple) else engine_of(parts[0])
        finished = engine.map_columns(lambda key: pending[key].finish(merged[key]), done)  # noqa: B023
        states |= dict(zip(done, finished, strict=True))
        pending = {key: operator for key, operator in following.items() if operator is not None}
    return {key: states[key] for key in operators}


def _one_pass(operators: Mapping[Any, FittedOperator], parts: Sequence[Any], prepare: Any) -> dict[Any, Any]:
    """The merged partial of every operator."""

    def partials(part: Any) -> dict[Any, Any]:
        frame = prepare(load_engine(part[0]).read_parquet(part[1]) if isinstance(part, tuple) else part)
        keys = list(operators)
        found = engine_of(frame).map_columns(lambda key: operators[key].partial(frame), keys)
        return dict(zip(keys, found, strict=True))

    def merge(left: dict, right: dict) -> dict:
        return {key: operator.merge(left[key], right[key]) for key, operator in operators.items()}

    pending = [dask.delayed(partials)(part) for part in parts]
    while len(pending) > 1:
        pairs = [dask.delayed(merge)(*pending[i : i + 2]) for i in range(0, len(pending) - 1, 2)]
        pending = pairs + pending[len(pairs) * 2 :]
    return pending[0].compute(scheduler="threads")
