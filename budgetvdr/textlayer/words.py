"""Characters with boxes -> the words of a page.

PDFs draw characters, not words: some draw each one twice for a bold look, and words are cut at line ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from budgetvdr.pages import Boxes, Words
from budgetvdr.textlayer.judge import clean

_SPACES = np.array(
    [0x09, 0x0A, 0x0D, 0x20, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000], np.uint32
)
_LINE_ENDS = np.array([0x0A, 0x0D], np.uint32)
# Stands for a hyphen of whatever shape at which a word is cut; no text holds this code point.
_CUT = "\ufffe"
_HYPHENS = ("-", "\u00ad", "\u2010", _CUT)


def words_from_chars(
    codes: npt.NDArray[np.uint32], boxes: Boxes, hyphens: npt.NDArray[np.bool_] | None = None
) -> Words:
    """Clean words from the characters of a page, in their order.

    codes: (n,) code points; spaces and line ends (CR LF) part the words.
    boxes: (n, 4) page fractions.
    hyphens: (n,) which characters are hyphens where a word is cut at a line end, whatever their code point.

    Characters drawn twice are taken once, words cut at line ends are joined (with the box of the longer part), words
    outside the page are left out and boxes that leave it are clipped.
    """
    cut = np.zeros(len(codes), np.bool_) if hyphens is None else hyphens
    codes = np.where(cut, ord(_CUT), np.minimum(codes, 0x10FFFF)).astype(np.uint32)
    once = ~_drawn_twice(codes, boxes)
    codes, boxes = codes[once], boxes[once]
    inside = ~np.isin(codes, _SPACES)
    if not inside.any():
        return Words((), np.zeros((0, 4), np.float32))
    after_cut = np.concatenate([[False], codes[:-1] == ord(_CUT)])
    starts = np.flatnonzero(inside & (np.concatenate([[True], ~inside[:-1]]) | after_cut))
    ends = (
        np.flatnonzero(inside & (np.concatenate([~inside[1:], [True]]) | np.concatenate([after_cut[1:], [False]]))) + 1
    )
    text = codes.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")
    texts = [_whole(text[start:end]) for start, end in zip(starts, ends, strict=True)]
    runs = np.cumsum(inside)[starts] - 1
    corners = boxes[inside]
    low, high = np.minimum.reduceat(corners[:, :2], runs), np.maximum.reduceat(corners[:, 2:], runs)
    lines = np.cumsum(np.isin(codes, _LINE_ENDS), dtype=np.int64)[starts]
    return _on_page(*_joined(texts, np.concatenate([low, high], axis=1), lines))


def insert_values(words: Words, values: Sequence[str], boxes: Boxes) -> Words:
    """Words with the values of form fields among them, each after the word that stands nearest before its field.

    values, boxes: n texts with the (n, 4) boxes of their fields; every word of a value gets the box of its field.
    """
    texts = list(words.texts)
    positions = list(range(len(texts)))
    rows = [words.boxes]
    for value, box in zip(values, boxes, strict=True):
        new = clean(value).split()
        texts += new
        positions += [_nearest_before(words.boxes, box)] * len(new)
        rows.append(np.repeat(box[None], len(new), axis=0))
    # Stable, and existing words come first in the list: equal positions keep the values behind their word.
    order = np.argsort(positions, kind="stable")
    return _on_page([texts[i] for i in order], np.concatenate(rows)[order])


def _whole(text: str) -> str:
    """Pairs of surrogates, which PDFium hands out as two characters, become one."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _drawn_twice(codes: npt.NDArray[np.uint32], boxes: Boxes) -> npt.NDArray[np.bool_]:
    """Which characters repeat an earlier equal one at nearly the same place.

    Near is 15 % of the character's height and 40 % of its width: fake bold and shadows move by 2 to 10 % of the
    height, two letters side by side by their whole width. The letters of one ligature glyph ("ff") come one after the
    other with the very same box, and all count.
    """
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    x, y = (boxes[:, 0] + boxes[:, 2]) / 2, (boxes[:, 1] + boxes[:, 3]) / 2
    solid = np.flatnonzero((width > 0) & (height > 0) & np.isfinite(boxes).all(axis=1))
    twice = np.zeros(len(codes), np.bool_)
    if not len(solid):
        return twice
    step = np.exp2(np.ceil(np.log2(height[solid])))
    # Two points nearer than half a cell share a cell in at least one of four grids that are half a cell apart.
    for shift_x, shift_y in ((0.0, 0.0), (0.5, 0.0), (0.0, 0.5), (0.5, 0.5)):
        cell_x = np.floor(x[solid] / (0.3 * step) + shift_x).astype(np.int64)
        cell_y = np.floor(y[solid] / (0.3 * step) + shift_y).astype(np.int64)
        keys = np.stack([codes[solid].astype(np.int64), cell_x, cell_y])
        order = np.lexsort(keys[::-1])
        same = (keys[:, order[1:]] == keys[:, order[:-1]]).all(axis=0)
        group = np.concatenate([[0], np.cumsum(~same)])
        earliest = order[np.concatenate([[0], np.flatnonzero(~same) + 1])][group]
        one, other = solid[order], solid[earliest]
        near = (np.abs(x[one] - x[other]) < 0.4 * width[one]) & (np.abs(y[one] - y[other]) < 0.15 * height[one])
        ligature = (one == other + 1) & (boxes[one] == boxes[other]).all(axis=1)
        twice[one[near & (one > other) & ~ligature]] = True
    return twice


