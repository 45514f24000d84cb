"""The text layer of a page: cleaning its text, and deciding whether it can be trusted.

Text layers lie. Ligatures and quotes hide in control codes, fonts map to no real characters, scans carry a stamp or
somebody's metadata as their only text, slides keep their text in pictures.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Literal

import numpy as np
from PIL import Image

from budgetvdr.pages import Words
from budgetvdr.textlayer.ink import Ink

Reason = Literal["", "none", "too_little", "private_use", "garbled", "doubled", "misplaced"]

# Fonts of the TeX family without a Unicode map hand their own codes through: 0x0b to 0x0f are ligatures of the OT1
# encoding (0x0d is lost, it looks like a line end), 0x10 to 0x1f signs of T1 (Cork). 0x80 to 0x9f are Windows-1252.
# 0xf0.. are bullets of the Symbol and Wingdings fonts, which word processors write into the private use area.
_CODES = {
    0x0B: "ff", 0x0C: "fi", 0x0E: "ffi", 0x0F: "ffl",
    0x10: "\u201c", 0x11: "\u201d", 0x12: "\u201e", 0x13: "\u00ab", 0x14: "\u00bb", 0x15: "\u2013", 0x16: "\u2014",
    0x19: "\u0131", 0x1B: "ff", 0x1C: "fi", 0x1D: "fl", 0x1E: "ffi", 0x1F: "ffl",
    0x85: "\u2026", 0x91: "\u2018", 0x92: "\u2019", 0x93: "\u201c", 0x94: "\u201d",
    0x95: "\u2022", 0x96: "\u2013", 0x97: "\u2014",
    0xF0A7: "\u2022", 0xF0B7: "\u2022", 0xF0D8: "\u2022", 0xF0FC: "\u2713",
}  # fmt: skip
# Compatibility forms that mean the plain character: Latin, Hebrew and Arabic ligatures and presentation forms, full
# and half width, radicals, CJK compatibility ideographs, mathematical letters. Not superscripts, fractions or signs,
# because m\u00b2 is not m2.
_COMPATIBLE = re.compile("[\ufb00-\ufdff\ufe70-\ufefc\uff01-\uffee\u2f00-\u2fd5\uf900-\ufaff\U0001d400-\U0001d7ff]+")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]+")
_UNKNOWN = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
# Private use, the replacement character that `clean` writes, and unassigned code points are found by category.
_UNREADABLE_CATEGORIES = {"Co", "Cn", "Cc", "Cs"}
_ADDRESS = re.compile(r"://|www\.|@")
_RUNS = re.compile(r"[^\W\d_]+|\d+|[\W_]+")
_EDGES = re.compile(r"^[\W_]+|[\W_]+$")

# Of the characters that are no white space. Sound pages reach 3 % (formulas, bullets of odd fonts), a Thai page with
# symbols in the private use area 6 %; where the font has no usable map it is 36 % and more.
_UNREADABLE_SHARE = 0.1
# A bullet here and there is nothing to tell anybody.
_NOTED_SHARE = 0.01
# Of the words with Latin letters. Sound pages reach 13 % (a block diagram), listings 5 %; OCR of handwriting has 37 %.
_GARBLED_SHARE = 0.25
# English has no word of four or more letters made of pairs, beyond an occasional name.
_DOUBLED_SHARE = 0.3
# Of the words. Sound layers have 92 % and more of them on ink, an invisible layer of metadata over a scan 28 %.
_SUPPORTED_SHARE = 0.5
# Of the page, in cells that look like text. Less than 1 % outside the layer is a logo or a short label, not worth
# OCR; and what lies outside must be more than the layer has by half, which photographs beside text are not.
# Keeping only the last ten words of 333 sound pages, this catches 332.
_OUTSIDE_SHARE, _OUTSIDE_RATIO = 0.01, 1.5
# Non-Latin letters beyond this share are no formula in a Latin text any more.
_OTHER_SCRIPT_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to think of a text layer.

    reason: why it is not to be used; "" for a sound one.
        "none": there is no text. "too_little": the picture has much more text than the layer. "private_use": the
        characters stand for nothing known. "garbled": the words are no words, as from OCR of handwriting. "doubled":
        every letter is there twice. "misplaced": the words lie where the page shows nothing.
    notes: what a person should know of a sound layer: "picture_empty" (the picture shows nothing where the words
        are, for want of a font), "private_use" (more than 1 % of the characters stand for nothing known).
    words: the words of a sound layer, without characters that stand for nothing known.
    """

    reason: Reason
    words: Words
    notes: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether the layer can be read in place of the picture."""
        return not self.reason


def clean(text: str) -> str:
    """Text as a reader would type it: plain letters for ligatures, no invisible characters, composed accents.

    Characters that stand for nothing known become U+FFFD; private use characters stay, for `judge` to count.
    White space is kept.
    """
    if text.isascii() and text.isprintable():
        return text
    text = text.translate(_CODES)
    text = _COMPATIBLE.sub(lambda match: unicodedata.normalize("NFKC", match[0]).replace(" ", ""), text)
    text = _INVISIBLE.sub("", unicodedata.normalize("NFC", text))
    return _UNKNOWN.sub("\ufffd", text)


def judge(words: Words | None, picture: Image.Image) -> Verdict:
    """Decides whether a text layer says what the page shows.

    words: the layer, as `PdfFile.words` gives it, or None where the source has none.
    picture: the upright page; 800 pixels on the longer side are enough.
    """
    if words is None or not len(words):
        return Verdict("none", Words((), np.zeros((0, 4), np.float32)))
    reason = _bad_text(words.texts)
    if reason:
        return Verdict(reason, words)
    ink = Ink.of(picture)
    notes: list[str] = []
    if ink.supports(words.boxes).mean() < _SUPPORTED_SHARE:
        if ink.text.any():
            return Verdict("misplaced", words)
        notes.append("picture_empty")
    inside, outside = ink.covered(words.boxes)
    if outside > max(_OUTSIDE_SHARE, _OUTSIDE_RATIO * inside):
        return Verdict("too_little", words)
    readable, lost = _readable(words)
    if lost > _NOTED_SHARE:
        notes.append("private_use")
    return Verdict("", readable, tuple(notes))


def unsupported_script(text: str) -> bool:
    """Whether a text is in a script the bundled encoder does not read: more than 30 % of its letters are not Latin."""
    if text.isascii():
        return False
    letters = [letter for letter in text if letter.isalpha()]
    other = sum(not unicodedata.name(letter, "").startswith("LATIN") for letter in letters if not letter.isascii())
    return other > _OTHER_SCRIPT_SHARE * len(letters)


def _bad_text(texts: tuple[str, ...]) -> Reason:
    text = "".join(texts)
    if not text.isascii() and sum(map(_unreadable, text)) > _UNREADABLE_SHARE * len(text):
        return "private_use"
    # Short samples prove nothing: a part number or an abbreviation is no sign of garbage.
    latin = [word for word in texts if len(word) >= 3 and re.search("[A-Za-z]", word) and not _ADDRESS.search(word)]
    if len(latin) >= 20 and sum(map(_garbled, latin)) > _GARBLED_SHARE * len(latin):
        return "garbled"
    even = [word for word in latin if len(word) >= 4]
    if len(even) >= 5 and sum(word[::2] == word[1::2] for word in even) > _DOUBLED_SHARE * len(even):
        return "doubled"
    return ""


def _garbled(word: str) -> bool:
    """Whether a word changes between letters, digits and signs three times or more: `44-gta*Air`, not `state-of`."""
    return len(_RUNS.findall(_EDGES.sub("", word))) >= 4


def _unreadable(letter: str) -> bool:
    return letter == "\ufffd" or unicodedata.category(letter) in _UNREADABLE_CATEGORIES


def _readable(words: Words) -> tuple[Words, float]:
    """The words without unreadable characters, and the share of characters that these were."""
    text = "".join(words.texts)
    lost = 0 if text.isascii() else sum(map(_unreadable, text))
    if not lost:
        return words, 0.0
    texts = ["".join(letter for letter in word if not _unreadable(letter)) for word in words.texts]
    left = [i for i, word in enumerate(texts) if word]
    return Words(tuple(texts[i] for i in left), words.boxes[left]), lost / len(text)
