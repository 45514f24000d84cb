"""The choice of K and window: the rules on numbers worked out by hand, and all of it on pages made to be told apart."""

from __future__ import annotations

import json

import numpy as np
import pytest

from budgetvdr.compress import AnchorFold, Signals, Window
from budgetvdr.compress.calibrate import (
    Pair,
    calibrate,
    maxsim,
    paired_gaps,
    scores,
    standard_error,
    window_before_decline,
)
from budgetvdr.compress.signals import centrality
from budgetvdr.errors import CompressionError
from budgetvdr.unit import unit_rows


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        # Median 0.925: the last three stay below it, the two layers before them are the window.
        ([0.8, 0.9, 0.95, 0.96, 0.97, 0.96, 0.95, 0.9, 0.8, 0.7], (5, 6)),
        # The last layer is not below the median: nothing is set aside.
        ([0.7, 0.8, 0.9, 0.95, 0.96, 0.97], (4, 5)),
        # A dip in the middle is no part of the trailing run.
        ([0.9, 0.9, 0.1, 0.9, 0.9, 0.2], (3, 4)),
        # A flat profile has no layer below its median.
        ([0.9] * 6, (4, 5)),
        # Decline from the start: fewer layers than the window is wide are left.
        ([0.9, 0.8, 0.7, 0.6, 0.5, 0.4], (1, 2)),
        ([0.9, 0.1], (0, 0)),
        ([0.9], (0, 0)),
    ],
)
def test_window_before_decline(profile: list[float], expected: tuple[int, int]) -> None:
    assert window_before_decline(profile) == expected


@pytest.mark.parametrize(("layers", "expected"), [(18, 4), (36, 8), (28, 6), (35, 7), (6, 2), (4, 1)])
def test_windows_have_the_published_widths(layers: int, expected: int) -> None:
    first, last = window_before_decline([0.5] * layers)
    assert (last - first + 1, last) == (expected, layers - 1)


def test_gaps_are_paired() -> None:
    # K = 4 is best on average. Gaps to K = 2: 0.02, 0.04, 0.06, of mean 0.04 and deviation 0.02.
    ratios = {2: np.array([0.90, 0.86, 0.80]), 4: np.array([0.92, 0.90, 0.86]), 8: np.array([0.93, 0.90, 0.84])}
    gaps = paired_gaps(ratios)
    assert gaps[4] == (0, 0)
    assert gaps[2] == pytest.approx((0.04, 0.02 / 3**0.5))
    # Gaps to K = 8: -0.01, 0, 0.02, of mean 1/300 and variance 7/3 * 1e-4.
    assert gaps[8] == pytest.approx((1 / 300, (7 / 3 * 1e-4 / 3) ** 0.5))


def test_of_equal_means_the_smaller_k_is_best() -> None:
    same = np.array([0.5, 0.7])
    assert paired_gaps({6: same, 2: same[::-1].copy()})[2] == (0, 0)


def test_standard_error() -> None:
    assert standard_error(np.array([1.0, 3.0])) == pytest.approx(1)
    assert standard_error(np.array([1.0])) == 0


def test_maxsim_is_the_sum_of_maxima() -> None:
    assert maxsim(np.eye(2, dtype=np.float32), np.array([[1, 0], [0.6, 0.8]], np.float32)) == pytest.approx(1.8)


def made_pairs(count: int = 12, layers: int = 5, good: tuple[int, ...] = (2,)) -> list[Pair]:
    """Queries ask for the first four tokens of a page; only `good` layers find them central, and only from step 3."""
    random = np.random.default_rng(0)
    pairs = []
    for _ in range(count):
        vectors = random.standard_normal((40, 16)).astype(np.float32)
        support = random.random((layers, 12, 40)).astype(np.float32)
        for layer in good:
            support[layer, 2:, :4] += 3
        pairs.append(Pair(unit_rows(vectors[:4]), vectors, support))
    return pairs


def test_the_layer_and_the_steps_that_keep_the_score_are_found() -> None:
    report = calibrate(made_pairs(good=(2,)), gamma=0.1)
    # Only layer 2 keeps the answers, and only after three steps or more.
    assert report.chosen.steps == 3
    assert max(report.trials[1].profile) == report.trials[1].profile[2] == pytest.approx(1, abs=0.15)
    assert report.trials[0].gap > report.trials[0].gap_error and not report.trials[0].eligible
    assert [trial.window.steps for trial in report.trials] == [2, 3, 4, 6, 8, 10, 12]


def test_scores_are_those_of_the_method() -> None:
    pair = made_pairs(1)[0]
    method = AnchorFold(gamma=0.2)
    page = Signals(pair.vectors, centrality(pair.support[1:3, 5]))
    expected = maxsim(pair.query, unit_rows(method.compress(page).vectors))
    assert scores([pair], Window(1, 2, 6), method).tolist() == [expected]


def test_keeping_all_leaves_nothing_to_choose() -> None:
    report = calibrate(made_pairs(3), gamma=1.0)
    assert report.chosen == Window(4, 4, 2)
    assert all(trial.sr == 1 and trial.error == 0 and trial.gap == 0 for trial in report.trials)


def test_the_report_is_plain_values() -> None:
    report = calibrate(made_pairs(4), steps=(3, 1))
    table = json.loads(json.dumps(report.to_dict()))
    assert table["pairs"] == 4 and table["depth"] == 5 and table["gamma"] == 0.2
    row = table["rows"][1]
    window = report.trials[1].window
    assert row["K"] == 3 and row["layers"] == f"{window.first}-{window.last}"
    assert row["sr"] == pytest.approx(100 * report.trials[1].sr) and len(row["profile"]) == 5
    assert table["chosen"] == {"first": report.chosen.first, "last": report.chosen.last, "steps": report.chosen.steps}


def test_what_cannot_be_calibrated_with_is_refused() -> None:
    good = made_pairs(2)
    for few in ([], good[:1]):
        with pytest.raises(CompressionError, match=f"at least two for an error of the mean; found {len(few)}"):
            calibrate(few)
    with pytest.raises(CompressionError, match="pair 1: expected support of 5 layers"):
        calibrate([good[0], Pair(good[1].query, good[1].vectors, good[1].support[:3])])
    with pytest.raises(CompressionError, match="at least 12 steps"):
        calibrate([good[0], Pair(good[1].query, good[1].vectors, good[1].support[:, :6])])
    with pytest.raises(CompressionError, match="pair 1 scores"):
        calibrate([good[0], Pair(np.zeros_like(good[1].query), good[1].vectors, good[1].support)])
