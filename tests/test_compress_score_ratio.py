"""SR by hand."""

from __future__ import annotations

import numpy as np
import pytest

from budgetvdr.compress import AnchorFold, Pooling, Signals, score_ratio
from budgetvdr.errors import CompressionError

# East, and twice as long north; one query vector towards each.
VECTORS = np.array([[1, 0], [0, 2]], np.float32)
QUERY = np.eye(2, dtype=np.float32)


def test_what_is_kept_keeps_its_score() -> None:
    assert score_ratio(QUERY, Signals(VECTORS), Pooling(gamma=1.0)) == 1


def test_one_vector_for_two() -> None:
    # The mean of the unit vectors points north-east: each query vector scores cos 45 degrees in place of 1.
    assert score_ratio(QUERY, Signals(VECTORS), Pooling(cap=1)) == pytest.approx(np.sqrt(0.5))
    # North alone: one of two query vectors finds nothing.
    page = Signals(VECTORS, centrality=np.array([0.5, 1.5], np.float32))
    assert score_ratio(QUERY, page, AnchorFold(cap=1, folding=False)) == pytest.approx(0.5)


def test_a_page_that_scores_nothing_has_no_ratio() -> None:
    for vectors in (-VECTORS, np.zeros((0, 2), np.float32)):
        with pytest.raises(CompressionError, match="has no ratio"):
            score_ratio(QUERY, Signals(vectors), Pooling(gamma=1.0))
