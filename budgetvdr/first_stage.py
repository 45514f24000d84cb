"""The stage before the scan in a large index: `refresh` makes it and keeps it up, `FirstStage` asks it.

Centroids and every page's codes are a side table of the index, one for each depth; in memory they become inverted
lists. Pages that the lists do not know, because they came later, are always proposed, so that the table may lag behind.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from budgetvdr.similarity.centroids import (
    SAMPLE_PER_CENTROID,
    Centroids,
    Routes,
    assign,
    centroid_count,
    invert,
    propose,
    train,
)
from budgetvdr.similarity.maxsim import Float, unit_prefix
from budgetvdr.store import PageCodes, RoutesError, RowAddresses, Slab, Snapshot, Store
from budgetvdr.store import Routes as StoredRoutes

_log = logging.getLogger(__name__)

LEAST_VECTORS: Final = 4_000_000
"""Vectors of an index from which proposing pages takes less time than scanning all of them."""
# Components that centroids have, at most.
_WIDTH: Final = 128
# An index that has grown by this factor is trained for anew.
_OUTGROWN: Final = 4
MANY_NEW: Final = 2048
"""New pages, which are part of every search, from which it pays to add them, and to look whether another has."""
_BATCH_PAGES: Final = 256
# Seconds until it is looked again whether another process has made a first stage, which takes a millisecond on a local
# disk and some requests on an object store.
_LOOK_AGAIN: Final = 10.0


def refresh(store: Store, depth: int, pool: Executor, *, make: bool) -> None:
    """Adds the pages that the first stage of a depth does not know; make: makes it where there is none.

    To make it, the leading components are read twice, once for a sample and once to find the centroid nearest to every
    vector. It is made anew for an index that has grown fourfold since, and where it is damaged.

    In memory are a sample of at most 16 vectors for each of 65,536 centroids, with which training takes 1.4 GB at 128
    components, and the codes, 2 bytes for each vector of the index, a few times over.

    Raises StorageError, ReadOnlyError.
    """
    snapshot = store.snapshot()
    trained_on = snapshot.vector_count()
    try:
        stored = snapshot.routes(depth)
    except RoutesError as error:
        _log.warning("%s; it is made anew", error)
        store.drop_routes(depth)
        stored, make = None, True
    if not trained_on or (stored is None and not make):
        return
    if stored is not None and trained_on <= _OUTGROWN * stored.trained_on:
        if stored.known.all():
            return
        centroids, trained_on = Centroids.of(stored.centroids), stored.trained_on
        new = stored.addresses[~stored.known]
        batches = (new[start : start + _BATCH_PAGES] for start in range(0, len(new), _BATCH_PAGES))
        slabs: Iterator[Slab] = (snapshot.vectors(batch, depth, _width(snapshot)) for batch in batches)
        addresses, counts, codes = (
            [stored.addresses[stored.known]],
            [np.diff(stored.offsets)[stored.known]],
            [stored.codes],
        )
    else:
        count = centroid_count(trained_on)
        centroids = train(_sample(snapshot, depth, count * SAMPLE_PER_CENTROID), count)
        slabs = snapshot.scan(depth, _width(snapshot))
        addresses, counts, codes = [], [], []
    for slab in slabs:
        addresses.append(slab.addresses)
        counts.append(np.diff(slab.offsets))
        codes.append(assign(_joined(slab), centroids, pool=pool))
    stamps = snapshot.stamps(np.concatenate(addresses))
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.int64)
    pages = PageCodes(snapshot.identity, stamps, offsets, np.concatenate(codes))
    store.write_routes(depth, pages, centroids.members, trained_on)


@dataclass(frozen=True, slots=True, eq=False)
class _Lists:
    """Inverted lists as one snapshot sees them.

    routes: pages by number. addresses: (R,) of them. alive: (R,) bool, whether the snapshot has them. new: addresses of
    pages that are in no list. unknown: how many such pages there were when the lists were made.
    """

    identity: bytes
    version: int
    routes: Routes
    addresses: RowAddresses
    alive: npt.NDArray[np.bool_]
    new: RowAddresses
    unknown: int

    @property
    def nbytes(self) -> int:
        """Bytes held in memory."""
        return self.routes.nbytes + self.addresses.nbytes + self.alive.nbytes + self.new.nbytes

    @property
    def behind(self) -> bool:
        """Whether so many pages came since that the side table may know more."""
        return len(self.new) > self.unknown + min(MANY_NEW, len(self.addresses) // 8)


class FirstStage:
    """Proposes pages from the side tables of one store. Safe to share between threads."""

    def __init__(self) -> None:
        # Dicts that others may be reading are replaced, never changed.
        self._lists: dict[int, _Lists] = {}
        # (depth, width) -> the lists with centroids cut to queries of that width.
        self._narrow: dict[tuple[int, int], Routes] = {}
        # Depth -> when it was last looked for a side table in vain.
        self._absent: dict[int, float] = {}
        self._damaged: set[int] = set()
        self._loading = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes held in memory."""
        narrow = sum(routes.centroids.nbytes for routes in self._narrow.values())
        return narrow + sum(lists.nbytes for lists in self._lists.values())

    def forget(self) -> None:
        """Frees the lists; the side tables, which may have changed, are looked at again when they are needed."""
        with self._loading:
            self._lists, self._narrow, self._absent, self._damaged = {}, {}, {}, set()

    def propose(
        self, snapshot: Snapshot, depth: int, query: Float, candidates: int, allowed: RowAddresses | None
    ) -> RowAddresses | None:
        """Addresses of pages worth scoring, in no order: `candidates` from the lists and all that are in no list.

        query: (n, d) float32. allowed: pages that may be proposed, None for all.

        Returns None where the index has no first stage for the depth, or a damaged one, which is logged, and where the
        lists that the query looks into hold fewer allowed pages than that.
        """
        lists = self._get(snapshot, depth)
        if lists is None:
            return None
        selected, new = lists.alive, lists.new
        if allowed is not None:
            selected, new = selected & np.isin(lists.addresses, allowed), np.intersect1d(new, allowed)
        chosen = propose(self._as_wide_as(query, lists.routes, depth), query, candidates, selected=selected)
        if len(chosen) < candidates:
            return None
        return np.concatenate([lists.addresses[chosen], new])

    def _as_wide_as(self, query: Float, routes: Routes, depth: int) -> Routes:
        """A narrower query is compared with leading components of the centroids, at unit length like a page's."""
        width = query.shape[1]
        if width >= routes.centroids.shape[1]:
            return routes
        held = self._narrow.get((depth, width))
        if held is None or held.pages is not routes.pages:
            held = replace(routes, centroids=np.asfortranarray(unit_prefix(routes.centroids, width)))
            self._narrow = self._narrow | {(depth, width): held}
        return held

    def _get(self, snapshot: Snapshot, depth: int) -> _Lists | None:
        seen = (snapshot.identity, snapshot.version)
        held = self._lists.get(depth)
        if held is not None and (held.identity, held.version) == seen:
            return held
        with self._loading:
            held = self._lists.get(depth)
            if held is not None and (held.identity, held.version) == seen:
                return held
            held = None if held is None or held.identity != snapshot.identity else _followed(held, snapshot)
            if held is None or held.behind:
                held = self._load(snapshot, depth)
            others = {other: lists for other, lists in self._lists.items() if other != depth}
            self._lists = others if held is None else others | {depth: held}
            return held

    def _load(self, snapshot: Snapshot, depth: int) -> _Lists | None:
        if time.monotonic() < self._absent.get(depth, -math.inf) + _LOOK_AGAIN:
            return None
        try:
            stored = snapshot.routes(depth)
        except RoutesError as error:
            if depth not in self._damaged:
                _log.warning("%s; every page is scored until optimize makes it anew", error)
            self._damaged.add(depth)
            stored = None
        if stored is None:
            self._absent[depth] = time.monotonic()
            return None
        return _lists(stored, snapshot)


