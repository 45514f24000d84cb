"""What of a document needs work, given what the index holds of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from budgetvdr.errors import PageError, SourceError
from budgetvdr.pages import FileReport, MetadataValue, Page, PageProblem
from budgetvdr.sources import Document
from budgetvdr.store import DocumentState, Store

IfExists = Literal["update", "replace", "skip", "error"]


@dataclass(slots=True)
class Work:
    """A document on its way in.

    revision: what its pages are stored as, a digest of content and settings. kept: page number -> revision under which
    a page that is there already may stay. has_stale_pages: whether pages of other revisions are to go at the end.
    """

    document: Document
    report: FileReport
    revision: str
    kept: Mapping[int, str]
    has_stale_pages: bool
    store_images: bool

    def revision_of(self, page: Page) -> str:
        """The revision a page is stored as: the document's, or its own where its maker gave a digest of it."""
        if self.document.whole or not page.content_hash:
            return self.revision
        return _revision(page.content_hash, page.metadata, page.read, self.store_images)


@dataclass(frozen=True, slots=True)
class Item:
    """A page to encode, or (page None) the end of its document."""

    work: Work
    page: Page | None


def begin(store: Store, document: Document, if_exists: IfExists, store_images: bool, file: FileReport) -> Work | None:
    """Compares a document with what is stored under its id; None where nothing is to be done."""
    stored = store.document_state(document.doc_id)
    revision = _revision(document.content_hash, document.metadata, document.read, store_images)
    known = {num: held for num, held in stored.revisions.items() if num not in stored.unread}
    if not stored.revisions:
        return Work(document, file, revision, {}, False, store_images)
    if if_exists == "skip" and document.whole:
        file.status, file.unchanged = "skipped", len(stored.revisions)
        return None
    if if_exists == "error" and not _all_there(document, known, revision):
        file.error = SourceError(
            f"doc_id {document.doc_id!r} is in the index already, and if_exists='error' was asked for"
        )
        return None
    if if_exists == "update" and document.whole and not _same_document(store, document, stored, revision):
        file.error = SourceError(
            f"doc_id {document.doc_id!r} already stands for {stored.source or 'pages made in memory'}; "
            "pass doc_id= to keep both documents, or if_exists='replace' to put this one in its place"
        )
        return None
    file.status = "updated"
    # Some pages of a document say nothing about its other pages: those stay.
    stale = document.whole and any(held != revision for held in stored.revisions.values())
    return Work(document, file, revision, {} if if_exists == "replace" else known, stale, store_images)


def items(work: Work, if_exists: IfExists) -> Iterator[Item]:
    """The pages that need work, then the end of the document; the others are counted in its report."""
    try:
        for page in work.document.pages():
            if isinstance(page, PageError):
                work.report.problems.append(PageProblem(page.page_num, page))
            elif _is_there(work, page, if_exists):
                work.report.unchanged += 1
            else:
                yield Item(work, page)
    except SourceError as error:
        # The file broke while it was being read: what was read before stays, older pages are not dropped.
        work.report.error = error
    yield Item(work, None)


def _is_there(work: Work, page: Page, if_exists: IfExists) -> bool:
    held = work.kept.get(page.page_num)
    return held is not None and (if_exists == "skip" or held == work.revision_of(page))


def _all_there(document: Document, known: Mapping[int, str], revision: str) -> bool:
    return document.whole and sum(held == revision for held in known.values()) == document.page_count


def _same_document(store: Store, document: Document, stored: DocumentState, revision: str) -> bool:
    """Whether this is what the index knows by that name: from the same place, or the same content moved."""
    if stored.source == document.source:
        return True
    if revision not in stored.revisions.values():
        return False
    if document.source:
        store.move_document(document.doc_id, stored.source, document.source)
    return True


def _revision(content: str, metadata: Mapping[str, MetadataValue], read: str, store_images: bool) -> str:
    """Digest of all that decides what is stored for a page but its place, so that an equal one needs no work."""
    decides = {
        "content": content,
        "metadata": {key: repr(value) for key, value in sorted(metadata.items())},
        "read": read,
        "images": store_images,
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:32]
