"""A side table: for every page of one depth, the centroids nearest to its vectors, and the centroids themselves.

It is derived from the pages, may be missing, and may lag behind them. So it names pages by id and revision, which
hold for ever, and a reader learns which pages of its snapshot it covers. Each depth has a table of its own; writing it
anew is one commit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from budgetvdr.store import place
from budgetvdr.store.records import ADDRESS, Offsets, RowAddresses

if TYPE_CHECKING:
    from lancedb.db import DBConnection

Settings = Mapping[str, str | int | float]

_KEY: Final = b"budgetvdr.routes"
_IDENTITY: Final = b"budgetvdr.identity"
# The centroids are in the first row, so that they and the codes are one version.
_FIELDS: Final = (
    pa.field("id", pa.string(), nullable=False),
    pa.field("revision", pa.string(), nullable=False),
    pa.field("codes", pa.list_(pa.uint16())),
    pa.field("centroids", pa.large_binary(), metadata={"lance-encoding:compression": "none"}),
)
_MOST_CENTROIDS: Final = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """What the side table of a depth says about the pages of one snapshot.

    centroids: (K, d) float32. settings: what its maker wrote beside them.
    addresses: (p,) of all pages of the snapshot. known: (p,) bool, whether the table covers a page as it now is.
    offsets, codes: (p + 1,) int64 and (n,) uint16; rows of `centroids` for page i are codes[offsets[i]:offsets[i + 1]],
        none where the page is not known.
    """

    centroids: npt.NDArray[np.float32]
    settings: Settings
    addresses: RowAddresses
    known: npt.NDArray[np.bool_]
    offsets: Offsets
    codes: npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True, eq=False)
class PageCodes:
    """What is written: codes of pages, named by id and revision.

    ids, revisions: one a page. offsets, codes: (p + 1,) and (n,) uint16, as in `Routes`.
    """

    ids: Sequence[str]
    revisions: Sequence[str]
    offsets: Offsets
    codes: npt.NDArray[np.uint16]


def check(pages: PageCodes, centroids: npt.NDArray[np.float32]) -> None:
    """Raises ValueError where shapes do not fit each other, or a code names no centroid."""
    count = len(pages.ids)
    if not (len(pages.revisions) == count == len(pages.offsets) - 1 and pages.offsets[-1] == len(pages.codes)):
        raise ValueError(
            f"expected a revision and codes for each of {count} pages; found {len(pages.revisions)} revisions, "
            f"{len(pages.offsets)} offsets and {len(pages.codes)} codes"
        )
    if centroids.ndim != 2 or len(centroids) > _MOST_CENTROIDS or pages.codes.max(initial=0) >= max(len(centroids), 1):
        raise ValueError(
            f"expected at most 65536 centroids (K, d) and codes below K; found {centroids.shape} and codes up to "
            f"{pages.codes.max(initial=0)}"
        )


def write(
    database: DBConnection,
    depth: int,
    pages: PageCodes,
    centroids: npt.NDArray[np.float32],
    *,
    settings: Settings,
    identity: bytes,
    keep: timedelta,
) -> None:
    """Replaces the table of a depth, or makes it; its versions older than `keep` leave.

    identity: of the table of pages.
    """
    count = len(pages.ids)
    described = {"settings": dict(settings), "dim": centroids.shape[1]}
    schema = pa.schema(_FIELDS, metadata={_KEY: json.dumps(described).encode(), _IDENTITY: identity})
    offsets = np.concatenate([[0, 0], pages.offsets[1:]]).astype(np.int32)
    data = pa.Table.from_arrays(
        [
            pa.array(["", *pages.ids]),
            pa.array(["", *pages.revisions]),
            pa.ListArray.from_arrays(pa.array(offsets), pa.array(pages.codes)),
            pa.array([np.ascontiguousarray(centroids, np.float32).tobytes(), *[None] * count], pa.large_binary()),
        ],
        schema=schema,
    )
    table = database.create_table(_name(depth), data, mode="overwrite")
    table.optimize(cleanup_older_than=keep)


def exists(database: DBConnection, depth: int) -> bool:
    """Whether there is a table of a depth."""
    return place.open_table(database, _name(depth)) is not None


def read(database: DBConnection, depth: int, pages: pa.Table, *, identity: bytes) -> Routes | None:
    """The table of a depth, page by page as asked; None where there is none, or it is of another index.

    pages: id, revision and address of all pages of a snapshot. identity: of their table.
    """
    table = place.open_table(database, _name(depth))
    if table is None or table.schema.metadata.get(_IDENTITY) != identity:
        return None
    described = json.loads(table.schema.metadata[_KEY])
    stored = table.search().select(["id", "revision", "codes"]).to_arrow().combine_chunks()
    # By id: a condition on the centroids themselves takes minutes.
    first = table.search().where("id = ''").select(["centroids"]).to_arrow()
    found = pc.index_in(_keys(pages), _keys(stored)).combine_chunks()
    codes = pa.concat_arrays(stored["codes"].chunks).take(found)
    counts = pc.fill_null(pc.list_value_length(codes), 0).to_numpy()
    return Routes(
        centroids=np.frombuffer(first["centroids"][0].as_py(), np.float32).reshape(-1, described["dim"]),
        settings=described["settings"],
        addresses=pages[ADDRESS].to_numpy(),
        known=np.asarray(found.is_valid()),
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)]),
        codes=codes.flatten().to_numpy(),
    )


def _keys(pages: pa.Table) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(pages["id"], pages["revision"], "\0")


def _name(depth: int) -> str:
    return f"routes_{depth}"
