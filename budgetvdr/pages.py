"""The values that travel through the package: a page on its way in, a page encoded.

Regions and boxes are float32 rows ``(x0, y0, x1, y1)`` in fractions of the upright page picture, origin at the
top left, so that they survive any rendering resolution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from budgetvdr.errors import BudgetVDRError

Boxes = npt.NDArray[np.float32]
Vectors = npt.NDArray[np.float32]
Scores = npt.NDArray[np.float32]
MetadataValue = str | int | float | bool | datetime | date


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """Words in reading order with one box each.

    texts: n words, without white space inside.
    boxes: (n, 4) float32 page fractions.
    """

    texts: tuple[str, ...]
    boxes: Boxes

    def __post_init__(self) -> None:
        if not isinstance(self.boxes, np.ndarray) or self.boxes.shape != (len(self.texts), 4):
            raise ValueError(f"boxes must be ({len(self.texts)}, 4), one row a word; found {np.shape(self.boxes)}")

    def __len__(self) -> int:
        return len(self.texts)


ReadMode = Literal["auto", "text_layer", "ocr"]
SearchPath = Literal["scan", "proposed", "pruned", "stream"]
"""How a search went through the pages; see `Spent`."""
Render = Callable[[int], Image.Image]
"""Renders an upright RGB picture whose longer side is at most the given number of pixels."""


@dataclass(slots=True, eq=False)
class Page:
    """One page to index, as a source yields it or as a caller builds it.

    doc_id: stable name of the document; with page_num it makes the page's id.
    page_num: 1-based, as a PDF viewer counts.
    image: a picture of the page. A source that can draw the page at any size gives `render` instead.
    render: draws the page; takes the longest side wanted in pixels.
    size: (width, height) of the upright page in PDF points, or in pixels for pictures.
    words: the PDF's own text layer, cleaned, or None where the source has no such thing. Nobody has vouched for it.
    label: the number the document itself gives the page ("iv", "A-3"), "" where it gives none.
    page_count: pages in the document, 0 where unknown (an open iterable).
    source: path or URI the page came from, "" for pages made in memory.
    content_hash: digest of what the page was made from, "" where unknown. A page given again with the same digest and
        metadata is not stored again.
    metadata: scalars the caller can filter on.
    notes: what the source noticed about the page ("xfa_placeholder", ...).
    read: "auto" lets the encoder choose between text layer and OCR; the others force one. Encoders that look at
        pixels ignore it.
    """

    doc_id: str
    page_num: int
    image: Image.Image | None = None
    render: Render | None = None
    size: tuple[float, float] = (0.0, 0.0)
    words: Words | None = None
    label: str = ""
    page_count: int = 0
    source: str = ""
    content_hash: str = ""
    metadata: Mapping[str, MetadataValue] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    read: ReadMode = "auto"

    @property
    def id(self) -> str:
        """`doc_id#page_num`, the page's stable id."""
        return f"{self.doc_id}#{self.page_num}"


@dataclass(frozen=True, slots=True, eq=False)
class TokenSignals:
    """What the attention among a page's tokens says of each of them, for page compression.

    The first two are means over a window of layers; all are in units of 1 / n, so that a token with an average share
    has about 1. Encoders round them to float16 precision, as an index stores them: compression while adding pages and
    later then agree.

    centrality: (n,) float32, propagated attention centrality (AnchorFold, section 3.2); of mean 1.
    in_degree: (n,), visual in-degree (SAP); of mean 1.
    from_global: (n,), attention that the page's global token pays to each in the last layer executed (DocPruner).
    """

    centrality: Scores
    in_degree: Scores
    from_global: Scores


