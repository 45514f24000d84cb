from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from enum import Enum
from http import HTTPStatus
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_pages import SETTINGS, document, page_row

from budgetvdr.errors import (
    BudgetError,
    EncodingError,
    IndexFormatError,
    IndexStoreError,
    MetadataError,
    QueryError,
    ReadOnlyError,
    SourceNotFoundError,
    StorageError,
)
from budgetvdr.store import IndexSettings, PageRow, Slab, Snapshot, Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "index"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store.open(path, settings_if_new=SETTINGS) as opened:
        yield opened


def ids(snapshot: Snapshot) -> list[str]:
    return [facts.id for facts in snapshot.facts(snapshot.matching())]


def by_page(slab: Slab) -> list[np.ndarray]:
    full = np.concatenate(slab.slices, axis=1)
    return [full[first:last] for first, last in zip(slab.offsets[:-1], slab.offsets[1:], strict=True)]


# What goes in comes out


def test_vectors_come_back_in_float16_at_every_depth_and_width(store: Store) -> None:
    rows = [page_row("a", 1, 5), page_row("a", 2, 0), page_row("b", 1, 1), page_row("b", 2, 9)]
    store.upsert(rows)
    snapshot = store.snapshot()
    for depth in SETTINGS.depths:
        for dim in SETTINGS.dims:
            (slab,) = snapshot.scan(depth, dim)
            assert [part.shape[1] for part in slab.slices] == [32, 32, 64][: len(slab.slices)]
            for row, vectors in zip(rows, by_page(slab), strict=True):
                np.testing.assert_array_equal(vectors, row.vectors[depth][:, :dim].astype(np.float16))


def test_slices_are_views_of_arrow_memory(store: Store) -> None:
    store.upsert(document("a", range(1, 5)))
    (slab,) = store.snapshot().scan(2, 128)
    assert not any(part.flags.writeable or part.flags.owndata for part in slab.slices)


def test_chosen_pages_come_in_the_order_asked_with_repeats(store: Store) -> None:
    rows = [page_row("a", number, count) for number, count in enumerate([4, 0, 2, 7], 1)]
    store.upsert(rows)
    snapshot = store.snapshot()
    order = [3, 1, 3, 0]
    addresses = snapshot.matching()[order]
    assert [facts.page_num for facts in snapshot.facts(addresses)] == [4, 2, 4, 1]
    slab = snapshot.vectors(addresses, 6, 64)
    np.testing.assert_array_equal(slab.addresses, addresses)
    for place, vectors in zip(order, by_page(slab), strict=True):
        np.testing.assert_array_equal(vectors, rows[place].vectors[6][:, :64].astype(np.float16))


def test_facts_metadata_regions_and_picture_come_back(store: Store) -> None:
    row = replace(
        page_row("reports/ä#1.pdf", 7, 4),
        label="iv",
        page_count=12,
        source="/data/ä#1.pdf",
        size=(595.3, 841.9),
        revision="abc",
        text="line\nline 'two'",
        reader="ocr",
        notes=("blank", "rotated"),
        image=b"\x89PNG...",
        metadata={"year": 2024, "day": date(2024, 2, 29), "at": datetime(2024, 1, 1, 3, tzinfo=UTC), "draft": False},
    )
    store.upsert([row, page_row("other", 1)])
    snapshot = store.snapshot()
    facts, other = snapshot.facts(snapshot.matching())
    assert facts.id == "reports/ä#1.pdf#7" == row.id
    for name in ("doc_id", "page_num", "label", "page_count", "source", "size", "revision", "text", "reader", "notes"):
        assert getattr(facts, name) == getattr(row, name), name
    assert facts.metadata == row.metadata
    assert other.metadata == {}
    assert facts.vectors == 4
    assert snapshot.image(row.id) == row.image
    assert snapshot.image("other#1") is None
    assert snapshot.image("missing#1") is None
    found = snapshot.page_vectors(row.id, 6, 64)
    assert found is not None
    vectors, regions = found
    assert vectors.dtype == regions.dtype == np.float32
    np.testing.assert_array_equal(vectors, row.vectors[6][:, :64].astype(np.float16))
    np.testing.assert_allclose(regions, row.regions, atol=1 / 131070 + 1e-7)
    assert snapshot.page_vectors("missing#1", 6, 64) is None


