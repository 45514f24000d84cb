"""What the store does by itself while it is written to, and what it tells of the space it takes."""

from __future__ import annotations

import logging
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_pages import SETTINGS, document, page_row

from budgetvdr.errors import ReadOnlyError, SourceNotFoundError, StorageError
from budgetvdr.store import Store, VersionInfo, upkeep
from budgetvdr.store.upkeep import worth_merging

MB = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "index"


def pages_of(*fragments: tuple[int, int]) -> np.ndarray:
    """Addresses of fragments given as (pages left, pages deleted before them), numbered from 0."""
    held = [
        (number << 32) + np.arange(deleted, deleted + left, dtype=np.uint64)
        for number, (left, deleted) in enumerate(fragments)
    ]
    return np.concatenate([np.empty(0, np.uint64), *held])


def merged(*fragments: tuple[int, int], page: int = MB) -> list[int]:
    """Fragments whose pages are to be stored again; a fragment goes as a whole."""
    addresses = pages_of(*fragments)
    chosen = worth_merging(addresses, np.full(len(addresses), page, np.int64))
    counts = Counter((chosen >> np.uint64(32)).tolist())
    assert all(count == fragments[number][0] for number, count in counts.items())
    return sorted(counts)


def ids_of(store: Store) -> list[str]:
    snapshot = store.snapshot()
    return [facts.id for facts in snapshot.facts(snapshot.matching())]


def test_small_fragments_are_merged_and_large_ones_left() -> None:
    assert merged((100, 0), *[(1, 0)] * 31) == list(range(1, 32))
    assert merged((100, 0), *[(1, 0)] * 7) == []
    assert merged() == []


def test_a_fragment_is_taken_once_the_smaller_ones_are_together_as_large() -> None:
    assert merged(*[(1, 0)] * 16, (16, 0), (32, 0), (65, 0)) == list(range(18))
    assert merged((1, 0), *[(12, 0)] * 12) == list(range(13))


def test_a_fragment_with_more_deleted_than_left_is_taken_alone() -> None:
    assert merged((40, 41), (90, 10)) == [0]
    assert merged((40, 39), (90, 10)) == []


def test_no_more_is_merged_than_fits_memory() -> None:
    assert len(merged(*[(18, 0)] * 30)) == 192 // 18


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60))
def test_every_page_moves_to_a_fragment_at_least_twice_as_large(sizes: list[int]) -> None:
    chosen = merged(*[(size, 0) for size in sizes], page=2 * MB)
    if chosen:
        largest = max(sizes[number] for number in chosen)
        assert sum(sizes[number] for number in chosen) >= 2 * largest
        assert len(chosen) >= 8


def test_many_one_page_writes_stay_few_fragments_and_lose_nothing(path: Path) -> None:
    store = Store.open(path, settings_if_new=SETTINGS)
    for number in range(100):
        store.upsert([page_row(f"doc{number}", 1, metadata={"number": number} if number % 3 else {})])
    assert store.delete_documents([f"doc{number}" for number in range(0, 100, 10)]) == 10
    for number in range(5, 100, 10):
        store.upsert([page_row(f"doc{number}", 1, 4, seed=1, revision="r2")])
    snapshot = store.snapshot()
    assert snapshot.stats().fragments < 40
    facts = snapshot.facts(snapshot.matching())
    assert sorted(fact.doc_id for fact in facts) == sorted(f"doc{number}" for number in range(100) if number % 10)
    for fact in facts:
        number = int(fact.doc_id[3:])
        renewed = number % 10 == 5
        assert fact.metadata == ({"number": number} if number % 3 and not renewed else {})
        row = page_row(fact.doc_id, 1, 4, seed=1) if renewed else page_row(fact.doc_id, 1)
        found = snapshot.page_vectors(fact.id, 6, 128)
        assert found is not None
        np.testing.assert_array_equal(found[0], row.vectors[6].astype(np.float16))


def test_a_reader_of_before_goes_on_while_fragments_are_merged(path: Path) -> None:
    store = Store.open(path, settings_if_new=SETTINGS)
    store.upsert(document("first", range(1, 4)))
    before = store.snapshot()
    for number in range(60):
        store.upsert([page_row(f"doc{number}", 1)])
    assert store.snapshot().stats().fragments < 60
    assert [fact.doc_id for fact in before.facts(before.matching())] == ["first"] * 3
    assert sum(int(slab.offsets[-1]) for slab in before.scan(2, 64)) == 9


