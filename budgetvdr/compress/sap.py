"""Structural anchor pruning: the tokens that get most attention stay as they are (AnchorFold, appendix A.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from budgetvdr.bundle import Window
from budgetvdr.compress.grouping import highest, keep
from budgetvdr.compress.signals import Compressed, Signals, calibrated
from budgetvdr.compress.size import Sized


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuralPruning(Sized):
    """Settings of SAP. gamma, cap: how many vectors a page keeps (`Sized`)."""

    VERSION: ClassVar[int] = 1

    def asks(self, window: Window | None, depth: int) -> Window | None:
        """One step in the calibrated window. Raises CompressionError without one."""
        calibration = calibrated(window, "StructuralPruning", depth)
        return Window(calibration.first, calibration.last)

    def compress(self, page: Signals) -> Compressed:
        """Raises CompressionError without in_degree."""
        scores = page.need("in_degree", "StructuralPruning")
        return keep(page.vectors, highest(scores, self.size(len(scores))))
