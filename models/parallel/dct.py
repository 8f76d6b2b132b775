"""Dynamic Communication Thresholding: of gradients and activations, only the large elements travel.

Gupta et al., Training Recommender Systems at Scale: Communication-Efficient Model and Data Parallelism, arXiv
2010.08899. Of the gradient g of a dense weight with E what was not sent before (error feedback):

    x = g + E,   tau = the k-th largest |x|, found anew every L steps,   send x where |x| >= tau,   E = the rest

with k = max(1, (1 - drop) elements); more than 2 k are cut to the k largest, and tau is found anew. Weights of few
elements travel whole. All ranks gather what each sends and add it up in the order of ranks, so they have the same bits.
A rank sends (N - 1) k (2 to 4 + bytes of a value) bytes where a dense all-reduce sends 8 (N - 1) / N a weight: fewer
only where k is below about 1 / N of the elements.

Activations that cross between ranks lose what is below tau for good, and their gradients come back at the same places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gigabatch.models.errors import ModelError, require, require_known
from gigabatch.models.parallel.exchange import Exchange
from gigabatch.models.parallel.ranks import Ranks
from gigabatch.models.parallel.sparse_wire import VALUE_TYPES, Message, pack, rounded, unpack


class _Large(NamedTuple):
    """places int64 [k] of the elements to send, ascending; threshold [] that holds for the next steps."""

    places: Tensor
    threshold: Tensor


def large_elements(values: Tensor, keep: int, threshold: Tensor | None) -> _Large:
    """The elements of [n] float32 at or above the threshold, in absolute value; None to find it anew.

    At most 2 `keep` are taken. What is not finite is never below a threshold, and has no part in finding it.
    """
    sizes = values.abs()
    if threshold is None:
        threshold = sizes.nan_to_num(nan=0.0, posinf=0.0).topk(keep).values[-1]
    places = (~(sizes < threshold) & (sizes != 0)).nonzero().flatten()
    if len(places) > 2 * keep:
        found = sizes.topk(keep)
        places, threshold = found.indices.sort().values, found.values[-1]
    return _Large(places, threshold)


def check_dropped(drop: float, refresh_steps: int, values: str) -> None:
    """Raise `ModelError` for settings that cannot be."""
    require(0 <= drop < 1, f"drop, the share of elements that are not sent, must be in [0, 1), not {drop}.")
    require(refresh_steps >= 1, f"refresh_steps must be 1 or more, not {refresh_steps}.")
    require_known("type of values on the wire", [values], VALUE_TYPES)


class SparseGradients:
    """Sums dense gradients over ranks, of which each rank sends the large elements and keeps the rest for later.

    What is kept is state: `state_dict` belongs into the checkpoint. A step in which a gradient of any rank is not
    finite is one in which all ranks have NaN, nothing was sent and nothing is kept of it, as plain training skips it.
    One rank alone sends and keeps nothing; what it was given of several ranks, its next gradient takes up. The host
    reads how many elements travel, once a call.

    Parameters
    ----------
    ranks : Ranks
        Who trains together.
    drop : float, default 0.99
        Share of a weight's elements that are not sent (the paper's eta).
    refresh_steps : int, default 1000
        Steps for which a threshold holds.
    values : {'float32', 'bfloat16', 'float16'}, default 'float32'
        How values travel; what rounding loses is kept for later too.
    dense_below : int, default 256
        Weights of fewer elements travel whole, in one all-reduce.

    Raises
    ------
    ModelError
        For a setting that cannot be.

    Examples
    --------
    >>> import torch
    >>> from gigabatch.models.parallel.dct import SparseGradients
    >>> from gigabatch.models.parallel.ranks import Ranks
    >>> gradients = {"weight": torch.ones(2)}
    >>> SparseGradients(Ranks(), drop=0.999, values="bfloat16").reduce(gradients)
    >>> gradients["weight"].tolist()
    [1.0, 1.0]
    """

    def __init__(
        self,
        ranks: Ranks,
        drop: float = 0.99,
        refresh_steps: int = 1000,
        values: str = "float32",
        dense_below: int = 256,
    ) -> None:
        check_dropped(drop, refresh_steps, values)
        self.ranks, self.drop, self.refresh_steps, self.dense_below = ranks, drop, refresh_steps, dense_below
        self.values = VALUE_TYPES[values]
        self.residuals: dict[str, Tensor] = {}  # float32, flat: what was not sent yet
        self.thresholds: dict[str, Tensor] = {}  # []
        self.steps: dict[str, int] = {}
        self.device = torch.device("cpu")  # of the gradients so far

    def keep_of(self, num_elements: int) -> int:
        """Elements that a weight of so many sends; all of a small one."""
        keep = max(1, round(num_elements * (1 - self.drop)))
        return num_elements if num_elements < self.dense_below else keep

    @torch.no_grad()
    def reduce(self, gradients: Mapping[str, Tensor], is_finite: Callable[[], Tensor] | None = None) -> None:
        """Make each gradient, float32 of any shape, its sum over ranks, in place; equal names on all ranks.

        Parameters
        ----------
        gradients : mapping of str to Tensor
            By the name of the weight.
        is_finite : function or None, default None
            Whether this rank's loss, and gradients that do not come here, are finite, a bool []; where those of any
            rank are not, the step counts for nothing.

        Raises
        ------
        ModelError
            On all ranks, where they have gradients of other names or of another number of elements.
        """
        if self.ranks.num_ranks == 1:
            self._take_up(gradients, is_finite)
            return
        gradients = dict(sorted(gradients.items()))
        weights = [(name, one.numel()) for name, one in gradients.items()]
        large = {name: one for name, one in gradients.items() if self.keep_of(one.numel()) < one.numel()}
        whole = [one for name, one in gradients.items() if name not in large]
        # A rank without gradients meets the others all the same, or they would add its next step's to this one's.
        self.device = device = next((one.device for one in gradients.values()), self.device)
        totals = {
            name: one.flatten().float() + self.residuals.get(name, torch.zeros((), device=device))
            for name, one in large.items()
        }
        checks = [one.isfinite().all() for one in (*whole, *totals.values())]
        checks += [] if is_finite is None else [is_finite()]
        finite = bool(torch.stack(checks).all()) if checks else True
        found = {name: self._large(name, total) for name, total in totals.items()}
        places, values, length = [], [], 0
        for name, total in totals.items():
            places.append(found[name].places + length)
            values.append(rounded(total[found[name].places], self.values))
            length += len(total)
        nothing = torch.empty(0, device=device)
        place, value = torch.cat([nothing.long(), *places]), torch.cat([nothing, *values])
        message = pack(place, value, length, self.values)
        lengths = [length, sum(one.numel() for one in whole), crc32(repr(weights).encode())]
        header = torch.tensor([*message.header, len(message.body), int(finite), *lengths], device=device)
        headers = torch.stack(self.ranks.all_gather(header, "counts")).tolist()
        if any(header[5:] != lengths for header in headers):
            raise ModelError(
                "sparse gradients: ranks have gradients of other weights, of "
                f"{', '.join(str(sum(header[5:7])) for header in headers)} elements. Each must have those of the same "
                "weights, by the same names; give zeros where a rank has none."
            )
        if not all(header[4] for header in headers):
            for one in gradients.values():
                one.fill_(torch.nan)
            return
        if large:
            summed = self._gathered(message, headers, length, device)
            parts = summed.split([len(one) for one in totals.values()])
            for one, part in zip(large.values(), parts, strict=True):
                one.copy_(part.view_as(one))
        if whole:
            flat = self.ranks.all_reduce(torch.cat([one.flatten() for one in whole]), "gradients")
            for one, part in zip(whole, flat.split([one.numel() for one in whole]), strict=True):
                one.copy_(part.view_as(one))
        for (name, total), sent in zip(totals.items(), values, strict=True):
            total[found[name].places] -= sent
            self.residuals[name], self.thresholds[name] = total, found[name].threshold
            self.steps[name] = self.steps.get(name, 0) + 1

    def _take_up(self, gradients: Mapping[str, Tensor], is_finite: Callable[[], Tensor] | None) -> None:
        """On one rank: add what several had not sent, once, in the first step that is not skipped."""
        if not (self.residuals and gradients):
            return
        found = [one.isfinite().all() for one in gradients.values()] + ([] if is_finite is None else [is_finite()])
        if bool(torch.stack(found).all()):
            for name in self.residuals.keys() & gradients.keys():  # DDP's buckets come one by one
                gradients[name].add_(self.residuals.pop(name).view_as(gradients[name]))

    def _large(self, name: str, total: Tensor) -> _Large:
        known = None if self.steps.get(name, 0) % self.refresh_steps == 0 else self.thresholds[name]
        return large_elements(total, self.keep_of(len(total)), known)

    def _gathered(self, message: Message, headers: list[list[int]], length: int, device: torch.device) -> Tensor:
        bodies = self.ranks.all_gather_counted(message.body, [one[3] for one in headers], "sparse gradients")
        summed = torch.zeros(length, device=device)
        for (kind, num_bytes, count, *_), body in zip(headers, bodies, strict=True):
            places, values = unpack((kind, num_bytes, count), body, self.values)
            summed[places] += values
        return summed

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """By weight: residuals [N, elements] of all ranks, thresholds [N] and steps; every rank must call it."""
        return {
            name: {
                "residuals": torch.stack(self.ranks.all_gather(residual, "residuals")),
                "thresholds": torch.stack(self.ranks.all_gather(self.thresholds[name], "residuals")),
                "steps": self.steps[name],
            }
            for name, residual in self.residuals.items()
        }

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """What `state_dict` gave. Another number of ranks shares out the residuals' sum and finds new thresholds."""
        ranks = self.ranks
        self.residuals, self.thresholds, self.steps = {}, {}, {}
        for name, one in state.items():
            residuals, same = one["residuals"], len(one["residuals"]) == ranks.num_ranks
            self.residuals[name] = residuals[ranks.rank].clone() if same else residuals.sum(0) / ranks.num_ranks
            self.thresholds[name] = one["thresholds"][ranks.rank if same else 0].clone()
            self.steps[name] = one["steps"] if same else 0


