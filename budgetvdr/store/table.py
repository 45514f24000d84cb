"""Opening the index on disk and writing to it."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from budgetvdr.errors import IndexStoreError, ReadOnlyError, SourceNotFoundError, StorageError
from budgetvdr.store import engine, place, routes
from budgetvdr.store.engine import storage_failures
from budgetvdr.store.filters import enclosed, literal, one_of
from budgetvdr.store.records import DocumentState, VersionInfo
from budgetvdr.store.routes import PageCodes, Training
from budgetvdr.store.rows import PageRow, arrow_table, check_row, latest_by_id
from budgetvdr.store.schema import (
    IndexSettings,
    identity_of,
    new_metadata_fields,
    new_schema,
    read_settings,
)
from budgetvdr.store.snapshot import Snapshot
from budgetvdr.store.upkeep import KEEP_VERSIONS, OptimizeReport, Upkeep

if TYPE_CHECKING:
    from lancedb.db import DBConnection
    from lancedb.table import LanceTable

COMMIT_ATTEMPTS: Final = 8

T = TypeVar("T")


class Store:
    """One index: a folder or an object-store address.

    Safe to share between threads. On a local disk writers of all processes take turns through a lock file, held
    during a commit only. On an object store a commit that another writer preempted is tried again.
    uri: its address. folder: where that is, None for an object store. settings: what it was made with.
    """

    def __init__(
        self, table: LanceTable, database: DBConnection, uri: str, *, read_only: bool, version: int | None = None
    ) -> None:
        self._database = database
        # Handles keep their version, so the writer moving on does not move the reader.
        self._writer = table
        self._head = place.existing(database, uri)
        self.uri = uri
        self.folder = engine.local_path(uri)
        self._read_only = read_only
        self._pinned = version
        self._closed = False
        self._process = os.getpid()
        self._writing = threading.Lock()
        self._looking = threading.Lock()
        with storage_failures(f"open {uri}"):
            self.settings = read_settings(table.schema, uri)
        self._upkeep = Upkeep(database, self.settings, self.folder, uri)
        shown = place.existing(database, uri)
        if version is not None:
            place.check_out(shown, version, uri)
        self._snapshot = Snapshot(shown, database, self.settings, uri)

    @classmethod
    def open(
        cls,
        uri: str | Path,
        *,
        settings_if_new: IndexSettings | None = None,
        read_only: bool = False,
        version: int | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> Self:
        """Opens an index, or creates it where there is none.

        uri: a folder, or an object-store address such as s3://bucket/name.
        settings_if_new: recorded in a new index; None creates nothing. An existing index keeps its own, which the
            caller compares.
        read_only: writes nothing, not even a lock file.
        version: reads this version and no other, and writes nothing; None for the latest.
        storage_options: credentials and such, as LanceDB takes them.

        Raises SourceNotFoundError where there is no index and none may be created, or no such version; IndexFormatError
        where the path holds something else, a damaged index, or one of a newer format; StorageError where the disk
        refuses.
        """
        folder = engine.local_path(uri)
        address = str(uri) if folder is None else str(folder)
        settings = None if read_only or version is not None else settings_if_new
        missing = SourceNotFoundError(f"no index at {address}: expected one made by budgetvdr; check the path")
        with place.failures(f"open {address}", folder):
            if folder is not None and not place.holds_index(folder) and settings is None:
                raise missing
            database = engine.connect(address, storage_options)
            table = place.open_table(database)
            if table is None and settings is not None:
                with place.lock(folder):
                    table = place.create_table(database, new_schema(settings))
        if table is None:
            raise missing
        return cls(table, database, address, read_only=read_only, version=version)

    def snapshot(self) -> Snapshot:
        """The latest version, or that which was asked for; the same object while nothing is written.

        Costs about 0.2 ms on a local disk.
        """
        self._check_open()
        if self._pinned is not None:
            return self._snapshot
        with self._looking, place.failures(f"read {self.uri}", self.folder):
            self._head.checkout_latest()
            # A table that was deleted and made anew may have come to the same number.
            seen = self._snapshot.identity, self._snapshot.version
            if (identity_of(self._head.schema), self._head.version) != seen:
                latest = place.existing(self._database, self.uri)
                self._snapshot = Snapshot(latest, self._database, self.settings, self.uri)
            return self._snapshot

    def on_latest(self, read: Callable[[Snapshot], T]) -> T:
        """What a read of the latest version gives, or of that which was asked for.

        An `optimize` that keeps no old versions may remove the one being read. Then there is a newer one, on which the
        read, which changes nothing, runs once more. Raises what it raises, and StorageError that says so where it is
        the version asked for that was removed.
        """
        snapshot = self.snapshot()
        try:
            return read(snapshot)
        except StorageError as error:
            if self._pinned is not None:
                there = [entry.version for entry in self.versions()]
                if self._pinned in there:
                    raise
                raise StorageError(
                    f"version {self._pinned} of the index at {self.uri} was removed since it was opened: open it at "
                    f"one of {place.ranges(there)}, or without version= at the latest"
                ) from error
            newer = self.snapshot()
            if (newer.identity, newer.version) == (snapshot.identity, snapshot.version):
                raise
        return read(newer)

    def versions(self) -> list[VersionInfo]:
        """Versions that can still be read, oldest first; about 0.3 ms for each on a local disk."""
        self._check_open()
        with self._looking, place.failures(f"read {self.uri}", self.folder):
            if self._pinned is None:
                self._head.checkout_latest()
            return place.versions(self._head)

    def document_state(self, doc_id: str) -> DocumentState:
        """What the latest version holds of a document."""
        return self.on_latest(lambda snapshot: snapshot.document_state(doc_id))

    def check(self, row: PageRow) -> None:
        """Raises EncodingError for a page whose vectors or regions could not be stored."""
        check_row(row, self.settings)

    def upsert(self, rows: Sequence[PageRow], complete: Mapping[str, str] | None = None) -> None:
        """Stores pages in one commit, replacing those with equal ids; of equal ids in `rows` the last wins.

        complete: doc_id -> revision of documents that end with this batch: their pages of other revisions, left from
            an earlier state, go in the same commit.

        A new metadata key adds its column in a commit before. Where anything is refused, no page has been stored.

        Raises EncodingError for vectors that cannot be stored, MetadataError for metadata that cannot be stored,
        ReadOnlyError, StorageError.
        """
        latest = latest_by_id(rows)
        stale = " OR ".join(_stale(doc_id, revision) for doc_id, revision in (complete or {}).items())

        def write(table: LanceTable) -> None:
            added = new_metadata_fields(table.schema, ((row.id, row.metadata) for row in latest))
            data = arrow_table(latest, self.settings, pa.schema([*table.schema, *added], table.schema.metadata))
            if added:
                table.add_columns(pa.schema(added))
            merge = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            if stale:
                merge = merge.when_not_matched_by_source_delete(stale)
            merge.execute(data)

        if latest:
            self._commit("store pages", write)
        elif stale:
            self.delete_where(stale)

    def move_document(self, doc_id: str, old: str, new: str) -> None:
        """Changes where the pages of a document come from, the beginning `old` of their source to `new`, in one commit.

        Raises ReadOnlyError, StorageError.
        """
        text = pa.string()
        at, before, after = (literal(value, "source", text) for value in (doc_id, old, new))
        changed = {"source": f"replace(source, {before}, {after})"}
        self._commit("move a document", lambda table: table.update(where=f"doc_id = {at}", values_sql=changed))

    def delete_documents(self, doc_ids: Collection[str]) -> int:
        """Deletes all pages of documents in one commit, and returns how many pages that were.

        Ids that are not there are ignored. 10,000 ids take about half a second.

        Raises ReadOnlyError, StorageError.
        """
        return self.delete_where(one_of("doc_id", doc_ids, pa.string()))

    def delete_where(self, *conditions: str) -> int:
        """Deletes the pages that meet any of some SQL conditions in one commit, and returns how many.

        Raises QueryError for a condition that is wrong, ReadOnlyError, StorageError.
        """
        self.check_writable("delete pages")
        condition = " OR ".join(enclosed(each) for each in conditions)
        # A wrong condition shows here, as the reader's error; one that matches nothing makes no version.
        if not condition or not len(self.on_latest(lambda snapshot: snapshot.matching(condition))):
            return 0
        return self._commit("delete pages", lambda table: int(table.delete(condition).num_deleted_rows))

    def write_routes(
        self, depth: int, pages: PageCodes, centroids: npt.NDArray[np.float32], training: Training
    ) -> None:
        """Replaces the side table of a depth in one commit; see `routes`, and `Snapshot.routes` for reading.

        Raises ValueError for shapes that do not fit, ReadOnlyError, StorageError.
        """
        routes.check(pages, centroids)
        data = routes.arrow_table(pages, centroids, training)

        def write(_: LanceTable) -> None:
            routes.write(self._database, depth, data, alone=self.folder is not None)

        self._commit("store the first stage", write, tidy=False)

    def drop_routes(self, depth: int) -> None:
        """Removes the side table of a depth, damaged or not; nothing happens where there is none.

        Raises ReadOnlyError, StorageError.
        """
        self._commit("drop the first stage", lambda _: routes.drop(self._database, depth), tidy=False)

    def routed_pages(self, depth: int) -> int | None:
        """How many pages the side table of a depth covers or left out as strangers; one read of its size.

        Pages deleted since count too. None where there is none that can be used for this index.
        """
        return routes.count(self._database, depth, identity=self.snapshot().identity)

    def optimize(self, keep: timedelta = KEEP_VERSIONS) -> OptimizeReport:
        """Merges small fragments, drops deleted rows, and removes versions older than `keep`.

        Rewrites fragments that are small, which includes all of an index below a million pages. Readers still on a
        removed version get StorageError and must take a new snapshot, so `keep` should exceed the longest search.
        What interrupted writes left behind goes too, on a local disk. keep: a time of 0 or more.

        Raises ReadOnlyError, StorageError, TypeError or ValueError for another `keep`.
        """
        if not isinstance(keep, timedelta):
            raise TypeError(f"keep: expected a datetime.timedelta, such as timedelta(hours=1); found {keep!r}")
        if keep < timedelta(0):
            raise ValueError(f"keep: expected a time of 0 or more, for which old versions stay; found {keep}")

        def write(table: LanceTable) -> OptimizeReport:
            try:
                return self._upkeep.optimize(table, keep)
            except Exception as error:
                if not engine.is_full(error):
                    raise
                raise StorageError(
                    f"cannot optimize {self.uri}: the disk or quota is full, and optimize writes before it frees, up "
                    f"to the {table.stats()['total_bytes'] / 1e6:.0f} MB that the pages take; delete other files, or "
                    "move the index to a larger disk, and optimize again. What is stored is intact"
                ) from error

        return self._commit("optimize", write, tidy=False)

    def bytes_on_disk(self) -> int:
        """Bytes of all files, old versions included; on an object store those of the latest version's data."""
        with storage_failures(f"measure {self.uri}"):
            return place.bytes_on_disk(self._head, self.folder)

    def close(self) -> None:
        """Lets go of the files; snapshots already taken stay readable. Closing twice is fine."""
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise IndexStoreError(f"the index at {self.uri} is closed; open it again")
        if os.getpid() != self._process:
            raise IndexStoreError(
                f"the index at {self.uri} was opened in another process, and its threads do not come along through a "
                "fork; open it in each process"
            )

    def check_writable(self, action: str) -> None:
        """Raises ReadOnlyError, naming the action, where nothing may be written."""
        self._check_open()
        if self._pinned is not None:
            raise ReadOnlyError(
                f"cannot {action} in {self.uri}: it was opened at version {self._pinned}, which is read-only; "
                "open it without version="
            )
        if self._read_only:
            raise ReadOnlyError(
                f"cannot {action} in {self.uri}: it was opened read-only; open it without read_only=True"
            )

    def _commit(self, action: str, write: Callable[[LanceTable], T], *, tidy: bool = True) -> T:
        """Runs a write on the latest version, alone on a local disk, again after a conflict on an object store.

        tidy: whether small fragments may be merged, and old versions removed, afterwards.
        """
        self.check_writable(action)
        with place.failures(f"{action} in {self.uri}", self.folder), self._writing, place.lock(self.folder):
            for attempt in range(COMMIT_ATTEMPTS):
                self._writer.checkout_latest()
                before = self._writer.version
                try:
                    done = write(self._writer)
                except RuntimeError as error:
                    if not engine.is_conflict(error):
                        raise
                else:
                    if tidy:
                        self._upkeep.after_commit(self._writer, before)
                    return done
                time.sleep(random.uniform(0.5, 1.0) * min(0.1 * 2**attempt, 5.0))
        raise StorageError(
            f"cannot {action} in {self.uri}: other writers were first {COMMIT_ATTEMPTS} times; try later, "
            "or let fewer write at once"
        )


def _stale(doc_id: str, revision: str) -> str:
    text = pa.string()
    return f"(doc_id = {literal(doc_id, 'doc_id', text)} AND revision <> {literal(revision, 'revision', text)})"
