"""The arithmetic of size: what holds whatever the constants are, and that real indexes are near it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from budgetvdr import Budget, Index, estimate
from budgetvdr.encoders import Encoder
from budgetvdr.errors import BudgetError, QueryError
from budgetvdr.store import PageRow


def test_more_pages_cost_more_and_narrower_budgets_less() -> None:
    small, large = (estimate(pages, memory_limit="1TB") for pages in (1_000, 100_000))
    assert small.path == large.path == "scan"
    assert large.disk_bytes == pytest.approx(100 * small.disk_bytes, rel=0.01)
    assert large.memory_bytes == pytest.approx(100 * small.memory_bytes, rel=0.01)
    assert large.query_ms > 20 * small.query_ms
    narrow = estimate(100_000, Budget(dim=32), memory_limit="1TB")
    assert narrow.memory_bytes < large.memory_bytes / 8
    assert narrow.query_ms < large.query_ms / 3


def test_what_does_not_fit_is_read_from_disk() -> None:
    assert estimate(100_000, memory_limit="1GB").path == "stream"
    proposed = estimate(1_000_000, "fast", memory_limit="1GB")
    assert proposed.path == "proposed"
    assert proposed.pages_scored == 2048
    assert estimate(1_000, "fast").pages_scored == 1_000, "no first stage in a small index"


def test_disk_is_near_that_of_a_real_index(tmp_path: Path, encoder: Encoder) -> None:
    rng = np.random.default_rng(1)
    with Index.open(tmp_path / "index", encoder=encoder, depths=[2]) as index:
        for batch in range(2):
            index._store.upsert(
                [
                    PageRow(
                        doc_id=str(batch),
                        page_num=number,
                        regions=rng.random((300, 4), np.float32),
                        vectors={2: rng.standard_normal((300, index.dims[-1]), np.float32)},
                        text="words " * 300,
                    )
                    for number in range(1, 17)
                ]
            )
        expected = estimate(32, vectors_per_page=300, stored_depths=1)
        assert index.info().current_bytes == pytest.approx(expected.disk_bytes, rel=0.1)


def test_refuses_what_it_cannot_estimate() -> None:
    with pytest.raises(QueryError, match="pages must be"):
        estimate(0)
    with pytest.raises(BudgetError, match="dim 5"):
        estimate(10, Budget(dim=5))
