"""Synthetic pages and queries for the benches: as many as wanted, the same for the same seed, made chunk by chunk.

Vectors imitate what late-interaction encoders give for pages. A page takes a few dozen token prototypes from its topic,
with a few strangers, and uses them unevenly (Zipf), so that pages of one topic resemble each other; a part of each page
is background that all pages share; everything leans towards one common direction; and leading components carry more
than later ones, so that a prefix keeps part of the order. A query is made from some vectors of one page, its target,
with noise, and from some background.

    collection = Collection(pages=20_000)
    for first, vectors in collection.chunks():   # (n, 150, 128) float16
        ...
    query = collection.query(7)                  # query.vectors (20, 128) float32, query.target a page number

`fill` stores a collection in an index as adding pages does, and `SyntheticEncoder` lets `Index` search it: the text of
a query is its number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from budgetvdr.bundle import Manifest, Preset, Window
from budgetvdr.errors import BudgetVDRError, EncodingError, QueryError
from budgetvdr.pages import EncodedPage, EncodedQuery, Page
from budgetvdr.store import STORE_FORMAT_VERSION, IndexSettings, PageRow, Store

Float = npt.NDArray[np.float32]
Half = npt.NDArray[np.float16]

# Pages are drawn in blocks with a generator each, so that any of them can be made again without those before it.
# A block is also one document of the index.
BLOCK = 64
PROTOTYPES, BACKGROUND, TOPICS, TOPIC_SIZE, STRANGERS = 8192, 256, 400, 120, 8
QUERY_VECTORS, QUERY_BACKGROUND, QUERY_SOURCES = 20, 5, 8
# The page number that no generator of a block has, for what all pages share and for queries.
_SHARED, _QUERIES, _SHALLOW = 1 << 40, 1 << 41, 1 << 42


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """One query. vectors: (20, width) float32 of unit length. target: the page it was made from."""

    vectors: Float
    target: int


@dataclass(frozen=True)
class Collection:
    """Pages numbered from 0, all of the same number of unit vectors.

    The first pages of a larger collection of the same shape and seed are those of a smaller one.
    """

    pages: int
    vectors: int = 150
    width: int = 128
    seed: int = 7
    _shared: _Shared = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_shared", _Shared.make(self.width, self.seed))

    def block(self, number: int) -> Half:
        """(BLOCK, vectors, width): pages from BLOCK * number, also those beyond the last one of the collection."""
        rng, shared = np.random.default_rng((self.seed, number)), self._shared
        topics = rng.integers(0, TOPICS, BLOCK)
        ids = _prototypes_of(rng, shared.topics[topics], self.vectors)
        vectors = rng.standard_normal((BLOCK, self.vectors, self.width), dtype=np.float32)
        vectors *= 0.35 * shared.spread
        vectors += shared.prototypes[ids]
        own = _unit(rng.standard_normal((BLOCK, self.width), dtype=np.float32) * shared.spread)
        vectors += (0.22 * (shared.topic_directions[topics] + own))[:, None]
        lengths = np.sqrt(np.einsum("pvd,pvd->pv", vectors, vectors))
        vectors /= lengths[..., None]
        return vectors.astype(np.float16)

    def chunks(self, size: int = 16 * BLOCK, start: int = 0) -> Iterator[tuple[int, Half]]:
        """(number of the first page, vectors of the pages) of every run of `size` pages from page `start` on.

        size, start: multiples of BLOCK.
        """
        if size % BLOCK or start % BLOCK:
            raise ValueError(f"chunks are multiples of {BLOCK} pages; found size {size} from {start}")
        for first in range(start, self.pages, size):
            stop = min(first + size, self.pages)
            chunk = np.empty((stop - first, self.vectors, self.width), np.float16)
            for at in range(first, stop, BLOCK):
                end = min(at + BLOCK, stop)
                chunk[at - first : end - first] = self.block(at // BLOCK)[: end - at]
            yield first, chunk

    def query(self, number: int) -> Query:
        """Query `number`, aimed at a page drawn by lot from the whole collection."""
        rng, shared = np.random.default_rng((self.seed, _QUERIES, number)), self._shared
        target = int(rng.integers(0, self.pages))
        page = self.block(target // BLOCK)[target % BLOCK].astype(np.float32)
        sources = rng.choice(self.vectors, QUERY_SOURCES, replace=False)
        about = rng.choice(sources, QUERY_VECTORS - QUERY_BACKGROUND)
        noise = _unit(rng.standard_normal((QUERY_VECTORS, self.width), dtype=np.float32) * shared.spread)
        empty = shared.prototypes[rng.integers(0, BACKGROUND, QUERY_BACKGROUND)] + 0.6 * noise[len(about) :]
        return Query(_unit(np.concatenate([page[about] + 0.75 * noise[: len(about)], empty])), target)


@dataclass(frozen=True, eq=False)
class _Shared:
    """What all pages draw from.

    spread: (D,) share of each component in noise of about unit length. prototypes: (PROTOTYPES, D), the first
    BACKGROUND of them background. topics: (TOPICS, TOPIC_SIZE) prototype numbers. topic_directions: (TOPICS, D).
    """

    spread: Float
    prototypes: Float
    topics: npt.NDArray[np.int64]
    topic_directions: Float

    @classmethod
    def make(cls, width: int, seed: int) -> _Shared:
        rng = np.random.default_rng((seed, _SHARED))
        variance = (np.arange(width) + 1.0) ** -0.5
        spread = np.sqrt(variance / variance.sum()).astype(np.float32)

        def directions(count: int) -> Float:
            return _unit(rng.standard_normal((count, width), dtype=np.float32) * spread)

        prototypes = 0.65 * directions(PROTOTYPES) + 0.35 * directions(1)
        topics = rng.integers(BACKGROUND, PROTOTYPES, (TOPICS, TOPIC_SIZE))
        return cls(spread, prototypes.astype(np.float32), topics, directions(TOPICS))


def _prototypes_of(rng: np.random.Generator, topics: npt.NDArray[np.int64], vectors: int) -> npt.NDArray[np.int64]:
    """(p, vectors) prototype numbers, for pages whose topics' prototypes are given as (p, TOPIC_SIZE)."""
    pages, most = len(topics), 60
    vocabulary = rng.permuted(topics, axis=1)[:, :most]
    vocabulary[:, :STRANGERS] = rng.integers(BACKGROUND, PROTOTYPES, (pages, STRANGERS))
    weights = rng.zipf(1.6, (pages, most)).clip(1, 30).astype(np.float64)
    weights[np.arange(most) >= rng.integers(25, most, pages)[:, None]] = 0
    # Draws by the inverse of the distribution, for all pages at once: page p owns the numbers from p to p + 1.
    bounds = np.cumsum(weights, axis=1)
    bounds = (bounds / bounds[:, -1:] + np.arange(pages)[:, None]).ravel()
    drawn = rng.random((pages, vectors)) * (1 - 1e-9) + np.arange(pages)[:, None]
    ids = vocabulary.ravel()[np.searchsorted(bounds, drawn, side="right")]
    background = rng.integers(0, BACKGROUND, (pages, vectors))
    share = vectors * rng.uniform(0.13, 0.4, pages)
    return np.where(np.arange(vectors) < share[:, None], background, ids)


