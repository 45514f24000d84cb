"""PDF files: their pages' pictures and text layers."""

from budgetvdr.pdf.file import MAX_SIDE, PdfFile

__all__ = ["MAX_SIDE", "PdfFile"]
