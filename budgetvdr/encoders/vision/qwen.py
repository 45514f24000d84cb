"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL as ColQwen uses them: pages keep their shape and about their size.

A page is cut into patches; what belongs together (a picture, a window of one) and where it lies enters the model as
tables. The families differ in settings only.
"""

from __future__ import annotations

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
from budgetvdr.encoders.vision.qwen_patches import Grid, cut_patches, fitted_size
from budgetvdr.encoders.vision.qwen_positions import (
    Whole,
    interpolation,
    page_positions,
    patch_positions,
    text_positions,
)
from budgetvdr.encoders.vision.qwen_windows import image_groups, window_groups
from budgetvdr.errors import BundleError

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")


@dataclass(frozen=True, slots=True)
class QwenSettings:
    """How one checkpoint takes pages and queries.

    patch: side of a patch in pixels. merge: patches along a token's side. frames: that a still picture counts as.
    least_pixels, most_pixels: bounds of a page's area. window: tokens along the side of a window of attention, None
    where the vision tower has no windows. table: side of the table of learned positions, None without one.
    image, pad: tokens. page_prompt: a page's text with the image token once. query_prefix, query_suffix: what is put
    around a query. Special tokens are written out in all three.
    """

    patch: int
    merge: int
    frames: int
    least_pixels: int
    most_pixels: int
    window: int | None
    table: int | None
    scale: PixelScale
    image: str
    pad: str
    page_prompt: str
    query_prefix: str
    query_suffix: str

    def __post_init__(self) -> None:
        sizes = (self.patch, self.merge, self.frames, self.least_pixels, self.window, self.table)
        if any(size is not None and size < 1 for size in sizes):
            raise ValueError(f"expected sizes of at least 1, found {sizes}")
        # The smallest page is one token; with bounds closer than that, none would fit.
        if self.most_pixels < max(self.least_pixels, self.step**2):
            raise ValueError(f"expected room for a page, found at most {self.most_pixels} pixels")

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError for other settings."""
        return cls(
            patch=int(raw["patch"]),
            merge=int(raw["merge"]),
            frames=int(raw["frames"]),
            least_pixels=int(raw["least_pixels"]),
            most_pixels=int(raw["most_pixels"]),
            window=None if raw["window"] is None else int(raw["window"]),
            table=None if raw["table"] is None else int(raw["table"]),
            scale=PixelScale.from_json(raw["scale"]),
            image=str(raw["image"]),
            pad=str(raw["pad"]),
            page_prompt=str(raw["page_prompt"]),
            query_prefix=str(raw["query_prefix"]),
            query_suffix=str(raw["query_suffix"]),
        )

    @property
    def step(self) -> int:
        """Pixels along the side of a token."""
        return self.patch * self.merge


