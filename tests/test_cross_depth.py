"""Shallow queries on the pages of a deeper exit, in a real index of a bundle that was made for them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny_bert
from conftest import MakePdf

from budgetvdr import Budget, Index, estimate
from budgetvdr.bundle import MANIFEST_NAME
from budgetvdr.cli import main
from budgetvdr.compress import Pooling
from budgetvdr.encoders.reader import ReaderEncoder
from budgetvdr.errors import BudgetError
from budgetvdr.evaluate import Benchmark, BenchmarkQuery, grid_points, run_benchmark

TEXTS = ("the board signs off all capital spending", "fish swim in cold water", "capital page of the board", "a limit")
QUERY = "cold water fish"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Depths 1, 2 and 3; queries of depth 1 search pages of depth 3 too."""
    folder = tmp_path_factory.mktemp("crossed")
    made = tiny_bert.write_bundle(
        folder / "bundle", tiny_bert.write_model(folder / "model"), query_depths={3: (1, 3)}, trained_exits=(1, 3)
    )
    path = made / MANIFEST_NAME
    manifest = json.loads(path.read_text())
    manifest["presets"]["fast"]["depth"] = 1
    path.write_text(json.dumps(manifest))
    return made


@pytest.fixture(scope="module")
def encoder(bundle: Path) -> ReaderEncoder:
    return ReaderEncoder(bundle, threads=1)


@pytest.fixture
def deep(tmp_path: Path, make_pdf: MakePdf, encoder: ReaderEncoder) -> Path:
    """An index that stores depth 3 alone."""
    with Index.open(tmp_path / "deep.bvdr", encoder=encoder, depths=[3]) as index:
        index.add_pages(make_pdf("pages.pdf", *TEXTS), show_progress_bar=False)
    return tmp_path / "deep.bvdr"


def definition(index: Index, encoder: ReaderEncoder, depth: int, page_depth: int, dim: int) -> dict[str, float]:
    """Page -> score of QUERY (Eq. 3 and 4), from stored vectors, in float64."""
    query = _unit(encoder.encode_query(QUERY, depth).vectors[:, :dim])
    scores = {}
    for number in range(1, len(TEXTS) + 1):
        found = index._store.snapshot().page_vectors(f"pages.pdf#{number}", page_depth, dim)
        assert found is not None
        scores[f"pages.pdf#{number}"] = float((query @ _unit(found[0][:, :dim]).T).max(axis=1).mean())
    return scores


def _unit(rows: np.ndarray) -> np.ndarray:
    rows = rows.astype(np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("memory_limit", [1 << 30, 0])
@pytest.mark.parametrize("dim", [8, tiny_bert.HIDDEN])
def test_pages_of_one_depth_answer_queries_of_those_trained_for_it(
    deep: Path, encoder: ReaderEncoder, memory_limit: int, dim: int
) -> None:
    with Index.open(deep, encoder=encoder, memory_limit=memory_limit) as index:
        assert (index.depths, index.query_depths) == ((3,), {3: (1, 3)})
        for depth in (1, 3):
            hits = index.search(QUERY, budget=Budget(depth=depth, dim=dim))
            expected = definition(index, encoder, depth, 3, dim)
            assert {hit.id: hit.score for hit in hits} == pytest.approx(expected, abs=1e-5)
            assert [hit.id for hit in hits] == sorted(expected, key=lambda page: -expected[page])
            assert {(hit.budget.depth, hit.budget.page_depth) for hit in hits} == {(depth, 3)}
            assert hits[0].to_dict()["budget"]["page_depth"] == 3
            assert hits[0].explain().score == pytest.approx(hits[0].score, abs=1e-5)
        with pytest.raises(BudgetError, match=r"depth 2 is not in this index.*expected one of \[1, 3\]"):
            index.search(QUERY, budget=Budget(depth=2))
        with pytest.raises(BudgetError, match=r"depth 2 were not trained to search pages of depth 3: .*\[1, 3\]"):
            index.search(QUERY, budget=Budget(depth=2, page_depth=3))
        tried = index.search(QUERY, budget=Budget(depth=2, page_depth=3, dim=dim, strict=False))
        assert {hit.id: hit.score for hit in tried} == pytest.approx(definition(index, encoder, 2, 3, dim), abs=1e-5)


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        (Budget(depth=9, strict=False), r"exits at .1, 2, 3., asked for .*9"),
        (Budget(depth=9, page_depth=3, strict=False), r"exits at .1, 2, 3., asked for .*9"),
        # A width lies where stored columns end; there is nothing to try elsewhere.
        (Budget(dim=20, strict=False), r"dim 20 is not a width of this bundle: expected one of \[8, 16, 32\]"),
    ],
)
def test_what_a_bundle_cannot_do_is_refused_strict_or_not_and_not_estimated(
    deep: Path, bundle: Path, encoder: ReaderEncoder, budget: Budget, says: str
) -> None:
    with Index.open(deep, encoder=encoder) as index, pytest.raises(BudgetError, match=says):
        index.search(QUERY, budget=budget)
    with pytest.raises(BudgetError, match=says):
        estimate(10, budget, encoder=bundle, depths=[3])


def test_an_untrained_pair_is_estimated_where_it_would_be_searched(bundle: Path) -> None:
    with pytest.raises(BudgetError, match="depth 2 is not in this index"):
        estimate(10, Budget(depth=2), encoder=bundle, depths=[3])
    tried = estimate(10, Budget(depth=2, strict=False), encoder=bundle, depths=[3])
    assert tried.query_ms < estimate(10, encoder=bundle, depths=[3]).query_ms


