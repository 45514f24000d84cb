"""Scan, candidates and exact scores against brute force over the stored vectors."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from budgetvdr.budget import Plan
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
