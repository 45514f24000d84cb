"""What page compression adds to indexing: the layout of the AnchorFold paper's Table 20, for every method.

    python tests/bench/bench_compress.py [SOURCE ...] [--pages 200] [--read text_layer] [--gamma 0.1] [--passes 3]

SOURCE: PDFs or folders of them; the package's samples where left out. Pages are drawn by lot; pages without a token are
passed over. Run it once with --read text_layer (or auto) and once with --read ocr: OCR takes so long that nothing else
shows beside it.

Compression is what happens after the encoder has given what a method needs; total is from the page as its source gives
it to its stored vectors at one depth: reading it, the transformer with the attention that the method asks for, and
compression, on one thread. Each page goes through all methods in turn, in another order each pass, so that what the
machine does besides meets them alike; a pass without timing comes first. Milliseconds a page: the mean and, over
passes, its standard deviation; the 95th percentile of all pages and passes; the mean over that of the full index.

CPU seconds of the process by default; wall time with --clock wall, on a machine that does nothing else. Prints a table,
then one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sklearn.cluster  # noqa: F401 -- limits reach only what is loaded
from machine import machine
from threadpoolctl import threadpool_limits

from budgetvdr.compress import (
    AnchorFold,
    Clustering,
    Compression,
    DocPruner,
    Pooling,
    RandomSelection,
    Signals,
    StructuralPruning,
    WardFold,
    WardPooling,
    attention_for,
)
from budgetvdr.compress.docpruner import standardised
from budgetvdr.encoders import Encoder
from budgetvdr.encoders.open import bundled_folder, open_encoder
from budgetvdr.pages import EncodedPage, Page
from budgetvdr.sources import Document, open_documents

FULL = "full index"
CLOCKS = {"cpu": time.process_time, "wall": time.perf_counter}


@dataclass(frozen=True)
class Bench:
    """One encoder at one depth."""

    encoder: Encoder
    depth: int
    clock: str

    def encode(self, page: Page, method: Compression | None) -> EncodedPage:
        """With the attention that the method asks for."""
        asked = {} if method is None else attention_for(method, self.encoder.manifest, [self.depth])
        (result,) = self.encoder.encode_pages([page], [self.depth], attention=asked or None)
        if not isinstance(result, EncodedPage):
            raise SystemExit(str(result))
        return result

    def milliseconds(self, page: Page, method: Compression | None) -> tuple[float, float]:
        """Of compression, and in all."""
        now = CLOCKS[self.clock]
        begun = now()
        encoded = self.encode(page, method)
        between = now()
        if method is None:
            encoded.vectors[self.depth].astype(np.float16)
            return 0.0, (now() - begun) * 1e3
        signals = Signals.of(encoded.vectors[self.depth], encoded.signals.get(self.depth))
        method.compress(signals).vectors.astype(np.float16)
        ended = now()
        return (ended - between) * 1e3, (ended - begun) * 1e3


def methods(gamma: float, threshold: float) -> dict[str, Compression | None]:
    """Every method at one ratio."""
    return {
        FULL: None,
        "AnchorFold": AnchorFold(gamma=gamma),
        "AnchorFold, as published": AnchorFold(gamma=gamma, refinements=0),
        "WardFold": WardFold(gamma=gamma),
        "SAP": StructuralPruning(gamma=gamma),
        "Semantic clustering": Clustering(gamma=gamma),
        "1D pooling": Pooling(gamma=gamma),
        "DocPruner": DocPruner(threshold=threshold),
        "Hierarchical pooling": WardPooling(gamma=gamma),
        "Random selection": RandomSelection(gamma=gamma),
    }


def drawn(sources: Sequence[str], read: Any, count: int, bench: Bench) -> list[Page]:
    """Pages with tokens, drawn by lot."""
    pages: list[Page] = []
    for source in sources:
        for document in open_documents(source, read=read):
            if isinstance(document, Document):
                pages += [page for page in document.pages() if isinstance(page, Page)]
    random.Random(42).shuffle(pages)
    found = []
    for page in pages:
        if len(found) == count:
            break
        if page.read == "ocr" or page.words is not None:
            found += [page] if len(bench.encode(page, None).regions) else []
    if not found:
        raise SystemExit(f"no page of {', '.join(sources)} has a token when read by {read}")
    return found


def measure(
    bench: Bench, pages: Sequence[Page], every: Mapping[str, Compression | None], passes: int
) -> dict[str, np.ndarray]:
    """Method -> (passes, pages, 2) milliseconds of compression and in all."""
    times = {name: np.zeros((passes, len(pages), 2)) for name in every}
    order = list(every)
    for turn in range(-1, passes):
        random.Random(turn).shuffle(order)
        # The untimed pass loads graphs and libraries, for which a few pages are enough.
        for number, page in enumerate(pages if turn >= 0 else pages[:5]):
            for name in order:
                found = bench.milliseconds(page, every[name])
                if turn >= 0:
                    times[name][turn, number] = found
    return times


def rows_of(times: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Table 20's columns."""
    full = times[FULL][..., 1].mean()
    rows = []
    for name, found in times.items():
        compress, total = found[..., 0], found[..., 1]
        rows.append(
            {
                "method": name,
                "compress_ms": round(float(compress.mean()), 3),
                "compress_sd": round(deviation(compress), 3),
                "total_ms": round(float(total.mean()), 2),
                "total_sd": round(deviation(total), 2),
                "total_p95": round(float(np.percentile(total, 95)), 2),
                "index_ratio": round(float(total.mean() / full), 4),
            }
        )
    return rows


