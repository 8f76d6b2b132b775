"""The items whose vectors have the greatest dot product with a query's: all of them compared, or most of them guessed.

`top_k` compares a query with every item, block by block: a matrix product, then the best of each group of columns, of
which only the best groups are looked into. `ApproximateIndex` sorts the items into lists by their nearest centroid and
looks into the lists nearest to the query (an inverted file; Sivic and Zisserman, ICCV 2003) in the library faiss, and
says which share of the exact answer it finds. `choose_index` says from which size on that pays (docs/retrieval.md).

Both order by descending score, then by ascending row. Shapes: Q queries, N items, d numbers a vector, E exclusions.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gigabatch.models.errors import ModelError, require

QUERY_ROWS = 256  # queries at a time
# Scores at a time: 16 MiB on a CPU, where more come from fresh pages each time; on a GPU more keep launches few.
BLOCK_SCORES = {"cpu": 1 << 22, "cuda": 1 << 27}
ADD_ROWS = 65_536  # items that are handed to the index's library at a time
LARGEST_GROUP = 128  # columns of scores whose greatest is looked at before they are
LAST_ROW = 2**32 - 1
NOTHING = -2_139_095_041 << 32  # the key of the score -inf and the row LAST_ROW
# What one query may read of float32 vectors: on a CPU of two cores that takes some milliseconds, on a GPU of 4.8 TB/s
# about one. An index is faster long before (benchmarks/retrieval.py), but has to be built and misses items.
EXACT_BYTES = {"cpu": 64 << 20, "cuda": 4 << 30}
INDEX_FILE, REPORT_FILE = "index.faiss", "index.json"
LIST_ROWS = 39  # items a list at least, below which faiss finds its centroids poorly founded
TRAIN_ROWS = 64  # items a list from which the centroids are learnt
INVALID = "{what}: a product is NaN or infinite. A vector holds NaN or an infinity, or far too much."
FEW = 10  # items for which the recall of an index is measured, beside k
SERIAL_QUERIES = 16  # below this many, to start threads takes longer than they save


class TopK(NamedTuple):
    """scores [Q, k] float32, descending, and rows [Q, k] int64; where there are fewer than k items, -inf and -1."""

    scores: Tensor
    rows: Tensor


@torch.no_grad()
def top_k(queries: Tensor, items: Tensor, k: int, exclude: Tensor | None = None, block_rows: int | None = None) -> TopK:
    """The k items of greatest dot product with each query, every item compared, in float32.

    Scores may differ in their last bits with `block_rows` and with the number of queries, as in any matrix product, and
    with them the order of items whose scores differ by no more than that. Items of equal scores are ordered by their
    rows.

    Parameters
    ----------
    queries : Tensor
        [Q, d] float32, float16 or bfloat16.
    items : Tensor
        [N, d] of these dtypes. They may lie on the host while queries are on a GPU; blocks are then copied.
    k : int
        Items a query, at least 1.
    exclude : Tensor or None, default None
        [Q, E] int64 rows that are left out of each query's answer; negative numbers fill up what is not needed.
    block_rows : int or None, default None
        Items compared at once.

    Returns
    -------
    TopK
        scores [Q, k] float32, descending, and rows [Q, k] int64; -inf and -1 where there are fewer than k items.

    Raises
    ------
    ModelError
        For shapes that do not fit, k below 1, or products that are NaN or infinite.

    Examples
    --------
    >>> import torch
    >>> from gigabatch.models.retrieval import top_k
    >>> items = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> found = top_k(torch.tensor([[2.0, 1.0]]), items, k=2)
    >>> found.rows.tolist(), found.scores.tolist()
    ([[2, 0]], [[3.0, 2.0]])
    """
    _require_shapes(queries, items, k, exclude)
    if block_rows is None:
        at_once = min(max(len(queries), 1), QUERY_ROWS)
        block_rows = BLOCK_SCORES["cpu" if queries.device.type == "cpu" else "cuda"] // at_once
    require(block_rows >= 1, f"top_k: block_rows must be at least 1, not {block_rows}.")
    parts = []
    for start in range(0, max(len(queries), 1), QUERY_ROWS):  # no queries are one empty part
        chosen = slice(start, start + QUERY_ROWS)
        parts.append(_best(queries[chosen].float(), items, k, None if exclude is None else exclude[chosen], block_rows))
    return _decoded(torch.cat(parts))


def best_of(scores: Tensor, k: int) -> TopK:
    """The k greatest scores of each query and their columns; equal ones in the order of the columns.

    Parameters
    ----------
    scores : Tensor
        [Q, N] float32 without NaN; -inf is never found.
    k : int
        Columns a query, at least 1.

    Returns
    -------
    TopK
        As of `top_k`, with columns as rows.

    Raises
    ------
    ModelError
        For k below 1.

    Examples
    --------
    >>> import torch
    >>> from gigabatch.models.retrieval import best_of
    >>> found = best_of(torch.tensor([[0.5, 2.0, 0.5, -torch.inf]]), k=4)
    >>> found.rows.tolist(), found.scores.tolist()
    ([[1, 0, 2, -1]], [[2.0, 0.5, 0.5, -inf]])
    """
    require(k >= 1, f"best_of: k must be at least 1, not {k}.")
    keys = _keys(scores, torch.arange(scores.shape[1], device=scores.device).expand_as(scores))
    best = keys.topk(min(k, scores.shape[1])).values
    return _decoded(torch.nn.functional.pad(best, (0, k - best.shape[1]), value=NOTHING))


def _best(queries: Tensor, items: Tensor, k: int, exclude: Tensor | None, block_rows: int) -> Tensor:
    """Keys [Q, k] int64 (see `_keys`) of the best items, descending."""
    device, invalid = queries.device, torch.zeros((), dtype=torch.bool, device=queries.device)
    best = torch.full((len(queries), k), NOTHING, dtype=torch.int64, device=device)
    for start in range(0, len(items), block_rows):
        block = items[start : start + block_rows].to(device, torch.float32)
        size = _group_size(len(block), k)
        scores = _products(queries, block, size)
        if len(scores):  # before any is left out: -inf means that below
            invalid |= ~(scores[:, : len(block)].amin() > float("-inf"))
        if exclude is not None and exclude.shape[1]:
            _leave_out(scores, exclude.to(device) - start)
        groups = scores.view(len(scores), scores.shape[1] // size, size)
        greatest = groups.amax(2)
        invalid |= (~(greatest < float("inf"))).any()
        places = torch.arange(greatest.shape[1], device=device).expand_as(greatest)
        if greatest.shape[1] > k:
            # An item among the k best is in one of the k groups with the best items: each of k better groups holds one
            # that comes before it.
            places = LAST_ROW - (_keys(greatest, places).topk(k).values & LAST_ROW)
            groups = groups.gather(1, places[:, :, None].expand(-1, -1, size))
        rows = start + places[:, :, None] * size + torch.arange(size, device=device)
        found = torch.cat([best, _keys(groups, rows).flatten(1)], 1)
        best = found.topk(k).values
    if bool(invalid):
        raise ModelError(INVALID.format(what="top_k"))
    return best


def _products(queries: Tensor, block: Tensor, size: int) -> Tensor:
    """[Q, n] products with n items, filled up by -inf to a multiple of `size` columns."""
    missing = -len(block) % size
    if not missing:
        return queries @ block.T
    scores = queries.new_empty((len(queries), len(block) + missing))
    torch.mm(queries, block.T, out=scores[:, : len(block)])
    scores[:, len(block) :] = float("-inf")
    return scores


def _group_size(width: int, k: int) -> int:
    """Columns of which the greatest is looked at first: about sqrt(width / k), so that groups and what is looked into
    are equally many; a power of two from 4 to `LARGEST_GROUP`."""
    return min(max(4, 1 << ((width // k).bit_length() // 2)), LARGEST_GROUP)


def _leave_out(scores: Tensor, places: Tensor) -> None:
    """Scores [Q, n] become -inf at places [Q, E]; those outside [0, n) are ignored. No GPU has to be waited for."""
    inside = (places >= 0) & (places < scores.shape[1])
    lowered = torch.where(inside, float("-inf"), float("inf")).to(scores.dtype)
    scores.scatter_reduce_(1, places.clamp(0, scores.shape[1] - 1), lowered, "amin")


def _keys(scores: Tensor, rows: Tensor) -> Tensor:
    """int64 that order as (score descending, row ascending) when they descend; all distinct, so that no tie is left.

    The upper half are the bits of the float32 score, those of negative numbers turned round; the lower half is the row
    counted from the end. rows: int64 below 2^32.
    """
    bits = (scores + 0.0).contiguous().view(torch.int32)  # -0.0 becomes 0.0, which it is equal to
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.long() << 32) + (LAST_ROW - rows)


def _decoded(keys: Tensor) -> TopK:
    ordered = (keys >> 32).to(torch.int32)
    scores = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(torch.float32)
    rows = LAST_ROW - (keys & LAST_ROW)
    return TopK(scores, rows.masked_fill(scores == float("-inf"), -1))


def choose_index(num_items: int, dim: int, device: torch.device | str = "cpu") -> str:
    """`exact`, or `approximate` where one query would read more than `EXACT_BYTES` of float32 vectors.

    That is beyond 131,072 items of 128 numbers on a CPU and 8.4 million on a GPU.
    """
    require(num_items >= 0 and dim >= 1, f"choose_index: {num_items} items of {dim} numbers are no catalogue.")
    limit = EXACT_BYTES["cpu" if torch.device(device).type == "cpu" else "cuda"]
    return "exact" if 4 * num_items * dim <= limit else "approximate"


def recall_at_k(found: Tensor, exact: Tensor) -> float:
    """Share of the exact answers' rows [Q, k] that the found rows [Q, k] hold; 1 where there are none. -1 is no row."""
    require(len(found) == len(exact), f"recall: {len(found)} answers but {len(exact)} exact ones.")
    hits = ((exact[:, :, None] == found[:, None, :]).any(2) & (exact >= 0)).sum()
    there = (exact >= 0).sum()
    return int(hits) / int(there) if there else 1.0


