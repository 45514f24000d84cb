"""Pages made by the caller: are they well formed, and is none there twice?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from budgetvdr.errors import PageError
from budgetvdr.pages import MetadataValue, Page, ReadMode

_MOST_PAGES = 2**31 - 1
_SIZES = [[a, b] for a in (int, float) for b in (int, float)]


def checked_pages(
    pages: Iterable[Page], metadata: Mapping[str, MetadataValue], read: ReadMode
) -> Iterator[Page | PageError]:
    """The pages of one document as they come, with metadata added under their own; a PageError for each unusable one.

    read: "auto" leaves each page its own mode.
    """
    seen = _Seen()
    for page in pages:
        problem = _bad_page(page) or ("" if seen.add(page.page_num) else f"page {page.page_num} comes a second time")
        if problem:
            number = page.page_num if isinstance(page.page_num, int) else 0
            yield PageError(f"{page.doc_id}: {problem}", page_num=number)
        else:
            mode = page.read if read == "auto" else read
            yield replace(page, metadata={**metadata, **page.metadata}, read=mode)


def bad_doc_id(doc_id: object) -> str:
    """What is wrong with a doc_id, "" where nothing is."""
    if isinstance(doc_id, str) and doc_id.strip() and "#" not in doc_id:
        return ""
    return f"a doc_id is a text, not empty and without '#', which parts it from the page number; found {doc_id!r}"


def _bad_page(page: Page) -> str:
    for name, value, least in (("page_num", page.page_num, 1), ("page_count", page.page_count, 0)):
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MOST_PAGES:
            return f"{name} is a whole number from {least} to {_MOST_PAGES}; found {value!r:.40}"
    for name, text in (("label", page.label), ("source", page.source), ("content_hash", page.content_hash)):
        if not isinstance(text, str):
            return f"{name} is a text; found {type(text).__name__}"
    if not isinstance(page.metadata, Mapping):
        return f"metadata is a mapping; found {type(page.metadata).__name__}"
    if not isinstance(page.size, tuple) or [type(side) for side in page.size] not in _SIZES:
        return f"size is (width, height); found {page.size!r:.60}"
    if page.image is None and page.render is None and page.words is None:
        return f"page {page.page_num} has nothing to read: give it image=, render= or words="
    return ""


class _Seen:
    """Page numbers that have come by. Those that follow one another, as they mostly do, take no memory."""

    def __init__(self) -> None:
        self._first = self._next = 0
        self._others: set[int] = set()

    def add(self, number: int) -> bool:
        """Whether the number is new."""
        if self._first <= number < self._next or number in self._others:
            return False
        if self._first == self._next:
            self._first = self._next = number
        if number == self._next:
            self._next += 1
        else:
            self._others.add(number)
        return True
