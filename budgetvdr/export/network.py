"""An ONNX graph whose large constants are not in it: they are converted block by block when they are written."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

Array = npt.NDArray[Any]
Convert = Callable[[Array], Array]

_BLOCK_BYTES = 1 << 25


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """An array as it is in memory, and what becomes of its rows.

    source: at least one dimension; a view costs nothing. convert: rows -> contiguous rows, each on its own, so that a
    block of a large array can be converted without the rest. Equal functions must do the same: constants of one array
    and equal `convert` are written once.
    """

    source: Array
    convert: Convert = np.ascontiguousarray

    @property
    def key(self) -> Hashable:
        """Equal for constants that are the same, as long as the arrays live."""
        source = self.source
        return source.__array_interface__["data"][0], source.shape, source.strides, source.dtype, self.convert

    def head(self) -> Array:
        """What becomes of the first row."""
        return self.convert(self.source[:1])

    def shape(self) -> tuple[int, ...]:
        """After conversion."""
        first, *rest = self.head().shape
        return (first * len(self.source), *rest)

    def blocks(self) -> Iterator[Array]:
        """The converted array, in parts of about 32 MB of its source."""
        rows = max(1, _BLOCK_BYTES * len(self.source) // max(1, self.source.nbytes))
        for start in range(0, len(self.source), rows):
            yield self.convert(self.source[start : start + rows])


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """proto: a model without its large constants. constants: those, by the name that nodes know them by."""

    proto: onnx.ModelProto
    constants: dict[str, Constant]
