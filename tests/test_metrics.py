from __future__ import annotations

import numpy as np
import pytest

from vhat import metrics
from vhat.errors import InputError

NAN, INF = float("nan"), float("inf")


def test_coverage_counts_ends_as_inside() -> None:
    assert metrics.coverage([0, 0, 0, 0], [1, 1, 1, 1], [0, 1, -0.1, 1.1]) == 0.5


def test_a_point_without_an_interval_counts_as_missed() -> None:
    assert metrics.coverage([NAN, 0, 0, 0], [1, NAN, 1, 1], [0.5, 0.5, 0.5, 0.5]) == 0.5


def test_an_infinite_interval_covers() -> None:
    assert metrics.coverage([-INF], [INF], [1e300]) == 1.0


def test_coverage_of_several_outputs_is_their_mean() -> None:
    lower, upper = np.zeros((2, 2)), np.ones((2, 2))
    assert metrics.coverage(lower, upper, [[0.5, 2.0], [0.5, 0.5]]) == 0.75


def test_coverage_of_a_known_law_is_its_level_within_binomial_error() -> None:
    draws = 20_000
    y = np.random.default_rng(0).uniform(size=draws)
    share = metrics.coverage(np.full(draws, 0.05), np.full(draws, 0.95), y)
    assert abs(share - 0.9) <= 4 * np.sqrt(0.09 / draws)


def test_width_without_inputs_looks_at_every_point() -> None:
    result = metrics.width([0, 0, 0, 0], [1, 2, 3, 10])
    assert result == metrics.Width(mean=4.0, median=2.5, median_half=1.25, kept=4, total=4)


def test_width_looks_at_the_nearest_test_points_once_each_and_drops_distant_training_rows() -> None:
    """By hand: distances 0.1, 0.2, 0.1, 5.0 to test points 0, 0, 1, 3; the 75% quantile is 1.4."""
    x = [0.0, 1.0, 2.0, 3.0]
    x_train = [0.1, -0.2, 1.1, 8.0]
    result = metrics.width([0] * 4, [1, 2, 4, 100], X_test=x, X_train=x_train, quantile=0.75)
    assert result == metrics.Width(mean=1.5, median=1.5, median_half=0.75, kept=2, total=4)
    everything = metrics.width([0] * 4, [1, 2, 4, 100], X_test=x, X_train=x_train, quantile=1.0)
    assert (everything.kept, everything.median) == (3, 2.0)


def test_width_filter_is_the_brute_force_definition() -> None:
    rng = np.random.default_rng(1)
    x, x_train = 1.5 * rng.standard_normal((60, 3)), rng.standard_normal((150, 3))
    upper = rng.exponential(size=60)
    distance = np.linalg.norm(x_train[:, None] - x[None], axis=2)
    near = distance.min(axis=1) <= np.percentile(distance.min(axis=1), 99)
    kept = sorted(set(distance.argmin(axis=1)[near].tolist()))
    assert len(kept) < 60
    result = metrics.width(np.zeros(60), upper, X_test=x, X_train=x_train)
    assert result.kept == len(kept)
    assert result.mean == pytest.approx(upper[kept].mean())
    assert result.median == pytest.approx(np.median(upper[kept]))


def test_width_keeps_the_outputs_of_a_kept_point_together() -> None:
    upper = np.array([[1.0, 3.0], [10.0, 20.0]])
    result = metrics.width(np.zeros((2, 2)), upper, X_test=[0.0, 9.0], X_train=[0.1])
    assert result == metrics.Width(mean=2.0, median=2.0, median_half=1.0, kept=1, total=2)


def test_width_refuses_a_missing_interval_only_where_it_is_looked_at() -> None:
    with pytest.raises(InputError, match="row 1"):
        metrics.width([0.0, NAN], [1.0, 1.0])
    assert metrics.width([0.0, NAN], [1.0, 1.0], X_test=[0.0, 9.0], X_train=[0.1]).mean == 1.0


