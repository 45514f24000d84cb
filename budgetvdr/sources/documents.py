"""Whatever a caller has -> documents -> pages.

Documents are opened one after another and their pages come one by one, so that neither a folder of a million files
nor a PDF of thousands of pages is ever held whole.
"""

from __future__ import annotations

import hashlib
import io
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import cast

import numpy as np
from PIL import Image

from budgetvdr.errors import PageError, SourceError, UnreadableFileError
from budgetvdr.pages import MetadataValue, Page, ReadMode
from budgetvdr.pdf.file import PdfFile
from budgetvdr.sources.files import names_several
from budgetvdr.sources.opening import FRAME, Content, FailedSource, Source, items_of, open_file, open_item
from budgetvdr.sources.pagestream import bad_doc_id, checked_pages
from budgetvdr.sources.pictures import PictureFile


@dataclass(slots=True, eq=False)
class Document:
    """One document that could be opened.

    doc_id: its name in the index. source: the absolute path of its file, "" where there is none.
    page_count: pages it has, 0 where that is not known before the end (a stream of `Page`).
    content_hash: hex digest of the file's bytes or the picture's pixels; new each time for a stream of `Page`, whose
        content is not known in advance.
    metadata, read: as given to `open_documents`.
    whole: whether its pages are all there is of the document. A stream of `Page` may bring some now and some later.
    """

    doc_id: str
    source: str
    page_count: int
    content_hash: str
    metadata: Mapping[str, MetadataValue]
    read: ReadMode
    whole: bool
    _pages: Callable[[], Iterator[Page | PageError]]

    def pages(self) -> Iterator[Page | PageError]:
        """Its pages in order, each made when it is asked for; in place of one that cannot be read, the error."""
        return self._pages()

    def close(self) -> None:
        """Lets go of the file. Pages already handed out keep it open for as long as they live."""
        self._pages = _no_pages


@dataclass(frozen=True, slots=True)
class _Given:
    """What the caller said about all documents."""

    password: str | None
    metadata: Mapping[str, MetadataValue]
    read: ReadMode


def open_documents(
    source: Source | Iterable[Source],
    *,
    doc_id: str | None = None,
    password: str | None = None,
    metadata: Mapping[str, MetadataValue] | None = None,
    read: ReadMode = "auto",
) -> Iterator[Document | FailedSource]:
    """Opens documents one after another; each is to be read to its end, or closed, before the next is asked for.

    source: a path, folder (read recursively, PDFs and pictures only, hidden files left out) or glob pattern; the bytes
        of a PDF or picture; a PIL image; a (height, width[, 3 or 4]) array; a `Page`; or an iterable of these.
        Consecutive `Page`s of one doc_id are one document.
    doc_id: the document's name. By default a file's name, its path under the folder or pattern given, or, for what
        has no name, 16 hex digits of its content. With it several pictures become pages of one document.
    password: for protected PDFs. metadata: for every page. read: for every page.

    What cannot be opened comes out as a `FailedSource`, and so does a second document of the same name.
    """
    given = _Given(password, dict(metadata or {}), read)
    sources = _each(source)
    taken: set[str] = set()
    for document in _open_each(sources, given) if doc_id is None else _open_as_one(sources, doc_id, given):
        if isinstance(document, Document):
            if document.doc_id in taken:
                document.close()
                yield FailedSource(document.source, document.doc_id, _taken_twice(document.doc_id))
                continue
            taken.add(document.doc_id)
        yield document


def draw_page(source: str, page_num: int, longest_side: int, *, password: str | None = None) -> Image.Image:
    """Draws a page again from the `source` and `page_num` it was indexed with; RGB, at most `longest_side` pixels.

    Raises SourceNotFoundError where the file is gone, and PasswordError, UnreadableFileError or PageError where it
    cannot be drawn.
    """
    path, mark, frame = source.rpartition(FRAME)
    file = open_file(Path(path if mark else source), password)
    if isinstance(file, PictureFile):
        return file.render(int(frame) - 1 if mark else page_num - 1, longest_side)
    try:
        return file.render(page_num, longest_side)
    finally:
        file.close()


def is_one_document(source: Source | Iterable[Source]) -> bool:
    """Whether a source is one document at most: not a folder, a pattern, or several sources."""
    if isinstance(source, (str, Path)):
        return not names_several(source)
    return _is_single(source) or not isinstance(source, Iterable)


def _is_single(source: Source | Iterable[Source]) -> bool:
    # An open file would give its lines.
    known = (str, Path, bytes, bytearray, memoryview, Image.Image, np.ndarray, Page, io.IOBase)
    return isinstance(source, known)


def _each(source: Source | Iterable[Source]) -> Iterator[Source]:
    # What is neither one source nor several is refused by name when its turn comes.
    if _is_single(source) or not isinstance(source, Iterable):
        return iter([cast(Source, source)])
    return iter(cast(Iterable[Source], source))


