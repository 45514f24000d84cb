"""Typography and page layout shared by the sample documents.

A page is a list of flowables that must fit on it: questions name page numbers, so nothing may run over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from reportlab.lib.colors import Color, HexColor
from reportlab.lib.enums import TA_RIGHT
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import Frame, Paragraph, Spacer, Table, TableStyle

COMPANY = "Marlowick Instruments"
WIDTH, HEIGHT = A4
MARGIN = 25 * mm
TEXT_WIDTH = WIDTH - 2 * MARGIN

INK = HexColor("#1f2933")
GREY = HexColor("#66727f")
RULE = HexColor("#c9d1d9")
TEAL = HexColor("#0b6e75")
SAND = HexColor("#d9a441")
BRICK = HexColor("#b5533c")
PALE = HexColor("#eef4f4")

BODY = ParagraphStyle("body", fontName="Times-Roman", fontSize=12, leading=17.2, textColor=INK, spaceAfter=8)
LEAD = ParagraphStyle(
    "lead", parent=BODY, fontName="Times-Italic", fontSize=13.2, leading=18, textColor=GREY, spaceAfter=12
)
H1 = ParagraphStyle("h1", fontName="Helvetica-Bold", fontSize=22, leading=28, textColor=TEAL, spaceAfter=8)
H2 = ParagraphStyle(
    "h2", fontName="Helvetica-Bold", fontSize=12.5, leading=16, textColor=INK, spaceBefore=10, spaceAfter=4
)
NOTE = ParagraphStyle("note", parent=BODY, fontName="Helvetica", fontSize=10, leading=14.2, spaceAfter=0)
CAPTION = ParagraphStyle(
    "caption", fontName="Helvetica", fontSize=8.4, leading=11, textColor=GREY, spaceBefore=3, spaceAfter=8
)
CELL = ParagraphStyle("cell", fontName="Helvetica", fontSize=9.8, leading=13, textColor=INK)
CELL_RIGHT = ParagraphStyle("cell_right", parent=CELL, alignment=TA_RIGHT)
HEAD = ParagraphStyle("head", parent=CELL, fontName="Helvetica-Bold", textColor=HexColor("#ffffff"))
HEAD_RIGHT = ParagraphStyle("head_right", parent=HEAD, alignment=TA_RIGHT)
BULLET = ParagraphStyle("bullet", parent=BODY, leftIndent=14, bulletIndent=3, spaceAfter=3)

Flowable = Any
Page = Sequence[Flowable]


@dataclass(frozen=True)
class Document:
    """A document to draw: metadata, the cover, and the pages that follow it."""

    title: str
    subject: str
    cover: Callable[[Canvas], None]
    pages: Sequence[Page]


def body(*texts: str) -> list[Flowable]:
    """Paragraphs of running text."""
    return [Paragraph(_unbroken(text), BODY) for text in texts]


def chapter(title: str, lead: str) -> list[Flowable]:
    """The heading of a page and its introductory sentence."""
    return [Paragraph(title, H1), Paragraph(lead, LEAD)]


def section(title: str, *texts: str) -> list[Flowable]:
    """A sub-heading with its paragraphs."""
    return [Paragraph(title, H2), *body(*texts)]


def bullets(*texts: str) -> list[Flowable]:
    """A bulleted list."""
    return [*(Paragraph(_unbroken(text), BULLET, bulletText="•") for text in texts), Spacer(1, 4)]


def caption(text: str) -> list[Flowable]:
    """A small grey line under a table or chart."""
    return [Paragraph(text, CAPTION)]


def callout(text: str, color: Color = TEAL) -> list[Flowable]:
    """A tinted box for the one thing to remember."""
    box = Table([[Paragraph(_unbroken(text), NOTE)]], colWidths=[TEXT_WIDTH])
    box.setStyle(
        TableStyle(
            [
                ("BACKGROUND", (0, 0), (-1, -1), PALE),
                ("LINEBEFORE", (0, 0), (0, -1), 3, color),
                ("LEFTPADDING", (0, 0), (-1, -1), 11),
                ("TOPPADDING", (0, 0), (-1, -1), 8),
                ("BOTTOMPADDING", (0, 0), (-1, -1), 9),
            ]
        )
    )
    return [Spacer(1, 5), box, Spacer(1, 9)]


def grid(
    rows: Sequence[Sequence[str]], shares: Sequence[float], *, right: Sequence[int] = (), total: bool = False
) -> list[Flowable]:
    """A table whose first row is the header.

    shares: width of each column as a share of the text width. right: columns set flush right. total: whether the last
    row is a sum.
    """

    def cell(text: str, row: int, column: int) -> Flowable:
        head = row == 0
        style = (HEAD_RIGHT if head else CELL_RIGHT) if column in right else (HEAD if head else CELL)
        bold = total and row == len(rows) - 1
        return Paragraph(f"<b>{text}</b>" if bold else text, style)

    cells = [[cell(text, r, c) for c, text in enumerate(row)] for r, row in enumerate(rows)]
    table = Table(cells, colWidths=[TEXT_WIDTH * share for share in shares], repeatRows=1)
    style = [
        ("BACKGROUND", (0, 0), (-1, 0), TEAL),
        ("VALIGN", (0, 0), (-1, -1), "TOP"),
        ("LINEBELOW", (0, 1), (-1, -1), 0.5, RULE),
        ("TOPPADDING", (0, 0), (-1, -1), 4.5),
        ("BOTTOMPADDING", (0, 0), (-1, -1), 6),
    ]
    if total:
        style.append(("LINEABOVE", (0, -1), (-1, -1), 1, INK))
    table.setStyle(TableStyle(style))
    return [Spacer(1, 3), table, Spacer(1, 9)]


def draw(document: Document) -> bytes:
    """The PDF of a document; the same bytes every time. Raises ValueError where a page does not hold its content."""
    buffer = BytesIO()
    canvas = Canvas(buffer, pagesize=A4, invariant=1, pageCompression=1)
    canvas.setTitle(document.title)
    canvas.setAuthor(COMPANY)
    canvas.setSubject(document.subject)
    document.cover(canvas)
    canvas.showPage()
    for number, page in enumerate(document.pages, start=2):
        _furniture(canvas, document.title, number)
        frame = Frame(MARGIN, 24 * mm, TEXT_WIDTH, HEIGHT - 52 * mm, 0, 0, 0, 0)
        rest = list(page)
        frame.addFromList(rest, canvas)
        if rest:
            raise ValueError(f"page {number} of {document.title!r} is too full: {len(rest)} flowables do not fit")
        canvas.showPage()
    canvas.save()
    return buffer.getvalue()


def _unbroken(text: str) -> str:
    """The text with its amounts and percentages kept on one line."""
    return text.replace(" %", "\u00a0%").replace("EUR ", "EUR\u00a0")


def _furniture(canvas: Canvas, title: str, number: int) -> None:
    canvas.setStrokeColor(RULE)
    canvas.setLineWidth(0.6)
    canvas.line(MARGIN, HEIGHT - 20 * mm, WIDTH - MARGIN, HEIGHT - 20 * mm)
    canvas.setFont("Helvetica", 8)
    canvas.setFillColor(GREY)
    canvas.drawString(MARGIN, HEIGHT - 17.5 * mm, COMPANY)
    canvas.drawRightString(WIDTH - MARGIN, HEIGHT - 17.5 * mm, title)
    canvas.drawCentredString(WIDTH / 2, 13 * mm, str(number))
