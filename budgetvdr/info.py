"""What an index says about itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from budgetvdr.bundle import Preset
from budgetvdr.recall import RecallReport
from budgetvdr.store import Snapshot, Store


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """What an index holds and what it takes.

    path: where it lies. version: the table version read.
    pages, documents, tokens, vectors: counts; vectors are those of the deepest exit, as many as tokens unless the index
    is compressed. compression: how, with its version and every setting, None where each token has its vector.
    signals: whether it keeps what `Index.recompress` may need. blank_pages: pages without vectors, which no
    search returns. readers: where pages were read, "text_layer", "ocr" or "none" -> pages. notes: note -> pages.
    depths, dims: selectable points. query_depths: stored depth -> query depths trained to search it.
    presets: name -> its point. metadata: your columns -> their types.
    encoder, fingerprint: the bundle it was made with.
    bytes_on_disk: everything under the path, old versions included; an object store does not tell, and it is
    `current_bytes` there. current_bytes: the data of this version; of it vector_bytes are vectors, all depths together,
    and image_bytes pictures. versions: how many can still be read. fragments: data files.
    resident_bytes: vectors in this process's memory, with the lists of the first stage. first_stage: depths that have
    one (see `Index.optimize`). recall: what the last `Index.check_recall` of this object measured, or
    else of any process that could write to a local index; its version tells how old it is.
    """

    path: str
    version: int
    pages: int
    documents: int
    tokens: int
    vectors: int
    compression: Mapping[str, Any] | None
    signals: bool
    blank_pages: int
    readers: Mapping[str, int]
    notes: Mapping[str, int]
    depths: tuple[int, ...]
    dims: tuple[int, ...]
    query_depths: Mapping[int, tuple[int, ...]]
    presets: Mapping[str, Preset]
    metadata: Mapping[str, str]
    encoder: str
    fingerprint: str
    bytes_on_disk: int
    current_bytes: int
    vector_bytes: int
    image_bytes: int
    versions: int
    fragments: int
    resident_bytes: int
    first_stage: tuple[int, ...]
    recall: RecallReport | None

    @property
    def old_bytes(self) -> int:
        """What old versions take, and the first stage; `optimize` frees those versions that it shall not keep."""
        return self.bytes_on_disk - self.current_bytes


def describe(
    store: Store,
    snapshot: Snapshot,
    *,
    presets: Mapping[str, Preset],
    query_depths: Mapping[int, tuple[int, ...]],
    resident_bytes: int,
    recall: RecallReport | None,
) -> IndexInfo:
    """What a snapshot holds, and what the searches of this process add to that."""
    stats, settings = snapshot.stats(), store.settings
    return IndexInfo(
        path=store.uri,
        version=snapshot.version,
        pages=stats.pages,
        documents=stats.documents,
        tokens=stats.tokens,
        vectors=stats.vectors,
        compression=settings.compression,
        signals=settings.signals,
        blank_pages=stats.blank_pages,
        readers=stats.readers,
        notes=stats.notes,
        depths=settings.depths,
        dims=settings.dims,
        query_depths=query_depths,
        presets=presets,
        metadata=snapshot.metadata_types(),
        encoder=settings.encoder_name,
        fingerprint=settings.fingerprint,
        bytes_on_disk=store.bytes_on_disk(),
        current_bytes=stats.data_bytes,
        vector_bytes=stats.vector_bytes,
        image_bytes=stats.image_bytes,
        versions=stats.versions,
        fragments=stats.fragments,
        resident_bytes=resident_bytes,
        first_stage=snapshot.routed_depths(),
        recall=recall,
    )
