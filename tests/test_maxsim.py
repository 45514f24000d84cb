"""MaxSim by every implementation that runs here, against hand-computed cases and a slow float64 loop."""

from __future__ import annotations

import ctypes
import platform
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budgetvdr.similarity import maxsim as module
from budgetvdr.similarity import portable
from budgetvdr.similarity.maxsim import (
    ExactPages,
    Int8Pages,
    best_rows,
    kernel,
    maxsim,
    quantise,
    scan_error,
    scan_int8,
    unit_prefix,
)
from budgetvdr.unit import lengths

RNG = np.random.default_rng(11)
KERNELS = module._kernels()
NATIVE = [name for name in KERNELS if name not in portable.tiers()]
RAGGED = [3, 0, 1, 7, 16, 17, 32, 33, 150, 0]


@pytest.fixture(params=["avx512", "avx2", "numkong", "numpy"], autouse=True)
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param not in KERNELS:
        pytest.skip(f"{request.param} does not run on this machine")
    monkeypatch.setattr(module, "kernel", lambda: request.param)
    return str(request.param)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as workers:
        yield workers


def slow_similarities(vectors: np.ndarray, query: np.ndarray) -> np.ndarray:
    rows, wanted = vectors.astype(np.float64), query.astype(np.float64)
    lengths = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
    return np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0) @ wanted.T


