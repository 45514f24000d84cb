"""Comparing compression methods: the arithmetic by hand, and one small set from end to end."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from conftest import pdf_bytes
from test_compression_index import Silent
from test_recompress import Recalibrated

from budgetvdr import Index, Page
from budgetvdr.budget import Plan
from budgetvdr.bundle import Manifest, Window, load_manifest
from budgetvdr.cli import main
from budgetvdr.compress.calibrate import standard_error
from budgetvdr.compression_answers import Answer, ask, mean_score_ratio
from budgetvdr.compression_grid import GridOptions, run_compression_grid
from budgetvdr.encoders import Encoder
from budgetvdr.encoders.open import bundled_folder
from budgetvdr.errors import BenchmarkError, BudgetError, BudgetVDRError, MissingExtraError
from budgetvdr.evaluate import Benchmark, BenchmarkQuery, load_benchmark, score_run
from budgetvdr.evaluate.compression import (
    ABLATIONS,
    DOC_PRUNER,
    FULL,
    METHODS,
    SINGLE_STEP,
    CompressionReport,
    CompressionRow,
    Latency,
)
from budgetvdr.evaluate.metrics import ndcg_by_question
from budgetvdr.evaluate.plot import pareto_svg
from budgetvdr.evaluate.timing import TimedEncoder
from budgetvdr.pages import EncodedPage, EncodedQuery, ReadMode

WIDTH = load_manifest(bundled_folder()).dims[-1]


def row(method: str, gamma: float, vectors: float, *ndcg: float, latency: Latency | None = None) -> CompressionRow:
    return CompressionRow(method, gamma, {}, 6, 64, vectors, np.array(ndcg), 0.8, 0.9, latency)


ROWS = (
    row(FULL, 1.0, 100, 1, 0.6),
    row("A", 0.5, 50, 0.9, 0.6),
    row("A", 0.1, 10, 0.5, 0.3),
    row("B", 0.5, 40, 0.5, 0.6),
    row("B", 0.1, 10, 0.7, 0.1),
)
REPORT = CompressionReport("set", 2, 7, ROWS)


def test_the_gap_to_the_best_is_paired() -> None:
    assert REPORT.gap_to_best(ROWS[1]) == (0, 0)
    # Differences 0.4 and 0: mean 0.2, sample deviation 0.4 / sqrt(2), error of two pairs 0.2.
    assert REPORT.gap_to_best(ROWS[3]) == pytest.approx((0.2, 0.2))
    assert REPORT.gap_to_best(ROWS[2]) == (0, 0), "of equal ones the first"
    # Differences -0.2 and 0.2.
    assert REPORT.gap_to_best(ROWS[4]) == pytest.approx((0.0, 0.2))
    assert standard_error(np.array([3.0])) == 0
    assert standard_error(np.array([1.0, 2.0, 3.0])) == pytest.approx(1 / math.sqrt(3))


def test_retention_and_bytes() -> None:
    assert ROWS[1].retention == pytest.approx(0.75 / 0.8)
    assert ROWS[1].bytes_per_page == 50 * 64 * 2


def test_the_frontier_is_what_nothing_beats() -> None:
    # 10 vectors: A and B both at 0.4; 40: B at 0.55; 50: A at 0.75; 100: full at 0.8.
    assert [(each.method, each.gamma) for each in REPORT.frontier()] == [
        ("A", 0.1), ("B", 0.5), ("A", 0.5), (FULL, 1.0)
    ]  # fmt: skip


def test_latency_by_hand() -> None:
    compress, total, full = (np.array(values, np.float64) for values in ([1, 2, 3], [11, 22, 36], [10, 20, 30]))
    found = Latency.of(compress, total, full, ["ocr", "text_layer", "ocr"])
    assert found.compress_ms == 2
    assert found.total_ms == pytest.approx((11 + 22 + 36) / 3)
    assert found.total_sd == pytest.approx(np.std([11, 22, 36], ddof=1))
    assert found.total_p95 == pytest.approx(22 + 0.9 * 14)
    assert found.ratio == pytest.approx(69 / 60)
    assert found.ratios == pytest.approx({"ocr": 47 / 40, "text_layer": 1.1})


def test_the_tables_name_every_method_and_gamma() -> None:
    latency = Latency.of(np.array([1.0]), np.array([11.0]), np.array([10.0]), ["ocr"])
    rows = [*ROWS[:4], row("B", 0.1, 10, 0.7, 0.1, latency=latency)]
    text = "\n".join(CompressionReport("set", 2, 7, tuple(rows)).lines())
    assert "set: 2 questions, 7 pages" in text
    assert "depth 6, dim 64; full index: nDCG@5 0.8000, 12800 bytes/page" in text
    assert "0.7500  93.8% 0.0000+-0.0000" in text
    assert "0.5500  68.8% 0.2000+-0.2000" in text
    assert "at gamma 0.1" in text
    assert "1.100  ocr 1.100" in text
    as_json = REPORT.as_dict()
    assert json.loads(json.dumps(as_json)) == as_json
    found = as_json["rows"]
    assert isinstance(found, list)
    assert [each["pareto"] for each in found] == [True, True, True, True, False]
    assert {"method", "gamma", "ndcg@5", "retention", "bytes_per_page", "compress_ms", "index_ratio"} <= set(found[0])
    assert found[0]["compress_ms"] is None


def test_the_picture_is_svg_with_a_dot_for_every_row() -> None:
    risky = row("<&>", 0.2, 20, 0.5, 0.5)
    root = ElementTree.fromstring(pareto_svg(CompressionReport("a < b", 2, 7, (*ROWS, risky))))
    titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == len(ROWS) + 1
    assert "<&>, gamma 0.2, depth 6, dim 64: 0.5000" in titles
    (line,) = root.iter("{http://www.w3.org/2000/svg}polyline")
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    assert points == sorted(points), "more bytes to the right"
    assert [y for _, y in points] == sorted((y for _, y in points), reverse=True), "better is higher"


def test_ndcg_of_each_question_averages_to_that_of_the_run() -> None:
    qrels = {"a": {("d", 1): 2, ("d", 2): 1}, "b": {("d", 3): 1}, "c": {("d", 4): 1}}
    run = {"a": [("d", 2), ("d", 1)], "b": [("d", 9), ("d", 3)]}
    found = ndcg_by_question(qrels, run)
    assert list(found) == ["a", "b", "c"]
    assert found["b"] == pytest.approx(1 / math.log2(3))
    assert found["c"] == 0
    assert sum(found.values()) / 3 == pytest.approx(score_run(qrels, run).ndcg_5)
    with pytest.raises(ValueError, match="at least one question"):
        ndcg_by_question({}, {})


def test_ndcg_by_question_needs_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ir_measures", None)
    with pytest.raises(MissingExtraError):
        ndcg_by_question({"a": {("d", 1): 1}}, {})


def test_score_ratio_looks_at_answer_pages_that_both_found() -> None:
    queries = (
        BenchmarkQuery("q", "?", None, {("d", 1): 1, ("d", 2): 0, ("d", 3): 1, ("d", 4): 2}),
        BenchmarkQuery("r", "?", None, {("d", 1): 1}),
    )
    benchmark = Benchmark("set", Path("pdfs"), ("d",), queries)
    small = {"q": answer({("d", 1): 0.4, ("d", 2): 0.1, ("d", 4): 0.5}), "r": answer({("d", 1): 0.3})}
    full = {"q": answer({("d", page): 0.5 for page in (1, 2, 3, 4)}), "r": answer({("d", 1): -0.1})}
    assert mean_score_ratio(benchmark, small, full) == pytest.approx((0.8 + 1.0) / 2)
    assert mean_score_ratio(benchmark, {"q": answer({}), "r": answer({})}, full) is None


def answer(scores: dict[tuple[str, int], float]) -> Answer:
    return Answer(tuple(scores), scores)


def test_answer_pages_that_are_not_found_have_a_score_and_no_rank(encoder: Encoder, tmp_path: Path) -> None:
    pages = ("Fish is served on Fridays.", *(f"Trains leave at {hour}." for hour in range(1, 8)))
    (tmp_path / "long.pdf").write_bytes(pdf_bytes(pages))
    (tmp_path / "short.pdf").write_bytes(pdf_bytes(("Hotels are paid.",)))
    relevant = {("long.pdf", 1): 2, ("short.pdf", 1): 1}
    queries = (
        BenchmarkQuery("far", "When do trains leave?", None, relevant),
        BenchmarkQuery("elsewhere", "Who pays?", "short.pdf", relevant),
    )
    benchmark = Benchmark("set", tmp_path, ("long.pdf", "short.pdf"), queries)
    with Index.open(tmp_path / "index", encoder=encoder) as index:
        index.add_pages(tmp_path, read="text_layer", show_progress_bar=False)
        found = ask(benchmark, index, Plan(6, WIDTH))
        every = {(hit.doc_id, hit.page_num): hit.score for hit in index.search(queries[0].text, k=100)}
    assert found["far"].ranked == tuple(every)[:5] and set(found["elsewhere"].ranked) == {("short.pdf", 1)}
    assert found["far"].scores == pytest.approx({page: every[page] for page in {*tuple(every)[:5], *relevant}})
    assert set(found["elsewhere"].scores) == set(relevant)


class Clock:
    """An encoder whose pages take known times: attention doubles what the model takes."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest

    def encode_pages(
        self,
        pages: Sequence[Page],
        depths: Sequence[int],
        *,
        attention: Mapping[int, Window] | None = None,
        on_page: Callable[[], object] | None = None,
    ) -> list[EncodedPage | BudgetVDRError]:
        empty = {depth: np.zeros((0, WIDTH), np.float32) for depth in depths}
        seconds = {"render": 0.25, "transformer": 0.2 if attention else 0.1}
        return [
            BudgetVDRError("torn") if page.page_num == 3 else
            EncodedPage(empty, np.zeros((0, 4), np.float32), "", page.read, seconds=seconds)
            for page in pages
        ]  # fmt: skip

    def encode_query(self, text: str, depth: int) -> EncodedQuery:
        raise NotImplementedError


