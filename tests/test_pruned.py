"""Upper bounds hold, and what is found by them is what scoring everything finds."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from budgetvdr import Index
from budgetvdr.pruned import best_by_bound, bounds, fronts
from budgetvdr.similarity.maxsim import ExactPages, maxsim, unit_prefix

RNG = np.random.default_rng(5)


def front_of(vectors: np.ndarray, offsets: np.ndarray, width: int) -> ExactPages:
    return ExactPages(fronts([np.ascontiguousarray(vectors[:, :width])], [vectors[:, width:]]), offsets)


def check(vectors: np.ndarray, offsets: np.ndarray, query: np.ndarray, width: int, k: int) -> float:
    """Compares with scoring everything, and returns the share of pages read; 1 where the bounds did not pay."""
    exact = maxsim(ExactPages((vectors,), offsets), query)
    bound = bounds(front_of(vectors, offsets, width), query, maxsim)
    filled = np.diff(offsets) > 0
    assert (bound[filled] >= exact[filled] - 1e-6).all()
    assert np.isneginf(bound[~filled]).all()
    read: list[int] = []

    def score(places: np.ndarray) -> np.ndarray:
        read.extend(places.tolist())
        return exact[places]

    addresses = RNG.permutation(len(exact)).astype(np.uint64)
    found = best_by_bound(bound, k, addresses, score)
    if found is None:
        return 1.0
    kept = np.flatnonzero(filled)
    ordered = kept[np.lexsort((addresses[kept], -exact[kept]))]
    np.testing.assert_array_equal(found.places, ordered[:k])
    assert len(read) == len(set(read)) == found.read
    np.testing.assert_array_equal(exact[found.places], found.scores)
    return found.read / max(int(filled.sum()), 1)


def test_hand_computed_bound() -> None:
    # (3, 4) is split after 3: the rest is 4 long. The query (0.6, -0.8) then cannot exceed (0.6 * 3 + 0.8 * 4) / 5.
    vectors, offsets = np.array([[3, 4]], np.float16), np.array([0, 1])
    found = bounds(front_of(vectors, offsets, 1), np.array([[0.6, -0.8]], np.float32), maxsim)
    assert found == pytest.approx([1.0 + 1e-3], abs=1e-6)


@pytest.mark.parametrize("exponent", [-23, -12, 0, 9, 15])
def test_bounds_hold_for_vectors_of_any_length(exponent: int) -> None:
    # At either end lengths, or their squares, leave float16: 6e-8 is its smallest number, 65504 its largest.
    offsets = np.arange(0, 401, 4)
    vectors = (RNG.uniform(-1.99, 1.99, (400, 32)) * 2.0**exponent).astype(np.float16)
    vectors[:100] *= np.float16(0.25)
    for width in (1, 8, 24):
        assert all(np.isfinite(part).all() for part in front_of(vectors, offsets, width).slices)
        check(vectors, offsets, unit_prefix(RNG.standard_normal((5, 32)), 32), width, 3)


def test_equal_pages_are_ordered_by_address() -> None:
    vectors = np.repeat(RNG.standard_normal((100, 8)) / 3.0 ** np.arange(8), 30, axis=0).astype(np.float16)
    assert check(vectors, np.arange(3001), unit_prefix(RNG.standard_normal((3, 8)), 8), 6, 17) < 0.5


@pytest.mark.parametrize("decay", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("length", [1.0, 4.0])
def test_finds_what_scoring_everything_finds(decay: float, length: float) -> None:
    counts = RNG.integers(0, 9, 3000)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    spectrum = np.arange(1, 49) ** -decay
    vectors = (RNG.standard_normal((offsets[-1], 48)) * spectrum).astype(np.float16)
    share = []
    for k in (1, 10, 4000):
        query = length * unit_prefix(RNG.standard_normal((6, 48)) * spectrum, 48)
        share.append(check(vectors, offsets, query, 16, k))
    # Where the front carries the vectors most pages are never read; where it does not, the search says so.
    assert share[0] < 0.1 if decay == 3.0 else share[0] == 1.0 or decay == 1.0
    assert share[2] == 1.0


def test_few_and_blank_pages() -> None:
    empty = np.array([0, 0, 0], np.int64)
    assert check(np.zeros((0, 8), np.float16), empty, np.ones((1, 8), np.float32), 4, 3) == 0
    one = RNG.standard_normal((2, 8)).astype(np.float16)
    assert check(one, np.array([0, 0, 2]), unit_prefix(RNG.standard_normal((3, 8)), 8), 4, 3) == 1


def test_real_vectors_of_real_pages(tmp_path: Path) -> None:
    folder = os.environ.get("BUDGETVDR_EVAL_DIR")
    if folder is None:
        pytest.skip("BUDGETVDR_EVAL_DIR is not set")
    benchmark = Path(folder) / "azure_northwind"
    texts = [json.loads(line)["text"] for line in (benchmark / "queries.jsonl").read_text().splitlines()[:40:4]]
    with Index.open(tmp_path / "real.bvdr", depths=[2]) as index:
        index.add_pages(next((benchmark / "pdfs").glob("*.pdf")), show_progress_bar=False)
        width = index.dims[-1]
        slabs = list(index._store.snapshot().scan(2, width))
        vectors = np.concatenate([np.concatenate(slab.slices, axis=1) for slab in slabs])
        queries = [unit_prefix(index._encoder.encode_query(text, 2).vectors, width) for text in texts]
    # Passages, of which there are enough to leave some unread.
    offsets = np.arange(0, len(vectors), 8)
    vectors = vectors[: offsets[-1]]
    # As stored no front pays; turned so that the leading components carry most, as a trained prefix does, one does.
    axes = np.linalg.svd(unit_prefix(vectors, width), full_matrices=False)[2].T
    turned = (vectors.astype(np.float32) @ axes).astype(np.float16)
    shares = []
    for query in queries:
        check(vectors, offsets, query, index.dims[-2], 1)
        shares.append(check(turned, offsets, query @ axes, index.dims[-2], 1))
    assert min(shares) < 0.5
