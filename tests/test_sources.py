from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from reportlab.lib.pdfencrypt import StandardEncryption
from reportlab.pdfgen.canvas import Canvas

from budgetvdr.errors import PageError, PasswordError, SourceError, SourceNotFoundError, UnreadableFileError
from budgetvdr.pages import Page, Words
from budgetvdr.sources import Document, FailedSource, draw_page, open_documents


def pdf_bytes(*texts: str, **options: Any) -> bytes:
    target = io.BytesIO()
    canvas = Canvas(target, invariant=True, **options)
    for text in texts or ("Page of text",):
        canvas.drawString(72, 700, text)
        canvas.showPage()
    canvas.save()
    return target.getvalue()


def image_bytes(kind: str = "PNG", *, size: tuple[int, int] = (60, 80), mode: str = "RGB", **options: Any) -> bytes:
    target = io.BytesIO()
    Image.new(mode, size, "white" if mode != "CMYK" else (255, 0, 0, 0)).save(target, kind, **options)
    return target.getvalue()


def bomb_png(side: int) -> bytes:
    """A PNG of side x side pixels in a few kilobytes."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 1000))
        + chunk(b"IEND", b"")
    )


def opened(source: Any, **options: Any) -> Document:
    # Not unpacked: asking for the next document passes over the pages of this one.
    document = next(open_documents(source, **options))
    assert isinstance(document, Document), document
    return document


def failed(source: Any, **options: Any) -> FailedSource:
    (found,) = open_documents(source, **options)
    assert isinstance(found, FailedSource), found
    return found


def pages_of(document: Document) -> list[Page]:
    pages = list(document.pages())
    assert all(isinstance(page, Page) for page in pages), pages
    return [page for page in pages if isinstance(page, Page)]


def blank_words() -> Words:
    return Words(("word",), np.array([[0.1, 0.1, 0.2, 0.2]], np.float32))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "library"
    for name, data in {
        "report 10.pdf": pdf_bytes("ten"),
        "report 2.pdf": pdf_bytes("two"),
        "deep/er/C# notes.PDF": pdf_bytes("sharp"),
        "deep/scan.JPG": image_bytes("JPEG"),
        "deep/readme.txt": b"text",
        ".hidden.pdf": pdf_bytes("hidden"),
        ".git/x.pdf": pdf_bytes("hidden"),
        "old.bvdr/data/x.pdf": pdf_bytes("index"),
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


class TestPdf:
    def test_document_and_pages(self, tmp_path: Path) -> None:
        path = tmp_path / "report.pdf"
        path.write_bytes(pdf_bytes("first page", "second page"))
        document = opened(path, metadata={"year": 2024})
        assert (document.doc_id, document.page_count, document.source) == ("report.pdf", 2, str(path))
        assert len(document.content_hash) == 64
        first, second = pages_of(document)
        assert (first.id, second.id, second.page_count) == ("report.pdf#1", "report.pdf#2", 2)
        assert second.words is not None
        assert second.words.texts == ("second", "page")
        assert first.metadata == {"year": 2024}
        assert first.content_hash == document.content_hash
        assert first.image is None
        picture = first.render(200)
        assert picture is not None
        assert max(picture.size) == 200

    def test_the_hash_follows_the_content_not_the_name(self, tmp_path: Path) -> None:
        hashes = []
        for name, text in (("a.pdf", "same"), ("b.pdf", "same"), ("c.pdf", "other")):
            (tmp_path / name).write_bytes(pdf_bytes(text))
            hashes.append(opened(tmp_path / name).content_hash)
        assert hashes[0] == hashes[1] != hashes[2]

    def test_pages_can_be_drawn_after_their_document_is_closed(self) -> None:
        document = opened(pdf_bytes("a", "b"))
        pages = pages_of(document)
        document.close()
        del document
        assert all(page.render(50) for page in pages)

    def test_a_closed_document_gives_no_pages(self) -> None:
        document = opened(pdf_bytes())
        document.close()
        assert list(document.pages()) == []

    def test_bytes_are_named_by_their_content(self) -> None:
        document = opened(pdf_bytes("x"))
        assert document.doc_id == document.content_hash[:16]
        assert document.source == ""
        assert opened(bytearray(pdf_bytes("x"))).doc_id == document.doc_id

    def test_content_decides_what_a_file_is(self, tmp_path: Path) -> None:
        path = tmp_path / "really-a-pdf.png"
        path.write_bytes(pdf_bytes("surprise"))
        assert pages_of(opened(path))[0].words is not None

    def test_forced_ocr_reads_no_text_layer(self) -> None:
        (page,) = pages_of(opened(pdf_bytes(), read="ocr"))
        assert page.words is None
        assert page.read == "ocr"

    def test_passwords(self, tmp_path: Path) -> None:
        path = tmp_path / "locked.pdf"
        path.write_bytes(pdf_bytes(encrypt=StandardEncryption("sesame", "owner")))
        assert isinstance(failed(path).error, PasswordError)
        assert isinstance(failed(path, password="no").error, PasswordError)
        assert opened(path, password="sesame").page_count == 1

    def test_a_broken_page_is_reported_and_the_others_come(self) -> None:
        data = pdf_bytes("one", "two", "three")
        # Points the second page's entry in the page tree at an object that does not exist.
        kids = data[data.index(b"/Kids") : data.index(b"]", data.index(b"/Kids"))]
        numbers = kids[kids.index(b"[") + 1 :].split()
        broken = data.replace(kids, kids.replace(b" %s 0 R" % numbers[3], b" %s 0 R" % (b"9" * len(numbers[3]))), 1)
        document = opened(broken)
        found = list(document.pages())
        assert [isinstance(page, PageError) for page in found] == [False, True, False]
        assert [page.page_num for page in found] == [1, 2, 3]

    def test_the_placeholder_of_an_xfa_form_is_noted(self) -> None:
        data = pdf_bytes("Please wait...").replace(
            b"/Type /Catalog", b"/AcroForm << /Fields [] /XFA (x) >> /Type /Catalog"
        )
        assert pages_of(opened(data))[0].notes == ("xfa_placeholder",)


class TestFolders:
    def test_a_folder_is_read_in_natural_order_without_hidden_files_and_indexes(self, folder: Path) -> None:
        documents = [document for document in open_documents(folder) if isinstance(document, Document)]
        assert [document.doc_id for document in documents] == [
            "deep/er/C%23 notes.PDF",
            "deep/scan.JPG",
            "report 2.pdf",
            "report 10.pdf",
        ]
        assert documents[2].source == str(folder / "report 2.pdf")

    def test_patterns(self, folder: Path) -> None:
        def names(pattern: str) -> list[str]:
            return [document.doc_id for document in open_documents(str(folder / pattern))]

        assert names("report*.pdf") == ["report 2.pdf", "report 10.pdf"]
        assert names("**/*.JPG") == ["deep/scan.JPG"]
        assert names("de*/scan.*") == ["deep/scan.JPG"]

    def test_a_file_whose_name_looks_like_a_pattern(self, tmp_path: Path) -> None:
        path = tmp_path / "report [final].pdf"
        path.write_bytes(pdf_bytes())
        assert opened(path).doc_id == "report [final].pdf"

    def test_relative_paths(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(folder)
        assert opened("report 2.pdf").source == str(folder / "report 2.pdf")
        assert [document.doc_id for document in open_documents("*.pdf")] == ["report 2.pdf", "report 10.pdf"]

    @pytest.mark.parametrize("name", ["missing.pdf", "missing/*.pdf", "nothing", "", "  ", "nul\0byte"])
    def test_nothing_there(self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "nothing").mkdir()
        (tmp_path / "nothing" / "readme.txt").write_text("text")
        assert isinstance(failed(name).error, SourceNotFoundError)

    def test_an_empty_folder_says_what_was_looked_for(self, tmp_path: Path) -> None:
        assert ".pdf" in str(failed(tmp_path).error)

    def test_a_file_that_is_neither(self, tmp_path: Path) -> None:
        path = tmp_path / "notes.txt"
        path.write_text("text")
        error = failed(path).error
        assert isinstance(error, UnreadableFileError)
        assert "neither a PDF nor a picture" in str(error)

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
    def test_a_pipe_is_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.pdf")
        assert isinstance(failed(tmp_path).error, UnreadableFileError)

    def test_bad_files_do_not_stop_the_others(self, folder: Path) -> None:
        (folder / "a.pdf").write_bytes(b"junk")
        (folder / "b.png").write_bytes(b"junk")
        found = list(open_documents(folder))
        assert [item.doc_id for item in found if isinstance(item, FailedSource)] == ["a.pdf", "b.png"]
        assert sum(isinstance(item, Document) for item in found) == 4


class TestPictures:
    @pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF"])
    def test_formats(self, kind: str, tmp_path: Path) -> None:
        path = tmp_path / f"scan.{kind.lower()}"
        path.write_bytes(image_bytes(kind))
        for document in (opened(path), opened(path.read_bytes())):
            (page,) = pages_of(document)
            assert page.size == (60, 80)
            assert page.words is None
            picture = page.render(1000)
            assert picture is not None
            assert (picture.mode, picture.size) == ("RGB", (60, 80))

    def test_frames_of_a_tiff_are_pages(self, tmp_path: Path) -> None:
        frames = [Image.new("L", (40, 50 + number)) for number in range(3)]
        path = tmp_path / "fax.tiff"
        frames[0].save(path, save_all=True, append_images=frames[1:])
        document = opened(path)
        assert document.page_count == 3
        assert [page.size for page in pages_of(document)] == [(40, 50), (40, 51), (40, 52)]
        assert draw_page(document.source, 3, 1000).size == (40, 52)

    def test_a_moving_picture_is_one_page(self) -> None:
        frames = [Image.new("L", (40, 50), shade) for shade in (0, 255)]
        target = io.BytesIO()
        frames[0].save(target, "GIF", save_all=True, append_images=frames[1:])
        assert opened(target.getvalue()).page_count == 1

    def test_exif_orientation_is_applied(self) -> None:
        exif = Image.Exif()
        exif[0x0112] = 6
        (page,) = pages_of(opened(image_bytes("JPEG", size=(80, 60), exif=exif)))
        picture = page.render(1000)
        assert picture is not None
        assert page.size == picture.size == (60, 80)

    @pytest.mark.parametrize(
        ("mode", "colour", "expected"),
        [
            ("RGBA", (0, 0, 0, 0), (255, 255, 255)),
            ("LA", (0, 0), (255, 255, 255)),
            ("1", 1, (255, 255, 255)),
            ("P", 0, (0, 0, 0)),
            ("CMYK", (255, 0, 0, 0), (0, 255, 255)),
            ("I;16", 0x8000, (128, 128, 128)),
        ],
    )
    def test_every_mode_becomes_rgb_on_white(self, mode: str, colour: Any, expected: tuple[int, int, int]) -> None:
        (page,) = pages_of(opened(Image.new(mode, (8, 8), colour)))
        assert page.image is not None
        assert page.image.getpixel((4, 4)) == expected

    def test_truncated_files(self, tmp_path: Path) -> None:
        noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (200, 200, 3), np.uint8))
        for kind in ("png", "jpeg", "webp", "tiff"):
            path = tmp_path / f"cut.{kind}"
            noise.save(path)
            path.write_bytes(path.read_bytes()[:-5000])
            assert isinstance(failed(path).error, UnreadableFileError), kind
            with pytest.raises(UnreadableFileError):
                draw_page(str(path), 1, 100)

    @pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
    def test_decompression_bombs(self) -> None:
        error = failed(bomb_png(60_000)).error
        assert isinstance(error, UnreadableFileError)
        assert "too many pixels" in str(error)

    def test_pil_images_keep_their_file_name(self, tmp_path: Path) -> None:
        path = tmp_path / "scan.png"
        path.write_bytes(image_bytes())
        with Image.open(path) as image:
            document = opened(image)
        assert (document.doc_id, document.source) == ("scan.png", str(path))
        in_memory = opened(Image.new("RGB", (60, 80), "white"))
        assert in_memory.source == ""
        assert in_memory.doc_id == in_memory.content_hash[:16]

    def test_a_pil_image_of_a_truncated_file(self) -> None:
        noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (200, 200, 3), np.uint8))
        target = io.BytesIO()
        noise.save(target, "PNG")
        image = Image.open(io.BytesIO(target.getvalue()[:-5000]))
        assert isinstance(failed(image).error, UnreadableFileError)

    @pytest.mark.parametrize(
        "array",
        [
            np.full((80, 60), 255, np.uint8),
            np.full((80, 60, 3), 255, np.uint8),
            np.full((80, 60, 4), 255, np.uint8),
            np.ones((80, 60), np.float32),
            np.ones((80, 60, 3), np.float64),
            np.full((60, 80, 3), 255, np.uint8).transpose(1, 0, 2),
        ],
    )
    def test_arrays(self, array: np.ndarray) -> None:
        (page,) = pages_of(opened(array))
        assert page.image is not None
        assert page.size == page.image.size == (60, 80)
        assert page.image.getpixel((1, 1)) == (255, 255, 255)

    @pytest.mark.parametrize(
        ("array", "found"),
        [
            (np.zeros((80,), np.uint8), r"\(80,\)"),
            (np.zeros((2, 80, 60, 3), np.uint8), r"\(2, 80, 60, 3\)"),
            (np.zeros((80, 60, 2), np.uint8), r"\(80, 60, 2\)"),
            (np.zeros((0, 60), np.uint8), r"\(0, 60\)"),
            (np.zeros((80, 60), np.int64), "int64"),
            (np.full((80, 60), 1.5), r"1\.5"),
            (np.full((80, 60), -0.5), r"-0\.5"),
            (np.full((80, 60), np.nan), "nan"),
        ],
    )
    def test_arrays_that_are_no_pictures(self, array: np.ndarray, found: str) -> None:
        error = failed(array).error
        with pytest.raises(SourceError, match=found):
            raise error


class TestStreams:
    @staticmethod
    def endless(log: list[int], doc_id: str = "book") -> Iterator[Page]:
        for number in count(1):
            log.append(number)
            yield Page(doc_id, number, words=blank_words())

    def test_pages_come_one_by_one(self) -> None:
        log: list[int] = []
        document = next(open_documents(self.endless(log)))
        assert isinstance(document, Document)
        assert (document.doc_id, document.page_count) == ("book", 0)
        first = list(islice(document.pages(), 3))
        assert [page.page_num for page in first] == [1, 2, 3]
        assert len(log) <= 4

    def test_consecutive_pages_are_one_document(self) -> None:
        stream = [Page(name, number, words=blank_words()) for name in "ab" for number in (1, 2)]
        found = {document.doc_id: len(list(document.pages())) for document in open_documents(stream)}  # type: ignore[union-attr]
        assert found == {"a": 2, "b": 2}

    def test_documents_that_are_not_read_are_passed_over(self) -> None:
        stream = [Page(name, number, words=blank_words()) for name in "ab" for number in (1, 2)]
        assert [document.doc_id for document in open_documents(stream)] == ["a", "b"]

    def test_a_document_in_two_places_is_refused_the_second_time(self) -> None:
        stream = [Page(name, number, words=blank_words()) for number in (1, 2) for name in "ab"]
        found = list(open_documents(stream))
        assert [type(item) for item in found] == [Document, Document, FailedSource, FailedSource]
        assert "second time" in str(found[2].error)  # type: ignore[union-attr]

    @pytest.mark.parametrize("doc_id", ["", "  ", "a#1", None, 3])
    def test_unusable_doc_ids(self, doc_id: Any) -> None:
        assert isinstance(failed([Page(doc_id, 1, words=blank_words())]).error, SourceError)

    @pytest.mark.parametrize("number", [0, -1, True, 1.0, "1"])
    def test_unusable_page_numbers(self, number: Any) -> None:
        stream = [Page("a", number, words=blank_words()), Page("a", 2, words=blank_words())]
        bad, good = opened(stream).pages()
        assert isinstance(bad, PageError)
        assert isinstance(good, Page)

    def test_pages_with_nothing_to_read(self) -> None:
        (page,) = opened([Page("a", 1)]).pages()
        assert isinstance(page, PageError)
        assert page.page_num == 1

    def test_pages_that_come_twice(self) -> None:
        stream = [Page("a", number, words=blank_words()) for number in (3, 4, 9, 5, 4, 9, 3, 6)]
        found = [(page.page_num, isinstance(page, PageError)) for page in opened(stream).pages()]
        assert found == [(3, False), (4, False), (9, False), (5, False), (4, True), (9, True), (3, True), (6, False)]

    def test_metadata_and_read_mode_of_the_call_are_added(self) -> None:
        stream = [Page("a", 1, words=blank_words(), metadata={"year": 1}, read="text_layer")]
        (page,) = pages_of(opened(stream, metadata={"year": 2, "team": "x"}))
        assert (page.metadata, page.read) == ({"year": 1, "team": "x"}, "text_layer")
        (page,) = pages_of(opened(stream, read="ocr"))
        assert page.read == "ocr"

    def test_a_stream_is_never_taken_for_unchanged(self) -> None:
        page = Page("a", 1, words=blank_words())
        assert opened([page]).content_hash != opened([page]).content_hash

    def test_a_single_page(self) -> None:
        assert opened(Page("a", 7, words=blank_words(), source="a.pdf")).source == "a.pdf"


class TestMixed:
    def test_a_list_of_everything(self, folder: Path) -> None:
        found = list(
            open_documents(
                [
                    folder / "report 2.pdf",
                    str(folder / "deep"),
                    image_bytes(),
                    Page("made", 1, words=blank_words()),
                    np.zeros((9, 9), np.uint8),
                    "missing.pdf",
                    42,  # type: ignore[list-item]
                ]
            )
        )
        assert [item.doc_id for item in found[:3]] == ["report 2.pdf", "er/C%23 notes.PDF", "scan.JPG"]
        assert [type(item) for item in found] == [Document] * 6 + [FailedSource] * 2
        assert "cannot index a int" in str(found[-1].error)  # type: ignore[union-attr]

    @pytest.mark.parametrize("source", [42, None, 3.5])
    def test_what_is_no_source(self, source: Any) -> None:
        assert isinstance(failed(source).error, SourceError)

    def test_nothing_in_nothing_out(self) -> None:
        assert list(open_documents([])) == []

    def test_two_files_of_one_name(self, folder: Path) -> None:
        (folder / "deep" / "report 2.pdf").write_bytes(pdf_bytes("another"))
        first, second = open_documents([folder / "report 2.pdf", folder / "deep" / "report 2.pdf"])
        assert isinstance(first, Document)
        assert isinstance(second, FailedSource)
        assert "doc_id=" in str(second.error)


class TestOneName:
    def test_a_single_file(self, folder: Path) -> None:
        document = opened(folder / "report 2.pdf", doc_id="mine")
        assert [page.id for page in pages_of(document)] == ["mine#1"]

    def test_pictures_become_pages(self, tmp_path: Path) -> None:
        for number in (1, 2, 10):
            (tmp_path / f"scan{number}.png").write_bytes(image_bytes(size=(60, 80 + number)))
        document = opened(tmp_path, doc_id="letter")
        assert document.page_count == 3
        assert [(page.id, page.size) for page in pages_of(document)] == [
            ("letter#1", (60, 81)),
            ("letter#2", (60, 82)),
            ("letter#3", (60, 90)),
        ]
        pixels = [Image.new("L", (30, 40)), np.zeros((50, 30), np.uint8), image_bytes()]
        assert [page.size for page in pages_of(opened(pixels, doc_id="m"))] == [(30, 40), (30, 50), (60, 80)]

    def test_each_page_can_be_drawn_again_from_its_source(self, tmp_path: Path) -> None:
        frames = [Image.new("L", (40, 50 + number)) for number in range(2)]
        frames[0].save(tmp_path / "a.tiff", save_all=True, append_images=frames[1:])
        frames[0].save(tmp_path / "b.tiff", save_all=True, append_images=frames[1:])
        (tmp_path / "c.png").write_bytes(image_bytes())
        pages = pages_of(opened(tmp_path, doc_id="x"))
        assert [page.page_num for page in pages] == [1, 2, 3, 4, 5]
        for page in pages:
            assert draw_page(page.source, page.page_num, 1000).size == page.size

    def test_a_broken_picture_keeps_its_place(self) -> None:
        found = list(opened([image_bytes(), b"junk", image_bytes()], doc_id="x").pages())
        assert [isinstance(page, PageError) for page in found] == [False, True, False]
        assert [page.page_num for page in found] == [1, 2, 3]

    def test_several_pdfs_cannot_share_a_name(self, folder: Path) -> None:
        for source in (folder, [pdf_bytes("a"), pdf_bytes("b")], [image_bytes(), pdf_bytes()]):
            assert "names one document" in str(failed(source, doc_id="x").error)

    def test_pages_carry_their_own_name(self) -> None:
        assert "carries its own doc_id" in str(failed([Page("a", 1, words=blank_words())], doc_id="x").error)

    @pytest.mark.parametrize("doc_id", ["", "a#b"])
    def test_unusable_names(self, doc_id: str) -> None:
        assert isinstance(failed(pdf_bytes(), doc_id=doc_id).error, SourceError)

    def test_failures_carry_the_name(self) -> None:
        assert failed("missing.pdf", doc_id="x").doc_id == "x"


class TestDrawing:
    def test_a_pdf_page(self, folder: Path) -> None:
        assert max(draw_page(str(folder / "report 2.pdf"), 1, 120).size) == 120
        with pytest.raises(PageError):
            draw_page(str(folder / "report 2.pdf"), 2, 120)

    def test_a_file_that_has_gone(self, tmp_path: Path) -> None:
        with pytest.raises(SourceNotFoundError):
            draw_page(str(tmp_path / "gone.pdf"), 1, 120)
