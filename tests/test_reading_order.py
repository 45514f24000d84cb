"""The order of lines, on layouts made by hand: units are line heights, a line is 1 high and they stand 1.5 apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budgetvdr.encoders.reading_order import reading_order

Placed = tuple[str, float, float, float]


def ordered(lines: Sequence[Placed], *, unit: float = 20.0, seed: int = 0) -> list[str]:
    """Names of lines (name, left, row, width) as read, whatever order they come in."""
    shuffled = [lines[index] for index in np.random.default_rng(seed).permutation(len(lines))]
    boxes = np.array([[left, 1.5 * row, left + width, 1.5 * row + 1] for _, left, row, width in shuffled]) * unit
    return [shuffled[index][0] for index in reading_order(boxes)]


def column(name: str, left: float, rows: range, width: float = 15.0) -> list[Placed]:
    return [(f"{name}{row}", left, row, width) for row in rows]


def names(lines: Sequence[Placed]) -> list[str]:
    return [name for name, *_ in lines]


def test_nothing_and_one_line() -> None:
    assert reading_order(np.zeros((0, 4))).tolist() == []
    assert ordered([("only", 3, 3, 5)]) == ["only"]


def test_one_column_is_read_downwards() -> None:
    lines = [("title", 10, 0, 12), *column("a", 0, range(2, 12), 30), ("last", 0, 12, 7)]
    assert ordered(lines) == names(lines)


def test_two_columns_on_the_same_base_lines() -> None:
    lines = [*column("a", 0, range(20)), *column("b", 16, range(20))]
    assert ordered(lines) == names(lines)


def test_columns_of_unlike_length_and_short_last_lines() -> None:
    lines = [*column("a", 0, range(9)), ("a-end", 0, 9, 2), *column("b", 16, range(4)), ("b-end", 16, 4, 3)]
    assert ordered(lines) == names(lines)


def test_a_heading_over_both_columns_comes_first() -> None:
    lines = [("title", 2, 0, 26), ("authors", 8, 1, 14), *column("a", 0, range(3, 12)), *column("b", 16, range(3, 12))]
    assert ordered(lines) == names(lines)


def test_a_caption_over_both_columns_divides_them() -> None:
    above = [*column("a", 0, range(5)), *column("b", 16, range(5))]
    below = [*column("c", 0, range(8, 13)), *column("d", 16, range(8, 13))]
    lines = [*above, ("caption", 0, 6, 31), *below]
    assert ordered(lines) == names(lines)


def test_running_text_above_columns_keeps_its_short_lines() -> None:
    intro = [*column("i", 0, range(4), 31), ("i-end", 0, 4, 9)]
    lines = [*intro, *column("a", 0, range(6, 12)), *column("b", 16, range(6, 12)), ("footer", 12, 14, 6)]
    assert ordered(lines) == names(lines)


def test_a_newspaper_with_a_headline_over_two_of_four_columns() -> None:
    first = column("a", 0, range(30), 12)
    story = [("headline", 13, 0, 25), *column("b", 13, range(2, 30), 12), *column("c", 26, range(2, 30), 12)]
    lines = [*first, *story, *column("d", 39, range(30), 12)]
    assert ordered(lines) == names(lines)


def test_boxes_that_touch_across_a_narrow_gutter() -> None:
    lines = [*column("a", 0, range(10), 15.2), *column("b", 15, range(10), 15.2)]
    assert ordered(lines) == names(lines)


def test_a_line_found_in_pieces_stays_in_its_column() -> None:
    left = [*column("a", 0, range(4)), ("a4-1", 0, 4, 6), ("a4-2", 8, 4, 7), *column("a", 0, range(5, 9))]
    lines = [*left, *column("b", 16, range(9))]
    assert ordered(lines) == names(lines)


def test_a_table_is_read_row_by_row() -> None:
    lines = [(f"{row}-{cell}", 8 * cell, row, 3 + (row + cell) % 3) for row in range(12) for cell in range(5)]
    assert ordered(lines) == names(lines)


def test_labels_and_values_are_read_row_by_row() -> None:
    lines = [pair for row in range(8) for pair in ((f"label{row}", 0, row, 4), (f"value{row}", 10, row, 20))]
    assert ordered(lines) == names(lines)


def test_a_table_under_columns() -> None:
    table = [(f"{row}-{cell}", 6 * cell, row, 3) for row in range(14, 20) for cell in range(5)]
    lines = [*column("a", 0, range(10)), *column("b", 16, range(10)), ("table", 0, 12, 30), *table]
    assert ordered(lines) == names(lines)


def test_cells_of_a_row_may_differ_a_little_in_height() -> None:
    boxes = np.array([[40, 12, 60, 30], [0, 10, 20, 30], [20, 9, 38, 31], [0, 40, 20, 60], [21, 38, 60, 60]])
    assert reading_order(boxes).tolist() == [1, 2, 0, 3, 4]


def test_a_tall_label_beside_rows_does_not_tear_them_apart() -> None:
    rows = [[30, 30 * row, 200, 30 * row + 20] for row in range(7)]
    order = reading_order(np.array([[0, 5, 20, 195], *rows])).tolist()
    assert [index for index in order if index] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("unit", [0.001, 1.0, 1000.0])
def test_the_unit_does_not_matter(unit: float) -> None:
    lines = [("title", 2, 0, 26), *column("a", 0, range(2, 12)), *column("b", 16, range(2, 12))]
    assert ordered(lines, unit=unit) == names(lines)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*[st.floats(0, 1000)] * 2, *[st.floats(0, 300)] * 2), max_size=60))
def test_every_line_is_read_once(placed: list[tuple[float, float, float, float]]) -> None:
    boxes = np.array([[x, y, x + width, y + height] for x, y, width, height in placed]).reshape(-1, 4)
    assert sorted(reading_order(boxes).tolist()) == list(range(len(placed)))
