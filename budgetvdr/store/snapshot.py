"""Reading one version of the page table."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from budgetvdr.errors import QueryError, StorageError
from budgetvdr.pages import Boxes, Vectors
from budgetvdr.store import place, records, routes
from budgetvdr.store.engine import (
    is_failure,
    is_storage_failure,
    local_path,
    reason,
    storage_error,
    storage_failures,
)
from budgetvdr.store.filters import Where, enclosed, literal, to_sql
from budgetvdr.store.records import (
    ADDRESS,
    FACT_COLUMNS,
    DocumentInfo,
    DocumentState,
    PageFacts,
    PageState,
    RowAddresses,
    Slab,
    Stamps,
    StoreStats,
)
from budgetvdr.store.routes import Routes
from budgetvdr.store.rows import FoldMap, PageRow, fold_map, region_fractions
from budgetvdr.store.schema import (
    KINDS,
    IndexSettings,
    filter_fields,
    fold_column,
    identity_of,
    metadata_fields,
    signals_column,
)

if TYPE_CHECKING:
    from lancedb.db import DBConnection
    from lancedb.table import LanceTable


_SLAB_BYTES: Final = 8 << 20
_MOST_SLAB_PAGES: Final = 1024
_READ_AHEAD: Final = 2


class Snapshot:
    """One version of the table; what others write meanwhile does not show. Safe to use from several threads.

    Pages are addressed by `RowAddresses`, which hold in this snapshot only; page ids hold for ever.
    identity: differs between a table and one that was made later at the same place.
    Every method raises StorageError where the disk fails, or where the version was compacted away meanwhile, and every
    one that takes a filter QueryError, with LanceDB's reason, where that is wrong.
    """

    def __init__(self, table: LanceTable, database: DBConnection, settings: IndexSettings, uri: str) -> None:
        self._table = table
        self._database = database
        self._uri = uri
        self.settings = settings
        with storage_failures(f"open {uri}"):
            self.version: int = table.version
            self._schema = table.schema
        self.identity = identity_of(self._schema)

    def condition(self, where: Where | None) -> str | None:
        """A filter as an SQL condition, None for every page. See `filters` for the forms."""
        return to_sql(where, filter_fields(self._schema))

    def metadata_types(self) -> dict[str, str]:
        """Metadata column -> name of its type ("int", "datetime with time zone", ...)."""
        return {key: KINDS.get(kind, str(kind)) for key, kind in metadata_fields(self._schema).items()}

    def page_count(self) -> int:
        """Stored pages, blank ones included; known without reading, also of a version that was removed meanwhile."""
        with storage_failures(f"read {self._uri}"):
            return int(self._table.count_rows())

    def vector_count(self, depth: int | None = None) -> int:
        """Stored vectors of a depth, the deepest where left out. Raises BudgetError for one not stored."""
        depth = self.settings.depths[-1] if depth is None else depth
        self.settings.columns(depth, self.settings.dims[0])
        return int(self._counts[self.settings.count_column(depth)].sum())

    def token_count(self) -> int:
        """Tokens of all pages: regions that have a vector, or went into one."""
        return int(self._counts["_vectors"].sum())

    def blank_count(self) -> int:
        """Pages without vectors."""
        return int((self._counts["_vectors"] == 0).sum())

    def matching(self, where: str | None = None) -> RowAddresses:
        """(p,) addresses of the pages that meet a condition, all by default; no vectors are read."""
        found = [records.addresses(batch) for batch in self._batches((), where)]
        return np.concatenate(found) if found else np.empty(0, np.uint64)

    def scan(self, depth: int, dim: int, addresses: RowAddresses | None = None) -> Iterator[Slab]:
        """Vectors of all pages, or of chosen ones in the order of their addresses, about 8 MB at a time.

        Only columns of this depth and width are read. Two slabs are read ahead, and no more than these are in memory:
        LanceDB's own way of reading a table in batches holds half a gigabyte.

        Raises BudgetError for a depth or width not stored.
        """
        columns = self.settings.columns(depth, dim)
        pages, rows = self.page_count(), self.vector_count(depth)
        step = min(max(_SLAB_BYTES * pages // max(rows * dim * 2, 1), 1), _MOST_SLAB_PAGES)
        chosen = None if addresses is None else np.sort(addresses)
        starts = iter(range(0, pages if chosen is None else len(chosen), step))

        def read(start: int) -> Slab:
            if chosen is not None:
                return records.slab(self._take(chosen[start : start + step], columns)[0], columns)
            with storage_failures(f"read {self._uri}"):
                query = self._table.search().select(columns).with_row_id(True).offset(start).limit(step)
                found = query.to_arrow().combine_chunks()
            if found.num_rows != min(step, pages - start):
                raise StorageError(f"cannot read {self._uri}: expected pages from {start} on, found {found.num_rows}")
            return records.slab(found.to_batches()[0], columns)

        with ThreadPoolExecutor(_READ_AHEAD, thread_name_prefix="budgetvdr-read") as pool:
            ahead = deque(pool.submit(read, start) for start in islice(starts, _READ_AHEAD))
            while ahead:
                slab = ahead.popleft().result()
                ahead.extend(pool.submit(read, start) for start in islice(starts, 1))
                yield slab

    def vectors(self, addresses: RowAddresses, depth: int, dim: int) -> Slab:
        """Vectors of chosen pages, in the order asked. Raises BudgetError for a depth or width not stored."""
        columns = self.settings.columns(depth, dim)
        taken, order = self._take(addresses, columns)
        return records.reordered(records.slab(taken, columns), order)

    def vectors_and_facts(self, addresses: RowAddresses, depth: int, dim: int) -> tuple[Slab, list[PageFacts]]:
        """Both of chosen pages, in the order asked, for little more than either costs.

        Raises BudgetError for a depth or width not stored.
        """
        columns, keys = self.settings.columns(depth, dim), list(metadata_fields(self._schema))
        taken, order = self._take(addresses, [*columns, *FACT_COLUMNS, *keys])
        facts = records.page_facts(taken, keys)
        return records.reordered(records.slab(taken, columns), order), [facts[place] for place in order]

    def facts(self, addresses: RowAddresses) -> list[PageFacts]:
        """Everything but vectors and pictures of chosen pages, in the order asked."""
        keys = list(metadata_fields(self._schema))
        taken, order = self._take(addresses, [*FACT_COLUMNS, *keys])
        facts = records.page_facts(taken, keys)
        return [facts[place] for place in order]

    def page_vectors(self, page_id: str, depth: int, dim: int) -> tuple[Vectors, Boxes] | None:
        """(m, dim) float32 vectors of a page and the (n, 4) regions of its tokens, None where the id is not stored.

        Each token has its own vector, in their order, unless the index folds them: see `fold_map`.

        Raises BudgetError for a depth or width not stored.
        """
        columns = self.settings.columns(depth, dim)
        row = self._row(page_id, [*columns, "_regions"])
        if row is None:
            return None
        parts = [records.ragged(row.column(name))[1] for name in columns]
        return np.concatenate(parts, axis=1, dtype=np.float32), region_fractions(records.ragged(row["_regions"])[1])

    def fold_map(self, page_id: str, depth: int) -> FoldMap | None:
        """(n,) number of the vector that stands for each token of a page, -1 for none.

        None where the index does not fold, or the id is not stored. Raises BudgetError for a depth not stored.
        """
        self.settings.columns(depth, self.settings.dims[0])
        if self.settings.compression is None:
            return None
        row = self._row(page_id, [fold_column(depth)])
        return None if row is None else fold_map(row.column(fold_column(depth)).flatten().to_numpy())

    def page_rows(self, addresses: RowAddresses) -> list[PageRow]:
        """Everything of chosen pages of an index that does not fold, in the order asked: what was given to store them.

        As precise as it is stored: vectors and signals in float16.
        """
        settings, keys = self.settings, list(metadata_fields(self._schema))
        vectors = [name for depth in settings.depths for name in settings.columns(depth, settings.dims[-1])]
        signals = [signals_column(depth) for depth in settings.depths if settings.signals]
        taken, order = self._take(addresses, [*FACT_COLUMNS, *keys, "_regions", "_image", "_stamp", *vectors, *signals])
        rows = records.page_rows(taken, keys, settings)
        return [rows[place] for place in order]

    def states(self) -> dict[str, tuple[int, PageState]]:
        """Page id -> (address, state) of every page."""
        found: dict[str, tuple[int, PageState]] = {}
        for batch in self._batches(("id", "_stamp", "source")):
            ids, stamps, sources = (batch.column(name).to_pylist() for name in ("id", "_stamp", "source"))
            states = zip(stamps, sources, strict=True)
            found.update(zip(ids, zip(records.addresses(batch).tolist(), states, strict=True), strict=True))
        return found

    def image(self, page_id: str) -> bytes | None:
        """The picture stored with a page, None where there is none or the id is not stored."""
        row = self._row(page_id, ["_image"])
        picture: bytes | None = None if row is None else row.column("_image")[0].as_py()
        return picture

    def routes(self, depth: int) -> Routes | None:
        """What the side table of a depth says about these pages, None where there is none; see `routes`.

        The table is the latest one, whatever the version of this snapshot. Raises RoutesError where it is damaged.
        """
        addresses, stamps = self._stamps()
        return routes.read(self._database, depth, addresses, stamps, identity=self.identity)

    def routed_depths(self) -> tuple[int, ...]:
        """Depths that have a side table, as far as it can be opened."""
        return tuple(
            depth for depth in self.settings.depths if routes.exists(self._database, depth, identity=self.identity)
        )

    def stamps(self, addresses: RowAddresses) -> Stamps:
        """(p,) uint64 of chosen pages, in the order asked: another one whenever a page is stored anew."""
        pages, stamps = self._stamps()
        order = np.argsort(pages)
        return stamps[order[np.searchsorted(pages, addresses, sorter=order)]]

    def document_state(self, doc_id: str) -> DocumentState:
        """What is stored of a document."""
        where = f"doc_id = {literal(doc_id, 'doc_id', pa.string())}"
        batches = self._batches(("page_num", "source", "revision", "notes"), where)
        stored = sorted((row for batch in batches for row in batch.to_pylist()), key=lambda row: int(row["page_num"]))
        return DocumentState(
            source=stored[0]["source"] if stored else "",
            revisions={row["page_num"]: row["revision"] for row in stored},
            unread=frozenset(row["page_num"] for row in stored if "ocr_missing" in row["notes"]),
        )

    def documents(self) -> list[DocumentInfo]:
        """Every document, sorted by id."""
        pages: Counter[str] = Counter()
        sources: dict[str, str] = {}
        for batch in self._batches(("doc_id", "source")):
            doc_ids = batch.column("doc_id").to_pylist()
            pages.update(doc_ids)
            for doc_id, source in zip(doc_ids, batch.column("source").to_pylist(), strict=True):
                sources.setdefault(doc_id, source)
        return [DocumentInfo(doc_id, sources[doc_id], pages[doc_id]) for doc_id in sorted(pages)]

    def stats(self) -> StoreStats:
        """Sizes and counts; reads narrow columns only."""
        documents: set[str] = set()
        notes: Counter[str] = Counter()
        readers: Counter[str] = Counter()
        image_bytes = 0
        for batch in self._batches(("doc_id", "notes", "reader", "_image_bytes")):
            documents.update(batch.column("doc_id").unique().to_pylist())
            notes.update(batch.column("notes").flatten().to_pylist())
            readers.update(batch.column("reader").to_pylist())
            image_bytes += pc.sum(batch.column("_image_bytes")).as_py() or 0
        with storage_failures(f"read {self._uri}"):
            files = self._table.stats()
            versions = place.version_count(self._table, local_path(self._uri))
        vectors = sum(self.vector_count(depth) for depth in self.settings.depths)
        return StoreStats(
            pages=len(self._counts["_vectors"]),
            documents=len(documents),
            tokens=self.token_count(),
            vectors=self.vector_count(),
            blank_pages=self.blank_count(),
            vector_bytes=vectors * np.dtype(np.float16).itemsize * self.settings.dims[-1],
            image_bytes=image_bytes,
            data_bytes=int(files["total_bytes"]),
            fragments=int(files["fragment_stats"]["num_fragments"]),
            versions=versions,
            notes=dict(notes),
            readers=dict(readers),
        )

    @cached_property
    def _counts(self) -> dict[str, npt.NDArray[np.int64]]:
        """Column -> what it counts of every page."""
        names = ["_vectors", *map(self.settings.count_column, self.settings.depths)]
        names = list(dict.fromkeys(names))
        found = {name: [np.empty(0, np.int64)] for name in names}
        for batch in self._batches(names):
            for name in names:
                found[name].append(batch.column(name).to_numpy().astype(np.int64))
        return {name: np.concatenate(parts) for name, parts in found.items()}

    def _stamps(self) -> tuple[RowAddresses, Stamps]:
        """Of all pages."""
        pages, stamps = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
        for batch in self._batches(("_stamp",)):
            pages.append(records.addresses(batch))
            stamps.append(batch.column("_stamp").to_numpy())
        return np.concatenate(pages), np.concatenate(stamps)

    def _row(self, page_id: str, columns: Sequence[str]) -> pa.RecordBatch | None:
        found = self.matching(f"id = {literal(page_id, 'id', pa.string())}")
        return self._take(found, columns)[0] if len(found) else None

    def _batches(self, columns: Sequence[str], where: str | None = None) -> Iterator[pa.RecordBatch]:
        # An empty selection would mean every column.
        query = self._table.search().select(list(columns) or [ADDRESS]).with_row_id(True)
        if where is not None:
            query = query.where(enclosed(where))
        try:
            yield from query.to_batches()
        except Exception as error:
            if not is_failure(error):
                raise
            if where is None or is_storage_failure(error):
                raise storage_error(f"read {self._uri}", error) from error
            complaint = reason(error).split(" Valid fields are")[0]
            columns_known = ", ".join(filter_fields(self._schema))
            # LanceDB's own message lists every column there is; ours, those that may be named.
            raise QueryError(f"cannot filter by {where!r}: {complaint} Known columns: {columns_known}") from None

    def _take(self, addresses: RowAddresses, columns: Sequence[str]) -> tuple[pa.RecordBatch, npt.NDArray[np.intp]]:
        """Rows of chosen pages in LanceDB's order, and for every page asked its place among them."""
        unique, order = np.unique(np.asarray(addresses, np.uint64), return_inverse=True)
        if not len(unique):
            schema = pa.schema([*(self._schema.field(name) for name in columns), pa.field(ADDRESS, pa.uint64())])
            return pa.RecordBatch.from_pylist([], schema), order
        with storage_failures(f"read {self._uri}"):
            taken = self._table.take_row_ids(unique.tolist()).select(list(columns)).with_row_id().to_arrow()
        if taken.num_rows != len(unique):
            raise QueryError(
                f"{len(unique) - taken.num_rows} of {len(unique)} row addresses are not in this snapshot of "
                f"{self._uri}: they come from another one; use page ids across snapshots"
            )
        batch = taken.combine_chunks().to_batches()[0]
        return batch, np.argsort(records.addresses(batch))[order]
