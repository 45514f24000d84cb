"""RandSlot: K vectors a page or query, read out at its last token and at K - 1 random vectors after it.

Each vector that is appended is drawn from a standard Gaussian in float32 and scaled to unit length; pages and queries
have their own (RandSlot, implementation details). The paper draws anew for every page. Here a bundle holds one draw, a
vector for each position, as its Fixed-Random does: a page encoded twice is to have the same vectors, and an index is
to know what it was made with. Which prompt stands around a query, and the head after the last layer, are those of the
checkpoint; the paper's own models have neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from budgetvdr.bundle import SLOTS_NAME
from budgetvdr.encoders.vision import Preprocessor, VisionBatch
from budgetvdr.encoders.vision.pictures import whole_page
from budgetvdr.errors import BundleError

INPUT = "slots"
"""What graphs and models call the vectors (S, hidden) of a batch; none, or fewer than were drawn, are taken too."""

SEED = 42
"""Of the paper's runs."""

Tables = npt.NDArray[np.float32]
"""(2, K - 1, hidden): those of pages, those of queries."""


def draw(count: int, hidden: int, seed: int = SEED) -> Tables:
    """The tables for `count` vectors a page. Raises ValueError for fewer than one."""
    if count < 1:
        raise ValueError(f"a page has at least one vector, found {count}")
    rows = np.random.default_rng(seed).standard_normal((2, count - 1, hidden), dtype=np.float32)
    unit: Tables = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    return unit


class SlotPreprocessor:
    """Appends the vectors to what another prepares. Implements `Preprocessor`.

    All K vectors of a page or query are kept, each of which stands for the whole page.
    """

    def __init__(self, tokens: Preprocessor, tables: Tables) -> None:
        self._tokens, self._tables = tokens, tables

    @property
    def family(self) -> str:
        """That of the tokens."""
        return self._tokens.family

    def pages(self, images: Sequence[Image.Image]) -> VisionBatch:
        """The arrays of the tokens and `slots` (K - 1, hidden)."""
        batch = self._appended(self._tokens.pages(images), self._tables[0])
        return replace(batch, regions=[whole_page(batch.counts.shape[1])] * len(images))

    def queries(self, texts: Sequence[str]) -> VisionBatch:
        """As of pages, with vectors of their own."""
        return self._appended(self._tokens.queries(texts), self._tables[1])

    def pixels(self, image: Image.Image) -> int:
        """Of the picture."""
        return self._tokens.pixels(image)

    def pieces(self, text: str) -> tuple[str, ...]:
        """The whole query each time, as of pages."""
        return (text,) * (len(self._tables[1]) + 1)

    def to_json(self) -> dict[str, Any]:
        """The settings of the tokens."""
        return self._tokens.to_json()

    def _appended(self, batch: VisionBatch, vectors: npt.NDArray[np.float32]) -> VisionBatch:
        counts = np.ones((len(batch.counts), len(vectors) + 1), np.bool_)
        return replace(batch, arrays={**batch.arrays, INPUT: vectors}, counts=counts)


def with_slots(tokens: Preprocessor, count: int, folder: Path) -> Preprocessor:
    """The preprocessor of a bundle with `count` vectors a page, 0 for one that keeps the vectors of tokens.

    Raises BundleError where the bundle's tables are not for so many, or no numbers.
    """
    if not count:
        return tokens
    path = folder / SLOTS_NAME
    try:
        tables = np.load(path)
    except (OSError, ValueError, EOFError) as error:
        raise BundleError(f"{path} is not readable: {error}; export the bundle again") from error
    expected = (2, count - 1)
    if tables.dtype != np.float32 or tables.ndim != 3 or tables.shape[:2] != expected:
        raise BundleError(
            f"{path}: the manifest says {count} vectors a page: expected float32 tables of (2, {count - 1}, hidden), "
            f"found {tables.dtype} {tables.shape}. Export the bundle again"
        )
    if not np.isfinite(tables).all():
        raise BundleError(f"{path} has values that are not finite; export the bundle again")
    return SlotPreprocessor(tokens, tables)
