"""AnchorFold: the most central tokens become anchors, the others are folded into them (AnchorFold, sections 3.3, 3.4).

The paper weighs hidden states, then projects them. The projection is affine and the weights of a group sum to one, so
that weighing the projected vectors, before they are scaled to unit length, gives the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from budgetvdr.bundle import MOST_STEPS, Window
from budgetvdr.compress.grouping import Rows, at_random, fold, highest, keep, numbered
from budgetvdr.compress.products import products
from budgetvdr.compress.signals import Compressed, Groups, Signals, calibrated
from budgetvdr.compress.size import Sized, settle, whole
from budgetvdr.errors import BudgetError
from budgetvdr.pages import Vectors
from budgetvdr.unit import unit_rows

# Similarities held at a time: 4 MB.
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorFold(Sized):
    """Settings. With refinements=0 it is the method of the paper; besides, with one of steps=1, anchors="random",
    folding=False or weights="uniform", an ablation of its Table 1.

    gamma, cap: how many vectors a page keeps (`Sized`).
    steps: K of the propagation; None for the bundle's calibrated one, 1 for a single step.
    anchors: "centrality", or "random" for tokens drawn without looking.
    folding: whether tokens that are no anchors are folded into one; False drops them.
    weights: "centrality", or "uniform" for plain means.
    refinements: how often tokens are assigned anew, to the folded vectors in place of the anchors. Folded vectors to
        which no token is nearest then leave, so that a page may keep fewer. The paper has none of it, thus 0.
    """

    VERSION: ClassVar[int] = 1

    steps: int | None = None
    anchors: Literal["centrality", "random"] = "centrality"
    folding: bool = True
    weights: Literal["centrality", "uniform"] = "centrality"
    refinements: int = 2

    def __post_init__(self) -> None:
        Sized.__post_init__(self)
        if self.steps is not None:
            what = "steps of AnchorFold (None for the calibrated ones)"
            settle(self, "steps", whole(self.steps, what, least=1, most=MOST_STEPS))
        settle(self, "refinements", whole(self.refinements, "refinements of AnchorFold", least=0))
        if not isinstance(self.folding, bool | np.bool_):
            raise BudgetError(f"folding of AnchorFold: expected True or False, found {self.folding!r}")
        settle(self, "folding", bool(self.folding))
        if self.anchors not in ("centrality", "random") or self.weights not in ("centrality", "uniform"):
            raise BudgetError(
                "AnchorFold takes anchors 'centrality' or 'random' and weights 'centrality' or 'uniform'; "
                f"found {self.anchors!r} and {self.weights!r}"
            )

    def asks(self, window: Window | None, depth: int) -> Window | None:
        """The calibrated window, with these steps where they are given; nothing where neither anchors nor weights are
        of centrality. Raises CompressionError without a window that is needed."""
        if self.anchors == "random" and not (self.folding and self.weights == "centrality"):
            return None
        calibration = calibrated(window, "AnchorFold", depth)
        return Window(calibration.first, calibration.last, self.steps or calibration.steps)

    def compress(self, page: Signals) -> Compressed:
        """Stored vectors are in the order of their anchors on the page; after refinements, of the first token that
        each one holds. Raises CompressionError without centrality where that is looked at."""
        vectors, count = page.vectors, self.size(len(page.vectors))
        if self.anchors == "random":
            anchors = at_random(len(vectors), count, seed=0)
        else:
            anchors = highest(page.need("centrality", "AnchorFold"), count)
        if not self.folding or not count:
            return keep(vectors, anchors)
        weights = page.need("centrality", "AnchorFold") if self.weights == "centrality" else None
        units = unit_rows(vectors)
        folded = fold(vectors, assign(units, anchors), weights)
        for _ in range(self.refinements if count < len(vectors) else 0):
            folded = fold(vectors, numbered(nearest(units, unit_rows(folded.vectors))), weights)
        return folded


def assign(units: Vectors, anchors: Rows) -> Groups:
    """(N,) number of the anchor most similar to each token, of equal ones the first; anchors stand for themselves.

    units: (N, D), unit length. anchors: positions of at least one token.
    """
    groups = nearest(units, units[anchors])
    groups[anchors] = np.arange(len(anchors))
    return groups


def nearest(units: Vectors, centres: Vectors) -> Groups:
    """(N,) number of the most similar of the centres (m, D), of equal ones the first; all rows of unit length."""
    groups = np.empty(len(units), np.int32)
    rows = max(1, _BLOCK // len(centres))
    for start in range(0, len(units), rows):
        groups[start : start + rows] = products(units[start : start + rows], centres).argmax(axis=1)
    return groups
