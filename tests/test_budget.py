"""Budgets resolve to one exact point, or say what is available."""

import pytest

from budgetvdr import Budget
from budgetvdr.budget import CANDIDATES, QUICK_SCAN, Plan, QueryDepths, plan, served_presets
from budgetvdr.bundle import Preset
from budgetvdr.errors import BudgetError

DEPTHS, DIMS = (2, 4, 6), (32, 128, 384)
OWN = {depth: (depth,) for depth in DEPTHS}
PRESETS = {"full": Preset(6, 384), "fast": Preset(2, 32)}


def resolve(budget: Budget | str, query_depths: QueryDepths = OWN) -> Plan:
    return plan(budget, query_depths=query_depths, dims=DIMS, presets=PRESETS)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        ("full", Plan(6, 384)),
        ("fast", Plan(2, 32, 4 * CANDIDATES, QUICK_SCAN)),
        (Budget(), Plan(6, 384)),
        (Budget(depth=4), Plan(4, 384)),
        (Budget(dim=32), Plan(6, 32)),
        (Budget(depth=2, dim=128), Plan(2, 128)),
        (Budget(candidates=500), Plan(6, 384, 500)),
        (Budget(page_depth=4), Plan(4, 384)),
        (Budget(depth=4, page_depth=4), Plan(4, 384)),
        (Budget(depth=2, page_depth=6, strict=False), Plan(2, 384, page_depth=6)),
    ],
)
def test_resolves(budget: Budget | str, expected: Plan) -> None:
    assert resolve(budget) == expected


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        ("quick", r"unknown budget 'quick': expected one of 'full', 'fast', or Budget\(depth=.*, candidates="),
        (Budget(depth=3), r"depth 3 .* \[2, 4, 6\]"),
        (Budget(depth=6, page_depth=3), r"page_depth 3 is not in this index: expected one of \[2, 4, 6\]"),
        (
            Budget(depth=2, page_depth=6),
            r"depth 2 were not trained to search pages of depth 6: .* \[6\], or Budget\(..., strict=False\)",
        ),
        (Budget(dim=100), r"dim 100 .* \[32, 128, 384\]"),
        (7, "preset name or a Budget, found int"),
    ],
)
def test_refuses_what_is_not_there(budget: Budget | str, says: str) -> None:
    with pytest.raises(BudgetError, match=says):
        resolve(budget)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        # Its own pages are not there.
        (Budget(depth=2), Plan(2, 384, page_depth=6)),
        (Budget(depth=3), Plan(3, 384, page_depth=4)),
        (Budget(depth=4), Plan(4, 384)),
        (Budget(), Plan(6, 384)),
        ("fast", Plan(2, 32, 4 * CANDIDATES, QUICK_SCAN, page_depth=6)),
        (Budget(depth=2, page_depth=4), Plan(2, 384, page_depth=4)),
        (Budget(depth=5, strict=False), Plan(5, 384, page_depth=6)),
    ],
)
def test_the_deepest_pages_that_a_depth_was_trained_for_are_searched(budget: Budget | str, expected: Plan) -> None:
    assert resolve(budget, {4: (2, 3, 4), 6: (2, 6)}) == expected


def test_what_was_not_trained_is_refused_with_what_was() -> None:
    trained = {4: (2, 3, 4), 6: (2, 6)}
    with pytest.raises(BudgetError, match=r"depth 5 is not in this index, nor trained .* \[2, 3, 4, 6\]"):
        resolve(Budget(depth=5), trained)
    with pytest.raises(BudgetError, match=r"depth 4 were not trained to search pages of depth 6: .* \[2, 6\]"):
        resolve(Budget(depth=4, page_depth=6), trained)


@pytest.mark.parametrize(
    ("depths", "full", "balanced", "fast"), [((2, 4, 6), 6, 4, 4), ((2, 6), 6, 2, 2), ((2,), 2, 2, 2), ((6,), 6, 6, 6)]
)
def test_presets_are_served_by_what_is_stored(depths: tuple[int, ...], full: int, balanced: int, fast: int) -> None:
    presets = {"full": Preset(6, 384), "balanced": Preset(4, 128), "fast": Preset(4, 32)}
    served = served_presets(presets, query_depths={depth: (depth,) for depth in depths}, dims=DIMS)
    assert served == {"full": Preset(full, 384), "balanced": Preset(balanced, 128), "fast": Preset(fast, 32)}


def test_presets_keep_a_depth_that_was_trained_for_the_pages_there_are() -> None:
    presets = {"full": Preset(6, 384), "balanced": Preset(4, 128), "fast": Preset(2, 32)}
    served = served_presets(presets, query_depths={6: (2, 6)}, dims=DIMS)
    assert served == {"full": Preset(6, 384), "balanced": Preset(2, 128), "fast": Preset(2, 32)}


@pytest.mark.parametrize("value", [0, -1, 1.5, "6", True])
def test_refuses_values_that_are_not_positive_whole_numbers(value: object) -> None:
    with pytest.raises(BudgetError, match="positive whole number"):
        Budget(depth=value)  # type: ignore[arg-type]
    with pytest.raises(BudgetError, match=r"Budget\(candidates"):
        Budget(candidates=value)  # type: ignore[arg-type]
    with pytest.raises(BudgetError, match=r"Budget\(page_depth"):
        Budget(page_depth=value)  # type: ignore[arg-type]


def test_refuses_a_strict_that_is_no_answer() -> None:
    with pytest.raises(BudgetError, match=r"strict=.*True or False, found 1"):
        Budget(strict=1)  # type: ignore[arg-type]
