"""Page picture or query text -> vector set, per exit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from budgetvdr.bundle import Manifest, Window
from budgetvdr.errors import BudgetVDRError
from budgetvdr.pages import EncodedPage, EncodedQuery, Page, Scores, Vectors


@dataclass(frozen=True, slots=True, eq=False)
class LayerSupport:
    """What calibration needs of one page.

    vectors: depth -> (N, D), as in `EncodedPage`. support: (L, K, N) of every layer executed after steps 1 to K, as
    `budgetvdr.compress.joined` puts the page together.
    """

    vectors: Mapping[int, Vectors]
    support: Scores


class Encoder(Protocol):
    """What the index asks of an encoder. Calls may come from several threads."""

    @property
    def manifest(self) -> Manifest:
        """The bundle's contract: depths, dims, presets, fingerprint."""

    def encode_pages(
        self,
        pages: Sequence[Page],
        depths: Sequence[int],
        *,
        attention: Mapping[int, Window] | None = None,
        on_page: Callable[[], object] | None = None,
    ) -> list[EncodedPage | BudgetVDRError]:
        """One result a page, in order; a page that cannot be encoded gives its error instead of raising.

        attention: depth -> the window whose attention `EncodedPage.signals` is to tell of there; it changes no vector
        and costs nothing where left out. on_page: called as each page ends.

        The vectors of a page do not depend on its neighbours in the batch.

        Raises CompressionError where attention is asked of a bundle that does not give it.
        """

    def encode_query(self, text: str, depth: int) -> EncodedQuery:
        """Vectors of one query. Raises QueryError for an empty or oversized text."""


@runtime_checkable
class CalibratedEncoder(Encoder, Protocol):
    """An encoder whose windows for page compression can be calibrated."""

    def encode_support(self, page: Page, steps: int) -> LayerSupport:
        """Every exit's vectors and every layer's support. Raises CompressionError without attention, PageError."""
