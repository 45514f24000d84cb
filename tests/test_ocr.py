"""Reading pictures made on the spot, whose words and places are known."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageDraw, ImageFont

from budgetvdr.encoders import ocr
from budgetvdr.encoders.ocr import LARGEST_SIDE, LONGEST_SIDE, OcrReader
from budgetvdr.errors import MissingExtraError, SourceError
from budgetvdr.pages import Words

pytest.importorskip("rapidocr")

LINES = (
    "Capital spending above 40,000 needs two signatures.",
    "The board meets in March and in September",
    "and reviews what each branch has bought.",
    "Requests go to finance@example.org before noon.",
)
WORDS = " ".join(LINES).split()


@pytest.fixture(scope="module")
def reader() -> OcrReader:
    return OcrReader()


def printed(
    lines: Sequence[str] = LINES, size: tuple[int, int] = (900, 400), at: tuple[int, int] = (60, 60), height: int = 26
) -> Image.Image:
    picture = Image.new("RGB", size, "white")
    write(picture, lines, at, height)
    return picture


def write(picture: Image.Image, lines: Sequence[str], at: tuple[int, int], height: int = 26) -> None:
    font = ImageFont.load_default(height)
    for number, line in enumerate(lines):
        ImageDraw.Draw(picture).text((at[0], at[1] + 1.6 * height * number), line, "black", font)


def places(lines: Sequence[str] = LINES, at: tuple[int, int] = (60, 60), height: int = 26) -> npt.NDArray[np.float64]:
    """(n, 4) boxes in pixels of the words that `printed` draws."""
    font = ImageFont.load_default(height)
    boxes = []
    for number, line in enumerate(lines):
        start = 0
        for word in line.split():
            start = line.index(word, start)
            left, y = at[0] + font.getlength(line[:start]), at[1] + 1.6 * height * number
            boxes.append([left, y, left + font.getlength(word), y + height])
            start += len(word)
    return np.array(boxes)


def found(words: Words, expected: Sequence[str] = WORDS) -> float:
    """Share of the expected words that were read."""
    return sum((Counter(words.texts) & Counter(expected)).values()) / len(expected)


def middles(boxes: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    return np.stack([boxes[:, [0, 2]].mean(axis=1), boxes[:, [1, 3]].mean(axis=1)], axis=1)


def test_words_come_in_order_with_their_places(reader: OcrReader) -> None:
    picture = printed()
    words = reader.read(picture)
    assert list(words.texts) == WORDS
    boxes, true = words.boxes * np.array([*picture.size, *picture.size]), places()
    assert words.boxes.dtype == np.float32
    # A box sticks out above and below the line; sideways it is within a letter.
    assert np.abs(boxes[:, [0, 2]] - true[:, [0, 2]]).max() < 13
    assert np.abs(middles(boxes) - middles(true)).max() < 10


def test_small_and_large_print(reader: OcrReader) -> None:
    small = reader.read(printed(height=16, size=(700, 300)))
    assert found(small) >= 0.95
    assert found(reader.read(printed(height=90, size=(2600, 800)))) >= 0.95


@pytest.mark.parametrize("angle", [2.0, -3.0])
def test_a_page_askew_is_read_as_well(reader: OcrReader, angle: float) -> None:
    picture = printed(LINES * 2, (900, 600))
    straight = found(reader.read(picture), WORDS * 2)
    turned = picture.rotate(angle, Image.Resampling.BICUBIC, fillcolor="white")
    words = reader.read(turned)
    assert found(words, WORDS * 2) >= 0.97 * straight
    assert list(words.texts[:6]) == WORDS[:6]
    radians, centre = math.radians(angle), np.array(picture.size) / 2
    turn = np.array([[math.cos(radians), math.sin(radians)], [-math.sin(radians), math.cos(radians)]])
    expected = (middles(places(LINES * 2)) - centre) @ turn.T + centre
    first = middles(words.boxes * np.array([*picture.size, *picture.size]))[:6]
    assert np.abs(first - expected[:6]).max() < 12


@pytest.mark.parametrize("turn", [90, 180, 270])
def test_sideways_and_upside_down(reader: OcrReader, turn: int) -> None:
    picture = printed().rotate(turn, expand=True)
    words = reader.read(picture)
    assert list(words.texts) == WORDS
    # The first line is where the turn has put the top of the page.
    x, y = middles(words.boxes)[:3].mean(axis=0) - middles(words.boxes)[-3:].mean(axis=0)
    assert {90: x < 0 and abs(x) > 0.2, 180: y > 0.2, 270: x > 0.2}[turn]


def test_a_line_that_runs_upwards_beside_a_level_page(reader: OcrReader) -> None:
    picture = printed(size=(900, 600), at=(160, 60))
    label = printed(["Revenue per quarter"], (400, 60), (10, 10)).rotate(90, expand=True)
    picture.paste(label, (30, 40))
    words = reader.read(picture)
    assert found(words) >= 0.95
    assert {"Revenue", "per", "quarter"} <= set(words.texts)
    assert words.boxes[words.texts.index("quarter"), 3] < words.boxes[words.texts.index("Revenue"), 1] + 0.05


def test_two_columns_are_read_one_after_the_other(reader: OcrReader) -> None:
    left = [
        "Rivers carry sand and silt",
        "down from the mountains and",
        "drop it where they slow",
        "down near to the coast.",
    ]
    right = [
        "Deserts move with the wind",
        "that piles up grain upon",
        "grain behind any stone",
        "or bush it comes across.",
    ]
    picture = Image.new("RGB", (1000, 330), "white")
    write(picture, left, (50, 60))
    write(picture, right, (530, 60))
    assert list(reader.read(picture).texts) == " ".join(left + right).split()


def test_digits_alone_in_their_cells_are_not_taken_for_upright_lines(reader: OcrReader) -> None:
    picture = Image.new("RGB", (700, 400), "white")
    cells = [[str(1 + (3 * row + cell) % 9) for cell in range(5)] for row in range(5)]
    for row, line in enumerate(cells):
        for cell, digit in enumerate(line):
            write(picture, [digit], (60 + 120 * cell, 40 + 60 * row), 30)
    assert found(reader.read(picture), [digit for line in cells for digit in line]) >= 0.8


@pytest.mark.parametrize("mode", ["L", "1", "P", "RGBA", "CMYK", "I;16", "F"])
def test_any_mode(reader: OcrReader, mode: str) -> None:
    if mode == "RGBA":
        picture = Image.new("RGBA", (900, 400), (0, 0, 0, 0))
        write(picture, LINES, (60, 60))
    elif mode == "I;16":
        picture = Image.fromarray(np.asarray(printed().convert("L")).astype(np.uint16) * 257)
    else:
        picture = printed().convert(mode)
    assert found(reader.read(picture)) >= 0.95


def test_light_on_dark(reader: OcrReader) -> None:
    picture = Image.fromarray(255 - np.asarray(printed()))
    assert found(reader.read(picture)) >= 0.95


def noise(deviation: float) -> Image.Image:
    grey = np.random.default_rng(5).normal(225, deviation, (800, 600))
    return Image.fromarray(np.clip(grey, 0, 255).astype(np.uint8))


def shades() -> Image.Image:
    x, y = np.meshgrid(np.linspace(0, 9, 600), np.linspace(0, 7, 800))
    return Image.fromarray((127 + 120 * np.sin(x) * np.cos(y)).astype(np.uint8))


def specks() -> Image.Image:
    picture = Image.new("L", (600, 800), "white")
    for x, y in np.random.default_rng(6).integers(0, 600, (300, 2)).tolist():
        ImageDraw.Draw(picture).ellipse((x, y, x + 3, y + 4), fill=60)
    return picture


def strokes() -> Image.Image:
    """Scribbles in rows, as large as letters: found as lines, and read as letters of little confidence."""
    picture = Image.new("L", (700, 300), "white")
    random = np.random.default_rng(3)
    for row in range(4):
        x = 40
        while x < 640:
            corners = random.integers(0, 24, (5, 2)) + np.array([x, 40 + 60 * row])
            ImageDraw.Draw(picture).line([(int(a), int(b)) for a, b in corners], fill=0, width=3)
            x += int(random.integers(18, 40))
    return picture


@pytest.mark.parametrize(
    "picture",
    [
        Image.new("RGB", (850, 1100), "white"),
        Image.new("L", (40, 40)),
        noise(4),
        noise(30),
        shades(),
        specks(),
        strokes(),
    ],
)
def test_nothing_is_read_where_nothing_is_written(reader: OcrReader, picture: Image.Image) -> None:
    words = reader.read(picture)
    assert (words.texts, words.boxes.shape) == ((), (0, 4))


@pytest.mark.parametrize("size", [(1, 1), (2, 900), (3000, 5)])
def test_pictures_of_odd_shapes(reader: OcrReader, size: tuple[int, int]) -> None:
    assert len(reader.read(Image.new("RGB", size, "white"))) == 0


def test_a_picture_without_pixels_is_refused(reader: OcrReader) -> None:
    with pytest.raises(SourceError, match="0 x 10"):
        reader.read(Image.new("RGB", (0, 10)))


def test_larger_pictures_are_reduced(reader: OcrReader) -> None:
    picture = printed(LINES[:1], (6000, 1200), (300, 300), 160)
    words = reader.read(picture)
    assert list(words.texts) == LINES[0].split()
    assert np.abs(middles(words.boxes * 6000)[:, 0] - middles(places(LINES[:1], (300, 300), 160))[:, 0]).max() < 60
    assert picture.size == (6000, 1200)


def test_threads_share_one_reader_and_agree(reader: OcrReader) -> None:
    pictures = [printed(LINES[number : number + 2], (900, 200)) for number in range(3)]
    alone = [reader.read(picture) for picture in pictures]
    fresh = OcrReader()
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(fresh.read, pictures))
    for one, other in zip(alone, together, strict=True):
        assert one.texts == other.texts
        assert np.array_equal(one.boxes, other.boxes)


def test_a_page_of_small_letters_is_drawn_larger(reader: OcrReader) -> None:
    asked: list[int] = []

    def render(height: int, count: int, longest_side: int) -> Image.Image:
        asked.append(longest_side)
        scale = longest_side / LONGEST_SIDE
        return printed(LINES * count, (round(1275 * scale), longest_side), (60, 60), round(height * scale))

    assert max(reader.picture(lambda side: render(26, 8, side)).size) == LONGEST_SIDE
    assert asked == [LONGEST_SIDE]
    asked.clear()
    assert max(reader.picture(lambda side: render(12, 20, side)).size) == LARGEST_SIDE
    assert asked == [LONGEST_SIDE, LARGEST_SIDE]
    asked.clear()
    assert max(reader.picture(lambda side: render(12, 1, side)).size) == LONGEST_SIDE


def test_it_is_quiet_and_stays_offline(tmp_path: Path) -> None:
    printed(LINES[:1], (900, 120), (40, 40)).save(tmp_path / "line.png")
    # In a process of its own: a console handler writes to the stream there was when rapidocr was first imported.
    code = """
