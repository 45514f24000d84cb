"""Which part of a page answered which token of a query, as values and as pictures."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageChops, ImageDraw

from budgetvdr.pages import Boxes, EncodedQuery
from budgetvdr.similarity.maxsim import Float, best_rows
from budgetvdr.store import FoldMap

Region = tuple[float, float, float, float]

_WHOLE: Region = (0.0, 0.0, 1.0, 1.0)
_GREY = (200, 200, 200)
# Hues this far apart do not come near each other again for long.
_GOLDEN = 0.618034


@dataclass(frozen=True, slots=True)
class TokenMatch:
    """One query token and its answer.

    token: as the tokenizer cut it; empty for one that the encoder puts around a query. score: its similarity, the
    token's share of the page's score before averaging. regions: each (x0, y0, x1, y1) in fractions of the upright page
    picture: what the answering vector stands for, in reading order; one region unless the index is compressed.
    vector: row of the page's vector set.
    """

    token: str
    score: float
    regions: tuple[Region, ...]
    vector: int

    @property
    def region(self) -> Region:
        """The first of the regions."""
        return self.regions[0]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a page was found.

    matches: one a query token, in the query's order. score: their mean, which is the hit's score.
    regions: (n, 4) of all the page's tokens, in reading order. folds: (n,) for each of them the row of the vector that
    stands for it, -1 where none does: compression dropped it.
    """

    matches: tuple[TokenMatch, ...]
    regions: Boxes = field(repr=False, compare=False)
    folds: FoldMap = field(repr=False, compare=False)

    @property
    def score(self) -> float:
        """Mean over the query's tokens."""
        return sum(match.score for match in self.matches) / len(self.matches)

    def overlay(self, picture: Image.Image) -> Image.Image:
        """A copy of the page's picture, answering regions marked as by a highlighter, the stronger the darker.

        In a compressed index all regions of an answering vector are marked alike. Tokens of the page that stand for all
        of it, as those of a prompt, are marked only where it has no others; tokens that the encoder puts around a query
        mark nothing.
        """
        marker = Image.new("RGB", picture.size, "white")
        frames = ImageDraw.Draw(marker)
        # A region that answers several tokens is drawn once, at its best score, and the best regions on top. What
        # answers a comma tells nobody anything, nor do tokens that stand for all of the page.
        some = not _whole(self.regions).all()
        best: dict[Region, float] = {}
        for match in self.matches:
            if not any(letter.isalnum() for letter in match.token):
                continue
            for region in match.regions:
                if some and region == _WHOLE:
                    continue
                best[region] = max(match.score, best.get(region, -1.0))
        for region, score in sorted(best.items(), key=lambda item: item[1]):
            strength = 0.25 + 0.75 * min(max(score, 0.0), 1.0) ** 2
            fill = (255, round(255 - 40 * strength), round(255 - 215 * strength))
            frames.rectangle(_padded(region, picture.size), fill=fill, outline=(224, 96, 0))
        return ImageChops.multiply(picture.convert("RGB"), marker)

    def kept(self, picture: Image.Image) -> Image.Image:
        """A copy of the page's picture that shows what became of each token.

        Regions that went into one vector have one colour, neighbouring vectors different ones; what compression dropped
        is grey. Without compression every region has its own colour. Tokens that stand for the whole page, as those of
        a prompt, are left out where there are others.
        """
        marker = Image.new("RGB", picture.size, "white")
        frames = ImageDraw.Draw(marker)
        whole = _whole(self.regions)
        # Dropped ones first, so that they hide nothing where regions overlap.
        for token in np.argsort(self.folds >= 0, kind="stable"):
            if whole[token] and not whole.all():
                continue
            fill = _GREY if self.folds[token] < 0 else _colour(int(self.folds[token]))
            frames.rectangle(_padded(_region(self.regions[token]), picture.size), fill=fill)
        return ImageChops.multiply(picture.convert("RGB"), marker)


def explain(
    query: EncodedQuery, vectors: npt.NDArray[np.floating], regions: Boxes, folds: FoldMap | None = None
) -> Explanation:
    """Matches every query vector with the page vector that answers it best.

    query: vectors (n, d) at the width to explain. vectors: (m, D) with m >= 1. regions: (N, 4) of the page's tokens.
    folds: (N,) row of the vector that stands for each token, -1 for none; None where each has its own, m = N.
    """
    rows, scores = best_rows(vectors, query.vectors)
    folds = np.arange(len(regions), dtype=np.int32) if folds is None else folds
    return Explanation(_matches(query.tokens, rows, scores, regions, folds), regions, folds)


def _matches(
    tokens: Sequence[str], rows: npt.NDArray[np.intp], scores: Float, regions: Boxes, folds: FoldMap
) -> tuple[TokenMatch, ...]:
    of_row = {int(row): tuple(_region(regions[token]) for token in np.flatnonzero(folds == row)) for row in set(rows)}
    return tuple(
        TokenMatch(token, float(score), of_row[int(row)], int(row))
        for token, row, score in zip(tokens, rows, scores, strict=True)
    )


def _whole(regions: Boxes) -> npt.NDArray[np.bool_]:
    """(n,): which regions are all of the page."""
    whole: npt.NDArray[np.bool_] = (regions == np.array(_WHOLE, np.float32)).all(axis=1)
    return whole


def _region(box: npt.NDArray[np.float32]) -> Region:
    x0, y0, x1, y1 = (float(edge) for edge in box)
    return x0, y0, x1, y1


def _colour(number: int) -> tuple[int, int, int]:
    """A light colour under which print stays readable."""
    red, green, blue = colorsys.hsv_to_rgb(number * _GOLDEN % 1.0, 0.45, 1.0)
    return round(255 * red), round(255 * green), round(255 * blue)


def _padded(region: tuple[float, float, float, float], size: tuple[int, int]) -> tuple[float, float, float, float]:
    """Pixels of a region with two of air around it, in order and inside the picture."""
    width, height = size
    x0, y0 = max(0.0, region[0] * width - 2), max(0.0, region[1] * height - 2)
    x1, y1 = min(width - 1.0, region[2] * width + 2), min(height - 1.0, region[3] * height + 2)
    return x0, y0, max(x0, x1), max(y0, y1)
