"""The kernels in Python: where the compiled ones are missing, and as their reference.

The functions are those of `_native`: each fills its last argument. numkong's packed matrix products do the work
where it is installed (numpy converts float16 slowly), BLAS does where it is not; the results agree to rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from budgetvdr.unit import lengths

try:
    import numkong
except ImportError:  # a platform without wheels: slower, same scores
    numkong = None  # type: ignore[assignment]

Float = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int8]
Offsets = npt.NDArray[np.int64]
Slices = tuple[npt.NDArray[np.float16], ...]
Rows = slice | npt.NDArray[np.int64]

# Rows scored in one go: the products of 16 query vectors with these rows stay in the second-level cache.
_CHUNK_ROWS = 8192
# Peaks and lengths below stand for a zero row: no float16 is as small, and 127 / peak stays finite.
_TINY = np.float32(1e-30)


def tiers() -> list[str]:
    """Names of what can compute here, fastest first."""
    return ["numpy"] if numkong is None else ["numkong", "numpy"]


def quantise(tier: str, slices: Slices, values: Codes, scales: Float) -> None:
    """Fills values (N, d) and scales (N,) from float16 slices (N, w)."""
    for start in range(0, len(scales), _CHUNK_ROWS):
        chunk = slice(start, start + _CHUNK_ROWS)
        rows = _side_by_side(slices, chunk)
        values[chunk], scales[chunk] = quantise_rows(rows)
        # The codes of a vector do not depend on its length; its length goes into the scale.
        scales[chunk] /= lengths(rows)


def maxsim(tier: str, slices: Slices, offsets: Offsets, query: Float, scores: Float) -> None:
    """Fills the exact scores (P,) of the pages that the offsets (P + 1,) cut out of the slices."""
    dots = _float_products(tier, query)

    def similarities(rows: Rows) -> Float:
        vectors = _side_by_side(slices, rows)
        products = dots(vectors)
        # Dividing n similarities a row by its length is cheaper than dividing its d components.
        products /= lengths(vectors)[:, None]
        return products

    _score(similarities, np.full(len(query), 1 / len(query), np.float32), offsets, None, scores)


def scan_int8(
    tier: str,
    pages: tuple[Codes, Float, Offsets],
    query: tuple[Codes, Float],
    places: npt.NDArray[np.int64] | None,
    scores: Float,
) -> None:
    """Fills the scores of the pages at these places, or of all.

    pages: values (N, d), scales (N,), offsets (P + 1,). query: codes (n, d) and weights (n,), what the best product of
    a query vector counts.
    """
    values, scales, offsets = pages
    codes, weights = query
    dots = _int8_products(tier, codes)

    def similarities(rows: Rows) -> Float:
        scaled: Float = np.multiply(dots(values[rows]), scales[rows, None], dtype=np.float32, casting="same_kind")
        return scaled

    _score(similarities, weights, offsets, places, scores)


def quantise_rows(vectors: Float) -> tuple[Codes, Float]:
    """Codes (n, d) from -127 to 127, and scales (n,) with vectors = codes * scales to rounding."""
    peaks = np.maximum(vectors.max(axis=1, initial=0.0), -vectors.min(axis=1, initial=0.0))
    factors = np.divide(np.float32(127), peaks, out=np.zeros_like(peaks), where=peaks > _TINY)
    codes = vectors * factors[:, None]
    return np.rint(codes, out=codes).astype(np.int8), peaks / np.float32(127)


def _side_by_side(slices: Slices, rows: Rows) -> Float:
    return np.concatenate([part[rows] for part in slices], axis=1, dtype=np.float32)


def _float_products(tier: str, query: Float) -> Callable[[Float], Float]:
    """Products of float32 rows with the query's vectors.

    numkong before BLAS: as fast, and it stays on the calling thread, where BLAS threads inside a pool of ours would
    wait for each other.
    """
    if tier == "numpy":
        columns = np.ascontiguousarray(query.T)
        return lambda rows: rows @ columns
    packed = numkong.dots_pack(query)
    return lambda rows: np.asarray(numkong.dots_packed(rows, packed)).astype(np.float32)


def _int8_products(tier: str, codes: Codes) -> Callable[[Codes], npt.NDArray[np.generic]]:
    """Products of int8 rows with the query's codes, exact integers either way."""
    if tier == "numpy":
        columns = np.ascontiguousarray(codes.T, dtype=np.float32)
        return lambda rows: rows.astype(np.float32) @ columns
    packed = numkong.dots_pack(codes)
    return lambda rows: np.asarray(numkong.dots_packed(np.ascontiguousarray(rows), packed))


def _score(
    similarities: Callable[[Rows], Float],
    weights: Float,
    offsets: Offsets,
    places: npt.NDArray[np.int64] | None,
    scores: Float,
) -> None:
    pages = np.arange(len(scores)) if places is None else places
    starts = offsets[pages]
    counts = offsets[pages + 1] - starts
    ends = np.cumsum(counts)
    scores[:] = -np.inf
    first = 0
    while first < len(pages):
        done = ends[first] - counts[first]
        # As many pages as fit a chunk; a longer page is a chunk of its own.
        last = max(first + 1, int(np.searchsorted(ends, done + _CHUNK_ROWS, side="right")))
        taken = int(ends[last - 1] - done)
        begins = ends[first:last] - counts[first:last] - done
        filled = np.flatnonzero(counts[first:last])
        if len(filled):
            rows: Rows = slice(int(starts[first]), int(starts[first]) + taken)
            if places is not None:
                rows = np.repeat(starts[first:last] - begins, counts[first:last]) + np.arange(taken)
            best = np.maximum.reduceat(similarities(rows), begins[filled], axis=0)
            # A positive weight a query vector does not move its maximum, so it is applied after it.
            scores[first + filled] = best @ weights
        first = last
