"""A side table: for every page of one depth, the centroids nearest to its vectors, and the centroids themselves.

It is derived from the pages, may be missing or damaged, and may lag behind them. So it names pages by the stamp that
each gets anew whenever it is stored, and a reader learns which pages of its snapshot it covers as they are. Each depth
has a table of its own; writing it anew is one commit, and only its latest version is ever read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from budgetvdr.errors import StorageError
from budgetvdr.store import engine, place
from budgetvdr.store.records import Offsets, RowAddresses, Stamps

if TYPE_CHECKING:
    from lancedb.db import DBConnection
    from lancedb.table import LanceTable

_KEY: Final = b"budgetvdr.routes"
_IDENTITY: Final = b"budgetvdr.identity"
# The centroids are in the first row, under a stamp that no page has, so that they and the codes are one version.
_OF_CENTROIDS: Final = 0
# Offsets of 32 bits would end at two thousand million codes.
_SCHEMA: Final = pa.schema(
    [
        pa.field("stamp", pa.uint64(), nullable=False),
        pa.field("codes", pa.large_list(pa.uint16())),
        pa.field("centroids", pa.large_binary(), metadata={"lance-encoding:compression": "none"}),
    ]
)
# What LanceDB works on at a time stays small, however many codes there are.
_BATCH_PAGES: Final = 1 << 14
# LanceDB warns about 0.
_AT_ONCE: Final = timedelta(milliseconds=1)


class RoutesError(StorageError):
    """A side table is damaged; the pages are whole. Without the table every page is scored."""


@dataclass(frozen=True, slots=True)
class Training:
    """What centroids were made from, and whom they serve.

    vectors: that the index had then. closeness: what all but one page in a hundred reached then, as the mean cosine of
    a page's vectors to their centroids. strangers: pages, come since, that do not, and are left out of the table.
    """

    vectors: int
    closeness: float
    strangers: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """What the side table of a depth says about the pages of one snapshot.

    centroids: (K, d) float32. training: how they were made.
    addresses: (p,) of all pages of the snapshot. known: (p,) bool, whether the table covers a page as it now is.
    offsets, codes: (p + 1,) int64 and (n,) uint16; rows of `centroids` for page i are codes[offsets[i]:offsets[i + 1]],
        none where the page is not known.
    """

    centroids: npt.NDArray[np.float32]
    training: Training
    addresses: RowAddresses
    known: npt.NDArray[np.bool_]
    offsets: Offsets
    codes: npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True, eq=False)
class PageCodes:
    """What is written: codes of pages, named by their stamps.

    identity: of the snapshot the pages are from. stamps: (p,), one a page (see `Snapshot.stamps`).
    offsets, codes: (p + 1,) and (n,) uint16, as in `Routes`.
    """

    identity: bytes
    stamps: Stamps
    offsets: Offsets
    codes: npt.NDArray[np.uint16]


def check(pages: PageCodes, centroids: npt.NDArray[np.float32]) -> None:
    """Raises ValueError where shapes do not fit each other, or a code names no centroid."""
    count = len(pages.stamps)
    if len(pages.offsets) != count + 1 or pages.offsets[-1] != len(pages.codes):
        raise ValueError(
            f"expected codes for each of {count} pages; found {len(pages.offsets)} offsets and {len(pages.codes)} codes"
        )
    if centroids.ndim != 2 or pages.codes.max(initial=0) >= max(len(centroids), 1):
        raise ValueError(
            f"expected centroids (K, d) and codes below K; found {centroids.shape} and codes up to "
            f"{pages.codes.max(initial=0)}"
        )


def arrow_table(pages: PageCodes, centroids: npt.NDArray[np.float32], training: Training) -> pa.Table:
    """What is stored."""
    described = {"training": asdict(training), "dim": centroids.shape[1]}
    packed = np.ascontiguousarray(centroids, np.float32).tobytes()
    return pa.Table.from_arrays(
        [
            pa.array(np.concatenate([np.full(1, _OF_CENTROIDS, np.uint64), pages.stamps])),
            lists(np.concatenate([[0], pages.offsets]), pa.array(pages.codes)),
            pa.array([packed, *[None] * len(pages.stamps)], pa.large_binary()),
        ],
        schema=_SCHEMA.with_metadata({_KEY: json.dumps(described).encode(), _IDENTITY: pages.identity}),
    )


def lists(offsets: Offsets, values: pa.Array) -> pa.LargeListArray:
    """(p + 1,) offsets and the values as a column of p rows."""
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values)


def write(database: DBConnection, depth: int, data: pa.Table, *, alone: bool) -> None:
    """Replaces the table of a depth, or makes it. alone: no other process can be writing it."""
    batches = pa.RecordBatchReader.from_batches(data.schema, data.to_batches(max_chunksize=_BATCH_PAGES))
    database.create_table(name(depth), batches, mode="overwrite")
    tidy(database, depth, alone=alone)


def drop(database: DBConnection, depth: int) -> None:
    """Removes the table of a depth, damaged or not; none is as well."""
    database.drop_table(name(depth), ignore_missing=True)


def tidy(database: DBConnection, depth: int, *, alone: bool) -> None:
    """Removes all versions but the latest; alone: and what interrupted writes left.

    A reader that is on an older version meanwhile reads again.
    """
    table = place.open_table(database, name(depth))
    if table is not None:
        table.optimize(cleanup_older_than=_AT_ONCE, delete_unverified=alone)


def exists(database: DBConnection, depth: int, *, identity: bytes) -> bool:
    """Whether there is a table of a depth that can be opened, made for the pages of that identity."""
    try:
        with _damage(depth):
            return _open(database, depth, identity) is not None
    except RoutesError:
        return False


def count(database: DBConnection, depth: int, *, identity: bytes) -> int | None:
    """Pages that the table of a depth covers or left out as strangers, those deleted since included.

    None where there is none to be used.
    """
    try:
        with _damage(depth):
            table = _open(database, depth, identity)
            if table is None:
                return None
            training = Training(**json.loads(table.schema.metadata[_KEY])["training"])
            return int(table.count_rows()) - 1 + training.strangers
    except StorageError:
        return None


def read(
    database: DBConnection, depth: int, addresses: RowAddresses, stamps: Stamps, *, identity: bytes
) -> Routes | None:
    """The table of a depth, page by page as asked; None where there is none, or it is of another index.

    addresses, stamps: of all pages of a snapshot. identity: of their table.

    Raises RoutesError where the table is damaged, StorageError where the disk refuses, or the object store cannot be
    reached.
    """
    try:
        with _damage(depth):
            return _read(database, depth, addresses, stamps, identity)
    except RoutesError:
        # The version may have been replaced while it was read.
        with _damage(depth):
            return _read(database, depth, addresses, stamps, identity)


def name(depth: int) -> str:
    """Of the table of a depth."""
    return f"routes_{depth}"


def _open(database: DBConnection, depth: int, identity: bytes) -> LanceTable | None:
    table = place.open_table(database, name(depth))
    if table is None or not table.schema.equals(_SCHEMA) or (table.schema.metadata or {}).get(_IDENTITY) != identity:
        return None
    return table


def _read(
    database: DBConnection, depth: int, addresses: RowAddresses, stamps: Stamps, identity: bytes
) -> Routes | None:
    table = _open(database, depth, identity)
    if table is None:
        return None
    described = json.loads(table.schema.metadata[_KEY])
    stored = table.search().select(["stamp", "codes"]).to_arrow()
    # By stamp: a condition on the centroids themselves takes minutes.
    first = table.search().where(f"stamp = {_OF_CENTROIDS}").select(["centroids"]).to_arrow()
    packed = b"".join(first["centroids"].to_pylist())
    rows = pc.fill_null(pc.index_in(pa.array(stamps), stored["stamp"]), -1).to_numpy()
    offsets, codes = _chosen(pa.concat_arrays(stored["codes"].chunks), rows)
    routes = Routes(
        centroids=np.frombuffer(packed, np.float32).reshape(-1, described["dim"]),
        training=Training(**described["training"]),
        addresses=addresses,
        known=rows >= 0,
        offsets=offsets,
        codes=codes,
    )
    if routes.codes.max(initial=0) >= max(len(routes.centroids), 1):
        raise ValueError(f"expected codes below {len(routes.centroids)}, found {routes.codes.max()}")
    return routes


def _chosen(lists: pa.LargeListArray, rows: npt.NDArray[np.int32]) -> tuple[Offsets, npt.NDArray[np.uint16]]:
    """Offsets and values of chosen rows, none for a row below 0. Arrow's own `take` needs several times as long."""
    bounds, values = lists.offsets.to_numpy(), lists.values.to_numpy()
    counts = np.where(rows < 0, 0, np.diff(bounds)[rows])
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
    shifts = bounds[:-1][rows] - offsets[:-1]
    chosen = np.empty(offsets[-1], np.uint16)
    for start in range(0, len(rows), _BATCH_PAGES):
        part = slice(start, start + _BATCH_PAGES)
        first, last = offsets[start], offsets[min(start + _BATCH_PAGES, len(rows))]
        chosen[first:last] = values[np.arange(first, last) + np.repeat(shifts[part], counts[part])]
    return offsets, chosen


@contextmanager
def _damage(depth: int) -> Iterator[None]:
    """Raises RoutesError for what a damaged table gives, StorageError for a disk or object store that gives nothing."""
    try:
        yield
    except Exception as error:
        # Damage may also lie in what was written beside the codes.
        if not (engine.is_failure(error) or isinstance(error, LookupError | TypeError)):
            raise
        if engine.is_unreachable(error) or engine.is_refused(error):
            raise engine.storage_error(f"read the first stage of depth {depth}", error) from error
        raise RoutesError(f"the first stage of depth {depth} is damaged ({engine.reason(error)})") from error
