"""Token distillation: by hand, against a slow loop, and where its gradients go."""

from __future__ import annotations

import math

import pytest
import torch

from budgetvdr.training.errors import TrainingError
from budgetvdr.training.scores import TokenStates
from budgetvdr.training.token_distillation import TaughtStates, token_distillation

torch.set_num_threads(1)


def states(seed: int, depths: tuple[int, ...], tokens: int, width: int, lengths: tuple[int, ...]) -> TokenStates:
    random = torch.Generator().manual_seed(seed)
    exits = {depth: torch.randn(len(lengths), tokens, width, generator=random, requires_grad=True) for depth in depths}
    return TokenStates(exits, torch.arange(tokens) < torch.tensor(lengths)[:, None])


def test_by_hand() -> None:
    # The teacher's cosines with the two page tokens are 1 and 0, the student's are equal: with T = 1 / ln 3 the
    # teacher says (3/4, 1/4) and the student (1/2, 1/2).
    one = torch.ones(1, 1, dtype=torch.bool)
    two = torch.ones(1, 2, dtype=torch.bool)
    taught = TaughtStates(
        TokenStates({6: torch.tensor([[[2.0, 0.0]]])}, one),
        TokenStates({6: torch.tensor([[[5.0, 0.0], [0.0, 1.0]]])}, two),
    )
    queries = TokenStates({2: torch.tensor([[[1.0]]])}, one)
    pages = TokenStates({2: torch.tensor([[[3.0], [1.0]]])}, two)
    found = token_distillation(queries, pages, taught, [(2, 2)], [1], temperature=1 / math.log(3))
    assert found.item() == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))


def test_equals_a_slow_loop() -> None:
    queries, pages = states(1, (2, 6), 4, 8, (4, 2)), states(2, (2, 6), 5, 8, (3, 5, 1))
    taught = TaughtStates(states(3, (9,), 4, 12, (4, 2)), states(4, (9,), 5, 12, (3, 5, 1)))
    pairs, dims = [(6, 6), (2, 6)], [4, 8]
    found = token_distillation(queries, pages, taught, pairs, dims, temperature=0.3)

    def tokens(of: TokenStates, depth: int, dim: int) -> list[list[float]]:
        rows = of.exits[depth][..., :dim].double()
        return [
            (rows[b, t] / rows[b, t].norm()).tolist() for b in range(len(rows)) for t in range(int(of.mask[b].sum()))
        ]

    def nearness(token: list[float], answering: list[list[float]]) -> list[float]:
        exponents = [math.exp(sum(a * b for a, b in zip(token, other, strict=True)) / 0.3) for other in answering]
        return [value / sum(exponents) for value in exponents]

    def divergence(teacher: list[float], student: list[float]) -> float:
        return sum(a * math.log(a / b) for a, b in zip(teacher, student, strict=True))

    # Of each page the first token asks (the next would be the 13th) and finds those of the other pages.
    page_of = [0, 0, 0, 1, 1, 1, 1, 1, 2]
    terms = []
    for asked, answering in pairs:
        for dim in dims:
            mine, its = tokens(queries, asked, dim), tokens(taught.queries, 9, 12)
            answers, known = tokens(pages, answering, dim), tokens(taught.pages, 9, 12)
            for first, last in ((0, 4), (4, 6)):
                of_query = [
                    divergence(nearness(its[at], known), nearness(mine[at], answers)) for at in range(first, last)
                ]
                terms.append(sum(of_query) / len(of_query) / 2)
            asking = tokens(pages, asked, dim)
            for at in (0, 3, 8):
                others = [place for place in range(9) if page_of[place] != page_of[at]]
                q = nearness(asking[at], [answers[place] for place in others])
                p = nearness(known[at], [known[place] for place in others])
                terms.append(divergence(p, q) / 3)
    assert found.item() == pytest.approx(sum(terms) / 8, rel=1e-5)


def test_equal_shares_of_the_queries_average_to_the_whole() -> None:
    queries, pages = states(1, (2,), 4, 8, (4, 2)), states(2, (2,), 5, 8, (3, 5))
    taught = TaughtStates(states(3, (9,), 4, 8, (4, 2)), states(4, (9,), 5, 8, (3, 5)))

    def term(rows: slice) -> float:
        mine, its = (
            TokenStates({depth: vectors[rows] for depth, vectors in of.exits.items()}, of.mask[rows])
            for of in (queries, taught.queries)
        )
        return token_distillation(mine, pages, TaughtStates(its, taught.pages), [(2, 2)], [8], temperature=0.3).item()

    assert (term(slice(0, 1)) + term(slice(1, 2))) / 2 == pytest.approx(term(slice(0, 2)))


def test_gradients_reach_the_student_alone_and_no_padding() -> None:
    queries, pages = states(1, (2,), 4, 8, (4, 2)), states(2, (2,), 5, 8, (3, 5))
    taught = TaughtStates(states(3, (9,), 4, 8, (4, 2)), states(4, (9,), 5, 8, (3, 5)))
    token_distillation(queries, pages, taught, [(2, 2)], [8], temperature=0.3).backward()
    assert taught.queries.exits[9].grad is None and taught.pages.exits[9].grad is None
    for student in (queries, pages):
        gradient = student.exits[2].grad
        assert gradient is not None
        assert torch.equal(gradient.abs().sum(-1) > 0, student.mask)


def test_pages_ask_each_other_and_not_themselves() -> None:
    # Queries are the teacher's own. Of one page's tokens nothing is asked; of two pages' the first of each asks.
    queries, taught_queries = states(1, (2,), 2, 8, (2,)), states(1, (2,), 2, 8, (2,))
    alone, both = states(2, (2,), 12, 8, (12,)), states(2, (2,), 12, 8, (12, 12))
    assert token_distillation(
        queries, alone, TaughtStates(taught_queries, alone), [(2, 2)], [8], temperature=0.3
    ).item() == pytest.approx(0.0, abs=1e-6)
    other = {2: both.exits[2].detach().clone()}
    # Nearer to another token of its own page: that the token itself asks does not see.
    other[2][0, 0] = 2 * other[2][0, 0]
    found = token_distillation(
        queries, TokenStates(other, both.mask), TaughtStates(taught_queries, both), [(2, 2)], [8], temperature=0.3
    )
    assert found.item() == pytest.approx(0.0, abs=1e-6)
    other[2][0, 0] = -other[2][0, 0]
    found = token_distillation(
        queries, TokenStates(other, both.mask), TaughtStates(taught_queries, both), [(2, 2)], [8], temperature=0.3
    )
    assert found.item() > 0.1


def test_is_zero_for_the_teacher_itself() -> None:
    queries, pages = states(1, (2,), 4, 8, (4, 2)), states(2, (2,), 5, 8, (3, 5))
    found = token_distillation(queries, pages, TaughtStates(queries, pages), [(2, 2)], [8], temperature=0.1)
    assert found.item() == pytest.approx(0.0, abs=1e-6)


def test_a_teacher_with_other_tokens_is_refused() -> None:
    queries, pages = states(1, (2,), 4, 8, (4, 2)), states(2, (2,), 5, 8, (3, 5))
    taught = TaughtStates(states(3, (9,), 4, 8, (4, 3)), states(4, (9,), 5, 8, (3, 5)))
    with pytest.raises(TrainingError, match="same tokens"):
        token_distillation(queries, pages, taught, [(2, 2)], [8], temperature=0.1)
