"""Runs an evaluation set on an index, one question at a time, at the full budget and at others."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from budgetvdr.budget import Budget, Plan
from budgetvdr.errors import BenchmarkError, BudgetError, QueryError
from budgetvdr.evaluate.benchmark import Benchmark, BenchmarkQuery, PageKey
from budgetvdr.evaluate.metrics import Metrics, require_metrics_library, score_run
from budgetvdr.evaluate.report import Report, Row, retention
from budgetvdr.pages import AddReport, ReadMode
from budgetvdr.store import DocumentInfo

HITS = 100
"""Hits asked for a question: nDCG@5 and Recall see the first 5 of them, mAP all."""
TIMED, TIMED_HITS = 50, 10
"""Questions timed at each point, after all have been asked once, and hits asked for then: a search as users make it."""


class RankedPage(Protocol):
    """One hit, as far as evaluation looks at it. page_num is 1-based."""

    @property
    def doc_id(self) -> str:
        """Document of the page."""

    @property
    def page_num(self) -> int:
        """1-based page number."""


class SearchIndex(Protocol):
    """What evaluation needs of an index."""

    @property
    def query_depths(self) -> Mapping[int, tuple[int, ...]]:
        """Stored page depth -> query depths trained to search it, its own among them; all ascending."""

    @property
    def dims(self) -> tuple[int, ...]:
        """Widths that can be searched, ascending."""

    @property
    def page_count(self) -> int:
        """Pages in the index."""

    @property
    def vectors_per_page(self) -> float:
        """Mean number of vectors a page."""

    def search(
        self, query: str, *, k: int, budget: Budget | str, where: Mapping[str, str] | None
    ) -> Sequence[RankedPage]:
        """The k best pages, best first."""


class FillableIndex(Protocol):
    """What adding a set's documents needs of an index."""

    def documents(self) -> Sequence[DocumentInfo]:
        """What it holds."""

    def add_pages(self, source: Path, *, read: ReadMode) -> AddReport:
        """Adds all documents in a folder."""


def grid_points(index: SearchIndex) -> tuple[Plan, ...]:
    """Every (depth, dim) of the index, then every pair of two depths that its bundle was trained for.

    Deepest first and widest first within a depth, so the full budget leads.
    """
    pages = sorted(index.query_depths, reverse=True)
    equal = [(page, page) for page in pages]
    crossed = [(depth, page) for page in pages for depth in reversed(index.query_depths[page]) if depth != page]
    return tuple(
        Plan(depth, dim, page_depth=page) for depth, page in (*equal, *crossed) for dim in reversed(index.dims)
    )


def fill(benchmark: Benchmark, index: FillableIndex, read: ReadMode) -> AddReport:
    """Adds the set's documents to an index, which may hold them already. read: as in `Index.add_pages`.

    Raises BenchmarkError where it holds other documents, which would answer the questions too, and where one of them
    goes by the name of one of the set's.
    """
    held = {document.doc_id for document in index.documents()}
    others = sorted(doc_id for doc_id in held if not (benchmark.pdfs / doc_id).exists())
    if others:
        raise BenchmarkError(
            f"the index holds {len(others)} documents that are not in {benchmark.pdfs}, such as {others[0]!r}: "
            "expected one made of this set; choose another --index"
        )
    added = index.add_pages(benchmark.pdfs, read=read)
    for file in added.failed:
        if file.doc_id in held and not file.stored and not file.unchanged:
            raise BenchmarkError(f"the index was not made of {benchmark.pdfs}; choose another --index ({file.error})")
    return added


def run_benchmark(benchmark: Benchmark, index: SearchIndex, *, points: Sequence[Plan] = (), hits: int = HITS) -> Report:
    """Searches every question at the full budget and at each of the points; one row each, the full budget first.

    A question with `doc` is searched with `where={"doc_id": doc}`. mAP is cut at `hits`: relevant pages beyond add 0.

    Raises MissingExtraError where the metrics library is missing, BudgetError for a point the index lacks, and
    BenchmarkError where the search refuses a question or the index holds none of the set's documents.
    """
    require_metrics_library()
    available = grid_points(index)
    for point in points:
        if point not in available:
            raise BudgetError(
                f"depth {point.depth} on pages of depth {point.page_depth} with dim {point.dim} is not in this index: "
                f"expected, by page depth, a depth of {dict(index.query_depths)}, dim in {index.dims}"
            )
    order = list(dict.fromkeys((available[0], *points)))
    measured = [(point, *_measure(benchmark, index, point, hits)) for point in order]
    full = measured[0][1]
    rows = tuple(
        Row(
            point.depth,
            point.page_depth,
            point.dim,
            index.vectors_per_page,
            found,
            retention(found.ndcg_5, full.ndcg_5),
            ms,
        )
        for point, found, ms in measured
    )
    return Report(benchmark.name, len(benchmark.queries), len(benchmark.unanswered), index.page_count, rows)


def _measure(benchmark: Benchmark, index: SearchIndex, point: Plan, hits: int) -> tuple[Metrics, float]:
    """Metrics and median milliseconds a question at one point."""
    run = {query.id: _search(index, query, point, hits) for query in benchmark.queries}
    milliseconds: list[float] = []
    for query in benchmark.queries[:TIMED]:
        start = time.perf_counter()
        _search(index, query, point, TIMED_HITS)
        milliseconds.append((time.perf_counter() - start) * 1000)
    found = {doc for pages in run.values() for doc, _ in pages}
    if found.isdisjoint(benchmark.documents):
        seen = f"pages of {', '.join(sorted(found)[:3])}" if found else "nothing"
        raise BenchmarkError(
            f"no search found a document of {benchmark.name} (the index gave {seen}); add {benchmark.pdfs} to it first"
        )
    return score_run({query.id: query.relevant for query in benchmark.queries}, run), statistics.median(milliseconds)


def _search(index: SearchIndex, query: BenchmarkQuery, point: Plan, hits: int) -> list[PageKey]:
    where = None if query.doc is None else {"doc_id": query.doc}
    budget = Budget(depth=point.depth, page_depth=point.page_depth, dim=point.dim)
    try:
        pages = index.search(query.text, k=hits, budget=budget, where=where)
    except QueryError as error:
        raise BenchmarkError(f"question {query.id!r} cannot be searched: {error}") from error
    return [(page.doc_id, page.page_num) for page in pages]