@dataclass(frozen=True, slots=True, eq=False)
class EncodedPage:
    """One page as an encoder returns it.

    vectors: depth -> (n, D) float32; every depth has the same n. n is 0 for a page with nothing to read. As the model
        gives them, before they are scaled to unit length: scoring does that, and folding needs their lengths.
    regions: (n, 4) float32, the part of the page each vector stands for.
    text: what was read, one line a row, "" where nothing was.
    reader: "text_layer", "ocr" or "none": where the words came from ("image" for encoders that look at pixels).
    notes: what a person should know about the page ("blank", "text_layer_rejected:private_use", ...).
    seconds: CPU seconds of the calling thread by stage ("text_layer", "render", "ocr", "transformer").
    signals: depth -> what was asked of the attention there.
    """

    vectors: Mapping[int, Vectors]
    regions: Boxes
    text: str
    reader: str
    notes: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    signals: Mapping[int, TokenSignals] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class EncodedQuery:
    """One query at one depth: (n, D) float32 vectors and the n tokens they stand for."""

    vectors: Vectors
    tokens: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Spent:
    """What a search really cost; every hit of one search carries the same.

    depth, dim: the point of the grid that ran, depth being the query's. page_depth: the exit whose page vectors were
    scored. path: how pages were chosen: "scan" (vectors in memory, all of them or
    those the first stage proposed), "proposed" (those the first stage proposed, read from disk), "pruned" (leading
    components in memory, the rest read as far as needed) or "stream" (every page read).
    pages, vectors: pages looked at, and their vectors. candidates: how many of these were scored exactly; not
    `Budget.candidates`, which is how many the first stage proposes.
    encode_ms, load_ms, scan_ms, exact_ms: wall milliseconds for the query's vectors, for bringing page vectors into
    memory (at the first search at a point, and after pages came or went), for scanning them, and for reading the
    candidates and scoring them exactly. ms: of the whole search.
    """

    depth: int
    page_depth: int
    dim: int
    path: SearchPath
    pages: int
    vectors: int
    candidates: int
    encode_ms: float
    load_ms: float
    scan_ms: float
    exact_ms: float
    ms: float


@dataclass(frozen=True, slots=True)
class PageProblem:
    """A page that could not be stored, and why."""

    page_num: int
    error: BudgetVDRError


@dataclass(slots=True)
class FileReport:
    """What became of one document of an `add_pages` call.

    status: "added" (new), "updated" (replaced an older revision), "unchanged" (every page was there already),
        "skipped" (if_exists="skip"), "partial" (some pages failed) or "failed" (nothing stored from it).
    pages: pages the document has, 0 where that is unknown. stored: pages written now. unchanged: pages kept.
    problems: pages that failed. notes: page number -> what a person should know about the page.
    readers: how many of the stored pages were read from "text_layer", "ocr", "image" or "none".
    error: why the document as a whole could not be read (to its end), None otherwise.
    """

    doc_id: str
    source: str
    status: str = "added"
    pages: int = 0
    stored: int = 0
    unchanged: int = 0
    problems: list[PageProblem] = field(default_factory=list)
    notes: dict[int, tuple[str, ...]] = field(default_factory=dict)
    readers: dict[str, int] = field(default_factory=dict)
    error: BudgetVDRError | None = None


@dataclass(slots=True)
class AddReport:
    """What one `add_pages` call did.

    files: one report a document, in the order of the source.
    seconds: by stage. "total" is wall time; "read" (opening files, text layers) and "write" (commits) are wall time of
        threads that work beside the encoder; the encoder's own stages are CPU seconds summed over its threads.
    """

    files: list[FileReport] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def pages(self) -> int:
        """Pages written."""
        return sum(file.stored for file in self.files)

    @property
    def failed(self) -> list[FileReport]:
        """Documents with at least one page missing from the index."""
        return [file for file in self.files if file.error or file.problems]

    def __str__(self) -> str:
        unchanged = sum(file.unchanged for file in self.files)
        stored = f"{_counted(self.pages, 'page')} of {_counted(len(self.files), 'document')} stored"
        lines = [f"{stored}, {unchanged} unchanged, {self.seconds.get('total', 0.0):.1f} s"]
        notes = Counter(note for file in self.files for page in file.notes.values() for note in page)
        if notes:
            lines.append("  " + ", ".join(f"{note}: {count}" for note, count in notes.most_common()))
        if notes["ocr_missing"]:
            lines.append('  pages noted ocr_missing need OCR: pip install "budgetvdr[ocr]", then add them again')
        for file in self.failed:
            lines += [f"  {file.error}"] if file.error is not None else []
            lines += [f"  {problem.error}" for problem in file.problems]
        return "\n".join(lines)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
