"""A smaller index of a full one, without encoding its pages again."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from time import perf_counter

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from budgetvdr.errors import IndexMismatchError
from budgetvdr.folding import FULL, Folding, described
from budgetvdr.memory import give_back
from budgetvdr.store import IndexSettings, PageRow, PageState, Snapshot, Store

# As many pages as `add_pages` commits at a time by default: three exits of 4,000 tokens take 18 MB of float32 a page.
_BATCH_PAGES = 16
# Strangers named in an error.
_NAMED = 5


@dataclass(frozen=True, slots=True)
class RecompressReport:
    """What one `Index.recompress` did.

    pages: written. unchanged: pages that were there already. vectors_before, vectors_after: of the pages written, all
    depths together. page_ids: of these, in the order they were written in. page_seconds: depth -> CPU seconds that
    folding each of them there took. seconds: "compress" is the sum of these, "write" wall time of the commits, which
    run beside it, "total" wall time.
    """

    pages: int
    unchanged: int
    vectors_before: int
    vectors_after: int
    page_ids: tuple[str, ...]
    page_seconds: Mapping[int, npt.NDArray[np.float64]]
    seconds: Mapping[str, float]

    def __str__(self) -> str:
        found = f"{self.pages} pages written, {self.unchanged} there already, {self.seconds['total']:.1f} s"
        if not self.vectors_before:
            return found
        share = self.vectors_after / self.vectors_before
        return f"{found}; {self.vectors_before} vectors of all depths became {self.vectors_after}, {share:.1%}"


@dataclass(frozen=True, slots=True)
class Target:
    """Where the smaller index goes, and what it is to be."""

    path: str | Path
    settings: IndexSettings
    storage_options: Mapping[str, str] | None = None

    def open(self) -> Store:
        """The index, made where it is missing. Raises IndexMismatchError for one that was made otherwise."""
        store = Store.open(self.path, settings_if_new=self.settings, storage_options=self.storage_options)
        if store.settings != self.settings:
            store.close()
            raise IndexMismatchError(
                f"{store.uri} was made otherwise than this index and compression ask: "
                f"{_differences(self.settings, store.settings)}; choose another path"
            )
        return store


def recompress(source: Snapshot, target: Target, *, threads: int, bar: tqdm[None]) -> RecompressReport:
    """Writes the pages of a full index, folded, to another; those copied before and not stored anew since stay.

    One batch of pages is folded while the one before is committed; no others are in memory. An interrupted run is
    completed by running it again. threads: pages folded side by side.

    Raises IndexMismatchError for a target that was made otherwise or holds pages that the full index lacks, what
    folding raises, StorageError.
    """
    begun, write_seconds = perf_counter(), 0.0
    page_ids: list[str] = []
    page_seconds = {depth: array("d") for depth in target.settings.depths}
    before = after = 0
    with target.open() as store:
        known = source.states()
        missing = np.array(_missing(known, store), np.uint64)
        bar.total = len(missing)
        folding = Folding.of(store.settings)
        with (
            ThreadPoolExecutor(threads, "budgetvdr-fold") as pool,
            ThreadPoolExecutor(1, "budgetvdr-write") as writer,
        ):
            written: Future[float] | None = None
            for start in range(0, len(missing), _BATCH_PAGES):
                rows = source.page_rows(missing[start : start + _BATCH_PAGES])
                folded = list(pool.map(folding.stored_timed, rows))
                for row, taken in folded:
                    page_ids.append(row.id)
                    for depth, of_depth in taken.items():
                        page_seconds[depth].append(of_depth)
                write_seconds += 0.0 if written is None else written.result()
                written = writer.submit(_write, store, [row for row, _ in folded])
                before += _vectors(rows)
                after += _vectors([row for row, _ in folded])
                bar.update(len(rows))
            write_seconds += 0.0 if written is None else written.result()
    by_depth = {depth: np.array(taken) for depth, taken in page_seconds.items()}
    compress_seconds = float(sum(taken.sum() for taken in by_depth.values()))
    seconds = {"compress": compress_seconds, "write": write_seconds, "total": perf_counter() - begun}
    unchanged = len(known) - len(missing)
    return RecompressReport(len(missing), unchanged, before, after, tuple(page_ids), by_depth, seconds)


def _differences(asked: IndexSettings, found: IndexSettings) -> str:
    """Expected and found, of what differs. Windows, signals and format follow from the compression."""
    if asked.compression != found.compression:
        there = FULL if found.compression is None else f"compression={described(found.compression)}"
        wanted = FULL if asked.compression is None else f"compression={described(asked.compression)}"
        names, told = ["fingerprint", "encoder_name", "depths", "dims"], [f"expected {wanted}, found {there}"]
    else:
        names, told = [field.name for field in fields(asked)], []
    for name in names:
        if getattr(asked, name) != getattr(found, name):
            told.append(f"expected {name} {getattr(asked, name)}, found {getattr(found, name)}")
    return "; ".join(told)


def _missing(known: Mapping[str, tuple[int, PageState]], store: Store) -> list[int]:
    """Addresses of the pages that are not in the target as they are now, ascending."""
    there = store.snapshot().states()
    strangers = sorted(there.keys() - known.keys())
    if strangers:
        raise IndexMismatchError(
            f"{store.uri} holds {len(strangers)} of its {len(there)} pages that this index does not: "
            f"{', '.join(strangers[:_NAMED])}{', ...' if len(strangers) > _NAMED else ''}; choose another path, or "
            "delete them there"
        )
    held = {page_id: state for page_id, (_, state) in there.items()}
    return sorted(address for page_id, (address, state) in known.items() if held.get(page_id) != state)


def _write(store: Store, rows: Sequence[PageRow]) -> float:
    """Commits some pages, and returns the seconds that took."""
    start = perf_counter()
    store.upsert(rows)
    give_back()
    return perf_counter() - start


def _vectors(rows: Sequence[PageRow]) -> int:
    return sum(len(vectors) for row in rows for vectors in row.vectors.values())
