"""Which part of a page answered which token of a query, as values and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageChops, ImageDraw

from budgetvdr.pages import Boxes, EncodedQuery
from budgetvdr.similarity.maxsim import Float, best_rows


@dataclass(frozen=True, slots=True)
class TokenMatch:
    """One query token and its answer.

    token: as the tokenizer cut it. score: its similarity, the token's share of the page's score before averaging.
    region: (x0, y0, x1, y1) in fractions of the upright page picture. vector: row of the page's vector set.
    """

    token: str
    score: float
    region: tuple[float, float, float, float]
    vector: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a page was found.

    matches: one a query token, in the query's order. score: their mean, which is the hit's score.
    """

    matches: tuple[TokenMatch, ...]

    @property
    def score(self) -> float:
        """Mean over the query's tokens."""
        return sum(match.score for match in self.matches) / len(self.matches)

    def overlay(self, picture: Image.Image) -> Image.Image:
        """A copy of the page's picture, answering regions marked as by a highlighter, the stronger the darker."""
        marker = Image.new("RGB", picture.size, "white")
        frames = ImageDraw.Draw(marker)
        # A region that answers several tokens is drawn once, at its best score, and the best regions on top. What
        # answers a comma tells nobody anything.
        best: dict[tuple[float, float, float, float], float] = {}
        for match in self.matches:
            if not any(letter.isalnum() for letter in match.token):
                continue
            best[match.region] = max(match.score, best.get(match.region, -1.0))
        for region, score in sorted(best.items(), key=lambda item: item[1]):
            strength = 0.25 + 0.75 * min(max(score, 0.0), 1.0) ** 2
            fill = (255, round(255 - 40 * strength), round(255 - 215 * strength))
            frames.rectangle(_padded(region, picture.size), fill=fill, outline=(224, 96, 0))
        return ImageChops.multiply(picture.convert("RGB"), marker)


def explain(query: EncodedQuery, vectors: npt.NDArray[np.floating], regions: Boxes) -> Explanation:
    """Matches every query vector with the page vector that answers it best.

    query: vectors (n, d) at the width to explain. vectors: (m, D) with m >= 1. regions: (m, 4).
    """
    rows, scores = best_rows(vectors, query.vectors)
    return Explanation(_matches(query.tokens, rows, scores, regions))


def _matches(
    tokens: Sequence[str], rows: npt.NDArray[np.intp], scores: Float, regions: Boxes
) -> tuple[TokenMatch, ...]:
    return tuple(
        TokenMatch(token, float(score), tuple(float(edge) for edge in regions[row]), int(row))  # type: ignore[arg-type]
        for token, row, score in zip(tokens, rows, scores, strict=True)
    )


def _padded(region: tuple[float, float, float, float], size: tuple[int, int]) -> tuple[float, float, float, float]:
    """Pixels of a region with two of air around it, in order and inside the picture."""
    width, height = size
    x0, y0 = max(0.0, region[0] * width - 2), max(0.0, region[1] * height - 2)
    x1, y1 = min(width - 1.0, region[2] * width + 2), min(height - 1.0, region[3] * height + 2)
    return x0, y0, max(x0, x1), max(y0, y1)
