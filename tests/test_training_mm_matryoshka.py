"""The objective: each term by hand and against a slow loop, the switches, and where gradients go."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from budgetvdr.training.errors import TrainingError
from budgetvdr.training.mm_matryoshka import (
    Objective,
    batch_losses,
    biased_weights,
    distillation,
    grid_losses,
    prefix_loss,
    score_divergence,
)
from budgetvdr.training.scores import TokenStates, score_grid
from budgetvdr.training.token_distillation import TaughtStates, token_distillation

# Threads cost more than they save on tensors this small, most of all on a busy machine.
torch.set_num_threads(1)

OBJECTIVE = Objective(depths=(2, 4, 6), dims=(2, 4, 8), temperature=0.5, distil_temperature=0.3)


def random_grid(
    objective: Objective, *, seed: int = 0, queries: int = 3, pages: int = 5
) -> dict[tuple[int, int, int], Tensor]:
    random = torch.Generator().manual_seed(seed)
    keys = [(*pair, dim) for pair in objective.depth_pairs for dim in objective.dims]
    return {key: torch.randn(3, 5, generator=random, requires_grad=True) for key in keys}


def softmax(row: list[float], temperature: float) -> list[float]:
    exponents = [math.exp(value / temperature) for value in row]
    return [value / sum(exponents) for value in exponents]


def slow_cross_entropy(scores: Tensor, targets: list[int], temperature: float) -> float:
    rows = scores.tolist()
    return -sum(math.log(softmax(row, temperature)[target]) for row, target in zip(rows, targets, strict=True)) / len(
        rows
    )


def slow_divergence(student: Tensor, teacher: Tensor, temperature: float) -> float:
    total = 0.0
    for found, expected in zip(student.tolist(), teacher.tolist(), strict=True):
        p, q = softmax(expected, temperature), softmax(found, temperature)
        total += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    return total / len(student)


def test_prefix_loss_by_hand() -> None:
    # Both queries give their page ln 3 more than the other page: probability 3/4; at dim 4 both are equal: 1/2.
    objective = Objective(depths=(1,), dims=(2, 4), alpha={2: 2.0}, temperature=1.0)
    scores = {2: torch.eye(2) * math.log(3), 4: torch.zeros(2, 2)}
    expected = 2 * -math.log(3 / 4) + -math.log(1 / 2)
    assert prefix_loss(scores, torch.tensor([0, 1]), objective).item() == pytest.approx(expected)


def test_divergence_by_hand() -> None:
    # Teacher (3/4, 1/4), student (1/2, 1/2): 3/4 ln 3/2 + 1/4 ln 1/2; the temperature halves the logits' distance.
    teacher, student = torch.tensor([[2 * math.log(3), 0.0]]), torch.zeros(1, 2)
    expected = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert score_divergence(student, teacher, 2.0).item() == pytest.approx(expected)
    assert score_divergence(teacher, teacher, 2.0).item() == pytest.approx(0.0, abs=1e-7)


def test_all_terms_equal_a_slow_loop() -> None:
    objective = replace(OBJECTIVE, alpha={2: 0.5, 8: 3.0}, depth_weights={2: 2.0}, distil=0.7, cross_depth=0.2)
    grid, targets = random_grid(objective), [4, 0, 2]
    losses = grid_losses(objective, grid, torch.tensor(targets))
    alpha = {2: 0.5, 4: 1.0, 8: 3.0}
    ranking = sum(alpha[dim] * slow_cross_entropy(grid[6, 6, dim], targets, 0.5) for dim in (2, 4, 8))
    weights = {2: 2.0, 4: 1.0}

    def average(page_depth: int | None) -> float:
        terms = [
            weights[depth] * slow_divergence(grid[depth, page_depth or depth, dim], grid[6, 6, dim], 0.3)
            for depth in (2, 4)
            for dim in (2, 4, 8)
        ]
        return sum(terms) / 6

    assert losses.prefix.item() == pytest.approx(ranking, rel=1e-5)
    assert losses.distil.item() == pytest.approx(average(None), rel=1e-5)
    assert losses.cross_depth.item() == pytest.approx(average(6), rel=1e-5)
    assert losses.total.item() == pytest.approx(ranking + 0.7 * average(None) + 0.2 * average(6), rel=1e-5)


def test_a_teacher_adds_its_term() -> None:
    objective = replace(OBJECTIVE, teacher=0.4, cross_depth=1.0, teacher_temperature=0.2)
    queries, pages = random_states(1), random_states(2)
    taught = TaughtStates(only(6, random_states(3)), only(6, random_states(4)))
    losses = batch_losses(objective, queries, pages, torch.arange(3), taught=taught)
    term = token_distillation(queries, pages, taught, objective.depth_pairs, objective.dims, temperature=0.2)
    untaught = batch_losses(replace(objective, teacher=0.0), queries, pages, torch.arange(3))
    assert losses.teacher.item() == pytest.approx(term.item())
    assert losses.total.item() == pytest.approx(untaught.total.item() + 0.4 * term.item(), rel=1e-5)
    with pytest.raises(TrainingError, match="teacher"):
        batch_losses(objective, queries, pages, torch.arange(3))


def only(depth: int, states: TokenStates) -> TokenStates:
    return TokenStates({depth: states.exits[depth]}, states.mask)


def test_no_gradient_reaches_the_teacher() -> None:
    objective = replace(OBJECTIVE, cross_depth=1.0)
    grid = random_grid(objective)
    students = [(2, 2), (4, 4), (2, 6), (4, 6)]
    distillation(grid, students, objective).backward()
    for key, matrix in grid.items():
        assert (matrix.grad is None) == (key[:2] == (6, 6)), key


def test_prefix_loss_trains_the_last_depth_only() -> None:
    objective = OBJECTIVE.without_layer_loss()
    assert objective.depth_pairs == ((6, 6),)
    queries, pages = random_states(1), random_states(2)
    losses = batch_losses(objective, queries, pages, torch.arange(3))
    losses.total.backward()
    assert losses.distil.item() == losses.cross_depth.item() == 0
    assert losses.total.item() == losses.prefix.item()
    assert {depth for depth, state in queries.exits.items() if state.grad is not None} == {6}


def test_without_the_dim_loss_only_the_full_width_counts() -> None:
    objective = replace(OBJECTIVE, alpha={2: 0.1, 8: 2.0}).without_dim_loss()
    assert objective.dims == (8,)
    assert objective.alpha == {8: 2.0}
    queries, pages = random_states(1), random_states(2)
    losses = batch_losses(objective, queries, pages, torch.arange(3))
    wide = grid_losses(
        objective, {key: value for key, value in grid_of(queries, pages).items() if key[2] == 8}, torch.arange(3)
    )
    assert losses.total.item() == pytest.approx(wide.total.item())


def grid_of(queries: TokenStates, pages: TokenStates) -> dict[tuple[int, int, int], Tensor]:
    return score_grid(queries, pages, OBJECTIVE.depth_pairs, OBJECTIVE.dims)


def random_states(seed: int) -> TokenStates:
    random = torch.Generator().manual_seed(seed)
    exits = {depth: torch.randn(3, 4, 8, generator=random, requires_grad=True) for depth in (2, 4, 6)}
    return TokenStates(exits, torch.ones(3, 4).bool())


def test_one_depth_has_nothing_to_distil() -> None:
    objective = Objective(depths=(3,), dims=(8,), cross_depth=1.0)
    grid = random_grid(objective)
    losses = grid_losses(objective, grid, torch.arange(3))
    assert losses.total.item() == losses.prefix.item()
    assert losses.distil.item() == 0


def test_training_brings_every_depth_to_the_pairs() -> None:
    queries, pages = random_states(3), random_states(4)
    parameters = [*queries.exits.values(), *pages.exits.values()]
    optimizer = torch.optim.Adam(parameters, lr=0.2)
    objective = replace(OBJECTIVE, cross_depth=1.0)
    for _ in range(30):
        optimizer.zero_grad()
        batch_losses(objective, queries, pages, torch.arange(3)).total.backward()
        optimizer.step()
    grid = grid_of(queries, pages)
    assert all((matrix.argmax(dim=1) == torch.arange(3)).all() for matrix in grid.values())


def test_biased_weights_have_mean_one() -> None:
    assert biased_weights((32, 64, 128), "upper") == {32: 0.5, 64: 1.0, 128: 1.5}
    assert biased_weights((32, 64, 128), "lower") == {128: 0.5, 64: 1.0, 32: 1.5}
    assert sum(biased_weights((2, 4, 9, 14), "upper").values()) == pytest.approx(4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"depths": ()},
        {"depths": (6, 4)},
        {"dims": (0, 8)},
        {"alpha": {16: 1.0}},
        {"depth_weights": {6: 1.0}},
        {"temperature": 0.0},
        {"distil_temperature": -1.0},
        {"distil": 0.0, "cross_depth": 1.0},
    ],
)
def test_contradicting_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(TrainingError):
        replace(OBJECTIVE, **wrong)  # type: ignore[arg-type]
