"""One step of a run: what a process computes of a batch that several processes share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from accelerate import PartialState

from budgetvdr.training.caching import CachedStates, encoded
from budgetvdr.training.mm_matryoshka import Losses, Objective, batch_losses
from budgetvdr.training.models.model import Content, ElasticModel, Role
from budgetvdr.training.pairs import Batch
from budgetvdr.training.processes import gather_states, gathered_order, share
from budgetvdr.training.scores import TokenStates
from budgetvdr.training.token_distillation import TaughtStates

Encode = Callable[[Sequence[Content], Role], TokenStates]


@dataclass(frozen=True, slots=True)
class Work:
    """What every step uses.

    encode: contents and their role -> states on the device of `state`. teach: the same for the frozen model, whose
    states have one exit; None where nothing is learned from one. load: page id -> content.
    """

    encode: Encode
    teach: Encode | None
    load: Callable[[str], Content]
    objective: Objective
    unit_queries: bool
    chunk: int | None
    state: PartialState


def encoder(model: ElasticModel, state: PartialState, *, bf16: bool) -> Encode:
    """The model as a function of contents. bf16: under bfloat16 autocast."""

    def encode(contents: Sequence[Content], role: Role) -> TokenStates:
        inputs = {name: tensor.to(state.device) for name, tensor in model.prepare(contents, role).items()}
        with torch.autocast(state.device.type, torch.bfloat16, enabled=bf16):
            states: TokenStates = model(inputs, role)
        return states

    return encode


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
