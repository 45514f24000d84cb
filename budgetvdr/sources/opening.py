"""One thing a caller has -> the open PDF or picture behind it, or the reason why there is none."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from budgetvdr.errors import SourceError, SourceNotFoundError, UnreadableFileError
from budgetvdr.pages import Page
from budgetvdr.pdf.file import PdfFile
from budgetvdr.sources.files import FoundFile, doc_id_of, find_files
from budgetvdr.sources.pictures import PictureFile, from_array, upright_rgb

FRAME = "#frame="
"""Between a path and the number, from 1, of the frame of it that is meant."""

Source = str | Path | bytes | Image.Image | npt.NDArray[Any] | Page


@dataclass(frozen=True, slots=True)
class FailedSource:
    """A source that is no document, and why. doc_id: the name it would have had."""

    source: str
    doc_id: str
    error: SourceError


Item = FoundFile | bytes | Image.Image | npt.NDArray[Any] | FailedSource


@dataclass(frozen=True, slots=True)
class Content:
    """A source that has been opened. name: the doc_id it suggests."""

    what: PdfFile | PictureFile | Image.Image
    digest: str
    name: str
    source: str

    @property
    def page_count(self) -> int:
        """Pages or frames."""
        if isinstance(self.what, PdfFile):
            return self.what.page_count
        return self.what.frames if isinstance(self.what, PictureFile) else 1


def items_of(source: Source) -> Iterator[Item]:
    """What there is to open behind a source: one thing, or the files of a folder or pattern."""
    if isinstance(source, (str, Path)):
        for found in find_files(source):
            yield FailedSource(str(source), Path(source).name, found) if isinstance(found, SourceError) else found
    elif isinstance(source, (bytearray, memoryview)):
        yield bytes(source)
    elif isinstance(source, (bytes, Image.Image, np.ndarray)):
        yield source
    else:
        problem = "a Page carries its own doc_id; leave doc_id= out"
        if not isinstance(source, Page):
            problem = (
                f"cannot index a {type(source).__name__}: expected a path, the bytes of a file, a PIL image, "
                "a numpy array or a Page; of an open file pass what its read() gives"
            )
        yield FailedSource("", "", SourceError(problem))


def open_item(item: Item, password: str | None, doc_id: str = "") -> Content | FailedSource:
    """Opens one thing. doc_id: the name it would have where it fails, instead of its own."""
    if isinstance(item, FailedSource):
        return replace(item, doc_id=doc_id or item.doc_id)
    try:
        if isinstance(item, FoundFile):
            return _from_file(item, password)
        return _from_bytes(item, password) if isinstance(item, bytes) else _from_pixels(item)
    except SourceError as error:
        source, name = (str(item.path.absolute()), item.doc_id) if isinstance(item, FoundFile) else ("", "")
        return FailedSource(source, doc_id or name, error)


def open_file(path: Path, password: str | None) -> PdfFile | PictureFile:
    """Opens a file by what it holds, not by its suffix. Raises SourceError where it cannot be opened."""
    if path.exists() and not path.is_file():
        # Opening a pipe would wait for somebody to write into it.
        raise UnreadableFileError(f"{path} is neither a file nor a folder")
    try:
        with path.open("rb") as stream:
            head = stream.read(1024)
    except FileNotFoundError as error:
        raise SourceNotFoundError(f"{path} does not exist (any more)") from error
    except OSError as error:
        raise UnreadableFileError(f"{path} cannot be read: {error.strerror}") from error
    if _looks_like_pdf(head) or path.suffix.lower() == ".pdf":
        return PdfFile(path, password=password)
    return PictureFile(path, name=str(path))


def _from_file(file: FoundFile, password: str | None) -> Content:
    opened = open_file(file.path, password)
    with file.path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return Content(opened, digest, file.doc_id, str(file.path.absolute()))


def _from_bytes(data: bytes, password: str | None) -> Content:
    name, digest = f"a source of {len(data)} bytes", hashlib.sha256(data).hexdigest()
    if _looks_like_pdf(data):
        return Content(PdfFile(data, password=password, name=name), digest, digest[:16], "")
    return Content(PictureFile(data, name=name), digest, digest[:16], "")


def _from_pixels(pixels: Image.Image | npt.NDArray[Any]) -> Content:
    picture = from_array(pixels) if isinstance(pixels, np.ndarray) else upright_rgb(pixels)
    digest = hashlib.sha256(repr(picture.size).encode() + picture.tobytes()).hexdigest()
    # Pillow keeps the file name on what it has opened, as long as it has not been worked on.
    file = getattr(pixels, "filename", "")
    path = Path(os.fsdecode(file)).absolute() if isinstance(file, (str, bytes)) and file else None
    if path is None:
        return Content(picture, digest, digest[:16], "")
    frame = pixels.tell() if isinstance(pixels, Image.Image) else 0
    # Frames of one file that come one by one are documents of their own.
    name, source = doc_id_of(path.name), str(path)
    return Content(
        picture, digest, f"{name}-{frame + 1}" if frame else name, f"{source}{FRAME}{frame + 1}" if frame else source
    )


def _looks_like_pdf(head: bytes) -> bool:
    # Viewers accept up to 1,024 bytes of anything before the header.
    return b"%PDF-" in head[:1024]
