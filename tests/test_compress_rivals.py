"""The other methods of compression: numbers worked out by hand, and what holds of all of them."""

from __future__ import annotations

import builtins
import json
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest

from budgetvdr.compress import (
    AnchorFold,
    Clustering,
    DocPruner,
    Pooling,
    RandomSelection,
    Signals,
    StructuralPruning,
    WardFold,
    WardPooling,
    Window,
    token_signals,
)
from budgetvdr.compress.grouping import fold, numbered
from budgetvdr.compress.record import Method, from_record, from_text, to_record
from budgetvdr.compress.size import Sized
from budgetvdr.errors import BudgetError, CompressionError, IndexFormatError, MissingExtraError
from budgetvdr.pages import TokenSignals
from budgetvdr.unit import unit_rows

SIZED: list[Callable[..., Method]] = [
    AnchorFold,
    StructuralPruning,
    Pooling,
    RandomSelection,
    Clustering,
    WardFold,
    WardPooling,
]


@pytest.fixture(autouse=True)
def extras(request: pytest.FixtureRequest) -> None:
    if "without" not in request.node.name:
        pytest.importorskip("sklearn", reason="the extra compress is not installed")
        pytest.importorskip("scipy", reason="the extra compress is not installed")


def page_of(count: int, seed: int = 0, dim: int = 8) -> Signals:
    random = np.random.default_rng(seed)
    scores = [random.random(count).astype(np.float32) for _ in range(3)]
    return Signals(random.standard_normal((count, dim)).astype(np.float32), *scores)


def scored(**scores: list[float]) -> Signals:
    count = len(next(iter(scores.values())))
    return Signals(np.eye(count, dtype=np.float32), **{k: np.array(v, np.float32) for k, v in scores.items()})


@pytest.mark.parametrize("method", SIZED)
@pytest.mark.parametrize(("count", "gamma", "expected"), [(30, 0.1, 3), (31, 0.1, 4), (7, 0.05, 1), (1, 0.5, 1)])
def test_the_number_kept(method: Callable[..., Method], count: int, gamma: float, expected: int) -> None:
    result = method(gamma=gamma).compress(page_of(count))
    assert result.vectors.shape == (expected, 8)
    stored = result.groups[result.groups >= 0]
    assert result.groups.shape == (count,) and set(stored.tolist()) == set(range(expected))
    # In the order of the page.
    assert method(cap=5).compress(page_of(20)).vectors.shape == (5, 8)


@pytest.mark.parametrize("method", SIZED)
def test_keeping_all_changes_no_bit(method: Callable[..., Method]) -> None:
    page = page_of(40)
    result = method(gamma=1.0).compress(page)
    assert result.vectors.tobytes() == page.vectors.tobytes()
    assert result.groups.tolist() == list(range(40))


@pytest.mark.parametrize("method", SIZED)
def test_keeping_all_stores_what_an_index_without_compression_stores(method: Callable[..., Method]) -> None:
    raw = page_of(40).vectors * np.random.default_rng(1).uniform(1e-3, 900, (40, 1)).astype(np.float32)
    scores = page_of(40).centrality
    assert scores is not None
    page = Signals.of(raw, TokenSignals(scores, scores, scores))
    stored = method(gamma=1.0).compress(page).vectors.astype(np.float16)
    assert stored.tobytes() == raw.astype(np.float16).tobytes()


@pytest.mark.parametrize("method", SIZED)
def test_a_page_without_tokens(method: Callable[..., Method]) -> None:
    nothing = Signals.of(np.zeros((0, 8), np.float32), token_signals([]))
    result = method(gamma=0.2).compress(nothing)
    assert result.vectors.shape == (0, 8) and result.groups.shape == (0,)


@pytest.mark.parametrize("method", SIZED)
def test_the_same_page_gives_the_same_vectors(method: Callable[..., Method]) -> None:
    first, second = (method(gamma=0.2).compress(page_of(50)) for _ in range(2))
    assert first.vectors.tobytes() == second.vectors.tobytes()


@pytest.mark.parametrize("method", SIZED)
def test_equal_vectors_do_not_disturb(method: Callable[..., Method]) -> None:
    same = page_of(12)
    page = Signals(np.repeat(same.vectors[:2], 6, axis=0), same.centrality, same.in_degree, same.from_global)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = method(gamma=0.5).compress(page)
    assert 1 <= len(result.vectors) <= 6 and np.isfinite(result.vectors).all()


