"""A hit's second look at the index it came from: its picture and its explanation."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from budgetvdr.encoders import Encoder
from budgetvdr.errors import EncodingError, IndexStoreError, SourceNotFoundError
from budgetvdr.explain import Explanation, explain
from budgetvdr.hit import Hit
from budgetvdr.pages import Boxes, EncodedQuery, Vectors
from budgetvdr.similarity.maxsim import unit_prefix
from budgetvdr.sources import draw_page
from budgetvdr.store import FoldMap, Snapshot, Store


class StoreView:
    """Looks pages up again by their ids, in whatever the index holds by then."""

    def __init__(self, store: Store, encoder: Encoder) -> None:
        self._store = store
        self._encoder = encoder

    def picture(self, hit: Hit, longest_side: int, password: str | None) -> Image.Image:
        """The stored picture, or the page drawn again from its source."""
        stored = self._store.on_latest(lambda snapshot: snapshot.image(hit.id))
        if stored is not None:
            picture = Image.open(io.BytesIO(stored)).convert("RGB")
            picture.thumbnail((longest_side, longest_side), Image.Resampling.LANCZOS)
            return picture
        if not hit.source:
            raise SourceNotFoundError(
                f"{hit.id} was indexed from memory, so there is no file to draw it from; "
                "add pages with store_images=True to keep their pictures in the index"
            )
        return draw_page(hit.source, hit.page_num, longest_side, password=password)

    def explanation(self, hit: Hit) -> Explanation:
        """Matches the query with the page's vectors at the point of the grid the search ran at."""
        spent = hit.budget

        def look(snapshot: Snapshot) -> tuple[tuple[Vectors, Boxes] | None, FoldMap | None]:
            vectors = snapshot.page_vectors(hit.id, spent.page_depth, spent.dim)
            return vectors, snapshot.fold_map(hit.id, spent.page_depth)

        found, folds = self._store.on_latest(look)
        if found is None or not len(found[0]):
            raise IndexStoreError(f"{hit.id} is no longer in the index, or blank by now; search again")
        vectors, regions = found
        return explain(query_at(self._encoder, hit.query, spent.depth, spent.dim), vectors, regions, folds)


def query_at(encoder: Encoder, text: str, depth: int, dim: int) -> EncodedQuery:
    """A query's vectors at one point of the grid: encoded to that depth, cut to that width, scaled as promised."""
    query = encoder.encode_query(text, depth)
    shape = query.vectors.shape
    if shape != (len(query.tokens), encoder.manifest.dims[-1]) or not shape[0] or not np.isfinite(query.vectors).all():
        raise EncodingError(
            f"expected finite query vectors ({len(query.tokens)}, {encoder.manifest.dims[-1]}), one a token and at "
            f"least one; found shape {shape}; the encoder is at fault"
        )
    if encoder.manifest.unit_queries:
        return EncodedQuery(unit_prefix(query.vectors, dim), query.tokens)
    return EncodedQuery(query.vectors[:, :dim], query.tokens)
