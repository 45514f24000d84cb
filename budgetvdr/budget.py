"""How much a search may spend, and what that means for one bundle.

`plan` is pure: a budget and what is available go in, the exact point to run comes out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import index
from typing import Final, SupportsIndex

from budgetvdr.bundle import Preset
from budgetvdr.errors import BudgetError

CANDIDATES: Final = 2048
"""Pages that a first stage proposes under a named budget other than "full", from 64 components on; see `Budget`."""
QUICK_SCAN: Final = 512_000_000
"""Components in memory, over all vectors at one width, up to which a named budget looks at every page: scanning them
takes no longer than a first stage does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A point of the grid; what is left out is taken from the full budget.

    depth: transformer layers executed for the query, and the exit whose page vectors are scored.
    dim: width of every vector, in leading components.
    candidates: pages that the index's first stage proposes; the search looks at these and no others. It is raised to
        the k of the search, and pages that came after the first stage was last brought up to date are looked at on top.
        None looks at every page, and so does an index that has no first stage (see `Index.optimize`).

    What a search then did is `hit.budget`: `pages` looked at, and of these `candidates` scored exactly.

    Raises BudgetError where a value is not a positive whole number.
    """

    depth: int | None = None
    dim: int | None = None
    candidates: int | None = None

    def __post_init__(self) -> None:
        for name in ("depth", "dim", "candidates"):
            value = getattr(self, name)
            if value is not None and not is_count(value):
                raise BudgetError(f"Budget({name}=...) takes a positive whole number, found {value!r}")


def is_count(value: object) -> bool:
    """Whether a value is a whole number from 1, numpy's included."""
    return isinstance(value, SupportsIndex) and not isinstance(value, bool) and index(value) >= 1


@dataclass(frozen=True, slots=True)
class Plan:
    """The exact point one search runs at.

    candidates: how many pages a first stage proposes; None for every page. quick_scan: where the vectors are in memory
    and have no more components than this, every page is looked at all the same.
    """

    depth: int
    dim: int
    candidates: int | None = None
    quick_scan: int = 0


def served_presets(
    presets: Mapping[str, Preset], *, depths: tuple[int, ...], dims: tuple[int, ...]
) -> dict[str, Preset]:
    """The presets of a bundle as an index serves that stores only some of its depths.

    "full" is the deepest and widest there is; the others take the deepest stored depth that is not beyond their own,
    or the shallowest where all are.
    """
    served = {
        name: Preset(max((depth for depth in depths if depth <= preset.depth), default=depths[0]), preset.dim)
        for name, preset in presets.items()
    }
    return served | {"full": Preset(depths[-1], dims[-1])}


def plan(
    budget: Budget | str, *, depths: tuple[int, ...], dims: tuple[int, ...], presets: Mapping[str, Preset]
) -> Plan:
    """Resolves a budget against the depths the index holds, the widths of the bundle and its presets.

    depths, dims: ascending; the last of each is the full budget.

    Raises BudgetError for an unknown preset, and for a depth or width that is not available, naming those that are.
    """
    quick_scan = 0
    if isinstance(budget, str):
        if budget not in presets:
            raise BudgetError(
                f"unknown budget {budget!r}: expected one of {', '.join(map(repr, presets))}, "
                "or Budget(depth=..., dim=..., candidates=...)"
            )
        # What is called full leaves nothing out.
        # Narrower vectors tell pages apart so much less that it takes more for the same recall (docs/results.md).
        proposed = CANDIDATES * max(1, 64 // presets[budget].dim) ** 2
        candidates, quick_scan = (None, 0) if budget == "full" else (proposed, QUICK_SCAN)
        wanted = Budget(depth=presets[budget].depth, dim=presets[budget].dim, candidates=candidates)
    elif isinstance(budget, Budget):
        wanted = budget
    else:
        raise BudgetError(f"budget must be a preset name or a Budget, found {type(budget).__name__}")
    depth = depths[-1] if wanted.depth is None else wanted.depth
    dim = dims[-1] if wanted.dim is None else wanted.dim
    if depth not in depths:
        raise BudgetError(f"depth {depth} is not in this index: expected one of {list(depths)}")
    if dim not in dims:
        raise BudgetError(f"dim {dim} is not a width of this bundle: expected one of {list(dims)}")
    return Plan(depth, dim, None if wanted.candidates is None else index(wanted.candidates), quick_scan)
