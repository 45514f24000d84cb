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
    squares = np.einsum("ij,ij->i", points, points)
    # |a - b|^2 = |a|^2 + |b|^2 - 2ab, in place: copies of N x N values took a sixth of the whole.
    apart = products(points, points)
    apart *= -2
    apart += squares
    apart += squares[:, None]
    # Rounding makes the matrix unsymmetric and, for equal rows, negative; only its upper half is taken.
    distances = distance.squareform(apart, checks=False)
    np.sqrt(np.maximum(distances, 0, out=distances), out=distances)
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
