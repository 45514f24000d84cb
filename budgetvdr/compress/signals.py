"""What a page supplies to a compression method, and what it gets back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from budgetvdr.errors import BudgetVDRError, EncodingError
from budgetvdr.pages import Vectors

Scores = npt.NDArray[np.float32]
Groups = npt.NDArray[np.int32]

UNSTORED = -1
"""In a fold map: the token left no trace."""


class CompressionError(BudgetVDRError):
    """A compression method lacks something of the page that it needs."""


@dataclass(frozen=True, slots=True)
class Window:
    """The layers whose attention is looked at, first to last, zero-based and inclusive, and the steps K taken in it."""

    first: int
    last: int
    steps: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last or self.steps < 1:
            raise ValueError(f"expected 0 <= first <= last and steps >= 1; found {self}")

    def __len__(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """Statistics of the attention among the N tokens of a page, or of one context window of it, in L layers.

    Rows of the attention are divided by their sum over these tokens first (AnchorFold, section 3.2).

    support: (L, N), root mean square over heads of what each token holds after K steps from the uniform distribution.
    in_degree: (L, N), mean over heads of the columns' means.
    from_global: (L, N), mean over heads of the attention that the page's global token pays to each token.
    """

    support: Scores
    in_degree: Scores
    from_global: Scores


@dataclass(frozen=True, slots=True, eq=False)
class Signals:
    """One page at one exit.

    vectors: (N, D) float32, projected and not scaled to unit length.
    centrality: (N,), propagated attention centrality (AnchorFold, section 3.2).
    in_degree: (N,), visual in-degree (SAP). from_global: (N,), attention of the global token (DocPruner).
    Each of these is finite and not negative, or None where the encoder was not asked for it.

    Raises EncodingError for values that are not.
    """

    vectors: Vectors
    centrality: Scores | None = None
    in_degree: Scores | None = None
    from_global: Scores | None = None

    def __post_init__(self) -> None:
        if self.vectors.ndim != 2 or not np.isfinite(self.vectors).all():
            raise EncodingError(f"expected finite vectors (N, D) to compress, found shape {self.vectors.shape}")
        for name in ("centrality", "in_degree", "from_global"):
            scores = getattr(self, name)
            if scores is not None:
                _check_scores(name, scores, len(self.vectors))

    @classmethod
    def of(cls, vectors: Vectors, windows: Sequence[Attention]) -> Self:
        """Puts a page together. windows: those it was read in, in order; none for a page without tokens.

        The attention of a page read in windows is block diagonal. Propagation from the uniform distribution over all N
        tokens then leaves each block of n tokens its share n / N, so that the statistics of the page are those of its
        windows times that share.
        """
        if not windows:
            nothing = np.zeros(0, np.float32)
            return cls(vectors, nothing, nothing, nothing)
        support, in_degree, from_global = (
            joined([getattr(window, name) for window in windows]) for name in Attention.__slots__
        )
        return cls(vectors, centrality(support), in_degree.mean(axis=0), from_global.mean(axis=0))

    def need(self, name: str, method: str) -> Scores:
        """One of the scores. Raises CompressionError where the page lacks it."""
        scores: Scores | None = getattr(self, name)
        if scores is None:
            raise CompressionError(
                f"{method} needs {name} of every page, which this encoder or index does not supply; "
                "use a bundle that does, or a method that looks at vectors alone (WardFold, Clustering, Pooling)"
            )
        return scores


@dataclass(frozen=True, slots=True, eq=False)
class Compressed:
    """Fewer vectors.

    vectors: (m, D) float32, unit length; zero rows stay zero. Ordered by the first token each stands for.
    groups: (N,), the fold map: the stored vector each token went into, UNSTORED for one that was dropped.
    """

    vectors: Vectors
    groups: Groups


class Compression(Protocol):
    """A method with its settings, a frozen dataclass."""

    def asks(self, window: Window, depth: int) -> Window | None:
        """The attention wanted of an encoder run to `depth` layers, None for none. window: as calibrated there."""

    def compress(self, page: Signals) -> Compressed:
        """Raises CompressionError where the page lacks what the method needs."""


def centrality(support: Scores) -> Scores:
    """support (L, N) of every layer -> (N,): each layer divided by its sum over the page, then their mean.

    A layer without any support counts as uniform. Raises EncodingError for values not finite or negative.
    """
    for layer in support:
        _check_scores("support", layer, support.shape[1])
    totals = support.sum(axis=1, keepdims=True)
    uniform = np.full_like(support, 1 / max(support.shape[1], 1))
    shares = np.divide(support, totals, out=uniform, where=totals > 0)
    mean: Scores = shares.mean(axis=0)
    return mean


def joined(windows: Sequence[Scores]) -> Scores:
    """Statistics (..., n) of the windows a page was read in -> (..., N) of the page; see `Signals.of`."""
    count = sum(window.shape[-1] for window in windows)
    return np.concatenate([window * np.float32(window.shape[-1] / count) for window in windows], axis=-1)


def _check_scores(name: str, scores: Scores, count: int) -> None:
    if scores.shape != (count,):
        raise EncodingError(f"expected {name} ({count},), one value a vector, found shape {scores.shape}")
    # Written so that NaN fails too.
    if count and not (scores.min() >= 0 and scores.max() < np.inf):
        raise EncodingError(
            f"expected {name} to be finite and not negative, found {scores.min()} to {scores.max()}; "
            "the encoder's attention is damaged: run it with another provider or export the bundle again"
        )
