"""Keeping an index small and quick while it is written to.

Every commit adds a fragment, which costs each read of the whole table about 0.3 ms, and leaves what it replaced to an
older version. LanceDB's one remedy rewrites every fragment below a million pages, which is all of an index, and only
after that frees old versions. So there are two steps here:

merging     stores the pages of small fragments once more, in one commit; it touches nothing else.
compacting  is LanceDB's: everything is rewritten, old versions are freed. By itself it happens when what would be
            freed is as large as what is rewritten, so that it at most doubles what is written over the years.
"""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from budgetvdr.store import engine, place, routes
from budgetvdr.store.records import RowAddresses, addresses
from budgetvdr.store.schema import TABLE, IndexSettings

if TYPE_CHECKING:
    from lancedb.db import DBConnection
    from lancedb.table import LanceTable

_log = logging.getLogger(__name__)

KEEP_VERSIONS: Final = timedelta(minutes=15)
"""The age from which a version may be removed, unless it is the latest; when it was superseded does not count."""
# LanceDB warns about 0, which here is an explicit wish.
_LEAST_KEPT: Final = timedelta(milliseconds=1)
# Beyond the years that the calendar knows LanceDB stumbles.
_FOR_EVER: Final = timedelta(days=36_525)

# Looking costs a fraction of a millisecond for merging, and reading the folder for compacting.
_MERGE_EVERY: Final = 8
_COMPACT_EVERY: Final = 128
# Reading 32 fragments costs what writing one page does.
_MANY_FRAGMENTS: Final = 32
_FEWEST_MERGED: Final = 8
# Merging holds its pages in memory, and others wait: 192 MB take about a second.
_MOST_MERGED: Final = 192 << 20
# Of a larger index only the pages stored last are looked at: what is merged is stored last, and so are small ones.
_MOST_LOOKED_AT: Final = 4 * _MOST_MERGED
_FACTS_BYTES: Final = 4096
# Compacting others would wait for longer than a lock may be held is left to those who ask for it.
_MOST_COMPACTED: Final = 4 << 30
_LEAST_FREED: Final = 64 << 20
_FEWEST_VERSIONS: Final = 256


@dataclass(frozen=True, slots=True)
class OptimizeReport:
    """An index before and after `optimize`.

    bytes: all files, old versions included; on an object store, which does not tell, the data of the latest version.
    fragments: data fragments. versions: versions that can be read.
    """

    bytes_before: int
    bytes_after: int
    fragments_before: int
    fragments_after: int
    versions_before: int
    versions_after: int

    @property
    def bytes_freed(self) -> int:
        """Below zero while the versions before are kept, which then lie beside the rewritten one."""
        return self.bytes_before - self.bytes_after


class Upkeep:
    """Merges and compacts one table now and then, for the holder of its lock.

    Where that fails nothing is lost, and the next time may do better: it never fails the commit that it follows.
    """

    def __init__(self, database: DBConnection, settings: IndexSettings, folder: Path | None, uri: str) -> None:
        self._database = database
        self._settings = settings
        self._folder = folder
        self._uri = uri
        self._compacted = -math.inf

    def after_commit(self, table: LanceTable, before: int) -> None:
        """Looks whether there is something to do. before: the version that the commit followed.

        It is the versions that are counted, which the processes of many small writers share.
        """
        try:
            if before // _MERGE_EVERY != table.version // _MERGE_EVERY:
                merge(table, self._settings)
            if before // _COMPACT_EVERY != table.version // _COMPACT_EVERY and self._may_compact(table):
                self.optimize(table, KEEP_VERSIONS)
                self._compacted = time.monotonic()
        except Exception as error:
            if not engine.is_failure(error):
                raise
            _log.info("upkeep of %s is put off: %s", self._uri, engine.reason(error))

    def optimize(self, table: LanceTable, keep: timedelta) -> OptimizeReport:
        """Rewrites what is small as one, drops deleted rows, removes versions older than `keep` and unfinished writes.

        On a local disk only for the holder of the lock: what looks unfinished then is.
        """
        folder, alone = self._folder, self._folder is not None
        keep = min(max(keep, _LEAST_KEPT), _FOR_EVER)
        before = place.bytes_on_disk(table, folder), place.fragments(table), place.version_count(table, folder)
        # What can be freed at once goes first: rewriting needs room, and frees old versions only after it.
        if folder is not None:
            place.sweep(folder, [TABLE, *(routes.name(depth) for depth in self._settings.depths)])
        for depth in self._settings.depths:
            self._tidy_routes(depth)
        table.optimize(cleanup_older_than=keep, delete_unverified=alone)
        return OptimizeReport(
            bytes_before=before[0],
            bytes_after=place.bytes_on_disk(table, folder),
            fragments_before=before[1],
            fragments_after=place.fragments(table),
            versions_before=before[2],
            versions_after=place.version_count(table, folder),
        )

    def _tidy_routes(self, depth: int) -> None:
        try:
            routes.tidy(self._database, depth, alone=self._folder is not None)
        except Exception as error:
            if not engine.is_failure(error):
                raise
            # A damaged one is made anew by those who refresh it, or dropped.
            _log.info("the first stage of depth %d of %s is left as it is: %s", depth, self._uri, engine.reason(error))

    def _may_compact(self, table: LanceTable) -> bool:
        lately = time.monotonic() - self._compacted < KEEP_VERSIONS.total_seconds()
        return not lately and worth_compacting(table, self._folder, KEEP_VERSIONS)


