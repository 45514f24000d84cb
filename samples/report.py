"""The sample report: twelve pages with tables and vector charts, all made from the same figures."""

from __future__ import annotations

import figures as fig
from charts import bar_chart, line_chart, ring_chart
from figures import change, millions, money
from layout import (
    COMPANY,
    HEIGHT,
    INK,
    MARGIN,
    PALE,
    SAND,
    TEAL,
    WIDTH,
    Document,
    Page,
    body,
    bullets,
    callout,
    caption,
    chapter,
    grid,
    section,
)
from reportlab.lib.units import mm
from reportlab.pdfgen.canvas import Canvas

PERIOD = "Financial year 1 January to 31 December 2031"


def _cover(canvas: Canvas) -> None:
    canvas.setFillColor(INK)
    canvas.rect(0, 0, WIDTH, HEIGHT, stroke=0, fill=1)
    bars = fig.GAUGES_2031
    for number, value in enumerate(bars):
        canvas.setFillColor(SAND if value == min(bars) else TEAL)
        canvas.rect(MARGIN + number * 13.4 * mm, 0, 10.5 * mm, value * 0.42 * mm, stroke=0, fill=1)
    canvas.setFillColor(PALE)
    canvas.setFont("Helvetica", 13)
    canvas.drawString(MARGIN, HEIGHT - 38 * mm, COMPANY)
    canvas.setFont("Helvetica-Bold", 40)
    canvas.drawString(MARGIN, HEIGHT - 78 * mm, "Annual Report")
    canvas.setFillColor(SAND)
    canvas.drawString(MARGIN, HEIGHT - 95 * mm, "2031")
    canvas.setFillColor(PALE)
    canvas.setFont("Helvetica", 12)
    canvas.drawString(MARGIN, HEIGHT - 110 * mm, PERIOD)
    canvas.drawString(MARGIN, HEIGHT - 117 * mm, "Money in thousand euro unless stated otherwise")


def _brief() -> Page:
    return [
        *chapter("The year in brief", "More floods, more warnings, and a summer without chips."),
        *grid(
            [
                ("Key figure", "2030", "2031", "Change"),
                ("Revenue", money(fig.REVENUE_2030), money(fig.REVENUE), change(fig.REVENUE_2030, fig.REVENUE)),
                ("Operating profit", money(fig.PROFIT_2030), money(fig.PROFIT), change(fig.PROFIT_2030, fig.PROFIT)),
                (
                    "Gauges delivered (pieces)",
                    f"{sum(fig.GAUGES_2030):,}",
                    f"{sum(fig.GAUGES_2031):,}",
                    change(sum(fig.GAUGES_2030), sum(fig.GAUGES_2031)),
                ),
                (
                    "Emissions (tonnes of CO2)",
                    f"{fig.EMISSIONS[-2]:,}",
                    f"{fig.EMISSIONS[-1]:,}",
                    change(fig.EMISSIONS[-2], fig.EMISSIONS[-1]),
                ),
            ],
            (0.43, 0.19, 0.19, 0.19),
            right=(1, 2, 3),
        ),
        *section(
            "What moved us",
            f"Revenue grew by {change(fig.REVENUE_2030, fig.REVENUE)[1:]} to {millions(fig.REVENUE)}. The growth came "
            "from two sources: towns that want to be warned earlier, and water authorities that replace float gauges "
            "by radar.",
            "June and July were hard. A fire at a maker of radar chips stopped its line for seven weeks, and ours with "
            "it. We lent 64 used gauges to customers who could not wait, and kept every one of those customers.",
        ),
        *section("Five dates to remember"),
        *bullets(
            "<b>17 April:</b> the three-hundredth customer signs.",
            "<b>6 June:</b> the last box of radar chips is used up.",
            "<b>28 July:</b> the first new chips arrive by courier.",
            "<b>9 September:</b> Plover, the radar gauge without moving parts, goes on sale.",
            "<b>21 November:</b> the Lantern pilot warns the town of Nieder-Ahl five hours before the water comes.",
        ),
    ]