@dataclass(frozen=True)
class IndexReport:
    """What an index is and how well it answers; kept beside it as JSON.

    recall: share of the best items of `num_queries` queries that are in the `num_probes` lists, of its `num_lists`,
    nearest to each: of the `k` best, or of the `FEW` best where that is less. checksum: blake2b of the index file,
    empty until it is saved.
    """

    num_items: int
    dim: int
    num_lists: int
    num_probes: int
    recall: float
    recall_wanted: float
    k: int
    num_queries: int
    library: str
    checksum: str = ""


class ApproximateIndex:
    """Lists of items [N, d], which stay where they are: what the lists give is scored with them anew.

    So scores are those of `top_k` up to rounding, and only which rows are found may differ. Its own copy of the vectors
    is float16. It runs on the CPU, and threads may share it.
    """

    def __init__(self, index: Any, items: Tensor, report: IndexReport) -> None:
        self._index, self.items, self.report = index, items, report

    @classmethod
    def build(
        cls, items: Tensor, queries: Tensor, k: int = 100, recall: float = 0.95, num_lists: int | None = None
    ) -> ApproximateIndex:
        """The index of items [N, d], of which as many lists are searched as it takes to find `recall` of the top k.

        Of the top 10 as well, and of each query in these lists alone: where they hold fewer than k rows, a search looks
        into more, but one for few items does not. queries [Q, d]: such as will be asked (user vectors); some hundreds
        are enough. num_lists: by default 4 sqrt(N), fewer where lists would be short.

        Raises:
            ModelError: for shapes that do not fit, no items or queries, or a recall that even all lists miss, since
                float16 cannot tell the vectors apart.
        """
        require(len(items) > 0, "approximate index: there are no items.")
        require(len(queries) > 0, "approximate index: its recall is measured with queries, and none were given.")
        require(0 < recall <= 1, f"approximate index: recall must be in (0, 1], not {recall}.")
        _require_shapes(queries, items, k, None)
        most = max(len(items) // LIST_ROWS, 1)
        lists = min(int(4 * len(items) ** 0.5), most) if num_lists is None else num_lists
        require(1 <= lists <= most, f"approximate index: num_lists must be 1 to {most}, not {lists}.")
        faiss = _faiss()
        faiss.omp_set_num_threads(torch.get_num_threads())
        index = faiss.index_factory(items.shape[1], f"IVF{lists},SQfp16", faiss.METRIC_INNER_PRODUCT)
        step = max(len(items) // (TRAIN_ROWS * lists), 1)
        index.train(_rows_of_numbers(items[::step]))
        for start in range(0, len(items), ADD_ROWS):
            index.add(_rows_of_numbers(items[start : start + ADD_ROWS]))
        exact, asked = top_k(queries.cpu(), items, k).rows, _rows_of_numbers(queries)
        probes, library = 1, f"faiss {faiss.__version__}"
        while True:
            report = IndexReport(len(items), items.shape[1], lists, probes, 0.0, recall, k, len(queries), library)
            made = cls(index, items, report)
            found = min(
                recall_at_k(made._probe(asked, min(few, len(items)), probes), exact[:, :few])
                for few in (k, min(k, FEW))
            )
            if found >= recall:
                made.report = replace(report, recall=found)
                return made
            if probes == lists:
                raise ModelError(
                    f"approximate index: with all lists it finds {found:.4f} of the exact top {k}, {recall} was asked "
                    "for. Ask for less, or compare every item (top_k)."
                )
            probes = min(2 * probes, lists)

    def remove(self, rows: Tensor) -> None:
        """Leave rows [R], int64, out of the lists for good: no search finds them, and none takes time for them."""
        self._index.remove_ids(rows.cpu().numpy())

    def search(self, queries: Tensor, k: int, exclude: Tensor | None = None) -> TopK:
        """As `top_k`, of the items that the lists give. Excluded rows are found first and dropped then.

        Which lists are looked into depends on the query and on how many rows are found for it, not on other queries.
        """
        _require_shapes(queries, self.items, k, exclude)
        num_excluded = 0 if exclude is None else exclude.shape[1]
        counts = torch.full((len(queries),), k)
        if exclude is not None:
            counts += (exclude.cpu() >= 0).sum(1)
        rows = self._candidates(queries, counts.clamp_max(len(self.items)))
        vectors = self.items[rows.clamp_min(0)].float()  # [Q, n, d]
        scores = torch.bmm(vectors, queries.float().cpu()[:, :, None])[:, :, 0]
        if not bool(scores.isfinite().all()):
            raise ModelError(INVALID.format(what="approximate index"))
        unwanted = rows < 0
        if exclude is not None and num_excluded:
            ordered = exclude.cpu().sort(1).values
            places = torch.searchsorted(ordered, rows).clamp_max(num_excluded - 1)
            unwanted |= ordered.gather(1, places) == rows
        keys = _keys(scores.masked_fill(unwanted, float("-inf")), rows.clamp_min(0))
        missing = max(k - keys.shape[1], 0)
        keys = torch.nn.functional.pad(keys, (0, missing), value=NOTHING)
        best = _decoded(keys.topk(k).values)
        return TopK(best.scores.to(queries.device), best.rows.to(queries.device))

    def _candidates(self, queries: Tensor, counts: Tensor) -> Tensor:
        """Rows [Q, greatest count] int64 on the host, as many as each query's count [Q], up to N; -1 after them."""
        rows = torch.full((len(queries), int(counts.max()) if len(counts) else 0), -1)
        asked, most = _rows_of_numbers(queries), self.report.num_lists
        # Whoever asks for more than the recall was measured with has more lists looked into.
        probes = (self.report.num_probes * -(-counts // self.report.k)).clamp_max(most)
        waiting = torch.ones(len(queries), dtype=torch.bool)
        while waiting.any():
            now = int(probes[waiting].min())
            places = (waiting & (probes == now)).nonzero()[:, 0]
            own = counts[places, None]
            width = int(own.max())
            found = self._probe(asked[places.numpy()], width, now)
            found[torch.arange(width) >= own] = -1  # asked for by another query alone
            rows[places, :width] = found
            probes[places] = min(4 * now, most)  # for those whose lists do not hold so many
            waiting[places] = ((found >= 0).sum(1) < own[:, 0]) & (now < most)
        return rows

    def _probe(self, asked: np.ndarray, count: int, probes: int) -> Tensor:
        """Rows [Q, count] of each query's nearest lists, best first; -1 after them where these lists hold fewer."""
        faiss = _faiss()
        # Of the calling thread, and of faiss' own OpenMP, not of torch's.
        faiss.omp_set_num_threads(1 if len(asked) < SERIAL_QUERIES else torch.get_num_threads())
        return torch.from_numpy(self._index.search(asked, count, params=faiss.SearchParametersIVF(nprobe=probes))[1])

    def save(self, folder: Path | str) -> None:
        """`index.faiss` and, last, `index.json` with the report."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        _faiss().write_index(self._index, str(folder / INDEX_FILE))
        self.report = replace(self.report, checksum=_checksum(folder / INDEX_FILE))
        (folder / REPORT_FILE).write_text(json.dumps(asdict(self.report), indent=1, allow_nan=False))

    @classmethod
    def load(cls, folder: Path | str, items: Tensor) -> ApproximateIndex:
        """What `save` wrote, over the same items [N, d]."""
        folder = Path(folder)
        again = "Run gigabatch embed again."
        try:
            report = IndexReport(**json.loads((folder / REPORT_FILE).read_text()))
            checksum = _checksum(folder / INDEX_FILE)
        except (OSError, ValueError, TypeError) as error:
            raise ModelError(f"index {folder}: missing or damaged ({error}). {again}") from error
        require(checksum == report.checksum, f"index {folder}: {INDEX_FILE} is not what its report says. {again}")
        shape = (report.num_items, report.dim)
        require(tuple(items.shape) == shape, f"index {folder}: of {shape} items, not {tuple(items.shape)}. {again}")
        try:
            index = _faiss().read_index(str(folder / INDEX_FILE))
        except RuntimeError as error:
            raise ModelError(f"index {folder}: {INDEX_FILE} is no index of this version of faiss. {again}") from error
        return cls(index, items, report)


def _require_shapes(queries: Tensor, items: Tensor, k: int, exclude: Tensor | None) -> None:
    fits = queries.dim() == items.dim() == 2 and queries.shape[1] == items.shape[1]
    require(fits, f"retrieval: queries {list(queries.shape)} and items {list(items.shape)} are not [Q, d] and [N, d].")
    require(k >= 1, f"retrieval: k must be at least 1, not {k}.")
    require(len(items) < LAST_ROW, f"retrieval: {len(items)} items are more than 2^32 - 2.")
    if exclude is not None:
        fits = exclude.dim() == 2 and len(exclude) == len(queries) and exclude.dtype == torch.int64
        require(fits, f"retrieval: exclude must be int64 [{len(queries)}, E], found {exclude.dtype} {exclude.shape}.")


def _checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _rows_of_numbers(vectors: Tensor) -> np.ndarray:
    """float32 [n, d] on the host; `ModelError` for what is not finite."""
    require(bool(vectors.isfinite().all()), "approximate index: a vector holds NaN or an infinity.")
    return np.ascontiguousarray(vectors.float().cpu().numpy())


def _faiss() -> Any:
    """The library, which is not loaded before it is needed."""
    try:
        import faiss
    except ModuleNotFoundError as error:
        raise ModelError(
            "approximate index: faiss is not installed. Run pip install 'gigabatch[serve]', or compare every item "
            "(top_k)."
        ) from error
    return faiss
