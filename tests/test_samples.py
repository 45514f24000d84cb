"""The sample documents: what the package ships is what the script draws, and every question has one right page."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pypdfium2 as pdfium
import pytest

from budgetvdr.evaluate import load_benchmark

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ROOT / "budgetvdr" / "samples"
EVALUATION = ROOT / "tests" / "data" / "samples_eval"
MODULES = ("make_samples", "layout", "charts", "figures", "handbook", "report", "scan", "questions")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The script and its neighbours, imported from their folder and forgotten afterwards."""
    sys.path.insert(0, str(ROOT / "samples"))
    try:
        modules = {name: import_module(name) for name in MODULES}
    finally:
        sys.path.remove(str(ROOT / "samples"))
        for name in MODULES:
            sys.modules.pop(name, None)
    return modules["make_samples"]


@pytest.fixture(scope="module")
def drawn(script: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawn")
    script.write_documents(folder)
    script.write_evaluation(folder)
    return folder


def page_texts(source: Path | bytes) -> list[str]:
    with pdfium.PdfDocument(source) as document:
        return [" ".join(page.get_textpage().get_text_range().split()) for page in document]


def test_drawing_twice_gives_the_same_bytes(script: ModuleType, drawn: Path, tmp_path: Path) -> None:
    for path in script.write_documents(tmp_path):
        assert path.read_bytes() == (drawn / path.name).read_bytes()


def test_the_shipped_documents_are_the_drawn_ones(drawn: Path) -> None:
    """Compares what is on the pages; bytes may differ between versions of the drawing libraries."""
    assert {path.name for path in SHIPPED.glob("*.pdf")} == {path.name for path in drawn.glob("*.pdf")}
    for path in sorted(drawn.glob("*.pdf")):
        assert page_texts(path) == page_texts(SHIPPED / path.name)
        with pdfium.PdfDocument(path) as fresh, pdfium.PdfDocument(SHIPPED / path.name) as shipped:
            for new, old in zip(fresh, shipped, strict=True):
                pictures = [page.render(scale=0.5, grayscale=True).to_numpy().astype(float) for page in (new, old)]
                assert np.abs(pictures[0] - pictures[1]).mean() < 2


def test_the_committed_questions_are_those_of_the_script(drawn: Path) -> None:
    for name in ("queries.jsonl", "qrels.tsv"):
        assert (EVALUATION / name).read_text(encoding="utf-8") == (drawn / name).read_text(encoding="utf-8")


def test_the_documents_are_what_the_demo_needs() -> None:
    pages = {path.name: page_texts(path) for path in SHIPPED.glob("*.pdf")}
    assert {name: len(texts) for name, texts in pages.items()} == {
        "handbook.pdf": 16,
        "annual-report.pdf": 12,
        "scanned-papers.pdf": 6,
    }
    assert set(pages["scanned-papers.pdf"]) == {""}, "a scan has no text layer"
    assert all(len(text) > 200 for name in ("handbook.pdf", "annual-report.pdf") for text in pages[name][1:])
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 1_500_000


def test_every_question_is_answered_on_its_page_and_nowhere_else(script: ModuleType) -> None:
    texts = {path.name: page_texts(path) for path in SHIPPED.glob("*.pdf")}
    texts["scanned-papers.pdf"] = page_texts(script.scan.__globals__["typed"]())
    for question in script.QUESTIONS:
        found = [
            (doc, n) for doc, pages in texts.items() for n, text in enumerate(pages, 1) if question.evidence in text
        ]
        assert found == [(question.doc, question.page_num)], question.text


def test_the_set_loads_as_an_evaluation_set(script: ModuleType) -> None:
    benchmark = load_benchmark(EVALUATION)
    assert len(benchmark.queries) == len(script.QUESTIONS) >= 20
    assert benchmark.unanswered == ()
    assert {doc for query in benchmark.queries for doc in query.answer_documents} == set(benchmark.documents)
    assert benchmark.only(["scanned-papers.pdf"]).queries
    first = json.loads((EVALUATION / "queries.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert benchmark.queries[0].text == first["text"]


def test_a_page_that_is_too_full_is_refused(script: ModuleType) -> None:
    handbook = script.HANDBOOK
    crowded = type(handbook)(handbook.title, handbook.subject, handbook.cover, (handbook.pages[0] * 3,))
    with pytest.raises(ValueError, match="page 2 of 'Staff Handbook' is too full"):
        script.draw(crowded)


def test_accounts_that_do_not_balance_are_refused(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = script.report.__globals__["fig"]
    monkeypatch.setattr(figures, "OPENING_CASH", figures.OPENING_CASH + 1)
    with pytest.raises(ValueError, match="cash: 4621 is not 4620"):
        script.report()