@pytest.mark.parametrize("read", ["text_layer", "ocr"])
def test_pages_are_timed_with_and_without_attention(encoder: Encoder, read: ReadMode) -> None:
    windows = {6: Window(5, 5)}
    timed = TimedEncoder(Clock(encoder.manifest), windows)
    assert timed.manifest.compression == windows
    assert timed.manifest.fingerprint == encoder.manifest.fingerprint
    found = timed.encode_pages([Page("d", number, read=read) for number in (1, 2, 3)], [6], attention=windows)
    assert [isinstance(page, EncodedPage) for page in found] == [True, True, False]
    with_it, without = (timed.milliseconds(["d#1", "d#2"], attention=flag) for flag in (True, False))
    assert with_it is not None and without is not None
    np.testing.assert_allclose(with_it, [450, 450])
    np.testing.assert_allclose(without, [350, 350])
    assert timed.readers(["d#1", "d#3"]) == [read, ""]
    assert timed.milliseconds(["d#3"], attention=True) is None


@pytest.fixture
def small_set(tmp_path: Path) -> Path:
    folder = tmp_path / "set"
    (folder / "pdfs").mkdir(parents=True)
    pages = (
        "Annual leave is thirty days.\nUnused days expire in March.",
        "Travel is booked by the office.\nTrains before planes.\nHotels are paid up to a hundred euros.",
        "The canteen opens at noon.\nFish is served on Fridays.",
    )
    (folder / "pdfs" / "rules.pdf").write_bytes(pdf_bytes(pages))
    asked = ("How many days of leave?", "Who books travel?", "When is fish served?")
    queries = [json.dumps({"id": str(number), "text": text}) for number, text in enumerate(asked)]
    (folder / "queries.jsonl").write_text("\n".join(queries))
    lines = [f"{number}\trules.pdf\t{number + 1}\t1" for number in range(3)]
    (folder / "qrels.tsv").write_text("\n".join(["query\tdoc\tpage_num\trelevance", *lines]))
    return folder


