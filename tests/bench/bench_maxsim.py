"""MaxSim: pages a second of every kernel that runs here, beside plain numpy and beside what the machine could do.

    python tests/bench/bench_maxsim.py [--quick]
    python tests/bench/bench_maxsim.py --index some.bvdr --questions queries.jsonl

The first form scores random pages with 20 query vectors, on one thread (CPU time, so that a busy machine disturbs less)
and on all cores (wall time). Everything takes turns; vs_numpy is the median over rounds of the time of plain numpy
(float32 rows, X @ Q.T in chunks of 8,192 rows, maximum.reduceat) by the kernel's in the same round. "numpy int8" and
"numpy float16" are the package without compiled kernels and without numkong. BLAS has one thread a worker; what happens
otherwise is stated last.

The limit of a kernel is the nearer of two, measured in the same rounds: reading its rows at the machine's bandwidth
(numpy's maximum over 128 MiB of float32), and its multiplications at the machine's peak (a float32 product of
1024 x 1024 matrices by BLAS; int8 at four times that with AVX-512 VNNI, whose instruction does four times the products,
and twice with AVX2). Quantising is beside the bandwidth alone: it reads two bytes a component and writes one into fresh
memory. --quick takes a quarter of the pages, which the last cache may hold in part.

The second form measures, on a real index and real questions, the largest difference of a scanned score from the exact
one, and how many pages lie within the searcher's margin of the tenth. Tables, then one JSON object.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np

from budgetvdr import Index
from budgetvdr.similarity import maxsim as module
from budgetvdr.similarity.maxsim import ExactPages, Int8Pages, maxsim, quantise, scan_int8, unit_prefix
from budgetvdr.view import query_at

SHAPES = ((1030, 128), (150, 128), (150, 32), (32, 32))
QUERIES = 20
READ = 1 << 25  # components of 128 MiB
CHUNK_ROWS = 8192
Way = Callable[[Executor | None], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--index", type=Path)
    parser.add_argument("--questions", type=Path)
    parser.add_argument("--pool", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if "OPENBLAS_NUM_THREADS" not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    if arguments.index is not None:
        print(json.dumps(errors(arguments.index, arguments.questions)))
    elif arguments.pool:
        print(pages_per_s_in_pool())
    else:
        print(json.dumps(speeds(3, 10_000_000) if arguments.quick else speeds(9, 40_000_000)))


def speeds(rounds: int, components: int) -> dict[str, object]:
    cores = os.cpu_count() or 1
    rows: list[dict[str, object]] = []
    with ThreadPoolExecutor(cores) as pool:
        for shape in SHAPES:
            work = Work(shape, components)
            for workers, threads in ((None, 1), (pool, cores)):
                for measured in work.measure(workers, threads, rounds):
                    rows.append(measured)
                    print("{shape:>9} {threads} {kernel:<18} {pages_per_s:>12,} pages/s".format(**measured), end="")
                    print("{vs_numpy:>7.2f} {share_of_limit:>6.0%} of {limit}".format(**measured))
    trap = {f"{blas} each": in_pool(blas) for blas in (1, cores)}
    print(
        f"plain numpy, 150x128, {cores} workers, BLAS threads: "
        + ", ".join(f"{k} {v:,} pages/s" for k, v in trap.items())
    )
    best = module._kernels()[0]
    slower = [one for one in rows if str(one["kernel"]).startswith(best) and one["vs_numpy"] < 1]
    print(f"{best} slower than numpy:", slower or "nowhere")
    return {"machine": machine(), "rows": rows, "blas_threads_in_a_pool": trap}


class Work:
    """Random pages of one shape, the ways to score and to quantise them, and the machine's two limits."""

    def __init__(self, shape: tuple[int, int], components: int) -> None:
        self.vectors, self.dim = shape
        self.count = components // (self.vectors * self.dim)
        rng = np.random.default_rng(0)
        offsets = np.arange(0, self.count * self.vectors + 1, self.vectors)
        # Random rows repeated: what the values are does not matter, that they are many does.
        half = np.resize(rng.standard_normal((4096, self.dim)).astype(np.float16), (offsets[-1], self.dim))
        query = unit_prefix(rng.standard_normal((QUERIES, self.dim)), self.dim)
        exact, pages = ExactPages((half,), offsets), quantise((half,), offsets)
        self.ways: dict[str, Way] = {
            "machine read": partial(over, np.max, np.ones(READ, np.float32)),
            "machine product": partial(over, square_product, np.ones((1024, 1024), np.float32)),
            "numpy float32": partial(plain, half.astype(np.float32), offsets, query),
        }
        for name in module._kernels():
            self.ways[f"{name} int8"] = partial(scan_with, name, pages, query)
            self.ways[f"{name} float16"] = partial(exact_with, name, exact, query)
            self.ways[f"{name} quantise"] = partial(quantise_with, name, exact)

    def measure(self, pool: Executor | None, threads: int, rounds: int) -> list[dict[str, object]]:
        clock = time.process_time if threads == 1 else time.perf_counter
        spent: dict[str, list[float]] = {name: [] for name in self.ways}
        for _ in range(rounds + 1):
            for name, way in self.ways.items():
                start = clock()
                way(pool)
                spent[name].append(clock() - start)
        # The first round touches memory for the first time.
        times = {name: np.array(seconds[1:]) for name, seconds in spent.items()}
        # Each worker forms a product; the rows to read are shared out.
        peaks = {"memory": 4 * READ / times["machine read"], "products": threads * 1024**3 / times["machine product"]}
        print(
            f"{self.vectors}x{self.dim}, {threads} thread(s): reads {np.median(peaks['memory']) / 1e9:.1f} GB/s,",
            end=" ",
        )
        print(f"{2 * np.median(peaks['products']) / 1e9:.0f} GFLOP/s float32")
        return [
            self.row(name, seconds, threads, peaks) | {"vs_numpy": ratio(times, name)}
            for name, seconds in times.items()
            if not name.startswith("machine")
        ]

    def row(self, name: str, seconds: np.ndarray, threads: int, peaks: dict[str, np.ndarray]) -> dict[str, object]:
        library, kind = name.split()
        components = self.count * self.vectors * self.dim
        # numkong and numpy take the best instructions of the machine.
        faster = (2 if library == "avx2" or "avx512" not in module._kernels() else 4) if kind == "int8" else 1
        least = {
            "memory": components * {"int8": 1, "float16": 2, "float32": 4, "quantise": 3}[kind] / peaks["memory"],
            "products": components * (0 if kind == "quantise" else QUERIES) / faster / peaks["products"],
        }
        limit = max(least, key=lambda one: np.median(least[one]))
        return {
            "shape": f"{self.vectors}x{self.dim}",
            "kernel": name,
            "threads": threads,
            "pages_per_s": round(self.count / float(np.median(seconds))),
            "gb_per_s": round(components * 2 / float(np.median(seconds)) / 1e9, 2) if kind == "quantise" else None,
            "share_of_limit": round(float(np.median(least[limit] / seconds)), 3),
            "limit": limit,
        }


