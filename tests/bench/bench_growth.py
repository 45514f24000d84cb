"""How a search grows with the index: milliseconds and recall at 1,000, 10,000 and 100,000 pages, by budget.

    python tests/bench/bench_growth.py [--sizes 1000,10000,100000] [--queries 20] [--dir FOLDER] [--quick]
    python tests/bench/bench_growth.py --optimize --candidates 100,300     # the candidate path as well

Synthetic pages of 150 vectors of 128 components; full, balanced and fast are 128, 64 and 32 components. Told of each
size and budget: seconds from opening the index to the first answer; then, medians after some searches to warm up, of
the whole search and of its parts as hits report them (query vectors are made before); recall@10 against the exhaustive
float32 ranking at the same width, which the exact path must reach, and at full width, which is what a narrow budget
loses. The last column is milliseconds beside those of the next smaller size, in parts of how many times more pages
there are: 1 is linear.

100,000 pages take 4 GB of disk and some minutes to fill; with --dir they are kept, with their exhaustive rankings, and
used again. Prints a table, then one JSON object.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from machine import machine
from synthetic import BLOCK, Collection, SyntheticEncoder, fill, page_number

from budgetvdr import Budget, Index

K, WARM = 10, 3
PRESETS = ("full", "balanced", "fast")
PARTS = ("encode_ms", "scan_ms", "exact_ms")

Row = dict[str, Any]
Rankings = dict[int, npt.NDArray[np.int64]]


def main() -> None:
    arguments = parsed()
    folder = arguments.dir or Path(tempfile.mkdtemp(prefix="growth-"))
    rows: list[Row] = []
    try:
        for pages in arguments.sizes:
            rows += measure(folder, pages, arguments)
    finally:
        if arguments.dir is None:
            shutil.rmtree(folder)
    report(rows)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=numbers, default=[1000, 10_000, 100_000])
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--candidates", type=numbers, default=[], help="numbers of candidates, such as 100,300")
    parser.add_argument("--dim", type=int, help="their width, the full one by default")
    parser.add_argument("--optimize", action="store_true", help="optimizes each index first, with its first stage")
    parser.add_argument("--dir", type=Path, help="keeps the indexes here and uses those it finds")
    parser.add_argument("--quick", action="store_true", help="300 and 3,000 pages, 6 queries")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.sizes, arguments.queries = [300, 3000], 6
    return arguments


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def measure(folder: Path, pages: int, arguments: argparse.Namespace) -> list[Row]:
    """Rows of one size."""
    collection = Collection(pages)
    encoder = SyntheticEncoder(collection)
    path = folder / f"{pages}.bvdr"
    start = time.perf_counter()
    fill(path, collection, encoder)
    print(f"{pages} pages: filled in {time.perf_counter() - start:.0f} s", file=sys.stderr)
    if arguments.optimize:
        with Index.open(path, encoder=encoder, threads=arguments.threads) as index:
            index.optimize(keep=timedelta(0))
    truth = exhaustive(folder, collection, encoder, arguments.queries)
    for number in range(arguments.queries):
        encoder.encode_query(str(number), encoder.manifest.depths[-1])
    budgets: dict[str, str | Budget] = {name: name for name in PRESETS}
    budgets |= {f"candidates={count}": Budget(candidates=count, dim=arguments.dim) for count in arguments.candidates}
    return [
        {"pages": pages, "budget": name} | searches(path, encoder, budget, truth, arguments)
        for name, budget in budgets.items()
    ]


def exhaustive(folder: Path, collection: Collection, encoder: SyntheticEncoder, queries: int) -> Rankings:
    """Width -> (queries, 10) page numbers, best first, by plain float32 products with every vector."""
    file = folder / f"{collection.pages}-{queries}.npz"
    if file.exists():
        with np.load(file) as stored:
            return {int(dim): ranking for dim, ranking in stored.items()}
    every = np.stack([collection.query(number).vectors for number in range(queries)])
    scores = {dim: np.empty((collection.pages, queries), np.float32) for dim in encoder.manifest.dims}
    for first, vectors in collection.chunks(BLOCK):
        for dim, table in scores.items():
            rows, columns = (unit(part[..., :dim]).reshape(-1, dim) for part in (vectors, every))
            best = (rows @ columns.T).reshape(len(vectors), -1, len(columns)).max(axis=1)
            table[first : first + len(vectors)] = best.reshape(len(vectors), queries, -1).mean(axis=2)
    rankings = {dim: np.argsort(-table, axis=0)[:K].T for dim, table in scores.items()}
    np.savez(file, allow_pickle=False, **{str(dim): ranking for dim, ranking in rankings.items()})
    return rankings


def unit(vectors: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    single = vectors.astype(np.float32)
    single /= np.linalg.norm(single, axis=-1, keepdims=True)
    return single


def searches(
    path: Path, encoder: SyntheticEncoder, budget: str | Budget, truth: Rankings, arguments: argparse.Namespace
) -> Row:
    """One budget on one index, opened for it alone."""
    start = time.perf_counter()
    spent, found, cpu_ms = [], [], []
    with Index.open(path, encoder=encoder, threads=arguments.threads, read_only=True) as index:
        index.search("0", k=K, budget=budget)
        first_answer = time.perf_counter() - start
        for number in [*range(WARM), *range(arguments.queries)]:
            cpu = time.process_time()
            hits = index.search(str(number), k=K, budget=budget)
            cpu_ms.append((time.process_time() - cpu) * 1e3)
            spent.append(hits[0].budget)
            found.append({page_number(hit.doc_id, hit.page_num) for hit in hits})
    spent, found = spent[WARM:], found[WARM:]
    dim = spent[0].dim
    return {
        "dim": dim,
        "first_answer_s": round(first_answer, 2),
        "ms": round(statistics.median(each.ms for each in spent), 2),
        "cpu_ms": round(statistics.median(cpu_ms[WARM:]), 2),
        **{part: round(statistics.median(getattr(each, part) for each in spent), 2) for part in PARTS},
        "candidates": statistics.median(each.candidates for each in spent),
        "recall_same_width": recall(found, truth[dim]),
        "recall_full": recall(found, truth[max(truth)]),
    }


def recall(found: list[set[int]], truth: npt.NDArray[np.int64]) -> float:
    shares = (len(pages & set(best.tolist())) / K for pages, best in zip(found, truth, strict=True))
    return round(statistics.mean(shares), 4)


def report(rows: list[Row]) -> None:
    columns = ("first_answer_s", "ms", "cpu_ms", *PARTS, "candidates", "recall_same_width", "recall_full", "growth")
    print(f"{'pages':>8}  {'budget':<16}" + "".join(f"{name:>{max(len(name), 8) + 2}}" for name in columns))
    for row in rows:
        smaller = [old for old in rows if old["budget"] == row["budget"] and old["pages"] < row["pages"]]
        if smaller:
            row["growth"] = round(row["ms"] / smaller[-1]["ms"] * smaller[-1]["pages"] / row["pages"], 3)
        cells = "".join(f"{row.get(name, ''):>{max(len(name), 8) + 2}}" for name in columns)
        print(f"{row['pages']:>8}  {row['budget']:<16}{cells}")
    print(json.dumps({"machine": machine("budgetvdr", "lancedb", "numpy"), "rows": rows}))


if __name__ == "__main__":
    main()
