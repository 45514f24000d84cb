"""Which pages are worth scoring, from inverted lists of centroids: the stage before the scan in a large index.

Page vectors gather around centroids. For each centroid a list names the pages that hold a vector of its. A query vector
looks into the lists of the centroids nearest to it; a page it finds there is credited with the similarity of the best
such centroid, and a page found in none with that of the first centroid left out. Summed over the query's vectors this
estimates MaxSim well enough to leave a few hundred to a few thousand pages for the scan. (Centroid interaction, as in
PLAID, Santhanam et al. 2022. Its later stages, which estimate again from all centroids of a page, changed nothing.)

The lists a query reads grow with the square root of the index, since there are more centroids in a larger one; from
about 17 million vectors on there are 65,536, and the lists grow with the index. Proposed pages are no ranking: score
them.

Centroids serve pages added later as far as those are about the same things. Where they are about others, several times
as many proposals are needed for the same recall; with centroids of a tenth of the topics, 2,000 proposals among 20,000
synthetic pages held 86 of the best 100 instead of 99. Train anew when an index changes its subject or has grown several
times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
import numpy.typing as npt

from budgetvdr.similarity.portable import Float, Offsets
from budgetvdr.unit import lengths

Codes = npt.NDArray[np.uint16]

# The most that 16-bit codes name.
_MOST_CENTROIDS = 65_536
_FEWEST_CENTROIDS = 256
# Many short lists beat few long ones: with 4 a root, the same recall took two to eight times as many proposals.
_CENTROIDS_PER_ROOT = 16
SAMPLE_PER_CENTROID = 16
"""Vectors to train with for each centroid; twice as many gained nothing on real pages."""
PROBES = 64
"""Lists read for each query vector; 32 suffice at 3 million vectors and lose at 15 million, 128 gain nothing."""
_ROUNDS = 6
# Groups whose centroids a vector is compared with. The nearest centroid of all is nearly always among them, and with
# four times as many recall stayed the same.
_GROUPS_TRIED = 4
# Vectors assigned at once: enough for a matrix product a group, and their similarities stay small.
_CHUNK_ROWS = 32_768
# Codes sorted at once. Sorting takes 30 bytes a code where the lists keep 4.
_INVERTED = 1 << 22


@dataclass(frozen=True, slots=True, eq=False)
class Centroids:
    """Unit vectors, and the groups by which the nearest is found without comparing with all.

    members: (K, w), K at most 65,536; codes are their numbers. groups: (G, w), about the square root of K.
    order, bounds: (K,) and (G + 1,), group g holds members[order[bounds[g]:bounds[g + 1]]].
    """

    members: Float
    groups: Float
    order: npt.NDArray[np.intp]
    bounds: Offsets

    @classmethod
    def of(cls, members: Float) -> Self:
        """Forms the groups anew from the members alone, the same ones each time; 65,536 take about a second."""
        groups = _kmeans(members, max(1, round(len(members) ** 0.5)), np.random.default_rng(0))
        order, bounds = _grouped(_nearest(members, groups), len(groups))
        return cls(members, groups, order, bounds)


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """Inverted lists from centroids to the pages that hold them.

    centroids: (K, w) float32. bounds: (K + 1,), centroid c owns pages[bounds[c]:bounds[c + 1]], ascending page numbers
    without repeats. count: pages there are, those without vectors included.
    """

    centroids: Float
    bounds: Offsets
    pages: npt.NDArray[np.uint32]
    count: int

    @property
    def nbytes(self) -> int:
        """Bytes held in memory."""
        return self.centroids.nbytes + self.bounds.nbytes + self.pages.nbytes


def centroid_count(vectors: int) -> int:
    """How many centroids an index of so many vectors wants: a power of two, 256 to 65,536."""
    wanted = _CENTROIDS_PER_ROOT * math.sqrt(max(1, vectors))
    return min(_MOST_CENTROIDS, max(_FEWEST_CENTROIDS, 1 << round(math.log2(wanted))))


def train(sample: npt.NDArray[np.floating], count: int, *, seed: int = 0) -> Centroids:
    """Spherical k-means in two levels.

    sample: (n, w), n >= 1, vectors drawn by lot from the whole index, `SAMPLE_PER_CENTROID` a centroid; their lengths
    do not matter. count: centroids wanted; about as many are made, fewer where the sample is smaller.

    The same sample, count and seed give the same centroids on one machine.
    """
    rng = np.random.default_rng(seed)
    vectors = np.array(sample, np.float32)
    vectors /= lengths(vectors)[:, None]
    count = min(count, len(vectors), _MOST_CENTROIDS)
    groups = _kmeans(vectors, max(1, round(count**0.5)), rng)
    owner = _nearest(vectors, groups)
    rows, bounds = _grouped(owner, len(groups))
    members = []
    for group, center in enumerate(groups):
        own = vectors[rows[bounds[group] : bounds[group + 1]]]
        # One for each group and the rest by size, rounded down: never more than wanted.
        wanted = 1 + (count - len(groups)) * len(own) // len(vectors)
        members.append(_kmeans(own, wanted, rng) if wanted > 1 else center[None])
    return Centroids.of(np.concatenate(members))


def assign(
    vectors: npt.NDArray[np.floating], centroids: Centroids, *, pool: Executor | None = None
) -> tuple[Codes, Float]:
    """The centroid nearest to each vector, by cosine, among those of the nearest few groups.

    vectors: (n, >= w), cut to the centroids' width here. pool: spreads runs of vectors over its workers.

    Returns (n,) numbers of centroids, and (n,) cosines to them, 0 for a vector without length.
    """
    codes = np.empty(len(vectors), np.uint16)
    cosines = np.empty(len(vectors), np.float32)

    def fill(start: int) -> None:
        part = np.asarray(vectors[start : start + _CHUNK_ROWS, : centroids.members.shape[1]], np.float32)
        span = slice(start, start + len(part))
        codes[span], found = _assign_rows(part, centroids)
        cosines[span] = found / lengths(part)

    starts = range(0, len(vectors), _CHUNK_ROWS)
    list(map(fill, starts) if pool is None else pool.map(fill, starts))
    return codes, cosines


def invert(members: Float, codes: Codes, offsets: Offsets) -> Routes:
    """Lists for pages numbered from 0.

    members: (K, w), those of `Centroids`. codes: (N,) of all vectors. offsets: (P + 1,), page p owns
    codes[offsets[p]:offsets[p + 1]]; a page without any is in no list.
    """
    sizes, parts = [], []
    runs = max(1, len(codes) // _INVERTED)
    for first, last in pairwise(len(members) * run // runs for run in range(runs + 1)):
        rows = np.flatnonzero((codes >= first) & (codes < last))
        found = codes[rows]
        # Pages ascend, and a stable sort of 16-bit codes (a radix sort) keeps them so within each list.
        order = np.argsort(found, kind="stable")
        found, pages = found[order], (np.searchsorted(offsets, rows[order], side="right") - 1).astype(np.uint32)
        fresh = np.ones(len(found), np.bool_)
        fresh[1:] = (found[1:] != found[:-1]) | (pages[1:] != pages[:-1])
        sizes.append(np.bincount(found[fresh].astype(np.int64) - first, minlength=last - first))
        parts.append(pages[fresh])
    bounds = np.concatenate([[0], np.cumsum(np.concatenate(sizes))]).astype(np.int64)
    # In this order of axes the product with a query is twice as fast.
    return Routes(np.asfortranarray(members), bounds, np.concatenate(parts), len(offsets) - 1)


def propose(
    routes: Routes,
    query: Float,
    candidates: int,
    *,
    probes: int = PROBES,
    selected: npt.NDArray[np.bool_] | None = None,
) -> npt.NDArray[np.int64]:
    """The pages that look best for a query, best first.

    query: (n, >= w) float32. candidates: the most pages wanted. probes: lists read for each query vector.
    selected: (P,) bool, pages that may be proposed, None for all.

    Returns (<= candidates,) page numbers; only pages found in some list.
    """
    estimates = np.zeros(routes.count, np.float32)
    credit = np.zeros(routes.count, np.float32)
    similarities = query[:, : routes.centroids.shape[1]] @ routes.centroids.T
    for lists, gains in _best_lists(similarities, probes):
        starts = routes.bounds[lists]
        lengths = routes.bounds[lists + 1] - starts
        places = np.arange(lengths.sum()) + np.repeat(starts - np.cumsum(lengths) + lengths, lengths)
        pages = routes.pages[places]
        # The lists come worst first, and of several values for one page the last one stays.
        credit[pages] = np.repeat(gains, lengths)
        estimates += credit
        credit[pages] = 0
    if selected is not None:
        estimates[~selected] = 0
    found = np.flatnonzero(estimates)
    if len(found) > candidates:
        found = found[np.argpartition(-estimates[found], candidates)[:candidates]]
        found.sort()
    return found[np.argsort(-estimates[found], kind="stable")]


def _best_lists(similarities: Float, probes: int) -> Iterator[tuple[npt.NDArray[np.intp], Float]]:
    """For each query vector its nearest lists, worst first, and what each is worth above the first one left out.

    similarities: (n, K). Every worth is above 0, so that a page found is told from one that is not.
    """
    count = similarities.shape[1]
    probes = min(probes, count)
    for row, floor in zip(similarities, _floors(similarities, probes), strict=True):
        best = np.flatnonzero(row >= floor)
        best = best[np.argsort(-row[best], kind="stable")]
        left_out = row[best[probes]] if len(best) > probes else row.min()
        lists = best[:probes][::-1]
        yield lists, np.maximum(row[lists] - left_out, np.finfo(np.float32).tiny)


def _floors(similarities: Float, probes: int) -> Float:
    """(n,) values that more than `probes` similarities of each row reach, and few others.

    The maxima of runs side by side are far fewer to choose among than all similarities.
    """
    count = similarities.shape[1]
    run = max(1, min(64, count // (8 * probes)))
    runs = count // run
    if runs <= probes:
        return np.full(len(similarities), -np.inf, np.float32)
    maxima = similarities[:, : runs * run].reshape(len(similarities), run, runs).max(axis=1)
    floors: Float = -np.partition(-maxima, probes, axis=1)[:, probes]
    return floors


def _assign_rows(vectors: Float, centroids: Centroids) -> tuple[npt.NDArray[np.intp], Float]:
    tried = min(_GROUPS_TRIED, len(centroids.groups))
    similarities = vectors @ centroids.groups.T
    nearest = np.argpartition(-similarities, tried - 1, axis=1)[:, :tried]
    places, starts = _grouped(nearest.ravel(), len(centroids.groups))
    best = np.full(len(vectors), -np.inf, np.float32)
    codes = np.zeros(len(vectors), np.intp)
    for group in range(len(centroids.groups)):
        rows = places[starts[group] : starts[group + 1]] // tried
        numbers = centroids.order[centroids.bounds[group] : centroids.bounds[group + 1]]
        if len(rows) == 0 or len(numbers) == 0:
            continue
        own = vectors[rows] @ centroids.members[numbers].T
        winner = own.argmax(axis=1)
        found = own[np.arange(len(rows)), winner]
        better = found > best[rows]
        best[rows[better]] = found[better]
        codes[rows[better]] = numbers[winner[better]]
    return codes, best


def _kmeans(vectors: Float, count: int, rng: np.random.Generator) -> Float:
    """(<= count, w) unit centroids of unit vectors; one that nothing is nearest to starts again at a vector."""
    count = min(count, len(vectors))
    centroids = vectors[rng.choice(len(vectors), count, replace=False)]
    for _ in range(_ROUNDS):
        rows, bounds = _grouped(_nearest(vectors, centroids), count)
        filled = np.flatnonzero(np.diff(bounds))
        centroids = vectors[rng.choice(len(vectors), count)]
        centroids[filled] = np.add.reduceat(vectors[rows], bounds[filled], axis=0)
        centroids /= lengths(centroids)[:, None]
    return centroids


def _nearest(vectors: Float, centroids: Float) -> npt.NDArray[np.int64]:
    nearest = np.empty(len(vectors), np.int64)
    for start in range(0, len(vectors), 4096):
        part = vectors[start : start + 4096]
        nearest[start : start + 4096] = (part @ centroids.T).argmax(axis=1)
    return nearest


def _grouped(labels: npt.NDArray[np.int64], count: int) -> tuple[npt.NDArray[np.intp], Offsets]:
    """Places sorted by label, those of one label ascending, and (count + 1,) bounds of each label's run."""
    bounds = np.concatenate([[0], np.cumsum(np.bincount(labels, minlength=count))]).astype(np.int64)
    return np.argsort(labels.astype(np.uint16), kind="stable"), bounds
