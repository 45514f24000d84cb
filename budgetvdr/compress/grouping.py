"""What methods share: choosing tokens, and turning groups of them into one vector each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from budgetvdr.compress.precision import LARGEST_HALF
from budgetvdr.compress.signals import UNSTORED, Compressed, Groups
from budgetvdr.pages import Scores, Vectors
from budgetvdr.unit import lengths

Rows = npt.NDArray[np.intp]


def highest(scores: Scores, count: int) -> Rows:
    """Positions of the highest scores, ascending; of equal ones the first."""
    return np.sort(np.argsort(-scores, kind="stable")[:count])


def at_random(total: int, count: int, seed: int) -> Rows:
    """`count` of `total` positions, ascending; the same ones for the same three numbers."""
    return np.sort(np.random.default_rng([seed, total]).choice(total, count, replace=False))


def keep(vectors: Vectors, kept: Rows) -> Compressed:
    """The tokens at ascending positions, as they are; the others leave no trace."""
    groups = np.full(len(vectors), UNSTORED, np.int32)
    groups[kept] = np.arange(len(kept))
    return Compressed(vectors[kept], groups)


def fold(vectors: Vectors, groups: Groups, weights: Scores | None = None) -> Compressed:
    """One vector a group: the weighted mean of its members.

    groups: (N,), numbers from 0 without gaps. weights: (N,), not negative, all alike where left out; members of a
    group whose weights are all zero count alike. A group of one keeps its vector to the bit.
    """
    if not len(vectors):
        return Compressed(vectors, groups)
    order = np.argsort(groups, kind="stable")
    members = groups[order]
    starts = np.flatnonzero(np.diff(members, prepend=-1))
    given = np.ones(len(order)) if weights is None else weights[order].astype(np.float64)
    totals = np.add.reduceat(given, starts)
    sizes = np.diff(starts, append=len(order))
    shares = np.where(totals[members] > 0, given / np.where(totals > 0, totals, 1)[members], 1 / sizes[members])
    weighted = vectors[order]
    weighted *= shares.astype(np.float32)[:, None]
    means = np.add.reduceat(weighted, starts, axis=0)
    # Rounding may take the mean of the largest float16 values beyond them.
    return Compressed(np.clip(means, -LARGEST_HALF, LARGEST_HALF, out=means), groups)


def fold_directions(vectors: Vectors, groups: Groups) -> Compressed:
    """One vector a group, in the direction of the mean of its members' unit vectors."""
    return fold(vectors, groups, np.reciprocal(lengths(vectors)))


def numbered(labels: npt.NDArray[np.integer]) -> Groups:
    """Any labels as group numbers without gaps, in the order in which groups appear."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    number = np.empty(len(first), np.int32)
    number[np.argsort(first)] = np.arange(len(first))
    return number[inverse]