def _open_each(sources: Iterator[Source], given: _Given) -> Iterator[Document | FailedSource]:
    """Every source a document of its own; consecutive pages of one doc_id are one too."""
    for is_page, group in groupby(sources, lambda source: (source.doc_id,) if isinstance(source, Page) else ()):
        if is_page:
            yield _stream((page for page in group if isinstance(page, Page)), given)
            continue
        for source in group:
            for item in items_of(source):
                content = open_item(item, given.password)
                yield content if isinstance(content, FailedSource) else _document([content], content.name, given)


def _open_as_one(sources: Iterator[Source], doc_id: str, given: _Given) -> Iterator[Document | FailedSource]:
    """All sources together one document: a single file, or pictures that become its pages."""
    problem = bad_doc_id(doc_id)
    if problem:
        yield FailedSource("", str(doc_id), SourceError(problem))
        return
    contents = [open_item(item, given.password, doc_id) for source in sources for item in items_of(source)]
    opened = [content for content in contents if isinstance(content, Content)]
    if not opened:
        yield from (content for content in contents if isinstance(content, FailedSource))
    elif len(contents) > 1 and any(isinstance(content.what, PdfFile) for content in opened):
        found = f"found {len(contents)} files, PDFs among them"
        yield FailedSource(
            opened[0].source,
            doc_id,
            SourceError(f"doc_id={doc_id!r} names one document: expected one PDF, or pictures for its pages; {found}"),
        )
    else:
        yield _document(contents, doc_id, given)


def _document(contents: Sequence[Content | FailedSource], doc_id: str, given: _Given) -> Document:
    """One PDF, or one or more pictures; those that failed leave their page numbers free."""
    opened = [content for content in contents if isinstance(content, Content)]
    first, count = opened[0], sum(content.page_count for content in opened) + len(contents) - len(opened)
    digest = first.digest
    if len(contents) > 1:
        digest = hashlib.sha256("".join(content.digest for content in opened).encode()).hexdigest()
    page = Page(
        doc_id, 1, page_count=count, source=first.source, content_hash=digest, metadata=given.metadata, read=given.read
    )
    pages: Callable[[], Iterator[Page | PageError]]
    if isinstance(first.what, PdfFile):
        pages = partial(_pdf_pages, first.what, page)
    else:
        pages = partial(_picture_pages, contents, page)
    return Document(doc_id, first.source, count, digest, given.metadata, given.read, True, pages)


def _pdf_pages(pdf: PdfFile, page: Page) -> Iterator[Page | PageError]:
    for number in range(1, pdf.page_count + 1):
        yield _pdf_page(pdf, number, page)


def _pdf_page(pdf: PdfFile, number: int, page: Page) -> Page | PageError:
    try:
        words = None if page.read == "ocr" else pdf.words(number)
        return replace(
            page,
            page_num=number,
            render=partial(pdf.render, number),
            size=pdf.size(number),
            words=words,
            label=pdf.label(number),
            notes=("xfa_placeholder",) if pdf.shows_placeholder(words) else (),
        )
    except PageError as error:
        return error


def _picture_pages(contents: Sequence[Content | FailedSource], page: Page) -> Iterator[Page | PageError]:
    number = 0
    for content in contents:
        for frame in range(content.page_count if isinstance(content, Content) else 1):
            number += 1
            source = content.source
            if frame + 1 != number and source:
                # Where the page number does not say which frame of which file it is, the source does.
                source += f"{FRAME}{frame + 1}"
            yield _picture_page(content, frame, replace(page, page_num=number, source=source))


def _picture_page(content: Content | FailedSource, frame: int, page: Page) -> Page | PageError:
    if isinstance(content, FailedSource):
        return PageError(str(content.error), page_num=page.page_num)
    if isinstance(content.what, PictureFile):
        try:
            return replace(page, render=partial(content.what.render, frame), size=content.what.size(frame))
        except UnreadableFileError as error:
            return PageError(str(error), page_num=page.page_num)
    assert isinstance(content.what, Image.Image)
    return replace(page, image=content.what, size=content.what.size)


def _stream(pages: Iterator[Page], given: _Given) -> Document | FailedSource:
    """Pages made by the caller, all of one doc_id; there is at least one."""
    first = next(pages)
    problem = bad_doc_id(first.doc_id)
    if problem:
        return FailedSource(first.source, str(first.doc_id), SourceError(problem))
    return Document(
        first.doc_id,
        first.source,
        first.page_count,
        uuid.uuid4().hex,
        given.metadata,
        given.read,
        False,
        partial(checked_pages, chain([first], pages), given.metadata, given.read),
    )


def _taken_twice(doc_id: str) -> SourceError:
    return SourceError(
        f"doc_id {doc_id!r} comes a second time in one call: keep the pages of a document together, and give files of "
        "one name as a folder, or one by one with doc_id="
    )


def _no_pages() -> Iterator[Page | PageError]:
    return iter(())
