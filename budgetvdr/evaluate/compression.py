"""Compression methods side by side: quality, size and time of each, as text tables and as one JSON object."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from budgetvdr.compress import (
    AnchorFold,
    Clustering,
    Pooling,
    RandomSelection,
    StructuralPruning,
    WardFold,
    WardPooling,
)
from budgetvdr.compress.calibrate import standard_error
from budgetvdr.compress.record import Method
from budgetvdr.evaluate.report import FLOAT16_BYTES, retention

GAMMAS: Final = (0.5, 0.2, 0.1, 0.05)
FULL: Final = "full"
DOC_PRUNER: Final = "DocPruner"

METHODS: Final[Mapping[str, Callable[[float], Method]]] = {
    "WardFold": lambda gamma: WardFold(gamma=gamma),
    "WardPooling": lambda gamma: WardPooling(gamma=gamma),
    "Clustering": lambda gamma: Clustering(gamma=gamma),
    "Pooling": lambda gamma: Pooling(gamma=gamma),
    "RandomSelection": lambda gamma: RandomSelection(gamma=gamma),
    "StructuralPruning": lambda gamma: StructuralPruning(gamma=gamma),
    "AnchorFold": lambda gamma: AnchorFold(gamma=gamma),
}
ABLATIONS: Final[Mapping[str, Callable[[float], Method]]] = {
    "AnchorFold, as in the paper": lambda gamma: AnchorFold(gamma=gamma, refinements=0),
    "AnchorFold, random anchors": lambda gamma: AnchorFold(gamma=gamma, refinements=0, anchors="random"),
    "AnchorFold, no folding": lambda gamma: AnchorFold(gamma=gamma, refinements=0, folding=False),
    "AnchorFold, uniform weights": lambda gamma: AnchorFold(gamma=gamma, refinements=0, weights="uniform"),
}
SINGLE_STEP: Final = "AnchorFold, single step"

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds a page, of one thread's CPU: what compression takes at one depth, and indexing at all of them.

    ratio: mean total over that of a full index (AnchorFold, appendix E). ratios: the same of the pages of each reader
    that found something, "text_layer" or "ocr".
    """

    compress_ms: float
    total_ms: float
    total_sd: float
    total_p95: float
    ratio: float
    ratios: Mapping[str, float]

    @classmethod
    def of(cls, compress: Floats, total: Floats, full: Floats, readers: Sequence[str]) -> Latency:
        """Milliseconds of the same pages: folding at one depth, indexing with this method, indexing in full."""
        deviation = float(total.std(ddof=1)) if len(total) > 1 else 0.0
        p95, of_page = float(np.quantile(total, 0.95)), np.array(readers)
        ratios = {
            reader: float(total[of_page == reader].sum() / full[of_page == reader].sum())
            for reader in sorted(set(readers) - {"none"})
        }
        ratio = float(total.sum() / full.sum())
        return cls(float(compress.mean()), float(total.mean()), deviation, p95, ratio, ratios)


@dataclass(frozen=True, slots=True, eq=False)
class CompressionRow:
    """One method at one share of vectors and one point.

    gamma: share asked for, 1 for the full index. settings: the method as an index records it, none of the full one.
    vectors: mean number a page. ndcg: (q,) nDCG@5 of every question. full_ndcg: its mean in the full index at the same
    depth and width. sr: mean score ratio of answer pages, compressed over full; None where there are none. latency:
    None where the pages were encoded before.
    """

    method: str
    gamma: float
    settings: Mapping[str, Any]
    depth: int
    dim: int
    vectors: float
    ndcg: Floats = field(repr=False)
    full_ndcg: float
    sr: float | None
    latency: Latency | None

    @property
    def ndcg_5(self) -> float:
        """Mean over questions."""
        return float(self.ndcg.mean())

    @property
    def retention(self) -> float | None:
        """Mean nDCG@5 over that of the full index at the same point."""
        return retention(self.ndcg_5, self.full_ndcg)

    @property
    def bytes_per_page(self) -> int:
        """Bytes of one page's vectors at this depth and width, in float16. Regions and text are not counted."""
        return round(self.vectors * self.dim * FLOAT16_BYTES)


