"""Models whose tables are spread over ranks beside the same model in one process: what tests of DES and DCT share."""

import torch

from gigabatch.models.inputs import ModelInputs
from gigabatch.models.optimizers.registry import build_optimizer
from gigabatch.models.shelf import model_class

SIZES = (3, 50, 17, 2, 29)
SETTINGS = {
    "lr": {"numeric": "bins"},
    "fm": {"embedding_dim": 4},
    "deepfm": {"embedding_dim": 4, "layers": (12, 6), "dropout": 0.0, "batch_norm": False},
    "dlrm": {"embedding_dim": 4, "bottom_layers": (8,), "top_layers": (8,)},
}


def built(name, num_floats=2, num_outputs=1, seed=0):
    """A model of the shelf whose weights are of order .1, so that pair terms are felt; floats as they are."""
    torch.manual_seed(seed)
    kind = model_class(name)
    edges = ((-1.0, 0.0, 0.5, 2.0), *[()] * (num_floats - 1)) if num_floats else ()
    model = kind(ModelInputs(SIZES, num_floats, num_outputs, float_edges=edges), kind.Settings(**SETTINGS[name]))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_().mul_(0.1)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            module.eval()
    return model


def batches(num_steps, num_rows, num_floats=2, seed=1):
    """(ids, floats, targets [B]) of all ranks; the first ids of a column are the frequent ones."""
    draw = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(num_steps):
        ids = torch.stack([(torch.rand(num_rows, generator=draw).square() * size).long() for size in SIZES], dim=1)
        floats = torch.randn(num_rows, num_floats, generator=draw)
        found.append((ids.int(), floats, torch.rand(num_rows, generator=draw).round()))
    return found


def part(batch, rank, num_ranks):
    """The rows of a rank: contiguous, the first ranks have one more where they do not come out even."""
    return tuple(tensor.tensor_split(num_ranks)[rank] for tensor in batch)


def backward(model, batch, num_rows):
    """Outputs and gradients of the summed log loss over `num_rows`."""
    ids, floats, targets = batch
    out = model(ids, floats)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(
        out, targets[:, None].expand_as(out), reduction="sum"
    ) / (num_rows * out.shape[1])
    loss.backward()
    return out.detach()


def optimizer_of(model, **settings):
    """LAMB: rows by Adagrad, linear terms by Adam."""
    return build_optimizer(model, "lamb", lr=0.05, **settings)


def sum_gradients(ranks, model):
    """Dense gradients summed over ranks, in one all-reduce."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    if gradients:
        flat = ranks.all_reduce(torch.cat([one.flatten() for one in gradients]), "gradients")
        for one, summed in zip(gradients, flat.split([one.numel() for one in gradients]), strict=True):
            one.copy_(summed.view_as(one))
