"""MaxSim over pages of different vector counts, without padding (MM-Matryoshka Eq. 3 and 4).

The score of a page is the mean, over the query's vectors, of the best dot product with any of the page's vectors,
after every page vector has been cut to its first d components and scaled to unit length.

Two forms of the same pages are scored here:

* `ExactPages` hold the stored float16 components. `maxsim` on them is the score that hits carry.
* `Int8Pages` hold one signed byte a component and one scale a vector, about half of what float16 takes. `scan_int8` on
  them is off by about 1e-3 (see `scan_error`), so that it chooses pages for the exact step and no more.

The work is done by compiled kernels (`_native`) where they were built and the processor has what they need, and by
numkong or numpy (`portable`) elsewhere; the scores agree to rounding. Finite vectors give finite scores, whatever their
length.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cache
from types import ModuleType

import numpy as np
import numpy.typing as npt

from budgetvdr.similarity import portable
from budgetvdr.similarity.portable import Float, Offsets, Slices
from budgetvdr.unit import unit_rows

try:
    from budgetvdr.similarity import _native
except ImportError:  # built without a compiler, or for another kind of processor
    _native = None  # type: ignore[assignment]

__all__ = [
    "ExactPages",
    "Float",
    "Int8Pages",
    "Offsets",
    "best_rows",
    "kernel",
    "maxsim",
    "quantise",
    "scan_error",
    "scan_int8",
    "unit_prefix",
]

# Components that are worth a worker's while: 0.2 ms of an int8 scan.
_LEAST_WORK = 1 << 21


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


def kernel() -> str:
    """What computes here: "avx512" or "avx2" (compiled), else "numkong" or "numpy"."""
    return _kernels()[0]


def unit_prefix(vectors: npt.NDArray[np.floating], dim: int) -> Float:
    """The first `dim` components of each row scaled to unit length (Eq. 3); zero rows stay zero."""
    return unit_rows(np.asarray(vectors[:, :dim], dtype=np.float32))


def quantise(slices: Sequence[npt.NDArray[np.float16]], offsets: Offsets, *, pool: Executor | None = None) -> Int8Pages:
    """Cuts the given slices side by side into one int8 copy of unit vectors.

    slices: as in `ExactPages`; taken as they lie, unaligned or read-only. pool: spreads the rows over its workers.
    """
    parts, rows = _checked_slices(slices), int(offsets[-1])
    values = np.empty((rows, sum(part.shape[1] for part in parts)), np.int8)
    scales = np.empty(rows, np.float32)
    name = kernel()
    fill = _module(name).quantise

    def run(span: slice) -> None:
        fill(name, tuple(part[span] for part in parts), values[span], scales[span])

    _spread(run, range(rows + 1), values.shape[1], pool)
    return Int8Pages(values, scales, offsets)


def maxsim(pages: ExactPages, query: Float, *, pool: Executor | None = None) -> Float:
    """Exact scores.

    query: (n, d) float32, n >= 1, used as it is: unit length or not is the caller's choice (see the manifest).
    pool: spreads page ranges over its workers.

    Returns (P,) float32; -inf for pages without vectors.
    """
    parts = _checked_slices(pages.slices)
    query = _checked_query(query, sum(part.shape[1] for part in parts))
    offsets = np.ascontiguousarray(pages.offsets, np.int64)
    scores = np.empty(len(offsets) - 1, np.float32)
    name = kernel()
    score = _module(name).maxsim

    def run(span: slice) -> None:
        score(name, parts, offsets[span.start : span.stop + 1], query, scores[span])

    _spread(run, offsets, query.shape[1], pool)
    return scores


def scan_int8(
    pages: Int8Pages, query: Float, *, places: npt.NDArray[np.int64] | None = None, pool: Executor | None = None
) -> Float:
    """Approximate scores.

    query: (n, d) float32. places: numbers of the pages to score, in any order; None for all.
    pool: spreads page ranges over its workers.

    Returns float32, a score a place, or (P,); -inf for pages without vectors.
    """
    query = _checked_query(query, pages.values.shape[1])
    codes, scales = portable.quantise_rows(query)
    weights = scales / np.float32(len(query))
    offsets = ends = np.ascontiguousarray(pages.offsets, np.int64)
    if places is not None:
        places = np.ascontiguousarray(places, np.int64)
        if len(places) and not 0 <= places.min() <= places.max() < len(offsets) - 1:
            raise ValueError(f"expected places from 0 to {len(offsets) - 2}; found {places.min()} to {places.max()}")
        ends = np.concatenate([[0], np.cumsum(offsets[places + 1] - offsets[places])])
    scores = np.empty(len(ends) - 1, np.float32)
    name = kernel()
    score = _module(name).scan_int8

    def run(span: slice) -> None:
        if places is None:
            wanted, held = None, offsets[span.start : span.stop + 1]
        else:
            wanted, held = places[span], offsets
        score(name, (pages.values, pages.scales, held), (codes, weights), wanted, scores[span])

    _spread(run, ends, query.shape[1], pool)
    return scores


def scan_error(query: Float, coarsest: float) -> float:
    """What a score of `scan_int8` is off by at most, as seldom as a normal deviate leaves five deviations.

    query: (n, d) float32. coarsest: the largest scale of the pages.

    Components are off by up to half a step, evenly and each by itself, so that a product with a unit vector is off by
    the query vector's length times the page's step, and by the query's own step, over the root of 12.
    """
    steps = portable.quantise_rows(query)[1]
    variances = (np.einsum("ij,ij->i", query, query) * coarsest**2 + steps**2) / 12
    return 5 * float(np.sqrt(variances.sum())) / len(query)


def best_rows(vectors: npt.NDArray[np.floating], query: Float) -> tuple[npt.NDArray[np.intp], Float]:
    """For each query vector the row of one page that answers it best, and their similarity.

    vectors: (m, D) with m >= 1, cut to the query's width and scaled to unit length here. query: (n, d).

    Returns (n,) row numbers and (n,) similarities.
    """
    similarities = unit_prefix(vectors, query.shape[1]) @ query.T
    rows = similarities.argmax(axis=0)
    return rows, similarities[rows, np.arange(len(query))]


@cache
def _kernels() -> tuple[str, ...]:
    """All that run here, fastest first."""
    return (*(_native.tiers() if _native is not None else ()), *portable.tiers())


def _module(name: str) -> ModuleType:
    """Where the functions quantise, maxsim and scan_int8 of a kernel are; their first argument is its name."""
    return portable if name in portable.tiers() else _native


def _checked_slices(slices: Sequence[npt.NDArray[np.float16]]) -> Slices:
    parts = []
    for part in slices:
        if part.ndim != 2 or part.dtype != np.float16 or len(part) != len(slices[0]):
            raise ValueError(f"expected float16 slices (N, w) of equal N; found {part.dtype} {part.shape}")
        dense = part.shape[1] == 1 or part.strides[1] == part.itemsize
        parts.append(part if dense else np.ascontiguousarray(part))
    return tuple(parts)


def _checked_query(query: Float, width: int) -> Float:
    if query.ndim != 2 or not len(query) or query.shape[1] != width:
        raise ValueError(f"expected query vectors (n, {width}) with n >= 1, as wide as the pages; found {query.shape}")
    return np.ascontiguousarray(query, np.float32)


def _spread(run: Callable[[slice], None], ends: Offsets | range, width: int, pool: Executor | None) -> None:
    """Runs all pages, in ranges of about equally many rows.

    ends: (P + 1,), rows up to each page. Ranges are a few a core, so that a busy core does not hold the others up, and
    none so small that handing it over would cost more than its work.
    """
    pages, rows = len(ends) - 1, int(ends[-1]) - int(ends[0])
    parts = min(4 * (os.cpu_count() or 1), rows * width // _LEAST_WORK)
    if pool is None or parts < 2:
        run(slice(0, pages))
        return
    targets = int(ends[0]) + np.arange(1, parts) * rows // parts
    cuts = targets if isinstance(ends, range) else np.searchsorted(ends, targets)
    bounds = [0, *sorted(set(cuts.tolist())), pages]
    # A list, so that an exception of a worker is raised here.
    list(pool.map(run, map(slice, bounds[:-1], bounds[1:])))
