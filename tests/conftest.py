"""Documents made on the spot, and the bundled encoder opened once."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from reportlab.lib.pagesizes import letter
from reportlab.pdfgen.canvas import Canvas

from budgetvdr.encoders import Encoder
from budgetvdr.encoders.open import open_encoder

MakePdf = Callable[..., Path]


def pdf_bytes(pages: Sequence[str]) -> bytes:
    """A PDF with one page a text; lines are split at newlines, an empty text is an empty page."""
    stream = io.BytesIO()
    canvas = Canvas(stream, pagesize=letter, invariant=True)
    for text in pages:
        for number, line in enumerate(text.split("\n")):
            canvas.drawString(72, 700 - 16 * number, line)
        canvas.showPage()
    canvas.save()
    return stream.getvalue()


@pytest.fixture
def make_pdf(tmp_path: Path) -> MakePdf:
    """Writes a PDF of the given page texts and returns its path."""

    def make(name: str, *pages: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pdf_bytes(pages))
        return path

    return make


@pytest.fixture(scope="session")
def encoder() -> Encoder:
    """The bundled encoder; its sessions are opened once for the whole run."""
    return open_encoder(None, threads=2)