def _joined(texts: list[str], boxes: Boxes, lines: npt.NDArray[np.int64]) -> tuple[list[str], npt.NDArray[np.float32]]:
    """Puts words together that a hyphen cuts at a line end."""
    # Second parts of cut words are no words the page has by themselves.
    single = [text for before, text in zip(["", *texts], texts, strict=False) if not before.endswith(_HYPHENS)]
    known = {text.strip(".,;:()[]\"'\u201c\u201d\u2018\u2019").lower() for text in single}
    whole: list[str] = []
    rows: list[int] = []
    longest = 0
    for i, text in enumerate(texts):
        continues = bool(whole) and len(whole[-1]) > 1 and whole[-1].endswith(_HYPHENS)
        if continues and (whole[-1][-1] == _CUT or (lines[i] > lines[i - 1] and text[0].islower())):
            whole[-1] = _join(whole[-1][:-1], text, known)
            if len(text) > longest:
                rows[-1], longest = i, len(text)
        else:
            whole.append(text)
            rows.append(i)
            longest = len(text)
    return [text.replace(_CUT, "-") for text in whole], boxes[rows]


def _join(left: str, right: str, known: set[str]) -> str:
    """One word of two parts; a hyphen stays where it belongs to the word ("in-network") and goes where it does not.

    It stays before digits and capitals (unless all are), in chains, and between two words that the page also has by
    themselves. The page is asked first for the word as a whole.
    """
    head, tail = left.lstrip("([\"'\u201c\u2018").lower(), right.rstrip(".,;:)]\"'\u201d\u2019" + _CUT).lower()
    if head + tail in known:
        return left + right
    capital = not right[:1].islower() and not (left.isupper() and right[:2].isupper())
    compound = capital or not left[-1:].isalpha() or "-" in left or "-" in tail
    if compound or f"{head}-{tail}" in known or (len(head) > 1 and head in known and tail in known):
        return f"{left}-{right}"
    return left + right


def _nearest_before(boxes: Boxes, box: npt.NDArray[np.float32]) -> int:
    """Index of the word that stands left of a box in its line, else nearest above it; -1 where there is none."""
    middle = (boxes[:, 1] + boxes[:, 3]) / 2
    beside = (middle > box[1]) & (middle < box[3]) & (boxes[:, 0] < box[0])
    above = boxes[:, 3] <= box[3]
    if beside.any():
        return int(np.argmin(np.where(beside, box[0] - boxes[:, 2], np.inf)))
    if above.any():
        distance = np.hypot(boxes[:, 0] - box[0], boxes[:, 3] - box[1])
        return int(np.argmin(np.where(above, distance, np.inf)))
    return -1


def _on_page(texts: Sequence[str], boxes: Boxes) -> Words:
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    # A comparison with NaN is false: boxes of broken fonts go too.
    inside = np.logical_and.reduce((centres >= 0) & (centres <= 1), axis=1)
    cleaned = [clean(text) if inside[i] else "" for i, text in enumerate(texts)]
    left = [i for i, text in enumerate(cleaned) if text]
    return Words(tuple(cleaned[i] for i in left), np.clip(boxes[left], 0, 1).astype(np.float32))
