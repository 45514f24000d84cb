"""What a stage before the scan finds and costs: recall of the exact top 10 among the first pages proposed.

    OMP_NUM_THREADS=1 python tests/bench/bench_first_stage.py [--pages 20000] [--vectors 150] [--width 128]
        [--queries 40] [--centroids N] [--quick]

Synthetic pages (`synthetic.py`), one thread. Compared with the inverted lists of centroids: the int8 scan of all pages
at a half and a quarter of the width, one bit a component with a float query, and 8 and 16 folded vectors a page
(k-means inside each page), these three by numpy, so only their recall and bytes count. Then lists and scan are timed in
turns, query by query: proposing, scanning what was proposed, and scanning everything. Prints a table and, last, one
JSON object. 100,000 pages of 150 x 128 take about 4 GB and, with --quick, ten minutes of a core.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from machine import machine
from synthetic import BLOCK, Collection

from budgetvdr.similarity import centroids as lists
from budgetvdr.similarity.maxsim import Int8Pages, quantise, scan_int8, unit_prefix

Float = npt.NDArray[np.float32]
Ranked = list[npt.NDArray[np.int64]]
K = 10
DEPTHS = (100, 200, 500, 1000, 2000, 4000)
PROBES = (8, 16, 32, 64, 128)
CANDIDATES = (500, 1000, 2000, 4000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=20_000)
    parser.add_argument("--vectors", type=int, default=150)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--queries", type=int, default=40)
    parser.add_argument("--centroids", type=int, help="how many; what centroid_count says where left out")
    parser.add_argument("--quick", action="store_true", help="the lists only, without the other proposers")
    arguments = parser.parse_args()
    collection = Collection(arguments.pages, arguments.vectors, arguments.width)
    queries = [collection.query(number).vectors for number in range(arguments.queries)]
    count = arguments.centroids or lists.centroid_count(arguments.pages * arguments.vectors)
    start = time.process_time()
    trained = lists.train(sample(collection, count), count)
    build = {"train_s": time.process_time() - start}
    forms = {} if arguments.quick else other_proposers(arguments.vectors, arguments.width)
    pages, codes, exact, others, build["assign_s"] = one_pass(collection, queries, trained, forms)
    best = [np.argsort(-row, kind="stable")[:K] for row in exact]
    rows = [
        row(name, arguments.pages, [np.argsort(-one)[: max(DEPTHS)] for one in scores], best, ms=None, size=size)
        for name, (scores, size) in others.items()
    ]
    routes = lists.invert(trained.members, codes, pages.offsets)
    for probes in PROBES:
        ranked, ms = timed(queries, lambda query, p=probes: lists.propose(routes, query, max(DEPTHS), probes=p))
        size = routes.nbytes / arguments.pages
        rows.append(row(f"lists, {len(trained.members)} x {probes}", arguments.pages, ranked, best, ms=ms, size=size))
    for one in rows:
        print(one, flush=True)
    result = {
        "machine": machine("numpy", "budgetvdr"),
        "pages": arguments.pages,
        "vectors": arguments.vectors,
        "width": arguments.width,
        "build": {**build, "centroids": len(trained.members)},
        "rows": rows,
        "costs": costs(pages, routes, queries, best),
    }
    print(result["build"], *result["costs"], sep="\n")
    print(json.dumps(result))


def sample(collection: Collection, count: int) -> Float:
    """Vectors for training, from blocks drawn by lot."""
    rng = np.random.default_rng(0)
    blocks = rng.permutation(max(1, collection.pages // BLOCK))[:400]
    each = -(-count * lists.SAMPLE_PER_CENTROID // len(blocks))
    parts = []
    for block in blocks:
        vectors = collection.block(int(block)).reshape(-1, collection.width)
        parts.append(vectors[rng.permutation(len(vectors))[:each]].astype(np.float32))
    return np.concatenate(parts)


def one_pass(
    collection: Collection,
    queries: list[Float],
    trained: lists.Centroids,
    forms: dict[str, tuple[Callable[[Float], Float], int, float]],
) -> tuple[Int8Pages, npt.NDArray[np.uint16], Float, dict[str, tuple[Float, float]], float]:
    """The int8 pages, their codes, exact scores (queries, pages), scores by the other proposers, seconds to assign."""
    per_page, width = collection.vectors, collection.width
    rows = collection.pages * per_page
    values, scales = np.empty((rows, width), np.int8), np.empty(rows, np.float32)
    codes, seconds = np.empty(rows, np.uint16), 0.0
    exact = np.empty((len(queries), collection.pages), np.float32)
    others = {name: (np.empty_like(exact), size) for name, (_, _, size) in forms.items()}
    for first, vectors in collection.chunks(BLOCK):
        flat, last = vectors.reshape(-1, width), first + len(vectors)
        part = slice(first * per_page, last * per_page)
        small = quantise([flat], np.arange(len(vectors) + 1, dtype=np.int64) * per_page)
        values[part], scales[part] = small.values, small.scales
        start = time.process_time()
        codes[part] = lists.assign(flat, trained)[0]
        seconds += time.process_time() - start
        pages = unit_prefix(flat, width).reshape(vectors.shape)
        exact[:, first:last] = scored(pages, queries)
        for name, (form, dim, _) in forms.items():
            others[name][0][:, first:last] = scored(form(pages), [query[:, :dim] for query in queries])
    offsets = np.arange(collection.pages + 1, dtype=np.int64) * per_page
    return Int8Pages(values, scales, offsets), codes, exact, others, seconds


def scored(pages: Float, queries: list[Float]) -> Float:
    """(queries, p) MaxSim of pages (p, v, d)."""
    products = pages.reshape(-1, pages.shape[2]) @ np.concatenate(queries).T
    best = products.reshape(*pages.shape[:2], -1).max(axis=1)
    return np.stack([part.mean(axis=1) for part in np.split(best, np.cumsum([len(q) for q in queries])[:-1], axis=1)])


def other_proposers(vectors: int, width: int) -> dict[str, tuple[Callable[[Float], Float], int, float]]:
    """Name -> what a page is replaced by, its width, and bytes a page."""
    forms: dict[str, tuple[Callable[[Float], Float], int, float]] = {}
    for dim in (width // 4, width // 2):
        forms[f"int8 at {dim}"] = (lambda pages, d=dim: eight_bits(pages, d), dim, vectors * (dim + 4))
    forms["1 bit, float query"] = (
        lambda pages: np.where(pages >= 0, 1, -1).astype(np.float32),
        width,
        vectors * width / 8,
    )
    for count in (8, 16):
        # Kept as float16.
        forms[f"{count} folded vectors"] = (lambda pages, c=count: folded(pages, c), width, count * width * 2)
    return forms


def eight_bits(pages: Float, dim: int) -> Float:
    flat = quantise(
        [np.ascontiguousarray(pages[:, :, :dim].reshape(-1, dim), np.float16)], np.array([0, pages[:, :, 0].size])
    )
    return (flat.values * flat.scales[:, None]).reshape(*pages.shape[:2], dim)


def folded(pages: Float, count: int) -> Float:
    """Spherical k-means inside each page."""
    centers = pages[:, np.linspace(0, pages.shape[1] - 1, count).astype(int)]
    for _ in range(5):
        nearest = (pages @ centers.transpose(0, 2, 1)).argmax(axis=2)
        member = (nearest[:, None, :] == np.arange(count)[:, None]).astype(np.float32)
        sums = member @ pages
        centers = sums / np.maximum(np.linalg.norm(sums, axis=2, keepdims=True), 1e-9)
    return centers


def timed(queries: list[Float], propose: Callable[[Float], npt.NDArray[np.int64]]) -> tuple[Ranked, float]:
    propose(queries[0])
    start = time.process_time()
    ranked = [propose(query) for query in queries]
    return ranked, (time.process_time() - start) / len(queries) * 1e3


def recall(ranked: Ranked, best: Ranked, depth: int) -> float:
    shares = [len(np.intersect1d(top, pages[:depth])) / len(top) for top, pages in zip(best, ranked, strict=True)]
    return round(float(np.mean(shares)), 4)


def row(name: str, pages: int, ranked: Ranked, best: Ranked, *, ms: float | None, size: float) -> dict[str, object]:
    found = {f"recall@{depth}": recall(ranked, best, depth) for depth in DEPTHS if depth < pages}
    return {"proposer": name, **found, "bytes_a_page": round(size), "ms": None if ms is None else round(ms, 2)}


def costs(pages: Int8Pages, routes: lists.Routes, queries: list[Float], best: Ranked) -> list[dict[str, float]]:
    """CPU milliseconds of the two ways to a scanned ranking, query by query in turns."""
    rows = []
    for candidates in (count for count in CANDIDATES if count < len(pages.offsets) - 1):
        spent = np.zeros(3)
        found = []
        for query in queries:
            times = [time.process_time()]
            proposed = np.sort(lists.propose(routes, query, candidates))
            times.append(time.process_time())
            scores = scan_int8(pages, query, places=proposed)
            times.append(time.process_time())
            scan_int8(pages, query)
            times.append(time.process_time())
            spent += np.diff(times)
            found.append(proposed[np.argsort(-scores, kind="stable")][: 2 * K])
        propose_ms, rest_ms, all_ms = (spent / len(queries) * 1e3).round(2).tolist()
        rows.append(
            {
                "candidates": candidates,
                "recall@10": recall(found, best, 2 * K),
                "propose_ms": propose_ms,
                "scan_of_proposed_ms": rest_ms,
                "scan_of_all_ms": all_ms,
                "times_faster": round(all_ms / (propose_ms + rest_ms), 1),
            }
        )
    return rows


if __name__ == "__main__":
    main()
