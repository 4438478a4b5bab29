"""What users of scikit-learn and statsmodels expect of an estimator: names, shapes, columns, containers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy.stats import norm
from sklearn.compose import TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.linear_model import BayesianRidge, LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, PowerTransformer, QuantileTransformer, StandardScaler

import vhat
from vhat.estimator import calibration

LINEAR = {"hidden_layer_sizes": (), "weight_decay": 0.0}
RIDGE = {"hidden_layer_sizes": (), "weight_decay": 0.01}


def table(rows=60, seed=0):
    rng = np.random.default_rng(seed)
    X = pd.DataFrame({"a": rng.uniform(-2, 2, rows), "b": rng.normal(50, 10, rows)})
    return X, 200 + 30 * X["a"] + 0.5 * X["b"] + 3 * rng.standard_normal(rows)


X, Y = table()
NEW, NEW_Y = table(9, seed=1)
NEW.index = pd.Index(list("abcdefghi"), name="well")


@pytest.fixture(scope="module")
def linear():
    return vhat.NetworkRegressor(**LINEAR).fit(X, Y)


@pytest.fixture(scope="module")
def ols():
    return sm.OLS(Y, sm.add_constant(X)).fit().get_prediction(sm.add_constant(NEW))


# -- standard deviations and quantiles -----------------------------------------------------------------------
def test_return_std_is_the_deviation_of_a_new_response_as_statsmodels_has_it(linear, ols):
    center, deviation = linear.predict(NEW, return_std=True)
    np.testing.assert_array_equal(center, linear.predict(NEW))
    np.testing.assert_allclose(center, ols.predicted_mean, rtol=1e-9)
    np.testing.assert_allclose(deviation, ols.se_obs, rtol=1e-8)
    np.testing.assert_allclose(linear.predict_interval(NEW).standard_error, ols.se_mean, rtol=1e-8)


def test_return_std_is_that_of_bayesian_ridge(linear):
    """Its noise has 58 degrees of freedom, and the mean of the responses counts as known; the prior hardly matters."""
    theirs = make_pipeline(StandardScaler(), BayesianRidge()).fit(X, Y).predict(NEW, return_std=True)[1]
    noise = linear.predict_interval(NEW).noise
    expected = np.sqrt(theirs**2 * 58 / 57 + noise**2 / 60)
    np.testing.assert_allclose(linear.predict(NEW, return_std=True)[1], expected, rtol=1e-3)


def test_quantiles_are_ranks_of_the_signed_errors_of_refits(linear):
    """Least squares without each row in turn, by hand; 60 rows."""
    J, K = (np.column_stack([np.ones(len(each)), each]) for each in (X, NEW))
    y = Y.to_numpy()
    scores = []
    for row in range(60):
        others = np.delete(np.arange(60), row)
        leans = J[row] @ np.linalg.pinv(J[others])
        scores.append((y[row] - leans @ y[others]) / np.sqrt(1 + leans @ leans))
    center = K @ np.linalg.lstsq(J, y, rcond=None)[0]
    width = np.sqrt(1 + np.sum((K @ np.linalg.pinv(J)) ** 2, axis=1))
    # floor(0.05 x 61) = 3rd, floor(0.3 x 61) = 18th, ceil(0.5 x 61) = 31st, ceil(0.95 x 61) = 58th smallest
    expected = center[:, None] + width[:, None] * np.sort(scores)[[2, 17, 30, 57]]
    np.testing.assert_allclose(linear.predict_quantiles(NEW, [0.05, 0.3, 0.5, 0.95]), expected, rtol=1e-9)


@pytest.mark.slow
def test_quantiles_hold_their_share_on_each_side_of_skewed_responses():
    """Exponential noise: of symmetric intervals, the lower end would be missed by none."""
    rng, below, times = np.random.default_rng(2), [], 60
    for _ in range(times):
        points = rng.uniform(-1, 1, size=(90, 1))
        y = points[:, 0] + rng.exponential(size=90)
        network = vhat.NetworkRegressor(**RIDGE).fit(points[:59], y[:59])
        below.append(np.mean(y[59:, None] <= network.predict_quantiles(points[59:], [0.1, 0.5, 0.9]), axis=0))
    error = np.std(below, axis=0) / np.sqrt(times)
    # floor(0.1 x 60) = 6, ceil(0.5 x 60) = 30, ceil(0.9 x 60) = 54 of 60
    assert np.all(np.abs(np.mean(below, axis=0) - [0.1, 0.5, 0.9]) < 3.5 * error)
    assert np.all(error < 0.015)


def test_quantiles_rise_have_a_column_each_and_are_refused_in_words(linear):
    found = linear.predict_quantiles(NEW, np.linspace(0.02, 0.98, 25))
    assert found.shape == (9, 25)
    assert np.all(np.diff(found, axis=1) >= 0)
    both = vhat.NetworkRegressor(**RIDGE).fit(X, np.column_stack([Y, -Y]))
    assert both.predict_quantiles(NEW).shape == (9, 2, 3)
    for wrong in ([0.0, 0.5], [1.2], [], 0.5, [np.nan]):
        with pytest.raises(vhat.InputError, match=r"such as \[0\.05, 0\.5, 0\.95\]"):
            linear.predict_quantiles(NEW, wrong)


def test_quantiles_that_cannot_be_calibrated_are_those_of_student_in_words(linear, ols):
    with pytest.warns(vhat.CalibrationWarning, match=r"too few for the quantile 0\.001.*network\.calibrate"):
        found = linear.predict_quantiles(NEW, [0.001, 0.5, 0.975])
    expected = ols.summary_frame(alpha=0.05)["obs_ci_upper"]
    np.testing.assert_allclose(found[:, 2], expected, rtol=1e-8)
    np.testing.assert_allclose(found[:, 1], ols.predicted_mean, rtol=1e-8)
    assert np.all(found[:, 0] < ols.summary_frame(alpha=0.01)["obs_ci_lower"])


# -- statsmodels ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_a_summary_frame_is_that_of_statsmodels(linear, ols, alpha):
    found = linear.summary_frame(NEW, alpha, bound="asymptotic")
    pd.testing.assert_frame_equal(found, ols.summary_frame(alpha=alpha), rtol=1e-8, check_names=False)
    assert found.index.name == "well"


def test_a_summary_frame_holds_the_intervals_of_the_estimator(linear):
    found = linear.summary_frame(NEW)
    np.testing.assert_array_equal(found["mean_ci_lower"], linear.predict_interval(NEW).lower)
    np.testing.assert_array_equal(found["obs_ci_upper"], linear.predict_interval(NEW, target="observation").upper)


# -- level ---------------------------------------------------------------------------------------------------
def test_a_confidence_level_is_one_minus_delta(linear):
    for target in ("mean", "observation"):
        found = linear.predict_interval(NEW, confidence_level=0.95, target=target)
        np.testing.assert_array_equal(found.upper, linear.predict_interval(NEW, 0.05, target=target).upper)
        assert found.delta == 0.05
    assert linear.predict_interval(NEW, confidence_level=0.9).delta == 0.1
    with pytest.raises(vhat.InputError, match=r"both given.*Give one of them"):
        linear.predict_interval(NEW, 0.05, confidence_level=0.95)
    for wrong in (0.0, 1.0, 95, "95%", [0.9]):
        with pytest.raises(vhat.InputError, match=r"is not between 0 and 1: 0\.95"):
            linear.predict_interval(NEW, confidence_level=wrong)


# -- pipelines, searches, transformed targets ------------------------------------------------------------------
def same(found, expected):
    for name in ("center", "lower", "upper", "half_width", "standard_error"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-7, err_msg=name)


@pytest.mark.parametrize("options", [{}, {"target": "observation", "confidence_level": 0.9}, {"bound": "asymptotic"}])
def test_a_pipeline_and_a_search_have_the_intervals_of_their_last_step(linear, options):
    """The scaler changes nothing of a linear fit without decay."""
    expected = linear.predict_interval(NEW, **options)
    pipe = make_pipeline(StandardScaler(), vhat.NetworkRegressor(**LINEAR))
    search = GridSearchCV(pipe, {"networkregressor__hidden_layer_sizes": [()]}, cv=2).fit(X, Y)
    for model in (linear, pipe.fit(X, Y), search, Pipeline([("only", linear)])):
        found = vhat.interval_of(model, NEW, **options)
        same(found, expected)
        assert list(found.to_pandas().index) == list("abcdefghi")


@pytest.mark.parametrize("nested", ["target outside", "pipeline outside"])
def test_a_scaled_target_has_the_intervals_of_the_target(linear, nested):
    expected = linear.predict_interval(NEW, 0.1, target="observation")
    if nested == "target outside":
        inner = make_pipeline(StandardScaler(), vhat.NetworkRegressor(**LINEAR))
        model = TransformedTargetRegressor(inner, transformer=StandardScaler()).fit(X, Y)
    else:
        inner = TransformedTargetRegressor(vhat.NetworkRegressor(**LINEAR), transformer=StandardScaler())
        model = make_pipeline(StandardScaler(), inner).fit(X, Y)
    found = vhat.interval_of(model, NEW, 0.1, target="observation")
    same(found, expected)
    np.testing.assert_allclose(found.center, model.predict(NEW), rtol=1e-9)
    assert "mapped back" in found.guarantee
    assert "transformed target" in found.noise_source


def test_a_logarithm_is_mapped_back_by_the_exponential_and_is_never_negative():
    y = np.exp(Y / 50)
    model = TransformedTargetRegressor(vhat.NetworkRegressor(**RIDGE), func=np.log, inverse_func=np.exp).fit(X, y)
    inside = vhat.NetworkRegressor(**RIDGE).fit(X, np.log(y)).predict_interval(NEW, 0.1, target="observation")
    found = vhat.interval_of(model, NEW, 0.1, target="observation")
    np.testing.assert_allclose(found.lower, np.exp(inside.lower), rtol=1e-9)
    np.testing.assert_allclose(found.upper, np.exp(inside.upper), rtol=1e-9)
    np.testing.assert_allclose(found.center, model.predict(NEW), rtol=1e-9)
    np.testing.assert_allclose(found.half_width, (found.upper - found.lower) / 2)
    assert np.all(found.lower > 0)
    mean = vhat.interval_of(model, NEW)
    assert "the mean of the transformed response, mapped back" in mean.guarantee


def test_a_decreasing_transformation_exchanges_the_limits():
    model = TransformedTargetRegressor(vhat.NetworkRegressor(**LINEAR), func=np.negative, inverse_func=np.negative)
    found = vhat.interval_of(model.fit(X, Y), NEW)
    same(found, vhat.NetworkRegressor(**LINEAR).fit(X, Y).predict_interval(NEW))


@pytest.mark.slow
def test_a_power_transformation_covers_new_responses_at_its_level():
    rng, shares = np.random.default_rng(3), []
    for _ in range(30):
        points = rng.uniform(0, 1, size=(100, 1))
        y = np.exp(points[:, 0] + 0.5 * rng.standard_normal(100))
        inner = vhat.NetworkRegressor(**RIDGE)
        model = TransformedTargetRegressor(inner, transformer=PowerTransformer("box-cox")).fit(points[:59], y[:59])
        band = vhat.interval_of(model, points[59:], 0.1, target="observation")
        shares.append(np.mean((band.lower <= y[59:]) & (y[59:] <= band.upper)))
    assert np.mean(shares) == pytest.approx(0.9, abs=3 * np.std(shares) / np.sqrt(30))


@pytest.mark.filterwarnings("ignore:column 'b' was between:vhat.SupportWarning")
@pytest.mark.parametrize(
    "transformer",
    [
        FunctionTransformer(np.sqrt, np.square, check_inverse=False),  # of a line that goes below zero
        QuantileTransformer(n_quantiles=10),  # flat beyond its table
    ],
)
def test_transformations_that_are_not_monotone_are_refused_in_words(transformer):
    y = (Y - Y.min()) / 1e3 if isinstance(transformer, FunctionTransformer) else Y
    model = TransformedTargetRegressor(vhat.NetworkRegressor(**LINEAR), transformer=transformer, check_inverse=False)
    model.fit(X, y)
    far = pd.DataFrame({"a": [-9.0, 9.0], "b": [0.0, 100.0]})
    with pytest.raises(vhat.InputError, match=r"is not strictly monotone.*logarithm|cannot be mapped back"):
        vhat.interval_of(model, far, target="observation")


def test_what_has_no_intervals_is_refused_with_what_has():
    with pytest.raises(
        vhat.InputError, match=r"LinearRegression has no intervals\. Give .* a NetworkRegressor; a Pipeline"
    ):
        vhat.interval_of(LinearRegression().fit(X / 50, Y / 100), NEW)
    with pytest.raises(vhat.InputError, match="LinearRegression has no intervals"):
        vhat.interval_of(make_pipeline(StandardScaler(), LinearRegression()).fit(X, Y), NEW)
    search = GridSearchCV(vhat.NetworkRegressor(**LINEAR), {"random_state": [0]}, cv=2, refit=False)
    with pytest.raises(vhat.InputError, match="refit=True"):
        vhat.interval_of(search.fit(X, Y), NEW)
    both = TransformedTargetRegressor(vhat.NetworkRegressor(**LINEAR), transformer=PCA(2))
    with pytest.raises(vhat.InputError, match="several outputs"):
        vhat.interval_of(both.fit(X, np.column_stack([Y, Y**2])), NEW)


# -- polars and Arrow ------------------------------------------------------------------------------------------
def frames(kind):
    """The same tables of another library."""
    if kind == "polars":
        polars = pytest.importorskip("polars")
        columns, points = (polars.DataFrame(each.to_dict("list")) for each in (X, NEW))
        return columns, polars.Series("yield", Y.to_list()), points
    arrow = pytest.importorskip("pyarrow")
    return arrow.table(X), arrow.chunked_array([Y.to_numpy()]), arrow.table(NEW.reset_index(drop=True))


@pytest.mark.parametrize("kind", ["polars", "arrow"])
def test_tables_of_other_libraries_go_in_and_come_out(linear, kind):
    columns, response, points = frames(kind)
    network = vhat.NetworkRegressor(**LINEAR).fit(columns, response)
    assert list(network.feature_names_in_) == ["a", "b"]
    assert network.target_name_ == ("yield" if kind == "polars" else None)
    np.testing.assert_array_equal(network.predict(points), linear.predict(NEW))
    band = network.predict_interval(points, target="observation")
    np.testing.assert_array_equal(band.upper, linear.predict_interval(NEW, target="observation").upper)
    out = band.to_polars() if kind == "polars" else band.to_arrow()
    assert type(out) is type(points)
    assert out["upper"].to_numpy().tolist() == band.upper.tolist()
    assert (out["status"].to_pylist() if kind == "arrow" else out["status"].to_list()) == ["converged"] * 9
    found = network.summary_frame(points)
    assert type(found) is type(points)
    np.testing.assert_allclose(found["mean_se"].to_numpy(), linear.summary_frame(NEW)["mean_se"])
    np.testing.assert_array_equal(vhat.interval_of(network, points).upper, network.predict_interval(points).upper)
    network.calibrate(points, NEW_Y)
    assert network.calibrated_.source == "split"


def test_an_index_becomes_a_column_of_polars_and_of_arrow(linear):
    band = linear.predict_interval(NEW)
    assert band.to_polars()["well"].to_list() == list("abcdefghi")
    assert band.to_arrow()["well"].to_pylist() == list("abcdefghi")


def test_a_lazy_frame_is_refused_in_words(linear):
    polars = pytest.importorskip("polars")
    with pytest.raises(vhat.InputError, match=r"polars LazyFrame.*collect\(\)"):
        linear.predict(polars.DataFrame(NEW.to_dict("list")).lazy())


# -- the way of the training -------------------------------------------------------------------------------------
def test_the_loss_curve_falls_to_the_objective_of_the_fit():
    network = vhat.NetworkRegressor((3,), weight_decay=0.01).fit(X, Y)
    assert network.n_iter_ == len(network.loss_curve_) > 3
    curve = np.array(network.loss_curve_)
    assert np.all(np.diff(curve) <= 1e-12 * curve[:-1])
    residual = (network.predict(X) - Y) / Y.std(ddof=0)
    weights = network.fitted_.problem.theta
    objective = np.mean(residual**2) / 2 + 0.01 / 2 * np.sum(weights**2)
    assert curve[-1] == pytest.approx(objective, rel=1e-9)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::vhat.SelectionWarning")
def test_the_loss_curve_of_other_recipes_counts_every_step():
    network = vhat.NetworkRegressor(
        (3,), weight_decay=0.01, recipe=lambda net, lam: vhat.fit.Adam(net, lam, steps=1200)
    )
    network.fit(X, Y)
    assert network.n_iter_ == 1200
    assert network.loss_curve_[-1] < network.loss_curve_[0]
    chosen = vhat.NetworkRegressor((3,), weight_decay=[1e-3, 1e-2]).fit(X, Y)
    again = vhat.NetworkRegressor((3,), weight_decay=chosen.weight_decay_).fit(X, Y)
    assert 1 <= chosen.n_iter_ <= again.n_iter_  # it begins where a candidate ended


def test_the_loss_curve_is_saved(tmp_path):
    network = vhat.NetworkRegressor(**RIDGE).fit(X, Y)
    network.save(tmp_path / "model")
    again = vhat.NetworkRegressor.load(tmp_path / "model")
    assert again.loss_curve_ == network.loss_curve_
    assert again.n_iter_ == network.n_iter_


def test_normal_errors_have_normal_quantiles(linear):
    """The calibrated 95% point of 60 rows is near the textbook's: a sanity check of the scale."""
    _, deviation = linear.predict(NEW, return_std=True)
    found = (linear.predict_quantiles(NEW, [0.9])[:, 0] - linear.predict(NEW)) / deviation
    assert calibration.ensure_calibration(linear, None)[0].source == "loo"
    assert np.all(np.abs(found - norm.ppf(0.9)) < 4 * np.sqrt(0.09 / 60) / norm.pdf(norm.ppf(0.9)))
