"""Choosing K and the layer window without labels (AnchorFold, section 4.6 and appendix D).

SR is the MaxSim score of a query with a compressed page over that with the full page, averaged over held-out pairs of a
query and a page. Everything here is a function of numbers that were computed once: each layer's support after 1, 2, ...
steps, as page graphs give it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from budgetvdr.bundle import Window
from budgetvdr.compress.anchorfold import AnchorFold
from budgetvdr.compress.score_ratio import maxsim
from budgetvdr.compress.signals import Signals, centrality
from budgetvdr.compress.size import share
from budgetvdr.errors import CompressionError
from budgetvdr.pages import Scores, Vectors
from budgetvdr.unit import unit_rows

STEPS = (2, 3, 4, 6, 8, 10, 12)
"""Values of K that are tried."""
GAMMA = 0.2
"""Share of vectors kept while calibrating."""
WIDTH = 0.2
"""Layers in a window, as a share of all layers."""

Ratios = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A query and a page at one exit.

    query: (n, D), as they are searched with. vectors: (N, D) of the page in any float type, projected and not scaled to
    unit length. support: (L, K, N) of the L layers executed, after steps 1 to K.
    """

    query: Vectors
    vectors: npt.NDArray[np.floating]
    support: Scores


@dataclass(frozen=True, slots=True)
class Trial:
    """One value of K (a row of the paper's Table 17): mean SR in its window and the mean's standard error.

    profile: mean SR of every single layer. gap, gap_error: of the best K's SR over this one's, pair by pair. eligible:
    gap <= gap_error.
    """

    window: Window
    sr: float
    error: float
    profile: tuple[float, ...]
    gap: float
    gap_error: float
    eligible: bool


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was tried at one exit, and what was chosen: the smallest eligible K with its window.

    depth: layers executed. pairs: how many were looked at. gamma: share of vectors kept.
    """

    depth: int
    pairs: int
    gamma: float
    trials: tuple[Trial, ...]

    @property
    def chosen(self) -> Window:
        """The smallest eligible K, and its window."""
        return next(trial.window for trial in self.trials if trial.eligible)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; SR in per cent and layers as "first-last", as in the paper's Table 17."""
        return {
            "depth": self.depth,
            "pairs": self.pairs,
            "gamma": self.gamma,
            "chosen": asdict(self.chosen),
            "rows": [
                {
                    "K": trial.window.steps,
                    "layers": f"{trial.window.first}-{trial.window.last}",
                    "sr": 100 * trial.sr,
                    "sr_error": 100 * trial.error,
                    "gap": 100 * trial.gap,
                    "gap_error": 100 * trial.gap_error,
                    "eligible": trial.eligible,
                    "profile": [100 * sr for sr in trial.profile],
                }
                for trial in self.trials
            ],
        }


def calibrate(pairs: Sequence[Pair], *, steps: Sequence[int] = STEPS, gamma: float = GAMMA) -> Calibration:
    """Tries every K with the window that its own profile points to, and chooses by the one-standard-error rule.

    pairs: at one exit; as many as can be had, the paper takes 500, of pages that no evaluation uses. steps: values of
    K. gamma: share of vectors kept.

    Raises CompressionError for fewer than two pairs, and for pairs of different layers, with too few steps or without a
    positive score.
    """
    _check(pairs, max(steps))
    # As published: what is chosen is the centrality, which refinements make less of.
    layers, method = pairs[0].support.shape[0], AnchorFold(gamma=gamma, refinements=0)
    full = np.array([maxsim(pair.query, unit_rows(pair.vectors.astype(np.float32))) for pair in pairs])
    if not full.min() > 0:
        raise CompressionError(
            f"pair {full.argmin()} scores {full.min()} with all vectors kept, so that no ratio to it says anything; "
            "leave it out"
        )
    profiles: dict[int, tuple[float, ...]] = {}
    windows: dict[int, Window] = {}
    ratios: dict[int, Ratios] = {}
    for k in sorted(steps):
        profiles[k] = tuple(
            float((scores(pairs, Window(layer, layer, k), method) / full).mean()) for layer in range(layers)
        )
        windows[k] = Window(*window_before_decline(profiles[k]), k)
        ratios[k] = scores(pairs, windows[k], method) / full
    gaps = paired_gaps(ratios)
    trials = tuple(
        Trial(
            windows[k],
            float(ratios[k].mean()),
            standard_error(ratios[k]),
            profiles[k],
            *gaps[k],
            gaps[k][0] <= gaps[k][1],
        )
        for k in ratios
    )
    return Calibration(layers, len(pairs), gamma, trials)


def scores(pairs: Sequence[Pair], window: Window, method: AnchorFold) -> Ratios:
    """(pairs,) MaxSim scores of the compressed pages, centrality taken from one window."""
    found = []
    for pair in pairs:
        support = pair.support[window.first : window.last + 1, window.steps - 1]
        page = Signals(pair.vectors.astype(np.float32), centrality(support))
        found.append(maxsim(pair.query, unit_rows(method.compress(page).vectors)))
    return np.array(found)


def window_before_decline(profile: Sequence[float], width: float = WIDTH) -> tuple[int, int]:
    """First and last layer of the window, given mean SR by layer.

    The longest run of layers that ends at the last one and stays below the median over all layers is set aside; the
    window is the ceil(width * L) layers before it, or as many as there are.
    """
    median = float(np.median(profile))
    end = len(profile)
    while profile[end - 1] < median:
        end -= 1
    return max(0, end - share(width, len(profile))), end - 1


def paired_gaps(ratios: Mapping[int, Ratios]) -> dict[int, tuple[float, float]]:
    """K -> mean and standard error of SR(best K) - SR(K) over pairs; the best K has the highest mean, the smallest of
    equal ones."""
    best = max(sorted(ratios), key=lambda k: ratios[k].mean())
    gaps = {k: ratios[best] - ratio for k, ratio in ratios.items()}
    return {k: (float(gap.mean()), standard_error(gap)) for k, gap in gaps.items()}


def standard_error(values: Ratios) -> float:
    """Sample standard deviation / sqrt(n); 0 for a single value."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


def _check(pairs: Sequence[Pair], most_steps: int) -> None:
    if len(pairs) < 2:
        raise CompressionError(
            f"calibration needs pairs of a query and a page, at least two for an error of the mean; found {len(pairs)}"
        )
    layers = pairs[0].support.shape[0]
    for number, pair in enumerate(pairs):
        shape = pair.support.shape
        if shape[0] != layers or shape[1] < most_steps or shape[2] != len(pair.vectors) or not len(pair.vectors):
            raise CompressionError(
                f"pair {number}: expected support of {layers} layers after at least {most_steps} steps for at least "
                f"one token, found shape {shape} for {len(pair.vectors)} vectors"
            )
