"""Similarities on the calling thread alone.

Pages are compressed side by side, and a matrix product that BLAS spreads over threads of its own then waits for those
of the next page. OpenBLAS stays on the calling thread for products of up to 2**18 multiplications, and numpy runs a
stack of small products without returning to Python, so that blocks of that size cost what one whole product costs on
one thread.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MOST_MULTIPLICATIONS = 1 << 18


def products(rows: npt.NDArray[np.float32], others: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """(N, D) and (m, D) -> (N, m): the dot product of every row with every other one."""
    side = max(1, int((_MOST_MULTIPLICATIONS / max(1, rows.shape[1])) ** 0.5) // 8 * 8)
    found = np.empty((len(rows), len(others)), np.float32)
    blocks, whole = len(rows) // side, len(rows) // side * side
    stack = rows[:whole].reshape(blocks, side, rows.shape[1])
    into = found[:whole].reshape(blocks, side, len(others))
    columns = np.ascontiguousarray(others.T)
    for start in range(0, len(others), side):
        strip = slice(start, start + side)
        np.matmul(stack, columns[:, strip], out=into[:, :, strip])
        np.matmul(rows[whole:], columns[:, strip], out=found[whole:, strip])
    return found