def merge(table: LanceTable, settings: IndexSettings) -> bool:
    """Stores the pages of small fragments together, in one commit; whether there were enough of them."""
    stats = table.stats()
    count, is_hollow = stats["num_rows"], 2 * stats["num_rows"] < _rows_ever(stats)
    if not count or (stats["fragment_stats"]["num_fragments"] < _MANY_FRAGMENTS and not is_hollow):
        return False
    # Where most rows are deleted there are such fragments, wherever they lie.
    looked_at = count if is_hollow else count * _MOST_LOOKED_AT // max(int(stats["total_bytes"]), 1)
    chosen = worth_merging(*_sizes(table, settings, max(count - looked_at, 0)))
    if not len(chosen):
        return False
    names = table.schema.names
    rows = table.take_row_ids(chosen.tolist()).select(names).to_arrow()
    data = pa.Table.from_arrays(rows.columns, schema=table.schema)
    # A page that another writer has changed or deleted since it was read stays what it is.
    unchanged = "target._stamp = source._stamp AND target.source = source.source"
    table.merge_insert("id").when_matched_update_all(where=unchanged).execute(data)
    return True


def worth_merging(pages: RowAddresses, sizes: npt.NDArray[np.int64]) -> RowAddresses:
    """Addresses of the pages that should be stored again in one fragment; none where that would not pay.

    pages, sizes: (p,) addresses of all pages of some fragments, and their bytes.

    Fragments of which less than half is left are taken, and then the smallest, as long as the largest of these is at
    most half of all. So a page always moves to a fragment at least twice as large, and is rewritten a number of times
    that grows with the logarithm of the index.
    """
    fragments, of_page = np.unique(pages >> np.uint64(32), return_inverse=True)
    size = np.bincount(of_page, sizes, len(fragments))
    count = np.bincount(of_page, minlength=len(fragments))
    length = np.zeros(len(fragments), np.int64)
    np.maximum.at(length, of_page, (pages & np.uint64(0xFFFFFFFF)).astype(np.int64) + 1)
    smallest_first = np.argsort(size, kind="stable")
    is_hollow = (2 * count < length)[smallest_first]
    hollow, others = smallest_first[is_hollow], smallest_first[~is_hollow]
    hollow = hollow[np.cumsum(size[hollow]) <= _MOST_MERGED]
    others = others[np.cumsum(size[others]) <= _MOST_MERGED - size[hollow].sum()]
    while len(others) and 2 * size[others[-1]] > size[hollow].sum() + size[others].sum():
        others = others[:-1]
    if not len(hollow) and len(others) < _FEWEST_MERGED:
        return pages[:0]
    return pages[np.isin(of_page, [*hollow, *others])]


def worth_compacting(table: LanceTable, folder: Path | None, keep: timedelta) -> bool:
    """Whether old versions that may go take at least as much as the pages that would be rewritten.

    On an object store, which does not tell what they take, whether there were more commits than there are pages.
    """
    live = _live_bytes(table)
    if live > _MOST_COMPACTED:
        return False
    if folder is not None:
        old = place.bytes_on_disk(table, folder) - live
        if old < max(live, _LEAST_FREED) or shutil.disk_usage(folder).free < 2 * live:
            return False
        commits = 0
    else:
        commits = max(table.count_rows(), _FEWEST_VERSIONS)
    if table.version <= commits:  # so that the versions need not be listed
        return False
    oldest = place.versions(table)[0]
    if table.version - oldest.version < commits:
        return False
    # What was written since the last time is still being kept; it was `keep` ago at least if the oldest is twice that.
    return datetime.now(UTC) - oldest.time > 2 * keep


def _live_bytes(table: LanceTable) -> int:
    """Bytes of the data files less the share of deleted rows."""
    stats = table.stats()
    return int(stats["total_bytes"] * min(1.0, stats["num_rows"] / max(_rows_ever(stats), 1)))


def _rows_ever(stats: Mapping[str, Any]) -> float:
    """Rows that the data files hold, deleted ones included."""
    fragments = stats["fragment_stats"]
    return float(fragments["num_fragments"] * fragments["lengths"]["mean"])


def _sizes(table: LanceTable, settings: IndexSettings, start: int) -> tuple[RowAddresses, npt.NDArray[np.int64]]:
    """Addresses and about how many bytes each takes, of all pages of the fragments that begin after `start` pages."""
    counts = [settings.count_column(depth) for depth in settings.depths]
    columns = list(dict.fromkeys(["_vectors", "_image_bytes", *counts]))
    pages, sizes = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for batch in table.search().select(columns).with_row_id(True).offset(start).to_batches():
        pages.append(addresses(batch))
        of = {name: batch.column(name).to_numpy().astype(np.int64) for name in columns}
        vectors = sum((of[name] for name in counts), start=np.zeros(batch.num_rows, np.int64))
        sizes.append(vectors * 2 * settings.dims[-1] + of["_vectors"] * settings.token_bytes + of["_image_bytes"])
        sizes[-1] += _FACTS_BYTES
    found, size = np.concatenate(pages), np.concatenate(sizes)
    if start:
        # The first fragment may begin before.
        fragments = found >> np.uint64(32)
        found, size = found[fragments != fragments[:1]], size[fragments != fragments[:1]]
    return found, size
