"""Every compression method on one evaluation set, each from the same vectors.

The pages are encoded into an index that keeps signals, and every method makes its own of that. Two ways of looking at
the attention need a pass of their own: a single step, and the last layer alone.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from budgetvdr.budget import Budget, Plan, plan
from budgetvdr.bundle import Manifest, Window
from budgetvdr.compress import AnchorFold, DocPruner, StructuralPruning
from budgetvdr.compress.extras import missing_extra
from budgetvdr.compress.record import Method
from budgetvdr.encoders import Encoder
from budgetvdr.errors import BenchmarkError, CompressionError, QueryError
from budgetvdr.evaluate.benchmark import Benchmark, PageKey
from budgetvdr.evaluate.compression import (
    ABLATIONS,
    DOC_PRUNER,
    FULL,
    GAMMAS,
    RIVALS,
    SINGLE_STEP,
    CompressionReport,
    CompressionRow,
    Floats,
    Latency,
)
from budgetvdr.evaluate.metrics import ndcg_by_question, require_metrics_library
from budgetvdr.evaluate.run import HITS
from budgetvdr.evaluate.timing import TimedEncoder
from budgetvdr.index import Index
from budgetvdr.pages import ReadMode, Scores
from budgetvdr.recompress import RecompressReport
from budgetvdr.store import Store

_log = logging.getLogger(__name__)

_CALIBRATED, _SINGLE_STEP, _LAST_LAYER, _VECTORS = "calibrated", "single-step", "last-layer", "vectors-alone"
_METHODS = dict(RIVALS) | dict(ABLATIONS)
_READ_PAGES = 16

Asked = Mapping[str, Mapping[PageKey, float]]
"""Question id -> page -> score, best first."""


@dataclass(frozen=True, slots=True)
class GridOptions:
    """What is tried.

    points: depth and width, the first of which is timed. gammas: shares of vectors. read: as in `Index.add_pages`.
    folder: where the full indexes stay; None for a folder that goes afterwards.
    """

    points: tuple[Plan, ...]
    gammas: tuple[float, ...] = GAMMAS
    read: ReadMode = "auto"
    folder: Path | None = None


def run_compression_grid(benchmark: Benchmark, encoder: Encoder, options: GridOptions) -> CompressionReport:
    """Quality, size and time of every method at every gamma and point; the full index first.

    Methods that ask for attention which the bundle does not tell of, or was not calibrated for at one of the depths,
    are left out, as are those whose package is not installed; the report says which, and why. DocPruner keeps the share
    asked for over all pages of the set, which it is calibrated on.

    Raises MissingExtraError where the metrics library is missing, BudgetError for a point that
    the bundle lacks, BenchmarkError where the set's documents cannot be indexed.
    """
    require_metrics_library()
    manifest = encoder.manifest
    for point in options.points:
        plan(
            Budget(depth=point.depth, dim=point.dim),
            query_depths=manifest.query_depths,
            dims=manifest.dims,
            presets={},
        )
    depths = sorted({point.depth for point in options.points})
    rows: list[CompressionRow] = []
    left_out = {
        label: str(missing) for label, of_gamma in _METHODS.items() if (missing := missing_extra(of_gamma(1.0)))
    }
    full: dict[Plan, Asked] = {}
    pages = 0
    with tempfile.TemporaryDirectory(prefix="budgetvdr-grid-") as scratch:
        for name, windows in _passes(manifest, depths).items():
            grid = _Pass(name, benchmark, options, TimedEncoder(encoder, windows), Path(scratch))
            try:
                index = grid.full_index(depths, signals=True)
            except CompressionError as error:
                left_out |= dict.fromkeys(_that_ask(name), str(error))
                if name != _CALIBRATED:
                    continue
                # Methods that look at vectors alone are compared all the same.
                grid = _Pass(_VECTORS, benchmark, options, TimedEncoder(encoder, {}), Path(scratch))
                index = grid.full_index(depths, signals=False)
            with index:
                if not full:
                    pages = len(index)
                    full = {point: ask(benchmark, index, point) for point in options.points}
                    rows += grid.full_rows(index, full)
                rows += grid.rows(index, full, left_out.keys())
    ordered = sorted(rows, key=lambda row: options.points.index(Plan(row.depth, row.dim)))
    return CompressionReport(benchmark.name, len(benchmark.queries), pages, tuple(ordered), left_out)


@dataclass(frozen=True, slots=True)
class _Pass:
    """One encoding of the pages, and what is made of it."""

    name: str
    benchmark: Benchmark
    options: GridOptions
    encoder: TimedEncoder
    scratch: Path

    @property
    def path(self) -> Path:
        return (self.options.folder or self.scratch) / f"{self.name}.bvdr"

    def full_index(self, depths: Sequence[int], *, signals: bool) -> Index:
        """With all pages of the set. Raises BenchmarkError where none can be read, CompressionError without signals."""
        index = Index.open(self.path, encoder=self.encoder, depths=depths, signals=signals)
        added = index.add_pages(self.benchmark.pdfs, read=self.options.read)
        if added.failed:
            _log.warning("%s", added)
        if not len(index):
            index.close()
            raise BenchmarkError(f"no page of {self.benchmark.pdfs} could be read")
        return index

    def full_rows(self, index: Index, full: Mapping[Plan, Asked]) -> Iterator[CompressionRow]:
        with _reading(self.path) as store:
            ids = list(store.snapshot().revisions())
        encode = self.encoder.milliseconds(ids, attention=False)
        readers = self.encoder.readers(ids)
        latency = None if encode is None else Latency.of(np.zeros(len(ids)), encode, encode, readers)
        for point, asked in full.items():
            yield _row(self.benchmark, index, (FULL, 1.0), point, (asked, asked), latency=latency)

    def rows(self, index: Index, full: Mapping[Plan, Asked], left_out: Collection[str]) -> Iterator[CompressionRow]:
        """One for each method, gamma and point; each smaller index goes when it has been searched."""
        methods = [each for each in self._methods() if each[0] not in left_out]
        with tqdm(methods, unit="index", desc=self.name, disable=None) as bar:
            for label, gamma, method in bar:
                with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
                    report = index.recompress(folder, method, show_progress_bar=False)
                    latency = self._latency(report, method)
                    with Index.open(folder, encoder=self.encoder) as smaller:
                        for point in self.options.points:
                            asked = ask(self.benchmark, smaller, point)
                            yield _row(
                                self.benchmark, smaller, (label, gamma), point, (asked, full[point]), latency=latency
                            )

    def _methods(self) -> Iterator[tuple[str, float, Method]]:
        made: Mapping[str, Callable[[float], Method]]
        if self.name == _SINGLE_STEP:
            made = {SINGLE_STEP: lambda gamma: AnchorFold(gamma=gamma, steps=1, refinements=0)}
        elif self.name == _LAST_LAYER:
            seen = self._from_global()
            made = {DOC_PRUNER: lambda gamma: DocPruner.at_ratio(gamma, seen)}
        else:
            made = _METHODS
        for label, of_gamma in made.items():
            for gamma in self.options.gammas:
                yield label, gamma, of_gamma(gamma)

    def _from_global(self) -> list[Scores]:
        """Attention of every page's global token at the deepest exit, read a few pages at a time."""
        found: list[Scores] = []
        with _reading(self.path) as store:
            snapshot, depth = store.snapshot(), store.settings.depths[-1]
            addresses = snapshot.matching()
            for start in range(0, len(addresses), _READ_PAGES):
                rows = snapshot.page_rows(addresses[start : start + _READ_PAGES])
                found += [row.signals[depth].from_global for row in rows]
        return found

    def _latency(self, report: RecompressReport, method: Method) -> Latency | None:
        """None where the full index was there before, so that nobody saw what its pages cost."""
        ids = list(report.page_seconds)
        encode = self.encoder.milliseconds(ids, attention=_asks(method))
        full = self.encoder.milliseconds(ids, attention=False)
        if encode is None or full is None:
            return None
        compress = 1e3 * np.array([report.page_seconds[page_id] for page_id in ids])
        return Latency.of(compress, encode, full, self.encoder.readers(ids))


