"""The inverted lists of centroids against a literal reference, and against plain chance."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from budgetvdr.similarity.centroids import (
    Centroids,
    Routes,
    assign,
    centroid_count,
    invert,
    propose,
    train,
)

Float = npt.NDArray[np.float32]
WIDTH = 32


def unit(rows: Float) -> Float:
    scaled: Float = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    return scaled


def noise(rng: np.random.Generator, *shape: int) -> Float:
    return unit(rng.standard_normal((*shape, WIDTH), dtype=np.float32))


def topical_pages(rng: np.random.Generator, pages: int) -> tuple[Float, npt.NDArray[np.int64]]:
    """Ragged pages whose vectors are words of one of a few topics, in the page's own shade."""
    words = noise(rng, 600)
    topics = rng.integers(0, len(words), (max(2, pages // 20), 40))
    counts = rng.integers(0, 60, pages)
    vectors = [
        unit(
            words[rng.choice(topics[rng.integers(len(topics))], count)]
            + 0.4 * noise(rng, 1)
            + 0.5 * noise(rng, int(count))
        )
        for count in counts
    ]
    return np.concatenate(vectors), np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def routes_of(vectors: Float, offsets: npt.NDArray[np.int64], count: int = 128) -> tuple[Centroids, Routes]:
    centroids = train(vectors, count)
    return centroids, invert(centroids.members, assign(vectors, centroids)[0], offsets)


def maxsim_order(vectors: Float, offsets: npt.NDArray[np.int64], query: Float) -> npt.NDArray[np.intp]:
    scores = np.array([(vectors[a:b] @ query.T).max(axis=0).mean() if b > a else -np.inf for a, b in pairwise(offsets)])
    return np.argsort(-scores, kind="stable")


def reference(routes: Routes, query: Float, probes: int) -> dict[int, float]:
    """Estimates page by page, as the module's docstring puts it: best probed centroid held, less the one left out."""
    lists = [set(routes.pages[routes.bounds[c] : routes.bounds[c + 1]].tolist()) for c in range(len(routes.centroids))]
    estimates: dict[int, float] = {}
    for vector in query[:, : routes.centroids.shape[1]]:
        similarities = routes.centroids @ vector
        nearest = np.argsort(-similarities)
        left_out = similarities[nearest[probes]] if probes < len(nearest) else similarities.min()
        for page in range(routes.count):
            held = [float(similarities[c]) for c in nearest[:probes] if page in lists[c]]
            if held:
                estimates[page] = estimates.get(page, 0.0) + max(held) - float(left_out)
    return estimates


@pytest.mark.parametrize("probes", [1, 3, 40, 400])
def test_proposals_follow_the_estimates_of_a_literal_reference(probes: int) -> None:
    rng = np.random.default_rng(1)
    vectors, offsets = topical_pages(rng, 150)
    _, routes = routes_of(vectors, offsets, 300)
    for number in range(5):
        query = vectors[rng.integers(0, len(vectors), 4 + number)]
        expected = reference(routes, query, probes)
        proposed = propose(routes, query, 25, probes=probes)
        assert set(propose(routes, query, 10_000, probes=probes).tolist()) == set(expected)
        best = sorted(expected.values(), reverse=True)[: len(proposed)]
        np.testing.assert_allclose([expected[page] for page in proposed.tolist()], best, atol=1e-4)


def test_more_runs_than_probes_choose_the_nearest_lists() -> None:
    rng = np.random.default_rng(2)
    centroids = noise(rng, 5000)
    routes = Routes(centroids, np.arange(5001), np.arange(5000, dtype=np.uint32), 5000)
    query = noise(rng, 1)
    expected = np.argsort(-(centroids @ query[0]))[:32]
    np.testing.assert_array_equal(propose(routes, query, 100, probes=32), expected)


def test_recall_is_far_above_chance() -> None:
    rng = np.random.default_rng(3)
    vectors, offsets = topical_pages(rng, 1500)
    _, routes = routes_of(vectors, offsets, 1024)
    found = []
    for page in rng.choice(np.flatnonzero(np.diff(offsets) > 10), 30, replace=False):
        own = vectors[offsets[page] : offsets[page + 1]]
        query = unit(own[rng.integers(0, len(own), 12)] + 0.6 * noise(rng, 12))
        best = maxsim_order(vectors, offsets, query)[:10]
        found.append(len(np.intersect1d(best, propose(routes, query, 200))) / 10)
    # 200 of 2,000 pages drawn by lot would hold a tenth.
    assert np.mean(found) > 0.9


def test_same_seed_same_centroids_and_any_pool_same_codes() -> None:
    vectors, _ = topical_pages(np.random.default_rng(4), 1500)
    first, again, other = train(vectors, 64, seed=5), train(vectors, 64, seed=5), train(vectors, 64, seed=6)
    np.testing.assert_array_equal(first.members, again.members)
    assert not np.array_equal(first.members, other.members)
    with ThreadPoolExecutor(2) as pool:
        np.testing.assert_array_equal(assign(vectors, first)[0], assign(vectors, first, pool=pool)[0])


def test_nearly_every_vector_gets_its_nearest_centroid() -> None:
    vectors, _ = topical_pages(np.random.default_rng(6), 400)
    centroids = train(vectors, 256)
    similarities = vectors @ centroids.members.T
    codes, cosines = assign(3 * vectors, centroids)
    chosen = similarities[np.arange(len(vectors)), codes]
    np.testing.assert_allclose(cosines, chosen, atol=1e-5)
    assert np.mean(chosen >= similarities.max(axis=1) - 1e-5) > 0.9
    assert np.mean(similarities.max(axis=1) - chosen) < 0.01


def test_lists_sorted_in_parts_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, offsets = topical_pages(np.random.default_rng(9), 200)
    _, whole = routes_of(vectors, offsets, 100)
    monkeypatch.setattr("budgetvdr.similarity.centroids._INVERTED", 300)
    _, parts = routes_of(vectors, offsets, 100)
    np.testing.assert_array_equal(parts.bounds, whole.bounds)
    np.testing.assert_array_equal(parts.pages, whole.pages)


def test_length_and_further_components_do_not_change_codes() -> None:
    rng = np.random.default_rng(7)
    vectors, _ = topical_pages(rng, 100)
    centroids = train(vectors, 32)
    longer = np.concatenate([vectors, noise(rng, len(vectors))], axis=1) * np.float32(3)
    np.testing.assert_array_equal(assign(longer, centroids)[0], assign(vectors, centroids)[0])


def test_pages_without_vectors_are_counted_and_never_proposed() -> None:
    vectors = noise(np.random.default_rng(8), 6)
    _, routes = routes_of(vectors, np.array([0, 0, 3, 3, 6, 6]), 4)
    assert routes.count == 5
    assert set(propose(routes, vectors, 10).tolist()) <= {1, 3}
    empty = invert(train(vectors, 4).members, np.zeros(0, np.uint16), np.zeros(4, np.int64))
    assert len(propose(empty, vectors, 10)) == 0


def test_one_page_and_fewer_pages_than_candidates() -> None:
    vectors = noise(np.random.default_rng(9), 5)
    _, routes = routes_of(vectors, np.array([0, 5]))
    assert propose(routes, vectors[:1], 500).tolist() == [0]
    _, single = routes_of(vectors[:1], np.array([0, 1]))
    assert propose(single, vectors[:1], 1).tolist() == [0]


def test_duplicates_and_zero_vectors() -> None:
    rng = np.random.default_rng(10)
    one = noise(rng, 7)
    vectors = np.concatenate([np.tile(one, (40, 1)), np.zeros((7, WIDTH), np.float32)])
    centroids, routes = routes_of(vectors, np.arange(0, len(vectors) + 1, 7), 64)
    assert np.isfinite(centroids.members).all()
    # A page that repeats a centroid is listed once.
    for start, stop in pairwise(routes.bounds):
        assert (np.diff(routes.pages[start:stop].astype(np.int64)) > 0).all()
    assert set(propose(routes, one, 40).tolist()) == set(range(40))
    assert len(propose(routes, np.zeros((3, WIDTH), np.float32), 10)) <= 10


def test_only_selected_pages_are_proposed() -> None:
    vectors, offsets = topical_pages(np.random.default_rng(11), 200)
    _, routes = routes_of(vectors, offsets)
    selected = np.arange(200) % 7 == 3
    proposed = propose(routes, vectors[:5], 20, selected=selected)
    assert len(proposed)
    assert selected[proposed].all()


def test_a_larger_index_has_more_centroids_within_what_codes_name() -> None:
    counts = [centroid_count(vectors) for vectors in (0, 1, 10**4, 10**6, 10**8, 10**10)]
    assert counts == sorted(counts)
    assert counts[-1] == 65_536
    assert len(train(noise(np.random.default_rng(13), 3), 100).members) <= 3
