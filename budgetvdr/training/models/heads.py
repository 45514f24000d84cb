"""A start for the heads of published weights that keeps what the plain model can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from budgetvdr.training.models.reader import ReaderModel

Start = Literal["cut", "principal", "aligned"]
_BATCH = 32


def start_heads(model: ReaderModel, pages: Sequence[str], how: Start = "aligned") -> None:
    """Sets the projections from the hidden states of some pages; deterministic.

    how: "cut" takes the first components of each exit's states. "principal" takes, at each exit, the directions with
    most of the states' squared length, the largest first, so that a prefix keeps the most. "aligned" does so at the
    last exit and gives the others the linear map that comes nearest to it from their own states: a shallow query then
    has a chance against deep pages from the first step.
    """
    with torch.no_grad():
        states = _unit_states(model, pages)
        last = model.depths[-1]
        principal = {depth: _principal(rows, model.dim) for depth, rows in states.items()}
        for depth, rows in states.items():
            if how == "cut":
                weight = torch.eye(model.dim, rows.shape[1])
            elif how == "principal" or depth == last:
                weight = principal[depth]
            else:
                weight = _nearest(rows, states[last] @ principal[last].T)
            projection = model.heads().get_submodule(f"{depth}.projection")
            projection.get_parameter("weight").copy_(weight)
            projection.get_parameter("bias").zero_()


def _unit_states(model: ReaderModel, pages: Sequence[str]) -> dict[int, Tensor]:
    """depth -> (tokens, hidden), rows of unit length."""
    found: dict[int, list[Tensor]] = {depth: [] for depth in model.depths}
    for start in range(0, len(pages), _BATCH):
        inputs = model.prepare(pages[start : start + _BATCH], "page")
        states = model.bert(inputs["ids"], inputs["attention"], model.depths)
        for depth, state in states.items():
            found[depth].append(torch.nn.functional.normalize(state[inputs["counts"]].float(), dim=-1))
    return {depth: torch.cat(rows) for depth, rows in found.items()}


def _principal(rows: Tensor, count: int) -> Tensor:
    """(count, hidden): uncentred, since cosines are taken from the origin."""
    _, vectors = torch.linalg.eigh(rows.T @ rows)
    largest: Tensor = vectors.flip(1)[:, :count].T
    return largest


def _nearest(rows: Tensor, targets: Tensor) -> Tensor:
    """(D, hidden): the ridge regression from rows to targets."""
    square = rows.T @ rows
    ridge = 1e-4 * square.diagonal().mean() * torch.eye(len(square))
    weight: Tensor = torch.linalg.solve(square + ridge, rows.T @ targets).T
    return weight