def test_an_infinite_interval_has_infinite_mean_width_and_score() -> None:
    assert metrics.width([-INF, 0, 0], [INF, 1, 1]) == metrics.Width(INF, 1.0, 0.5, kept=3, total=3)
    assert metrics.winkler([-INF, 0], [INF, 1], [0.0, 0.5], 0.1) == INF


def test_winkler_is_the_width_plus_what_sticks_out_times_two_over_delta() -> None:
    score = metrics.winkler([0, 0, 0], [1, 2, 3], [0.5, 2.5, -0.1], delta=0.1)
    assert score == pytest.approx(((1) + (2 + 20 * 0.5) + (3 + 20 * 0.1)) / 3)


def test_winkler_is_least_at_the_true_quantiles() -> None:
    y = np.random.default_rng(2).standard_normal(50_000)
    grid = np.linspace(0.8, 3.0, 111)
    scores = [metrics.winkler(np.full(y.size, -h), np.full(y.size, h), y, 0.1) for h in grid]
    assert grid[int(np.argmin(scores))] == pytest.approx(1.645, abs=0.04)


def test_winkler_refuses_missing_intervals_and_names_them() -> None:
    with pytest.raises(InputError, match="rows 0, 2"):
        metrics.winkler([NAN, 0, 0], [1, 1, NAN], [0, 0, 0], 0.1)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, NAN])
def test_winkler_refuses_a_level_outside_its_range(delta: float) -> None:
    with pytest.raises(InputError, match="delta"):
        metrics.winkler([0], [1], [0.5], delta)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="shape"):
        metrics.coverage([0, 0], [1], [0.5, 0.5])
    with pytest.raises(InputError, match="truth has shape"):
        metrics.coverage([0, 0], [1, 1], [[0.5], [0.5]])
    with pytest.raises(InputError, match="shape"):
        metrics.coverage([], [], [])
    with pytest.raises(InputError, match="X_test"):
        metrics.width([0, 0], [1, 1], X_test=[0.0], X_train=[0.0])
    with pytest.raises(InputError, match="columns"):
        metrics.width([0], [1], X_test=[[0.0, 1.0]], X_train=[0.0])
    with pytest.raises(InputError, match="together"):
        metrics.width([0], [1], X_test=[0.0])


def test_values_that_make_no_sense_are_refused_with_their_rows() -> None:
    with pytest.raises(InputError, match="below lower in row 1"):
        metrics.coverage([0, 2], [1, 1], [0.5, 0.5])
    with pytest.raises(InputError, match="truth is NaN in row 0"):
        metrics.coverage([0], [1], [NAN])
    with pytest.raises(InputError, match="X_train has NaN or infinite values in row 1"):
        metrics.width([0], [1], X_test=[0.0], X_train=[0.0, NAN])
    with pytest.raises(InputError, match="quantile"):
        metrics.width([0], [1], X_test=[0.0], X_train=[0.0], quantile=99)


def test_coverage_width_and_score_are_mapies() -> None:
    """Beside definitions by hand: another library's, on intervals of which some miss on either side."""
    mapie = pytest.importorskip("mapie.metrics.regression")
    rng = np.random.default_rng(3)
    y = rng.standard_normal(500)
    center, half = y + 0.8 * rng.standard_normal(500), rng.exponential(size=500)
    both = np.stack([center - half, center + half], axis=1)[:, :, None]
    assert 0.2 < metrics.coverage(center - half, center + half, y) < 0.8
    assert metrics.coverage(center - half, center + half, y) == mapie.regression_coverage_score(y, both)[0]
    width = mapie.regression_mean_width_score(both)[0]
    assert metrics.width(center - half, center + half).mean == pytest.approx(width, rel=1e-12)
    for delta in (0.05, 0.5):
        score = mapie.regression_mwi_score(y, both, confidence_level=1 - delta)
        assert metrics.winkler(center - half, center + half, y, delta) == pytest.approx(score, rel=1e-12)
