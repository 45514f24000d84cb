"""The training loop: plain steps over a model, a set of pairs and an objective.

Runs in one process or, started by `torchrun` or `accelerate launch`, in several: the batch is then shared out, and
every query is compared with the pages of all processes. The result is that of one process, up to rounding.

    folder/
        metrics.jsonl   a line a step, and one for each evaluation; the first is of the model as it came
        loss.svg
        state/step-N    parameters and optimizer; a run started again goes on from the last
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from accelerate import PartialState
from torch import Tensor, nn

from budgetvdr.training.caching import CachedStates, encoded
from budgetvdr.training.errors import TrainingError
from budgetvdr.training.held_out import evaluate_pairs
from budgetvdr.training.journal import Journal, plot_losses
from budgetvdr.training.mm_matryoshka import Losses, Objective, batch_losses
from budgetvdr.training.models.model import Content, ElasticModel, Role
from budgetvdr.training.pairs import Batch, BatchPlan, TrainingSet
from budgetvdr.training.processes import (
    average_gradients,
    gather_states,
    gathered_order,
    join_processes,
    mean_over_processes,
    share,
)
from budgetvdr.training.scores import TokenStates
from budgetvdr.training.state import load_state, save_state
from budgetvdr.training.token_distillation import TaughtStates

_SEEDS_APART = 1_000_003


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


@dataclass(frozen=True, slots=True)
class Work:
    """What every step uses.

    encode: contents and their role -> states on the device of `state`. teach: the same for the frozen model, whose
    states have one exit; None where nothing is learned from one. load: page id -> content.
    """

    encode: Callable[[Sequence[Content], Role], TokenStates]
    teach: Callable[[Sequence[Content], Role], TokenStates] | None
    load: Callable[[str], Content]
    objective: Objective
    unit_queries: bool
    chunk: int | None
    state: PartialState


def train(
    model: ElasticModel,
    training_set: TrainingSet,
    objective: Objective,
    settings: TrainSettings,
    folder: Path,
    *,
    teacher: ElasticModel | None = None,
    held_out: TrainingSet | None = None,
    evaluated_depths: tuple[int, ...] | None = None,
    evaluated_dims: tuple[int, ...] | None = None,
    on_step: Callable[[int, Mapping[str, float]], object] | None = None,
) -> None:
    """Trains `model` in place, what of it requires gradients.

    folder: of the run; where it holds a state of a run with the same settings, this one goes on from it, with the
    losses that the first would have had. teacher: the frozen model that `objective.teacher` weighs, with one exit.
    evaluated_depths, evaluated_dims: ascending exits and widths that held-out pairs are evaluated at, also where the
    objective leaves some out; left out: the objective's. on_step: called after every step with its number, from 1,
    and its metrics.

    Raises TrainingError for settings that do not fit model or processes, CheckpointError for a folder with the state
    of another run, TrainingDataError for pairs that do not fill a batch.
    """
    state = join_processes(cpu=settings.cpu)
    _check(model, objective, settings, state, teacher)
    depths = objective.depths if evaluated_depths is None else evaluated_depths
    dims = objective.dims if evaluated_dims is None else evaluated_dims
    _check_evaluated(model, depths, dims)
    model.to(state.device).train()
    model.checkpoint_activations(settings.checkpointing)
    optimizer = make_optimizer(model, settings)
    run = {"settings": asdict(settings), "objective": _as_json(objective)}
    start = load_state(folder / "state", model, optimizer, run)
    plan = BatchPlan(
        training_set.pairs,
        size=settings.batch,
        negatives=settings.negatives,
        together=settings.together,
        seed=settings.seed,
    )
    folder.mkdir(parents=True, exist_ok=True)
    # A run from the start also evaluates, as step 0, the model as it came.
    journal = Journal(folder, start + 1 if start else 0) if state.is_main_process else None

    encode = _encoder(model, settings, state)
    if teacher is not None:
        teacher.to(state.device).eval().requires_grad_(False)
    if journal is not None and held_out is not None and start == 0:
        journal.write({"step": 0, "held_out": evaluate(model, encode, held_out, depths, dims)})
    teach = None if teacher is None else _encoder(teacher, settings, state)
    work = Work(encode, teach, training_set.load, objective, model.unit_queries, settings.chunk, state)
    for step in range(start, settings.steps):
        began = time.perf_counter()
        # Seeded by its number, a step is the same whether or not the run was interrupted before it.
        torch.manual_seed((settings.seed * _SEEDS_APART + step) * state.num_processes + state.process_index)
        set_rates(optimizer, rate_at(step, settings))
        losses = backward(work, plan.batch(step))
        norm = update(model, optimizer, settings.clip, state)
        metrics = {
            "loss": mean_over_processes(losses.total, state),
            "prefix": mean_over_processes(losses.prefix, state),
            "distil": mean_over_processes(losses.distil, state),
            "cross_depth": mean_over_processes(losses.cross_depth, state),
            "teacher": mean_over_processes(losses.teacher, state),
            "gradient": norm,
            "seconds": time.perf_counter() - began,
        }
        done, end = step + 1, step + 1 == settings.steps
        if journal is not None:
            journal.write({"step": done, **metrics})
            if held_out is not None and (done % settings.evaluate_every == 0 or end):
                journal.write({"step": done, "held_out": evaluate(model, encode, held_out, depths, dims)})
            if done % settings.save_every == 0 or end:
                save_state(folder / "state", done, model, optimizer, run)
                plot_losses(folder)
        state.wait_for_everyone()
        if on_step is not None:
            on_step(done, metrics)


def backward(work: Work, batch: Batch) -> Losses:
    """Adds the gradients of this process's part of a batch to the parameters; returns its losses."""
    process, processes = work.state.process_index, work.state.num_processes
    rows = share(len(batch.queries), process, processes)
    queries = [batch.queries[row] for row in rows]
    pages = [work.load(batch.pages[row]) for row in share(len(batch.pages), process, processes)]
    places = {row: place for place, row in enumerate(gathered_order(len(batch.pages), processes))}
    targets = torch.tensor([places[row] for row in rows], device=work.state.device)

    taught = _taught(work, queries, pages, len(batch.pages))

    def losses_of(query_states: TokenStates, page_states: TokenStates) -> Losses:
        return batch_losses(
            work.objective,
            query_states,
            gather_states(page_states, len(batch.pages), work.state),
            targets,
            unit_queries=work.unit_queries,
            taught=taught,
        )

    if work.chunk is None:
        losses = losses_of(work.encode(queries, "query"), work.encode(pages, "page"))
        losses.total.backward()  # type: ignore[no-untyped-call]
        return losses
    cached_queries = CachedStates(lambda part: work.encode(part, "query"), queries, work.chunk)
    cached_pages = CachedStates(lambda part: work.encode(part, "page"), pages, work.chunk)
    losses = losses_of(cached_queries.states, cached_pages.states)
    losses.total.backward()  # type: ignore[no-untyped-call]
    cached_queries.backward()
    cached_pages.backward()
    return losses


