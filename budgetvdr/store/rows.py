"""Encoded pages -> one Arrow table, built from numpy buffers without a Python object per number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from budgetvdr.errors import EncodingError
from budgetvdr.pages import Boxes, MetadataValue, Vectors
from budgetvdr.store.schema import (
    IndexSettings,
    metadata_column,
    metadata_fields,
    plain_value,
    storable,
    vector_column,
)

_LARGEST_HALF = 65504.0
_FRACTIONS = 65535  # regions are stored as uint16 shares of the page


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PageRow:
    """One page to store.

    doc_id, page_num: together the page's id. page_num is 1-based.
    label, page_count, source, size, metadata: as in `Page`.
    revision: digest of everything that decides what is stored for the page.
    text, reader, notes: as in `EncodedPage`.
    regions: (n, 4) float32 page fractions, one row a vector; n is 0 for a blank page.
    vectors: depth -> (n, D) float32, for every depth of the index.
    image: an encoded picture (JPEG, PNG, WebP) to keep beside the vectors, None to keep none.
    """

    doc_id: str
    page_num: int
    regions: Boxes
    vectors: Mapping[int, Vectors]
    label: str = ""
    page_count: int = 0
    source: str = ""
    size: tuple[float, float] = (0.0, 0.0)
    revision: str = ""
    metadata: Mapping[str, MetadataValue] = field(default_factory=dict)
    text: str = ""
    reader: str = ""
    notes: Sequence[str] = ()
    image: bytes | None = None

    @property
    def id(self) -> str:
        """`doc_id#page_num`, as it is stored."""
        return storable(f"{self.doc_id}#{self.page_num}")


def latest_by_id(rows: Sequence[PageRow]) -> list[PageRow]:
    """The last row of every page id, in order of first appearance."""
    return list({row.id: row for row in rows}.values())


def check_row(row: PageRow, settings: IndexSettings) -> None:
    """Raises EncodingError for a page whose vectors or regions cannot be stored."""
    _checked_count(row, settings)
    for depth, vectors in row.vectors.items():
        # Written so that NaN fails too.
        if not np.abs(vectors).max(initial=0.0) <= _LARGEST_HALF:
            raise _beyond_float16(row, depth)


def arrow_table(rows: Sequence[PageRow], settings: IndexSettings, schema: pa.Schema) -> pa.Table:
    """The rows in the table's schema, metadata columns included.

    Raises EncodingError where vectors or regions are missing, of the wrong shape, not finite, or beyond float16.
    """
    counts = np.array([_checked_count(row, settings) for row in rows], np.int64)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]).astype(np.int32)
    columns = _facts(rows) | {
        "_vectors": pa.array(counts.astype(np.int32)),
        "_regions": _ragged(_regions(rows, offsets), offsets),
    }
    for depth in settings.depths:
        for start, end in settings.slices():
            columns[vector_column(depth, start)] = _ragged(_slice(rows, offsets, depth, start, end), offsets)
    for key, kind in metadata_fields(schema).items():
        columns[key] = metadata_column([plain_value(row.metadata.get(key)) for row in rows], kind)
    return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)


def region_fractions(stored: npt.NDArray[np.uint16]) -> Boxes:
    """Stored (n, 4) regions as float32 page fractions, exact to 1/131070 of the page."""
    return stored.astype(np.float32) / np.float32(_FRACTIONS)


def _checked_count(row: PageRow, settings: IndexSettings) -> int:
    count = len(row.regions)
    if row.regions.shape != (count, 4) or not np.isfinite(row.regions).all():
        raise EncodingError(f"{row.id}: expected finite regions (n, 4), found shape {row.regions.shape}")
    if set(row.vectors) != set(settings.depths):
        raise EncodingError(
            f"{row.id}: expected vectors of depths {list(settings.depths)}, found {sorted(row.vectors)}"
        )
    expected = (count, settings.dims[-1])
    for depth, vectors in row.vectors.items():
        if vectors.shape != expected:
            raise EncodingError(
                f"{row.id} at depth {depth}: expected vectors {expected}, one a region, found {vectors.shape}"
            )
    return count


def _beyond_float16(row: PageRow, depth: int) -> EncodingError:
    return EncodingError(
        f"{row.id} at depth {depth}: expected finite vectors within float16 (up to 65504), "
        f"found {np.abs(row.vectors[depth]).max()}; the encoder is at fault"
    )


def _facts(rows: Sequence[PageRow]) -> dict[str, pa.Array]:
    strings = ("id", "doc_id", "label", "source", "revision", "reader", "text")
    return {name: pa.array([storable(getattr(row, name)) for row in rows]) for name in strings} | {
        "page_num": pa.array([row.page_num for row in rows], pa.int32()),
        "page_count": pa.array([row.page_count for row in rows], pa.int32()),
        "notes": pa.array([[storable(note) for note in row.notes] for row in rows], pa.list_(pa.string())),
        "_stamp": pa.array(np.random.default_rng().integers(1, 1 << 64, len(rows), np.uint64)),
        "_width": pa.array([row.size[0] for row in rows], pa.float64()),
        "_height": pa.array([row.size[1] for row in rows], pa.float64()),
        "_image": pa.array([row.image for row in rows], pa.large_binary()),
        "_image_bytes": pa.array([len(row.image or b"") for row in rows], pa.int64()),
    }


def _slice(
    rows: Sequence[PageRow], offsets: npt.NDArray[np.int32], depth: int, start: int, end: int
) -> npt.NDArray[np.float16]:
    packed = np.empty((int(offsets[-1]), end - start), np.float16)
    for row, first, last in zip(rows, offsets[:-1], offsets[1:], strict=True):
        # What float16 cannot hold is found below, for all pages at once.
        with np.errstate(over="ignore", invalid="ignore"):
            packed[first:last] = row.vectors[depth][:, start:end]
        if not np.isfinite(packed[first:last]).all():
            raise _beyond_float16(row, depth)
    return packed


def _regions(rows: Sequence[PageRow], offsets: npt.NDArray[np.int32]) -> npt.NDArray[np.uint16]:
    packed = np.empty((int(offsets[-1]), 4), np.uint16)
    for row, first, last in zip(rows, offsets[:-1], offsets[1:], strict=True):
        packed[first:last] = np.rint(np.clip(row.regions, 0.0, 1.0) * _FRACTIONS)
    return packed


def _ragged(packed: npt.NDArray[np.float16] | npt.NDArray[np.uint16], offsets: npt.NDArray[np.int32]) -> pa.Array:
    values = pa.FixedSizeListArray.from_arrays(pa.array(packed.reshape(-1)), packed.shape[1])
    return pa.ListArray.from_arrays(pa.array(offsets), values)
