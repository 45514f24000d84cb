"""The stage before the scan in a large index, asked for pages worth scoring; `first_stage_refresh` makes it.

Centroids and every page's codes are a side table of the index, one for each depth; in memory they become inverted
lists. Pages that the lists do not know, because they came later, are always proposed, so that the table may lag behind.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from budgetvdr.similarity.centroids import Routes, invert, propose
from budgetvdr.similarity.maxsim import Float, unit_prefix
from budgetvdr.store import Routes as StoredRoutes
from budgetvdr.store import RoutesError, RowAddresses, Snapshot

_log = logging.getLogger(__name__)

LEAST_VECTORS: Final = 4_000_000
"""Vectors of an index from which proposing pages takes less time than scanning all of them."""
MANY_NEW: Final = 2048
"""New pages, which are part of every search, from which it pays to add them, and to look whether another has."""
# Seconds until it is looked again whether another process has made a first stage, which takes a millisecond on a local
# disk and some requests on an object store.
_LOOK_AGAIN: Final = 10.0


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
        known = len(self.addresses)
        return len(self.new) > self.unknown + min(max(MANY_NEW, known // 64), known // 8)


class FirstStage:
    """Proposes pages from the side tables of one store. Safe to share between threads."""

    def __init__(self) -> None:
        # Dicts that others may be reading are replaced, never changed.
        self._lists: dict[int, _Lists] = {}
        # (depth, width) -> centroids, and the same cut to queries of that width.
        self._narrow: dict[tuple[int, int], tuple[Float, Float]] = {}
        # Depth -> when it was last looked for a side table in vain.
        self._absent: dict[int, float] = {}
        self._damaged: set[int] = set()
        self._loading = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes held in memory."""
        narrow = sum(cut.nbytes for _, cut in self._narrow.values())
        return narrow + sum(lists.nbytes for lists in self._lists.values())

    def forget(self) -> None:
        """Frees the lists; the side tables, which may have changed, are looked at again when they are needed."""
        with self._loading:
            self._lists, self._narrow, self._absent, self._damaged = {}, {}, {}, set()

    def load(self, snapshot: Snapshot, depth: int) -> None:
        """Reads the lists into memory where that has to be done, which takes seconds for a large index."""
        self._get(snapshot, depth)

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
        if held is None or held[0] is not routes.centroids:
            held = routes.centroids, np.asfortranarray(unit_prefix(routes.centroids, width))
            self._narrow = self._narrow | {(depth, width): held}
        return replace(routes, centroids=held[1])

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