def ask(benchmark: Benchmark, index: Index, point: Plan) -> Asked:
    """Every question, at one point, over all vectors of the index."""
    budget = Budget(depth=point.depth, dim=point.dim)
    found: dict[str, dict[PageKey, float]] = {}
    for query in benchmark.queries:
        where = None if query.doc is None else {"doc_id": query.doc}
        try:
            hits = index.search(query.text, k=HITS, budget=budget, where=where)
        except QueryError as error:
            raise BenchmarkError(f"question {query.id!r} cannot be searched: {error}") from error
        found[query.id] = {(hit.doc_id, hit.page_num): hit.score for hit in hits}
    return found


def mean_score_ratio(benchmark: Benchmark, asked: Asked, full: Asked) -> float | None:
    """Mean SR: compressed over full score of the answer pages that both found (AnchorFold, section 4.6)."""
    ratios = [
        asked[query.id][page] / full[query.id][page]
        for query in benchmark.queries
        for page, grade in query.relevant.items()
        if grade > 0 and page in asked[query.id] and full[query.id].get(page, 0.0) > 0
    ]
    return sum(ratios) / len(ratios) if ratios else None


def _row(
    benchmark: Benchmark,
    index: Index,
    what: tuple[str, float],
    point: Plan,
    asked: tuple[Asked, Asked],
    *,
    latency: Latency | None,
) -> CompressionRow:
    """what: method and gamma. asked: of this index, and of the full one."""
    small, full = (_ndcg(benchmark, each) for each in asked)
    # A search without a filter looks at every page, and says at how many vectors.
    budget = Budget(depth=point.depth, dim=point.dim)
    spent = index.search(benchmark.queries[0].text, k=1, budget=budget)[0].budget
    return CompressionRow(
        method=what[0],
        gamma=what[1],
        depth=point.depth,
        dim=point.dim,
        vectors=spent.vectors / len(index),
        ndcg=small,
        full_ndcg=float(full.mean()),
        sr=mean_score_ratio(benchmark, *asked),
        latency=latency,
    )


def _ndcg(benchmark: Benchmark, asked: Asked) -> Floats:
    run = {query_id: list(pages) for query_id, pages in asked.items()}
    found = ndcg_by_question({query.id: query.relevant for query in benchmark.queries}, run)
    return np.array([found[query.id] for query in benchmark.queries])


def _passes(manifest: Manifest, depths: Sequence[int]) -> dict[str, Mapping[int, Window]]:
    """Name -> depth -> window, of those depths that have one."""
    calibrated = {depth: window for depth, window in manifest.compression.items() if depth in depths}
    return {
        _CALIBRATED: calibrated,
        _SINGLE_STEP: {depth: Window(window.first, window.last) for depth, window in calibrated.items()},
        _LAST_LAYER: {depth: Window(depth - 1, depth - 1) for depth in depths},
    }


def _that_ask(name: str) -> list[str]:
    """Labels of the methods that a pass cannot do without signals."""
    if name == _CALIBRATED:
        return [label for label, of_gamma in _METHODS.items() if _asks(of_gamma(1.0))]
    return [SINGLE_STEP if name == _SINGLE_STEP else DOC_PRUNER]


def _asks(method: Method) -> bool:
    return isinstance(method, AnchorFold | DocPruner | StructuralPruning)


def _reading(path: Path) -> Store:
    return Store.open(path, read_only=True)