def ddp_hook(compression: SparseGradients, model: nn.Module) -> Any:
    """A communication hook of `DistributedDataParallel`: `replica.register_comm_hook(model, ddp_hook(...))`.

    As DDP has it, gradients are averaged over ranks. The hook waits for its collectives.

    Parameters
    ----------
    compression : SparseGradients
        Of the same ranks as the replica.
    model : nn.Module
        The module inside the replica, whose names its state is kept by.

    Returns
    -------
    callable
        (state, bucket) -> future of the bucket's gradients.

    Examples
    --------
    >>> from torch import nn
    >>> from gigabatch.models.parallel.dct import SparseGradients, ddp_hook
    >>> from gigabatch.models.parallel.ranks import Ranks
    >>> ddp_hook(SparseGradients(Ranks()), nn.Linear(3, 2)).__name__
    'hook'
    """
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}

    def hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        buffer = bucket.buffer().div_(compression.ranks.num_ranks)  # now: what is kept is of no number of ranks then
        gradients = zip(bucket.parameters(), bucket.gradients(), strict=True)
        compression.reduce({names[parameter]: gradient for parameter, gradient in gradients})
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(buffer)
        return done

    # torch compares the annotations of a hook as objects, which postponed ones are not.
    hook.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[Tensor]}
    return hook


