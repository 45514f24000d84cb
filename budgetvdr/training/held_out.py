"""How well a model retrieves pairs it was not trained on, at every point of the grid."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from budgetvdr.training.caching import encoded
from budgetvdr.training.errors import TrainingDataError
from budgetvdr.training.models.model import Content, Role
from budgetvdr.training.pairs import TrainingSet, answers
from budgetvdr.training.scores import TokenStates, score_grid

_BATCH = 32
_CUTOFF = 5


def evaluate_pairs(
    encode: Callable[[Sequence[Content], Role], TokenStates],
    held_out: TrainingSet,
    depth_pairs: Iterable[tuple[int, int]],
    dims: Iterable[int],
    *,
    unit_queries: bool = True,
    chunk: int | None = None,
) -> dict[str, float]:
    """ "query depth/page depth/dim" -> mean nDCG@5 of the queries among all pages of the held-out pairs.

    One page is right for a query, so that nDCG@5 is 1 / log2(1 + rank), and 0 from rank 6 on. Other versions of the
    right page (`Pair.original`) do not count. Pages of equal score count as ranked before the right one.
    chunk: contents encoded at a time, 32 at most.
    """
    if not held_out.pairs:
        raise TrainingDataError("there are no held-out pairs to evaluate on")
    answer = answers(held_out.pairs)
    pages, size = sorted(answer), min(_BATCH, chunk or _BATCH)
    rows = {page: row for row, page in enumerate(pages)}
    with torch.no_grad():
        queries = [pair.query for pair in held_out.pairs]
        query_states = encoded(lambda part: encode(part, "query"), queries, size)
        page_states = encoded(lambda part: encode([held_out.load(str(page)) for page in part], "page"), pages, size)
        grid = score_grid(query_states, page_states, depth_pairs, dims, unit_queries=unit_queries)
    targets = torch.tensor([rows[pair.page] for pair in held_out.pairs])
    versions = torch.tensor([[answer[page] == pair.answer for page in pages] for pair in held_out.pairs])
    versions.scatter_(1, targets[:, None], False)
    return {
        f"{query}/{page}/{dim}": _ndcg(matrix.cpu(), targets, versions) for (query, page, dim), matrix in grid.items()
    }


def _ndcg(scores: torch.Tensor, targets: torch.Tensor, left_out: torch.Tensor) -> float:
    right = scores.gather(1, targets[:, None])
    # The right page itself is among those counted, so that ranks begin at 1.
    ranks = (~(scores < right) & ~left_out).sum(dim=1)
    gains = torch.where(ranks <= _CUTOFF, 1 / torch.log2(1.0 + ranks), torch.zeros(()))
    return gains.mean().item()
