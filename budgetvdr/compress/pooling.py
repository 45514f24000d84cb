"""1D pooling: neighbours in reading order become their mean (AnchorFold, appendix A.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from budgetvdr.compress.grouping import fold_directions
from budgetvdr.compress.signals import Compressed, Signals
from budgetvdr.compress.size import Sized


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooling(Sized):
    """Settings. gamma, cap: how many vectors a page keeps (`Sized`); groups differ in size by at most one."""

    VERSION: ClassVar[int] = 1

    def compress(self, page: Signals) -> Compressed:
        """Means of unit vectors."""
        count = len(page.vectors)
        groups = (np.arange(count) * self.size(count) // max(count, 1)).astype(np.int32)
        return fold_directions(page.vectors, groups)
