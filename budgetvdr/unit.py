"""Lengths of vectors, and vectors of unit length."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.float32]


def lengths(rows: Rows) -> Rows:
    """(n, D) -> (n,) lengths to divide by: 1 for a zero row, which stays zero."""
    # Squares of float16 values neither overflow nor vanish in float32.
    found: Rows = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    found[found == 0] = 1
    return found


def unit_rows(rows: Rows) -> Rows:
    """(n, D) scaled to unit length; zero rows stay zero."""
    return rows / lengths(rows)[:, None]
