"""A start for the heads of published weights that keeps what the plain model can do."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from budgetvdr.training.models.reader import ReaderModel

_BATCH = 32


def start_heads(model: ReaderModel, pages: Sequence[str]) -> None:
    """Sets the projections from the hidden states of some pages; deterministic.

    The last exit gives the states' first components, so that at full width nothing is lost. The others get the linear
    map from their own states that comes nearest to the last exit's vectors: a shallow query then finds deep pages from
    the first step.
    """
    with torch.no_grad():
        states = _unit_states(model, pages)
        first = torch.eye(model.shape.hidden_size)[: model.dim]
        last = states[model.depths[-1]][:, : model.dim]
        for depth, rows in states.items():
            weight = first if depth == model.depths[-1] else _nearest(rows, last)
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


def _nearest(rows: Tensor, targets: Tensor) -> Tensor:
    """(D, hidden): the ridge regression from rows to targets."""
    square = rows.T @ rows
    ridge = 1e-4 * square.diagonal().mean() * torch.eye(len(square))
    weight: Tensor = torch.linalg.solve(square + ridge, rows.T @ targets).T
    return weight
