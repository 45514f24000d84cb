"""Ward folding: tokens alike in the retrieval space are folded, whatever their place and importance.

Not from the paper. It takes Ward's groups, as hierarchical token pooling does, but of the unit vectors themselves, and
AnchorFold's way of folding: vectors are averaged as projected, before they are scaled to unit length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from budgetvdr.compress.grouping import fold
from budgetvdr.compress.linkage import ward_groups
from budgetvdr.compress.signals import Compressed, Groups, Signals
from budgetvdr.compress.size import Sized
from budgetvdr.pages import Vectors
from budgetvdr.unit import unit_rows

# Tokens grouped at a time: the distances among them take 48 MB while they are needed.
_BLOCK = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class WardFold(Sized):
    """Settings. gamma, cap: most vectors a page keeps (`Sized`). Needs the packages of the extra `compress`.

    Pages of more than 2,048 tokens are grouped in equal runs of at most that many.
    """

    VERSION: ClassVar[int] = 1

    def compress(self, page: Signals) -> Compressed:
        """Raises MissingExtraError without scipy."""
        units, count = unit_rows(page.vectors), len(page.vectors)
        return fold(page.vectors, _groups(units, self.size(count)))


def _groups(units: Vectors, most: int) -> Groups:
    runs = max(1, min(-(-len(units) // _BLOCK), most))
    parts: list[Groups] = []
    found = 0
    for run in range(runs):
        start, end = (len(units) * edge // runs for edge in (run, run + 1))
        groups = ward_groups(units[start:end], most * (run + 1) // runs - most * run // runs)
        parts.append(groups + np.int32(found))
        found += int(groups.max(initial=-1)) + 1
    return np.concatenate(parts)