@pytest.mark.parametrize("scheme", ["", "file-object-store://"], ids=["disk", "as on an object store"])
def test_space_stays_bounded_over_endless_updates(path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    """With versions kept for no time instead of minutes, and small numbers counted as large ones are."""
    monkeypatch.setattr(upkeep, "KEEP_VERSIONS", timedelta(0))
    monkeypatch.setattr(upkeep, "_COMPACT_EVERY", 16)
    monkeypatch.setattr(upkeep, "_LEAST_FREED", 100_000)
    monkeypatch.setattr(upkeep, "_FEWEST_VERSIONS", 20)
    path.mkdir()
    store = Store.open(f"{scheme}{path}", settings_if_new=SETTINGS)
    store.upsert([page_row(f"doc{number}", 1, 100) for number in range(20)])

    def size() -> int:
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())

    live, sizes = size(), []
    for step in range(160):
        store.upsert([page_row(f"doc{step % 20}", 1, 100, seed=step, revision=f"r{step}")])
        sizes.append(size())
    # Between two looks pages of 50 kB, and what is made of them, pile up beside the 1 MB that is there.
    assert max(sizes) < 6 * live
    assert max(sizes[80:]) < 1.3 * max(sizes[:80])
    assert min(np.diff(sizes)) < 0
    assert {fact.revision for fact in store.snapshot().facts(store.snapshot().matching())} == {
        f"r{step}" for step in range(140, 160)
    }


def test_versions_younger_than_a_quarter_of_an_hour_are_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_COMPACT_EVERY", 4)
    monkeypatch.setattr(upkeep, "_LEAST_FREED", 1)
    store = Store.open(path, settings_if_new=SETTINGS)
    for step in range(40):
        store.upsert([page_row("a", 1, 50, seed=step)])
    assert len(store.versions()) >= 41
    assert Store.open(path, version=2).snapshot().page_count() == 1


