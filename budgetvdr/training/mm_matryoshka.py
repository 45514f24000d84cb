"""The MM-Matryoshka objective: one model that retrieves at every (depth, prefix width) (paper sections 3.2 to 3.4).

Two losses over in-batch score matrices: cross entropy at the last depth for every prefix, so that narrow vectors are
useful; and distillation of the last depth's scores into the shallower depths, so that early exits are. Two more are
ours and off by default: one lets a shallow query search pages of the last depth, the other keeps tokens near where a
frozen model has them (`token_distillation`), where the pairs trained on are fewer or poorer than those it has seen.

What the paper leaves open, and how it is read here:

- alpha (Eq. 5), the weight of each depth and lambda (Eq. 7) are 1; the distillation temperature is 0.1.
- Eq. 5 shows no temperature. Means of cosines lie so close together that without one nearly nothing is learned; the
  default is 0.02, and 1 is the equation as printed.
- "Without the dimension loss" trains the full width alone, in both losses: the paper says that narrow scores then
  come from truncation only.
- KL is averaged over the queries of the batch, as the cross entropy is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from budgetvdr.training.errors import TrainingError
from budgetvdr.training.scores import TokenStates, score_grid
from budgetvdr.training.token_distillation import TaughtStates, token_distillation

Grid = Mapping[tuple[int, int, int], Tensor]
"""(query depth, page depth, dim) -> (Bq, Bp) scores."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What is trained, and how much of it.

    depths: exits, ascending; the last one teaches the others. dims: prefix widths, ascending; the last is full width.
    alpha: dim -> weight of its prefix loss, 1 where left out. depth_weights: depth -> weight of its distillation, 1
    where left out. distil: lambda of Eq. 7. cross_depth: the same for (shallow query, last-depth page).
    teacher: weight of the distillation of a frozen model's tokens into all of these pairs of depths. temperature: of
    the prefix loss. distil_temperature: of both distillations of scores. teacher_temperature: of that of tokens.

    Raises TrainingError where depths or dims are not ascending positive numbers, where a weight names a depth or dim
    that is not trained, where a temperature is not positive, or where shallow queries are trained and shallow pages are
    not: an exit that is trained searches its own pages.
    """

    depths: tuple[int, ...]
    dims: tuple[int, ...] = (32, 64, 128)
    alpha: Mapping[int, float] = field(default_factory=dict)
    depth_weights: Mapping[int, float] = field(default_factory=dict)
    distil: float = 1.0
    cross_depth: float = 0.0
    teacher: float = 0.0
    temperature: float = 0.02
    distil_temperature: float = 0.1
    teacher_temperature: float = 0.05

    def __post_init__(self) -> None:
        for what, values in (("depths", self.depths), ("dims", self.dims)):
            if not values or list(values) != sorted(set(values)) or values[0] < 1:
                raise TrainingError(f"{what} must be ascending positive numbers, found {values}")
        for what, weights, allowed in (
            ("alpha", self.alpha, self.dims),
            ("depth_weights", self.depth_weights, self.shallow),
        ):
            if not set(weights) <= set(allowed):
                raise TrainingError(f"{what} has weights for {sorted(weights)}, expected some of {list(allowed)}")
        temperatures = (self.temperature, self.distil_temperature, self.teacher_temperature)
        if min(temperatures) <= 0:
            raise TrainingError(f"temperatures must be above 0, found {temperatures}")
        if self.shallow and self.cross_depth and not self.distil:
            raise TrainingError(f"cross_depth {self.cross_depth} needs distil above 0, found {self.distil}")

    @property
    def shallow(self) -> tuple[int, ...]:
        """The depths that learn from the last one: S of Eq. 7."""
        return self.depths[:-1]

    @property
    def depth_pairs(self) -> tuple[tuple[int, int], ...]:
        """The (query depth, page depth) pairs whose scores the loss needs."""
        last = self.depths[-1]
        equal = [(depth, depth) for depth in self.shallow] if self.distil else []
        crossed = [(depth, last) for depth in self.shallow] if self.cross_depth else []
        return ((last, last), *equal, *crossed)

    def without_dim_loss(self) -> Objective:
        """The paper's ablation: full width only."""
        last = self.dims[-1]
        return replace(self, dims=(last,), alpha={dim: weight for dim, weight in self.alpha.items() if dim == last})

    def without_layer_loss(self) -> Objective:
        """The paper's ablation: the last depth only is trained; the others learn what they share with it."""
        return replace(self, distil=0.0, cross_depth=0.0)


