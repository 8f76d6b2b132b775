"""The shelf: every model by name, each in a file of its own. Nothing is imported before it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from models.errors import ModelError
from models.model import Model, ModelInputs, require_fit

MODELS = {
    "tabular": "models.tabular:TabularModel",
    "lr": "models.lr:LogisticRegression",
    "fm": "models.fm:FactorizationMachine",
    "deepfm": "models.deepfm:DeepFM",
    "wide_deep": "models.wide_deep:WideDeep",
    "dlrm": "models.dlrm:DLRM",
    "dcn": "models.dcn:CrossNetwork",
    "finalmlp": "models.finalmlp:FinalMLP",
    "autoint": "models.autoint:AutoInt",
    "ft_transformer": "models.ft_transformer:FTTransformer",
    "multi_task": "models.multi_task:MultiTask",
    "two_tower": "models.two_tower:TwoTower",
    "ncf": "models.ncf:NCF",
    "mrmn": "models.mrmn:MRMN",
    "gplvmf": "models.gplvmf:GPLVMF",
}


def model_class(name: str) -> type[Model]:
    """The model of that name; `ModelError` lists those there are."""
    if name not in MODELS:
        raise ModelError.unknown("model", [name], MODELS)
    module, _, attribute = MODELS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


@dataclass(frozen=True)
class ModelSpec:
    """All that a model is built from; goes to and from JSON. settings: of the model's `Settings`."""

    name: str
    inputs: ModelInputs
    settings: Any

    def build(self) -> Model:
        """A new model with weights from torch's global generator."""
        kind = model_class(self.name)
        require_fit(kind, self.name, self.inputs)
        return kind(self.inputs, self.settings)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "inputs": self.inputs.to_dict(), "settings": asdict(self.settings)}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> ModelSpec:
        """What `to_dict` gave; unknown settings and missing keys are a `ModelError`."""
        if missing := [key for key in ("name", "inputs", "settings") if key not in raw]:
            raise ModelError(f"a model's description lacks {', '.join(missing)}.")
        kind = model_class(str(raw["name"]))
        known = [field.name for field in fields(kind.Settings)]
        if unknown := [key for key in raw["settings"] if key not in known]:
            raise ModelError.unknown(f"setting of the model {raw['name']}", unknown, known)
        return cls(str(raw["name"]), ModelInputs.from_dict(raw["inputs"]), kind.Settings(**raw["settings"]))
