"""What compression does to one score: SR (AnchorFold, section 4.6)."""

from __future__ import annotations

from budgetvdr.compress.signals import Compression, Signals
from budgetvdr.errors import CompressionError
from budgetvdr.pages import Vectors
from budgetvdr.unit import unit_rows


def maxsim(query: Vectors, vectors: Vectors) -> float:
    """Sum over query vectors (n, D) of the best product with a page vector (N, D) (appendix D.1)."""
    return float((query @ vectors.T).max(axis=1).sum())


def score_ratio(query: Vectors, page: Signals, method: Compression) -> float:
    """MaxSim of a query (n, D) with a page compressed, over that with all vectors of the page.

    Near 1 where what answers the query is kept; 1 for a method that keeps everything.

    Raises CompressionError where the page lacks what the method needs or scores nothing to compare with.
    """
    full = maxsim(query, unit_rows(page.vectors)) if len(page.vectors) else 0.0
    if not full > 0:
        raise CompressionError(
            f"a page that scores {full} with all its vectors has no ratio; take a page that answers the query"
        )
    return maxsim(query, unit_rows(method.compress(page).vectors)) / full
