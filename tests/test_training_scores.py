"""Eq. 3 and 4 with gradients: hand-computed cases, slow loops, and the runtime's own numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from budgetvdr.similarity.maxsim import unit_prefix
from budgetvdr.training import scores
from budgetvdr.training.scores import TokenStates, maxsim, prefix, score_grid

# Threads cost more than they save on tensors this small, most of all on a busy machine.
torch.set_num_threads(1)


def states(batch: int, longest: int, width: int, *, seed: int, depths: tuple[int, ...] = (2, 4)) -> TokenStates:
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (batch,), generator=random)
    mask = torch.arange(longest) < lengths[:, None]
    exits = {depth: torch.randn(batch, longest, width, generator=random, requires_grad=True) for depth in depths}
    return TokenStates(exits, mask)


def slow_score(query: Tensor, query_mask: Tensor, page: Tensor, page_mask: Tensor) -> Tensor:
    best = [
        torch.stack([query[i] @ page[j] for j in range(len(page)) if page_mask[j]]).max()
        for i in range(len(query))
        if query_mask[i]
    ]
    return torch.stack(best).mean()


def test_a_prefix_is_cut_and_scaled() -> None:
    assert prefix(torch.tensor([[3.0, 4.0, 12.0]]), 2).tolist() == [[pytest.approx(0.6), pytest.approx(0.8)]]
    vectors = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(prefix(vectors, 4).numpy(), unit_prefix(vectors.numpy(), 4), atol=1e-6)


def test_a_score_by_hand() -> None:
    # Token one: 0.6 against 0.8, token two: 0.8 against 0.6; the third token is padding. (0.8 + 0.8) / 2.
    queries = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [9.0, 9.0]]])
    pages = torch.tensor([[[0.6, 0.8], [0.8, 0.6], [9.0, 9.0]]])
    mask = torch.tensor([[True, True, False]])
    assert maxsim(queries, mask, pages, mask).item() == pytest.approx(0.8)


def test_padding_never_wins_against_negative_similarities() -> None:
    queries = torch.tensor([[[1.0, 0.0]]])
    pages = torch.tensor([[[-1.0, 0.0], [0.0, 0.0]]])
    assert maxsim(queries, torch.ones(1, 1).bool(), pages, torch.tensor([[True, False]])).item() == -1.0


@pytest.mark.parametrize("most", [1, 200, 1 << 26])
def test_blocks_of_pages_change_neither_scores_nor_gradients(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(scores, "_MOST_SIMILARITIES", most)
    queries, pages = states(4, 5, 8, seed=1), states(6, 9, 8, seed=2)
    query, page = queries.exits[2], pages.exits[2]
    found = maxsim(query, queries.mask, page, pages.mask)
    rows = [
        torch.stack([slow_score(query[i], queries.mask[i], page[j], pages.mask[j]) for j in range(6)]) for i in range(4)
    ]
    expected = torch.stack(rows)
    torch.testing.assert_close(found, expected)
    with torch.no_grad():
        torch.testing.assert_close(maxsim(query, queries.mask, page, pages.mask), expected)
    weights = torch.randn(4, 6, generator=torch.Generator().manual_seed(3))
    ours = torch.autograd.grad((found * weights).sum(), [query, page])
    theirs = torch.autograd.grad((expected * weights).sum(), [query, page])
    torch.testing.assert_close(ours, theirs)


def test_the_grid_holds_every_pair_and_width() -> None:
    queries, pages = states(3, 4, 8, seed=4), states(5, 6, 8, seed=5)
    grid = score_grid(queries, pages, [(4, 4), (2, 4)], [2, 8])
    assert set(grid) == {(4, 4, 2), (4, 4, 8), (2, 4, 2), (2, 4, 8)}
    for (query_depth, page_depth, dim), matrix in grid.items():
        query, page = prefix(queries.exits[query_depth], dim), prefix(pages.exits[page_depth], dim)
        expected = slow_score(query[1], queries.mask[1], page[4], pages.mask[4])
        torch.testing.assert_close(matrix[1, 4], expected)
        assert matrix.abs().max() <= 1 + 1e-6


def test_the_length_of_a_query_vector_is_its_weight() -> None:
    direction = torch.tensor([[[0.6, 0.8], [0.8, -0.6]]])
    weights = torch.tensor([[[3.0], [0.5]]])
    mask, page = torch.ones(1, 2).bool(), TokenStates({1: torch.tensor([[[5.0, 0.0]]])}, torch.ones(1, 1).bool())
    grid = score_grid(TokenStates({1: direction * weights}, mask), page, [(1, 1)], [1, 2], unit_queries=False)
    # 3 * 0.6 and 0.5 * 0.8, at both widths: the page lies along the first component.
    assert [grid[1, 1, dim].item() for dim in (1, 2)] == [pytest.approx(1.1), pytest.approx(1.1)]
    scaled = score_grid(TokenStates({1: direction * weights}, mask), page, [(1, 1)], [1, 2])
    assert [scaled[1, 1, dim].item() for dim in (1, 2)] == [pytest.approx(1.0), pytest.approx(0.7)]


def test_scores_are_float32_whatever_the_vectors_are() -> None:
    queries, pages = states(2, 3, 4, seed=6), states(2, 3, 4, seed=7)
    half = TokenStates({2: queries.exits[2].bfloat16()}, queries.mask)
    matrix = score_grid(half, pages, [(2, 2)], [4])[2, 2, 4]
    assert matrix.dtype == torch.float32
    assert math.isfinite(matrix.sum().item())
