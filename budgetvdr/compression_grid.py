"""Every compression method on one evaluation set, each from the same vectors.

The pages are encoded into an index that keeps signals, and every method makes its own of that. Only the ablation to a
single step needs a pass of its own, for what centrality is after one step is not kept.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from budgetvdr.budget import Budget, Plan, plan
from budgetvdr.bundle import Window
from budgetvdr.compress import AnchorFold, DocPruner, Signals, attention_for
from budgetvdr.compress.extras import missing_extra
from budgetvdr.compress.record import Method, to_record
from budgetvdr.compression_answers import Asked, ask, row_of
from budgetvdr.encoders import Encoder
from budgetvdr.errors import BenchmarkError, CompressionError
from budgetvdr.evaluate.benchmark import Benchmark
from budgetvdr.evaluate.compression import (
    ABLATIONS,
    DOC_PRUNER,
    FULL,
    GAMMAS,
    METHODS,
    SINGLE_STEP,
    CompressionReport,
    CompressionRow,
    Latency,
)
from budgetvdr.evaluate.metrics import require_metrics_library
from budgetvdr.evaluate.run import fill
from budgetvdr.evaluate.timing import TimedEncoder
from budgetvdr.folding import Folding
from budgetvdr.index import Index
from budgetvdr.pages import ReadMode, Scores
from budgetvdr.recompress import RecompressReport
from budgetvdr.store import Store
from budgetvdr.store.schema import TABLE

_log = logging.getLogger(__name__)

_CALIBRATED, _SINGLE_STEP, _LAST_LAYER, _VECTORS = "calibrated", "single-step", "last-layer", "vectors-alone"
_ALL = dict(METHODS) | dict(ABLATIONS)
_READ_PAGES = 16


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
    if options.folder is not None and (options.folder / f"{TABLE}.lance").exists():
        raise BenchmarkError(f"{options.folder} is an index: expected a folder to keep the full indexes in")
    manifest = encoder.manifest
    for point in options.points:
        plan(
            Budget(depth=point.depth, dim=point.dim),
            query_depths=manifest.query_depths,
            dims=manifest.dims,
            presets={},
        )
    depths = sorted({point.depth for point in options.points})
    left_out = {label: str(missing) for label, of_gamma in _ALL.items() if (missing := missing_extra(of_gamma(1.0)))}
    with tempfile.TemporaryDirectory(prefix="budgetvdr-grid-") as scratch:

        def one_pass(name: str, windows: Mapping[int, Window]) -> _Pass:
            return _Pass(name, benchmark, options, TimedEncoder(encoder, windows), Path(scratch))

        calibrated = {depth: window for depth, window in manifest.compression.items() if depth in depths}
        last_layer = {depth: Window(depth - 1, depth - 1) for depth in depths}
        attempts = {
            one_pass(_CALIBRATED, calibrated): [label for label, of in _ALL.items() if _needs_calibration(of(1.0))],
            one_pass(_LAST_LAYER, last_layer): [DOC_PRUNER],
            one_pass(_VECTORS, {}): [],
        }
        grid, index = _most_supplied(attempts, depths, left_out)
        with index:
            pages = len(index)
            full = {point: ask(benchmark, index, point) for point in options.points}
            rows = [*grid.full_rows(index, full), *grid.rows(index, full, left_out)]
        grid = one_pass(_SINGLE_STEP, {depth: Window(each.first, each.last) for depth, each in calibrated.items()})
        try:
            with grid.full_index(depths, signals=True) as index:
                rows += grid.rows(index, full, left_out)
        except CompressionError as error:
            left_out[SINGLE_STEP] = str(error)
    order = [FULL, *METHODS, DOC_PRUNER, *ABLATIONS, SINGLE_STEP]
    ordered = sorted(rows, key=lambda row: (options.points.index(Plan(row.depth, row.dim)), order.index(row.method)))
    return CompressionReport(benchmark.name, len(benchmark.queries), pages, tuple(ordered), left_out)


@dataclass(frozen=True, slots=True, eq=False)
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
        """With all pages of the set. Raises BenchmarkError where none can be read, and for an index that was there with
        other documents or another calibration, CompressionError without signals."""
        index = Index.open(self.path, encoder=self.encoder, depths=depths, signals=signals)
        try:
            self._check_windows()
            added = fill(self.benchmark, index, self.options.read)
            if added.failed:
                _log.warning("%s", added)
            if not len(index):
                raise BenchmarkError(f"no page of {self.benchmark.pdfs} could be read")
        except BaseException:
            index.close()
            raise
        return index

    def _check_windows(self) -> None:
        with _reading(self.path) as store:
            kept = Folding.of(store.settings).windows
        asked = attention_for(AnchorFold(gamma=1.0), self.encoder.manifest, kept)
        if kept != asked:
            raise BenchmarkError(
                f"{self.path} keeps what the attention said in {kept}, and the bundle has been calibrated to {asked} "
                "since; choose another --index"
            )

    def full_rows(self, index: Index, full: Mapping[Plan, Asked]) -> Iterator[CompressionRow]:
        with _reading(self.path) as store:
            ids = list(store.snapshot().states())
        encode = self.encoder.milliseconds(ids, attention=False)
        readers = self.encoder.readers(ids)
        latency = None if encode is None else Latency.of(np.zeros(len(ids)), encode, encode, readers)
        for point, asked in full.items():
            yield row_of(self.benchmark, index, (FULL, 1.0, {}), point, (asked, asked), latency=latency)

    def rows(self, index: Index, full: Mapping[Plan, Asked], left_out: Collection[str]) -> Iterator[CompressionRow]:
        """One for each method, gamma and point; each smaller index goes when it has been searched."""
        methods = list(self._methods(left_out))
        with tqdm(methods, unit="index", desc=self.name, disable=None) as bar:
            for label, gamma, method, points in bar:
                _load(method)
                with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
                    report = index.recompress(folder, method, show_progress_bar=False)
                    latencies = self._latencies(report, method, index.depths)
                    with Index.open(folder, encoder=self.encoder) as smaller:
                        for point in points:
                            answers = ask(self.benchmark, smaller, point), full[point]
                            latency = latencies.get(point.depth)
                            what = label, gamma, to_record(method)
                            yield row_of(self.benchmark, smaller, what, point, answers, latency=latency)

    def _methods(self, left_out: Collection[str]) -> Iterator[tuple[str, float, Method, Sequence[Plan]]]:
        """Label, gamma, method, and the points to measure it at."""
        points = self.options.points
        if self.name == _SINGLE_STEP:
            for gamma in self.options.gammas:
                yield SINGLE_STEP, gamma, AnchorFold(gamma=gamma, steps=1, refinements=0), points
            return
        for label, of_gamma in _ALL.items():
            if label not in left_out:
                for gamma in self.options.gammas:
                    yield label, gamma, of_gamma(gamma), points
        if DOC_PRUNER not in left_out:
            # A threshold keeps the share asked for at the depth that it was calibrated at.
            for depth, seen in self._from_global().items():
                of_depth = [point for point in points if point.depth == depth]
                for gamma in self.options.gammas:
                    yield DOC_PRUNER, gamma, DocPruner.at_ratio(gamma, seen), of_depth

    def _from_global(self) -> dict[int, list[Scores]]:
        """Depth -> attention of every page's global token, read a few pages at a time."""
        with _reading(self.path) as store:
            found: dict[int, list[Scores]] = {depth: [] for depth in store.settings.depths}
            snapshot = store.snapshot()
            addresses = snapshot.matching()
            for start in range(0, len(addresses), _READ_PAGES):
                for row in snapshot.page_rows(addresses[start : start + _READ_PAGES]):
                    for depth, scores in found.items():
                        scores.append(row.signals[depth].from_global)
        return found

    def _latencies(self, report: RecompressReport, method: Method, depths: Sequence[int]) -> dict[int, Latency]:
        """By depth; none where the full index was there before, so that nobody saw what its pages cost."""
        ids = report.page_ids
        asks = bool(attention_for(method, self.encoder.manifest, depths))
        encode = self.encoder.milliseconds(ids, attention=asks)
        full = self.encoder.milliseconds(ids, attention=False)
        if encode is None or full is None:
            return {}
        compress = {depth: 1e3 * report.page_seconds[depth] for depth in depths}
        total, readers = encode + sum(compress.values()), self.encoder.readers(ids)
        return {depth: Latency.of(own, total, full, readers) for depth, own in compress.items()}


def _most_supplied(
    attempts: Mapping[_Pass, Sequence[str]], depths: Sequence[int], left_out: dict[str, str]
) -> tuple[_Pass, Index]:
    """The first pass that the bundle supplies, and its index; adds what needs those before it to `left_out`.

    attempts: a pass -> labels of the methods that cannot do without it. The last one keeps no signals.
    """
    *with_signals, last = attempts
    for grid in with_signals:
        try:
            return grid, grid.full_index(depths, signals=True)
        except CompressionError as error:
            left_out |= dict.fromkeys(attempts[grid], str(error))
    return last, last.full_index(depths, signals=False)


def _load(method: Method) -> None:
    """Imports what a method needs, which no page is to pay for."""
    one = np.ones(4, np.float32)
    method.compress(Signals(np.eye(4, dtype=np.float32), one, one, one))


def _needs_calibration(method: Method) -> bool:
    try:
        method.asks(None, 1)
    except CompressionError:
        return True
    return False


def _reading(path: Path) -> Store:
    return Store.open(path, read_only=True)
