"""The first stage: what it proposes holds the best pages, and it follows an index that changes."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from budgetvdr import first_stage
from budgetvdr.budget import Plan
from budgetvdr.first_stage import FirstStage
from budgetvdr.first_stage_refresh import refresh
from budgetvdr.searcher import Searcher
from budgetvdr.similarity.maxsim import unit_prefix
from budgetvdr.store import STORE_FORMAT_VERSION, IndexSettings, PageRow, Store

POOL = ThreadPoolExecutor(2)
DIMS = (16, 32, 64)
RNG = np.random.default_rng(4)
TOPICS = RNG.standard_normal((120, 64)).astype(np.float32)


def rows(count: int, name: str, revision: str = "r1") -> list[PageRow]:
    """Pages about three topics each, and every 50th page blank."""
    made = []
    for number in range(1, count + 1):
        vectors = 0 if number % 50 == 0 else int(RNG.integers(3, 12))
        about = RNG.choice(len(TOPICS), 3)
        noise = 0.5 * RNG.standard_normal((vectors, 64))
        made.append(
            PageRow(
                doc_id=name,
                page_num=number,
                revision=revision,
                regions=np.zeros((vectors, 4), np.float32),
                vectors={2: (TOPICS[RNG.choice(about, vectors)] + noise).astype(np.float32)},
            )
        )
    return made


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    settings = IndexSettings(STORE_FORMAT_VERSION, "f" * 16, "random", (2,), DIMS)
    with Store.open(tmp_path / "index", settings_if_new=settings) as opened:
        opened.upsert(rows(2000, "a"))
        yield opened


def query(dim: int) -> np.ndarray:
    return unit_prefix(TOPICS[RNG.choice(len(TOPICS), 4)] + 0.3 * RNG.standard_normal((4, 64)), dim)


def recall(
    store: Store, candidates: int, dim: int = 64, memory_limit: int = 1 << 30, where: str | None = None
) -> float:
    """Mean share of the exact 10 best that a search with so many candidates finds."""
    searcher, found = Searcher(memory_limit=memory_limit, threads=2), []
    for _ in range(20):
        asked = query(dim)
        best = searcher.rank(store.snapshot(), asked, Plan(2, dim), k=10, where=where)
        proposed = searcher.rank(store.snapshot(), asked, Plan(2, dim, candidates), k=10, where=where)
        assert proposed.pages < best.pages, "the first stage was not asked"
        assert proposed.path == ("scan" if memory_limit else "proposed")
        names = {fact.id for fact in best.facts}
        found.append(len(names & {fact.id for fact in proposed.facts}) / len(names))
        by_name = dict(zip((fact.id for fact in best.facts), best.scores, strict=True))
        for fact, score in zip(proposed.facts, proposed.scores, strict=True):
            assert score == pytest.approx(by_name.get(fact.id, score), abs=1e-5)
    searcher.close()
    return float(np.mean(found))


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("memory_limit", [1 << 30, 0])
def test_proposals_hold_most_of_the_best(store: Store, dim: int, memory_limit: int) -> None:
    refresh(store, 2, POOL, make=True)
    # One page in ten is looked at, of which lots would hold a tenth of the best.
    assert recall(store, 200, dim, memory_limit) > 0.85


def test_without_a_first_stage_every_page_is_scored(store: Store) -> None:
    searcher = Searcher(memory_limit=1 << 30, threads=2)
    asked = query(64)
    assert FirstStage().propose(store.snapshot(), 2, asked, 100, None) is None
    ranking = searcher.rank(store.snapshot(), asked, Plan(2, 64, 100), k=10, where=None)
    assert ranking.pages == 2000
    searcher.refresh_first_stage(store, make=False)
    assert store.snapshot().routes(2) is None
    searcher.refresh_first_stage(store, make=True)
    assert searcher.rank(store.snapshot(), asked, Plan(2, 64, 100), k=10, where=None).pages == 100
    searcher.close()


def test_named_budgets_scan_what_is_quickly_scanned(store: Store) -> None:
    refresh(store, 2, POOL, make=True)
    components = store.snapshot().vector_count(2) * 64
    for memory_limit, quick_scan, pages in (
        (1 << 30, components, 2000),
        (1 << 30, components - 1, 100),
        (0, components, 100),
    ):
        searcher = Searcher(memory_limit=memory_limit, threads=2)
        ranking = searcher.rank(store.snapshot(), query(64), Plan(2, 64, 100, quick_scan), k=10, where=None)
        assert ranking.pages == pages
        assert (searcher._first_stage.nbytes == 0) == (pages == 2000), "lists that are not asked stay on disk"
        searcher.close()


def test_filters_come_first(store: Store) -> None:
    refresh(store, 2, POOL, make=True)
    assert recall(store, 100, where="page_num % 2 = 0") > 0.7
    searcher = Searcher(memory_limit=1 << 30, threads=2)
    ranking = searcher.rank(store.snapshot(), query(64), Plan(2, 64, 100), k=10, where="page_num <= 100")
    assert ranking.pages == 100, "so few are all scored"
    assert all(fact.page_num <= 100 for fact in ranking.facts)
    searcher.close()


def test_more_hits_than_candidates_are_still_given(store: Store) -> None:
    refresh(store, 2, POOL, make=True)
    searcher = Searcher(memory_limit=1 << 30, threads=2)
    ranking = searcher.rank(store.snapshot(), query(64), Plan(2, 64, 5), k=50, where=None)
    assert len(ranking.facts) == 50
    searcher.close()


def test_it_follows_pages_that_come_and_go(store: Store) -> None:
    refresh(store, 2, POOL, make=True)
    searcher = Searcher(memory_limit=1 << 30, threads=2)

    def best_is_found() -> None:
        for _ in range(5):
            asked = query(64)
            plan = Plan(2, 64, 400)
            best = searcher.rank(store.snapshot(), asked, Plan(2, 64), k=1, where=None)
            found = searcher.rank(store.snapshot(), asked, plan, k=1, where=None)
            assert found.facts[0].id == best.facts[0].id
            assert found.pages < best.pages

    changes = [
        lambda: store.upsert(rows(30, "b")),
        lambda: store.delete_where("doc_id = 'a' AND page_num % 3 = 0"),
        lambda: store.upsert(rows(100, "a", "r2")),
        store.optimize,
        lambda: refresh(store, 2, POOL, make=True),
    ]
    for change in changes:
        change()
        best_is_found()
    snapshot = store.snapshot()
    routes = snapshot.routes(2)
    assert routes is not None
    assert routes.known.mean() > 0.9
    new = PageRow(doc_id="new", page_num=1, regions=np.zeros((1, 4), np.float32), vectors={2: query(64)[:1]})
    store.upsert([new])
    asked = new.vectors[2]
    assert searcher.rank(store.snapshot(), asked, Plan(2, 64, 10), k=1, where=None).facts[0].id == "new#1"
    searcher.close()


def test_a_page_stored_anew_under_its_revision_is_found_by_what_it_holds_now(store: Store) -> None:
    """As where OCR reads what it could not before, with as many vectors as there were."""
    refresh(store, 2, POOL, make=True)
    searcher = Searcher(memory_limit=1 << 30, threads=2)
    searcher.rank(store.snapshot(), query(64), Plan(2, 64, 10), k=1, where=None)
    apart = np.linalg.svd(TOPICS, full_matrices=False)[2][-1:] * 3
    snapshot = store.snapshot()
    held = {fact.id: fact.vectors for fact in snapshot.facts(snapshot.matching("page_num = 777"))}["a#777"]
    vectors = {2: np.repeat(apart, held, axis=0).astype(np.float32)}
    row = PageRow(doc_id="a", page_num=777, revision="r1", regions=np.zeros((held, 4), np.float32), vectors=vectors)
    store.upsert([row])
    asked = unit_prefix(apart.astype(np.float32), 64)
    for asking in (searcher, Searcher(memory_limit=1 << 30, threads=2)):
        assert asking.rank(store.snapshot(), asked, Plan(2, 64, 10), k=1, where=None).facts[0].id == "a#777"
    refresh(store, 2, POOL, make=False)
    after = Searcher(memory_limit=1 << 30, threads=2)
    found = after.rank(store.snapshot(), asked, Plan(2, 64, 10), k=1, where=None)
    assert (found.facts[0].id, found.pages) == ("a#777", 11), "what it holds now is like nothing else"
    for each in (searcher, asking, after):
        each.close()


def test_a_damaged_first_stage_costs_time_and_is_made_anew(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    refresh(store, 2, POOL, make=True)
    manifest = next(Path(store.uri, "routes_2.lance", "_versions").glob("*.manifest"))
    manifest.write_bytes(manifest.read_bytes()[:200])
    searcher = Searcher(memory_limit=1 << 30, threads=2)
    for _ in range(3):
        asked = query(64)
        best = searcher.rank(store.snapshot(), asked, Plan(2, 64), k=10, where=None)
        found = searcher.rank(store.snapshot(), asked, Plan(2, 64, 100), k=10, where=None)
        assert [fact.id for fact in found.facts] == [fact.id for fact in best.facts]
        store.upsert(rows(1, "b"))
    assert caplog.text.count("damaged") == 1
    searcher.refresh_first_stage(store, make=False)
    assert "made anew" in caplog.text
    assert searcher.rank(store.snapshot(), query(64), Plan(2, 64, 100), k=10, where=None).pages == 100
    searcher.close()


def test_one_made_by_another_process_is_seen_after_some_seconds(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = FirstStage()
    assert stage.propose(store.snapshot(), 2, query(64), 100, None) is None
    refresh(store, 2, POOL, make=True)
    assert stage.propose(store.snapshot(), 2, query(64), 100, None) is None
    monkeypatch.setattr(first_stage, "_LOOK_AGAIN", 0.0)
    proposed = stage.propose(store.snapshot(), 2, query(64), 100, None)
    assert proposed is not None
    assert len(proposed) == 100


def test_memory_is_told_while_lists_come_and_go(store: Store) -> None:
    refresh(store, 2, POOL, make=True)
    stage, snapshot = FirstStage(), store.snapshot()
    assert stage.nbytes == 0
    stage.propose(snapshot, 2, query(64), 100, None)
    routes = snapshot.routes(2)
    assert routes is not None
    whole = stage.nbytes
    # Lists name a page once for each of its centroids, in 4 bytes.
    assert whole > routes.centroids.nbytes + routes.addresses.nbytes + 2 * len(routes.codes)
    stage.propose(snapshot, 2, query(16), 100, None)
    assert stage.nbytes == whole + routes.centroids.nbytes // 4
    done = threading.Event()

    def change() -> None:
        while not done.is_set():
            stage.forget()
            for dim in DIMS:
                stage.propose(snapshot, 2, query(dim), 100, None)

    changing = threading.Thread(target=change)
    changing.start()
    try:
        assert all(stage.nbytes >= 0 for _ in range(20_000))
    finally:
        done.set()
        changing.join()
    stage.forget()
    assert stage.nbytes == 0


def test_a_grown_index_is_trained_for_anew(store: Store) -> None:
    store.delete_where("page_num > 200")
    refresh(store, 2, POOL, make=True)
    before = store.snapshot().routes(2)
    store.upsert(rows(100, "b"))
    refresh(store, 2, POOL, make=False)
    same = store.snapshot().routes(2)
    store.upsert(rows(2000, "c"))
    refresh(store, 2, POOL, make=True)
    anew = store.snapshot().routes(2)
    assert before is not None
    assert same is not None
    assert anew is not None
    np.testing.assert_array_equal(before.centroids, same.centroids)
    assert len(before.known) < len(same.known) < len(anew.known)
    assert anew.known.all()
    assert before.centroids.shape != anew.centroids.shape or not np.array_equal(before.centroids, anew.centroids)


def about_other_things(count: int) -> list[PageRow]:
    """Pages as `rows` makes them, of topics that are not among its own."""
    made = []
    for row in rows(count, "other"):
        turned = np.roll(row.vectors[2], 1, axis=1) * np.where(np.arange(64) % 2, 1, -1)
        made.append(replace(row, vectors={2: turned.astype(np.float32)}))
    return made


def test_pages_about_other_things_are_found_until_and_after_it_is_made_anew(store: Store) -> None:
    refresh(store, 2, POOL, make=True)
    before = store.snapshot().routes(2)
    others = [row for row in about_other_things(300) if len(row.vectors[2])]
    store.upsert(others)
    refresh(store, 2, POOL, make=False)
    left = store.snapshot().routes(2)
    assert before is not None
    assert left is not None
    np.testing.assert_array_equal(before.centroids, left.centroids)
    assert left.training.strangers == (~left.known).sum() > 280
    refresh(store, 2, POOL, make=True)
    anew = store.snapshot().routes(2)
    assert anew is not None
    assert anew.known.all()
    assert anew.training.strangers == 0
    searcher = Searcher(memory_limit=1 << 30, threads=2)
    found = 0
    for row in others[:40]:
        asked = unit_prefix(row.vectors[2][:3] + 0.3 * RNG.standard_normal((3, 64)), 64)
        best = searcher.rank(store.snapshot(), asked, Plan(2, 64), k=1, where=None)
        proposed = searcher.rank(store.snapshot(), asked, Plan(2, 64, 100), k=1, where=None)
        assert proposed.pages == 100
        found += proposed.facts[0].id == best.facts[0].id
    searcher.close()
    assert found >= 38


def test_one_page_then_another(tmp_path: Path) -> None:
    settings = IndexSettings(STORE_FORMAT_VERSION, "f" * 16, "random", (2,), DIMS)
    searcher = Searcher(memory_limit=1 << 30, threads=2)
    with Store.open(tmp_path / "index", settings_if_new=settings) as store:
        for row in (rows(1, "a")[0], about_other_things(1)[0]):
            store.upsert([row])
            refresh(store, 2, POOL, make=True)
            found = searcher.rank(store.snapshot(), row.vectors[2], Plan(2, 64, 1), k=1, where=None)
            assert found.facts[0].id == f"{row.doc_id}#1"
            searcher.refresh_first_stage(store, make=False)
    searcher.close()


def test_a_filter_holds_for_pages_that_are_in_no_list(store: Store) -> None:
    refresh(store, 2, POOL, make=True)
    store.upsert(rows(60, "b"))
    stage, snapshot = FirstStage(), store.snapshot()
    allowed = snapshot.matching("doc_id = 'a' OR page_num <= 10")
    proposed = stage.propose(snapshot, 2, query(64), 100, allowed)
    assert proposed is not None
    assert set(proposed.tolist()) <= set(allowed.tolist())
    assert len(proposed) == 110, "new pages that are allowed come on top"
    searcher = Searcher(memory_limit=1 << 30, threads=2)
    ranking = searcher.rank(snapshot, query(64), Plan(2, 64, 100), k=100, where="doc_id = 'a'")
    assert {fact.doc_id for fact in ranking.facts} == {"a"}
    searcher.close()


def test_lists_that_were_replaced_are_let_go(store: Store) -> None:
    refresh(store, 2, POOL, make=True)
    stage = FirstStage()
    stage.propose(store.snapshot(), 2, query(16), 100, None)
    old = weakref.ref(stage._lists[2].routes.pages)
    store.upsert(rows(900, "b"))
    refresh(store, 2, POOL, make=False)
    stage.propose(store.snapshot(), 2, query(64), 100, None)
    gc.collect()
    assert old() is None


def test_indexes_without_vectors(tmp_path: Path) -> None:
    settings = IndexSettings(STORE_FORMAT_VERSION, "f" * 16, "random", (2,), DIMS)
    blank = PageRow(
        doc_id="blank", page_num=1, regions=np.zeros((0, 4), np.float32), vectors={2: np.zeros((0, 64), np.float32)}
    )
    with Store.open(tmp_path / "index", settings_if_new=settings) as store:
        refresh(store, 2, POOL, make=True)
        store.upsert([blank])
        refresh(store, 2, POOL, make=True)
        assert FirstStage().propose(store.snapshot(), 2, query(64), 10, None) is None
