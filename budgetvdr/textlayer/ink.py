"""Where a page picture has ink, and where that ink looks like text.

Works on edges, so that it needs to know neither the colour of the paper nor which of the two is darker. Constants are
for pictures of about 800 pixels on the longer side, where ten-point text of a letter page is ten pixels high.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from budgetvdr.pages import Boxes

LONGEST_SIDE = 800
"""Pixels of the longer side that are looked at; larger pictures are reduced first."""

_CELL = 8
# An edge is a step of 32 grey levels of 255, or of 4.5 standard deviations of the paper's noise where that is more
# (then one pixel in 10^5 is an edge by chance), but never more than 64: dense print is no noise.
_EDGE, _EDGE_MAX, _NOISE_DEVIATIONS = 32.0, 64.0, 4.5
# Of the pixels of a cell inside text, 6 to 56 % (90 % of cells, median 23) have an edge across the line; rules,
# frames and chart bars have edges in one direction only, photographs few strong ones.
_ACROSS, _ACROSS_MAX, _ALONG = 0.12, 0.8, 0.06


@dataclass(frozen=True, slots=True, eq=False)
class Ink:
    """The ink of one picture.

    edges: (height, width) pixels with a step of brightness.
    text: (rows, columns) cells of 8 pixels that look like text and stand three in a row or column.
    """

    edges: npt.NDArray[np.bool_]
    text: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, picture: Image.Image) -> Ink:
        """Measures a picture of any size and mode."""
        grey = _grey(picture).astype(np.int16)
        across, along = np.abs(np.diff(grey, axis=1)), np.abs(np.diff(grey, axis=0))
        step = _edge_step(across)
        edges = np.zeros(grey.shape, np.bool_)
        edges[:, 1:] = across > 0.75 * step
        edges[1:] |= along > 0.75 * step
        share_across, share_along = _cell_share(across > step, grey.shape), _cell_share(along > step, grey.shape)
        text = (share_across > _ACROSS) & (share_across < _ACROSS_MAX) & (share_along > _ALONG)
        return cls(edges, _three_in_a_row(text))

    def supports(self, boxes: Boxes) -> npt.NDArray[np.bool_]:
        """Which of (n, 4) word boxes have ink in at least three of their four quarters from left to right."""
        height, width = self.edges.shape
        total = np.zeros((height + 1, width + 1), np.int32)
        np.cumsum(np.cumsum(self.edges, axis=0, dtype=np.int32), axis=1, out=total[1:, 1:])
        top = np.clip(np.floor(boxes[:, 1] * height), 0, height).astype(np.intp)
        bottom = np.clip(np.ceil(boxes[:, 3] * height), 0, height).astype(np.intp)
        inked = np.zeros(len(boxes), np.int8)
        span = boxes[:, 2] - boxes[:, 0]
        for quarter in range(4):
            left = np.clip(np.floor((boxes[:, 0] + span * quarter / 4) * width), 0, width).astype(np.intp)
            right = np.clip(np.ceil((boxes[:, 0] + span * (quarter + 1) / 4) * width), 0, width).astype(np.intp)
            inked += total[bottom, right] - total[top, right] - total[bottom, left] + total[top, left] > 0
        return inked >= 3

    def covered(self, boxes: Boxes) -> tuple[float, float]:
        """Shares of the page that look like text, (inside, outside) of the (n, 4) boxes."""
        if not self.text.size:
            return 0.0, 0.0
        rows, columns = self.text.shape
        # A cell that a box merely touches belongs to it: 0.3 of a cell of slack on every side.
        low = np.clip(np.floor(boxes[:, :2] * (columns, rows) - 0.3), 0, (columns, rows)).astype(np.intp)
        high = np.clip(np.ceil(boxes[:, 2:] * (columns, rows) + 0.3), 0, (columns, rows)).astype(np.intp)
        corners = np.zeros((rows + 1, columns + 1), np.int32)
        np.add.at(corners, (low[:, 1], low[:, 0]), 1)
        np.add.at(corners, (high[:, 1], low[:, 0]), -1)
        np.add.at(corners, (low[:, 1], high[:, 0]), -1)
        np.add.at(corners, (high[:, 1], high[:, 0]), 1)
        inside = corners.cumsum(axis=0).cumsum(axis=1)[:rows, :columns] > 0
        return float((self.text & inside).mean()), float((self.text & ~inside).mean())


def is_blank(picture: Image.Image) -> bool:
    """Whether a picture shows an empty page.

    Noise, specks, paper texture, a dark border or the shadow of the binding are nothing to read. A single word is: it
    fills three cells in a row, which specks (up to 1 % of all pixels) do not. A photograph without text is not
    empty either: inside its margins the brightness varies by more than 60 levels of 255, stained paper by less.
    """
    if Ink.of(picture).text.any():
        return False
    grey = _grey(picture)
    margins = [max(1, side // 8) for side in grey.shape]
    inner = grey[margins[0] : -margins[0] or None, margins[1] : -margins[1] or None]
    if not inner.size:
        return True
    tiles = np.asarray(Image.fromarray(inner).resize((16, 16), Image.Resampling.BOX))
    return int(tiles.max()) - int(tiles.min()) < 60


def _grey(picture: Image.Image) -> npt.NDArray[np.uint8]:
    grey = picture.convert("L")
    if max(grey.size) > LONGEST_SIDE:
        grey.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.BOX)
    return np.asarray(grey)


def _edge_step(across: npt.NDArray[np.int16]) -> float:
    if not across.size:
        return _EDGE
    # The median of the size of a normal deviate is 0.67 of its deviation.
    noise = float(np.median(across[::4])) / 0.6745
    return min(max(_EDGE, _NOISE_DEVIATIONS * noise), _EDGE_MAX)


def _cell_share(steps: npt.NDArray[np.bool_], shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Share of marked pixels in each cell; cells that do not fit whole at the right and bottom are left out."""
    rows, columns = shape[0] // _CELL, shape[1] // _CELL
    full = np.zeros((rows * _CELL, columns * _CELL), np.bool_)
    part = steps[: rows * _CELL, : columns * _CELL]
    full[: part.shape[0], : part.shape[1]] = part
    shares: npt.NDArray[np.float64] = full.reshape(rows, _CELL, columns, _CELL).mean(axis=(1, 3))
    return shares


def _three_in_a_row(cells: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    kept = np.zeros_like(cells)
    for axis in (0, 1):
        along = np.moveaxis(cells, axis, 0)
        middle = along[2:] & along[1:-1] & along[:-2]
        target = np.moveaxis(kept, axis, 0)
        for shift in range(3):
            target[shift : shift + len(middle)] |= middle
    return kept
