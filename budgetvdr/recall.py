"""How much of the exact answer a budget finds, measured on an index's own pages."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from budgetvdr.budget import Plan
from budgetvdr.encoders import Encoder
from budgetvdr.errors import QueryError
from budgetvdr.hit import Hit
from budgetvdr.searcher import Searcher
from budgetvdr.store import Snapshot
from budgetvdr.view import query_at

_QUERY_WORDS: Final = (8, 14)
# Equal pages have equal scores only up to the order in which float32 sums are taken.
_EQUAL: Final = 1e-5


@dataclass(frozen=True, slots=True)
class RecallReport:
    """What `Index.check_recall` measured.

    recall: mean share of the exact k best pages that the search found; pages that score the same are the same to it.
    worst: the lowest share of any query. queries, k: how many, and how deep. depth, dim, candidates: the budget; None
    candidates scores every page. pages: mean number of pages looked at. version: of the index. ms: median milliseconds
    of a search.
    """

    recall: float
    worst: float
    queries: int
    k: int
    depth: int
    dim: int
    candidates: int | None
    pages: int
    version: int
    ms: float


def check(
    snapshot: Snapshot,
    encoder: Encoder,
    searcher: Searcher,
    search: Callable[[str], list[Hit]],
    *,
    texts: Sequence[str],
    plan: Plan,
    k: int,
) -> RecallReport:
    """Compares searches of some texts with scoring every stored vector, in one pass, at the same depth and width."""
    queries = [query_at(encoder, text, plan.depth, plan.dim).vectors for text in texts]
    exact = searcher.exact(snapshot, queries, plan, k=k)
    shares, times, pages = [], [], []
    for text, best in zip(texts, exact, strict=True):
        if not len(best):
            continue
        hits = search(text)
        shares.append(sum(hit.score >= best[-1] - _EQUAL for hit in hits) / len(best))
        times.append(hits[0].budget.ms)
        pages.append(hits[0].budget.pages)
    return RecallReport(
        recall=statistics.fmean(shares) if shares else 1.0,
        worst=min(shares, default=1.0),
        queries=len(texts),
        k=k,
        depth=plan.depth,
        dim=plan.dim,
        candidates=plan.candidates,
        pages=round(statistics.fmean(pages)) if pages else 0,
        version=snapshot.version,
        ms=statistics.median(times) if times else 0.0,
    )


def sample_queries(snapshot: Snapshot, count: int) -> list[str]:
    """Runs of words from random pages, the same ones each time. Raises QueryError where pages hold no text."""
    rng = np.random.default_rng(0)
    addresses = rng.permutation(snapshot.matching("text <> ''"))[:count]
    texts = []
    for fact in snapshot.facts(addresses):
        words = fact.text.split()
        length = int(rng.integers(*_QUERY_WORDS, endpoint=True))
        start = int(rng.integers(max(len(words) - length, 0) + 1))
        texts.append(" ".join(words[start : start + length]))
    if not texts:
        raise QueryError("the pages of this index hold no text to make queries from; pass queries= to check_recall")
    return texts
