"""What one evaluation found: a row a budget, as text lines or as one JSON object."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from budgetvdr.evaluate.metrics import Metrics

FLOAT16_BYTES = 2


@dataclass(frozen=True, slots=True)
class Row:
    """Quality and cost of one budget.

    depth: of the query. page_depth: the exit whose page vectors were scored. vectors: mean number of vectors a page.
    retention: nDCG@5 over nDCG@5 at the full budget (MM-Matryoshka, Eq. 8); None where the full budget scores 0.
    ms_per_query: median wall time of a search, in milliseconds, one question at a time.
    """

    depth: int
    page_depth: int
    dim: int
    vectors: float
    metrics: Metrics
    retention: float | None
    ms_per_query: float

    @property
    def bytes_per_page(self) -> int:
        """Bytes of one page's vectors at this width: vectors x dim x 2 (float16), rounded."""
        return round(self.vectors * self.dim * FLOAT16_BYTES)


@dataclass(frozen=True, slots=True)
class Report:
    """One evaluation set on one index.

    queries: questions scored. unanswered: questions left out because no page answers them.
    pages: pages in the index.
    rows: the full budget first.
    """

    name: str
    queries: int
    unanswered: int
    pages: int
    rows: tuple[Row, ...]

    def as_dict(self) -> dict[str, object]:
        """The object `budgetvdr eval --json` prints."""
        return {
            "set": self.name,
            "queries": self.queries,
            "pages": self.pages,
            "rows": [_row_dict(row) for row in self.rows],
        }

    def lines(self) -> Iterator[str]:
        """A table for people, one line at a time; 2/6 is a query of depth 2 on pages of depth 6."""
        left_out = f", {self.unanswered} without an answer page left out" if self.unanswered else ""
        yield f"{self.name}: {self.queries} questions{left_out}, {self.pages} pages"
        yield (
            f"{'depth':>5} {'dim':>5} {'vectors':>8} {'nDCG@5':>7} {'R@1':>7} {'R@5':>7} {'mAP':>7} "
            f"{'retention':>9} {'bytes/page':>10} {'ms/query':>9}"
        )
        for row in self.rows:
            found = row.metrics
            kept = "-" if row.retention is None else f"{row.retention:.1%}"
            depth = f"{row.depth}" if row.depth == row.page_depth else f"{row.depth}/{row.page_depth}"
            yield (
                f"{depth:>5} {row.dim:>5} {row.vectors:>8.1f} {found.ndcg_5:>7.4f} {found.recall_1:>7.4f} "
                f"{found.recall_5:>7.4f} {found.average_precision:>7.4f} {kept:>9} {row.bytes_per_page:>10} "
                f"{row.ms_per_query:>9.2f}"
            )


def retention(ndcg_5: float, full_ndcg_5: float) -> float | None:
    """Retention(l, d) = nDCG@5(l, d) / nDCG@5(L, D) (MM-Matryoshka, Eq. 8), None where the full budget scores 0."""
    return None if full_ndcg_5 == 0 else ndcg_5 / full_ndcg_5


def _row_dict(row: Row) -> dict[str, object]:
    return {
        "depth": row.depth,
        "page_depth": row.page_depth,
        "dim": row.dim,
        "vectors": row.vectors,
        "ndcg@5": row.metrics.ndcg_5,
        "recall@1": row.metrics.recall_1,
        "recall@5": row.metrics.recall_5,
        "map": row.metrics.average_precision,
        "retention": row.retention,
        "bytes_per_page": row.bytes_per_page,
        "ms_per_query": row.ms_per_query,
    }
