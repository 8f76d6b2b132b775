"""The shelf: every model by name, each in a file of its own. Nothing is imported before it is asked for.

Models of users are registered (`register_model`, docs/own_code.md).
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gigabatch.models.errors import ModelError, require_known
from gigabatch.own_code import Kind, Registry, obstacle_of

if TYPE_CHECKING:
    from gigabatch.models.inputs import ModelInputs
    from gigabatch.models.model import Model

MODELS = {
    "tabular": "gigabatch.models.tabular.tabular:TabularModel",
    "lr": "gigabatch.models.click.lr:LogisticRegression",
    "fm": "gigabatch.models.click.fm:FactorizationMachine",
    "deepfm": "gigabatch.models.click.deepfm:DeepFM",
    "wide_deep": "gigabatch.models.click.wide_deep:WideDeep",
    "dlrm": "gigabatch.models.click.dlrm:DLRM",
    "dcn": "gigabatch.models.click.dcn:DCN",
    "fcn": "gigabatch.models.click.fcn:FCN",
    "qnn": "gigabatch.models.click.qnn:QNN",
    "finalmlp": "gigabatch.models.click.finalmlp:FinalMLP",
    "autoint": "gigabatch.models.click.autoint:AutoInt",
    "din": "gigabatch.models.click.din:DIN",
    "ft_transformer": "gigabatch.models.tabular.ft_transformer:FTTransformer",
    "tabm": "gigabatch.models.tabular.tabm:TabM",
    "realmlp": "gigabatch.models.tabular.realmlp:RealMLP",
    "multi_task": "gigabatch.models.click.multi_task:MultiTask",
    "ple": "gigabatch.models.click.ple:ProgressiveLayeredExtraction",
    "esmm": "gigabatch.models.click.esmm:EntireSpace",
    "two_tower": "gigabatch.models.recommenders.two_tower:TwoTower",
    "sasrec": "gigabatch.models.recommenders.sasrec:SASRec",
    "mf": "gigabatch.models.recommenders.mf:MatrixFactorization",
    "ncf": "gigabatch.models.recommenders.ncf:NCF",
    "mrmn": "gigabatch.models.recommenders.mrmn:MRMN",
    "gplvmf": "gigabatch.models.recommenders.gplvmf:GPLVMF",
    "popularity": "gigabatch.models.recommenders.popularity:Popularity",
    "top_frequency": "gigabatch.models.recommenders.top_frequency:TopFrequency",
    "item_knn": "gigabatch.models.recommenders.item_knn:ItemKNN",
    "ease": "gigabatch.models.recommenders.ease:EASE",
}

# Settings that are gone and changed no score (`towers`: how they ran in training). Bundles saved before hold them.
RETIRED = {"two_tower": ("towers",)}
# Settings whose default is another than what models did before there were any, which bundles saved then go on doing:
# for `numeric`, their inputs may hold edges, which these models did not look at; for `user_bias`, tables are narrower.
PLAIN = ("fm", "deepfm", "wide_deep", "two_tower", "mrmn")
BEFORE: dict[str, dict[str, Any]] = {
    "tabular": {"batch_norm_eps": 1e-5},
    "mf": {"user_bias": False},
    "tabm": {"linear": False},
    **{name: {"numeric": "plain"} for name in PLAIN},
}


def require_model(name: str) -> None:
    """Raise `ModelError`, which lists the models there are, unless there is one of that name; none is imported."""
    if name not in MODELS and name not in OWN.names():
        require_known("model", [name], [*MODELS, *OWN.names()])


def model_class(name: str) -> type[Model]:
    """The model of that name."""
    require_model(name)
    if name not in MODELS:
        kind: type[Model] = OWN.find(name)
        return kind
    module, _, attribute = MODELS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


@cache
def setting_names(name: str) -> tuple[str, ...]:
    """The settings of a model of `MODELS`, read from its file: its import would take torch's second.

    Examples
    --------
    >>> setting_names("item_knn")
    ('neighbours', 'shrinkage')
    """
    module, _, attribute = MODELS[name].partition(":")
    (settings,) = (
        node.value.id
        for node in _class(module, attribute)[1].body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and _name(node.targets[0]) == "Settings"
    )
    return tuple(_field_names(module, settings))


def _field_names(module: str, name: str) -> list[str]:
    """Those of a dataclass of settings, of the classes that it is derived from first."""
    module, node = _class(module, name)
    inherited = [field for base in node.bases for field in _field_names(module, _name(base))]
    return inherited + [_name(item.target) for item in node.body if isinstance(item, ast.AnnAssign)]


def _class(module: str, name: str) -> tuple[str, ast.ClassDef]:
    """A class that a module of models defines or imports, and the module that defines it."""
    file = Path(__file__).parent.joinpath(*module.split(".")[2:]).with_suffix(".py")
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return module, node
        if isinstance(node, ast.ImportFrom) and any(item.name == name for item in node.names):
            return _class(str(node.module), name)
    raise LookupError(f"{file} has no class {name}")


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def register_model(name: str) -> Callable[[Kind], Kind]:
    """Make a model of your own known to `model.kind` of a configuration; docs/own_code.md.

    Parameters
    ----------
    name
        What a configuration calls it: lower-case letters, digits and `_`.

    Returns
    -------
    decorator
        For a subclass of `Model` with a frozen dataclass `Settings`, which it returns. The source of the class's file
        is part of the key of its trainings, and a bundle keeps it.

    Raises
    ------
    ModelError
        The name is taken, or the class is no model.

    Examples
    --------
    >>> from gigabatch import register_model
    >>> register_model("mine")(dict)
    Traceback (most recent call last):
    ...
    gigabatch.models.errors.ModelError: register_model 'mine': dict is no model. Derive it from gigabatch.Model.
    """
    return OWN.decorator(name)


def _obstacle(kind: type) -> str | None:
    from gigabatch.models.model import Model

    return obstacle_of(kind, Model, "model", "gigabatch.Model", "model")


OWN = Registry("model", ModelError, lambda: MODELS, _obstacle)


@dataclass(frozen=True)
class ModelSpec:
    """All that a model is built from; goes to and from JSON. settings: of the model's `Settings`. members: models of an
    `Ensemble`, each of them such a one; 1 is the model alone."""

    name: str
    inputs: ModelInputs
    settings: Any
    members: int = 1

    def build(self) -> Model:
        """A new model with weights from torch's global generator."""
        from gigabatch.models.model import require_fit

        kind = model_class(self.name)
        require_fit(kind, self.name, self.inputs)
        if self.members == 1:
            return kind(self.inputs, self.settings)
        from gigabatch.models.ensemble import Ensemble

        return Ensemble([kind(self.inputs, self.settings) for _ in range(self.members)])

    @property
    def table_shapes(self) -> list[tuple[int, int]]:
        """Rows and columns of each of the model's embedding tables; none is allocated to find out."""
        import torch

        from gigabatch.models.layers.embeddings import EmbeddingTables

        with torch.device("meta"):
            tables = [module for module in self.build().modules() if isinstance(module, EmbeddingTables)]
        return [(table.shape[0], table.shape[1]) for module in tables for table in module.tables]

    @property
    def table_parameters(self) -> int:
        """Numbers in the model's embedding tables."""
        return sum(rows * columns for rows, columns in self.table_shapes)

    def to_dict(self) -> dict[str, Any]:
        found = {"name": self.name, "inputs": self.inputs.to_dict(), "settings": asdict(self.settings)}
        return found if self.members == 1 else found | {"members": self.members}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> ModelSpec:
        """What `to_dict` gave; unknown settings and missing keys are a `ModelError`."""
        from gigabatch.models.inputs import ModelInputs

        if missing := [key for key in ("name", "inputs", "settings") if key not in raw]:
            raise ModelError(f"a model's description lacks {', '.join(missing)}.")
        kind = model_class(str(raw["name"]))
        retired = RETIRED.get(str(raw["name"]), ())
        settings = {key: value for key, value in raw["settings"].items() if key not in retired}
        known = [field.name for field in fields(kind.Settings)]
        require_known(f"setting of the model {raw['name']}", settings, known)
        # By class, so that a user's model which is derived from one of these goes on as before, too.
        bases = {f"{base.__module__}:{base.__name__}" for base in kind.__mro__}
        before = [found for name, found in BEFORE.items() if MODELS[name] in bases]
        settings = {key: value for found in before for key, value in found.items() if key in known} | settings
        members = raw.get("members", 1)
        if not isinstance(members, int) or members < 1:
            raise ModelError(f"a model's description has members {members!r}; a whole number from 1 is needed.")
        return cls(str(raw["name"]), ModelInputs.from_dict(raw["inputs"]), kind.Settings(**settings), members)


def spec_of(model: Model) -> ModelSpec:
    """What `model` was built from."""
    from gigabatch.models.ensemble import Ensemble

    if isinstance(model, Ensemble):
        return replace(spec_of(model.models[0]), members=len(model.models))
    path = f"{type(model).__module__}:{type(model).__name__}"
    own = OWN.name_of(type(model))
    names = [own] if own is not None else [name for name, known in MODELS.items() if known == path]
    if not names:
        raise ModelError(
            f"{path} is neither on the shelf (models/shelf.py) nor registered, so it cannot be saved by name. "
            "Decorate it with gigabatch.register_model."
        )
    return ModelSpec(names[0], model.inputs, model.settings)