def test_every_method_is_tried_from_the_same_vectors(small_set: Path, encoder: Encoder, tmp_path: Path) -> None:
    benchmark, kept = load_benchmark(small_set), tmp_path / "kept"
    points = (Plan(6, WIDTH), Plan(2, 32))
    options = GridOptions(points, gammas=(0.5,), folder=kept)
    report = run_compression_grid(benchmark, encoder, options)
    methods = [*METHODS, DOC_PRUNER, *ABLATIONS, SINGLE_STEP]
    assert [(each.method, each.gamma) for each in report.rows] == 2 * [(FULL, 1.0), *((name, 0.5) for name in methods)]
    assert (report.queries, report.pages) == (3, 3)
    full, narrow = (
        next(each for each in report.rows if each.method == FULL and each.dim == dim) for dim in (WIDTH, 32)
    )
    assert full.ndcg_5 == full.retention == full.sr == 1
    assert narrow.bytes_per_page == full.bytes_per_page * 32 // WIDTH
    for each in report.rows:
        assert 0 <= each.ndcg_5 <= 1
        assert each.latency is not None
        if each.method == FULL:
            assert each.vectors == full.vectors
        else:
            assert 0 < each.vectors <= 0.5 * full.vectors + 1
        assert (each.latency.compress_ms > 0) == (each.method != FULL)
    count = 1 + len(methods)
    for deep, shallow in zip(report.rows[:count], report.rows[count:], strict=True):
        assert deep.method == shallow.method and deep.latency is not None and shallow.latency is not None
        # Compressing takes its own time at each depth, indexing the time of both; DocPruner's threshold is its depth's.
        if deep.method == DOC_PRUNER:
            continue
        assert deep.latency.total_ms == shallow.latency.total_ms
        assert deep.latency.compress_ms + shallow.latency.compress_ms < deep.latency.total_ms
        assert (deep.latency.compress_ms != shallow.latency.compress_ms) == (deep.method != FULL)
    # Once more from what was kept: the same quality, and no times, as nothing was encoded.
    again = run_compression_grid(benchmark, encoder, options)
    assert [each.ndcg.tolist() for each in again.rows] == [each.ndcg.tolist() for each in report.rows]
    assert all(each.latency is None for each in again.rows)
    assert "no times: the pages had been encoded before" in list(again.lines())
    assert sorted(path.name for path in kept.iterdir()) == ["calibrated.bvdr", "single-step.bvdr"]
    # What a row was measured with can be asked for by name, DocPruner's threshold too, which is another at each depth.
    thresholds = {each.depth: each.settings["threshold"] for each in again.rows if each.method == DOC_PRUNER}
    assert thresholds[6] != thresholds[2]
    assert all((each.settings == {}) == (each.method == FULL) for each in again.rows)


