"""Candidates -> exact scores -> ranked pages, for one plan.

A scan of resident int8 vectors proposes pages, and the exact float16 MaxSim at the asked width decides among them.
An index whose vectors would not fit the memory limit is streamed and scored exactly instead.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import numpy.typing as npt

from budgetvdr.budget import Plan
from budgetvdr.errors import IndexStoreError
from budgetvdr.similarity.maxsim import ExactPages, Float, Int8Pages, maxsim, quantise, scan_int8
from budgetvdr.store import PageFacts, Snapshot

# The largest error of a scanned score seen on real pages and questions is 1.7e-3, at 32 components (docs/results.md).
# Two pages can change places only within twice that, so the exact k best are among those this near to the k-th scanned.
_MARGIN = 5e-3
# Above this share of new pages, reading in order beats taking page by page.
_RENEWED_SHARE = 0.25
# Thousands of copies of one page may lie within the margin; beyond this many more than k they are as good as equal.
_MOST_EXTRA = 1000


@dataclass(frozen=True, slots=True)
class Ranking:
    """The best pages, best first, with their exact scores and what it took.

    vectors: page vectors the scan looked at. candidates: pages scored exactly. load_ms, scan_ms, exact_ms: wall
    milliseconds for bringing vectors into memory, for scanning them (the filter included), and for reading the
    candidates and scoring them exactly.
    """

    facts: list[PageFacts]
    scores: Float
    vectors: int
    candidates: int
    load_ms: float
    scan_ms: float
    exact_ms: float


@dataclass(frozen=True, slots=True, eq=False)
class _Resident:
    identity: bytes
    version: int
    pages: Int8Pages
    addresses: npt.NDArray[np.uint64]

    def is_of(self, snapshot: Snapshot) -> bool:
        return self.version == snapshot.version and self.identity == snapshot.identity


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    snapshot: Snapshot
    query: Float
    plan: Plan
    k: int
    where: str | None


class Searcher:
    """Scores the pages of snapshots of one store. Searches may come from several threads.

    memory_limit: bytes of resident vectors, over all depths and widths in use. threads: workers of a scan.
    """

    def __init__(self, *, memory_limit: int, threads: int) -> None:
        self._memory_limit = memory_limit
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="budgetvdr-scan")
        self._resident: dict[Plan, _Resident] = {}
        self._loading = threading.Lock()
        self._closed = False

    def rank(self, snapshot: Snapshot, query: Float, plan: Plan, *, k: int, where: str | None) -> Ranking:
        """The k best pages for one query, (n, dim) float32, among those that meet the SQL filter.

        Pages without vectors are never returned, so that fewer than k may come back.
        """
        request = _Request(snapshot, query, plan, k, where)
        start = perf_counter()
        try:
            resident = self._load(snapshot, plan)
            if resident is None:
                return self._stream(request)
            return self._scan(request, resident, load_ms=(perf_counter() - start) * 1e3)
        except RuntimeError as error:
            if self._closed:
                raise IndexStoreError("the index was closed during the search; open it again") from error
            raise

    def close(self) -> None:
        """Frees the vectors and stops the workers; a search under way in another thread ends with IndexStoreError."""
        self._closed = True
        self._pool.shutdown()
        self._resident.clear()

    def _scan(self, request: _Request, resident: _Resident, load_ms: float) -> Ranking:
        start = perf_counter()
        mask = None
        if request.where is not None:
            mask = np.isin(resident.addresses, request.snapshot.matching(request.where))
        scores = scan_int8(resident.pages, request.query, selected=mask, pool=self._pool)
        # The scan's error grows with the length of the query vectors.
        margin = _MARGIN * float(np.linalg.norm(request.query, axis=1).mean())
        places = _candidates(scores, request.k, margin)
        scanned = perf_counter()
        addresses = resident.addresses[places]
        slab, facts = request.snapshot.vectors_and_facts(addresses, request.plan.depth, request.plan.dim)
        exact = maxsim(ExactPages(slab.slices, slab.offsets), request.query, pool=self._pool)
        order = _best(exact, request.k)
        counts = np.diff(resident.pages.offsets)
        return Ranking(
            facts=[facts[place] for place in order],
            scores=exact[order],
            vectors=int(counts.sum() if mask is None else counts[mask].sum()),
            candidates=len(places),
            load_ms=load_ms,
            scan_ms=(scanned - start) * 1e3,
            exact_ms=(perf_counter() - scanned) * 1e3,
        )

    def _stream(self, request: _Request) -> Ranking:
        """Scores every page that meets the filter exactly, slab by slab, and keeps the best."""
        start = perf_counter()
        addresses = np.zeros(0, np.uint64)
        scores = np.zeros(0, np.float32)
        vectors = pages = 0
        for slab in request.snapshot.scan(request.plan.depth, request.plan.dim, request.where):
            found = maxsim(ExactPages(slab.slices, slab.offsets), request.query, pool=self._pool)
            scores = np.concatenate([scores, found])
            addresses = np.concatenate([addresses, slab.addresses])
            best = _best(scores, request.k)
            scores, addresses = scores[best], addresses[best]
            vectors += int(slab.offsets[-1])
            pages += len(slab.addresses)
        facts = request.snapshot.facts(addresses)
        elapsed = (perf_counter() - start) * 1e3
        return Ranking(facts, scores, vectors, pages, load_ms=0.0, scan_ms=0.0, exact_ms=elapsed)

    def _load(self, snapshot: Snapshot, plan: Plan) -> _Resident | None:
        """The resident copy of one version, made where it is missing; None where it will not fit."""
        held = self._resident.get(plan)
        if held is not None and held.is_of(snapshot):
            return held
        with self._loading:
            held = self._resident.pop(plan, None)
            if held is None or not held.is_of(snapshot):
                needed = snapshot.vector_count() * (plan.dim + 4)
                while self._resident and self._held_bytes() + needed > self._memory_limit:
                    # The copy that was made or renewed longest ago leaves first.
                    del self._resident[next(iter(self._resident))]
                if needed > self._memory_limit:
                    return None
                if held is None or held.identity != snapshot.identity:
                    held = self._read(snapshot, plan)
                else:
                    held = self._renewed(held, snapshot, plan)
            self._resident[plan] = held
            return held

    def _read(self, snapshot: Snapshot, plan: Plan) -> _Resident:
        """Quantises slab by slab into the final arrays, so that loading takes little more than what is kept."""
        pages, rows = snapshot.page_count(), snapshot.vector_count()
        values, scales = np.empty((rows, plan.dim), np.int8), np.empty(rows, np.float32)
        offsets, addresses = np.zeros(pages + 1, np.int64), np.empty(pages, np.uint64)
        page = 0
        for slab in snapshot.scan(plan.depth, plan.dim):
            part, count, row = quantise(slab.slices, slab.offsets, pool=self._pool), len(slab.addresses), offsets[page]
            values[row : row + len(part.scales)], scales[row : row + len(part.scales)] = part.values, part.scales
            offsets[page + 1 : page + 1 + count] = row + slab.offsets[1:]
            addresses[page : page + count] = slab.addresses
            page += count
        return _Resident(snapshot.identity, snapshot.version, Int8Pages(values, scales, offsets), addresses)

    def _renewed(self, held: _Resident, snapshot: Snapshot, plan: Plan) -> _Resident:
        """The copy of another version from one at hand: what an address holds never changes, pages come and go."""
        addresses = snapshot.matching()
        stay = np.isin(held.addresses, addresses)
        new = addresses[~np.isin(addresses, held.addresses)]
        if len(new) > _RENEWED_SHARE * len(addresses):
            return self._read(snapshot, plan)
        slab = snapshot.vectors(new, plan.depth, plan.dim)
        added, counts = quantise(slab.slices, slab.offsets, pool=self._pool), np.diff(held.pages.offsets)
        rows = np.repeat(stay, counts)
        return _Resident(
            snapshot.identity,
            snapshot.version,
            Int8Pages(
                np.concatenate([held.pages.values[rows], added.values]),
                np.concatenate([held.pages.scales[rows], added.scales]),
                np.concatenate([[0], np.cumsum(np.concatenate([counts[stay], np.diff(added.offsets)]))]).astype(
                    np.int64
                ),
            ),
            np.concatenate([held.addresses[stay], new]),
        )

    def _held_bytes(self) -> int:
        return sum(item.pages.nbytes for item in self._resident.values())


def _candidates(scores: Float, k: int, margin: float) -> npt.NDArray[np.intp]:
    """Places of the pages that may be among the exact k best, in page order."""
    best = _best(scores, k + _MOST_EXTRA)
    if len(best) > k:
        best = best[scores[best] >= scores[best[k - 1]] - margin]
    return np.sort(best)


def _best(scores: Float, k: int) -> npt.NDArray[np.intp]:
    """Places of the k largest finite scores, largest first; equal scores keep their order."""
    places = np.flatnonzero(scores > -np.inf)
    if len(places) > k:
        places = places[np.argpartition(-scores[places], k - 1)[:k]]
        places.sort()
    return places[np.argsort(-scores[places], kind="stable")]
