"""Semantic clustering: K-means on a page's unit vectors, the clusters' means are stored (AnchorFold, appendix A.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from budgetvdr.bundle import Window
from budgetvdr.compress.grouping import fold_directions, numbered, unit
from budgetvdr.compress.signals import Compressed, Signals
from budgetvdr.compress.size import Sized
from budgetvdr.errors import MissingExtraError


@dataclass(frozen=True, slots=True, kw_only=True)
class Clustering(Sized):
    """Settings. gamma, cap: clusters a page gets (`Sized`); fewer where it has fewer different vectors.

    seed: of the first centres. Needs the packages of the extra `compress`.
    """

    VERSION: ClassVar[int] = 1

    seed: int = 0

    def asks(self, window: Window | None, depth: int) -> Window | None:
        """Nothing."""
        return None

    def compress(self, page: Signals) -> Compressed:
        """Raises MissingExtraError without scikit-learn."""
        units, count = unit(page.vectors), len(page.vectors)
        if self.size(count) == count:
            return fold_directions(page.vectors, np.arange(count, dtype=np.int32))
        clusters = min(self.size(count), len(np.unique(units, axis=0)))
        means = _k_means()(n_clusters=clusters, n_init=1, random_state=self.seed)
        return fold_directions(page.vectors, numbered(means.fit_predict(units)))


def _k_means() -> Any:
    try:
        from sklearn.cluster import KMeans  # noqa: PLC0415 -- an extra
    except ImportError as error:
        raise MissingExtraError(
            'Clustering needs scikit-learn, which is not installed: pip install "budgetvdr[compress]"'
        ) from error
    return KMeans
