from __future__ import annotations

from itertools import pairwise

import numpy as np

from budgetvdr.textlayer.columns import column_order

LINE, ASPECT = 0.01, 0.75


def columns_of_text(
    count: int, lines: int, *, by_row: bool, words: int = 6, fill: float = 1.0, skew: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Word boxes of a page set in columns, and which column each is in."""
    boxes, owner = [], []
    width = 0.9 / count - 0.01
    places = [(row, column) for row in range(lines) for column in range(count)]
    if not by_row:
        places.sort(key=lambda place: place[1])
    rng = np.random.default_rng(0)
    for row, column in places:
        ends = np.concatenate([[0], np.sort(rng.uniform(0.05, 0.95, words - 1)), [1]]) * width * fill
        left = 0.05 + column * (width + 0.01)
        for start, end in pairwise(ends):
            y = 0.05 + row * LINE * 1.2 + skew * (left + start)
            boxes.append((left + start, y, left + max(end - 0.003, start + 0.001), y + LINE))
            owner.append(column)
    return np.array(boxes, np.float32), np.array(owner)


def changes(owner: np.ndarray) -> int:
    return int((np.diff(owner) != 0).sum())


def test_lines_across_columns_are_put_back_into_columns() -> None:
    boxes, owner = columns_of_text(4, 60, by_row=True)
    order = column_order(boxes, ASPECT)
    assert order is not None
    assert sorted(order) == list(range(len(boxes)))
    assert changes(owner) > 200
    assert changes(owner[order]) == 3
    first = boxes[order][owner[order] == 0]
    assert (np.diff(first[:, 1]) >= 0).all()


def test_a_page_slightly_askew() -> None:
    boxes, owner = columns_of_text(4, 60, by_row=True, skew=0.02)
    order = column_order(boxes, ASPECT)
    assert order is not None
    assert changes(owner[order]) < 0.1 * changes(owner)


def test_words_that_come_by_column_are_left_alone() -> None:
    assert column_order(columns_of_text(4, 60, by_row=False)[0], ASPECT) is None


def test_one_column_is_left_alone() -> None:
    assert column_order(columns_of_text(1, 60, by_row=True, words=14)[0], ASPECT) is None


def test_tables_are_read_row_by_row() -> None:
    assert column_order(columns_of_text(8, 60, by_row=True, words=1, fill=0.4)[0], ASPECT) is None
    assert column_order(columns_of_text(4, 60, by_row=True, words=2, fill=0.35)[0], ASPECT) is None


def test_a_heading_over_all_columns_comes_before_them() -> None:
    boxes, owner = columns_of_text(3, 50, by_row=True)
    boxes[:, [1, 3]] += 0.3
    heading = np.array([[0.05, 0.02, 0.95, 0.06]], np.float32)
    order = column_order(np.concatenate([heading, boxes]), ASPECT)
    assert order is not None
    assert order[0] == 0
    assert changes(owner[order[1:] - 1]) <= 6


def test_few_words_and_none() -> None:
    assert column_order(np.zeros((0, 4), np.float32), ASPECT) is None
    assert column_order(np.full((500, 4), 0.5, np.float32), ASPECT) is None
    assert column_order(np.tile(np.array([[0, 0, 1, 1]], np.float32), (500, 1)), ASPECT) is None