def ratio(times: dict[str, np.ndarray], name: str) -> float:
    """How many times as fast as plain numpy; quantising beside numpy's."""
    plainly = "numpy quantise" if name.endswith("quantise") else "numpy float32"
    return round(float(np.median(times[plainly] / times[name])), 2)


def over(function: Callable[[np.ndarray], object], rows: np.ndarray, pool: Executor | None) -> None:
    """The function over the rows on this thread, or over equal shares of a flat array, or all of a square, by each."""
    if pool is None:
        function(rows)
        return
    cores = os.cpu_count() or 1
    list(pool.map(function, np.array_split(rows, cores) if rows.ndim == 1 else [rows] * cores))


def square_product(square: np.ndarray) -> np.ndarray:
    return square @ square


def plain(single: np.ndarray, offsets: np.ndarray, query: np.ndarray, pool: Executor | None) -> np.ndarray:
    columns = np.ascontiguousarray(query.T)
    step = max(1, CHUNK_ROWS // int(offsets[1]))

    def score(first: int) -> np.ndarray:
        bounds = offsets[first : first + step + 1]
        similarities = single[bounds[0] : bounds[-1]] @ columns
        return np.maximum.reduceat(similarities, bounds[:-1] - bounds[0], axis=0).mean(axis=1)

    chunks = range(0, len(offsets) - 1, step)
    return np.concatenate(list(map(score, chunks) if pool is None else pool.map(score, chunks)))


def scan_with(name: str, pages: Int8Pages, query: np.ndarray, pool: Executor | None) -> np.ndarray:
    module.kernel = lambda: name
    return scan_int8(pages, query, pool=pool)


def exact_with(name: str, pages: ExactPages, query: np.ndarray, pool: Executor | None) -> np.ndarray:
    module.kernel = lambda: name
    return maxsim(pages, query, pool=pool)


def quantise_with(name: str, pages: ExactPages, pool: Executor | None) -> Int8Pages:
    module.kernel = lambda: name
    return quantise(pages.slices, pages.offsets, pool=pool)


def in_pool(blas_threads: int) -> int:
    """Pages a second of plain numpy in a pool of as many workers as cores, in a process with so many BLAS threads."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": str(blas_threads)}
    command = [sys.executable, __file__, "--pool"]
    return int(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def pages_per_s_in_pool() -> int:
    offsets = np.arange(0, 1000 * 150 + 1, 150)
    single, query = np.ones((offsets[-1], 128), np.float32), np.ones((QUERIES, 128), np.float32)
    seconds = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in range(5):
            start = time.perf_counter()
            plain(single, offsets, query, pool)
            seconds.append(time.perf_counter() - start)
    return round(1000 / statistics.median(seconds))


def machine() -> str:
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        processor = next((line.split(": ")[1] for line in lines if line.startswith("model name")), processor)
    versions = ", ".join(f"{name} {version(name)}" for name in ("numpy", "numkong"))
    return (
        f"{processor}, {os.cpu_count()} cores, kernels {', '.join(module._kernels())}; {platform.system()}, "
        f"Python {platform.python_version()}, {versions}; {datetime.date.today()}"
    )


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