def _unit(rows: Float) -> Float:
    scaled: Float = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    return scaled


def doc_id(page: int) -> str:
    """The document a page number belongs to; `page_number` is the way back."""
    return f"block-{page // BLOCK:05d}"


def page_number(document: str, page_num: int) -> int:
    """The number of a page in the collection, from the ids that hits carry."""
    return int(document.removeprefix("block-")) * BLOCK + page_num - 1


class SyntheticEncoder:
    """An encoder (`budgetvdr.encoders.Encoder`) that knows the vectors of a collection.

    depths: exits; the last gives the collection's own vectors, each one before it noisier ones.
    presets: name -> (depth, width), by default full, balanced and fast at the full, half and quarter width.
    """

    def __init__(self, collection: Collection, depths: Sequence[int] = (1,)) -> None:
        self._collection = collection
        self._queries: dict[tuple[str, int], EncodedQuery] = {}
        width = collection.width
        self.manifest = Manifest(
            format_version=1,
            name=f"synthetic-{collection.vectors}x{width}-{collection.seed}",
            family="reader",
            depths=tuple(depths),
            dims=(width // 4, width // 2, width),
            trained_exits=tuple(depths),
            unit_queries=True,
            max_tokens=collection.vectors,
            max_query_tokens=QUERY_VECTORS,
            page_graphs={},
            query_graphs={},
            presets={
                "full": Preset(depths[-1], width),
                "balanced": Preset(depths[-1], width // 2),
                "fast": Preset(depths[0], width // 4),
            },
            files={"synthetic": f"{collection.vectors}x{width}-{collection.seed}"},
        )

    def encode_pages(
        self,
        pages: Sequence[Page],
        depths: Sequence[int],
        *,
        attention: Mapping[int, Window] | None = None,
        on_page: Callable[[], object] | None = None,
    ) -> list[EncodedPage | BudgetVDRError]:
        """Pages are known by doc_id and page_num, as `doc_id` gives them."""
        results: list[EncodedPage | BudgetVDRError] = []
        for page in pages:
            try:
                number = page_number(page.doc_id, page.page_num)
            except ValueError:
                results.append(EncodingError(f"{page.id} is no page of a synthetic collection"))
            else:
                vectors = self._collection.block(number // BLOCK)[number % BLOCK].astype(np.float32)
                at_depths = {depth: self._at(depth, vectors, number) for depth in depths}
                results.append(EncodedPage(at_depths, self.regions(), "", "image"))
            if on_page is not None:
                on_page()
        return results

    def encode_query(self, text: str, depth: int) -> EncodedQuery:
        """The query whose number the text is; made once, so that a bench warms up what it does not want to measure."""
        if not text.isdecimal():
            raise QueryError(f"a synthetic query is a number; found {text!r}")
        if (text, depth) not in self._queries:
            vectors = self._at(depth, self._collection.query(int(text)).vectors, _SHALLOW + int(text))
            self._queries[text, depth] = EncodedQuery(vectors, tuple(f"token-{n}" for n in range(len(vectors))))
        return self._queries[text, depth]

    def regions(self) -> Float:
        """(vectors, 4) of any page: a column of strips."""
        edges = np.linspace(0, 1, self._collection.vectors + 1, dtype=np.float32)
        sides = np.zeros_like(edges[1:])
        return np.stack([sides, edges[:-1], sides + 1, edges[1:]], axis=1)

    def _at(self, depth: int, vectors: Float, number: int) -> Float:
        if depth == self.manifest.depths[-1]:
            return vectors
        rng = np.random.default_rng((self._collection.seed, _SHALLOW, depth, number))
        noise = rng.standard_normal(vectors.shape, dtype=np.float32) / np.float32(np.sqrt(vectors.shape[1]))
        return _unit(vectors + np.float32(0.5) * noise)

    def rows(self, first: int, vectors: Half) -> list[PageRow]:
        """Pages from number `first` with their vectors (p, n, D), as adding them would make them."""
        regions = self.regions()
        return [
            PageRow(
                doc_id=doc_id(number),
                page_num=number % BLOCK + 1,
                page_count=BLOCK,
                label=str(number % BLOCK + 1),
                source=f"/archive/{doc_id(number)}.pdf",
                size=(612.0, 792.0),
                revision="0123456789abcdef",
                reader="image",
                metadata={"year": 2000 + number % 25},
                regions=regions,
                vectors={depth: self._at(depth, own.astype(np.float32), number) for depth in self.manifest.depths},
            )
            for number, own in zip(range(first, first + len(vectors)), vectors, strict=True)
        ]


def index_settings(encoder: SyntheticEncoder) -> IndexSettings:
    """Settings of a new index for an encoder, as `Index.open` would make it."""
    manifest = encoder.manifest
    return IndexSettings(STORE_FORMAT_VERSION, manifest.fingerprint, manifest.name, manifest.depths, manifest.dims)


def fill(path: Path, collection: Collection, encoder: SyntheticEncoder, *, batch: int = 16 * BLOCK) -> None:
    """Stores the collection in an index, new or begun before, `batch` pages a commit; no more than that is held."""
    with Store.open(path, settings_if_new=index_settings(encoder)) as store:
        stored = store.snapshot().page_count()
        if stored < collection.pages:
            for first, vectors in collection.chunks(batch, start=stored // BLOCK * BLOCK):
                store.upsert(encoder.rows(first, vectors))