@pytest.mark.parametrize("method", SIZED)
def test_scores_of_any_size_do_the_same(method: Callable[..., Method]) -> None:
    """Signals are in units of the average share, and only their ratios may count."""
    page = page_of(60)
    small = Signals(page.vectors, *(scores / 64 for scores in (page.centrality, page.in_degree, page.from_global)))  # type: ignore[operator]
    one, other = method(gamma=0.2).compress(page), method(gamma=0.2).compress(small)
    assert one.vectors.tobytes() == other.vectors.tobytes() and one.groups.tolist() == other.groups.tolist()


@pytest.mark.parametrize(
    "method", [StructuralPruning(gamma=0.1), DocPruner(threshold=0.5), WardFold(gamma=0.1)], ids=str
)
def test_the_order_of_tokens_does_not_matter(method: Method) -> None:
    page = page_of(60)
    shuffle = np.random.default_rng(1).permutation(60)
    scores = (page.centrality, page.in_degree, page.from_global)
    moved = Signals(page.vectors[shuffle], *(each[shuffle] for each in scores if each is not None))
    here, there = method.compress(page), method.compress(moved)
    before, after = here.groups[shuffle], there.groups
    assert len(here.vectors) == len(there.vectors) < 60
    # Tokens dropped still are; those that shared a vector still do, and the vector is the same.
    assert (before < 0).tolist() == (after < 0).tolist()
    np.testing.assert_allclose(here.vectors[before[before >= 0]], there.vectors[after[after >= 0]], atol=1e-6)


def test_zero_rows_have_no_direction_to_average() -> None:
    page = Signals(np.array([[0, 0], [0, 3], [0, 0], [0, 0]], np.float32))
    np.testing.assert_allclose(unit_rows(Pooling(cap=2).compress(page).vectors), [[0, 1], [0, 0]])


def test_structural_pruning_keeps_the_most_attended() -> None:
    result = StructuralPruning(gamma=0.5).compress(scored(in_degree=[0.1, 0.4, 0.1, 0.4]))
    assert result.groups.tolist() == [-1, 0, -1, 1]
    assert StructuralPruning(gamma=0.5).asks(Window(2, 3, 6), 6) == Window(2, 3, 1)
    with pytest.raises(CompressionError, match="StructuralPruning needs in_degree"):
        StructuralPruning(gamma=0.5).compress(Signals(np.ones((2, 2), np.float32)))


def test_docpruner_keeps_what_stands_out() -> None:
    # Mean 2, standard deviation sqrt(3): the last stands 3 / sqrt(3) = 1.73 above, the others 0.58 below.
    page = scored(from_global=[1, 1, 1, 5])
    assert DocPruner(threshold=0).compress(page).groups.tolist() == [-1, -1, -1, 0]
    assert DocPruner(threshold=-1).compress(page).groups.tolist() == [0, 1, 2, 3]
    # Above every token: the best one stays.
    assert DocPruner(threshold=2).compress(page).groups.tolist() == [-1, -1, -1, 0]
    flat = scored(from_global=[1, 1])
    assert DocPruner(threshold=0).compress(flat).groups.tolist() == [0, -1]
    assert DocPruner(threshold=-0.1).compress(flat).groups.tolist() == [0, 1]
    assert DocPruner(threshold=0).asks(Window(2, 3, 6), 6) == Window(5, 5)
    with pytest.raises(CompressionError, match="DocPruner needs from_global"):
        DocPruner(threshold=0).compress(Signals(np.ones((2, 2), np.float32)))
    with pytest.raises(BudgetError, match="finite"):
        DocPruner(threshold=float("nan"))


@pytest.mark.parametrize("gamma", [0.05, 0.1, 0.2, 0.5, 1.0])
def test_docpruner_meets_its_ratio_over_pages_not_on_each(gamma: float) -> None:
    pages = [page_of(count, seed=count) for count in (50, 120, 430, 400)]
    # Attention as it is: few tokens get most of it.
    pages = [Signals(p.vectors, from_global=p.from_global**power) for power, p in enumerate(pages, 2)]  # type: ignore[operator]
    method = DocPruner.at_ratio(gamma, [page.from_global for page in pages if page.from_global is not None])
    kept = [len(method.compress(page).vectors) for page in pages]
    assert sum(kept) == round(gamma * 1000)
    shares = {round(k / len(page.vectors), 3) for k, page in zip(kept, pages, strict=True)}
    assert gamma == 1 or len(shares) > 1


