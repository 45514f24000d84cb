"""What an index answers to the questions of an evaluation set at one point, and the row that makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from budgetvdr.budget import Budget, Plan
from budgetvdr.errors import BenchmarkError, QueryError
from budgetvdr.evaluate.benchmark import Benchmark, PageKey
from budgetvdr.evaluate.compression import CompressionRow, Floats, Latency
from budgetvdr.evaluate.metrics import ndcg_by_question
from budgetvdr.index import Index

_HITS = 5  # nDCG@5 looks at no more


@dataclass(frozen=True, slots=True)
class Answer:
    """What a question gets. ranked: the best pages. scores: theirs, and those of answer pages not among them."""

    ranked: tuple[PageKey, ...]
    scores: Mapping[PageKey, float]


Asked = Mapping[str, Answer]
"""By the question's id."""


def ask(benchmark: Benchmark, index: Index, point: Plan) -> Asked:
    """Every question, at one point, over all vectors of the index."""
    budget = Budget(depth=point.depth, dim=point.dim)
    found: dict[str, Answer] = {}
    for query in benchmark.queries:
        where = None if query.doc is None else {"doc_id": query.doc}
        try:
            hits = index.search(query.text, k=_HITS, budget=budget, where=where)
        except QueryError as error:
            raise BenchmarkError(f"question {query.id!r} cannot be searched: {error}") from error
        ranked = tuple((hit.doc_id, hit.page_num) for hit in hits)
        for doc_id, page_num in query.relevant.keys() - {*ranked}:
            hits += index.search(query.text, k=1, budget=budget, where={"doc_id": doc_id, "page_num": page_num})
        found[query.id] = Answer(ranked, {(hit.doc_id, hit.page_num): hit.score for hit in hits})
    return found


def mean_score_ratio(benchmark: Benchmark, asked: Asked, full: Asked) -> float | None:
    """Mean SR: compressed over full score of the answer pages (AnchorFold, section 4.6); None where no page has one."""
    ratios = [
        asked[query.id].scores[page] / full[query.id].scores[page]
        for query in benchmark.queries
        for page, grade in query.relevant.items()
        if grade > 0 and page in asked[query.id].scores and full[query.id].scores.get(page, 0.0) > 0
    ]
    return sum(ratios) / len(ratios) if ratios else None


def row_of(
    benchmark: Benchmark,
    index: Index,
    what: tuple[str, float, Mapping[str, Any]],
    point: Plan,
    asked: tuple[Asked, Asked],
    *,
    latency: Latency | None,
) -> CompressionRow:
    """what: method, gamma and settings. asked: of this index, and of the full one."""
    small, full = (_ndcg(benchmark, each) for each in asked)
    # A search without a filter looks at every page, and says at how many vectors.
    budget = Budget(depth=point.depth, dim=point.dim)
    spent = index.search(benchmark.queries[0].text, k=1, budget=budget)[0].budget
    return CompressionRow(
        method=what[0],
        gamma=what[1],
        settings=what[2],
        depth=point.depth,
        dim=point.dim,
        vectors=spent.vectors / len(index),
        ndcg=small,
        full_ndcg=float(full.mean()),
        sr=mean_score_ratio(benchmark, *asked),
        latency=latency,
    )


def _ndcg(benchmark: Benchmark, asked: Asked) -> Floats:
    run = {query_id: list(answer.ranked) for query_id, answer in asked.items()}
    found = ndcg_by_question({query.id: query.relevant for query in benchmark.queries}, run)
    return np.array([found[query.id] for query in benchmark.queries])
