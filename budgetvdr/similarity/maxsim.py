"""MaxSim over pages of different vector counts, without padding (MM-Matryoshka Eq. 3 and 4).

The score of a page is the mean, over the query's vectors, of the best dot product with any of the page's vectors,
after every page vector has been cut to its first d components and scaled to unit length.

Two forms of the same pages are scored here:

* `ExactPages` hold the stored float16 components. `maxsim` on them is the score that hits carry.
* `Int8Pages` hold one signed byte a component and one scale a vector, an eighth of float64 and half of float16.
  `scan_int8` on them is off by about 1e-3 and only proposes pages for the exact step.

Both use numkong's packed matrix products where it is installed (no float16 conversion in numpy, which is slow), and
plain numpy where it is not; the results agree to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

try:
    import numkong
except ImportError:  # a platform without wheels: slower, same scores
    numkong = None  # type: ignore[assignment]

Float = npt.NDArray[np.float32]
Offsets = npt.NDArray[np.int64]

# Rows scored in one go: the products of 16 query vectors with these rows stay in the second-level cache.
_CHUNK_ROWS = 8192


@dataclass(frozen=True, slots=True, eq=False)
class ExactPages:
    """Pages as stored.

    slices: float16 arrays (N, w), consecutive column ranges of the vectors; their widths add up to d.
    offsets: (P + 1,), page p owns rows offsets[p]:offsets[p + 1]; a page without rows is allowed.
    """

    slices: tuple[npt.NDArray[np.float16], ...]
    offsets: Offsets


@dataclass(frozen=True, slots=True, eq=False)
class Int8Pages:
    """Unit vectors of one width, quantised per vector: vector = values * scales.

    values: (N, d) int8. scales: (N,) float32. offsets: (P + 1,).
    """

    values: npt.NDArray[np.int8]
    scales: Float
    offsets: Offsets

    @property
    def nbytes(self) -> int:
        """Bytes held in memory."""
        return self.values.nbytes + self.scales.nbytes + self.offsets.nbytes


def unit_prefix(vectors: npt.NDArray[np.floating], dim: int) -> Float:
    """The first `dim` components of each row scaled to unit length (Eq. 3); zero rows stay zero."""
    prefix = np.asarray(vectors[:, :dim], dtype=np.float32)
    return prefix / _lengths(prefix)[:, None]


def quantise(slices: Sequence[npt.NDArray[np.float16]], offsets: Offsets, *, pool: Executor | None = None) -> Int8Pages:
    """Cuts the given slices side by side into one int8 copy of unit vectors; works through it in chunks.

    pool: spreads the chunks over its workers.
    """
    rows = int(offsets[-1])
    values = np.empty((rows, sum(part.shape[1] for part in slices)), np.int8)
    scales = np.empty(rows, np.float32)

    def fill(start: int) -> None:
        stop = min(rows, start + _CHUNK_ROWS)
        vectors = np.concatenate([part[start:stop] for part in slices], axis=1, dtype=np.float32)
        values[start:stop], scales[start:stop] = _quantise_rows(vectors)
        # The codes of a vector do not depend on its length; its length goes into the scale.
        scales[start:stop] /= _lengths(vectors)

    starts = range(0, rows, _CHUNK_ROWS)
    list(map(fill, starts) if pool is None else pool.map(fill, starts))
    return Int8Pages(values, scales, offsets)


def maxsim(pages: ExactPages, query: Float, *, pool: Executor | None = None) -> Float:
    """Exact scores.

    query: (n, d) float32, n >= 1, used as it is: unit length or not is the caller's choice (see the manifest).
    pool: spreads page ranges over its workers.

    Returns (P,) float32; -inf for pages without vectors.
    """
    dots = _float_products(query)

    def products(start: int, stop: int) -> Float:
        rows = np.concatenate([part[start:stop] for part in pages.slices], axis=1, dtype=np.float32)
        # Dividing n similarities a row by its length is cheaper than dividing its d components.
        similarities = dots(rows)
        similarities /= _lengths(rows)[:, None]
        return similarities

    return _score_chunks(pages.offsets, products, np.ones(len(query), np.float32), None, pool)


def scan_int8(
    pages: Int8Pages, query: Float, *, selected: npt.NDArray[np.bool_] | None = None, pool: Executor | None = None
) -> Float:
    """Approximate scores of the selected pages.

    query: (n, d) float32. selected: (P,) bool, None for all. pool: spreads page ranges over its workers.

    Returns (P,) float32; -inf for pages without vectors and for pages not selected.
    """
    codes, query_scales = _quantise_rows(query)
    dots = _int8_products(codes)

    def products(start: int, stop: int) -> Float:
        similarities = dots(pages.values[start:stop])
        scaled: Float = np.multiply(similarities, pages.scales[start:stop, None], dtype=np.float32, casting="same_kind")
        return scaled

    scores = _score_chunks(pages.offsets, products, query_scales, selected, pool)
    if selected is not None:
        scores[~selected] = -np.inf
    return scores


def best_rows(vectors: npt.NDArray[np.floating], query: Float) -> tuple[npt.NDArray[np.intp], Float]:
    """For each query vector the row of one page that answers it best, and their similarity.

    vectors: (m, D) with m >= 1, cut to the query's width and scaled to unit length here. query: (n, d).

    Returns (n,) row numbers and (n,) similarities.
    """
    similarities = unit_prefix(vectors, query.shape[1]) @ query.T
    rows = similarities.argmax(axis=0)
    return rows, similarities[rows, np.arange(len(query))]


def _lengths(rows: Float) -> Float:
    """(n,) lengths to divide by: 1 for a zero row, which stays zero."""
    # Squares of float16 values neither overflow nor vanish in float32.
    lengths: Float = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    lengths[lengths == 0] = 1
    return lengths


def _float_products(query: Float) -> Callable[[Float], Float]:
    """Products of float32 rows with the query's vectors.

    numkong before BLAS: as fast, and it stays on the calling thread, where BLAS threads inside a pool of ours would
    wait for each other.
    """
    if numkong is None:
        columns = np.ascontiguousarray(query.T)
        return lambda rows: rows @ columns
    packed = numkong.dots_pack(np.ascontiguousarray(query))
    return lambda rows: np.asarray(numkong.dots_packed(rows, packed)).astype(np.float32)


def _int8_products(codes: npt.NDArray[np.int8]) -> Callable[[npt.NDArray[np.int8]], npt.NDArray[np.generic]]:
    """Products of int8 rows with the query's codes, exact integers either way."""
    if numkong is None:
        columns = np.ascontiguousarray(codes.T, dtype=np.float32)
        return lambda rows: rows.astype(np.float32) @ columns
    packed = numkong.dots_pack(codes)
    return lambda rows: np.asarray(numkong.dots_packed(rows, packed))


