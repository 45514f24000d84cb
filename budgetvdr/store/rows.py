"""Encoded pages -> one Arrow table, built from numpy buffers without a Python object per number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from budgetvdr.errors import EncodingError
from budgetvdr.pages import Boxes, MetadataValue, TokenSignals, Vectors
from budgetvdr.store.schema import (
    IndexSettings,
    fold_column,
    metadata_column,
    metadata_fields,
    plain_value,
    signals_column,
    storable,
    vector_column,
)

FoldMap = npt.NDArray[np.int32]
"""(n,) for every token the number of the vector that stands for it, -1 for none."""

_LARGEST_HALF = 65504.0
_FRACTIONS = 65535  # regions are stored as uint16 shares of the page
_DROPPED = 65535  # in a stored fold map


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PageRow:
    """One page to store.

    doc_id, page_num: together the page's id. page_num is 1-based.
    label, page_count, source, size, metadata: as in `Page`.
    revision: digest of everything that decides what is stored for the page.
    text, reader, notes: as in `EncodedPage`.
    regions: (n, 4) float32 page fractions, one row a token; n is 0 for a blank page.
    vectors: depth -> (n, D) float32, for every depth of the index; (m, D) in an index that folds, m at least 1.
    folds: depth -> what became of each token, in an index that folds.
    signals: depth -> what the attention says of each token, in an index that keeps it.
    image: an encoded picture (JPEG, PNG, WebP) to keep beside the vectors, None to keep none.
    stamp: of the stored page that this is a copy of, 0 for a page just encoded, which gets one of its own.
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
    folds: Mapping[int, FoldMap] = field(default_factory=dict)
    signals: Mapping[int, TokenSignals] = field(default_factory=dict)
    stamp: int = 0

    @property
    def id(self) -> str:
        """`doc_id#page_num`, as it is stored."""
        return storable(f"{self.doc_id}#{self.page_num}")


def latest_by_id(rows: Sequence[PageRow]) -> list[PageRow]:
    """The last row of every page id, in order of first appearance."""
    return list({row.id: row for row in rows}.values())


def check_row(row: PageRow, settings: IndexSettings) -> None:
    """Raises EncodingError for a page whose vectors, regions, folds or signals cannot be stored."""
    _checked_count(row, settings)
    if settings.signals:
        for depth in settings.depths:
            _checked_signals(row, depth)
    for depth, vectors in row.vectors.items():
        # Written so that NaN fails too.
        if not np.abs(vectors).max(initial=0.0) <= _LARGEST_HALF:
            raise _beyond_float16(row, depth)


def arrow_table(rows: Sequence[PageRow], settings: IndexSettings, schema: pa.Schema) -> pa.Table:
    """The rows in the table's schema, metadata columns included.

    Raises EncodingError where vectors or regions are missing, of the wrong shape, not finite, or beyond float16.
    """
    tokens = _offsets([_checked_count(row, settings) for row in rows])
    columns = _facts(rows) | {
        "_vectors": pa.array(np.diff(tokens)),
        "_regions": _ragged(_regions(rows, tokens), tokens),
    }
    for depth in settings.depths:
        offsets = _offsets([len(row.vectors[depth]) for row in rows])
        for start, end in settings.slices():
            columns[vector_column(depth, start)] = _ragged(_slice(rows, offsets, depth, start, end), offsets)
        if settings.compression is not None:
            columns[settings.count_column(depth)] = pa.array(np.diff(offsets))
            folds = np.concatenate([np.empty(0, np.uint16), *(_stored_fold(row.folds[depth]) for row in rows)])
            columns[fold_column(depth)] = pa.ListArray.from_arrays(pa.array(tokens), pa.array(folds))
        if settings.signals:
            signals = np.concatenate([np.empty((0, 3), np.float16), *(_checked_signals(row, depth) for row in rows)])
            columns[signals_column(depth)] = _ragged(signals, tokens)
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
    for depth, vectors in row.vectors.items():
        stored = count if settings.compression is None else _checked_fold(row, depth, count)
        if vectors.shape != (stored, settings.dims[-1]):
            each = "one a region" if settings.compression is None else "as many as its fold map numbers"
            raise EncodingError(
                f"{row.id} at depth {depth}: expected vectors {(stored, settings.dims[-1])}, {each}, "
                f"found {vectors.shape}"
            )
    return count


