"""Copies in memory: what they hold, that they follow the table, and that they stay under the limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from budgetvdr.resident import Copy, Resident
from budgetvdr.similarity.maxsim import quantise
from budgetvdr.store import STORE_FORMAT_VERSION, IndexSettings, PageRow, Slab, Store

RNG = np.random.default_rng(8)
POOL = ThreadPoolExecutor(2)
SETTINGS = IndexSettings(STORE_FORMAT_VERSION, "f" * 16, "random", (2,), (8, 16, 64))


def rows(count: int, name: str = "a") -> list[PageRow]:
    return [
        PageRow(
            doc_id=name,
            page_num=number,
            regions=np.zeros((number % 7, 4), np.float32),
            vectors={2: RNG.standard_normal((number % 7, 64)).astype(np.float32)},
        )
        for number in range(1, count + 1)
    ]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "index", settings_if_new=SETTINGS) as opened:
        opened.upsert(rows(200))
        yield opened


def stored(store: Store, dim: int) -> dict[int, np.ndarray]:
    """Address -> the page's vectors."""
    found: dict[int, np.ndarray] = {}
    for slab in store.snapshot().scan(2, dim):
        vectors = np.concatenate(slab.slices, axis=1)
        found |= {
            int(address): vectors[first:last]
            for address, first, last in zip(slab.addresses, slab.offsets, slab.offsets[1:], strict=False)
        }
    return found


def check_int8(copy: Copy | None, store: Store, dim: int) -> None:
    """The living pages of a copy are the pages of the store, each with its own vectors."""
    assert copy is not None
    assert copy.is_of(store.snapshot())
    expected = stored(store, dim)
    assert set(copy.addresses[copy.alive].tolist()) == set(expected)
    pages = copy.int8
    for place in np.flatnonzero(copy.alive):
        vectors = expected[int(copy.addresses[place])]
        own = quantise((vectors,), np.array([0, len(vectors)]))
        span = slice(pages.offsets[place], pages.offsets[place + 1])
        np.testing.assert_array_equal(pages.values[span], own.values)
        np.testing.assert_allclose(pages.scales[span], own.scales, rtol=1e-6)


