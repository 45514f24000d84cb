"""Recursive attention propagation (AnchorFold, section 3.2) on attention held in memory.

Bundles compute the same inside their graphs; this is for calibration without such a graph, and what they are tested
against.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from budgetvdr.errors import EncodingError
from budgetvdr.pages import Scores


def layer_support(attention: npt.NDArray[np.floating], steps: int) -> Scores:
    """(H, N, N) attention of one layer among the N tokens of a page -> (K, N) root mean squares after steps 1..K.

    attention[h, i, j]: what token i pays to j; rows need not sum to one. A row of zeros passes nothing on. Memory
    beyond the attention itself grows with H * N.

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
    sums = attention.sum(axis=2)
    state = np.full((heads, count), 1 / max(count, 1))
    support = np.empty((steps, count), np.float32)
    for step in range(steps):
        # (A / sums)^T s = A^T (s / sums), without a second matrix.
        scaled = np.divide(state, sums, out=np.zeros_like(state), where=sums > 0)
        state = np.matmul(scaled[:, None], attention)[:, 0]
        support[step] = np.sqrt((state**2).mean(axis=0))
    return support


def in_degree(attention: npt.NDArray[np.floating]) -> Scores:
    """(H, N, N) attention of one layer -> (N,): mean over heads of the means of the row-normalised columns (SAP)."""
    sums = attention.sum(axis=2, keepdims=True)
    rows = np.divide(attention, sums, out=np.zeros_like(attention), where=sums > 0)
    degree: Scores = rows.mean(axis=(0, 1)).astype(np.float32)
    return degree
