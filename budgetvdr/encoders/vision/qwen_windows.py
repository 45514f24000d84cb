"""Which patches attend to each other: the pictures of a batch, or windows of them, as padded tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from budgetvdr.encoders.vision.qwen_patches import Grid
from budgetvdr.encoders.vision.qwen_positions import Whole, patch_positions


class Groups(NamedTuple):
    """N patches in G groups of at most W patches, so that attention needs no loop over groups of different sizes.

    gather: (G, W) patches, 0 where padded. valid: (G, W) where not padded. back: (N,) where in the flattened table
    each patch stands.
    """

    gather: Whole
    valid: npt.NDArray[np.bool_]
    back: Whole

    def named(self, kind: str) -> dict[str, npt.NDArray[Any]]:
        """The three arrays under the names a graph has them, such as `image_gather`."""
        return {f"{kind}_{name}": array for name, array in self._asdict().items()}


def image_groups(grids: Sequence[Grid]) -> Groups:
    """A group a picture."""
    return _grouped(_pictures(grids), max(rows * columns for rows, columns in grids))


def window_groups(grids: Sequence[Grid], merge: int, side: int) -> Groups:
    """A group a window of side * side tokens; those at the right and lower edge of a picture may be smaller.

    W is that of a full window in every batch, so that graphs can rely on it.
    """
    places = patch_positions(grids, merge) // (merge * side)
    rows, columns = places.max(axis=0) + 1
    return _grouped((_pictures(grids) * rows + places[:, 0]) * columns + places[:, 1], (merge * side) ** 2)


def _pictures(grids: Sequence[Grid]) -> Whole:
    return np.repeat(np.arange(len(grids)), [rows * columns for rows, columns in grids])


def _grouped(labels: Whole, width: int) -> Groups:
    order = np.argsort(labels, kind="stable")
    _, counts = np.unique(labels, return_counts=True)
    valid = np.arange(width) < counts[:, None]
    gather = np.zeros(valid.shape, dtype=np.int64)
    gather[valid] = order
    back = np.empty(len(labels), dtype=np.int64)
    back[order] = np.flatnonzero(valid)
    return Groups(gather, valid, back)
