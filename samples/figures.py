"""The numbers of the sample report; text, tables and charts are all made from these, so they cannot disagree.

Money is in thousand euro.
"""

from __future__ import annotations

from collections.abc import Sequence

SEGMENTS = (  # name, 2030, 2031
    ("River gauges", 16_950, 18_420),
    ("Weather stations", 9_780, 9_310),
    ("Flood warning", 5_940, 7_685),
    ("Calibration and repair", 3_990, 4_205),
)
REVENUE_2030 = sum(row[1] for row in SEGMENTS)
REVENUE = sum(row[2] for row in SEGMENTS)

REGIONS = (  # name, revenue 2031, customers
    ("Northern rivers", 14_260, 118),
    ("Alpine region", 9_870, 86),
    ("Delta and coast", 8_115, 64),
    ("Overseas", 7_375, 41),
)

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
GAUGES_2030 = (142, 150, 171, 168, 160, 155, 149, 131, 163, 170, 158, 121)
GAUGES_2031 = (151, 163, 188, 194, 176, 97, 118, 169, 201, 214, 190, 139)
ON_TIME = (94, 83, 88, 96)  # per cent of orders, by quarter
COMPLAINTS = (11, 19, 16, 8)  # by quarter

SITES = (  # name, headcount, of them women, apprentices
    ("Oststeg (headquarters, halls 1 to 3)", 151, 58, 9),
    ("Hallenbruck (calibration laboratory)", 34, 15, 3),
    ("Vierwehr (field service base)", 53, 12, 4),
)
HEADCOUNT = sum(row[1] for row in SITES)

YEARS = ("2027", "2028", "2029", "2030", "2031")
ELECTRICITY = (2_140, 2_210, 2_185, 1_960, 1_815)  # MWh bought
GAS = (1_480, 1_390, 1_275, 1_120, 640)  # MWh
SOLAR = (0, 0, 210, 385, 610)  # MWh made on the roofs
EMISSIONS = (1_012, 986, 921, 803, 596)  # tonnes of CO2

PROJECTS = (  # name, spent 2031, what for, state
    ("Plover", 880, "Radar gauge without moving parts", "In the field since September"),
    ("Minnow", 640, "Buoy that measures nitrate", "Second prototype"),
    ("Lantern", 515, "Flood forecast for small catchments", "Pilot with eleven towns"),
    ("Thimble", 290, "Rain sensor for road lamps", "Stopped in May"),
    ("Quarry", 175, "Recycling of old mercury switches", "Finished"),
)
RESEARCH = sum(row[1] for row in PROJECTS)

COSTS = (  # name, 2030, 2031
    ("Materials and purchased services", 14_890, 15_850),
    ("Personnel", 14_520, 15_480),
    ("Depreciation", 1_690, 1_760),
    ("Other operating costs", 3_010, 3_210),
)
PROFIT_2030 = REVENUE_2030 - sum(row[1] for row in COSTS)
PROFIT = REVENUE - sum(row[2] for row in COSTS)
INTEREST_2030, INTEREST = 280, 245
TAX_2030, TAX = 680, 920

ASSETS = (
    ("Land, buildings and machines", 11_240),
    ("Software and patents", 2_310),
    ("Inventories", 7_980),
    ("Receivables from customers", 6_450),
    ("Cash", 4_620),
)
LIABILITIES = (
    ("Equity", 17_850),
    ("Bank loans", 6_200),
    ("Pension provisions", 3_140),
    ("Payables to suppliers", 3_510),
    ("Advance payments received", 1_900),
)
BALANCE = sum(value for _, value in ASSETS)
CASH_FLOWS = (("Operations", 4_980), ("Investments", -2_730), ("Loans and dividends", -1_500))
OPENING_CASH = 3_870

RISKS = (  # name, likelihood, damage if it happens, answer
    ("Radar chips arrive late again", "high", 1_400, "Second supplier approved, stock for ten weeks"),
    ("A flood damages the Vierwehr base", "low", 2_100, "Stores moved to the upper floor, insurance"),
    ("Attack on the alarm network", "medium", 1_900, "Separate network, drill twice a year"),
    ("A large customer cuts its budget", "medium", 950, "No customer above 9 % of revenue"),
)


def quarters(months: Sequence[int]) -> list[int]:
    """Sums of three months each."""
    return [sum(months[start : start + 3]) for start in range(0, 12, 3)]


def on_time_year() -> float:
    """Per cent of orders on time over the year: the quarters, weighted by deliveries."""
    weights = quarters(GAUGES_2031)
    return sum(share * weight for share, weight in zip(ON_TIME, weights, strict=True)) / sum(weights)


def check() -> None:
    """Raises ValueError where the accounts do not balance."""
    for name, left, right in (
        ("revenue by region", sum(row[1] for row in REGIONS), REVENUE),
        ("balance sheet", BALANCE, sum(value for _, value in LIABILITIES)),
        ("cash", OPENING_CASH + sum(value for _, value in CASH_FLOWS), dict(ASSETS)["Cash"]),
    ):
        if left != right:
            raise ValueError(f"{name}: {left} is not {right}")


def change(before: float, after: float) -> str:
    """Change in per cent with sign, such as "+8.1 %"."""
    return f"{100 * (after / before - 1):+.1f} %"


def money(thousands: float) -> str:
    """Thousand euro as a table shows it, negative numbers in brackets."""
    return f"({-thousands:,.0f})" if thousands < 0 else f"{thousands:,.0f}"


def millions(thousands: float) -> str:
    """Thousand euro as running text shows it."""
    return f"EUR {thousands / 1000:.1f} million"
