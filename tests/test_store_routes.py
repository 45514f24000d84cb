"""The side table of a search's first stage, beside pages that come, go and move."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from store_pages import SETTINGS, document, page_row

from budgetvdr.errors import ReadOnlyError, StorageError
from budgetvdr.store import PageCodes, Routes, RoutesError, Snapshot, Store, Training, place, routes
from budgetvdr.store.routes import arrow_table, lists

CENTROIDS = np.random.default_rng(0).standard_normal((300, 64)).astype(np.float32)
STAMP = np.array([5], np.uint64)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "index", settings_if_new=SETTINGS)


def codes_of(page_id: str, revision: str) -> list[int]:
    """Any codes, that differ from page to page and are none for some."""
    rng = np.random.default_rng([*f"{page_id} {revision}".encode()])
    return [int(code) for code in rng.integers(0, len(CENTROIDS), rng.integers(0, 6))]


def write(store: Store, depth: int = 6, trained_on: int = 1000, strangers: int = 0) -> None:
    snapshot = store.snapshot()
    facts = snapshot.facts(snapshot.matching())
    lists = [codes_of(fact.id, fact.revision) for fact in facts]
    offsets = np.concatenate([[0], np.cumsum([len(codes) for codes in lists], dtype=np.int64)])
    codes = np.array([code for codes in lists for code in codes], np.uint16)
    stamps = snapshot.stamps(snapshot.matching())
    training = Training(trained_on, 0.5, strangers)
    store.write_routes(depth, PageCodes(snapshot.identity, stamps, offsets, codes), CENTROIDS, training)


def check(snapshot: Snapshot, unknown: set[str]) -> Routes:
    """Every page has the codes that were written for it as it is, except those named."""
    found = snapshot.routes(6)
    assert found is not None
    facts = snapshot.facts(found.addresses)
    assert sorted(found.addresses.tolist()) == sorted(snapshot.matching().tolist())
    assert len(found.offsets) == len(facts) + 1 and found.offsets[-1] == len(found.codes)
    assert {fact.id for fact, known in zip(facts, found.known, strict=True) if not known} == unknown
    for number, fact in enumerate(facts):
        codes = found.codes[found.offsets[number] : found.offsets[number + 1]].tolist()
        assert codes == ([] if fact.id in unknown else codes_of(fact.id, fact.revision)), fact.id
    np.testing.assert_array_equal(found.centroids, CENTROIDS)
    return found


@pytest.mark.parametrize("batch", [1, 4, 1000])
def test_codes_come_back_page_by_page(store: Store, monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    monkeypatch.setattr(routes, "_BATCH_PAGES", batch)
    store.upsert([*document("a", range(1, 20)), *document("b", range(1, 5))])
    assert store.snapshot().routes(6) is None
    write(store, trained_on=70)
    found = check(store.snapshot(), unknown=set())
    assert found.training == Training(70, 0.5)
    assert found.codes.dtype == np.uint16
    assert store.snapshot().routes(2) is None


def test_pages_that_came_or_changed_since_are_not_known(store: Store) -> None:
    store.upsert([*document("a", range(1, 6)), *document("b", range(1, 4)), *document("c", [1])])
    write(store)
    store.upsert([*document("a", [2, 3], "r2"), *document("new", [1])])
    store.delete_documents(["b"])
    check(store.snapshot(), unknown={"a#2", "a#3", "new#1"})


def test_a_page_stored_anew_under_its_old_revision_is_not_known(store: Store) -> None:
    """As by if_exists="replace", or where OCR reads what it could not before."""
    store.upsert(document("a", range(1, 6)))
    write(store)
    before = store.snapshot().stamps(store.snapshot().matching())
    store.upsert([page_row("a", 2, 5, revision="r1"), page_row("a", 3, 3, seed=1, revision="r1")])
    check(store.snapshot(), unknown={"a#2", "a#3"})
    after = store.snapshot().stamps(store.snapshot().matching())
    assert len(np.intersect1d(before, after)) == 3
    assert len(np.union1d(before, after)) == 7


def test_stamps_come_in_the_order_asked(store: Store) -> None:
    store.upsert(document("a", range(1, 6)))
    store.upsert(document("b", range(1, 6)))
    snapshot = store.snapshot()
    addresses = snapshot.matching()
    stamps = snapshot.stamps(addresses)
    assert len(set(stamps.tolist()) - {0}) == 10
    order = np.array([7, 0, 3, 3])
    assert snapshot.stamps(addresses[order]).tolist() == stamps[order].tolist()


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
    write(store, trained_on=1)
    store.upsert(document("a", range(1, 4), "r2"))
    check(store.snapshot(), unknown={"a#1", "a#2", "a#3"})
    write(store, trained_on=2)
    assert check(store.snapshot(), unknown=set()).training.vectors == 2
    write(store, depth=2)
    assert check(store.snapshot(), unknown=set()).training.vectors == 2
    assert len(list(Path(store.uri, "routes_6.lance", "data").iterdir())) == 1
    assert len(list(Path(store.uri, "routes_6.lance", "_versions").glob("*.manifest"))) == 1


def test_an_index_made_anew_has_no_routes_of_the_old_one(store: Store, tmp_path: Path) -> None:
    store.upsert(document("a", [1]))
    write(store)
    shutil.rmtree(tmp_path / "index" / "pages.lance")
    for file in tmp_path.glob("index/routes_6.lance"):
        file.rename(tmp_path / "aside")
    again = Store.open(tmp_path / "index", settings_if_new=SETTINGS)
    (tmp_path / "aside").rename(tmp_path / "index" / "routes_6.lance")
    again.upsert(document("a", [1]))
    assert again.snapshot().routes(6) is None
    assert again.snapshot().routed_depths() == ()
    write(again)
    check(again.snapshot(), unknown=set())
    assert again.snapshot().routed_depths() == (6,)


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
        (PageCodes(b"", STAMP, np.array([0]), np.zeros(0, np.uint16)), CENTROIDS),
        (PageCodes(b"", STAMP, np.array([0, 2]), np.zeros(1, np.uint16)), CENTROIDS),
        (PageCodes(b"", STAMP, np.array([0, 1]), np.full(1, 300, np.uint16)), CENTROIDS),
        (PageCodes(b"", STAMP[:0], np.array([0]), np.zeros(0, np.uint16)), CENTROIDS[0]),
    ],
)
def test_shapes_that_do_not_fit_are_refused(store: Store, pages: PageCodes, centroids: np.ndarray) -> None:
    with pytest.raises(ValueError, match="expected"):
        store.write_routes(6, pages, centroids, Training(1, 0.0))
    assert store.snapshot().routes(6) is None


def test_offsets_count_more_codes_than_32_bits_do() -> None:
    few = PageCodes(b"", STAMP, np.array([0, 2]), np.zeros(2, np.uint16))
    assert arrow_table(few, CENTROIDS, Training(1, 0.0))["codes"].type == pa.large_list(pa.uint16())
    # Nulls take no memory, as so many codes would.
    assert lists(np.array([0, 2**31 + 5]), pa.nulls(2**31 + 5)).offsets.to_pylist() == [0, 2**31 + 5]


def test_a_table_of_another_form_counts_as_none(store: Store) -> None:
    store.upsert(document("a", [1, 2]))
    narrow = pa.table({"stamp": pa.array([1], pa.uint64()), "codes": pa.array([[1]], pa.list_(pa.uint16()))})
    store._database.create_table("routes_6", narrow)
    assert store.snapshot().routes(6) is None
    assert store.snapshot().routed_depths() == ()
    write(store)
    check(store.snapshot(), unknown=set())


def test_codes_belong_to_the_pages_they_were_made_from(store: Store, tmp_path: Path) -> None:
    """An index deleted and made anew while the codes were being made gets none of the old one's."""
    store.upsert(document("a", [1]))
    snapshot = store.snapshot()
    stamps = snapshot.stamps(snapshot.matching())
    shutil.rmtree(tmp_path / "index")
    again = Store.open(tmp_path / "index", settings_if_new=SETTINGS)
    again.upsert(document("a", [1]))
    again.write_routes(
        6, PageCodes(snapshot.identity, stamps, np.array([0, 1]), np.zeros(1, np.uint16)), CENTROIDS, Training(1, 0.0)
    )
    assert again.snapshot().routes(6) is None