CHANGES: dict[str, Callable[[Store], object]] = {
    "nothing": lambda store: None,
    "added": lambda store: store.upsert(rows(9, "b")),
    "much added": lambda store: store.upsert(rows(900, "b")),
    "deleted": lambda store: store.delete_where("page_num % 9 = 0"),
    "most deleted": lambda store: store.delete_where("page_num > 9"),
    "all deleted": lambda store: store.delete_where("page_num > 0"),
    "replaced": lambda store: store.upsert(rows(20)),
    "compacted": lambda store: store.optimize(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_copy_follows_the_table(store: Store, change: str) -> None:
    resident = Resident(1 << 30, POOL)
    check_int8(resident.int8(store.snapshot(), 2, 16), store, 16)
    for turn in (change, "added", change):
        CHANGES[turn](store)
        check_int8(resident.int8(store.snapshot(), 2, 16), store, 16)


def test_a_search_on_the_old_version_keeps_its_vectors(store: Store) -> None:
    resident = Resident(1 << 30, POOL)
    before = store.snapshot()
    old = resident.int8(before, 2, 16)
    assert old is not None
    kept = old.int8.values.copy()
    store.upsert(rows(9, "b"))
    new = resident.int8(store.snapshot(), 2, 16)
    assert new is not None
    assert new.rows[0] is old.rows[0], "small additions must not copy everything"
    np.testing.assert_array_equal(old.int8.values, kept)
    # And back, as a search that began before the writer does.
    again = resident.int8(before, 2, 16)
    assert again is not None
    assert set(again.addresses[again.alive].tolist()) == set(old.addresses.tolist())
    check_int8(resident.int8(store.snapshot(), 2, 16), store, 16)


def test_unchanged_tables_share_one_copy(store: Store) -> None:
    resident = Resident(1 << 30, POOL)
    copies = [resident.int8(store.snapshot(), 2, 16) for _ in range(3)]
    assert copies[0] is copies[1] is copies[2]


def test_a_front_holds_leading_components_and_the_length_of_the_rest(store: Store) -> None:
    copy = Resident(1 << 30, POOL).front(store.snapshot(), 2, 64, 16)
    assert copy is not None
    expected = stored(store, 64)
    *slices, rest = copy.front.slices
    front = np.concatenate(slices, axis=1)
    for place, address in enumerate(copy.addresses.tolist()):
        span = slice(copy.offsets[place], copy.offsets[place + 1])
        np.testing.assert_array_equal(front[span], expected[address][:, :16])
        length = np.linalg.norm(expected[address][:, 16:].astype(np.float32), axis=1)
        np.testing.assert_allclose(rest[span, 0], length, rtol=1e-3)


def test_a_front_of_long_vectors_is_finite(tmp_path: Path) -> None:
    vectors = np.full((3, 64), 60000, np.float32)
    with Store.open(tmp_path / "long", settings_if_new=SETTINGS) as opened:
        opened.upsert([PageRow(doc_id="a", page_num=1, regions=np.zeros((3, 4), np.float32), vectors={2: vectors})])
        copy = Resident(1 << 30, POOL).front(opened.snapshot(), 2, 64, 16)
    assert copy is not None
    *slices, rest = copy.front.slices
    # 48 components that are all like those before.
    np.testing.assert_allclose(rest[:, 0] / slices[0][:, 0], 48**0.5, rtol=1e-3)


def test_a_front_can_be_let_go(store: Store) -> None:
    resident = Resident(1 << 30, POOL)
    resident.front(store.snapshot(), 2, 64, 16)
    resident.drop_front(2, 64, 8)
    assert resident.nbytes
    resident.drop_front(2, 64, 16)
    assert not resident.nbytes


def test_copies_stay_under_the_limit_and_the_one_used_longest_ago_leaves(store: Store) -> None:
    snapshot = store.snapshot()
    first = Resident(1 << 30, POOL).int8(snapshot, 2, 16)
    assert first is not None
    resident = Resident(int(first.nbytes * 1.7), POOL)
    for dim in (16, 8, 16, 64, 16, 8):
        copy = resident.int8(snapshot, 2, dim)
        assert (copy is None) == (dim == 64)
        assert resident.nbytes <= first.nbytes * 1.7
    kept = resident.int8(snapshot, 2, 16)
    assert resident.int8(snapshot, 2, 16) is kept
    assert Resident(0, POOL).int8(snapshot, 2, 8) is None


def test_a_copy_that_the_index_has_outgrown_leaves(store: Store) -> None:
    resident = Resident(30_000, POOL)
    assert resident.int8(store.snapshot(), 2, 8) is not None
    store.upsert(rows(900, "b"))
    assert resident.int8(store.snapshot(), 2, 8) is None
    assert resident.nbytes == 0


def test_additions_beyond_the_spare_room_are_not_read_first(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.upsert(rows(3000, "b"))
    resident = Resident(1 << 30, POOL)
    resident.int8(store.snapshot(), 2, 16)
    store.upsert(rows(900, "c"))
    monkeypatch.setattr("budgetvdr.store.snapshot._SLAB_BYTES", 4096)
    snapshot, asked = store.snapshot(), []
    scan = type(snapshot).scan

    def counted(*arguments: object) -> Iterator[Slab]:
        for slab in scan(*arguments):  # type: ignore[arg-type]
            asked.append(len(arguments) > 3 and arguments[3] is not None)
            yield slab

    monkeypatch.setattr(type(snapshot), "scan", counted)
    check_int8(resident.int8(snapshot, 2, 16), store, 16)
    # 1,024 vectors and a sixteenth of 9,600 are spare; 2,700 came.
    new = asked.count(True)
    assert 0 < new < 70, "new pages must be read a few at a time, and no more of them than have room"


def test_a_copy_of_another_index_at_the_same_version_is_not_taken(store: Store, tmp_path: Path) -> None:
    resident = Resident(1 << 30, POOL)
    with Store.open(tmp_path / "other", settings_if_new=SETTINGS) as other:
        other.upsert(rows(50, "z"))
        assert other.snapshot().version == store.snapshot().version
        resident.int8(store.snapshot(), 2, 16)
        check_int8(resident.int8(other.snapshot(), 2, 16), other, 16)


def test_places_of_addresses(store: Store) -> None:
    resident = Resident(1 << 30, POOL)
    resident.int8(store.snapshot(), 2, 8)
    store.delete_where("page_num = 3")
    copy = resident.int8(store.snapshot(), 2, 8)
    assert copy is not None
    assert len(copy.alive) == 200
    everything = copy.places()
    assert everything is not None
    assert len(everything) == 199
    some = copy.addresses[[5, 2, 7]]
    assert copy.places(some).tolist() == [5, 7], "page 3 is gone"  # type: ignore[union-attr]
    assert copy.places(np.array([12345678], np.uint64)).tolist() == []  # type: ignore[union-attr]
    assert copy.places(np.array([], np.uint64)).tolist() == []  # type: ignore[union-attr]


def test_threads_load_once(store: Store) -> None:
    resident, snapshot = Resident(1 << 30, POOL), store.snapshot()
    with ThreadPoolExecutor(8) as threads:
        copies = list(threads.map(lambda _: resident.int8(snapshot, 2, 64), range(16)))
    assert len({id(copy) for copy in copies}) == 1
