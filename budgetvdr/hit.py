"""One answer of a search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol

from PIL import Image

from budgetvdr.explain import Explanation
from budgetvdr.pages import MetadataValue, Spent


class HitView(Protocol):
    """What a hit asks of the index it came from."""

    def picture(self, hit: Hit, longest_side: int, password: str | None) -> Image.Image:
        """The page's picture."""

    def explanation(self, hit: Hit) -> Explanation:
        """Which region of the page answered which token."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Hit:
    """A page that answers a query. Fields can be read as attributes or as items (`hit["score"]`).

    id: "doc_id#page_num". doc_id: the document. page_num: 1-based, as a PDF viewer counts. page_label: the number
    printed by the document's own numbering, "" where it has none. page_count: pages of the document.
    score: mean over query vectors of the best dot product; for unit vectors between -1 and 1. metadata: as given to
    add_pages. source: path or URI the page came from. text: what was read from the page. notes: what was noticed
    when it was indexed. query: the text searched for. budget: what the search really spent: at which depth, page_depth
    and dim, how many pages it looked at (budget.pages), how many of these it scored exactly (budget.candidates),
    milliseconds.
    """

    id: str
    doc_id: str
    page_num: int
    score: float
    page_label: str
    page_count: int
    metadata: Mapping[str, MetadataValue]
    source: str
    text: str
    notes: tuple[str, ...]
    query: str
    budget: Spent
    view: HitView

    def __repr__(self) -> str:
        return f"Hit({self.id!r}, score={self.score:.4f}, text={self.text[:60]!r}...)"

    def __getitem__(self, name: str) -> Any:
        if name in _FIELDS:
            return getattr(self, name)
        raise KeyError(f"a hit has no field {name!r}; it has {', '.join(_FIELDS)}")

    def to_dict(self) -> dict[str, Any]:
        """Every field as plain values, ready for JSON except for dates in the metadata."""
        values = {name: getattr(self, name) for name in _FIELDS}
        spent = {item.name: getattr(self.budget, item.name) for item in fields(self.budget)}
        return values | {"metadata": dict(self.metadata), "notes": list(self.notes), "budget": spent}

    def image(self, *, longest_side: int = 1600, password: str | None = None) -> Image.Image:
        """The page as a picture: the stored one, or drawn again from the source.

        longest_side: pixels of the longer side at most. password: for a protected PDF; passwords are never stored.

        Raises SourceNotFoundError where the source has moved or was never a file, PasswordError where it is needed.
        """
        return self.view.picture(self, longest_side, password)

    def explain(self) -> Explanation:
        """Which region of the page answered which query token, at the depths and width this search ran at.

        In a compressed index it tells too what became of each region: see `Explanation.kept`.
        """
        return self.view.explanation(self)


_FIELDS = tuple(item.name for item in fields(Hit) if item.name != "view")
