"""The index: add pages, search them, and see why a page was found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self, overload

from tqdm import tqdm

from budgetvdr import checks
from budgetvdr.budget import Budget, Plan, plan, served_presets
from budgetvdr.bundle import Preset
from budgetvdr.compress.record import Method
from budgetvdr.encoders import Encoder
from budgetvdr.encoders.onnx import CPU
from budgetvdr.encoders.open import open_encoder
from budgetvdr.errors import QueryError, SourceNotFoundError, StorageError
from budgetvdr.finder import Finder
from budgetvdr.folding import Folding, check_extra, check_folding, folded_settings, open_store, recompressed_settings
from budgetvdr.hit import Hit
from budgetvdr.info import IndexInfo, describe
from budgetvdr.ingest import IngestOptions, ingest
from budgetvdr.intake import IfExists
from budgetvdr.lifecycle import Lifecycle
from budgetvdr.memory import parse_bytes, quarter_of_machine
from budgetvdr.pages import AddReport, MetadataValue, ReadMode
from budgetvdr.recall import RecallReport, check, sample_queries
from budgetvdr.recall_file import KeptRecall
from budgetvdr.recompress import RecompressReport, Target, recompress
from budgetvdr.searcher import Searcher
from budgetvdr.sources import Source, is_one_document, open_documents
from budgetvdr.store import (
    KEEP_VERSIONS,
    DocumentInfo,
    IndexSettings,
    OptimizeReport,
    Snapshot,
    Store,
    VersionInfo,
    Where,
)
from budgetvdr.view import StoreView


class Index:
    """A searchable collection of pages in one folder (a LanceDB database) or object-store URI.

    Open one with `Index.open`; use it as a context manager or call `close`. Searches may come from several threads.
    Several processes may read, and write, one index at the same time.
    """

    def __init__(self, store: Store, encoder: Encoder, *, memory_limit: int, threads: int) -> None:
        self._store = store
        self._encoder = encoder
        self._searcher = Searcher(memory_limit=memory_limit, threads=threads)
        self._finder = Finder(encoder, self._searcher, StoreView(store, encoder))
        self._lifecycle = Lifecycle(store, self._searcher)
        self._threads = threads
        self._recall = KeptRecall(store)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        encoder: str | Path | Encoder | None = None,
        depths: Sequence[int] | None = None,
        compression: Method | None = None,
        signals: bool = False,
        create: bool = True,
        read_only: bool = False,
        version: int | None = None,
        memory_limit: int | str | None = None,
        threads: int | None = None,
        providers: Sequence[str] = (CPU,),
        storage_options: Mapping[str, str] | None = None,
    ) -> Self:
        """Opens an index, and creates it where there is none unless told otherwise.

        path: a folder, or a URI such as "s3://bucket/index". encoder: a bundle, by its folder or its name on the
        Hugging Face hub ("owner/name", with a revision "owner/name@revision"), or what `open_encoder` made of one; None
        for the bundled encoder, which needs no network and no GPU. depths: the encoder's exits whose vectors are
        stored, all by default; it is fixed at creation. One is enough for queries of every depth that the bundle was
        trained for to search it (see `query_depths`). compression: a method of `budgetvdr.compress`, such as
        WardFold(gamma=0.2), by which pages keep fewer vectors; fixed at creation, None takes that of the index and
        keeps all in a new one. signals: keeps what the attention says of each token in a new index, 6 bytes a token and
        depth, so that `recompress` can use methods that ask for it. create: whether a missing index may be made.
        read_only: never creates or changes anything. version: reads the index as it was at this version (see
        `versions`) and stays there, read-only; None for the latest, which moves on as others write. memory_limit:
        vectors kept in memory, in bytes or as "256MB", a quarter of the machine's memory by default; a larger index is
        read from disk. The lists of a first stage, about 4 bytes a vector, come on top. threads: workers that encode
        and scan, one a core by default. providers: onnxruntime execution providers for a bundle opened here, best
        first, such as ("CUDAExecutionProvider",); one that cannot be used is an error. storage_options: credentials and
        settings of an object store.

        Raises IndexFormatError for something that is not an index or is of a newer format, IndexMismatchError for an
        index made with another bundle, other depths or another compression, or with depths and widths that the bundle
        has no more, CompressionError for a compression or signals that ask for attention which the bundle does not
        give, BundleError for a bundle that cannot be used, BudgetError for a depth the bundle lacks,
        SourceNotFoundError for a missing index that may not be created or a version that is not there, StorageError for
        a disk or object store that refuses or cannot be reached, MissingExtraError without onnxruntime, or for a new
        index whose compression needs a package that is not installed, ProviderError for a provider that cannot be used.
        """
        checks.check_path(path)
        checks.check_open(encoder=encoder, providers=providers, storage_options=storage_options)
        limit = quarter_of_machine() if memory_limit is None else parse_bytes(memory_limit)
        workers = checks.threads_or_cores(threads)
        if encoder is None or isinstance(encoder, str | Path):
            encoder = open_encoder(encoder, threads=workers, providers=providers)
        settings = _settings(encoder, depths, compression, signals=signals)
        store = open_store(
            path,
            settings if create else None,
            read_only=read_only,
            version=checks.version_of(version),
            storage_options=storage_options,
        )
        checks.check_settings(store.settings, settings, str(path), depths_given=depths is not None)
        check_folding(store.settings, settings, str(path))
        return cls(store, encoder, memory_limit=limit, threads=workers)

    @property
    def depths(self) -> tuple[int, ...]:
        """Depths whose page vectors are stored, ascending."""
        return self._store.settings.depths

    @property
    def query_depths(self) -> Mapping[int, tuple[int, ...]]:
        """Stored depth -> query depths that the bundle was trained for to search its pages, its own among them."""
        known = self._encoder.manifest.query_depths
        return {depth: known[depth] for depth in self.depths}

    @property
    def dims(self) -> tuple[int, ...]:
        """Widths that can be searched, ascending."""
        return self._store.settings.dims

    @property
    def presets(self) -> Mapping[str, Preset]:
        """Named budgets that this index can serve."""
        return served_presets(self._encoder.manifest.presets, query_depths=self.query_depths, dims=self.dims)

    @property
    def page_count(self) -> int:
        """Stored pages, blank ones included; the same as `len(index)`."""
        return len(self)

    @property
    def vectors_per_page(self) -> float:
        """Mean number of vectors a page has, 0 where there are no pages."""
        return self._store.on_latest(lambda snapshot: snapshot.vector_count() / max(snapshot.page_count(), 1))

    def add_pages(
        self,
        source: Source | Iterable[Source],
        *,
        doc_id: str | None = None,
        metadata: Mapping[str, MetadataValue] | None = None,
        password: str | None = None,
        read: ReadMode = "auto",
        if_exists: IfExists = "update",
        store_images: bool = False,
        batch_size: int = 16,
        show_progress_bar: bool | None = None,
    ) -> AddReport:
        """Adds documents, or replaces those already there.

        source: a path, folder or glob pattern, the bytes of a PDF or picture, a PIL image, a numpy array (height,
        width[, 3 or 4]), a `Page`, or an iterable of these, which is consumed as it goes. doc_id: the document's name;
        by default its file name (or path under the folder given), for sources without a name a digest of the content.
        metadata: str, int, float, bool, date or datetime values to filter on. password: for protected PDFs.
        read: "auto" lets each page choose between its text layer and OCR; "text_layer" and "ocr" force one.
        if_exists, for a doc_id the index holds: "update" stores what has changed and skips what has not, and refuses a
        different file of the same name; "replace" stores everything anew; "skip" keeps what is there; "error" fails.
        `Page`s given one by one are stored or replaced one by one: other pages of their document stay.
        store_images: keeps a picture of each page in the index, for sources that may move.
        batch_size: pages a commit. show_progress_bar: None shows one on a terminal.

        Pages whose commit is done stay, whatever happens afterwards; adding the same source again completes it.

        Files and pages that cannot be read are reported and the rest goes on. Only a single source that cannot be
        opened at all, or a folder or pattern without documents, is raised (SourceNotFoundError, UnreadableFileError,
        PasswordError, SourceError). Raises also MetadataError, StorageError, ReadOnlyError, ValueError for an argument
        that is none of its choices, and MissingExtraError where OCR is forced, or the index's compression needs a
        package, and that is not installed.
        """
        self._store.check_writable("add pages")  # before any work is done
        check_extra(self._store.settings)
        checks.check_add(metadata, password=password, batch_size=batch_size, if_exists=if_exists, read=read)
        documents = open_documents(source, doc_id=doc_id, password=password, metadata=metadata, read=read)
        options = IngestOptions(if_exists, store_images, int(batch_size), self._threads)
        disable = None if show_progress_bar is None else not show_progress_bar
        with tqdm(total=0, unit="page", desc="pages", disable=disable) as bar:
            report = ingest(self._store, self._encoder, documents, options, bar)
        self._lifecycle.after_adding(report.pages)
        error = report.files[0].error if len(report.files) == 1 else None
        if error is not None and (isinstance(error, SourceNotFoundError) or is_one_document(source)):
            raise error
        return report

    @overload
    def search(  # type: ignore[overload-overlap] # a str is a sequence of str; the first match is the right one
        self, query: str, k: int = 10, *, budget: Budget | str = "full", where: Where | None = None
    ) -> list[Hit]: ...
    @overload
    def search(
        self, query: Sequence[str], k: int = 10, *, budget: Budget | str = "full", where: Where | None = None
    ) -> list[list[Hit]]: ...
    def search(
        self, query: str | Sequence[str], k: int = 10, *, budget: Budget | str = "full", where: Where | None = None
    ) -> list[Hit] | list[list[Hit]]:
        """The best pages for a query, best first; a list of queries gives a list of lists.

        k: most hits a query; fewer come back where fewer pages match. budget: a preset ("full", "balanced", "fast") or
        a `Budget`. where: a filter applied before anything is scored, as a mapping (conditions are ANDed; a value is
        compared for equality, a list is a choice, {">=": 1, "<": 9} is a range) or as an SQL condition. Columns are
        your metadata and doc_id, page_num, page_count, label, source, reader.

        Scores are exact: mean over query vectors of the maximum over page vectors of the dot product, at the asked
        depths and width. Widths are those of `dims`, and depths exits of the bundle, whether or not the budget is
        strict: others are not stored, or cannot be run. Blank pages are never returned.

        Raises QueryError for an empty or oversized query, a k below 1 or a filter that cannot be understood;
        BudgetError for a budget the index cannot serve; where the bundle was not trained for its pair of depths,
        unless it is not strict.
        """
        checks.check_k(k)
        texts = checks.texts_of(query)
        point = self._plan(budget)

        def search(snapshot: Snapshot) -> list[list[Hit]]:
            condition = snapshot.condition(where)
            return [self._finder.find(snapshot, text, point, k=int(k), where=condition) for text in texts]

        found = self._store.on_latest(search)
        return found[0] if isinstance(query, str) else found

    def recompress(
        self,
        path: str | Path,
        compression: Method,
        *,
        storage_options: Mapping[str, str] | None = None,
        show_progress_bar: bool | None = None,
    ) -> RecompressReport:
        """Makes a smaller index of this one at another path, without encoding its pages again.

        path: a folder or an object-store URI without an index, or with one that a run before began or completed: pages
        copied then and neither stored anew nor moved since are skipped, so that a repeated run brings it up to date.
        compression: a method of `budgetvdr.compress`. Those that look at vectors alone work from every index that keeps
        all its vectors; the others need one made with signals=True. storage_options: of the new index's object store.
        show_progress_bar: None shows one on a terminal.

        Each page comes with its text, metadata, regions, picture and revision, so that adding its source there finds
        nothing to do. It is what adding the documents with this compression would have stored, to the bit; of an index
        with signals, with the attention it was made with, though the bundle may have been calibrated anew.

        Raises CompressionError where this index is compressed itself or lacks the signals a method needs,
        IndexMismatchError where something else is at the path, MissingExtraError, ValueError for what is no method,
        StorageError, also where this index was compacted meanwhile: run it again then.
        """
        settings = recompressed_settings(self._store.settings, self._encoder.manifest, compression)
        target = Target(path, settings, storage_options)
        disable = None if show_progress_bar is None else not show_progress_bar
        with tqdm(total=0, unit="page", desc="recompress", disable=disable) as bar:
            snapshot = self._store.snapshot()
            try:
                return recompress(snapshot, target, threads=self._threads, bar=bar)
            except StorageError as error:
                moved_on = self._store.snapshot().version != snapshot.version
                if not moved_on or any(entry.version == snapshot.version for entry in self._store.versions()):
                    raise
                raise StorageError(
                    f"{self._store.uri} was compacted while recompress read it; run recompress again, which goes on "
                    f"with the pages that are not at {path} yet"
                ) from error

    def check_recall(
        self,
        n: int = 50,
        *,
        budget: Budget | str = "fast",
        k: int = 10,
        queries: str | Sequence[str] | None = None,
    ) -> RecallReport:
        """Measures which share of the exact k best pages a budget finds on this index, and keeps it for `info`.

        A local index that may be written keeps it beside its table, for later processes too.

        Exact is what scoring every stored vector gives at the same depth and width, so that it is the first stage and
        the scan that are measured. n: queries, made of words from random pages. queries: your own instead, one or many;
        n then does not count. Reads the whole index once and scores it for every query: about as long as so many
        searches of an index on disk.

        Raises QueryError where the pages hold no text to make queries from or no vectors, and for queries that are none
        or no strings; BudgetError as `search` does.
        """
        checks.check_k(k)
        checks.check_k(n, name="n", things="queries")
        texts, point = None if queries is None else checks.texts_of(queries), self._plan(budget)
        if texts is not None and not texts:
            raise QueryError("check_recall(queries=...) needs at least one query; found none")

        def measure(snapshot: Snapshot) -> RecallReport:
            report = check(self._finder, snapshot, texts or sample_queries(snapshot, int(n)), point, k=int(k))
            self._recall.keep(report, snapshot)
            return report

        return self._store.on_latest(measure)

    def delete(self, *, doc_id: str | Sequence[str] | None = None, where: Where | Sequence[Where] | None = None) -> int:
        """Removes whole documents by id, or pages by filter, in one commit; returns the number of pages removed.

        doc_id: one id or many; thousands are as well deleted at once. where: a filter as in `search`, or several, of
        which a page meets any. Ids and pages that are not there are ignored, so that it may be repeated.

        Raises QueryError unless exactly one of doc_id and where is given, ReadOnlyError, StorageError.
        """
        self._store.check_writable("delete pages")
        if (doc_id is None) == (where is None):
            raise QueryError("delete takes either doc_id= or where=, and exactly one of them")
        if doc_id is not None:
            return self._store.delete_documents(checks.doc_ids_of(doc_id))
        filters = checks.filters_of(where)
        snapshot = self._store.snapshot()
        conditions = [condition for each in filters if (condition := snapshot.condition(each)) is not None]
        if not conditions or len(conditions) < len(filters):
            raise QueryError("delete(where=...) needs at least one condition; found none")
        return self._store.delete_where(*conditions)

    def info(self) -> IndexInfo:
        """What the index holds and what it takes."""

        def look(snapshot: Snapshot) -> IndexInfo:
            resident, recall = self._searcher.nbytes, self._recall.last(snapshot)
            return describe(
                self._store,
                snapshot,
                presets=self.presets,
                query_depths=self.query_depths,
                resident_bytes=resident,
                recall=recall,
            )

        return self._store.on_latest(look)

    def documents(self) -> list[DocumentInfo]:
        """Every document with its source and number of stored pages, sorted by id."""
        return self._store.on_latest(Snapshot.documents)

    def versions(self) -> list[VersionInfo]:
        """Versions that `Index.open(path, version=...)` can read, oldest first.

        Every commit makes one. All but the last that are older than 15 minutes, whenever they were superseded, go with
        `optimize`, which happens by itself too when they take as much as the index.
        """
        return self._store.versions()

    def optimize(self, *, keep: timedelta = KEEP_VERSIONS, first_stage: bool | None = None) -> OptimizeReport:
        """Merges all files, frees the space of old versions, and makes the first stage of a large index.

        The first stage proposes pages to budgets with `candidates`, so that they need not scan every page. It takes
        about 3 CPU ms for a page of 150 vectors, and reads the leading components of every vector twice. first_stage:
        True makes one, False removes it; None makes one where there are 4 million vectors or more, from which it saves
        time, and brings one that is there up to date, whatever the size.

        Rewrites an index below a million pages as a whole, and is seldom needed: small files are merged as they come,
        and old versions removed when they take as much as the index and that is below 4 GB. keep: versions younger than
        this stay, for searches that still read them; until they are older and `optimize` is called again, the index
        takes its space twice. timedelta(0) frees everything now: reads that run meanwhile begin again on the latest
        version, and an index opened at an old one by `version` fails.

        Raises ReadOnlyError, StorageError, ValueError for an argument that is none of its choices, TypeError for a keep
        that is no timedelta.
        """
        checks.check_first_stage(first_stage)
        return self._lifecycle.optimize(keep, first_stage)

    def close(self) -> None:
        """Frees memory and threads. The index on disk needs no closing."""
        self._searcher.close()
        self._store.close()

    def __repr__(self) -> str:
        return f"Index({self._store.uri!r})"

    def __len__(self) -> int:
        return self._store.on_latest(Snapshot.page_count)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _plan(self, budget: Budget | str) -> Plan:
        return plan(budget, query_depths=self.query_depths, dims=self.dims, presets=self.presets)


def _settings(
    encoder: Encoder, depths: Sequence[int] | None, compression: Method | None, *, signals: bool
) -> IndexSettings:
    """Of an index made with these arguments of `Index.open`, which are refused here and not when a page comes."""
    plain = checks.settings_for(encoder.manifest, depths)
    settings = folded_settings(plain, encoder.manifest, compression, signals=signals)
    if settings.windows:
        encoder.encode_pages((), settings.depths, attention=Folding.of(settings).windows)
    return settings