def test_nothing_but_blank_pages(store: Store) -> None:
    store.upsert([page_row("a", number, 0) for number in (1, 2)])
    snapshot = store.snapshot()
    (slab,) = snapshot.scan(2, 32)
    np.testing.assert_array_equal(slab.offsets, [0, 0, 0])
    assert slab.slices[0].shape == (0, 32)
    assert (snapshot.page_count(), snapshot.vector_count(), snapshot.blank_count()) == (2, 0, 2)
    found = snapshot.page_vectors("a#1", 2, 32)
    assert found is not None and found[0].shape == (0, 32) and found[1].shape == (0, 4)


def test_an_empty_index_answers_everything(store: Store) -> None:
    snapshot = store.snapshot()
    assert list(snapshot.scan(2, 32)) == []
    assert snapshot.matching().shape == (0,)
    assert snapshot.facts(snapshot.matching()) == []
    assert snapshot.vectors(snapshot.matching(), 6, 128).offsets.tolist() == [0]
    assert snapshot.documents() == []
    assert snapshot.stats().pages == snapshot.page_count() == snapshot.vector_count() == 0
    assert store.document_state("a").revisions == {}
    store.upsert([])
    assert store.snapshot() is snapshot


def test_a_filtered_scan_gives_matching_pages_only(store: Store) -> None:
    store.upsert([page_row("a", number, number, metadata={"even": number % 2 == 0}) for number in range(1, 7)])
    snapshot = store.snapshot()
    slabs = list(snapshot.scan(2, 32, snapshot.matching("even")))
    assert np.concatenate([np.diff(slab.offsets) for slab in slabs]).tolist() == [2, 4, 6]
    assert np.concatenate([slab.addresses for slab in slabs]).tolist() == snapshot.matching("even").tolist()


def test_depths_and_widths_that_are_not_stored_are_refused(store: Store) -> None:
    snapshot = store.snapshot()
    with pytest.raises(BudgetError, match=r"depth 3 .*\[2, 6\]"):
        next(snapshot.scan(3, 32))
    with pytest.raises(BudgetError, match=r"dim 48 .*\[32, 64, 128\]"):
        snapshot.vectors(snapshot.matching(), 2, 48)


# Replacing and deleting


def test_equal_ids_are_replaced_and_the_last_of_a_batch_wins(store: Store) -> None:
    store.upsert([page_row("a", 1, 3), page_row("a", 2, 3)])
    store.upsert([page_row("a", 1, 5), page_row("a", 3, 1), replace(page_row("a", 1, 2), text="last")])
    snapshot = store.snapshot()
    assert sorted(ids(snapshot)) == ["a#1", "a#2", "a#3"]
    (facts,) = snapshot.facts(snapshot.matching("id = 'a#1'"))
    assert (facts.vectors, facts.text) == (2, "last")


def test_one_batch_is_one_version_with_what_it_leaves_behind(store: Store) -> None:
    store.upsert([*document("a", range(1, 6)), *document("b", range(1, 3))])
    before = store.snapshot().version
    store.upsert(document("a", [1, 2], "r2"), complete={"a": "r2"})
    assert store.snapshot().version == before + 1
    assert store.document_state("a").revisions == {1: "r2", 2: "r2"}
    assert store.document_state("b").revisions == {1: "r1", 2: "r1"}


def test_what_is_left_of_an_older_revision_can_go_by_itself(store: Store) -> None:
    store.upsert(document("it's", range(1, 4)))
    store.upsert(document("it's", [2], "r2"))
    store.upsert([], complete={"it's": "r2"})
    assert store.document_state("it's").revisions == {2: "r2"}
    store.upsert([], complete={"it's": "r3"})
    assert store.snapshot().page_count() == 0


def test_a_document_moves_with_everything_it_has(store: Store) -> None:
    store.upsert([*document("it's", [1, 2]), *document("b", [1])])
    before = store.snapshot()
    source = before.document_state("it's").source
    store.move_document("it's", source, "/new/it's.pdf")
    after = store.snapshot()
    assert after.document_state("it's").source == "/new/it's.pdf"
    assert after.document_state("b").source == before.document_state("b").source
    for page_id in ("it's#1", "it's#2"):
        for old, new in zip(before.page_vectors(page_id, 2, 64), after.page_vectors(page_id, 2, 64), strict=True):
            np.testing.assert_array_equal(old, new)


