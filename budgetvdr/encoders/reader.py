"""The reader: an encoder that reads a page's words and turns each token into a vector that knows its context."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import numpy as np
import numpy.typing as npt

from budgetvdr.bundle import Manifest, Window, load_manifest
from budgetvdr.compress import Attention, joined, token_signals
from budgetvdr.encoders import LayerSupport
from budgetvdr.encoders.attention import STARTS, Ask, require_attention
from budgetvdr.encoders.common import check_depths, check_graphs, exit_name, page_failure
from budgetvdr.encoders.onnx import CPU, Sessions
from budgetvdr.encoders.reading import PageReader, Stages, as_lines
from budgetvdr.encoders.tokens import WordPieces
from budgetvdr.encoders.windows import windows
from budgetvdr.errors import BudgetVDRError, QueryError
from budgetvdr.pages import EncodedPage, EncodedQuery, Page, Scores, Vectors
from budgetvdr.unit import unit_rows

MOST_TOKENS = 8192
"""Tokens of a page that are encoded, some ten dense pages of print; a page with more gets the note "truncated"."""


class ReaderEncoder:
    """Runs a bundle of the family "reader". Implements `Encoder`.

    folder: the bundle. threads: pages encoded side by side, one a core where left out. providers: onnxruntime
    execution providers, best first.

    Raises BundleError for a folder that is no sound bundle, MissingExtraError without onnxruntime, ProviderError for
    a provider that cannot be used.
    """

    def __init__(self, folder: Path, *, threads: int | None = None, providers: Sequence[str] = (CPU,)) -> None:
        self._manifest = load_manifest(folder)
        check_graphs(self._manifest, folder)
        self._pieces = WordPieces(folder / "tokenizer.json")
        self._sessions = Sessions(folder, providers=providers)
        self._reader = PageReader()
        self._threads = max(1, threads or os.cpu_count() or 1)

    @property
    def manifest(self) -> Manifest:
        """The bundle's contract: depths, dims, presets, fingerprint."""
        return self._manifest

    @property
    def providers(self) -> tuple[str, ...]:
        """The onnxruntime execution providers in use."""
        return self._sessions.providers

    def encode_pages(
        self,
        pages: Sequence[Page],
        depths: Sequence[int],
        *,
        attention: Mapping[int, Window] | None = None,
        on_page: Callable[[], object] | None = None,
    ) -> list[EncodedPage | BudgetVDRError]:
        """One result a page, in order; a page that cannot be encoded gives a PageError instead of raising.

        depths: exits wanted; all of them cost what the deepest costs. attention: depth -> the window that the page's
        signals there are taken from. on_page: called in this thread as pages end.

        Vectors depend on nothing but the page: windows run one at a time, without padding.

        Raises BudgetError for a depth the bundle lacks, BundleError for a graph that cannot be loaded, CompressionError
        for attention that the bundle does not give and MissingExtraError for pages with read="ocr" where OCR is not
        installed, all before any page is read.
        """
        wanted = tuple(sorted(set(depths)))
        check_depths(self._manifest, wanted)
        ask = self._ask(attention or {}, wanted)
        if ask.layers:
            require_attention(self._manifest, self._sessions, wanted[-1])
        if any(page.read == "ocr" for page in pages):
            self._reader.require_ocr()
        self._sessions.open(self._manifest.page_graphs[wanted[-1]])

        def encode(page: Page) -> EncodedPage | BudgetVDRError:
            try:
                return self._encode_page(page, wanted, ask)
            except Exception as error:  # whatever a picture, a font or a callback raises concerns this page alone
                return page_failure(page, error)

        with ThreadPoolExecutor(self._threads, "budgetvdr-encode") as pool:
            results = [pool.submit(encode, page) for page in pages]
            try:
                for _ in as_completed(results):
                    if on_page is not None:
                        on_page()
            except BaseException:
                # Whoever interrupts should wait for the pages under way and not for the rest of the batch.
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            return [result.result() for result in results]

    def encode_query(self, text: str, depth: int) -> EncodedQuery:
        """One vector a token at one depth.

        Raises QueryError for a text that is empty, too long or without a single known character, BudgetError for a
        depth the bundle lacks.
        """
        check_depths(self._manifest, (depth,))
        tokens = self._pieces.query(text)
        longest = self._manifest.max_query_tokens - 2
        if not tokens.ids:
            raise QueryError(f"the query has nothing to search for: expected words, found {text[:40]!r}")
        if len(tokens.ids) > longest:
            raise QueryError(
                f"the query has {len(tokens.ids)} tokens and the encoder takes {longest}; ask a shorter question"
            )
        if not tokens.known:
            raise QueryError(
                f"{self._manifest.name} knows none of the characters of {text[:40]!r}; "
                "ask in a language it was trained for"
            )
        graph = self._manifest.query_graphs[depth]
        ids = np.array(tokens.ids, dtype=np.int64)
        (states,) = self._sessions.run(graph, {"ids": self._pieces.window(ids)}, [exit_name(depth)])
        vectors = states[0, 1:-1]
        return EncodedQuery(unit_rows(vectors) if self._manifest.unit_queries else vectors.copy(), tokens.pieces)

    def encode_support(self, page: Page, steps: int) -> LayerSupport:
        """Every exit's vectors and every layer's support after steps 1 to `steps`, for calibration.

        Raises CompressionError for a bundle whose graphs do not give it, PageError for a page that cannot be read.
        """
        depths = self._manifest.depths
        require_attention(self._manifest, self._sessions, depths[-1])
        ids = self._pieces.page(self._reader.read(page).words, MOST_TOKENS).ids
        every_layer = self._ask({depths[-1]: Window(0, depths[-1] - 1, steps)}, depths)
        parts = []
        vectors = self._vectors(ids, depths, every_layer, lambda outputs: parts.append(outputs[0]))
        empty = np.zeros((depths[-1], steps, 0), np.float32)
        return LayerSupport(vectors, joined(parts) if parts else empty)

    def _encode_page(self, page: Page, depths: Sequence[int], ask: Ask) -> EncodedPage:
        reading = self._reader.read(page)
        stages = Stages(dict(reading.seconds))
        with stages.measure("transformer"):
            tokens = self._pieces.page(reading.words, MOST_TOKENS)
            answers: list[dict[int, Attention]] = []
            vectors = self._vectors(tokens.ids, depths, ask, lambda outputs: answers.append(ask.answer(outputs)))
            signals = {depth: token_signals([answer[depth] for answer in answers]) for depth in ask.windows}
        notes = (*page.notes, *reading.notes, *(("truncated",) if tokens.truncated else ()))
        text = as_lines(reading.words)
        return EncodedPage(vectors, tokens.regions, text, reading.reader, notes, stages.seconds, signals)

    def _vectors(
        self,
        ids: npt.NDArray[np.int64],
        depths: Sequence[int],
        ask: Ask,
        on_attention: Callable[[Sequence[Scores]], object],
    ) -> Mapping[int, Vectors]:
        """ids (n,) -> for every depth (n, D). on_attention: given the outputs asked for, window by window."""
        graph, outputs = self._manifest.page_graphs[depths[-1]], [exit_name(depth) for depth in depths]
        beside = ask.inputs(depths[-1])
        width = self._manifest.dims[-1]
        vectors = {depth: np.empty((len(ids), width), np.float32) for depth in depths}
        for window in windows(len(ids), self._manifest.max_tokens - 2):
            inputs = {"ids": self._pieces.window(ids[window]), **beside}
            found = self._sessions.run(graph, inputs, [*outputs, *ask.outputs])
            for depth, state in zip(depths, found[: len(depths)], strict=True):
                vectors[depth][window] = state[0, 1:-1]
            if ask.layers:
                on_attention(found[len(depths) :])
        return vectors

    def _ask(self, windows: Mapping[int, Window], depths: Sequence[int]) -> Ask:
        apart = bool(windows) and STARTS in self._sessions.inputs(self._manifest.page_graphs[depths[-1]])
        return Ask.of(windows, depths, apart=apart)
