"""How fast are the best items found, and how many of them? Every item compared, or an approximate index.

    python -m benchmarks.retrieval [--rows 1000000] [--dim 64] [--k 100] [--quick] [--device cuda] [--save]

Vectors of length 1, as a two-tower network gives them by default, of one of three kinds (--kind): `decay`, each
direction 7 % weaker than the one before; `isotropic`, no structure at all, the hardest; `clusters`, the easiest.
Contenders:

- every item: `gigabatch.models.retrieval.top_k`, torch's product and `topk`, faiss' flat index;
- indexes: ours (`ApproximateIndex`: faiss' inverted lists over float16) and faiss' HNSW, each searched as widely as it
  takes for the wanted recall@k on queries that are not the ones timed.

For each: recall@k against the exact answer, seconds to build, bytes, and queries a second in batches of 256 and one at
a time, in turns. The sizes are --rows and a quarter and a sixteenth of it, to see where the two kinds cross
(`gigabatch.models.retrieval.EXACT_BYTES`). On a GPU every item is compared there, by ours and by torch, and
recall is that against the CPU's answer; indexes run on a CPU and stay out.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import arguments, device_of, finish, needed, wait_for

with needed():
    from gigabatch.models.retrieval import (
        BLOCK_SCORES,
        INDEX_FILE,
        SERIAL_QUERIES,
        ApproximateIndex,
        choose_index,
        recall_at_k,
        top_k,
    )
    from gigabatch.pipeline.display import render_table

RECALL, BATCH, CONNECTIVITY, EXPANSION_ADD = 0.95, 256, 32, 128
EXPANSIONS = (64, 128, 256, 512, 1024, 2048)  # candidates that a search of a graph keeps
KINDS = ("decay", "isotropic", "clusters")
NUM_CLUSTERS = 500
LEAST = {"cpu": 1.0, "cuda": 0.999}  # another order of adding than the CPU's may swap the last ones
Search = Callable[[Tensor, int], Tensor]


@dataclass(frozen=True)
class Contender:
    """search: queries [Q, d], k -> rows [Q, k]. num_bytes: of the index alone; setting: how widely it searches."""

    search: Search
    build_seconds: float = 0.0
    num_bytes: int = 0
    setting: int = 0


def vectors(kind: str, generator: torch.Generator, rows: int, dim: int) -> Tensor:
    """float32 [rows, dim] of length 1."""
    found = torch.randn(rows, dim, generator=generator)
    if kind == "decay":
        found *= 0.93 ** torch.arange(dim)
    elif kind == "clusters":
        centres = torch.randn(NUM_CLUSTERS, dim, generator=torch.Generator().manual_seed(1))
        found = centres[torch.randint(NUM_CLUSTERS, (rows,), generator=generator)] + 0.8 * found
    return torch.nn.functional.normalize(found, dim=1)


def torch_top_k(items: Tensor, queries: Tensor, k: int) -> Tensor:
    """The plain way: all products at once."""
    return (queries @ items.T).topk(k).indices


def our_index(items: Tensor, queries: Tensor, k: int, folder: Path) -> Contender:
    """Saved and loaded as it is served."""
    started = time.perf_counter()
    index = ApproximateIndex.build(items, queries, k, RECALL)
    seconds = time.perf_counter() - started
    index.save(folder)
    index = ApproximateIndex.load(folder, items)
    size = (folder / INDEX_FILE).stat().st_size
    return Contender(lambda asked, k: index.search(asked, k).rows, seconds, size, index.report.num_probes)


def faiss_contenders(items: Tensor, check: Callable[[Search], float]) -> dict[str, Contender]:
    """The exact index, and a graph of neighbours."""
    import faiss

    array, dim = items.numpy(), items.shape[1]
    faiss.omp_set_num_threads(torch.get_num_threads())

    def search(index: Any) -> Search:
        def found(asked: Tensor, k: int) -> Tensor:
            faiss.omp_set_num_threads(1 if len(asked) < SERIAL_QUERIES else torch.get_num_threads())  # as ours does
            return torch.from_numpy(index.search(asked.numpy(), k)[1])

        return found

    def built(index: Any) -> tuple[float, int]:
        started = time.perf_counter()
        index.add(array)
        return time.perf_counter() - started, len(faiss.serialize_index(index))

    flat = faiss.IndexFlatIP(dim)
    graph = faiss.IndexHNSWFlat(dim, CONNECTIVITY, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = EXPANSION_ADD

    found = {"faiss flat, every item": Contender(search(flat), *built(flat))}
    size = built(graph)
    for width in EXPANSIONS:  # the narrowest search that reaches the recall; else the widest
        graph.hnsw.efSearch = width
        found["faiss HNSW, float32"] = Contender(search(graph), *size, width)
        if check(search(graph)) >= RECALL:
            break
    return found


def timed(contenders: Mapping[str, Contender], queries: Tensor, k: int, turns: int) -> dict[str, dict[str, float]]:
    """Median seconds of a query, in batches and alone; contenders take turns, the first turn is not counted."""
    device = queries.device
    times: dict[str, dict[str, list[float]]] = {name: {"batch": [], "alone": []} for name in contenders}
    for turn in range(turns + 1):
        for name, contender in contenders.items():
            for kind, asked in (("batch", [queries[:BATCH]]), ("alone", [row[None] for row in queries[:16]])):
                for query in asked:
                    wait_for(device)
                    started = time.perf_counter()
                    contender.search(query, k)
                    wait_for(device)
                    if turn:
                        times[name][kind].append((time.perf_counter() - started) / len(query))
    return {name: {kind: median(values) for kind, values in found.items()} for name, found in times.items()}


def compare(kind: str, rows: int, dim: int, k: int, turns: int, device: torch.device) -> list[dict[str, Any]]:
    """One line a contender."""
    generator = torch.Generator().manual_seed(0)
    items, asked, queries = (vectors(kind, generator, count, dim) for count in (rows, 200, BATCH))
    exact_asked, exact = (top_k(these, items, k).rows for these in (asked, queries))
    items, asked, queries = (values.to(device) for values in (items, asked, queries))

    def check(search: Search) -> float:
        return recall_at_k(search(asked, k), exact_asked)

    half = items.half()
    contenders = {
        "ours, every item": Contender(lambda these, k: top_k(these, items, k).rows),
        "ours, every item, float16": Contender(lambda these, k: top_k(these, half, k).rows),
        "torch, every item": Contender(lambda these, k: torch_top_k(items, these, k)),
    }
    with tempfile.TemporaryDirectory() as folder:
        if device.type == "cpu":
            contenders["ours, index, float16"] = our_index(items, asked, k, Path(folder))
            contenders |= faiss_contenders(items, check)
        seconds = timed(contenders, queries, k, turns)
        return [
            {
                "items": rows,
                "who": name,
                "recall": recall_at_k(contender.search(queries, k).cpu(), exact),
                "setting": contender.setting,
                "build_seconds": contender.build_seconds,
                "index_bytes": contender.num_bytes,
                "queries_per_second": 1 / seconds[name]["batch"],
                "ms_alone": 1e3 * seconds[name]["alone"],
            }
            for name, contender in contenders.items()
        ]


def main() -> None:
    flags = arguments(__doc__ or "", rows=1_000_000, dim=64, k=100, turns=5, kind="decay")
    if flags.kind not in KINDS:
        raise SystemExit(f"--kind {flags.kind}: unknown. Known: {', '.join(KINDS)}.")
    device = device_of(flags)
    if device.type == "cpu" and importlib.util.find_spec("faiss") is None:
        raise SystemExit("The indexes need faiss: pip install 'gigabatch[serve]', or --device cuda")
    rows, turns = (20_000, 1) if flags.quick else (flags.rows, flags.turns)
    found = [
        line
        for size in (rows // 16, rows // 4, rows)
        for line in compare(flags.kind, size, flags.dim, flags.k, turns, device)
    ]
    shown = [
        {
            "items": f"{line['items']:,}",
            "who": line["who"],
            f"recall@{flags.k}": round(line["recall"], 4),
            "searched": line["setting"] or "",
            "build s": round(line["build_seconds"], 1),
            "MB": round(line["index_bytes"] / 1e6, 1),
            "queries/s": f"{line['queries_per_second']:,.0f}",
            "ms alone": round(line["ms_alone"], 3),
        }
        for line in found
    ]
    render_table(shown, f"top {flags.k} of items of {flags.dim} numbers, {torch.get_num_threads()} threads")
    of = {(line["items"], line["who"]): line for line in found}
    whole = of[rows, "ours, every item"]
    ratios = {"torch": whole["queries_per_second"] / of[rows, "torch, every item"]["queries_per_second"]}
    claims = {
        "recall of every item compared": (whole["recall"], LEAST[device.type], whole["recall"] >= LEAST[device.type])
    }
    if device.type == "cpu":
        index = of[rows, "ours, index, float16"]
        ratios["index_alone"] = whole["ms_alone"] / index["ms_alone"]
        claims |= {
            f"recall@{flags.k} of the index": (index["recall"], RECALL, index["recall"] >= RECALL - 0.01),
            "times every item, of the index, one query": (ratios["index_alone"], 1.0, ratios["index_alone"] >= 1.0),
        }
    finish(
        f"retrieval_{flags.kind}",
        f"top {flags.k} of {rows:,} items of {flags.dim} numbers, {flags.kind}",
        {f"{line['who']}, {line['items']}": line["ms_alone"] / 1e3 for line in found}
        | {"ours, every item, a batch": BATCH / whole["queries_per_second"]},
        ratios,
        {} if flags.quick else claims,
        save=flags.save,
        device=device,
        needs={"ours, every item, a batch": (4.0 * rows * flags.dim, 2.0 * BATCH * rows * flags.dim)},
        details={
            "lines": found,
            "threads": torch.get_num_threads(),
            "block_scores": BLOCK_SCORES,
            "chosen": {str(size): choose_index(size, flags.dim) for size in (rows // 16, rows // 4, rows)},
        },
    )


if __name__ == "__main__":
    main()
