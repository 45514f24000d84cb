"""Letters in columns -> words with boxes, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from budgetvdr.encoders.lines import Line, level_boxes, sides, split, words_of

LEVEL = np.array([[100, 50], [300, 50], [300, 90], [100, 90]], np.float32)


def cut(text: str, columns: list[float], confidences: list[float] | None = None) -> tuple[tuple[str, ...], np.ndarray]:
    return split(text, np.array(columns, np.float32), confidences or [1.0] * len(text), 40)


def test_spaces_part_words() -> None:
    texts, spans = cut("to be", [2, 4, 10, 12])
    assert texts == ("to", "be")
    assert spans * 40 == pytest.approx(np.array([[1.5, 5.5], [9.5, 13.5]]))


def test_a_gap_parts_words_where_the_space_is_lost() -> None:
    assert cut("tobe", [2, 4, 10, 12])[0] == ("to", "be")
    assert cut("tobe", [2, 4, 6, 8])[0] == ("tobe",)


def test_neighbours_share_the_space_between_them() -> None:
    _, spans = cut("a b", [10, 11])
    assert spans[0, 1] == spans[1, 0]


def test_words_stay_on_the_line() -> None:
    _, spans = cut("ab", [0, 39])
    assert spans.min() >= 0
    assert spans.max() <= 1


def test_words_the_recogniser_is_not_sure_of_are_left_out() -> None:
    assert cut("ab cd", [1, 3, 9, 11], [0.9, 0.9, 0.1, 0.2, 0.3])[0] == ("ab",)


@pytest.mark.parametrize("text", ["", "  ", "--", "，， ，"])
def test_nothing_comes_of_a_line_without_letters(text: str) -> None:
    texts, spans = cut(text, [float(index) for index, letter in enumerate(text) if not letter.isspace()])
    assert (texts, spans.shape) == ((), (0, 2))


def test_scripts_without_spaces_come_as_one_word() -> None:
    assert cut("資本支出", [2, 6, 10, 14])[0] == ("資本支出",)


@pytest.mark.parametrize(
    ("turn", "first"),
    [(0, [100, 50, 150, 90]), (2, [250, 50, 300, 90]), (1, [100, 80, 300, 90]), (3, [100, 50, 300, 60])],
)
def test_a_word_lies_where_reading_begins(turn: int, first: list[float]) -> None:
    line = Line(np.roll(LEVEL, turn, axis=0), ("a",), np.array([[0, 0.25]], np.float32), 1.0)
    words = words_of([line], (1000, 500))
    assert words.boxes * np.array([1000, 500, 1000, 500]) == pytest.approx(np.array([first]))


def test_boxes_stay_on_the_picture() -> None:
    line = Line(LEVEL - np.float32(120), ("a",), np.array([[0, 1]], np.float32), 1.0)
    assert words_of([line], (100, 100)).boxes.min() == 0


def test_no_lines_no_words() -> None:
    assert len(words_of([], (10, 10))) == 0


@pytest.mark.parametrize("degrees", [0, 3, -7, 90, 180, 270])
def test_lines_are_levelled_by_those_along_the_page(degrees: float) -> None:
    angle = math.radians(degrees)
    turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]], np.float32)
    lines = [
        Line(((LEVEL + np.array([0, 60 * row])) @ turn).astype(np.float32), (), np.zeros((0, 2)), 1.0)
        for row in range(3)
    ]
    crossing = np.roll(np.array([[0, 0], [20, 0], [20, 400], [0, 400]], np.float32), 1, axis=0)
    lines.append(Line((crossing @ turn).astype(np.float32), (), np.zeros((0, 2)), 1.0))
    boxes = level_boxes(lines, np.array([True, True, True, False]))
    assert boxes[0] == pytest.approx([100, 50, 300, 90], abs=0.01)
    assert boxes[2] == pytest.approx([100, 170, 300, 210], abs=0.01)


def test_sides_of_one_and_of_many() -> None:
    width, height = sides(LEVEL)
    assert (float(width), float(height)) == (200, 40)
    assert sides(np.stack([LEVEL, np.roll(LEVEL, 1, axis=0)]))[0].tolist() == [200, 40]
