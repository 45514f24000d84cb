"""The report: retention, bytes, the JSON object and the table."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from budgetvdr.evaluate import Metrics, Report, Row
from budgetvdr.evaluate.report import retention

FULL = Row(6, 6, 384, 491.5, Metrics(0.75, 0.7, 0.9, 0.72), 1.0, 21.25)
CHEAP = Row(2, 2, 32, 491.5, Metrics(0.60, 0.5, 0.8, 0.55), 0.8, 3.5)


def test_bytes_a_page_are_vectors_times_width_times_two() -> None:
    assert FULL.bytes_per_page == round(491.5 * 384 * 2)
    assert CHEAP.bytes_per_page * 12 == FULL.bytes_per_page


def test_retention_is_the_quotient_of_ndcg() -> None:
    assert retention(0.6, 0.75) == pytest.approx(0.8)
    assert retention(0.8, 0.75) == pytest.approx(0.8 / 0.75)
    assert retention(0.0, 0.0) is None


def test_the_json_object_has_the_promised_keys_in_order() -> None:
    dumped = json.loads(json.dumps(Report("tiny", 12, 1, 40, (FULL, CHEAP)).as_dict()))
    assert list(dumped) == ["set", "queries", "pages", "rows"]
    assert (dumped["set"], dumped["queries"], dumped["pages"]) == ("tiny", 12, 40)
    assert dumped["rows"][1] == {
        "depth": 2,
        "page_depth": 2,
        "dim": 32,
        "vectors": 491.5,
        "ndcg@5": 0.6,
        "recall@1": 0.5,
        "recall@5": 0.8,
        "map": 0.55,
        "retention": 0.8,
        "bytes_per_page": 31456,
        "ms_per_query": 3.5,
    }


def test_the_table_is_aligned_and_says_what_was_left_out() -> None:
    head, columns, *rows = Report("tiny", 12, 1, 40, (FULL, CHEAP)).lines()
    assert head == "tiny: 12 questions, 1 without an answer page left out, 40 pages"
    assert {len(line) for line in (columns, *rows)} == {len(columns)}
    assert rows[1].split() == ["2", "32", "491.5", "0.6000", "0.5000", "0.8000", "0.5500", "80.0%", "31456", "3.50"]


def test_a_query_on_pages_of_another_depth_shows_both() -> None:
    crossed = Report("tiny", 12, 0, 40, (FULL, replace(CHEAP, page_depth=6)))
    *_, row = crossed.lines()
    assert row.split()[:2] == ["2/6", "32"]
    rows = json.loads(json.dumps(crossed.as_dict()))["rows"]
    assert (rows[1]["depth"], rows[1]["page_depth"]) == (2, 6)


def test_a_full_budget_that_finds_nothing_has_no_retention() -> None:
    blind = Row(6, 6, 384, 10.0, Metrics(0.0, 0.0, 0.0, 0.0), None, 1.0)
    report = Report("tiny", 12, 0, 40, (blind,))
    *_, row = report.lines()
    assert row.split()[7] == "-"
    assert json.loads(json.dumps(report.as_dict()))["rows"][0]["retention"] is None