def test_document_state_tells_what_to_skip(store: Store) -> None:
    store.upsert([*document("a", [3, 1], source="/a.pdf"), *document("a", [2], "r2", source="/a.pdf")])
    state = store.document_state("a")
    assert state.source == "/a.pdf"
    assert list(state.revisions.items()) == [(1, "r1"), (2, "r2"), (3, "r1")]


def test_deleting_counts_pages_and_makes_no_version_for_nothing(store: Store) -> None:
    store.upsert([*document("a", range(1, 4)), *document("b", range(1, 3), metadata={"year": 2020})])
    before = store.snapshot().version
    assert store.delete_documents(["missing"]) == store.delete_documents([]) == store.delete_where("year = 1999") == 0
    assert store.snapshot().version == before
    assert store.delete_documents(["a", "missing"]) == 3
    assert store.delete_where("year = 2020 AND page_num > 1") == 1
    assert ids(store.snapshot()) == ["b#1"]
    with pytest.raises(QueryError, match="nope"):
        store.delete_where("nope = 1")


@given(st.lists(st.tuples(st.sampled_from("uuudo"), st.sampled_from("abc"), st.integers(1, 4)), max_size=12))
@settings(max_examples=15, deadline=None)
def test_any_sequence_of_writes_leaves_what_a_dictionary_would_hold(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, str, int]]
) -> None:
    store = Store.open(tmp_path_factory.mktemp("any") / "index", settings_if_new=SETTINGS)
    expected: dict[str, int] = {}
    for step, (operation, doc_id, number) in enumerate(operations):
        if operation == "u":
            store.upsert([page_row(doc_id, page, step % 3, metadata={"step": step}) for page in range(1, number + 1)])
            expected |= {f"{doc_id}#{page}": step for page in range(1, number + 1)}
        elif operation == "d":
            gone = store.delete_documents([doc_id])
            kept = {page_id: step for page_id, step in expected.items() if page_id[0] != doc_id}
            assert gone == len(expected) - len(kept)
            expected = kept
        else:
            store.optimize(timedelta(0))
    snapshot = store.snapshot()
    pages = snapshot.facts(snapshot.matching())
    assert {page.id: page.metadata["step"] for page in pages} == expected
    assert sum(len(slab.addresses) for slab in snapshot.scan(2, 32)) == len(pages) == len(expected)
    assert snapshot.vector_count() == sum(step % 3 for step in expected.values())


# Metadata


def test_new_keys_add_columns_and_old_pages_lack_them(store: Store) -> None:
    store.upsert([page_row("a", 1, metadata={"year": 2020})])
    store.upsert([page_row("a", 2, metadata={"Lang": "en", "year": None, "never": None})])
    snapshot = store.snapshot()
    assert snapshot.metadata_types() == {"year": "int", "Lang": "str"}
    assert [facts.metadata for facts in snapshot.facts(snapshot.matching())] == [{"year": 2020}, {"Lang": "en"}]


def test_whole_numbers_fit_floats_within_and_across_batches(store: Store) -> None:
    store.upsert([page_row("a", 1, metadata={"score": 1}), page_row("a", 2, metadata={"score": np.float32(0.5)})])
    store.upsert([page_row("a", 3, metadata={"score": 3})])
    snapshot = store.snapshot()
    assert snapshot.metadata_types() == {"score": "float"}
    assert [facts.metadata["score"] for facts in snapshot.facts(snapshot.matching())] == [1.0, 0.5, 3.0]


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"year": "2021"}, "'year' of b#1: expected int, as the index stores it, found str"),
        ({"year": 2021.5}, "expected int.*found float"),
        ({"year": True}, "expected int.*found bool"),
        ({"final": 1}, "expected bool.*found int"),
        ({"at": datetime(2021, 1, 1)}, "expected datetime with time zone.*found datetime without time zone"),
        ({"at": date(2021, 1, 1)}, "found date"),
        ({"Year": 2021}, "only by case from the stored 'year'"),
        ({"text": "x"}, "column of the index itself"),
        ({"DOC_ID": "x"}, "column of the index itself"),
        ({"_rowid": 1}, "expected a letter"),
        ({"a b": 1}, "expected a letter"),
        ({"ä": 1}, "expected a letter"),
        ({"": 1}, "expected a letter"),
        ({7: 1}, "expected a letter"),
        ({"tags": ["x"]}, "found list"),
        ({"big": 2**63}, "64 bits"),
        ({"late": datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-5)))}, "found datetime"),
    ],
)
def test_metadata_that_cannot_be_stored_is_refused_with_the_batch(
    store: Store, metadata: dict[str, object], message: str
) -> None:
    store.upsert([page_row("a", 1, metadata={"year": 2020, "final": True, "at": datetime(2020, 1, 1, tzinfo=UTC)})])
    before = store.snapshot()
    with pytest.raises(MetadataError, match=message):
        store.upsert([page_row("a", 2, metadata={"fresh": 1}), page_row("b", 1, metadata=metadata)])
    assert store.snapshot() is before


