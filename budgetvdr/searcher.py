"""Candidates -> exact scores -> ranked pages, for one plan.

A search takes the first of these ways that it can:

* scan: a scan of resident int8 vectors finds the pages that may be among the best, and their exact float16 MaxSim
  decides. Where the plan asks for candidates, only the pages that the first stage proposes are scanned.
* proposed: the vectors do not fit the memory limit; the pages that the first stage proposes are read and scored.
* pruned: only the leading components fit; pages are read whole in the order of an upper bound, as far as needed.
* stream: every page is read and scored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Final

import numpy as np
import numpy.typing as npt

from budgetvdr.best import Best, best
from budgetvdr.budget import Plan
from budgetvdr.errors import IndexStoreError
from budgetvdr.first_stage import FirstStage
from budgetvdr.first_stage_refresh import refresh
from budgetvdr.pages import SearchPath
from budgetvdr.pruned import best_by_bound, bounds
from budgetvdr.resident import Copy, Places, Resident
from budgetvdr.similarity.maxsim import ExactPages, Float, maxsim, scan_error, scan_int8
from budgetvdr.store import PageFacts, RowAddresses, Slab, Snapshot, Store

# Thousands of copies of one page may lie within the margin; beyond this many more than k they are as good as equal.
_MOST_EXTRA: Final = 1000
_TAKEN_PAGES: Final = 256
# Reading pages one by one costs several times as much as reading them in order.
_READ_SHARE: Final = 0.25
# What a search for more than this needs to read says little about the next one.
_USUAL_K: Final = 100


@dataclass(frozen=True, slots=True)
class Ranking:
    """The best pages, best first, with their exact scores and what it took.

    path: the way taken. pages, vectors: pages looked at and their vectors. candidates: pages scored exactly. load_ms,
    scan_ms, exact_ms: wall milliseconds for bringing vectors into memory, for choosing pages (the filter included), and
    for reading the chosen ones and scoring them exactly.
    """

    path: SearchPath
    facts: list[PageFacts]
    scores: Float
    pages: int
    vectors: int
    candidates: int
    load_ms: float
    scan_ms: float
    exact_ms: float


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    snapshot: Snapshot
    query: Float
    plan: Plan
    k: int
    where: str | None


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """The best of some pages, best first. vectors: of all those pages."""

    facts: list[PageFacts]
    scores: Float
    vectors: int


class Searcher:
    """Scores the pages of snapshots of one store. Searches may come from several threads.

    memory_limit: bytes of resident vectors, over all depths and widths in use. threads: workers of a scan.
    """

    def __init__(self, *, memory_limit: int, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="budgetvdr-scan")
        self._resident = Resident(memory_limit, self._pool)
        self._first_stage = FirstStage()
        # (table, depth, dim) whose bounds left too many pages.
        self._not_pruned: set[tuple[bytes, int, int]] = set()
        self._closed = False

    @property
    def nbytes(self) -> int:
        """Bytes of vectors and lists in memory."""
        return self._resident.nbytes + self._first_stage.nbytes

    def rank(self, snapshot: Snapshot, query: Float, plan: Plan, *, k: int, where: str | None) -> Ranking:
        """The k best pages for one query, (n, dim) float32, among those that meet the SQL filter.

        Pages without vectors are never returned, so that fewer than k may come back. Where more than a thousand others
        score like the k-th to within the error of the scan, some of these may be missed. Raises IndexStoreError where
        the searcher is closed meanwhile.
        """
        request = _Request(snapshot, query, plan, k, where)
        with self._open():
            start = perf_counter()
            copy = self._resident.int8(snapshot, plan.page_depth, plan.dim)
            candidates = _candidates(request, in_memory=copy is not None)
            if candidates is not None:
                self._first_stage.load(snapshot, plan.page_depth)
            load_ms, start = (perf_counter() - start) * 1e3, perf_counter()
            allowed = None if where is None else snapshot.matching(where)
            proposed = None if candidates is None else self._propose(request, candidates, allowed)
            if copy is not None:
                return self._scan(request, copy, allowed if proposed is None else proposed, load_ms, start)
            if proposed is not None and len(proposed) <= _READ_SHARE * snapshot.page_count():
                return self._read_proposed(request, proposed, load_ms, start)
            return self._pruned(request, allowed, load_ms, start) or self._stream(request, allowed, load_ms, start)

    def exact(self, snapshot: Snapshot, queries: Sequence[Float], plan: Plan, *, k: int) -> list[Float]:
        """Scores of the k best pages for each query, by scoring every stored vector: what other ways must find."""
        found = [Best(k) for _ in queries]
        with self._open():
            for slab in snapshot.scan(plan.page_depth, plan.dim):
                for query, kept in zip(queries, found, strict=True):
                    kept.add(slab.addresses, self._exact_scores(slab, query))
        return [kept.scores for kept in found]

    def refresh_first_stage(self, store: Store, *, make: bool) -> None:
        """Brings the first stage of every depth up to date; make: also where there is none. Raises StorageError."""
        with self._open():
            for depth in store.settings.depths:
                refresh(store, depth, self._pool, make=make)
        self._first_stage.forget()

    def close(self) -> None:
        """Frees the vectors and stops the workers; a search under way in another thread ends with IndexStoreError."""
        self._closed = True
        self._pool.shutdown()
        self._resident.close()
        self._first_stage.forget()

    @contextmanager
    def _open(self) -> Iterator[None]:
        """Raises IndexStoreError for what the closed pool says."""
        closed = IndexStoreError("the index was closed during the search; open it again")
        if self._closed:
            raise closed
        try:
            yield
        except RuntimeError as error:
            if self._closed:
                raise closed from error
            raise

    def _propose(self, request: _Request, candidates: int, allowed: RowAddresses | None) -> RowAddresses | None:
        """Pages to look at, from the first stage; None for all allowed ones, where it is missing or finds too few."""
        snapshot = request.snapshot
        if (snapshot.page_count() if allowed is None else len(allowed)) <= candidates:
            return None
        return self._first_stage.propose(snapshot, request.plan.page_depth, request.query, candidates, allowed)

    def _scan(
        self, request: _Request, copy: Copy, chosen: RowAddresses | None, load_ms: float, start: float
    ) -> Ranking:
        places = copy.places(chosen)
        scores = scan_int8(copy.int8, request.query, places=places, pool=self._pool)
        addresses = copy.addresses if places is None else copy.addresses[places]
        # Two pages can change places within twice what a score is off by.
        margin = 2 * scan_error(request.query, copy.coarsest)
        near = addresses[_near(scores, request.k, margin, addresses)]
        scanned = perf_counter()
        found = self._decide(request, near)
        pages, vectors = _looked_at(copy, places)
        return Ranking(
            path="scan",
            facts=found.facts,
            scores=found.scores,
            pages=pages,
            vectors=vectors,
            candidates=len(near),
            load_ms=load_ms,
            scan_ms=(scanned - start) * 1e3,
            exact_ms=(perf_counter() - scanned) * 1e3,
        )

    def _read_proposed(self, request: _Request, proposed: RowAddresses, load_ms: float, start: float) -> Ranking:
        """Reads the proposed pages and scores them exactly."""
        chosen = perf_counter()
        found = self._decide(request, proposed)
        return Ranking(
            path="proposed",
            facts=found.facts,
            scores=found.scores,
            pages=len(proposed),
            vectors=found.vectors,
            candidates=len(proposed),
            load_ms=load_ms,
            scan_ms=(chosen - start) * 1e3,
            exact_ms=(perf_counter() - chosen) * 1e3,
        )

    def _pruned(self, request: _Request, allowed: RowAddresses | None, load_ms: float, start: float) -> Ranking | None:
        """None where no leading components fit, or where they tell too little."""
        snapshot, plan = request.snapshot, request.plan
        name = (snapshot.identity, plan.page_depth, plan.dim)
        fitting = [
            w
            for w in snapshot.settings.dims
            if w < plan.dim and self._resident.fits_front(snapshot, plan.page_depth, w)
        ]
        if name in self._not_pruned or not fitting:
            return None
        chosen = perf_counter()
        copy = self._resident.front(snapshot, plan.page_depth, plan.dim, fitting[-1])
        if copy is None:
            return None
        loaded = perf_counter()
        bound = bounds(copy.front, request.query, lambda pages, query: maxsim(pages, query, pool=self._pool))
        places = copy.places(allowed)
        if places is not None:
            others = np.ones(len(bound), np.bool_)
            others[places] = False
            bound[others] = -np.inf
        bounded = perf_counter()

        def score(near: npt.NDArray[np.intp]) -> Float:
            return np.concatenate([scores for _, scores in self._read(request, copy.addresses[near])])

        found = best_by_bound(bound, request.k, copy.addresses, score)
        if found is None:
            # Many of the pages a filter leaves, or a large k, may need reading where few of all would.
            if allowed is None and request.k <= _USUAL_K:
                self._not_pruned.add(name)
                self._resident.drop_front(plan.page_depth, plan.dim, fitting[-1])
            return None
        pages, vectors = _looked_at(copy, places)
        return Ranking(
            path="pruned",
            facts=snapshot.facts(copy.addresses[found.places]),
            scores=found.scores,
            pages=pages,
            vectors=vectors,
            candidates=found.read,
            load_ms=load_ms + (loaded - chosen) * 1e3,
            scan_ms=(chosen - start + bounded - loaded) * 1e3,
            exact_ms=(perf_counter() - bounded) * 1e3,
        )

    def _stream(self, request: _Request, allowed: RowAddresses | None, load_ms: float, start: float) -> Ranking:
        """Scores every page that meets the filter exactly, slab by slab, and keeps the best."""
        kept = Best(request.k)
        vectors = pages = 0
        for slab in request.snapshot.scan(request.plan.page_depth, request.plan.dim, allowed):
            kept.add(slab.addresses, self._exact_scores(slab, request.query))
            vectors += int(slab.offsets[-1])
            pages += len(slab.addresses)
        facts = request.snapshot.facts(kept.addresses)
        return Ranking(
            path="stream",
            facts=facts,
            scores=kept.scores,
            pages=pages,
            vectors=vectors,
            candidates=pages,
            load_ms=load_ms,
            scan_ms=0.0,
            exact_ms=(perf_counter() - start) * 1e3,
        )

    def _decide(self, request: _Request, addresses: RowAddresses) -> _Found:
        """The exact k best among chosen pages, which are read a few at a time."""
        if len(addresses) <= _TAKEN_PAGES:
            slab, facts = request.snapshot.vectors_and_facts(addresses, request.plan.page_depth, request.plan.dim)
            scores = self._exact_scores(slab, request.query)
            order = best(scores, request.k, addresses)
            return _Found([facts[place] for place in order], scores[order], int(slab.offsets[-1]))
        kept, vectors = Best(request.k), 0
        for slab, scores in self._read(request, addresses):
            kept.add(slab.addresses, scores)
            vectors += int(slab.offsets[-1])
        return _Found(request.snapshot.facts(kept.addresses), kept.scores, vectors)

    def _read(self, request: _Request, addresses: RowAddresses) -> Iterator[tuple[Slab, Float]]:
        """Chosen pages and their exact scores, in the order asked, a few at a time."""
        for first in range(0, len(addresses), _TAKEN_PAGES):
            part = addresses[first : first + _TAKEN_PAGES]
            slab = request.snapshot.vectors(part, request.plan.page_depth, request.plan.dim)
            yield slab, self._exact_scores(slab, request.query)

    def _exact_scores(self, slab: Slab, query: Float) -> Float:
        return maxsim(ExactPages(slab.slices, slab.offsets), query, pool=self._pool)


def _candidates(request: _Request, *, in_memory: bool) -> int | None:
    """How many pages the first stage is asked for; None where it is not asked, and its lists need not be in memory."""
    plan = request.plan
    quick = in_memory and request.snapshot.vector_count(plan.page_depth) * plan.dim <= plan.quick_scan
    return None if plan.candidates is None or quick else max(plan.candidates, request.k)


def _looked_at(copy: Copy, places: Places | None) -> tuple[int, int]:
    """How many pages and vectors some places are."""
    if places is None:
        return len(copy.addresses), int(copy.offsets[-1])
    return len(places), int((copy.offsets[places + 1] - copy.offsets[places]).sum())


def _near(scores: Float, k: int, margin: float, addresses: RowAddresses) -> npt.NDArray[np.intp]:
    """Which of the scores may belong to the exact k best, in their order."""
    near = best(scores, k + _MOST_EXTRA, addresses)
    if len(near) > k:
        near = near[scores[near] >= scores[near[k - 1]] - margin]
    return np.sort(near)
