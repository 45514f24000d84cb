"""The side table of a search's first stage, beside pages that come, go and move."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from store_pages import SETTINGS, document, page_row

from budgetvdr.errors import ReadOnlyError
from budgetvdr.store import PageCodes, Routes, Snapshot, Store

CENTROIDS = np.random.default_rng(0).standard_normal((300, 64)).astype(np.float32)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "index", settings_if_new=SETTINGS)


def codes_of(page_id: str, revision: str) -> list[int]:
    """Any codes, that differ from page to page and are none for some."""
    rng = np.random.default_rng([*f"{page_id} {revision}".encode()])
    return [int(code) for code in rng.integers(0, len(CENTROIDS), rng.integers(0, 6))]


def write(store: Store, depth: int = 6, **settings: str | int) -> None:
    snapshot = store.snapshot()
    facts = snapshot.facts(snapshot.matching())
    lists = [codes_of(fact.id, fact.revision) for fact in facts]
    offsets = np.concatenate([[0], np.cumsum([len(codes) for codes in lists], dtype=np.int64)])
    codes = np.array([code for codes in lists for code in codes], np.uint16)
    ids, revisions = [fact.id for fact in facts], [fact.revision for fact in facts]
    store.write_routes(depth, PageCodes(ids, revisions, offsets, codes), CENTROIDS, settings)


def check(snapshot: Snapshot, unknown: set[str]) -> Routes:
    """Every page has the codes that were written for it as it is, except those named."""
    found = snapshot.routes(6)
    assert found is not None
    facts = snapshot.facts(found.addresses)
    assert sorted(found.addresses.tolist()) == sorted(snapshot.matching().tolist())
    assert len(found.offsets) == len(facts) + 1 and found.offsets[-1] == len(found.codes)
    assert {fact.id for fact, known in zip(facts, found.known, strict=True) if not known} == unknown
    for place, fact in enumerate(facts):
        codes = found.codes[found.offsets[place] : found.offsets[place + 1]].tolist()
        assert codes == ([] if fact.id in unknown else codes_of(fact.id, fact.revision)), fact.id
    np.testing.assert_array_equal(found.centroids, CENTROIDS)
    return found


def test_codes_come_back_page_by_page(store: Store) -> None:
    store.upsert([*document("a", range(1, 20)), *document("b", range(1, 5))])
    assert store.snapshot().routes(6) is None
    write(store, made_of=1000, seed="7")
    found = check(store.snapshot(), unknown=set())
    assert found.settings == {"made_of": 1000, "seed": "7"}
    assert found.codes.dtype == np.uint16
    assert store.snapshot().routes(2) is None


def test_pages_that_came_or_changed_since_are_not_known(store: Store) -> None:
    store.upsert([*document("a", range(1, 6)), *document("b", range(1, 4)), *document("c", [1])])
    write(store)
    store.upsert([*document("a", [2, 3], "r2"), *document("new", [1])])
    store.delete_documents(["b"])
    check(store.snapshot(), unknown={"a#2", "a#3", "new#1"})
    # Back as it was, it is known again.
    store.upsert(document("a", [2]))
    check(store.snapshot(), unknown={"a#3", "new#1"})


def test_codes_stay_with_their_pages_when_pages_move_on_disk(store: Store) -> None:
    for number in range(20):
        store.upsert([page_row(f"doc{number}", 1, revision="r1")])
    write(store)
    store.delete_documents(["doc3"])
    before = store.snapshot().matching()
    store.optimize(timedelta(0))
    assert not np.array_equal(before, store.snapshot().matching())
    check(store.snapshot(), unknown=set())


def test_writing_again_replaces_all_of_it_and_leaves_no_pile(store: Store) -> None:
    store.upsert(document("a", range(1, 4)))
    write(store, step=1)
    store.upsert(document("a", range(1, 4), "r2"))
    check(store.snapshot(), unknown={"a#1", "a#2", "a#3"})
    write(store, step=2)
    assert check(store.snapshot(), unknown=set()).settings == {"step": 2}
    write(store, depth=2)
    assert check(store.snapshot(), unknown=set()).settings == {"step": 2}


def test_an_index_made_anew_has_no_routes_of_the_old_one(store: Store, tmp_path: Path) -> None:
    import shutil

    store.upsert(document("a", [1]))
    write(store)
    shutil.rmtree(tmp_path / "index" / "pages.lance")
    for file in tmp_path.glob("index/routes_6.lance"):
        file.rename(tmp_path / "aside")
    again = Store.open(tmp_path / "index", settings_if_new=SETTINGS)
    (tmp_path / "aside").rename(tmp_path / "index" / "routes_6.lance")
    again.upsert(document("a", [1]))
    assert again.snapshot().routes(6) is None


def test_no_pages_no_codes(store: Store) -> None:
    store.upsert(document("a", [1]))
    write(store)
    store.delete_documents(["a"])
    found = check(store.snapshot(), unknown=set())
    assert found.offsets.tolist() == [0]
    write(store)
    store.upsert(document("a", [1]))
    check(store.snapshot(), unknown={"a#1"})


def test_a_reader_reads_routes_and_writes_none(store: Store) -> None:
    store.upsert(document("a", [1, 2]))
    write(store)
    with Store.open(store.uri, read_only=True) as reader:
        check(reader.snapshot(), unknown=set())
        with pytest.raises(ReadOnlyError):
            write(reader)


@pytest.mark.parametrize(
    ("pages", "centroids"),
    [
        (PageCodes(["a#1"], [], np.array([0, 1]), np.zeros(1, np.uint16)), CENTROIDS),
        (PageCodes(["a#1"], ["r"], np.array([0, 2]), np.zeros(1, np.uint16)), CENTROIDS),
        (PageCodes(["a#1"], ["r"], np.array([0, 1]), np.full(1, 300, np.uint16)), CENTROIDS),
        (PageCodes([], [], np.array([0]), np.zeros(0, np.uint16)), CENTROIDS[0]),
    ],
)
def test_shapes_that_do_not_fit_are_refused(store: Store, pages: PageCodes, centroids: np.ndarray) -> None:
    with pytest.raises(ValueError, match="expected"):
        store.write_routes(6, pages, centroids, {})
    assert store.snapshot().routes(6) is None
