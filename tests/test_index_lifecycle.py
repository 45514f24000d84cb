"""Versions, deleting and space of an index, as a user sees them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from conftest import MakePdf

from budgetvdr import Index
from budgetvdr.encoders import Encoder
from budgetvdr.errors import QueryError, ReadOnlyError, SourceNotFoundError

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
    for nonsense in ("2", True, 1.0):
        with pytest.raises(ValueError, match="number of a version"):
            Index.open(index.info().path, encoder=encoder, version=nonsense)  # type: ignore[arg-type]


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
    assert (after.versions, after.fragments) == (1, 1)
