"""What a page supplies to a compression method, and what it gets back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from budgetvdr.bundle import Manifest, Window
from budgetvdr.compress.precision import half
from budgetvdr.errors import CompressionError, EncodingError
from budgetvdr.pages import Scores, TokenSignals, Vectors

Groups = npt.NDArray[np.int32]

UNSTORED = -1
"""In a fold map: the token left no trace."""


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """Statistics of the attention among the N tokens of a page, or of one context window of it, in L layers.

    Rows of the attention are divided by their sum over these tokens first (AnchorFold, section 3.2).

    support: (L, N), root mean square over heads of what each token holds after K steps from the uniform distribution.
    in_degree: (L, N), mean over heads of the columns' means.
    from_global: (1, N), mean over heads of the attention that the page's global token pays to each token in the last
        layer executed, which need not be one of the L.
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
    def of(cls, vectors: npt.NDArray[np.floating], signals: TokenSignals | None = None) -> Self:
        """A page as an index holds it: float16 precision, whether it comes from an encoder or from the index.

        vectors: (N, D). signals: None where the method asks for no attention.
        """
        rounded = half(vectors)  # what leaves float16 is refused as not finite
        if signals is None:
            return cls(rounded)
        return cls(rounded, signals.centrality, signals.in_degree, signals.from_global)

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

    vectors: (m, D) float32, not scaled to unit length: keeping all of a page's vectors gives them back to the bit. In
        the order on the page of their tokens, of their anchors, or of the first token that each one holds.
    groups: (N,), the fold map: the stored vector each token went into, UNSTORED for one that was dropped.
    """

    vectors: Vectors
    groups: Groups


class Compression(Protocol):
    """A method with its settings, a frozen dataclass."""

    def asks(self, window: Window | None, depth: int) -> Window | None:
        """The attention wanted of an encoder run to `depth` layers, None for none.

        window: as calibrated there, None where nothing was. Raises CompressionError where the method needs it.
        """

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


def attention_for(method: Compression, manifest: Manifest, depths: Iterable[int]) -> dict[int, Window]:
    """Depth -> the attention that a method wants of a bundle there, for `Encoder.encode_pages`; empty for none.

    Raises CompressionError where the bundle was not calibrated and the method needs that, and where its vectors stand
    for no tokens that attention could tell of.
    """
    if manifest.slots and method.asks(Window(0, 0), 1) is not None:
        raise CompressionError(without_tokens(manifest))
    asked = {depth: method.asks(manifest.compression.get(depth), depth) for depth in depths}
    return {depth: window for depth, window in asked.items() if window is not None}


def without_tokens(manifest: Manifest) -> str:
    """What is said where attention is asked of a bundle with slots."""
    return (
        f"{manifest.name} gives a page {manifest.slots} vectors that stand for no tokens of its own, so that attention "
        "says nothing of them; leave them as they are, or use a method that looks at vectors alone (WardFold, "
        "Clustering, Pooling)"
    )


def calibrated(window: Window | None, method: str, depth: int) -> Window:
    """The window. Raises CompressionError where there is none."""
    if window is None:
        raise CompressionError(
            f"{method} needs the window of layers that calibration finds, and this bundle has none at depth {depth}; "
            "run `budgetvdr calibrate BUNDLE --pairs ...`, or use a method that looks at vectors alone "
            "(WardFold, Clustering, Pooling)"
        )
    return window


def token_signals(windows: Sequence[Attention]) -> TokenSignals:
    """Puts a page's signals together. windows: the context windows it was read in, in order; none for an empty page.

    The attention of a page read in windows is block diagonal. Propagation from the uniform distribution over all N
    tokens then leaves each block of n tokens its share n / N, so that the statistics of the page are those of its
    windows times that share.

    Raises EncodingError for support that is not finite or is negative.
    """
    if not windows:
        nothing = np.zeros(0, np.float32)
        return TokenSignals(nothing, nothing, nothing)
    support, in_degree, from_global = (
        joined([getattr(window, name) for window in windows]) for name in Attention.__slots__
    )
    return TokenSignals(_in_shares(centrality(support)), _in_shares(in_degree), _in_shares(from_global))


def _in_shares(scores: Scores) -> Scores:
    """(..., N) scores -> (N,): their mean, in units of 1 / N and at float16 precision."""
    mean = scores.reshape(-1, scores.shape[-1]).mean(axis=0)
    return half(mean * np.float32(len(mean)))


def joined(windows: Sequence[Scores]) -> Scores:
    """Statistics (..., n) of the windows a page was read in -> (..., N) of the page; see `token_signals`."""
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
