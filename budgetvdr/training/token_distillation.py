"""Distillation of a frozen model's tokens into every exit and prefix: ours, not in a paper.

In-batch scores say little once every query finds its page; which tokens of all pages a token is nearest to says much in
every batch, whether or not the query is a good question. Tokens of queries ask, and some of each page's, which find
those of other pages: a page is asked in more ways than its query shows. The frozen model may be wider than the student.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from budgetvdr.training.errors import TrainingError
from budgetvdr.training.scores import TokenStates, prefix

_EVERY = 12
# Not infinity: both distributions have it, and their difference must be a number.
_NEVER = -1e4


@dataclass(frozen=True, slots=True, eq=False)
class TaughtStates:
    """What the frozen model says about a batch: states with one exit, of the same tokens as the student's."""

    queries: TokenStates
    pages: TokenStates


def token_distillation(
    queries: TokenStates,
    pages: TokenStates,
    taught: TaughtStates,
    pairs: Sequence[tuple[int, int]],
    dims: Iterable[int],
    *,
    temperature: float,
) -> Tensor:
    """KL(teacher || student) averaged over asking tokens, then over queries and pages, pairs of depths and dims.

    A scalar. Both are distributions over tokens of pages: the softmax of a token's cosines with them, divided by
    `temperature`. The tokens of queries ask all pages; their term is averaged over each query's tokens, then over
    queries, so that a query's weight does not depend on its length and processes with as many queries each may average
    their terms. Every twelfth token of a page asks the other pages; with one page alone there is no such term. Takes
    asking tokens x tokens of pages floats for every pair and dim.

    Raises TrainingError where the teacher has other tokens than the student.
    """
    for student, teacher in ((queries, taught.queries), (pages, taught.pages)):
        if student.mask.shape != teacher.mask.shape or not torch.equal(student.mask, teacher.mask):
            raise TrainingError("a teacher must cut queries and pages into the same tokens as the model it teaches")
    ((_, asked),), ((_, answering),) = taught.queries.exits.items(), taught.pages.exits.items()
    width = asked.shape[-1]
    page_of = pages.mask.nonzero()[:, 0]
    # By its place in its page: whichever process a page is from, the same of its tokens ask.
    places = (pages.mask.cumsum(dim=1) - 1)[pages.mask]
    asks = (places % _EVERY == 0).nonzero()[:, 0]
    own = page_of[asks, None] == page_of
    shares = (queries.mask / (queries.mask.sum(dim=1, keepdim=True) * len(queries.mask)))[queries.mask]
    with torch.no_grad():
        known = _rows(answering, pages, width)
        expected = _log_nearness(_rows(asked, queries, width), known, temperature)
        expected_among = _log_nearness(known[asks], known, temperature, own)
    terms = []
    for dim in dims:
        of_queries = {depth: _rows(queries.exits[depth], queries, dim) for depth in {asking for asking, _ in pairs}}
        of_pages = {
            depth: _rows(pages.exits[depth], pages, dim) for depth in {depth for pair in pairs for depth in pair}
        }
        for asking, answers in pairs:
            found = _log_nearness(of_queries[asking], of_pages[answers], temperature)
            terms.append((_divergences(found, expected) * shares).sum())
            if len(pages.mask) > 1:
                found = _log_nearness(of_pages[asking][asks], of_pages[answers], temperature, own)
                terms.append(_divergences(found, expected_among).mean())
    return torch.stack(terms).mean()


def _rows(vectors: Tensor, states: TokenStates, dim: int) -> Tensor:
    """(tokens that count, dim) of unit length."""
    return prefix(vectors[states.mask], dim)


def _log_nearness(asking: Tensor, answering: Tensor, temperature: float, left_out: Tensor | None = None) -> Tensor:
    nearness = asking @ answering.T / temperature
    if left_out is not None:
        nearness = nearness.masked_fill(left_out, _NEVER)
    return F.log_softmax(nearness, dim=-1)


def _divergences(found: Tensor, expected: Tensor) -> Tensor:
    return F.kl_div(found, expected, log_target=True, reduction="none").sum(dim=-1)
