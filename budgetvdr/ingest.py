"""Documents -> encoded pages -> commits, as a pipeline of three stages that run side by side.

While one batch is encoded, the next one is being read and the previous one is being written; nothing else is held,
so that memory does not grow with the number of pages.
"""

from __future__ import annotations

import io
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from time import perf_counter

from PIL import Image
from tqdm import tqdm

from budgetvdr.encoders import Encoder
from budgetvdr.errors import BudgetVDRError, PageError
from budgetvdr.intake import IfExists, Item, Work, begin, items
from budgetvdr.memory import give_back
from budgetvdr.pages import AddReport, EncodedPage, FileReport, Page, PageProblem
from budgetvdr.sources import Document, FailedSource
from budgetvdr.sources.pictures import upright_rgb
from budgetvdr.store import PageRow, Store

# Longest side of a stored picture: 150 dpi of a letter page, enough to read and to highlight.
_STORED_LONGEST_SIDE = 1650


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """How documents are added; see `Index.add_pages` for what each one means."""

    if_exists: IfExists
    store_images: bool
    batch_size: int


@dataclass(frozen=True, slots=True)
class _Batch:
    """What one commit will hold. broken: what the caller's own iterator raised after these items."""

    items: list[Item]
    broken: BaseException | None


def ingest(
    store: Store,
    encoder: Encoder,
    documents: Iterator[Document | FailedSource],
    options: IngestOptions,
    bar: tqdm[None],
) -> AddReport:
    """Adds documents batch by batch, one commit a batch.

    A document or page that cannot be read is reported and the rest goes on. What the disk refuses is raised
    (StorageError), and so is what the caller's own iterator raises, after what it gave before is stored. Batches
    committed stay, and adding the same source again completes them.
    """
    begun = perf_counter()
    report = AddReport(seconds={"read": 0.0, "write": 0.0})
    with (
        closing(_items(store, documents, options, report, bar)) as source,
        ThreadPoolExecutor(1, "budgetvdr-read") as reader,
        ThreadPoolExecutor(1, "budgetvdr-write") as writer,
    ):
        written: Future[None] | None = None
        reading = reader.submit(_read, source, options.batch_size, report)
        while (batch := reading.result()).items:
            if batch.broken is None:
                reading = reader.submit(_read, source, options.batch_size, report)
            rows = _encode(store, encoder, batch.items, report, bar)
            if written is not None:
                written.result()
            written = writer.submit(_write, store, rows, batch.items, report)
            if batch.broken is not None:
                break
        if written is not None:
            written.result()
        if batch.broken is not None:
            raise batch.broken
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
) -> Generator[Item]:
    for document in documents:
        file = FileReport(doc_id=document.doc_id, source=document.source)
        report.files.append(file)
        if isinstance(document, FailedSource):
            file.error = document.error
            continue
        file.pages = document.page_count
        work = begin(store, document, options.if_exists, options.store_images, file)
        if work is None:
            document.close()
            continue
        bar.total = (bar.total or 0) + document.page_count
        yield from items(work, options.if_exists)
        bar.update(file.unchanged)


def _read(source: Iterator[Item], count: int, report: AddReport) -> _Batch:
    start = perf_counter()
    batch: list[Item] = []
    broken: BaseException | None = None
    try:
        while len(batch) < count and (item := next(source, None)) is not None:
            batch.append(item)
    except Exception as error:
        broken = error
    report.seconds["read"] += perf_counter() - start
    return _Batch(batch, broken)


def _encode(
    store: Store, encoder: Encoder, batch: Sequence[Item], report: AddReport, bar: tqdm[None]
) -> list[tuple[Work, PageRow]]:
    wanted = [(item.work, item.page) for item in batch if item.page is not None]
    results = encoder.encode_pages([page for _, page in wanted], store.settings.depths, on_page=bar.update)
    rows = []
    for (work, page), result in zip(wanted, results, strict=True):
        if isinstance(result, BudgetVDRError):
            work.report.problems.append(PageProblem(page.page_num, result))
            continue
        for stage, seconds in result.seconds.items():
            report.seconds[stage] = report.seconds.get(stage, 0.0) + seconds
        work.report.readers[result.reader] = work.report.readers.get(result.reader, 0) + 1
        if result.notes:
            work.report.notes[page.page_num] = result.notes
        try:
            row = _row(work, page, result)
            store.check(row)
        except Exception as error:  # a page's own renderer may raise anything, and an encoder give anything
            work.report.problems.append(PageProblem(page.page_num, _as_page_error(page, error)))
            continue
        rows.append((work, row))
    for item in batch:
        if item.page is None:
            item.work.document.close()
    return rows


def _row(work: Work, page: Page, encoded: EncodedPage) -> PageRow:
    return PageRow(
        doc_id=page.doc_id,
        page_num=page.page_num,
        label=page.label,
        page_count=page.page_count,
        source=page.source,
        size=page.size,
        revision=work.revision_of(page),
        metadata=page.metadata,
        text=encoded.text,
        reader=encoded.reader,
        notes=encoded.notes,
        regions=encoded.regions,
        vectors=encoded.vectors,
        image=_picture_bytes(page) if work.store_images else None,
    )


def _as_page_error(page: Page, error: Exception) -> BudgetVDRError:
    if isinstance(error, BudgetVDRError):
        return error
    return PageError(f"{page.id} cannot be stored: {type(error).__name__}: {error}", page_num=page.page_num)


def _picture_bytes(page: Page) -> bytes | None:
    picture: Image.Image | None = None
    if page.image is not None:
        picture = upright_rgb(page.image)
        picture.thumbnail((_STORED_LONGEST_SIDE, _STORED_LONGEST_SIDE), Image.Resampling.LANCZOS)
    elif page.render is not None:
        picture = page.render(_STORED_LONGEST_SIDE)
    if picture is None:
        return None
    stream = io.BytesIO()
    picture.save(stream, "WEBP", quality=80)
    return stream.getvalue()


def _write(store: Store, rows: Sequence[tuple[Work, PageRow]], batch: Sequence[Item], report: AddReport) -> None:
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
    give_back()
    report.seconds["write"] += perf_counter() - start


def _settle(file: FileReport) -> None:
    """The final status, once everything about the document is known."""
    file.problems.sort(key=lambda problem: problem.page_num)
    if file.status == "skipped":
        return
    if file.error is not None and not file.stored:
        file.status = "failed"
    elif file.error is not None or file.problems:
        file.status = "partial" if file.stored or file.unchanged else "failed"
    elif file.unchanged and not file.stored:
        file.status = "unchanged"
