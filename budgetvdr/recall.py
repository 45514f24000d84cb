"""How much of the exact answer a budget finds, measured on an index's own pages."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from budgetvdr.budget import Plan
from budgetvdr.errors import QueryError
from budgetvdr.finder import Finder
from budgetvdr.store import Snapshot
from budgetvdr.view import query_at

_QUERY_WORDS: Final = (8, 14)
# Equal pages have equal scores only up to the order in which float32 sums are taken: so much for unit query vectors.
_EQUAL: Final = 1e-5


@dataclass(frozen=True, slots=True)
class RecallReport:
    """What `Index.check_recall` measured.

    recall: mean share of the exact k best pages that the search found; pages that score the same are the same to it.
    worst: the lowest share of any query. queries, k: how many, and how deep. depth, page_depth, dim, candidates: the
    budget, as in `Budget`. pages: mean number of pages looked at. version: of the index. ms: median milliseconds of a
    search.
    """

    recall: float
    worst: float
    queries: int
    k: int
    depth: int
    page_depth: int
    dim: int
    candidates: int | None
    pages: int
    version: int
    ms: float


def check(finder: Finder, snapshot: Snapshot, texts: Sequence[str], plan: Plan, *, k: int) -> RecallReport:
    """Compares searches of some texts with scoring every stored vector, in one pass, at the same depth and width.

    Raises QueryError where there is nothing to find.
    """
    queries = [query_at(finder.encoder, text, plan.depth, plan.dim).vectors for text in texts]
    exact = finder.searcher.exact(snapshot, queries, plan, k=k)
    shares, spent = [], []
    for text, query, best in zip(texts, queries, exact, strict=True):
        if not len(best):
            raise QueryError(
                "the pages of this index have no vectors, so that there is no exact answer to compare with"
            )
        hits = finder.find(snapshot, text, plan, k=k)
        least = float(best[-1]) - _EQUAL * float(np.linalg.norm(query, axis=1).mean())
        shares.append(sum(hit.score >= least for hit in hits) / len(best))
        spent += [hit.budget for hit in hits[:1]]
    return RecallReport(
        recall=statistics.fmean(shares),
        worst=min(shares),
        queries=len(texts),
        k=k,
        depth=plan.depth,
        page_depth=plan.page_depth,
        dim=plan.dim,
        candidates=plan.candidates,
        pages=round(statistics.fmean(each.pages for each in spent)) if spent else 0,
        version=snapshot.version,
        ms=statistics.median(each.ms for each in spent) if spent else 0.0,
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
        raise QueryError(
            "the pages of this index hold no text to make queries from; pass queries= to check_recall, "
            "or --query on the command line"
        )
    return texts
