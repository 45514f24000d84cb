"""Metrics against the formulas, written out."""

from __future__ import annotations

import sys
from dataclasses import astuple
from math import log2

import pytest

from budgetvdr.errors import MissingExtraError
from budgetvdr.evaluate import Metrics, score_run

DOC = "annual report.pdf"


def pages(*numbers: int) -> list[tuple[str, int]]:
    return [(DOC, number) for number in numbers]


def score(qrels: dict[int, int], *ranking: int) -> Metrics:
    return score_run({"q": {(DOC, page): grade for page, grade in qrels.items()}}, {"q": pages(*ranking)})


def test_one_right_page_at_rank_three() -> None:
    found = score({7: 1}, 1, 2, 7, 3)
    assert found.ndcg_5 == pytest.approx(1 / log2(3 + 1))
    assert found.recall_1 == 0
    assert found.recall_5 == 1
    assert found.average_precision == pytest.approx(1 / 3)


def test_gain_is_linear_in_the_grade() -> None:
    found = score({7: 2, 8: 1}, 8, 7)
    linear = (1 / log2(2) + 2 / log2(3)) / (2 / log2(2) + 1 / log2(3))
    exponential = (1 / log2(2) + 3 / log2(3)) / (3 / log2(2) + 1 / log2(3))
    assert found.ndcg_5 == pytest.approx(linear)
    assert abs(linear - exponential) > 0.05


def test_the_ideal_counts_pages_that_were_not_found() -> None:
    found = score({7: 2, 8: 1, 9: 1}, 8, 1, 2, 3, 4, 7)
    assert found.ndcg_5 == pytest.approx(1 / (2 + 1 / log2(3) + 1 / log2(4)))
    assert found.recall_1 == pytest.approx(1 / 3)
    assert found.recall_5 == pytest.approx(1 / 3)
    assert found.average_precision == pytest.approx((1 / 1 + 2 / 6 + 0) / 3)


def test_the_ideal_is_cut_at_five_too() -> None:
    assert score({page: 1 for page in range(1, 9)}, 1, 2, 3, 4, 5).ndcg_5 == pytest.approx(1)


def test_a_grade_of_zero_is_not_relevant() -> None:
    found = score({7: 2, 8: 0}, 8, 7)
    assert found.ndcg_5 == pytest.approx((2 / log2(3)) / 2)
    assert found.recall_1 == 0
    assert found.average_precision == pytest.approx(1 / 2)


def test_questions_without_hits_count_zero_in_every_mean() -> None:
    qrels = {name: {(DOC, 7): 1} for name in ("found", "empty", "absent")}
    found = score_run(qrels, {"found": pages(7), "empty": []})
    assert astuple(found) == pytest.approx((1 / 3, 1 / 3, 1 / 3, 1 / 3))


def test_hits_of_questions_outside_the_qrels_do_not_count() -> None:
    assert score_run({"q": {(DOC, 7): 1}}, {"q": pages(7), "other": pages(1)}).ndcg_5 == 1


def test_the_order_given_decides_whatever_the_names() -> None:
    """trec_eval alone would put the later name first among equal scores."""
    for first, second in ((1, 2), (2, 1), (10, 9), (9, 10)):
        assert score({first: 1}, first, second).recall_1 == 1
        assert score({first: 1}, second, first).recall_1 == 0


def test_a_page_that_comes_twice_keeps_its_first_rank() -> None:
    assert score({7: 1}, 7, 1, 7).average_precision == 1


def test_the_same_page_number_of_another_document_is_another_page() -> None:
    found = score_run({"q": {("a.pdf", 7): 1}}, {"q": [("b.pdf", 7), ("a.pdf", 7)]})
    assert found.recall_1 == 0
    assert found.recall_5 == 1


def test_empty_qrels_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one question"):
        score_run({}, {})


def test_a_missing_metrics_library_is_told_with_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ir_measures", None)
    with pytest.raises(MissingExtraError, match=r'pip install "budgetvdr\[eval\]"'):
        score({7: 1}, 7)
