"""Versions, deleting and space of an index, as a user sees them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from conftest import MakePdf
from PIL import Image, ImageDraw, ImageFont

from budgetvdr import Budget, Index
from budgetvdr.encoders import Encoder
from budgetvdr.encoders.ocr import OcrReader
from budgetvdr.encoders.reading import PageReader
from budgetvdr.errors import (
    BudgetError,
    IndexFormatError,
    MissingExtraError,
    QueryError,
    ReadOnlyError,
    SourceNotFoundError,
    StorageError,
)
from budgetvdr.pages import Page, Words
from budgetvdr.store import Store

TEXTS = ("Travel in premium economy is allowed.", "Parental leave is twenty weeks.", "Report a lost laptop at once.")


@pytest.fixture
def index(tmp_path: Path, encoder: Encoder, make_pdf: MakePdf) -> Iterator[Index]:
    with Index.open(tmp_path / "index", encoder=encoder) as opened:
        for year, text in enumerate(TEXTS, start=2020):
            opened.add_pages(make_pdf(f"{year}.pdf", text), metadata={"year": year}, show_progress_bar=False)
        yield opened


def test_an_index_is_read_as_it_was_at_a_version(index: Index, encoder: Encoder, make_pdf: MakePdf) -> None:
    wanted = index.info().version
    index.delete(doc_id="2021.pdf")
    assert [entry.pages for entry in index.versions() if entry.version >= wanted] == [3, 2]
    with Index.open(index.info().path, encoder=encoder, version=wanted) as old:
        assert old.info().version == wanted
        assert [hit.id for hit in old.search("How long is parental leave?", k=1)] == ["2021.pdf#1"]
        assert "2021.pdf#1" not in [hit.id for hit in index.search("How long is parental leave?")]
        index.delete(doc_id="2020.pdf")
        assert (len(old), len(index)) == (3, 1)
        for write in (
            lambda: old.add_pages(make_pdf("new.pdf", "new")),
            lambda: old.delete(doc_id="2020.pdf"),
            old.optimize,
        ):
            with pytest.raises(ReadOnlyError, match=f"at version {wanted}, which is read-only; open it without"):
                write()
    with pytest.raises(SourceNotFoundError, match=r"no version 999 .*expected one of 1-"):
        Index.open(index.info().path, encoder=encoder, version=999)
    with Index.open(index.info().path, encoder=encoder, version=np.int32(wanted)) as old:  # type: ignore[arg-type]
        assert old.info().version == wanted
    for nonsense in ("2", True, 1.0):
        with pytest.raises(ValueError, match="number of a version"):
            Index.open(index.info().path, encoder=encoder, version=nonsense)  # type: ignore[arg-type]


def test_an_index_at_a_version_that_was_removed_says_which_there_are(index: Index, encoder: Encoder) -> None:
    wanted = index.info().version
    with Index.open(index.info().path, encoder=encoder, version=wanted) as old:
        index.delete(doc_id="2021.pdf")
        index.optimize(keep=timedelta(0))
        # That before the latest stays where both were written within the millisecond that is always kept.
        there = "-".join(str(number) for number in dict.fromkeys(index.versions()[at].version for at in (0, -1)))
        with pytest.raises(StorageError, match=f"version {wanted} of .* was removed .* one of {there}, or without"):
            old.search("How long is parental leave?")
    assert index.versions()[0].version > wanted


def test_an_index_made_anew_is_seen_and_has_no_report_of_the_old_one(
    index: Index, encoder: Encoder, make_pdf: MakePdf
) -> None:
    """Also where it has come to the same number of versions, and under an object that measured the old one."""
    report = index.check_recall(2, k=1, queries=["parental leave"])
    assert index.info().recall == report
    path, version = index.info().path, index.info().version
    shutil.rmtree(path)
    with Index.open(path, encoder=encoder) as another:
        while another.info().version < version:
            another.add_pages(make_pdf(f"new{another.info().version}.pdf", "All is new."), show_progress_bar=False)
        assert [each.doc_id for each in index.documents()] == [each.doc_id for each in another.documents()]
        assert index.search("parental leave", k=1)[0].doc_id.startswith("new")
        assert index.info().recall is None


def test_the_first_stage_follows_many_small_writers(
    index: Index, encoder: Encoder, make_pdf: MakePdf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of which adds less than what makes it follow, as a command run now and then does."""
    monkeypatch.setattr("budgetvdr.lifecycle.MANY_NEW", 4)
    index.optimize(first_stage=True)
    path, behind = index.info().path, []
    for number in range(9):
        with Index.open(path, encoder=encoder) as writer:
            writer.add_pages(make_pdf(f"small{number}.pdf", f"Note {number}."), show_progress_bar=False)
        looked_at = index._store.routed_pages(index.depths[0])
        assert looked_at is not None
        behind.append(len(index) - looked_at)
    assert behind == [1, 2, 3, 0, 1, 2, 3, 0, 1]


