"""Ward's method, by scipy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from budgetvdr.compress.grouping import numbered
from budgetvdr.compress.products import products
from budgetvdr.compress.signals import Groups
from budgetvdr.errors import MissingExtraError


def ward_groups(points: npt.NDArray[np.float32], most: int) -> Groups:
    """Groups of rows of points (N, D) that Ward's method leaves when it has merged them to at most `most`.

    Memory grows with N * N. Raises MissingExtraError without scipy.
    """
    hierarchy, distance = _scipy()
    if most >= len(points):
        return np.arange(len(points), dtype=np.int32)
    squares = (points**2).sum(axis=1)
    apart = squares[:, None] + squares - 2 * products(points, points)
    np.fill_diagonal(apart, 0)
    # Rounding makes the matrix unsymmetric and, for equal rows, negative; only its upper half is taken.
    distances = np.sqrt(np.maximum(distance.squareform(apart, checks=False), 0))
    tree = hierarchy.linkage(distances, method="ward")
    return numbered(hierarchy.fcluster(tree, t=most, criterion="maxclust"))


def _scipy() -> tuple[Any, Any]:
    try:
        from scipy.cluster import hierarchy  # noqa: PLC0415 -- an extra
        from scipy.spatial import distance  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError(
            'Ward\'s method needs scipy, which is not installed: pip install "budgetvdr[compress]"'
        ) from error
    return hierarchy, distance