def test_kept_indexes_are_refused_where_they_are_not_of_the_set_or_the_calibration(
    small_set: Path, encoder: Encoder, tmp_path: Path
) -> None:
    benchmark, kept = load_benchmark(small_set), tmp_path / "kept"
    options = GridOptions((Plan(6, WIDTH),), gammas=(0.5,), folder=kept)
    run_compression_grid(benchmark, encoder, options)
    pages = len(Index.open(kept / "calibrated.bvdr", encoder=encoder))
    with pytest.raises(BenchmarkError, match=r"calibrated to .* since; choose another --index"):
        run_compression_grid(benchmark, Recalibrated(encoder, {6: Window(2, 3, 4)}), options)
    (small_set / "pdfs" / "rules.pdf").write_bytes(pdf_bytes(("Another text.",) * 3))
    moved = load_benchmark(small_set.rename(tmp_path / "moved"))
    with pytest.raises(BenchmarkError, match=r"was not made of .*moved/pdfs; choose another .*already stands"):
        run_compression_grid(moved, encoder, options)
    (tmp_path / "moved" / "pdfs" / "rules.pdf").rename(tmp_path / "moved" / "pdfs" / "others.pdf")
    others = replace(moved, documents=("others.pdf",))
    with pytest.raises(BenchmarkError, match=r"holds 1 documents that are not in .*, such as 'rules.pdf'"):
        run_compression_grid(others, encoder, options)
    with pytest.raises(BenchmarkError, match="is an index: expected a folder"):
        run_compression_grid(benchmark, encoder, replace(options, folder=kept / "calibrated.bvdr"))
    # Nothing has been added by any of these.
    assert len(Index.open(kept / "calibrated.bvdr", encoder=encoder)) == pages == 3