def _letter() -> Page:
    return [
        *chapter("Letter to our owners", "Dear members of the Marlowick family, dear staff who own a fifth of us,"),
        *body(
            "a company that measures rivers learns patience. Water does what it wants, and the best one can do is to "
            "look closely and to say early what one sees. I would like to do the same in this letter.",
            "We saw the shortage of radar chips coming, and we acted too late. Our buyers had asked for a second "
            "supplier in the spring of 2030; the board, and I with it, found the test too expensive. The test would "
            "have cost EUR 85,000. The seven weeks without chips cost us about EUR 1.1 million in postponed orders. "
            "That is a sum I will not forget.",
            "What made me proud was the answer. Assembly and Field Service went through the stores, repaired old "
            "gauges and brought them to rivers that would have been blind otherwise. Nobody had ordered this. It was "
            "simply done.",
            "The board proposes a dividend of EUR 0.62 a share, four cents more than last year, and a thank-you of EUR "
            "750 for every member of staff. We also propose to raise the share of the staff foundation from 20 to 22 "
            "%.",
            "In 2032 Marlowick turns sixty. We will celebrate on the second Saturday in June, in the flume hall, with "
            "the pumps running.",
            "Yours,",
            "<i>Henrike Solbrandt</i><br/>Managing Director",
        ),
    ]


def _segments() -> Page:
    rows = [(name, money(a), money(b), change(a, b), f"{100 * b / fig.REVENUE:.1f} %") for name, a, b in fig.SEGMENTS]
    total = ("Total", money(fig.REVENUE_2030), money(fig.REVENUE), change(fig.REVENUE_2030, fig.REVENUE), "100.0 %")
    warning = fig.SEGMENTS[2]
    weather = fig.SEGMENTS[1]
    return [
        *chapter("Revenue by segment", "Flood warning is the fastest growing part of the house."),
        bar_chart(
            [row[0] for row in fig.SEGMENTS],
            [("2030", [row[1] for row in fig.SEGMENTS]), ("2031", [row[2] for row in fig.SEGMENTS])],
            top=20_000,
            step=5_000,
            unit="Thousand euro",
        ),
        *caption("Figure 1. Revenue of the four segments in 2030 and 2031."),
        *grid(
            [("Segment", "2030", "2031", "Change", "Share"), *rows, total],
            (0.36, 0.16, 0.16, 0.16, 0.16),
            right=(1, 2, 3, 4),
            total=True,
        ),
        *body(
            f"<b>Flood warning</b> rose from {millions(warning[1])} to {millions(warning[2])}. Twenty-three towns "
            "signed subscriptions, most of them for five years. Nine of ten subscriptions that ended were renewed.",
            f"<b>Weather stations</b> lost {millions(weather[1] - weather[2])}. Two motorway authorities now buy "
            "cheaper stations with a shorter life. We do not follow them down in price and expect a further small "
            "decline.",
        ),
    ]


def _regions() -> Page:
    rows = [(name, money(value), str(customers), money(value / customers)) for name, value, customers in fig.REGIONS]
    customers = sum(row[2] for row in fig.REGIONS)
    return [
        *chapter("Revenue by region", "Close to home, with a growing branch overseas."),
        ring_chart([(name, value) for name, value, _ in fig.REGIONS], f"{fig.REVENUE / 1000:.1f} million"),
        *caption("Figure 2. Shares of the regions in the revenue of 2031."),
        *grid(
            [
                ("Region", "Revenue", "Customers", "Revenue per customer"),
                *rows,
                ("Total", money(fig.REVENUE), str(customers), money(fig.REVENUE / customers)),
            ],
            (0.34, 0.2, 0.2, 0.26),
            right=(1, 2, 3),
            total=True,
        ),
        *body(
            f"We served {customers} customers. The ten largest stood for 41 % of revenue, the largest alone for 8.6 %: "
            "the authority for the northern canals, a customer since 1984.",
            "Overseas, a partner in Valdorra assembles our gauges from kits since March. It took 420 kits in its first "
            "year and is to take 600 in the next. Payment is in euro, so that we carry no currency risk.",
        ),
        *callout("<b>Lost and found.</b> Seven customers left us in 2031, nineteen joined, and three came back."),
    ]


