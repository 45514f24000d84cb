"""Page picture or query text -> vector set, per exit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from budgetvdr.bundle import Manifest
from budgetvdr.errors import BudgetVDRError
from budgetvdr.pages import EncodedPage, EncodedQuery, Page


class Encoder(Protocol):
    """What the index asks of an encoder. Calls may come from several threads."""

    @property
    def manifest(self) -> Manifest:
        """The bundle's contract: depths, dims, presets, fingerprint."""

    def encode_pages(
        self, pages: Sequence[Page], depths: Sequence[int], *, on_page: Callable[[], object] | None = None
    ) -> list[EncodedPage | BudgetVDRError]:
        """One result a page, in order; a page that cannot be encoded gives its error instead of raising.

        The vectors of a page do not depend on its neighbours in the batch. `on_page` is called as each page ends.
        """

    def encode_query(self, text: str, depth: int) -> EncodedQuery:
        """Vectors of one query. Raises QueryError for an empty or oversized text."""
