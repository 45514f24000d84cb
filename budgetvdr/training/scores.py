"""Late-interaction scores of a batch, with gradients (MM-Matryoshka, Eq. 3 and 4).

The runtime computes the same numbers without torch in `budgetvdr.similarity.maxsim`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# 256 MB of similarities at a time. Past that, page blocks are computed again in the backward pass instead of kept.
_MOST_SIMILARITIES = 1 << 26


@dataclass(frozen=True, slots=True, eq=False)
class TokenStates:
    """What a model says about a batch of B queries or pages, each with up to T tokens.

    exits: depth -> (B, T, D), the projected token vectors of that exit, not normalised.
    mask: (B, T) bool, True where a token counts; every row has at least one.
    """

    exits: dict[int, Tensor]
    mask: Tensor


def prefix(vectors: Tensor, dim: int) -> Tensor:
    """(..., D) -> (..., dim) float32: the first components, scaled to unit length (Eq. 3)."""
    return F.normalize(vectors[..., :dim].float(), dim=-1)


def maxsim(queries: Tensor, query_mask: Tensor, pages: Tensor, page_mask: Tensor) -> Tensor:
    """(Bq, Bp) scores: mean over a query's tokens of the best similarity with a token of the page (Eq. 4).

    queries (Bq, Tq, d) and pages (Bp, Tp, d) are taken as they are; masks are (Bq, Tq) and (Bp, Tp) bool. Padding of
    a page never wins, not even against negative similarities, and padding of a query does not count.

    Only the winners are scored with gradients: the similarities of all pairs of tokens are never kept.
    """
    size = max(1, _MOST_SIMILARITIES // (queries.shape[0] * queries.shape[1] * pages.shape[1]))
    blocks = list(zip(torch.split(pages, size), torch.split(page_mask, size), strict=True))
    if len(blocks) == 1:
        return _block(queries, query_mask, pages, page_mask)
    scores = [checkpoint(_block, queries, query_mask, *block, use_reentrant=False) for block in blocks]
    return torch.cat(scores, dim=1)


def score_grid(
    queries: TokenStates,
    pages: TokenStates,
    pairs: Iterable[tuple[int, int]],
    dims: Iterable[int],
    *,
    unit_queries: bool = True,
) -> dict[tuple[int, int, int], Tensor]:
    """(query depth, page depth, dim) -> (Bq, Bp) scores, for all `pairs` of depths and all `dims`.

    unit_queries: False where the length of a query vector is its token's weight; its prefix is then cut and not
    scaled, which is what the runtime does for such a bundle.
    """
    grid = {}
    widths = tuple(dims)
    for query_depth, page_depth in pairs:
        query, page = queries.exits[query_depth], pages.exits[page_depth]
        for dim in widths:
            cut = prefix(query, dim) if unit_queries else query[..., :dim].float()
            grid[query_depth, page_depth, dim] = maxsim(cut, queries.mask, prefix(page, dim), pages.mask)
    return grid


def _block(queries: Tensor, query_mask: Tensor, pages: Tensor, page_mask: Tensor) -> Tensor:
    flat, longest = pages.flatten(0, 1), pages.shape[1]
    with torch.no_grad():
        similarities = queries.flatten(0, 1) @ flat.T
        similarities = similarities.view(*queries.shape[:2], *pages.shape[:2])
        best, winners = similarities.masked_fill_(~page_mask, -torch.inf).max(dim=-1)
    if torch.is_grad_enabled():
        rows = winners + longest * torch.arange(pages.shape[0], device=pages.device)
        best = (flat[rows] @ queries[..., None]).squeeze(-1)
    counts = query_mask.sum(dim=1, keepdim=True)
    return (best * query_mask[..., None]).sum(dim=1) / counts
