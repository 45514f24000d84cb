"""DocPruner: each page keeps the tokens its global token attends to unusually much (AnchorFold, appendix A.3)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from budgetvdr.bundle import Window
from budgetvdr.compress.grouping import highest, keep
from budgetvdr.compress.signals import Compressed, Signals
from budgetvdr.compress.size import checked_gamma, real, settle, share
from budgetvdr.errors import BudgetError
from budgetvdr.pages import Scores


@dataclass(frozen=True, slots=True, kw_only=True)
class DocPruner:
    """Settings.

    threshold: standard deviations above the page's mean attention from which a token stays; the best token always
        does. Pages keep as much as they hold, so that only their average is known. Raises BudgetError unless finite.
    """

    VERSION: ClassVar[int] = 1

    threshold: float

    def __post_init__(self) -> None:
        threshold = real(self.threshold, "threshold of DocPruner", "a finite number")
        if not math.isfinite(threshold):
            raise BudgetError(f"threshold of DocPruner: expected a finite number, found {self.threshold}")
        settle(self, "threshold", threshold)

    @classmethod
    def at_ratio(cls, gamma: float, pages: Iterable[Scores]) -> Self:
        """The threshold that keeps a share of all tokens of some pages.

        gamma: share, above 0 and up to 1. pages: `from_global` (N,) of calibration pages, which encoding with this
        method's attention gives (`EncodedPage.signals`). `budgetvdr eval DIR --compression-grid --json` tells the
        thresholds of a set.

        Raises BudgetError for another share, or pages without tokens.
        """
        gamma = checked_gamma(gamma)
        standard = [standardised(scores) for scores in pages]
        falling = np.sort(np.concatenate([np.zeros(0), *standard]))[::-1]
        if not len(falling):
            raise BudgetError("a threshold needs calibration pages with tokens, found none")
        return cls(threshold=float(np.nextafter(falling[max(1, share(gamma, len(falling))) - 1], -np.inf)))

    def asks(self, window: Window | None, depth: int) -> Window | None:
        """The last layer executed."""
        return Window(depth - 1, depth - 1)

    def compress(self, page: Signals) -> Compressed:
        """Raises CompressionError without from_global."""
        scores = page.need("from_global", "DocPruner")
        above = int((standardised(scores) > self.threshold).sum())
        return keep(page.vectors, highest(scores, max(1, above)))


def standardised(scores: Scores) -> npt.NDArray[np.float64]:
    """(N,) less their mean, by their standard deviation; zeros where all are alike."""
    if not len(scores):
        return np.zeros(0)
    centred = scores - scores.mean(dtype=np.float64)
    deviation = centred.std()
    return centred / deviation if deviation > 0 else np.zeros(len(scores))
