"""AnchorFold, stage by stage: numbers worked out by hand, and the paper's formulas as plain loops in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest

from budgetvdr.bundle import Manifest, Window, load_manifest
from budgetvdr.compress import (
    AnchorFold,
    Attention,
    DocPruner,
    Signals,
    StructuralPruning,
    WardFold,
    attention_for,
    token_signals,
)
from budgetvdr.compress.anchorfold import assign
from budgetvdr.compress.propagation import in_degree, layer_support
from budgetvdr.compress.signals import centrality
from budgetvdr.encoders.open import bundled_folder
from budgetvdr.errors import BudgetError, CompressionError, EncodingError
from budgetvdr.pages import TokenSignals
from budgetvdr.unit import unit_rows

Array = npt.NDArray[np.float64]

PAPER = partial(AnchorFold, refinements=0)
"""The method as published."""


def rows(*values: list[float]) -> npt.NDArray[np.float32]:
    return np.array(values, np.float32)


def turned(degrees: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """Unit vectors in the plane."""
    angles = np.radians(degrees)
    return np.column_stack([np.cos(angles), np.sin(angles)]).astype(np.float32)


def random_page(count: int, dim: int = 8, seed: int = 0) -> Signals:
    random = np.random.default_rng(seed)
    vectors = random.standard_normal((count, dim)).astype(np.float32)
    return Signals(vectors, random.random(count).astype(np.float32) + np.float32(0.01))


# The reference: sections 3.2 to 3.4 one sum at a time, on hidden states and with a projection.


def reference_centrality(layers: list[Array], steps: int) -> Array:
    """layers: (H, N, N) each."""
    shares = []
    for attention in layers:
        heads, count, _ = attention.shape
        states = []
        for head in attention:
            graph = [[head[i, j] / sum(head[i, r] for r in range(count)) for j in range(count)] for i in range(count)]
            state = [1 / count] * count
            for _ in range(steps):
                state = [sum(graph[i][j] * state[i] for i in range(count)) for j in range(count)]
            states.append(state)
        support = [(sum(states[h][j] ** 2 for h in range(heads)) / heads) ** 0.5 for j in range(count)]
        shares.append([value / sum(support) for value in support])
    return np.array([sum(share[j] for share in shares) / len(layers) for j in range(len(shares[0]))])


def reference_fold(
    hidden: Array,
    project: Array,
    bias: Array,
    alpha: Array,
    kept: int,
    *,
    refinements: int = 0,
    weights: Array | None = None,
) -> tuple[Array, list[int]]:
    """Unit vectors and fold map. weights: alpha where left out."""
    weights = alpha if weights is None else weights

    def placed(z: Array) -> Array:
        x: Array = project @ z + bias
        return x * (x @ x) ** -0.5

    def nearest(x: Array, centres: Sequence[Array]) -> int:
        return max(range(len(centres)), key=lambda c: (x @ centres[c], -c))

    units = [placed(z) for z in hidden]
    anchors = sorted(sorted(range(len(alpha)), key=lambda j: (-alpha[j], j))[:kept])
    centres = [units[c] for c in anchors]
    labels = [anchors.index(i) if i in anchors else nearest(units[i], centres) for i in range(len(units))]
    order = list(range(kept))
    for refinement in range(refinements + 1):
        if refinement:
            labels = [nearest(x, centres) for x in units]
            # Those that nothing is nearest to are gone, the others are in the order of their first tokens.
            order = list(dict.fromkeys(labels))
        groups = [[i for i in range(len(units)) if labels[i] == label] for label in order]
        centres = [placed(sum(weights[i] * hidden[i] for i in g) / sum(weights[i] for i in g)) for g in groups]
    return np.array(centres), [order.index(label) for label in labels]


@pytest.mark.parametrize("count", [1, 2, 7, 40])
@pytest.mark.parametrize("steps", [1, 2, 6])
def test_centrality_equals_the_formulas(count: int, steps: int) -> None:
    random = np.random.default_rng(count)
    layers = [random.random((3, count, count)) ** 4 for _ in range(2)]
    support = np.array([layer_support(layer, steps)[-1] for layer in layers])
    np.testing.assert_allclose(centrality(support), reference_centrality(layers, steps), rtol=1e-5)


@pytest.mark.parametrize(("count", "kept"), [(1, 1), (9, 1), (40, 8), (40, 40)])
def test_folding_the_projections_equals_projecting_the_folds(count: int, kept: int) -> None:
    random = np.random.default_rng(kept)
    hidden, alpha = random.standard_normal((count, 12)), random.random(count)
    project, bias = random.standard_normal((6, 12)), random.standard_normal(6)
    page = Signals((hidden @ project.T + bias).astype(np.float32), alpha.astype(np.float32))
    expected, groups = reference_fold(hidden, project, bias, alpha, kept)
    result = PAPER(cap=kept).compress(page)
    np.testing.assert_allclose(unit_rows(result.vectors), expected, atol=1e-5)
    assert result.groups.tolist() == groups


@pytest.mark.parametrize("weights", ["centrality", "uniform"])
@pytest.mark.parametrize("refinements", [1, 2, 3])
@pytest.mark.parametrize(("count", "kept", "dim"), [(40, 8, 6), (90, 30, 2)])
def test_refinements_equal_the_loop(
    count: int, kept: int, dim: int, refinements: int, weights: Literal["centrality", "uniform"]
) -> None:
    page = random_page(count, dim, seed=refinements)
    assert page.centrality is not None
    alpha = page.centrality.astype(np.float64)
    expected, groups = reference_fold(
        page.vectors.astype(np.float64),
        np.eye(dim),
        np.zeros(dim),
        alpha,
        kept,
        refinements=refinements,
        weights=alpha if weights == "centrality" else np.ones(count),
    )
    result = AnchorFold(cap=kept, refinements=refinements, weights=weights).compress(page)
    assert result.groups.tolist() == groups
    np.testing.assert_allclose(unit_rows(result.vectors), expected, atol=1e-5)


# By hand.


def test_two_steps_on_three_tokens() -> None:
    # Rows scaled to one: [1 0 0], [1/2 1/2 0], [0 1 0]. From (1/3, 1/3, 1/3) the columns give (1/2, 1/2, 0); from
    # there (3/4, 1/4, 0).
    head = np.array([[[2.0, 0, 0], [3, 3, 0], [0, 5, 0]]])
    np.testing.assert_allclose(layer_support(head, 2), [[0.5, 0.5, 0], [0.75, 0.25, 0]], atol=1e-7)
    np.testing.assert_allclose(in_degree(head), [0.5, 0.5, 0], atol=1e-7)


def test_heads_meet_in_their_root_mean_square() -> None:
    # One head gives (1, 0), the other (1/2, 1/2): sqrt((1 + 1/4) / 2) and sqrt((0 + 1/4) / 2).
    heads = np.array([[[1.0, 0], [1, 0]], [[1, 1], [1, 1]]])
    np.testing.assert_allclose(layer_support(heads, 1), [[0.625**0.5, 0.125**0.5]], atol=1e-7)
    np.testing.assert_allclose(in_degree(heads), [0.75, 0.25], atol=1e-7)


def test_each_layer_counts_by_its_shares() -> None:
    # (1, 3) is (1/4, 3/4) and (20, 20) is (1/2, 1/2), whatever their size.
    np.testing.assert_allclose(centrality(rows([1, 3], [20, 20])), [0.375, 0.625], atol=1e-7)


def test_a_layer_without_support_counts_as_uniform() -> None:
    np.testing.assert_allclose(centrality(rows([0, 0], [1, 3])), [0.375, 0.625], atol=1e-7)


def test_a_row_of_zeros_passes_nothing_on() -> None:
    head = np.array([[[0.0, 0], [1, 0]]])
    np.testing.assert_allclose(layer_support(head, 2), [[0.5, 0], [0, 0]], atol=1e-7)


def test_three_tokens_through_every_stage() -> None:
    # Rows scaled to one, from (1/3, 1/3, 1/3): the first head gives (1/2, 1/2, 0), then (3/4, 1/4, 0); the second, in
    # which 0 pays to 1 and both others to 2, gives (0, 1/3, 2/3), then (0, 0, 1).
    first = np.array([[[2.0, 0, 0], [3, 3, 0], [0, 5, 0]], [[0, 4, 0], [0, 0, 1], [0, 0, 7]]])
    # Rows all alike stay what they are: (3, 12, 0) / 15 and (4, 5, 6) / 15.
    second = np.array([[[3.0, 12, 0]] * 3, [[4.0, 5, 6]] * 3])
    support = np.array([layer_support(layer, 2) for layer in (first, second)])
    halves = [[9 / 36, 13 / 36, 16 / 36], [9 / 16, 1 / 16, 1]]
    np.testing.assert_allclose(support[0], np.sqrt(np.divide(halves, 2)), rtol=1e-6)
    # 3, 4 and 5; 12, 5 and 13; 0, 6 and 6: shares of 24.
    np.testing.assert_allclose(support[1], np.array([[5, 13, 6]] * 2) / 15 / 2**0.5, rtol=1e-6)
    np.testing.assert_allclose(centrality(support[:1, 1]), [9 / 24, 3 / 24, 12 / 24], rtol=1e-6)
    np.testing.assert_allclose(centrality(support[1:, 1]), [5 / 24, 13 / 24, 6 / 24], rtol=1e-6)
    alpha = centrality(support[:, 1])
    np.testing.assert_allclose(alpha, [7 / 24, 8 / 24, 9 / 24], rtol=1e-6)
    # Anchors are tokens 1 and 2; token 0 has cosines of 3/5 and 4/5 with them.
    result = PAPER(cap=2).compress(Signals(rows([4, 3], [0, 1], [3, 0]), alpha))
    assert result.groups.tolist() == [1, 0, 1]
    # (7/16) (4, 3) + (9/16) (3, 0).
    np.testing.assert_allclose(result.vectors, rows([0, 1], [55 / 16, 21 / 16]), rtol=1e-6)


def test_four_tokens_through_every_stage() -> None:
    # The first head pays to 0, 0, 1, 2: (1/2, 1/4, 1/4, 0), then (3/4, 1/4, 0, 0). In the second, 0 and 1 pay to 2, 2
    # to itself and 3 alike, 3 to itself: (0, 0, 5/8, 3/8), then (0, 0, 5/16, 11/16).
    to = np.eye(4)
    first = np.array([[to[0], 3 * to[0], to[1], 2 * to[2]], [to[2], 5 * to[2], to[2] + to[3], 4 * to[3]]])
    second = np.array([[[3.0, 8, 12, 4]] * 4, [[4.0, 15, 5, 3]] * 4])
    support = np.array([layer_support(layer, 2) for layer in (first, second)])
    np.testing.assert_allclose(support[0, 1], np.array([12, 4, 5, 11]) / 16 / 2**0.5, rtol=1e-6)
    # 3, 4 and 5; 8, 15 and 17; 12, 5 and 13; 4, 3 and 5: shares of 40.
    np.testing.assert_allclose(support[1, 1], np.array([5, 17, 13, 5]) / 27 / 2**0.5, rtol=1e-6)
    np.testing.assert_allclose(centrality(support[:1, 1]), np.array([12, 4, 5, 11]) / 32, rtol=1e-6)
    np.testing.assert_allclose(centrality(support[1:, 1]), np.array([5, 17, 13, 5]) / 40, rtol=1e-6)
    # Alone the layers would choose tokens 0 and 3, and 1 and 2.
    alpha = centrality(support[:, 1])
    np.testing.assert_allclose(alpha, np.array([80, 88, 77, 75]) / 320, rtol=1e-6)
    # Token 2 has cosines of 3/5 and 4/5 with the anchors 0 and 1, token 3 of 12/13 and 5/13.
    result = PAPER(gamma=0.5).compress(Signals(rows([5, 0], [0, 2], [3, 4], [12, 5]), alpha))
    assert result.groups.tolist() == [0, 1, 1, 0]
    # (16/31) (5, 0) + (15/31) (12, 5), and (8/15) (0, 2) + (7/15) (3, 4).
    np.testing.assert_allclose(result.vectors, [[260 / 31, 75 / 31], [21 / 15, 44 / 15]], rtol=1e-6)


def test_four_tokens_fold_into_two() -> None:
    # Anchors are tokens 1 and 3. Token 0 points as token 1 does; token 2 is nearer to token 3. The first group weighs
    # (4, 0) by 1 and (2, 0) by 3, the second (0, 1) by 1 and (0, 4) by 2, plus nothing else.
    vectors = rows([4, 0], [2, 0], [1, 8], [0, 4])
    page = Signals(vectors, np.array([1, 3, 1, 2], np.float32))
    result = PAPER(gamma=0.5).compress(page)
    assert result.groups.tolist() == [0, 0, 1, 1]
    # (1/4) (4, 0) + (3/4) (2, 0), and (1/3) (1, 8) + (2/3) (0, 4).
    np.testing.assert_allclose(result.vectors, [[2.5, 0], [1 / 3, 16 / 3]], atol=1e-6)


def test_weights_are_taken_before_scaling() -> None:
    # Weighing unit vectors would give the direction (1, 1).
    page = Signals(rows([3, 0], [0, 1]), np.ones(2, np.float32))
    np.testing.assert_allclose(PAPER(cap=1).compress(page).vectors, rows([1.5, 0.5]), atol=1e-6)


def test_ablations_change_one_thing_each() -> None:
    page = Signals(rows([1, 0], [0, 1], [0.2, 1]), np.array([3, 2, 1], np.float32))
    np.testing.assert_allclose(PAPER(cap=2, folding=False).compress(page).vectors, [[1, 0], [0, 1]])
    assert PAPER(cap=2, folding=False).compress(page).groups.tolist() == [0, 1, -1]
    uniform = PAPER(cap=2, weights="uniform").compress(page).vectors
    np.testing.assert_allclose(uniform[1], [0.1, 1], atol=1e-6)
    weighted = PAPER(cap=2).compress(page).vectors
    np.testing.assert_allclose(weighted[1], [0.2 / 3, 1], atol=1e-6)
    window = Window(2, 3, steps=6)
    assert PAPER(cap=2).asks(window, 6) == window
    assert PAPER(cap=2, steps=1).asks(window, 6) == Window(2, 3, steps=1)


def test_random_anchors_ignore_centrality() -> None:
    page, other = random_page(30), random_page(30, seed=0)
    settings = PAPER(gamma=0.2, anchors="random", weights="uniform")
    blind = Signals(other.vectors)
    assert settings.compress(page).groups.tolist() == settings.compress(blind).groups.tolist()
    assert settings.compress(page).groups.tolist() != PAPER(gamma=0.2).compress(page).groups.tolist()


def test_refinement_assigns_to_the_folded_vectors() -> None:
    # Anchors at 0 and 90 degrees. Tokens at 40, 44 and 44 go to the first, which moves to 32; the one at 46 goes to the
    # second, which moves to 68. The one at 46 is now 14 and 22 degrees away, and changes.
    page = Signals(turned(np.array([0, 90, 40, 44, 44, 46])), np.array([3, 2, 1, 1, 1, 1], np.float32))
    plain = PAPER(cap=2, weights="uniform")
    assert plain.compress(page).groups.tolist() == [0, 1, 0, 0, 0, 1]
    refined = AnchorFold(cap=2, weights="uniform", refinements=1).compress(page)
    assert refined.groups.tolist() == [0, 1, 0, 0, 0, 0]
    np.testing.assert_allclose(refined.vectors, [page.vectors[[0, 2, 3, 4, 5]].mean(axis=0), [0, 1]], atol=1e-6)


def test_refinement_weighs_by_centrality() -> None:
    # Anchors are tokens 0 and 1. Token 2 goes to the first, which becomes (80/3, 10), 21 degrees; token 3, at 48, goes
    # to the second, which becomes (10/4, 71/4), 82 degrees. Token 3 is nearer to the first now.
    page = Signals(rows([20, 0], [0, 20], [40, 30], [10, 11]), np.array([4, 3, 2, 1], np.float32))
    plain = PAPER(cap=2).compress(page)
    assert plain.groups.tolist() == [0, 1, 0, 1]
    np.testing.assert_allclose(plain.vectors, [[80 / 3, 10], [10 / 4, 71 / 4]], rtol=1e-6)
    refined = AnchorFold(cap=2, refinements=1).compress(page)
    assert refined.groups.tolist() == [0, 1, 0, 0]
    # (4 (20, 0) + 2 (40, 30) + (10, 11)) / 7.
    np.testing.assert_allclose(refined.vectors, rows([170 / 7, 71 / 7], [0, 20]), rtol=1e-6)


def test_folded_vectors_that_nothing_is_nearest_to_leave() -> None:
    # Anchors at 0, 10 and 95 degrees. The second takes the token at 50 and moves to 30, the third those at 55 and moves
    # to 68. Its own token is now nearer to the first and that at 50 to the third.
    page = Signals(turned(np.array([0, 10, 95, 50, 55, 55])), np.array([4, 3, 2, 1, 1, 1], np.float32))
    assert PAPER(cap=3, weights="uniform").compress(page).groups.tolist() == [0, 1, 2, 1, 2, 2]
    for refinements in (1, 2):
        result = AnchorFold(cap=3, weights="uniform", refinements=refinements).compress(page)
        assert result.groups.tolist() == [0, 0, 1, 1, 1, 1]
        np.testing.assert_allclose(
            result.vectors, [page.vectors[:2].mean(axis=0), page.vectors[2:].mean(axis=0)], atol=1e-6
        )


# What must hold of any page.


@pytest.mark.parametrize("refinements", [0, 2])
def test_keeping_all_changes_nothing(refinements: int) -> None:
    page = random_page(50)
    result = AnchorFold(gamma=1.0, refinements=refinements).compress(page)
    assert result.vectors.tobytes() == page.vectors.tobytes()
    assert result.groups.tolist() == list(range(50))


@pytest.mark.parametrize("refinements", [0, 2])
def test_the_order_of_tokens_does_not_matter(refinements: int) -> None:
    method = AnchorFold(gamma=0.1, refinements=refinements)
    page = random_page(60)
    shuffle = np.random.default_rng(1).permutation(60)
    assert page.centrality is not None
    moved = Signals(page.vectors[shuffle], page.centrality[shuffle])
    here, there = method.compress(page), method.compress(moved)
    # Tokens that shared a vector still do, and the vector is the same.
    np.testing.assert_allclose(here.vectors[here.groups[shuffle]], there.vectors[there.groups], atol=1e-6)


@pytest.mark.parametrize("steps", [1, 4])
def test_support_moves_with_the_tokens(steps: int) -> None:
    random = np.random.default_rng(steps)
    attention = random.random((3, 25, 25)) ** 4
    shuffle = random.permutation(25)
    moved = attention[:, shuffle][:, :, shuffle]
    np.testing.assert_allclose(layer_support(moved, steps), layer_support(attention, steps)[:, shuffle], rtol=1e-5)
    np.testing.assert_allclose(in_degree(moved), in_degree(attention)[shuffle], rtol=1e-5)


def test_equal_centralities_prefer_earlier_tokens() -> None:
    page = Signals(unit_rows(random_page(5).vectors), np.ones(5, np.float32))
    groups = PAPER(cap=2).compress(page).groups
    assert groups[0] == 0 and groups[1] == 1


def test_equal_similarities_prefer_the_earlier_anchor() -> None:
    page = Signals(rows([1, 0], [0, 1], [1, 1]), np.array([2, 2, 1], np.float32))
    assert PAPER(cap=2).compress(page).groups.tolist() == [0, 1, 0]
    # An anchor stands for itself even where it equals another one.
    twins = Signals(rows([1, 0], [1, 0], [1, 0]), np.array([2, 2, 1], np.float32))
    assert PAPER(cap=2).compress(twins).groups.tolist() == [0, 1, 0]


def test_one_anchor_takes_all() -> None:
    result = PAPER(gamma=1e-6).compress(random_page(30))
    assert result.vectors.shape == (1, 8) and result.groups.tolist() == [0] * 30


@pytest.mark.parametrize("refinements", [0, 2])
def test_one_token_and_none(refinements: int) -> None:
    method = AnchorFold(gamma=0.05, refinements=refinements)
    assert method.compress(random_page(1)).groups.tolist() == [0]
    nothing = method.compress(Signals.of(np.zeros((0, 8), np.float32), token_signals([])))
    assert nothing.vectors.shape == (0, 8) and nothing.groups.shape == (0,)


def test_zero_vectors_and_zero_centralities() -> None:
    zeros = Signals(np.zeros((4, 3), np.float32), np.zeros(4, np.float32))
    assert not PAPER(cap=2).compress(zeros).vectors.any()
    mixed = Signals(rows([1, 0], [0, 0], [0, 1]), np.array([0, 0, 0], np.float32))
    # All are anchored at the first token; without weights they count alike.
    np.testing.assert_allclose(PAPER(cap=1).compress(mixed).vectors, [[1 / 3, 1 / 3]], atol=1e-6)


def test_long_pages_are_assigned_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    units = unit_rows(random_page(100).vectors)
    anchors = np.arange(0, 100, 7)
    whole = assign(units, anchors)
    monkeypatch.setattr("budgetvdr.compress.anchorfold._BLOCK", 40)
    assert assign(units, anchors).tolist() == whole.tolist()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_damaged_attention_is_refused(bad: float) -> None:
    scores = np.array([1, bad, 1], np.float32)
    with pytest.raises(EncodingError, match="centrality to be finite"):
        Signals(np.ones((3, 2), np.float32), scores)
    attention = np.full((1, 2, 2), 0.5)
    attention[0, 0, 1] = bad
    with pytest.raises(EncodingError, match="attention that is finite"):
        layer_support(attention, 2)
    for damaged in ("support", "in_degree", "from_global"):
        parts = {name: np.ones((1, 3), np.float32) for name in Attention.__slots__}
        parts[damaged][0, 1] = bad
        with pytest.raises(EncodingError, match=damaged):
            Signals.of(np.ones((3, 2), np.float32), token_signals([Attention(**parts)]))


def test_missing_centrality_is_named() -> None:
    with pytest.raises(CompressionError, match="AnchorFold needs centrality"):
        PAPER(gamma=0.2).compress(Signals(np.ones((3, 2), np.float32)))


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(EncodingError, match="one value a vector"):
        Signals(np.ones((3, 2), np.float32), np.ones(2, np.float32))
    with pytest.raises(EncodingError, match="expected attention"):
        layer_support(np.ones((2, 3, 4)), 1)


@pytest.mark.parametrize(
    "settings",
    [
        *({}, {"gamma": 0.2, "cap": 3}, {"gamma": 0.0}, {"gamma": 1.1}, {"gamma": float("nan")}, {"cap": 0}),
        *({"gamma": 0.2, "steps": 0}, {"gamma": 0.2, "refinements": -1}),
        *({"gamma": 0.2, "anchors": "best"}, {"gamma": 0.2, "weights": "none"}),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(BudgetError):
        AnchorFold(**settings)  # type: ignore[arg-type]


# Pages read in several windows.


def test_windows_are_blocks_of_one_attention_matrix() -> None:
    random = np.random.default_rng(3)
    sizes, heads, steps = (5, 2, 9), 4, 3
    whole, windows, at = np.zeros((2, heads, 16, 16)), [], 0
    for size in sizes:
        blocks = random.random((2, heads, size, size)) ** 3
        whole[:, :, at : at + size, at : at + size] = blocks
        support = np.array([layer_support(block, steps)[-1] for block in blocks])
        degrees = np.array([in_degree(block) for block in blocks])
        windows.append(Attention(support, degrees, np.full((2, size), 1 / size, np.float32)))
        at += size
    page = token_signals(windows)
    # In units of 1/16, at float16 precision.
    np.testing.assert_allclose(page.centrality, 16 * reference_centrality(list(whole), steps), rtol=1e-3)
    np.testing.assert_allclose(page.in_degree, 16 * np.mean([in_degree(layer) for layer in whole], axis=0), rtol=1e-3)
    np.testing.assert_allclose(page.from_global, np.ones(16), rtol=1e-3)
    for scores in (page.centrality, page.in_degree, page.from_global):
        assert scores.dtype == np.float32
        assert scores.astype(np.float16).astype(np.float32).tobytes() == scores.tobytes()


def test_a_page_from_an_encoder_is_the_page_that_an_index_gives_back() -> None:
    fresh = random_page(50)
    assert fresh.centrality is not None
    scores = fresh.centrality.astype(np.float16).astype(np.float32)
    signals = TokenSignals(scores, scores, scores)
    stored = fresh.vectors.astype(np.float16)
    for method in (AnchorFold(gamma=0.2), PAPER(gamma=0.2)):
        now, later = (method.compress(Signals.of(vectors, signals)) for vectors in (fresh.vectors, stored))
        assert now.vectors.tobytes() == later.vectors.tobytes() and now.groups.tolist() == later.groups.tolist()


def test_vectors_that_leave_float16_are_refused() -> None:
    with pytest.raises(EncodingError, match="expected finite vectors"):
        Signals.of(np.full((2, 3), 1e6, np.float32))


def manifest_with(compression: Mapping[int, Window]) -> Manifest:
    return replace(load_manifest(bundled_folder()), compression=compression)


def test_what_a_method_asks_of_a_bundle() -> None:
    windows = {6: Window(2, 3, 4), 4: Window(3, 3, 2)}
    whole = manifest_with(windows)
    assert attention_for(AnchorFold(gamma=0.2), whole, (4, 6)) == windows
    assert attention_for(AnchorFold(gamma=0.2, steps=6), whole, (6,)) == {6: Window(2, 3, 6)}
    assert attention_for(StructuralPruning(gamma=0.2), whole, (4, 6)) == {4: Window(3, 3), 6: Window(2, 3)}
    assert attention_for(DocPruner(threshold=1), manifest_with({}), (4, 6)) == {4: Window(3, 3), 6: Window(5, 5)}
    assert attention_for(WardFold(gamma=0.2), manifest_with({}), (4, 6)) == {}
    for method in (AnchorFold(gamma=0.2), StructuralPruning(gamma=0.2)):
        with pytest.raises(CompressionError, match=r"none at depth 2; run `budgetvdr calibrate"):
            attention_for(method, whole, (2, 4))


def test_chance_and_plain_means_need_no_attention() -> None:
    page = Signals(np.eye(6, dtype=np.float32))
    for method in (
        AnchorFold(gamma=0.5, anchors="random", weights="uniform"),
        AnchorFold(gamma=0.5, anchors="random", folding=False),
    ):
        assert method.asks(None, 2) is None
        assert method.compress(page).vectors.shape == (3, 6)
    assert AnchorFold(gamma=0.5, anchors="random").asks(Window(1, 2, 3), 4) == Window(1, 2, 3)
    assert AnchorFold(gamma=0.5, weights="uniform").asks(Window(1, 2, 3), 4) == Window(1, 2, 3)


def test_refined_vectors_are_in_the_order_of_their_first_tokens() -> None:
    vectors = np.random.default_rng(0).standard_normal((80, 4)).astype(np.float32)
    page = Signals(vectors, np.random.default_rng(1).random(80).astype(np.float32))
    _, first = np.unique(AnchorFold(gamma=0.2, refinements=2).compress(page).groups, return_index=True)
    assert first.tolist() == sorted(first.tolist())
