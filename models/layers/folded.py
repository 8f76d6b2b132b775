"""The training pass of a tabular network with each batch norm folded into the next linear layer.

Written out, y = h s + t with s = gamma r, t = beta - mu s, r = 1 / sqrt(var + eps) is followed by z = y W^T + b.
Folded, z = h (W s)^T + (b + W t): the normalised activation y is never made. Its backward pass needs only the product
A = dz^T h that dW asks for anyway, and the sums d = sum over rows of dz:

    dW = A s + d t^T        db = d        sum dy = W^T d        sum dy h = column sums of W A
    dbeta = sum dy          dgamma = r (sum dy h - mu sum dy)
    dh = dz (W s) + h slope + offset      slope = -s r dgamma / B,  offset = -s sum dy / B - mu slope

so that each activation is written once and read twice on the way down, and read and overwritten once on the way back.
(Derived from Ioffe and Szegedy, arXiv 1502.03167, section 3; s, t, mu and r have one entry a column.)

Dropout between batch norm and the next layer, y' = m y / (1 - p), keeps t from becoming a bias: there y' is made,
in one pass that computes its mask m from counters (`models/kernels/dropout`), h is kept beside it, and dz^T y' is dW.
With g = dz W the way back reads g and h once more for sum dy = sum m g / (1 - p) and sum dy h; the rest is as above,
with dh = s m g / (1 - p) + h slope + offset. Without a batch norm y' takes the place of h.

Products run in `dtype`, bfloat16 where the hardware has it; weights, sums, and what is computed from them stay float32.

Shapes: B rows, K columns of the first layer's input (embeddings, floats, zeros up to a multiple of 32), N of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from gigabatch.models.errors import require
from gigabatch.models.kernels import kernel
from gigabatch.models.kernels.dropout.reference import draw_seeds
from gigabatch.models.layers.batch_norm import advance_running
from gigabatch.models.layers.embeddings import BufferPool, EmbeddingTables, RowGradient
from gigabatch.models.whole_batch import WholeBatch, whole_batch

COLUMN_MULTIPLE = 32  # of bfloat16: rows of whole cache lines, which the products' inner loops want


@dataclass
class FoldedNetwork:
    """The parts of a network that `folded_forward` runs: linear layers, each after an optional batch norm of its input.

    linears: L of them; all but the last are followed by a ReLU. norms: that of each ReLU's output, L - 1 of them or
    None. float_norm: that of the floats, or None. dropouts: what is dropped of each norm's output, L - 1 rates.
    embedding_dropout: of the looked up rows.
    """

    embeddings: EmbeddingTables
    float_norm: nn.BatchNorm1d | None
    linears: Sequence[nn.Linear]
    norms: Sequence[nn.BatchNorm1d | None]
    dropouts: Sequence[float]
    embedding_dropout: float = 0.0

    def parameters(self) -> list[Tensor]:
        """Those that get gradients here, in the order in which the backward pass returns them."""
        modules = [module for module in (self.float_norm, *self.norms, *self.linears) if module is not None]
        return [parameter for module in modules for parameter in _parameters(module)]


def folded_forward(
    network: FoldedNetwork, ids: Tensor, floats: Tensor, dtype: torch.dtype, vectors: Tensor | None = None
) -> Tensor:
    """ids [B, C] int32, floats [B, F] float32 -> outputs [B, O] float32, in training mode.

    vectors: float32 [B, X] that stand between embeddings and floats in the first layer's input, and get a gradient.

    Batch norms use the batch's statistics and advance their running ones, as in `nn.Module.train`; dropout takes its
    seeds from the device's generator, and none where nothing is dropped. Gradients of tables
    go to `network.embeddings.row_gradients`, whose `gradients` must be `rows`.
    """
    assert network.embeddings.gradients == "rows", network.embeddings.gradients
    leaf, found = network.embeddings.gradient_leaf(ids.device)
    return cast(Tensor, _Folded.apply(leaf, found, network, ids, floats, vectors, dtype, *network.parameters()))


@dataclass
class _Fold:
    """A batch norm as a scale and a shift of columns [N]: s, t, mu, r of the module's docstring, and its module."""

    scale: Tensor
    shift: Tensor
    mean: Tensor
    inverse: Tensor
    norm: nn.BatchNorm1d | None

    @classmethod
    def of(cls, norm: nn.BatchNorm1d, sums: Tensor, squares: Tensor, num_rows: int, batch: WholeBatch | None) -> _Fold:
        """From the sums and sums of squares [N] float64 of these rows, and with `batch` of those of the other ranks;
        advances the running statistics."""
        if batch is not None:
            (sums, squares), num_rows = batch.sums([sums, squares], "batch norm"), batch.num_rows
        if num_rows < 2:
            raise ValueError(f"Expected more than 1 value per channel when training, got a batch of {num_rows}.")
        mean = sums / num_rows
        variance = (squares / num_rows - mean.square()).clamp_(min=0)
        advance_running(norm, mean, variance * (num_rows / (num_rows - 1)), num_rows)
        inverse = (variance + norm.eps).rsqrt().to(norm.weight.dtype)
        mean = mean.to(norm.weight.dtype)
        scale = norm.weight * inverse
        return cls(scale, norm.bias - mean * scale, mean, inverse, norm)

    @classmethod
    def identity(cls, size: int, like: Tensor) -> _Fold:
        zero, one = like.new_zeros(size), like.new_ones(size)
        return cls(one, zero, zero, one, None)