def _quantise_rows(vectors: Float) -> tuple[npt.NDArray[np.int8], Float]:
    peaks = np.maximum(vectors.max(axis=1, initial=0.0), -vectors.min(axis=1, initial=0.0))
    factors = np.divide(np.float32(127), peaks, out=np.zeros_like(peaks), where=peaks > 0)
    codes = vectors * factors[:, None]
    return np.rint(codes, out=codes).astype(np.int8), peaks / np.float32(127)


def _score_chunks(
    offsets: Offsets,
    products: Callable[[int, int], Float],
    weights: Float,
    selected: npt.NDArray[np.bool_] | None,
    pool: Executor | None,
) -> Float:
    scores = np.full(len(offsets) - 1, -np.inf, np.float32)

    def score(pages: tuple[int, int]) -> None:
        first, last = pages
        if selected is not None and not selected[first:last].any():
            return
        starts = offsets[first:last]
        filled = np.flatnonzero(offsets[first + 1 : last + 1] > starts)
        if len(filled) == 0:
            return
        base = int(starts[0])
        similarities = products(base, int(offsets[last]))
        best = np.maximum.reduceat(similarities, starts[filled] - base, axis=0)
        # A positive weight a query vector does not move its maximum, so it is applied after it.
        scores[first + filled] = best @ weights / np.float32(len(weights))

    # Lists, so that an exception of a worker is raised here.
    ranges = _page_ranges(offsets)
    list(map(score, ranges) if pool is None else pool.map(score, ranges))
    return scores


def _page_ranges(offsets: Offsets) -> list[tuple[int, int]]:
    """Cuts the pages into runs of about `_CHUNK_ROWS` rows; a page longer than that is a run of its own."""
    ranges, first, pages = [], 0, len(offsets) - 1
    while first < pages:
        last = int(np.searchsorted(offsets, offsets[first] + _CHUNK_ROWS, side="right")) - 1
        last = min(max(last, first + 1), pages)
        ranges.append((first, last))
        first = last
    return ranges