class ThresholdedExchange(Exchange):
    """An `Exchange` of which the elements below a threshold do not travel, and their gradients do not either.

    The mask of the way there is that of the way back, which sends values alone. What stays on its rank is left whole,
    and so is all where no gradient is wanted (evaluation). A sum over ranks becomes an all-to-all of what each adds.
    Rows of one number are left whole too: what is not sent gets no gradient, so linear terms, which start at zero,
    would stay there.

    Parameters
    ----------
    ranks : Ranks
        Who exchanges.
    drop : float, default 0.95
        Share of elements that are not sent.
    refresh_steps : int, default 1000
        Exchanges of one name for which a threshold holds.
    values : {'float32', 'bfloat16', 'float16'}, default 'float32'
        How values travel.

    Raises
    ------
    ModelError
        For a setting that cannot be.

    Examples
    --------
    >>> import torch
    >>> from gigabatch.models.parallel.dct import ThresholdedExchange
    >>> from gigabatch.models.parallel.ranks import Ranks
    >>> ThresholdedExchange(Ranks(), drop=0.9).all_to_all(torch.ones(2, 3), [2], [2], "rows").sum()  # one rank alone
    tensor(6.)
    """

    def __init__(self, ranks: Ranks, drop: float = 0.95, refresh_steps: int = 1000, values: str = "float32") -> None:
        super().__init__(ranks)
        check_dropped(drop, refresh_steps, values)
        self.drop, self.refresh_steps, self.values = drop, refresh_steps, VALUE_TYPES[values]
        self.thresholds: dict[str, Tensor] = {}
        self.steps: dict[str, int] = {}

    def reduce_scatter(self, partial: Tensor, name: str) -> Tensor:
        """As `Exchange.reduce_scatter`, without what is small in each rank's part."""
        if not self._thins(partial):
            return super().reduce_scatter(partial, name)
        num_ranks = self.ranks.num_ranks
        each = [len(partial) // num_ranks] * num_ranks
        return self.all_to_all(partial, each, each, name).unflatten(0, (num_ranks, each[0])).sum(0)

    def all_to_all(self, rows: Tensor, send: Sequence[int], receive: Sequence[int], name: str) -> Tensor:
        """As `Exchange.all_to_all`, without what is small."""
        if not self._thins(rows):
            return super().all_to_all(rows, send, receive, name)
        return cast(Tensor, _Thinned.apply(rows, self, list(send), list(receive), name))

    def state_dict(self) -> dict[str, Any]:
        """This rank's thresholds and steps by name; without them the next exchange finds new ones."""
        return {"thresholds": dict(self.thresholds), "steps": dict(self.steps)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What `state_dict` gave."""
        if set(state) != {"thresholds", "steps"}:
            raise ModelError(f"thresholds of an exchange: the state holds {sorted(state)}.")
        self.thresholds, self.steps = dict(state["thresholds"]), dict(state["steps"])

    def _thins(self, rows: Tensor) -> bool:
        return self.ranks.num_ranks > 1 and self.drop > 0 and rows.shape[1] > 1 and torch.is_grad_enabled()

    def large(self, crossing: Tensor, name: str) -> Tensor:
        """Places [k] of the elements [n] that travel."""
        if not crossing.numel():
            return torch.empty(0, dtype=torch.int64, device=crossing.device)
        step = self.steps.get(name, 0)
        known = self.thresholds[name] if step % self.refresh_steps and name in self.thresholds else None
        found = large_elements(crossing, max(1, round(len(crossing) * (1 - self.drop))), known)
        self.thresholds[name], self.steps[name] = found.threshold, step + 1
        return found.places


class _Thinned(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, exchange: ThresholdedExchange, send: list[int], receive: list[int], name: str
    ) -> Tensor:
        ranks, width, device = exchange.ranks, rows.shape[1], rows.device
        own, each = ranks.rank, [1] * ranks.num_ranks
        parts = [part.flatten() for part in rows.detach().split(send)]
        stays, parts[own] = parts[own], parts[own][:0]
        crossing, ends = torch.cat(parts), torch.cumsum(torch.tensor([len(part) for part in parts], device=device), 0)
        places = exchange.large(crossing, name)
        of_rank = torch.searchsorted(ends, places, right=True)
        kept = torch.bincount(of_rank, minlength=ranks.num_ranks).tolist()
        messages, starts = [], (ends - torch.tensor([len(part) for part in parts], device=device)).tolist()
        ctx.sent = [part - start for part, start in zip(places.split(kept), starts, strict=True)]
        for part, where in zip(parts, ctx.sent, strict=True):
            messages.append(pack(where, rounded(part[where], exchange.values), max(len(part), 1), exchange.values))
        headers = torch.tensor([[*message.header, len(message.body)] for message in messages], device=device)
        told = ranks.all_to_all(headers.int(), each, each, "counts").tolist()
        sizes = [header[3] for header in told]
        body = torch.cat([message.body for message in messages])
        came = ranks.all_to_all(body, [len(message.body) for message in messages], sizes, name).split(sizes)
        out, ctx.came = [], []
        for rank, (header, part) in enumerate(zip(told, came, strict=True)):
            where, values = unpack((header[0], header[1], header[2]), part, exchange.values)
            dense = torch.zeros(receive[rank] * width, device=device) if rank != own else stays
            if rank != own:
                dense[where] = values
            ctx.came.append(where)
            out.append(dense)
        ctx.exchange, ctx.send, ctx.receive, ctx.name = exchange, send, receive, name
        return torch.cat(out).view(-1, width)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        exchange, ranks, width = ctx.exchange, ctx.exchange.ranks, gradient.shape[1]
        parts = [part.flatten() for part in gradient.contiguous().split(ctx.receive)]
        values = torch.cat([part[where] for part, where in zip(parts, ctx.came, strict=True)])
        told, counts = [len(where) for where in ctx.came], [len(where) for where in ctx.sent]
        wire = rounded(values, exchange.values).to(exchange.values)
        came = ranks.all_to_all(wire, told, counts, f"{ctx.name} gradient").float().split(counts)
        out = []
        for rank, (where, part) in enumerate(zip(ctx.sent, came, strict=True)):
            dense = gradient.new_zeros(ctx.send[rank] * width) if rank != ranks.rank else parts[rank]
            if rank != ranks.rank:
                dense[where] = part
            out.append(dense)
        return torch.cat(out).view(-1, width), None, None, None, None