@dataclass
class _Layer:
    """What a linear layer's backward pass asks for: its input, the batch norm before it, the activation before both.

    inputs: [B, K], h or, after dropout, y'. hidden: [B, K], h. rate, seed, start: of dropout; where the rate is 0,
    weight is W s.
    """

    inputs: Tensor
    fold: _Fold
    hidden: Tensor
    seed: Tensor | None = None
    rate: float = 0.0
    start: int = 0
    weight: Tensor = field(init=False)


class _Folded(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        leaf: Tensor,
        found: list[RowGradient],
        network: FoldedNetwork,
        ids: Tensor,
        floats: Tensor,
        vectors: Tensor | None,
        dtype: torch.dtype,
        *parameters: Tensor,
    ) -> Tensor:
        passes, pool = kernel("folded", ids.device), network.embeddings.buffers_of_step
        drops = kernel("dropout", ids.device)
        ctx.passes, ctx.drops = passes, drops
        batch = whole_batch()
        first = network.embedding_dropout if network.embeddings.column_width else 0.0
        seeds = _seeds((first, *network.dropouts), ids.device)
        ids, tables = network.embeddings.located(ids)
        hidden, fold = _inputs(network, ids, tables, floats, vectors, dtype, batch)
        ctx.num_vectors = 0 if vectors is None else vectors.shape[1]
        if seeds[0] is not None:
            embedded = hidden[:, : network.embeddings.column_width]
            drops.dropout(embedded, embedded, seeds[0], first, start=_start(embedded, batch))
        layers = []
        layer = _Layer(hidden, fold, hidden)
        for index, linear in enumerate(network.linears):
            hidden, fold = layer.inputs, layer.fold
            weight = torch.zeros(linear.out_features, hidden.shape[1], dtype=dtype, device=ids.device)
            weight[:, : linear.in_features] = linear.weight * fold.scale if layer.seed is None else linear.weight
            layer.weight = weight
            layers.append(layer)
            bias = torch.zeros_like(linear.weight[:, 0])
            if layer.seed is None:
                bias = torch.mv(linear.weight, fold.shift)
            if linear.bias is not None:
                bias += linear.bias
            outputs = pool.take((len(hidden), len(weight)), dtype, ids.device)
            torch.mm(hidden, weight.t(), out=outputs)
            if index + 1 == len(network.linears):
                break
            sums, squares = passes.relu_moments(outputs, bias)
            norm, rate, seed = network.norms[index], network.dropouts[index], seeds[index + 1]
            fold = (
                _Fold.identity(linear.out_features, bias)
                if norm is None
                else _Fold.of(norm, sums, squares, len(outputs), batch)
            )
            layer = _Layer(outputs, fold, outputs, seed, rate, _start(outputs, batch))
            if seed is not None:
                if norm is not None:
                    layer.inputs = pool.take(tuple(outputs.shape), dtype, ids.device)
                drops.dropout(outputs, layer.inputs, seed, rate, fold.scale, fold.shift, layer.start)
        ctx.network, ctx.ids, ctx.leaf_like, ctx.found = network, ids, leaf.detach(), found
        ctx.layers, ctx.embedding_seed, ctx.batch = layers, seeds[0], batch
        result = outputs.to(bias.dtype) + bias
        pool.give(outputs)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        require(
            not torch.is_grad_enabled(),
            "the folded pass has no gradient of its gradients (create_graph=True). Set `folded` of the model to False.",
        )
        network: FoldedNetwork = ctx.network
        passes, pool = ctx.passes, network.embeddings.buffers_of_step
        layers: list[_Layer] = ctx.layers
        batch: WholeBatch | None = ctx.batch
        found: dict[nn.Module, tuple[Tensor, ...]] = {}
        delta_sums = gradient.sum(0, dtype=torch.float64)
        delta = pool.take(tuple(gradient.shape), layers[-1].weight.dtype, gradient.device).copy_(gradient)
        for index in reversed(range(len(network.linears))):
            linear, layer = network.linears[index], layers[index]
            fold, num_rows, weight = layer.fold, len(layer.inputs), linear.weight
            product = torch.mm(delta.t(), layer.inputs)[:, : linear.in_features].to(weight.dtype)  # A
            sums = delta_sums.to(weight.dtype)  # d
            if layer.seed is not None:
                found[linear] = (product, sums)
                delta = _product(delta, layer.weight, pool)
                dropped = passes.dropped_sums(delta, layer.hidden, layer.seed, layer.rate, layer.start)
                grad_sums, products = (part.to(weight.dtype) for part in dropped)
            else:
                found[linear] = (product * fold.scale + torch.outer(sums, fold.shift), sums)
                grad_sums = torch.mv(weight.t(), sums)  # sum dy
                products = (weight * product).sum(0)  # sum dy h
            grad_scale = fold.inverse * (products - fold.mean * grad_sums)  # dgamma
            if fold.norm is not None:
                found[fold.norm] = (grad_scale[-fold.norm.num_features :], grad_sums[-fold.norm.num_features :])
            if index == 0:
                break
            slope = offset = torch.zeros_like(grad_sums)
            if fold.norm is not None:
                if batch is not None:  # what follows is of the whole batch, the gradients above of this rank's rows
                    reduced = batch.sums([grad_sums, grad_scale], "batch norm")
                    (grad_sums, grad_scale), num_rows = (part.to(weight.dtype) for part in reduced), batch.num_rows
                slope = -fold.scale * fold.inverse * grad_scale / num_rows
                offset = -fold.scale * grad_sums / num_rows - fold.mean * slope
            if layer.seed is None:
                delta = _product(delta, layer.weight, pool)
                delta_sums = passes.norm_relu_backward(delta, layer.hidden, slope, offset)
            else:
                dropout = fold.scale, layer.seed, layer.rate, layer.start
                delta_sums = passes.norm_relu_backward(delta, layer.hidden, slope, offset, *dropout)
            pool.give(layer.hidden)
            if layer.inputs is not layer.hidden:
                pool.give(layer.inputs)
        # The inputs are done with, so their gradient takes their place.
        width, inputs = network.embeddings.column_width, layers[0].inputs
        vectors = None
        if width or ctx.num_vectors:
            torch.mm(delta, layers[0].weight, out=inputs)
        if ctx.num_vectors:
            vectors = inputs[:, width : width + ctx.num_vectors].to(torch.float32, copy=True)
        if width:
            embedded = inputs[:, :width]
            if ctx.embedding_seed is not None:
                rate, start = network.embedding_dropout, _start(embedded, batch)
                ctx.drops.dropout(embedded, embedded, ctx.embedding_seed, rate, start=start)
            ctx.found[:] = [RowGradient(ctx.ids, embedded, pool)]
        pool.give(delta)
        modules = [module for module in (network.float_norm, *network.norms, *network.linears) if module is not None]
        gradients = [part for module in modules for part in found[module][: len(_parameters(module))]]
        ctx.layers = None
        return (ctx.leaf_like, *(None,) * 4, vectors, None, *gradients)


