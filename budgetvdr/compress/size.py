"""How many vectors a page keeps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np

from budgetvdr.bundle import Window
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
        if self.gamma is not None:
            settle(self, "gamma", checked_gamma(self.gamma))
        if self.cap is not None:
            settle(self, "cap", whole(self.cap, "cap, the most vectors a page keeps", least=1))

    def asks(self, window: Window | None, depth: int) -> Window | None:
        """Nothing: a method that looks at more than vectors says at what (`Compression`)."""
        return None

    def size(self, count: int) -> int:
        """Vectors kept of `count`; at least one of any."""
        if self.cap is not None:
            return min(count, self.cap)
        assert self.gamma is not None
        # However small the share, a page with vectors can be found.
        return min(count, max(1, share(self.gamma, count)))


def share(part: float, count: int) -> int:
    """ceil(part * count), where 0.1 * 30 is 3 and not 3.0000000000000004."""
    return math.ceil(round(part * count, 9))


def checked_gamma(value: object) -> float:
    """A share of vectors to keep, as a plain number. Raises BudgetError unless above 0 and up to 1."""
    gamma = real(value, "gamma, the share of vectors to keep", "a number above 0 and up to 1")
    if not 0 < gamma <= 1:
        raise BudgetError(f"gamma, the share of vectors to keep: expected above 0 and up to 1, found {value}")
    return gamma


def real(value: object, what: str, expected: str) -> float:
    """A number, numpy's included, as a plain float, which an index can record. Raises BudgetError for anything else."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise BudgetError(f"{what}: expected {expected}, found {value!r}")
    try:
        # A float32 of 0.2 means 0.2, and not the 0.20000000298 that its digits come to as a double.
        return float(str(value)) if isinstance(value, np.floating) else float(value)
    except OverflowError as error:
        raise BudgetError(f"{what}: expected {expected}, found a number too large") from error


def whole(value: object, what: str, *, least: int, most: int | None = None) -> int:
    """A whole number, numpy's included, as a plain int. Raises BudgetError for anything else."""
    plain = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None
    if plain is None or plain < least or (most is not None and plain > most):
        upto = "" if most is None else f" and at most {most}"
        raise BudgetError(f"{what}: expected a whole number of at least {least}{upto}, found {value!r}")
    return plain


def settle(settings: object, name: str, value: object) -> None:
    """Puts a checked value in place of the one given to a frozen dataclass; for `__post_init__` alone."""
    object.__setattr__(settings, name, value)
