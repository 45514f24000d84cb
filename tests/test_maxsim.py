"""MaxSim against hand-computed cases and a slow float64 loop."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest

from budgetvdr.similarity import maxsim as module
from budgetvdr.similarity.maxsim import ExactPages, best_rows, maxsim, quantise, scan_int8, unit_prefix

RNG = np.random.default_rng(11)


def slow(vectors: np.ndarray, offsets: np.ndarray, query: np.ndarray, dim: int) -> np.ndarray:
    """Eq. 4 as it is written: a loop over pages, query vectors and page vectors, in float64."""
    scores = []
    for first, last in pairwise(offsets):
        if first == last:
            scores.append(-np.inf)
            continue
        total = 0.0
        for q in query.astype(np.float64):
            best = -np.inf
            for x in vectors[first:last, :dim].astype(np.float64):
                norm = np.sqrt((x * x).sum())
                best = max(best, float(q @ (x / norm)) if norm > 0 else 0.0)
            total += best
        scores.append(total / len(query))
    return np.array(scores)


def ragged(counts: list[int], width: int) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return RNG.standard_normal((offsets[-1], width)).astype(np.float16), offsets


def test_hand_computed_page() -> None:
    # Page vectors (3, 4) and (1, 0) become (0.6, 0.8) and (1, 0); the query is (1, 0) and (0, 1).
    pages = ExactPages((np.array([[3, 4], [1, 0]], np.float16),), np.array([0, 2]))
    query = np.array([[1, 0], [0, 1]], np.float32)
    assert maxsim(pages, query) == pytest.approx([(1.0 + 0.8) / 2], abs=1e-6)


def test_prefix_is_renormalised_by_hand() -> None:
    vectors = np.array([[3, 4, 12]], np.float16)
    assert unit_prefix(vectors, 3)[0] == pytest.approx([3 / 13, 4 / 13, 12 / 13])
    assert unit_prefix(vectors, 2)[0] == pytest.approx([3 / 5, 4 / 5])


def test_query_length_carries_through() -> None:
    pages = ExactPages((np.array([[1, 0]], np.float16),), np.array([0, 1]))
    assert maxsim(pages, np.array([[2.5, 0]], np.float32)) == pytest.approx([2.5])


@pytest.mark.parametrize("counts", [[1], [0], [3, 0, 1, 7], [0, 0, 5], [40] * 30 + [0] + [9000] + [1, 2]])
@pytest.mark.parametrize("dim", [4, 12])
def test_exact_equals_the_slow_loop(counts: list[int], dim: int) -> None:
    vectors, offsets = ragged(counts, 12)
    query = RNG.standard_normal((3, dim)).astype(np.float32)
    pages = ExactPages((vectors[:, :4], vectors[:, 4:dim]) if dim > 4 else (vectors[:, :4],), offsets)
    np.testing.assert_allclose(maxsim(pages, query), slow(vectors, offsets, query, dim), atol=2e-5)


@pytest.mark.parametrize("scale", [6e-8, 1e-4, 6e4])
def test_denormal_and_huge_components(scale: float) -> None:
    vectors = (np.sign(RNG.standard_normal((6, 8))) * scale).astype(np.float16)
    offsets = np.array([0, 2, 6])
    query = RNG.standard_normal((2, 8)).astype(np.float32)
    np.testing.assert_allclose(
        maxsim(ExactPages((vectors,), offsets), query), slow(vectors, offsets, query, 8), rtol=1e-5
    )


def test_zero_vectors_score_zero_and_not_nan() -> None:
    pages = ExactPages((np.zeros((2, 4), np.float16),), np.array([0, 2]))
    assert maxsim(pages, np.ones((1, 4), np.float32)) == pytest.approx([0.0])
    assert scan_int8(quantise(pages.slices, pages.offsets), np.ones((1, 4), np.float32)) == pytest.approx([0.0])


@pytest.mark.parametrize("library", ["numkong", "numpy"])
def test_int8_scan_is_near_exact_whatever_computes_it(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if library == "numpy":
        monkeypatch.setattr(module, "numkong", None)
    elif module.numkong is None:
        pytest.skip("numkong has no wheel for this platform")
    vectors, offsets = ragged([5, 0, 300, 1, 20_000, 77], 64)
    query = unit_prefix(RNG.standard_normal((17, 64)), 64)
    exact = maxsim(ExactPages((vectors,), offsets), query)
    with ThreadPoolExecutor(2) as pool:
        scanned = scan_int8(quantise((vectors[:, :32], vectors[:, 32:]), offsets), query, pool=pool)
    np.testing.assert_allclose(scanned, exact, atol=5e-3)
    assert np.isneginf(scanned[1])


def test_selection_hides_the_other_pages() -> None:
    vectors, offsets = ragged([4000, 5000, 6000, 10], 8)
    pages, query = quantise((vectors,), offsets), unit_prefix(RNG.standard_normal((3, 8)), 8)
    selected = np.array([False, True, False, True])
    everything, some = scan_int8(pages, query), scan_int8(pages, query, selected=selected)
    np.testing.assert_array_equal(some[selected], everything[selected])
    assert np.isneginf(some[~selected]).all()


def test_negative_similarities_still_have_a_best() -> None:
    pages = ExactPages((np.array([[-1, 0], [-3, -4]], np.float16),), np.array([0, 2]))
    assert maxsim(pages, np.array([[1, 0]], np.float32)) == pytest.approx([-0.6], abs=1e-6)


def test_best_rows_name_the_answering_vector() -> None:
    rows, similarities = best_rows(np.array([[0, 5], [2, 0]], np.float16), np.array([[1, 0], [0, 1]], np.float32))
    assert rows.tolist() == [1, 0]
    assert similarities == pytest.approx([1.0, 1.0])
