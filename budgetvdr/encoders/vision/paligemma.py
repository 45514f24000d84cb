"""PaliGemma as ColPali uses it: every page is one square picture, its image tokens first and then a short prompt."""

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


@dataclass(frozen=True, slots=True)
class PaliGemmaSettings:
    """side, patch: of the square picture and of its patches, in pixels. pad, image: tokens.

    page_prompt: what follows the image tokens of a page. query_prefix, query_suffix: what is put around a query.
    Special tokens are written out in all three.
    """

    side: int
    patch: int
    scale: PixelScale
    image: str
    pad: str
    page_prompt: str
    query_prefix: str
    query_suffix: str

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError for other settings."""
        side, patch = int(raw["side"]), int(raw["patch"])
        if not 0 < patch <= side:
            raise ValueError(f"expected patches within the picture, found {patch} of {side} pixels")
        texts = {name: str(raw[name]) for name in ("image", "pad", "page_prompt", "query_prefix", "query_suffix")}
        return cls(side=side, patch=patch, scale=PixelScale.from_json(raw["scale"]), **texts)

    @property
    def columns(self) -> int:
        """Patches along a side."""
        return self.side // self.patch


class PaliGemmaPreprocessor:
    """Raises BundleError where the tokenizer lacks a token."""

    family = "paligemma"

    def __init__(self, settings: PaliGemmaSettings, tokenizer: Tokenizer) -> None:
        self.settings = settings
        self._tokenizer = tokenizer
        self._image, self._pad = token_id(tokenizer, settings.image), token_id(tokenizer, settings.pad)
        self._texts = QueryTexts(tokenizer, settings.query_prefix, settings.query_suffix)
        self._prompt = encode(tokenizer, settings.page_prompt)

    def pages(self, images: Sequence[Image.Image]) -> VisionBatch:
        """pixel_values (B, 3, side, side); every page has the same tokens, so none is padded."""
        settings = self.settings
        count = settings.columns**2
        side = (settings.side, settings.side)
        pixels = [normalise(resize(image, side, settings.scale.resample), settings.scale) for image in images]
        ids = np.tile(np.array([self._image] * count + self._prompt, np.int64), (len(images), 1))
        regions = np.concatenate([grid_boxes(settings.columns, settings.columns), whole_page(len(self._prompt))])
        arrays: dict[str, npt.NDArray[Any]] = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "visual_slots": visual_slots(ids, self._image),
            "pixel_values": np.stack(pixels),
        }
        return VisionBatch(arrays, np.ones(ids.shape, np.bool_), [regions] * len(images))

    def queries(self, texts: Sequence[str]) -> VisionBatch:
        """All tokens are kept, those of prefix and suffix too."""
        ids, mask = pad([self._texts.ids(text) for text in texts], self._pad)
        return VisionBatch({"input_ids": ids, "attention_mask": mask}, mask.astype(np.bool_), [])

    def pixels(self, image: Image.Image) -> int:
        """The same for every picture."""
        return self.settings.side**2

    def pieces(self, text: str) -> tuple[str, ...]:
        """The parts of the text; empty for tokens of prefix and suffix."""
        return self._texts.pieces(text)

    def to_json(self) -> dict[str, Any]:
        """The settings."""
        return asdict(self.settings)