def test_docpruner_needs_pages_to_calibrate() -> None:
    with pytest.raises(BudgetError, match="calibration pages"):
        DocPruner.at_ratio(0.5, [np.zeros(0, np.float32)])
    with pytest.raises(BudgetError, match="gamma"):
        DocPruner.at_ratio(0, [np.ones(3, np.float32)])


def test_pooling_takes_neighbours() -> None:
    page = Signals(np.array([[2, 0], [0, 5], [0, 1], [3, 0], [1, 0]], np.float32))
    result = Pooling(cap=2).compress(page)
    assert result.groups.tolist() == [0, 0, 0, 1, 1]
    # Unit vectors (1, 0), (0, 1), (0, 1) have the direction (1, 2).
    np.testing.assert_allclose(unit_rows(result.vectors), [[1 / 5**0.5, 2 / 5**0.5], [1, 0]], atol=1e-6)


@pytest.mark.parametrize("method", [Clustering, WardFold, WardPooling])
def test_groups_are_those_of_the_directions(method: Callable[..., Method]) -> None:
    random = np.random.default_rng(0)
    directions = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]])[[2, 0, 1, 0, 2, 1, 1, 0]]
    vectors = (directions + 0.05 * random.standard_normal((8, 3))) * random.uniform(0.5, 3, (8, 1))
    result = method(cap=3).compress(Signals(vectors.astype(np.float32)))
    assert result.groups.tolist() == [0, 1, 2, 1, 0, 2, 2, 1]
    # WardFold averages before scaling, the others after.
    members = (vectors if method is WardFold else unit_rows(vectors))[[0, 4]]
    mean = members.mean(axis=0)
    np.testing.assert_allclose(unit_rows(result.vectors)[0], mean / np.linalg.norm(mean), atol=1e-6)


def test_ward_pooling_groups_as_the_square_of_distances_does() -> None:
    hierarchy = pytest.importorskip("scipy.cluster.hierarchy")
    units = unit_rows(page_of(40).vectors)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = hierarchy.linkage(1 - units @ units.T, metric="euclidean", method="ward")
    expected = hierarchy.fcluster(tree, t=10, criterion="maxclust")
    assert WardPooling(gamma=0.25).compress(Signals(units)).groups.tolist() == numbered(expected).tolist()


def test_ward_folding_groups_the_unit_vectors() -> None:
    hierarchy = pytest.importorskip("scipy.cluster.hierarchy")
    page = page_of(60)
    tree = hierarchy.linkage(unit_rows(page.vectors).astype(float), metric="euclidean", method="ward")
    expected = hierarchy.fcluster(tree, t=12, criterion="maxclust")
    assert WardFold(gamma=0.2).compress(page).groups.tolist() == numbered(expected).tolist()