def test_members_of_enumerations_and_numpy_times_are_stored_as_what_they_stand_for(store: Store) -> None:
    class Lang(str, Enum):  # noqa: UP042 (how most code writes it)
        EN = "en"

    metadata = {"lang": Lang.EN, "status": HTTPStatus.OK, "at": np.datetime64("2024-05-01T12:00:00", "ns")}
    store.upsert([page_row("a", 1, metadata=metadata)])
    (fact,) = store.snapshot().facts(store.snapshot().matching("lang = 'en' AND status = 200"))
    assert fact.metadata == {"lang": "en", "status": 200, "at": datetime(2024, 5, 1, 12)}


def test_two_types_for_one_new_key_in_a_batch_are_refused(store: Store) -> None:
    with pytest.raises(MetadataError, match=r"'key' of a#2: expected str.*found int"):
        store.upsert([page_row("a", 1, metadata={"key": "1"}), page_row("a", 2, metadata={"key": 1})])


# Vectors that cannot be stored


def bad(row: PageRow, **vectors: object) -> PageRow:
    return replace(row, **vectors)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (bad(page_row("a", 2), vectors={2: np.full((3, 128), np.nan), 6: np.ones((3, 128))}), "a#2 at depth 2.*finite"),
        (bad(page_row("a", 2), vectors={2: np.ones((3, 128)), 6: np.full((3, 128), 7e4)}), "depth 6.*65504.*70000"),
        (bad(page_row("a", 2), vectors={2: np.ones((3, 128))}), r"depths \[2, 6\], found \[2\]"),
        (bad(page_row("a", 2), vectors={2: np.ones((3, 64)), 6: np.ones((3, 128))}), r"\(3, 128\).*found \(3, 64\)"),
        (bad(page_row("a", 2), vectors={2: np.ones((2, 128)), 6: np.ones((3, 128))}), "one a region"),
        (bad(page_row("a", 2), regions=np.ones((3, 2), np.float32)), "regions"),
        (bad(page_row("a", 2), regions=np.full((3, 4), np.inf, np.float32)), "regions"),
    ],
)
def test_vectors_that_cannot_be_stored_are_refused_with_the_batch(store: Store, row: PageRow, message: str) -> None:
    with pytest.raises(EncodingError, match=message):
        store.upsert([page_row("a", 1), row])
    assert store.snapshot().page_count() == 0


def test_vectors_keep_their_length(store: Store) -> None:
    row = page_row("a", 1, 2)
    store.upsert([replace(row, vectors={depth: vectors * 100 for depth, vectors in row.vectors.items()})])
    (slab,) = store.snapshot().scan(6, 128)
    np.testing.assert_array_equal(by_page(slab)[0], (row.vectors[6] * 100).astype(np.float16))


# Versions


def test_a_snapshot_keeps_its_version_and_is_shared_until_a_write(store: Store, path: Path) -> None:
    store.upsert(document("a", [1, 2]))
    old = store.snapshot()
    assert store.snapshot() is old
    with Store.open(path) as other:
        other.upsert(document("b", [1]))
        other.delete_documents(["a"])
    assert sorted(ids(old)) == ["a#1", "a#2"]
    assert [len(slab.addresses) for slab in old.scan(2, 32)] == [2]
    assert ids(store.snapshot()) == ["b#1"]


