"""Characters and form values of a loaded page. To be called under the lock of `pdfium`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from budgetvdr.pages import Boxes, Words
from budgetvdr.pdf.pdfium import c, utf16
from budgetvdr.textlayer.columns import column_order
from budgetvdr.textlayer.words import insert_values, words_from_chars


def page_words(page: Any, form: Any) -> Words:
    """The text layer of a loaded page with the values of its form fields, cleaned; boxes in page fractions.

    form: the document's form environment, None where it has none.
    """
    codes, char_boxes, hyphens = _chars(page)
    values, value_boxes = _values(page, form)
    place = _Placement(page)
    words = words_from_chars(codes, place(char_boxes), hyphens)
    order = column_order(words.boxes, place.aspect)
    if order is not None:
        words = Words(tuple(words.texts[i] for i in order), words.boxes[order])
    return insert_values(words, values, place(value_boxes)) if values else words


class _Placement:
    """Page space (points, origin at the bottom left, unrotated) -> fractions of the upright, cropped page."""

    def __init__(self, page: Any) -> None:
        box = c.FS_RECTF()
        c.FPDF_GetPageBoundingBox(page, box)
        self.origin = np.array([box.left, box.bottom], dtype=np.float32)
        self.extent = np.array([box.right - box.left, box.top - box.bottom], dtype=np.float32)
        self.quarter_turns = int(c.FPDFPage_GetRotation(page)) % 4
        self.aspect = float(c.FPDF_GetPageWidthF(page) / c.FPDF_GetPageHeightF(page))

    def __call__(self, boxes: npt.NDArray[np.float32]) -> Boxes:
        """boxes: (n, 4) as PDFium has them, left, top, right, bottom."""
        corners = (boxes.reshape(-1, 2, 2) - self.origin) / self.extent
        x, y = corners[..., 0], 1 - corners[..., 1]
        for _ in range(self.quarter_turns):
            x, y = 1 - y, x
        return np.stack([x.min(1), y.min(1), x.max(1), y.max(1)], axis=1).astype(np.float32)


def _chars(page: Any) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Code points (n,), boxes (n, 4) as left, top, right, bottom in points, and which are hyphens that end a line."""
    text = c.FPDFText_LoadPage(page)
    if not text:
        return np.zeros(0, np.uint32), np.zeros((0, 4), np.float32), np.zeros(0, np.bool_)
    try:
        count = max(0, c.FPDFText_CountChars(text))
        unicode_of, box_of = c.FPDFText_GetUnicode, c.FPDFText_GetLooseCharBox
        codes = np.fromiter((unicode_of(text, i) for i in range(count)), dtype=np.uint32, count=count)
        rects = (c.FS_RECTF * count)()
        # The loose box is the line's height and the glyph's advance: it exists where the font is missing, and words
        # of one line get boxes of one height.
        for i, rect in enumerate(rects):
            box_of(text, i, rect)
        hyphens = np.zeros(count, np.bool_)
        for i in np.flatnonzero(codes == ord("\2")).tolist():
            hyphens[i] = c.FPDFText_IsHyphen(text, i) == 1
    finally:
        c.FPDFText_ClosePage(text)
    boxes = np.frombuffer(rects, dtype=np.float32).reshape(count, 4) if count else np.zeros((0, 4), np.float32)
    return codes, boxes, hyphens


def _values(page: Any, form: Any) -> tuple[list[str], npt.NDArray[np.float32]]:
    """Texts a viewer shows that are no part of the page's content: filled fields and typed comments.

    Returns n texts and (n, 4) boxes as left, top, right, bottom in points.
    """
    texts: list[str] = []
    boxes: list[tuple[float, float, float, float]] = []
    rect = c.FS_RECTF()
    for index in range(c.FPDFPage_GetAnnotCount(page)):
        annotation = c.FPDFPage_GetAnnot(page, index)
        if not annotation:
            continue
        try:
            text = _annotation_text(annotation, form)
            if text.strip() and c.FPDFAnnot_GetRect(annotation, rect):
                texts.append(text)
                boxes.append((rect.left, rect.top, rect.right, rect.bottom))
        finally:
            c.FPDFPage_CloseAnnot(annotation)
    return texts, np.array(boxes, dtype=np.float32).reshape(-1, 4)


def _annotation_text(annotation: Any, form: Any) -> str:
    if c.FPDFAnnot_GetFlags(annotation) & (c.FPDF_ANNOT_FLAG_HIDDEN | c.FPDF_ANNOT_FLAG_NOVIEW):
        return ""
    kind = c.FPDFAnnot_GetSubtype(annotation)
    if kind == c.FPDF_ANNOT_FREETEXT:
        return utf16(c.FPDFAnnot_GetStringValue, annotation, b"Contents")
    if kind != c.FPDF_ANNOT_WIDGET or not form:
        return ""
    return _field_text(annotation, form)


def _field_text(annotation: Any, form: Any) -> str:
    """The text of a text field or the labels chosen in a list; nothing for buttons and passwords."""
    field = c.FPDFAnnot_GetFormFieldType(form, annotation)
    if field == c.FPDF_FORMFIELD_TEXTFIELD:
        secret = c.FPDFAnnot_GetFormFieldFlags(form, annotation) & c.FPDF_FORMFLAG_TEXT_PASSWORD
        return "" if secret else utf16(c.FPDFAnnot_GetFormFieldValue, form, annotation)
    if field not in (c.FPDF_FORMFIELD_COMBOBOX, c.FPDF_FORMFIELD_LISTBOX):
        return ""
    count = max(0, c.FPDFAnnot_GetOptionCount(form, annotation))
    chosen = [i for i in range(count) if c.FPDFAnnot_IsOptionSelected(form, annotation, i)]
    # A viewer shows the label; the value is what would be exported, and all there is of a text typed in.
    if not chosen:
        return utf16(c.FPDFAnnot_GetFormFieldValue, form, annotation)
    return " ".join(utf16(c.FPDFAnnot_GetOptionLabel, form, annotation, i) for i in chosen)