def _deliveries() -> Page:
    quarters = fig.quarters(fig.GAUGES_2031)
    rows = [(f"Quarter {q + 1}", f"{quarters[q]:,}", f"{fig.ON_TIME[q]} %", str(fig.COMPLAINTS[q])) for q in range(4)]
    low = min(fig.GAUGES_2031)
    return [
        *chapter("Deliveries and quality", "One bad summer in a good year."),
        line_chart(
            fig.MONTHS, [("2030", fig.GAUGES_2030), ("2031", fig.GAUGES_2031)], top=250, step=50, unit="Gauges a month"
        ),
        *caption("Figure 3. Gauges delivered by month. The dip in June and July 2031 is the shortage of radar chips."),
        *grid(
            [
                ("2031", "Gauges delivered", "Orders on time", "Complaints"),
                *rows,
                ("Year", f"{sum(quarters):,}", f"{fig.on_time_year():.0f} %", str(sum(fig.COMPLAINTS))),
            ],
            (0.28, 0.26, 0.24, 0.22),
            right=(1, 2, 3),
            total=True,
        ),
        *body(
            f"In June only {low} gauges left the house, the lowest figure since the move to Oststeg. In October we "
            f"delivered {max(fig.GAUGES_2031)}, more than in any month before, thanks to a second shift that 31 "
            "colleagues joined by their own choice.",
            f"Of the {sum(fig.COMPLAINTS)} complaints, 29 were about late delivery, 14 about a seal that let moisture "
            "in, and the rest about papers. The seal was changed in August; no gauge with the new one has come back so "
            "far.",
        ),
    ]


def _people() -> Page:
    rows = [(name, str(all_), str(women), str(young)) for name, all_, women, young in fig.SITES]
    women = sum(row[2] for row in fig.SITES)
    return [
        *chapter("People", "Who we are, and how long we stay."),
        *grid(
            [
                ("Site", "People", "Women", "Apprentices"),
                *rows,
                ("Total", str(fig.HEADCOUNT), str(women), str(sum(row[3] for row in fig.SITES))),
            ],
            (0.49, 0.16, 0.16, 0.19),
            right=(1, 2, 3),
            total=True,
        ),
        *caption("Headcount on 31 December 2031, part-time staff counted as one."),
        *body(
            f"At the end of the year {fig.HEADCOUNT} people worked for us, eleven more than a year before. Women made "
            f"up {100 * women / fig.HEADCOUNT:.0f} % of staff and 29 % of team leads. The average age was 43.7 years, "
            "the average length of service 9.4 years.",
        ),
        *section(
            "Coming and going",
            "Twenty-six people joined and fifteen left, six of them into retirement. Staff turnover, retirement aside, "
            "was 3.9 %. Of the nine apprentices who finished, eight stayed.",
        ),
        *section(
            "Health and safety",
            "There were seven accidents with more than three days of absence, two fewer than in 2030. Four happened on "
            "wet ladders. All field vans now carry ladders with rubber steps. Illness took 4.6 % of working time.",
        ),
        *section(
            "The survey",
            "In the October survey 84 % answered. Eighty-one per cent would recommend Marlowick to a friend. The worst "
            "mark went to the canteen, which therefore gets a new kitchen in the spring of 2032.",
        ),
    ]