def test_addresses_of_another_snapshot_are_noticed(store: Store) -> None:
    store.upsert(document("a", range(1, 4)))
    addresses = store.snapshot().matching()
    store.delete_documents(["a"])
    with pytest.raises(QueryError, match="another"):
        store.snapshot().facts(addresses)


def test_searching_goes_on_while_others_write(store: Store) -> None:
    store.upsert(document("a", range(1, 9)))
    stop, failures = threading.Event(), list[BaseException]()

    def search() -> None:
        try:
            while not stop.is_set():
                snapshot = store.snapshot()
                pages = snapshot.facts(snapshot.matching("doc_id = 'a'"))
                assert len(pages) == 8 and len({page.revision for page in pages}) == 1
                assert sum(len(slab.addresses) for slab in snapshot.scan(6, 128)) == snapshot.page_count()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    for step in range(25):
        store.upsert([*document("a", range(1, 9), f"v{step}"), page_row("b", step)])
        if step % 10 == 9:
            store.optimize()
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures


def test_optimizing_shrinks_and_keeps_what_running_searches_need(store: Store) -> None:
    for step in range(60):
        store.upsert([page_row("a", step % 20, 20, seed=step)])
    running = store.snapshot()
    report = store.optimize()
    assert (report.fragments_before, report.fragments_after) == (20, 1)
    assert sum(len(slab.addresses) for slab in running.scan(2, 32)) == 20
    report = store.optimize(timedelta(0))
    assert report.bytes_after < report.bytes_before / 3
    assert store.bytes_on_disk() < store.snapshot().stats().data_bytes * 1.2
    with pytest.raises(StorageError, match="search again"):
        list(running.scan(2, 32))
    (slab,) = store.snapshot().scan(2, 32)
    assert len(slab.addresses) == 20
    assert Store.open(store.uri).settings == SETTINGS


def test_stats_count_what_is_stored(store: Store) -> None:
    store.upsert(
        [
            replace(page_row("a", 1, 5), reader="ocr", notes=("deskewed",), image=b"12345678"),
            replace(page_row("a", 2, 0), reader="none", notes=("blank",)),
            replace(page_row("b", 1, 0), reader="none", notes=("blank", "rotated")),
        ]
    )
    stats = store.snapshot().stats()
    assert (stats.pages, stats.documents, stats.vectors, stats.blank_pages) == (3, 2, 5, 2)
    assert (stats.vector_bytes, stats.image_bytes) == (5 * 128 * 2 * 2, 8)
    assert stats.notes == {"blank": 2, "deskewed": 1, "rotated": 1}
    assert stats.readers == {"none": 2, "ocr": 1}
    assert 0 < stats.vector_bytes < stats.data_bytes < store.bytes_on_disk()
    assert (stats.fragments, stats.versions) == (1, 2)


# Opening


def test_settings_are_those_of_the_creator(path: Path) -> None:
    Store.open(path, settings_if_new=SETTINGS)
    other = IndexSettings(1, "ffff", "another", (4,), (16,))
    assert Store.open(path, settings_if_new=other).settings == Store.open(str(path)).settings == SETTINGS
    assert Store.open(f"file://{path}").settings == SETTINGS


@pytest.mark.parametrize("read_only", [True, False])
def test_a_missing_index_is_not_made_unless_asked(path: Path, read_only: bool) -> None:
    with pytest.raises(SourceNotFoundError, match="no index at"):
        Store.open(path, settings_if_new=SETTINGS if read_only else None, read_only=read_only)
    assert not path.exists()
    path.mkdir()
    with pytest.raises(SourceNotFoundError, match="no index at"):
        Store.open(path, settings_if_new=SETTINGS if read_only else None, read_only=read_only)
    assert list(path.iterdir()) == []


def test_paths_that_hold_something_else_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "file.pdf"
    file.write_bytes(b"%PDF")
    with pytest.raises(IndexFormatError, match="is a file"):
        Store.open(file, settings_if_new=SETTINGS)
    with pytest.raises(IndexFormatError, match=r"not empty \(it holds file.pdf\)"):
        Store.open(tmp_path, settings_if_new=SETTINGS)
    with pytest.raises(IndexFormatError, match="hosted"):
        Store.open("db://somewhere", settings_if_new=SETTINGS)