import logging, socket, sys
from PIL import Image
from budgetvdr.encoders.ocr import OcrReader
def refuse(*arguments):
    raise AssertionError("OCR reached for the network")
socket.socket.connect = socket.getaddrinfo = refuse
reader = OcrReader()
words = reader.read(Image.open(sys.argv[1]))
assert len(words) == 7, words.texts
assert len(reader.read(Image.new("RGB", (300, 300), "white"))) == 0
assert (logging.root.handlers, logging.root.level) == ([], logging.WARNING)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "line.png")]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_models_are_opened_by_the_first_reading() -> None:
    code = (
        "import sys; from budgetvdr.encoders.ocr import OcrReader; reader = OcrReader();"
        "sys.exit(any(name in sys.modules for name in ('rapidocr', 'cv2', 'onnxruntime', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("absent", "extra"), [("rapidocr", "ocr"), ("onnxruntime", "cpu")])
def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, absent: str, extra: str) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else real(name))
    with pytest.raises(MissingExtraError, match=rf'{absent}.*pip install "budgetvdr\[{extra}\]"'):
        OcrReader()


def test_a_rapidocr_without_models_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(ocr.importlib.util, "find_spec", lambda _: bare)
    with pytest.raises(MissingExtraError, match="_det_"):
        OcrReader()
