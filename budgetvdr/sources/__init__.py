"""What a caller has -> documents of lazily drawn pages."""

from budgetvdr.sources.documents import Document, draw_page, is_one_document, open_documents
from budgetvdr.sources.opening import FailedSource, Source

__all__ = ["Document", "FailedSource", "Source", "draw_page", "is_one_document", "open_documents"]
