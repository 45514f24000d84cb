"""What a number of pages will take: disk, memory and time, from measured constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeGuard

from budgetvdr.budget import Budget, Plan, is_count, plan, served_presets
from budgetvdr.bundle import Manifest, load_manifest
from budgetvdr.checks import settings_for, threads_or_cores
from budgetvdr.encoders.open import bundle_folder
from budgetvdr.errors import BudgetError, QueryError
from budgetvdr.first_stage import LEAST_VECTORS
from budgetvdr.memory import parse_bytes, quarter_of_machine
from budgetvdr.pages import SearchPath
from budgetvdr.resident import PAGE_BYTES, SPARE_SHARE
from budgetvdr.similarity.centroids import centroid_count

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
_CODE_BYTES, _FOLD_BYTES = 2, 2
# In memory: a page number for each vector, and for each page its address and whether it is there; centroids at 128
# components and cut to the query.
_LIST_BYTES, _LISTED_PAGE_BYTES, _CENTROID_WIDTH = 4, 9, 128


@dataclass(frozen=True, slots=True)
class Estimate:
    """What `estimate` expects; good within a factor of two on a machine like that of docs/results.md.

    disk_bytes: the index, all stored depths, without pictures and old versions. memory_bytes: vectors and lists in
    memory while it is searched at this budget. path: the way a search takes (see `Spent`); never "pruned", because only
    the vectors themselves tell whether that pays, so that "stream" is then the worst case. pages_scored: pages looked
    at. query_ms: milliseconds a query, encoded by the bundled reader, once vectors are loaded. first_stage: whether
    `optimize` makes one.
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
    vectors_per_page: float | None = None,
    gamma: float = 1.0,
    encoder: str | Path | None = None,
    depths: Sequence[int] | None = None,
    memory_limit: int | str | None = None,
    threads: int | None = None,
) -> Estimate:
    """Disk, memory and milliseconds that an index of so many pages would take, before anything is indexed.

    vectors_per_page: mean number, before compression. None for as many as a bundle with slots gives, or else the 420
    that dense text has with the bundled encoder; vision-language bundles have other numbers, which
    `Index.vectors_per_page` tells of an index of a few pages. gamma: the share of them that compression keeps. encoder:
    a bundle's folder, or its name on the Hugging Face hub ("owner/name", "owner/name@revision"); None for the bundled
    one. depths, memory_limit, threads: as in `Index.open`.

    Raises QueryError for a number of pages below 1, BudgetError as `Index.search` does and for depths the bundle lacks,
    BundleError and MissingExtraError as `open_encoder` for an encoder that is no bundle, ValueError as `Index.open` and
    for vectors_per_page or gamma that are none.
    """
    _check(pages, vectors_per_page, gamma)
    manifest = load_manifest(bundle_folder(encoder))
    vectors_per_page = vectors_per_page or manifest.slots or VECTORS_PER_PAGE
    stored = settings_for(manifest, depths).depths
    point = _point(budget, manifest, stored)
    tokens, vectors = pages * vectors_per_page, pages * vectors_per_page * gamma
    first_stage = vectors >= LEAST_VECTORS
    copy = round((1 + SPARE_SHARE) * vectors * (point.dim + 4) + pages * PAGE_BYTES)
    fits = copy <= (quarter_of_machine() if memory_limit is None else parse_bytes(memory_limit))
    asked = first_stage and not (fits and vectors * point.dim <= point.quick_scan)
    looked_at = min(pages, point.candidates) if asked and point.candidates is not None else pages
    proposed = looked_at < pages
    per_vector = 2 * manifest.dims[-1] * len(stored) * _OVERHEAD
    per_token = _REGION_BYTES + (_FOLD_BYTES * len(stored) if gamma < 1 else 0)
    per_vector += _CODE_BYTES * len(stored) if first_stage else 0
    return Estimate(
        disk_bytes=round(vectors * per_vector + tokens * per_token + pages * _TEXT_BYTES),
        memory_bytes=(copy if fits else 0) + (_lists_bytes(pages, vectors, point.dim) if proposed else 0),
        path="scan" if fits else "proposed" if proposed else "stream",
        pages_scored=looked_at,
        query_ms=round(
            _before_scoring_ms(point, vectors, proposed=proposed)
            + _scoring_ms(looked_at * vectors_per_page * gamma, point.dim, threads_or_cores(threads) if fits else None),
            1,
        ),
        first_stage=first_stage,
    )


def _check(pages: object, vectors_per_page: object, gamma: object) -> None:
    """Raises QueryError and ValueError for what is not the number it has to be."""
    if not is_count(pages):
        raise QueryError(f"pages must be a whole number, at least 1; found {pages!r}")
    if vectors_per_page is not None and not (_is_number(vectors_per_page) and 0 < vectors_per_page < math.inf):
        raise ValueError(f"vectors_per_page must be a number above 0, or None; found {vectors_per_page!r}")
    if not _is_number(gamma) or not 0 < gamma <= 1:
        raise ValueError(f"gamma must be a share above 0 and up to 1; found {gamma!r}")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _point(budget: Budget | str, manifest: Manifest, stored: tuple[int, ...]) -> Plan:
    """Where a search of an index with these depths would run. Raises BudgetError where it would refuse."""
    query_depths = {depth: manifest.query_depths[depth] for depth in stored}
    presets = served_presets(manifest.presets, query_depths=query_depths, dims=manifest.dims)
    point = plan(budget, query_depths=query_depths, dims=manifest.dims, presets=presets)
    if point.depth not in manifest.depths:
        raise BudgetError(f"{manifest.name} has exits at {manifest.depths}, asked for {point.depth}")
    return point


def _lists_bytes(pages: int, vectors: float, dim: int) -> int:
    centroids = centroid_count(round(vectors)) * 4 * (_CENTROID_WIDTH + (dim if dim < _CENTROID_WIDTH else 0))
    return round(vectors * _LIST_BYTES) + pages * _LISTED_PAGE_BYTES + centroids


def _before_scoring_ms(point: Plan, vectors: float, *, proposed: bool) -> float:
    """Encoding the query, reading the best pages, and choosing among the lists."""
    ms = point.depth * _ENCODE_MS_PER_LAYER + _READ_MS + _READ_MS_PER_COMPONENT * point.dim
    if proposed:
        ms += _PROPOSE_MS_PER_ROOT * math.sqrt(vectors) * max(1.0, math.sqrt(vectors / _MOST_ROOTED))
    return ms


def _scoring_ms(vectors: float, dim: int, cores: int | None) -> float:
    """Scoring vectors in memory on some cores; None: vectors that are read from disk."""
    if cores is None:
        return vectors * dim * 2 / _STREAM_BYTES_PER_MS
    return vectors * (_SCAN_NS + _SCAN_NS_PER_COMPONENT * dim) * 1e-6 / cores
