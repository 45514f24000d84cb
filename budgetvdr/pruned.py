"""Exact search that reads whole vectors of few pages.

Let a page vector be cut in two, x = (a, b), and a query vector likewise, q = (c, d). Then q.x <= c.a + |d||b|, so that
MaxSim over the vectors (a, |b|) with the query vectors (c, |d|) is never below MaxSim over the whole ones. (a, |b|) is
also exactly as long as x, which is what the scores are divided by. So pages are read in the order of their bounds,
until the next bound is under the k-th best score found: no other page can be among the best.

This saves where the leading components carry most of a vector. Where they do not, nearly every bound is above the k-th
score, and reading page by page would cost more than reading in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from budgetvdr.best import best
from budgetvdr.similarity.maxsim import ExactPages, Float
from budgetvdr.store import RowAddresses

_Places = npt.NDArray[np.intp]
_Halves = npt.NDArray[np.float16]

# |b| is kept in float16: off by one part in 2,048, which moves a bound by at most twice that for unit vectors.
_ROUNDING: Final = 1e-3
# Between these powers of two the length of a vector, and of any part of it that counts, is exact enough in float16.
_LEAST_EXPONENT, _MOST_EXPONENT = -8, 15
# Pages taken one by one cost several times as much as the same pages read in order.
_WORTH_SHARE: Final = 0.25
_FIRST_PAGES: Final = 64


@dataclass(frozen=True, slots=True, eq=False)
class Pruned:
    """The best pages: their places, best first, their exact scores, and how many pages were read for it."""

    places: _Places
    scores: Float
    read: int


def fronts(lead: Sequence[_Halves], rest: Sequence[_Halves]) -> tuple[_Halves, ...]:
    """The vectors (a, |b|) of vectors cut in two.

    lead, rest: slices (n, w) of either part. Returns the slices of a, and (n, 1) lengths of b.

    A vector that is very long or very short is scaled by a power of two first, so that no length leaves float16; scores
    do not depend on how long page vectors are.
    """
    tail = _squares(rest)
    exponents = np.frexp(np.sqrt(_squares(lead) + tail))[1]
    odd = np.flatnonzero((exponents < _LEAST_EXPONENT) | (exponents > _MOST_EXPONENT))
    lengths = np.sqrt(tail)[:, None]
    if len(odd):
        scales = np.ldexp(np.float32(1), -exponents[odd])[:, None]
        lengths[odd] *= scales
        lead = [part.copy() for part in lead]
        for part in lead:
            part[odd] = part[odd].astype(np.float32) * scales
    return (*lead, lengths.astype(np.float16))


def bounds(front: ExactPages, query: Float, score: Callable[[ExactPages, Float], Float]) -> Float:
    """The most that each page can score.

    front: the leading slices, w components in all, then one slice of width 1, the length of the rest.
    query: (n, d), d > w, at the full width. score: MaxSim.

    Returns (P,) float32; -inf for pages without vectors.
    """
    width = sum(part.shape[1] for part in front.slices) - 1
    rest = np.linalg.norm(query[:, width:], axis=1, keepdims=True)
    length = float(np.linalg.norm(query, axis=1).mean())
    found: Float = score(front, np.concatenate([query[:, :width], rest], axis=1)) + np.float32(_ROUNDING * length)
    return found


def best_by_bound(bound: Float, k: int, addresses: RowAddresses, score: Callable[[_Places], Float]) -> Pruned | None:
    """The exact k best pages, from upper bounds on their scores.

    bound: (P,); pages with -inf are left out. addresses: (P,); the lower one is the better of equal pages.
    score: exact scores of some places, in their order; this reads them.

    Returns None where so many pages would have to be read that reading all in order is cheaper.
    """
    places = np.flatnonzero(bound > -np.inf)
    places = places[np.argsort(-bound[places], kind="stable")]
    scores, read, step = np.empty(0, np.float32), 0, max(_FIRST_PAGES, 4 * k)
    if len(places) > _FIRST_PAGES and step > _WORTH_SHARE * len(places):
        return None
    while read < len(places):
        kth = np.partition(scores, -k)[-k] if len(scores) >= k else -np.inf
        left = int((bound[places[read:]] >= kth).sum())
        if left == 0:
            break
        if read and read + left > _WORTH_SHARE * len(places):
            return None
        batch = places[read : read + min(step, left)]
        scores = np.concatenate([scores, score(batch)])
        read += len(batch)
    order = best(scores, k, addresses[places[:read]])
    return Pruned(places[order], scores[order], read)


def _squares(slices: Sequence[_Halves]) -> Float:
    """(n,) squared lengths of vectors given in slices."""
    total: Float = sum(np.einsum("ij,ij->i", part, part, dtype=np.float32) for part in slices)
    return total
