"""Distillation of a frozen model's tokens into every exit and prefix: ours, not in a paper.

In-batch scores say little once every query finds its page; which tokens of all pages a query's token is nearest to says
much in every batch, whether or not the query is a good question. The frozen model may be wider than the student.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from budgetvdr.training.errors import TrainingError
from budgetvdr.training.scores import TokenStates, prefix


@dataclass(frozen=True, slots=True, eq=False)
class TaughtStates:
    """What the frozen model says about a batch: states with one exit, of the same tokens as the student's."""

    queries: TokenStates
    pages: TokenStates


def token_distillation(
    queries: TokenStates,
    pages: TokenStates,
    taught: TaughtStates,
    pairs: Iterable[tuple[int, int]],
    dims: Iterable[int],
    *,
    temperature: float,
) -> Tensor:
    """KL(teacher || student) averaged over each query's tokens, then over queries, pairs of depths and dims; a scalar.

    A query's weight does not depend on its length, so that processes with as many queries each may average their terms.

    Both are distributions over the tokens of all pages: the softmax of a query token's cosines with them, divided by
    `temperature`. Takes tokens of queries x tokens of pages floats for every pair and dim.

    Raises TrainingError where the teacher has other tokens than the student.
    """
    for student, teacher in ((queries, taught.queries), (pages, taught.pages)):
        if student.mask.shape != teacher.mask.shape or not torch.equal(student.mask, teacher.mask):
            raise TrainingError("a teacher must cut queries and pages into the same tokens as the model it teaches")
    ((_, asked),), ((_, answering),) = taught.queries.exits.items(), taught.pages.exits.items()
    width = asked.shape[-1]
    with torch.no_grad():
        expected = _log_nearness(_rows(asked, queries, width), _rows(answering, pages, width), temperature)
    widths = tuple(dims)
    weights = queries.mask / (queries.mask.sum(dim=1, keepdim=True) * len(queries.mask))
    shares = weights[queries.mask]
    terms = []
    for query_depth, page_depth in pairs:
        for dim in widths:
            asking = _rows(queries.exits[query_depth], queries, dim)
            found = _log_nearness(asking, _rows(pages.exits[page_depth], pages, dim), temperature)
            divergences = F.kl_div(found, expected, log_target=True, reduction="none").sum(dim=-1)
            terms.append((divergences * shares).sum())
    return torch.stack(terms).mean()


def _rows(vectors: Tensor, states: TokenStates, dim: int) -> Tensor:
    """(tokens that count, dim) of unit length."""
    return prefix(vectors[states.mask], dim)


def _log_nearness(asking: Tensor, answering: Tensor, temperature: float) -> Tensor:
    return F.log_softmax(asking @ answering.T / temperature, dim=-1)