class QwenPreprocessor:
    """family: one of `FAMILIES`. Raises BundleError where the tokenizer or the page prompt is not of this kind."""

    def __init__(self, family: str, settings: QwenSettings, tokenizer: Tokenizer) -> None:
        self.family = family
        self.settings = settings
        self._tokenizer = tokenizer
        self._image, self._pad = token_id(tokenizer, settings.image), token_id(tokenizer, settings.pad)
        self._texts = QueryTexts(tokenizer, settings.query_prefix, settings.query_suffix)
        prompt = encode(tokenizer, settings.page_prompt)
        if prompt.count(self._image) != 1:
            raise BundleError(
                f"the page prompt {settings.page_prompt!r}: expected the token {settings.image} once, "
                f"found it {prompt.count(self._image)} times; export the bundle again"
            )
        place = prompt.index(self._image)
        self._before, self._after = prompt[:place], prompt[place + 1 :]

    def pages(self, images: Sequence[Image.Image]) -> VisionBatch:
        """Arrays beside those of every family; N patches of all pages, one page after another, N / merge**2 features.

        pixel_values: (N, 3 * frames * patch**2). position_ids: (3, B, L), 0 where padded. patch_positions: (N, 2).
        image_gather, image_valid, image_back: which patches are of one page (`Groups`). window_gather, window_valid,
        window_back: of one window. interpolation_rows, interpolation_weights: (N, 4) of the learned positions.
        """
        settings = self.settings
        pictures = [self._picture(image) for image in images]
        grids = [_grid(picture.shape[1:], settings.patch) for picture in pictures]
        tokens = [_grid(grid, settings.merge) for grid in grids]
        rows = [self._before + [self._image] * (grid[0] * grid[1]) + self._after for grid in tokens]
        ids, mask = pad(rows, self._pad)
        positions = [page_positions(len(self._before), grid, len(self._after)) for grid in tokens]
        cut = [
            cut_patches(picture, patch=settings.patch, merge=settings.merge, frames=settings.frames)
            for picture in pictures
        ]
        arrays: dict[str, npt.NDArray[Any]] = {
            "input_ids": ids,
            "attention_mask": mask,
            "position_ids": _stack_positions(positions, ids.shape[1]),
            "visual_slots": visual_slots(ids, self._image),
            "pixel_values": np.concatenate(cut),
        }
        regions = [self._regions(grid) for grid in tokens]
        return VisionBatch(arrays | self._tables(grids), mask.astype(np.bool_), regions)

    def queries(self, texts: Sequence[str]) -> VisionBatch:
        """input_ids, attention_mask and position_ids; all tokens are kept, those of prefix and suffix too."""
        rows = [self._texts.ids(text) for text in texts]
        ids, mask = pad(rows, self._pad)
        positions = _stack_positions([text_positions(len(row)) for row in rows], ids.shape[1])
        arrays = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
        return VisionBatch(arrays, mask.astype(np.bool_), [])

    def pixels(self, image: Image.Image) -> int:
        """After resizing. Raises EncodingError for a strip that the family cannot take."""
        width, height = self._size(image)
        return width * height

    def pieces(self, text: str) -> tuple[str, ...]:
        """The parts of the text; empty for tokens of prefix and suffix."""
        return self._texts.pieces(text)

    def to_json(self) -> dict[str, Any]:
        """The settings."""
        return asdict(self.settings)

    def _picture(self, image: Image.Image) -> npt.NDArray[np.float32]:
        scale = self.settings.scale
        return normalise(resize(image, self._size(image), scale.resample), scale)

    def _size(self, image: Image.Image) -> tuple[int, int]:
        settings = self.settings
        return fitted_size(*image.size, step=settings.step, least=settings.least_pixels, most=settings.most_pixels)

    def _tables(self, grids: Sequence[Grid]) -> dict[str, npt.NDArray[Any]]:
        settings = self.settings
        tables: dict[str, npt.NDArray[Any]] = {"patch_positions": patch_positions(grids, settings.merge)}
        tables |= image_groups(grids).named("image")
        if settings.window is not None:
            tables |= window_groups(grids, settings.merge, settings.window).named("window")
        if settings.table is not None:
            names = ("interpolation_rows", "interpolation_weights")
            tables |= zip(names, interpolation(grids, settings.merge, settings.table), strict=True)
        return tables

    def _regions(self, tokens: Grid) -> npt.NDArray[np.float32]:
        before, after = len(self._before), len(self._after)
        return np.concatenate([whole_page(before), grid_boxes(*tokens), whole_page(after)])


def _grid(size: Sequence[int], part: int) -> Grid:
    """How many parts lie along the height and the width."""
    height, width = size
    return height // part, width // part


def _stack_positions(positions: Sequence[Whole], longest: int) -> Whole:
    """(3, n) each -> (3, B, longest), 0 where padded."""
    stacked = np.zeros((3, len(positions), longest), dtype=np.int64)
    for index, position in enumerate(positions):
        stacked[:, index, : position.shape[1]] = position
    return stacked