@pytest.mark.parametrize(("cap", "runs"), [(1, 1), (2, 2), (30, 4), (90, 4)])
def test_long_pages_are_folded_in_runs(cap: int, runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("budgetvdr.compress.wardfold._BLOCK", 25)
    result = WardFold(cap=cap).compress(page_of(100))
    assert result.vectors.shape == (cap, 8) and set(result.groups.tolist()) == set(range(cap))
    edges = [100 * run // runs for run in range(runs + 1)]
    members = [set(result.groups[start:end].tolist()) for start, end in pairwise(edges)]
    assert sum(map(len, members)) == cap and max(map(len, members)) - min(map(len, members)) <= 1


def test_random_selection_differs_by_seed() -> None:
    page = page_of(100)
    first, second = (RandomSelection(gamma=0.1, seed=seed).compress(page).groups.tolist() for seed in (0, 1))
    assert first != second


def test_numbered_has_no_gaps_and_keeps_the_order() -> None:
    assert numbered(np.array([7, 2, 7, 9, 2])).tolist() == [0, 1, 0, 2, 1]
    assert numbered(np.zeros(0, np.int64)).tolist() == []


def test_fold_ignores_weights_that_are_all_zero() -> None:
    vectors = np.array([[1, 0], [0, 1], [1, 0]], np.float32)
    result = fold(vectors, np.array([0, 0, 1], np.int32), np.array([0, 0, 0], np.float32))
    np.testing.assert_allclose(result.vectors, [[0.5, 0.5], [1, 0]], atol=1e-6)


@pytest.mark.parametrize(("count", "gamma", "expected"), [(30, 0.1, 3), (35, 0.2, 7), (10, 1 / 3, 4), (0, 0.5, 0)])
def test_shares_are_rounded_up_without_float_noise(count: int, gamma: float, expected: int) -> None:
    assert Sized(gamma=gamma).size(count) == expected


@pytest.mark.parametrize("method", SIZED)
def test_one_vector_stays_however_small_the_share(method: Callable[..., Method]) -> None:
    assert method(gamma=1e-12).compress(page_of(30)).vectors.shape == (1, 8)


def test_docpruner_keeps_a_token_however_small_the_share() -> None:
    scores = np.array([1, 1, 5], np.float32)
    method = DocPruner.at_ratio(1e-12, [scores])
    assert method.compress(scored(from_global=[1, 1, 5])).groups.tolist() == [-1, -1, 0]


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (Pooling(gamma=np.float32(0.2)), Pooling(gamma=0.2)),  # type: ignore[arg-type]
        (Pooling(gamma=1), Pooling(gamma=1.0)),
        (WardFold(cap=np.int64(4)), WardFold(cap=4)),  # type: ignore[arg-type]
        (RandomSelection(cap=2, seed=np.uint8(3)), RandomSelection(cap=2, seed=3)),  # type: ignore[arg-type]
        (DocPruner(threshold=np.float16(0.5)), DocPruner(threshold=0.5)),  # type: ignore[arg-type]
        (
            AnchorFold(gamma=0.5, steps=np.int32(2), refinements=np.int8(0), folding=np.False_),  # type: ignore[arg-type]
            AnchorFold(gamma=0.5, steps=2, refinements=0, folding=False),
        ),
    ],
    ids=str,
)
def test_settings_of_numpy_are_recorded_as_plain_numbers(given: Method, plain: Method) -> None:
    assert json.dumps(to_record(given)) == json.dumps(to_record(plain))


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (WardFold, {"gamma": "0.2"}),
        (WardFold, {"gamma": True}),
        (WardFold, {"gamma": float("nan")}),
        (WardFold, {"cap": "3"}),
        (WardFold, {"cap": 2.5}),
        (WardFold, {"cap": True}),
        (WardFold, {"cap": 0}),
        (AnchorFold, {"gamma": 0.5, "steps": 2.5}),
        (AnchorFold, {"gamma": 0.5, "steps": 0}),
        (AnchorFold, {"gamma": 0.5, "refinements": 1.5}),
        (AnchorFold, {"gamma": 0.5, "refinements": None}),
        (AnchorFold, {"gamma": 0.5, "folding": "no"}),
        (Clustering, {"gamma": 0.5, "seed": -1}),
        (Clustering, {"gamma": 0.5, "seed": 2**32}),
        (RandomSelection, {"gamma": 0.5, "seed": -1}),
        (RandomSelection, {"gamma": 0.5, "seed": None}),
        (AnchorFold, {"gamma": 0.2, "steps": 1001}),
        (DocPruner, {"threshold": "a"}),
        (DocPruner, {"threshold": None}),
    ],
)
def test_settings_of_another_kind_are_refused_when_made(kind: Callable[..., Method], settings: dict[str, Any]) -> None:
    name, value = list(settings.items())[-1]
    with pytest.raises(BudgetError, match=rf"^{name}.*: expected .*found {value!r}$"):
        kind(**settings)


def test_clustering_leaves_the_other_cores_to_other_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    openmp = pytest.importorskip("sklearn.utils._openmp_helpers")
    cluster = pytest.importorskip("sklearn.cluster")
    threads: list[int] = []

    class Watched(cluster.KMeans):  # type: ignore[misc, name-defined]
        def fit_predict(self, *args: Any, **kwargs: Any) -> Any:
            threads.append(openmp._openmp_effective_n_threads())
            return super().fit_predict(*args, **kwargs)

    before = openmp._openmp_effective_n_threads()
    monkeypatch.setattr(cluster, "KMeans", Watched)
    Clustering(cap=3).compress(page_of(30))
    assert threads == [1] and openmp._openmp_effective_n_threads() == before


METHODS: list[Method] = [
    AnchorFold(gamma=0.2, steps=3, anchors="random", folding=False, weights="uniform"),
    StructuralPruning(cap=64),
    DocPruner(threshold=-0.1),
    Pooling(gamma=0.5),
    RandomSelection(gamma=0.5, seed=4),
    Clustering(gamma=0.5, seed=4),
    WardFold(cap=100),
    WardPooling(gamma=0.5),
]


@pytest.mark.parametrize("method", METHODS)
def test_records_read_back(method: Method) -> None:
    record = json.loads(json.dumps(to_record(method)))
    assert from_record(record) == method
    assert record["method"] == type(method).__name__ and record["version"] == 1