def test_routes_are_dropped(store: Store) -> None:
    store.upsert(document("a", [1]))
    write(store)
    write(store, depth=2)
    store.drop_routes(6)
    store.drop_routes(6)
    assert (store.snapshot().routes(6), store.snapshot().routed_depths()) == (None, (2,))
    assert not Path(store.uri, "routes_6.lance").exists()
    write(store)
    check(store.snapshot(), unknown=set())
    with Store.open(store.uri, read_only=True) as reader, pytest.raises(ReadOnlyError):
        reader.drop_routes(6)


def test_optimizing_clears_what_interrupted_writes_of_routes_left(store: Store) -> None:
    store.upsert(document("a", [1]))
    write(store)
    folder = Path(store.uri, "routes_6.lance")
    (folder / "data" / "left.lance").write_bytes(b"half")
    (folder / "_versions" / ".tmpX1").write_bytes(b"half")
    # One that was killed between its commit and the removal of what it replaced.
    store._database.create_table("routes_6", store._database.open_table("routes_6").to_arrow(), mode="overwrite")
    assert len(list((folder / "data").iterdir())) == 3
    store.optimize(timedelta(0))
    assert len(list((folder / "data").iterdir())) == 1
    assert sorted(file.suffix for file in (folder / "_versions").iterdir()) == [".json", ".manifest"]


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 3])


def patch(file: Path, old: bytes, new: bytes) -> None:
    assert old in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(old, new))


