"""The arithmetic of size: what holds whatever the constants are, and that real indexes are near it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from budgetvdr import Budget, Index, estimate
from budgetvdr.budget import CANDIDATES
from budgetvdr.bundle import load_manifest
from budgetvdr.compress import Pooling
from budgetvdr.encoders import Encoder
from budgetvdr.encoders.open import bundled_folder
from budgetvdr.errors import BudgetError, BundleError, QueryError
from budgetvdr.estimate import _lists_bytes
from budgetvdr.store import PageRow

MANIFEST = load_manifest(bundled_folder())


def fill(index: Index, *, pages: int, vectors: int) -> None:
    """Pages of random vectors at depth 2, in two commits."""
    rng = np.random.default_rng(1)
    for half in range(2):
        index._store.upsert(
            [
                PageRow(
                    doc_id=str(half),
                    page_num=number,
                    regions=rng.random((vectors, 4), np.float32),
                    vectors={2: rng.standard_normal((vectors, index.dims[-1]), np.float32)},
                    text="words " * 300,
                )
                for number in range(1, pages // 2 + 1)
            ]
        )


def test_more_pages_cost_more_and_narrower_budgets_less() -> None:
    small, large = (estimate(pages, memory_limit="1TB") for pages in (1_000, 100_000))
    assert small.path == large.path == "scan"
    assert large.disk_bytes == pytest.approx(100 * small.disk_bytes, rel=0.01)
    assert large.memory_bytes == pytest.approx(100 * small.memory_bytes, rel=0.01)
    assert large.query_ms > 20 * small.query_ms
    narrow = estimate(100_000, Budget(dim=32), memory_limit="1TB")
    assert narrow.memory_bytes < large.memory_bytes * 1.5 * 32 / MANIFEST.dims[-1]
    assert narrow.query_ms < large.query_ms / 2


def test_what_does_not_fit_is_read_from_disk() -> None:
    assert estimate(100_000, memory_limit="1GB").path == "stream"
    proposed = estimate(1_000_000, "fast", memory_limit="1GB")
    assert proposed.path == "proposed"
    assert proposed.pages_scored == CANDIDATES * max(1, 64 // MANIFEST.presets["fast"].dim) ** 2
    assert estimate(1_000, "fast").pages_scored == 1_000, "no first stage in a small index"


def test_disk_is_near_that_of_a_real_index(tmp_path: Path, encoder: Encoder) -> None:
    with Index.open(tmp_path / "index", encoder=encoder, depths=[2]) as index:
        fill(index, pages=32, vectors=300)
        expected = estimate(32, vectors_per_page=300, depths=[2])
        assert index.info().current_bytes == pytest.approx(expected.disk_bytes, rel=0.1)


@pytest.mark.parametrize("budget", [Budget(), Budget(dim=32)])
def test_memory_is_near_that_of_a_real_index(tmp_path: Path, encoder: Encoder, budget: Budget) -> None:
    with Index.open(tmp_path / "index", encoder=encoder, depths=[2]) as index:
        fill(index, pages=400, vectors=100)
        index.search("anything", budget=budget)
        copies = index.info().resident_bytes
        expected = estimate(400, budget, vectors_per_page=100, depths=[2])
        assert copies == pytest.approx(expected.memory_bytes, rel=0.05)
        index.optimize(first_stage=True)
        index.search("anything", budget=Budget(dim=budget.dim, candidates=50))
        lists = index.info().resident_bytes - copies
        dim = budget.dim or index.dims[-1]
        # Vectors without topics, of which a page has each in another list.
        assert lists == pytest.approx(_lists_bytes(400, 40_000, dim), rel=0.15)


def test_compression_saves_vectors_and_keeps_regions(tmp_path: Path, encoder: Encoder) -> None:
    full, small = (estimate(100_000, gamma=gamma, memory_limit="1TB") for gamma in (1.0, 0.2))
    assert full == estimate(100_000, memory_limit="1TB")
    assert small.memory_bytes == pytest.approx(full.memory_bytes / 5, rel=0.05)
    assert small.query_ms < full.query_ms / 3
    with Index.open(tmp_path / "full", encoder=encoder, depths=[2]) as index:
        fill(index, pages=32, vectors=900)
        index.recompress(tmp_path / "small", Pooling(gamma=0.2))
    with Index.open(tmp_path / "small", encoder=encoder) as index:
        expected = estimate(32, vectors_per_page=900, gamma=0.2, depths=[2])
        assert index.info().current_bytes == pytest.approx(expected.disk_bytes, rel=0.1)


def test_only_some_depths_can_be_stored() -> None:
    all_depths, one = estimate(1_000), estimate(1_000, depths=[6])
    assert one.disk_bytes < all_depths.disk_bytes / 2.8
    assert one.query_ms == all_depths.query_ms
    # Named budgets are served at the depth there is.
    assert estimate(1_000, "fast", depths=[2]).query_ms < estimate(1_000, "fast", depths=[6]).query_ms


def test_the_tables_of_the_guide_are_this_arithmetic() -> None:
    root = Path(__file__).parents[1]
    table = subprocess.run(
        [sys.executable, root / "tests/bench/scale_table.py"], capture_output=True, text=True, check=True
    ).stdout
    assert table.count("\n") > 10
    assert table in (root / "docs/scale.md").read_text(encoding="utf-8")


def test_refuses_what_it_cannot_estimate() -> None:
    with pytest.raises(QueryError, match="pages must be"):
        estimate(0)
    with pytest.raises(BudgetError, match="dim 5"):
        estimate(10, Budget(dim=5))
    with pytest.raises(BudgetError, match=r"depths must be a list of some of \[2, 4, 6\].*found \[3\]"):
        estimate(10, depths=[3])
    with pytest.raises(BudgetError, match="depth 6 is not"):
        estimate(10, Budget(depth=6), depths=[2])
    with pytest.raises(BundleError, match="does not exist"):
        estimate(10, encoder="nowhere")
    for wrong in (0, -1.0, float("nan"), float("inf"), True, "420"):
        with pytest.raises(ValueError, match="vectors_per_page must be a number above 0"):
            estimate(10, vectors_per_page=wrong)  # type: ignore[arg-type]
    for share in (0, 1.5, float("nan"), True, "half"):
        with pytest.raises(ValueError, match="gamma must be a share above 0"):
            estimate(10, gamma=share)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected bytes"):
        estimate(10, memory_limit="lots")
    with pytest.raises(ValueError, match="threads must be"):
        estimate(10, threads=0)