def _energy() -> Page:
    head = ("", *fig.YEARS)
    rows = [
        (name, *(f"{value:,}" for value in values))
        for name, values in (
            ("Electricity bought (MWh)", fig.ELECTRICITY),
            ("Gas (MWh)", fig.GAS),
            ("Solar power made (MWh)", fig.SOLAR),
            ("Emissions (tonnes of CO2)", fig.EMISSIONS),
        )
    ]
    fall = change(fig.EMISSIONS[0], fig.EMISSIONS[-1])[1:]
    return [
        *chapter("Energy and climate", "Far less gas, three roofs full of panels."),
        bar_chart(
            fig.YEARS,
            [("Electricity bought", fig.ELECTRICITY), ("Gas", fig.GAS), ("Solar power made", fig.SOLAR)],
            top=2_500,
            step=500,
            unit="Megawatt hours",
        ),
        *caption("Figure 4. Energy by source, 2027 to 2031."),
        *grid([head, *rows], (0.40, 0.12, 0.12, 0.12, 0.12, 0.12), right=(1, 2, 3, 4, 5)),
        *body(
            f"Emissions from our own chimneys and from purchased power have fallen by {fall} since 2027. The largest "
            "single step was the heat pump at Hallenbruck, in service since January 2031: gas fell from "
            f"{fig.GAS[-2]:,} to {fig.GAS[-1]:,} MWh in one year.",
            "Panels on halls 1 to 3 now cover 7,400 square metres. A battery of 1.2 MWh is on order and is to be "
            "connected in May 2032. By 2035 we want to heat without gas altogether.",
        ),
        *callout(
            "<b>What is not counted.</b> Freight, business trips and purchased parts are estimated at 4,300 tonnes."
        ),
    ]


def _development() -> Page:
    rows = [(f"<b>{name}</b>", what, state, money(spent)) for name, spent, what, state in fig.PROJECTS]
    return [
        *chapter("Research and development", "Five projects, one of them stopped on purpose."),
        *grid(
            [("Project", "What for", "State at year end", "Spent"), *rows, ("Total", "", "", money(fig.RESEARCH))],
            (0.15, 0.37, 0.33, 0.15),
            right=(3,),
            total=True,
        ),
        *body(
            f"We spent {millions(fig.RESEARCH)} on development, {100 * fig.RESEARCH / fig.REVENUE:.1f} % of revenue. "
            "Thirty-four people work in the department, among them five who joined from universities."
        ),
        *section(
            "Plover",
            "The new radar gauge has no moving parts and draws 0.4 watts, a third of what its predecessor needed. A "
            "panel as large as a sheet of paper is enough to run it. Two hundred and twelve were sold between "
            "September and December.",
        ),
        *section(
            "Lantern",
            "Lantern forecasts the level of brooks whose catchment is smaller than 50 square kilometres, where today "
            "no forecast exists. In the pilot the median warning time was 3 hours and 40 minutes, with one false alarm "
            "in eight warnings.",
        ),
        *section(
            "Why Thimble was stopped",
            "The rain sensor for road lamps worked, but the lamps shook it too much: after four months one in three "
            "sensors drifted. We wrote off EUR 290,000 and published what we had learnt.",
        ),
        *callout("<b>Patents.</b> Six applications were filed in 2031 and four patents were granted."),
    ]


def _income() -> Page:
    before, after = fig.PROFIT_2030 - fig.INTEREST_2030, fig.PROFIT - fig.INTEREST
    rows = [
        ("Revenue", money(fig.REVENUE_2030), money(fig.REVENUE)),
        *((name, money(-a), money(-b)) for name, a, b in fig.COSTS),
        ("<b>Operating profit</b>", f"<b>{money(fig.PROFIT_2030)}</b>", f"<b>{money(fig.PROFIT)}</b>"),
        ("Interest", money(-fig.INTEREST_2030), money(-fig.INTEREST)),
        ("Profit before tax", money(before), money(after)),
        ("Taxes on income", money(-fig.TAX_2030), money(-fig.TAX)),
        ("Profit for the year", money(before - fig.TAX_2030), money(after - fig.TAX)),
    ]
    personnel = fig.COSTS[1]
    return [
        *chapter("Income statement", "What came in, what went out."),
        *grid([("Thousand euro", "2030", "2031"), *rows], (0.56, 0.22, 0.22), right=(1, 2), total=True),
        *body(
            f"The operating margin rose from {100 * fig.PROFIT_2030 / fig.REVENUE_2030:.1f} to "
            f"{100 * fig.PROFIT / fig.REVENUE:.1f} %. Personnel costs grew by "
            f"{change(personnel[1], personnel[2])[1:]}, of which 3.8 points are the pay rise of July 2031 and the rest "
            "new colleagues.",
            "Materials grew more slowly than revenue because services need few of them. Freight by air in August cost "
            "EUR 240,000 and is part of the other operating costs.",
        ),
        *section(
            "How we book",
            "Subscriptions to flood warning are booked month by month over their term, whatever is paid in advance. A "
            "gauge counts as revenue when it has been handed over at the river, not when it leaves the hall.",
        ),
        *section(
            "Auditor",
            "The accounts were audited by Pellworth &amp; Quill, who have signed them without reservations on 11 March "
            "2032. The fee was EUR 58,000. After ten years the auditor will change for the accounts of 2032.",
        ),
    ]


