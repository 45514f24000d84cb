from __future__ import annotations

import gc
import io
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from reportlab.lib.pagesizes import letter
from reportlab.lib.pdfencrypt import StandardEncryption
from reportlab.lib.utils import ImageReader
from reportlab.pdfgen.canvas import Canvas

from budgetvdr.errors import PageError, PasswordError, SourceNotFoundError, UnreadableFileError
from budgetvdr.pdf import MAX_SIDE, PdfFile

FONT = "/Resources << /Font << /F1 5 0 R >> >>"


def raw_pdf(*objects: str) -> bytes:
    """A PDF of hand-written objects, numbered from 1; the first is the catalog."""
    body = b"%PDF-1.7\n"
    offsets = []
    for number, text in enumerate(objects, 1):
        offsets.append(len(body))
        body += f"{number} 0 obj\n{text}\nendobj\n".encode("latin-1")
    table = "".join(f"{offset:010d} 00000 n \n" for offset in offsets)
    end = (
        f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\n"
    )
    return body + f"{end}startxref\n{len(body)}\n%%EOF\n".encode()


def stream(text: str) -> str:
    return f"<< /Length {len(text)} >>\nstream\n{text}\nendstream"


def page_of(content: str, *, extra: str = "", size: Sequence[float] = (0, 0, 612, 792), catalog: str = "") -> bytes:
    """One page with Helvetica as /F1. extra, catalog: further entries of the page and of the catalog."""
    box = " ".join(map(str, size))
    return raw_pdf(
        f"<< /Type /Catalog /Pages 2 0 R {catalog} >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        f"<< /Type /Page /Parent 2 0 R /MediaBox [{box}] /Contents 4 0 R {FONT} {extra} >>",
        stream(content),
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    )


def reportlab_pdf(
    draw: object = None, *, size: tuple[float, float] = letter, pages: int = 1, **options: object
) -> bytes:
    target = io.BytesIO()
    canvas = Canvas(target, pagesize=size, **options)
    for number in range(1, pages + 1):
        if callable(draw):
            draw(canvas)
        else:
            canvas.drawString(72, 700, f"Page {number} of the sample")
        canvas.showPage()
    canvas.save()
    return target.getvalue()


def ink_box(picture: Image.Image) -> np.ndarray:
    dark = np.asarray(picture.convert("L")) < 160
    rows, columns = np.flatnonzero(dark.any(axis=1)), np.flatnonzero(dark.any(axis=0))
    return np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]) / np.array([*picture.size, *picture.size])


