"""Where the patches and tokens of a page are: what rotary and learned positions of Qwen's models are looked up by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from budgetvdr.encoders.vision.qwen_patches import Grid, merge_order

Whole = npt.NDArray[np.int64]


def patch_positions(grids: Sequence[Grid], merge: int) -> Whole:
    """(N, 2) row and column of all patches of all pictures, each picture counted from 0, in merge order."""
    return np.concatenate([np.column_stack(np.divmod(merge_order(grid, merge), grid[1])) for grid in grids])


def page_positions(before: int, grid: Grid, after: int) -> Whole:
    """Time, row and column of the tokens of a page, (3, n): text has the three alike, the picture a place in a grid.

    before, after: text tokens around the picture. grid: rows and columns of tokens. Text goes on after the longer side
    of the picture (Qwen2-VL, section 2.1, multimodal rotary positions).
    """
    rows, columns = grid
    picture = np.zeros((3, rows * columns), dtype=np.int64)
    picture[1:] = np.indices(grid).reshape(2, -1)
    parts = [text_positions(before), before + picture, before + max(grid) + text_positions(after)]
    return np.concatenate(parts, axis=1)


def text_positions(count: int) -> Whole:
    """(3, count): of text alone."""
    return np.tile(np.arange(count, dtype=np.int64), (3, 1))


def interpolation(grids: Sequence[Grid], merge: int, side: int) -> tuple[Whole, npt.NDArray[np.float32]]:
    """Rows (N, 4) of a learned table of side * side positions and their weights (N, 4), for every patch.

    The table is spread over the picture from corner to corner; a patch takes the four entries around it (bilinear).
    """
    rows, weights = [], []
    for grid in grids:
        places = np.divmod(merge_order(grid, merge), grid[1])
        (upper, lower), (left, right) = (
            _neighbours(place, count, side) for place, count in zip(places, grid, strict=True)
        )
        rows.append(np.column_stack([y[0] * side + x[0] for y in (upper, lower) for x in (left, right)]))
        weights.append(np.column_stack([y[1] * x[1] for y in (upper, lower) for x in (left, right)]))
    return np.concatenate(rows), np.concatenate(weights)


def _neighbours(place: Whole, count: int, side: int) -> list[tuple[Whole, npt.NDArray[np.float32]]]:
    """The two entries of an axis of the table around each of `count` places, with their weights."""
    at = place.astype(np.float32) * np.float32(side - 1) / np.float32(max(count - 1, 1))
    first = np.floor(at)
    near = first.astype(np.int64)
    share = at - first
    return [(near, 1 - share), (np.minimum(near + 1, side - 1), 1 - (1 - share))]
