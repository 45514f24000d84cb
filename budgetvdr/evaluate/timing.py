"""An encoder that notes what each page costs, with and without telling of its attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from budgetvdr.bundle import Manifest, Window
from budgetvdr.encoders import Encoder
from budgetvdr.errors import BudgetVDRError
from budgetvdr.evaluate.compression import Floats
from budgetvdr.pages import EncodedPage, EncodedQuery, Page

# One page in so many is encoded once with and once without attention, one after the other.
_EVERY: Final = 8
# A scan is read by OCR again for that, which takes seconds: only where there is nothing else to compare.
_MOST_SCANS: Final = 3
_MODEL: Final = "transformer"


class TimedEncoder:
    """Encodes as another does, with other windows in the manifest. Implements `Encoder`.

    windows: depth -> what an index that keeps signals is to look at.
    """

    def __init__(self, encoder: Encoder, windows: Mapping[int, Window]) -> None:
        self._encoder = encoder
        self._manifest = replace(encoder.manifest, compression=dict(windows))
        # Page id -> milliseconds before the model (reading, drawing, OCR) and in it.
        self._pages: dict[str, tuple[float, float]] = {}
        self._readers: dict[str, str] = {}
        self._queries: dict[tuple[str, int], EncodedQuery] = {}
        # Milliseconds in the model of the same pages, with attention and without.
        self._twice: list[tuple[float, float]] = []
        self._texts = 0

    @property
    def manifest(self) -> Manifest:
        """The bundle's, with these windows."""
        return self._manifest

    def encode_pages(
        self,
        pages: Sequence[Page],
        depths: Sequence[int],
        *,
        attention: Mapping[int, Window] | None = None,
        on_page: Callable[[], object] | None = None,
    ) -> list[EncodedPage | BudgetVDRError]:
        """As the other encoder does."""
        found = self._encoder.encode_pages(pages, depths, attention=attention, on_page=on_page)
        for page, result in zip(pages, found, strict=True):
            if not isinstance(result, EncodedPage):
                continue
            self._pages[page.id], self._readers[page.id] = _milliseconds(result), result.reader
            is_scan = result.reader == "ocr"
            if attention and (len(self._twice) < _MOST_SCANS if is_scan else self._texts % _EVERY == 0):
                self._compare(page, depths, attention)
            self._texts += not is_scan
        return found

    def encode_query(self, text: str, depth: int) -> EncodedQuery:
        """As the other encoder does, once: every smaller index is asked the same questions."""
        if (text, depth) not in self._queries:
            self._queries[text, depth] = self._encoder.encode_query(text, depth)
        return self._queries[text, depth]

    def milliseconds(self, page_ids: Sequence[str], *, attention: bool) -> Floats | None:
        """CPU milliseconds of some pages; None where one was not encoded here."""
        if not all(page_id in self._pages for page_id in page_ids):
            return None
        share = 1.0
        if not attention and self._twice:
            with_it, without = np.array(self._twice).sum(axis=0)
            share = without / with_it
        return np.array([before + model * share for before, model in (self._pages[each] for each in page_ids)])

    def readers(self, page_ids: Sequence[str]) -> list[str]:
        """Where the words of some pages came from, "" for one that was not encoded here."""
        return [self._readers.get(page_id, "") for page_id in page_ids]

    def _compare(self, page: Page, depths: Sequence[int], attention: Mapping[int, Window]) -> None:
        (told,) = self._encoder.encode_pages([page], depths, attention=attention)
        (silent,) = self._encoder.encode_pages([page], depths)
        if isinstance(told, EncodedPage) and isinstance(silent, EncodedPage):
            self._twice.append((_milliseconds(told)[1], _milliseconds(silent)[1]))


def _milliseconds(page: EncodedPage) -> tuple[float, float]:
    model = page.seconds.get(_MODEL, 0.0)
    return 1e3 * (sum(page.seconds.values()) - model), 1e3 * model
