"""Which parameters of a model decay, which do not, and which are embedding tables."""

from typing import NamedTuple

from torch import nn
from torch.nn import Parameter

from gigabatch.models.layers.embeddings import EmbeddingTables

EMBEDDING_MODULES = (EmbeddingTables, nn.Embedding, nn.EmbeddingBag)
NORM_MODULES = (nn.LayerNorm, nn.RMSNorm)  # those of other norms have one dimension, which tells them apart


class ParameterSplit(NamedTuple):
    """The trainable parameters of a model, each in exactly one list, in the model's own order.

    embeddings: tables of embedding modules. undecayed: biases, parameters of normalisation layers, and everything
    else of at most one dimension. decayed: the rest, which is the weights of linear layers.
    """

    embeddings: list[Parameter]
    decayed: list[Parameter]
    undecayed: list[Parameter]


def split_parameters(model: nn.Module) -> ParameterSplit:
    """Split by module type, name and shape; a table that a linear layer shares counts as a table."""
    tables = _parameters_of(model, EMBEDDING_MODULES)
    norms = _parameters_of(model, NORM_MODULES)
    split = ParameterSplit([], [], [])
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter in tables:
            split.embeddings.append(parameter)
        elif parameter in norms or name.rpartition(".")[2] == "bias" or parameter.dim() <= 1:
            split.undecayed.append(parameter)
        else:
            split.decayed.append(parameter)
    return split


def _parameters_of(model: nn.Module, types: tuple[type[nn.Module], ...]) -> set[Parameter]:
    return {parameter for module in model.modules() if isinstance(module, types) for parameter in module.parameters()}
