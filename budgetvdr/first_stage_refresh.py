"""Making the first stage of a large index, and keeping it up with the pages."""

from __future__ import annotations

import logging
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from budgetvdr.first_stage import MANY_NEW
from budgetvdr.similarity.centroids import SAMPLE_PER_CENTROID, Centroids, Codes, assign, centroid_count, train
from budgetvdr.similarity.maxsim import Float
from budgetvdr.store import PageCodes, RoutesError, RowAddresses, Slab, Snapshot, Store, Training
from budgetvdr.store import Routes as StoredRoutes

_log = logging.getLogger(__name__)

# Components that centroids have, at most.
_WIDTH: Final = 128
# An index that has grown by this factor is trained for anew.
_OUTGROWN: Final = 4
_BATCH_PAGES: Final = 256
# The share of pages that count as strangers to centroids they were trained with, so that others like them may too.
_STRANGE_SHARE: Final = 0.01
# More than one page in so many that is a stranger, or MANY_NEW: the lists are made anew. It is whichever is fewer where
# that is asked for, and whichever is more where it happens by itself.
_STRANGE_PART: Final = 16


def refresh(store: Store, depth: int, pool: Executor, *, make: bool) -> None:
    """Adds the pages that the first stage of a depth does not know; make: makes it where there is none.

    To make it, the leading components are read twice, once for a sample and once to find the centroid nearest to every
    vector. It is made anew where it is damaged, and for an index that has grown fourfold since or has come to be about
    other things. Pages that its centroids do not serve are left out until then, and so proposed to every search.

    In memory are a sample of at most 16 vectors for each of 65,536 centroids, with which training takes 1.4 GB at 128
    components, and the codes, 2 bytes for each vector of the index, a few times over.

    Raises StorageError, ReadOnlyError.
    """
    snapshot = store.snapshot()
    vectors = snapshot.vector_count(depth)
    try:
        stored = snapshot.routes(depth)
    except RoutesError as error:
        _log.warning("%s; it is made anew", error)
        store.drop_routes(depth)
        stored, make = None, True
    if not vectors or (stored is None and not make):
        return
    if stored is not None and vectors <= _OUTGROWN * stored.training.vectors:
        strangers, few = _follow(store, snapshot, stored, depth, pool), len(stored.addresses) // _STRANGE_PART
        if strangers <= (min(MANY_NEW, few) if make else max(MANY_NEW, few)):
            return
        _log.info(
            "%d pages of %s are about other things than its first stage, which is made anew", strangers, store.uri
        )
    _make(store, snapshot, depth, pool)


def _make(store: Store, snapshot: Snapshot, depth: int, pool: Executor) -> None:
    vectors = snapshot.vector_count(depth)
    count = centroid_count(vectors)
    centroids = train(_sample(snapshot, depth, count * SAMPLE_PER_CENTROID), count)
    placed = [_placed(slab, centroids, pool) for slab in snapshot.scan(depth, _width(snapshot))]
    closeness = np.concatenate([each.closeness[each.counts > 0] for each in placed])
    training = Training(vectors, float(np.quantile(closeness, _STRANGE_SHARE)))
    _write(store, snapshot, depth, centroids, placed, training=training)


def _follow(store: Store, snapshot: Snapshot, stored: StoredRoutes, depth: int, pool: Executor) -> int:
    """Adds the new pages that the centroids serve, and returns how many they do not."""
    new = stored.addresses[~stored.known]
    if not len(new):
        return 0
    centroids, training = Centroids.of(stored.centroids), stored.training
    known = np.diff(stored.offsets)[stored.known]
    placed = [_Placed(stored.addresses[stored.known], known, stored.codes, np.ones(len(known), np.float32))]
    strangers = 0
    for start in range(0, len(new), _BATCH_PAGES):
        slab = snapshot.vectors(new[start : start + _BATCH_PAGES], depth, _width(snapshot))
        each = _placed(slab, centroids, pool)
        close = (each.closeness >= training.closeness) | (each.counts == 0)
        strangers += int((~close).sum())
        codes = each.codes[np.repeat(close, each.counts)]
        placed.append(_Placed(each.addresses[close], each.counts[close], codes, each.closeness[close]))
    _write(store, snapshot, depth, centroids, placed, training=replace(training, strangers=strangers))
    return strangers


@dataclass(frozen=True, slots=True, eq=False)
class _Placed:
    """Some pages, how many vectors each has, their codes, and the mean cosine of a page's vectors to its centroids."""

    addresses: RowAddresses
    counts: npt.NDArray[np.int64]
    codes: Codes
    closeness: Float


def _placed(slab: Slab, centroids: Centroids, pool: Executor) -> _Placed:
    codes, cosines = assign(_joined(slab), centroids, pool=pool)
    counts = np.diff(slab.offsets)
    totals = np.bincount(np.repeat(np.arange(len(counts)), counts), cosines, minlength=len(counts))
    return _Placed(slab.addresses, counts, codes, (totals / np.maximum(counts, 1)).astype(np.float32))


def _write(
    store: Store, snapshot: Snapshot, depth: int, centroids: Centroids, placed: list[_Placed], *, training: Training
) -> None:
    stamps = snapshot.stamps(np.concatenate([each.addresses for each in placed]))
    offsets = np.concatenate([[0], np.cumsum(np.concatenate([each.counts for each in placed]))]).astype(np.int64)
    codes = np.concatenate([each.codes for each in placed])
    store.write_routes(depth, PageCodes(snapshot.identity, stamps, offsets, codes), centroids.members, training)


def _sample(snapshot: Snapshot, depth: int, wanted: int) -> npt.NDArray[np.float16]:
    """(about `wanted`, w) vectors drawn by lot from all pages."""
    rng = np.random.default_rng(0)
    share = min(1.0, wanted / max(snapshot.vector_count(depth), 1))
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
