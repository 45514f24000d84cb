"""How a run trains, and whether that fits what it trains."""

from __future__ import annotations

from dataclasses import dataclass

from accelerate import PartialState

from budgetvdr.training.errors import TrainingError
from budgetvdr.training.mm_matryoshka import Objective
from budgetvdr.training.models.model import ElasticModel


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """How a run trains.

    steps, batch: number of steps, and pairs a step over all processes. negatives: hard negatives a pair, at most.
    together: pairs of a group that come in one batch.
    learning_rate, head_learning_rate: of the transformer and of the heads, at their highest; they rise over `warmup`
    steps and fall in a straight line to zero at the end. clip: longest gradient. chunk: contents encoded at a time
    with gradient caching; None encodes the batch at once. bf16: bfloat16 autocast for the encoder. checkpointing:
    layers are computed again in the backward pass. save_every, evaluate_every: in steps; the end is always saved.
    cpu: stay on the CPU where there is a GPU.
    """

    steps: int
    batch: int = 32
    negatives: int = 0
    together: int = 1
    learning_rate: float = 3e-5
    head_learning_rate: float = 1e-3
    warmup: int = 50
    weight_decay: float = 0.01
    clip: float = 1.0
    chunk: int | None = None
    bf16: bool = False
    checkpointing: bool = False
    seed: int = 0
    save_every: int = 200
    evaluate_every: int = 200
    cpu: bool = False


def check_run(
    model: ElasticModel,
    objective: Objective,
    settings: TrainSettings,
    state: PartialState,
    teacher: ElasticModel | None,
) -> None:
    """Raises TrainingError where these do not go together."""
    if (teacher is not None) != (objective.teacher > 0):
        found = "missing" if teacher is None else "given"
        raise TrainingError(
            f"the objective has weight {objective.teacher} for a teacher, which is {found}: expected both or neither"
        )
    if teacher is not None and len(teacher.depths) != 1:
        raise TrainingError(f"a teacher has one exit, found {teacher.depths}")
    check_points(model, objective.depths, objective.dims, "the objective trains")
    if settings.batch % state.num_processes:
        raise TrainingError(f"a batch of {settings.batch} cannot be shared equally by {state.num_processes} processes")
    if settings.save_every < 1 or settings.evaluate_every < 1 or settings.steps < 1:
        raise TrainingError("steps, save_every and evaluate_every must be at least 1")


def check_points(model: ElasticModel, depths: tuple[int, ...], dims: tuple[int, ...], what: str) -> None:
    """Raises TrainingError, which begins with `what`, where the model lacks a depth or a width, or there is none."""
    if not depths or not set(depths) <= set(model.depths):
        raise TrainingError(f"{what} depths {depths}, the model has exits at {model.depths}")
    if not dims or min(dims) < 1 or max(dims) > model.dim:
        raise TrainingError(f"{what} widths {dims}, the model has {model.dim} components")
