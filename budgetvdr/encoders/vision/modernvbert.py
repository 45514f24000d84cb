"""ModernVBERT as ColModernVBERT uses it: a page is cut into square tiles and followed by a small picture of itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from PIL import Image
from tokenizers import Tokenizer

from budgetvdr.encoders.vision import VisionBatch
from budgetvdr.encoders.vision.pictures import PixelScale, grid_boxes, normalise, resize, whole_page
from budgetvdr.encoders.vision.prompts import QueryTexts, encode, pad, token_id, visual_slots
from budgetvdr.pages import Boxes

# The processors never make a picture larger than this, whatever their settings ask for.
_LARGEST_SIDE = 4096
_AROUND, _WHOLE = "<fake_token_around_image>", "<global-img>"


@dataclass(frozen=True, slots=True)
class ModernVBertSettings:
    """tile: side of a tile in pixels. grid: image tokens along it. longest_side: of the page before it is cut.

    split: False where a page is one tile. image, pad: tokens. page_prompt: has the image token once, where the
    picture goes. query_prefix, query_suffix: what is put around a query. The tokenizer adds its own marks.
    """

    tile: int
    grid: int
    longest_side: int
    split: bool
    scale: PixelScale
    image: str
    pad: str
    page_prompt: str
    query_prefix: str
    query_suffix: str

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError for other settings."""
        settings = cls(
            tile=int(raw["tile"]),
            grid=int(raw["grid"]),
            longest_side=int(raw["longest_side"]),
            split=bool(raw["split"]),
            scale=PixelScale.from_json(raw["scale"]),
            **{name: str(raw[name]) for name in ("image", "pad", "page_prompt", "query_prefix", "query_suffix")},
        )
        if min(settings.tile, settings.grid, settings.longest_side) < 1:
            raise ValueError(f"expected positive sizes, found {settings}")
        if settings.page_prompt.count(settings.image) != 1:
            raise ValueError(f"expected {settings.image} once in a page's prompt, found {settings.page_prompt!r}")
        return settings


class ModernVBertPreprocessor:
    """Raises BundleError where the tokenizer lacks a token."""

    family = "modernvbert"

    def __init__(self, settings: ModernVBertSettings, tokenizer: Tokenizer) -> None:
        self.settings = settings
        self._tokenizer = tokenizer
        self._image, self._pad = token_id(tokenizer, settings.image), token_id(tokenizer, settings.pad)
        self._texts = QueryTexts(tokenizer, settings.query_prefix, settings.query_suffix, special=True)

    def pages(self, images: Sequence[Image.Image]) -> VisionBatch:
        """pixel_values (T, 3, tile, tile): the tiles of all pages, one page after the other."""
        tiles, rows, boxes = [], [], []
        for image in images:
            cut, height, width = self._tiles(image)
            tiles += [normalise(tile, self.settings.scale) for tile in cut]
            rows.append(encode(self._tokenizer, self._written_page(height, width), special=True))
            boxes.append(self._boxes(height, width))
        ids, mask = pad(rows, self._pad)
        slots = visual_slots(ids, self._image)
        regions = []
        for row, own, page_slots in zip(rows, boxes, slots, strict=True):
            places = whole_page(len(row))
            places[page_slots[: len(row)] >= 0] = own
            regions.append(places)
        arrays: dict[str, npt.NDArray[Any]] = {
            "input_ids": ids,
            "attention_mask": mask,
            "visual_slots": slots,
            "pixel_values": np.stack(tiles),
        }
        return VisionBatch(arrays, mask.astype(np.bool_), regions)

    def queries(self, texts: Sequence[str]) -> VisionBatch:
        """All tokens are kept, those of prefix and suffix and the tokenizer's marks too."""
        ids, mask = pad([self._texts.ids(text) for text in texts], self._pad)
        return VisionBatch({"input_ids": ids, "attention_mask": mask}, mask.astype(np.bool_), [])

    def pixels(self, image: Image.Image) -> int:
        """Of all tiles."""
        width, height = self._cut_size(image)
        rows, columns = self._cuts(width, height)
        return (rows * columns + 1) * self.settings.tile**2

    def pieces(self, text: str) -> tuple[str, ...]:
        """The parts of the text; empty for tokens of prefix and suffix."""
        return self._texts.pieces(text)

    def to_json(self) -> dict[str, Any]:
        """The settings."""
        return asdict(self.settings)

    def _tiles(self, image: Image.Image) -> tuple[list[Image.Image], int, int]:
        """The tiles line by line and the whole page last, and how many lines and columns; 0 and 0 for one uncut."""
        tile, resample = self.settings.tile, self.settings.scale.resample
        sized = resize(image, _fit(*image.size, self.settings.longest_side), resample)
        cut = resize(sized, self._cut_size(image), resample)
        rows, columns = self._cuts(*cut.size)
        tiles = [
            cut.crop((column * tile, row * tile, (column + 1) * tile, (row + 1) * tile))
            for row in range(rows)
            for column in range(columns)
        ]
        return [*tiles, resize(cut, (tile, tile), resample)], rows, columns

    def _cut_size(self, image: Image.Image) -> tuple[int, int]:
        """(width, height), whole tiles, of the picture that is cut."""
        tile = self.settings.tile
        if not self.settings.split:
            return tile, tile
        width, height = _fit(*image.size, self.settings.longest_side)
        # The shorter side follows from the longer one after that has been rounded up.
        ratio = width / height
        if width >= height:
            width = _round_up(width, tile)
            return width, _round_up(int(width / ratio), tile)
        height = _round_up(height, tile)
        return _round_up(int(height * ratio), tile), height

    def _cuts(self, width: int, height: int) -> tuple[int, int]:
        """Lines and columns of a picture of whole tiles; 0 and 0 where it is one tile."""
        rows, columns = height // self.settings.tile, width // self.settings.tile
        return (rows, columns) if rows * columns > 1 else (0, 0)

    def _boxes(self, rows: int, columns: int) -> Boxes:
        """(n, 4): those of the image tokens in their order."""
        grid = self.settings.grid
        # (row, line within, column, column within) -> tile by tile
        fine = grid_boxes(rows * grid, columns * grid).reshape(rows, grid, columns, grid, 4)
        return np.concatenate([fine.swapaxes(1, 2).reshape(-1, 4), grid_boxes(grid, grid)])

    def _written_page(self, rows: int, columns: int) -> str:
        seen = self.settings.image * self.settings.grid**2
        lines = [
            "".join(f"{_AROUND}<row_{row}_col_{column}>{seen}" for column in range(1, columns + 1)) + "\n"
            for row in range(1, rows + 1)
        ]
        before = "".join(lines) + "\n" if lines else ""
        picture = f"{before}{_AROUND}{_WHOLE}{seen}{_AROUND}"
        return self.settings.page_prompt.replace(self.settings.image, picture)


def _fit(width: int, height: int, longest: int) -> tuple[int, int]:
    """(width, height) with the longer side as long as asked; the shorter one is even."""
    ratio = width / height
    if width >= height:
        width, height = longest, _even(int(longest / ratio))
    else:
        width, height = _even(int(longest * ratio)), longest
    width, height = max(width, 1), max(height, 1)
    if max(width, height) <= _LARGEST_SIDE:
        return width, height
    ratio = width / height
    if width >= height:
        return _LARGEST_SIDE, max(int(_LARGEST_SIDE / ratio), 1)
    return max(int(_LARGEST_SIDE * ratio), 1), _LARGEST_SIDE


def _even(size: int) -> int:
    return size + size % 2


def _round_up(size: int, step: int) -> int:
    return math.ceil(size / step) * step
