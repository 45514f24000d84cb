"""The compiled kernels; the functions of `portable`. They raise ValueError for arrays that do not fit together."""

import numpy as np
import numpy.typing as npt

from budgetvdr.similarity.portable import Codes, Float, Offsets, Slices

def tiers() -> list[str]: ...
def quantise(tier: str, slices: Slices, values: Codes, scales: Float, /) -> None: ...
def maxsim(tier: str, slices: Slices, offsets: Offsets, query: Float, scores: Float, /) -> None: ...
def scan_int8(
    tier: str,
    pages: tuple[Codes, Float, Offsets],
    query: tuple[Codes, Float],
    places: npt.NDArray[np.int64] | None,
    scores: Float,
    /,
) -> None: ...