class TestWords:
    def test_words_in_order_with_boxes(self) -> None:
        def draw(canvas: Canvas) -> None:
            canvas.drawString(72, 700, "Capital spending above")
            canvas.drawString(72, 680, "the threshold")

        words = PdfFile(reportlab_pdf(draw)).words(1)
        assert words.texts == ("Capital", "spending", "above", "the", "threshold")
        assert words.boxes.dtype == np.float32
        assert abs(words.boxes[0, 0] - 72 / 612) < 0.005
        assert words.boxes[3, 1] > words.boxes[0, 1]

    @pytest.mark.parametrize("turn", [0, 90, 180, 270, -90])
    @pytest.mark.parametrize("crop", ["", "/CropBox [50 100 562 742]"])
    def test_boxes_lie_on_the_ink_of_turned_and_cropped_pages(self, turn: int, crop: str) -> None:
        content = "BT /F1 24 Tf 130 600 Td (HHHHHHHHHH) Tj ET"
        pdf = PdfFile(page_of(content, extra=f"/Rotate {turn} {crop}"))
        picture, words = pdf.render(1, 1000), pdf.words(1)
        assert words.texts == ("HHHHHHHHHH",)
        width, height = pdf.size(1)
        assert (width > height) == (picture.width > picture.height) == (turn % 180 != 0)
        np.testing.assert_allclose(words.boxes[0], ink_box(picture), atol=0.012)

    def test_words_outside_the_crop_box_are_left_out(self) -> None:
        content = "BT /F1 12 Tf 100 700 Td (inside) Tj 0 -680 Td (outside) Tj ET"
        assert PdfFile(page_of(content, extra="/CropBox [0 100 612 792]")).words(1).texts == ("inside",)

    def test_a_word_cut_at_a_line_end_is_whole(self) -> None:
        def draw(canvas: Canvas) -> None:
            canvas.drawString(72, 700, "every capital expen-")
            canvas.drawString(72, 686, "diture is listed")

        assert PdfFile(reportlab_pdf(draw)).words(1).texts == ("every", "capital", "expenditure", "is", "listed")

    @pytest.mark.parametrize("shift", [0.0, 0.3, 0.6])
    def test_fake_bold_is_read_once(self, shift: float) -> None:
        def draw(canvas: Canvas) -> None:
            for offset in (0.0, shift):
                canvas.drawString(72 + offset, 700, "Bold heading, hello")

        assert PdfFile(reportlab_pdf(draw)).words(1).texts == ("Bold", "heading,", "hello")

    def test_ligatures_hidden_in_control_codes(self) -> None:
        to_unicode = (
            "/CIDInit /ProcSet findresource begin begincmap 1 begincodespacerange <00> <FF> endcodespacerange "
            "3 beginbfchar <41> <001E> <42> <0063> <43> <E123> endbfchar endcmap end"
        )
        data = raw_pdf(
            "<< /Type /Catalog /Pages 2 0 R >>",
            "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R {FONT} >>",
            stream("BT /F1 12 Tf 72 700 Td (eABient CC) Tj ET"),
            "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /ToUnicode 6 0 R >>",
            stream(to_unicode),
        )
        assert PdfFile(data).words(1).texts == ("efficient", "\ue123\ue123")

    def test_an_empty_page_has_no_words(self) -> None:
        words = PdfFile(page_of("")).words(1)
        assert len(words) == 0
        assert words.boxes.shape == (0, 4)


class TestForms:
    @staticmethod
    def form(canvas: Canvas) -> None:
        canvas.drawString(72, 700, "Surname")
        canvas.drawString(72, 650, "Country")
        canvas.drawString(72, 600, "Secret")
        fields = canvas.acroForm
        fields.textfield(name="surname", value="Lovelace Byron", x=160, y=690, width=200, height=22)
        fields.choice(name="country", value="Norway", options=["Norway", "Sweden"], x=160, y=640, width=200, height=22)
        fields.textfield(name="pin", value="hunter2", x=160, y=590, width=200, height=22, fieldFlags="password")
        fields.checkbox(name="agree", checked=True, x=160, y=550)

    def test_values_are_read_beside_their_labels(self) -> None:
        words = PdfFile(reportlab_pdf(self.form)).words(1)
        assert words.texts == ("Surname", "Lovelace", "Byron", "Country", "Norway", "Secret")
        np.testing.assert_allclose(words.boxes[1], (160 / 612, 80 / 792, 360 / 612, 102 / 792), atol=0.005)

    def test_values_are_drawn(self) -> None:
        picture = PdfFile(reportlab_pdf(self.form)).render(1, 1000)
        field = picture.crop((round(165 / 612 * picture.width), 102, round(350 / 612 * picture.width), 126)).convert(
            "L"
        )
        assert np.asarray(field).min() < 100

    def test_typed_comments_are_read_and_hidden_ones_not(self) -> None:
        def note(text: str, flags: int) -> str:
            place = "/Rect [100 500 300 520] /DA (/Helv 9 Tf)"
            return f"<< /Type /Annot /Subtype /FreeText {place} /Contents ({text}) /F {flags} >>"

        data = page_of(
            "BT /F1 12 Tf 72 700 Td (Body) Tj ET", extra=f"/Annots [{note('checked by Ada', 4)} {note('hidden', 2)}]"
        )
        assert PdfFile(data).words(1).texts == ("Body", "checked", "by", "Ada")