def _balance() -> Page:
    sides = list(zip(fig.ASSETS, fig.LIABILITIES, strict=True))
    equity, inventories = fig.LIABILITIES[0][1], fig.ASSETS[2][1]
    flows = [(name, money(value)) for name, value in fig.CASH_FLOWS]
    return [
        *chapter("Balance sheet and cash", "A cautious house with full shelves."),
        *grid(
            [
                ("Assets", "31 Dec 2031", "Equity and liabilities", "31 Dec 2031"),
                *((left, money(a), right, money(b)) for (left, a), (right, b) in sides),
                ("Total", money(fig.BALANCE), "Total", money(fig.BALANCE)),
            ],
            (0.33, 0.17, 0.33, 0.17),
            right=(1, 3),
            total=True,
        ),
        *body(
            f"Equity covers {100 * equity / fig.BALANCE:.1f} % of the balance sheet total of {millions(fig.BALANCE)}. "
            f"Inventories of {millions(inventories)} are high on purpose: they hold radar chips for ten weeks of "
            "production.",
        ),
        *grid(
            [
                ("Cash flow 2031", "Thousand euro"),
                ("Cash on 1 January", money(fig.OPENING_CASH)),
                *flows,
                ("Cash on 31 December", money(dict(fig.ASSETS)["Cash"])),
            ],
            (0.7, 0.3),
            right=(1,),
            total=True,
        ),
        *body(
            "The largest investments were the third solar roof (EUR 960,000), a climate chamber for the laboratory "
            "(EUR 410,000) and eleven electric vans (EUR 520,000).",
            "Of the bank loans, EUR 4.5 million run until 2036 at a fixed rate of 2.9 %. A credit line of EUR 3 "
            "million was not used at any time.",
        ),
        *callout("<b>Covenant.</b> The bank may ask for more security if the equity ratio falls below 35 %."),
    ]


def _outlook() -> Page:
    rows = [(name, likely, money(damage), answer) for name, likely, damage, answer in fig.RISKS]
    return [
        *chapter("Risks and outlook", "What could go wrong, and what we expect."),
        *grid(
            [("Risk", "Likelihood", "Damage", "What we do about it"), *rows],
            (0.31, 0.15, 0.13, 0.41),
            right=(2,),
        ),
        *caption("Damage is the loss of operating profit in thousand euro in the year in which the risk comes true."),
        *section(
            "Orders",
            "We entered the new year with orders for EUR 13.4 million, which is about four months of work. A year ago "
            "it was EUR 11.2 million.",
        ),
        *section(
            "What we expect for 2032",
            "Revenue should lie between EUR 41 and 43 million and the operating margin between 8.5 and 9.5 %. We plan "
            "to invest EUR 3.6 million, half of it in a test channel at Vierwehr that is 90 metres long.",
        ),
        *section(
            "Prices",
            "List prices rise by 2.5 % on 1 April 2032. Customers with service contracts keep their prices until the "
            "contract ends.",
        ),
        *section(
            "After the end of the year",
            "On 19 January 2032 we took over the four people and the drawings of Tidelorn, a maker of tide gauges that "
            "had given up. The price was EUR 330,000. Nothing else of weight has happened since.",
        ),
    ]


def report() -> Document:
    """The report. Raises ValueError where the figures do not balance."""
    fig.check()
    return Document(
        title="Annual Report 2031",
        subject=PERIOD,
        cover=_cover,
        pages=(
            _brief(),
            _letter(),
            _segments(),
            _regions(),
            _deliveries(),
            _people(),
            _energy(),
            _development(),
            _income(),
            _balance(),
            _outlook(),
        ),
    )
