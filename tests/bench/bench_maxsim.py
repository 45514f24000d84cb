"""MaxSim over 1,000 pages: our scan and exact scores beside the ways not taken, and how far the scan is off.

    python tests/bench/bench_maxsim.py [--vectors 490] [--queries 16]
    python tests/bench/bench_maxsim.py --index some.bvdr --questions queries.jsonl

The first form compares, interleaved and on one thread, CPU milliseconds per 1,000 pages. The second measures, on a real
index and real questions, the largest difference of a scanned score from the exact one, and how many pages lie within
the searcher's margin of the tenth. Tables, then one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numkong
import numpy as np

from budgetvdr import Index
from budgetvdr.similarity.maxsim import ExactPages, maxsim, quantise, scan_int8, unit_prefix
from budgetvdr.view import query_at

PAGES = 100
ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=int, default=490)
    parser.add_argument("--queries", type=int, default=16)
    parser.add_argument("--index", type=Path)
    parser.add_argument("--questions", type=Path)
    arguments = parser.parse_args()
    if arguments.index is not None:
        print(json.dumps(errors(arguments.index, arguments.questions)))
    else:
        print(json.dumps(speeds(arguments.vectors, arguments.queries)))


def speeds(vectors: int, queries: int) -> list[dict[str, object]]:
    rng = np.random.default_rng(0)
    stored = rng.standard_normal((PAGES * vectors, 384)).astype(np.float16)
    offsets = np.arange(0, PAGES * vectors + 1, vectors)
    rows: list[dict[str, object]] = []
    for dim in (384, 128, 32):
        half = np.ascontiguousarray(stored[:, :dim])
        single = unit_prefix(half, dim)
        query = unit_prefix(rng.standard_normal((queries, dim)), dim)
        ways = ways_of_scoring(half, single, offsets, query)
        spent: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, way in ways.items():
                start = time.process_time()
                way()
                spent[name].append((time.process_time() - start) * 1e3 * 1000 / PAGES)
        for name, times in spent.items():
            rows.append({"dim": dim, "way": name, "cpu_ms_per_1000_pages": statistics.median(times)})
            print(f"{dim:>4}  {name:<28} {statistics.median(times):8.1f}")
    return rows


def ways_of_scoring(
    half: np.ndarray, single: np.ndarray, offsets: np.ndarray, query: np.ndarray
) -> dict[str, Callable[[], object]]:
    pages, exact = quantise((half,), offsets), ExactPages((half,), offsets)
    packed_half, packed_single = numkong.dots_pack(query.astype(np.float16)), numkong.dots_pack(query)

    def best(similarities: object) -> np.ndarray:
        return np.maximum.reduceat(np.asarray(similarities), offsets[:-1], axis=0)

    return {
        "scan_int8 (ours)": lambda: scan_int8(pages, query),
        "maxsim (ours, from float16)": lambda: maxsim(exact, query),
        "numpy float32": lambda: best(single @ query.T),
        "numpy float16 -> float32 only": lambda: half.astype(np.float32),
        "numkong float16": lambda: best(numkong.dots_packed(half, packed_half)),
        "numkong float32": lambda: best(numkong.dots_packed(single, packed_single)),
    }


def errors(path: Path, questions: Path) -> list[dict[str, object]]:
    texts = [json.loads(line)["text"] for line in questions.read_text().splitlines() if line][::5]
    rows: list[dict[str, object]] = []
    with Index.open(path, read_only=True) as index:
        snapshot, encoder = index._store.snapshot(), index._encoder
        for depth in index.depths:
            for dim in index.dims:
                slabs = list(snapshot.scan(depth, dim))
                slices = tuple(np.concatenate(parts) for parts in zip(*(slab.slices for slab in slabs), strict=True))
                counts = np.concatenate([np.diff(slab.offsets) for slab in slabs])
                offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
                pages, exact = quantise(slices, offsets), ExactPages(slices, offsets)
                largest, near = 0.0, []
                for text in texts:
                    query = query_at(encoder, text, depth, dim).vectors
                    scanned, scores = scan_int8(pages, query), maxsim(exact, query)
                    filled = counts > 0
                    largest = max(largest, float(np.abs(scanned[filled] - scores[filled]).max()))
                    near.append(int((scanned >= np.sort(scanned)[-10] - 5e-3).sum()))
                rows.append(
                    {"depth": depth, "dim": dim, "largest_error": largest, "mean_candidates": float(np.mean(near))}
                )
                print(f"{depth:>3} {dim:>4}  largest error {largest:.2e}  candidates for k=10: {np.mean(near):.1f}")
    return rows


if __name__ == "__main__":
    main()