def test_an_add_is_not_hurt_by_upkeep_that_fails(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> bool:
        raise RuntimeError("lance error: no space left")

    monkeypatch.setattr(upkeep, "merge", refuse)
    caplog.set_level(logging.INFO, "budgetvdr")
    store = Store.open(path, settings_if_new=SETTINGS)
    for number in range(10):
        store.upsert([page_row(f"doc{number}", 1)])
    assert store.snapshot().page_count() == 10
    assert "upkeep" in caplog.text and "no space left" in caplog.text


def test_a_page_changed_since_it_was_read_for_merging_stays_as_it_is(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on an object store, where no lock keeps another writer out between reading and writing."""
    monkeypatch.setattr(upkeep, "_MANY_FRAGMENTS", 8)
    store = Store.open(path, settings_if_new=SETTINGS)
    for number in range(10):
        store.upsert([page_row(f"doc{number}", 1, revision="old")])
    choose = upkeep.worth_merging

    def another_is_first(*given: np.ndarray) -> np.ndarray:
        monkeypatch.undo()
        other = Store.open(f"file-object-store://{path}")
        other.upsert([page_row("doc3", 1, 7, revision="new")])
        other.delete_documents(["doc4"])
        return choose(*given)

    monkeypatch.setattr(upkeep, "worth_merging", another_is_first)
    monkeypatch.setattr(upkeep, "_MANY_FRAGMENTS", 8)
    assert upkeep.merge(store._writer, SETTINGS)
    snapshot = store.snapshot()
    facts = {fact.doc_id: (fact.revision, fact.vectors) for fact in snapshot.facts(snapshot.matching())}
    assert facts == {f"doc{number}": ("old", 3) for number in range(10) if number not in {3, 4}} | {"doc3": ("new", 7)}


def test_a_page_stored_anew_under_its_revision_is_not_put_back_by_merging(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a writer that has OCR, with as many vectors from the same reader, and by one that only changes a note."""
    monkeypatch.setattr(upkeep, "_MANY_FRAGMENTS", 8)
    store = Store.open(path, settings_if_new=SETTINGS)
    for number in range(10):
        store.upsert([page_row(f"doc{number}", 1, revision="r", reader="ocr")])
    choose = upkeep.worth_merging
    renewed = page_row("doc3", 1, seed=1, revision="r", reader="ocr", text="read at last")

    def another_is_first(*given: np.ndarray) -> np.ndarray:
        Store.open(f"file-object-store://{path}").upsert([renewed])
        return choose(*given)

    monkeypatch.setattr(upkeep, "worth_merging", another_is_first)
    assert upkeep.merge(store._writer, SETTINGS)
    snapshot = store.snapshot()
    found = snapshot.page_vectors("doc3#1", 2, 128)
    assert found is not None
    np.testing.assert_array_equal(found[0], renewed.vectors[2].astype(np.float16))
    assert {fact.text for fact in snapshot.facts(snapshot.matching("id = 'doc3#1'"))} == {"read at last"}


def test_a_document_that_moved_meanwhile_is_not_moved_back_by_merging(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A move keeps the stamp of a page, for its vectors stay what they are."""
    monkeypatch.setattr(upkeep, "_MANY_FRAGMENTS", 8)
    store = Store.open(path, settings_if_new=SETTINGS)
    for number in range(10):
        store.upsert([page_row(f"doc{number}", 1, source=f"/old/{number}.pdf")])
    choose = upkeep.worth_merging

    def another_is_first(*given: np.ndarray) -> np.ndarray:
        Store.open(f"file-object-store://{path}").move_document("doc3", "/old/3.pdf", "/new/3.pdf")
        return choose(*given)

    monkeypatch.setattr(upkeep, "worth_merging", another_is_first)
    assert upkeep.merge(store._writer, SETTINGS)
    expected = {f"doc{number}": f"/old/{number}.pdf" for number in range(10)} | {"doc3": "/new/3.pdf"}
    assert {info.doc_id: info.source for info in store.snapshot().documents()} == expected


def test_of_a_large_index_only_the_pages_stored_last_are_looked_at(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(path, settings_if_new=SETTINGS)
    monkeypatch.setattr(upkeep, "_MERGE_EVERY", 1000)
    store.upsert([page_row(f"old{number}", 1, 100) for number in range(200)])
    for number in range(40):
        store.upsert([page_row(f"doc{number}", 1, 100)])
    monkeypatch.setattr(upkeep, "_MOST_LOOKED_AT", store._writer.stats()["total_bytes"] * 30 // 240)
    looked_at: list[np.ndarray] = []
    choose = upkeep.worth_merging

    def spy(pages: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        looked_at.append(pages)
        return choose(pages, sizes)

    monkeypatch.setattr(upkeep, "worth_merging", spy)
    store._writer.checkout_latest()
    assert upkeep.merge(store._writer, SETTINGS)
    # About thirty pages, less those of the first fragment, which may begin before.
    assert 25 < len(looked_at[0]) < 30
    snapshot = store.snapshot()
    assert (snapshot.page_count(), snapshot.stats().fragments) == (240, 41 - len(looked_at[0]) + 1)
    # Where most is deleted, all is looked at.
    store.delete_where("doc_id LIKE 'old1%'", "doc_id LIKE 'old2%'", "doc_id LIKE 'old3%'")
    store._writer.checkout_latest()
    upkeep.merge(store._writer, SETTINGS)
    assert len(looked_at[1]) == store.snapshot().page_count()


# Versions


def test_a_version_is_read_as_it_was(path: Path) -> None:
    with Store.open(path, settings_if_new=SETTINGS) as store:
        store.upsert(document("a", [1, 2]))
        wanted = store.snapshot().version
        store.upsert(document("b", [1]))
        store.delete_documents(["a"])
        with Store.open(path, version=wanted) as old:
            snapshot = old.snapshot()
            assert snapshot.version == wanted
            assert [info.doc_id for info in snapshot.documents()] == ["a"]
            store.upsert(document("c", [1]))
            assert old.snapshot() is snapshot
            for write in (
                lambda: old.upsert(document("d", [1])),
                lambda: old.delete_documents(["a"]),
                old.optimize,
            ):
                with pytest.raises(ReadOnlyError, match=f"at version {wanted}, which is read-only"):
                    write()
            assert [entry.version for entry in old.versions()] == [entry.version for entry in store.versions()]


def test_versions_tell_their_time_and_pages(path: Path) -> None:
    store = Store.open(path, settings_if_new=SETTINGS)
    store.upsert(document("a", [1, 2]))
    store.delete_documents(["a"])
    store.upsert(document("b", [1, 2, 3]))
    versions = store.versions()
    assert [(entry.version, entry.pages) for entry in versions] == [(1, 0), (2, 2), (3, 0), (4, 3)]
    assert all(isinstance(entry, VersionInfo) for entry in versions)
    assert [entry.time for entry in versions] == sorted(entry.time for entry in versions)
    now = datetime.now(UTC)
    assert all(timedelta(0) <= now - entry.time < timedelta(minutes=5) for entry in versions)


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the time zone cannot be changed here")
def test_times_of_versions_are_the_same_in_every_time_zone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(path, settings_if_new=SETTINGS)
    found = []
    for zone in ("UTC", "Asia/Tokyo", "America/Lima"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        found.append(store.versions())
    monkeypatch.undo()
    time.tzset()
    assert found[0] == found[1] == found[2]


def test_versions_are_listed_while_another_process_removes_them(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(path, settings_if_new=SETTINGS)
    for step in range(5):
        store.upsert(document("a", [step]))
    listing = type(store._head).list_versions
    failures = iter([RuntimeError("lance error: Not found: 18446744073709551598.manifest")] * 3)

    def interrupted(table: object) -> object:
        for failure in failures:
            raise failure
        return listing(table)

    monkeypatch.setattr(type(store._head), "list_versions", interrupted)
    assert [entry.version for entry in store.versions()] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("version", [0, 4, -1, 2**70])
def test_a_version_that_is_not_there_is_named_beside_those_that_are(path: Path, version: int) -> None:
    store = Store.open(path, settings_if_new=SETTINGS)
    store.upsert(document("a", [1]))
    store.upsert(document("a", [2]))
    with pytest.raises(SourceNotFoundError, match=rf"no version {version} of the index at .*: expected one of 1-3"):
        Store.open(path, version=version)


def test_a_version_that_was_removed_is_not_there(path: Path) -> None:
    store = Store.open(path, settings_if_new=SETTINGS)
    store.upsert(document("a", [1]))
    old = Store.open(path, version=1)
    pinned = Store.open(path, version=2)
    store.upsert(document("a", [1], "r2"))
    report = store.optimize(timedelta(0))
    assert (report.versions_before, report.versions_after) == (3, 1)
    with pytest.raises(SourceNotFoundError, match="no version 2"):
        Store.open(path, version=2)
    with pytest.raises(StorageError, match="compacted away"):
        list(pinned.snapshot().scan(2, 32))
    assert old.snapshot().page_count() == 0


def test_no_version_of_an_index_that_is_not_there(path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match="no index at"):
        Store.open(path, settings_if_new=SETTINGS, version=1)
    assert not path.exists()


# Space and deleting


@pytest.mark.parametrize(("keep", "error"), [(0, TypeError), (None, TypeError), (timedelta(seconds=-1), ValueError)])
def test_what_to_keep_is_a_time(path: Path, keep: object, error: type[Exception]) -> None:
    store = Store.open(path, settings_if_new=SETTINGS)
    with pytest.raises(error, match="keep: expected"):
        store.optimize(keep)  # type: ignore[arg-type]


def test_optimizing_tells_what_it_freed(path: Path) -> None:
    store = Store.open(path, settings_if_new=SETTINGS)
    for step in range(10):
        store.upsert([page_row("a", step % 2, 200, seed=step)])
    size = store.bytes_on_disk()
    kept = store.optimize()
    assert kept.bytes_freed < 0 < kept.bytes_before == size
    freed = store.optimize(timedelta(0))
    assert freed.bytes_freed == freed.bytes_before - store.bytes_on_disk() > size / 2
    assert (freed.versions_after, freed.fragments_after) == (1, 1)


@pytest.mark.parametrize("keep", [timedelta.max, timedelta(days=400_000)])
def test_versions_may_be_kept_for_ever(path: Path, keep: timedelta) -> None:
    store = Store.open(path, settings_if_new=SETTINGS)
    for step in range(3):
        store.upsert([page_row("a", 1, seed=step)])
    report = store.optimize(keep)
    assert report.versions_after >= report.versions_before == 4
    assert ids_of(store) == ["a#1"]


def test_optimizing_on_a_full_disk_says_that_it_needs_room(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(path, settings_if_new=SETTINGS)
    for step in range(3):
        store.upsert([page_row("a", step)])
    left = path / "pages.lance" / "_versions" / ".tmpX1"
    left.write_bytes(b"half")

    def refuse(*_: object, **__: object) -> None:
        assert not left.exists(), "what can go at once makes room"
        raise RuntimeError("lance error: LanceError(IO): No space left on device (os error 28)")

    with monkeypatch.context() as full:
        full.setattr(type(store._writer), "optimize", refuse)
        with pytest.raises(StorageError, match=r"optimize writes before it frees.* move the index"):
            store.optimize()
    assert len(ids_of(store)) == 3


def test_ten_thousand_documents_are_deleted_in_one_commit(path: Path) -> None:
    store = Store.open(path, settings_if_new=SETTINGS)
    for first in range(0, 12_000, 4000):
        store.upsert([page_row(f"it's {number}", 1, 1) for number in range(first, first + 4000)])
    before = store.snapshot().version
    wanted = [f"it's {number}" for number in range(10_000)] + ["missing"] * 10
    assert store.delete_documents(wanted) == 10_000
    assert store.snapshot().page_count() == 2000
    assert store.snapshot().version - before <= 2
    assert store.delete_documents(wanted) == 0
