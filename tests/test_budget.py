"""Budgets resolve to one exact point, or say what is available."""

import pytest

from budgetvdr import Budget
from budgetvdr.budget import CANDIDATES, QUICK_SCAN, Plan, plan, served_presets
from budgetvdr.bundle import Preset
from budgetvdr.errors import BudgetError

DEPTHS, DIMS = (2, 4, 6), (32, 128, 384)
PRESETS = {"full": Preset(6, 384), "fast": Preset(2, 32)}


def resolve(budget: Budget | str) -> Plan:
    return plan(budget, depths=DEPTHS, dims=DIMS, presets=PRESETS)


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
    ],
)
def test_resolves(budget: Budget | str, expected: Plan) -> None:
    assert resolve(budget) == expected


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        ("quick", r"unknown budget 'quick': expected one of 'full', 'fast', or Budget\(depth=.*, candidates="),
        (Budget(depth=3), r"depth 3 .* \[2, 4, 6\]"),
        (Budget(dim=100), r"dim 100 .* \[32, 128, 384\]"),
        (7, "preset name or a Budget, found int"),
    ],
)
def test_refuses_what_is_not_there(budget: Budget | str, says: str) -> None:
    with pytest.raises(BudgetError, match=says):
        resolve(budget)


@pytest.mark.parametrize(
    ("depths", "full", "balanced", "fast"), [((2, 4, 6), 6, 4, 4), ((2, 6), 6, 2, 2), ((2,), 2, 2, 2), ((6,), 6, 6, 6)]
)
def test_presets_are_served_by_what_is_stored(depths: tuple[int, ...], full: int, balanced: int, fast: int) -> None:
    presets = {"full": Preset(6, 384), "balanced": Preset(4, 128), "fast": Preset(4, 32)}
    served = served_presets(presets, depths=depths, dims=DIMS)
    assert served == {"full": Preset(full, 384), "balanced": Preset(balanced, 128), "fast": Preset(fast, 32)}


@pytest.mark.parametrize("value", [0, -1, 1.5, "6", True])
def test_refuses_values_that_are_not_positive_whole_numbers(value: object) -> None:
    with pytest.raises(BudgetError, match="positive whole number"):
        Budget(depth=value)  # type: ignore[arg-type]
    with pytest.raises(BudgetError, match=r"Budget\(candidates"):
        Budget(candidates=value)  # type: ignore[arg-type]
