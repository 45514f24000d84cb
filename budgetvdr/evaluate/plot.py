"""The trade of bytes for quality as a picture: an SVG that needs no library."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from budgetvdr.evaluate.compression import ABLATIONS, SINGLE_STEP, CompressionReport, CompressionRow

_WIDTH, _HEIGHT = 860, 520
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 250, 40, 60
# Colours that stay apart for the colour-blind (Okabe and Ito), then greys.
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")


def pareto_svg(report: CompressionReport) -> str:
    """Bytes a page (logarithmic) against nDCG@5, a dot for every row, a line through those that no other beats."""
    rows = [row for row in report.rows if row.bytes_per_page > 0]
    axes = _Axes(rows)
    methods = list(dict.fromkeys(row.method for row in rows))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="15">{escape(report.name)}: nDCG@5 by bytes of vectors a page</text>',
        *axes.svg(),
    ]
    line = " ".join(f"{axes.x(row.bytes_per_page):.1f},{axes.y(row.ndcg_5):.1f}" for row in report.frontier())
    parts.append(f'<polyline points="{line}" fill="none" stroke="#888" stroke-dasharray="4 3"/>')
    for row in rows:
        about = f"{row.method}, gamma {row.gamma:g}, depth {row.depth}, dim {row.dim}: {row.ndcg_5:.4f}"
        parts.append(
            f'<circle cx="{axes.x(row.bytes_per_page):.1f}" cy="{axes.y(row.ndcg_5):.1f}" '
            f"{_mark(row.method, methods)}><title>{escape(about)}</title></circle>"
        )
    for place, method in enumerate(methods):
        y = _TOP + 10 + 20 * place
        parts.append(f'<circle cx="{_WIDTH - _RIGHT + 24}" cy="{y - 4}" {_mark(method, methods)}/>')
        parts.append(f'<text x="{_WIDTH - _RIGHT + 34}" y="{y}">{escape(method)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


class _Axes:
    """Places values on the picture."""

    def __init__(self, rows: Sequence[CompressionRow]) -> None:
        sizes = [math.log10(row.bytes_per_page) for row in rows]
        self._least, self._most = min(sizes) - 0.05, max(sizes) + 0.05
        scores = [row.ndcg_5 for row in rows]
        self._floor = math.floor(min(scores) * 20) / 20
        self._ceiling = max(math.ceil(max(scores) * 20) / 20, self._floor + 0.05)

    def x(self, size: float) -> float:
        share = (math.log10(size) - self._least) / (self._most - self._least)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, score: float) -> float:
        share = (score - self._floor) / (self._ceiling - self._floor)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    def svg(self) -> Iterator[str]:
        right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
        for step in range(round((self._ceiling - self._floor) / 0.05) + 1):
            score = self._floor + 0.05 * step
            y = self.y(score)
            yield f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#ddd"/>'
            yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{score:.2f}</text>'
        for size in (m * 10**e for e in range(1, 9) for m in (1, 2, 5)):
            if self._least <= math.log10(size) <= self._most:
                x = self.x(size)
                yield f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#eee"/>'
                name = f"{size / 1e6:g}M" if size >= 1_000_000 else f"{size / 1e3:g}k" if size >= 1_000 else str(size)
                yield f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{name}</text>'
        middle = (_TOP + bottom) / 2
        yield f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 16}" text-anchor="middle">bytes of vectors a page</text>'
        yield f'<text x="18" y="{middle}" text-anchor="middle" transform="rotate(-90 18 {middle})">nDCG@5</text>'


def _mark(method: str, methods: Sequence[str]) -> str:
    """Size and colour of a dot; those of ablations are hollow."""
    colour = _colour(methods.index(method))
    hollow = method in ABLATIONS or method == SINGLE_STEP
    return f'r="3.5" fill="none" stroke="{colour}" stroke-width="1.5"' if hollow else f'r="4" fill="{colour}"'


def _colour(place: int) -> str:
    if place < len(_COLOURS):
        return _COLOURS[place]
    return f"hsl({place * 137 % 360}, 45%, 60%)"
