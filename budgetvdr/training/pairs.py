"""What is trained on: queries with their pages; and the order in which they come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from budgetvdr.training.errors import TrainingDataError
from budgetvdr.training.models.model import Content


@dataclass(frozen=True, slots=True)
class Pair:
    """A query and the ids of the page that answers it and of pages that look as if they did (hard negatives)."""

    query: str
    page: str
    negatives: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """Pairs, and how a page's content is had by its id. Pages are loaded when their batch comes."""

    pairs: Sequence[Pair]
    load: Callable[[str], Content]


@dataclass(frozen=True, slots=True)
class Batch:
    """One step of all processes together: query i is answered by pages[i]; pages after those are negatives.

    No page is in it twice, so that no page is right and wrong for one query.
    """

    queries: tuple[str, ...]
    pages: tuple[str, ...]


class BatchPlan:
    """Which pairs make up which step. A function of its arguments alone, so that a resumed run goes on as before.

    size: pairs a step. negatives: hard negatives a query, at most. Every epoch has its own order; pairs left over at
    its end, fewer than a batch, wait for the next epoch's order.

    Raises TrainingDataError where the pairs do not fill one batch of different pages.
    """

    def __init__(self, pairs: Sequence[Pair], *, size: int, negatives: int = 0, seed: int = 0) -> None:
        self._pairs, self._size, self._negatives, self._seed = pairs, size, negatives, seed
        self._epochs: list[list[list[int]]] = []
        distinct = len({pair.page for pair in pairs})
        if distinct < size:
            raise TrainingDataError(f"a batch of {size} needs as many different pages, found {distinct}")

    def batch(self, step: int) -> Batch:
        """The batch of a step, counted from 0."""
        epoch, first = 0, 0
        while step >= first + len(self._epoch(epoch)):
            first += len(self._epoch(epoch))
            epoch += 1
        chosen = [self._pairs[index] for index in self._epoch(epoch)[step - first]]
        pages = [pair.page for pair in chosen]
        random = np.random.default_rng([self._seed, 1, step])
        for pair in chosen:
            fresh = [page for page in pair.negatives if page not in pages]
            count = min(self._negatives, len(fresh))
            pages += [fresh[index] for index in random.permutation(len(fresh))[:count]]
        return Batch(tuple(pair.query for pair in chosen), tuple(pages))

    def _epoch(self, number: int) -> list[list[int]]:
        while len(self._epochs) <= number:
            order = np.random.default_rng([self._seed, 0, len(self._epochs)]).permutation(len(self._pairs))
            self._epochs.append(self._batches(order.tolist()))
        return self._epochs[number]

    def _batches(self, order: Sequence[int]) -> list[list[int]]:
        """Each pair goes into the first batch, of those not full yet, that lacks its page."""
        full: list[list[int]] = []
        filling: list[dict[str, int]] = []
        for index in order:
            page = self._pairs[index].page
            batch = next((batch for batch in filling if page not in batch), None)
            if batch is None:
                batch = {}
                filling.append(batch)
            batch[page] = index
            if len(batch) == self._size:
                filling.remove(batch)
                full.append(list(batch.values()))
        return full
