"""How many vectors a page keeps."""

from __future__ import annotations

import math
from dataclasses import dataclass

from budgetvdr.errors import BudgetError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """Settings of a method that keeps a number of vectors fixed by the page's own (AnchorFold, sections 3.1 and C.1).

    gamma: share kept, above 0 and up to 1; ceil(gamma * N) of N vectors. cap: most vectors kept, min(N, cap).
    One of the two is to be given.

    Raises BudgetError for other values.
    """

    gamma: float | None = None
    cap: int | None = None

    def __post_init__(self) -> None:
        if (self.gamma is None) == (self.cap is None):
            raise BudgetError(f"expected gamma, the share of vectors to keep, or cap, the most of them; found {self}")
        if self.gamma is not None and not 0 < self.gamma <= 1:
            raise BudgetError(f"gamma, the share of vectors to keep: expected above 0 and up to 1, found {self.gamma}")
        if self.cap is not None and self.cap < 1:
            raise BudgetError(f"cap is the most vectors a page keeps: expected at least 1, found {self.cap}")

    def size(self, count: int) -> int:
        """Vectors kept of `count`; at least one of any."""
        if self.cap is not None:
            return min(count, self.cap)
        assert self.gamma is not None
        return share(self.gamma, count)


def share(part: float, count: int) -> int:
    """ceil(part * count), where 0.1 * 30 is 3 and not 3.0000000000000004."""
    return math.ceil(round(part * count, 9))
