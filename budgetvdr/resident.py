"""Vectors kept in memory between searches.

Two kinds of copies are kept, each of one depth:

* an int8 copy at one width, which `scan_int8` scores;
* a float16 front, the first components of each vector and the length of the rest of it, from which `bounds` (see
  `pruned.py`) tells the most that a page can score at a greater width.

Copies follow the table: when pages come or go, new ones are appended and old ones skipped; a search does not read the
index again. What an address holds never changes, so an address is all it takes to know that a page is there.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from budgetvdr.pruned import fronts
from budgetvdr.similarity.maxsim import ExactPages, Int8Pages, Offsets, quantise
from budgetvdr.store import RowAddresses, Slab, Snapshot

Places = npt.NDArray[np.int64]
_Rows = tuple[npt.NDArray[Any], ...]
_Make = Callable[[Slab], _Rows]

# Beyond this share of new or dead pages a copy is read anew, in order, which is then as fast.
_RENEWED_SHARE = 0.25
SPARE_SHARE: Final = 1 / 16
"""Room for appending, as a share of the vectors."""
# Its offset, its address, whether it is alive, and its address and place once more, by address.
PAGE_BYTES: Final = 8 + 8 + 1 + 16
"""What a copy takes for each page, beside its vectors."""


@dataclass(frozen=True, eq=False)
class Copy:
    """Vectors of the pages of one version, in memory.

    rows: arrays whose first axis is the vectors', page after page, with spare room at the end. offsets: (P + 1,).
    addresses: (P,) of the pages. alive: (P,) bool, False for pages that the version no longer has.
    """

    identity: bytes
    version: int
    rows: _Rows
    offsets: Offsets
    addresses: RowAddresses
    alive: npt.NDArray[np.bool_]

    def is_of(self, snapshot: Snapshot) -> bool:
        """Whether the copy shows what a snapshot shows."""
        return self.version == snapshot.version and self.identity == snapshot.identity

    @property
    def nbytes(self) -> int:
        """Bytes held, spare room included."""
        return sum(part.nbytes for part in self.rows) + len(self.addresses) * PAGE_BYTES

    @property
    def int8(self) -> Int8Pages:
        """The pages, for a copy made by `Resident.int8`."""
        values, scales = (part[: self.offsets[-1]] for part in self.rows)
        return Int8Pages(values, scales, self.offsets)

    @property
    def front(self) -> ExactPages:
        """The pages, for a copy made by `Resident.front`: the leading slices, then the length of the rest."""
        return ExactPages(tuple(part[: self.offsets[-1]] for part in self.rows), self.offsets)

    @cached_property
    def coarsest(self) -> float:
        """The largest scale of an int8 copy."""
        return float(self.int8.scales.max(initial=0))

    def places(self, addresses: RowAddresses | None = None) -> Places | None:
        """Ascending place numbers of the living pages among these addresses; None stands for every place."""
        if addresses is None:
            return None if self.alive.all() else np.flatnonzero(self.alive)
        order, ordered = self._by_address
        found = np.searchsorted(ordered, addresses)
        found[found == len(ordered)] = 0
        places = order[found[ordered[found] == addresses]] if len(ordered) else np.empty(0, np.int64)
        return np.sort(places[self.alive[places]])

    @cached_property
    def _by_address(self) -> tuple[Places, RowAddresses]:
        order = np.argsort(self.addresses)
        return order, self.addresses[order]


class Resident:
    """The copies in memory, over all depths and widths in use at most `limit` bytes. Safe to share between threads."""

    def __init__(self, limit: int, pool: Executor) -> None:
        self._limit = limit
        self._pool = pool
        self._copies: OrderedDict[tuple[str, int, int, int], Copy] = OrderedDict()
        self._loading = threading.Lock()
        self._counting = threading.Lock()
        self._closed = False

    @property
    def nbytes(self) -> int:
        """Bytes held now."""
        with self._counting:
            return sum(copy.nbytes for copy in self._copies.values())

    def int8(self, snapshot: Snapshot, depth: int, dim: int) -> Copy | None:
        """The int8 copy of one depth and width, made or renewed where it has to be; None where it will not fit."""

        def make(slab: Slab) -> _Rows:
            part = quantise(slab.slices, slab.offsets, pool=self._pool)
            return part.values, part.scales

        return self._get(("int8", depth, dim, dim), snapshot, make, dim + 4)

    def fits_front(self, snapshot: Snapshot, depth: int, width: int) -> bool:
        """Whether a front could be held if all other copies left."""
        return self._fits(snapshot, depth, 2 * width + 2)

    def front(self, snapshot: Snapshot, depth: int, dim: int, width: int) -> Copy | None:
        """The first `width` components, and the length of the components from there to `dim`; see `pruned.fronts`."""
        slices = len(snapshot.settings.slices(width))

        def make(slab: Slab) -> _Rows:
            return fronts(slab.slices[:slices], slab.slices[slices:])

        return self._get(("front", depth, dim, width), snapshot, make, 2 * width + 2)

    def drop_front(self, depth: int, dim: int, width: int) -> None:
        """Lets go of a front that is of no use."""
        self._drop(("front", depth, dim, width))

    def close(self) -> None:
        """Lets go of everything, for good: what a search is still loading is not kept."""
        with self._counting:
            self._closed = True
            self._copies.clear()

    def _get(
        self, key: tuple[str, int, int, int], snapshot: Snapshot, make: _Make, bytes_per_vector: int
    ) -> Copy | None:
        held = self._held(key)
        if held is not None and held.is_of(snapshot):
            return held
        held = None  # a search that waits for the new copy must not keep the old one in memory
        with self._loading:
            held = self._held(key)
            if held is not None and held.is_of(snapshot):
                return held
            if not self._fits(snapshot, key[1], bytes_per_vector):
                self._drop(key)
                return None
            if held is not None and held.identity == snapshot.identity:
                held = _renewed(held, snapshot, make, key[1], key[2])
            else:
                held = None
            if held is None:
                # The old copy leaves first, so that there are never two.
                self._drop(key)
                self._make_room(self._needed(snapshot, key[1], bytes_per_vector))
                held = _read(snapshot, make, key[1], key[2])
            with self._counting:
                if not self._closed:
                    self._copies[key] = held
                    self._copies.move_to_end(key)
            return held

    def _held(self, key: tuple[str, int, int, int]) -> Copy | None:
        with self._counting:
            held = self._copies.get(key)
            if held is not None:
                self._copies.move_to_end(key)
            return held

    def _drop(self, key: tuple[str, int, int, int]) -> None:
        with self._counting:
            self._copies.pop(key, None)

    def _make_room(self, needed: int) -> None:
        """Lets the copies go that were used longest ago."""
        with self._counting:
            while self._copies and sum(copy.nbytes for copy in self._copies.values()) + needed > self._limit:
                self._copies.popitem(last=False)

    def _fits(self, snapshot: Snapshot, depth: int, bytes_per_vector: int) -> bool:
        return self._needed(snapshot, depth, bytes_per_vector) <= self._limit

    @staticmethod
    def _needed(snapshot: Snapshot, depth: int, bytes_per_vector: int) -> int:
        vectors = _with_spare(snapshot.vector_count(depth))
        return vectors * bytes_per_vector + snapshot.page_count() * PAGE_BYTES


def _read(snapshot: Snapshot, make: _Make, depth: int, dim: int) -> Copy:
    """Converts slab by slab into the final arrays, so that loading takes little more than what is kept."""
    pages, capacity = snapshot.page_count(), _with_spare(snapshot.vector_count(depth))
    offsets, addresses = np.zeros(pages + 1, np.int64), np.empty(pages, np.uint64)
    rows: _Rows = ()
    page = 0
    for slab in snapshot.scan(depth, dim):
        made, count, first = make(slab), len(slab.addresses), int(offsets[page])
        rows = rows or tuple(np.empty((capacity, *part.shape[1:]), part.dtype) for part in made)
        for whole, part in zip(rows, made, strict=True):
            whole[first : first + len(part)] = part
        offsets[page + 1 : page + 1 + count] = first + slab.offsets[1:]
        addresses[page : page + count] = slab.addresses
        page += count
    rows = rows or make(snapshot.vectors(addresses[:0], depth, dim))
    return Copy(snapshot.identity, snapshot.version, rows, offsets, addresses, np.ones(pages, np.bool_))


def _renewed(held: Copy, snapshot: Snapshot, make: _Make, depth: int, dim: int) -> Copy | None:
    """The copy of another version from one at hand; None where reading anew is better.

    New vectors go behind the old ones in the same arrays, where no search that still uses the old copy looks.
    """
    addresses = np.sort(snapshot.matching())
    alive = np.isin(held.addresses, addresses)
    new = addresses[~np.isin(addresses, held.addresses)]
    dead = len(alive) - int(alive.sum())
    if len(new) + dead > _RENEWED_SHARE * len(addresses):
        return None
    offsets, last = [held.offsets], int(held.offsets[-1])
    for slab in snapshot.scan(depth, dim, new):
        first, last = last, last + int(slab.offsets[-1])
        if last > len(held.rows[0]):
            return None
        for whole, part in zip(held.rows, make(slab), strict=True):
            whole[first:last] = part
        offsets.append(first + slab.offsets[1:])
    return replace(
        held,
        version=snapshot.version,
        offsets=np.concatenate(offsets),
        addresses=np.concatenate([held.addresses, new]),
        alive=np.concatenate([alive, np.ones(len(new), np.bool_)]),
    )


def _with_spare(vectors: int) -> int:
    return vectors + int(vectors * SPARE_SHARE) + 1024
