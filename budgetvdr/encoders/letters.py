"""How large the letters on a picture are."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# Ink is darker than its surroundings by a tenth of the range between black and white. Light print on a dark ground
# gives shapes too: the insides of letters and the gaps between them, which are about as high.
_CONTRAST = 25
_SURROUNDINGS = 31
_MIN_SHAPES = 30


def letter_height(grey: npt.NDArray[np.uint8]) -> float | None:
    """Height of the small letters ("x") in pixels, or None where too few shapes look like letters.

    grey: (height, width), 0 is black. Letters under 5 pixels cannot be told from noise: None, or the height of others.

    The lower quartile of the heights of connected shapes: a page has more small letters than capitals. 15 ms for a
    letter page at 150 dpi. Needs OpenCV.
    """
    import cv2  # noqa: PLC0415  (comes with the extra "ocr")

    around = cv2.boxFilter(grey, -1, (_SURROUNDINGS, _SURROUNDINGS))
    ink = (cv2.subtract(around, grey) > _CONTRAST).astype(np.uint8)
    _, _, stats, _ = cv2.connectedComponentsWithStats(ink, connectivity=8)
    shapes = np.asarray(stats)[1:]
    width, height, area = (shapes[:, column] for column in (cv2.CC_STAT_WIDTH, cv2.CC_STAT_HEIGHT, cv2.CC_STAT_AREA))
    squarish = (width < 4 * height) & (height < 4 * width) & (area > 0.2 * width * height)
    sized = (height >= 5) & (width >= 3) & (height < grey.shape[0] / 10)
    heights = height[squarish & sized]
    return float(np.percentile(heights, 25)) if len(heights) >= _MIN_SHAPES else None
