"""What the index on disk costs: a commit, a scan by depth and width, taking pages, optimizing; with peak memory.

    python tests/bench/bench_store.py [--pages 1024] [--vectors 490] [--dir FOLDER]

Random vectors in the bundled reader's shape (depths 2, 4, 6; widths 32 to 384). Scans read files that were just
written, so they come from the page cache. Times are wall, followed by CPU of the whole process: LanceDB works in its
own threads. Every stage runs in a process of its own, so that its peak memory is its own (about 190 MB of it are
imports). Prints a table, then one JSON object.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

from budgetvdr.store import STORE_FORMAT_VERSION, IndexSettings, PageRow, Store

SETTINGS = IndexSettings(STORE_FORMAT_VERSION, "0" * 16, "bench", (2, 4, 6), (32, 64, 128, 256, 384))
BATCH = 64

Row = dict[str, Any]


def rows(doc_id: str, pages: int, vectors: int, revision: str) -> list[PageRow]:
    """A batch of random pages of one document."""
    rng = np.random.default_rng(len(doc_id))
    width = SETTINGS.dims[-1]
    return [
        PageRow(
            doc_id=doc_id,
            page_num=number,
            regions=rng.random((vectors, 4), np.float32),
            vectors={depth: rng.standard_normal((vectors, width), np.float32) for depth in SETTINGS.depths},
            revision=revision,
            text="word " * 400,
            metadata={"year": 2000 + number % 25},
        )
        for number in range(1, pages + 1)
    ]


def timed(name: str, work: Callable[[], object], repeats: int, megabytes: float = 0.0) -> Row:
    """One line of the table: the mean of several runs."""
    wall, cpu = perf_counter(), process_time()
    for _ in range(repeats):
        work()
    wall, cpu = (perf_counter() - wall) / repeats, (process_time() - cpu) / repeats
    row: Row = {"what": name, "ms": round(wall * 1e3, 2), "cpu_ms": round(cpu * 1e3, 2)}
    return row | ({"mb_per_s": round(megabytes / wall)} if megabytes else {})


def write(folder: str, pages: int, vectors: int) -> Iterator[Row]:
    """Commits of whole batches, then the replacement of one document by a shorter one."""
    store = Store.open(folder, settings_if_new=SETTINGS)
    payload = BATCH * vectors * SETTINGS.dims[-1] * 2 * len(SETTINGS.depths) / 1e6
    measured = []
    for batch in range(pages // BATCH):
        fresh = rows(f"doc{batch}", BATCH, vectors, "r1")
        measured.append(timed("", lambda fresh=fresh: store.upsert(fresh), 1))  # type: ignore[misc]
    wall, cpu = (float(np.median([row[key] for row in measured])) for key in ("ms", "cpu_ms"))
    what = f"commit {BATCH} pages, {payload:.0f} MB (median)"
    yield {"what": what, "ms": wall, "cpu_ms": cpu, "mb_per_s": round(payload / wall * 1e3)}
    shorter = rows("doc0", BATCH // 2, vectors, "r2")
    yield timed("replace a document by half its pages", lambda: store.upsert(shorter, {"doc0": "r2"}), 1)
    again = rows("doc0", BATCH, vectors, "r3")
    yield timed("and back", lambda: store.upsert(again, {"doc0": "r3"}), 1)


def scan(folder: str, pages: int, vectors: int, depth: int, dim: int) -> Iterator[Row]:
    """One full scan, vectors summed so that every byte is touched."""
    snapshot = Store.open(folder, read_only=True).snapshot()

    def read() -> None:
        for slab in snapshot.scan(depth, dim):
            for part in slab.slices:
                part.view(np.uint16).max(initial=0)

    yield timed(f"scan depth {depth}, width {dim}", read, 3, pages * vectors * dim * 2 / 1e6)


def take(folder: str, pages: int) -> Iterator[Row]:
    """What a search asks besides the scan."""
    store = Store.open(folder, read_only=True)
    snapshot = store.snapshot()
    every = snapshot.matching()
    chosen = np.random.default_rng(0).choice(every, min(42, pages), replace=False)
    yield timed("look for a newer version", store.snapshot, 50)
    yield timed("pages where year = 2010", lambda: snapshot.matching("year = 2010"), 20)
    yield timed("state of a document", lambda: snapshot.document_state("doc1"), 20)
    yield timed("facts of 10 pages", lambda: snapshot.facts(chosen[:10]), 20)
    for dim in (SETTINGS.dims[0], SETTINGS.dims[-1]):
        yield timed(f"vectors of {len(chosen)} random pages, width {dim}", lambda: snapshot.vectors(chosen, 6, dim), 10)  # noqa: B023
    yield timed("stats", snapshot.stats, 3)


def optimize(folder: str) -> Iterator[Row]:
    """Compaction of everything, then of the versions it leaves."""
    store = Store.open(folder)
    for keep in (timedelta(minutes=15), timedelta(0)):
        start, cpu = perf_counter(), process_time()
        report = store.optimize(keep)
        yield {
            "what": f"optimize, keeping {keep}: {report.fragments_before} -> {report.fragments_after} fragments, "
            f"{report.bytes_before / 1e6:.0f} -> {report.bytes_after / 1e6:.0f} MB",
            "ms": round((perf_counter() - start) * 1e3, 1),
            "cpu_ms": round((process_time() - cpu) * 1e3, 1),
        }


def tiny_upserts(folder: str) -> Iterator[Row]:
    """Sixty one-page upserts of 20 pages, and what optimizing makes of them."""
    store = Store.open(folder, settings_if_new=SETTINGS)
    single = [rows(f"doc{number % 20}", 1, 20, f"r{number}") for number in range(60)]
    remaining = iter(single)
    yield timed("upsert one page of 20 vectors", lambda: store.upsert(next(remaining)), 60)
    yield from optimize(folder)


def collect(stage: Callable[..., Iterator[Row]], arguments: tuple[Any, ...]) -> list[Row]:
    """Runs a stage and adds the peak memory of the process to its rows."""
    done = list(stage(*arguments))
    peak = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)
    return [row | {"peak_mb": peak} for row in done]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=1024)
    parser.add_argument("--vectors", type=int, default=490, help="vectors a page")
    parser.add_argument("--dir", help="where to write the index; a temporary folder by default")
    arguments = parser.parse_args()
    pages, vectors = arguments.pages // BATCH * BATCH, arguments.vectors
    table: list[Row] = []
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        index, tiny = str(Path(folder) / "index"), str(Path(folder) / "tiny")
        stages: list[tuple[Callable[..., Iterator[Row]], tuple[Any, ...]]] = [(write, (index, pages, vectors))]
        stages += [(scan, (index, pages, vectors, 6, dim)) for dim in SETTINGS.dims]
        stages += [(take, (index, pages)), (optimize, (index,)), (scan, (index, pages, vectors, 6, 384))]
        stages += [(tiny_upserts, (tiny,))]
        for stage, given in stages:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                for row in process.submit(collect, stage, given).result():
                    table.append(row)
                    print(f"{row['what']:<88} {row['ms']:>9} ms {row['cpu_ms']:>9} cpu ms ", end="")
                    print(f"{row.get('mb_per_s', ''):>6} MB/s {row['peak_mb']:>6} MB peak")
    print(json.dumps({"pages": pages, "vectors_per_page": vectors, "rows": table}))


if __name__ == "__main__":
    main()
