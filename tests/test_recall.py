"""How much of the exact answer a budget finds, measured on the index itself."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import MakePdf

from budgetvdr import Budget, Index, Page, Words
from budgetvdr.encoders import Encoder
from budgetvdr.errors import BudgetError, QueryError
from budgetvdr.pages import EncodedQuery
from budgetvdr.similarity.maxsim import unit_prefix

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


def test_pages_without_text_ask_for_queries_in_code_and_on_the_command_line(tmp_path: Path, encoder: Encoder) -> None:
    with Index.open(tmp_path / "index", encoder=encoder, depths=[2]) as index:
        index.add_pages(Page("empty", 1, words=_words("")), show_progress_bar=False)
        with pytest.raises(QueryError, match=r"pass queries= to check_recall, or --query on the command line"):
            index.check_recall()


@pytest.mark.parametrize("length", [1.0, 1e-4])
def test_a_first_stage_that_proposes_too_little_shows(tmp_path: Path, encoder: Encoder, length: float) -> None:
    """Whatever the length of query vectors, which scores and what counts as equal grow with."""
    rng = np.random.default_rng(5)
    pages = (Page("words", number, words=_words(" ".join(rng.choice(WORDS, 60)))) for number in range(1, 121))
    with Index.open(tmp_path / "many", encoder=Scaled(encoder, length), depths=[2]) as index:
        index.add_pages(pages, show_progress_bar=False)
        budget = Budget(candidates=1)
        assert index.check_recall(20, budget=budget, k=1).recall == 1.0, "without a first stage every page is scored"
        index.optimize(first_stage=True)
        assert index.info().first_stage == (2,)
        one, all_but_one = (index.check_recall(20, budget=Budget(candidates=count), k=1) for count in (1, 119))
    assert (one.pages, all_but_one.pages) == (1, 119)
    assert one.worst == 0.0 and one.recall < 0.95
    assert one.recall < all_but_one.recall
    assert type(one.worst) is type(one.recall) is float


class Scaled:
    """The bundled encoder with query vectors of a given length."""

    def __init__(self, encoder: Encoder, length: float) -> None:
        self.manifest = replace(encoder.manifest, unit_queries=False)
        self.encode_pages = encoder.encode_pages
        self._encoder = encoder
        self._length = np.float32(length)

    def encode_query(self, text: str, depth: int) -> EncodedQuery:
        query = self._encoder.encode_query(text, depth)
        return EncodedQuery(unit_prefix(query.vectors, query.vectors.shape[1]) * self._length, query.tokens)


def _words(text: str) -> Words:
    texts = tuple(text.split())
    return Words(texts, np.tile(np.array([[0.1, 0.1, 0.2, 0.2]], np.float32), (len(texts), 1)))


def test_a_later_process_is_told(tmp_path: Path, index: Index, encoder: Encoder) -> None:
    path, file = tmp_path / "index", tmp_path / "index" / ".budgetvdr.recall.json"
    with Index.open(path, encoder=encoder, read_only=True) as reader:
        own = reader.check_recall(2, budget="full", k=3)
        assert reader.info().recall == own
        assert index.info().recall is None and not file.exists(), "read-only writes nothing"
        report = index.check_recall(5, budget="full", k=3)
        assert reader.info().recall == own
    with Index.open(path, encoder=encoder, version=index.info().version) as pinned:
        assert pinned.info().recall == report
        pinned.check_recall(3)
    with Index.open(path, encoder=encoder, create=False) as later:
        assert later.info().recall == report
        for text in ("", "[]", '{"identity": "x", "report": {}}', '{"report": 1}', file.read_text()[:-9]):
            file.write_text(text)
            assert later.info().recall is None
        kept = index.check_recall(2)
        assert later.info().recall == kept
    assert [entry.name for entry in path.glob(".budgetvdr.recall*")] == [file.name], "nothing half-written stays"
    # A file that cannot be written costs the report nothing.
    file.unlink()
    file.mkdir()
    assert index.check_recall(2).recall == 1.0
    assert [entry.name for entry in path.glob(".budgetvdr.recall*")] == [file.name]
    # The report of an index that was there before says nothing about the one that is there now.
    file.rmdir()
    index.check_recall(2)
    shutil.rmtree(path / "pages.lance")
    with Index.open(path, encoder=encoder, depths=[2]) as anew:
        assert anew.info().recall is None


def test_refuses_what_it_cannot_measure(tmp_path: Path, index: Index, encoder: Encoder) -> None:
    with pytest.raises(QueryError, match="n must be a whole number of queries"):
        index.check_recall(0)
    with pytest.raises(BudgetError, match="dim 7"):
        index.check_recall(budget=Budget(dim=7))
    with pytest.raises(QueryError, match="at least one query"):
        index.check_recall(queries=[])
    with pytest.raises(QueryError, match="found int 7 at place 1"):
        index.check_recall(queries=["fine", 7])  # type: ignore[list-item]
    with Index.open(tmp_path / "empty", encoder=encoder) as empty:
        with pytest.raises(QueryError, match="pass queries="):
            empty.check_recall()
        with pytest.raises(QueryError, match="no vectors"):
            empty.check_recall(queries=["anything"])
