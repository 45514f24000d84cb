"""The same pages and queries through budgetvdr and what else there is for late interaction on one machine.

    python -m venv peers && peers/bin/pip install . lancedb==0.40.* qdrant-client==1.20.* qdrant-edge-py==0.9.* \
        maxsim-cpu==0.1.*
    python -m venv plaid && plaid/bin/pip install fast-plaid==1.7.0.2110 numpy     # brings its own torch, gigabytes
    peers/bin/python tests/bench/bench_peers.py --plaid-python plaid/bin/python [--quick] [--dir FOLDER]

Every system (see peers.py) builds alone, then all are open at once, a process each, and answer query by query in turn,
so that whatever else the machine does strikes all alike; CPU milliseconds, of all threads, suffer less from it. Each is
timed at its library's default setting and, where that misses a recall@10 of 0.99, at its first setting that reaches it
on other queries, or the best one it has. Recall is against exact float32 scores. All may use the same number of
threads; numpy's BLAS has one a thread of ours, as its own threads are slower on such small products. A system that
cannot be installed, or fails, is a row with the reason.

Prints a table, then one JSON object. With --dir the data and what has been built are kept and used again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from machine import machine
from peers import SYSTEMS, K, unit_chunks
from synthetic import Collection

WORKER = Path(__file__).with_name("peers.py")
GOAL = 0.99
WARM, CALIBRATION = 3, 8

Row = dict[str, Any]
Pages = npt.NDArray[np.int64]


class WorkerError(Exception):
    """A system's process ended, with the last it said."""


class Worker:
    """One system in its own process."""

    def __init__(self, name: str, task: str, folder: Path, arguments: argparse.Namespace) -> None:
        threads = str(arguments.threads)
        python = arguments.plaid_python if name == "fast-plaid" else sys.executable
        limits = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        self._errors = folder / f"{name}.err"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [python, str(WORKER), name, str(folder), threads, task],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | limits,
                text=True,
            )

    def read(self) -> Row:
        """The next answer."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            said = self._errors.read_text().strip().splitlines()
            raise WorkerError(said[-1] if said else f"ended with status {self._process.wait()}")
        answer: Row = json.loads(line)
        return answer

    def ask(self, number: int, setting: int) -> Row:
        """The answer to one query."""
        assert self._process.stdin is not None
        # Why a process has ended is told when we read.
        with suppress(BrokenPipeError):
            print(json.dumps([number, setting]), file=self._process.stdin, flush=True)
        return self.read()

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()


@dataclass
class Contestant:
    """One line of the result: a system at one setting."""

    worker: Worker
    setting: int
    row: Row
    ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    recalls: list[float] = field(default_factory=list)

    def ask(self, number: int, truth: Pages) -> float:
        """Runs one query and returns its recall; keeps times and recall."""
        answer = self.worker.ask(number, self.setting)
        self.ms.append(answer["ms"])
        self.cpu_ms.append(answer["cpu_ms"])
        self.recalls.append(len(set(answer["pages"]) & set(truth[number].tolist())) / K)
        return self.recalls[-1]


@dataclass
class Bench:
    """One run. truth: (queries, 10) exact answers. rows: results so far."""

    arguments: argparse.Namespace
    folder: Path
    truth: Pages
    rows: list[Row] = field(default_factory=list)

    def build(self, name: str) -> Row | None:
        """What building took, from a note beside the files where it was done before; None, and a row, on failure."""
        note = self.folder / f"{name}.built"
        if note.exists():
            known: Row = json.loads(note.read_text())
            return {"system": name} | known
        shutil.rmtree(self.folder / name, ignore_errors=True)
        worker = Worker(name, "build", self.folder, self.arguments)
        try:
            took = worker.read()
        except WorkerError as error:
            self.rows.append({"system": name, "error": f"building: {error}"})
            return None
        finally:
            worker.close()
        note.write_text(json.dumps(took))
        print(f"{name}: built in {took['build_s']:.1f} s", file=sys.stderr)
        return {"system": name} | took

    def open(self, row: Row) -> list[Contestant]:
        """A built system at its default setting and at the one that reaches the goal; none, and a row, on failure."""
        worker = Worker(row["system"], "serve", self.folder, self.arguments)
        recalls: list[float] = []
        try:
            about = worker.read()
            # With one setting there is nothing to choose.
            for setting in range(len(about["settings"]) if len(about["settings"]) > 1 else 0):
                trial = Contestant(worker, setting, {})
                first = self.arguments.queries
                recalls.append(statistics.mean(trial.ask(first + i, self.truth) for i in range(CALIBRATION)))
                if recalls[-1] >= GOAL:
                    break
        except WorkerError as error:
            worker.close()
            self.rows.append(row | {"error": str(error)})
            return []
        row |= {key: about[key] for key in ("open_s", "memory_mb", "versions")}
        chosen = int(np.argmax(recalls)) if recalls else 0
        return [Contestant(worker, at, row | {"setting": about["settings"][at]}) for at in sorted({0, chosen})]

    def race(self, contestants: list[Contestant]) -> None:
        """All queries through all that can still answer, in turn; adds a row for each."""
        running = list(contestants)
        for number in [*range(WARM), *range(self.arguments.queries)]:
            for contestant in list(running):
                try:
                    contestant.ask(number, self.truth)
                except WorkerError as error:
                    running.remove(contestant)
                    self.rows.append(contestant.row | {"error": f"query {number}: {error}"})
        for contestant in running:
            ms = contestant.ms[WARM:]
            measured = {
                "ms": round(statistics.median(ms), 2),
                "ms_p95": round(float(np.percentile(ms, 95)), 2),
                "cpu_ms": round(statistics.median(contestant.cpu_ms[WARM:]), 2),
                "recall_at_10": round(statistics.mean(contestant.recalls[WARM:]), 4),
            }
            self.rows.append(contestant.row | measured)


def main() -> None:
    arguments = parsed()
    folder = arguments.dir or Path(tempfile.mkdtemp(prefix="peers-"))
    try:
        payload, truth = prepare(folder, arguments)
        bench = Bench(arguments, folder, truth)
        # One after the other, and each alone; only then all are opened.
        systems = [row for name in arguments.systems if (row := bench.build(name)) is not None]
        contestants = [contestant for row in systems for contestant in bench.open(row)]
        bench.race(contestants)
        for contestant in contestants:
            contestant.worker.close()
    finally:
        if arguments.dir is None:
            shutil.rmtree(folder)
    report(bench.rows, arguments, payload)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=20_000)
    parser.add_argument("--vectors", type=int, default=150)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--systems", type=lambda text: text.split(","), default=list(SYSTEMS))
    parser.add_argument("--plaid-python", default=sys.executable, help="interpreter that has fast-plaid")
    parser.add_argument("--dir", type=Path, help="keeps data and indexes here and uses those it finds")
    parser.add_argument("--quick", action="store_true", help="1,000 pages, 10 queries")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.pages, arguments.queries = 1000, 10
    if unknown := set(arguments.systems) - set(SYSTEMS):
        parser.error(f"unknown systems {sorted(unknown)}: expected some of {', '.join(SYSTEMS)}")
    return arguments


def prepare(folder: Path, arguments: argparse.Namespace) -> tuple[int, Pages]:
    """Writes pages and queries where they are missing; the vectors' bytes, and the exact ten best of every query."""
    folder.mkdir(parents=True, exist_ok=True)
    collection = Collection(arguments.pages, arguments.vectors, arguments.width)
    shape = (arguments.pages, arguments.vectors, arguments.width)
    file = folder / "pages.npy"
    if not file.exists() or np.load(file, mmap_mode="r").shape != shape:
        for leftover in folder.iterdir():
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        stored = np.lib.format.open_memmap(file.with_suffix(".part"), "w+", np.float16, shape)
        for first, vectors in collection.chunks():
            stored[first : first + len(vectors)] = vectors
        stored.flush()
        file.with_suffix(".part").rename(file)
    pages = np.load(file, mmap_mode="r")
    queries = np.stack([collection.query(number).vectors for number in range(arguments.queries + CALIBRATION)])
    np.save(folder / "queries.npy", queries)
    return pages.nbytes, exact(pages, queries)


