"""AnchorFold: the most central tokens become anchors, the others are folded into them (AnchorFold, sections 3.3, 3.4).

The paper weighs hidden states, then projects them. The projection is affine and the weights of a group sum to one, so
that weighing the projected vectors, before they are scaled to unit length, gives the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from budgetvdr.compress.grouping import Rows, at_random, fold, highest, keep, unit
from budgetvdr.compress.signals import Compressed, Groups, Scores, Signals, Window
from budgetvdr.compress.size import Sized
from budgetvdr.errors import BudgetError
from budgetvdr.pages import Vectors

# Similarities held at a time: 4 MB.
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorFold(Sized):
    """Settings; steps=1, anchors="random", folding=False or weights="uniform" are the ablations of the paper's Table 1.

    gamma, cap: how many vectors a page keeps (`Sized`).
    steps: K of the propagation; None for the bundle's calibrated one, 1 for a single step.
    anchors: "centrality" for the most central tokens; "spread", which is not in the paper, for central tokens that are
        unlike each other (`spread`); "random" for tokens drawn without looking.
    folding: whether tokens that are no anchors are folded into one; False drops them.
    weights: "centrality", or "uniform" for plain means.
    """

    VERSION: ClassVar[int] = 1

    steps: int | None = None
    anchors: Literal["centrality", "spread", "random"] = "centrality"
    folding: bool = True
    weights: Literal["centrality", "uniform"] = "centrality"

    def __post_init__(self) -> None:
        Sized.__post_init__(self)
        if self.steps is not None and self.steps < 1:
            raise BudgetError(f"steps of AnchorFold: expected at least 1 or None, found {self.steps}")
        if self.anchors not in ("centrality", "spread", "random") or self.weights not in ("centrality", "uniform"):
            raise BudgetError(
                "AnchorFold takes anchors 'centrality', 'spread' or 'random' and weights 'centrality' or 'uniform'; "
                f"found {self.anchors!r} and {self.weights!r}"
            )

    def asks(self, window: Window, depth: int) -> Window | None:
        """The calibrated window, with these steps where they are given."""
        return Window(window.first, window.last, self.steps or window.steps)

    def compress(self, page: Signals) -> Compressed:
        """Stored vectors are in the order of their anchors on the page. Raises CompressionError without centrality."""
        units = unit(page.vectors)
        anchors = self._anchors(page, units)
        if not self.folding or not len(units):
            return keep(page.vectors, anchors)
        weights = page.need("centrality", "AnchorFold") if self.weights == "centrality" else None
        return fold(page.vectors, assign(units, anchors), weights)

    def _anchors(self, page: Signals, units: Vectors) -> Rows:
        count = self.size(len(units))
        if self.anchors == "random":
            return at_random(len(units), count, seed=0)
        scores = page.need("centrality", "AnchorFold")
        return spread(units, scores, count) if self.anchors == "spread" else highest(scores, count)


def spread(units: Vectors, scores: Scores, count: int) -> Rows:
    """Positions of `count` tokens, ascending, chosen one by one: the highest score times distance to the nearest.

    units: (N, D), unit length. The nearest is the most similar of the tokens chosen before, and the distance to it is
    1 - cosine, at most 1; the first one chosen has the highest score. Of equal ones the first. Central tokens repeat
    what others say (full stops, the same word again); chosen by centrality alone, they leave little room for the rest
    of the page.
    """
    if count == len(units):
        return np.arange(count)
    chosen = np.empty(count, np.intp)
    distance = np.ones(len(units), np.float32)
    for place in range(count):
        merit = scores * distance
        # Below what a token that only equals a chosen one has.
        merit[chosen[:place]] = -1
        chosen[place] = merit.argmax()
        np.minimum(distance, np.maximum(1 - units @ units[chosen[place]], 0), out=distance)
    return np.sort(chosen)


def assign(units: Vectors, anchors: Rows) -> Groups:
    """(N,) number of the anchor most similar to each token, of equal ones the first; anchors stand for themselves.

    units: (N, D), unit length. anchors: positions of at least one token.
    """
    centres = units[anchors].T
    groups = np.empty(len(units), np.int32)
    rows = max(1, _BLOCK // len(anchors))
    for start in range(0, len(units), rows):
        groups[start : start + rows] = (units[start : start + rows] @ centres).argmax(axis=1)
    groups[anchors] = np.arange(len(anchors))
    return groups