class TestPlaceholder:
    @pytest.mark.parametrize(
        ("catalog", "text", "expected"),
        [
            ("/AcroForm << /Fields [] /XFA (x) >> /NeedsRendering true", "Veuillez patienter", True),
            ("/AcroForm << /Fields [] /XFA (x) >>", "Please wait... If this message", True),
            ("/AcroForm << /Fields [] /XFA (x) >>", "Income tax return", False),
            ("/AcroForm << /Fields [] >>", "Please wait... If this message", False),
            ("", "Please wait... If this message", False),
        ],
    )
    def test_only_unreadable_xfa_forms_have_one(self, catalog: str, text: str, expected: bool) -> None:
        pdf = PdfFile(page_of(f"BT /F1 12 Tf 72 700 Td ({text}) Tj ET", catalog=catalog))
        assert pdf.shows_placeholder(pdf.words(1)) is expected


class TestRender:
    def test_upright_rgb_on_white(self) -> None:
        picture = PdfFile(page_of("BT /F1 12 Tf 72 700 Td (x) Tj ET")).render(1, 400)
        assert picture.mode == "RGB"
        assert picture.size == (309, 400)
        assert picture.getpixel((5, 5)) == (255, 255, 255)

    @pytest.mark.parametrize(
        ("size", "asked", "expected"),
        [
            ((0, 0, 8400, 8400), 100_000, (MAX_SIDE, MAX_SIDE)),
            ((0, 0, 4000, 400), 800, (800, 80)),
            ((0, 0, 14400, 3), 800, (800, 1)),
            ((0, 0, 2, 2), 64, (64, 64)),
            ((-100, -100, 100, 300), 200, (100, 200)),
            ((0, 0, 612, 792), 0, (1, 1)),
        ],
    )
    def test_pixels_are_capped_whatever_the_page_size(
        self, size: tuple[int, int, int, int], asked: int, expected: tuple[int, int]
    ) -> None:
        assert PdfFile(page_of("", size=size)).render(1, asked).size == expected

    def test_colours_of_a_cmyk_picture_are_converted(self) -> None:
        jpeg = io.BytesIO()
        Image.new("CMYK", (64, 64), (255, 0, 0, 0)).save(jpeg, "JPEG")
        data = reportlab_pdf(lambda canvas: canvas.drawImage(ImageReader(jpeg), 0, 0, *letter))
        red, green, blue = PdfFile(data).render(1, 100).getpixel((40, 50))  # type: ignore[misc]
        assert red < 80
        assert green > 120
        assert blue > 180

    def test_closing_makes_pages_unavailable_and_may_be_repeated(self) -> None:
        pdf = PdfFile(reportlab_pdf())
        pdf.close()
        pdf.close()
        with pytest.raises(PageError, match="closed"):
            pdf.render(1, 100)


class TestBadPages:
    def test_a_page_that_does_not_load_leaves_the_others(self) -> None:
        data = raw_pdf(
            "<< /Type /Catalog /Pages 2 0 R >>",
            "<< /Type /Pages /Kids [3 0 R 9 0 R] /Count 2 >>",
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 100 100] /Contents 4 0 R >>",
            stream(""),
        )
        pdf = PdfFile(data, name="broken.pdf")
        assert pdf.page_count == 2
        assert pdf.size(1) == (100, 100)
        for read in (pdf.words, pdf.size, lambda number: pdf.render(number, 100)):
            with pytest.raises(PageError, match=r"broken\.pdf: page 2 of 2") as caught:
                read(2)
            assert caught.value.page_num == 2

    def test_a_page_without_area(self) -> None:
        pdf = PdfFile(page_of("BT /F1 12 Tf (x) Tj ET", size=(0, 0, 600, 800), extra="/CropBox [600 800 1000 1000]"))
        with pytest.raises(PageError, match="no area"):
            pdf.words(1)

    @pytest.mark.parametrize("number", [0, -1, 2])
    def test_pages_that_do_not_exist(self, number: int) -> None:
        with pytest.raises(PageError, match="pages are 1 to 1"):
            PdfFile(reportlab_pdf()).words(number)


