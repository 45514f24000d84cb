"""Heights of drawn letters."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from budgetvdr.encoders.letters import letter_heights

pytest.importorskip("cv2")


def drawn(size: int, *, dark: int = 0, paper: int = 255) -> Image.Image:
    picture = Image.new("L", (1000, 700), paper)
    font = ImageFont.load_default(size)
    for row in range(5):
        ImageDraw.Draw(picture).text((20, 20 + row * size * 1.5), "sun moon and river once more over seas", dark, font)
    return picture


@pytest.mark.parametrize("size", [16, 24, 40])
def test_the_lower_quartile_is_the_height_of_small_letters(size: int) -> None:
    _, top, _, bottom = ImageFont.load_default(size).getbbox("x")
    heights = letter_heights(np.asarray(drawn(size)))
    assert abs(np.percentile(heights, 25) - (bottom - top)) <= 2


def test_grey_print_on_grey_paper_counts() -> None:
    clear, faint = (
        letter_heights(np.asarray(drawn(24, dark=dark, paper=paper))) for dark, paper in ((0, 255), (90, 190))
    )
    assert abs(len(clear) - len(faint)) <= 0.1 * len(clear)


def test_rules_frames_and_noise_are_no_letters() -> None:
    picture = Image.new("L", (800, 600), "white")
    draw = ImageDraw.Draw(picture)
    draw.rectangle((50, 50, 750, 550), outline=0, width=3)
    for y in range(80, 500, 30):
        draw.line((60, y, 740, y), fill=0, width=2)
    assert len(letter_heights(np.asarray(picture))) == 0
    grey = np.random.default_rng(0).normal(220, 5, (600, 800)).astype(np.uint8)
    assert len(letter_heights(grey)) == 0
    assert len(letter_heights(np.full((600, 800), 255, np.uint8))) == 0
