"""Pictures against the Pillow-backed image processors of transformers."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from transformers.image_transforms import normalize, rescale
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from budgetvdr.encoders.vision.pictures import PixelScale, grid_boxes, normalise, resize, whole_page

SCALES = {
    "siglip": PixelScale(1 / 255, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), 3),
    "clip": PixelScale(1 / 255, (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711), 2),
}


def noise(width: int, height: int, mode: str = "RGB") -> Image.Image:
    rng = np.random.default_rng(width)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).convert(mode)


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
@pytest.mark.parametrize("size", [(1, 1), (3, 200), (200, 3), (64, 64), (301, 97)])
def test_pixels_are_the_processors_to_the_bit(size: tuple[int, int], scale: PixelScale) -> None:
    image = noise(*size)
    processor = SiglipImageProcessorPil(
        size={"height": 48, "width": 64}, image_mean=scale.mean, image_std=scale.std, resample=scale.resample
    )
    expected = processor(image, return_tensors="np")["pixel_values"][0]
    found = normalise(resize(image, (64, 48), scale.resample), scale)
    assert found.shape == (3, 48, 64)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)


def test_every_value_of_a_pixel() -> None:
    values = np.arange(256, dtype=np.uint8).repeat(3).reshape(16, 16, 3)
    scale = SCALES["clip"]
    expected = normalize(rescale(values, scale.factor), scale.mean, scale.std)
    np.testing.assert_array_equal(normalise(Image.fromarray(values), scale).transpose(1, 2, 0), expected)


@pytest.mark.parametrize("mode", ["L", "1", "P", "RGBA", "LA", "CMYK"])
def test_pictures_of_any_mode(mode: str) -> None:
    image = noise(40, 30, mode)
    expected = normalise(resize(image.convert("RGB"), (20, 20), 3), SCALES["siglip"])
    np.testing.assert_array_equal(normalise(resize(image, (20, 20), 3), SCALES["siglip"]), expected)


def test_a_picture_of_the_right_size_is_taken_as_it_is() -> None:
    image = noise(12, 12)
    assert resize(image, (12, 12), 3) is image


def test_grids_cover_the_page_line_by_line() -> None:
    boxes = grid_boxes(2, 3)
    assert boxes.dtype == np.float32
    np.testing.assert_allclose(boxes[0], [0, 0, 1 / 3, 1 / 2])
    np.testing.assert_allclose(boxes[2], [2 / 3, 0, 1, 1 / 2])
    np.testing.assert_allclose(boxes[3], [0, 1 / 2, 1 / 3, 1])
    np.testing.assert_allclose(((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).sum(), 1)
    np.testing.assert_array_equal(whole_page(2), [[0, 0, 1, 1]] * 2)


@pytest.mark.parametrize(
    "change", [{"mean": [0, 0]}, {"std": [1, 1, 0]}, {"resample": 77}, {"factor": "x"}, {"mean": None}]
)
def test_other_scales_are_refused(change: dict[str, object]) -> None:
    good = {"factor": 1 / 255, "mean": [0.5] * 3, "std": [0.5] * 3, "resample": 3}
    assert PixelScale.from_json(good) == SCALES["siglip"]
    with pytest.raises((KeyError, TypeError, ValueError)):
        PixelScale.from_json({**good, **change})
