"""How much a search may spend, and what that means for one bundle.

`plan` is pure: a budget and what is available go in, the exact point to run comes out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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

    depth: transformer layers executed for the query.
    page_depth: the exit whose page vectors are scored: that of `depth`, or in an index which does not store it the
        deepest that queries of `depth` were trained to search. Given alone, it is the query's depth too.
    dim: width of every vector, in leading components.
    candidates: pages that the index's first stage proposes; the search looks at these and no others. It is raised to
        the k of the search, and pages that came after the first stage was last brought up to date are looked at on top.
        None looks at every page, and so does an index that has no first stage (see `Index.optimize`).

    strict: whether a depth that was not trained to search pages of `page_depth` is refused (`Manifest.query_depths`).
        False tries it all the same: vectors of two depths have little in common unless they were trained to.

    What a search then did is `hit.budget`: `pages` looked at, and of these `candidates` scored exactly.

    Raises BudgetError where a number is not a positive whole one, or strict is neither True nor False.
    """

    depth: int | None = None
    page_depth: int | None = None
    dim: int | None = None
    candidates: int | None = None
    strict: bool = True

    def __post_init__(self) -> None:
        for name in ("depth", "page_depth", "dim", "candidates"):
            value = getattr(self, name)
            if value is not None and not is_count(value):
                raise BudgetError(f"Budget({name}=...) takes a positive whole number, found {value!r}")
        if not isinstance(self.strict, bool):
            raise BudgetError(f"Budget(strict=...) is True or False, found {self.strict!r}")


def is_count(value: object) -> bool:
    """Whether a value is a whole number from 1, numpy's included."""
    return isinstance(value, SupportsIndex) and not isinstance(value, bool) and index(value) >= 1


@dataclass(frozen=True, slots=True)
class Plan:
    """The exact point one search runs at.

    depth: layers executed for the query. page_depth: the exit whose page vectors are scored; left out, that of depth.
    candidates: how many pages a first stage proposes; None for every page. quick_scan: where the vectors are in memory
    and have no more components than this, every page is looked at all the same.
    """

    depth: int
    dim: int
    candidates: int | None = None
    quick_scan: int = 0
    page_depth: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        if not self.page_depth:
            object.__setattr__(self, "page_depth", self.depth)


QueryDepths = Mapping[int, tuple[int, ...]]
"""Page depth that an index stores -> query depths trained to search it; both ascending."""


def served_presets(
    presets: Mapping[str, Preset], *, query_depths: QueryDepths, dims: tuple[int, ...]
) -> dict[str, Preset]:
    """The presets of a bundle as an index serves that stores only some of its depths.

    "full" is the deepest and widest there is; the others take the deepest depth that can be searched and is not beyond
    their own, or the shallowest where all are.
    """
    depths = _searchable(query_depths)
    served = {
        name: Preset(max((depth for depth in depths if depth <= preset.depth), default=depths[0]), preset.dim)
        for name, preset in presets.items()
    }
    return served | {"full": Preset(max(query_depths), dims[-1])}


def plan(
    budget: Budget | str, *, query_depths: QueryDepths, dims: tuple[int, ...], presets: Mapping[str, Preset]
) -> Plan:
    """Resolves a budget against the depths the index holds, the widths of the bundle and its presets.

    The deepest page depth, searched by its own, and the last of the ascending dims are the full budget.

    Raises BudgetError for an unknown preset, for a depth or width that is not available, and for a pair of depths that
    was not trained, naming those that are.
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
    depth, page_depth = _depths(wanted, query_depths)
    dim = dims[-1] if wanted.dim is None else wanted.dim
    if dim not in dims:
        raise BudgetError(f"dim {dim} is not a width of this bundle: expected one of {list(dims)}")
    candidates = None if wanted.candidates is None else index(wanted.candidates)
    return Plan(depth, dim, candidates, quick_scan, page_depth=page_depth)


def _searchable(query_depths: QueryDepths) -> list[int]:
    """Query depths trained for some of the pages, ascending."""
    return sorted({depth for asked in query_depths.values() for depth in asked})


def _depths(wanted: Budget, query_depths: QueryDepths) -> tuple[int, int]:
    """Query depth and page depth of a budget."""
    deepest = max(query_depths)
    given = wanted.page_depth if wanted.depth is None else wanted.depth
    depth = deepest if given is None else index(given)
    if wanted.page_depth is not None:
        page_depth = index(wanted.page_depth)
        if page_depth not in query_depths:
            raise BudgetError(f"page_depth {page_depth} is not in this index: expected one of {sorted(query_depths)}")
    elif depth in query_depths:
        page_depth = depth
    else:
        trained = [page for page, asked in query_depths.items() if depth in asked]
        if wanted.strict and not trained:
            raise BudgetError(
                f"depth {depth} is not in this index, nor trained to search the pages in it: expected one of "
                f"{_searchable(query_depths)}"
            )
        page_depth = max(trained, default=deepest)
    if wanted.strict and depth not in query_depths[page_depth]:
        raise BudgetError(
            f"queries of depth {depth} were not trained to search pages of depth {page_depth}: expected a depth of "
            f"{list(query_depths[page_depth])}, or Budget(..., strict=False) to try it all the same"
        )
    return depth, page_depth