def test_foreign_newer_and_damaged_tables_are_refused(tmp_path: Path) -> None:
    import lancedb
    import pyarrow as pa

    lancedb.connect(tmp_path / "foreign").create_table("pages", schema=pa.schema([("id", pa.string())]))
    with pytest.raises(IndexFormatError, match="budgetvdr did not make"):
        Store.open(tmp_path / "foreign", settings_if_new=SETTINGS)
    found = {"future": b'{"format_version": 99}', "past": b'{"format_version": 1}', "broken": b'{"format_version": 2}'}
    for name, settings_json in found.items():
        schema = pa.schema([("id", pa.string())], metadata={b"budgetvdr": settings_json})
        lancedb.connect(tmp_path / name).create_table("pages", schema=schema)
    with pytest.raises(IndexFormatError, match=r"format 99, newer .* upgrade"):
        Store.open(tmp_path / "future")
    with pytest.raises(IndexFormatError, match=r"format 1, older .* new index"):
        Store.open(tmp_path / "past")
    with pytest.raises(IndexFormatError, match="unreadable index settings"):
        Store.open(tmp_path / "broken")
    store = Store.open(tmp_path / "damaged", settings_if_new=SETTINGS)
    store.upsert([page_row("a", 1)])
    for manifest in (tmp_path / "damaged" / "pages.lance" / "_versions").glob("*.manifest"):
        manifest.unlink()
    with pytest.raises(IndexFormatError, match="damaged"):
        Store.open(tmp_path / "damaged", settings_if_new=SETTINGS)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.6, 0.9])
def test_a_half_manifest_is_a_typed_error(path: Path, share: float) -> None:
    """Over some of these the engine's Rust half stumbles, with an error of a class of its own."""
    Store.open(path, settings_if_new=SETTINGS).upsert([page_row("a", 1)])
    latest = min((path / "pages.lance" / "_versions").glob("*.manifest"))
    latest.write_bytes(latest.read_bytes()[: int(latest.stat().st_size * share)])
    with pytest.raises(StorageError, match="cannot open"):
        Store.open(path)


def manifests(path: Path) -> list[Path]:
    """Files of all versions, the newest first."""
    return sorted((path / "pages.lance" / "_versions").glob("*.manifest"))


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_damaged_last_commit_has_a_way_out(path: Path, share: float) -> None:
    store = Store.open(path, settings_if_new=SETTINGS)
    store.upsert([page_row("a", 1)])
    store.upsert([page_row("b", 1)])
    latest = manifests(path)[0]
    latest.write_bytes(latest.read_bytes()[: int(latest.stat().st_size * share)])
    advice = f"version 3 is damaged: move {latest} away to have the index as the commit before"
    for look in (lambda: Store.open(path), store.snapshot, store.versions, lambda: store.upsert([page_row("c", 1)])):
        with pytest.raises(StorageError, match=advice):
            look()
    latest.rename(path.parent / "aside")
    with Store.open(path) as again:
        assert ids(again.snapshot()) == ["a#1"]
        again.upsert([page_row("b", 1)])
        again.optimize(timedelta(0))
        assert ids(again.snapshot()) == ["a#1", "b#1"]


def test_an_index_with_one_damaged_version_has_none_to_go_back_to(path: Path) -> None:
    Store.open(path, settings_if_new=SETTINGS)
    (only,) = manifests(path)
    only.write_bytes(only.read_bytes()[:100])
    with pytest.raises(StorageError, match="version 1 is damaged: restore the index from a copy"):
        Store.open(path)


def test_a_damaged_old_version_is_in_nobodys_way(store: Store, path: Path) -> None:
    for name in "abc":
        store.upsert([page_row(name, 1)])
    old = manifests(path)[2]
    old.write_bytes(old.read_bytes()[:100])
    stats = store.snapshot().stats()
    assert (stats.pages, stats.versions) == (3, 4)
    store.upsert([page_row("d", 1)])
    for look in (store.versions, store.optimize):
        with pytest.raises(StorageError, match=f"version 2 is damaged: move {old} away, which no other version needs"):
            look()
    old.unlink()
    assert [entry.version for entry in store.versions()][:3] == [1, 3, 4]
    assert len(ids(store.snapshot())) == 4


