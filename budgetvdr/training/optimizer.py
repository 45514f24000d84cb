"""How the parameters move: AdamW with a rate for the transformer, one for the heads, and a schedule for both."""

from __future__ import annotations

import torch
from accelerate import PartialState
from torch import Tensor, nn

from budgetvdr.training.errors import TrainingError
from budgetvdr.training.models.model import ElasticModel
from budgetvdr.training.processes import average_gradients
from budgetvdr.training.settings import TrainSettings


def make_optimizer(model: ElasticModel, settings: TrainSettings) -> torch.optim.Optimizer:
    """AdamW over what requires gradients: heads at their own rate, no decay for biases and norms."""
    heads = {id(parameter) for parameter in model.heads().parameters()}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            rate = settings.head_learning_rate if id(parameter) in heads else settings.learning_rate
            decay = settings.weight_decay if parameter.ndim > 1 else 0.0
            groups.setdefault((rate, decay), []).append(parameter)
    return torch.optim.AdamW(
        [{"params": group, "lr": rate, "rate": rate, "weight_decay": decay} for (rate, decay), group in groups.items()]
    )


def rate_at(step: int, settings: TrainSettings) -> float:
    """The share of the highest learning rate at a step, counted from 0."""
    rising = (step + 1) / max(1, settings.warmup)
    falling = (settings.steps - step) / max(1, settings.steps - settings.warmup)
    return min(1.0, rising, falling)


def set_rates(optimizer: torch.optim.Optimizer, share_of_highest: float) -> None:
    """Sets the learning rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = group["rate"] * share_of_highest


def update(model: nn.Module, optimizer: torch.optim.Optimizer, clip: float, state: PartialState) -> float:
    """One step of the optimizer with the gradients of all processes; returns their length before clipping.

    Raises TrainingError where it is not finite; the parameters stay as they were.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    average_gradients(parameters, state)
    norm: Tensor = torch.nn.utils.clip_grad_norm_(parameters, clip)
    if not torch.isfinite(norm):
        raise TrainingError("the gradient is not finite: lower the learning rates or train without bf16")
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm.item()
