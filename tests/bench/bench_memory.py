"""An index larger than the memory it may use: resident size, answers and speed, with and without a limit.

    python tests/bench/bench_memory.py [--pages 55000] [--limit 256MB] [--queries 20] [--dir FOLDER] [--quick]

Fills an index with synthetic pages, 150 vectors of 128 components each (2.1 GB of vectors by default), and opens it in
one process without a limit and in another with it. Both run the same searches at full width, the second half of them
with a filter that a fifth of the pages meet. Told of each: peak and steady resident size (VmHWM, and VmRSS after the
last search; memory mapped from files counts), milliseconds a search, and for the streamed one how many bytes of vectors
a second that is, beside what plain reads of the index's files reach. Ids must be the same, and scores within 1e-4.

Files that were just written or read come from the page cache. Prints a table, then one JSON object. With --dir the
index is kept and used again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import machine
from synthetic import Collection, SyntheticEncoder, fill

from budgetvdr import Index

UNITS = {"KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
NO_LIMIT = 1 << 40
TOLERANCE, GOAL_MB = 1e-4, 600
FILTER = {"year": [2000, 2001, 2002, 2003, 2004]}

Row = dict[str, Any]


def main() -> None:
    arguments = parsed()
    if arguments.search is not None:
        print(json.dumps(search(arguments.search, arguments)))
        return
    folder = arguments.dir or Path(tempfile.mkdtemp(prefix="memory-"))
    try:
        index = folder / f"{arguments.pages}.bvdr"
        collection = Collection(arguments.pages)
        fill(index, collection, SyntheticEncoder(collection))
        unlimited, limited = (in_process(index, limit, arguments) for limit in (NO_LIMIT, arguments.limit))
        disk = read_speed(index)
    finally:
        if arguments.dir is None:
            shutil.rmtree(folder)
    report(unlimited, limited, disk, arguments)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=55_000)
    parser.add_argument("--limit", type=in_bytes, default="256MB", help="such as 256MB")
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dir", type=Path, help="keeps the index here and uses the one it finds")
    parser.add_argument("--quick", action="store_true", help="5,000 pages, a limit of 24 MB, 6 queries")
    parser.add_argument("--search", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.pages, arguments.limit, arguments.queries = 5000, 24 << 20, 6
    return arguments


def in_bytes(text: str) -> int:
    """A number of bytes, also with a unit: 256MB."""
    unit = text[-2:].upper()
    return int(float(text[:-2]) * UNITS[unit]) if unit in UNITS else int(text)


def in_process(index: Path, limit: int, arguments: argparse.Namespace) -> Row:
    """The searches of one limit, in a process of its own so that its memory is its own."""
    options = {"pages": arguments.pages, "limit": limit, "queries": arguments.queries, "threads": arguments.threads}
    command = [sys.executable, __file__, "--search", str(index)]
    command += [word for key, value in options.items() for word in (f"--{key}", str(value))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def search(index: Path, arguments: argparse.Namespace) -> Row:
    """Runs all searches in this process and tells what they found and took."""
    collection = Collection(arguments.pages)
    encoder = SyntheticEncoder(collection)
    for number in range(arguments.queries):
        encoder.encode_query(str(number), encoder.manifest.depths[-1])
    imported = resident_mb("VmRSS")
    with Index.open(
        index, encoder=encoder, memory_limit=arguments.limit, threads=arguments.threads, read_only=True
    ) as opened:
        answers, ms, steady = [], [], []
        opened.search("0")
        loaded = resident_mb("VmHWM")
        for number in range(arguments.queries):
            start = time.perf_counter()
            hits = opened.search(str(number), where=FILTER if filtered(number, arguments.queries) else None)
            ms.append((time.perf_counter() - start) * 1e3)
            steady.append(resident_mb("VmRSS"))
            answers.append([(hit.id, hit.score) for hit in hits])
    return {
        "imported_mb": imported,
        "first_peak_mb": loaded,
        "steady_mb": statistics.median(steady),
        "peak_mb": resident_mb("VmHWM"),
        "ms": [round(each, 1) for each in ms],
        "answers": answers,
    }


def filtered(number: int, queries: int) -> bool:
    """Whether a search has the filter: those of the second half."""
    return number >= queries // 2


def resident_mb(key: str) -> int:
    """A line of this process's status on Linux, in MB."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[key].split()[0]) >> 10


def read_speed(index: Path) -> float:
    """MB a second of plain reads of the index's data files, one after the other."""
    start, total = time.perf_counter(), 0
    for file in sorted(index.rglob("*.lance")):
        if file.is_file():
            with file.open("rb", buffering=0) as stream:
                while block := stream.read(8 << 20):
                    total += len(block)
    return total / 1e6 / (time.perf_counter() - start)


def difference(unlimited: Row, limited: Row) -> float:
    """The largest difference of a score. Raises SystemExit where an answer differs."""
    largest = 0.0
    for number, (ours, theirs) in enumerate(zip(unlimited["answers"], limited["answers"], strict=True)):
        if {page for page, _ in ours} != {page for page, _ in theirs}:
            raise SystemExit(f"query {number}: the limit changes the pages: {ours} and {theirs}")
        scores = dict(theirs)
        largest = max([largest, *(abs(score - scores[page]) for page, score in ours)])
    if largest > TOLERANCE:
        raise SystemExit(f"the limit changes a score by {largest}, more than {TOLERANCE}")
    return largest


def report(unlimited: Row, limited: Row, disk: float, arguments: argparse.Namespace) -> None:
    largest = difference(unlimited, limited)
    collection = Collection(arguments.pages)
    vectors_mb = arguments.pages * collection.vectors * collection.width * 2 / 1e6
    half = arguments.queries // 2
    rows = []
    print(f"{arguments.pages} pages, {vectors_mb:.0f} MB of vectors, plain reads {disk:.0f} MB/s")
    print(f"{'':<10}{'peak MB':>9}{'steady MB':>11}{'ms':>9}{'ms, filter':>12}{'MB/s':>8}{'share of plain reads':>22}")
    for name, row, streams in (("no limit", unlimited, False), (f"{arguments.limit >> 20} MB", limited, True)):
        plain, narrowed = statistics.median(row["ms"][:half]), statistics.median(row["ms"][half:])
        speed = vectors_mb / plain * 1e3 if streams else None
        measured: Row = {"ms": plain, "ms_filtered": narrowed, "mb_per_s": speed, "share": speed and speed / disk}
        kept = ("imported_mb", "first_peak_mb", "peak_mb", "steady_mb")
        rows.append({"limit": name, **{key: row[key] for key in kept}, **measured})
        told = "" if speed is None else f"{speed:>8.0f}{speed / disk:>22.2f}"
        print(f"{name:<10}{row['peak_mb']:>9}{row['steady_mb']:>11.0f}{plain:>9.0f}{narrowed:>12.0f}{told}")
    facts = {"pages": arguments.pages, "vectors_mb": round(vectors_mb), "read_mb_per_s": round(disk)}
    checks = {"largest_score_difference": largest, "peak_below_goal": limited["peak_mb"] < GOAL_MB}
    print(
        json.dumps(
            {"machine": machine("budgetvdr", "lancedb", "numpy"), **facts, "rows": rows, **checks, "goal_mb": GOAL_MB}
        )
    )


if __name__ == "__main__":
    main()
