"""Semantic clustering: K-means on a page's unit vectors, the clusters' means are stored (AnchorFold, appendix A.3)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, ClassVar

import numpy as np

from budgetvdr.compress.grouping import fold_directions, numbered
from budgetvdr.compress.signals import Compressed, Signals
from budgetvdr.compress.size import Sized, settle, whole
from budgetvdr.errors import MissingExtraError
from budgetvdr.unit import unit_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Clustering(Sized):
    """Settings. gamma, cap: clusters a page gets (`Sized`); fewer where it has fewer different vectors.

    seed: of the first centres. Needs the packages of the extra `compress`.
    """

    VERSION: ClassVar[int] = 1

    seed: int = 0

    def __post_init__(self) -> None:
        Sized.__post_init__(self)
        settle(self, "seed", whole(self.seed, "seed of Clustering", least=0, most=2**32 - 1))

    def compress(self, page: Signals) -> Compressed:
        """Raises MissingExtraError without scikit-learn."""
        units, count = unit_rows(page.vectors), len(page.vectors)
        if self.size(count) == count:
            return fold_directions(page.vectors, np.arange(count, dtype=np.int32))
        clusters = min(self.size(count), len(np.unique(units, axis=0)))
        means = _k_means()(n_clusters=clusters, n_init=1, random_state=self.seed)
        # Pages are compressed side by side already, and what OpenMP's threads take is in no page's time.
        with _threads().limit(limits=1, user_api="openmp"):
            labels = means.fit_predict(units)
        return fold_directions(page.vectors, numbered(labels))


def _k_means() -> Any:
    try:
        from sklearn.cluster import KMeans  # noqa: PLC0415 -- an extra
    except ImportError as error:
        raise MissingExtraError(
            'Clustering needs scikit-learn, which is not installed: pip install "budgetvdr[compress]"'
        ) from error
    return KMeans


@cache
def _threads() -> Any:
    """Of the libraries that K-means runs on, which are loaded by then; looking for them takes milliseconds."""
    # Comes with scikit-learn; by name, as it ships no types.
    return import_module("threadpoolctl").ThreadpoolController()
