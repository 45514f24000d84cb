"""How much of the exact answer a budget finds, measured on the index itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import MakePdf

from budgetvdr import Budget, Index
from budgetvdr.encoders import Encoder
from budgetvdr.errors import BudgetError, QueryError

WORDS = ["budget", "travel", "expense", "vacation", "insurance", "dental", "payroll", "approval", "policy", "office"]


@pytest.fixture
def index(tmp_path: Path, make_pdf: MakePdf, encoder: Encoder) -> Iterator[Index]:
    pages = [" ".join(WORDS[(number * step) % len(WORDS)] for step in range(1, 12)) for number in range(1, 30)]
    with Index.open(tmp_path / "index", encoder=encoder, depths=[2]) as opened:
        opened.add_pages(make_pdf("words.pdf", *pages), show_progress_bar=False)
        yield opened


def test_scanning_every_page_finds_everything(index: Index) -> None:
    report = index.check_recall(5, budget="full", k=3)
    assert (report.recall, report.worst, report.queries, report.k) == (1.0, 1.0, 5, 3)
    assert (report.depth, report.dim, report.candidates) == (2, index.dims[-1], None)
    assert report.pages == len(index)
    assert index.info().recall == report


def test_a_first_stage_that_proposes_too_little_shows(index: Index) -> None:
    index.optimize(first_stage=True)
    assert index.info().first_stage == (2,)
    report = index.check_recall(budget=Budget(candidates=2), k=1, queries=["dental insurance", "vacation policy"])
    assert report.pages == 2
    assert report.queries == 2
    assert index.search("dental insurance", 1, budget=Budget(candidates=2))[0].budget.pages == 2


def test_refuses_what_it_cannot_measure(tmp_path: Path, index: Index, encoder: Encoder) -> None:
    with pytest.raises(QueryError, match="n must be a whole number of queries"):
        index.check_recall(0)
    with pytest.raises(BudgetError, match="dim 7"):
        index.check_recall(budget=Budget(dim=7))
    with Index.open(tmp_path / "empty", encoder=encoder) as empty:
        with pytest.raises(QueryError, match="pass queries="):
            empty.check_recall()
        assert empty.check_recall(queries=["anything"]).recall == 1.0