def _lists(stored: StoredRoutes, snapshot: Snapshot) -> _Lists:
    counts = np.diff(stored.offsets)[stored.known]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return _Lists(
        identity=snapshot.identity,
        version=snapshot.version,
        routes=invert(stored.centroids, stored.codes, offsets),
        addresses=stored.addresses[stored.known],
        alive=np.ones(len(counts), np.bool_),
        new=stored.addresses[~stored.known],
        unknown=int((~stored.known).sum()),
    )


def _followed(held: _Lists, snapshot: Snapshot) -> _Lists:
    """The same lists as another version sees them: what an address holds never changes, pages come and go."""
    addresses = snapshot.matching()
    return replace(
        held,
        version=snapshot.version,
        alive=np.isin(held.addresses, addresses),
        new=addresses[~np.isin(addresses, held.addresses)],
    )


def _sample(snapshot: Snapshot, depth: int, wanted: int) -> npt.NDArray[np.float16]:
    """(about `wanted`, w) vectors drawn by lot from all pages."""
    rng = np.random.default_rng(0)
    share = min(1.0, wanted / max(snapshot.vector_count(), 1))
    parts: list[npt.NDArray[np.float16]] = []
    for slab in snapshot.scan(depth, _width(snapshot)):
        rows = np.flatnonzero(rng.random(int(slab.offsets[-1])) < share)
        parts.append(np.concatenate([part[rows] for part in slab.slices], axis=1))
    return np.concatenate(parts)


def _width(snapshot: Snapshot) -> int:
    dims = snapshot.settings.dims
    return max((dim for dim in dims if dim <= _WIDTH), default=dims[0])


def _joined(slab: Slab) -> Float:
    return np.concatenate(slab.slices, axis=1, dtype=np.float32)
