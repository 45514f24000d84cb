"""Pictures -> arrays, step by step as the Pillow-backed image processors of the published checkpoints do it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from PIL import Image

from budgetvdr.pages import Boxes

Pixels = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class PixelScale:
    """How pixel values become numbers: (value * factor - mean) / std for each channel.

    resample: Pillow's number of the filter for resizing (2 bilinear, 3 bicubic, 1 Lanczos).
    """

    factor: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resample: int

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError for other settings."""
        mean, std = tuple(map(float, raw["mean"])), tuple(map(float, raw["std"]))
        if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
            raise ValueError(f"expected a mean and a positive std for each of 3 channels, found {mean} and {std}")
        return cls(float(raw["factor"]), mean, std, Image.Resampling(raw["resample"]).value)


def resize(image: Image.Image, size: tuple[int, int], resample: int) -> Image.Image:
    """An RGB picture of (width, height) pixels."""
    rgb = image if image.mode == "RGB" else image.convert("RGB")
    return rgb if rgb.size == size else rgb.resize(size, Image.Resampling(resample))


def normalise(image: Image.Image, scale: PixelScale) -> Pixels:
    """(3, height, width) of an RGB picture."""
    values = np.asarray(image, np.uint8).transpose(2, 0, 1)
    # Rounded to float32 between the steps as the processors are. A pixel has one of 256 values, so that looking the
    # result up is exact and takes half the time.
    scaled = (np.arange(256) * np.float64(scale.factor)).astype(np.float32)
    result = np.empty(values.shape, np.float32)
    for channel, (mean, std) in enumerate(zip(scale.mean, scale.std, strict=True)):
        table = (scaled - np.float32(mean)) / np.float32(std)
        np.take(table, values[channel], out=result[channel], mode="clip")
    return result


def grid_boxes(rows: int, columns: int) -> Boxes:
    """(rows * columns, 4): a page cut into equal cells, line by line."""
    left, top = np.meshgrid(np.arange(columns) / columns, np.arange(rows) / rows)
    right, bottom = np.meshgrid(np.arange(1, columns + 1) / columns, np.arange(1, rows + 1) / rows)
    return np.stack([left, top, right, bottom], axis=-1).reshape(-1, 4).astype(np.float32)


def whole_page(count: int) -> Boxes:
    """(count, 4): what stands for all of the page."""
    return np.tile(np.array([0, 0, 1, 1], np.float32), (count, 1))
