"""What a number of pages will take: disk, memory and time, from measured constants."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from budgetvdr.budget import Budget, is_count, plan
from budgetvdr.bundle import Manifest, load_manifest
from budgetvdr.checks import threads_or_cores
from budgetvdr.encoders.open import bundled_folder
from budgetvdr.errors import QueryError
from budgetvdr.first_stage import LEAST_VECTORS
from budgetvdr.memory import parse_bytes, quarter_of_machine
from budgetvdr.pages import SearchPath

# From tests/bench/bench_growth.py, bench_memory.py, bench_first_stage.py and bench_index.py (docs/results.md), on two
# cores of an AMD EPYC with AVX-512 and 20 query vectors.
VECTORS_PER_PAGE: Final = 420
"""A page of the handbooks in docs/results.md, by the bundled encoder."""
_SCAN_NS, _SCAN_NS_PER_COMPONENT = 3.4, 0.11
_ENCODE_MS_PER_LAYER = 0.43
_READ_MS, _READ_MS_PER_COMPONENT = 5.0, 0.011
# Lists grow with the root of the vectors as long as there are more centroids for more of them.
_PROPOSE_MS_PER_ROOT, _MOST_ROOTED = 0.0033, 17_000_000
_STREAM_BYTES_PER_MS = 756_000
_TEXT_BYTES, _REGION_BYTES, _OVERHEAD = 4096, 8, 1.012
_LIST_BYTES, _CODE_BYTES = 8, 2


@dataclass(frozen=True, slots=True)
class Estimate:
    """What `estimate` expects; good within a factor of two on a machine like that of docs/results.md.

    disk_bytes: the index, all stored depths, without pictures. memory_bytes: vectors and lists in memory while it is
    searched at this budget. path: the way a search takes (see `Spent`). pages_scored: of them. query_ms: milliseconds
    a query once vectors are loaded. first_stage: whether `optimize` makes one.
    """

    disk_bytes: int
    memory_bytes: int
    path: SearchPath
    pages_scored: int
    query_ms: float
    first_stage: bool


def estimate(
    pages: int,
    budget: Budget | str = "full",
    *,
    vectors_per_page: float = VECTORS_PER_PAGE,
    stored_depths: int | None = None,
    manifest: Manifest | None = None,
    memory_limit: int | str | None = None,
    threads: int | None = None,
) -> Estimate:
    """Disk, memory and milliseconds that an index of so many pages would take, before anything is indexed.

    vectors_per_page: mean number; dense text has 420 with the bundled encoder. stored_depths: how many depths are
    stored, all of the bundle's by default. manifest: the bundle's, the bundled encoder's by default. memory_limit,
    threads: as in `Index.open`.

    Raises QueryError for a number of pages below 1, BudgetError as `Index.search` does, ValueError as `Index.open`.
    """
    if not is_count(pages):
        raise QueryError(f"pages must be a whole number, at least 1; found {pages!r}")
    manifest = load_manifest(bundled_folder()) if manifest is None else manifest
    point = plan(budget, depths=manifest.depths, dims=manifest.dims, presets=manifest.presets)
    vectors = pages * vectors_per_page
    depths = len(manifest.depths) if stored_depths is None else stored_depths
    first_stage = vectors >= LEAST_VECTORS
    candidates = point.candidates if first_stage and point.candidates is not None else pages
    scored = min(pages, candidates)
    copy, limit = vectors * (point.dim + 4), quarter_of_machine() if memory_limit is None else parse_bytes(memory_limit)
    lists = vectors * _LIST_BYTES if scored < pages else 0
    ms = point.depth * _ENCODE_MS_PER_LAYER + _READ_MS + _READ_MS_PER_COMPONENT * point.dim
    if scored < pages:
        ms += _PROPOSE_MS_PER_ROOT * math.sqrt(vectors) * max(1.0, math.sqrt(vectors / _MOST_ROOTED))
    scanned = scored * vectors_per_page
    if copy <= limit:
        path: SearchPath = "scan"
        cores = threads_or_cores(threads)
        ms += scanned * (_SCAN_NS + _SCAN_NS_PER_COMPONENT * point.dim) * 1e-6 / cores
    else:
        path = "proposed" if scored < pages else "stream"
        ms += scanned * point.dim * 2 / _STREAM_BYTES_PER_MS
    width = 2 * manifest.dims[-1] * depths * _OVERHEAD + _REGION_BYTES + (_CODE_BYTES * depths if first_stage else 0)
    return Estimate(
        disk_bytes=round(vectors * width + pages * _TEXT_BYTES),
        memory_bytes=round((copy if path == "scan" else 0) + lists),
        path=path,
        pages_scored=scored,
        query_ms=round(ms, 1),
        first_stage=first_stage,
    )
