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
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from accelerate import PartialState

from budgetvdr.training.held_out import evaluate_pairs
from budgetvdr.training.journal import Journal, plot_losses
from budgetvdr.training.mm_matryoshka import Objective
from budgetvdr.training.models.model import ElasticModel
from budgetvdr.training.optimizer import make_optimizer, rate_at, set_rates, update
from budgetvdr.training.pairs import BatchPlan, TrainingSet, digest
from budgetvdr.training.processes import join_processes, mean_over_processes
from budgetvdr.training.settings import TrainSettings, check_points, check_run
from budgetvdr.training.state import load_state, save_state
from budgetvdr.training.step import Encode, Work, backward, encoder

__all__ = ["TrainSettings", "train"]

_SEEDS_APART = 1_000_003


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
    chosen: Mapping[str, str | int | float | bool | None] | None = None,
    on_step: Callable[[int, Mapping[str, float]], object] | None = None,
) -> None:
    """Trains `model` in place, what of it requires gradients.

    folder: of the run; where it holds a state of a run with the same settings and pairs, this one goes on from it, with
    the losses that the first would have had. teacher: the frozen model that `objective.teacher` weighs, with one exit.
    evaluated_depths, evaluated_dims: ascending exits and widths that held-out pairs are evaluated at, also where the
    objective leaves some out; left out: the objective's. chosen: what else decides the losses and is not seen here, as
    which weights the run begins from; a run goes on only where that is the same. on_step: called after every step with
    its number, from 1, and its metrics.

    Raises TrainingError for settings that do not fit model or processes, CheckpointError for a folder with the state
    of another run, TrainingDataError for pairs that do not fill a batch.
    """
    state = join_processes(cpu=settings.cpu)
    check_run(model, objective, settings, state, teacher)
    depths = objective.depths if evaluated_depths is None else evaluated_depths
    dims = objective.dims if evaluated_dims is None else evaluated_dims
    check_points(model, depths, dims, "held-out pairs are to be evaluated at")
    model.to(state.device).train()
    model.checkpoint_activations(settings.checkpointing)
    encode = encoder(model, state, bf16=settings.bf16)
    teach = None if teacher is None else encoder(_frozen(teacher, state), state, bf16=settings.bf16)
    plan = _plan(training_set, settings)
    run = _run(training_set, objective, settings, chosen or {})
    optimizer = make_optimizer(model, settings)
    start = load_state(folder / "state", model, optimizer, run)
    record = None
    if state.is_main_process:
        evaluation = None if held_out is None else _Evaluation(model, encode, held_out, depths, dims, settings.chunk)
        record = _Record(folder, settings, model=model, optimizer=optimizer, run=run, evaluation=evaluation)
        record.begin(start)
    work = Work(encode, teach, training_set.load, objective, model.unit_queries, settings.chunk, state)
    for step in range(start, settings.steps):
        metrics = _step(step, work, plan, model=model, optimizer=optimizer, settings=settings)
        if record is not None:
            record.step(step + 1, metrics)
        state.wait_for_everyone()
        if on_step is not None:
            on_step(step + 1, metrics)


def _frozen(teacher: ElasticModel, state: PartialState) -> ElasticModel:
    teacher.to(state.device).eval().requires_grad_(False)
    return teacher


def _plan(training_set: TrainingSet, settings: TrainSettings) -> BatchPlan:
    return BatchPlan(
        training_set.pairs,
        size=settings.batch,
        negatives=settings.negatives,
        together=settings.together,
        seed=settings.seed,
    )


def _step(
    step: int,
    work: Work,
    plan: BatchPlan,
    *,
    model: ElasticModel,
    optimizer: torch.optim.Optimizer,
    settings: TrainSettings,
) -> dict[str, float]:
    """Does one step, counted from 0; returns its metrics."""
    began, state = time.perf_counter(), work.state
    # Seeded by its number, a step is the same whether or not the run was interrupted before it.
    torch.manual_seed((settings.seed * _SEEDS_APART + step) * state.num_processes + state.process_index)
    set_rates(optimizer, rate_at(step, settings))
    losses = backward(work, plan.batch(step))
    norm = update(model, optimizer, settings.clip, state)
    return {
        "loss": mean_over_processes(losses.total, state),
        "prefix": mean_over_processes(losses.prefix, state),
        "distil": mean_over_processes(losses.distil, state),
        "cross_depth": mean_over_processes(losses.cross_depth, state),
        "teacher": mean_over_processes(losses.teacher, state),
        "gradient": norm,
        "seconds": time.perf_counter() - began,
    }


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """nDCG@5 on held-out pairs for every depth and width, and for every query depth on pages of the last depth."""

    model: ElasticModel
    encode: Encode
    held_out: TrainingSet
    depths: tuple[int, ...]
    dims: tuple[int, ...]
    chunk: int | None

    def __call__(self) -> dict[str, float]:
        self.model.eval()
        last = self.depths[-1]
        pairs = dict.fromkeys([*((depth, depth) for depth in self.depths), *((depth, last) for depth in self.depths)])
        unit_queries = self.model.unit_queries
        found = evaluate_pairs(
            self.encode, self.held_out, pairs, self.dims, unit_queries=unit_queries, chunk=self.chunk
        )
        self.model.train()
        return found


class _Record:
    """What the main process writes of a run: metrics, evaluations, states and the picture of the loss."""

    def __init__(
        self,
        folder: Path,
        settings: TrainSettings,
        *,
        model: ElasticModel,
        optimizer: torch.optim.Optimizer,
        run: Mapping[str, object],
        evaluation: _Evaluation | None,
    ) -> None:
        self._folder, self._settings, self._evaluation = folder, settings, evaluation
        self._model, self._optimizer, self._run = model, optimizer, run

    def begin(self, start: int) -> None:
        """start: steps done. A run from the start also evaluates, as step 0, the model as it came."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._journal = Journal(self._folder, start + 1 if start else 0)
        if start == 0:
            self._evaluate(0)

    def step(self, done: int, metrics: Mapping[str, float]) -> None:
        """done: steps done, this one among them."""
        settings, end = self._settings, done == self._settings.steps
        self._journal.write({"step": done, **metrics})
        if done % settings.evaluate_every == 0 or end:
            self._evaluate(done)
        if done % settings.save_every == 0 or end:
            save_state(self._folder / "state", done, self._model, self._optimizer, self._run)
            plot_losses(self._folder)

    def _evaluate(self, done: int) -> None:
        if self._evaluation is not None:
            self._journal.write({"step": done, "held_out": self._evaluation()})


def _run(
    training_set: TrainingSet, objective: Objective, settings: TrainSettings, chosen: Mapping[str, object]
) -> dict[str, object]:
    """What must be the same for a run to go on."""
    return {
        "settings": asdict(settings),
        # Mappings with numbers as keys and tuples come back from JSON as other types.
        "objective": {name: str(value) for name, value in asdict(objective).items()},
        "pairs": digest(training_set.pairs),
        "chosen": dict(chosen),
    }
