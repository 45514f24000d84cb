"""The k best pages of many, the same ones in whatever order they are met."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from budgetvdr.similarity.maxsim import Float
from budgetvdr.store import RowAddresses


class Best:
    """The k best pages of those seen so far, best first."""

    def __init__(self, k: int) -> None:
        self._k = k
        self.addresses: RowAddresses = np.zeros(0, np.uint64)
        self.scores: Float = np.zeros(0, np.float32)

    def add(self, addresses: RowAddresses, scores: Float) -> None:
        """Takes in some more pages."""
        scores, addresses = np.concatenate([self.scores, scores]), np.concatenate([self.addresses, addresses])
        kept = best(scores, self._k, addresses)
        self.scores, self.addresses = scores[kept], addresses[kept]


def best(scores: Float, k: int, addresses: RowAddresses) -> npt.NDArray[np.intp]:
    """Places of the k largest finite scores, largest first; of equal scores the lower address comes first."""
    places = np.flatnonzero(scores > -np.inf)
    if len(places) > k:
        kth = -np.partition(-scores[places], k - 1)[k - 1]
        places = places[scores[places] >= kth]
    order = np.lexsort((addresses[places], -scores[places]))
    return places[order[:k]]