@pytest.mark.parametrize(
    "change",
    [{"method": "Newer"}, {"method": ["AnchorFold"]}, {"version": 2}, {"version": None}, {"gamma": 3}, {"other": 1}],
)
def test_unknown_records_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(IndexFormatError):
        from_record(to_record(AnchorFold(gamma=0.2)) | change)


@pytest.mark.parametrize("method", [Clustering, WardFold, WardPooling])
def test_without_the_extra(method: Callable[..., Method], monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def blocked(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".", maxsplit=1)[0] in ("sklearn", "scipy"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", blocked)
    with pytest.raises(MissingExtraError, match=r'pip install "budgetvdr\[compress\]"'):
        method(gamma=0.5).compress(page_of(6))


def test_scores_of_other_dtypes_are_no_trouble() -> None:
    scores: npt.NDArray[Any] = np.array([3, 1, 2], np.float16)
    assert StructuralPruning(cap=1).compress(Signals(np.eye(3, dtype=np.float32), in_degree=scores)).groups[0] == 0


def test_methods_as_people_write_them() -> None:
    assert from_text("WardFold:0.2") == WardFold(gamma=0.2)
    assert from_text(" anchorfold:1") == AnchorFold(gamma=1.0)
    assert from_text("docpruner:-0.25") == DocPruner(threshold=-0.25)
    for kind in get_args(Method):
        assert type(from_text(f"{kind.__name__}:0.5")) is kind
    assert from_text("WardFold:.2") == from_text("wardfold: gamma = 0.2") == WardFold(gamma=0.2)
    assert from_text("Clustering:cap=64,seed=3") == Clustering(cap=64, seed=3)
    assert from_text("AnchorFold:gamma=0.1,refinements=0,folding=false,anchors=random") == AnchorFold(
        gamma=0.1, refinements=0, folding=False, anchors="random"
    )
    assert from_text("DocPruner:threshold=0.5") == DocPruner(threshold=0.5)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ("", r"expected NAME:GAMMA.*; found ''. Names are AnchorFold, "),
        ("0.2", r"Names are AnchorFold, "),
        ("Sized:0.2", r"Names are AnchorFold, "),
        ("WardFold", r"expected NAME:GAMMA.*Settings of WardFold are gamma, cap"),
        ("WardFold:", r"Settings of WardFold are gamma, cap"),
        ("WardFold:cap=", r"Settings of WardFold are gamma, cap"),
        ("WardFold:share=0.2", r"Settings of WardFold are gamma, cap"),
        ("WardFold:0.2,cap=3", r"Settings of WardFold are gamma, cap"),
        ("DocPruner:gamma=0.2", r"Settings of DocPruner are threshold"),
        ("WardFold:0.2:3", r"gamma, .*found '0.2:3'"),
        ("WardFold:nan", r"gamma, .*found nan"),
        ("WardFold:cap=1.5", r"cap, .*found 1.5"),
        ("WardFold:gamma=0.2,cap=3", r"expected gamma.* or cap"),
        ("AnchorFold:gamma=0.2,folding=perhaps", r"folding of AnchorFold: .*'perhaps'"),
    ],
)
def test_what_is_no_method_is_told_what_is(wrong: str, match: str) -> None:
    with pytest.raises(BudgetError, match=match):
        from_text(wrong)


def test_numbers_beyond_floating_point_are_refused() -> None:
    for made in (lambda: WardFold(gamma=10**400), lambda: DocPruner(threshold=10**400)):  # type: ignore[arg-type]
        with pytest.raises(BudgetError, match=r"expected .*, found a number too large"):
            made()


def test_means_of_the_largest_vectors_stay_within_float16() -> None:
    largest = np.full((3, 4), 65504, np.float32)
    largest[:, 1] *= -1
    (mean,) = fold(largest, np.zeros(3, np.int32), np.array([0.1, 0.7, 0.3], np.float32)).vectors
    assert np.isfinite(mean.astype(np.float16)).all()
    np.testing.assert_allclose(np.abs(mean), 65504, rtol=1e-6)
    assert np.abs(mean).max() <= 65504


@pytest.mark.parametrize("version", [True, 0, -3, 2, 1.0, "1", None])
def test_a_record_of_another_version_is_refused(version: object) -> None:
    with pytest.raises(IndexFormatError, match="of version"):
        from_record({"method": "WardFold", "version": version, "gamma": 0.2, "cap": None})