@dataclass(frozen=True, slots=True)
class CompressionReport:
    """One evaluation set; rows of the full index first, then by point, method and falling gamma.

    left_out: method -> why it could not be tried.
    """

    name: str
    queries: int
    pages: int
    rows: tuple[CompressionRow, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)

    def gap_to_best(self, row: CompressionRow) -> tuple[float, float]:
        """How much better the best method is at the same gamma and point, question by question: mean, its error."""
        best = max(self._rivals(row), key=lambda other: other.ndcg_5)
        gaps = best.ndcg - row.ndcg
        return float(gaps.mean()), standard_error(gaps)

    def frontier(self) -> list[CompressionRow]:
        """Rows to which no other is equal or better in both bytes a page and nDCG@5, by rising bytes."""
        kept: list[CompressionRow] = []
        for row in sorted(self.rows, key=lambda row: (row.bytes_per_page, -row.ndcg_5)):
            if not kept or row.ndcg_5 > kept[-1].ndcg_5:
                kept.append(row)
        return kept

    def as_dict(self) -> dict[str, object]:
        """The object `budgetvdr eval --compression-grid --json` prints."""
        frontier = self.frontier()
        rows = [self._row_dict(row, on_frontier=row in frontier) for row in self.rows]
        return {
            "set": self.name,
            "queries": self.queries,
            "pages": self.pages,
            "rows": rows,
            "left_out": dict(self.left_out),
        }

    def lines(self) -> Iterator[str]:
        """Tables for people: method by gamma as in the paper's Table 3, and latencies as in its Table 20."""
        yield f"{self.name}: {self.queries} questions, {self.pages} pages"
        for depth, dim in dict.fromkeys((row.depth, row.dim) for row in self.rows):
            yield ""
            yield from _quality(self, [row for row in self.rows if (row.depth, row.dim) == (depth, dim)])
        timed = [row for row in self.rows if row.latency is not None and row.gamma in (1.0, _timed_gamma(self.rows))]
        first = [row for row in timed if (row.depth, row.dim) == (self.rows[0].depth, self.rows[0].dim)]
        yield ""
        if first:
            yield from _latencies(first)
        else:
            yield "no times: the pages had been encoded before"
        for reason in dict.fromkeys(self.left_out.values()):
            yield ""
            methods = "; ".join(method for method, why in self.left_out.items() if why == reason)
            yield f"left out: {methods}. {reason}"

    def _rivals(self, row: CompressionRow) -> list[CompressionRow]:
        return [o for o in self.rows if (o.gamma, o.depth, o.dim) == (row.gamma, row.depth, row.dim)]

    def _row_dict(self, row: CompressionRow, *, on_frontier: bool) -> dict[str, object]:
        gap, error = self.gap_to_best(row)
        latency = row.latency
        return {
            "method": row.method,
            "gamma": row.gamma,
            "settings": dict(row.settings),
            "depth": row.depth,
            "dim": row.dim,
            "vectors": row.vectors,
            "ndcg@5": row.ndcg_5,
            "retention": row.retention,
            "gap_to_best": gap,
            "gap_error": error,
            "sr": row.sr,
            "bytes_per_page": row.bytes_per_page,
            "compress_ms": None if latency is None else latency.compress_ms,
            "total_ms": None if latency is None else latency.total_ms,
            "total_ms_sd": None if latency is None else latency.total_sd,
            "total_ms_p95": None if latency is None else latency.total_p95,
            "index_ratio": None if latency is None else latency.ratio,
            "index_ratio_by_reader": None if latency is None else dict(latency.ratios),
            "pareto": on_frontier,
        }


def _timed_gamma(rows: Sequence[CompressionRow]) -> float:
    """The paper times gamma 0.1; without it the smallest there is."""
    gammas = {row.gamma for row in rows} - {1.0}
    return 0.1 if 0.1 in gammas else min(gammas, default=1.0)


def _quality(report: CompressionReport, rows: Sequence[CompressionRow]) -> Iterator[str]:
    full = next(row for row in rows if row.method == FULL)
    gammas = sorted({row.gamma for row in rows} - {1.0}, reverse=True)
    yield (
        f"depth {full.depth}, dim {full.dim}; full index: nDCG@5 {full.ndcg_5:.4f}, {full.bytes_per_page} bytes/page. "
        "nDCG@5, retention, gap to the best +- standard error:"
    )
    yield f"{'method':<28}" + "".join(f"{f'gamma {gamma:g}':>30}" for gamma in gammas)
    for method in dict.fromkeys(row.method for row in rows if row.method != FULL):
        cells = {row.gamma: _cell(report, row) for row in rows if row.method == method}
        yield f"{method:<28}" + "".join(f"{cells.get(gamma, '-'):>30}" for gamma in gammas)


def _cell(report: CompressionReport, row: CompressionRow) -> str:
    gap, error = report.gap_to_best(row)
    kept = "-" if row.retention is None else f"{row.retention:.1%}"
    return f"{row.ndcg_5:.4f} {kept:>6} {gap:.4f}+-{error:.4f}"


def _latencies(rows: Sequence[CompressionRow]) -> Iterator[str]:
    gamma = min(row.gamma for row in rows)
    yield f"ms/page of one thread at gamma {gamma:g}; ratio to a full index:"
    yield f"{'method':<28} {'nDCG@5':>7} {'ret.':>6} {'comp.':>8} {'total':>8} {'SD':>8} {'p95':>8} {'ratio':>6}"
    for row in rows:
        found = row.latency
        assert found is not None
        kept = "-" if row.retention is None else f"{row.retention:.1%}"
        yield (
            f"{row.method:<28} {row.ndcg_5:>7.4f} {kept:>6} {found.compress_ms:>8.2f} {found.total_ms:>8.1f} "
            f"{found.total_sd:>8.1f} {found.total_p95:>8.1f} {found.ratio:>6.3f}  "
            + ", ".join(f"{reader} {ratio:.3f}" for reader, ratio in found.ratios.items())
        )
