"""Vision-language encoders: a page is the picture of it, and every patch of the picture gets a vector."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import thread_time

import numpy as np
import numpy.typing as npt
from PIL import Image

from budgetvdr.bundle import Manifest, Window, load_manifest
from budgetvdr.compress import token_signals
from budgetvdr.encoders import LayerSupport
from budgetvdr.encoders.attention import Ask, require_attention
from budgetvdr.encoders.common import check_depths, check_graphs, exit_name, page_failure
from budgetvdr.encoders.onnx import CPU, Sessions
from budgetvdr.encoders.vision import VisionBatch, open_preprocessor
from budgetvdr.encoders.vision.slots import with_slots
from budgetvdr.errors import BudgetVDRError, BundleError, PageError, QueryError
from budgetvdr.pages import EncodedPage, EncodedQuery, Page
from budgetvdr.sources.pictures import upright_rgb
from budgetvdr.unit import unit_rows

LONGEST_SIDE = 2048
"""Pixels that pages are drawn at before a family makes of them what it takes.

An A4 page has 3 million then. A checkpoint that takes more enlarges it, most take fewer.
"""

# A batch beyond a page or two gains nothing on a processor; accelerators want more.
_CPU_PIXELS, _OTHER_PIXELS = 1_000_000, 8_000_000


@dataclass(frozen=True, slots=True, eq=False)
class _Drawn:
    """A page and its picture, or why there is none. pixels: as the model sees it. seconds: that drawing took."""

    page: Page
    picture: Image.Image | None
    error: PageError | None
    pixels: int
    seconds: float


class VisionEncoder:
    """Runs a bundle of a vision-language family. Implements `CalibratedEncoder`.

    folder: the bundle. threads: for drawing pages and inside operators, one a core where left out. providers:
    onnxruntime execution providers, best first. batch_pixels: pages run together up to so many pixels, as the model
    sees them; by default 1 million on a CPU and 8 million elsewhere. map_weights: leaves float32 weights in the file,
    where the system pages them in and may drop them again, instead of copying them into the order that is fastest to
    multiply: an open graph then takes next to no memory of its own and a query more time. Of no use to other weights:
    a CPU turns float16 into float32 anyway, and integers are small and lose far more time.

    Raises BundleError for a folder that is no sound bundle, MissingExtraError without onnxruntime, ProviderError for
    a provider that cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        *,
        threads: int | None = None,
        providers: Sequence[str] = (CPU,),
        batch_pixels: int | None = None,
        map_weights: bool = False,
    ) -> None:
        self._manifest = load_manifest(folder)
        self._preprocessor = with_slots(open_preprocessor(folder), self._manifest.slots, folder)
        if self._preprocessor.family != self._manifest.family:
            raise BundleError(
                f"{folder}: the manifest says {self._manifest.family!r} and preprocess.json "
                f"{self._preprocessor.family!r}; export the bundle again"
            )
        check_graphs(self._manifest, folder)
        self._threads = max(1, threads or os.cpu_count() or 1)
        self._sessions = Sessions(folder, threads=self._threads, providers=providers, map_weights=map_weights)
        default = _CPU_PIXELS if tuple(providers) == (CPU,) else _OTHER_PIXELS
        self._batch_pixels = batch_pixels or default

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
        signals there are taken from; they concern the picture's tokens, the prompt's have 0. on_page: called as pages
        end.

        What shares a batch with a page changes its vectors by no more than rounding.

        Raises BudgetError for a depth the bundle lacks, BundleError for a graph that cannot be loaded, CompressionError
        for attention that the bundle does not give, all before any page is drawn.
        """
        wanted = tuple(sorted(set(depths)))
        check_depths(self._manifest, wanted)
        ask = Ask.of(attention or {}, wanted)
        self._sessions.open(self._manifest.page_graphs[wanted[-1]])
        if ask.layers:
            require_attention(self._manifest, self._sessions, wanted[-1])
        results: list[EncodedPage | BudgetVDRError] = []
        with ThreadPoolExecutor(self._threads, "budgetvdr-draw") as pool:
            for batch in _batches(self._drawn(pool, pages), self._batch_pixels):
                results.extend(self._encode(batch, wanted, ask))
                if on_page is not None:
                    for _ in batch:
                        on_page()
        return results

    def encode_query(self, text: str, depth: int) -> EncodedQuery:
        """The vectors that the family's reference implementation keeps of a query, or those of slots, at one depth.

        Raises QueryError for a text that is empty or too long, BudgetError for a depth the bundle lacks, BundleError
        for a graph that cannot be loaded.
        """
        check_depths(self._manifest, (depth,))
        if not text.strip():
            raise QueryError(f"the query has nothing to search for: expected words, found {text[:40]!r}")
        batch = self._preprocessor.queries([text])
        tokens, longest = batch.arrays["input_ids"].shape[1], self._manifest.max_query_tokens
        if tokens > longest:
            raise QueryError(f"the query has {tokens} tokens and the encoder takes {longest}; ask a shorter question")
        graph = self._manifest.query_graphs[depth]
        (states,) = self._sessions.run(graph, self._sessions.taken(graph, batch.arrays), [exit_name(depth)])
        vectors = states[0][batch.counts[0]]
        return EncodedQuery(
            unit_rows(vectors) if self._manifest.unit_queries else vectors, self._preprocessor.pieces(text)
        )

    def encode_support(self, page: Page, steps: int) -> LayerSupport:
        """Every exit's vectors and every layer's support after steps 1 to `steps`, for calibration.

        Raises CompressionError for a bundle whose graphs do not give it, PageError for a page without a picture.
        """
        depths = self._manifest.depths
        deepest = depths[-1]
        require_attention(self._manifest, self._sessions, deepest)
        batch = self._preprocessor.pages([page_picture(page)])
        found = self._run(batch, depths, Ask.of({deepest: Window(0, deepest - 1, steps)}, depths))
        vectors = {depth: states[0][batch.counts[0]] for depth, states in zip(depths, found, strict=False)}
        return LayerSupport(vectors, found[len(depths)][:, :, 0, batch.counts[0]])

    def _drawn(self, pool: ThreadPoolExecutor, pages: Sequence[Page]) -> Iterator[_Drawn]:
        """Pages in order, a few drawn ahead: pictures are large."""
        ahead: deque[Future[_Drawn]] = deque()
        for page in pages:
            ahead.append(pool.submit(self._draw, page))
            if len(ahead) > 2 * self._threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()

    def _draw(self, page: Page) -> _Drawn:
        start = thread_time()
        try:
            picture = page_picture(page)
            pixels = self._preprocessor.pixels(picture)
        except Exception as error:  # whatever a picture or a callback raises concerns this page alone
            return _Drawn(page, None, page_failure(page, error), 0, thread_time() - start)
        return _Drawn(page, picture, None, pixels, thread_time() - start)

    def _encode(self, batch: Sequence[_Drawn], depths: Sequence[int], ask: Ask) -> list[EncodedPage | PageError]:
        """One result for each, in order. Where a batch fails, its pages are tried one by one."""
        good = [drawn for drawn in batch if drawn.error is None]
        encoded: Iterator[EncodedPage | PageError] = iter(())
        if good:
            try:
                encoded = iter(self._encode_good(good, depths, ask))
            except Exception as error:  # as in _draw; one that concerns the bundle comes back for every page
                if len(good) == 1:
                    encoded = iter([page_failure(good[0].page, error)])
                else:
                    encoded = (result for drawn in good for result in self._encode([drawn], depths, ask))
        return [next(encoded) if drawn.error is None else drawn.error for drawn in batch]

    def _encode_good(self, drawn: Sequence[_Drawn], depths: Sequence[int], ask: Ask) -> list[EncodedPage]:
        start = thread_time()
        batch = self._preprocessor.pages([each.picture for each in drawn if each.picture is not None])
        found = self._run(batch, depths, ask)
        share = (thread_time() - start) / len(drawn)
        pages = []
        for row, each in enumerate(drawn):
            kept = batch.counts[row]
            vectors = {depth: states[row][kept] for depth, states in zip(depths, found, strict=False)}
            answers = ask.answer([statistic[..., row, kept] for statistic in found[len(depths) :]])
            pages.append(
                EncodedPage(
                    vectors,
                    batch.regions[row],
                    text="",
                    reader="image",
                    notes=each.page.notes,
                    seconds={"render": each.seconds, "transformer": share},
                    signals={depth: token_signals([answer]) for depth, answer in answers.items()},
                )
            )
        return pages

    def _run(self, batch: VisionBatch, depths: Sequence[int], ask: Ask) -> list[npt.NDArray[np.float32]]:
        """(B, L, D) of every depth, and the statistics asked for."""
        deepest = depths[-1]
        graph = self._manifest.page_graphs[deepest]
        inputs = {**self._sessions.taken(graph, batch.arrays), **ask.inputs(deepest)}
        return self._sessions.run(graph, inputs, [*map(exit_name, depths), *ask.outputs])


def page_picture(page: Page) -> Image.Image:
    """The picture of a page, upright and RGB. Raises PageError where it has none, SourceError where it is damaged."""
    if page.image is not None:
        return upright_rgb(page.image)
    if page.render is not None:
        return page.render(LONGEST_SIDE)
    raise PageError(
        f"{page.doc_id}: page {page.page_num} has no picture, and this encoder looks at nothing else; give it an image",
        page_num=page.page_num,
    )


def _batches(pages: Iterable[_Drawn], most: int) -> Iterator[list[_Drawn]]:
    """Consecutive pages with at most so many pixels; one page with more goes alone."""
    batch: list[_Drawn] = []
    for drawn in pages:
        # As many pixels as the largest has: what is smaller is padded.
        if batch and max(drawn.pixels, *(each.pixels for each in batch)) * (len(batch) + 1) > most:
            yield batch
            batch = []
        batch.append(drawn)
    if batch:
        yield batch
