"""What a page says, and where that was read: in its text layer or, by OCR, on its picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import thread_time

import numpy as np
import numpy.typing as npt
from PIL import Image

from budgetvdr.encoders.ocr import OcrReader
from budgetvdr.errors import MissingExtraError, PageError
from budgetvdr.pages import Boxes, Page, Render, Words
from budgetvdr.sources.pictures import upright_rgb
from budgetvdr.textlayer import judge, unsupported_script
from budgetvdr.textlayer.ink import LONGEST_SIDE, is_blank

_NOTHING = Words((), np.zeros((0, 4), np.float32))


@dataclass(slots=True)
class Stages:
    """CPU seconds of the calling thread, summed by stage."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Adds what its block takes to a stage."""
        start = thread_time()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + thread_time() - start


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What was read on a page.

    reader: "text_layer", "ocr" or "none". notes: what a person should know of how it was read. seconds: CPU seconds
    by stage: "render", "text_layer" (judging it, or that the page is blank) and "ocr".
    """

    words: Words
    reader: str
    notes: tuple[str, ...]
    seconds: Mapping[str, float]


class PageReader:
    """Reads pages. Methods may be called from several threads."""

    def __init__(self) -> None:
        self._ocr: OcrReader | MissingExtraError
        try:
            self._ocr = OcrReader()
        except MissingExtraError as error:
            self._ocr = error

    def require_ocr(self) -> OcrReader:
        """The OCR in use. Raises MissingExtraError where it is not installed."""
        if isinstance(self._ocr, MissingExtraError):
            raise self._ocr
        return self._ocr

    def read(self, page: Page) -> Reading:
        """Reads one page as its `read` asks.

        "auto" takes the text layer where it says what the picture shows, and OCR elsewhere; without OCR installed it
        makes do with the layer there is and notes "ocr_missing". A page without a picture has only its words.

        Raises PageError for a page with neither, MissingExtraError where OCR is forced and not installed.
        """
        stages = Stages()
        pictured = page.image is not None or page.render is not None
        if not pictured and page.words is None:
            raise _nothing_to_read(page)
        if page.read == "ocr":
            words, reader, notes = _by_ocr(self.require_ocr(), page, stages)
        elif page.read == "text_layer" or not pictured:
            words, reader, notes = page.words or _NOTHING, "text_layer", []
        else:
            words, reader, notes = self._auto(page, stages)
        if not len(words):
            reader = "none"
            notes += ["no_text_layer"] if page.read == "text_layer" else []
        elif unsupported_script(" ".join(words.texts)):
            notes.append("unsupported_script")
        return Reading(words, reader, tuple(notes), stages.seconds)

    def _auto(self, page: Page, stages: Stages) -> tuple[Words, str, list[str]]:
        layer, reason, notes = page.words or _NOTHING, "none", []
        picture = _picture(page, lambda render: render(LONGEST_SIDE), stages)
        if len(layer):
            with stages.measure("text_layer"):
                verdict = judge(layer, picture)
            if verdict.sound:
                return verdict.words, "text_layer", list(verdict.notes)
            reason = verdict.reason
            notes = [f"text_layer_rejected:{reason}"]
        with stages.measure("text_layer"):
            if is_blank(picture):
                return _NOTHING, "none", [*notes, "blank"]
        try:
            ocr = self.require_ocr()
        except MissingExtraError:
            return layer, "text_layer", [*notes, "ocr_missing"]
        words, reader, more = _by_ocr(ocr, page, stages)
        if reason == "too_little":
            # What such a layer says is true; OCR may have missed some of it.
            words, reader = merged(words, layer), reader if len(words) else "text_layer"
        return words, reader, [*notes, *more]


def _by_ocr(ocr: OcrReader, page: Page, stages: Stages) -> tuple[Words, str, list[str]]:
    picture = _picture(page, ocr.picture, stages)
    with stages.measure("ocr"):
        words = ocr.read(picture)
    return words, "ocr", ["ocr"] if len(words) else ["ocr", "no_text"]


def _picture(page: Page, draw: Callable[[Render], Image.Image], stages: Stages) -> Image.Image:
    """draw: how large a page that can be drawn at any size is wanted."""
    with stages.measure("render"):
        if page.image is not None:
            return upright_rgb(page.image)
        if page.render is not None:
            return draw(page.render)
    raise _nothing_to_read(page)


def _nothing_to_read(page: Page) -> PageError:
    return PageError(
        f"{page.doc_id}: page {page.page_num} has no picture to read; give it an image or words",
        page_num=page.page_num,
    )


def merged(found: Words, layer: Words) -> Words:
    """The words found, and after them those of a layer whose middle lies in none of the boxes found."""
    missed = np.flatnonzero(~_inside_any(found.boxes, layer.boxes))
    texts = (*found.texts, *(layer.texts[index] for index in missed))
    return Words(texts, np.concatenate([found.boxes, layer.boxes[missed]]))


def _inside_any(boxes: Boxes, others: Boxes) -> npt.NDArray[np.bool_]:
    """Which of (m, 4) others have their middle in one of (n, 4) boxes."""
    x, y = (others[:, None, :2] + others[:, None, 2:]).transpose(2, 0, 1) / 2
    left, top, right, bottom = boxes.T
    within = (x >= left) & (x <= right) & (y >= top) & (y <= bottom)
    inside: npt.NDArray[np.bool_] = np.count_nonzero(within, axis=1) > 0
    return inside


def as_lines(words: Words) -> str:
    """Words as text: a row begins where a word does not stand beside the one before it.

    Beside a word that is taller than wide, thus written upwards or downwards, is above and below it.
    """
    if not words.texts:
        return ""
    middle = (words.boxes[1:, :2] + words.boxes[1:, 2:]) / 2
    before = words.boxes[:-1]
    within = (middle > before[:, :2]) & (middle < before[:, 2:])
    width, height = (before[:, 2:] - before[:, :2]).T
    long = np.array([len(text) > 2 for text in words.texts[:-1]], dtype=np.bool_)
    follows = np.where(long & (height > 1.5 * width), within[:, 0], within[:, 1])
    gaps = np.where(follows, " ", "\n")
    return words.texts[0] + "".join(f"{gap}{text}" for gap, text in zip(gaps, words.texts[1:], strict=True))