def _seeds(rates: Sequence[float], device: torch.device) -> list[Tensor | None]:
    """A seed [2] for each rate that drops something, in their order, as one layer after the other would draw them."""
    drawn = iter(draw_seeds(sum(rate > 0 for rate in rates), device) if any(rates) else ())
    return [next(drawn) if rate else None for rate in rates]


def _start(values: Tensor, batch: WholeBatch | None) -> int:
    """Number of the first element of [B, N], from which dropout numbers the others."""
    return 0 if batch is None else batch.first_element(values)


def _product(delta: Tensor, weight: Tensor, pool: BufferPool) -> Tensor:
    """delta [B, N] @ weight [N, K], whose memory is of the pool; that of delta goes back to it."""
    out = torch.mm(delta, weight, out=pool.take((len(delta), weight.shape[1]), delta.dtype, delta.device))
    pool.give(delta)
    return out


def _inputs(
    network: FoldedNetwork,
    ids: Tensor,
    tables: Sequence[Tensor],
    floats: Tensor,
    vectors: Tensor | None,
    dtype: torch.dtype,
    batch: WholeBatch | None,
) -> tuple[Tensor, _Fold]:
    """The first layer's input [B, K], floats normalised, and the fold of their batch norm's weight and bias. ids,
    tables: as `EmbeddingTables.located` gives them. Vectors stand before the floats.

    Floats are normalised in float32 before they are rounded: raw ones may be far from zero.
    """
    num_vectors = 0 if vectors is None else vectors.shape[1]
    width, num_floats = network.embeddings.column_width + num_vectors, floats.shape[1]
    columns = -(-(width + num_floats) // COLUMN_MULTIPLE) * COLUMN_MULTIPLE
    inputs = network.embeddings.buffers_of_step.take((len(floats), columns), dtype, floats.device)
    like = network.linears[0].weight
    fold = _Fold.identity(width + num_floats, like)
    scale = shift = None
    if network.float_norm is not None:
        norm = network.float_norm
        sums, squares = kernel("folded", floats.device).column_moments(floats)
        own = _Fold.of(norm, sums, squares, len(floats), batch)
        scale, shift = own.inverse, -own.mean * own.inverse
        if vectors is not None:
            scale = torch.cat([scale.new_ones(num_vectors), scale])
            shift = torch.cat([shift.new_zeros(num_vectors), shift])
        one, zero = torch.ones_like(like[0, :width]), torch.zeros_like(like[0, :width])
        fold = _Fold(torch.cat([one, norm.weight]), torch.cat([zero, norm.bias]), fold.mean, fold.inverse, norm)
    if vectors is not None:
        floats = torch.cat([vectors.detach(), floats], dim=1)
    kernel("lookup", floats.device).lookup(ids, tables, inputs, floats, scale, shift)
    return inputs, fold


def _parameters(module: nn.Module) -> list[Tensor]:
    """Weight, then bias where there is one."""
    return [parameter for parameter in (module.weight, module.bias) if isinstance(parameter, Tensor)]
