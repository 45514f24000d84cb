"""Lines as a recogniser reads them -> words with boxes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from budgetvdr.pages import Words

Points = npt.NDArray[np.float32]

# Mean over the letters of a word. Specks beside a good line are read as words, too.
_MIN_CONFIDENCE = 0.5
# In columns of the recogniser, 8 pixels of a line 48 pixels high: letters further apart have a gap between them.
_GAP = 5


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """One line as read.

    corners: (4, 2) pixels, clockwise from where reading begins: the first two are above the letters.
    texts: its words. spans: (n, 2) the part of the length that each takes up, from 0 to 1.
    confidence: mean over its letters, from 0 to 1.
    """

    corners: Points
    texts: tuple[str, ...]
    spans: Points
    confidence: float


def split(text: str, columns: Points, confidences: Sequence[float], length: float) -> tuple[tuple[str, ...], Points]:
    """Words of a line that the recogniser is sure of, and the (n, 2) part of its length that each takes up.

    columns: (m,) where each letter that is no space was seen, of `length` columns. confidences: one a letter of text,
    spaces among them. Words are parted by spaces and by gaps, for the recogniser leaves out a space now and then.
    Nothing comes of a line without letters and digits.
    """
    letters = np.array([index for index, letter in enumerate(text) if not letter.isspace()], np.intp)
    if not any(letter.isalnum() for letter in text):
        return (), np.zeros((0, 2), np.float32)
    steps = np.diff(columns)
    parted = (np.diff(letters) > 1) | (steps > _GAP)
    pitch = float(np.median(steps[~parted])) if (~parted).any() else 2.0
    firsts = np.concatenate([[0], np.flatnonzero(parted) + 1])
    lasts = np.concatenate([firsts[1:], [len(letters)]]) - 1
    # A column is where the middle of a letter is; a word ends half a letter further on, or midway to the next one.
    between = (columns[firsts[1:]] + columns[lasts[:-1]] + 1) / 2
    starts = np.maximum(columns[firsts] + 0.5 - pitch / 2, np.concatenate([[0], between]))
    ends = np.minimum(columns[lasts] + 0.5 + pitch / 2, np.concatenate([between, [length]]))
    texts, spans = [], []
    for first, last, start, end in zip(letters[firsts], letters[lasts], starts, ends, strict=True):
        if np.mean(confidences[first : last + 1]) >= _MIN_CONFIDENCE:
            texts.append(text[first : last + 1])
            spans.append((start / length, end / length))
    return tuple(texts), np.array(spans, np.float32).reshape(-1, 2)


def words_of(lines: Iterable[Line], size: tuple[int, int]) -> Words:
    """The words of lines in their order, with upright boxes in fractions of a picture of (width, height) pixels."""
    texts: list[str] = []
    boxes = [np.zeros((0, 4), np.float32)]
    for line in lines:
        texts += line.texts
        start, towards = line.corners[[0, 3]], line.corners[[1, 2]] - line.corners[[0, 3]]
        corners = (start[None, None] + line.spans[:, :, None, None] * towards[None, None]).reshape(-1, 4, 2)
        boxes.append(np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1))
    fractions = np.concatenate(boxes) / np.array([*size, *size], np.float32)
    return Words(tuple(texts), np.clip(fractions, 0, 1).astype(np.float32))


def level_boxes(lines: Sequence[Line], along: npt.NDArray[np.bool_]) -> Points:
    """(n, 4) boxes of lines in pixels, on the page turned so that those that run `along` it are level."""
    corners = np.stack([line.corners for line in lines])
    x, y = (corners[along, 1] - corners[along, 0]).sum(axis=0).tolist()
    length = max(float(np.hypot(x, y)), 1e-6)
    level = corners @ (np.array([[x, -y], [y, x]], np.float32) / length)
    return np.concatenate([level.min(axis=1), level.max(axis=1)], axis=1).astype(np.float32)


def sides(corners: Points) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """(width, height) of corners (..., 4, 2)."""
    top, right, bottom, left = (
        np.linalg.norm(np.roll(corners, -1, axis=-2)[..., side, :] - corners[..., side, :], axis=-1)
        for side in range(4)
    )
    return np.maximum(top, bottom), np.maximum(left, right)
