"""Documents -> encoded pages -> commits, as a pipeline of three stages that run side by side.

While one batch is encoded, the next one is being read and the previous one is being written; nothing else is held,
so that memory does not grow with the number of pages.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from time import perf_counter
from typing import Literal

from tqdm import tqdm

from budgetvdr.encoders import Encoder
from budgetvdr.errors import BudgetVDRError, PageError, SourceError
from budgetvdr.pages import AddReport, EncodedPage, FileReport, Page, PageProblem
from budgetvdr.sources import Document, FailedSource
from budgetvdr.store import PageRow, Store

IfExists = Literal["update", "replace", "skip", "error"]

# Longest side of a stored picture: 150 dpi of a letter page, enough to read and to highlight.
_STORED_LONGEST_SIDE = 1650


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """How documents are added; see `Index.add_pages` for what each one means."""

    depths: tuple[int, ...]
    if_exists: IfExists
    store_images: bool
    batch_size: int


@dataclass(slots=True)
class _Work:
    """A document on its way in: what its pages are stored as, and what to do when the last one is in."""

    document: Document
    report: FileReport
    revision: str
    kept: frozenset[int]
    has_stale_pages: bool


@dataclass(frozen=True, slots=True)
class _Item:
    """A page to encode, or (page None) the end of its document."""

    work: _Work
    page: Page | None


def ingest(
    store: Store,
    encoder: Encoder,
    documents: Iterator[Document | FailedSource],
    options: IngestOptions,
    bar: tqdm[None],
) -> AddReport:
    """Adds documents batch by batch, one commit a batch.

    A document or page that cannot be read is reported and the rest goes on. What the disk refuses is raised
    (StorageError); batches committed before that stay, and adding the same source again completes them.
    """
    begun = perf_counter()
    report = AddReport(seconds={"read": 0.0, "write": 0.0})
    items = _items(store, documents, options, report, bar)

    def read() -> list[_Item]:
        start = perf_counter()
        batch = list(islice(items, options.batch_size))
        report.seconds["read"] += perf_counter() - start
        return batch

    with ThreadPoolExecutor(1, "budgetvdr-read") as reader, ThreadPoolExecutor(1, "budgetvdr-write") as writer:
        written: Future[None] | None = None
        reading = reader.submit(read)
        while batch := reading.result():
            reading = reader.submit(read)
            rows = _encode(encoder, batch, options, report, bar)
            if written is not None:
                written.result()
            written = writer.submit(_write, store, rows, batch, report)
        if written is not None:
            written.result()
    for file in report.files:
        _settle(file)
    report.seconds["total"] = perf_counter() - begun
    return report


def _items(
    store: Store,
    documents: Iterator[Document | FailedSource],
    options: IngestOptions,
    report: AddReport,
    bar: tqdm[None],
) -> Iterator[_Item]:
    for document in documents:
        file = FileReport(doc_id=document.doc_id, source=document.source)
        report.files.append(file)
        if isinstance(document, FailedSource):
            file.error = document.error
            continue
        file.pages = document.page_count
        work = _begin(store, document, options, file)
        if work is None:
            document.close()
            continue
        bar.total = (bar.total or 0) + document.page_count
        yield from _pages(work, bar)


def _begin(store: Store, document: Document, options: IngestOptions, file: FileReport) -> _Work | None:
    """Compares a document with what is stored under its id; None where nothing is to be done."""
    stored = store.document_state(document.doc_id)
    revision = _revision(document, options)
    if not stored.revisions:
        return _Work(document, file, revision, kept=frozenset(), has_stale_pages=False)
    if not document.whole and options.if_exists != "error":
        # Some pages of a document say nothing about its other pages: they stay.
        file.status = "updated"
        kept = frozenset(stored.revisions) if options.if_exists == "skip" else frozenset()
        return _Work(document, file, revision, kept, has_stale_pages=False)
    if options.if_exists == "skip":
        file.status, file.unchanged = "skipped", len(stored.revisions)
        return None
    kept = frozenset(num for num, known in stored.revisions.items() if known == revision)
    if options.if_exists == "error" and len(kept) < document.page_count:
        file.error = SourceError(
            f"doc_id {document.doc_id!r} is in the index already, and if_exists='error' was asked for"
        )
        return None
    if options.if_exists == "update" and not kept and stored.source != document.source:
        file.error = SourceError(
            f"doc_id {document.doc_id!r} already stands for {stored.source or 'pages made in memory'}; "
            "pass doc_id= to keep both documents, or if_exists='replace' to put this one in its place"
        )
        return None
    file.status = "updated"
    if options.if_exists == "replace":
        kept = frozenset()
    return _Work(document, file, revision, kept, has_stale_pages=any(r != revision for r in stored.revisions.values()))


def _pages(work: _Work, bar: tqdm[None]) -> Iterator[_Item]:
    try:
        for page in work.document.pages():
            if isinstance(page, PageError):
                work.report.problems.append(PageProblem(page.page_num, page))
                bar.update()
            elif page.page_num in work.kept:
                work.report.unchanged += 1
                bar.update()
            else:
                yield _Item(work, page)
    except SourceError as error:
        # The file broke while it was being read: what was read before stays, older pages are not dropped.
        work.report.error = error
    yield _Item(work, None)


def _encode(
    encoder: Encoder, batch: Sequence[_Item], options: IngestOptions, report: AddReport, bar: tqdm[None]
) -> list[tuple[_Work, PageRow]]:
    items = [(item.work, item.page) for item in batch if item.page is not None]
    results = encoder.encode_pages([page for _, page in items], options.depths, on_page=bar.update)
    rows = []
    for (work, page), result in zip(items, results, strict=True):
        if isinstance(result, BudgetVDRError):
            work.report.problems.append(PageProblem(page.page_num, result))
            continue
        for stage, seconds in result.seconds.items():
            report.seconds[stage] = report.seconds.get(stage, 0.0) + seconds
        work.report.readers[result.reader] = work.report.readers.get(result.reader, 0) + 1
        if result.notes:
            work.report.notes[page.page_num] = result.notes
        rows.append((work, _row(work, page, result, options)))
    for item in batch:
        if item.page is None:
            item.work.document.close()
    return rows


def _row(work: _Work, page: Page, encoded: EncodedPage, options: IngestOptions) -> PageRow:
    return PageRow(
        doc_id=page.doc_id,
        page_num=page.page_num,
        label=page.label,
        page_count=page.page_count,
        source=page.source,
        size=page.size,
        revision=work.revision,
        metadata=page.metadata,
        text=encoded.text,
        reader=encoded.reader,
        notes=encoded.notes,
        regions=encoded.regions,
        vectors=encoded.vectors,
        image=_picture_bytes(page) if options.store_images else None,
    )


def _picture_bytes(page: Page) -> bytes | None:
    picture = page.picture(_STORED_LONGEST_SIDE)
    if picture is None:
        return None
    stream = io.BytesIO()
    picture.save(stream, "WEBP", quality=80)
    return stream.getvalue()


def _write(store: Store, rows: Sequence[tuple[_Work, PageRow]], batch: Sequence[_Item], report: AddReport) -> None:
    start = perf_counter()
    ended = [item.work for item in batch if item.page is None]
    stored_now = {id(work) for work, _ in rows}
    # Old pages leave only when the new document is in: one that cannot be read takes nothing away.
    complete = {
        work.document.doc_id: work.revision
        for work in ended
        if work.has_stale_pages
        and work.report.error is None
        and (work.report.stored or work.report.unchanged or id(work) in stored_now)
    }
    if rows or complete:
        store.upsert([row for _, row in rows], complete)
    for work, _ in rows:
        work.report.stored += 1
    report.seconds["write"] += perf_counter() - start


def _settle(file: FileReport) -> None:
    """The final status, once everything about the document is known."""
    if file.status == "skipped":
        return
    if file.error and not file.stored:
        file.status = "failed"
    elif file.error or file.problems:
        file.status = "partial" if file.stored or file.unchanged else "failed"
    elif file.unchanged and not file.stored:
        file.status = "unchanged"


def _revision(document: Document, options: IngestOptions) -> str:
    """Digest of all that decides what is stored for a document, so that an equal one needs no work."""
    decides = {
        "content": document.content_hash,
        "metadata": {key: repr(value) for key, value in sorted(document.metadata.items())},
        "read": document.read,
        "images": options.store_images,
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:32]