def biased_weights(values: Sequence[int], towards: Literal["lower", "upper"]) -> dict[int, float]:
    """Weights with mean 1 that rise in equal steps towards the lower or the upper end: 0.5, 1, 1.5 for three values.

    The paper sweeps such weights for dims and depths (section 4.3.2) without giving numbers; these are ours.
    """
    ordered = sorted(values, reverse=towards == "lower")
    return {value: 2 * rank / (len(ordered) + 1) for rank, value in enumerate(ordered, start=1)}


@dataclass(frozen=True, slots=True, eq=False)
class Losses:
    """The terms of one batch, scalars: `total` is what is minimised, the others are in it with their weights."""

    total: Tensor
    prefix: Tensor
    distil: Tensor
    cross_depth: Tensor
    teacher: Tensor


def batch_losses(
    objective: Objective,
    queries: TokenStates,
    pages: TokenStates,
    targets: Tensor,
    *,
    unit_queries: bool = True,
    taught: TaughtStates | None = None,
) -> Losses:
    """The objective for one batch.

    targets: (Bq,) for every query the row of its page. Pages beyond those are further negatives. taught: the frozen
    model's states of the same queries and pages, where the objective has a weight for it.

    Raises TrainingError where the objective has a weight for a teacher and its states are not given.
    """
    grid = score_grid(queries, pages, objective.depth_pairs, objective.dims, unit_queries=unit_queries)
    losses = grid_losses(objective, grid, targets)
    if not objective.teacher:
        return losses
    if taught is None:
        raise TrainingError("the objective has a weight for a teacher: expected its states, found none")
    term = token_distillation(
        queries, pages, taught, objective.depth_pairs, objective.dims, temperature=objective.teacher_temperature
    )
    return replace(losses, total=losses.total + objective.teacher * term, teacher=term)


def grid_losses(objective: Objective, grid: Grid, targets: Tensor) -> Losses:
    """The objective (Eq. 7), without a teacher, from the score matrices of `objective.depth_pairs` and all dims."""
    last = objective.depths[-1]
    ranking = prefix_loss({dim: grid[last, last, dim] for dim in objective.dims}, targets, objective)
    zero = ranking.new_zeros(())
    equal = distillation(grid, [(d, d) for d in objective.shallow], objective) if objective.distil else zero
    crossed = distillation(grid, [(d, last) for d in objective.shallow], objective) if objective.cross_depth else zero
    total = ranking + objective.distil * equal + objective.cross_depth * crossed
    return Losses(total, ranking, equal, crossed, zero)


def prefix_loss(scores: Mapping[int, Tensor], targets: Tensor, objective: Objective) -> Tensor:
    """Weighted sum over the prefixes of the in-batch cross entropy (Eq. 5).

    scores: dim -> (Bq, Bp) of the last depth.
    """
    terms = [
        objective.alpha.get(dim, 1.0) * F.cross_entropy(matrix / objective.temperature, targets)
        for dim, matrix in scores.items()
    ]
    return sum(terms[1:], terms[0])


def distillation(grid: Grid, students: Sequence[tuple[int, int]], objective: Objective) -> Tensor:
    """Average over the students' depth pairs and all dims of `score_divergence` from the last depth (Eq. 7).

    Zero where there is no student.
    """
    last = objective.depths[-1]
    total = grid[last, last, objective.dims[-1]].new_zeros(())
    for pair in students:
        for dim in objective.dims:
            divergence = score_divergence(grid[*pair, dim], grid[last, last, dim], objective.distil_temperature)
            total = total + objective.depth_weights.get(pair[0], 1.0) * divergence
    return total / max(1, len(students) * len(objective.dims))


def score_divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL(softmax(teacher / T) || softmax(student / T)) over each query's pages, averaged over queries (Eq. 6).

    student, teacher: (Bq, Bp). No gradient reaches the teacher.
    """
    expected = F.log_softmax(teacher.detach() / temperature, dim=-1)
    found = F.log_softmax(student / temperature, dim=-1)
    return F.kl_div(found, expected, log_target=True, reduction="batchmean")
