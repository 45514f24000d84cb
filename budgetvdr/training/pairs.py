"""What is trained on: queries with their pages; and the order in which they come."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass

import numpy as np

from budgetvdr.training.errors import TrainingDataError
from budgetvdr.training.models.model import Content


@dataclass(frozen=True, slots=True)
class Pair:
    """A query and the ids of the page that answers it and of pages that look as if they did (hard negatives).

    original: id of the page that `page` is a version of, itself where left out; two versions are never right and wrong
    for one query. group: the same for pairs whose pages are alike, of one document or template; empty for none.
    """

    query: str
    page: str
    negatives: tuple[str, ...] = ()
    original: str = ""
    group: str = ""

    @property
    def answer(self) -> str:
        """The page whatever its version."""
        return self.original or self.page


def answers(pairs: Iterable[Pair]) -> dict[str, str]:
    """Id of every page that the pairs name, negatives too -> the page whatever its version."""
    pairs = list(pairs)
    negatives = {name: name for pair in pairs for name in pair.negatives}
    return negatives | {pair.page: pair.answer for pair in pairs}


def digest(pairs: Iterable[Pair]) -> str:
    """Hex sha256 over all pairs in their order."""
    found = hashlib.sha256()
    for pair in pairs:
        found.update(json.dumps(astuple(pair)).encode() + b"\n")
    return found.hexdigest()


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

    size: pairs a step. negatives: hard negatives a query, at most, which cost a page each. together: so many pairs of
    a group come in a row, and are hard negatives of one another at no cost. Every epoch has its own order; pairs left
    over at its end, fewer than a batch, wait for the next epoch's order.

    Raises TrainingDataError where the pairs do not fill one batch of different pages.
    """

    def __init__(
        self, pairs: Sequence[Pair], *, size: int, negatives: int = 0, together: int = 1, seed: int = 0
    ) -> None:
        self._pairs, self._size, self._negatives, self._seed = pairs, size, negatives, seed
        self._together, self._answers = together, answers(pairs)
        self._epochs: list[list[list[int]]] = []
        distinct = len({pair.answer for pair in pairs})
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
        right = {pair.answer for pair in chosen}
        random = np.random.default_rng([self._seed, 1, step])
        for pair in chosen:
            fresh = [page for page in pair.negatives if page not in pages and self._answers[page] not in right]
            count = min(self._negatives, len(fresh))
            pages += [fresh[index] for index in random.permutation(len(fresh))[:count]]
        return Batch(tuple(pair.query for pair in chosen), tuple(pages))

    def _epoch(self, number: int) -> list[list[int]]:
        while len(self._epochs) <= number:
            random = np.random.default_rng([self._seed, 0, len(self._epochs)])
            order = random.permutation(len(self._pairs)).tolist()
            self._epochs.append(self._batches(self._by_groups(order, random) if self._together > 1 else order))
        return self._epochs[number]

    def _by_groups(self, order: Sequence[int], random: np.random.Generator) -> list[int]:
        """The order, with the pairs of a group in rows of `together`; the rows come in random order."""
        filling: dict[str, list[int]] = {}
        rows: list[list[int]] = []
        for index in order:
            group = self._pairs[index].group
            row = filling.setdefault(group, []) if group else []
            row.append(index)
            if not group or len(row) == self._together:
                rows.append(row)
                filling.pop(group, None)
        rows += filling.values()
        return [index for at in random.permutation(len(rows)) for index in rows[at]]

    def _batches(self, order: Sequence[int]) -> list[list[int]]:
        """Each pair goes into the first batch, of those not full yet, that lacks its page, in any version."""
        full: list[list[int]] = []
        filling: list[dict[str, int]] = []
        for index in order:
            page = self._pairs[index].answer
            batch = next((batch for batch in filling if page not in batch), None)
            if batch is None:
                batch = {}
                filling.append(batch)
            batch[page] = index
            if len(batch) == self._size:
                filling.remove(batch)
                full.append(list(batch.values()))
        return full
