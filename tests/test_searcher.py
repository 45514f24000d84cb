"""Scan, candidates and exact scores against brute force over the stored vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from budgetvdr.budget import Plan
from budgetvdr.errors import IndexStoreError
from budgetvdr.searcher import Searcher
from budgetvdr.similarity.maxsim import unit_prefix
from budgetvdr.store import STORE_FORMAT_VERSION, IndexSettings, PageRow, Store

DEPTHS, DIMS = (2, 6), (8, 16, 64)
PAGES = 400
RNG = np.random.default_rng(3)


def rows() -> list[PageRow]:
    """Pages of 0 to 40 vectors; every fourth page is nearly the one before it."""
    made: list[PageRow] = []
    for number in range(1, PAGES + 1):
        if number % 4 == 0:
            vectors = {d: v + RNG.normal(0, 1e-3, v.shape).astype(np.float32) for d, v in made[-1].vectors.items()}
        else:
            count = int(RNG.integers(0, 41))
            vectors = {depth: RNG.standard_normal((count, DIMS[-1])).astype(np.float32) for depth in DEPTHS}
        count = len(vectors[DEPTHS[0]])
        made.append(
            PageRow(
                doc_id="even" if number % 2 == 0 else "odd",
                page_num=number,
                regions=np.zeros((count, 4), np.float32),
                vectors=vectors,
            )
        )
    return made


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    settings = IndexSettings(STORE_FORMAT_VERSION, "f" * 16, "random", DEPTHS, DIMS)
    with Store.open(tmp_path_factory.mktemp("search") / "index", settings_if_new=settings) as opened:
        made = rows()
        for start in range(0, PAGES, 50):
            opened.upsert(made[start : start + 50])
        yield opened


def brute_force(store: Store, query: np.ndarray, plan: Plan, where: str | None) -> list[tuple[str, float]]:
    """(id, score) of every page with vectors, best first, in float64."""
    snapshot, scored = store.snapshot(), []
    slab, facts = snapshot.vectors_and_facts(snapshot.matching(where), plan.depth, plan.dim)
    vectors = unit_prefix(np.concatenate(slab.slices, axis=1), plan.dim).astype(np.float64)
    for fact, (first, last) in zip(facts, pairwise(slab.offsets), strict=True):
        if last > first:
            similarities = query.astype(np.float64) @ vectors[first:last].T
            scored.append((fact.id, float(similarities.max(axis=1).mean())))
    return sorted(scored, key=lambda item: -item[1])


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize(
    ("where", "memory_limit"), [(None, 1 << 30), ("doc_id = 'even'", 1 << 30), (None, 0), ("page_num < 9", 0)]
)
@pytest.mark.parametrize("length", [1.0, 7.0])
def test_the_k_best_are_the_k_best(  # noqa: PLR0917
    store: Store, depth: int, dim: int, where: str | None, memory_limit: int, length: float
) -> None:
    plan = Plan(depth, dim)
    searcher = Searcher(memory_limit=memory_limit, threads=2)
    for k in (1, 5, 1000):
        # Queries whose vectors have a length of their own, as some encoders give them.
        query = length * unit_prefix(RNG.standard_normal((9, dim)), dim)
        ranking = searcher.rank(store.snapshot(), query, plan, k=k, where=where)
        expected = brute_force(store, query, plan, where)[:k]
        found = [fact.id for fact in ranking.facts]
        assert len(found) == len(expected)
        np.testing.assert_allclose(ranking.scores, [score for _, score in expected], atol=1e-5 * length)
        # float32 may swap pages that are equal to its precision; nothing else may differ.
        assert set(found) == {page for page, _ in expected}
    searcher.close()


def test_a_copy_in_memory_follows_small_changes(tmp_path: Path) -> None:
    settings = IndexSettings(STORE_FORMAT_VERSION, "f" * 16, "random", DEPTHS, DIMS)
    plan, made = Plan(6, 16), rows()
    with Store.open(tmp_path / "index", settings_if_new=settings) as store:
        store.upsert(made[:300])
        searcher = Searcher(memory_limit=1 << 30, threads=2)

        def check() -> None:
            query = unit_prefix(RNG.standard_normal((5, 16)), 16)
            ranking = searcher.rank(store.snapshot(), query, plan, k=20, where=None)
            expected = brute_force(store, query, plan, None)[:20]
            assert {fact.id for fact in ranking.facts} == {page for page, _ in expected}
            np.testing.assert_allclose(ranking.scores, [score for _, score in expected], atol=1e-5)

        for change in (
            lambda: None,
            lambda: store.upsert(made[300:310]),
            lambda: store.delete_where("page_num % 7 = 0"),
            lambda: store.upsert([*made[200:205], *made[310:320]]),
            lambda: store.upsert(made),
            store.optimize,
            lambda: store.delete_where("page_num > 3"),
        ):
            change()
            check()
        searcher.close()


def fading(count: int, name: str) -> list[PageRow]:
    """Pages of 0 to 8 vectors whose leading components carry most of them."""
    made = []
    for number in range(1, count + 1):
        vectors = RNG.standard_normal((number % 9, DIMS[-1])) / np.arange(1, DIMS[-1] + 1) ** 3
        made.append(
            PageRow(
                doc_id=name,
                page_num=number,
                regions=np.zeros((number % 9, 4), np.float32),
                vectors=dict.fromkeys(DEPTHS, vectors.astype(np.float32)),
            )
        )
    return made


def test_pruned_search_finds_the_k_best(tmp_path: Path) -> None:
    settings = IndexSettings(STORE_FORMAT_VERSION, "f" * 16, "fading", DEPTHS, DIMS)
    plan = Plan(6, 64)
    with Store.open(tmp_path / "index", settings_if_new=settings) as store:
        store.upsert(fading(2000, "a"))
        # Room for 16 components in float16 with the length of the rest, but not for 64 in int8.
        searcher = Searcher(memory_limit=400_000, threads=2)

        def check(where: str | None, k: int) -> str:
            query = unit_prefix(RNG.standard_normal((5, 64)) / np.arange(1, 65) ** 3, 64)
            ranking = searcher.rank(store.snapshot(), query, plan, k=k, where=where)
            expected = brute_force(store, query, plan, where)[:k]
            np.testing.assert_allclose(ranking.scores, [score for _, score in expected], atol=1e-5)
            assert {fact.id for fact in ranking.facts} == {page for page, _ in expected}
            return ranking.path

        assert [check(None, k) for k in (1, 10, 100)] == ["pruned"] * 3
        assert check("page_num % 2 = 0", 5) == "pruned"
        # A large k, or a filter that leaves few pages, is better read in order, and does not end pruning.
        assert check(None, 1500) == "stream"
        assert check("page_num < 30", 20) in {"pruned", "stream"}
        store.delete_where("page_num % 5 = 0")
        assert check(None, 10) == "pruned"
        store.upsert(fading(50, "b"))
        assert check(None, 10) == "pruned"
        assert 0 < searcher.nbytes <= 400_000
        searcher.close()


def test_pruning_that_does_not_pay_is_given_up_and_freed(store: Store) -> None:
    searcher, plan = Searcher(memory_limit=400_000, threads=2), Plan(6, 64)
    query = unit_prefix(RNG.standard_normal((5, 64)), 64)
    for _ in range(2):
        ranking = searcher.rank(store.snapshot(), query, plan, k=5, where=None)
        assert ranking.path == "stream"
        assert {fact.id for fact in ranking.facts} == {page for page, _ in brute_force(store, query, plan, None)[:5]}
        assert searcher.nbytes == 0
    searcher.close()


def test_equal_pages_come_in_one_order_from_every_path(tmp_path: Path) -> None:
    settings = IndexSettings(STORE_FORMAT_VERSION, "f" * 16, "fading", DEPTHS, DIMS)
    row, plan = fading(8, "a")[-1], Plan(6, 64)
    with Store.open(tmp_path / "index", settings_if_new=settings) as store:
        for name in "dbca":
            store.upsert([replace(row, doc_id=name, page_num=number) for number in range(1, 700)])
        store.upsert([replace(row, doc_id="b", page_num=number) for number in range(300, 310)])
        answers, paths = [], set()
        for limit in (1 << 30, 1_000_000, 0):
            searcher = Searcher(memory_limit=limit, threads=2)
            ranking = searcher.rank(store.snapshot(), row.vectors[6], plan, k=40, where=None)
            answers.append([fact.id for fact in ranking.facts])
            paths.add(ranking.path)
            searcher.close()
        assert answers[0] == answers[1] == answers[2]
        assert len(answers[0]) == 40
        assert {"scan", "stream"} <= paths


def test_memory_stays_under_the_limit(store: Store) -> None:
    query = unit_prefix(RNG.standard_normal((5, 64)), 64)
    vectors = store.snapshot().vector_count()
    limit = int(vectors * 1.3) * (16 + 4) + 100_000
    searcher, paths = Searcher(memory_limit=limit, threads=2), set()
    for dim in (8, 16, 64, 16, 8, 64):
        for depth in DEPTHS:
            ranking = searcher.rank(store.snapshot(), unit_prefix(query, dim), Plan(depth, dim), k=5, where=None)
            paths.add((dim, ranking.path))
            assert searcher.nbytes <= limit
    assert {(8, "scan"), (16, "scan"), (64, "stream")} <= paths
    searcher.close()


@pytest.mark.parametrize("memory_limit", [1 << 30, 0])
def test_a_filter_and_candidates_leave_k_pages_where_there_are_as_many(tmp_path: Path, memory_limit: int) -> None:
    settings = IndexSettings(STORE_FORMAT_VERSION, "f" * 16, "random", (6,), DIMS)
    made = []
    for number in range(1, 3001):
        # What the filter leaves lies far from what is asked.
        vectors = RNG.standard_normal((3, DIMS[-1])).astype(np.float32) + (6 if number % 10 else -6)
        made.append(PageRow(doc_id="a", page_num=number, regions=np.zeros((3, 4), np.float32), vectors={6: vectors}))
    with Store.open(tmp_path / "index", settings_if_new=settings) as store:
        store.upsert(made)
        searcher = Searcher(memory_limit=memory_limit, threads=2)
        searcher.refresh_first_stage(store, make=True)
        query = unit_prefix(np.ones((1, 64), np.float32), 64)
        for where in ("page_num % 10 = 0", None):
            ranking = searcher.rank(store.snapshot(), query, Plan(6, 64, candidates=50), k=10, where=where)
            assert len(ranking.facts) == 10
            if where is not None:
                expected = brute_force(store, query, Plan(6, 64), where)[:10]
                assert {fact.id for fact in ranking.facts} == {page for page, _ in expected}
        searcher.close()


@pytest.mark.parametrize("vectors", [1, 3, 20])
@pytest.mark.parametrize("length", [0.2, 1.0, 7.0])
def test_alike_pages_with_one_strong_component_are_told_apart(tmp_path: Path, vectors: int, length: float) -> None:
    """Where one component dominates, steps of int8 are coarse for all others, by which these pages differ."""
    settings = IndexSettings(STORE_FORMAT_VERSION, "f" * 16, "template", (6,), DIMS)
    template = RNG.standard_normal((6, 64))
    template[:, 3] = 20
    made = [
        PageRow(
            doc_id="a",
            page_num=number,
            regions=np.zeros((6, 4), np.float32),
            vectors={6: (template + 0.1 * RNG.standard_normal((6, 64))).astype(np.float32)},
        )
        for number in range(1, 801)
    ]
    with Store.open(tmp_path / "index", settings_if_new=settings) as store:
        store.upsert(made)
        scanning, streaming = Searcher(memory_limit=1 << 30, threads=2), Searcher(memory_limit=0, threads=2)
        for _ in range(20):
            query = unit_prefix(template[RNG.integers(0, 6, vectors)] + RNG.standard_normal((vectors, 64)), 64)
            found = [
                searcher.rank(store.snapshot(), length * query, Plan(6, 64), k=10, where=None)
                for searcher in (scanning, streaming)
            ]
            assert [each.path for each in found] == ["scan", "stream"]
            assert [fact.id for fact in found[0].facts] == [fact.id for fact in found[1].facts]
        scanning.close()
        streaming.close()


def test_a_longer_query_does_not_send_more_pages_to_be_read(store: Store) -> None:
    searcher, query = Searcher(memory_limit=1 << 30, threads=2), unit_prefix(RNG.standard_normal((9, 64)), 64)
    read = [
        searcher.rank(store.snapshot(), length * query, Plan(6, 64), k=10, where=None).candidates
        for length in (0.25, 1.0, 8.0)
    ]
    assert 10 <= read[0] == read[1] == read[2] < 60
    searcher.close()


def test_many_proposed_pages_are_read_in_order(tmp_path: Path) -> None:
    settings = IndexSettings(STORE_FORMAT_VERSION, "f" * 16, "random", DEPTHS, DIMS)
    query = unit_prefix(RNG.standard_normal((5, 64)), 64)
    searcher = Searcher(memory_limit=0, threads=2)
    with Store.open(tmp_path / "index", settings_if_new=settings) as store:
        store.upsert(rows())
        searcher.refresh_first_stage(store, make=True)
        for candidates, path in ((40, "proposed"), (200, "stream")):
            ranking = searcher.rank(store.snapshot(), query, Plan(6, 64, candidates), k=5, where=None)
            assert ranking.path == path
    searcher.close()


def test_a_closed_searcher_says_so_and_keeps_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    searcher, plan = Searcher(memory_limit=1 << 30, threads=2), Plan(6, 16)
    query, snapshot = unit_prefix(RNG.standard_normal((5, 16)), 16), store.snapshot()
    scan = type(snapshot).scan

    def closing(*arguments: object) -> object:
        searcher.close()
        return scan(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(type(snapshot), "scan", closing)
    with pytest.raises(IndexStoreError, match="closed during the search"):
        # Enough work for the pool, which is gone.
        monkeypatch.setattr("budgetvdr.similarity.maxsim._LEAST_WORK", 1)
        searcher.rank(snapshot, query, plan, k=5, where=None)
    monkeypatch.undo()
    assert searcher.nbytes == 0
    for action in (
        lambda: searcher.rank(snapshot, query, plan, k=5, where=None),
        lambda: searcher.exact(snapshot, [query], plan, k=5),
        lambda: searcher.refresh_first_stage(store, make=False),
    ):
        with pytest.raises(IndexStoreError, match="closed"):
            action()
    assert searcher.nbytes == 0