def deviation(values: np.ndarray) -> float:
    """Of the passes' means; 0 for a single pass."""
    means = values.mean(axis=1)
    return float(means.std(ddof=1)) if len(means) > 1 else 0.0


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    samples = Path(__file__).parents[2] / "budgetvdr" / "samples"
    parser.add_argument("sources", nargs="*", default=[str(samples)])
    parser.add_argument("--pages", type=int, default=200)
    parser.add_argument("--read", choices=("auto", "text_layer", "ocr"), default="text_layer")
    parser.add_argument("--gamma", type=float, default=0.1)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="cpu")
    parser.add_argument("--bundle", type=Path, default=bundled_folder())
    given = parser.parse_args()
    encoder = open_encoder(given.bundle, threads=1)
    bench = Bench(encoder, encoder.manifest.presets["full"].depth, given.clock)
    pages = drawn(given.sources, given.read, given.pages, bench)
    last_layer = DocPruner(threshold=0)
    scores = [bench.encode(page, last_layer).signals[bench.depth].from_global for page in pages[:128]]
    pruner = DocPruner.at_ratio(given.gamma, scores)
    tokens = [len(found) for found in scores]
    # Threads of K-means would go on waiting, at the cost of the method after it.
    with threadpool_limits(1):
        times = measure(bench, pages, methods(given.gamma, pruner.threshold), given.passes)
    rows = rows_of(times)
    kept = sum(max(1, int((standardised(found) > pruner.threshold).sum())) for found in scores) / sum(tokens)
    head = {
        "bench": "compress",
        "read": given.read,
        "depth": bench.depth,
        "gamma": given.gamma,
        "pages": len(pages),
        "passes": given.passes,
        "tokens": round(sum(tokens) / len(tokens), 1),
        "docpruner_share": round(kept, 4),
        "clock": given.clock,
    }
    print(", ".join(f"{key} {value}" for key, value in head.items() if key != "bench"))
    print(f"{'method':26}{'comp. ms':>18}{'total ms':>18}{'p95':>10}{'index / full':>14}")
    for row in rows:
        compress = f"{row['compress_ms']:.2f} ± {row['compress_sd']:.2f}" if row["method"] != FULL else "-"
        total = f"{row['total_ms']:.1f} ± {row['total_sd']:.1f}"
        print(f"{row['method']:26}{compress:>18}{total:>18}{row['total_p95']:>10.1f}{row['index_ratio']:>14.3f}")
    print(json.dumps(head | {"rows": rows, "machine": machine("numpy", "onnxruntime", "scikit-learn", "scipy")}))


if __name__ == "__main__":
    main()
