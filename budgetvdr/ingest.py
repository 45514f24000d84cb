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
from time import perf_counter, thread_time

from PIL import Image
from tqdm import tqdm

from budgetvdr.encoders import Encoder
from budgetvdr.errors import BudgetVDRError, PageError
from budgetvdr.folding import Folding
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
    """How documents are added; see `Index.add_pages` for what each one means. threads: pages folded side by side."""

    if_exists: IfExists
    store_images: bool
    batch_size: int
    threads: int = 1


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
    stage = _EncodeStage(store, encoder, Folding.of(store.settings), options.threads, report, bar)
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
            rows = stage.rows(batch.items)
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


@dataclass(frozen=True, slots=True)
class _EncodeStage:
    """Turns items into rows to store, and tells the reports. threads: pages folded side by side."""

    store: Store
    encoder: Encoder
    folding: Folding
    threads: int
    report: AddReport
    bar: tqdm[None]

    def rows(self, batch: Sequence[Item]) -> list[tuple[Work, PageRow]]:
        """The pages of a batch that can be stored; the others are problems of their documents."""
        wanted = [(item.work, item.page) for item in batch if item.page is not None]
        results = self.encoder.encode_pages(
            [page for _, page in wanted],
            self.store.settings.depths,
            attention=self.folding.windows or None,
            on_page=self.bar.update,
        )
        rows = []
        for (work, page), row in zip(wanted, self._stored(wanted, results), strict=True):
            if isinstance(row, BudgetVDRError):
                work.report.problems.append(PageProblem(page.page_num, row))
            else:
                rows.append((work, row))
        for item in batch:
            if item.page is None:
                item.work.document.close()
        return rows

    def _stored(
        self, wanted: Sequence[tuple[Work, Page]], results: Sequence[EncodedPage | BudgetVDRError]
    ) -> list[PageRow | BudgetVDRError]:
        for (work, page), result in zip(wanted, results, strict=True):
            if isinstance(result, EncodedPage):
                self._count(work.report, page, result)
        if self.folding.method is None:
            return [self._one(*each)[0] for each in zip(wanted, results, strict=True)]
        with ThreadPoolExecutor(self.threads, "budgetvdr-fold") as pool:
            done = list(pool.map(self._one, wanted, results))
        seconds = self.report.seconds
        seconds["compress"] = seconds.get("compress", 0.0) + sum(taken for _, taken in done)
        return [row for row, _ in done]

    def _one(
        self, wanted: tuple[Work, Page], result: EncodedPage | BudgetVDRError
    ) -> tuple[PageRow | BudgetVDRError, float]:
        """What is stored of one page, or why nothing is, and CPU seconds that folding took."""
        if isinstance(result, BudgetVDRError):
            return result, 0.0
        try:
            full = _row(*wanted, result)
            start = thread_time()
            row = self.folding.stored(full)
            taken = thread_time() - start
            self.store.check(row)
        except Exception as error:  # a page's own renderer may raise anything, and an encoder give anything
            return _as_page_error(wanted[1], error), 0.0
        return row, taken

    def _count(self, file: FileReport, page: Page, encoded: EncodedPage) -> None:
        for stage, seconds in encoded.seconds.items():
            self.report.seconds[stage] = self.report.seconds.get(stage, 0.0) + seconds
        file.readers[encoded.reader] = file.readers.get(encoded.reader, 0) + 1
        if encoded.notes:
            file.notes[page.page_num] = encoded.notes


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
        signals=encoded.signals,
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