def test_adding_is_not_hurt_where_the_first_stage_cannot_be_looked_at(
    index: Index, make_pdf: MakePdf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> int:
        raise StorageError("too many open files")

    monkeypatch.setattr(Store, "routed_pages", refuse)
    assert index.add_pages(make_pdf("new.pdf", "New."), show_progress_bar=False).pages == 1
    assert "too many open files" in caplog.text


# Arguments


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ({"depths": 6}, BudgetError, r"list of some of \[2, 4, 6\].*found 6"),
        ({"depths": "6"}, BudgetError, "found '6'"),
        ({"depths": [6, "x"]}, BudgetError, r"found \[6, 'x'\]"),
        ({"depths": [[6]]}, BudgetError, "depths must be"),
        ({"encoder": 5}, ValueError, "encoder is a bundle's folder.*found 5"),
        ({"storage_options": 5}, ValueError, "storage_options is a mapping of texts; found int"),
        ({"providers": "CPUExecutionProvider"}, ValueError, "sequence of names"),
        ({"providers": None}, ValueError, "sequence of names"),
        ({"memory_limit": 1.5}, ValueError, "expected bytes"),
    ],
)
def test_opening_refuses_what_is_none_of_its_choices(
    tmp_path: Path, wrong: dict[str, object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        Index.open(tmp_path / "new", **wrong)  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("path", [None, "", " ", 5, b"index"])
def test_an_index_has_a_path(path: object) -> None:
    with pytest.raises(IndexFormatError, match="the path of an index is"):
        Index.open(path)  # type: ignore[arg-type]


def test_depths_may_be_numbers_of_numpy(tmp_path: Path, encoder: Encoder) -> None:
    limit = np.int64(1 << 30)
    with Index.open(tmp_path / "new", encoder=encoder, depths=np.array([6, 2]), memory_limit=limit) as index:  # type: ignore[arg-type]
        assert index.depths == (2, 6)


def test_methods_refuse_what_is_none_of_their_choices(index: Index) -> None:
    for doc_id in (5, b"2021.pdf", [b"2021.pdf"], ["2021.pdf", None]):
        with pytest.raises(QueryError, match="takes a string or a list of strings"):
            index.delete(doc_id=doc_id)  # type: ignore[arg-type]
    for where in (5, b"year = 2021"):
        with pytest.raises(QueryError, match="takes a mapping, an SQL condition"):
            index.delete(where=where)  # type: ignore[arg-type]
    for metadata in (5, "year", [("year", 2021)]):
        with pytest.raises(ValueError, match="metadata is a mapping"):
            index.add_pages(Page("new", 1), metadata=metadata)  # type: ignore[arg-type]
    for query in ("\ud800", ["leave", "a\udfffb"]):
        with pytest.raises(QueryError, match="half a character"):
            index.search(query)
    assert len(index) == 3


def test_several_filters_are_one_delete(index: Index) -> None:
    before = index.info().version
    assert index.delete(where=[{"year": 2020}, "year = 2022 -- and no more", {"year": 1999}]) == 2
    assert index.info().version == before + 1
    assert [document.doc_id for document in index.documents()] == ["2021.pdf"]
    assert index.delete(where=[{"year": 2020}, {"year": 2022}]) == 0
    for nothing in ([], {}, [{"year": 2021}, {}]):
        with pytest.raises(QueryError, match="at least one condition"):
            index.delete(where=nothing)  # type: ignore[arg-type]
    with pytest.raises(QueryError, match="unknown column 'nope'"):
        index.delete(where=[{"year": 2021}, {"nope": 1}])
    # Each condition stands for itself.
    for one in ("year = 1) OR (true", ["year = 1) OR (true", "year = 2"], ["year = (1", "2)"]):
        with pytest.raises(QueryError, match="parentheses"):
            index.delete(where=one)
    assert len(index) == 1


def test_info_tells_the_space_of_vectors_and_of_old_versions(index: Index) -> None:
    info = index.info()
    assert 0 < info.vector_bytes < info.current_bytes < info.bytes_on_disk
    assert info.old_bytes == info.bytes_on_disk - info.current_bytes
    index.delete(where="year < 2022")
    report = index.optimize(keep=timedelta(0))
    assert report.bytes_freed == report.bytes_before - report.bytes_after > 0
    after = index.info()
    assert after.bytes_on_disk == report.bytes_after
    assert after.old_bytes < info.old_bytes
    # The version before the latest stays where both were written within the millisecond that is always kept.
    assert after.fragments == 1
    assert after.versions <= 2 < info.versions


def scan_of(text: str) -> Page:
    """A page without a text layer, made from a file that stays the same."""
    picture = Image.new("RGB", (1275, 400), "white")
    ImageDraw.Draw(picture).text((80, 150), text, "black", font=ImageFont.load_default(60))
    return Page("scan", 1, image=picture, content_hash="the file")


def test_a_scan_added_before_ocr_was_installed_is_found_afterwards(
    index: Index, encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever budget: what the first stage knew of the page is not what it says now."""
    pytest.importorskip("rapidocr")
    page, budget = scan_of("Bicycles are parked in the cellar"), Budget(candidates=1)

    def not_installed(self: PageReader) -> OcrReader:
        raise MissingExtraError("OCR is not installed")

    with monkeypatch.context() as before:
        before.setattr(PageReader, "require_ocr", not_installed)
        report = index.add_pages(page)
        assert report.files[0].notes == {1: ("ocr_missing",)}
        index.optimize(first_stage=True)
        index.search("Where are bicycles parked?", k=1, budget=budget)
    assert index.add_pages(page).pages == 1
    with Index.open(index.info().path, encoder=encoder) as another:
        for asked in (index, another):
            assert asked.search("Where are bicycles parked?", k=1, budget=budget)[0].id == "scan#1"
            (hit,) = asked.search("Where are bicycles parked?", k=1, budget=budget)
            assert hit.budget.pages < len(asked)
    index.optimize(first_stage=True)
    (hit,) = index.search("Where are bicycles parked?", k=1, budget=budget)
    assert (hit.id, hit.budget.pages) == ("scan#1", 1)


def test_a_page_replaced_by_another_of_the_same_digest_is_found_by_its_words(index: Index) -> None:
    def page(text: str) -> Page:
        words = tuple(text.split())
        return Page("memo", 1, words=Words(words, np.full((len(words), 4), 0.5, np.float32)), content_hash="same")

    budget = Budget(candidates=1)
    index.add_pages(page("Bicycles are parked in the cellar"))
    index.optimize(first_stage=True)
    assert index.search("Where are bicycles parked?", k=1, budget=budget)[0].id == "memo#1"
    assert index.add_pages(page("Lunch is served at twelve daily")).pages == 0
    assert index.add_pages(page("Lunch is served at twelve daily"), if_exists="replace").pages == 1
    assert index.search("When is lunch served?", k=1, budget=budget)[0].id == "memo#1"
