"""Boxes of lines -> the order in which a person reads them: column by column, tables row by row.

A recursive cut in the manner of XY-cut (Nagy and Seth, ICPR 1984) with one change: a gutter between columns need not
run through the whole region. Lines across it, such as headings over two columns, divide it into bands instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.intp]

# All in line heights. Detected boxes stick out over their text, so that neighbours may touch across a narrow gutter.
_SLACK = 0.4
# Narrower than this, columns are those of a table: about 17 letters.
_TEXT_WIDTH = 6.0
_COLUMN_LINES = 3


def reading_order(boxes: npt.NDArray[np.floating[Any]]) -> Indices:
    """Order of upright lines, or of pieces of lines.

    boxes: (n, 4) rows (x0, y0, x1, y1) in pixels or any other unit that is the same in both directions, y downwards.

    Returns (n,) indices of boxes, first line first. Columns of running text are read one after the other, a line over
    several columns before what stands below it; everything else, tables among it, row by row from left to right.
    """
    if not len(boxes):
        return np.zeros(0, np.intp)
    order: list[Indices] = []
    # A stack instead of recursion: what is on top is read first.
    waiting = [np.argsort(_middles(boxes), kind="stable")]
    while waiting:
        region = waiting.pop()
        parts = _parts(boxes[region])
        if parts is None:
            order.append(region[_rows(boxes[region])])
        else:
            waiting.extend(region[part] for part in reversed(parts))
    return np.concatenate(order)


def _parts(boxes: npt.NDArray[np.floating[Any]]) -> list[Indices] | None:
    """Groups of lines in reading order, along the gutter with the most text on both sides; None without a gutter.

    boxes: sorted from top to bottom.
    """
    if len(boxes) < 2 * _COLUMN_LINES:
        return None
    height = _line_height(boxes)
    best: tuple[int, list[Indices]] = (0, [])
    for edge in _left_edges(boxes, height / 2):
        left = boxes[:, 2] <= edge + _SLACK * height
        right = (boxes[:, 0] >= edge - _SLACK * height) & ~left
        # Every line across the gutter begins a new band, of which it is no part.
        band = np.cumsum(~(left | right))
        text, parts, rest = 0, [], np.zeros(0, np.intp)
        for number in np.unique(band):
            inside = band == number
            sides = [np.flatnonzero(inside & side) for side in (left, right)]
            across = np.flatnonzero(inside & ~left & ~right)
            rest = np.concatenate([rest, across])
            if all(_is_column(boxes[side], height) for side in sides):
                parts += [rest, *sides]
                text += sum(len(side) for side in sides)
                rest = np.zeros(0, np.intp)
            else:
                rest = np.union1d(rest, np.concatenate(sides))
        if text > best[0]:
            best = (text, [part for part in (*parts, rest) if len(part)])
    return best[1] or None


def _is_column(boxes: npt.NDArray[np.floating[Any]], height: float) -> bool:
    """Whether boxes are enough lines, and long enough ones, to be a column of running text."""
    return len(boxes) >= _COLUMN_LINES and float(np.median(boxes[:, 2] - boxes[:, 0])) >= _TEXT_WIDTH * height


def _left_edges(boxes: npt.NDArray[np.floating[Any]], step: float) -> npt.NDArray[np.floating[Any]]:
    """Where columns may begin: left edges of lines, one of those that lie within a step of each other."""
    edges = np.sort(boxes[:, 0])
    first = np.unique(np.floor((edges - edges[0]) / step), return_index=True)[1]
    return edges[first][1:]


def _rows(boxes: npt.NDArray[np.floating[Any]]) -> Indices:
    """Order from top to bottom, and from left to right among boxes at the same height.

    boxes: sorted from top to bottom.
    """
    middles, heights = _middles(boxes), boxes[:, 3] - boxes[:, 1]
    row = np.zeros(len(boxes), np.intp)
    start = 0
    for index in range(1, len(boxes)):
        # Half of the lower box: a tall one beside several rows, like the label of an axis, belongs to one at most.
        reach = 0.5 * min(heights[index], heights[start])
        if middles[index] - middles[start] >= reach:
            start = index
        row[index] = start
    return np.lexsort((boxes[:, 0], row))


def _middles(boxes: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.floating[Any]]:
    return (boxes[:, 1] + boxes[:, 3]) / 2


def _line_height(boxes: npt.NDArray[np.floating[Any]]) -> float:
    """The usual height of a line; at least something above 0, which the steps are measured in."""
    return max(float(np.median(boxes[:, 3] - boxes[:, 1])), 1e-6)
