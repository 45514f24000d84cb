"""Text layer or OCR: which one a page is read by, and what is noted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from budgetvdr.encoders import reading
from budgetvdr.encoders.reading import PageReader, as_lines, merged
from budgetvdr.errors import MissingExtraError, PageError
from budgetvdr.pages import Page, Render, Words

LINES = [f"Line {n} of a report on capital spending and its limits" for n in range(20)]
EMPTY = Words((), np.zeros((0, 4), np.float32))


class FakeOcr:
    """Stands for OCR: finds what it is told, and remembers what it was shown."""

    found = EMPTY
    seen: ClassVar[list[Image.Image]]

    def picture(self, render: Render) -> Image.Image:
        return render(2000)

    def read(self, picture: Image.Image) -> Words:
        self.seen.append(picture)
        return self.found


@pytest.fixture
def ocr(monkeypatch: pytest.MonkeyPatch) -> type[FakeOcr]:
    class Fresh(FakeOcr):
        found = words_at([("Seen", 0.1, 0.1), ("here", 0.3, 0.1)])

    Fresh.seen = []
    monkeypatch.setattr(reading, "OcrReader", Fresh)
    return Fresh


@pytest.fixture
def no_ocr(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise MissingExtraError('pip install "budgetvdr[ocr]"')

    monkeypatch.setattr(reading, "OcrReader", missing)


def words_at(places: Sequence[tuple[str, float, float]]) -> Words:
    boxes = [[x, y, x + 0.1, y + 0.02] for _, x, y in places]
    return Words(tuple(text for text, _, _ in places), np.array(boxes, np.float32).reshape(-1, 4))


def printed(lines: Sequence[str], longest_side: int = 1000) -> tuple[Image.Image, Words]:
    """A picture of the lines, and the text layer that says the same."""
    width, height = longest_side * 3 // 4, longest_side
    picture = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(picture)
    font = ImageFont.load_default(longest_side // 66)
    texts, boxes = [], []
    for number, line in enumerate(lines):
        x, y = width * 0.08, height * (0.06 + 0.04 * number)
        for text in line.split():
            end = x + draw.textlength(text, font)
            draw.text((x, y), text, "black", font)
            texts.append(text)
            boxes.append([x / width, y / height, end / width, y / height + 0.02])
            x = end + draw.textlength(" ", font)
    return picture, Words(tuple(texts), np.array(boxes, np.float32).reshape(-1, 4))


def test_a_sound_layer_is_read_without_ocr(ocr: type[FakeOcr]) -> None:
    picture, words = printed(LINES)
    result = PageReader().read(Page("d", 1, image=picture, words=words))
    assert (result.reader, result.notes, result.words.texts) == ("text_layer", (), words.texts)
    assert not ocr.seen
    assert set(result.seconds) == {"render", "text_layer"}


def test_a_scan_is_read_by_ocr_at_its_own_size(ocr: type[FakeOcr]) -> None:
    asked: list[int] = []

    def render(longest_side: int) -> Image.Image:
        asked.append(longest_side)
        return printed(LINES, longest_side)[0]

    result = PageReader().read(Page("d", 1, render=render))
    assert (result.reader, result.notes, result.words.texts) == ("ocr", ("ocr",), ("Seen", "here"))
    assert asked == [800, 2000]
    assert [picture.size for picture in ocr.seen] == [(1500, 2000)]
    assert set(result.seconds) == {"render", "text_layer", "ocr"}


def test_a_layer_that_lies_elsewhere_is_rejected(ocr: type[FakeOcr]) -> None:
    picture, words = printed(LINES)
    elsewhere = Words(words.texts, words.boxes * np.float32([0.1, 0.05, 0.1, 0.05]) + np.float32([0.8, 0.9, 0.8, 0.9]))
    result = PageReader().read(Page("d", 1, image=picture, words=elsewhere))
    assert result.notes == ("text_layer_rejected:misplaced", "ocr")
    assert result.words.texts == ("Seen", "here")
    ocr.found = EMPTY
    nothing = PageReader().read(Page("d", 1, image=picture, words=elsewhere))
    assert (nothing.reader, len(nothing.words)) == ("none", 0)
    assert nothing.notes == ("text_layer_rejected:misplaced", "ocr", "no_text")


def test_a_layer_that_says_too_little_is_completed(ocr: type[FakeOcr]) -> None:
    picture, words = printed(LINES)
    stamp = Words(words.texts[-3:], words.boxes[-3:])
    result = PageReader().read(Page("d", 1, image=picture, words=stamp))
    assert result.notes == ("text_layer_rejected:too_little", "ocr")
    assert result.reader == "ocr"
    assert result.words.texts == ("Seen", "here", *stamp.texts)
    ocr.found = EMPTY
    kept = PageReader().read(Page("d", 1, image=picture, words=stamp))
    assert (kept.reader, kept.words.texts) == ("text_layer", stamp.texts)


def test_a_blank_page_is_not_read(ocr: type[FakeOcr]) -> None:
    result = PageReader().read(Page("d", 1, image=Image.new("RGB", (600, 800), "white")))
    assert (result.reader, result.notes, len(result.words)) == ("none", ("blank",), 0)
    assert not ocr.seen


def test_words_over_an_empty_picture_are_kept_and_flagged(ocr: type[FakeOcr]) -> None:
    _, words = printed(LINES)
    result = PageReader().read(Page("d", 1, image=Image.new("RGB", (600, 800), "white"), words=words))
    assert (result.reader, result.notes) == ("text_layer", ("picture_empty",))
    assert result.words.texts == words.texts


def test_the_text_layer_can_be_forced(ocr: type[FakeOcr]) -> None:
    words = words_at([("Anything", 0.9, 0.9)])
    result = PageReader().read(Page("d", 1, image=printed(LINES)[0], words=words, read="text_layer"))
    assert (result.reader, result.notes, result.words.texts) == ("text_layer", (), ("Anything",))
    none = PageReader().read(Page("d", 1, image=printed(LINES)[0], read="text_layer"))
    assert (none.reader, none.notes) == ("none", ("no_text_layer",))
    assert not ocr.seen


def test_ocr_can_be_forced(ocr: type[FakeOcr]) -> None:
    picture, words = printed(LINES)
    result = PageReader().read(Page("d", 1, image=picture, words=words, read="ocr"))
    assert (result.reader, result.notes, result.words.texts) == ("ocr", ("ocr",), ("Seen", "here"))


def test_another_script_is_flagged(ocr: type[FakeOcr]) -> None:
    words = words_at([("報告", 0.1, 0.1), ("資本支出", 0.3, 0.1)])
    assert PageReader().read(Page("d", 1, words=words)).notes == ("unsupported_script",)
    ocr.found = words
    assert PageReader().read(Page("d", 1, image=printed(LINES)[0])).notes == ("ocr", "unsupported_script")


@pytest.mark.usefixtures("no_ocr")
def test_without_ocr_the_layer_there_is_must_do() -> None:
    picture, words = printed(LINES)
    stamp = Words(words.texts[-3:], words.boxes[-3:])
    result = PageReader().read(Page("d", 1, image=picture, words=stamp))
    assert (result.reader, result.words.texts) == ("text_layer", stamp.texts)
    assert result.notes == ("text_layer_rejected:too_little", "ocr_missing")
    scan = PageReader().read(Page("d", 1, image=picture))
    assert (scan.reader, scan.notes, len(scan.words)) == ("none", ("ocr_missing",), 0)


@pytest.mark.usefixtures("no_ocr")
def test_forced_ocr_that_is_not_installed_says_what_to_install() -> None:
    with pytest.raises(MissingExtraError, match=r"budgetvdr\[ocr\]"):
        PageReader().read(Page("d", 1, image=printed(LINES)[0], read="ocr"))


def test_words_without_a_picture_are_taken_at_their_word(ocr: type[FakeOcr]) -> None:
    words = words_at([("Typed", 0.1, 0.1)])
    result = PageReader().read(Page("d", 1, words=words))
    assert (result.reader, result.words.texts, ocr.seen) == ("text_layer", ("Typed",), [])


@pytest.mark.parametrize("page", [Page("d", 7), Page("d", 7, words=EMPTY, read="ocr")])
def test_a_page_with_nothing_to_read_is_named(page: Page) -> None:
    with pytest.raises(PageError, match="d: page 7 has no picture"):
        PageReader().read(page)


def test_merging_leaves_out_what_was_found() -> None:
    found = words_at([("Seen", 0.1, 0.1)])
    layer = words_at([("5een", 0.11, 0.101), ("Missed", 0.5, 0.5)])
    both = merged(found, layer)
    assert both.texts == ("Seen", "Missed")
    np.testing.assert_array_equal(both.boxes, np.concatenate([found.boxes, layer.boxes[1:]]))
    assert merged(EMPTY, layer).texts == layer.texts
    assert merged(found, EMPTY).texts == found.texts


def test_text_has_a_row_a_line() -> None:
    words = words_at([("One", 0.1, 0.1), ("line,", 0.3, 0.105), ("another", 0.1, 0.2), ("column", 0.6, 0.1)])
    assert as_lines(words) == "One line,\nanother\ncolumn"
    assert as_lines(EMPTY) == ""


def test_rows_may_run_from_right_to_left_or_upwards() -> None:
    leftwards = words_at([("اساسنامه", 0.7, 0.1), ("شرکت", 0.5, 0.1), ("بورس", 0.7, 0.2)])
    assert as_lines(leftwards) == "اساسنامه شرکت\nبورس"
    upwards = np.array([[0.1, 0.7, 0.12, 0.8], [0.1, 0.5, 0.12, 0.69], [0.2, 0.7, 0.22, 0.8]], np.float32)
    assert as_lines(Words(("Written", "upwards", "twice"), upwards)) == "Written upwards\ntwice"
