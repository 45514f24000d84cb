"""The index on disk: one LanceDB table, one row a page.

`Store` opens and writes, `Snapshot` reads one version of the table and never changes under a search.
"""

from budgetvdr.store.filters import Where
from budgetvdr.store.records import (
    DocumentInfo,
    DocumentState,
    PageFacts,
    PageState,
    RowAddresses,
    Slab,
    StoreStats,
    VersionInfo,
)
from budgetvdr.store.routes import PageCodes, Routes, RoutesError, Training
from budgetvdr.store.rows import FoldMap, PageRow
from budgetvdr.store.schema import FOLDED_FORMAT_VERSION, STORE_FORMAT_VERSION, IndexSettings
from budgetvdr.store.snapshot import Snapshot
from budgetvdr.store.table import Store
from budgetvdr.store.upkeep import KEEP_VERSIONS, OptimizeReport

__all__ = [
    "FOLDED_FORMAT_VERSION",
    "KEEP_VERSIONS",
    "STORE_FORMAT_VERSION",
    "DocumentInfo",
    "DocumentState",
    "FoldMap",
    "IndexSettings",
    "OptimizeReport",
    "PageCodes",
    "PageFacts",
    "PageRow",
    "PageState",
    "Routes",
    "RoutesError",
    "RowAddresses",
    "Slab",
    "Snapshot",
    "Store",
    "StoreStats",
    "Training",
    "VersionInfo",
    "Where",
]
