"""Which parameters of a model decay, which do not, which are embedding tables, and which are linear terms."""

from typing import NamedTuple

from torch import nn
from torch.nn import Parameter

from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.layers.fields import LinearTerms
from gigabatch.models.layers.members import MemberScale
from gigabatch.models.layers.rated import Rated

EMBEDDING_MODULES = (EmbeddingTables, nn.Embedding, nn.EmbeddingBag)
# Those of other norms have one dimension, which tells them apart. Members' factors are one such vector each; a step of
# LAMB, which is a share of a layer's norm, would undo the rate of a `Rated`.
NORM_MODULES = (nn.LayerNorm, nn.RMSNorm, MemberScale, Rated)


class ParameterSplit(NamedTuple):
    """The trainable parameters of a model, each in exactly one list, in the model's own order.

    embeddings: tables of embedding modules. undecayed: biases, parameters of normalisation layers, members' factors,
    parameters with a rate of their own, and everything else of at most one dimension. linear: a `LinearTerms`' weights
    of floats and of their bins, which are no layer: each adds to an output by itself and starts at zero, so no norm of
    theirs says how far one should move. decayed: the rest, which is the weights of linear layers.
    """

    embeddings: list[Parameter]
    decayed: list[Parameter]
    undecayed: list[Parameter]
    linear: list[Parameter]


def split_parameters(model: nn.Module) -> ParameterSplit:
    """Split by module type, name and shape; a table that a linear layer shares counts as a table."""
    tables = _parameters_of(model, EMBEDDING_MODULES)
    norms = _parameters_of(model, NORM_MODULES)
    linear = [module for module in model.modules() if isinstance(module, LinearTerms)]
    terms = {module.float_weights for module in linear} | {w for module in linear for w in module.numeric.parameters()}
    split = ParameterSplit([], [], [], [])
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter in tables:
            split.embeddings.append(parameter)
        elif parameter in norms or name.rpartition(".")[2] == "bias" or parameter.dim() <= 1:
            split.undecayed.append(parameter)
        elif parameter in terms:
            split.linear.append(parameter)
        else:
            split.decayed.append(parameter)
    return split


def linear_tables(model: nn.Module) -> list[EmbeddingTables]:
    """The tables whose rows are linear terms: those of a `LinearTerms`, and any whose rows are single numbers."""
    # Those within, where DES has put what fetches rows in the place of the tables.
    terms = {own for module in model.modules() if isinstance(module, LinearTerms) for own in module.tables.modules()}
    return [
        module
        for module in model.modules()
        if isinstance(module, EmbeddingTables)
        and len(module.tables)
        and (module in terms or module.width == len(module.tables))
    ]


def _parameters_of(model: nn.Module, types: tuple[type[nn.Module], ...]) -> set[Parameter]:
    return {parameter for module in model.modules() if isinstance(module, types) for parameter in module.parameters()}