def test_a_first_stage_proposes_for_every_query_depth(deep: Path, encoder: ReaderEncoder) -> None:
    with Index.open(deep, encoder=encoder) as index:
        index.optimize(first_stage=True)
        for depth in (1, 3):
            budget = Budget(depth=depth, candidates=2)
            (hit,) = index.search(QUERY, 1, budget=budget)
            assert hit.budget.pages == 2 and hit.budget.page_depth == 3
            report = index.check_recall(2, budget=budget, k=1)
            assert (report.depth, report.page_depth) == (depth, 3)
            assert index.info().recall == report


def test_where_its_own_pages_are_stored_a_query_searches_those(
    tmp_path: Path, make_pdf: MakePdf, encoder: ReaderEncoder
) -> None:
    with Index.open(tmp_path / "all.bvdr", encoder=encoder) as index:
        index.add_pages(make_pdf("pages.pdf", *TEXTS), show_progress_bar=False)
        for budget, depths in (
            (Budget(depth=1), (1, 1)),
            (Budget(depth=1, page_depth=3), (1, 3)),
            (Budget(page_depth=2), (2, 2)),
            ("fast", (1, 1)),
            ("full", (3, 3)),
        ):
            hits = index.search(QUERY, budget=budget)
            spent = hits[0].budget
            assert (spent.depth, spent.page_depth) == depths
            expected = definition(index, encoder, *depths, spent.dim)
            assert {hit.id: hit.score for hit in hits} == pytest.approx(expected, abs=1e-5)


def test_named_budgets_and_estimates_take_the_shallow_query(deep: Path, bundle: Path, encoder: ReaderEncoder) -> None:
    with Index.open(deep, encoder=encoder) as index:
        assert index.presets["fast"].depth == 1
        assert index.info().query_depths == {3: (1, 3)}
        spent = index.search(QUERY, budget="fast")[0].budget
        assert (spent.depth, spent.page_depth, spent.dim) == (1, 3, 16)
    shallow, full = (
        estimate(1000, Budget(depth=depth), encoder=bundle, depths=[3], memory_limit="1TB") for depth in (1, 3)
    )
    assert shallow.query_ms < full.query_ms and shallow.disk_bytes == full.disk_bytes


def test_compressed_pages_answer_them_too(deep: Path, tmp_path: Path, encoder: ReaderEncoder) -> None:
    with Index.open(deep, encoder=encoder) as index:
        index.recompress(tmp_path / "small.bvdr", Pooling(gamma=0.5), show_progress_bar=False)
    with Index.open(tmp_path / "small.bvdr", encoder=encoder) as index:
        hits = index.search(QUERY, budget=Budget(depth=1))
        expected = definition(index, encoder, 1, 3, tiny_bert.HIDDEN)
        assert {hit.id: hit.score for hit in hits} == pytest.approx(expected, abs=1e-5)
        assert hits[0].explain().score == pytest.approx(hits[0].score, abs=1e-5)


def test_evaluation_has_rows_for_the_pairs(deep: Path, encoder: ReaderEncoder) -> None:
    query = BenchmarkQuery("q", QUERY, None, {("pages.pdf", 2): 1})
    benchmark = Benchmark("tiny", deep.parent, ("pages.pdf",), (query,), ())
    with Index.open(deep, encoder=encoder) as index:
        rows = run_benchmark(benchmark, index, points=grid_points(index)).as_dict()["rows"]
    assert isinstance(rows, list)
    found = [(row["depth"], row["page_depth"], row["dim"]) for row in rows]
    assert found == [(3, 3, 32), (3, 3, 16), (3, 3, 8), (1, 3, 32), (1, 3, 16), (1, 3, 8)]


def test_evaluating_another_bundle(deep: Path, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = deep.parent / "set"
    (folder / "pdfs").mkdir(parents=True)
    (folder / "pdfs" / "pages.pdf").write_bytes((deep.parent / "pages.pdf").read_bytes())
    (folder / "queries.jsonl").write_text(json.dumps({"id": "q", "text": QUERY}))
    (folder / "qrels.tsv").write_text("query\tdoc\tpage_num\trelevance\nq\tpages.pdf\t2\t1")
    command = ["eval", str(folder), "--encoder", str(bundle), "--json"]
    assert main([*command, "--grid", "--depths", "3"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {(row["depth"], row["page_depth"]) for row in rows} == {(3, 3), (1, 3)}
    assert main([*command, "--compression-grid", "--gammas", "0.5", "--dims", "16"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {(row["depth"], row["dim"]) for row in rows} == {(3, 16)}


def test_the_command_line(deep: Path, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of_index = [str(deep), "--encoder", str(bundle)]
    assert main(["search", *of_index, QUERY, "--point", "1,16,3"]) == 0
    assert "depth 1 on pages of depth 3, dim 16" in capsys.readouterr().out
    assert main(["search", *of_index, QUERY, "--point", "1,16", "--json"]) == 0
    spent = json.loads(capsys.readouterr().out)[0]["budget"]
    assert (spent["depth"], spent["page_depth"]) == (1, 3)
    assert main(["search", *of_index, QUERY, "--point", "2,16,3"]) == 2
    assert "not trained to search pages of depth 3" in capsys.readouterr().err
    assert main(["info", *of_index]) == 0
    assert "searched by  pages of 3 by queries of 1, 3" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["search", *of_index, QUERY, "--point", "1,16,3,4"])
    assert "DEPTH,DIM,PAGE_DEPTH" in capsys.readouterr().err
