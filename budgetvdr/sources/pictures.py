"""Image files, PIL images and numpy arrays -> upright RGB pictures."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from budgetvdr.errors import SourceError, UnreadableFileError

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})
# Pillow tries every format it knows, some through outside programs; these are the ones meant.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
# What Pillow allows a file to hold goes for pictures already in memory, too.
_MOST_PIXELS = 2 * (Image.MAX_IMAGE_PIXELS or 89_478_485)
# What decoders raise on damaged or hostile files. The bomb warning is an exception where warnings are errors.
_DAMAGE = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    EOFError,
    IndexError,
    OverflowError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)


class PictureFile:
    """An image file, decoded anew each time it is drawn so that none stays in memory.

    source: a path, or the bytes of a file.
    name: what error messages call it.
    frames: pictures in it; more than one only for TIFF, of a moving picture the first is taken.

    Raises UnreadableFileError where this is no picture, a truncated one, or one of more than 179 million pixels.
    """

    def __init__(self, source: Path | bytes, *, name: str) -> None:
        self._source = source
        self._sizes: dict[int, tuple[int, int]] = {}
        self.name = name
        try:
            with self._open() as image:
                self.frames = int(getattr(image, "n_frames", 1)) if image.format == "TIFF" else 1
        except _DAMAGE as error:
            raise self._unreadable(error) from error
        if self.frames == 1:
            self.size(0)

    def size(self, frame: int) -> tuple[int, int]:
        """(width, height) in pixels of an upright frame, counted from 0. Decodes it, so as to know that it can be.

        Raises UnreadableFileError where it cannot.
        """
        if frame in self._sizes:
            return self._sizes[frame]
        try:
            with self._open() as image:
                image.seek(frame)
                width, height = image.size
                turned = image.getexif().get(0x0112, 1) >= 5
                image.draft(None, (1, 1))
                image.load()
        except _DAMAGE as error:
            raise self._unreadable(error) from error
        self._sizes[frame] = (height, width) if turned else (width, height)
        return self._sizes[frame]

    def render(self, frame: int, longest_side: int) -> Image.Image:
        """An upright frame in RGB, reduced to at most `longest_side` pixels, never enlarged.

        Raises UnreadableFileError where it cannot be decoded.
        """
        try:
            with self._open() as image:
                image.seek(frame)
                # JPEG can be decoded at a half, a quarter or an eighth for less time and memory.
                image.draft(None, (longest_side, longest_side))
                picture = _decoded_rgb(image)
        except _DAMAGE as error:
            raise self._unreadable(error) from error
        picture.thumbnail((longest_side, longest_side), Image.Resampling.LANCZOS)
        return picture

    def _open(self) -> Image.Image:
        return Image.open(io.BytesIO(self._source) if isinstance(self._source, bytes) else self._source, "r", _FORMATS)

    def _unreadable(self, error: Exception) -> UnreadableFileError:
        if isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
            return UnreadableFileError(f"{self.name} has too many pixels to be a page: {error}")
        if isinstance(error, UnidentifiedImageError):
            return UnreadableFileError(
                f"{self.name} is neither a PDF nor a picture: expected PDF, PNG, JPEG, WebP, TIFF, BMP or GIF"
            )
        return UnreadableFileError(f"{self.name} is a damaged picture: {error}")


def upright_rgb(image: Image.Image) -> Image.Image:
    """A copy in RGB: turned as its EXIF orientation says, transparency on white, 16-bit and float grey in 8 bits.

    Raises UnreadableFileError where it comes from a file that cannot be decoded, SourceError where it has no pixels.
    """
    if 0 in image.size:
        raise SourceError(f"a picture of {image.width} x {image.height} pixels has nothing on it")
    if image.width * image.height > _MOST_PIXELS:
        raise SourceError(
            f"a picture of {image.width} x {image.height} pixels is too large: expected at most {_MOST_PIXELS} in all"
        )
    try:
        return _decoded_rgb(image)
    except _DAMAGE as error:
        raise UnreadableFileError(
            f"{getattr(image, 'filename', '') or 'a PIL image'} cannot be decoded: {error}"
        ) from error


def _decoded_rgb(image: Image.Image) -> Image.Image:
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith(("I", "F")):
        image = Image.fromarray(_eight_bits(np.asarray(image)))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


def from_array(array: npt.NDArray[Any]) -> Image.Image:
    """RGB picture of a (height, width), (height, width, 3) or (height, width, 4) array, uint8 or float from 0 to 1.

    Raises SourceError for any other shape, type or range.
    """
    expected = "expected (height, width), (height, width, 3) or (height, width, 4), uint8 or float between 0 and 1"
    shaped = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))
    if not shaped or 0 in array.shape:
        raise SourceError(f"an array of shape {array.shape} is no picture: {expected}")
    if np.issubdtype(array.dtype, np.floating):
        # Written so that NaN fails too.
        if not (array.min() >= 0 and array.max() <= 1):
            raise SourceError(
                f"an array of shape {array.shape} holds values from {array.min():g} to {array.max():g}: {expected}"
            )
        array = np.rint(array * 255).astype(np.uint8)
    if array.dtype != np.uint8:
        raise SourceError(f"an array of shape {array.shape} has type {array.dtype}: {expected}")
    return _decoded_rgb(Image.fromarray(np.ascontiguousarray(array)))


def _eight_bits(grey: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    if grey.dtype == np.uint16:
        # Scanners leave the upper bits empty where they see less than 16 bits.
        return (grey >> max(0, int(grey.max()).bit_length() - 8)).astype(np.uint8)
    # Wider integers and floats have no agreed white: the brightest value is taken for it.
    values = np.nan_to_num(grey.astype(np.float64))
    low, high = min(values.min(), 0.0), values.max()
    scaled: npt.NDArray[np.uint8] = np.rint((values - low) * (255 / max(high - low, 1e-12))).astype(np.uint8)
    return scaled
