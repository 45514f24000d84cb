"""Running a set on an index held in memory, whose quality depends on the budget in a known way."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log2
from pathlib import Path

import pytest

from budgetvdr.budget import Budget, Plan
from budgetvdr.errors import BenchmarkError, BudgetError, MissingExtraError, QueryError
from budgetvdr.evaluate import Benchmark, BenchmarkQuery, grid_points, run_benchmark


@dataclass(frozen=True)
class FakeHit:
    doc_id: str
    page_num: int
    score: float


@dataclass
class MemoryIndex:
    """Scores a page by the words it shares with the query; a budget sees only the first dim / 8 words of a page."""

    texts: Mapping[tuple[str, int], str]
    query_depths: Mapping[int, tuple[int, ...]] = field(default_factory=lambda: {2: (2,), 4: (4,)})
    dims: tuple[int, ...] = (8, 16)
    vectors_per_page: float = 12.5
    calls: list[tuple[str, int, Budget, Mapping[str, str] | None]] = field(default_factory=list)

    @property
    def page_count(self) -> int:
        return len(self.texts)

    def search(self, query: str, *, k: int, budget: Budget | str, where: Mapping[str, str] | None) -> list[FakeHit]:
        assert isinstance(budget, Budget)
        assert budget.dim is not None
        self.calls.append((query, k, budget, where))
        if len(query) > 100:
            raise QueryError("too long")
        seen = budget.dim // 8
        wanted = set(query.split())
        hits = [
            FakeHit(doc, page, float(len(wanted & set(text.split()[:seen]))))
            for (doc, page), text in self.texts.items()
            if where is None or doc == where["doc_id"]
        ]
        return sorted(hits, key=lambda hit: -hit.score)[:k]


TEXTS = {
    ("a.pdf", 1): "apples grow",
    ("a.pdf", 2): "pears grow",
    ("b.pdf", 1): "apples rot",
    ("b.pdf", 2): "quinces rot",
}


def question(name: str, text: str, answer: tuple[str, int], doc: str | None = None) -> BenchmarkQuery:
    return BenchmarkQuery(name, text, doc, {answer: 1})


def benchmark(*queries: BenchmarkQuery) -> Benchmark:
    return Benchmark("fruit", Path("fruit/pdfs"), ("a.pdf", "b.pdf"), queries, ("why",))


FRUIT = benchmark(
    question("everywhere", "apples rot", ("b.pdf", 1)),
    question("inside", "apples", ("b.pdf", 1), "b.pdf"),
)


def test_the_full_budget_comes_first_and_is_the_reference() -> None:
    index = MemoryIndex(TEXTS)
    report = run_benchmark(FRUIT, index, points=grid_points(index))
    assert [(row.depth, row.dim) for row in report.rows] == [(4, 16), (4, 8), (2, 16), (2, 8)]
    assert (report.name, report.queries, report.unanswered, report.pages) == ("fruit", 2, 1, 4)
    full, narrow, *_ = report.rows
    assert full.metrics.ndcg_5 == 1
    assert full.retention == 1
    # One word of each page: "apples rot" then ties a.pdf#1 with b.pdf#1, and the index puts a.pdf first.
    assert narrow.metrics.ndcg_5 == pytest.approx((1 / log2(3) + 1) / 2)
    assert narrow.retention == pytest.approx(narrow.metrics.ndcg_5)
    assert narrow.metrics.recall_1 == pytest.approx(1 / 2)
    assert [row.bytes_per_page for row in report.rows] == [400, 200, 400, 200]
    assert all(row.vectors == 12.5 and row.ms_per_query > 0 for row in report.rows)


def test_pairs_of_depths_follow_the_depths() -> None:
    index = MemoryIndex(TEXTS, query_depths={2: (2,), 4: (2, 3, 4)}, dims=(16,))
    report = run_benchmark(FRUIT, index, points=grid_points(index))
    assert [(row.depth, row.page_depth) for row in report.rows] == [(4, 4), (2, 2), (3, 4), (2, 4)]
    asked = dict.fromkeys((budget.depth, budget.page_depth) for _, _, budget, _ in index.calls)
    assert list(asked) == [(4, 4), (2, 2), (3, 4), (2, 4)]


def test_only_the_full_budget_runs_when_no_points_are_given() -> None:
    report = run_benchmark(FRUIT, MemoryIndex(TEXTS))
    assert [(row.depth, row.dim) for row in report.rows] == [(4, 16)]


def test_a_point_given_twice_or_full_runs_once() -> None:
    report = run_benchmark(FRUIT, MemoryIndex(TEXTS), points=[Plan(2, 8), Plan(4, 16), Plan(2, 8)])
    assert [(row.depth, row.dim) for row in report.rows] == [(4, 16), (2, 8)]


def test_the_document_of_a_question_is_a_filter_and_timing_comes_after_scoring() -> None:
    index = MemoryIndex(TEXTS)
    run_benchmark(FRUIT, index, hits=3)
    full = Budget(depth=4, page_depth=4, dim=16)
    assert index.calls == [
        ("apples rot", 3, full, None),
        ("apples", 3, full, {"doc_id": "b.pdf"}),
        ("apples rot", 10, full, None),
        ("apples", 10, full, {"doc_id": "b.pdf"}),
    ]


def test_an_answer_page_that_is_not_in_the_index_is_a_miss() -> None:
    report = run_benchmark(benchmark(question("q", "apples", ("a.pdf", 99))), MemoryIndex(TEXTS))
    assert report.rows[0].metrics.ndcg_5 == 0
    assert report.rows[0].retention is None


def test_a_point_the_index_lacks_is_refused_before_anything_runs() -> None:
    index = MemoryIndex(TEXTS)
    with pytest.raises(BudgetError, match=r"depth 3 on pages of depth 3 with dim 8 .* depth of {2: \(2,\), 4"):
        run_benchmark(FRUIT, index, points=[Plan(3, 8)])
    assert index.calls == []


def test_an_index_of_other_documents_is_told() -> None:
    index = MemoryIndex({("z.pdf", 1): "apples rot"})
    with pytest.raises(BenchmarkError, match=r"no search found a document of fruit \(the index gave pages of z.pdf\)"):
        run_benchmark(FRUIT, index)
    with pytest.raises(BenchmarkError, match=r"the index gave nothing"):
        run_benchmark(FRUIT, MemoryIndex({}))


def test_a_question_the_search_refuses_is_named() -> None:
    with pytest.raises(BenchmarkError, match="question 'long' cannot be searched: too long"):
        run_benchmark(benchmark(question("long", "x" * 200, ("a.pdf", 1))), MemoryIndex(TEXTS))


def test_a_missing_metrics_library_is_told_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ir_measures", None)
    index = MemoryIndex(TEXTS)
    with pytest.raises(MissingExtraError):
        run_benchmark(FRUIT, index)
    assert index.calls == []
