"""How large Qwen's vision towers take a picture, and how they cut it into patches."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from budgetvdr.errors import EncodingError

Grid = tuple[int, int]
"""Patches of one picture: rows, columns; both are multiples of the merge size."""

# The towers were trained on nothing longer; the reference refuses such strips too.
_LONGEST = 200


def fitted_size(width: int, height: int, *, step: int, least: int, most: int) -> tuple[int, int]:
    """Width and height in pixels that a picture is resized to: multiples of `step`, about the same shape.

    step: pixels of a side of a merged patch. least, most: bounds of the number of pixels. The choice is that of
    transformers' `smart_resize`. Raises EncodingError for a strip of more than 200 times its width.
    """
    if max(width, height) > _LONGEST * min(width, height):
        raise EncodingError(
            f"a picture of {width} x {height} pixels: expected one side at most {_LONGEST} times the other; crop it"
        )
    columns, rows = round(width / step), round(height / step)
    area = columns * rows * step * step
    if area > most:
        shrink = math.sqrt(width * height / most)
        columns, rows = (max(1, math.floor(side / shrink / step)) for side in (width, height))
    elif area < least:
        grow = math.sqrt(least / (width * height))
        columns, rows = (math.ceil(side * grow / step) for side in (width, height))
    return columns * step, rows * step


def merge_order(grid: Grid, merge: int) -> npt.NDArray[np.int64]:
    """The patches in the order the towers take them, (rows * columns,): numbers row by row, as the picture has them.

    The merge * merge patches that become one token stand together; tokens go row by row.
    """
    rows, columns = grid
    blocks = np.arange(rows * columns).reshape(rows // merge, merge, columns // merge, merge)
    return blocks.transpose(0, 2, 1, 3).reshape(-1)


def cut_patches(pixels: npt.NDArray[np.float32], *, patch: int, merge: int, frames: int) -> npt.NDArray[np.float32]:
    """pixels: (3, H, W) -> (H / patch * W / patch, 3 * frames * patch * patch) in merge order.

    frames: a still picture counts as a film of so many equal frames, as the towers' first layer spans time.
    """
    channels, height, width = pixels.shape
    grid = (height // patch, width // patch)
    rows = pixels.reshape(channels, grid[0], patch, grid[1], patch).transpose(1, 3, 0, 2, 4)
    rows = rows.reshape(-1, channels, 1, patch * patch)[merge_order(grid, merge)]
    return np.repeat(rows, frames, axis=2).reshape(len(rows), -1)