class TestOpening:
    @pytest.mark.parametrize("data", [b"", b"junk", b"%PDF-1.4\njunk", reportlab_pdf()[:200]])
    def test_what_is_no_pdf(self, data: bytes, tmp_path: Path) -> None:
        path = tmp_path / "x.pdf"
        path.write_bytes(data)
        for source in (data, path):
            with pytest.raises(UnreadableFileError, match="not a PDF or is damaged"):
                PdfFile(source)

    def test_a_file_without_pages(self) -> None:
        with pytest.raises(UnreadableFileError, match="without pages"):
            PdfFile(raw_pdf("<< /Type /Catalog /Pages 2 0 R >>", "<< /Type /Pages /Kids [] /Count 0 >>"))

    def test_a_path_that_does_not_exist_or_is_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(SourceNotFoundError, match="does not exist"):
            PdfFile(tmp_path / "missing.pdf")
        with pytest.raises(UnreadableFileError, match="cannot be opened"):
            PdfFile(tmp_path)

    def test_a_path_with_signs_beyond_ascii(self, tmp_path: Path) -> None:
        path = tmp_path / "b\u00fccher \u4e66.pdf"
        path.write_bytes(reportlab_pdf())
        assert PdfFile(path).page_count == 1

    @pytest.mark.parametrize("strength", [40, 128])
    def test_passwords(self, strength: int) -> None:
        data = reportlab_pdf(encrypt=StandardEncryption("geheim", "owner", strength=strength))
        with pytest.raises(PasswordError, match="password="):
            PdfFile(data)
        with pytest.raises(PasswordError, match="does not open it"):
            PdfFile(data, password="wrong")
        assert "sample" in PdfFile(data, password="geheim").words(1).texts

    def test_an_owner_password_alone_is_not_asked_for(self) -> None:
        assert PdfFile(reportlab_pdf(encrypt=StandardEncryption("", "owner"))).page_count == 1

    def test_labels(self) -> None:
        def label(canvas: Canvas) -> None:
            canvas.drawString(72, 700, "x")
            canvas.addPageLabel(canvas.getPageNumber() - 1, style="ROMAN_LOWER", start=4)

        assert PdfFile(reportlab_pdf(label)).label(1) == "iv"
        assert PdfFile(reportlab_pdf()).label(1) == ""


class TestThreads:
    def test_many_threads_draw_and_read_one_file_and_others(self) -> None:
        shared = PdfFile(reportlab_pdf(pages=8))
        expected = [(shared.render(n, 200).tobytes(), shared.words(n).texts) for n in range(1, 9)]
        data = reportlab_pdf(pages=2)

        def work(number: int) -> tuple[bytes, tuple[str, ...]]:
            PdfFile(data).words(2)
            return shared.render(number, 200).tobytes(), shared.words(number).texts

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(work, range(1, 9))) == expected

    def test_files_dropped_in_cycles_are_closed_by_the_collector(self) -> None:
        class Holder:
            pass

        data = reportlab_pdf()
        for _ in range(50):
            holder = Holder()
            holder.pdf, holder.me = PdfFile(data), holder  # type: ignore[attr-defined]
        del holder
        with ThreadPoolExecutor(2) as pool:
            drawing = pool.submit(PdfFile(data).render, 1, 500)
            gc.collect()
            assert drawing.result().height == 500

    def test_files_left_open_do_not_disturb_the_end_of_the_process(self, tmp_path: Path) -> None:
        path = tmp_path / "left.pdf"
        path.write_bytes(reportlab_pdf(TestForms.form))
        code = (
            "import sys, pathlib; from budgetvdr.pdf import PdfFile; "
            "kept = PdfFile(pathlib.Path(sys.argv[1])); kept.words(1)"
        )
        assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 0
