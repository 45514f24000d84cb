"""What reading gives, and the way there from Arrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from budgetvdr.pages import MetadataValue, TokenSignals
from budgetvdr.store.rows import PageRow, region_fractions
from budgetvdr.store.schema import IndexSettings, signals_column

RowAddresses = npt.NDArray[np.uint64]
Offsets = npt.NDArray[np.int64]
Stamps = npt.NDArray[np.uint64]
"""One a page, drawn anew whenever it is encoded and stored; a copy in another index has that of the original."""
PageState = tuple[int, str]
"""A page's stamp and its source, which changes where its file has moved: what was copied of it is as old as these."""

ADDRESS = "_rowid"
FACT_COLUMNS = (
    "id", "doc_id", "page_num", "page_count", "label", "source", "revision", "reader", "text", "notes",
    "_width", "_height", "_vectors",
)  # fmt: skip
"""What `page_facts` needs besides metadata."""


@dataclass(frozen=True, slots=True, eq=False)
class Slab:
    """Vectors of some pages, as they lie on disk.

    addresses: (p,) uint64, of the pages, valid in the snapshot that gave them.
    offsets: (p + 1,) int64; vectors of page i are rows offsets[i] to offsets[i + 1] of every slice, none for a blank
        page.
    slices: one (n, w) float16 array a stored slice, in order; side by side they are the vectors. Read-only.
    """

    addresses: RowAddresses
    offsets: Offsets
    slices: tuple[npt.NDArray[np.float16], ...]


@dataclass(frozen=True, slots=True, eq=False)
class PageFacts:
    """What the index knows of a page, without vectors and picture.

    vectors: how many the encoder gave, one a token; an index that folds holds fewer. The other fields are those of
        `PageRow`.
    """

    id: str
    doc_id: str
    page_num: int
    page_count: int
    label: str
    source: str
    revision: str
    size: tuple[float, float]
    metadata: Mapping[str, MetadataValue]
    text: str
    reader: str
    notes: tuple[str, ...]
    vectors: int


@dataclass(frozen=True, slots=True)
class DocumentState:
    """What is stored of one document, for those who add it again.

    source: path or URI of its lowest page, "" where there is none.
    revisions: page number -> revision of every stored page, ascending; empty where nothing is stored.
    unread: numbers of pages that need OCR and were stored while it was not installed.
    """

    source: str
    revisions: Mapping[int, str]
    unread: frozenset[int]


@dataclass(frozen=True, slots=True)
class DocumentInfo:
    """A stored document: its source (that of the page stored first) and its number of stored pages."""

    doc_id: str
    source: str
    pages: int


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """One version that can still be read: its number, when it was written (UTC), and its stored pages."""

    version: int
    time: datetime
    pages: int


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Size of one version.

    pages, documents, tokens: counts. vectors: of the deepest exit, one a token unless the index folds.
    blank_pages: pages without vectors.
    vector_bytes: payload of the vector columns, all depths and slices together. image_bytes: likewise.
    data_bytes: data files of this version; what exceeds the two above is regions, text, facts and deleted rows.
    fragments: data fragments, which slow the reading of the whole table (see `upkeep`); many small ones are merged by
        themselves. versions: versions that can still be read.
    notes, readers: how many pages carry each note, and come from each reader.
    """

    pages: int
    documents: int
    tokens: int
    vectors: int
    blank_pages: int
    vector_bytes: int
    image_bytes: int
    data_bytes: int
    fragments: int
    versions: int
    notes: Mapping[str, int]
    readers: Mapping[str, int]


def addresses(batch: pa.RecordBatch) -> RowAddresses:
    """(p,) addresses of a batch that was read with them."""
    found: RowAddresses = batch.column(ADDRESS).to_numpy()
    return found


def page_facts(batch: pa.RecordBatch, metadata_keys: Sequence[str]) -> list[PageFacts]:
    """Pages of a batch that holds `FACT_COLUMNS` and the metadata columns, in order."""
    return [
        PageFacts(
            id=row["id"],
            doc_id=row["doc_id"],
            page_num=row["page_num"],
            page_count=row["page_count"],
            label=row["label"],
            source=row["source"],
            revision=row["revision"],
            size=(row["_width"], row["_height"]),
            metadata={key: row[key] for key in metadata_keys if row[key] is not None},
            text=row["text"],
            reader=row["reader"],
            notes=tuple(row["notes"]),
            vectors=row["_vectors"],
        )
        for row in batch.select([*FACT_COLUMNS, *metadata_keys]).to_pylist()
    ]


def ragged(column: pa.Array) -> tuple[Offsets, npt.NDArray[Any]]:
    """(p + 1,) offsets from 0, and the (n, w) values of a list column as a view of Arrow's memory."""
    offsets = column.offsets.to_numpy().astype(np.int64)
    rows = column.flatten()
    return offsets - offsets[0], rows.flatten().to_numpy(zero_copy_only=True).reshape(-1, rows.type.list_size)


def slab(batch: pa.RecordBatch, columns: Sequence[str]) -> Slab:
    """The vectors of a batch that was read with addresses; `columns` are slices of one depth, in order."""
    parts = [ragged(batch.column(name)) for name in columns]
    return Slab(addresses(batch), parts[0][0], tuple(values for _, values in parts))


def reordered(pages: Slab, order: npt.NDArray[np.intp]) -> Slab:
    """A copy with page `order[i]` at place i."""
    counts = np.diff(pages.offsets)[order]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    chosen = np.repeat(pages.offsets[:-1][order], counts) + within
    return Slab(pages.addresses[order], offsets, tuple(values[chosen] for values in pages.slices))


def page_rows(batch: pa.RecordBatch, metadata_keys: Sequence[str], settings: IndexSettings) -> list[PageRow]:
    """Pages of a batch that holds `FACT_COLUMNS`, metadata, regions, pictures, vectors and signals, in order."""
    facts, images, stamps = page_facts(batch, metadata_keys), batch.column("_image"), batch.column("_stamp")
    offsets, regions = ragged(batch.column("_regions"))
    slices = {
        depth: [ragged(batch.column(name))[1] for name in settings.columns(depth, settings.dims[-1])]
        for depth in settings.depths
    }
    signals = {depth: ragged(batch.column(signals_column(depth)))[1] for depth in settings.depths if settings.signals}
    return [
        PageRow(
            doc_id=fact.doc_id,
            page_num=fact.page_num,
            label=fact.label,
            page_count=fact.page_count,
            source=fact.source,
            size=fact.size,
            revision=fact.revision,
            metadata=fact.metadata,
            text=fact.text,
            reader=fact.reader,
            notes=fact.notes,
            regions=region_fractions(regions[rows]),
            vectors={
                depth: np.concatenate([part[rows] for part in parts], axis=1, dtype=np.float32)
                for depth, parts in slices.items()
            },
            signals={depth: TokenSignals(*found[rows].T.astype(np.float32)) for depth, found in signals.items()},
            image=images[place].as_py(),
            stamp=stamps[place].as_py(),
        )
        for place, (fact, rows) in enumerate(zip(facts, map(slice, offsets[:-1], offsets[1:]), strict=True))
    ]