DAMAGE = {
    "data gone": lambda table: next((table / "data").iterdir()).unlink(),
    "data cut": lambda table: cut(next((table / "data").iterdir())),
    "manifest cut": lambda table: cut(next((table / "_versions").glob("*.manifest"))),
    "names in the manifest changed": lambda table: patch(
        next((table / "_versions").glob("*.manifest")), b"training", b"trainign"
    ),
    "manifest of nothing": lambda table: next((table / "_versions").glob("*.manifest")).write_bytes(b""),
    "manifest of garbage": lambda table: next((table / "_versions").glob("*.manifest")).write_bytes(b"\7" * 300),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_table_is_told_from_none_and_made_anew(store: Store, damage: Callable[[Path], object]) -> None:
    store.upsert(document("a", range(1, 20)))
    write(store)
    damage(Path(store.uri, "routes_6.lance"))
    for opened in (store, Store.open(store.uri)):
        with pytest.raises(RoutesError, match="the first stage of depth 6 is damaged"):
            opened.snapshot().routes(6)
    store.snapshot().routed_depths()
    store.optimize(timedelta(0))
    store.drop_routes(6)
    assert store.snapshot().routes(6) is None
    write(store)
    check(store.snapshot(), unknown=set())


REFUSED = {
    "open files": OSError(errno.EMFILE, "Too many open files"),
    "permission": PermissionError(errno.EACCES, "Permission denied"),
    "memory": OSError(errno.ENOMEM, "Cannot allocate memory"),
    "open files, as quoted": RuntimeError("lance error: LanceError(IO): Too many open files (os error 24)"),
    "permission, as quoted": ValueError("lance error: Permission denied (os error 13)"),
}


@pytest.mark.parametrize("refusal", REFUSED.values(), ids=REFUSED.keys())
def test_what_the_system_refuses_to_read_is_not_damaged(
    store: Store, monkeypatch: pytest.MonkeyPatch, refusal: Exception
) -> None:
    store.upsert(document("a", range(1, 4)))
    write(store)

    def refuse(*_: object) -> None:
        raise refusal

    with monkeypatch.context() as refusing:
        refusing.setattr(place, "open_table", refuse)
        with pytest.raises(StorageError, match="cannot read the first stage of depth 6") as found:
            store.snapshot().routes(6)
        assert not isinstance(found.value, RoutesError)
        assert store.routed_pages(6) is None
    check(store.snapshot(), unknown=set())


def test_a_real_limit_of_open_files_is_not_damage(store: Store) -> None:
    resource = pytest.importorskip("resource")
    store.upsert(document("a", range(1, 4)))
    write(store)
    identity, (addresses, stamps) = store.snapshot().identity, store.snapshot()._stamps()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(StorageError, match="limit") as found:
            routes.read(store._database, 6, addresses, stamps, identity=identity)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not isinstance(found.value, RoutesError)


def test_how_many_pages_are_covered_is_known_without_reading_them(store: Store, tmp_path: Path) -> None:
    store.upsert(document("a", range(1, 6)))
    assert store.routed_pages(6) is None
    write(store)
    store.upsert(document("b", range(1, 3)))
    store.delete_documents(["a"])
    assert (store.routed_pages(6), store.routed_pages(2)) == (5, None)
    write(store, strangers=3)
    assert store.routed_pages(6) == 2 + 3
    cut(next(Path(store.uri, "routes_6.lance", "_versions").glob("*.manifest")))
    assert store.routed_pages(6) is None
    write(store, depth=2)
    assert store.routed_pages(2) == 2
    (tmp_path / "index" / "routes_2.lance").rename(tmp_path / "aside")
    shutil.rmtree(tmp_path / "index")
    again = Store.open(tmp_path / "index", settings_if_new=SETTINGS)
    (tmp_path / "aside").rename(tmp_path / "index" / "routes_2.lance")
    assert again.routed_pages(2) is None, "it is of another index"


@pytest.mark.parametrize("leave", [[], ["data"]], ids=["empty folder", "no versions"])
def test_a_folder_without_versions_is_no_table(store: Store, leave: list[str]) -> None:
    store.upsert(document("a", range(1, 20)))
    write(store)
    for folder in Path(store.uri, "routes_6.lance").iterdir():
        if folder.name not in leave:
            shutil.rmtree(folder)
    assert store.snapshot().routes(6) is None
    store.drop_routes(6)
    write(store)
    check(store.snapshot(), unknown=set())


def test_a_table_replaced_while_it_is_read_is_read_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.upsert(document("a", range(1, 20)))
    write(store)
    opening, opened = place.open_table, []

    def then_replace(*asked: object) -> object:
        table = opening(*asked)
        if not opened:
            opened.append(table)
            write(store)
        return table

    monkeypatch.setattr(place, "open_table", then_replace)
    check(store.snapshot(), unknown=set())
    assert opened