def test_a_half_created_index_is_created_again(path: Path) -> None:
    (path / "pages.lance" / "_versions").mkdir(parents=True)
    (path / "pages.lance" / "_versions" / ".tmpX1").write_bytes(b"half")
    (path / ".budgetvdr.lock").touch()
    with pytest.raises(SourceNotFoundError):
        Store.open(path, read_only=True)
    store = Store.open(path, settings_if_new=SETTINGS)
    store.upsert([page_row("a", 1)])
    assert ids(store.snapshot()) == ["a#1"]


def test_a_lost_data_file_is_a_storage_error(store: Store, path: Path) -> None:
    store.upsert([page_row("a", 1)])
    for file in (path / "pages.lance" / "data").iterdir():
        file.unlink()
    with pytest.raises(StorageError, match=f"cannot read {path}"):
        list(store.snapshot().scan(2, 32))


def test_read_only_reads_and_refuses_every_write(store: Store, path: Path) -> None:
    store.upsert([page_row("a", 1)])
    (path / ".budgetvdr.lock").unlink()
    before = sorted(path.rglob("*"))
    with Store.open(path, read_only=True) as reader:
        assert ids(reader.snapshot()) == ["a#1"]
        for write in (
            lambda: reader.upsert([page_row("b", 1)]),
            lambda: reader.delete_documents(["a"]),
            lambda: reader.delete_where("true"),
            lambda: reader.move_document("a", "old", "new"),
            reader.optimize,
        ):
            with pytest.raises(ReadOnlyError, match="read_only=True"):
                write()
    assert sorted(path.rglob("*")) == before


def test_a_closed_store_says_so(store: Store) -> None:
    store.close()
    store.close()
    for use in (store.snapshot, lambda: store.upsert([page_row("a", 1)])):
        with pytest.raises(IndexStoreError, match="closed"):
            use()


def test_importing_the_store_leaves_lancedb_and_the_environment_alone() -> None:
    script = (
        "import budgetvdr.store, sys, os; assert 'lancedb' not in sys.modules; assert 'LANCEDB_LOG' not in os.environ"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_writing_is_quiet_and_keeps_the_log_level_a_user_chose(path: Path) -> None:
    script = (
        "import os; from budgetvdr.store import Store; from store_pages import SETTINGS, page_row\n"
        f"store = Store.open({str(path)!r}, settings_if_new=SETTINGS)\n"
        "store.upsert([page_row('a', 1)]); store.snapshot().matching(\"regexp_match(doc_id, 'a')\")\n"
        "assert os.environ.get('LANCEDB_LOG') == os.environ.get('EXPECTED')"
    )
    outputs = []
    for level in ({}, {"LANCEDB_LOG": "warn", "EXPECTED": "warn"}):
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | level,
            check=True,
            capture_output=True,
            text=True,
        )
        outputs.append(done.stdout + done.stderr)
    assert outputs[0] == ""
    assert "regexp_match" in outputs[1]


def test_an_index_deleted_and_made_anew_is_seen_at_the_same_number(store: Store, path: Path) -> None:
    store.upsert([page_row("old", 1)])
    before = store.snapshot()
    shutil.rmtree(path)
    again = Store.open(path, settings_if_new=SETTINGS)
    again.upsert([page_row("new", 1)])
    after = store.snapshot()
    assert after.version == before.version
    assert after.identity != before.identity
    assert ids(after) == ["new#1"]
    assert store.snapshot() is after


def test_short_reads_run_again_where_their_version_was_removed_meanwhile(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.upsert([*document("a", [1, 2]), *document("b", [1])])
    batches = Snapshot._batches

    def then_remove(self: Snapshot, *asked: object) -> object:
        monkeypatch.undo()
        with Store.open(path) as other:
            other.upsert(document("c", [1]))
            other.optimize(timedelta(0))
        return batches(self, *asked)  # type: ignore[arg-type]

    monkeypatch.setattr(Snapshot, "_batches", then_remove)
    assert store.document_state("a").revisions == {1: "r1", 2: "r1"}
    monkeypatch.setattr(Snapshot, "_batches", then_remove)
    assert store.delete_where("doc_id = 'a'") == 2
    assert ids(store.snapshot()) == ["b#1", "c#1"]
