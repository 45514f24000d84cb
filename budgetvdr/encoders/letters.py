"""How large the letters on a picture are."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# A tenth of the range between black and white. Of light print on a dark ground the insides of letters and the gaps
# between them are seen, which are about as high.
_CONTRAST = 25
_SURROUNDINGS = 31


def letter_heights(grey: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
    """(n,) heights in pixels of the shapes that may be letters: darker than what is around them, and about square.

    grey: (height, width), 0 is black. Shapes under 5 pixels are left out as noise. On a page of print the lower
    quartile is the height of an "x". 15 ms for a letter page at 150 dpi. Needs OpenCV, which comes with rapidocr.
    """
    import cv2  # noqa: PLC0415  (comes with an extra)

    around = cv2.boxFilter(grey, -1, (_SURROUNDINGS, _SURROUNDINGS))
    ink = (cv2.subtract(around, grey) > _CONTRAST).astype(np.uint8)
    shapes = np.asarray(cv2.connectedComponentsWithStats(ink, connectivity=8)[2], np.int32)[1:]
    width, height, area = (shapes[:, column] for column in (cv2.CC_STAT_WIDTH, cv2.CC_STAT_HEIGHT, cv2.CC_STAT_AREA))
    squarish = (width < 4 * height) & (height < 4 * width) & (area > 0.2 * width * height)
    sized = (height >= 5) & (width >= 3) & (height < grey.shape[0] / 10)
    heights: npt.NDArray[np.int32] = height[squarish & sized]
    return heights
