"""Puts words that come line by line across newspaper columns back into their columns.

Most files hold their text in reading order, and only the author knows it better than a program; OCR layers of scans
often do not. So columns are looked for, and words are moved only where their order runs across them.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from budgetvdr.pages import Boxes

# All measured on one scanned newspaper and on 390 pages of other files, none of which is moved.
# In heights of a line. A band is tall enough to tell a gutter from the gaps between words, and low enough that a
# scan askew by two degrees keeps its gutters open.
_BAND, _GUTTER, _COLUMN = 24.0, 0.25, 8.0
_STEPS = 8
# Share of a band's height that is covered with words: in a gutter (specks, rules read as letters), and in a column of
# running text, which has 0.5 to 0.8 where a column of a table has 0.3 or less.
_GUTTER_COVER, _TEXT_COVER = 0.2, 0.4
# Of all words, those that follow a word in another column of the same line: 0.1 and more where lines run across, next
# to none where columns are kept.
_CROSSING = 0.05
_FEWEST_WORDS = 100


def column_order(boxes: Boxes, aspect: float) -> npt.NDArray[np.intp] | None:
    """Order of words that reads column after column, or None where the given order does so already.

    boxes: (n, 4) page fractions, in the given order. aspect: width of the page over its height.
    """
    if len(boxes) < _FEWEST_WORDS:
        return None
    heights = boxes[:, 3] - boxes[:, 1]
    line = max(float(np.median(heights)), 1e-3)
    middles = (boxes[:, :2] + boxes[:, 2:]) / 2
    # Bands of one height that end where the words end, so that none is filled in part only.
    top, bottom = float(middles[:, 1].min()), float(middles[:, 1].max())
    count = max(1, round((bottom - top) / (_BAND * line)))
    height = max((bottom - top) / count, line)
    bands = np.minimum(((middles[:, 1] - top) / height).astype(np.intp), count - 1)
    body = heights < 2 * line
    steps = min(int(_STEPS * aspect / line) + 1, 4000)
    covers = _cover(boxes[body], bands[body], heights[body] / height, (count, steps + 2))
    gutters = [_gutters(cover, 1 / steps) for cover in covers]
    columns = np.array([np.searchsorted(gutters[b], x) for b, x in zip(bands, middles[:, 0], strict=True)], np.intp)
    same_line = np.abs(np.diff(middles[:, 1])) < 0.5 * line
    if (same_line & (np.diff(columns) != 0)).mean() < _CROSSING:
        return None
    return np.lexsort([columns, _stories(gutters, 1.5 * line / aspect)[bands]])


def _cover(
    boxes: Boxes, bands: npt.NDArray[np.intp], heights: npt.NDArray[np.float32], shape: tuple[int, int]
) -> npt.NDArray[np.float64]:
    """Share of each band's height that words cover, at each of equal steps from the left to the right of the page.

    heights: of the words, in heights of a band. shape: bands, steps.
    """
    changes = np.zeros(shape)
    starts = np.floor(boxes[:, 0] * (shape[1] - 2)).astype(np.intp)
    ends = np.ceil(boxes[:, 2] * (shape[1] - 2)).astype(np.intp)
    np.add.at(changes, (bands, starts), heights)
    np.add.at(changes, (bands, ends), -heights)
    cover: npt.NDArray[np.float64] = changes.cumsum(axis=1)
    return cover


def _gutters(cover: npt.NDArray[np.float64], step: float) -> npt.NDArray[np.float64]:
    """Middles of the gaps, in page fractions, that have a column of running text on either side."""
    edges = np.flatnonzero(np.diff(np.concatenate([[True], cover < _GUTTER_COVER, [True]]).astype(np.int8)))
    # Between edges 2i and 2i + 1 there are words, and gaps elsewhere; gaps too narrow part nothing.
    spans = edges.reshape(-1, 2).tolist()
    merged: list[list[int]] = []
    for start, end in spans:
        if merged and start - merged[-1][1] < _GUTTER * _STEPS:
            merged[-1][1] = end
        else:
            merged.append([start, end])
    text = [end - start >= _COLUMN * _STEPS and cover[start:end].mean() >= _TEXT_COVER for start, end in merged]
    found = [
        (left[1] + right[0]) / 2 * step
        for (left, right), (one, other) in zip(pairwise(merged), pairwise(text), strict=True)
        if one and other
    ]
    return np.array(found)


def _stories(gutters: list[npt.NDArray[np.float64]], slack: float) -> npt.NDArray[np.intp]:
    """Number of the run of bands with equal gutters that each band belongs to."""
    changed = [
        len(above) != len(below) or bool(len(above) and np.abs(above - below).max() > slack)
        for above, below in pairwise(gutters)
    ]
    return np.concatenate([[0], np.cumsum(changed, dtype=np.intp)]).astype(np.intp)
