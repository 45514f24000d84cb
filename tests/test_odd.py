"""Real files that break readers, all in one call. They are not part of the project: BUDGETVDR_ODD_DIR names them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from budgetvdr import AddReport, FileReport, Index
from budgetvdr.encoders import Encoder
from budgetvdr.errors import PageError, PasswordError, UnreadableFileError

FOLDER = os.environ.get("BUDGETVDR_ODD_DIR", "")
pytestmark = [
    pytest.mark.skipif(not FOLDER, reason="BUDGETVDR_ODD_DIR is not set"),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def added(tmp_path_factory: pytest.TempPathFactory, encoder: Encoder) -> Iterator[tuple[Index, AddReport]]:
    with Index.open(tmp_path_factory.mktemp("odd") / "odd.bvdr", encoder=encoder, depths=[2]) as index:
        yield index, index.add_pages(FOLDER)


def file_of(report: AddReport, start: str) -> FileReport:
    return next(file for file in report.files if file.doc_id.startswith(start))


@pytest.mark.parametrize(
    ("start", "error"),
    [
        ("02_", UnreadableFileError),
        ("04_", UnreadableFileError),
        ("06_", UnreadableFileError),
        ("08_", UnreadableFileError),
        ("14_", PasswordError),
        ("16_", PasswordError),
        ("18_", PasswordError),
    ],
)
def test_refused(added: tuple[Index, AddReport], start: str, error: type[Exception]) -> None:
    file = file_of(added[1], start)
    assert (file.status, file.stored) == ("failed", 0)
    assert isinstance(file.error, error)
    assert file.doc_id in str(file.error)


@pytest.mark.parametrize(("start", "stored", "failed"), [("10_", 1, [2]), ("24_", 2, [3])])
def test_good_pages_of_a_bad_file_are_kept(
    added: tuple[Index, AddReport], start: str, stored: int, failed: list[int]
) -> None:
    file = file_of(added[1], start)
    assert (file.status, file.stored) == ("partial", stored)
    assert [problem.page_num for problem in file.problems] == failed
    assert all(isinstance(problem.error, PageError) for problem in file.problems)


@pytest.mark.parametrize(
    ("start", "pages", "note"),
    [
        ("12_", 16, ""),
        ("20_", 2, ""),
        ("22_", 1, ""),
        ("26_", 1, ""),
        ("28_", 6, "ocr"),
        ("30_", 1, ""),
        ("32_", 1, ""),
        ("34_", 1, "blank"),
        ("36_", 1, "picture_empty"),
        ("38_", 22, "unsupported_script"),
        ("40_", 1, "unsupported_script"),
        ("42_", 1, "unsupported_script"),
        ("44_", 1, "private_use"),
        ("46_", 2, "unsupported_script"),
        ("48_", 2, "text_layer_rejected"),
        ("50_", 1, ""),
        ("52_", 1, ""),
        ("54_", 1, "ocr"),
        ("56_", 1, "xfa_placeholder"),
        ("58_", 2, ""),
        ("60_", 1, ""),
        ("62_", 619, ""),
        ("64_", 1, "text_layer_rejected:misplaced"),
    ],
)
def test_stored(added: tuple[Index, AddReport], start: str, pages: int, note: str) -> None:
    file = file_of(added[1], start)
    assert (file.status, file.stored) == ("added", pages)
    if note:
        assert any(text.startswith(note) for text in file.notes[1])


@pytest.mark.parametrize(
    ("query", "start"),
    [
        ("Edgar King of the English", "32_"),
        ("foobar", "58_"),
        ("state permit handgun long gun background checks", "30_"),
        ("Moroccan National Tourist Office amendment", "64_"),
    ],
)
def test_found(added: tuple[Index, AddReport], query: str, start: str) -> None:
    assert added[0].search(query, k=1)[0].doc_id.startswith(start)


def test_characters_drawn_twice_are_read_once(added: tuple[Index, AddReport]) -> None:
    (hit,) = added[0].search("university", k=1, where={"doc_id": file_of(added[1], "46_").doc_id, "page_num": 1})
    assert "计算机科学与技术" in hit.text.replace(" ", "")
    assert "计计算算" not in hit.text.replace(" ", "")


def test_passwords_open_what_they_should(tmp_path: Path, encoder: Encoder) -> None:
    with Index.open(tmp_path / "locked.bvdr", encoder=encoder, depths=[2]) as index:
        for start, password, pages in (("14_", "kanbanery", 1), ("16_", "test", 4), ("18_", "ELXRTQWS", 1)):
            (path,) = Path(FOLDER).glob(f"{start}*.pdf")
            assert index.add_pages(path, password=password).pages == pages
