"""The estimator's intervals for new responses: calibrated, kept, saved; by the bound only in words."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize

import vhat
from vhat.estimator import calibration, calibration_by_refits, held_out
from vhat.tables.row_names import RowNames

OPTIONS = {"hidden_layer_sizes": (), "weight_decay": 0.02}


def draw(rng, rows):
    """Two columns; the noise grows with the first, which bends."""
    X = rng.uniform(-2, 2, size=(rows, 2))
    sigma = 0.2 + 0.6 * np.abs(X[:, 0])
    return X, 3 + 2 * np.sin(X[:, 0]) + X[:, 1] + sigma * rng.standard_normal(rows)


X, Y = draw(np.random.default_rng(0), 60)
NEW, NEW_Y = draw(np.random.default_rng(1), 40)


def fit(X=X, y=Y, **options):
    return vhat.NetworkRegressor(**OPTIONS | options).fit(X, y)


@pytest.fixture
def network():
    return fit()


def covered(band, y):
    return np.mean((band.lower <= y) & (y <= band.upper))


# -- level -----------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::vhat.SupportWarning")
def test_leave_one_out_covers_at_its_level_where_the_noise_is_unequal():
    """60 networks of 3 units; between fits the coverage varies by what is measured."""
    rng, shares = np.random.default_rng(2), []
    for _ in range(60):
        network = fit(*draw(rng, 60), hidden_layer_sizes=(3,))
        points, y = draw(rng, 60)
        shares.append(covered(network.predict_interval(points, 0.1, target="observation"), y))
    assert network.calibrated_.source in ("loo", "cv")
    assert np.mean(shares) == pytest.approx(0.9, abs=3 * np.std(shares) / np.sqrt(60))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::vhat.VhatWarning")
def test_folds_cover_at_their_level_where_single_rows_do_not():
    """Networks of 16 units that spend a quarter of a degree of freedom on each row: to first order 86% of 90%."""

    def rows(rng, count):
        points = rng.normal(size=(count, 6))
        mean = np.sin(2 * points[:, 0]) + points[:, 1] * points[:, 2] + 0.5 * points[:, 3]
        return points, mean + (0.2 + 0.3 * np.abs(points[:, 0])) * rng.standard_normal(count)

    rng, folds, single = np.random.default_rng(4), [], []
    for _ in range(12):
        network = vhat.NetworkRegressor((16,), weight_decay=1e-3).fit(*rows(rng, 400))
        points, y = rows(rng, 1000)
        folds.append(covered(network.predict_interval(points, 0.1, target="observation"), y))
        single.append(covered(network.fitted_.calibrate("loo").interval(points, 0.1), y))
        assert network.calibrated_.source == "cv"
    error = np.std(folds) / np.sqrt(12)
    assert np.mean(folds) == pytest.approx(0.9, abs=3 * error)
    assert error < 0.01
    assert np.mean(single) < 0.88


def test_the_level_is_kept_where_there_are_few_rows():
    """25 rows at delta = 0.1: the 24th smallest of 25 scores, which covers 24/26 of exchangeable responses."""
    rng, shares = np.random.default_rng(3), []
    for _ in range(50):
        points, y = draw(rng, 40)
        band = fit(*draw(rng, 25)).predict_interval(points, 0.1, target="observation")
        assert band.bound == "loo"
        shares.append(covered(band, y))
    error = np.std(shares) / np.sqrt(50)
    assert np.mean(shares) == pytest.approx(24 / 26, abs=3 * error)
    assert error < 0.012


# -- what is returned --------------------------------------------------------------------------------------
def test_new_responses_are_calibrated_by_leave_one_out_and_say_so(network):
    """Against refits of a ridge regression in closed form, each without one row, at the same scaling and lam/n."""
    band = network.predict_interval(NEW, 0.1, target="observation")
    scaling, lam, n = network.scaling_, network.weight_decay_, len(X)

    def columns(X):
        return np.column_stack([np.ones(len(X)), (X - scaling.center) / scaling.spread])

    def moved(rows, at):
        """Predictions at points by a fit without some rows, and what they lean on."""
        J = columns(X[rows])
        A = J.T @ J / n + lam * np.eye(3)
        leans = columns(at) @ np.linalg.solve(A, J.T) / n
        return leans @ (Y[rows] - scaling.shift) + scaling.shift, np.sum(leans**2, axis=1)

    scores = []
    for row in range(n):
        found, V = moved(np.delete(np.arange(n), row), X[[row]])
        scores.append(abs(Y[row] - found[0]) / np.sqrt(1 + V[0]))
    center, V = moved(np.arange(n), NEW)
    half = np.sort(scores)[54] * np.sqrt(1 + V)  # ceil(0.9 x 61) = 55th smallest
    np.testing.assert_allclose(band.center, center, rtol=1e-8)
    np.testing.assert_allclose(band.half_width, half, rtol=1e-7)
    assert (band.bound, band.target) == ("loo", "observation")
    assert "60 training rows, each left out in turn" in band.guarantee
    assert "exchangeable" in band.guarantee


def test_a_bound_is_reached_by_its_name_and_the_mean_is_as_it_was(network):
    for bound in ("isoperimetric", "asymptotic"):
        found = network.predict_interval(NEW, target="observation", bound=bound)
        expected = network.fitted_.interval(NEW, target="observation", bound=bound)
        np.testing.assert_array_equal(found.upper, expected.upper)
        assert found.guarantee == expected.guarantee
    assert network.calibrated_ is None
    np.testing.assert_array_equal(network.predict_interval(NEW).upper, network.fitted_.interval(NEW).upper)


def test_held_out_rows_take_the_place_of_leave_one_out(network):
    assert network.calibrate(NEW, NEW_Y) is network
    band = network.predict_interval(X[:5], 0.1, target="observation")
    expected = network.fitted_.calibrate(NEW, NEW_Y).interval(X[:5], 0.1)
    np.testing.assert_array_equal(band.upper, expected.upper)
    assert band.bound == "split"
    assert "40 calibration rows" in band.guarantee
    assert network.calibrate().predict_interval(X[:5], target="observation").bound == "loo"
    assert network.fit(X, Y).calibrated_ is None
    with pytest.raises(vhat.InputError, match="needs inputs and responses"):
        network.calibrate(NEW)


def test_held_out_rows_of_a_frame_are_matched_and_named_as_in_prediction():
    frame = pd.DataFrame(X, columns=["a", "b"])
    network = fit(frame, Y)
    held = pd.DataFrame(NEW, columns=["a", "b"], index=[f"w{k}" for k in range(40)])
    np.testing.assert_allclose(
        network.calibrate(held, NEW_Y).calibrated_.scores, fit().calibrate(NEW, NEW_Y).calibrated_.scores, rtol=1e-9
    )
    held.iloc[3, 1] = np.nan
    with pytest.warns(vhat.TableWarning, match="column 'b': cells are missing.* in row w3"):
        network.calibrate(held, NEW_Y)


def test_all_rows_at_once_share_delta_by_the_union_bound(network):
    four = network.predict_interval(NEW[:4], 0.2, target="observation", simultaneous=True)
    each = network.predict_interval(NEW[:4], 0.05, target="observation")
    np.testing.assert_array_equal(four.upper, each.upper)
    assert four.delta == 0.2
    assert four.guarantee.startswith("All 4 values at once at 80% by the union bound")


@pytest.mark.parametrize("a", [1e-6, 1e6])
def test_the_unit_of_y_scales_calibrated_limits(network, a):
    one = network.predict_interval(NEW, target="observation")
    other = fit(X, a * Y).predict_interval(NEW, target="observation")
    np.testing.assert_allclose(other.half_width, a * one.half_width, rtol=1e-7)
    alone = network.predict_interval(NEW[[3]], target="observation")
    np.testing.assert_allclose(alone.upper, one.upper[[3]], rtol=1e-12)


# -- noise ---------------------------------------------------------------------------------------------------
def test_a_noise_level_shapes_widths_and_leaves_one_common_level_where_it_was(network, monkeypatch):
    one = network.predict_interval(NEW, target="observation")
    other = network.predict_interval(NEW, target="observation", noise=7.0)
    np.testing.assert_allclose(other.upper, one.upper, rtol=1e-9)
    monkeypatch.setattr(calibration, "_by_training_rows", None)  # chunks of a table do not calibrate again
    again = network.predict_interval(NEW[:2], target="observation", noise=7.0)
    np.testing.assert_allclose(again.upper, one.upper[:2], rtol=1e-9)


def test_noise_of_each_row_is_calibrated_with_that_of_the_new_ones(network):
    rows, new = (0.2 + 0.6 * np.abs(each[:, 0]) for each in (X, NEW))
    band = network.predict_interval(NEW, 0.1, target="observation", noise=rows, observation_noise=new)
    expected = network.fitted_.calibrate("loo", noise=rows).interval(NEW, 0.1, observation_noise=new)
    np.testing.assert_array_equal(band.upper, expected.upper)


def test_noise_beside_held_out_rows_that_knew_none_is_refused_with_the_calls_that_work(network):
    network.calibrate(NEW, NEW_Y)
    with pytest.raises(vhat.InputError, match=r"Leave noise= out.*bound=.*fitted_\.calibrate\(X, y, noise=\.\.\.\)"):
        network.predict_interval(NEW, target="observation", noise=1.0)


# -- where there is no calibration ----------------------------------------------------------------------------
def falls_back(network, reason, **options):
    with pytest.warns(vhat.CalibrationWarning) as said:
        band = network.predict_interval(NEW, target="observation", **options)
    (text,) = (str(each.message) for each in said if issubclass(each.category, vhat.CalibrationWarning))
    assert reason in text
    assert "network.calibrate(X_held_out, y_held_out)" in text
    assert 'bound="isoperimetric"' in text
    expected = network.predict_interval(NEW, target="observation", bound="isoperimetric", **options)
    np.testing.assert_array_equal(band.upper, expected.upper)
    return band


def test_too_few_rows_for_the_level_fall_back_in_words(network):
    band = falls_back(
        network, "60 scores are too few for delta=0.01, and the smallest that they allow is 0.0164", delta=0.01
    )
    assert band.bound == "exact"  # what the library gives a linear model for the bound
    falls_back(network, "60 scores are too few", delta=0.05, simultaneous=True)


def test_new_responses_of_other_noise_fall_back_in_words(network):
    falls_back(network, "other noise than the rows", observation_noise=3.0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::vhat.CurvatureWarning")
def test_a_recipe_without_a_minimum_falls_back_in_words_until_rows_are_given():
    network = fit(hidden_layer_sizes=(3,), recipe=lambda net, lam: vhat.fit.Adam(net, lam, steps=30))
    with pytest.warns(vhat.NotMinimumWarning):
        falls_back(network, "not a minimum")
    assert "not a minimum" in network.not_calibrated_
    band = network.calibrate(NEW, NEW_Y).predict_interval(NEW, 0.1, target="observation")
    assert band.bound == "split"
    assert not network.not_calibrated_


def test_a_fit_that_leans_on_single_rows_is_calibrated_by_refits_without_a_fifth_of_them():
    """Against the minimum that scipy finds for one fold."""
    network = vhat.NetworkRegressor((3,), weight_decay=3e-3).fit(X[:30], Y[:30])
    with pytest.warns(
        vhat.CalibrationWarning, match=r"not to be relied on: the fit spends 0\.3\d of a degree of freedom"
    ):
        band = network.predict_interval(X[:1], 0.2, target="observation")
    assert band.bound == "cv"
    assert "30 training rows, each predicted by a refit without a fifth of the rows" in band.guarantee
    assert len(network.calibrated_.scores) == 30
    scaling, problem = network.scaling_, network.fitted_.problem
    points, y = scaling.inputs(X[:30]), scaling.responses(Y[:30])
    held = np.random.default_rng(0).permutation(30)[:6]
    kept = np.setdiff1d(np.arange(30), held)

    def predict(theta, rows):
        return problem.autodiff.predict(theta, points[rows])[:, 0]

    def objective(theta):
        # the sum over the rows that are left, and lam as in the whole
        return np.sum((predict(theta, kept) - y[kept]) ** 2) / 60 + 3e-3 / 2 * np.sum(theta**2)

    end = minimize(objective, problem.theta, options={"gtol": 1e-6}).x
    fold = calibration_by_refits._refit(network, problem.autodiff.network, points[kept], y[kept], np.ones(24))
    moved = predict(end, held) - predict(problem.theta, held)
    np.testing.assert_allclose(fold.predict(points[held]), predict(end, held), atol=0.02 * np.abs(moved).max())
    signs = np.sign(network.calibrated_.signed[held])
    np.testing.assert_array_equal(signs, np.sign(y[held] - predict(end, held)))
    assert np.abs(moved).max() > 0.05


@pytest.mark.filterwarnings("ignore::vhat.SupportWarning")
def test_a_fit_that_leans_on_single_rows_and_has_no_refits_falls_back_in_words(monkeypatch):
    monkeypatch.setattr(calibration, "by_folds", lambda *_, **__: None)  # as for other recipes, and larger networks
    network = vhat.NetworkRegressor((8,), weight_decay=1e-3).fit(X[:25], Y[:25])
    with pytest.warns(vhat.LeverageWarning):
        assert np.mean(network.fitted_.leave_one_out().leverage > 0.5) > 0.25
    falls_back(network, "degrees of freedom on each row", delta=0.2)
    with pytest.warns(vhat.CalibrationWarning, match=r"cannot calibrate this fit: .* first-order step tells\. network"):
        network.calibrate()


def test_a_calibration_that_cannot_be_relied_on_says_so_itself():
    fitted = vhat.NetworkRegressor((8,), weight_decay=1e-3).fit(X[:25], Y[:25]).fitted_
    with pytest.warns(vhat.LeverageWarning):
        found = fitted.calibrate("loo")
    assert "NOT TO BE RELIED ON: " in found.guarantee
    assert "degrees of freedom on each row" in found.doubt


# -- rows that training saw ------------------------------------------------------------------------------------
def test_training_rows_are_refused_as_held_out_rows_by_every_call(network, tmp_path):
    whole = np.concatenate([X, NEW]), np.concatenate([Y, NEW_Y])
    for rows in ((X, Y), (X[::-1][:20], Y[::-1][:20]), whole):
        for call in (
            lambda rows=rows: network.calibrate(*rows),
            lambda rows=rows: network.fitted_.calibrate(*rows),
            lambda rows=rows: network.fitted_.with_validation(*rows),
            lambda rows=rows: network.report(tmp_path / "r.html", held_out=rows),
            lambda rows=rows: network.fitted_.report(tmp_path / "r.html", held_out=rows),
        ):
            with pytest.raises(vhat.InputError, match=r"also (a )?training row"):
                call()
    assert not list(tmp_path.iterdir())
    assert network.calibrated_.source == "loo"


def test_rows_that_calibrate_do_not_judge(network, tmp_path):
    network.calibrate(NEW, NEW_Y)
    with pytest.raises(vhat.InputError, match="calibrate these intervals"):
        network.report(tmp_path / "r.html", held_out=(NEW, NEW_Y))
    assert not list(tmp_path.iterdir())
    held_out.keep(network, NEW, NEW_Y, RowNames.of(NEW, 40))
    with pytest.warns(vhat.CalibrationWarning, match="rows that were kept apart calibrate these intervals"):
        assert held_out.judging_rows(network, None) is None
    network.calibrate()
    assert held_out.judging_rows(network, None) is network.held_out_


# -- on disk -----------------------------------------------------------------------------------------------------
def test_a_calibration_is_saved_with_the_model_and_not_made_again(network, tmp_path, monkeypatch):
    by_rows = fit().calibrate(NEW, NEW_Y)
    few = fit()
    held_out.keep(few, NEW, NEW_Y, RowNames.of(NEW, 40))
    network.predict_interval(NEW, target="observation")
    made = {"loo": network, "split": by_rows}
    expected = {name: each.predict_interval(NEW, 0.1, target="observation") for name, each in made.items()}
    for name, each in (made | {"kept": few}).items():
        each.save(tmp_path / name)
    monkeypatch.setattr(calibration, "_by_training_rows", None)
    for name, band in expected.items():
        again = vhat.NetworkRegressor.load(tmp_path / name)
        found = again.predict_interval(NEW, 0.1, target="observation")
        np.testing.assert_array_equal(found.upper, band.upper)
        assert (found.bound, found.guarantee) == (name, band.guarantee)
    kept = vhat.NetworkRegressor.load(tmp_path / "kept").held_out_
    np.testing.assert_array_equal(kept.X, NEW)
    np.testing.assert_array_equal(kept.y, NEW_Y)
    assert list(kept.names)[:2] == ["row 0", "row 1"]


def test_why_a_fit_is_not_calibrated_is_saved_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(calibration, "by_folds", lambda *_, **__: None)
    network = vhat.NetworkRegressor((8,), weight_decay=1e-3).fit(X[:25], Y[:25])
    with pytest.warns(vhat.CalibrationWarning):
        network.calibrate()
    network.save(tmp_path / "model")
    again = vhat.NetworkRegressor.load(tmp_path / "model")
    assert again.not_calibrated_ == network.not_calibrated_ != ""


def test_the_refits_leave_out_all_copies_of_a_row_together():
    from vhat.estimator.calibration_by_refits import _parts

    twice = fit(np.concatenate([X, X[::-1]]), np.concatenate([Y, Y[::-1]]))
    parts = _parts(twice.fitted_.problem)
    np.testing.assert_array_equal(parts[: len(X)], parts[len(X) :][::-1])
    assert np.ptp(np.bincount(parts)) <= 2


def test_a_level_that_just_misses_its_scores_falls_back_in_words(network):
    scores = len(network.calibrate().calibrated_.scores)
    # three rows share delta: in binary a third of it is enough, in decimals it is not
    delta = float(np.nextafter(3 / (scores + 1), 0))
    with pytest.warns(vhat.CalibrationWarning, match="scores are too few"):
        network.predict_interval(NEW[:3], delta, target="observation", simultaneous=True)


def test_copies_of_rows_do_not_narrow_calibrated_intervals():
    """Left out alone, a row with copies would be predicted by a model that knows it."""
    once = fit()
    many = fit(np.tile(X, (6, 1)), np.tile(Y, 6))
    band = many.predict_interval(NEW, 0.1, target="observation")
    assert band.bound == "cv"
    narrow = many.fitted_.calibrate("loo").interval(NEW, 0.1)
    assert np.all(band.half_width > narrow.half_width)
    ratio = band.half_width / once.predict_interval(NEW, 0.1, target="observation").half_width
    assert 0.7 < np.median(ratio) < 1.4


def test_training_rows_in_single_precision_are_training_rows(network):
    with pytest.raises(vhat.InputError, match="every calibration row is also a training row"):
        network.calibrate(X.astype(np.float32), Y.astype(np.float32))


def test_a_table_of_logarithms_has_no_column_called_mean():
    with pytest.raises(vhat.InputError, match="predict_interval"):
        vhat.NetworkRegressor((2,), weight_decay=0.1, log_target=True).fit(X, np.exp(Y)).summary_frame(NEW)


def test_standard_deviations_do_not_swallow_what_is_said_of_the_calibration():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 4))
    network = vhat.NetworkRegressor((8,), weight_decay=1e-3).fit(rows, np.sin(rows[:, 0]) + 0.3 * rng.normal(size=60))
    with pytest.warns(vhat.CalibrationWarning, match="not to be relied on"):
        network.predict(rows, return_std=True)
