"""What the transformer costs: CPU milliseconds a window and a query, by depth; the best of several rounds.

    python tests/bench/bench_encoder.py [BUNDLE ...]

Without arguments: the bundled reader. To compare with float32, make such a bundle first:

    python export/convert_reader.py --weights CHECKPOINT --precision float32 --out reader-float32
    python tests/bench/bench_encoder.py budgetvdr/bundles/reader reader-float32

With several bundles, the last one is what the others' vectors are compared with (mean cosine). Prints a table, then
one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np
import numpy.typing as npt

from budgetvdr.bundle import load_manifest
from budgetvdr.encoders.onnx import Sessions
from budgetvdr.encoders.open import bundled_folder
from budgetvdr.encoders.tokens import WordPieces

WINDOW_TOKENS, QUERY_TOKENS = 254, 16
ROUNDS, RUNS = 7, 8


def sample_ids(pieces: WordPieces) -> npt.NDArray[np.int64]:
    """Real text to encode: the licence beside the bundled reader."""
    return np.array(pieces.query((bundled_folder() / "LICENSE").read_text()).ids, dtype=np.int64)


def milliseconds(work: Callable[[], object]) -> float:
    """CPU time of one call in this thread, the best round of several: others may share the machine."""
    rounds = []
    for _ in range(ROUNDS):
        start = thread_time()
        for _ in range(RUNS):
            work()
        rounds.append((thread_time() - start) / RUNS * 1e3)
    return min(rounds)


def measure(folder: Path) -> tuple[list[dict[str, Any]], dict[int, npt.NDArray[np.float32]]]:
    """One row a depth, and the vectors of eight windows by depth."""
    manifest, sessions = load_manifest(folder), Sessions(folder)
    pieces = WordPieces(folder / "tokenizer.json")
    ids = sample_ids(pieces)
    window, query = pieces.window(ids[:WINDOW_TOKENS]), pieces.window(ids[: QUERY_TOKENS - 2])
    rows, vectors = [], {}
    for depth in manifest.depths:
        page_graph, query_graph = manifest.page_graphs[depth], manifest.query_graphs[depth]
        every_exit = [f"exit_{exit_}" for exit_ in manifest.depths if exit_ <= depth]
        start = thread_time()
        sessions.open(page_graph)
        opened = (thread_time() - start) * 1e3
        window_ms = milliseconds(lambda: sessions.run(page_graph, {"ids": window}, every_exit))  # noqa: B023
        query_ms = milliseconds(lambda: sessions.run(query_graph, {"ids": query}, every_exit[-1:]))  # noqa: B023
        rows.append(
            {
                "bundle": manifest.name,
                "depth": depth,
                "open_ms": round(opened, 1),
                "window_ms": round(window_ms, 2),
                "query_ms": round(query_ms, 2),
            }
        )
        windows = [ids[at : at + WINDOW_TOKENS] for at in range(0, 8 * WINDOW_TOKENS, WINDOW_TOKENS)]
        states = [sessions.run(page_graph, {"ids": pieces.window(part)}, every_exit[-1:])[0] for part in windows]
        vectors[depth] = np.concatenate([state[0, 1:-1] for state in states])
    return rows, vectors


def mean_cosine(one: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> float:
    """Mean over rows."""
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return float(statistics.fmean((one * other).sum(axis=1) / lengths))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs="*", type=Path, default=[bundled_folder()])
    measured = [measure(folder) for folder in parser.parse_args().bundles]
    reference = measured[-1][1]
    print(f"{'bundle':32} depth  open ms  {WINDOW_TOKENS + 2}-token window ms  {QUERY_TOKENS}-token query ms  cosine")
    for rows, vectors in measured:
        for row in rows:
            if len(measured) > 1:
                row["cosine"] = round(mean_cosine(vectors[row["depth"]], reference[row["depth"]]), 5)
            print(
                f"{row['bundle']:32} {row['depth']:5} {row['open_ms']:8} {row['window_ms']:19} {row['query_ms']:18}"
                f"  {row.get('cosine', '')}"
            )
    print(json.dumps({"bench": "encoder", "rows": [row for rows, _ in measured for row in rows]}))


if __name__ == "__main__":
    main()
