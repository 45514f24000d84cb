"""Hierarchical token pooling, as users of colpali-engine know it: Ward's method on cosine distances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from budgetvdr.compress.grouping import fold, numbered, unit
from budgetvdr.compress.signals import Compressed, Signals, Window
from budgetvdr.compress.size import Sized
from budgetvdr.errors import MissingExtraError


@dataclass(frozen=True, slots=True, kw_only=True)
class WardPooling(Sized):
    """Settings. gamma, cap: most groups a page gets (`Sized`); gamma is 1 / pool_factor. Needs the extra `compress`.

    As there, each token is described by its cosine distances to all tokens of the page, and Ward's method runs on the
    Euclidean distances of these rows; memory grows with the square of the page's tokens.
    """

    VERSION: ClassVar[int] = 1

    def asks(self, window: Window, depth: int) -> Window | None:
        """Nothing."""
        return None

    def compress(self, page: Signals) -> Compressed:
        """Means of unit vectors. Raises MissingExtraError without scipy."""
        units, count = unit(page.vectors), len(page.vectors)
        most = self.size(count)
        if most == count:
            return fold(units, np.arange(count, dtype=np.int32))
        hierarchy, distance = _scipy()
        tree = hierarchy.linkage(distance.pdist(1 - units @ units.T), method="ward")
        return fold(units, numbered(hierarchy.fcluster(tree, t=most, criterion="maxclust")))


def _scipy() -> tuple[Any, Any]:
    try:
        from scipy.cluster import hierarchy  # noqa: PLC0415 -- an extra
        from scipy.spatial import distance  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError(
            'WardPooling needs scipy, which is not installed: pip install "budgetvdr[compress]"'
        ) from error
    return hierarchy, distance
