"""Hierarchical token pooling, as users of colpali-engine know it: Ward's method on cosine distances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from budgetvdr.compress.grouping import fold_directions
from budgetvdr.compress.linkage import ward_groups
from budgetvdr.compress.products import products
from budgetvdr.compress.signals import Compressed, Signals
from budgetvdr.compress.size import Sized
from budgetvdr.unit import unit_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class WardPooling(Sized):
    """Settings. gamma, cap: most groups a page gets (`Sized`); gamma is 1 / pool_factor. Needs the extra `compress`.

    As there, each token is described by its cosine distances to all tokens of the page, and Ward's method runs on the
    Euclidean distances of these rows; memory grows with the square of the page's tokens.
    """

    VERSION: ClassVar[int] = 1

    def compress(self, page: Signals) -> Compressed:
        """Means of unit vectors. Raises MissingExtraError without scipy."""
        units = unit_rows(page.vectors)
        return fold_directions(page.vectors, ward_groups(1 - products(units, units), self.size(len(units))))