def _taught(work: Work, queries: Sequence[str], pages: Sequence[Content], count: int) -> TaughtStates | None:
    """What the frozen model says about this process's queries and the pages of all."""
    teach = work.teach
    if teach is None:
        return None
    with torch.no_grad():
        query_states = encoded(lambda part: teach(part, "query"), queries, work.chunk)
        page_states = encoded(lambda part: teach(part, "page"), pages, work.chunk)
        return TaughtStates(query_states, gather_states(page_states, count, work.state))


def _encoder(
    model: ElasticModel, settings: TrainSettings, state: PartialState
) -> Callable[[Sequence[Content], Role], TokenStates]:
    def encode(contents: Sequence[Content], role: Role) -> TokenStates:
        inputs = {name: tensor.to(state.device) for name, tensor in model.prepare(contents, role).items()}
        with torch.autocast(state.device.type, torch.bfloat16, enabled=settings.bf16):
            states: TokenStates = model(inputs, role)
        return states

    return encode


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


def evaluate(
    model: ElasticModel,
    encode: Callable[[Sequence[Content], Role], TokenStates],
    held_out: TrainingSet,
    depths: tuple[int, ...],
    dims: tuple[int, ...],
) -> dict[str, float]:
    """nDCG@5 on held-out pairs for every depth and width, and for every query depth on pages of the last depth."""
    model.eval()
    pairs = dict.fromkeys([*((depth, depth) for depth in depths), *((depth, depths[-1]) for depth in depths)])
    found = evaluate_pairs(encode, held_out, pairs, dims, unit_queries=model.unit_queries)
    model.train()
    return found


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


def _check(
    model: ElasticModel,
    objective: Objective,
    settings: TrainSettings,
    state: PartialState,
    teacher: ElasticModel | None,
) -> None:
    if (teacher is not None) != (objective.teacher > 0):
        found = "missing" if teacher is None else "given"
        raise TrainingError(
            f"the objective has weight {objective.teacher} for a teacher, which is {found}: expected both or neither"
        )
    if teacher is not None and len(teacher.depths) != 1:
        raise TrainingError(f"a teacher has one exit, found {teacher.depths}")
    if not set(objective.depths) <= set(model.depths):
        raise TrainingError(f"the objective trains depths {objective.depths}, the model has exits at {model.depths}")
    if objective.dims[-1] > model.dim:
        raise TrainingError(f"the objective trains {objective.dims[-1]} components, the model has {model.dim}")
    if settings.batch % state.num_processes:
        raise TrainingError(f"a batch of {settings.batch} cannot be shared equally by {state.num_processes} processes")
    if settings.save_every < 1 or settings.evaluate_every < 1 or settings.steps < 1:
        raise TrainingError("steps, save_every and evaluate_every must be at least 1")


def _check_evaluated(model: ElasticModel, depths: tuple[int, ...], dims: tuple[int, ...]) -> None:
    if not depths or not set(depths) <= set(model.depths):
        raise TrainingError(f"held-out pairs are to be evaluated at depths {depths}, the model has {model.depths}")
    if not dims or min(dims) < 1 or max(dims) > model.dim:
        raise TrainingError(f"held-out pairs are to be evaluated {dims} wide, the model has {model.dim} components")


def _as_json(objective: Objective) -> dict[str, object]:
    # Mappings with numbers as keys and tuples come back from JSON as other types.
    return {name: str(value) for name, value in asdict(objective).items()}
