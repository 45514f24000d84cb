"""Pages a second and milliseconds a query, by budget, with the share of each stage.

    python tests/bench/bench_index.py FOLDER_OF_PDFS [--pages 1000] [--ocr-pages 20] [--queries 30]

Indexes the folder's documents (again under other names until there are enough pages), searches at every point of the
grid, reads some pages by OCR, and prints tables and, last, one JSON object. Times are wall time on the machine as it
is; run it on a quiet one.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from machine import machine

from budgetvdr import Budget, Index, Page
from budgetvdr.sources import FailedSource, open_documents

PACKAGES = ("budgetvdr", "lancedb", "onnxruntime", "numkong", "numpy", "pypdfium2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pages", type=int, default=1000)
    parser.add_argument("--ocr-pages", type=int, default=20)
    parser.add_argument("--queries", type=int, default=30)
    arguments = parser.parse_args()
    result: dict[str, object] = {"machine": machine(*PACKAGES)}
    with tempfile.TemporaryDirectory() as scratch:
        with Index.open(Path(scratch) / "text.bvdr") as index:
            result["text_layer"] = add(index, pages(arguments.folder, arguments.pages, "auto"))
            result["search"] = search(index, arguments.queries)
        if arguments.ocr_pages:
            with Index.open(Path(scratch) / "ocr.bvdr") as index:
                result["ocr"] = add(index, pages(arguments.folder, arguments.ocr_pages, "ocr"))
    result["peak_memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps(result))


def pages(folder: Path, count: int, read: str) -> Iterator[Page]:
    """That many pages of the folder, each round of it under other document names."""

    def endless() -> Iterator[Page]:
        for turn in range(count):
            for document in open_documents(folder, read=read):  # type: ignore[arg-type]
                if isinstance(document, FailedSource):
                    continue
                for page in document.pages():
                    if isinstance(page, Page):
                        page.doc_id = f"{turn}-{page.doc_id}"
                        yield page

    return islice(endless(), count)


def add(index: Index, source: Iterator[Page]) -> dict[str, object]:
    cpu = time.process_time()
    report = index.add_pages(source, show_progress_bar=False)
    cpu = time.process_time() - cpu
    total, info = report.seconds["total"], index.info()
    print(
        f"{report.pages} pages in {total:.1f} s: {report.pages / total:.1f} pages/s, "
        f"{cpu / report.pages:.3f} CPU-s a page"
    )
    for stage, seconds in report.seconds.items():
        print(f"  {stage:>12} {seconds:8.2f} s  {1000 * seconds / report.pages:7.1f} ms a page")
    return {
        "pages": report.pages,
        "pages_per_s": report.pages / total,
        "cpu_s_per_page": cpu / report.pages,
        "vectors_per_page": info.vectors / max(info.pages, 1),
        "bytes_per_page": info.bytes_on_disk / max(info.pages, 1),
        "seconds": report.seconds,
    }


def search(index: Index, count: int) -> list[dict[str, float]]:
    """Median milliseconds of queries of 8 to 14 words taken from the pages themselves."""
    seeds = index.search("the annual report on employees and their benefits", count, budget="fast")
    queries = [" ".join(hit.text.split()[20 : 28 + place % 7]) or hit.doc_id for place, hit in enumerate(seeds)]
    rows = []
    print(f"{'depth':>5} {'dim':>5} {'ms':>8} {'query':>8} {'scan':>8} {'exact':>8}   of {len(index)} pages")
    for depth in reversed(index.depths):
        for dim in reversed(index.dims):
            budget = Budget(depth=depth, dim=dim)
            index.search(queries[0], budget=budget)
            wall, spent = [], []
            for query in queries:
                start = time.perf_counter()
                hits = index.search(query, budget=budget)
                wall.append((time.perf_counter() - start) * 1e3)
                spent.append(hits[0].budget)
            row = {
                "depth": depth,
                "dim": dim,
                "ms": statistics.median(wall),
                "encode_ms": statistics.median(s.encode_ms for s in spent),
                "scan_ms": statistics.median(s.scan_ms for s in spent),
                "exact_ms": statistics.median(s.exact_ms for s in spent),
            }
            rows.append(row)
            print("{depth:>5} {dim:>5} {ms:8.1f} {encode_ms:8.1f} {scan_ms:8.1f} {exact_ms:8.1f}".format(**row))
    return rows


if __name__ == "__main__":
    main()