def exact(pages: npt.NDArray[np.float16], queries: npt.NDArray[np.float32]) -> Pages:
    """(Q, 10) page numbers, best first, by float32 scores of unit vectors."""
    count, each, width = queries.shape
    columns = np.ascontiguousarray(queries.reshape(-1, width).T)
    scores = np.empty((len(pages), count), np.float32)
    for first, chunk in unit_chunks(pages):
        for start in range(0, len(chunk), 64):
            part = chunk[start : start + 64]
            best = (part.reshape(-1, width) @ columns).reshape(len(part), -1, count * each).max(axis=1)
            scores[first + start : first + start + len(part)] = best.reshape(len(part), count, each).mean(axis=2)
    return np.argsort(-scores, axis=0)[:K].T


def report(rows: Sequence[Row], arguments: argparse.Namespace, payload: int) -> None:
    heads = ("build s", "open s", "bytes/payload", "MB held", "ms", "p95", "CPU ms", "recall")
    print(f"{'system':<22}{'setting':<36}" + "".join(f"{head:>{max(len(head) + 3, 8)}}" for head in heads))
    for row in rows:
        if "error" in row:
            print(f"{row['system']:<22}{row['error']}")
            continue
        setting = ", ".join(f"{key}={value}" for key, value in row["setting"].items()) or "default"
        took = f"{row['build_s']:>10.1f}{row['open_s']:>9.1f}{row['bytes'] / payload:>16.3f}{row['memory_mb']:>10}"
        times = f"{row['ms']:>8.0f}{row['ms_p95']:>8.0f}{row['cpu_ms']:>9.0f}"
        print(f"{row['system']:<22}{setting:<36}{took}{times}{row['recall_at_10']:>9.3f}")
    shape = {key: getattr(arguments, key) for key in ("pages", "vectors", "width", "queries", "threads")}
    print(json.dumps({"machine": machine(), "shape": shape, "payload_bytes": payload, "rows": rows, **verdict(rows)}))


def verdict(rows: Sequence[Row]) -> Row:
    """How many times faster ours is than the fastest peer that reaches the goal too."""
    reached = [row for row in rows if row.get("recall_at_10", 0) >= GOAL]
    ours = next((row for row in reached if row["system"] == "budgetvdr"), None)
    peers = [row for row in reached if row["system"] != "budgetvdr"]
    if ours is None or not peers:
        return {}
    best = min(peers, key=lambda row: row["ms"])
    return {
        "best_peer": best["system"],
        "times_faster_than_best_peer": round(best["ms"] / ours["ms"], 2),
        "times_less_cpu_than_best_peer": round(best["cpu_ms"] / ours["cpu_ms"], 2),
    }


if __name__ == "__main__":
    main()
