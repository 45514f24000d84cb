"""The best pages are the same ones in whatever order, and in whatever parts, they are met."""

from __future__ import annotations

import numpy as np
import pytest

from budgetvdr.best import Best, best

RNG = np.random.default_rng(11)


def obvious(scores: np.ndarray, k: int, addresses: np.ndarray) -> list[int]:
    finite = [place for place in range(len(scores)) if scores[place] > -np.inf]
    return sorted(finite, key=lambda place: (-scores[place], addresses[place]))[:k]


@pytest.mark.parametrize("count", [0, 1, 7, 300])
@pytest.mark.parametrize("k", [1, 5, 100, 1000])
@pytest.mark.parametrize("levels", [2, 1000])
def test_best_is_what_sorting_gives(count: int, k: int, levels: int) -> None:
    scores = RNG.integers(0, levels, count).astype(np.float32)
    scores[RNG.random(count) < 0.2] = -np.inf
    addresses = RNG.permutation(count).astype(np.uint64)
    assert best(scores, k, addresses).tolist() == obvious(scores, k, addresses)
    kept = Best(k)
    for part in np.array_split(RNG.permutation(count), 5):
        kept.add(addresses[part], scores[part])
    expected = obvious(scores, k, addresses)
    assert kept.addresses.tolist() == addresses[expected].tolist()
    assert kept.scores.tolist() == scores[expected].tolist()
