"""Vector charts in the look of the sample report."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi, sin
from typing import Any

from layout import BRICK, GREY, INK, RULE, SAND, TEAL, TEXT_WIDTH
from reportlab.graphics.charts.barcharts import VerticalBarChart
from reportlab.graphics.charts.linecharts import HorizontalLineChart
from reportlab.graphics.shapes import Circle, Drawing, Rect, String, Wedge
from reportlab.graphics.widgets.markers import makeMarker
from reportlab.lib.colors import HexColor

WHITE = HexColor("#ffffff")
PALETTE = (TEAL, SAND, BRICK, HexColor("#5f7f86"))
ON_PALETTE = (WHITE, INK, WHITE, WHITE)


def bar_chart(
    names: Sequence[str], series: Sequence[tuple[str, Sequence[float]]], *, top: float, step: float, unit: str
) -> Drawing:
    """Grouped bars with their values on top; one colour a series. Up to `top`, a grid line every `step`."""
    drawing = Drawing(TEXT_WIDTH, 195)
    chart = VerticalBarChart()
    _place(chart, names, [values for _, values in series], top, step)
    chart.groupSpacing = 14
    chart.barSpacing = 2
    chart.barLabelFormat = lambda value: f"{value:,.0f}"
    chart.barLabels.fontName = "Helvetica"
    chart.barLabels.fontSize = 7.5
    chart.barLabels.fillColor = GREY
    chart.barLabels.nudge = 7
    for number in range(len(series)):
        chart.bars[number].fillColor = PALETTE[number]
        chart.bars[number].strokeColor = None
    drawing.add(chart)
    _legend(drawing, [name for name, _ in series], unit)
    return drawing


def line_chart(
    names: Sequence[str], series: Sequence[tuple[str, Sequence[float]]], *, top: float, step: float, unit: str
) -> Drawing:
    """Lines with round markers; one colour a series."""
    drawing = Drawing(TEXT_WIDTH, 195)
    chart = HorizontalLineChart()
    _place(chart, names, [values for _, values in series], top, step)
    for number in range(len(series)):
        chart.lines[number].strokeColor = PALETTE[number]
        chart.lines[number].strokeWidth = 2
        chart.lines[number].symbol = makeMarker("FilledCircle")
        chart.lines[number].symbol.size = 5
        chart.lines[number].symbol.fillColor = PALETTE[number]
        chart.lines[number].symbol.strokeColor = PALETTE[number]
    drawing.add(chart)
    _legend(drawing, [name for name, _ in series], unit)
    return drawing


def ring_chart(parts: Sequence[tuple[str, float]], centre: str) -> Drawing:
    """A ring of shares, clockwise from noon, with a key beside it."""
    drawing = Drawing(TEXT_WIDTH, 190)
    x, y, outer, inner = 105.0, 95.0, 88.0, 52.0
    total = sum(value for _, value in parts)
    angle = 90.0
    for number, (name, value) in enumerate(parts):
        sweep = 360 * value / total
        drawing.add(Wedge(x, y, outer, angle - sweep, angle, fillColor=PALETTE[number], strokeColor=None))
        middle = (angle - sweep / 2) * pi / 180
        reach = (outer + inner) / 2
        share = f"{100 * value / total:.1f} %"
        drawing.add(_centred(x + reach * cos(middle), y + reach * sin(middle) - 3, share, 8.5, ON_PALETTE[number]))
        row = 140 - 28 * number
        drawing.add(Rect(250, row, 10, 10, fillColor=PALETTE[number], strokeColor=None))
        drawing.add(_text(268, row + 1, name, 10, INK))
        angle -= sweep
    drawing.add(Circle(x, y, inner, fillColor=WHITE, strokeColor=None))
    drawing.add(_centred(x, y - 4, centre, 12, INK))
    return drawing


def _place(chart: Any, names: Sequence[str], data: Sequence[Sequence[float]], top: float, step: float) -> None:
    """Position, axes and grid, the same for bars and lines."""
    chart.x, chart.y, chart.width, chart.height = 42, 28, TEXT_WIDTH - 50, 130
    chart.data = [list(values) for values in data]
    chart.categoryAxis.categoryNames = list(names)
    chart.categoryAxis.strokeColor = GREY
    chart.categoryAxis.visibleTicks = 0
    values = chart.valueAxis
    values.valueMin, values.valueMax, values.valueStep = 0, top, step
    values.labelTextFormat = lambda value: f"{value:,.0f}"
    values.visibleAxis = values.visibleTicks = 0
    values.visibleGrid = 1
    values.gridStrokeColor = RULE
    values.gridStrokeWidth = 0.5
    for axis in (chart.categoryAxis, values):
        axis.labels.fontName = "Helvetica"
        axis.labels.fontSize = 8.5
        axis.labels.fillColor = GREY


def _legend(drawing: Drawing, names: Sequence[str], unit: str) -> None:
    drawing.add(_text(0, 180, unit, 8.5, GREY))
    x = TEXT_WIDTH
    for number, name in reversed(list(enumerate(names))):
        x -= 24 + 4.6 * len(name)
        drawing.add(Rect(x, 179, 9, 9, fillColor=PALETTE[number], strokeColor=None))
        drawing.add(_text(x + 13, 180, name, 8.5, INK))


def _text(x: float, y: float, text: str, size: float, color: Any) -> String:
    return String(x, y, text, fontName="Helvetica", fontSize=size, fillColor=color)


def _centred(x: float, y: float, text: str, size: float, color: Any) -> String:
    return String(x, y, text, fontName="Helvetica", fontSize=size, fillColor=color, textAnchor="middle")
