"""Random selection: what any method has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from budgetvdr.compress.grouping import at_random, keep
from budgetvdr.compress.signals import Compressed, Signals
from budgetvdr.compress.size import Sized, settle, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomSelection(Sized):
    """Settings. gamma, cap: how many vectors a page keeps (`Sized`). seed: other tokens for another number."""

    VERSION: ClassVar[int] = 1

    seed: int = 0

    def __post_init__(self) -> None:
        Sized.__post_init__(self)
        settle(self, "seed", whole(self.seed, "seed of RandomSelection", least=0))

    def compress(self, page: Signals) -> Compressed:
        """Tokens drawn without looking; the same positions for pages of the same length."""
        count = len(page.vectors)
        return keep(page.vectors, at_random(count, self.size(count), self.seed))