@pytest.mark.parametrize("calibrated", [{6: Window(2, 3, 4)}, {}], ids=["partly", "not"])
def test_what_cannot_be_tried_is_left_out_and_the_rest_compared(
    small_set: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch, calibrated: dict[int, Window]
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    options = GridOptions((Plan(6, WIDTH), Plan(2, 32)), gammas=(0.5,))
    report = run_compression_grid(load_benchmark(small_set), Recalibrated(encoder, calibrated), options)
    tried = [FULL, "WardFold", "WardPooling", "Pooling", "RandomSelection", DOC_PRUNER]
    assert [each.method for each in report.rows] == 2 * tried
    assert set(report.left_out) == {*METHODS, *ABLATIONS, SINGLE_STEP} - set(tried)
    assert "needs scikit-learn" in report.left_out["Clustering"]
    assert "this bundle has none at depth 2; run `budgetvdr calibrate" in report.left_out["StructuralPruning"]
    assert report.as_dict()["left_out"] == report.left_out
    lines = [line for line in report.lines() if line.startswith("left out: ")]
    assert len(lines) == 2 and lines[0].startswith("left out: Clustering. Clustering needs")
    assert "StructuralPruning; AnchorFold; " in lines[1] and SINGLE_STEP in lines[1]


def test_a_bundle_that_tells_nothing_of_its_attention(small_set: Path, encoder: Encoder) -> None:
    options = GridOptions((Plan(6, WIDTH),), gammas=(0.5,))
    report = run_compression_grid(load_benchmark(small_set), Silent(encoder), options)
    assert {each.method for each in report.rows} == {
        FULL,
        "WardFold",
        "WardPooling",
        "Clustering",
        "Pooling",
        "RandomSelection",
    }
    assert report.left_out[DOC_PRUNER] == report.left_out["AnchorFold"] == "this one tells nothing of its attention"


def test_a_point_the_bundle_lacks_is_refused_before_anything_is_read(small_set: Path, encoder: Encoder) -> None:
    with pytest.raises(BudgetError, match="dim 5"):
        run_compression_grid(load_benchmark(small_set), encoder, GridOptions((Plan(6, 5),)))


def test_the_command_prints_one_object_and_draws(
    small_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "plot.svg"
    command = ["eval", str(small_set), "--compression-grid", "--gammas", "0.5", "--json", "--plot", str(plot)]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert {each["method"] for each in json.loads(printed.out)["rows"]} > set(METHODS)
    assert "full index: nDCG@5 1.0000" in printed.err
    assert plot.read_text().startswith("<svg")
    assert main([*command[:-1], str(tmp_path / "missing" / "plot.svg")]) == 2
    assert "does not exist" in capsys.readouterr().err
    (tmp_path / "folder.svg").mkdir()
    for wrong, says in (("folder.svg", "a file that can be written"), ("plot.txt", "ending in .svg")):
        assert main([*command[:-1], str(tmp_path / wrong)]) == 2
        assert says in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*command[:3], "--gammas", "1.5"])
