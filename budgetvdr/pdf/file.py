"""A PDF file: sizes, labels, pictures and text layer of its pages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from budgetvdr.errors import PageError, PasswordError, SourceNotFoundError, UnreadableFileError
from budgetvdr.pages import Words
from budgetvdr.pdf.pdfium import alone, c, shut, shut_when_possible, utf16
from budgetvdr.pdf.text import page_words

MAX_SIDE = 4096
"""Longest side of any picture, in pixels; a square one then has 16.8 million of them, 67 MB while it is drawn."""


class PdfFile:
    """An open PDF. Page numbers are 1-based; methods may be called from several threads.

    source: a path, or the bytes of a file.
    name: what error messages call the file; the path where left out.

    Raises SourceNotFoundError where the path does not exist, PasswordError where a password is needed or wrong,
    UnreadableFileError where this is no PDF, a damaged one, one with an unsupported encryption or without pages.
    """

    def __init__(self, source: Path | bytes, *, password: str | None = None, name: str = "") -> None:
        self._document: Any = None
        self._form: Any = None
        self.name = name or (str(source) if isinstance(source, Path) else f"PDF of {len(source)} bytes")
        # PDFium reads from this buffer for as long as the document is open.
        self._data = source if isinstance(source, bytes) else b""
        # PDFium keeps a pointer to this struct too.
        self._form_info = c.FPDF_FORMFILLINFO(version=2)
        secret = None if password is None else password.encode()
        if isinstance(source, Path):
            _check_readable(source)
        with alone():
            if isinstance(source, Path):
                self._document = c.FPDF_LoadDocument(os.fsencode(source), secret)
            else:
                self._document = c.FPDF_LoadMemDocument64(source, len(source), secret)
            if not self._document:
                raise _open_error(c.FPDF_GetLastError(), self.name, password)
            self.page_count = int(c.FPDF_GetPageCount(self._document))
            form_type = c.FPDF_GetFormType(self._document)
            if form_type != c.FORMTYPE_NONE:
                self._form = c.FPDFDOC_InitFormFillEnvironment(self._document, self._form_info)
        self._form_type = int(form_type)
        if self.page_count < 1:
            self.close()
            raise _no_pages(self.name)

    def close(self) -> None:
        """Closes the file; a second call does nothing. Pages still to be drawn raise PageError from then on."""
        with alone():
            shut(self._document, self._form)
            self._document = self._form = None

    def __del__(self) -> None:
        if self._document:
            # Runs wherever the garbage collector does, which must not wait for another thread's drawing.
            shut_when_possible(self._document, self._form, (self._data, self._form_info))

    def size(self, page_num: int) -> tuple[float, float]:
        """(width, height) of the upright page in points. Raises PageError where the page is broken or has no area."""
        size = c.FS_SIZEF()
        with alone():
            self._check(page_num)
            found = c.FPDF_GetPageSizeByIndexF(self._document, page_num - 1, size)
        if not found:
            raise self._not_loaded(page_num)
        return self._checked_size(page_num, size.width, size.height)

    def label(self, page_num: int) -> str:
        """The page's label ("iv", "A-3"), "" where the file gives none."""
        with alone():
            self._check(page_num)
            return utf16(c.FPDF_GetPageLabel, self._document, page_num - 1)

    def render(self, page_num: int, longest_side: int) -> Image.Image:
        """Draws the upright page, annotations and form values included, as RGB on white.

        longest_side: pixels of the longer side, at most `MAX_SIDE`; the shorter follows from the page, at least 1.

        Raises PageError where the page cannot be loaded or has no area.
        """
        with self._page(page_num) as page:
            size = (c.FPDF_GetPageWidthF(page), c.FPDF_GetPageHeightF(page))
            scale = max(1, min(longest_side, MAX_SIDE)) / max(size)
            width, height = (max(1, round(side * scale)) for side in size)
            pixels = np.full((height, width, 4), 255, dtype=np.uint8)
            bitmap = c.FPDFBitmap_CreateEx(width, height, c.FPDFBitmap_BGRx, pixels.ctypes.data, width * 4)
            if not bitmap:
                raise PageError(
                    f"{self.name}: page {page_num} cannot be drawn at {width} x {height} pixels", page_num=page_num
                )
            try:
                where = (0, 0, width, height, 0, c.FPDF_ANNOT | c.FPDF_REVERSE_BYTE_ORDER)
                c.FPDF_RenderPageBitmap(bitmap, page, *where)
                if self._form:
                    c.FPDF_FFLDraw(self._form, bitmap, page, *where)
            finally:
                c.FPDFBitmap_Destroy(bitmap)
        return Image.fromarray(pixels[:, :, :3])

    def words(self, page_num: int) -> Words:
        """The text layer, cleaned, in the order of the file, with the values of filled form fields.

        Words outside the page are left out. Raises PageError where the page cannot be loaded or has no area.
        """
        with self._page(page_num) as page:
            return page_words(page, self._form)

    def shows_placeholder(self, words: Words | None) -> bool:
        """Whether a page with these words only asks to wait: the form itself is XFA, which few viewers can draw."""
        if self._form_type == c.FORMTYPE_XFA_FULL:
            return True
        is_xfa = self._form_type == c.FORMTYPE_XFA_FOREGROUND
        return is_xfa and words is not None and " ".join(words.texts[:2]).lower().startswith("please wait")

    @contextmanager
    def _page(self, page_num: int) -> Iterator[Any]:
        with alone():
            self._check(page_num)
            page = c.FPDF_LoadPage(self._document, page_num - 1)
            if not page:
                raise self._not_loaded(page_num)
            try:
                self._checked_size(page_num, c.FPDF_GetPageWidthF(page), c.FPDF_GetPageHeightF(page))
                if self._form:
                    c.FORM_OnAfterLoadPage(page, self._form)
                yield page
            finally:
                if self._form:
                    c.FORM_OnBeforeClosePage(page, self._form)
                c.FPDF_ClosePage(page)

    def _check(self, page_num: int) -> None:
        if not self._document:
            raise PageError(f"{self.name}: page {page_num} was asked for after the file was closed", page_num=page_num)
        if not 1 <= page_num <= self.page_count:
            raise PageError(f"{self.name}: pages are 1 to {self.page_count}, asked for {page_num}", page_num=page_num)

    def _not_loaded(self, page_num: int) -> PageError:
        return PageError(
            f"{self.name}: page {page_num} of {self.page_count} is damaged and cannot be loaded; it is left out",
            page_num=page_num,
        )

    def _checked_size(self, page_num: int, width: float, height: float) -> tuple[float, float]:
        if not (0 < width < np.inf and 0 < height < np.inf):
            raise PageError(
                f"{self.name}: page {page_num} of {self.page_count} has no area ({width:g} x {height:g} points); "
                "it is left out",
                page_num=page_num,
            )
        return width, height


def _check_readable(path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except FileNotFoundError as error:
        raise SourceNotFoundError(f"{path} does not exist: expected a PDF file") from error
    except OSError as error:
        raise UnreadableFileError(f"{path} cannot be opened: {error.strerror}") from error


def _no_pages(name: str) -> UnreadableFileError:
    return UnreadableFileError(f"{name} is a PDF without pages; there is nothing to index")


def _open_error(code: int, name: str, password: str | None) -> UnreadableFileError | PasswordError:
    if code == c.FPDF_ERR_PASSWORD:
        if password is None:
            return PasswordError(f"{name} is encrypted; give its password with password=...")
        return PasswordError(f"{name}: the password given does not open it")
    if code == c.FPDF_ERR_SUCCESS:
        # PDFium refuses a well-formed file without pages and reports no error for it.
        return _no_pages(name)
    if code == c.FPDF_ERR_SECURITY:
        return UnreadableFileError(f"{name} has an encryption this reader does not know; save it without and try again")
    return UnreadableFileError(f"{name} is not a PDF or is damaged beyond reading; open and save it in a PDF viewer")
