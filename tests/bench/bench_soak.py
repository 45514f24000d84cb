"""Readers and a writer on one index for minutes: no error, no torn read, no growth.

    python tests/bench/bench_soak.py [--seconds 300] [--readers 8] [--dir FOLDER]

One process adds, replaces, deletes and optimizes documents of three pages; the others search without pause at all
presets, with and without a filter. What a page's vectors are follows from its text, which names document, page and
revision. So a reader computes the score of every hit anew, from the definition, and sees whether its text, its number
and its vectors are of one revision; and whether all pages of a document that a search found are of the same revision.

Memory of a reader is its resident size, the highest of the second quarter of its time against the highest of the last.
Disk is counted after each `optimize`, and at the end against an index into which the same pages are added once.
Prints a table, then one JSON object; the exit status is 1 where anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import random
import sys
import tempfile
import time
import traceback
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from budgetvdr import Hit, Index, Page, Words
from budgetvdr.bundle import Manifest, Preset, Window
from budgetvdr.errors import BudgetVDRError
from budgetvdr.pages import EncodedPage, EncodedQuery

DOCUMENTS, PAGES, VECTORS, QUERY_VECTORS = 80, 3, 60, 8
DIMS, DEPTH = (32, 64, 128), 2
# Scores are of float16 vectors scaled to unit length in float32.
TOLERANCE = 2e-3
# LanceDB keeps what it knows of the versions it has read, up to 64 MB; a reader that runs longer grows no more.
_MOST_GROWTH = 80e6


class TextEncoder:
    """Vectors that follow from the text alone."""

    manifest = Manifest(
        format_version=1,
        name="soak",
        family="reader",
        depths=(DEPTH,),
        dims=DIMS,
        trained_exits=(DEPTH,),
        unit_queries=True,
        max_tokens=512,
        max_query_tokens=64,
        page_graphs={},
        query_graphs={},
        presets={"full": Preset(DEPTH, 128), "balanced": Preset(DEPTH, 64), "fast": Preset(DEPTH, 32)},
        files={},
    )

    def encode_pages(
        self,
        pages: Sequence[Page],
        depths: Sequence[int],
        *,
        attention: Mapping[int, Window] | None = None,
        on_page: Callable[[], object] | None = None,
    ) -> list[EncodedPage | BudgetVDRError]:
        encoded: list[EncodedPage | BudgetVDRError] = []
        for page in pages:
            text = " ".join(page.words.texts) if page.words else ""
            regions = np.tile(np.array([[0.1, 0.1, 0.9, 0.9]], np.float32), (VECTORS, 1))
            encoded.append(EncodedPage({depth: page_vectors(text) for depth in depths}, regions, text, "text_layer"))
            if on_page is not None:
                on_page()
        return encoded

    def encode_query(self, text: str, depth: int) -> EncodedQuery:
        return EncodedQuery(query_vectors(text), tuple(text for _ in range(QUERY_VECTORS)))


def page_vectors(text: str) -> np.ndarray:
    """Vectors whose length, too, depends on the text."""
    rng = np.random.default_rng(zlib.crc32(text.encode()))
    return rng.standard_normal((VECTORS, DIMS[-1]), np.float32) * rng.uniform(0.5, 2.0)


def query_vectors(text: str) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(text.encode())).standard_normal((QUERY_VECTORS, DIMS[-1]), np.float32)


def unit(vectors: np.ndarray, dim: int) -> np.ndarray:
    cut = vectors[:, :dim].astype(np.float32)
    return cut / np.linalg.norm(cut, axis=1, keepdims=True)


def document(number: int, revision: int) -> list[Page]:
    box = np.array([[0.1, 0.1, 0.9, 0.9]], np.float32)
    return [
        Page(
            f"doc{number}",
            page,
            words=Words((f"doc{number}", f"page{page}", f"revision{revision}"), np.tile(box, (3, 1))),
            metadata={"parity": number % 2},
        )
        for page in range(1, PAGES + 1)
    ]


def check_hits(hits: list[Hit], k: int, where: dict[str, int] | None) -> None:
    """Raises AssertionError for a torn read."""
    revisions: defaultdict[str, Counter[str]] = defaultdict(Counter)
    assert len({hit.id for hit in hits}) == len(hits), "a page twice"
    for hit in hits:
        doc_id, page, revision = hit.text.split()
        assert (doc_id, page) == (hit.doc_id, f"page{hit.page_num}"), (hit.id, hit.text)
        assert where is None or hit.metadata["parity"] == where["parity"], (hit.id, hit.metadata)
        query, vectors = query_vectors(hit.query), page_vectors(hit.text).astype(np.float16)
        exact = float((unit(query, hit.budget.dim) @ unit(vectors, hit.budget.dim).T).max(axis=1).mean())
        assert abs(exact - hit.score) < TOLERANCE, (hit.id, hit.text, hit.score, exact)
        revisions[doc_id][revision] += 1
    for doc_id, found in revisions.items():
        assert len(found) == 1, (doc_id, found)
        assert len(hits) == k or found.total() == PAGES, (doc_id, found)


def read(path: str, seed: int, stop: Event, results: Any) -> None:
    """Searches until told to stop; tells how many searches there were, what went wrong, and its memory over time."""
    rng, process = random.Random(seed), psutil.Process()
    searches, versions, errors, memory = 0, set(), [], []
    with Index.open(path, encoder=TextEncoder(), read_only=True, threads=1) as index:
        while not stop.is_set() and len(errors) < 3:
            k, where = rng.choice([1, 10, 10_000]), rng.choice([None, None, {"parity": rng.randrange(2)}])
            try:
                hits = index.search(
                    f"query {rng.random()}", k, budget=rng.choice(["full", "balanced", "fast"]), where=where
                )
                check_hits(hits, k, where)
                if searches % 5 == 0:
                    versions.add(index.info().version)
                    memory.append((time.monotonic(), process.memory_info().rss))
            except Exception:
                errors.append(traceback.format_exc(limit=-3))
            searches += 1
    results.put({"searches": searches, "versions": len(versions), "errors": errors, "memory": memory})


def write(path: str, stop: Event, results: Any) -> None:
    """Writes until told to stop; tells how often it did what, what went wrong, and the disk after each `optimize`."""
    rng, counts, errors, disk = random.Random(0), Counter[str](), [], []
    revision, begun = 0, time.monotonic()
    with Index.open(path, encoder=TextEncoder(), threads=1) as index:
        while not stop.is_set() and len(errors) < 3:
            action = rng.choices(["replace", "delete", "several", "optimize"], [70, 12, 15, 3])[0]
            chosen = rng.sample(range(DOCUMENTS), 4 if action == "several" else 1)
            revision += 1
            counts[action] += 1
            try:
                if action == "optimize":
                    index.optimize(keep=timedelta(seconds=20))
                    disk.append((round(time.monotonic() - begun), index.info().bytes_on_disk))
                elif action == "delete":
                    index.delete(doc_id=f"doc{chosen[0]}")
                else:
                    pages = [page for number in chosen for page in document(number, revision)]
                    index.add_pages(pages, show_progress_bar=False)
            except Exception:
                errors.append(traceback.format_exc(limit=-3))
    results.put({"writes": dict(counts), "errors": errors, "disk": disk})


def fresh_size(folder: Path, pages: int) -> int:
    """Bytes of an index of as many pages that was written once."""
    with Index.open(folder / "fresh", encoder=TextEncoder(), threads=1) as index:
        for number in range(pages // PAGES):
            index.add_pages(document(number, 1), show_progress_bar=False)
        index.optimize(keep=timedelta(0))
        return index.info().bytes_on_disk


def growth(memory: list[tuple[float, int]]) -> tuple[int, int]:
    """Highest resident bytes in the second quarter of the time, and in the last."""
    if not memory:
        return 0, 0
    begun, ended = memory[0][0], memory[-1][0]

    def highest(first: float, last: float) -> int:
        return max((size for at, size in memory if first <= (at - begun) / max(ended - begun, 1) <= last), default=0)

    return highest(0.25, 0.5), highest(0.75, 1.0)


def soak(path: Path, seconds: float, readers: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What each reader and the writer tell."""
    context = multiprocessing.get_context("spawn")
    stop, heard, told = context.Event(), context.Queue(), context.Queue()
    with Index.open(path, encoder=TextEncoder(), threads=1) as index:
        for number in range(DOCUMENTS):
            index.add_pages(document(number, 0), show_progress_bar=False)
    processes = [context.Process(target=read, args=(str(path), seed, stop, heard)) for seed in range(readers)]
    processes.append(context.Process(target=write, args=(str(path), stop, told)))
    for process in processes:
        process.start()
    time.sleep(seconds)
    stop.set()
    reports, writer = [heard.get(timeout=120) for _ in range(readers)], told.get(timeout=120)
    for process in processes:
        process.join(60)
    return reports, writer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--readers", type=int, default=8)
    parser.add_argument("--dir", help="where to write the index; a temporary folder by default")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as temporary:
        path = Path(temporary) / "index"
        reports, writer = soak(path, arguments.seconds, arguments.readers)
        with Index.open(path, encoder=TextEncoder(), threads=1) as index:
            index.optimize(keep=timedelta(0))
            after, pages = index.info().bytes_on_disk, len(index)
        fresh = fresh_size(Path(temporary), pages)
    errors = [error for report in (*reports, writer) for error in report["errors"]]
    memory = [growth(report["memory"]) for report in reports]
    searches = sum(report["searches"] for report in reports)
    print(f"{'reader':>8} {'searches':>9} {'versions':>9} {'MB then':>8} {'MB at end':>9}")
    for number, (report, (before, later)) in enumerate(zip(reports, memory, strict=True)):
        print(f"{number:>8} {report['searches']:>9} {report['versions']:>9} {before / 1e6:>8.0f} {later / 1e6:>9.0f}")
    fullest = max((report["memory"] for report in reports), key=lambda samples: samples[-1][1] if samples else 0)
    steps = fullest[:: max(len(fullest) // 12, 1)]
    print("MB of the largest reader over time:", [round(size / 1e6) for _, size in steps])
    print(f"writes: {writer['writes']}")
    print("MB on disk after optimize:", [f"{at} s: {size / 1e6:.1f}" for at, size in writer["disk"]])
    print(f"at the end {after / 1e6:.2f} MB for {pages} pages; written once they take {fresh / 1e6:.2f} MB")
    for error in errors:
        print(error)
    grown = max((later - before for before, later in memory), default=0)
    passed = not errors and searches > 0 and after < 1.1 * fresh + 100_000 and grown < _MOST_GROWTH
    print(
        json.dumps(
            {
                "machine": f"{platform.machine()}, {psutil.cpu_count()} cores, Python {platform.python_version()}",
                "date": date.today().isoformat(),
                "seconds": arguments.seconds,
                "readers": arguments.readers,
                "searches": searches,
                "writes": writer["writes"],
                "errors": len(errors),
                "reader_growth_mb": round(grown / 1e6, 1),
                "disk_mb": round(after / 1e6, 2),
                "disk_written_once_mb": round(fresh / 1e6, 2),
                "passed": passed,
            }
        )
    )
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