def slow(vectors: np.ndarray, offsets: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Eq. 4 as it is written: a loop over pages, query vectors and page vectors, in float64."""
    scores = []
    for first, last in pairwise(offsets):
        similarities = slow_similarities(vectors[first:last], query)
        total = 0.0
        for j in range(len(query)):
            best = -np.inf
            for i in range(last - first):
                best = max(best, similarities[i, j])
            total += best
        scores.append(total / len(query))
    return np.array(scores)


def slow_int8(pages: Int8Pages, query: np.ndarray) -> np.ndarray:
    """What the scan of these very codes is, in float64."""
    codes, scales = portable.quantise_rows(query)
    products = pages.values.astype(np.float64) @ codes.T.astype(np.float64)
    products *= pages.scales[:, None].astype(np.float64) * scales.astype(np.float64)
    best = [products[a:b].max(axis=0).mean() if b > a else -np.inf for a, b in pairwise(pages.offsets)]
    return np.array(best)


def ragged(counts: list[int], width: int) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return RNG.standard_normal((offsets[-1], width)).astype(np.float16), offsets


def cut(vectors: np.ndarray, widths: list[int]) -> tuple[np.ndarray, ...]:
    return tuple(np.ascontiguousarray(part) for part in np.split(vectors, np.cumsum(widths)[:-1], axis=1))


def check(vectors: np.ndarray, offsets: np.ndarray, query: np.ndarray, slices: tuple[np.ndarray, ...]) -> None:
    """Exact scores, int8 codes and scanned scores of the current implementation."""
    size = max(1.0, float(np.abs(query).max())) * np.sqrt(query.shape[1])
    np.testing.assert_allclose(
        maxsim(ExactPages(slices, offsets), query), slow(vectors, offsets, query), atol=1e-6 * size, rtol=1e-5
    )
    pages = quantise(slices, offsets)
    codes, scales = portable.quantise_rows(vectors.astype(np.float32))
    np.testing.assert_array_equal(pages.values, codes)
    np.testing.assert_allclose(pages.scales, scales / lengths(vectors.astype(np.float32)), rtol=1e-5)
    np.testing.assert_allclose(scan_int8(pages, query), slow_int8(pages, query), atol=1e-6 * size, rtol=1e-5)


def test_the_compiled_kernels_are_there_where_they_can_be() -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        pytest.skip("the kernels are for x86-64")
    if not {"avx2", "fma", "f16c"} <= set(
        Path("/proc/cpuinfo").read_text().split("flags", 1)[1].split("\n")[0].split()
    ):
        pytest.skip("this processor has no AVX2")
    if NATIVE == [] and shutil.which("cc") is None and shutil.which("gcc") is None:
        pytest.skip("there was no compiler to build the kernels with")
    assert KERNELS[0] in {"avx512", "avx2"}, "the library was not built or did not load: pip install -e ."
    assert "avx2" in KERNELS


def test_kernel_names_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert kernel() == KERNELS[0]


def test_hand_computed_page() -> None:
    # Page vectors (3, 4) and (1, 0) become (0.6, 0.8) and (1, 0); the query is (1, 0) and (0, 1).
    pages = ExactPages((np.array([[3, 4], [1, 0]], np.float16),), np.array([0, 2]))
    query = np.array([[1, 0], [0, 1]], np.float32)
    assert maxsim(pages, query) == pytest.approx([(1.0 + 0.8) / 2], abs=1e-6)


def test_hand_computed_codes() -> None:
    # 127 / 4 a unit: 3 becomes 95.25, and 2 becomes 63.5, which rounds to the even 64.
    pages = quantise((np.array([[3, -4], [2, 4]], np.float16),), np.array([0, 2]))
    assert pages.values.tolist() == [[95, -127], [64, 127]]
    assert pages.scales == pytest.approx([4 / 127 / 5, 4 / 127 / np.sqrt(20)])


def test_prefix_is_renormalised_by_hand() -> None:
    vectors = np.array([[3, 4, 12]], np.float16)
    assert unit_prefix(vectors, 3)[0] == pytest.approx([3 / 13, 4 / 13, 12 / 13])
    assert unit_prefix(vectors, 2)[0] == pytest.approx([3 / 5, 4 / 5])


def test_query_length_carries_through() -> None:
    pages = ExactPages((np.array([[1, 0]], np.float16),), np.array([0, 1]))
    query = np.array([[2.5, 0]], np.float32)
    assert maxsim(pages, query) == pytest.approx([2.5])
    assert scan_int8(quantise(pages.slices, pages.offsets), query) == pytest.approx([2.5])


@pytest.mark.parametrize("counts", [[1], [0], [], [0, 0, 5], RAGGED, [40] * 9 + [0] + [9000] + [1, 2]])
@pytest.mark.parametrize("widths", [[1], [3], [4, 8]])
def test_any_page_sizes(counts: list[int], widths: list[int]) -> None:
    vectors, offsets = ragged(counts, sum(widths))
    check(vectors, offsets, RNG.standard_normal((3, sum(widths))).astype(np.float32), cut(vectors, widths))


@pytest.mark.parametrize(
    "widths",
    [[7], [8], [9], [33], [31, 1, 33], [1] * 20, [32, 32, 64], [384], [32, 32, 64, 128, 128], [127, 3, 129], [5] * 77],
)
def test_any_widths(widths: list[int]) -> None:
    vectors, offsets = ragged(RAGGED, sum(widths))
    vectors[5] = 0
    check(vectors, offsets, RNG.standard_normal((5, sum(widths))).astype(np.float32), cut(vectors, widths))


@pytest.mark.parametrize("count", range(1, 71, 3))
def test_any_number_of_query_vectors(count: int) -> None:
    vectors, offsets = ragged([1, 20, 0, 35], 40)
    check(vectors, offsets, RNG.standard_normal((count, 40)).astype(np.float32), cut(vectors, [32, 8]))


@given(
    counts=st.lists(st.integers(0, 40), max_size=6),
    widths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    queries=st.integers(1, 30),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_any_shape(counts: list[int], widths: list[int], queries: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    # From the smallest float16 to the largest, with zeros, signs and repeated rows.
    vectors = rng.standard_normal((offsets[-1], sum(widths))) * 2.0 ** rng.integers(-24, 14, (offsets[-1], 1))
    vectors[rng.random(vectors.shape) < 0.2] = 0
    vectors = vectors.astype(np.float16)
    vectors[::5] = vectors[: len(vectors[::5])]
    query = (rng.standard_normal((queries, sum(widths))) * rng.choice([1e-3, 1, 30])).astype(np.float32)
    check(vectors, offsets, query, cut(vectors, widths))


@pytest.mark.parametrize("scale", [6e-8, 1e-4, 65504])
def test_denormal_and_huge_components(scale: float) -> None:
    vectors = (np.sign(RNG.standard_normal((40, 48))) * scale).astype(np.float16)
    check(vectors, np.array([0, 2, 40]), RNG.standard_normal((2, 48)).astype(np.float32), (vectors,))


@pytest.mark.parametrize("scale", [1e-44, 1e-38, 1e30])
def test_scores_are_finite_for_any_finite_query(scale: float) -> None:
    vectors, offsets = ragged([4, 40], 8)
    vectors[:4] = 0
    query = np.full((2, 8), scale, np.float32)
    pages = quantise((vectors,), offsets)
    for scores in (maxsim(ExactPages((vectors,), offsets), query), scan_int8(pages, query)):
        assert np.isfinite(scores).all()
        assert scores[0] == 0


def test_zero_vectors_score_zero_even_against_worse() -> None:
    vectors = np.array([[0, 0, 0], [-1, -2, -3]], np.float16)
    pages = ExactPages((vectors,), np.array([0, 1, 2, 2]))
    query = np.ones((1, 3), np.float32)
    expected = [0.0, -6 / np.sqrt(14), -np.inf]
    assert maxsim(pages, query) == pytest.approx(expected)
    assert scan_int8(quantise(pages.slices, pages.offsets), query) == pytest.approx(expected, abs=1e-2)
    assert maxsim(ExactPages((vectors,), np.array([0, 2])), query) == pytest.approx([0.0])


def test_negative_similarities_still_have_a_best() -> None:
    vectors = -np.abs(RNG.standard_normal((37, 16))).astype(np.float16)
    check(vectors, np.array([0, 1, 37]), np.ones((3, 16), np.float32), (vectors,))


def test_the_best_row_counts_wherever_it_stands() -> None:
    for place in range(70):
        vectors = np.tile(np.array([[-1, 0.5]], np.float16), (70, 1))
        vectors[place] = [1, 0]
        pages = ExactPages((vectors,), np.array([0, 70]))
        query = np.array([[1, 0]], np.float32)
        assert maxsim(pages, query) == pytest.approx([1.0])
        assert scan_int8(quantise(pages.slices, pages.offsets), query) == pytest.approx([1.0])


def test_unaligned_read_only_and_strided_slices() -> None:
    vectors, offsets = ragged(RAGGED, 45)
    query = RNG.standard_normal((4, 45)).astype(np.float32)
    raw = b"." + vectors[:, :32].tobytes()
    unaligned = np.frombuffer(raw, np.float16, offset=1).reshape(-1, 32)
    assert not unaligned.flags.aligned
    assert not unaligned.flags.writeable
    check(vectors, offsets, query, (unaligned, vectors[:, 32:44], vectors[:, 44:]))
    check(vectors[::-1], offsets, query, (vectors[::-1, :32], np.asfortranarray(vectors[::-1, 32:])))


def test_pages_need_not_begin_at_the_first_row() -> None:
    vectors, _ = ragged([50], 12)
    query = RNG.standard_normal((3, 12)).astype(np.float32)
    offsets = np.array([7, 20, 20, 31])
    np.testing.assert_allclose(maxsim(ExactPages((vectors,), offsets), query), slow(vectors, offsets, query), atol=1e-5)


def test_the_scan_is_near_exact() -> None:
    vectors, offsets = ragged([5, 0, 300, 1, 20_000, 77], 64)
    query = unit_prefix(RNG.standard_normal((17, 64)), 64)
    exact = maxsim(ExactPages((vectors,), offsets), query)
    scanned = scan_int8(quantise((vectors[:, :32], vectors[:, 32:]), offsets), query)
    np.testing.assert_allclose(scanned, exact, atol=5e-3)
    assert np.isneginf(scanned[1])


def test_threads_change_nothing(pool: ThreadPoolExecutor) -> None:
    counts = [0, 0, 9000, *RNG.integers(0, 900, 120).tolist(), 0]
    vectors, offsets = ragged(counts, 160)
    query = RNG.standard_normal((3, 160)).astype(np.float32)
    exact, pages = ExactPages((vectors,), offsets), quantise((vectors,), offsets)
    assert offsets[-1] * 160 > 2 * module._LEAST_WORK
    spread = quantise((vectors,), offsets, pool=pool)
    np.testing.assert_array_equal(spread.values, pages.values)
    np.testing.assert_array_equal(spread.scales, pages.scales)
    # BLAS may add in another order where a chunk ends elsewhere.
    np.testing.assert_allclose(maxsim(exact, query, pool=pool), maxsim(exact, query), atol=1e-5)
    np.testing.assert_allclose(scan_int8(pages, query, pool=pool), scan_int8(pages, query), atol=1e-5)
    places = RNG.integers(0, len(counts), 300)
    np.testing.assert_allclose(
        scan_int8(pages, query, places=places, pool=pool), scan_int8(pages, query)[places], atol=1e-5
    )


def test_places_are_scored_in_their_order() -> None:
    vectors, offsets = ragged([4000, 5000, 6000, 10, 0, 3], 8)
    pages, query = quantise((vectors,), offsets), unit_prefix(RNG.standard_normal((3, 8)), 8)
    everything = scan_int8(pages, query)
    for places in ([5, 0, 3], [2, 2, 4, 2], [4], [], [0, 1, 2, 3, 4, 5], [4, 4, 5]):
        wanted = np.array(places, np.int64)
        np.testing.assert_allclose(scan_int8(pages, query, places=wanted), everything[wanted], atol=1e-6)


@pytest.mark.parametrize("places", [[-1], [2], [0, 1, 9]])
def test_places_out_of_range_are_refused(places: list[int]) -> None:
    vectors, offsets = ragged([1, 2], 4)
    with pytest.raises(ValueError, match="places from 0 to 1"):
        scan_int8(quantise((vectors,), offsets), np.ones((1, 4), np.float32), places=np.array(places))


@pytest.mark.parametrize("shape", [(0, 4), (1, 3), (4,)])
def test_a_query_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    vectors, offsets = ragged([1, 2], 4)
    with pytest.raises(ValueError, match=r"query vectors \(n, 4\)"):
        maxsim(ExactPages((vectors,), offsets), np.ones(shape, np.float32))
    with pytest.raises(ValueError, match=r"query vectors \(n, 4\)"):
        scan_int8(quantise((vectors,), offsets), np.ones(shape, np.float32))


def test_slices_of_another_type_or_length_are_refused() -> None:
    vectors, offsets = ragged([3], 4)
    for slices in ((vectors.astype(np.float32),), (vectors, vectors[:2]), (vectors[0],)):
        with pytest.raises(ValueError, match="float16 slices"):
            quantise(slices, offsets)


@pytest.mark.parametrize("tier", NATIVE)
def test_the_compiled_kernels_never_read_past_their_arrays(tier: str) -> None:
    native = module._native
    vectors, offsets = ragged([3, 2], 4)
    query, scores = np.ones((1, 4), np.float32), np.empty(2, np.float32)
    values, scales = np.zeros((5, 4), np.int8), np.zeros(5, np.float32)
    codes, weights = np.zeros((1, 4), np.int8), np.zeros(1, np.float32)
    places = np.array([1, 0])
    wrong_exact = [
        ("unknown", (vectors,), offsets, query, scores),
        (tier, (), offsets, query, scores),
        (tier, (vectors[:4],), offsets, query, scores),
        (tier, (vectors, vectors[:4]), offsets, query, scores),
        (tier, (vectors,), np.array([0, 4, 3]), query, scores),
        (tier, (vectors,), np.array([-1, 3, 5]), query, scores),
        (tier, (vectors,), offsets.astype(np.int32), query, scores),
        (tier, (vectors,), offsets, query[:, :3], scores),
        (tier, (vectors,), offsets, query[:0], scores),
        (tier, (vectors.astype(np.float32),), offsets, query, scores),
        (tier, (vectors[:, ::2],), offsets, query[:, :2].copy(), scores),
        (tier, (vectors,), offsets, query, scores[:1]),
        (tier, (vectors,), offsets, query, b"12345678"),
    ]
    for arguments in wrong_exact:
        with pytest.raises((ValueError, BufferError)):
            native.maxsim(*arguments)
    wrong_scans = [
        ((values, scales[:4], offsets), (codes, weights), None, scores),
        ((values[:4], scales[:4], offsets), (codes, weights), None, scores),
        ((values, scales, offsets), (codes[:, :3].copy(), weights), None, scores),
        ((values, scales, offsets), (codes, weights[:0]), None, scores),
        ((values, scales, offsets), (codes, weights), places + 1, scores),
        ((values, scales, offsets), (codes, weights), places - 1, scores),
        ((values, scales, offsets), (codes, weights), places[:1], scores),
    ]
    for scan in wrong_scans:
        with pytest.raises(ValueError, match="expected"):
            native.scan_int8(tier, *scan)
    for codes_out, scales_out in ((values[:4], scales), (values, scales[:4]), (values[:, :3].copy(), scales)):
        with pytest.raises(ValueError, match="expected"):
            native.quantise(tier, (vectors,), codes_out, scales_out)


@pytest.mark.parametrize("tier", NATIVE)
def test_the_compiled_kernels_take_buffers_without_strides(tier: str) -> None:
    rows = (ctypes.c_uint16 * 4 * 2)()  # ctypes leaves the strides of its dense arrays out
    np.frombuffer(rows, np.float16)[:] = [1, 0, 0, 0, 0, 3, 0, 4]
    scores = np.empty(2, np.float32)
    module._native.maxsim(tier, (rows,), np.array([0, 1, 2]), np.array([[1, 1, 1, 1]], np.float32), scores)
    assert scores == pytest.approx([1.0, 1.4])


def test_best_rows_name_the_answering_vector() -> None:
    rows, similarities = best_rows(np.array([[0, 5], [2, 0]], np.float16), np.array([[1, 0], [0, 1]], np.float32))
    assert rows.tolist() == [1, 0]
    assert similarities == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("strong", [1.0, 20.0])
@pytest.mark.parametrize("count", [1, 20])
def test_scans_are_off_by_less_than_they_say(strong: float, count: int) -> None:
    rng = np.random.default_rng(12)
    vectors = rng.standard_normal((20_000, 64))
    vectors[:, 0] *= strong
    offsets = np.arange(0, 20_001, 10)
    slices = (vectors.astype(np.float16),)
    pages = quantise(slices, offsets)
    for length in (1.0, 5.0):
        query = (length * unit_prefix(rng.standard_normal((count, 64)), 64)).astype(np.float32)
        off = np.abs(scan_int8(pages, query) - maxsim(ExactPages(slices, offsets), query)).max()
        told = scan_error(query, float(pages.scales.max()))
        assert off < told < 12 * off