def _checked_fold(row: PageRow, depth: int, count: int) -> int:
    """How many vectors the fold map of a page numbers."""
    fold = row.folds.get(depth)
    if fold is None or fold.shape != (count,):
        found = "none" if fold is None else str(fold.shape)
        raise EncodingError(f"{row.id} at depth {depth}: expected a fold map ({count},), one a region, found {found}")
    numbers = np.unique(fold)
    numbers = numbers[numbers >= 0] if len(numbers) and numbers[0] == -1 else numbers
    if not np.array_equal(numbers, np.arange(len(numbers))) or (count and not len(numbers)):
        raise EncodingError(
            f"{row.id} at depth {depth}: expected a fold map that numbers at least one vector, from 0 without gaps, "
            f"found numbers {numbers[:3].tolist()} to {numbers[-1:].tolist()}"
        )
    if len(numbers) > _DROPPED:
        raise EncodingError(
            f"{row.id} at depth {depth}: expected at most {_DROPPED} vectors of a page, found {len(numbers)}; "
            "compress it further"
        )
    return len(numbers)


def _checked_signals(row: PageRow, depth: int) -> npt.NDArray[np.float16]:
    """(n, 3) centrality, in-degree and attention of the global token."""
    signals, count = row.signals.get(depth), len(row.regions)
    if signals is None:
        raise EncodingError(f"{row.id} at depth {depth}: expected signals of every token, found none")
    parts = (signals.centrality, signals.in_degree, signals.from_global)
    # Written so that NaN fails too.
    if any(part.shape != (count,) or not part.max(initial=0) <= _LARGEST_HALF for part in parts):
        shapes = ", ".join(str(part.shape) for part in parts)
        raise EncodingError(
            f"{row.id} at depth {depth}: expected three signals ({count},) within float16, found shapes {shapes}, "
            f"up to {max(part.max(initial=0) for part in parts)}"
        )
    return np.stack(parts, axis=1, dtype=np.float16, casting="same_kind")


def fold_map(stored: npt.NDArray[np.uint16]) -> FoldMap:
    """A stored fold map as it was given."""
    found = stored.astype(np.int32)
    found[found == _DROPPED] = -1
    return found


def _stored_fold(fold: FoldMap) -> npt.NDArray[np.uint16]:
    return np.where(fold < 0, _DROPPED, fold).astype(np.uint16)


def _offsets(counts: Sequence[int]) -> npt.NDArray[np.int32]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]).astype(np.int32)


def _beyond_float16(row: PageRow, depth: int) -> EncodingError:
    return EncodingError(
        f"{row.id} at depth {depth}: expected finite vectors within float16 (up to 65504), "
        f"found {np.abs(row.vectors[depth]).max()}; the encoder is at fault"
    )


def _stamps(rows: Sequence[PageRow]) -> npt.NDArray[np.uint64]:
    drawn = np.random.default_rng().integers(1, 1 << 64, len(rows), np.uint64)
    return np.where([row.stamp == 0 for row in rows], drawn, np.array([row.stamp for row in rows], np.uint64))


def _facts(rows: Sequence[PageRow]) -> dict[str, pa.Array]:
    strings = ("id", "doc_id", "label", "source", "revision", "reader", "text")
    return {name: pa.array([storable(getattr(row, name)) for row in rows]) for name in strings} | {
        "page_num": pa.array([row.page_num for row in rows], pa.int32()),
        "page_count": pa.array([row.page_count for row in rows], pa.int32()),
        "notes": pa.array([[storable(note) for note in row.notes] for row in rows], pa.list_(pa.string())),
        "_stamp": pa.array(_stamps(rows)),
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
