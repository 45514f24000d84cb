"""Recursive attention propagation (AnchorFold, section 3.2) on attention held in memory.

Bundles compute the same inside their graphs and are tested against this; it is for models whose attention is at hand.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from budgetvdr.errors import EncodingError
from budgetvdr.pages import Scores


def layer_support(attention: npt.NDArray[np.floating], steps: int) -> Scores:
    """(H, N, N) attention of one layer among the N tokens of a page -> (K, N) root mean squares after steps 1..K.

    attention[h, i, j]: what token i pays to j; rows need not sum to one. A row of zeros passes nothing on. Memory
    beyond the attention itself grows with H * N, but for half precision, which is copied to float32.

    Raises EncodingError for values that are not finite or are negative.
    """
    if attention.ndim != 3 or attention.shape[1] != attention.shape[2]:
        raise EncodingError(f"expected attention (H, N, N) of one layer, found shape {attention.shape}")
    # Written so that NaN fails too.
    if attention.size and not (attention.min() >= 0 and attention.max() < np.inf):
        raise EncodingError(
            f"expected attention that is finite and not negative, found {attention.min()} to {attention.max()}"
        )
    heads, count, _ = attention.shape
    attention = attention.astype(np.promote_types(attention.dtype, np.float32), copy=False)
    sums = attention.sum(axis=2)
    # In float64 all of float32's attention would be copied at every step.
    state = np.full((heads, count), 1 / max(count, 1), sums.dtype)
    support = np.empty((steps, count), np.float32)
    for step in range(steps):
        # (A / sums)^T s = A^T (s / sums), without a second matrix.
        scaled = np.divide(state, sums, out=np.zeros_like(state), where=sums > 0)
        state = np.matmul(scaled[:, None], attention)[:, 0]
        support[step] = np.sqrt((state**2).mean(axis=0))
    return support


def in_degree(attention: npt.NDArray[np.floating]) -> Scores:
    """(H, N, N) attention of one layer -> (N,): mean over heads of the means of the row-normalised columns (SAP)."""
    heads, count, _ = attention.shape
    sums = attention.sum(axis=2)
    shares = np.divide(1 / max(count, 1), sums, out=np.zeros_like(sums), where=sums > 0)
    degree: Scores = (np.matmul(shares[:, None], attention)[:, 0].sum(axis=0) / heads).astype(np.float32)
    return degree
