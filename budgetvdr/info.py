"""What an index says about itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from budgetvdr.bundle import Preset


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """What an index holds and what it takes.

    path: where it lies. version: the table version read.
    pages, documents, vectors: counts; vectors are those of one depth. blank_pages: pages without vectors, which no
    search returns. readers: where pages were read, "text_layer", "ocr" or "none" -> pages. notes: note -> pages.
    depths, dims: selectable points. presets: name -> its point. metadata: your columns -> their types.
    encoder, fingerprint: the bundle it was made with.
    bytes_on_disk: everything under the path, old versions included. vector_bytes: what the vectors take of it, all
    depths together. versions: how many can still be read. fragments: data files; many small ones make `optimize`
    worth it.
    """

    path: str
    version: int
    pages: int
    documents: int
    vectors: int
    blank_pages: int
    readers: Mapping[str, int]
    notes: Mapping[str, int]
    depths: tuple[int, ...]
    dims: tuple[int, ...]
    presets: Mapping[str, Preset]
    metadata: Mapping[str, str]
    encoder: str
    fingerprint: str
    bytes_on_disk: int
    vector_bytes: int
    versions: int
    fragments: int
