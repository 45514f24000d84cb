"""Products in blocks that BLAS leaves on one thread."""

from __future__ import annotations

import numpy as np
import pytest

from budgetvdr.compress.products import products


@pytest.mark.parametrize(
    ("rows", "others", "dim"),
    [(0, 0, 4), (0, 5, 4), (5, 0, 4), (1, 1, 1), (23, 24, 384), (24, 25, 384), (100, 7, 3072), (3, 40, 300_000)],
)
def test_blocks_give_the_whole_product(rows: int, others: int, dim: int) -> None:
    random = np.random.default_rng(0)
    left, right = (random.standard_normal((count, dim)).astype(np.float32) for count in (rows, others))
    found = products(left, right)
    assert found.shape == (rows, others) and found.dtype == np.float32
    np.testing.assert_allclose(found, left.astype(float) @ right.T.astype(float), atol=1e-5 * dim**0.5, rtol=1e-4)


@pytest.mark.parametrize("dim", [1, 128, 384, 3072, 200_000])
def test_no_block_is_one_that_openblas_spreads_over_threads(dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, sizes = np.matmul, []

    def noted(left: np.ndarray, right: np.ndarray, out: np.ndarray) -> np.ndarray:
        sizes.append(left.shape[-2] * left.shape[-1] * right.shape[-1])
        return whole(left, right, out=out)

    monkeypatch.setattr(np, "matmul", noted)
    rows = np.ones((70, dim), np.float32)
    assert products(rows, rows[:60]).tolist() == np.full((70, 60), dim).tolist()
    assert sizes and max(sizes) <= 2**18
